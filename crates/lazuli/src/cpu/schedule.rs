//! A loop nest ready to run: a program with the sizes and strides of one launch, cut into tiles. All that depends on
//! numbers but not on memory is decided here, once per plan.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::program::{Code, CodeInst};
use super::runs::{ElementRuns, IN_ORDER};
use super::sweeps::{Facts, Sweep, Sweeps};
use super::tasks::TaskRow;
use crate::kernel::{Args, GatherArgs, InstOp, Order, Reg, Scope, Store};
use crate::ops::Isa;
use crate::shape::MAX_RANK;
use crate::target::{Caches, CpuTarget};
use crate::view::IndexMap;

/// A tile is no shorter (calls would cost more than work) and no longer than this.
const MIN_TILE: usize = 256;
const MAX_TILE: usize = 8192;
/// The longest tile of a pass that only reads.
const BARE_TILE: usize = 32 * 1024;
/// The least length of the innermost axis for which loops go row by row; shorter rows are copied together first.
const MIN_ROW: usize = 64;
/// A reduction along fewer elements than this is done for many rows side by side.
const SHORT_ROW: usize = 32;
/// Rows and lanes of a tile that reads across memory: several cache lines one way, enough pages the other.
const ACROSS: (usize, usize) = (32, 256);
/// Inner lanes kept from pass to pass at most; beyond, values are computed again.
const MAX_KEPT: usize = 128 * 1024;
/// Lanes of a block of rows, over which outer instructions are evaluated together.
const BLOCK_LANES: usize = 8 * 1024;
/// Rows of a column reduction that are added up one after another; beyond, pairwise.
pub const SERIAL: usize = 32;
/// Columns of a block at most: what they are added up in stays in the first-level cache.
const MAX_COLUMNS: usize = 4096;
/// Blocks of columns that keep a machine busy, and lanes that are worth a piece of one.
const MIN_BLOCKS: usize = 16;
const PIECE_LANES: usize = 64 * 1024;
/// Columns fewer than this are added up several rows abreast.
const WIDE: usize = 256;
/// The least work worth a task of its own.
const TASK_NANOS: f64 = 20_000.0;
/// More tasks than this share nothing better.
const MAX_TASKS: usize = 512;

/// A launch of a loop kernel, or of what follows a matmul, ready for memory.
pub struct Nest {
    pub code: Arc<Code>,
    /// Per access.
    pub walks: Vec<ElementRuns>,
    /// Per access, from one row of a tile to the next, in elements.
    pub row_steps: SmallVec<[isize; 6]>,
    /// Whether the rows of every tile are runs of the innermost axis.
    pub rows_are_runs: bool,
    /// Per store, whether it goes past the caches.
    pub streams: SmallVec<[bool; 8]>,
    pub gathers: Vec<GatherArgs>,
    pub consts: Vec<u32>,
    pub passes: Arc<Sweeps>,
    pub form: Traversal,
    pub sizes: Sizes,
    pub scratch: ScratchLayout,
    /// About how long it takes on one thread.
    pub nanos: f64,
    /// How blocks of rows (or tiles of a map) are cut into tasks.
    pub tasks: TaskRow,
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
pub enum Traversal {
    /// Tile by tile over the outer axes.
    Map(Grid),
    /// Blocks of rows; each row, or several short ones at once, in tiles. `row` is how one is cut.
    Rows { blocks: Tiling, rows_per_tile: usize, row: Tiling },
    /// Blocks of columns, each walked a few rows at a time, none of which lie across the end of a run. Narrow ones are
    /// added up with several rows `abreast`; where there are few blocks, their rows are shared out in `pieces`.
    Columns { blocks: Tiling, rows_per_tile: usize, run: usize, abreast: usize, pieces: Tiling },
}

/// A range of positions cut into pieces, none of which crosses the end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiling {
    pub n: usize,
    pub run: usize,
    pub piece: usize,
}

/// Positions as rows of `width`, `height` of them to a sheet, cut into tiles of `rows × len`, taken row by row or, where
/// something lies across memory, column by column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    pub sheets: usize,
    pub height: usize,
    pub width: usize,
    pub rows: usize,
    pub len: usize,
    pub by_columns: bool,
}

