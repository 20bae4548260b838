//! Chooses the variant and the register tile of a product: the ones that tuning found for its class of shapes on this device, or
//! else a default by kind of device and shape. Knows sizes and strides; writes no shader text.

use super::super::blocks::BlockSteps;
use super::stride_in_fours;
use super::variants::*;
use crate::blocks::Storage;
use crate::kernel::{AxisList, MatmulArgs, OperandArgs};
use crate::target::{GpuTarget, Threads};

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
/// The same for hardware where neither few rows nor a tile of a workgroup will do.
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

/// Up to here a run of sums of `K_UNROLL` products takes no blocks: it adds up 512 of them at most. llvmpipe reads memory a
/// tenth slower in a loop within a loop.
const K_RUN: usize = 2048;
/// The same for a run of products: as many roundings.
const K_PRODUCTS: usize = 512;
/// Sums that an invocation keeps in registers where it needs them twice, for blocks: with more, few waves fit on hardware.
const MAX_BLOCK_SUMS: usize = 32;
/// The least steps of a part of k that a workgroup makes; and an invocation, where several share a tile's sums.
const MIN_PART: usize = 64;
const MIN_LANE_PART: usize = 32;
/// Invocations that count as one workgroup when it is asked whether there are enough to fill a device.
const GROUP: usize = 64;
/// Elements of the shortest blocks: a multiple of the steps that any vector of codes has.
const MIN_BLOCK: isize = 32;
/// Sums of parts of k that are worth a run for each part.
const FEW_SUMS: usize = 1 << 18;

/// The shape of a product, of those columns that are taken four at a time or of those left over; and why.
pub fn choose(matmul: &MatmulArgs, n: usize, stored: [Storage; 2], target: &GpuTarget) -> (MatmulShape, Why) {
    let (variant, why) = variant_of(matmul, n, stored, target);
    (shape(variant, matmul, n, stored, target), why)
}

fn variant_of(matmul: &MatmulArgs, n: usize, stored: [Storage; 2], target: &GpuTarget) -> (&'static Variant, Why) {
    let fits = |variant: &&'static Variant| variant.fits(matmul, n, target);
    if let Some(variant) = target.tuned.forced.filter(fits) {
        return (variant, Why::Forced);
    }
    let tuned = Class::of(matmul, stored).and_then(|class| target.tuned.by_class.get(&class));
    if let Some((variant, day)) = tuned.filter(|(variant, _)| fits(variant)) {
        return (variant, Why::Tuned(day.clone()));
    }
    (default_of(matmul, n, stored, target), Why::Default(target.style))
}

/// With a matrix this small on the right a product is done before it matters how: it gets the same variant for any number
/// of rows, so that none compiles another, but for a single row.
const SMALL: usize = 64 * 64;

/// Results of a tile whose text any driver compiles in good time.
const SHORT_TILE: usize = 16;

/// What a product gets before anything was tuned.
pub fn default_of(matmul: &MatmulArgs, n: usize, stored: [Storage; 2], target: &GpuTarget) -> &'static Variant {
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
        Threads::Cooperative => match few_rows(matmul, n, stored, target).or(workgroup_tile(matmul, n, target)) {
            Some(variant) => return variant,
            None => &DEFAULTS_FEW,
        },
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
        is_for && is_short && n_tiles(variant, matmul, n) >= enough && variant.fits(matmul, n, target)
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
fn workgroup_tile(matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> Option<&'static Variant> {
    let is_good = |variant: &&&'static Variant| {
        let (rows, cols) = variant.tile();
        let is_short = target.large_shaders || rows * cols <= SHORT_TILE;
        // Sums in blocks need registers for both.
        let n_sums = variant.rows * variant.cols.n_cols();
        let is_small = n_sums <= MAX_BLOCK_SUMS || part_of(variant, matmul, n, target) <= K_PRODUCTS;
        is_short && is_small && variant.is_sensible(matmul, n) && variant.fits(matmul, n, target)
    };
    let is_about_full = |n_groups: usize| 4 * n_groups >= 3 * target.full_groups;
    let fills = |variant: &&&'static Variant| is_about_full(n_groups(variant, matmul, n, target));
    let fills_in_parts = |variant: &&&'static Variant| {
        let n_parts = parts_to_fill(variant, matmul, n, target);
        is_about_full(n_groups(variant, matmul, n, target) * n_parts)
    };
    let good = || TILES.iter().filter(is_good);
    good().find(fills).or_else(|| good().find(fills_in_parts)).or_else(|| good().next_back()).copied()
}

