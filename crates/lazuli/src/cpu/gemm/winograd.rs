//! Windows of 3 × 3 by Winograd's minimal filtering F(2×2, 3×3): a tile of four neighbouring results takes 16 multiplications a
//! channel instead of 36. Tiles of the image and the weights are transformed, 16 products (one for each place in a transformed
//! tile) sum over channels, and their sums are transformed into results:
//!
//! ```text
//! Y = Aᵀ [ Σ over channels (G g Gᵀ) ⊙ (Bᵀ d B) ] A      d: 4 × 4 of the image, g: 3 × 3 weights, Y: 2 × 2 results
//! ```
//!
//! A thread transforms some rows of tiles of an image into memory of its own, multiplies them with panels of the transformed
//! weights and transforms the sums while all of it is in a near cache. Transforms only add and halve, so small whole numbers stay
//! exact. Rounding is relative to the whole tile of 4 × 4 that a result lies in, not to its own window of 3 × 3 alone: to first
//! order the error is at most 9 · (C + 12) · ε · Σ over all C channels of (Σ |d| · Σ |g|), with ε = 2⁻²⁴; for numbers of one size it is
//! about that of a sum in order. Where an infinity, a NaN or an overflow would spread over a tile, the block is computed again
//! without transforms.

use std::fmt;
use std::ops::Range;

use super::gather::ListedMatrix;
use super::implicit::{BLOCK, DirectBlock, ImplicitGemm, ImplicitOut, MAX_PACKED};
use super::kernel::{MicroKernel, RegisterTile, kernel};
use super::{BSource, DEPTH, GemmLists, GemmTiling, PackBuffers, SharedConst, SharedMut, share};
use crate::cpu::tasks::TaskGrid;
use crate::cpu::threads;
use crate::kernel::OperandArgs;
use crate::ops::math::Floats;

/// Places in a transformed tile.
const PLACES: usize = 16;
/// Values of a 3 × 3 window.
const WINDOW: usize = 9;
/// With fewer channels transforms take longer than they save.
const MIN_CHANNELS: usize = 16;
/// With fewer tiles, reading the transformed weights, of which there are 16 for 9, takes longer than they save.
const MIN_TILES: usize = 48;
/// Tiles of a block, if a row of tiles has not more: transformed weights are read once for all of them.
const BLOCK_TILES: usize = 64;
/// Transformed values of a place in a block at most, where several rows of tiles make a block, and in any block.
const PLACE_VALUES: usize = 16 << 10;
const MAX_PLACE_VALUES: usize = 4 * PLACE_VALUES;
/// Padding between the values of two places, so that equal elements of all places do not map to one cache set.
const APART: usize = 16;
/// Channels of weights that are transformed at a time.
const PACKED_CHANNELS: usize = 16;
/// Lanes of the widest vectors.
const MAX_LANES: usize = 16;

/// A product of weights with the 3 × 3 windows of images, one step apart along both axes.
#[derive(Clone, Copy)]
pub struct Winograd {
    /// The same product without transforms.
    pub direct: ImplicitGemm,
    n_channels: usize,
    /// Results of an image.
    height: usize,
    width: usize,
    /// From channel to channel of an image, and from row to row.
    channel_step: isize,
    row_step: isize,
}

/// The memory of such a product.
#[derive(Clone, Copy)]
pub struct WinogradMemory<'a> {
    /// The weights as they are, and where in memory rows and columns of them are.
    pub a: *const f32,
    pub a_lies: &'a OperandArgs,
    /// The weights transformed.
    pub packed: *const f32,
    /// Room for [`Winograd::table_len`] values.
    pub table: *mut isize,
    /// Where in memory the elements of windows are.
    pub b: &'a OperandArgs,
    /// Room for [`Winograd::room`] values a thread.
    pub rooms: PackBuffers,
}