/// How many lanes of scratch a thread needs, in the order they lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchLayout {
    /// Of one tile.
    pub tile: usize,
    pub n_slots: usize,
    /// Of one outer value of a block.
    pub outer: usize,
    pub n_outer: usize,
    /// Of one kept value of a block.
    pub kept: usize,
    pub n_kept: usize,
    /// Of one accumulator of a block of columns, and levels of them per fold.
    pub level: usize,
    pub levels: usize,
    pub n_folds: usize,
}

impl Tiling {
    /// Cuts `n` positions into pieces of at most about `piece`, evenly within each run.
    pub fn new(n: usize, run: usize, piece: usize) -> Tiling {
        let run = run.clamp(1, n.max(1));
        let even = run.div_ceil(run.div_ceil(piece.max(1)));
        Tiling { n, run, piece: if even > 64 && even < run { even.next_multiple_of(16) } else { even } }
    }

    /// How many pieces there are.
    pub fn count(&self) -> usize {
        self.n / self.run * self.run.div_ceil(self.piece)
    }

    /// Where a piece starts and how long it is.
    pub fn at(&self, idx: usize) -> (usize, usize) {
        let per_run = self.run.div_ceil(self.piece);
        let within = idx % per_run * self.piece;
        (idx / per_run * self.run + within, self.piece.min(self.run - within))
    }
}

impl Grid {
    /// How many tiles there are.
    pub fn count(&self) -> usize {
        self.sheets * self.height.div_ceil(self.rows) * self.width.div_ceil(self.len)
    }

    /// Where a tile starts, its rows, and how long they are.
    pub fn at(&self, idx: usize) -> (usize, usize, usize) {
        let (across, down) = (self.width.div_ceil(self.len), self.height.div_ceil(self.rows));
        let (sheet, within) = (idx / (across * down), idx % (across * down));
        let (row, column) = match self.by_columns {
            false => (within / across * self.rows, within % across * self.len),
            true => (within % down * self.rows, within / down * self.len),
        };
        let start = (sheet * self.height + row) * self.width + column;
        (start, self.rows.min(self.height - row), self.len.min(self.width - column))
    }
}

impl ScratchLayout {
    /// Lanes in all.
    pub fn n_lanes(&self) -> usize {
        self.levels_at() + self.level.next_multiple_of(16) * self.levels * self.n_folds
    }

    /// Scratch tiles start at multiples of this; the two after the last are spare.
    pub fn tile_pitch(&self) -> usize {
        self.tile.next_multiple_of(16)
    }

    /// Where outer values start.
    pub fn outer_at(&self) -> usize {
        self.tile_pitch() * (self.n_slots + 2)
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

/// What [`Sweeps`] asks, answered from the walks.
struct Known<'a> {
    code: &'a Code,
    walks: &'a [ElementRuns],
    row_steps: &'a [isize],
    /// Per access, whether the rows of a tile are written one element after another.
    in_rows: &'a [bool],
    /// Whether the rows of every tile are runs of the innermost axis.
    rows_are_runs: bool,
    /// Per store.
    is_inner: &'a [bool],
    /// Per output, whether its memory is also an input's.
    aliased: &'a [bool],
    /// Per store, whether it goes past the caches.
    streams: &'a [bool],
    folds_rows: bool,
}

impl Facts for Known<'_> {
    fn in_place(&self, load: Reg) -> bool {
        let CodeInst::Load { input, access } = self.code.insts[load as usize] else { return false };
        let walk = &self.walks[access as usize];
        let fits = matches!(walk, ElementRuns::One(_) | ElementRuns::Flat(_))
            || self.rows_are_runs && walk.step() == Some(1)
            // One lane for each row: arithmetic on such lanes takes those of all rows at once.
            || self.rows_are_runs && walk.step() == Some(0) && matches!(self.row_steps[access as usize], 0 | 1);
        fits && self.code.body.inputs[input as usize].is_lane()
    }

    fn direct(&self, store: usize) -> bool {
        let store = &self.code.body.stores[store];
        let dtype = self.code.body.outputs[store.output as usize];
        dtype.size() == 4 && !self.aliased[store.output as usize] && self.in_rows[store.access as usize]
    }

    fn streams(&self, store: usize) -> bool {
        self.streams[store]
    }

    fn is_inner(&self, store: usize) -> bool {
        self.is_inner[store]
    }

