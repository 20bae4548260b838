//! Block formats: some elements of a row are stored together, as small codes with a scale, and `w = d · q + m`. A format is
//! a row of a table that says where codes and scales are in a file; from it follow widening, quantising, and the form in
//! which a device holds the blocks ([`resident`]). Knows bytes and numbers; nothing of tensors, kernels or devices.

mod file;
mod formats;
mod resident;

pub use formats::BlockFormat;
pub use resident::{BlockStorage, ROWS, SubOffsets, TileLayout};

use std::fmt;

use crate::dtype::DType;

/// How the elements of an input of a kernel are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Each by itself.
    Plain(DType),
    /// In blocks, whose elements are f32.
    Blocks(BlockStorage),
}

impl Storage {
    /// What an element is once it is loaded.
    pub fn dtype(self) -> DType {
        match self {
            Storage::Plain(dtype) => dtype,
            Storage::Blocks(_) => DType::F32,
        }
    }

    /// The blocks, if it is stored in some.
    pub fn blocks(self) -> Option<BlockStorage> {
        match self {
            Storage::Plain(_) => None,
            Storage::Blocks(blocks) => Some(blocks),
        }
    }

    /// The type of elements that are stored by themselves.
    pub fn plain(self) -> Option<DType> {
        match self {
            Storage::Plain(dtype) => Some(dtype),
            Storage::Blocks(_) => None,
        }
    }

    /// Whether an element in memory is a lane already.
    pub fn is_lane(self) -> bool {
        self.plain().is_some_and(|dtype| dtype.size() == 4)
    }

    /// Bytes of what a plan counts in a value that is stored so: elements, or the bytes of blocks.
    pub fn unit_bytes(self) -> usize {
        self.plain().map_or(1, DType::size)
    }

    /// How many elements there are in so many of what a plan counts.
    pub fn n_elems(self, n_units: usize) -> usize {
        self.blocks().map_or(n_units, |blocks| blocks.n_elems(n_units))
    }

    /// About how many bytes so many neighbouring elements take.
    pub fn bytes_of(self, n_elems: usize) -> usize {
        match self {
            Storage::Plain(dtype) => n_elems.saturating_mul(dtype.size()),
            Storage::Blocks(blocks) => blocks.format.bytes_of(n_elems),
        }
    }

    /// The first bytes of the first and of the last element of a range; of blocks, the first and last byte that such a
    /// range may touch.
    pub fn byte_range(self, (low, high): (usize, usize)) -> (usize, usize) {
        match self {
            Storage::Plain(dtype) => (low.saturating_mul(dtype.size()), high.saturating_mul(dtype.size())),
            Storage::Blocks(blocks) => blocks.byte_range((low, high)),
        }
    }
}

impl From<DType> for Storage {
    fn from(dtype: DType) -> Storage {
        Storage::Plain(dtype)
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Plain(dtype) => dtype.fmt(f),
            Storage::Blocks(blocks) => f.pad(blocks.format.label()),
        }
    }
}
