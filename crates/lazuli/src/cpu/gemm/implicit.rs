//! Implicit GEMM: a matrix times one that is read by lists of axes, such as a weight times the windows of an image. The
//! product is computed transposed: its rows are the columns of `b`, each a pointer into the image, and the rows of `a` are the
//! lanes of vectors, packed into panels before. A table says how far each row of `b` is from the first, so that windows are
//! read where they are, whatever their stride and dilation; no window is copied, and images whose sizes are no multiples of a
//! vector waste no lanes. Blocks of sums are transposed on their way to the result.

use std::fmt;
use std::ops::Range;

use super::gather::ListedMatrix;
use super::kernel::{RegisterTile, kernel};
use super::pack::turn_near;
use super::{
    BSource, DEPTH, Gemm, GemmLists, GemmTiling, PackBuffers, SharedConst, TASK, TASKS_PER_THREAD, max_height, share,
};
use crate::cpu::tasks::TaskGrid;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::{AxisList, OperandArgs};
use crate::ops::Isa;

/// Columns of `b` whose sums are made before they are transposed: with a panel's width of sums for each they take half of a
/// first-level cache, and each row of a packed panel is used so often while it is near.
pub(super) const BLOCK: usize = 96;
/// Fewer columns than this are not worth a block of their own: what follows would take them in rows shorter than vectors.
const MIN_BLOCK: usize = 32;
/// Fewer register tiles than this cannot be shared out among threads; a plain GEMM splits k then.
const MIN_TILES: usize = 16;
/// The most values that are packed: larger operands are packed piece by piece by a plain GEMM.
pub(super) const MAX_PACKED: usize = 16 << 20;

/// A product `out[m, n] = a[m, k] · b[k, n]` of each image of a batch, with the same `a` for all.
#[derive(Clone, Copy)]
pub struct ImplicitGemm {
    pub isa: Isa,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub n_images: usize,
}

/// The memory of an implicit GEMM.
#[derive(Clone, Copy)]
pub struct ImplicitMemory<'a> {
    /// `a` in panels.
    pub packed: *const f32,
    /// Room for [`ImplicitGemm::table_len`] values.
    pub table: *mut isize,
    /// Where in memory rows and columns of `b` are.
    pub b: &'a OperandArgs,
    /// Room for [`ImplicitGemm::room`] values a thread.
    pub rooms: PackBuffers,
}

/// Where sums go.
#[derive(Clone, Copy)]
pub enum ImplicitOut<'a> {
    /// They are the results: where those of an image begin.
    Results(&'a (dyn Fn(usize) -> *mut f32 + Sync)),
    /// Each block is handed over in a near cache by the thread that has made it, its rows one after another: the image, rows and
    /// columns, and the first sum.
    Blocks(&'a (dyn Fn(usize, Range<usize>, Range<usize>, *const f32) + Sync)),
}

impl ImplicitOut<'_> {
    /// Transposes the sums of a block, which begin at an address and are so many values from column to column, on their way to
    /// the results of `(image, columns of all)`; those that are handed over go to `near` before.
    ///
    /// # Safety
    /// The sums of the block are there; so is, for results, the memory of the image they belong to, of which nobody
    /// else writes this block, and else room for the block at `near`.
    pub(super) unsafe fn take(
        &self,
        (image_idx, n): (usize, usize),
        rows: Range<usize>,
        columns: Range<usize>,
        (sums, width): (*const f32, usize),
        near: *mut f32,
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            match self {
                ImplicitOut::Results(first) => {
                    let to = first(image_idx).wrapping_add(rows.start * n + columns.start);
                    turn_near(sums, width, (rows.len(), columns.len()), to, n);
                }
                ImplicitOut::Blocks(take) => {
                    turn_near(sums, width, (rows.len(), columns.len()), near, columns.len());
                    take(image_idx, rows, columns, near);
                }
            }
        }
    }
}

impl ImplicitGemm {
    /// Whether a product is best made so: rows of `a` fill vectors, and there are results enough to share out.
    pub fn fits(&self) -> bool {
        let lanes = kernel(self.isa, false).lanes;
        let n_tiles = self.n_images.saturating_mul(self.n.div_ceil(max_height(self.isa))) * self.n_panels();
        let work = self.m.saturating_mul(self.k).saturating_mul(self.n).saturating_mul(self.n_images);
        self.m >= lanes && self.packed_len() <= MAX_PACKED && (n_tiles >= MIN_TILES || work < TASK)
    }

