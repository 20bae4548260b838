//! How the elements of a GGUF tensor are stored: a row for every type that the format has. Blocks hold some elements
//! together with their scales; how they are widened is the engine's matter, not this file's.

use std::fmt;

use lazuli::{BlockFormat, DType, Result};

use crate::elements::Stored;
use crate::fault;

/// How the elements of a tensor in a GGUF file are stored.
///
/// ```
/// use lazuli_io::GgufFormat;
/// let q4_0 = GgufFormat::named("Q4_0")?;
/// assert_eq!((q4_0.block_len, q4_0.block_bytes), (32, 18));
/// assert!(GgufFormat::named("Q9_9").unwrap_err().to_string().contains("\"Q9_9\" is no type of GGUF"));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GgufFormat {
    /// Its number in files.
    pub id: u32,
    /// Its name, as ggml spells it.
    pub name: &'static str,
    /// How many elements of a row are stored together: 1 for plain numbers.
    pub block_len: usize,
    /// The bytes of a block.
    pub block_bytes: usize,
}

const fn row(id: u32, name: &'static str, block_len: usize, block_bytes: usize) -> GgufFormat {
    GgufFormat { id, name, block_len, block_bytes }
}

/// Every type that GGUF has now; numbers in between belonged to types that are gone.
const FORMATS: [GgufFormat; 34] = [
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 40),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
    row(40, "NVFP4", 64, 36),
    row(41, "Q1_0", 128, 18),
];

/// Plain numbers, by the names of files; all others are blocks.
const PLAIN: [(&str, Stored); 8] = [
    ("F32", Stored::F32),
    ("F16", Stored::F16),
    ("BF16", Stored::BF16),
    ("I8", Stored::I8),
    ("I16", Stored::I16),
    ("I32", Stored::I32),
    ("I64", Stored::I64),
    ("F64", Stored::F64),
];

impl GgufFormat {
    /// The type of a name.
    #[track_caller]
    pub fn named(name: &str) -> Result<GgufFormat> {
        let _caller = fault::caller();
        FORMATS.into_iter().find(|format| format.name == name).ok_or_else(|| {
            let known = FORMATS.map(|format| format.name).join(", ");
            fault::parse("gguf", format!("{name:?} is no type of GGUF; known are {known}"))
        })
    }

    /// The bytes of a tensor of this shape; None if rows are not whole blocks, or if there cannot be so many.
    ///
    /// ```
    /// let q4_0 = lazuli_io::GgufFormat::named("Q4_0")?;
    /// assert_eq!(q4_0.n_bytes(&[3, 64]), Some(3 * 2 * 18));
    /// assert_eq!(q4_0.n_bytes(&[64, 3]), None);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn n_bytes(&self, shape: &[usize]) -> Option<usize> {
        let row_len = shape.last().copied().unwrap_or(1);
        if !row_len.is_multiple_of(self.block_len) {
            return None;
        }
        // Zero-sized axes must not hide an overflow of the others.
        let full = shape.iter().map(|d| (*d).max(1)).try_fold(1, usize::checked_mul)?;
        let n_bytes = full.div_ceil(self.block_len).checked_mul(self.block_bytes)?;
        Some(if shape.contains(&0) { 0 } else { n_bytes })
    }

    /// The type with this number.
    pub(crate) fn numbered(id: u32) -> Option<GgufFormat> {
        FORMATS.into_iter().find(|format| format.id == id)
    }

    /// What plain numbers of this type are; None of blocks.
    pub(crate) fn plain(&self) -> Option<Stored> {
        PLAIN.iter().find(|(name, _)| *name == self.name).map(|(_, stored)| *stored)
    }

    /// The engine's row of a format of blocks, if it has one.
    pub(crate) fn blocks(&self) -> Option<&'static BlockFormat> {
        BlockFormat::all().iter().find(|format| format.name() == self.name)
    }

    /// As what a tensor is written; None if GGUF has no such type.
    pub(crate) fn of(dtype: DType) -> Option<GgufFormat> {
        let stored = Stored::from(dtype);
        let (name, _) = PLAIN.iter().find(|(_, plain)| *plain == stored)?;
        FORMATS.into_iter().find(|format| format.name == *name)
    }
}

impl fmt::Display for GgufFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for GgufFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
