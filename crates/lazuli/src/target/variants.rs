//! Every way in which a GPU may share out a product, in one table, and classes of products that are tuned together. Which
//! variant a product gets is chosen in `products`. Knows sizes and strides; writes no text.

use std::collections::BTreeMap;
use std::fmt;

use super::{GpuTarget, Threads};
use crate::blocks::Storage;
use crate::dtype::DType;
use crate::kernel::{AxisParts, MatmulArgs, OperandArgs};

/// A way to share out a product.
#[derive(Debug, PartialEq)]
pub struct Variant {
    /// What `explain` and tuning files call it: rows x columns of an invocation's tile first.
    pub name: &'static str,
    /// Rows of the tile that an invocation makes in registers.
    pub rows: usize,
    /// Its columns: how many fours, or one column.
    pub cols: Cols,
    /// How invocations work together.
    pub team: Share,
}

/// How invocations work together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Each reads what it needs.
    Alone,
    /// A workgroup of `down` × `across` invocations brings `k` steps of both matrices to workgroup memory at a time.
    WorkgroupTile { down: usize, across: usize, k: usize },
    /// Split-k inside a workgroup: `lanes` invocations share the sums of one tile, and lane i takes vectors i, i + `lanes`, … of
    /// k. The workgroup makes `beside` tiles next to each other (fewer where it would be too large): neighbouring invocations
    /// have neighbouring tiles, then neighbouring vectors of k.
    SplitK { lanes: usize, beside: usize },
    /// A subgroup of so many makes tiles side by side: each reads its part of the rows of `a`, which are the same for
    /// all of them, and hands it to the others.
    SubgroupBroadcast(usize),
}

/// The columns of a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cols {
    One,
    Fours(usize),
}

impl Cols {
    /// How many fours, or single columns.
    pub fn n_values(self) -> usize {
        match self {
            Cols::One => 1,
            Cols::Fours(n) => n,
        }
    }

    /// Elements of a value: four or one.
    pub fn per_value(self) -> usize {
        if self == Cols::One { 1 } else { 4 }
    }

    /// Columns in all.
    pub fn n_cols(self) -> usize {
        self.n_values() * self.per_value()
    }
}

const fn alone(name: &'static str, rows: usize, fours: usize) -> Variant {
    Variant { name, rows, cols: Cols::Fours(fours), team: Share::Alone }
}

const fn alone_by_one(name: &'static str, rows: usize) -> Variant {
    Variant { name, rows, cols: Cols::One, team: Share::Alone }
}

const fn tile(name: &'static str, [rows, fours]: [usize; 2], [down, across, k]: [usize; 3]) -> Variant {
    Variant { name, rows, cols: Cols::Fours(fours), team: Share::WorkgroupTile { down, across, k } }
}

const fn lanes(name: &'static str, [rows, fours]: [usize; 2], [lanes, beside]: [usize; 2]) -> Variant {
    Variant { name, rows, cols: Cols::Fours(fours), team: Share::SplitK { lanes, beside } }
}

const fn subgroup(name: &'static str, rows: usize, fours: usize) -> Variant {
    Variant { name, rows, cols: Cols::Fours(fours), team: Share::SubgroupBroadcast(8) }
}