    fn folds_rows(&self) -> bool {
        self.folds_rows
    }
}

/// The axes of a launch, as the walk over them sees them.
struct LoopAxes<'a> {
    args: &'a Args,
    has_inner: bool,
    /// Outer axes are walked fastest.
    columns: bool,
    ragged: bool,
}

impl LoopAxes<'_> {
    fn new<'a>(code: &Code, args: &'a Args) -> LoopAxes<'a> {
        let (n_outer, n_inner): (usize, usize) = (args.outer.iter().product(), args.inner.iter().product());
        // Short rows are too short for a loop each: they are turned, and done side by side.
        let turned = !code.body.ragged && args.inner.len() == 1 && n_inner < SHORT_ROW && n_outer >= MIN_ROW;
        let has_inner = code.body.inner_rank > 0;
        let columns = has_inner && (turned || code.body.order == Order::OuterFast);
        LoopAxes { args, has_inner, columns, ragged: code.body.ragged }
    }

    fn is_inner(&self, map: &IndexMap) -> bool {
        self.has_inner && map.shape().rank() == self.args.outer.len() + self.args.inner.len()
    }

    fn walk(&self, map: &IndexMap) -> ElementRuns {
        let (outer, all) = (self.args.outer.len(), map.shape().rank());
        match self.columns && self.is_inner(map) {
            true => ElementRuns::new(map, &(outer..all).chain(0..outer).collect::<SmallVec<[usize; MAX_RANK]>>()),
            false => ElementRuns::new(map, &IN_ORDER[..all]),
        }
    }

    /// From row to row of a tile, in elements. Rows are counted by the last axis but one of a map, by the last outer
    /// axis where rows are reduced, by the last inner axis where columns are.
    fn row_step(&self, map: &IndexMap) -> isize {
        let outer = self.args.outer.len();
        let axis = match (self.has_inner, self.columns) {
            (false, _) => outer.checked_sub(2),
            (true, false) => outer.checked_sub(1),
            (true, true) => Some(outer + self.args.inner.len() - 1),
        };
        let is_full = !self.has_inner || self.is_inner(map);
        match (map.strided(), axis) {
            (Some(view), Some(axis)) if is_full && axis < view.shape.rank() && view.shape[axis] > 1 => {
                view.strides[axis]
            }
            _ => 0,
        }
    }

    /// The axes walked fastest, innermost last.
    fn fastest(&self) -> &[usize] {
        if self.has_inner && !self.columns { &self.args.inner } else { &self.args.outer }
    }

    /// Whether tiles can be cut such that their rows are runs of the innermost axis.
    fn rows_are_runs(&self) -> bool {
        let fastest = self.fastest();
        // The columns of a ragged body are cut at every piece, and with it at the end of every run.
        let cut_anyway = self.ragged && self.columns && fastest.len() == 2;
        fastest.len() <= 1 || cut_anyway || fastest[fastest.len() - 1] >= MIN_ROW
    }
}

