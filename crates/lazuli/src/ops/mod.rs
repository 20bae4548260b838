//! The ops: a row for every primitive, and the methods that record them. What can be written with other ops is, and
//! needs no row. Knows the graph; nothing of plans, kernels or devices.

mod row;
mod operand;
pub(crate) mod math;
pub(crate) mod lanes;
pub(crate) mod wgsl_loops;

// Primitives: one row each.
mod unary;
mod transcendental;
mod binary;
mod compare;
mod reduce;

// Written with the rows above.
mod operators;
mod select;
mod commit;
mod cast;
mod custom;
mod activation;
mod elementwise;
mod softmax;
mod statistics;
mod normalize;

// Tensors from nothing, movement, contraction and the rest.
mod create;
mod quantized;
mod random;
mod movement;
mod slicing;
mod joining;
mod position;
pub(crate) mod rows;
mod rearrange;
mod padding;
mod contraction;
mod einsum;
mod windows;
mod convolution;
mod pooling;
mod indexing;
mod scatter;
mod data_sized;
mod resize;
mod grid_sample;
mod spectral;
mod determinant;
mod suppression;
mod sorting;
mod running;
mod attention;

#[cfg(test)]
mod tests;

pub use attention::Attention;
pub use binary::*;
pub use compare::*;
pub use convolution::{Conv, ConvTranspose};
pub use einsum::einsum;
pub use grid_sample::{GridMode, GridPadding, GridSample};
pub use indexing::SCATTER_ADD;
pub(crate) use lanes::has_vnni;
pub use lanes::{apply, isa, isas};
pub use operand::{Number, Operand};
pub use padding::PadMode;
pub use pooling::Pool;
pub use position::Position;
pub use reduce::{MAX, MIN, PROD, SUM};
pub use resize::{Coordinates, Interpolate, Interpolation, NearestRule};
pub use row::*;
pub use scatter::ScatterReduce;
pub use slicing::{Bound, Slice, Slices};
pub use sorting::{ARGSORT, CUMSUM, SORT};
pub use spectral::Dft;
pub use transcendental::*;
pub use unary::*;
pub use windows::{Pads, PerAxis};

/// Every row, by family, in the order docs list them.
///
/// ```
/// let table = lazuli::ops::table();
/// assert!(table.unary.iter().any(|row| row.name == "exp"));
/// ```
pub fn table() -> Table {
    Table {
        unary: [unary::ROWS, transcendental::ROWS].concat(),
        binary: [binary::ROWS, compare::ROWS].concat(),
        reduce: reduce::ROWS.to_vec(),
        routines: vec![&CUMSUM, &SORT, &ARGSORT, &SCATTER_ADD],
    }
}

/// The rows of each family.
#[derive(Debug)]
pub struct Table {
    /// Functions of one element.
    pub unary: Vec<&'static UnaryRow>,
    /// Functions of two.
    pub binary: Vec<&'static BinaryRow>,
    /// Reductions.
    pub reduce: Vec<&'static ReduceRow>,
    /// Hand-written kernels.
    pub routines: Vec<&'static RoutineRow>,
}
