//! Where programs start: data, and tensors made of nothing.

use lazuli::{DType, Device, Tensor, bf16, f16};

use crate::array::{Array, n_elems};
use crate::cell::{Cell, rounded, ulp};
use crate::data;
use crate::program::{Op, Table};
use crate::subject::device;

/// A tensor that needs no other.
#[derive(Clone, Debug)]
pub enum Leaf {
    /// `from_slice` of these values, which the dtype holds exactly.
    Data {
        shape: Vec<usize>,
        dtype: DType,
        values: Vec<f64>,
    },
    /// The same, but of noise that need not be written out.
    Noise {
        shape: Vec<usize>,
        dtype: DType,
        kind: u32,
        seed: u32,
    },
    Full {
        shape: Vec<usize>,
        dtype: DType,
        value: f64,
    },
    Eye {
        n: usize,
        dtype: DType,
    },
    ArangeInt {
        start: i32,
        step: i32,
        n: usize,
    },
    ArangeFloat {
        start: f32,
        step: f32,
        n: usize,
    },
    Linspace {
        start: f32,
        end: f32,
        n: usize,
    },
    Rand {
        shape: Vec<usize>,
        seed: u64,
    },
    Randn {
        shape: Vec<usize>,
        seed: u64,
    },
}

impl Leaf {
    /// Its values, where they are plain data.
    fn values(&self) -> Option<Vec<f64>> {
        match self {
            Leaf::Data { values, .. } => Some(values.clone()),
            Leaf::Noise { shape, dtype, kind, seed } => {
                Some((0..n_elems(shape)).map(|i| narrowed(data::number(*kind, *seed, i), *dtype)).collect())
            }
            _ => None,
        }
    }

    /// How it ends on purpose: an exact end would leave it to rounding whether the last element is there.
    fn end(start: f32, step: f32, n: usize) -> f32 {
        start + (n as f32 - 0.5) * step
    }
}

/// A number as an element of a dtype, the way a cast does it.
pub fn narrowed(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => rounded(value, dtype),
        DType::I32 => value as i32 as f64,
        DType::U32 => value.abs() as u32 as f64,
        DType::U8 => value.abs() as u8 as f64,
        DType::Bool => (value > 0.0) as u8 as f64,
    }
}

/// A tensor of these values, through the Rust type of the dtype.
pub fn upload(values: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    macro_rules! of {
        ($t:ty, $convert:expr) => {
            Tensor::from_vec::<$t>(values.iter().map($convert).collect(), shape, device)
        };
    }
    match dtype {
        DType::F32 => of!(f32, |v| *v as f32),
        DType::F16 => of!(f16, |v| f16::from_f64(*v)),
        DType::BF16 => of!(bf16, |v| bf16::from_f64(*v)),
        DType::I32 => of!(i32, |v| *v as i32),
        DType::U32 => of!(u32, |v| *v as u32),
        DType::U8 => of!(u8, |v| *v as u8),
        DType::Bool => of!(bool, |v| *v != 0.0),
    }
}

/// The name of a dtype in Rust, as a variant and as a type.
pub fn names(dtype: DType) -> (String, String) {
    (format!("DType::{dtype:?}"), dtype.to_string())
}

/// A number written as a literal of a dtype.
pub fn literal(value: f64, dtype: DType) -> String {
    let float = match value {
        v if v.is_nan() => "f32::NAN".to_string(),
        f64::INFINITY => "f32::INFINITY".to_string(),
        f64::NEG_INFINITY => "f32::NEG_INFINITY".to_string(),
        v => format!("{:?}f32", v as f32),
    };
    match dtype {
        DType::F32 => float,
        DType::F16 | DType::BF16 => format!("{dtype}::from_f32({float})"),
        DType::Bool => (value != 0.0).to_string(),
        _ => format!("{value:.0}{dtype}"),
    }
}

