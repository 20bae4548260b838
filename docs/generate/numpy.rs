//! NumPy's validation rows, run through tensors as a user would: `from_slice`, the method, `to_vec`.

use lazuli::{Device, Tensor};

use crate::read;

/// A method by the name of its table in `crates/lazuli/tests/fixtures/numpy`.
type Method = (&'static str, fn(&Tensor) -> Tensor);

const METHODS: &[Method] = &[
    ("exp", Tensor::exp),
    ("exp2", Tensor::exp2),
    ("expm1", Tensor::expm1),
    ("log", Tensor::log),
    ("log2", Tensor::log2),
    ("log10", Tensor::log10),
    ("log1p", Tensor::log1p),
    ("sin", Tensor::sin),
    ("cos", Tensor::cos),
    ("tan", Tensor::tan),
    ("asin", Tensor::asin),
    ("acos", Tensor::acos),
    ("atan", Tensor::atan),
    ("sinh", Tensor::sinh),
    ("cosh", Tensor::cosh),
    ("tanh", Tensor::tanh),
    ("asinh", Tensor::asinh),
    ("acosh", Tensor::acosh),
    ("atanh", Tensor::atanh),
    ("cbrt", Tensor::cbrt),
];

/// How a function did.
pub struct Validation {
    pub name: &'static str,
    pub n_rows: usize,
    /// Rows within NumPy's own tolerance for them.
    pub n_passed: usize,
}

/// Runs every table.
pub fn validate() -> Result<Vec<Validation>, String> {
    METHODS.iter().map(|(name, method)| validate_one(name, *method)).collect()
}

fn validate_one(name: &'static str, method: fn(&Tensor) -> Tensor) -> Result<Validation, String> {
    let text = read(&format!("crates/lazuli/tests/fixtures/numpy/{name}.txt"))?;
    let (mut inputs, mut wanted) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let cells: Vec<&str> = line.split(' ').collect();
        let [x, y, tolerance] = cells[..] else { return Err(format!("{name}.txt: not three cells: {line}")) };
        let bits =
            |cell| u32::from_str_radix(cell, 16).map(f32::from_bits).map_err(|e| format!("{name}.txt: {line}: {e}"));
        inputs.push(bits(x)?);
        wanted.push((bits(y)?, tolerance.parse::<u64>().map_err(|e| format!("{name}.txt: {line}: {e}"))?));
    }
    let x = Tensor::from_slice(&inputs, [inputs.len()], &Device::cpu());
    let got = method(&x).to_vec::<f32>().map_err(|e| e.to_string())?;
    let n_passed = got.iter().zip(&wanted).filter(|(got, (want, tolerance))| steps(**got, *want) <= *tolerance).count();
    Ok(Validation { name, n_rows: inputs.len(), n_passed })
}

/// The distance in steps between neighbouring `f32`; NaN is next to NaN only.
fn steps(a: f32, b: f32) -> u64 {
    // Negative numbers count downwards from zero; both zeros are 0.
    let rank = |v: f32| if v.is_sign_negative() { -((v.to_bits() & 0x7fff_ffff) as i64) } else { v.to_bits() as i64 };
    match (a.is_nan(), b.is_nan()) {
        (true, true) => 0,
        (false, false) => rank(a).abs_diff(rank(b)),
        _ => u64::MAX,
    }
}
