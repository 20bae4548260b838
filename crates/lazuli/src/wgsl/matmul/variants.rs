//! Every way to share out a product, in one table, and which of them a product gets: what tuning found for its class of
//! shapes on this device, else a default by kind of device and shape. Knows sizes and strides; writes no text.

use std::collections::BTreeMap;
use std::fmt;

use smallvec::SmallVec;

use super::stride_in_fours;
use crate::dtype::DType;
use crate::kernel::{AxisList, MatmulArgs, OperandArgs};
use crate::target::{GpuTarget, Threads};

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
    /// So many invocations share the sums of one tile, each taking every so-manieth four of k.
    SplitK(usize),
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

const fn lanes(name: &'static str, rows: usize, n: usize) -> Variant {
    Variant { name, rows, cols: Cols::Fours(1), team: Share::SplitK(n) }
}

const fn subgroup(name: &'static str, rows: usize, fours: usize) -> Variant {
    Variant { name, rows, cols: Cols::Fours(fours), team: Share::SubgroupBroadcast(8) }
}

// From registers alone. Larger tiles read less per product; they also take longer to compile.
static R16X8: Variant = alone("16x8", 16, 2);
static R8X8: Variant = alone("8x8", 8, 2);
static R8X4: Variant = alone("8x4", 8, 1);
static R4X4: Variant = alone("4x4", 4, 1);
static R2X4: Variant = alone("2x4", 2, 1);
static R1X16: Variant = alone("1x16", 1, 4);
static R1X8: Variant = alone("1x8", 1, 2);
static R1X4: Variant = alone("1x4", 1, 1);
// Columns that fours leave over.
static R4X1: Variant = alone_by_one("4x1", 4);
static R2X1: Variant = alone_by_one("2x1", 2);
static R1X1: Variant = alone_by_one("1x1", 1);
// Through workgroup memory: 16 KiB is the most that every device has.
static T32: Variant = tile("4x4 of 32x32, 16 deep", [4, 1], [8, 8, 16]);
static T64: Variant = tile("4x4 of 64x64, 16 deep", [4, 1], [16, 16, 16]);
static T64X8: Variant = tile("8x8 of 64x64, 16 deep", [8, 2], [8, 8, 16]);
static T128: Variant = tile("8x8 of 128x128, 8 deep", [8, 2], [16, 16, 8]);
// Sums that several invocations share.
static L1X4: Variant = lanes("1x4 by 32 lanes", 1, 32);
static L4X4: Variant = lanes("4x4 by 32 lanes", 4, 32);
// Rows that a subgroup reads together. Its size is that of llvmpipe's on every processor with AVX.
static S32X8: Variant = subgroup("32x8 by subgroup", 32, 2);
static S32X4: Variant = subgroup("32x4 by subgroup", 32, 1);
static S16X8: Variant = subgroup("16x8 by subgroup", 16, 2);
static S8X16: Variant = subgroup("8x16 by subgroup", 8, 4);
static S8X8: Variant = subgroup("8x8 by subgroup", 8, 2);

/// The table. Tuning tries those that fit; nothing outside it is ever run.
pub static VARIANTS: [&Variant; 22] = [
    &R16X8, &R8X8, &R8X4, &R4X4, &R2X4, &R1X16, &R1X8, &R1X4, &R4X1, &R2X1, &R1X1, &T32, &T64, &T64X8, &T128, &L1X4,
    &L4X4, &S32X8, &S32X4, &S16X8, &S8X16, &S8X8,
];

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
/// The same for hardware, which wants many invocations and reads from registers what a workgroup has brought. (For a
/// tile of a workgroup, how many workgroups.)
static DEFAULTS_SHARED: [(&Variant, usize); 10] = [
    (&T64, 32),
    (&T32, 16),
    (&L4X4, 0),
    (&L1X4, 0),
    (&R4X4, 0),
    (&R2X4, 0),
    (&R1X4, 0),
    (&R4X1, 0),
    (&R2X1, 0),
    (&R1X1, 0),
];

