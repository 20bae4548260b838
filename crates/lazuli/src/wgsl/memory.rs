//! The memory of a launch as a shader sees it: which bindings there are, and how an element, or four at once, is read
//! and written through them. Packed elements, windows and in-place memory are hidden behind functions named after the
//! buffer. Knows dtypes and bytes; nothing of index maps or instructions.

use std::ops::Range;

use super::convert::{self, pack, unpack};
use super::shader::{Bindings, Shader};
use super::tree::{ShaderExpr, ShaderFn, ShaderType, Statement, Statements, call, literal, named, word};
use super::{Bind, PassMemory};
use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::target::GpuTarget;

/// How a kernel uses a piece of memory.
#[derive(Clone, Debug)]
pub struct Use {
    pub place: PassMemory,
    /// What it is called if it is the first use of its memory.
    pub name: String,
    pub storage: Storage,
    /// Whether it is read or written one element at a time, and four at a time from a multiple of four on.
    pub by_one: bool,
    pub by_four: bool,
    /// Whether it is read in vectors of 16 bytes as they lie in memory: eight half floats, or four words of blocks.
    pub by_vector: bool,
    pub writes: bool,
    /// The bytes there are, and the first and last that are touched.
    pub size_bytes: usize,
    pub touched: (usize, usize),
}

/// All memory of a launch.
#[derive(Clone)]
pub struct LaunchMemory {
    buffers: Vec<SlotMemory>,
    /// Per use, its buffer.
    buffer_of: Vec<usize>,
    storages: Vec<Storage>,
    status: StatusUse,
}

/// What a kernel does with the words of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusUse {
    None,
    /// Notes checks that fail.
    Notes,
    /// Asks whether one has failed before.
    Asks,
}

/// One piece of memory: a slot, whoever uses it.
#[derive(Clone)]
pub(super) struct SlotMemory {
    place: PassMemory,
    pub name: String,
    size: usize,
    /// What an element of 32 bits is declared as; u32 if uses differ.
    word: Lane,
    /// Declared as words, as vectors of four elements, or both (then it is bound twice, to be read).
    narrow: bool,
    wide: bool,
    /// Declared as vectors of eight elements instead.
    eight: bool,
    atomic: bool,
    writes: bool,
    size_bytes: usize,
    window_bytes: usize,
    /// The windows that each use touches, first and last of each way in which it does, and of all.
    touched: Vec<(usize, Vec<(usize, usize)>)>,
    windows: (usize, usize),
}

impl StatusUse {
    fn n_bindings(self) -> usize {
        (self != StatusUse::None) as usize
    }
}

impl LaunchMemory {
    /// The memory of these uses, and the words of checks if they are used.
    pub fn new(uses: &[Use], status: StatusUse, target: &GpuTarget) -> LaunchMemory {
        let mut memory = LaunchMemory {
            buffers: Vec::new(),
            buffer_of: Vec::new(),
            storages: uses.iter().map(|u| u.storage).collect(),
            status,
        };
        for one in uses {
            memory.add(one, target);
        }
        // Vectors of eight are read only where nobody wants anything else.
        for buffer in memory.buffers.iter_mut().filter(|b| b.eight) {
            buffer.eight = !buffer.narrow && !buffer.wide && buffer.size_bytes <= buffer.window_bytes;
            buffer.wide |= !buffer.eight;
        }
        // Memory that is used both ways is bound twice while there is room, else read one element at a time.
        let mut n_bindings = memory.buffers.iter().map(SlotMemory::n_windows).sum::<usize>() + status.n_bindings();
        for buffer in memory.buffers.iter_mut().filter(|b| b.narrow && b.wide) {
            if !buffer.writes && n_bindings + buffer.n_windows() <= target.max_bindings && buffer.size > 1 {
                n_bindings += buffer.n_windows();
            } else {
                buffer.wide = false;
            }
        }
        memory
    }

