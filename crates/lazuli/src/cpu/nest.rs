//! A loop nest ready to run: a program with the sizes and strides of one launch, cut into tiles. All that depends on
//! numbers but not on memory is decided here, once per plan.

use std::sync::Arc;

use super::pass::{Facts, Passes};
use super::program::{Code, CodeInst};
use super::walk::Walk;
use crate::kernel::{Args, GatherArgs, Order, Reg, Scope, Store};

/// Lanes of scratch that stay in the first-level cache.
const SCRATCH_LANES: usize = 6 * 1024;
/// A tile is no shorter (calls would cost more than work) and no longer than this.
const MIN_TILE: usize = 256;
const MAX_TILE: usize = 8192;
/// Rows at least this long are tiles of their own; shorter ones share a tile.
const LONG_RUN: usize = 256;
/// Inner lanes kept from pass to pass at most; beyond, values are computed again.
const MAX_KEPT: usize = 128 * 1024;
/// Lanes of a block of rows, over which outer instructions are evaluated together.
const BLOCK_LANES: usize = 8 * 1024;
/// Rows of a column reduction that are added up one after another; beyond, pairwise.
pub const SERIAL: usize = 32;
/// The least work worth a task of its own.
const TASK_NANOS: f64 = 20_000.0;
/// More tasks than this share nothing better.
const MAX_TASKS: usize = 512;

/// A launch of a loop kernel, or of what follows a matmul, ready for memory.
pub struct Nest {
    pub code: Arc<Code>,
    /// Per access.
    pub walks: Vec<Walk>,
    pub gathers: Vec<GatherArgs>,
    pub consts: Vec<u32>,
    pub passes: Passes,
    pub form: Form,
    pub sizes: Sizes,
    pub scratch: Scratch,
    /// About how long it takes on one thread.
    pub nanos: f64,
    /// Blocks (or tiles of a map) per task.
    pub per_task: usize,
}

/// Numbers of elements.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub outer: usize,
    pub inner: usize,
    /// For a ragged body: outer elements per piece, and what all pieces count to.
    pub ragged: Option<(usize, usize)>,
}

/// How the index space is walked.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Tile by tile over the outer axes.
    Map(Cut),
    /// Blocks of rows; each row, or several short ones at once, tile by tile. `cut` is of one row.
    Rows { rows_per_block: usize, rows_per_tile: usize, cut: Cut },
    /// Blocks of columns, each walked row by row.
    Columns(Cut),
}

/// A range of positions cut into tiles, none of which crosses the end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    pub n: usize,
    pub run: usize,
    pub tile: usize,
}

/// How many lanes of scratch a thread needs, in the order they lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scratch {
    /// Of one tile.
    pub tile: usize,
    pub n_slots: usize,
    /// Of one outer value of a block.
    pub outer: usize,
    pub n_outer: usize,
    /// Of one kept value of a block.
    pub kept: usize,
    pub n_kept: usize,
    /// Accumulators of a block of columns: levels per fold.
    pub levels: usize,
    pub n_folds: usize,
}

impl Cut {
    /// Cuts `n` positions into tiles of at most about `tile`, evenly within each run.
    pub fn new(n: usize, run: usize, tile: usize) -> Cut {
        let run = run.clamp(1, n.max(1));
        let per_run = run.div_ceil(tile.max(1)).max(1);
        let even = run.div_ceil(per_run);
        let tile = if per_run == 1 { run } else { even.next_multiple_of(16) };
        Cut { n, run, tile }
    }

    /// How many tiles there are.
    pub fn n_tiles(&self) -> usize {
        self.n / self.run * self.run.div_ceil(self.tile)
    }

    /// Where a tile starts and how long it is.
    pub fn at(&self, idx: usize) -> (usize, usize) {
        let per_run = self.run.div_ceil(self.tile);
        let within = idx % per_run * self.tile;
        (idx / per_run * self.run + within, self.tile.min(self.run - within))
    }
}

impl Scratch {
    /// Lanes in all.
    pub fn n_lanes(&self) -> usize {
        self.levels_at() + self.tile_pitch() * self.levels * self.n_folds
    }

    /// Scratch tiles start at multiples of this; the one after the last is spare.
    pub fn tile_pitch(&self) -> usize {
        self.tile.next_multiple_of(16)
    }

    /// Where outer values start.
    pub fn outer_at(&self) -> usize {
        self.tile_pitch() * (self.n_slots + 1)
    }

    /// Where kept values start.
    pub fn kept_at(&self) -> usize {
        self.outer_at() + self.outer.next_multiple_of(16) * self.n_outer
    }

