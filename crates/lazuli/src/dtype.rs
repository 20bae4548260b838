//! Element types: what is stored, what it is computed as, and how two of them meet. Knows nothing of tensors.

use std::fmt;

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::room::with_room;

/// What an element of a tensor is.
///
/// ```
/// use lazuli::DType;
/// assert_eq!(DType::F16.size(), 2);
/// assert_eq!(DType::I32.promote(DType::F16), DType::F16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float: the default.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 32-bit signed.
    I32,
    /// 32-bit unsigned.
    U32,
    /// 8-bit unsigned.
    U8,
    /// False or true, a byte each.
    Bool,
}

/// What a value is while it is computed: every lane is 32 bits wide, whatever the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// f32, f16 and bf16.
    F32,
    /// i32.
    I32,
    /// u32, u8, and bool as 0 or 1.
    U32,
}

impl DType {
    /// All of them, in the order docs and tests list them.
    pub const ALL: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool];

    /// Bytes per element in memory.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether it is an integer (bool is not).
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::U32 | DType::U8)
    }

    /// What it is computed as.
    pub fn lane(self) -> Lane {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => Lane::F32,
            DType::I32 => Lane::I32,
            DType::U32 | DType::U8 | DType::Bool => Lane::U32,
        }
    }

    /// The float an integer becomes when an op needs one: itself if it is one already, else f32.
    pub fn to_float(self) -> DType {
        if self.is_float() { self } else { DType::F32 }
    }

    /// The dtype two operands meet in. As NumPy's, without its 64-bit types: an integer and a float give that float,
    /// f16 and bf16 give f32, i32 and u32 give i32 (which wraps).
    pub fn promote(self, other: DType) -> DType {
        // Where each stands; within a kind the wider one wins.
        let rank = |d: DType| match d {
            DType::Bool => 0,
            DType::U8 => 1,
            DType::U32 => 2,
            DType::I32 => 3,
            DType::F16 | DType::BF16 => 4,
            DType::F32 => 5,
        };
        match (rank(self), rank(other)) {
            (4, 4) if self != other => DType::F32,
            (a, b) if a >= b => self,
            _ => other,
        }
    }

    /// The smallest and largest value an integer of this type (or bool) can hold.
    pub(crate) fn int_range(self) -> Option<(f64, f64)> {
        match self {
            DType::I32 => Some((i32::MIN as f64, i32::MAX as f64)),
            DType::U32 => Some((0.0, u32::MAX as f64)),
            DType::U8 => Some((0.0, 255.0)),
            DType::Bool => Some((0.0, 1.0)),
            _ => None,
        }
    }

    /// The 32 bits a lane of this type holds for `value`, which must be in range for an integer type.
    pub(crate) fn lane_bits(self, value: f64) -> u32 {
        match self {
            DType::F32 => (value as f32).to_bits(),
            DType::F16 => to_f16(value).to_f32().to_bits(),
            DType::BF16 => to_bf16(value).to_f32().to_bits(),
            DType::I32 => value as i32 as u32,
            DType::U32 | DType::U8 => value as u32,
            DType::Bool => (value != 0.0) as u32,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        })
    }
}

/// The nearest half float. The `half` crate drops bits of an f64 before it rounds, so near-ties could go wrong.
pub(crate) fn to_f16(value: f64) -> f16 {
    f16::from_f32(to_odd(value))
}

/// The nearest bf16, as [`to_f16`].
pub(crate) fn to_bf16(value: f64) -> bf16 {
    bf16::from_f32(to_odd(value))
}

/// An f32 that rounds to the same half float as `value` does: cut off, with the last bit set if anything was lost.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near as f64 == value || value.is_nan() {
        return near;
    }
    let cut = near.to_bits() - ((near as f64).abs() > value.abs()) as u32;
    f32::from_bits(cut | 1)
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can enter a tensor or be read from one.
///
/// `i64`, `u64`, `usize` and `f64` enter narrowed (out of range is an error the tensor carries) and may be read back,
/// since widening loses nothing.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {
    /// What a tensor of these stores.
    const DTYPE: DType;
    /// Whether the Rust type's bytes are the stored bytes.
    const SAME_BYTES: bool;
    /// Appends the stored bytes of `data` to `out`, which has room for them.
    fn store(data: &[Self], out: &mut Vec<u8>) -> Result<()>;
    /// Reads stored bytes of `from`; refuses where a value could be lost.
    fn load(bytes: &[u8], from: DType) -> Result<Vec<Self>>;
    /// Its value. A 64-bit integer may round, but only far outside what a tensor can hold.
    fn to_f64(self) -> f64;
}

