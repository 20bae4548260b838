//! The schedule of a product: which variant makes which columns, how it reads its operands and how it adds up. In which parts k is
//! taken is the planner's decision, and part of the launch. Knows sizes and strides; writes no text.

use std::fmt;

use smallvec::SmallVec;

use super::super::blocks::BlockSteps;
use crate::blocks::Storage;
use crate::kernel::{Body, MatmulArgs};
use crate::target::products::{Why, a_read, b_read, eights_of_b, in_eights, runs_alone, variant_of};
use crate::target::variants::*;
use crate::target::{GpuTarget, Threads};

/// How a product is shared out: the columns that are taken four at a time, then those left over; and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductSchedule {
    /// From which column to which, and how.
    pub columns: SmallVec<[((usize, usize), MatmulShape); 2]>,
    pub why: Why,
}

impl ProductSchedule {
    /// The schedule of a product, after whose sums comes this body: its first two inputs are the operands.
    pub fn new(matmul: &MatmulArgs, body: &Body, target: &GpuTarget) -> ProductSchedule {
        let stored = [body.inputs[0], body.inputs[1]];
        let by_four = matmul.n / 4 * 4;
        let mut schedule = ProductSchedule { columns: SmallVec::new(), why: Why::Default(target.style) };
        for columns in [(0, by_four), (by_four, matmul.n)].into_iter().filter(|(start, end)| start < end) {
            let n = columns.1 - columns.0;
            let (variant, why) = variant_of(matmul, n, stored, target, &|_| matmul.k_parts);
            let rest = TileRest::new(variant, body, target);
            let shape = MatmulShape { rest, ..shape(variant, matmul, n, stored, target) };
            if schedule.columns.is_empty() {
                schedule.why = why;
            }
            schedule.columns.push((columns, shape));
        }
        schedule
    }
}

/// Shows the variant of the columns that are taken as vec4s; that of the up to three columns left over is not shown.
impl fmt::Display for ProductSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, shape)) = self.columns.first() else { return f.write_str("nothing to do") };
        write!(f, "{}: {}", shape.variant.name, self.why)
    }
}

/// How some columns of a product are shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatmulShape {
    pub variant: &'static Variant,
    /// How operands are read.
    pub a: Read,
    pub b: Read,
    /// How a part of k is summed up.
    pub run: SumRun,
    /// Whether operands of half floats are read eight at once, as many as a vector holds.
    pub eights: [bool; 2],
    /// Steps of k that one trip of an invocation takes where several share sums: all that the vectors hold which it reads.
    pub k_trip: usize,
    /// Whether the steps that a workgroup brings at a time are written out: a loop costs hardware a compare, a branch and
    /// clamped indices at every step.
    pub written_out: bool,
    /// Where several invocations share sums, how many of them hand each other theirs by subgroups, a power of two; None: all
    /// sums meet in workgroup memory.
    pub shuffle: Option<usize>,
    /// How what follows the sums is done to all values of a tile.
    pub rest: TileRest,
}

/// How what follows the sums is done to the values of a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TileRest {
    /// Its text is written out for each of them.
    WrittenOut,
    /// By a loop, which finds them in workgroup memory, of which each invocation has a part of its own.
    LoopOverShared,
    /// By a loop, which finds them in an array of the invocation's: llvmpipe takes long to compile a loop through one (of
    /// 32 × 8 sums and a bias 3.0 s).
    LoopOverArray,
}

impl TileRest {
    /// Operations up to which what follows the sums is written out for each value of a tile; beyond, it is a loop. With a GELU,
    /// 32 × 8 sums took llvmpipe 2.2 s to compile written out, 0.3 s as a loop.
    const WRITTEN_OUT: usize = 1024;

    /// For the tiles of a variant, after whose sums comes this body.
    fn new(variant: &Variant, body: &Body, target: &GpuTarget) -> TileRest {
        let n_values = variant.rows * variant.cols.n_values();
        let n_operations: usize = body.insts.iter().map(|inst| inst.op.cost().max(1)).sum();
        let shared_bytes = n_values * variant.group(target) * 16 + variant.shared_bytes(target);
        match n_values > 1 && n_values * n_operations > TileRest::WRITTEN_OUT {
            false => TileRest::WrittenOut,
            true if shared_bytes > target.max_shared_bytes => TileRest::LoopOverArray,
            true => TileRest::LoopOverShared,
        }
    }
}

/// How many products are added up one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SumRun {
    /// [`K_BLOCK`] at a time; then the sums of these blocks are added.
    Blocks,
    /// All: they are few enough.
    Products,
    /// All, four at a time: their sum is added to what is there.
    Fours,
}

impl MatmulShape {
    /// The same with the smallest tiles.
    pub fn smallest(self) -> MatmulShape {
        let variant = if self.variant.cols == Cols::One { &R1X1 } else { &R1X4 };
        MatmulShape { variant, shuffle: None, rest: TileRest::WrittenOut, ..self }
    }
}

/// How a variant takes a product: how it reads, and how it adds up.
fn shape(
    variant: &'static Variant,
    matmul: &MatmulArgs,
    n: usize,
    stored: [Storage; 2],
    target: &GpuTarget,
) -> MatmulShape {
    let (k, part) = (matmul.k, matmul.k_parts.len());
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
    let run = match (variant.team, target.style) {
        (Share::SubgroupBroadcast(_), _) if part <= K_RUN => SumRun::Fours,
        (Share::Alone, Threads::Independent) if runs_alone(variant, b) && part <= K_RUN => SumRun::Fours,
        (Share::SplitK { .. }, _) => SumRun::Products,
        (_, Threads::Cooperative) if part <= K_PRODUCTS => SumRun::Products,
        _ => SumRun::Blocks,
    };
    let written_out = target.style == Threads::Cooperative;
    let shuffle = variant.lanes_of_subgroup(target);
    let rest = TileRest::WrittenOut;
    MatmulShape { variant, a, b, run, eights, k_trip, written_out, shuffle, rest }
}
