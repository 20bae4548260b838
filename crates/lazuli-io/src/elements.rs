//! Bytes of elements ↔ tensors. Files are little-endian.

use lazuli::{DType, Device, Result, Tensor, bf16, f16};

use crate::fault;

/// An element type as files know it. 64-bit types are read if their values fit 32 bits, i8 and i16 as i32; none of them is
/// ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Bool,
    U8,
    I8,
    I16,
    I32,
    U32,
    F16,
    BF16,
    F32,
    I64,
    U64,
    F64,
}

impl Stored {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Stored::Bool | Stored::U8 | Stored::I8 => 1,
            Stored::I16 | Stored::F16 | Stored::BF16 => 2,
            Stored::I32 | Stored::U32 | Stored::F32 => 4,
            Stored::I64 | Stored::U64 | Stored::F64 => 8,
        }
    }
}

impl From<DType> for Stored {
    fn from(dtype: DType) -> Stored {
        match dtype {
            DType::Bool => Stored::Bool,
            DType::U8 => Stored::U8,
            DType::I32 => Stored::I32,
            DType::U32 => Stored::U32,
            DType::F16 => Stored::F16,
            DType::BF16 => Stored::BF16,
            DType::F32 => Stored::F32,
        }
    }
}

/// The bytes a shape takes; None if that cannot be.
pub fn n_bytes(shape: &[usize], stored: Stored) -> Option<usize> {
    // Zero-sized axes must not hide an overflow of the others.
    let full = shape.iter().map(|d| (*d).max(1)).try_fold(stored.size(), usize::checked_mul)?;
    Some(if shape.contains(&0) { 0 } else { full })
}

/// A tensor of bytes that are known to fill the shape. They are copied once.
#[track_caller]
pub fn tensor(bytes: &[u8], shape: &[usize], stored: Stored, device: &Device) -> Result<Tensor> {
    macro_rules! of {
        ($t:ty, $n:literal) => {{
            // SAFETY: these types have no padding, and every pattern of bits is one of their values.
            let (before, values, after) = unsafe { bytes.align_to::<$t>() };
            let read = |c: &[u8; $n]| <$t>::from_le_bytes(*c);
            match cfg!(target_endian = "little") && before.is_empty() && after.is_empty() {
                true => Tensor::from_slice(values, shape, device),
                false => Tensor::from_vec(collected(bytes.as_chunks().0.iter().map(read))?, shape, device),
            }
        }};
    }
    let tensor = match stored {
        Stored::Bool => Tensor::from_vec(collected(bytes.iter().map(|b| *b != 0))?, shape, device),
        Stored::U8 => Tensor::from_slice(bytes, shape, device),
        Stored::I8 => Tensor::from_vec(collected(bytes.iter().map(|b| *b as i8 as i32))?, shape, device),
        Stored::I16 => {
            let widened = bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b) as i32);
            Tensor::from_vec(collected(widened)?, shape, device)
        }
        Stored::I32 => of!(i32, 4),
        Stored::U32 => of!(u32, 4),
        Stored::F16 => of!(f16, 2),
        Stored::BF16 => of!(bf16, 2),
        Stored::F32 => of!(f32, 4),
        Stored::I64 => of!(i64, 8),
        Stored::U64 => of!(u64, 8),
        Stored::F64 => of!(f64, 8),
    };
    tensor.check()?;
    Ok(tensor)
}

/// The elements as a vector, if there is memory for it.
#[track_caller]
fn collected<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    reserve("load", &mut out, elements.len())?;
    out.extend(elements);
    Ok(out)
}

/// Makes room for so many more elements, if there is memory for them.
#[track_caller]
pub fn reserve<T>(op: &str, out: &mut Vec<T>, n: usize) -> Result<()> {
    match out.try_reserve_exact(n) {
        Ok(()) => Ok(()),
        Err(_) => Err(fault::no_memory(op, n.saturating_mul(size_of::<T>()))),
    }
}

/// The elements of a tensor as bytes, appended.
pub fn append(tensor: &Tensor, out: &mut Vec<u8>) -> Result<()> {
    reserve("save", out, tensor.shape()?.iter().product::<usize>() * tensor.dtype()?.size())?;
    macro_rules! of {
        ($t:ty) => {
            tensor.to_vec::<$t>()?.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()))
        };
    }
    match tensor.dtype()? {
        DType::Bool => tensor.to_vec::<bool>()?.iter().for_each(|v| out.push(*v as u8)),
        DType::U8 => out.extend_from_slice(&tensor.to_vec::<u8>()?),
        DType::I32 => of!(i32),
        DType::U32 => of!(u32),
        DType::F16 => of!(f16),
        DType::BF16 => of!(bf16),
        DType::F32 => of!(f32),
    }
    Ok(())
}