    fn add(&mut self, one: &Use, target: &GpuTarget) {
        if !one.by_one && !one.by_four && !one.by_vector {
            // Not used after all: bound to nothing, and never asked for.
            self.buffer_of.push(usize::MAX);
            return;
        }
        // Blocks are read as words.
        let size = one.storage.plain().map_or(4, DType::size);
        let word = if one.storage.is_lane() { one.storage.dtype().lane() } else { Lane::U32 };
        let windows = (one.touched.0 / target.max_binding_bytes, one.touched.1 / target.max_binding_bytes);
        let at = self.buffers.iter().position(|b| b.place == one.place);
        let at = at.unwrap_or_else(|| {
            self.buffers.push(SlotMemory {
                place: one.place,
                name: one.name.clone(),
                size,
                word,
                narrow: false,
                wide: false,
                eight: false,
                atomic: false,
                writes: false,
                size_bytes: one.size_bytes,
                window_bytes: target.max_binding_bytes,
                touched: Vec::new(),
                windows,
            });
            self.buffers.len() - 1
        });
        self.buffer_of.push(at);
        let buffer = &mut self.buffers[at];
        buffer.word = if buffer.word == word { word } else { Lane::U32 };
        let in_blocks = one.storage.blocks().is_some();
        // Elements of blocks are found in words, a vector of words is one of any other memory.
        buffer.narrow |= one.by_one || (one.by_four && in_blocks);
        buffer.wide |= if in_blocks { one.by_vector } else { one.by_four };
        buffer.eight |= one.by_vector && !in_blocks;
        buffer.writes |= one.writes;
        // Neighbours in one word may be written by different invocations.
        buffer.atomic |= one.writes && one.by_one && size < 4;
        buffer.touched.push((self.buffer_of.len() - 1, vec![windows]));
        buffer.windows = (buffer.windows.0.min(windows.0), buffer.windows.1.max(windows.1));
    }

    /// The same memory for a part of a launch, of whose uses these are its own.
    pub fn part(&self, uses: Range<usize>) -> LaunchMemory {
        LaunchMemory {
            buffers: self.buffers.clone(),
            buffer_of: self.buffer_of[uses.clone()].to_vec(),
            storages: self.storages[uses].to_vec(),
            status: self.status,
        }
    }

    /// Leaves out windows between these ranges of bytes, which are all that a use touches, unless others touch them.
    pub fn leave_out_all_but(&mut self, idx: usize, ranges: &[(usize, usize)]) {
        let Some(buffer) = self.buffers.get_mut(self.buffer_of[idx]) else { return };
        let per = buffer.window_bytes;
        let windows = || ranges.iter().map(|(low, high)| (low / per, high / per)).collect();
        buffer.touched.iter_mut().filter(|(one, _)| *one == idx).for_each(|(_, touched)| *touched = windows());
    }

    /// Bindings that it takes.
    pub fn n_bindings(&self) -> usize {
        let per = |b: &SlotMemory| b.n_windows() * (1 + (b.narrow && b.wide) as usize);
        self.buffers.iter().map(per).sum::<usize>() + self.status.n_bindings()
    }

    /// By how many elements memory that is bound together is more than indices can tell apart.
    pub fn n_too_far(&self) -> usize {
        let n_elems = |b: &SlotMemory| (b.windows.1 - b.windows.0 + 1) * (b.window_bytes / b.size);
        self.buffers.iter().map(|b| n_elems(b).saturating_sub(1 << 32)).sum()
    }

    /// Declarations and what they are bound to, in order.
    pub fn bindings(&self) -> Bindings {
        let (mut lines, mut binds) = (Vec::new(), Vec::new());
        for buffer in &self.buffers {
            for wide in [true, false].into_iter().filter(|w| buffer.is_declared(*w)) {
                for window in buffer.bound_windows() {
                    let start = window * buffer.window_bytes;
                    let end = (start + buffer.window_bytes).min(buffer.size_bytes.max(start + 1));
                    let len = (end - start).next_multiple_of(4);
                    binds.push(Bind { place: buffer.place, start, len, writes: buffer.writes });
                    let access = if buffer.writes { "read_write" } else { "read" };
                    let element = match buffer.atomic && !wide {
                        true => "atomic<u32>".to_string(),
                        false => buffer.element(wide).to_string(),
                    };
                    lines.push(declare(binds.len(), access, &buffer.window_name(wide, window), &element));
                }
            }
        }
        if self.status != StatusUse::None {
            let writes = self.status == StatusUse::Notes;
            binds.push(Bind { place: PassMemory::Status, start: 0, len: 0, writes });
            let (access, word) = if writes { ("read_write", "atomic<u32>") } else { ("read", "u32") };
            lines.push(declare(binds.len(), access, "status", word));
        }
        (lines, binds)
    }

