//! How the memory of a dispatch is bound and declared: which pieces there are, which windows of each, and whether its elements are
//! read one by one, in fours, both (then it is bound twice) or in vectors of eight. Decided here, as plain data, from how a kernel uses
//! it and what the device binds; [`memory`](super::memory) prints what this says.

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

/// All memory of a dispatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchMemory {
    pub(super) buffers: Vec<SlotMemory>,
    /// Per use, its buffer.
    pub(super) buffer_of: Vec<usize>,
    pub(super) storages: Vec<Storage>,
    pub(super) status: StatusUse,
}

/// What a kernel does with the words of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusUse {
    #[default]
    None,
    /// Notes checks that fail.
    Notes,
    /// Asks whether one has failed before.
    Asks,
}

/// As what a piece of memory is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// Single elements, or the words that hold them.
    Ones,
    /// Vectors of four elements.
    Fours,
    /// Both: it is bound twice, to be read.
    OnesAndFours,
    /// Vectors of eight half floats.
    Eights,
}

/// One piece of memory: a slot, whoever uses it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlotMemory {
    pub place: PassMemory,
    pub name: String,
    /// Bytes of an element; blocks are read as words.
    pub size: usize,
    /// What an element of 32 bits is declared as; u32 if uses differ.
    pub word: Lane,
    /// Whether some use takes elements one by one, in fours, and in vectors of eight.
    wanted: WantedForms,
    pub declared: Declared,
    pub atomic: bool,
    pub writes: bool,
    pub size_bytes: usize,
    pub window_bytes: usize,
    /// The windows that each use touches, first and last of each way in which it does, and of all.
    touched: Vec<(usize, Vec<(usize, usize)>)>,
    pub windows: (usize, usize),
}

/// In which forms the uses of a piece of memory take its elements.
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
        // Elements of blocks are found in words, a vector of words is one of any other memory.
        buffer.wanted.ones |= one.by_one || (one.by_four && in_blocks);
        buffer.wanted.fours |= if in_blocks { one.by_vector } else { one.by_four };
        buffer.wanted.eights |= one.by_vector && !in_blocks;
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
        self.buffers.iter().map(SlotMemory::n_bindings).sum::<usize>() + self.status.n_bindings()
    }

    /// By how many elements memory that is bound together is more than indices can tell apart.
    pub fn n_too_far(&self) -> usize {
        let n_elems = |b: &SlotMemory| (b.windows.1 - b.windows.0 + 1) * (b.window_bytes / b.size);
        self.buffers.iter().map(|b| n_elems(b).saturating_sub(1 << 32)).sum()
    }
}

impl SlotMemory {
    /// As what it is declared while so many more bindings may be taken.
    fn declared_within(&self, n_free: usize) -> Declared {
        let WantedForms { ones, fours, eights } = self.wanted;
        // Vectors of eight are read only where nobody wants anything else.
        if eights && !ones && !fours && self.size_bytes <= self.window_bytes {
            return Declared::Eights;
        }
        match (ones, fours || eights) {
            (_, false) => Declared::Ones,
            (false, true) => Declared::Fours,
            // It is bound twice while there is room, else read one element at a time. Four bytes are one word either way.
            (true, true) if !self.writes && self.n_windows() <= n_free && self.size > 1 => Declared::OnesAndFours,
            (true, true) => Declared::Ones,
        }
    }

    /// Whether it is declared as vectors, or as single elements.
    pub fn is_declared(&self, wide: bool) -> bool {
        // Four bytes are one word either way.
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

/// The memory of which there was something to decide: that some use takes in eights, or some one by one and others in fours.
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

    /// How memory of 1 MiB of half floats is bound where so many bindings are left, by the ways in which uses take elements: one by
    /// one, in fours, in vectors of eight.
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
        // What is written is bound once.
        check(&[ONES, FOURS], true, (8, 1 << 20), "in0 one by one");
    }

    #[test]
    fn vectors_of_eight_are_read_where_nobody_wants_anything_else_from_one_window() {
        check(&[EIGHTS, FOURS], false, (8, 1 << 20), "in0 in fours");
        check(&[EIGHTS], false, (8, 1 << 19), "in0 in fours");
    }
}
