//! Decides how the memory of a dispatch is bound and declared: its pieces, the windows of each piece, and whether a shader reads the
//! elements of a piece one by one, in fours, in both ways (then the piece is bound twice) or in vectors of eight. The decision is plain
//! data, made from how a kernel uses memory and from the device's limits on bindings; [`memory`](super::memory) prints it.

use std::fmt;
use std::ops::Range;

use super::PassMemory;
use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::target::GpuTarget;

/// How a kernel uses a piece of memory.
#[derive(Clone, Debug)]
pub struct Use {
    pub place: PassMemory,
    /// The name of the binding, if no other use of the same piece comes before this one.
    pub name: String,
    pub storage: Storage,
    /// Whether the kernel reads or writes single elements, and fours that begin at a multiple of four.
    pub by_one: bool,
    pub by_four: bool,
    /// Whether the kernel reads vectors of 16 bytes as they lie in memory: eight half floats, or four words of blocks.
    pub by_vector: bool,
    pub writes: bool,
    /// The size in bytes, and the first and the last byte that the kernel touches.
    pub size_bytes: usize,
    pub touched: (usize, usize),
}

/// All memory of a dispatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchMemory {
    pub(super) buffers: Vec<SlotMemory>,
    /// For each use the index of its buffer in `buffers`; `usize::MAX` for memory that is not used.
    pub(super) buffer_of: Vec<usize>,
    pub(super) storages: Vec<Storage>,
    pub(super) status: StatusUse,
}

/// What a kernel does with the status word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusUse {
    #[default]
    None,
    /// Notes checks that fail.
    Notes,
    /// Asks whether one has failed before.
    Asks,
}

/// How a piece of memory is declared in the shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// Single elements, or the words that hold them.
    Ones,
    /// Vectors of four elements.
    Fours,
    /// Single elements and vectors of four: the memory is bound twice, both times to be read.
    OnesAndFours,
    /// Vectors of eight half floats.
    Eights,
}

/// One piece of memory, a slot or a piece of scratch memory, with all of its uses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlotMemory {
    pub place: PassMemory,
    pub name: String,
    /// Bytes of an element; blocks are read as words.
    pub size: usize,
    /// The type with which elements of 32 bits are declared; u32 if uses differ.
    pub word: Lane,
    /// The forms in which all uses together take elements.
    wanted: WantedForms,
    pub declared: Declared,
    pub atomic: bool,
    pub writes: bool,
    pub size_bytes: usize,
    pub window_bytes: usize,
    /// For each use, by index, the ranges of windows (first and last) that it touches; `windows` is the range over all uses.
    touched: Vec<(usize, Vec<(usize, usize)>)>,
    pub windows: (usize, usize),
}

/// The forms in which uses of a piece of memory take its elements: one by one, in fours, in vectors of eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WantedForms {
    ones: bool,
    fours: bool,
    eights: bool,
}

impl StatusUse {
    fn n_bindings(self) -> usize {
        (self != StatusUse::None) as usize
    }
}

impl LaunchMemory {
    /// The memory for these uses, and the status word if it is used.
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
        let mut n_bindings = memory.buffers.iter().map(SlotMemory::n_windows).sum::<usize>() + status.n_bindings();
        for buffer in &mut memory.buffers {
            let n_free = target.max_bindings.saturating_sub(n_bindings);
            buffer.declared = buffer.declared_within(n_free);
            n_bindings += buffer.n_bindings() - buffer.n_windows();
        }
        memory
    }

    fn add(&mut self, one: &Use, target: &GpuTarget) {
        if !one.by_one && !one.by_four && !one.by_vector {
            // The kernel does not touch this memory, which gets no binding.
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
                wanted: WantedForms::default(),
                declared: Declared::Ones,
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
        // Single elements and fours of blocks are decoded from single words; a vector of 16 bytes of blocks is four words.
        buffer.wanted.ones |= one.by_one || (one.by_four && in_blocks);
        buffer.wanted.fours |= if in_blocks { one.by_vector } else { one.by_four };
        buffer.wanted.eights |= one.by_vector && !in_blocks;
        buffer.writes |= one.writes;
        // Different invocations may write neighbouring elements in one word.
        buffer.atomic |= one.writes && one.by_one && size < 4;
        buffer.touched.push((self.buffer_of.len() - 1, vec![windows]));
        buffer.windows = (buffer.windows.0.min(windows.0), buffer.windows.1.max(windows.1));
    }

    /// The memory of one part of a launch, whose uses are those of this range.
    pub fn part(&self, uses: Range<usize>) -> LaunchMemory {
        LaunchMemory {
            buffers: self.buffers.clone(),
            buffer_of: self.buffer_of[uses.clone()].to_vec(),
            storages: self.storages[uses].to_vec(),
            status: self.status,
        }
    }

    /// Narrows the windows that a use touches to those of these ranges of bytes; windows that no use touches are not bound.
    pub fn leave_out_all_but(&mut self, idx: usize, ranges: &[(usize, usize)]) {
        let Some(buffer) = self.buffers.get_mut(self.buffer_of[idx]) else { return };
        let per = buffer.window_bytes;
        let windows = || ranges.iter().map(|(low, high)| (low / per, high / per)).collect();
        buffer.touched.iter_mut().filter(|(one, _)| *one == idx).for_each(|(_, touched)| *touched = windows());
    }

    /// Bindings that the memory takes, with that of the status word.
    pub fn n_bindings(&self) -> usize {
        self.buffers.iter().map(SlotMemory::n_bindings).sum::<usize>() + self.status.n_bindings()
    }

    /// By how many elements the bound memory exceeds the 2³² that indices can address.
    pub fn n_too_far(&self) -> usize {
        let n_elems = |b: &SlotMemory| (b.windows.1 - b.windows.0 + 1) * (b.window_bytes / b.size);
        self.buffers.iter().map(|b| n_elems(b).saturating_sub(1 << 32)).sum()
    }
}

