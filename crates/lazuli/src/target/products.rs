//! Which variant of a product a GPU takes: the one that tuning found for its class of shapes on this device, or else a default
//! by kind of device and shape. Knows sizes and strides, and in how many parts k would be taken by each variant, which
//! `plan/split` decides; writes no shader text.

use std::fmt;

use super::variants::*;
use super::{GpuTarget, Threads};
use crate::blocks::Storage;
use crate::kernel::{AxisList, AxisParts, MatmulArgs, OperandArgs};

/// Defaults where invocations work alone, tried in order: a variant, and how many tiles there must be so that every
/// core has some.
static DEFAULTS_ALONE: [(&Variant, usize); 16] = [
    (&S32X8, 0),
    (&S32X4, 0),
    (&S16X8, 0),
    (&S8X16, 0),
    (&S8X8, 0),
    (&R16X8, 256),
    (&R8X8, 128),
    (&R8X4, 0),
    (&R4X4, 0),
    (&R2X4, 0),
    (&R1X16, 64),
    (&R1X8, 64),
    (&R1X4, 0),
    (&R4X1, 0),
    (&R2X1, 0),
    (&R1X1, 0),
];
/// Defaults for hardware where neither the split-k variants for few rows nor a workgroup tile fit.
static DEFAULTS_FEW: [(&Variant, usize); 6] = [(&R4X4, 0), (&R2X4, 0), (&R1X4, 0), (&R4X1, 0), (&R2X1, 0), (&R1X1, 0)];
/// Tiles of a workgroup, the largest first: a larger one reads less for each product.
static TILES: [&Variant; 5] = [&T128X8, &T128, &T64, &T64X32, &T32];
/// What few rows get, by how many there are at most: of stored weights, of those in blocks, of others, and of others of which
/// eight half floats are read at once.
static FEW_ROWS: [(usize, [&Variant; 4]); 3] = [
    (1, [&L1X4, &L1X4Q, &L1X4B, &L1X8B]),
    (4, [&L4X4, &L4X4Q, &L4X4B, &L4X8B]),
    // Eight rows of eight columns of half floats would take so many registers that few waves fit.
    (16, [&L8X4, &L8X4Q, &L8X4B, &L4X8B]),
];

/// The largest register tile of an invocation that holds each sum twice (of the block and in all): a larger one costs occupancy.
const MAX_BLOCK_SUMS: usize = 32;
/// Elements of the shortest blocks: a multiple of the steps that any vector of codes has.
const MIN_BLOCK: isize = 32;
/// The parts into which k of a product would be cut for a variant.
pub type PartsOf<'a> = dyn Fn(&Variant) -> AxisParts + 'a;

/// The variant of a product, for those columns that are taken four at a time or for those left over; and why.
pub fn variant_of(
    matmul: &MatmulArgs,
    n: usize,
    stored: [Storage; 2],
    target: &GpuTarget,
    parts: &PartsOf,
) -> (&'static Variant, Why) {
    let fits = |variant: &&'static Variant| {
        variant.fits(matmul, n, target) && parts(variant).len() <= variant.max_part(target)
    };
    if let Some(variant) = target.tuned.forced.filter(fits) {
        return (variant, Why::Forced);
    }
    let tuned = Class::of(matmul, stored).and_then(|class| target.tuned.by_class.get(&class));
    if let Some((variant, day)) = tuned.filter(|(variant, _)| fits(variant)) {
        return (variant, Why::Tuned(day.clone()));
    }
    (default_of(matmul, n, stored, target, parts), Why::Default(target.style))
}

/// With a matrix this small on the right a product is done before it matters how: it gets the same variant for any number
/// of rows, so that none compiles another, but for a single row.
const SMALL: usize = 64 * 64;

/// Results of a tile whose text any driver compiles in good time.
const SHORT_TILE: usize = 16;