impl Winograd {
    /// The product in this way, if its windows are those that it is for and there is enough to gain.
    pub fn new(direct: ImplicitGemm, b: &OperandArgs) -> Option<Winograd> {
        let ImplicitGemm { m, n_images, .. } = direct;
        let (&[(n_channels, channel_step), (3, row_step), (3, 1)], &[(height, down), (width, 1)]) =
            (b.rows.axes(), b.cols.axes())
        else {
            return None;
        };
        let is_whole = down == row_step && b.rows.start() == 0 && b.cols.start() == 0;
        let covers = direct.k == n_channels * WINDOW && direct.n == height * width;
        let steps_forward = row_step > 0 && channel_step > 0;
        let made = Winograd { direct, n_channels, height, width, channel_step, row_step };
        let (down, across) = made.n_tiles();
        let is_enough = n_channels >= MIN_CHANNELS && n_images.saturating_mul(down * across) >= MIN_TILES;
        // At least three quarters of what tiles compute is wanted.
        let is_used = 16 * direct.n >= 12 * down * across;
        let is_near = across.saturating_mul(n_channels) <= MAX_PLACE_VALUES;
        let is_small = PLACES.saturating_mul(n_channels).saturating_mul(m) <= MAX_PACKED;
        (is_whole && covers && steps_forward && is_enough && is_used && is_near && is_small).then_some(made)
    }

    /// Tiles below one another and beside one another in an image.
    fn n_tiles(&self) -> (usize, usize) {
        (self.height.div_ceil(2), self.width.div_ceil(2))
    }

    /// Values of the transformed weights.
    pub fn packed_len(&self) -> usize {
        PLACES * self.n_channels * self.direct.m.next_multiple_of(kernel(self.direct.isa, false).lanes)
    }

    /// Values of the tables: where channels of transformed tiles are, and where elements of windows are.
    pub fn table_len(&self) -> usize {
        self.n_channels + self.direct.k
    }

    /// Values that a thread needs room for.
    pub fn room(&self) -> usize {
        let block = self.block();
        PLACES * block.place_len() + block.products_len() + 2 * block.results_len()
    }

    /// Blocks of rows of tiles in an image.
    pub(super) fn n_blocks(&self) -> usize {
        let (down, across) = self.n_tiles();
        let most = BLOCK_TILES.min(PLACE_VALUES / self.n_channels) / across;
        down.div_ceil(most.max(1))
    }

    fn block(&self) -> BlockSizes {
        let (down, across) = self.n_tiles();
        let kernel = kernel(self.direct.isa, false);
        BlockSizes {
            n_channels: self.n_channels,
            n_tiles: down.div_ceil(self.n_blocks()) * across,
            width: kernel.across * kernel.lanes,
        }
    }

    /// How panels are cut and where the weights are.
    fn cut<'a>(&self, gemm: &'a super::Gemm, lists: GemmLists<'a>) -> GemmTiling<'a> {
        GemmTiling { x: gemm, lists, way: BSource::PackFirst, kernel: kernel(self.direct.isa, false) }
    }

    /// Transforms the weights on all threads: panel after panel, each with all places one after another, those with all channels.
    ///
    /// # Safety
    /// This machine has the instruction set; all elements of `a` are within its memory, which nobody writes meanwhile; there is room for
    /// [`packed_len`](Winograd::packed_len) values, used by nobody else.
    pub unsafe fn pack(&self, a: *const f32, lies: &OperandArgs, to: *mut f32) {
        let gemm = self.direct.transposed(a, lies);
        let cut = self.cut(&gemm, weight_lists(lies));
        let n_parts = self.n_channels.div_ceil(PACKED_CHANNELS);
        let to = SharedMut(to);
        threads::for_each(cut.n_panels() * n_parts, &|task| {
            let (panel, channels) = (task / n_parts, share(self.n_channels, n_parts, task % n_parts));
            let columns = cut.columns(panel..panel + 1);
            let width = cut.width(&columns);
            let to = to.get().wrapping_add(PLACES * self.n_channels * columns.start);
            let mut windows = [0.0f32; WINDOW * 4 * MAX_LANES];
            for channel in channels {
                // SAFETY: tasks write apart; a panel has at most four vectors; the rest as promised by the caller.
                unsafe {
                    cut.lay_out(channel * WINDOW..(channel + 1) * WINDOW, panel, windows.as_mut_ptr());
                    let to = to.add(channel * width);
                    let step = self.n_channels * width;
                    (cut.kernel.weights)(&WeightTransform { from: windows.as_ptr(), to, step, width });
                }
            }
        });
    }