    /// The element at an index, as a lane.
    pub fn load(&self, shader: &mut Shader, idx: usize, at: impl Into<ShaderExpr>) -> ShaderExpr {
        let buffer = &self.buffers[self.buffer_of[idx]];
        let dtype = match self.storages[idx] {
            Storage::Plain(dtype) => dtype,
            Storage::Blocks(blocks) => return buffer.widened(shader, blocks, at.into()),
        };
        if let (Some(memory), 4) = (buffer.plain(VecAccess(false)), dtype.size()) {
            return memory.at(at).reinterpreted(dtype.lane());
        }
        let (per_word, i) = (4 / dtype.size(), word("i"));
        let read = buffer.read_word(shader, VecAccess(false), &i);
        let value = match per_word {
            1 => read.reinterpreted(dtype.lane()),
            _ => unpack(dtype, (read >> ((i & (per_word - 1)) * (32 / per_word))) & mask(dtype)),
        };
        let arguments = [("i", word("i").ty())];
        accessor(shader, format!("load_{}_{dtype}", buffer.name), arguments, value.ty(), returned(value));
        call(format!("load_{}_{dtype}", buffer.name), [at.into()], ShaderType::One(dtype.lane()))
    }

    /// Four elements from an index on that is a multiple of four.
    pub fn load4(&self, shader: &mut Shader, idx: usize, at: impl Into<ShaderExpr>) -> ShaderExpr {
        let buffer = &self.buffers[self.buffer_of[idx]];
        let dtype = match self.storages[idx] {
            Storage::Plain(dtype) => dtype,
            Storage::Blocks(blocks) => return buffer.widened_four(shader, blocks, at.into()),
        };
        let (at, four) = (at.into(), ShaderType::four(dtype.lane()));
        if !buffer.is_declared(true) && buffer.size > 1 {
            return four.make([0, 1, 2, 3].map(|k| self.load(shader, idx, at.plus(k))));
        }
        if let (Some(memory), 4) = (buffer.plain(VecAccess(true)), dtype.size()) {
            return memory.at(at >> 2).reinterpreted(dtype.lane());
        }
        let read = buffer.read_word(shader, VecAccess(true), &word("i"));
        let body = match dtype.size() {
            4 => returned(read.reinterpreted(dtype.lane())),
            size => {
                let w = named("w", read.ty());
                let parts = [0, 1, 2, 3].map(|k| unpack(dtype, part(&w, size, k)));
                vec![Statement::Let("w".to_string(), read), Statement::Return(Some(four.make(parts)))]
            }
        };
        let name = format!("load4_{}_{dtype}", buffer.name);
        accessor(shader, name.clone(), [("i", word("i").ty())], four, body);
        call(name, [at], four)
    }

