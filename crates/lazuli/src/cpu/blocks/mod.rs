//! Products that read blocks where they are. A few rows go through [`gemv`]: numbers of the left operand become small digits
//! ([`digits`]), so that codes are multiplied as bytes, 16 rows of the right operand at a time ([`bytes`]). Where bytes have
//! no products, and for many rows, tiles are [`widened`] into the nearest cache.

mod bytes;
mod digits;
mod gemv;
#[cfg(test)]
mod tests;
mod widened;

pub use gemv::{BlockGemv, BlockProduct, GemvMemory, run_together};
pub use widened::BlockMatrix;
