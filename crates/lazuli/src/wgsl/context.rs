//! A launch on its way to a shader: its memory, by the windows that it touches. What does not fit into one dispatch was cut
//! before: a launch is printed as it is. Knows slots and bindings; writes no text.

use super::PassMemory;
use super::eval::reached;
use super::index::Accesses;
use super::keep;
use super::launch_memory::{LaunchMemory, StatusUse, Use};
use super::schedule::VecLoad;
use crate::blocks::Storage;
use crate::kernel::{AccessForm, Args, Body, InstOp};
use crate::plan::{Launch, Slot, SlotId};
use crate::target::GpuTarget;

/// A launch with what it runs on.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub launch: &'a Launch,
    pub body: &'a Body,
    pub slots: &'a [Slot],
    pub target: &'a GpuTarget,
}

impl<'a> Context<'a> {
    /// Of a loop or a matmul.
    pub fn new(launch: &'a Launch, body: &'a Body, slots: &'a [Slot], target: &'a GpuTarget) -> Context<'a> {
        Context { launch, body, slots, target }
    }

    /// The name that profilers show.
    pub fn label(&self) -> String {
        self.launch.kernel.name(&self.launch.ops)
    }

    /// What the kernel computes, free of sizes; nothing if that is long.
    pub fn comment(&self) -> String {
        let text = self.body.stores_text();
        if text.len() > 240 { String::new() } else { text }
    }

    /// Per register, whether its value is kept from being folded with others.
    pub fn kept(&self) -> Vec<bool> {
        keep::kept(self.body, self.target)
    }

    /// The memory of a part of the launch whose accesses go by these modes, and by these ones too.
    pub fn memory(&self, args: &Args, modes: &[&[VecLoad]]) -> LaunchMemory {
        let mut memory = self.memory_of(self.uses(args, modes));
        for (idx, ranges) in self.launch.kernel.touched(args).iter().enumerate().filter(|(_, ranges)| ranges.len() > 1)
        {
            let ranges: Vec<(usize, usize)> = ranges.iter().map(|range| self.bytes(idx, *range)).collect();
            memory.leave_out_all_but(idx, &ranges);
        }
        memory
    }

    /// The memory of these uses: the kernel's own first.
    pub fn memory_of(&self, uses: Vec<Use>) -> LaunchMemory {
        let checks = self.body.insts.iter().any(|i| matches!(i.op, InstOp::Gather { .. }));
        let status = match (checks, self.body.commits()) {
            (true, _) => StatusUse::Notes,
            (false, true) => StatusUse::Asks,
            (false, false) => StatusUse::None,
        };
        LaunchMemory::new(&uses, status, self.target)
    }

    /// How inputs, then outputs, are used by loads and stores that go by these modes.
    pub fn uses(&self, args: &Args, modes: &[&[VecLoad]]) -> Vec<Use> {
        let spans = self.spans(args).into_iter().enumerate();
        let mut uses: Vec<Use> = spans.map(|(idx, span)| self.one_use(idx, span)).collect();
        for modes in modes {
            let reached = reached(&Accesses { body: self.body, args, modes, kept: &[] });
            for (one, (by_one, by_four)) in uses.iter_mut().zip(reached) {
                one.by_one |= by_one;
                one.by_four |= by_four;
            }
        }
        uses
    }

    /// The slot of an input, or of an output counted after the inputs.
    fn slot(&self, idx: usize) -> SlotId {
        let n_inputs = self.launch.reads.len();
        if idx < n_inputs { self.launch.reads[idx] } else { self.launch.writes[idx - n_inputs] }
    }

    fn storage(&self, idx: usize) -> Storage {
        let n_inputs = self.launch.reads.len();
        if idx < n_inputs { self.body.inputs[idx] } else { self.body.outputs[idx - n_inputs].into() }
    }

    /// The bytes where the first and the last of these elements start, within the slot.
    fn bytes(&self, idx: usize, range: (usize, usize)) -> (usize, usize) {
        let last = self.slots[self.slot(idx).0 as usize].size_bytes.saturating_sub(1);
        let (low, high) = self.storage(idx).byte_range(range);
        (low.min(last), high.min(last))
    }

    fn one_use(&self, idx: usize, span: Option<(usize, usize)>) -> Use {
        let (n_inputs, slot) = (self.launch.reads.len(), self.slot(idx));
        let name = match self.launch.writes.iter().position(|w| *w == slot) {
            Some(output) => format!("out{output}"),
            None => format!("in{idx}"),
        };
        let storage = self.storage(idx);
        let size_bytes = self.slots[slot.0 as usize].size_bytes;
        let touched = span.map_or((0, 0), |span| self.bytes(idx, span));
        let (writes, place) = (idx >= n_inputs, PassMemory::Slot(slot));
        Use { place, name, storage, by_one: false, by_four: false, by_vector: false, writes, size_bytes, touched }
    }

    /// Per input and output, the first and last element that may be touched.
    fn spans(&self, args: &Args) -> Vec<Option<(usize, usize)>> {
        let widest = |ranges: &Vec<(usize, usize)>| {
            ranges.iter().copied().reduce(|all, range| (all.0.min(range.0), all.1.max(range.1)))
        };
        self.launch.kernel.touched(args).iter().map(widest).collect()
    }
}

/// Whether an access leads through several views or a mask.
pub fn is_chain(form: AccessForm) -> bool {
    matches!(form, AccessForm::Chain { .. })
}
