//! The table of block formats, as files have them: one row a format.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::file;
use crate::error::{Error, Result};

/// How some elements of a row are stored together: small codes with a scale for all of them, and perhaps an offset.
///
/// An element is `w = d · q + m`, where `q` is its code less a bias of the format. In formats whose names end in `_K`, a
/// block is made of sub-blocks, and `d` and `m` of a sub-block are small integers times the block's. Layouts are those of
/// GGUF files.
///
/// ```
/// use lazuli::BlockFormat;
/// let q4_1 = BlockFormat::named("Q4_1")?;
/// assert_eq!((q4_1.block_len(), q4_1.block_bytes()), (32, 20));
/// assert!(BlockFormat::named("Q9").unwrap_err().to_string().contains("\"Q9\" is no block format"));
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct BlockFormat {
    name: &'static str,
    /// The name in the text of kernels and shaders.
    label: &'static str,
    block_len: usize,
    block_bytes: usize,
    /// The lower bits of codes, and those above them.
    pub(super) low: CodePlane,
    pub(super) high: Option<CodePlane>,
    /// Codes are stored without a sign: what is subtracted from each.
    pub(super) bias: u8,
    /// Whether codes in files have a sign, instead of a bias.
    pub(super) signed: bool,
    /// Where the scale `d` is, an f16.
    pub(super) scale_at: usize,
    /// Where `m`, or what its integers are multiplied with and subtracted, is, an f16.
    pub(super) offset_at: Option<usize>,
    /// The integers of sub-blocks.
    pub(super) subs: SubScales,
    /// How many elements have one scale.
    pub(super) sub_len: usize,
}

/// Where the bits of codes are in a block of a file. With `run` elements in as many neighbouring bytes, those after them
/// are in the bits above of the same bytes, and when these are full, in the bytes that follow.
#[derive(Clone, Copy)]
pub(super) struct CodePlane {
    /// The first byte.
    pub at: usize,
    /// Bits of an element: 1, 2, 4 or 8.
    pub bits: usize,
    pub run: usize,
}

/// How the integer scales (and offsets) of sub-blocks are stored, from a byte of the block on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SubScales {
    /// There are none: a block has one scale.
    None,
    /// A byte for each: the scale in its lower four bits, the offset above.
    Nibbles { at: usize },
    /// Twelve bytes for 16 scales of six bits, less 32: lower four bits first, then upper two.
    SixBits { at: usize },
    /// Twelve bytes for eight scales and eight offsets of six bits.
    SixBitPairs { at: usize },
    /// A signed byte for each.
    Bytes { at: usize },
}

const fn plane(at: usize, bits: usize, run: usize) -> CodePlane {
    CodePlane { at, bits, run }
}

/// Formats of 32 elements: a scale at byte 0, perhaps an offset at byte 2.
const fn small(
    (name, label): (&'static str, &'static str),
    block_bytes: usize,
    low: CodePlane,
    high: Option<CodePlane>,
    bias: u8,
    offset_at: Option<usize>,
) -> BlockFormat {
    let (scale_at, subs, signed) = (0, SubScales::None, low.bits == 8);
    BlockFormat {
        name,
        label,
        block_len: 32,
        block_bytes,
        low,
        high,
        bias,
        signed,
        scale_at,
        offset_at,
        subs,
        sub_len: 32,
    }
}

/// Every format, in the order in which docs and tests list them.
static FORMATS: [BlockFormat; 10] = [
    small(("Q4_0", "q4_0"), 18, plane(2, 4, 16), None, 8, None),
    small(("Q4_1", "q4_1"), 20, plane(4, 4, 16), None, 0, Some(2)),
    small(("Q5_0", "q5_0"), 22, plane(6, 4, 16), Some(plane(2, 1, 1)), 16, None),
    small(("Q5_1", "q5_1"), 24, plane(8, 4, 16), Some(plane(4, 1, 1)), 0, Some(2)),
    small(("Q8_0", "q8_0"), 34, plane(2, 8, 32), None, 128, None),
    BlockFormat {
        name: "Q2_K",
        label: "q2_k",
        block_len: 256,
        block_bytes: 84,
        low: plane(16, 2, 32),
        high: None,
        bias: 0,
        signed: false,
        scale_at: 80,
        offset_at: Some(82),
        subs: SubScales::Nibbles { at: 0 },
        sub_len: 16,
    },
    BlockFormat {
        name: "Q3_K",
        label: "q3_k",
        block_len: 256,
        block_bytes: 110,
        low: plane(32, 2, 32),
        high: Some(plane(0, 1, 32)),
        bias: 4,
        signed: false,
        scale_at: 108,
        offset_at: None,
        subs: SubScales::SixBits { at: 96 },
        sub_len: 16,
    },
    BlockFormat {
        name: "Q4_K",
        label: "q4_k",
        block_len: 256,
        block_bytes: 144,
        low: plane(16, 4, 32),
        high: None,
        bias: 0,
        signed: false,
        scale_at: 0,
        offset_at: Some(2),
        subs: SubScales::SixBitPairs { at: 4 },
        sub_len: 32,
    },
    BlockFormat {
        name: "Q5_K",
        label: "q5_k",
        block_len: 256,
        block_bytes: 176,
        low: plane(48, 4, 32),
        high: Some(plane(16, 1, 32)),
        bias: 0,
        signed: false,
        scale_at: 0,
        offset_at: Some(2),
        subs: SubScales::SixBitPairs { at: 4 },
        sub_len: 32,
    },
    BlockFormat {
        name: "Q6_K",
        label: "q6_k",
        block_len: 256,
        block_bytes: 210,
        low: plane(0, 4, 64),
        high: Some(plane(128, 2, 32)),
        bias: 32,
        signed: false,
        scale_at: 208,
        offset_at: None,
        subs: SubScales::Bytes { at: 192 },
        sub_len: 16,
    },
];

