//! How a chained product is shared out on a GPU: plain data, made of a kernel, its sizes and what is known of the device.
//! Writes no text.

use std::fmt;

use super::variants::{Read, Share};
use super::{GpuTarget, Threads};
use crate::kernel::{AttentionArgs, AttentionKernel, AttentionOperand, InstOp};

/// The blocks of a chained product. A workgroup takes a block of rows (queries) and a tile of values, and goes through the
/// columns (keys) block by block; scores and weights of a block stay in registers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTiles {
    /// How invocations work together: a subgroup in which every invocation has all rows and some of the columns, or a
    /// workgroup through its memory, to which it brings `k` steps of both operands at a time.
    pub share: Share,
    /// Rows of an invocation.
    pub rows: usize,
    /// Fours of columns, and of values, that an invocation has.
    pub key_fours: usize,
    pub value_fours: usize,
    /// How each inner product's operands are read, by rows and by columns; and the values.
    pub reads: [[Read; 2]; 2],
    pub values: Read,
    /// Whether columns, values and the products of each inner sum are whole fours.
    pub keys_by_four: bool,
    pub values_by_four: bool,
    pub depth_by_four: [bool; 2],
    /// Whether a weight of 0 hides its value, whatever it is: 0 · NaN would be NaN.
    pub hides: bool,
    /// Of the invocations of a workgroup that share rows, how many hand each other the greatest score and the sum of each row by
    /// subgroups, a power of two; None: all of that meets in workgroup memory.
    pub shuffle: Option<usize>,
}

/// Rows that a subgroup which is a driver's vector takes at a time, fours of columns of each invocation, and how many rows
/// there must be for it; the first that serves is taken. What is read of keys and values serves all rows. For 512 rows and
/// columns of 12 heads, on llvmpipe and an AMD EPYC, 32 rows and 2 fours took 11.8 ms, 32 and 1 took 12.3, 24 and 1 14.0, 16
/// and 2 14.9, 16 and 1 15.8.
const SUBGROUP_BLOCKS: [(usize, usize, usize); 7] =
    [(32, 1, 256), (24, 1, 192), (16, 2, 9), (16, 1, 9), (8, 2, 2), (8, 1, 2), (1, 2, 0)];
/// Operations that are written out for all rows of a subgroup, at most, so that drivers compile them in good time: llvmpipe
/// took 0.85 s for 864 and 1.5 s for 1216.
const MAX_WRITTEN_OUT: usize = 900;
/// Operations that stand for the steps of a product in it, of scores or of values, for a row and a four.
const PRODUCT_OPERATIONS: usize = 8;
/// Fours of values that an invocation keeps at most.
const MAX_VALUE_FOURS: usize = 4;

impl AttentionTiles {
    /// The blocks for these sizes on this device.
    pub fn choose(kernel: &AttentionKernel, args: &AttentionArgs, target: &GpuTarget) -> AttentionTiles {
        let n_fours = args.n_values.div_ceil(4);
        let (share, rows, key_fours, value_fours) = match (target.style, target.subgroup) {
            (Threads::Independent, Some(n)) => {
                let value_fours = n_fours.div_ceil(n).min(MAX_VALUE_FOURS);
                let score: usize = kernel.scores.insts.iter().map(|inst| inst.op.cost().max(1)).sum();
                let score = score + args.inner.len() * PRODUCT_OPERATIONS;
                let serves = |(rows, key_fours, from): &&(usize, usize, usize)| {
                    let written_out = rows * (key_fours * score + value_fours * PRODUCT_OPERATIONS);
                    args.n_rows >= *from && written_out <= MAX_WRITTEN_OUT
                };
                let [.., least] = &SUBGROUP_BLOCKS;
                let (rows, key_fours, _) = SUBGROUP_BLOCKS.iter().find(serves).unwrap_or(least);
                (Share::SubgroupBroadcast(n), *rows, *key_fours, value_fours)
            }
            _ => workgroup(args, n_fours, target),
        };
        let mut tiles = AttentionTiles {
            share,
            rows,
            key_fours,
            value_fours,
            reads: [[Read::Each; 2]; 2],
            values: read_values(args),
            keys_by_four: args.n_columns.is_multiple_of(4),
            values_by_four: args.n_values.is_multiple_of(4),
            depth_by_four: [true; 2],
            // Scores that a mask chooses, or a bias of −∞.
            hides: kernel.scores.insts.iter().any(|inst| matches!(inst.op, InstOp::Select(..) | InstOp::Load { .. })),
            shuffle: None,
        };
        if let Share::WorkgroupTile { down, across, .. } = share {
            tiles.shuffle = target.shuffle_width(down * across).map(|width| width.min(across)).filter(|near| *near > 1);
        }
        for (i, inner) in args.inner.iter().enumerate() {
            let along =
                |lies: &AttentionOperand, n: usize| match inner.depth.is_multiple_of(4) && is_by_four(lies, args, n) {
                    true => Read::AlongK,
                    false => Read::Each,
                };
            tiles.reads[i] = [along(&inner.a, args.n_rows), along(&inner.b, args.n_columns)];
            tiles.depth_by_four[i] = inner.depth.is_multiple_of(4);
        }
        // Behind the last column there are weights of 0, too.
        tiles.hides |= !args.n_columns.is_multiple_of(tiles.block_columns());
        tiles
    }

