//! A stable radix sort of pairs in scratch memory, least significant digit first. Each line is cut into tiles, and an
//! invocation goes through one tile: it counts how often each digit occurs, a scan over the counts of all tiles says
//! where each tile's pairs of each digit begin, and the invocation goes through its tile again and moves them there.
//! The time is linear in the pairs, and nothing depends on which invocation runs first.

use super::grid::{GridAccess, GridAxis, is_served};
use super::scratch;
use super::sort::{PingPong, SortBatch, key_of, place_of};
use super::{RoutineLaunch, SortSchedule};
use crate::dtype::Lane;
use crate::target::GpuTarget;
use crate::wgsl::Pass;
use crate::wgsl::launch_memory::{LaunchMemory, Use};
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderType, min, word};

/// Bits of a digit: an invocation keeps a count for each digit, in memory of its own.
const DIGIT_BITS: usize = 4;
const N_DIGITS: usize = 1 << DIGIT_BITS;

/// Pairs of a tile at least: below, counts would take as much memory as pairs.
const MIN_TILE: usize = 64;
/// Tiles beyond which larger ones are taken: enough for every device to be busy.
const MANY_TILES: usize = 1 << 14;
/// Words that an invocation of a scan goes through.
const SCAN_BLOCK: usize = 256;

/// The first piece of scratch memory that counts and their sums lie in.
const COUNTS: u32 = 2;

/// The tiles of a radix sort: each line of a batch is cut into `n` runs of `len` pairs, one per invocation.
struct RadixTiles<'a> {
    batch: &'a SortBatch,
    len: usize,
    n: usize,
}

impl SortBatch {
    /// Sorts the pairs of each line, which lie in [`PingPong::First`], by the low bits of their keys. Says where they lie
    /// after that.
    pub fn radix_sort(&self, job: &RoutineLaunch, n_bits: usize) -> (Vec<Pass>, PingPong) {
        let tiles = RadixTiles::of(self, job);
        let (mut passes, mut side) = (Vec::new(), PingPong::First);
        for shift in (0..n_bits).step_by(DIGIT_BITS) {
            passes.extend(tiles.count(job, side, shift));
            passes.extend(tiles.scan(job, 0));
            passes.extend(tiles.place(job, side, shift));
            side = side.other();
        }
        (passes, side)
    }

    /// The bytes of the pieces of scratch memory that counts and their sums need.
    pub fn radix_scratch(&self, job: &RoutineLaunch) -> Vec<usize> {
        let tiles = RadixTiles::of(self, job);
        (0..).map(|level| tiles.n_words(job, level) * 4 * self.n_lines()).take_while(|bytes| *bytes > 0).collect()
    }
}