    /// Computes the product on all threads, by these tasks for each image. `image` returns where an image begins, by its number.
    ///
    /// # Safety
    /// This machine has the instruction set; the memory is as [`WinogradMemory`] says; `image` returns where each image begins whose
    /// windows `b` lists, and `out` is given results that nobody else writes. No memory that is written overlaps other memory.
    pub unsafe fn run(
        &self,
        memory: WinogradMemory,
        tasks: TaskGrid,
        image: &(dyn Fn(usize) -> *const f32 + Sync),
        out: ImplicitOut,
    ) {
        let gemm = self.direct.transposed(memory.a, memory.a_lies);
        let cut = self.cut(&gemm, weight_lists(memory.a_lies));
        let (sizes, n_images, TaskGrid { n_wide: n_groups, n_tall: n_blocks }) =
            (self.block(), self.direct.n_images, tasks);
        // SAFETY: there is room for both tables.
        let (channels, table) =
            unsafe { std::slice::from_raw_parts_mut(memory.table, self.table_len()) }.split_at_mut(self.n_channels);
        channels.iter_mut().enumerate().for_each(|(channel, at)| *at = (channel * sizes.n_tiles) as isize);
        memory.b.rows.write_offsets(table);
        let direct = DirectBlock { cut, table, places: &memory.b.cols };
        let block = WinogradBlock { x: self, direct, sizes, packed: SharedConst(memory.packed), channels };
        let (n_panels, n_rows) = (block.direct.cut.n_panels(), self.n_tiles().0);
        threads::for_each_on(n_images * tasks.count(), &|worker, task| {
            let (unit, group) = (task / n_groups, task % n_groups);
            let rows = share(n_rows, n_blocks, unit % n_blocks);
            let (image_idx, panels) = (unit / n_blocks, share(n_panels, n_groups, group));
            // SAFETY: the caller promises that operands and results lie within their memory; no two tasks write to the same block.
            unsafe { block.run((image_idx, image(image_idx)), rows, panels, memory.rooms.of(worker).first, out) };
        });
    }
}

/// The weights as the right operand of the transposed product.
fn weight_lists(lies: &OperandArgs) -> GemmLists<'_> {
    let matrix = ListedMatrix { rows: &lies.cols, cols: &lies.rows, first_row: 0 };
    GemmLists { a: None, b: lies.steps().is_none().then_some(matrix) }
}

/// How large the memory of a block is.
#[derive(Clone, Copy)]
struct BlockSizes {
    n_channels: usize,
    n_tiles: usize,
    /// Columns of a panel.
    width: usize,
}

impl BlockSizes {
    /// Transformed values of one place, and what keeps them disjoint from those of the next.
    fn place_len(&self) -> usize {
        self.n_channels * self.n_tiles + APART
    }

    /// Sums of one place.
    fn product_len(&self) -> usize {
        self.n_tiles * self.width + APART
    }

    /// Sums of all places, or a part of the weights that are multiplied without transforms.
    fn products_len(&self) -> usize {
        (PLACES * self.product_len()).max(DEPTH * self.width)
    }

    fn results_len(&self) -> usize {
        4 * self.n_tiles * self.width
    }
}

/// What the tasks share.
struct WinogradBlock<'a> {
    x: &'a Winograd,
    direct: DirectBlock<'a>,
    sizes: BlockSizes,
    packed: SharedConst,
    /// Where the channels of a place are.
    channels: &'a [isize],
}