impl Op for Leaf {
    fn expect(&self, _: &[&Array]) -> Array {
        let ramp = |n: usize, at: &dyn Fn(usize) -> Cell| Array::new(vec![n], DType::F32, (0..n).map(at).collect());
        match self {
            Leaf::Data { shape, dtype, .. } | Leaf::Noise { shape, dtype, .. } => {
                let values = self.values().expect("is data");
                Array::new(shape.clone(), *dtype, values.into_iter().map(Cell::point).collect())
            }
            Leaf::Full { shape, dtype, value } => Array::full(shape.clone(), *dtype, Cell::point(*value)),
            Leaf::Eye { n, dtype } => {
                let cell = |i| Cell::point((i / n == i % n) as u8 as f64);
                Array::new(vec![*n, *n], *dtype, (0..n * n).map(cell).collect())
            }
            Leaf::ArangeInt { start, step, n } => {
                let cell = |i: usize| Cell::point(*start as f64 + i as f64 * *step as f64);
                Array { dtype: DType::I32, ..ramp(*n, &cell) }
            }
            Leaf::ArangeFloat { start, step, n } => ramp(*n, &|i| {
                // Rounded where its parts are added, so the error is that of the larger part.
                let (start, way) = (*start as f64, i as f64 * *step as f64);
                let error = ulp(start.abs().max(way.abs()).max((start + way).abs()));
                Cell::point(start + way).widened(error, error)
            }),
            Leaf::Linspace { start, end, n } => ramp(*n, &|i| {
                let (start, end) = (*start as f64, *end as f64);
                if i + 1 == *n && *n > 1 {
                    return Cell::point(end);
                }
                let step = if *n > 1 { (end - start) / (*n - 1) as f64 } else { 0.0 };
                let error = 2.0 * ulp(start.abs().max(end.abs()));
                Cell::point(start + i as f64 * step).widened(error, error)
            }),
            // Which bits come is the generator's own business (and tested there); here it counts that they are the same
            // wherever they are used.
            Leaf::Rand { shape, .. } | Leaf::Randn { shape, .. } => {
                let alone = self.call(&[], &device()).to_vec::<f64>();
                let alone = alone.unwrap_or_else(|error| panic!("{self:?}: {error}"));
                Array::new(shape.clone(), DType::F32, alone.into_iter().map(Cell::point).collect())
            }
        }
    }

    fn call(&self, _: &[&Tensor], device: &Device) -> Tensor {
        match self {
            Leaf::Data { shape, dtype, .. } | Leaf::Noise { shape, dtype, .. } => {
                upload(&self.values().expect("is data"), shape, *dtype, device)
            }
            Leaf::Full { shape, dtype, value } if *value == 0.0 => Tensor::zeros(shape, *dtype, device),
            Leaf::Full { shape, dtype, value } if *value == 1.0 => Tensor::ones(shape, *dtype, device),
            Leaf::Full { shape, dtype, value } => match dtype {
                DType::F16 => Tensor::full(shape, f16::from_f64(*value), device),
                DType::BF16 => Tensor::full(shape, bf16::from_f64(*value), device),
                DType::I32 => Tensor::full(shape, *value as i32, device),
                DType::U32 => Tensor::full(shape, *value as u32, device),
                DType::U8 => Tensor::full(shape, *value as u8, device),
                DType::Bool => Tensor::full(shape, *value != 0.0, device),
                DType::F32 => Tensor::full(shape, *value as f32, device),
            },
            Leaf::Eye { n, dtype } => Tensor::eye(*n, *dtype, device),
            Leaf::ArangeInt { start, step, n } => Tensor::arange(*start, start + step * *n as i32, *step, device),
            Leaf::ArangeFloat { start, step, n } => Tensor::arange(*start, Leaf::end(*start, *step, *n), *step, device),
            Leaf::Linspace { start, end, n } => Tensor::linspace(*start, *end, *n, device),
            Leaf::Rand { shape, seed } => Tensor::rand(shape, *seed, device),
            Leaf::Randn { shape, seed } => Tensor::randn(shape, *seed, device),
        }
    }

    fn text(&self, _: &[&str]) -> String {
        match self {
            Leaf::Noise { shape, dtype, kind, seed } if n_elems(shape) > 64 => {
                let (_, t) = names(*dtype);
                let number = format!("data::number({kind}, {seed}, i)");
                let element = match dtype {
                    DType::F32 | DType::I32 => format!("{number} as {t}"),
                    DType::F16 | DType::BF16 => format!("{t}::from_f32({number} as f32)"),
                    DType::Bool => format!("{number} > 0.0"),
                    _ => format!("{number}.abs() as {t}"),
                };
                format!(
                    "Tensor::from_vec((0..{}).map(|i| {element}).collect::<Vec<{t}>>(), {shape:?}, &cpu)",
                    n_elems(shape)
                )
            }
            Leaf::Data { shape, dtype, .. } | Leaf::Noise { shape, dtype, .. } => {
                let values = self.values().expect("is data");
                let values: Vec<String> = values.iter().map(|v| literal(*v, *dtype)).collect();
                format!(
                    "Tensor::from_slice::<{}>(&[{}], {}, &cpu)",
                    names(*dtype).1,
                    values.join(", "),
                    shape_text(shape)
                )
            }
            Leaf::Full { shape, dtype, value } if *value == 0.0 => {
                format!("Tensor::zeros({}, {}, &cpu)", shape_text(shape), names(*dtype).0)
            }
            Leaf::Full { shape, dtype, value } if *value == 1.0 => {
                format!("Tensor::ones({}, {}, &cpu)", shape_text(shape), names(*dtype).0)
            }
            Leaf::Full { shape, dtype, value } => {
                format!("Tensor::full({}, {}, &cpu)", shape_text(shape), literal(*value, *dtype))
            }
            Leaf::Eye { n, dtype } => format!("Tensor::eye({n}, {}, &cpu)", names(*dtype).0),
            Leaf::ArangeInt { start, step, n } => {
                format!("Tensor::arange({start}, {}, {step}, &cpu)", start + step * *n as i32)
            }
            Leaf::ArangeFloat { start, step, n } => {
                format!("Tensor::arange({start:?}f32, {:?}, {step:?}, &cpu)", Leaf::end(*start, *step, *n))
            }
            Leaf::Linspace { start, end, n } => format!("Tensor::linspace({start:?}f32, {end:?}, {n}, &cpu)"),
            Leaf::Rand { shape, seed } => format!("Tensor::rand({}, {seed}, &cpu)", shape_text(shape)),
            Leaf::Randn { shape, seed } => format!("Tensor::randn({}, {seed}, &cpu)", shape_text(shape)),
        }
    }
}