/// How a product is shared out: the columns that are taken four at a time, then those left over; and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductSchedule {
    /// From which column to which, and how.
    pub columns: SmallVec<[((usize, usize), MatmulShape); 2]>,
    pub why: Why,
}

impl ProductSchedule {
    /// The schedule of a product of these dtypes.
    pub fn new(matmul: &MatmulArgs, dtypes: [DType; 2], target: &GpuTarget) -> ProductSchedule {
        let by_four = matmul.n / 4 * 4;
        let mut schedule = ProductSchedule { columns: SmallVec::new(), why: Why::Default(target.style) };
        for columns in [(0, by_four), (by_four, matmul.n)].into_iter().filter(|(start, end)| start < end) {
            let (shape, why) = choose(matmul, columns.1 - columns.0, dtypes, target);
            if schedule.columns.is_empty() {
                schedule.why = why;
            }
            schedule.columns.push((columns, shape));
        }
        schedule
    }
}

/// What is told is how most of it is made; what fours leave over goes with it.
impl fmt::Display for ProductSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, shape)) = self.columns.first() else { return f.write_str("nothing to do") };
        f.write_str(shape.variant.name)?;
        if shape.splits > 1 {
            write!(f, ", k in {} parts", shape.splits)?;
        }
        write!(f, ": {}", self.why)
    }
}

/// How some columns of a product are shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatmulShape {
    pub variant: &'static Variant,
    /// How operands are read.
    pub a: Read,
    pub b: Read,
    /// Parts of k that are summed up side by side, and elements of each.
    pub splits: usize,
    pub k_per_split: usize,
    /// Whether a part is summed up in one run, not in blocks.
    pub one_run: bool,
}

impl MatmulShape {
    /// The same with the smallest tiles.
    pub fn smallest(self) -> MatmulShape {
        MatmulShape { variant: if self.variant.cols == Cols::One { &R1X1 } else { &R1X4 }, ..self }
    }
}

/// How the elements of an operand are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Read {
    /// Four at once along k.
    AlongK,
    /// Four at once along the axis that the result has too.
    Across,
    /// One by one.
    Each,
}

/// Steps along k that one trip takes.
pub const K_UNROLL: usize = 4;
/// Products that are summed up one after another; beyond, their sums are.
pub const K_BLOCK: usize = 256;
/// Up to here a run takes no blocks: it adds up sums of `K_UNROLL` products, 512 of them at most. llvmpipe reads memory a
/// tenth slower in a loop within a loop.
const K_RUN: usize = 2048;
/// Sums of parts of k that are worth a run for each part.
const FEW_SUMS: usize = 1 << 18;

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