impl WinogradBlock<'_> {
    /// The results of some rows of tiles, for some panels.
    ///
    /// # Safety
    /// As for [`Winograd::run`]: the room is one of a worker, and no two tasks have the same rows and panels.
    unsafe fn run(
        &self,
        (image_idx, image): (usize, *const f32),
        tile_rows: Range<usize>,
        panels: Range<usize>,
        room: *mut f32,
        out: ImplicitOut,
    ) {
        let &WinogradBlock { x, ref direct, sizes, .. } = self;
        let kernel = direct.cut.kernel;
        let products = room.wrapping_add(PLACES * sizes.place_len());
        let results = products.wrapping_add(sizes.products_len());
        let columns = 2 * tile_rows.start * x.width..(2 * tile_rows.end).min(x.height) * x.width;
        let n_tiles = tile_rows.len() * x.n_tiles().1;
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            (kernel.tiles_in)(&TileTransform { x, image, tile_rows, to: room, sizes });
            for panel in panels {
                let rows = direct.cut.columns(panel..panel + 1);
                let width = direct.cut.width(&rows);
                self.multiply(panel, n_tiles, room, products);
                let sums = SumTransform { x, from: products, step: sizes.product_len(), to: results, width, n_tiles };
                if !(kernel.tiles_out)(&SumTransform { ..sums }, &columns) {
                    self.repair(image, panel, columns.clone(), products, results);
                }
                let near = results.wrapping_add(sizes.results_len());
                out.take((image_idx, x.direct.n), rows, columns.clone(), (results, width), near);
            }
        }
    }

    /// The sums of all places, for a panel.
    ///
    /// # Safety
    /// As for [`WinogradBlock::run`]: `tiles` are `n_tiles` transformed ones of all places and channels, and `to` has
    /// room for their sums.
    unsafe fn multiply(&self, panel: usize, n_tiles: usize, tiles: *const f32, to: *mut f32) {
        let (kernel, n_channels, sizes) = (self.direct.cut.kernel, self.x.n_channels, self.sizes);
        let columns = self.direct.cut.columns(panel..panel + 1);
        let width = self.direct.cut.width(&columns);
        let packed = self.packed.get().wrapping_add(PLACES * n_channels * columns.start);
        let n_depths = n_channels.div_ceil(DEPTH);
        for (place, part) in (0..PLACES).flat_map(|place| (0..n_depths).map(move |part| (place, part))) {
            let depth = share(n_channels, n_depths, part);
            let b = packed.wrapping_add((place * n_channels + depth.start) * width);
            for row in (0..n_tiles).step_by(kernel.heights[2]) {
                let n_rows = kernel.heights[2].min(n_tiles - row);
                let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                let tile = RegisterTile {
                    a: tiles.wrapping_add(place * sizes.place_len() + row),
                    a_pitch: 0,
                    a_rows: NEIGHBOURS.as_ptr(),
                    a_columns: self.channels[depth.start..].as_ptr(),
                    b,
                    b_pitch: 0,
                    laid: std::ptr::null_mut(),
                    depth: depth.len(),
                    out: to.wrapping_add(place * sizes.product_len() + row * width),
                    pitch: width,
                    n_rows,
                    n_columns: width,
                    adds: part > 0,
                    next: RegisterTile::next_of(b, (depth.len(), width), row / kernel.heights[2]),
                };
                // SAFETY: the instruction set is there; the rest as promised by the caller.
                unsafe { kernel.listed[height][width / kernel.lanes - 1](&tile) };
            }
        }
    }

    /// The results of a panel, without transforms: parts of the weights are laid out in `room`.
    ///
    /// # Safety
    /// As for [`WinogradBlock::run`]: `room` has [`BlockSizes::products_len`] values, and `to` has room for the results
    /// of these columns.
    unsafe fn repair(&self, image: *const f32, panel: usize, columns: Range<usize>, room: *mut f32, to: *mut f32) {
        let (k, cut) = (self.x.direct.k, &self.direct.cut);
        let width = cut.width(&cut.columns(panel..panel + 1));
        let n_depths = k.div_ceil(DEPTH);
        for part in 0..n_depths {
            let depth = share(k, n_depths, part);
            // SAFETY: as promised by the caller.
            unsafe {
                cut.lay_out(depth.clone(), panel, room);
                for first in columns.clone().step_by(BLOCK) {
                    let places = first..columns.end.min(first + BLOCK);
                    let to = to.wrapping_add((first - columns.start) * width);
                    self.direct.multiply((image, places), (depth.clone(), room), width, to, part > 0);
                }
            }
        }
    }
}

/// Rows of a register tile that follow each other.
const NEIGHBOURS: [isize; super::MAX_ROWS] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Bᵀ, which transforms the rows of a tile: d₀ − d₂, d₁ + d₂, d₂ − d₁, d₁ − d₃.
///
/// # Safety
/// As for the methods of [`Floats`].
#[inline(always)]
unsafe fn transform_tile<V: Floats>([d0, d1, d2, d3]: [V; 4]) -> [V; 4] {
    // SAFETY: the instruction set is there.
    unsafe { [minus(d0, d2), d1.add(d2), minus(d2, d1), minus(d1, d3)] }
}

/// Aᵀ, which transforms the rows of sums: s₀ + s₁ + s₂, s₁ − s₂ − s₃.
///
/// # Safety
/// As for the methods of [`Floats`].
#[inline(always)]
unsafe fn transform_sums<V: Floats>([s0, s1, s2, s3]: [V; 4]) -> [V; 2] {
    // SAFETY: the instruction set is there.
    unsafe { [s0.add(s1).add(s2), minus(minus(s1, s2), s3)] }
}