    /// Loop iterations that an invocation makes for a block of columns.
    pub fn iterations_of_block(&self, args: &AttentionArgs) -> usize {
        let depths = args.inner.iter().map(|inner| inner.depth);
        match self.share {
            Share::WorkgroupTile { across, k, .. } => {
                let bring = |n_places: usize| k * n_places.div_ceil(4) / self.n_invocations() + 1;
                let per_slice =
                    2 + k + bring(self.block_rows()) + bring(self.block_columns()) + bring(self.tile_values());
                let n_slices = depths.map(|depth| depth.div_ceil(k)).sum::<usize>() + self.block_columns().div_ceil(k);
                // Rows are folded invocation by invocation through workgroup memory, or without a loop.
                n_slices * per_slice + if self.shuffle.is_some() { 2 } else { across + 2 }
            }
            _ => depths.map(|depth| depth.div_ceil(4) + 1).sum::<usize>() + self.key_fours * (self.n_invocations() + 1),
        }
    }

    /// Invocations of a workgroup, and those of them that share rows.
    pub fn n_invocations(&self) -> usize {
        match self.share {
            Share::WorkgroupTile { down, across, .. } => down * across,
            Share::SubgroupBroadcast(n) => n,
            Share::Alone | Share::SplitK { .. } => unreachable!("bug: a chained product is shared"),
        }
    }

    /// Invocations side by side, which have other columns and values of the same rows.
    pub fn across(&self) -> usize {
        match self.share {
            Share::WorkgroupTile { across, .. } => across,
            _ => self.n_invocations(),
        }
    }

    /// Rows, columns and values of a workgroup's blocks.
    pub fn block_rows(&self) -> usize {
        self.rows * self.n_invocations() / self.across()
    }

    pub fn block_columns(&self) -> usize {
        4 * self.key_fours * self.across()
    }

    pub fn tile_values(&self) -> usize {
        4 * self.value_fours * self.across()
    }
}

/// The blocks of a workgroup that shares operands through its memory, of which every device has 16 KiB: 64 rows and 32
/// columns need all of it, 16 steps at a time.
fn workgroup(args: &AttentionArgs, n_fours: usize, target: &GpuTarget) -> (Share, usize, usize, usize) {
    let rows = 4;
    let most = (target.max_invocations / 8).clamp(1, 16);
    let down = args.n_rows.div_ceil(rows).next_power_of_two().min(most);
    let across = (target.max_invocations.min(64) / down).clamp(8.min(target.max_invocations / down), 32);
    let value_fours = n_fours.div_ceil(across).min(MAX_VALUE_FOURS);
    // With fewer invocations, the memory of deep slices would leave room for fewer waves.
    let k = if down == 16 && value_fours <= 2 { 16 } else { 8 };
    (Share::WorkgroupTile { down, across, k }, rows, 1, value_fours)
}

/// Whether fours along a place's own numbers start at multiples of four, wherever the place and the batch are.
fn is_by_four(lies: &AttentionOperand, args: &AttentionArgs, n_places: usize) -> bool {
    let mut batch = args.batch.iter().zip(&lies.batch);
    lies.along == 1
        && lies.offset % 4 == 0
        && (n_places == 1 || lies.place % 4 == 0)
        && batch.all(|(n, step)| *n == 1 || step % 4 == 0)
}

fn read_values(args: &AttentionArgs) -> Read {
    match args.n_values.is_multiple_of(4) && is_by_four(&args.values, args, args.n_columns) {
        true => Read::Across,
        false => Read::Each,
    }
}

impl fmt::Display for AttentionTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns, values) = (self.block_rows(), self.block_columns(), self.tile_values());
        write!(f, "blocks of {rows} rows × {columns} columns, {values} values")?;
        match self.share {
            Share::SubgroupBroadcast(_) => f.write_str(", by subgroup"),
            _ => f.write_str(", through workgroup memory"),
        }
    }
}