// From registers alone. Larger tiles read less per product; they also take longer to compile.
pub static R16X8: Variant = alone("16x8", 16, 2);
pub static R8X8: Variant = alone("8x8", 8, 2);
pub static R8X4: Variant = alone("8x4", 8, 1);
pub static R4X4: Variant = alone("4x4", 4, 1);
pub static R2X4: Variant = alone("2x4", 2, 1);
pub static R1X16: Variant = alone("1x16", 1, 4);
pub static R1X8: Variant = alone("1x8", 1, 2);
pub static R1X4: Variant = alone("1x4", 1, 1);
// Columns that fours leave over.
pub static R4X1: Variant = alone_by_one("4x1", 4);
pub static R2X1: Variant = alone_by_one("2x1", 2);
pub static R1X1: Variant = alone_by_one("1x1", 1);
// Through workgroup memory: 16 KiB is the most that every device has.
pub static T32: Variant = tile("4x4 of 32x32, 16 deep", [4, 1], [8, 8, 16]);
pub static T64X32: Variant = tile("8x4 of 64x32, 16 deep", [8, 1], [8, 8, 16]);
pub static T64: Variant = tile("8x4 of 64x64, 16 deep", [8, 1], [8, 16, 16]);
pub static T128: Variant = tile("8x4 of 128x64, 16 deep", [8, 1], [16, 16, 16]);
pub static T128X8: Variant = tile("8x8 of 128x64, 8 deep", [8, 2], [16, 8, 8]);
// Few rows, whose sums several invocations share, and how the right matrix lies. Stored weights, of which a column lies side by
// side along k, are read by 64 invocations along k.
pub static L1X4: Variant = lanes("1x4 by 64 lanes", [1, 1], [64, 1]);
pub static L4X4: Variant = lanes("4x4 by 64 lanes", [4, 1], [64, 1]);
pub static L8X4: Variant = lanes("8x4 by 64 lanes", [8, 1], [64, 1]);
// Weights in blocks, of which 16 columns lie side by side and then k, are read by four invocations across and 64 along k.
pub static L1X4Q: Variant = lanes("1x4 by 4x64 lanes", [1, 1], [64, 4]);
pub static L4X4Q: Variant = lanes("4x4 by 4x64 lanes", [4, 1], [64, 4]);
pub static L8X4Q: Variant = lanes("8x4 by 4x64 lanes", [8, 1], [64, 4]);
// Others are read by 16 invocations along a row, and 16 rows at a time; half floats eight columns at a time.
pub static L1X4B: Variant = lanes("1x4 by 16 lanes", [1, 1], [16, 16]);
pub static L4X4B: Variant = lanes("4x4 by 16 lanes", [4, 1], [16, 16]);
pub static L8X4B: Variant = lanes("8x4 by 16 lanes", [8, 1], [16, 16]);
pub static L1X8B: Variant = lanes("1x8 by 16 lanes", [1, 2], [16, 16]);
pub static L4X8B: Variant = lanes("4x8 by 16 lanes", [4, 2], [16, 16]);
// Rows that a subgroup reads together. Its size is that of llvmpipe's on every processor with AVX.
pub static S32X8: Variant = subgroup("32x8 by subgroup", 32, 2);
pub static S32X4: Variant = subgroup("32x4 by subgroup", 32, 1);
pub static S16X8: Variant = subgroup("16x8 by subgroup", 16, 2);
pub static S8X16: Variant = subgroup("8x16 by subgroup", 8, 4);
pub static S8X8: Variant = subgroup("8x8 by subgroup", 8, 2);

/// The table. Tuning tries those that fit; nothing outside it is ever run.
pub static VARIANTS: [&Variant; 32] = [
    &R16X8, &R8X8, &R8X4, &R4X4, &R2X4, &R1X16, &R1X8, &R1X4, &R4X1, &R2X1, &R1X1, &T32, &T64X32, &T64, &T128, &T128X8,
    &L1X4, &L4X4, &L8X4, &L1X4Q, &L4X4Q, &L8X4Q, &L1X4B, &L4X4B, &L8X4B, &L1X8B, &L4X8B, &S32X8, &S32X4, &S16X8,
    &S8X16, &S8X8,
];

/// How the elements of an operand are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Read {
    /// Four at once along k.
    AlongK,
    /// Four at once along the axis that the result has too.
    Across,
    /// Four at once along that axis, for several steps of k: vectors of a weight in blocks.
    Blocks,
    /// One by one.
    Each,
}

/// Steps along k that one trip takes.
pub const K_UNROLL: usize = 4;
/// Products that are added up in order to one partial sum; a longer k makes several, which are then added.
pub const K_BLOCK: usize = 256;
/// Up to here a run of sums of `K_UNROLL` products takes no blocks: it adds up 512 of them at most. llvmpipe reads memory a
/// tenth slower in a loop within a loop.
pub const K_RUN: usize = 2048;
/// The longest k that is added up product by product without blocks: as many roundings as [`K_RUN`] steps in fours.
pub const K_PRODUCTS: usize = 512;
/// Invocations that count as one workgroup when it is asked whether there are enough to fill a device.
pub const GROUP: usize = 64;

/// What tuning found on a device: per class of shapes, a variant and the day.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    pub by_class: BTreeMap<Class, (&'static Variant, String)>,
    /// Taken wherever it fits, whatever the class.
    pub forced: Option<&'static Variant>,
    /// Workgroups of 64 invocations that keep the device busy, if that was measured.
    pub full_groups: Option<usize>,
}

/// Products that are tuned together: sizes up to the same bounds, and operands of the same layout and dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: OperandLayout,
    pub b: OperandLayout,
}

/// How an operand of a class lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperandLayout {
    pub dtype: DType,
    pub transposed: bool,
}

/// Upper bounds of classes; what is larger belongs to the last one.
const BATCHES: [usize; 2] = [1, 16];
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 64, 256, 1024];
const SIZES: [usize; 5] = [64, 256, 1024, 2048, 4096];

fn bound(bounds: &[usize], size: usize) -> usize {
    bounds.iter().copied().find(|b| size <= *b).unwrap_or(bounds[bounds.len() - 1])
}