    /// Values of the packed operand.
    pub fn packed_len(&self) -> usize {
        self.k.saturating_mul(self.m.next_multiple_of(kernel(self.isa, false).lanes))
    }

    /// Values of the table of rows.
    pub fn table_len(&self) -> usize {
        self.k
    }

    /// Values that a thread needs room for: the sums of a block, and those transposed.
    pub fn room(&self) -> usize {
        2 * self.block_len()
    }

    fn block_len(&self) -> usize {
        let kernel = kernel(self.isa, false);
        BLOCK.next_multiple_of(kernel.heights[2]) * kernel.across * kernel.lanes
    }

    pub(super) fn n_panels(&self) -> usize {
        let kernel = kernel(self.isa, false);
        self.m.div_ceil(kernel.across * kernel.lanes)
    }

    /// The transposed product, in which `a` is the right operand.
    pub(super) fn transposed(&self, a: *const f32, lies: &OperandArgs) -> Gemm {
        Gemm {
            isa: self.isa,
            m: self.n,
            k: self.k,
            n: self.m,
            a: std::ptr::null(),
            a_steps: None,
            b: a.cast(),
            b_storage: DType::F32.into(),
            b_first: 0,
            b_steps: lies.steps().map(|(row, column)| (column, row)),
            panels: None,
            packed: std::ptr::null(),
            by_amx: false,
            split: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
        }
    }

    /// Packs `a` on all threads.
    ///
    /// # Safety
    /// This machine has `isa`; all elements of `a` are within its memory, which nobody writes meanwhile; there is room for
    /// [`packed_len`](ImplicitGemm::packed_len) values, used by nobody else.
    pub unsafe fn pack(&self, a: *const f32, lies: &OperandArgs, to: *mut f32) {
        let matrix = ListedMatrix { rows: &lies.cols, cols: &lies.rows, first_row: 0 };
        let lists = GemmLists { a: None, b: lies.steps().is_none().then_some(matrix) };
        // SAFETY: as promised by the caller.
        unsafe { self.transposed(a, lies).pack(lists, to) };
    }

    /// Columns of `b` at which blocks may begin: whole register tiles, and where the rows of the result begin with a cache line,
    /// whole lines.
    fn block_unit(&self) -> usize {
        let kernel = kernel(self.isa, false);
        let (height, lanes) = (kernel.heights[2], kernel.lanes);
        if self.n.is_multiple_of(lanes) { least_common_multiple(height, lanes) } else { height }
    }

    /// Blocks of columns of each image and panel.
    pub(super) fn n_blocks(&self, n_threads: usize) -> usize {
        let work = self.m.saturating_mul(self.k).saturating_mul(self.n).saturating_mul(self.n_images);
        let n_panels = (self.n_images * self.n_panels()).max(1);
        let n_tasks = (work / TASK).clamp(1, TASKS_PER_THREAD * n_threads).div_ceil(n_panels);
        let most = (self.n / MIN_BLOCK).max(1).min(self.n.div_ceil(self.block_unit()));
        self.n.div_ceil(BLOCK).max(n_tasks.min(most))
    }