    /// Where the accumulators of columns start.
    pub fn levels_at(&self) -> usize {
        self.kept_at() + self.kept.next_multiple_of(16) * self.n_kept
    }
}

/// What [`Passes`] asks, answered from the walks.
struct Known<'a> {
    code: &'a Code,
    walks: &'a [Walk],
    /// Whether every tile lies within one run of the innermost axis.
    aligned: bool,
    /// Per store.
    is_inner: &'a [bool],
    /// Per output, whether its memory is also an input's.
    aliased: &'a [bool],
}

impl Facts for Known<'_> {
    fn in_place(&self, load: Reg) -> bool {
        let CodeInst::Load { input, access } = self.code.insts[load as usize] else { return false };
        let main = if self.code.body.inner_rank > 0 { Scope::Inner } else { Scope::Outer };
        let aligned = self.aligned && self.code.scope(load) == main;
        self.code.body.inputs[input as usize].size() == 4
            && match &self.walks[access as usize] {
                Walk::One(_) | Walk::Flat(_) => true,
                Walk::Strided { axes, .. } => aligned && matches!(axes[axes.len() - 1].stride, 0 | 1),
                Walk::Chain(_) => false,
            }
    }

    fn direct(&self, store: usize) -> bool {
        let store = &self.code.body.stores[store];
        let dtype = self.code.body.outputs[store.output as usize];
        dtype.size() == 4 && !self.aliased[store.output as usize] && matches!(self.walks[store.access as usize], Walk::Flat(_))
    }

    fn is_inner(&self, store: usize) -> bool {
        self.is_inner[store]
    }
}

impl Nest {
    /// Binds a program to the numbers of a launch; `aliased` says per output whether it is also an input.
    pub fn new(code: Arc<Code>, args: &Args, aliased: &[bool]) -> Nest {
        let body = &code.body;
        let n_axes = args.outer.len() + args.inner.len();
        let sizes = Sizes {
            outer: args.outer.iter().product(),
            inner: args.inner.iter().product(),
            ragged: body.ragged.then(|| (args.outer[1..].iter().product::<usize>().max(1), args.limit)),
        };
        let columns = body.inner_rank > 0 && body.order == Order::OuterFast;
        // The order in which axes are walked, for values of the whole index space.
        let order: Vec<usize> = match columns {
            true => (args.outer.len()..n_axes).chain(0..args.outer.len()).collect(),
            false => (0..n_axes).collect(),
        };
        let is_inner_map = |rank: usize| body.inner_rank > 0 && rank == n_axes;
        let walk = |map: &crate::view::IndexMap| match map.shape().rank() {
            rank if is_inner_map(rank) => Walk::new(map, &order),
            rank => Walk::new(map, &(0..rank).collect::<Vec<_>>()),
        };
        let walks: Vec<Walk> = args.accesses.iter().map(walk).collect();
        // Where the one inner index is all there is, the map of an inner value may leave it out.
        let stores_inner = |s: &Store| {
            code.scope(s.value) == Scope::Inner || is_inner_map(args.accesses[s.access as usize].shape().rank())
        };
        let is_inner: Vec<bool> = body.stores.iter().map(stores_inner).collect();

        let fastest = if body.inner_rank == 0 || columns { &args.outer } else { &args.inner };
        let run = fastest.last().copied().unwrap_or(1);
        let aligned = run >= LONG_RUN || fastest.len() <= 1 && (columns || body.inner_rank == 0 || run >= LONG_RUN);
        let known = Known { code: &code, walks: &walks, aligned, is_inner: &is_inner, aliased };
        let mut passes = Passes::new(&code, &known, true);
        if passes.n_kept * sizes.inner > MAX_KEPT {
            passes = Passes::new(&code, &known, false);
        }
        let mut nest = Nest {
            walks,
            gathers: args.gathers.clone(),
            consts: args.consts.clone(),
            form: Form::Map(Cut::new(0, 1, 1)),
            sizes,
            scratch: Scratch::default(),
            nanos: 0.0,
            per_task: 1,
            passes,
            code: code.clone(),
        };
        nest.cut(if aligned { run } else { 0 }, columns);
        nest.weigh();
        nest
    }