impl RadixTiles<'_> {
    fn of<'a>(batch: &'a SortBatch, job: &RoutineLaunch) -> RadixTiles<'a> {
        let many = (batch.n_pairs() / MANY_TILES).next_power_of_two();
        let len = MIN_TILE.max(many).min(job.schedule.sorted().max_tile);
        RadixTiles { batch, len, n: batch.lines.n.div_ceil(len) }
    }

    fn axes(&self) -> [GridAxis; 3] {
        self.batch.axes(self.n)
    }

    /// Words of a line at a level of the scan: the counts of each digit in each tile, digit by digit, then the sums of
    /// blocks of them, until one block is left. Above that there are none.
    fn n_words(&self, job: &RoutineLaunch, level: usize) -> usize {
        let block = job.schedule.sorted().scan_block;
        let below = (0..level).try_fold(N_DIGITS * self.n, |n, _| (n > block).then(|| n.div_ceil(block)));
        below.unwrap_or(0)
    }

    fn words(&self, job: &RoutineLaunch, level: usize, name: &str, writes: bool) -> Use {
        scratch(COUNTS + level as u32, name, self.n_words(job, level) * self.batch.n_lines(), writes)
    }

    /// The words that belong to a tile: one for each digit.
    fn of_tiles(&self, job: &RoutineLaunch, writes: bool) -> GridAccess<'static> {
        let per_line = N_DIGITS * self.n;
        let beside = self.batch.inner.1 * per_line;
        GridAccess::at(self.words(job, 0, "counts", writes), &[beside, per_line, 1]).run((N_DIGITS - 1) * self.n + 1)
    }

    /// The pairs that belong to a tile.
    fn pairs(&self, side: PingPong) -> GridAccess<'static> {
        let SortBatch { lines, inner, .. } = self.batch;
        let memory = self.batch.pairs(side, false);
        GridAccess::at(memory, &[2 * inner.1 * lines.n, 2 * lines.n, 2 * self.len]).run(2 * self.len)
    }

    /// Opens the loop over the pairs of tile `at`: gives the pair, its key and its digit.
    fn open_tile(&self, shader: &mut Shader, memory: &LaunchMemory, shift: usize) -> [ShaderExpr; 3] {
        let (n, len) = (shader.param("line_len", self.batch.lines.n), shader.param("tile_len", self.len));
        let start = word("at") * &len;
        let first = self.batch.pair(shader, &start);
        let first = shader.define("first", first);
        let last = shader.define("last", &first + min(len, n - start));
        let pair = shader.open_for("pair", first, last, 1, self.len);
        let key = memory.load(shader, 0, key_of(&pair));
        let shift = shader.param("shift", shift);
        let key = shader.define("key", key);
        let digit = shader.define("digit", (&key >> shift) & (N_DIGITS - 1));
        [pair, key, digit]
    }

    /// Opens the loop over digits: gives the digit and the number of the tile's word for it.
    fn open_digits(&self, shader: &mut Shader) -> [ShaderExpr; 2] {
        let (n, beside) = (shader.param("n_tiles", self.n), shader.param("beside", self.batch.inner.1));
        let digit = shader.open_for("digit", 0, N_DIGITS, 1, N_DIGITS);
        let line = word("outer") * beside + word("inner");
        let number = shader.define("word", (line * N_DIGITS + &digit) * n + word("at"));
        [digit, number]
    }

    /// How often each digit occurs in each tile.
    fn count(&self, job: &RoutineLaunch, side: PingPong, shift: usize) -> Vec<Pass> {
        let reaches = [self.pairs(side), self.of_tiles(job, true)];
        job.passes("count digits", &self.axes(), &reaches, |shader, memory| {
            let counts = shader.zeros("counts_of", N_DIGITS, ShaderType::One(Lane::U32));
            let [_, _, digit] = self.open_tile(shader, memory, shift);
            shader.add_to(&counts.at(digit), 1);
            shader.close();
            let [digit, number] = self.open_digits(shader);
            memory.store(shader, 1, number, counts.at(digit));
            shader.close();
        })
    }

    /// Words of a level become sums of all words before them in their line.
    fn scan(&self, job: &RoutineLaunch, level: usize) -> Vec<Pass> {
        let n = self.n_words(job, level);
        let block = job.schedule.sorted().scan_block;
        if n <= block {
            return self.scan_blocks(job, level, false);
        }
        let axes = [("line", self.batch.n_lines()), ("block", n.div_ceil(block))];
        let words = GridAccess::at(self.words(job, level, "counts", false), &[n, block]).run(block);
        let sums = GridAccess::at(self.words(job, level + 1, "sums", true), &[n.div_ceil(block), 1]);
        let mut passes = job.passes("sum counts", &axes, &[words, sums], |shader, memory| {
            let [number, sum] = open_block(shader, n, block, 0.into());
            let count = memory.load(shader, 0, number);
            shader.add_to(&sum, count);
            shader.close();
            let n_blocks = shader.param("n_blocks", n.div_ceil(block));
            memory.store(shader, 1, word("line") * n_blocks + word("block"), sum);
        });
        passes.extend(self.scan(job, level + 1));
        passes.extend(self.scan_blocks(job, level, true));
        passes
    }

    /// The last step of a scan: each block from where the level above says that it starts.
    fn scan_blocks(&self, job: &RoutineLaunch, level: usize, has_starts: bool) -> Vec<Pass> {
        let n = self.n_words(job, level);
        let block = job.schedule.sorted().scan_block;
        let axes = [("line", self.batch.n_lines()), ("block", n.div_ceil(block))];
        let mut reaches = vec![GridAccess::at(self.words(job, level, "counts", true), &[n, block]).run(block)];
        if has_starts {
            reaches.push(GridAccess::at(self.words(job, level + 1, "sums", false), &[n.div_ceil(block), 1]));
        }
        job.passes("scan counts", &axes, &reaches, |shader, memory| {
            let n_blocks = shader.param("n_blocks", n.div_ceil(block));
            let start = match has_starts {
                true => memory.load(shader, 1, word("line") * n_blocks + word("block")),
                false => 0.into(),
            };
            let [number, sum] = open_block(shader, n, block, start);
            let count = memory.load(shader, 0, &number);
            let count = shader.define("count", count);
            memory.store(shader, 0, number, &sum);
            shader.add_to(&sum, count);
            shader.close();
        })
    }

    /// Moves each pair to its place among those of its digit.
    fn place(&self, job: &RoutineLaunch, side: PingPong, shift: usize) -> Vec<Pass> {
        let (batch, n) = (self.batch, self.batch.lines.n);
        let to = GridAccess::at(batch.pairs(side.other(), true), &[2 * batch.inner.1 * n, 2 * n, 0]);
        let reaches = [self.pairs(side), self.of_tiles(job, false), to.run(2).anywhere(n, 2)];
        job.passes("move pairs", &self.axes(), &reaches, |shader, memory| {
            let next_of = shader.zeros("next_of", N_DIGITS, ShaderType::One(Lane::U32));
            let [digit, number] = self.open_digits(shader);
            let start = memory.load(shader, 1, number);
            shader.assign(&next_of.at(digit), start);
            shader.close();
            let [pair, key, digit] = self.open_tile(shader, memory, shift);
            let to = shader.define("to", next_of.at(&digit));
            shader.assign(&next_of.at(digit), &to + 1);
            shader.open_if(is_served(&to));
            let (to, place) = (batch.pair(shader, &to), memory.load(shader, 0, place_of(&pair)));
            let to = shader.define("pair_to", to);
            memory.store(shader, 2, key_of(&to), key);
            memory.store(shader, 2, place_of(&to), place);
            shader.close();
            shader.close();
        })
    }
}

/// As much as an invocation may go through; the sums of so many terms follow.
pub fn schedule(target: &GpuTarget, n_terms: usize) -> SortSchedule {
    // Each tile is gone through, then its digits.
    let most = target.max_iterations.saturating_sub(2 * N_DIGITS).max(1);
    SortSchedule { max_tile: 1 << most.ilog2(), scan_block: SCAN_BLOCK.min(target.max_iterations - 1).max(2), n_terms }
}

/// Opens the loop over the words of `block` of `line`: gives the number of the word, and a sum that starts so.
fn open_block(shader: &mut Shader, n: usize, block: usize, start: ShaderExpr) -> [ShaderExpr; 2] {
    let (n, len) = (shader.param("n_words", n), shader.param("block_len", block));
    let from = word("block") * &len;
    let first = shader.define("first", word("line") * &n + &from);
    let last = shader.define("last", &first + min(len, n - from));
    let sum = shader.variable("sum", start);
    [shader.open_for("word", first, last, 1, block), sum]
}