impl BlockFormat {
    /// All of them.
    ///
    /// ```
    /// assert!(lazuli::BlockFormat::all().iter().any(|format| format.name() == "Q6_K"));
    /// ```
    pub fn all() -> &'static [BlockFormat] {
        &FORMATS
    }

    /// The format of a name, as GGUF spells it: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`, `Q2_K` to `Q6_K`.
    ///
    /// ```
    /// assert_eq!(lazuli::BlockFormat::named("Q8_0")?.name(), "Q8_0");
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn named(name: &str) -> Result<&'static BlockFormat> {
        FORMATS.iter().find(|format| format.name == name).ok_or_else(|| {
            let known: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            Error::unsupported("BlockFormat", format!("{name:?} is no block format; known are {}", known.join(", ")))
        })
    }

    /// Its name.
    ///
    /// ```
    /// assert_eq!(lazuli::BlockFormat::named("Q4_K")?.name(), "Q4_K");
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many neighbouring elements of a row a block holds.
    ///
    /// ```
    /// assert_eq!(lazuli::BlockFormat::named("Q4_K")?.block_len(), 256);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// The bytes of a block in a file.
    ///
    /// ```
    /// assert_eq!(lazuli::BlockFormat::named("Q4_K")?.block_bytes(), 144);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The elements of whole blocks, as f32.
    ///
    /// ```
    /// use lazuli::BlockFormat;
    /// let q8_0 = BlockFormat::named("Q8_0")?;
    /// let bytes = q8_0.quantize(&[0.5; 32])?;
    /// // The scale is an f16, so that 0.5 is met to 11 bits.
    /// assert!((q8_0.widen(&bytes)?[0] - 0.5).abs() < 0.5 / 2048.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn widen(&self, bytes: &[u8]) -> Result<Vec<f32>> {
        if !bytes.len().is_multiple_of(self.block_bytes) {
            let message = format!("{} bytes are not whole blocks of {}", bytes.len(), self.block_bytes);
            return Err(Error::shape("widen", format!("{message} ({})", self.name)));
        }
        file::widen(self, bytes)
    }

    /// Numbers as the bytes of blocks. Only `Q8_0` and `Q4_0` are made; each row must be whole blocks.
    ///
    /// ```
    /// use lazuli::BlockFormat;
    /// let q4_0 = BlockFormat::named("Q4_0")?;
    /// assert_eq!(q4_0.quantize(&[1.0; 64])?.len(), 2 * 18);
    /// assert!(q4_0.quantize(&[1.0; 3]).is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn quantize(&self, values: &[f32]) -> Result<Vec<u8>> {
        if !values.len().is_multiple_of(self.block_len) {
            let message = format!("{} values are not whole blocks of {}", values.len(), self.block_len);
            return Err(Error::shape("quantize", format!("{message} ({})", self.name)));
        }
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::unsupported("quantize", format!("{value} has no code in {}", self.name)));
        }
        file::quantize(self, values)
    }

    /// The name in the text of kernels and shaders.
    pub(crate) fn label(&self) -> &'static str {
        self.label
    }

    /// Where in a file's block the scale is, and the offset.
    #[cfg(test)]
    pub(crate) fn scale_at(&self) -> usize {
        self.scale_at
    }
    #[cfg(test)]
    pub(crate) fn offset_at(&self) -> Option<usize> {
        self.offset_at
    }

    /// Bits of codes in the low plane and in the high one.
    pub(crate) fn code_bits(&self) -> (usize, usize) {
        (self.low.bits, self.high.map_or(0, |plane| plane.bits))
    }

    /// What is subtracted from codes.
    pub(crate) fn bias(&self) -> u8 {
        self.bias
    }

    /// Bytes of so many neighbouring elements in a file.
    pub(super) fn bytes_of(&self, n_elems: usize) -> usize {
        n_elems.div_ceil(self.block_len).saturating_mul(self.block_bytes)
    }
}

/// There is one row of each format.
impl PartialEq for BlockFormat {
    fn eq(&self, other: &BlockFormat) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for BlockFormat {}
impl Hash for BlockFormat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

impl fmt::Debug for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