impl Nest {
    /// Binds a program to the numbers of a launch; `aliased` says per output whether it is also an input.
    pub fn new(code: Arc<Code>, args: &Args, aliased: &[bool], target: &CpuTarget) -> Nest {
        let axes = LoopAxes::new(&code, args);
        let sizes = Sizes {
            outer: args.outer.iter().product(),
            inner: args.inner.iter().product(),
            ragged: code.body.ragged.then(|| (args.outer[1..].iter().product::<usize>().max(1), args.limit)),
        };
        let walks: Vec<ElementRuns> = args.accesses.iter().map(|map| axes.walk(map)).collect();
        // Where one inner index is all there is, the map of an inner value may leave it out.
        let is_inner =
            |s: &Store| code.scope(s.value) == Scope::Inner || axes.is_inner(&args.accesses[s.access as usize]);
        let is_inner: SmallVec<[bool; 8]> = code.body.stores.iter().map(is_inner).collect();
        let rows_are_runs = axes.rows_are_runs();
        let row_steps: SmallVec<[isize; 6]> = args.accesses.iter().map(|map| axes.row_step(map)).collect();
        // A box of a larger tensor is written row by row.
        let is_in_rows = |(walk, row_step): (&ElementRuns, &isize)| {
            let is_box = !axes.has_inner && rows_are_runs && walk.step() == Some(1) && *row_step > 0;
            is_box || matches!(walk, ElementRuns::Flat(_))
        };
        let in_rows: SmallVec<[bool; 16]> = walks.iter().zip(&row_steps).map(is_in_rows).collect();
        let streams = |(s, is_inner): (&Store, &bool)| {
            let n_elems = sizes.outer * if *is_inner { sizes.inner } else { 1 };
            let n_bytes = n_elems * code.body.outputs[s.output as usize].size();
            !aliased[s.output as usize] && n_bytes >= target.caches.all_bytes && in_rows[s.access as usize]
        };
        let streams: SmallVec<[bool; 8]> = code.body.stores.iter().zip(&is_inner).map(streams).collect();
        let known = Known {
            code: &code,
            walks: &walks,
            row_steps: &row_steps,
            in_rows: &in_rows,
            rows_are_runs,
            is_inner: &is_inner,
            aliased,
            streams: &streams,
            folds_rows: !axes.columns && target.isa > Isa::Baseline,
        };
        let mut passes = Sweeps::of(&code, &known, true);
        if passes.n_kept * sizes.inner > MAX_KEPT {
            passes = Sweeps::of(&code, &known, false);
        }
        let mut nest = Nest {
            rows_are_runs,
            streams,
            row_steps,
            walks,
            gathers: args.gathers.clone(),
            consts: args.consts.clone(),
            form: Traversal::Map(Grid { sheets: 0, height: 1, width: 1, rows: 1, len: 1, by_columns: false }),
            sizes,
            scratch: ScratchLayout::default(),
            nanos: 0.0,
            tasks: TaskRow { n_items: 0, per_task: 1 },
            passes,
            code: code.clone(),
        };
        nest.cut(&axes, target.caches);
        nest.weigh();
        nest
    }

    /// Chooses tiles and blocks.
    fn cut(&mut self, axes: &LoopAxes, caches: Caches) {
        let n_slots = self.passes.inner.iter().map(|p| p.n_slots).max().unwrap_or(0);
        // What is read where it lies and leaves nothing but sums needs no cache: long tiles, read in several places.
        let bare = |p: &Sweep| p.lines.is_empty() && p.stores.is_empty();
        let budget = match n_slots {
            0 if axes.has_inner && !axes.columns && self.passes.inner.iter().all(bare) => BARE_TILE,
            0 => MAX_TILE,
            // Scratch takes three quarters of the cache; the rest is for what is read and written.
            n => (caches.l1_bytes / 4 * 3 / 4 / n).clamp(MIN_TILE, MAX_TILE) / 128 * 128,
        };
        let inner = self.sizes.inner;
        let (form, tile, outer, kept) = match (axes.has_inner, axes.columns) {
            (false, _) => {
                let grid = self.cut_map(axes, budget);
                (Traversal::Map(grid), grid.rows * grid.len, 0, 0)
            }
            (true, false) => {
                let (blocks, rows_per_tile, row) = self.cut_rows(axes, budget);
                (
                    Traversal::Rows { blocks, rows_per_tile, row },
                    rows_per_tile * row.piece,
                    blocks.piece,
                    blocks.piece * inner,
                )
            }
            (true, true) => {
                let blocks = self.cut_columns(axes, budget);
                let run = axes.args.inner.last().copied().unwrap_or(1).max(1);
                let abreast = match WIDE / blocks.piece {
                    n if n > 1 && axes.args.inner.len() == 1 => n.next_power_of_two(),
                    _ => 1,
                };
                // What is read where it lies needs no scratch: as many rows as are added up one after another.
                let lanes = if n_slots == 0 { SERIAL * blocks.piece } else { budget };
                let rows_per_tile = lanes / blocks.piece / abreast * abreast;
                let rows_per_tile = rows_per_tile.clamp(abreast, run.next_multiple_of(abreast));
                let pieces = self.cut_pieces(blocks, run, abreast);
                let form = Traversal::Columns { blocks, rows_per_tile, run, abreast, pieces };
                (form, rows_per_tile * blocks.piece, blocks.piece, blocks.piece * inner)
            }
        };
        // One level per doubling of the blocks that are added up serially, and the serial one itself.
        let levels = if axes.columns { inner.div_ceil(SERIAL).max(1).ilog2() as usize + 3 } else { 0 };
        let level = if let Traversal::Columns { blocks, abreast, .. } = form { blocks.piece * abreast } else { 0 };
        let n_folds = self.passes.inner.iter().map(|p| p.folds.len()).max().unwrap_or(0);
        let (n_outer, n_kept) = (self.passes.n_outer, self.passes.n_kept);
        self.form = form;
        self.scratch = ScratchLayout { tile, n_slots, outer, n_outer, kept, n_kept, level, levels, n_folds };
    }