impl SlotMemory {
    /// How the memory is declared if `n_free` more bindings may be taken.
    fn declared_within(&self, n_free: usize) -> Declared {
        let WantedForms { ones, fours, eights } = self.wanted;
        // Vectors of eight are declared only if no use takes elements in another form.
        if eights && !ones && !fours && self.size_bytes <= self.window_bytes {
            return Declared::Eights;
        }
        match (ones, fours || eights) {
            (_, false) => Declared::Ones,
            (false, true) => Declared::Fours,
            // Memory is bound twice while bindings are left, else read one element at a time. Four elements of one byte are a single
            // word in both forms.
            (true, true) if !self.writes && self.n_windows() <= n_free && self.size > 1 => Declared::OnesAndFours,
            (true, true) => Declared::Ones,
        }
    }

    /// Whether the memory is declared as vectors (`wide`), or as single elements.
    pub fn is_declared(&self, wide: bool) -> bool {
        // Four elements of one byte are a single word in both forms.
        match (self.size, wide) {
            (1, wide) => !wide,
            (_, true) => self.declared != Declared::Ones,
            (_, false) => matches!(self.declared, Declared::Ones | Declared::OnesAndFours),
        }
    }

    fn n_bindings(&self) -> usize {
        self.n_windows() * if self.declared == Declared::OnesAndFours { 2 } else { 1 }
    }

    pub fn n_windows(&self) -> usize {
        self.bound_windows().count()
    }

    pub fn bound_windows(&self) -> impl Iterator<Item = usize> + '_ {
        let is_touched = |window: &usize| {
            self.touched.iter().flat_map(|(_, ranges)| ranges).any(|range| (range.0..=range.1).contains(window))
        };
        (self.windows.0..=self.windows.1).filter(is_touched)
    }
}

/// Shows the memory that could be declared in several ways: some use reads vectors of eight, or uses take both single elements and fours.
impl fmt::Display for LaunchMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mixed = |buffer: &&SlotMemory| {
            let WantedForms { ones, fours, eights } = buffer.wanted;
            buffer.size > 1 && (eights || ones && fours)
        };
        let told = self.buffers.iter().filter(is_mixed).map(|buffer| {
            let how = match buffer.declared {
                Declared::Ones => "one by one",
                Declared::Fours => "in fours",
                Declared::OnesAndFours => "bound twice",
                Declared::Eights => "in eights",
            };
            format!("{} {how}", buffer.name)
        });
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SlotId;
    use crate::wgsl::tests::target;

    /// Checks how 1 MiB of half floats is declared. Each use says whether it takes elements one by one, in fours, in vectors of eight.
    #[track_caller]
    fn check(uses: &[[bool; 3]], writes: bool, (max_bindings, max_binding_bytes): (usize, usize), expect: &str) {
        let target = GpuTarget { max_bindings, max_binding_bytes, ..target(crate::target::Threads::Cooperative) };
        let one = |[by_one, by_four, by_vector]: &[bool; 3]| Use {
            place: PassMemory::Slot(SlotId(0)),
            name: "in0".to_string(),
            storage: DType::F16.into(),
            by_one: *by_one,
            by_four: *by_four,
            by_vector: *by_vector,
            writes,
            size_bytes: 1 << 20,
            touched: (0, (1 << 20) - 1),
        };
        let memory = LaunchMemory::new(&uses.iter().map(one).collect::<Vec<_>>(), StatusUse::None, &target);
        assert_eq!(memory.to_string(), expect);
        let n_windows = (1usize << 20).div_ceil(max_binding_bytes);
        assert_eq!(memory.n_bindings(), n_windows * if expect.ends_with("twice") { 2 } else { 1 });
    }

    const ONES: [bool; 3] = [true, false, false];
    const FOURS: [bool; 3] = [false, true, false];
    const EIGHTS: [bool; 3] = [false, false, true];

    #[test]
    fn memory_of_one_use_is_declared_as_that_takes_it() {
        check(&[ONES], false, (8, 1 << 20), "");
        check(&[FOURS, FOURS], false, (8, 1 << 20), "");
        check(&[EIGHTS], false, (8, 1 << 20), "in0 in eights");
    }

    #[test]
    fn memory_that_is_read_both_ways_is_bound_twice_while_there_is_room() {
        check(&[ONES, FOURS], false, (2, 1 << 20), "in0 bound twice");
        check(&[ONES, EIGHTS], false, (2, 1 << 20), "in0 bound twice");
        check(&[ONES, FOURS], false, (4, 1 << 19), "in0 bound twice");
        check(&[ONES, FOURS], false, (1, 1 << 20), "in0 one by one");
        check(&[ONES, FOURS], false, (3, 1 << 19), "in0 one by one");
        // Memory that is written is bound once.
        check(&[ONES, FOURS], true, (8, 1 << 20), "in0 one by one");
    }

    #[test]
    fn vectors_of_eight_are_read_where_nobody_wants_anything_else_from_one_window() {
        check(&[EIGHTS, FOURS], false, (8, 1 << 20), "in0 in fours");
        check(&[EIGHTS], false, (8, 1 << 19), "in0 in fours");
    }
}