    /// Chooses tiles and blocks. `run`: the innermost run that tiles must not cross, 0 if they may.
    fn cut(&mut self, run: usize, columns: bool) {
        let n_slots = self.passes.inner.iter().map(|p| p.n_slots).max().unwrap_or(0);
        let budget = (SCRATCH_LANES / n_slots.max(1)).clamp(MIN_TILE, MAX_TILE);
        let budget = if n_slots == 0 { MAX_TILE } else { budget / 128 * 128 };
        let Sizes { outer, inner, ragged } = self.sizes;
        let or_all = |n: usize| if run == 0 { n } else { run };
        let (form, tile, block) = if self.code.body.inner_rank == 0 {
            let cut = Cut::new(outer, or_all(outer), budget);
            (Form::Map(cut), cut.tile, 0)
        } else if columns {
            let cut = self.cut_columns(run, budget);
            (Form::Columns(cut), cut.tile, cut.tile)
        } else {
            let cut = Cut::new(inner, or_all(inner), budget);
            let rows_per_tile = if ragged.is_none() && inner > 0 { (budget / inner).clamp(1, outer.max(1)) } else { 1 };
            let rows_per_tile = if cut.n_tiles() > 1 || inner >= LONG_RUN { 1 } else { rows_per_tile };
            let blocks = (BLOCK_LANES / inner.max(1)).clamp(1, 512) / rows_per_tile;
            let rows_per_block = rows_per_tile * blocks.max(1);
            (Form::Rows { rows_per_block, rows_per_tile, cut }, cut.tile.max(rows_per_tile * inner), rows_per_block)
        };
        let kept = match form {
            Form::Map(_) => 0,
            Form::Rows { rows_per_block, .. } => rows_per_block * inner,
            Form::Columns(cut) => cut.tile * inner,
        };
        let folds = self.passes.inner.iter().map(|p| p.folds.len()).max().unwrap_or(0);
        // One level per doubling of the blocks that are added up serially, and the serial one itself.
        let levels = if columns { inner.div_ceil(SERIAL).max(1).ilog2() as usize + 3 } else { 0 };
        self.form = form;
        self.scratch = Scratch {
            tile,
            n_slots,
            outer: block,
            n_outer: self.passes.n_outer,
            kept,
            n_kept: self.passes.n_kept,
            levels,
            n_folds: folds,
        };
    }

    /// Columns: wide enough to read memory in order, narrow enough that what is kept stays in cache and that there
    /// are several blocks to share.
    fn cut_columns(&self, run: usize, budget: usize) -> Cut {
        let Sizes { outer, inner, ragged } = self.sizes;
        let fair = (outer / 8).next_multiple_of(64).clamp(64, 4096);
        let kept = match self.passes.n_kept {
            0 => usize::MAX,
            n => (MAX_KEPT / 4 / (n * inner).max(1)).max(64),
        };
        // The pieces of a ragged axis differ in length, so no tile may span two of them.
        let run = match ragged {
            Some((per_piece, _)) if run == 0 || run > per_piece => per_piece,
            _ if run == 0 => outer,
            _ => run,
        };
        Cut::new(outer, run, fair.min(kept).min(budget))
    }

    /// Estimates the work and shares it out.
    fn weigh(&mut self) {
        let per_inst = |reg: Reg| match &self.code.body.insts[reg as usize].op {
            crate::kernel::InstOp::Unary(row, _) => 0.05 * row.cost as f64,
            crate::kernel::InstOp::Binary(row, ..) => 0.05 * row.cost as f64,
            crate::kernel::InstOp::Custom(..) => 5.0,
            crate::kernel::InstOp::Gather { .. } => 1.0,
            _ => 0.2,
        };
        let per_lane: f64 = (0..self.code.insts.len()).map(|i| per_inst(i as Reg)).sum::<f64>() + 0.1;
        let lanes = self.sizes.outer * self.sizes.inner.max(1);
        self.nanos = lanes as f64 * per_lane;
        let n_blocks = self.n_blocks().max(1);
        let per_block = self.nanos / n_blocks as f64;
        self.per_task = ((TASK_NANOS / per_block) as usize).clamp(1, n_blocks).max(n_blocks.div_ceil(MAX_TASKS));
    }

    /// How many tiles of a map, or blocks of rows or columns, there are.
    pub fn n_blocks(&self) -> usize {
        match self.form {
            Form::Map(cut) | Form::Columns(cut) => cut.n_tiles(),
            Form::Rows { rows_per_block, .. } => self.sizes.outer.div_ceil(rows_per_block),
        }
    }

    /// How many inner elements an outer index has.
    pub fn inner_of(&self, outer_idx: usize) -> usize {
        match self.sizes.ragged {
            None => self.sizes.inner,
            Some((per_piece, limit)) => self.sizes.inner.min(limit.saturating_sub(outer_idx / per_piece * self.sizes.inner)),
        }
    }
}