fn n_tiles(variant: &Variant, matmul: &MatmulArgs, n: usize) -> usize {
    let (rows, cols) = variant.tile();
    matmul.batch.iter().product::<usize>() * matmul.m.div_ceil(rows) * n.div_ceil(cols)
}

/// Workgroups of a variant without parts of k, counted by [`GROUP`] invocations.
fn n_groups(variant: &Variant, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> usize {
    let (n_tiles, group) = (n_tiles(variant, matmul, n), variant.group(target));
    match variant.team {
        Share::Alone => n_tiles.div_ceil(GROUP),
        Share::SplitK { lanes, .. } => (n_tiles * lanes).div_ceil(GROUP),
        Share::WorkgroupTile { .. } | Share::SubgroupBroadcast(_) => n_tiles * group.div_ceil(GROUP),
    }
    .max(1)
}

/// In how many parts hardware takes k: as many as it takes to fill the device, while sums of parts are at most half of what
/// is read, and no part is short.
fn parts_to_fill(variant: &Variant, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> usize {
    let &MatmulArgs { m, k, .. } = matmul;
    let wanted = target.full_groups / n_groups(variant, matmul, n, target);
    let shortest = match variant.team {
        Share::WorkgroupTile { .. } => MIN_PART,
        Share::SplitK { lanes, .. } => MIN_LANE_PART * lanes / variant.cols.n_values(),
        Share::Alone | Share::SubgroupBroadcast(_) => K_BLOCK,
    };
    let worth = (m * k + k * n) / (2 * m * n).max(1);
    wanted.min(worth).min(k / shortest).max(1)
}

/// Elements of k that a part has then: whole steps of a workgroup, or trips.
fn part_of(variant: &Variant, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> usize {
    matmul.k.div_ceil(parts_to_fill(variant, matmul, n, target)).next_multiple_of(variant.whole_k())
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
fn in_eights(read: Read, stored: Storage, lies: &OperandArgs, [along, across]: [(&AxisList, usize); 2]) -> bool {
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

fn eights_of_b(matmul: &MatmulArgs, n: usize, read: Read, stored: Storage) -> bool {
    in_eights(read, stored, &matmul.b, [(&matmul.b.rows, matmul.k), (&matmul.b.cols, n)])
}

/// Whether an index runs densely in fours.
fn is_dense(list: &AxisList) -> bool {
    stride_in_fours(list) == Some(1)
}

fn a_read(matmul: &MatmulArgs, rows: usize) -> Read {
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

fn b_read(matmul: &MatmulArgs, n: usize, stored: Storage) -> Read {
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

/// How a variant takes a product: how it reads, and how many parts a long k has.
fn shape(
    variant: &'static Variant,
    matmul: &MatmulArgs,
    n: usize,
    stored: [Storage; 2],
    target: &GpuTarget,
) -> MatmulShape {
    let k = matmul.k;
    let (mut a, mut b) = (a_read(matmul, variant.rows), b_read(matmul, n, stored[1]));
    if let (Share::SubgroupBroadcast(_) | Share::SplitK { .. }, Read::Across) = (variant.team, a) {
        // Each reads rows of its own, wherever they lie.
        a = Read::Each;
    }
    if let Share::WorkgroupTile { .. } = variant.team {
        // What a workgroup brings along k is whole fours.
        let whole = |read: Read| if read == Read::AlongK && !k.is_multiple_of(4) { Read::Each } else { read };
        (a, b) = (whole(a), whole(b));
    }
    let mut eights = [
        in_eights(a, stored[0], &matmul.a, [(&matmul.a.cols, k), (&matmul.a.rows, matmul.m)]),
        eights_of_b(matmul, n, b, stored[1]),
    ];
    let mut k_trip = K_UNROLL;
    match (variant.team, stored[1].blocks()) {
        (Share::WorkgroupTile { .. }, _) => {}
        (Share::SplitK { .. }, Some(blocks)) if b == Read::Blocks => {
            k_trip = BlockSteps::of_vector(blocks).n_steps;
            eights[0] &= k_trip.is_multiple_of(8);
        }
        (Share::SplitK { .. }, _) => {
            // Across, an invocation reads the columns of its own tile.
            eights[1] &= b == Read::AlongK || variant.cols == Cols::Fours(2);
            if eights[0] || (eights[1] && b == Read::AlongK) {
                k_trip = 2 * K_UNROLL;
            }
        }
        (Share::Alone | Share::SubgroupBroadcast(_), _) => eights = [false; 2],
    }
    // Trips of an invocation per element of k, in quarters.
    let trips_of_four = if let Share::WorkgroupTile { .. } = variant.team { 8 } else { 1 };
    // Trips over k, over blocks, over what is left, and over the tile.
    let iterations = (target.max_iterations.min(1 << 28) / 2).saturating_sub(40 + variant.rows * 4).max(1);
    let longest = (iterations / trips_of_four * K_UNROLL / K_BLOCK * K_BLOCK).max(K_BLOCK);
    let part = match target.style {
        Threads::Independent => alone_part(variant, matmul, n, b),
        Threads::Cooperative => part_of(variant, matmul, n, target),
    };
    let longest_run = match (variant.team, target.style) {
        (Share::SplitK { lanes, .. }, _) => lanes * K_PRODUCTS,
        _ => usize::MAX,
    };
    let k_per_split = part.min(longest).min(longest_run).max(K_UNROLL);
    let run = match (variant.team, target.style) {
        (Share::SubgroupBroadcast(_), _) if k_per_split <= K_RUN => SumRun::Fours,
        (Share::Alone, Threads::Independent) if runs_alone(variant, b) && k_per_split <= K_RUN => SumRun::Fours,
        (Share::SplitK { .. }, _) => SumRun::Products,
        (_, Threads::Cooperative) if k_per_split <= K_PRODUCTS => SumRun::Products,
        _ => SumRun::Blocks,
    };
    let written_out = target.style == Threads::Cooperative;
    MatmulShape { variant, a, b, splits: k.div_ceil(k_per_split).max(1), k_per_split, run, eights, k_trip, written_out }
}

/// Whether an invocation that works alone takes no blocks where k is not too long.
fn runs_alone(variant: &Variant, b: Read) -> bool {
    matches!(b, Read::AlongK | Read::Blocks) || variant.rows == 1
}

/// Elements of k that a driver takes at a time which runs on the CPU.
fn alone_part(variant: &Variant, matmul: &MatmulArgs, n: usize, b: Read) -> usize {
    let k = matmul.k;
    // Tiles that keep a device busy.
    let wanted = match variant.team {
        Share::WorkgroupTile { .. } | Share::Alone => 64,
        Share::SplitK { lanes, .. } => 4096 / lanes,
        Share::SubgroupBroadcast(n) => 64 / n,
    };
    let n_alone = n_tiles(variant, matmul, n).max(1);
    let mut side_by_side = if k >= 4 * K_BLOCK { wanted.div_ceil(n_alone).min(k / K_BLOCK) } else { 1 };
    let runs = match variant.team {
        Share::SubgroupBroadcast(_) => true,
        Share::Alone => runs_alone(variant, b),
        Share::WorkgroupTile { .. } | Share::SplitK { .. } => false,
    };
    let n_sums = matmul.batch.iter().product::<usize>() * matmul.m * n * k.div_ceil(K_RUN);
    if runs && side_by_side == 1 && n_sums <= FEW_SUMS {
        side_by_side = k.div_ceil(K_RUN).max(1);
    }
    k.div_ceil(side_by_side).next_multiple_of(variant.whole_k())
}