/// What a product gets before anything was tuned.
pub fn default_of(
    matmul: &MatmulArgs,
    n: usize,
    stored: [Storage; 2],
    target: &GpuTarget,
    parts: &PartsOf,
) -> &'static Variant {
    if matmul.k * matmul.n <= SMALL {
        return match target.style {
            _ if !n.is_multiple_of(4) => &R4X1,
            // The driver runs on the processor, which would make every row of the tile for the one there is.
            Threads::Independent if matmul.m == 1 => &R1X4,
            Threads::Independent if target.large_shaders => &R8X4,
            _ => &R4X4,
        };
    }
    let defaults: &[(&'static Variant, usize)] = match target.style {
        Threads::Independent => &DEFAULTS_ALONE,
        Threads::Cooperative => {
            match few_rows(matmul, n, stored, target).or(workgroup_tile(matmul, n, target, parts)) {
                Some(variant) => return variant,
                None => &DEFAULTS_FEW,
            }
        }
    };
    let is_good = |&(variant, enough): &(&'static Variant, usize)| {
        let is_for = match variant.team {
            // Many rows of stored weights at once are too many for a cache.
            Share::Alone if variant.rows == 1 && variant.cols.n_values() > 1 => {
                matches!(b_read(matmul, n, stored[1]), Read::Across | Read::Each) && variant.suits(matmul, n, target)
            }
            Share::Alone => matmul.m > variant.rows / 2,
            Share::SubgroupBroadcast(_) => variant.is_sensible(matmul, n) && variant.suits(matmul, n, target),
            Share::WorkgroupTile { .. } | Share::SplitK { .. } => false,
        };
        let (rows, cols) = variant.tile();
        let is_short = target.large_shaders || rows * cols <= SHORT_TILE;
        is_for && is_short && variant.n_tiles(matmul, n) >= enough && variant.fits(matmul, n, target)
    };
    let found = defaults.iter().find(|default| is_good(default));
    found.map_or(if n.is_multiple_of(4) { &R1X4 } else { &R1X1 }, |(variant, _)| variant)
}

/// What hardware takes for few rows of a long sum, if vectors of the right matrix lie side by side.
fn few_rows(matmul: &MatmulArgs, n: usize, stored: [Storage; 2], target: &GpuTarget) -> Option<&'static Variant> {
    let (_, variants) = FEW_ROWS.iter().find(|(most, _)| matmul.m <= *most)?;
    let b = b_read(matmul, n, stored[1]);
    let variant = match b {
        Read::AlongK => variants[0],
        Read::Blocks => variants[1],
        Read::Across if eights_of_b(matmul, n, b, stored[1]) => variants[3],
        Read::Across => variants[2],
        Read::Each => return None,
    };
    (matmul.k >= K_BLOCK && variant.fits(matmul, n, target)).then_some(variant)
}

/// The largest tile of a workgroup of which there are about enough to fill the device; if none is small enough, with k in
/// parts; else the smallest.
fn workgroup_tile(matmul: &MatmulArgs, n: usize, target: &GpuTarget, parts: &PartsOf) -> Option<&'static Variant> {
    let is_good = |variant: &&&'static Variant| {
        let (rows, cols) = variant.tile();
        let is_short = target.large_shaders || rows * cols <= SHORT_TILE;
        // Sums in blocks need registers for both.
        let n_sums = variant.rows * variant.cols.n_cols();
        let is_small = n_sums <= MAX_BLOCK_SUMS || parts(variant).len() <= K_PRODUCTS;
        is_short && is_small && variant.is_sensible(matmul, n) && variant.fits(matmul, n, target)
    };
    let is_about_full = |n_groups: usize| 4 * n_groups >= 3 * target.full_groups;
    let fills = |variant: &&&'static Variant| is_about_full(variant.n_groups(matmul, n, target));
    let fills_in_parts =
        |variant: &&&'static Variant| is_about_full(variant.n_groups(matmul, n, target) * parts(variant).count());
    let good = || TILES.iter().filter(is_good);
    good().find(fills).or_else(|| good().find(fills_in_parts)).or_else(|| good().next_back()).copied()
}

/// Whether fours that follow each other along one of an operand's indices start at multiples of four, wherever the `other`
/// index and the batch are.
fn starts_at_multiples(lies: &OperandArgs, along: &AxisList, other: &AxisList) -> bool {
    let all = |list: &AxisList| list.axes().iter().all(|(_, stride)| stride % 4 == 0);
    let slower = &along.axes()[..along.axes().len() - 1];
    lies.offset % 4 == 0 && all(other) && slower.iter().all(|(_, by)| by % 4 == 0) && lies.batch.iter().all(all)
}