    fn cut_map(&self, axes: &LoopAxes, budget: usize) -> Grid {
        let n = self.sizes.outer;
        let flat =
            Grid { sheets: 1, height: 1, width: n, rows: 1, len: Tiling::new(n, n, budget).piece, by_columns: false };
        let [.., height, width] = axes.args.outer[..] else { return flat };
        if !axes.rows_are_runs() || n == 0 {
            return flat;
        }
        // What lies across memory is read by tiles of several rows, so that every cache line is used whole.
        let lies_across = |i: usize| {
            let across = self.row_steps[i].abs() == 1 && self.walks[i].step().is_some_and(|s| s.abs() > 1);
            across && height >= ACROSS.0 / 2
        };
        let sheets = n / (height * width);
        let by_columns = (0..self.walks.len()).any(lies_across);
        let (rows, len) = match by_columns {
            true => (ACROSS.0.min(height), ACROSS.1),
            // No more rows than lanes: where rows are written in place, one lane for each fits in the first.
            false => ((budget / width).clamp(1, height.min(width)), budget),
        };
        Grid { sheets, height, width, rows, len: Tiling::new(width, width, len).piece, by_columns }
    }

    fn cut_rows(&self, axes: &LoopAxes, budget: usize) -> (Tiling, usize, Tiling) {
        let Sizes { outer, inner, ragged } = self.sizes;
        let run = match axes.args.inner[..] {
            [.., _, last] if axes.rows_are_runs() => last,
            _ => inner,
        };
        let row = Tiling::new(inner, run, budget);
        let together = ragged.is_none() && row.count() == 1 && inner > 0;
        let rows_per_tile = if together { (budget / inner).max(1) } else { 1 };
        // Rows of a block count by the last outer axis alone, so that they are a constant step apart.
        let run = axes.args.outer.last().copied().unwrap_or(1);
        let run = if together { run } else { outer };
        let per_block = (BLOCK_LANES / inner.max(1)).clamp(1, 512).next_multiple_of(rows_per_tile);
        let blocks = Tiling::new(outer, run, per_block);
        (blocks, rows_per_tile.min(blocks.piece), row)
    }

    /// Columns: wide enough to read memory in order, narrow enough that what is kept stays in cache.
    fn cut_columns(&self, axes: &LoopAxes, budget: usize) -> Tiling {
        let Sizes { outer, inner, ragged } = self.sizes;
        let short = inner < SHORT_ROW;
        let wide = if short { budget / inner.max(1) } else { MAX_COLUMNS };
        let kept = match self.passes.n_kept {
            0 => usize::MAX,
            n => (MAX_KEPT / 4 / (n * inner).max(1)).max(64),
        };
        let run = match axes.args.outer[..] {
            [.., _, last] if axes.rows_are_runs() => last,
            _ => outer,
        };
        // The pieces of a ragged axis differ in length, so no tile may span two of them.
        let run = ragged.map_or(run, |(per_piece, _)| run.min(per_piece));
        Tiling::new(outer, run, wide.clamp(64, MAX_COLUMNS).min(kept).min(budget))
    }

    /// Few blocks of long columns keep few threads busy: their rows are cut, if one pass over them is all there is.
    fn cut_pieces(&self, blocks: Tiling, run: usize, abreast: usize) -> Tiling {
        let inner = self.sizes.inner;
        let once = matches!(&self.passes.inner[..], [pass] if pass.stores.is_empty()) && self.sizes.ragged.is_none();
        let enough = MIN_BLOCKS.div_ceil(blocks.count().max(1));
        let rows = inner.div_ceil(enough).max(PIECE_LANES / blocks.piece).next_multiple_of(SERIAL * abreast);
        match once && run == inner && rows < inner {
            true => Tiling { n: inner, run: inner, piece: rows },
            false => Tiling { n: inner, run: inner.max(1), piece: inner.max(1) },
        }
    }