/// What tuning found on a device: per class of shapes, a variant and the day.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    pub by_class: BTreeMap<Class, (&'static Variant, String)>,
    /// Taken wherever it fits, whatever the class.
    pub forced: Option<&'static Variant>,
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
    /// The class of a product of these dtypes; None if it is never tuned: integers, or operands that lie neither way.
    pub fn of(matmul: &MatmulArgs, dtypes: [DType; 2]) -> Option<Class> {
        let operand = |lies: &OperandArgs, dtype: DType, cols: usize, rows: usize| {
            let steps = lies.steps()?;
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
            a: operand(&matmul.a, dtypes[0], matmul.k, matmul.m)?,
            b: operand(&matmul.b, dtypes[1], matmul.n, matmul.k)?,
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
        MatmulArgs { batch, m, k, n, a: lies(m, k, a.transposed), b: lies(k, n, b.transposed), panels: None }
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
            (Share::SplitK(n), _) => n.max(64.min(target.max_invocations) / n * n),
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
            Share::Alone | Share::SplitK(_) => (rows, cols),
        }
    }

    /// Tiles across a strip: those of one workgroup, or as many groups as share what they read.
    pub fn strip(&self, group: usize) -> usize {
        match self.team {
            Share::Alone => group,
            Share::SubgroupBroadcast(_) => 1,
            Share::WorkgroupTile { .. } | Share::SplitK(_) => 8,
        }
    }

    /// Bytes of workgroup memory.
    fn shared_bytes(&self, target: &GpuTarget) -> usize {
        match self.team {
            Share::Alone | Share::SubgroupBroadcast(_) => 0,
            Share::WorkgroupTile { k, .. } => (self.tile().0 + self.tile().1) * k * 4,
            Share::SplitK(_) => self.group(target) * self.cols.per_value() * 4,
        }
    }

    /// Whether a device can run it for these columns of a product.
    pub fn fits(&self, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> bool {
        let by_four = n.is_multiple_of(4);
        by_four == (self.cols != Cols::One)
            && self.group(target) <= target.max_invocations
            && self.shared_bytes(target) <= target.max_shared_bytes
            && !matches!(self.team, Share::SubgroupBroadcast(n) if target.subgroup != Some(n))
            // Invocations that share k by turns would have to divide at every step to find their place in a list of axes.
            && !matches!(self.team, Share::SplitK(_) if [&matmul.a.cols, &matmul.b.rows].iter().any(|k| k.stride().is_none()))
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
    fn suits(&self, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> bool {
        match target.b_row_bytes {
            Some(bytes) => self.group(target) * self.cols.n_cols() * 4 == bytes.min((n * 4).next_power_of_two()),
            // Where few tiles share what is read of `b`, narrow ones are faster.
            None => self != &S32X8 || matmul.m > 64,
        }
    }
}

/// The shape of a product, of those columns that are taken four at a time or of those left over; and why.
fn choose(matmul: &MatmulArgs, n: usize, dtypes: [DType; 2], target: &GpuTarget) -> (MatmulShape, Why) {
    let (variant, why) = variant_of(matmul, n, dtypes, target);
    (shape(variant, matmul, n, target), why)
}

fn variant_of(matmul: &MatmulArgs, n: usize, dtypes: [DType; 2], target: &GpuTarget) -> (&'static Variant, Why) {
    let fits = |variant: &&'static Variant| variant.fits(matmul, n, target);
    if let Some(variant) = target.tuned.forced.filter(fits) {
        return (variant, Why::Forced);
    }
    let tuned = Class::of(matmul, dtypes).and_then(|class| target.tuned.by_class.get(&class));
    if let Some((variant, day)) = tuned.filter(|(variant, _)| fits(variant)) {
        return (variant, Why::Tuned(day.clone()));
    }
    (default_of(matmul, n, target), Why::Default(target.style))
}

/// With a matrix this small on the right a product is done before it matters how: it gets the same variant for any number
/// of rows, so that none compiles another, but for a single row.
const SMALL: usize = 64 * 64;

/// Results of a tile whose text any driver compiles in good time.
const SHORT_TILE: usize = 16;

/// What a product gets before anything was tuned.
pub fn default_of(matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> &'static Variant {
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
        Threads::Cooperative => &DEFAULTS_SHARED,
    };
    let is_good = |&(variant, enough): &(&'static Variant, usize)| {
        let is_for = match variant.team {
            // Many rows of stored weights at once are too many for a cache.
            Share::Alone if variant.rows == 1 && variant.cols.n_values() > 1 => {
                b_read(matmul, n) != Read::AlongK && variant.suits(matmul, n, target)
            }
            Share::Alone => matmul.m > variant.rows / 2,
            Share::SubgroupBroadcast(_) => variant.is_sensible(matmul, n) && variant.suits(matmul, n, target),
            Share::WorkgroupTile { .. } => variant.is_sensible(matmul, n),
            // Rows of stored weights are read side by side; few rows of the result want nothing else.
            Share::SplitK(_) => {
                let few = matmul.m <= 4 && matmul.m > variant.rows / 2;
                few && matmul.k >= 256 && b_read(matmul, n) == Read::AlongK
            }
        };
        let (rows, cols) = variant.tile();
        let is_short = target.large_shaders || rows * cols <= SHORT_TILE;
        is_for && is_short && n_tiles(variant, matmul, n) >= enough && variant.fits(matmul, n, target)
    };
    let found = defaults.iter().find(|default| is_good(default));
    found.map_or(if n.is_multiple_of(4) { &R1X4 } else { &R1X1 }, |(variant, _)| variant)
}

fn n_tiles(variant: &Variant, matmul: &MatmulArgs, n: usize) -> usize {
    let (rows, cols) = variant.tile();
    matmul.batch.iter().product::<usize>() * matmul.m.div_ceil(rows) * n.div_ceil(cols)
}

/// Whether fours that follow each other along one of an operand's indices start at multiples of four, wherever the `other`
/// index and the batch are.
fn starts_at_multiples(lies: &OperandArgs, along: &AxisList, other: &AxisList) -> bool {
    let all = |list: &AxisList| list.axes().iter().all(|(_, stride)| stride % 4 == 0);
    let slower = &along.axes()[..along.axes().len() - 1];
    lies.offset % 4 == 0 && all(other) && slower.iter().all(|(_, by)| by % 4 == 0) && lies.batch.iter().all(all)
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

fn b_read(matmul: &MatmulArgs, n: usize) -> Read {
    let &MatmulArgs { k, ref b, .. } = matmul;
    match () {
        _ if k > 0 && n.is_multiple_of(4) && is_dense(&b.cols) && starts_at_multiples(b, &b.cols, &b.rows) => {
            Read::Across
        }
        _ if k >= 4 && is_dense(&b.rows) && starts_at_multiples(b, &b.rows, &b.cols) => Read::AlongK,
        _ => Read::Each,
    }
}

/// How a variant takes a product: how it reads, and how many parts a long k has.
fn shape(variant: &'static Variant, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> MatmulShape {
    let k = matmul.k;
    let (mut a, mut b) = (a_read(matmul, variant.rows), b_read(matmul, n));
    if let (Share::SubgroupBroadcast(_), Read::Across) = (variant.team, a) {
        // Each reads rows of its own, wherever they lie.
        a = Read::Each;
    }
    if let Share::WorkgroupTile { .. } = variant.team {
        // What a workgroup brings along k is whole fours.
        let whole = |read: Read| if read == Read::AlongK && !k.is_multiple_of(4) { Read::Each } else { read };
        (a, b) = (whole(a), whole(b));
    }
    // Tiles that keep a device busy, and trips of an invocation per element of k, in quarters.
    let (wanted, trips_of_four) = match (variant.team, target.style) {
        (Share::WorkgroupTile { .. }, _) => (64, 8),
        (Share::SplitK(n), _) => (4096 / n, 1),
        (Share::SubgroupBroadcast(n), _) => (64 / n, 1),
        (Share::Alone, Threads::Independent) => (64, 1),
        (Share::Alone, Threads::Cooperative) => (4096, 1),
    };
    let n_alone = n_tiles(variant, matmul, n).max(1);
    let mut side_by_side = if k >= 4 * K_BLOCK { wanted.div_ceil(n_alone).min(k / K_BLOCK) } else { 1 };
    let runs = match (variant.team, target.style) {
        (Share::SubgroupBroadcast(_), _) => true,
        (Share::Alone, Threads::Independent) => b == Read::AlongK || variant.rows == 1,
        _ => false,
    };
    let n_sums = matmul.batch.iter().product::<usize>() * matmul.m * n * k.div_ceil(K_RUN);
    if runs && side_by_side == 1 && n_sums <= FEW_SUMS {
        side_by_side = k.div_ceil(K_RUN).max(1);
    }
    // Trips over k, over blocks, over what is left, and over the tile.
    let iterations = (target.max_iterations.min(1 << 28) / 2).saturating_sub(40 + variant.rows * 4).max(1);
    let longest = (iterations / trips_of_four * K_UNROLL / K_BLOCK * K_BLOCK).max(K_BLOCK);
    let k_per_split = k.div_ceil(side_by_side).next_multiple_of(K_UNROLL).min(longest).max(K_UNROLL);
    let one_run = runs && k_per_split <= K_RUN;
    MatmulShape { variant, a, b, splits: k.div_ceil(k_per_split).max(1), k_per_split, one_run }
}