    /// The same for an index that counts fours.
    pub fn load_four(&self, shader: &mut Shader, idx: usize, at: ShaderExpr) -> ShaderExpr {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.storages[idx].dtype());
        match (buffer.plain(VecAccess(true)), self.storages[idx].unit_bytes()) {
            (Some(memory), 4) if buffer.is_declared(true) => memory.at(at).reinterpreted(dtype.lane()),
            _ => self.load4(shader, idx, at * 4),
        }
    }

    /// The words of a vector of 16 bytes, for an index that counts those.
    pub fn load_vector(&self, shader: &mut Shader, idx: usize, at: ShaderExpr) -> ShaderExpr {
        let buffer = &self.buffers[self.buffer_of[idx]];
        // Bytes of an element are 1 only where nothing is read in vectors.
        let (per_vector, four) = (16 / buffer.size, ShaderType::four(Lane::U32));
        if let Some(memory) =
            buffer.plain(VecAccess(true)).filter(|memory| memory.is_four() && buffer.is_declared(true))
        {
            return memory.at(at).reinterpreted(Lane::U32);
        }
        let at = at * per_vector;
        let mut read = |wide: bool, n: usize| buffer.read_word(shader, VecAccess(wide), &at.plus(n));
        match (buffer.is_declared(true), buffer.size) {
            (true, 2) => {
                let [low, high] = [read(true, 0), read(true, 4)];
                four.make([low, high])
            }
            (true, _) => read(true, 0).reinterpreted(Lane::U32),
            (false, size) => four.make([0, 1, 2, 3].map(|k| read(false, k * 4 / size).reinterpreted(Lane::U32))),
        }
    }

    /// Eight half floats that lie side by side in a vector of words: two fours.
    pub fn eight_of(&self, shader: &mut Shader, idx: usize, words: &ShaderExpr) -> [ShaderExpr; 2] {
        let dtype = self.storages[idx].dtype();
        let (w, four) = (named("w", ShaderType::Vec(2, Lane::U32)), ShaderType::four(dtype.lane()));
        let name = format!("four_{dtype}");
        let parts = [0, 1, 2, 3].map(|k| unpack(dtype, part(&w, 2, k)));
        accessor(shader, name.clone(), [("w", w.ty())], four, returned(four.make(parts)));
        [0, 1].map(|half| call(name.clone(), [w.ty().make([2 * half, 2 * half + 1].map(|k| words.component(k)))], four))
    }

    /// Writes an element.
    pub fn store(&self, shader: &mut Shader, idx: usize, at: impl Into<ShaderExpr>, value: impl Into<ShaderExpr>) {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.storages[idx].dtype());
        let value = value.into();
        if let (Some(memory), 4) = (buffer.plain(VecAccess(false)), dtype.size()) {
            return shader.assign(&memory.at(at), value.reinterpreted(buffer.word));
        }
        let (i, x) = (word("i"), named("x", ShaderType::One(dtype.lane())));
        let write = match 4 / dtype.size() {
            1 => {
                let value = x.reinterpreted(buffer.word);
                buffer.write_word(shader, VecAccess(false), &i, &|place| vec![assigned(place, &value)])
            }
            per_word => {
                // Neighbours in the same word are left alone: they are another invocation's.
                let shift = word("shift");
                let write = |place: ShaderExpr| {
                    let atomic = |name: &str, bits: ShaderExpr| {
                        Statement::Do(call(name, [place.clone().pointer(), bits], ShaderType::Nothing))
                    };
                    let others = (mask(dtype) << &shift).inverted();
                    vec![atomic("atomicAnd", others), atomic("atomicOr", pack(dtype, x.clone()) << &shift)]
                };
                let by = (&i & (per_word - 1)) * (32 / per_word);
                let mut block = vec![Statement::Let("shift".to_string(), by)];
                block.extend(buffer.write_word(shader, VecAccess(false), &i, &write));
                block
            }
        };
        let name = format!("store_{}_{dtype}", buffer.name);
        accessor(shader, name.clone(), [("i", i.ty()), ("x", x.ty())], ShaderType::Nothing, write);
        shader.add(Statement::Do(call(name, [at.into(), value], ShaderType::Nothing)));
    }

    /// Writes four elements to an index that counts fours.
    pub fn store_four(&self, shader: &mut Shader, idx: usize, at: &ShaderExpr, value: ShaderExpr) {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.storages[idx].dtype());
        match (buffer.plain(VecAccess(true)), dtype.size()) {
            (Some(memory), 4) if buffer.is_declared(true) => {
                shader.assign(&memory.at(at), value.reinterpreted(buffer.word));
            }
            _ => self.store4(shader, idx, at * 4, value),
        }
    }

    /// Writes four elements from a multiple of four on.
    pub fn store4(&self, shader: &mut Shader, idx: usize, at: impl Into<ShaderExpr>, value: ShaderExpr) {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.storages[idx].dtype());
        let at = at.into();
        if !buffer.is_declared(true) && (buffer.size > 1 || buffer.atomic) {
            return (0..4).for_each(|k| self.store(shader, idx, at.plus(k), value.component(k)));
        }
        if let (Some(memory), 4) = (buffer.plain(VecAccess(true)), dtype.size()) {
            return shader.assign(&memory.at(at >> 2), value.reinterpreted(buffer.word));
        }
        let x = named("x", ShaderType::four(dtype.lane()));
        let each = |k: usize| pack(dtype, x.component(k));
        let packed = match dtype.size() {
            4 => x.reinterpreted(buffer.word),
            2 => ShaderType::Vec(2, Lane::U32).make([each(0) | (each(1) << 16), each(2) | (each(3) << 16)]),
            _ => each(0) | (each(1) << 8) | (each(2) << 16) | (each(3) << 24),
        };
        let write = buffer.write_word(shader, VecAccess(true), &word("i"), &|place| vec![assigned(place, &packed)]);
        let name = format!("store4_{}_{dtype}", buffer.name);
        accessor(shader, name.clone(), [("i", word("i").ty()), ("x", x.ty())], ShaderType::Nothing, write);
        shader.add(Statement::Do(call(name, [at, value], ShaderType::Nothing)));
    }
}

