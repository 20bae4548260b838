//! Implicit GEMM: a matrix times one that is read by lists of axes, such as a weight times the windows of an image. The
//! product is computed transposed: its rows are the columns of `b`, each a pointer into the image, and the rows of `a` are the
//! lanes of vectors, packed into panels before. A table says how far each row of `b` is from the first, so that windows are
//! read where they are, whatever their stride and dilation; no window is copied, and images whose sizes are no multiples of a
//! vector waste no lanes. Blocks of sums are transposed on their way to the result.

use std::fmt;
use std::ops::Range;

use super::gather::ListedMatrix;
use super::kernel::{RegisterTile, kernel};
use super::pack::turn;
use super::{
    BSource, DEPTH, Gemm, GemmLists, GemmTiling, PackBuffers, SharedConst, TASK, TASKS_PER_THREAD, max_height, share,
};
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::{AxisList, OperandArgs};
use crate::ops::Isa;

/// Columns of `b` whose sums are made before they are transposed: with a panel's width of sums for each they take half of a
/// first-level cache, and each row of a packed panel is used so often while it is near.
const BLOCK: usize = 96;
/// Fewer register tiles than this cannot be shared out among threads; a plain GEMM splits k then.
const MIN_TILES: usize = 16;
/// The most values that are packed: larger operands are packed piece by piece by a plain GEMM.
const MAX_PACKED: usize = 16 << 20;

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

    /// Values that a thread needs room for.
    pub fn room(&self) -> usize {
        let kernel = kernel(self.isa, false);
        BLOCK.next_multiple_of(kernel.heights[2]) * kernel.across * kernel.lanes
    }

    fn n_panels(&self) -> usize {
        let kernel = kernel(self.isa, false);
        self.m.div_ceil(kernel.across * kernel.lanes)
    }

    /// The transposed product, in which `a` is the right operand.
    fn transposed(&self, a: *const f32, lies: &OperandArgs) -> Gemm {
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
            out: std::ptr::null_mut(),
        }
    }

    /// Packs `a` on all threads.
    ///
    /// # Safety
    /// `a` lies as is said within its memory, and there is room for [`packed_len`](ImplicitGemm::packed_len) values.
    pub unsafe fn pack(&self, a: *const f32, lies: &OperandArgs, to: *mut f32) {
        let matrix = ListedMatrix { rows: &lies.cols, cols: &lies.rows, first_row: 0 };
        let lists = GemmLists { a: None, b: lies.steps().is_none().then_some(matrix) };
        // SAFETY: as promised by the caller.
        unsafe { self.transposed(a, lies).pack(lists, to) };
    }

    /// Computes it on all threads: images begin at elements that are asked for by number, results follow each other.
    ///
    /// # Safety
    /// Operands, results and rooms are within their memory and do not overlap.
    pub unsafe fn run(
        &self,
        memory: ImplicitMemory,
        images: Range<usize>,
        image: &(dyn Fn(usize) -> *const f32 + Sync),
        out: *mut f32,
    ) {
        let &ImplicitGemm { m, k, n, .. } = self;
        let (n_images, n_panels) = (images.len(), self.n_panels());
        let n_tiles = n.div_ceil(max_height(self.isa));
        let work = m.saturating_mul(k).saturating_mul(n).saturating_mul(n_images);
        let n_tasks = (work / TASK).clamp(1, TASKS_PER_THREAD * threads::count());
        let n_blocks = n.div_ceil(BLOCK).max(n_tasks.div_ceil(n_images * n_panels)).min(n_tiles);
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
        let block = ImplicitBlock { cut, packed: SharedConst(memory.packed), table, places: &memory.b.cols };
        let out = super::SharedMut(out);
        // Blocks of one panel come one after another: the panel stays near.
        threads::for_each_on(n_panels * n_images * n_blocks, &|worker, task| {
            let (panel, image_idx, part) = (task / n_blocks / n_images, task / n_blocks % n_images, task % n_blocks);
            let tiles = share(n_tiles, n_blocks, part);
            let rows = tiles.start * max_height(self.isa)..(tiles.end * max_height(self.isa)).min(n);
            let to = out.get().wrapping_add(image_idx * m * n);
            // SAFETY: the caller promises that operands and results lie within their memory; no two tasks write to the same block.
            unsafe { block.multiply(image(images.start + image_idx), panel, rows, to, memory.rooms.of(worker)) };
        });
    }
}

/// What the tasks of an implicit GEMM share.
struct ImplicitBlock<'a> {
    cut: GemmTiling<'a>,
    packed: SharedConst,
    table: &'a [isize],
    places: &'a AxisList,
}

impl ImplicitBlock<'_> {
    /// The results of some columns of `b` and a panel of `a`.
    unsafe fn multiply(&self, image: *const f32, panel: usize, places: Range<usize>, out: *mut f32, room: PackBuffers) {
        let (k, n, kernel) = (self.cut.x.k, self.cut.x.m, self.cut.kernel);
        let mut starts = [0isize; BLOCK + super::MAX_ROWS];
        starts.iter_mut().zip(self.places.offsets(places.start).take(places.len())).for_each(|(to, at)| *to = at);
        let columns = self.cut.columns(panel..panel + 1);
        let width = self.cut.width(&columns);
        let packed = self.packed.get().wrapping_add(k * columns.start);
        let n_depths = k.div_ceil(DEPTH);
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            for part in 0..n_depths {
                let depth = share(k, n_depths, part);
                for row in (0..places.len()).step_by(kernel.heights[2]) {
                    let n_rows = kernel.heights[2].min(places.len() - row);
                    let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                    let tile = RegisterTile {
                        a: image,
                        a_pitch: 0,
                        a_rows: starts[row..].as_ptr(),
                        a_columns: self.table[depth.start..].as_ptr(),
                        b: packed.wrapping_add(depth.start * width),
                        b_pitch: 0,
                        laid: std::ptr::null_mut(),
                        depth: depth.len(),
                        out: room.first.wrapping_add(row * width),
                        pitch: width,
                        n_rows,
                        n_columns: width,
                        adds: part > 0,
                    };
                    kernel.listed[height][width / kernel.lanes - 1](&tile);
                }
            }
            let to = out.wrapping_add(columns.start * n + places.start);
            turn(room.first, (1, width as isize), (columns.len(), places.len()), to, n);
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
