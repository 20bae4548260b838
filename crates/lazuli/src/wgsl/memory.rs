//! The memory of a launch as a shader sees it: its bindings, and how an element, or four at once, is read
//! and written through them. Packed elements, windows and in-place memory are hidden behind functions named after the
//! buffer. Knows dtypes and bytes; nothing of index maps or instructions. How memory is bound and declared is decided in
//! [`launch_memory`](super::launch_memory).

use super::convert::{self, pack, unpack};
use super::launch_memory::{Declared, LaunchMemory, SlotMemory, StatusUse};
use super::shader::{Bindings, Shader};
use super::tree::{ShaderExpr, ShaderFn, ShaderType, Statement, Statements, call, literal, named, word};
use super::{Bind, PassMemory};
use crate::blocks::Storage;
use crate::dtype::{DType, Lane};

impl LaunchMemory {
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
    fn as_declared(&self, wide: VecAccess) -> VecAccess {
        VecAccess(wide.0 && self.size > 1)
    }

    /// What an element is read and written as.
    fn element(&self, wide: bool) -> ShaderType {
        match (self.size, wide) {
            (_, false) => ShaderType::One(self.word),
            (2, true) if self.declared != Declared::Eights => ShaderType::Vec(2, Lane::U32),
            (_, true) => ShaderType::four(self.word),
        }
    }

    fn window_name(&self, wide: bool, window: usize) -> String {
        // Where it is bound twice, the narrow one is for what is left over.
        let both = if !wide && self.declared == Declared::OnesAndFours { "_each" } else { "" };
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
        let declared = self.as_declared(wide).0;
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
            let window = self.window(self.as_declared(wide).0, self.windows.0);
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
        let wide = self.as_declared(wide);
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