/// Adds a function through which packed elements, or windows, are reached.
pub(super) fn accessor<const N: usize>(
    shader: &mut Shader,
    name: String,
    arguments: [(&str, ShaderType); N],
    gives: ShaderType,
    body: Statements,
) {
    shader.functions(convert::FUNCTIONS);
    let arguments = arguments.map(|(name, ty)| (name.to_string(), ty)).to_vec();
    shader.function(ShaderFn { name, arguments, gives, body });
}

pub(super) fn returned(value: ShaderExpr) -> Statements {
    vec![Statement::Return(Some(value))]
}

fn assigned(place: ShaderExpr, value: &ShaderExpr) -> Statement {
    Statement::Assign(place, "=", value.clone())
}

/// The bits that a packed element has.
fn mask(dtype: DType) -> ShaderExpr {
    literal(if dtype.size() == 1 { "0xffu" } else { "0xffffu" }, Lane::U32)
}

/// The bits of one of four packed elements, in a word of bytes or two words of half floats.
fn part(words: &ShaderExpr, size: usize, k: usize) -> ShaderExpr {
    match (size, k) {
        (2, _) if k.is_multiple_of(2) => words.component(k / 2) & literal("0xffffu", Lane::U32),
        (2, _) => words.component(k / 2) >> 16,
        (_, 0) => words & literal("0xffu", Lane::U32),
        (_, 3) => words >> 24,
        _ => (words >> (8 * k)) & literal("0xffu", Lane::U32),
    }
}

/// Four elements at a time rather than one word.
#[derive(Clone, Copy)]
pub(super) struct VecAccess(pub bool);

impl SlotMemory {
    fn n_windows(&self) -> usize {
        self.bound_windows().count()
    }