/// A shape in Rust.
pub fn shape_text(shape: &[usize]) -> String {
    if shape.is_empty() { "()".to_string() } else { format!("{shape:?}") }
}

/// The dtypes, the likeliest first and often.
pub const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::I32,
    DType::I32,
    DType::F16,
    DType::BF16,
    DType::U32,
    DType::U8,
    DType::Bool,
];

/// A leaf of noise.
pub fn noise(table: &mut Table, shape: Vec<usize>, dtype: DType) -> usize {
    let kinds: &[u32] = if dtype.is_float() { &[0, 1, 1, 2, 3, 4] } else { &[0, 0, 0, 105, 356, 5] };
    let (kind, seed) = (table.dice.pick(kinds), table.dice.word() >> 16);
    table.push(Leaf::Noise { shape, dtype, kind, seed }, Vec::new())
}

/// A shape for a leaf: mostly small, of any rank, now and then with nothing in it or one long axis.
pub fn shape(table: &mut Table) -> Vec<usize> {
    let rank = table.dice.pick(&[1, 2, 2, 3, 1, 2, 3, 4, 0, 5, 6, 8]);
    let sizes: &[usize] = match rank {
        ..=2 => &[1, 2, 3, 4, 5, 7, 8, 13, 16, 17],
        3 | 4 => &[1, 2, 3, 4, 5, 7],
        _ => &[1, 2, 3],
    };
    let mut shape: Vec<usize> = (0..rank).map(|_| table.dice.pick(sizes)).collect();
    if rank > 0 && table.dice.once_in(24) {
        let axis = table.dice.below(rank);
        shape[axis] = 0;
    } else if rank > 0 && rank <= 4 && table.limits.leaf_elems > 1000 {
        let axis = table.dice.below(rank);
        shape[axis] = table.dice.pick(&[1023, 33, 100, 1025, 2048, 257, 4099, 9999, 16_385, 70_001, 131_072]);
    }
    // Too large as a whole: the longest axes give way.
    while n_elems(&shape) > table.limits.leaf_elems {
        let longest = shape.iter_mut().max().expect("has axes");
        *longest = longest.div_ceil(2);
    }
    shape
}

pub fn draw(table: &mut Table) -> Option<usize> {
    let shape = shape(table);
    let dtype = table.dice.pick(&DTYPES);
    let n = *shape.last().unwrap_or(&1);
    let quarters = |table: &mut Table| table.dice.between(0, 40) as f32 * 0.25 - 5.0;
    let leaf = match table.dice.below(20) {
        ..12 => return Some(noise(table, shape, dtype)),
        12 | 13 => Leaf::Full { shape, dtype, value: table.dice.pick(&[0.0, 1.0, 2.0, 7.0]) },
        14 => Leaf::Eye { n: n.min(20), dtype },
        15 => Leaf::ArangeInt { start: table.dice.below(9) as i32 - 4, step: table.dice.pick(&[1, 2, -1, -3]), n },
        16 => Leaf::ArangeFloat { start: quarters(table), step: table.dice.pick(&[1.0, 0.5, -0.25, 0.1, 3.7]), n },
        17 => Leaf::Linspace { start: quarters(table), end: quarters(table), n },
        18 => Leaf::Rand { shape, seed: table.dice.word() as u64 },
        _ => Leaf::Randn { shape, seed: table.dice.word() as u64 },
    };
    // A full bool is true or false.
    let leaf = match leaf {
        Leaf::Full { shape, dtype: DType::Bool, value } => {
            Leaf::Full { shape, dtype: DType::Bool, value: (value != 0.0) as u8 as f64 }
        }
        leaf => leaf,
    };
    Some(table.push(leaf, Vec::new()))
}