impl Class {
    /// The class of a product of operands that are stored so; None if it is never tuned: integers, weights in blocks, or
    /// operands that lie neither way.
    pub fn of(matmul: &MatmulArgs, stored: [Storage; 2]) -> Option<Class> {
        let operand = |lies: &OperandArgs, stored: Storage, cols: usize, rows: usize| {
            let (steps, dtype) = (lies.steps()?, stored.plain()?);
            let transposed = match () {
                _ if !dtype.is_float() => return None,
                _ if steps.1 == 1 || cols == 1 => false,
                _ if steps.0 == 1 || rows == 1 => true,
                _ => return None,
            };
            Some(OperandLayout { dtype, transposed })
        };
        Some(Class {
            batch: bound(&BATCHES, matmul.batch.iter().product()),
            m: bound(&ROWS, matmul.m),
            k: bound(&SIZES, matmul.k),
            n: bound(&SIZES, matmul.n),
            a: operand(&matmul.a, stored[0], matmul.k, matmul.m)?,
            b: operand(&matmul.b, stored[1], matmul.n, matmul.k)?,
        })
    }

    /// Understands what `Display` writes; None if it is anything else.
    pub fn parse(text: &str) -> Option<Class> {
        let [batch, m, k, n, a, b] = <[&str; 6]>::try_from(text.split(' ').collect::<Vec<_>>()).ok()?;
        let size = |word: &str, bounds: &[usize]| word.parse().ok().filter(|size| bounds.contains(size));
        let operand = |word: &str| {
            let (name, transposed) = word.strip_suffix("ᵀ").map_or((word, false), |name| (name, true));
            let dtype = [DType::F32, DType::F16, DType::BF16].into_iter().find(|d| d.to_string() == name)?;
            Some(OperandLayout { dtype, transposed })
        };
        Some(Class {
            batch: size(batch, &BATCHES)?,
            m: size(m, &ROWS)?,
            k: size(k, &SIZES)?,
            n: size(n, &SIZES)?,
            a: operand(a)?,
            b: operand(b)?,
        })
    }

    /// A product that stands for all of its class.
    pub fn product(&self) -> MatmulArgs {
        let &Class { batch, m, k, n, a, b } = self;
        let lies = |rows: usize, cols: usize, transposed: bool| {
            let (down, across) = if transposed { (1, rows as isize) } else { (cols as isize, 1) };
            let of_batch = (batch > 1).then_some((batch, (rows * cols) as isize));
            OperandArgs::plain(of_batch.into_iter(), (rows, down), (cols, across))
        };
        let batch = if batch > 1 { vec![batch] } else { Vec::new() };
        MatmulArgs {
            batch,
            m,
            k,
            n,
            a: lies(m, k, a.transposed),
            b: lies(k, n, b.transposed),
            panels: None,
            k_parts: AxisParts::whole(k),
            made: [None, None],
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Class { batch, m, k, n, a, b } = self;
        write!(f, "{batch} {m} {k} {n} {a} {b}")
    }
}

impl fmt::Display for OperandLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, if self.transposed { "ᵀ" } else { "" })
    }
}

/// The variant called so.
pub fn named(name: &str) -> Option<&'static Variant> {
    VARIANTS.iter().copied().find(|v| v.name == name)
}

impl Variant {
    /// Invocations of a workgroup.
    pub fn group(&self, target: &GpuTarget) -> usize {
        match (self.team, target.style) {
            (Share::WorkgroupTile { down, across, .. }, _) => down * across,
            (Share::SplitK { lanes, beside }, _) => lanes * beside.min(target.max_invocations / lanes).max(1),
            (Share::SubgroupBroadcast(n), _) => n,
            (Share::Alone, Threads::Independent) => 8.min(target.max_invocations),
            (Share::Alone, Threads::Cooperative) => 64.min(target.max_invocations),
        }
    }

    /// Rows and columns of what is counted when tiles are: an invocation's tile, or a workgroup's.
    pub fn tile(&self) -> (usize, usize) {
        let (rows, cols) = (self.rows, self.cols.n_cols());
        match self.team {
            Share::WorkgroupTile { down, across, .. } => (rows * down, cols * across),
            Share::SubgroupBroadcast(n) => (rows, cols * n),
            Share::Alone | Share::SplitK { .. } => (rows, cols),
        }
    }