    fn bound_windows(&self) -> impl Iterator<Item = usize> + '_ {
        let is_touched = |window: &usize| {
            self.touched.iter().flat_map(|(_, ranges)| ranges).any(|range| (range.0..=range.1).contains(window))
        };
        (self.windows.0..=self.windows.1).filter(is_touched)
    }

    fn is_declared(&self, wide: bool) -> bool {
        // Four bytes are one word either way.
        match (self.size, wide) {
            (1, wide) => !wide,
            (_, true) => self.wide || self.eight,
            (_, false) => self.narrow || !(self.wide || self.eight),
        }
    }

    fn declared(&self, wide: VecAccess) -> VecAccess {
        VecAccess(wide.0 && self.size > 1)
    }

    /// What an element is read and written as.
    fn element(&self, wide: bool) -> ShaderType {
        match (self.size, wide) {
            (_, false) => ShaderType::One(self.word),
            (2, true) if !self.eight => ShaderType::Vec(2, Lane::U32),
            (_, true) => ShaderType::four(self.word),
        }
    }

    fn window_name(&self, wide: bool, window: usize) -> String {
        // Where it is bound twice, the narrow one is for what is left over.
        let both = if !wide && self.wide && self.size > 1 { "_each" } else { "" };
        match self.n_windows() {
            1 => format!("{}{both}", self.name),
            _ => {
                let idx = self.bound_windows().position(|w| w == window).unwrap_or(0);
                format!("{}{both}_{idx}", self.name)
            }
        }
    }

    fn window(&self, wide: bool, window: usize) -> ShaderExpr {
        named(self.window_name(wide, window), self.element(wide))
    }

    /// All of it, if its one window starts where it does, so that it can be indexed as it is.
    fn plain(&self, wide: VecAccess) -> Option<ShaderExpr> {
        (self.windows == (0, 0) && self.size_bytes <= self.window_bytes && !self.atomic).then(|| self.window(wide.0, 0))
    }

    /// Words (or vectors) in a window.
    fn per_window(&self, wide: VecAccess) -> usize {
        let per = match (self.size, wide.0) {
            (_, false) => 4,
            (2, true) => 8,
            (_, true) => 16,
        };
        self.window_bytes / per
    }

    /// The word (or vector) that holds the element at an index.
    pub fn read_word(&self, shader: &mut Shader, wide: VecAccess, at: &ShaderExpr) -> ShaderExpr {
        let declared = self.declared(wide).0;
        let read = |place: ShaderExpr| match self.atomic && !declared {
            true => call("atomicLoad", [place.pointer()], ShaderType::One(Lane::U32)),
            false => place,
        };
        if self.n_windows() == 1 {
            return read(self.window(declared, self.windows.0).at(self.word_at(shader, wide, at)));
        }
        let name = format!("word{}_{}", if declared { "4" } else { "" }, self.name);
        let gives = if self.atomic { ShaderType::One(Lane::U32) } else { self.element(declared) };
        let body = self.cases(shader, wide, &word("i"), &|place| returned(read(place)));
        let arguments = vec![("i".to_string(), word("i").ty())];
        shader.function(ShaderFn { name: name.clone(), arguments, gives, body });
        call(name, [at.clone()], gives)
    }

    /// What does `write` to the word (or vector) that holds the element at an index.
    fn write_word(
        &self,
        shader: &mut Shader,
        wide: VecAccess,
        at: &ShaderExpr,
        write: &dyn Fn(ShaderExpr) -> Statements,
    ) -> Statements {
        if self.n_windows() == 1 {
            let window = self.window(self.declared(wide).0, self.windows.0);
            return write(window.at(self.word_at(shader, wide, at)));
        }
        self.cases(shader, wide, at, write)
    }

    /// Which word (or vector) it is, counted from the first window that is bound. Indices of elements are 32 bits and
    /// wrap; what lies between windows that are bound together does not.
    fn word_at(&self, shader: &mut Shader, wide: VecAccess, at: &ShaderExpr) -> ShaderExpr {
        let per_word: usize = if wide.0 { 4 } else { 4 / self.size };
        let at = match self.windows == (0, 0) && self.size_bytes <= self.window_bytes {
            true => at.clone(),
            false => {
                let first = self.windows.0 * self.window_bytes / self.size;
                at - shader.param(&format!("{}_first", self.name), first)
            }
        };
        if per_word == 1 { at } else { at >> per_word.ilog2() as usize }
    }

    /// A choice of windows by the index of the element.
    fn cases(
        &self,
        shader: &mut Shader,
        wide: VecAccess,
        at: &ShaderExpr,
        act: &dyn Fn(ShaderExpr) -> Statements,
    ) -> Statements {
        let word_at = self.word_at(shader, wide, at);
        let wide = self.declared(wide);
        let per_window = self.per_window(wide);
        let bound: Vec<usize> = self.bound_windows().collect();
        let last = bound.len() - 1;
        let (at, window) = (word("at"), word("window"));
        let mut block =
            vec![Statement::Let("at".to_string(), word_at), Statement::Let("window".to_string(), &at / per_window)];
        let act = |idx: usize, at: ShaderExpr| act(self.window(wide.0, bound[idx]).at(at));
        if bound[last] - bound[0] == last {
            let cases = (0..=last).map(|idx| act(idx, &at - idx * per_window)).collect();
            block.push(Statement::Switch(window, cases));
            return block;
        }
        // How far apart they are is a number, not text.
        block.push(Statement::Let("rest".to_string(), at - &window * per_window));
        let mut branch = |idx: usize| {
            let number =
                |shader: &mut Shader| shader.param(&format!("{}_window{idx}", self.name), bound[idx] - bound[0]);
            let condition = (idx < last).then(|| window.equals(number(shader)));
            (condition, act(idx, word("rest")))
        };
        block.push(Statement::If((0..=last).map(&mut branch).collect()));
        block
    }
}

fn declare(binding: usize, access: &str, name: &str, element: &str) -> String {
    format!("@group(0) @binding({binding}) var<storage, {access}> {name}: array<{element}>;")
}
