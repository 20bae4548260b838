//! A lazy tensor engine: a program writes tensor maths, nothing runs until a number is wanted, then the whole
//! expression is planned, fused into the fewest kernels, given the least memory, and run at once.

// Reading order; each module uses only what stands before it (and the `Device` handle).
mod log;
mod huge_pages;
mod place;
mod error;
mod user;
mod room;
mod lru;
mod fast_hash;
mod dtype;
mod blocks;
mod shape;
mod view;
mod graph;
mod tensor;
pub mod ops;
mod autograd;
mod kernel;
mod target;
mod plan;
mod backend;
mod awaited;
mod interned;
mod idle;
#[cfg(feature = "gpu")]
mod wgsl;
mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
mod device;
mod realize;
mod recording;
mod read;
mod print;
mod batch;
mod weights;

pub use autograd::checkpoint;
pub use backend::Stats;
pub use batch::{Batch, BufferId};
pub use blocks::BlockFormat;
pub use device::{Device, DeviceInfo, DeviceKind};
pub use dtype::{DType, Element};
pub use error::{Error, Fault, Result};
pub use graph::CustomOp;
pub use half::{bf16, f16};
pub use ops::{
    Attention, Conv, ConvTranspose, Coordinates, Dft, GridMode, GridPadding, GridSample, Interpolate, Interpolation,
    NearestRule, PadMode, Pads, PerAxis, Pool, Position, ScatterReduce, Slice, Slices, einsum,
};
pub use place::Caller;
pub use plan::{Boundary, Explain, KernelInfo, RepeatedWork};
pub use realize::{compute, compute_async, compute_staged, compute_staged_with, explain, explain_staged, prepare};
pub use recording::Recording;
pub use shape::{Axes, Dims, MAX_RANK, Shape, keep};
pub use tensor::Tensor;
pub use weights::Weights;