    /// Estimates the work and shares it out.
    fn weigh(&mut self) {
        let per_inst = |op: &InstOp| match op {
            InstOp::Unary(row, _) => 0.05 * row.cost as f64,
            InstOp::Binary(row, ..) => 0.05 * row.cost as f64,
            InstOp::Custom(..) => 5.0,
            InstOp::Gather { .. } => 1.0,
            _ => 0.2,
        };
        let per_lane: f64 = self.code.body.insts.iter().map(|i| per_inst(&i.op)).sum::<f64>() + 0.1;
        let lanes = self.sizes.outer * self.sizes.inner.max(1);
        self.nanos = lanes as f64 * per_lane;
        let n_items = self.n_blocks();
        let n_blocks = n_items.max(1);
        let per_block = self.nanos / n_blocks as f64;
        let per_task = ((TASK_NANOS / per_block) as usize).clamp(1, n_blocks).max(n_blocks.div_ceil(MAX_TASKS));
        self.tasks = TaskRow { n_items, per_task };
    }

    /// How many tiles of a map, or blocks of rows or columns, there are.
    pub fn n_blocks(&self) -> usize {
        match self.form {
            Traversal::Map(grid) => grid.count(),
            Traversal::Rows { blocks, .. } | Traversal::Columns { blocks, .. } => blocks.count(),
        }
    }

    /// About how many bytes it occupies, without its program.
    pub fn size_bytes(&self) -> usize {
        size_of::<Nest>()
            + self.walks.capacity() * size_of::<ElementRuns>()
            + self.walks.iter().map(ElementRuns::size_bytes).sum::<usize>()
            + if self.row_steps.spilled() { self.row_steps.capacity() * size_of::<isize>() } else { 0 }
            + if self.streams.spilled() { self.streams.capacity() } else { 0 }
            + self.gathers.capacity() * size_of::<GatherArgs>()
            + self.consts.capacity() * size_of::<u32>()
            + self.passes.size_bytes()
    }

    /// Bytes for the sums of columns whose rows are shared out in pieces.
    pub fn sums_bytes(&self) -> usize {
        match self.form {
            Traversal::Columns { blocks, pieces, .. } if pieces.count() > 1 => {
                blocks.count() * self.passes.inner[0].folds.len() * pieces.count() * blocks.piece * 4
            }
            _ => 0,
        }
    }

    /// How many inner elements an outer index has.
    pub fn inner_of(&self, outer_idx: usize) -> usize {
        match self.sizes.ragged {
            None => self.sizes.inner,
            Some((per_piece, limit)) => {
                self.sizes.inner.min(limit.saturating_sub(outer_idx / per_piece * self.sizes.inner))
            }
        }
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.count(), self.piece)
    }
}

/// How the loops are cut and shared out, in one line.
impl fmt::Display for Nest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            Traversal::Map(grid) => {
                let order = if grid.by_columns { " by column" } else { "" };
                write!(f, "{} tiles of {}×{}{order}", grid.count(), grid.rows, grid.len)?;
            }
            Traversal::Rows { blocks, rows_per_tile, row } if row.count() <= 1 => {
                write!(f, "blocks of rows: {blocks}; tiles of {rows_per_tile}×{}", row.piece)?;
            }
            Traversal::Rows { blocks, row, .. } => write!(f, "blocks of rows: {blocks}; tiles of a row: {row}")?,
            Traversal::Columns { blocks, rows_per_tile, abreast, pieces, .. } => {
                write!(f, "blocks of columns: {blocks}; tiles of {rows_per_tile} rows")?;
                if abreast > 1 {
                    write!(f, ", {abreast} abreast")?;
                }
                if pieces.count() > 1 {
                    write!(f, "; pieces of rows: {pieces}")?;
                }
            }
        }
        write!(f, "; {} a task", self.tasks.per_task)?;
        let n_sweeps = self.passes.inner.len();
        if n_sweeps > 1 {
            write!(f, "; {n_sweeps} sweeps")?;
        }
        if self.passes.n_kept > 0 {
            write!(f, ", {} values kept", self.passes.n_kept)?;
        }
        if self.streams.contains(&true) {
            write!(f, "; non-temporal stores")?;
        }
        Ok(())
    }
}