    /// Computes the product on all threads, by these tasks for each image. `image` returns where an image begins, by its number.
    ///
    /// # Safety
    /// This machine has `isa`; the memory is as [`ImplicitMemory`] says; `image` returns where each image begins whose windows `b`
    /// lists, and `out` is given sums of results that nobody else writes. No memory that is written overlaps other memory.
    pub unsafe fn run(
        &self,
        memory: ImplicitMemory,
        tasks: TaskGrid,
        image: &(dyn Fn(usize) -> *const f32 + Sync),
        out: ImplicitOut,
    ) {
        let &ImplicitGemm { k, n, n_images, .. } = self;
        let (TaskGrid { n_wide: n_panels, n_tall: n_blocks }, unit) = (tasks, self.block_unit());
        if n_images == 0 || n == 0 {
            return;
        }
        // SAFETY: there is room for the table.
        let table = unsafe { std::slice::from_raw_parts_mut(memory.table, k) };
        memory.b.rows.write_offsets(table);
        let gemm = self.transposed(std::ptr::null(), memory.b);
        let cut = GemmTiling {
            x: &gemm,
            lists: GemmLists::default(),
            way: BSource::Prepacked,
            kernel: kernel(self.isa, false),
        };
        let (block, packed) = (DirectBlock { cut, table, places: &memory.b.cols }, SharedConst(memory.packed));
        let n_depths = k.div_ceil(DEPTH);
        // Blocks of one panel come one after another: the panel stays near.
        threads::for_each_on(n_panels * n_images * n_blocks, &|worker, task| {
            let (panel, image_idx, part) = (task / n_blocks / n_images, task / n_blocks % n_images, task % n_blocks);
            let units = share(n.div_ceil(unit), n_blocks, part);
            let columns = units.start * unit..(units.end * unit).min(n);
            let rows = block.cut.columns(panel..panel + 1);
            let (width, sums) = (block.cut.width(&rows), memory.rooms.of(worker).first);
            for part in 0..n_depths {
                let depth = share(k, n_depths, part);
                let packed = packed.get().wrapping_add(k * rows.start + depth.start * width);
                // SAFETY: the caller promises that operands lie within their memory.
                unsafe { block.multiply((image(image_idx), columns.clone()), (depth, packed), width, sums, part > 0) };
            }
            let near = sums.wrapping_add(self.block_len());
            // SAFETY: no two tasks write to the same block.
            unsafe { out.take((image_idx, n), rows, columns, (sums, width), near) };
        });
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let divides = |n: &usize| n.is_multiple_of(b);
    (1..=b).map(|i| a * i).find(divides).unwrap_or(a * b)
}

/// What the tasks of an implicit GEMM share.
pub(super) struct DirectBlock<'a> {
    pub cut: GemmTiling<'a>,
    /// Where rows of `b` are.
    pub table: &'a [isize],
    /// Where its columns are.
    pub places: &'a AxisList,
}

impl DirectBlock<'_> {
    /// The sums of up to [`BLOCK`] columns of `b` and part of a panel of `a`, of which `packed` is the first row, transposed. They are
    /// written to memory, or added to what is there.
    ///
    /// # Safety
    /// The machine has the instructions of the kernel. Windows of `places` are within the memory of `image`, the part
    /// of the panel at `packed` is `depth` rows `width` apart, and `to` has room for `places.len()` rows of `width`
    /// values, which are disjoint from both and hold sums if they are to be added to.
    pub unsafe fn multiply(
        &self,
        (image, places): (*const f32, Range<usize>),
        (depth, packed): (Range<usize>, *const f32),
        width: usize,
        to: *mut f32,
        adds: bool,
    ) {
        let kernel = self.cut.kernel;
        let mut starts = [0isize; BLOCK + super::MAX_ROWS];
        starts.iter_mut().zip(self.places.offsets(places.start).take(places.len())).for_each(|(to, at)| *to = at);
        for row in (0..places.len()).step_by(kernel.heights[2]) {
            let n_rows = kernel.heights[2].min(places.len() - row);
            let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
            let tile = RegisterTile {
                a: image,
                a_pitch: 0,
                a_rows: starts[row..].as_ptr(),
                a_columns: self.table[depth.start..].as_ptr(),
                b: packed,
                b_pitch: 0,
                laid: std::ptr::null_mut(),
                depth: depth.len(),
                out: to.wrapping_add(row * width),
                pitch: width,
                n_rows,
                n_columns: width,
                adds,
                next: RegisterTile::next_of(packed, (depth.len(), width), row / kernel.heights[2]),
            };
            // SAFETY: the instruction set is there; the rest as promised by the caller.
            unsafe { kernel.listed[height][width / kernel.lanes - 1](&tile) };
        }
    }
}

/// How it is cut, in one line.
impl fmt::Display for ImplicitGemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = kernel(self.isa, false);
        let (rows, columns) = (kernel.heights[2], kernel.across * kernel.lanes);
        write!(f, "implicit GEMM, left operand packed first, transposed register tiles of {rows}×{columns}")
    }
}