    /// Tiles across a strip: those of one workgroup, or as many groups as share what they read.
    pub fn strip(&self, group: usize) -> usize {
        match self.team {
            Share::Alone => group,
            Share::SubgroupBroadcast(_) => 1,
            Share::SplitK { lanes, .. } => (group / lanes).max(8),
            Share::WorkgroupTile { .. } => 8,
        }
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self, target: &GpuTarget) -> usize {
        match self.team {
            Share::Alone | Share::SubgroupBroadcast(_) => 0,
            Share::WorkgroupTile { k, .. } => (self.tile().0 + self.tile().1) * k * 4,
            Share::SplitK { .. } => self.n_shared_sums(target) * self.values_at_once(target) * 16,
        }
    }

    /// Values of its tile that invocations which share sums exchange at once: as many as 16 KiB hold.
    pub fn values_at_once(&self, target: &GpuTarget) -> usize {
        (self.rows * self.cols.n_values()).min((1024 / self.n_shared_sums(target).max(1)).max(1))
    }

    /// How many of the invocations that share the sums of a tile are sure to be in one subgroup, so that they hand each other
    /// what they have; None if no two are.
    pub fn lanes_of_subgroup(&self, target: &GpuTarget) -> Option<usize> {
        let Share::SplitK { lanes, .. } = self.team else { return None };
        let group = self.group(target);
        let near = (target.shuffle_width(group)? * lanes / group).min(lanes);
        (near > 1).then_some(near)
    }

    /// Sums of a value that meet in workgroup memory: of every invocation, or of every subgroup; none where one has all.
    fn n_shared_sums(&self, target: &GpuTarget) -> usize {
        match (self.team, self.lanes_of_subgroup(target)) {
            (Share::SplitK { lanes, .. }, Some(near)) if near == lanes => 0,
            (_, near) => self.group(target) / near.unwrap_or(1),
        }
    }

    /// Tiles that some columns of a product have.
    pub fn n_tiles(&self, matmul: &MatmulArgs, n: usize) -> usize {
        let (rows, cols) = self.tile();
        matmul.batch.iter().product::<usize>() * matmul.m.div_ceil(rows) * n.div_ceil(cols)
    }

    /// Workgroups that make them without parts of k, counted by [`GROUP`] invocations.
    pub fn n_groups(&self, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> usize {
        let (n_tiles, group) = (self.n_tiles(matmul, n), self.group(target));
        match self.team {
            Share::Alone => n_tiles.div_ceil(GROUP),
            Share::SplitK { lanes, .. } => (n_tiles * lanes).div_ceil(GROUP),
            Share::WorkgroupTile { .. } | Share::SubgroupBroadcast(_) => n_tiles * group.div_ceil(GROUP),
        }
        .max(1)
    }

    /// How much of k an invocation can sum up within the loop iterations that it may make: trips over k, over blocks, over what
    /// is left, and over the tile.
    pub fn max_part(&self, target: &GpuTarget) -> usize {
        // Trips of an invocation per element of k, in quarters.
        let trips_of_four = if let Share::WorkgroupTile { .. } = self.team { 8 } else { 1 };
        let iterations = (target.max_iterations.min(1 << 28) / 2).saturating_sub(40 + self.rows * 4).max(1);
        (iterations / trips_of_four * K_UNROLL / K_BLOCK * K_BLOCK).max(K_BLOCK)
    }

    /// Whether a device can run it for these columns of a product.
    pub fn fits(&self, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> bool {
        let by_four = n.is_multiple_of(4);
        by_four == (self.cols != Cols::One)
            && self.group(target) <= target.max_invocations
            && self.shared_bytes(target) <= target.max_shared_bytes
            && !matches!(self.team, Share::SubgroupBroadcast(n) if target.subgroup != Some(n))
            // Invocations that share k by turns would have to divide at every step to find their place in a list of axes.
            && !matches!(self.team, Share::SplitK { .. } if [&matmul.a.cols, &matmul.b.rows].iter().any(|k| k.stride().is_none()))
            // A team has nothing to do where there is nothing to sum up.
            && (self.team == Share::Alone || matmul.k > 0)
    }

    /// Whether it is worth trying: at least half of a tile's rows and columns are there. A row for each invocation of a
    /// subgroup is read as fast as two.
    pub fn is_sensible(&self, matmul: &MatmulArgs, n: usize) -> bool {
        let (rows, cols) = self.tile();
        let few_rows = if self.team == Share::SubgroupBroadcast(rows) { 1 } else { rows / 2 };
        matmul.m > few_rows && n > cols / 2
    }

    /// Whether invocations side by side read as much of a row of `b` at a time as suits the device, or all there is.
    pub fn suits(&self, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> bool {
        match target.b_row_bytes {
            Some(bytes) => self.group(target) * self.cols.n_cols() * 4 == bytes.min((n * 4).next_power_of_two()),
            // Where few tiles share what is read of `b`, narrow ones are faster.
            None => self != &S32X8 || matmul.m > 64,
        }
    }
}