/// Whether eights along one index, which has so many values, start at multiples of eight, wherever the `other` index and the
/// batch are.
fn starts_at_eights(lies: &OperandArgs, other: &AxisList, n: usize) -> bool {
    let all = |list: &AxisList| list.axes().iter().all(|(_, stride)| stride % 8 == 0);
    n.is_multiple_of(8) && lies.offset % 8 == 0 && all(other) && lies.batch.iter().all(all)
}

/// Whether eights of half floats are read of an operand, which is read along k or across, from plain strides.
pub fn in_eights(read: Read, stored: Storage, lies: &OperandArgs, [along, across]: [(&AxisList, usize); 2]) -> bool {
    let is_half = stored.plain().is_some_and(|dtype| dtype.size() == 2);
    let is_plain = along.0.stride().is_some() && across.0.stride().is_some();
    is_half
        && is_plain
        && match read {
            Read::AlongK => starts_at_eights(lies, across.0, along.1),
            Read::Across => starts_at_eights(lies, along.0, across.1),
            Read::Each | Read::Blocks => false,
        }
}

pub fn eights_of_b(matmul: &MatmulArgs, n: usize, read: Read, stored: Storage) -> bool {
    in_eights(read, stored, &matmul.b, [(&matmul.b.rows, matmul.k), (&matmul.b.cols, n)])
}

/// Whether an index runs densely in fours.
fn is_dense(list: &AxisList) -> bool {
    list.stride_in_fours() == Some(1)
}

pub fn a_read(matmul: &MatmulArgs, rows: usize) -> Read {
    let &MatmulArgs { m, k, ref a, .. } = matmul;
    let (along_k, across) = (starts_at_multiples(a, &a.cols, &a.rows), starts_at_multiples(a, &a.rows, &a.cols));
    match () {
        _ if k >= 4 && is_dense(&a.cols) && along_k => Read::AlongK,
        _ if k > 0 && is_dense(&a.rows) && m.is_multiple_of(4) && across && rows >= 4 => Read::Across,
        _ => Read::Each,
    }
}

/// Whether an operand is stored in blocks and its first row and first step of k are aligned to the 16-byte vectors of codes.
fn is_in_vectors(lies: &OperandArgs, stored: Storage, k: usize) -> bool {
    let Some(blocks) = stored.blocks() else { return false };
    let (row_len, four_rows) = (blocks.row_len, 4 * blocks.row_len as isize);
    let (row, column) =
        (lies.offset.div_euclid(row_len.max(1) as isize), lies.offset.rem_euclid(row_len.max(1) as isize));
    let starts = |list: &AxisList| list.axes().iter().all(|(_, stride)| stride % four_rows == 0);
    (lies.rows.stride(), lies.cols.stride()) == (Some(1), Some(row_len as isize))
        && (row % 4, column % MIN_BLOCK) == (0, 0)
        && k.is_multiple_of(MIN_BLOCK as usize)
        && column + k as isize <= row_len as isize
        && lies.batch.iter().all(starts)
}

pub fn b_read(matmul: &MatmulArgs, n: usize, stored: Storage) -> Read {
    let &MatmulArgs { k, ref b, .. } = matmul;
    match () {
        _ if k > 0 && n.is_multiple_of(4) && is_in_vectors(b, stored, k) => Read::Blocks,
        _ if k > 0 && n.is_multiple_of(4) && is_dense(&b.cols) && starts_at_multiples(b, &b.cols, &b.rows) => {
            Read::Across
        }
        _ if k >= 4 && is_dense(&b.rows) && starts_at_multiples(b, &b.rows, &b.cols) => Read::AlongK,
        _ => Read::Each,
    }
}

/// Whether an invocation that works alone takes no blocks where k is not too long.
pub fn runs_alone(variant: &Variant, b: Read) -> bool {
    matches!(b, Read::AlongK | Read::Blocks) || variant.rows == 1
}

/// Why a product gets its variant, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    Default(Threads),
    /// Tuned for its class, on this day.
    Tuned(String),
    /// Asked for: a candidate that is tried, or a test.
    Forced,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Default(Threads::Independent) => f.write_str("default for drivers that run on the CPU"),
            Why::Default(Threads::Cooperative) => f.write_str("default for hardware"),
            Why::Tuned(day) => write!(f, "tuned {day}"),
            Why::Forced => f.write_str("forced"),
        }
    }
}