/// G, which transforms the rows of a window: g₀, (g₀ + g₁ + g₂) / 2, (g₀ − g₁ + g₂) / 2, g₂.
///
/// # Safety
/// As for the methods of [`Floats`].
#[inline(always)]
unsafe fn transform_window<V: Floats>([g0, g1, g2]: [V; 3]) -> [V; 4] {
    // SAFETY: the instruction set is there.
    unsafe {
        let (half, zero) = (V::splat(0.5), V::splat(0.0));
        let outer = g0.add(g2);
        [g0, outer.add(g1).fma(half, zero), minus(outer, g1).fma(half, zero), g2]
    }
}

/// x − y.
///
/// # Safety
/// As for the methods of [`Floats`].
#[inline(always)]
unsafe fn minus<V: Floats>(x: V, y: V) -> V {
    // SAFETY: the instruction set is there.
    unsafe { y.fma(V::splat(-1.0), x) }
}

/// Windows of weights, a row of a panel for each of their 9 values, and where the 16 transformed rows go.
pub struct WeightTransform {
    from: *const f32,
    to: *mut f32,
    step: usize,
    width: usize,
}

impl WeightTransform {
    /// G g Gᵀ of all windows.
    ///
    /// # Safety
    /// `from` has 9 rows of `width` values, whole vectors, and `to` room for 16 such rows, `step` apart; the processor has the
    /// instructions of `V`, for which the caller is compiled.
    #[inline(always)]
    pub unsafe fn run<V: Floats>(&self) {
        for lane in (0..self.width).step_by(V::LANES) {
            // SAFETY: as promised by the caller.
            unsafe {
                // By columns, then by rows.
                let mut rows = [[V::splat(0.0); 3]; 4];
                for j in 0..3 {
                    let at = |i: usize| self.from.add((i * 3 + j) * self.width + lane);
                    let column = transform_window([V::load(at(0)), V::load(at(1)), V::load(at(2))]);
                    for i in 0..4 {
                        rows[i][j] = column[i];
                    }
                }
                for i in 0..4 {
                    let row = transform_window(rows[i]);
                    for j in 0..4 {
                        row[j].store(self.to.add((i * 4 + j) * self.step + lane));
                    }
                }
            }
        }
    }
}

/// Some rows of tiles of an image and where they go, transformed.
pub struct TileTransform<'a> {
    x: &'a Winograd,
    image: *const f32,
    tile_rows: Range<usize>,
    to: *mut f32,
    sizes: BlockSizes,
}

impl TileTransform<'_> {
    /// Vectors of tiles that lie beside one another.
    ///
    /// # Safety
    /// The tiles are within the image, whose padded rows and channels are there; `to` has room for all places of them, as
    /// [`BlockSizes`] says; the processor has the instructions of `V`, for which the caller is compiled.
    #[inline(always)]
    pub unsafe fn run<V: Floats>(&self) {
        let &Winograd { n_channels, height, width, channel_step, row_step, .. } = self.x;
        let across = self.x.n_tiles().1;
        let len = 2 * V::LANES + 2;
        // Vectors that end before this are within the image, though perhaps not within a row.
        let end = (n_channels as isize - 1) * channel_step + (height as isize + 1) * row_step + width as isize + 2;
        for channel in 0..n_channels {
            let mut to = self.to.wrapping_add(channel * self.sizes.n_tiles);
            for tile_row in self.tile_rows.clone() {
                let first = channel as isize * channel_step + 2 * tile_row as isize * row_step;
                for tile in (0..across).step_by(V::LANES) {
                    let n = V::LANES.min(across - tile);
                    let at = first + 2 * tile as isize;
                    let is_inside = 2 * tile_row + 3 < height + 2 && at + 3 * row_step + len as isize <= end;
                    // SAFETY: as promised by the caller.
                    unsafe {
                        if is_inside {
                            let rows = [0, 1, 2, 3].map(|i| self.image.wrapping_offset(at + i * row_step));
                            self.vector::<V>(rows, n, to);
                        } else {
                            let n_rows = (height + 2 - 2 * tile_row).min(4);
                            let n_columns = (width + 2 - 2 * tile).min(len);
                            let mut copy = [[0.0f32; 2 * MAX_LANES + 2]; 4];
                            for (i, row) in copy.iter_mut().enumerate().take(n_rows) {
                                let from = self.image.wrapping_offset(at + i as isize * row_step);
                                from.copy_to_nonoverlapping(row.as_mut_ptr(), n_columns);
                            }
                            self.vector::<V>([0, 1, 2, 3].map(|i| copy[i].as_ptr()), n, to);
                        }
                    }
                    to = to.wrapping_add(n);
                }
            }
        }
    }

    /// Up to a vector of tiles, whose rows begin at these addresses: Bᵀ d B.
    ///
    /// # Safety
    /// As for [`TileTransform::run`]: each row has 2 · `LANES` + 2 values, and each place at `to` room for `n`.
    #[inline(always)]
    unsafe fn vector<V: Floats>(&self, rows: [*const f32; 4], n: usize, to: *mut f32) {
        // SAFETY: as promised by the caller.
        unsafe {
            // By rows, then by columns.
            let mut columns = [[V::splat(0.0); 4]; 4];
            for i in 0..4 {
                let from = rows[i];
                let row = transform_tile([
                    V::load_even(from),
                    V::load_even(from.add(1)),
                    V::load_even(from.add(2)),
                    V::load_even(from.add(3)),
                ]);
                for j in 0..4 {
                    columns[j][i] = row[j];
                }
            }
            for j in 0..4 {
                let column = transform_tile(columns[j]);
                for i in 0..4 {
                    let to = to.add((i * 4 + j) * self.sizes.place_len());
                    if n == V::LANES { column[i].store(to) } else { column[i].store_first(to, n) }
                }
            }
        }
    }
}

