//! The memory of a launch as a shader sees it: which bindings there are, and how an element, or four at once, is read
//! and written through them. Packed elements, windows and in-place memory are hidden behind functions named after the
//! buffer. Knows dtypes and bytes; nothing of index maps or instructions.

use super::convert::{self, lane_name, pack, unpack};
use super::shader::{Bindings, Shader};
use super::{Bind, PassMemory};
use crate::dtype::DType;
use crate::target::GpuTarget;

/// How a kernel uses a piece of memory.
#[derive(Clone, Debug)]
pub struct Use {
    pub place: PassMemory,
    /// What it is called if it is the first use of its memory.
    pub name: String,
    pub dtype: DType,
    /// Whether it is read or written one element at a time, and four at a time from a multiple of four on.
    pub by_one: bool,
    pub by_four: bool,
    pub writes: bool,
    /// The bytes there are, and the first and last that are touched.
    pub size_bytes: usize,
    pub touched: (usize, usize),
}

/// All memory of a launch.
pub struct LaunchMemory {
    buffers: Vec<SlotMemory>,
    /// Per use, its buffer.
    buffer_of: Vec<usize>,
    dtypes: Vec<DType>,
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
struct SlotMemory {
    place: PassMemory,
    name: String,
    size: usize,
    /// What an element of 32 bits is declared as; u32 if uses differ.
    word: &'static str,
    /// Declared as words, as vectors of four elements, or both (then it is bound twice, to be read).
    narrow: bool,
    wide: bool,
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
            dtypes: uses.iter().map(|u| u.dtype).collect(),
            status,
        };
        for one in uses {
            memory.add(one, target);
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
        if !one.by_one && !one.by_four {
            // Not used after all: bound to nothing, and never asked for.
            self.buffer_of.push(usize::MAX);
            return;
        }
        let word = if one.dtype.size() == 4 { lane_name(one.dtype.lane()) } else { "u32" };
        let windows = (one.touched.0 / target.max_binding_bytes, one.touched.1 / target.max_binding_bytes);
        let at = self.buffers.iter().position(|b| b.place == one.place);
        let at = at.unwrap_or_else(|| {
            self.buffers.push(SlotMemory {
                place: one.place,
                name: one.name.clone(),
                size: one.dtype.size(),
                word,
                narrow: false,
                wide: false,
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
        buffer.word = if buffer.word == word { word } else { "u32" };
        buffer.narrow |= one.by_one;
        buffer.wide |= one.by_four;
        buffer.writes |= one.writes;
        // Neighbours in one word may be written by different invocations.
        buffer.atomic |= one.writes && one.by_one && one.dtype.size() < 4;
        buffer.touched.push((self.buffer_of.len() - 1, vec![windows]));
        buffer.windows = (buffer.windows.0.min(windows.0), buffer.windows.1.max(windows.1));
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
                    let (name, element) = (buffer.window_name(wide, window), buffer.element(wide));
                    lines.push(declare(binds.len(), access, &name, &element));
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

    /// An element: the lane at the index that `at` computes.
    pub fn load(&self, shader: &mut Shader, idx: usize, at: &str) -> String {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        let lane = lane_name(dtype.lane());
        if let (Some(name), 4) = (buffer.plain(VecAccess(false)), dtype.size()) {
            return reinterpret(buffer.word, lane, VecAccess(false), &format!("{name}[{at}]"));
        }
        let per_word = 4 / dtype.size();
        let read = buffer.read_word(shader, VecAccess(false), "i");
        let value = match per_word {
            1 => reinterpret(buffer.word, lane, VecAccess(false), &read),
            _ => {
                let (last, bits) = (per_word - 1, 32 / per_word);
                let mask = if bits == 8 { "0xffu" } else { "0xffffu" };
                unpack(dtype, &format!("({read} >> ((i & {last}u) * {bits}u)) & {mask}"))
            }
        };
        let name = format!("load_{}_{dtype}", buffer.name);
        shader.functions(convert::FUNCTIONS);
        shader.functions(&format!("fn {name}(i: u32) -> {lane} {{ return {value}; }}\n"));
        format!("{name}({at})")
    }

    /// Four elements from the index on that `at` computes, which is a multiple of four.
    pub fn load4(&self, shader: &mut Shader, idx: usize, at: &str) -> String {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        let lane = lane_name(dtype.lane());
        if !buffer.is_declared(true) && buffer.size > 1 {
            let each: Vec<String> = (0..4).map(|k| self.load(shader, idx, &plus(at, k))).collect();
            return format!("vec4<{lane}>({})", each.join(", "));
        }
        if let (Some(name), 4) = (buffer.plain(VecAccess(true)), dtype.size()) {
            return reinterpret(buffer.word, lane, VecAccess(true), &format!("{name}[{} >> 2u]", grouped(at)));
        }
        let read = buffer.read_word(shader, VecAccess(true), "i");
        let value = match dtype.size() {
            4 => format!("return {};", reinterpret(buffer.word, lane, VecAccess(true), &read)),
            2 => {
                let half = |part: &str| unpack(dtype, part);
                let each = [half("w.x & 0xffffu"), half("w.x >> 16u"), half("w.y & 0xffffu"), half("w.y >> 16u")];
                format!("let w = {read};\n    return vec4<f32>({});", each.join(", "))
            }
            _ => format!(
                "let w = {read};\n    return vec4<u32>(w & 0xffu, (w >> 8u) & 0xffu, (w >> 16u) & 0xffu, w >> 24u);"
            ),
        };
        let name = format!("load4_{}_{dtype}", buffer.name);
        shader.functions(convert::FUNCTIONS);
        shader.functions(&format!("fn {name}(i: u32) -> vec4<{lane}> {{\n    {value}\n}}\n"));
        format!("{name}({at})")
    }

    /// The same for an index that counts fours.
    pub fn load_four(&self, shader: &mut Shader, idx: usize, at: &str) -> String {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        match (buffer.plain(VecAccess(true)), dtype.size()) {
            (Some(name), 4) if buffer.is_declared(true) => {
                reinterpret(buffer.word, lane_name(dtype.lane()), VecAccess(true), &format!("{name}[{at}]"))
            }
            _ => self.load4(shader, idx, &format!("({at}) * 4u")),
        }
    }

    /// The statement that writes an element.
    pub fn store(&self, shader: &mut Shader, idx: usize, at: &str, value: &str) -> String {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        let lane = lane_name(dtype.lane());
        if let (Some(name), 4) = (buffer.plain(VecAccess(false)), dtype.size()) {
            return format!("{name}[{at}] = {};", reinterpret(lane, buffer.word, VecAccess(false), value));
        }
        let write = match 4 / dtype.size() {
            1 => {
                let value = reinterpret(lane, buffer.word, VecAccess(false), "x");
                buffer.write_word(shader, VecAccess(false), "i", &|word| format!("{word} = {value};"))
            }
            per_word => {
                let (last, bits) = (per_word - 1, 32 / per_word);
                let mask = if bits == 8 { "0xffu" } else { "0xffffu" };
                // Neighbours in the same word are left alone: they are another invocation's.
                let write = |word: &str| {
                    format!("atomicAnd(&{word}, ~({mask} << shift)); atomicOr(&{word}, {} << shift);", pack(dtype, "x"))
                };
                let write = buffer.write_word(shader, VecAccess(false), "i", &write);
                format!("let shift = (i & {last}u) * {bits}u;\n    {write}")
            }
        };
        let name = format!("store_{}_{dtype}", buffer.name);
        shader.functions(convert::FUNCTIONS);
        shader.functions(&format!("fn {name}(i: u32, x: {lane}) {{\n    {write}\n}}\n"));
        format!("{name}({at}, {value});")
    }

    /// The statements that write four elements to an index that counts fours.
    pub fn store_four(&self, shader: &mut Shader, idx: usize, at: &str, value: &str) -> Vec<String> {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        match (buffer.plain(VecAccess(true)), dtype.size()) {
            (Some(name), 4) if buffer.is_declared(true) => {
                let value = reinterpret(lane_name(dtype.lane()), buffer.word, VecAccess(true), value);
                vec![format!("{name}[{at}] = {value};")]
            }
            _ => self.store4(shader, idx, &format!("({at}) * 4u"), value),
        }
    }

    /// The statements that write four elements from a multiple of four on.
    pub fn store4(&self, shader: &mut Shader, idx: usize, at: &str, value: &str) -> Vec<String> {
        let (buffer, dtype) = (&self.buffers[self.buffer_of[idx]], self.dtypes[idx]);
        let lane = lane_name(dtype.lane());
        if !buffer.is_declared(true) && (buffer.size > 1 || buffer.atomic) {
            let each = |k: usize| self.store(shader, idx, &plus(at, k), &format!("{value}{}", LANES[k]));
            return (0..4).map(each).collect();
        }
        if let (Some(name), 4) = (buffer.plain(VecAccess(true)), dtype.size()) {
            return vec![format!(
                "{name}[{} >> 2u] = {};",
                grouped(at),
                reinterpret(lane, buffer.word, VecAccess(true), value)
            )];
        }
        let each = LANES.map(|k| pack(dtype, &format!("x{k}")));
        let packed = match dtype.size() {
            4 => reinterpret(lane, buffer.word, VecAccess(true), "x"),
            2 => format!("vec2<u32>({} | ({} << 16u), {} | ({} << 16u))", each[0], each[1], each[2], each[3]),
            _ => format!("{} | ({} << 8u) | ({} << 16u) | ({} << 24u)", each[0], each[1], each[2], each[3]),
        };
        let write = buffer.write_word(shader, VecAccess(true), "i", &|word| format!("{word} = {packed};"));
        let name = format!("store4_{}_{dtype}", buffer.name);
        shader.functions(convert::FUNCTIONS);
        shader.functions(&format!("fn {name}(i: u32, x: vec4<{lane}>) {{\n    {write}\n}}\n"));
        vec![format!("{name}({at}, {value});")]
    }
}

/// The components of a vector of four.
pub const LANES: [&str; 4] = [".x", ".y", ".z", ".w"];

/// Four elements at a time rather than one word.
#[derive(Clone, Copy)]
struct VecAccess(bool);

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
            (_, true) => self.wide,
            (_, false) => self.narrow || !self.wide,
        }
    }

    fn declared(&self, wide: VecAccess) -> VecAccess {
        VecAccess(wide.0 && self.size > 1)
    }

    fn element(&self, wide: bool) -> String {
        match (self.size, wide) {
            (_, false) if self.atomic => "atomic<u32>".to_string(),
            (_, false) => self.word.to_string(),
            (2, true) => "vec2<u32>".to_string(),
            (_, true) => format!("vec4<{}>", self.word),
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

    /// Its name, if its one window starts where it does, so that it can be indexed as it is.
    fn plain(&self, wide: VecAccess) -> Option<String> {
        (self.windows == (0, 0) && self.size_bytes <= self.window_bytes && !self.atomic)
            .then(|| self.window_name(wide.0, 0))
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

    /// An expression for the word (or vector) that holds the element at an index.
    fn read_word(&self, shader: &mut Shader, wide: VecAccess, at: &str) -> String {
        let declared = self.declared(wide);
        let read = |name: &str, at: &str| match (self.atomic, declared.0) {
            (true, false) => format!("atomicLoad(&{name}[{at}])"),
            _ => format!("{name}[{at}]"),
        };
        if self.n_windows() == 1 {
            return read(&self.window_name(declared.0, self.windows.0), &self.word_at(shader, wide, at));
        }
        let element = self.element(declared.0);
        let element = if self.atomic { "u32" } else { &element };
        let function = format!("word{}_{}", if declared.0 { "4" } else { "" }, self.name);
        let cases = self.cases(shader, wide, "i", &|name, at| format!("return {};", read(name, at)));
        shader.functions(&format!("fn {function}(i: u32) -> {element} {{\n{cases}}}\n"));
        format!("{function}({at})")
    }

    /// Statements that do `write` to the word (or vector) that holds the element at an index.
    fn write_word(&self, shader: &mut Shader, wide: VecAccess, at: &str, write: &dyn Fn(&str) -> String) -> String {
        if self.n_windows() == 1 {
            let name = self.window_name(self.declared(wide).0, self.windows.0);
            return write(&format!("{name}[{}]", self.word_at(shader, wide, at)));
        }
        let cases = self.cases(shader, wide, at, &|name, at| write(&format!("{name}[{at}]")));
        cases.trim().to_string()
    }

    /// Which word (or vector) it is, counted from the first window that is bound. Indices of elements are 32 bits and
    /// wrap; what lies between windows that are bound together does not.
    fn word_at(&self, shader: &mut Shader, wide: VecAccess, at: &str) -> String {
        let per_word = if wide.0 { 4 } else { 4 / self.size };
        if self.windows == (0, 0) && self.size_bytes <= self.window_bytes {
            return shifted(at, per_word);
        }
        let first = shader.param(&format!("{}_first", self.name), self.windows.0 * self.window_bytes / self.size);
        shifted(&format!("({at} - {first})"), per_word)
    }

    /// A choice of windows by the index of the element.
    fn cases(&self, shader: &mut Shader, wide: VecAccess, at: &str, act: &dyn Fn(&str, &str) -> String) -> String {
        let word_at = self.word_at(shader, wide, at);
        let wide = self.declared(wide);
        let per_window = self.per_window(wide);
        let bound: Vec<usize> = self.bound_windows().collect();
        let last = bound.len() - 1;
        let mut text = format!("    let at = {word_at};\n    let window = at / {per_window}u;\n");
        if bound[last] - bound[0] == last {
            text.push_str("    switch (window) {\n");
            for (idx, window) in bound.iter().enumerate() {
                let case = if idx == last { "default".to_string() } else { format!("case {idx}u") };
                let act = act(&self.window_name(wide.0, *window), &format!("at - {}u", idx * per_window));
                text.push_str(&format!("        {case}: {{ {act} }}\n"));
            }
            text.push_str("    }\n");
            return text;
        }
        // How far apart they are is a number, not text.
        text.push_str(&format!("    let rest = at - window * {per_window}u;\n    "));
        for (idx, window) in bound.iter().enumerate() {
            let act = act(&self.window_name(wide.0, *window), "rest");
            if idx < last {
                let number = shader.param(&format!("{}_window{idx}", self.name), window - bound[0]);
                text.push_str(&format!("if (window == {number}) {{ {act} }} else "));
            } else {
                text.push_str(&format!("{{ {act} }}\n"));
            }
        }
        text
    }
}

fn declare(binding: usize, access: &str, name: &str, element: &str) -> String {
    format!("@group(0) @binding({binding}) var<storage, {access}> {name}: array<{element}>;")
}

/// A value of one 32-bit type as another.
fn reinterpret(from: &str, to: &str, wide: VecAccess, value: &str) -> String {
    match (from == to, wide.0) {
        (true, _) => value.to_string(),
        (false, false) => format!("bitcast<{to}>({value})"),
        (false, true) => format!("bitcast<vec4<{to}>>({value})"),
    }
}

/// The index of the word that holds an element.
fn shifted(at: &str, per_word: usize) -> String {
    match per_word {
        1 => at.to_string(),
        _ => format!("{at} >> {}u", per_word.ilog2()),
    }
}

/// An expression that an operator may follow.
fn grouped(text: &str) -> String {
    if text.contains(' ') { format!("({text})") } else { text.to_string() }
}

/// An index and a number.
pub fn plus(at: &str, k: usize) -> String {
    if k == 0 { at.to_string() } else { format!("{at} + {k}u") }
}
