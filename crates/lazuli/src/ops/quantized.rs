//! Tensors whose elements are stored in blocks: they enter as bytes, stay as they are, and are widened by whatever reads
//! them.

use std::panic::Location;

use smallvec::smallvec;

use super::operand::or_error;
use crate::backend::HostBytes;
use crate::blocks::{BlockFormat, BlockStorage};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Expr, Node, Op};
use crate::place::Caller;
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// A tensor of blocks, whose bytes are as in a GGUF file: row after row, each row (the last axis) in whole blocks.
    ///
    /// It is an f32 tensor for every op. It takes the memory of its blocks (rearranged for the device, rows filled up to a
    /// multiple of 16): products, lookups and elementwise ops widen what they read, and no widened copy is kept, not even
    /// when it is computed or read. No gradient is taken by it.
    ///
    /// ```
    /// use lazuli::{BlockFormat, Device, Tensor};
    /// let q8_0 = BlockFormat::named("Q8_0")?;
    /// let bytes = q8_0.quantize(&[1.0; 2 * 32])?;
    /// let w = Tensor::from_blocks(q8_0, &bytes, [2, 32], &Device::cpu());
    /// let x = Tensor::full([1, 32], 0.5f32, &Device::cpu());
    /// let y = x.matmul(&w.t()).to_vec::<f32>()?;
    /// assert!(y.iter().all(|y| (y - 16.0).abs() < 0.01));
    /// let wrong = Tensor::from_blocks(q8_0, &bytes, [64], &Device::cpu()).reshape([32, 2]);
    /// assert_eq!(wrong.shape()?, [32, 2]);
    /// assert!(Tensor::from_blocks(q8_0, &bytes, [32, 2], &Device::cpu()).check().is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn from_blocks(format: &'static BlockFormat, bytes: &[u8], shape: impl Into<Shape>, device: &Device) -> Tensor {
        or_error(entered(format, bytes, shape.into(), device))
    }
}

#[track_caller]
fn entered(format: &'static BlockFormat, bytes: &[u8], shape: Shape, device: &Device) -> Result<Tensor> {
    const OP: &str = "from_blocks";
    let _caller = Caller::of_engine(Location::caller());
    shape.check(OP)?;
    let Some(row_len) = shape.last().copied().filter(|len| len.is_multiple_of(format.block_len())) else {
        let len = format.block_len();
        return Err(Error::shape(OP, format!("rows of {shape} are not whole blocks of {len} elements ({format})")));
    };
    let wanted = shape.n_elems() / format.block_len() * format.block_bytes();
    if bytes.len() != wanted {
        let message = format!("{} bytes do not fill {shape}, which has {wanted} in {format}", bytes.len());
        return Err(Error::shape(OP, message));
    }
    let at = Location::caller();
    if wanted == 0 {
        return Ok(Tensor::zeros(shape, DType::F32, device));
    }
    let storage = BlockStorage { format, row_len };
    let n_bytes = storage.size_bytes(shape.n_elems() / row_len);
    let mut resident = HostBytes::zeroed(OP, n_bytes)?;
    storage.interleave(bytes, resident.bytes_mut());
    let buffer = device.backend().upload(resident)?;
    let blocks = Node::data(buffer, Shape::from([n_bytes]), DType::U8, device.clone(), at);
    let widened = Expr { op: Op::Widen(format), inputs: smallvec![blocks] };
    Ok(Tensor::new(Ok(Node::new(widened, shape, DType::F32, device.clone(), at, false))))
}