/// The sums of a block of tiles and where their results go: those of each place of the image one after another.
pub struct SumTransform<'a> {
    x: &'a Winograd,
    from: *const f32,
    /// From place to place of a tile.
    step: usize,
    to: *mut f32,
    width: usize,
    n_tiles: usize,
}

impl SumTransform<'_> {
    /// Aᵀ s A for all tiles; false if a result of these columns is no finite number.
    ///
    /// # Safety
    /// `from` has the sums of all tiles and places, rows of `width` values in whole vectors, and `to` room for such a row for each of
    /// these columns; the processor has the instructions of `V`, for which the caller is compiled.
    #[inline(always)]
    pub unsafe fn run<V: Floats>(&self, columns: &Range<usize>) -> bool {
        let (width, across) = (self.width, self.x.n_tiles().1);
        // SAFETY: as promised by the caller.
        unsafe {
            let zero = V::splat(0.0);
            let mut all = zero;
            for tile in 0..self.n_tiles {
                let (row, column) = (2 * (tile / across), 2 * (tile % across));
                let n_rows = (columns.len() / self.x.width - row).min(2);
                let n_columns = (self.x.width - column).min(2);
                for lane in (0..width).step_by(V::LANES) {
                    let from = self.from.add(tile * width + lane);
                    // By rows, then by columns.
                    let mut columns = [[zero; 4]; 2];
                    for i in 0..4 {
                        let at = |j: usize| from.add((i * 4 + j) * self.step);
                        let row = transform_sums([V::load(at(0)), V::load(at(1)), V::load(at(2)), V::load(at(3))]);
                        for j in 0..2 {
                            columns[j][i] = row[j];
                        }
                    }
                    let results = [transform_sums(columns[0]), transform_sums(columns[1])];
                    for i in 0..n_rows {
                        for j in 0..n_columns {
                            let y = results[j][i];
                            // 0 · y is 0 for all finite numbers, and NaN for all others.
                            all = y.fma(zero, all);
                            y.store(self.to.add(((row + i) * self.x.width + column + j) * width + lane));
                        }
                    }
                }
            }
            let mut lanes = [0.0; MAX_LANES];
            all.store(lanes.as_mut_ptr());
            !lanes.iter().any(|lane| lane.is_nan())
        }
    }
}

/// How it is cut, in one line.
impl fmt::Display for Winograd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MicroKernel { heights, across, lanes, .. } = kernel(self.direct.isa, false);
        let (rows, columns, n_tiles) = (heights[2], across * lanes, self.block().n_tiles);
        write!(f, "Winograd F(2×2, 3×3), blocks of {n_tiles} tiles, transposed register tiles of {rows}×{columns}")
    }
}