/// Reads every element of `bytes` (stored as `from`) as an exact f64 and hands it to `each`.
fn for_each_f64(bytes: &[u8], from: DType, mut each: impl FnMut(f64)) {
    match from {
        DType::F32 => bytes.as_chunks().0.iter().for_each(|b| each(f32::from_le_bytes(*b) as f64)),
        DType::F16 => bytes.as_chunks().0.iter().for_each(|b| each(f16::from_le_bytes(*b).to_f64())),
        DType::BF16 => bytes.as_chunks().0.iter().for_each(|b| each(bf16::from_le_bytes(*b).to_f64())),
        DType::I32 => bytes.as_chunks().0.iter().for_each(|b| each(i32::from_le_bytes(*b) as f64)),
        DType::U32 => bytes.as_chunks().0.iter().for_each(|b| each(u32::from_le_bytes(*b) as f64)),
        DType::U8 | DType::Bool => bytes.iter().for_each(|b| each(*b as f64)),
    }
}

/// Types whose bytes are the stored bytes; `$from` lists the other dtypes each can be read from without loss.
macro_rules! element {
    ($($t:ty, $dtype:ident, [$($from:ident),*], $read:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const SAME_BYTES: bool = true;
            fn store(data: &[Self], out: &mut Vec<u8>) -> Result<()> {
                for v in data {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                Ok(())
            }
            fn load(bytes: &[u8], from: DType) -> Result<Vec<Self>> {
                if from == DType::$dtype {
                    let mut out = with_room("to_vec", bytes.len() / from.size())?;
                    out.extend(bytes.as_chunks().0.iter().map(|b| <$t>::from_le_bytes(*b)));
                    return Ok(out);
                }
                if ![$(DType::$from),*].contains(&from) {
                    return Err(lossy(from, stringify!($t)));
                }
                let mut out = with_room("to_vec", bytes.len() / from.size())?;
                for_each_f64(bytes, from, |v| out.push($read(v)));
                Ok(out)
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    )*};
}

fn lossy(from: DType, to: &str) -> Error {
    Error::dtype(
        "to_vec",
        format!("{from} does not fit {to} without loss; read it as a wider type or cast first with to_dtype"),
    )
}

element! {
    f32, F32, [F16, BF16, U8, Bool], |v| v as f32;
    f16, F16, [U8, Bool], f16::from_f64;
    bf16, BF16, [U8, Bool], bf16::from_f64;
    i32, I32, [U8, Bool], |v| v as i32;
    u32, U32, [U8, Bool], |v| v as u32;
    u8, U8, [Bool], |v| v as u8;
}

/// Wider types: narrowed on the way in, exact on the way out.
macro_rules! wide_element {
    ($($t:ty, $dtype:ident, $stored:ty, [$($from:ident),*];)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const SAME_BYTES: bool = false;
            fn store(data: &[Self], out: &mut Vec<u8>) -> Result<()> {
                for &v in data {
                    let narrow = v as $stored;
                    if !fits(v as f64, narrow as f64, DType::$dtype) {
                        return Err(Error::dtype("from_slice", format!("{v:?} does not fit {}", DType::$dtype)));
                    }
                    out.extend_from_slice(&narrow.to_le_bytes());
                }
                Ok(())
            }
            fn load(bytes: &[u8], from: DType) -> Result<Vec<Self>> {
                if ![$(DType::$from),*].contains(&from) {
                    return Err(lossy(from, stringify!($t)));
                }
                let mut out = with_room("to_vec", bytes.len() / from.size())?;
                for_each_f64(bytes, from, |v| out.push(v as $t));
                Ok(out)
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}

/// Integers must survive exactly; floats may round but not overflow.
fn fits(wide: f64, narrow: f64, to: DType) -> bool {
    if to.is_float() { narrow.is_finite() || !wide.is_finite() } else { wide == narrow }
}

wide_element! {
    f64, F32, f32, [F32, F16, BF16, I32, U32, U8, Bool];
    i64, I32, i32, [I32, U32, U8, Bool];
    u64, U32, u32, [U32, U8, Bool];
    usize, U32, u32, [U32, U8, Bool];
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    const SAME_BYTES: bool = true;
    fn store(data: &[Self], out: &mut Vec<u8>) -> Result<()> {
        out.extend(data.iter().map(|v| *v as u8));
        Ok(())
    }
    fn load(bytes: &[u8], from: DType) -> Result<Vec<Self>> {
        if from != DType::Bool {
            return Err(lossy(from, "bool"));
        }
        let mut out = with_room("to_vec", bytes.len())?;
        out.extend(bytes.iter().map(|b| *b != 0));
        Ok(out)
    }
    fn to_f64(self) -> f64 {
        f64::from(self as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_round_to_the_nearest() {
        let above_tie = 1.0 + 2f64.powi(-11);
        assert_eq!(to_f16(above_tie).to_f64(), 1.0);
        assert_eq!(to_f16(above_tie + 2f64.powi(-23)).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(to_f16(above_tie + 2f64.powi(-50)).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(to_bf16(1.128_906_25 + 1e-12).to_f64(), 1.1328125);
        assert_eq!(to_f16(1e300), f16::INFINITY);
        assert_eq!(to_f16(-1e-300).to_bits(), (-f16::ZERO).to_bits());
        assert!(to_bf16(f64::NAN).is_nan());
    }
}
