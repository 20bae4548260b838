//! Operands of products that are packed once and kept. A node does not change, so an operand that the same node has brought
//! a few times is packed on the next use, and products read the packed form from then on. The form hangs on the node, not
//! on its memory, which an update in place hands on with other numbers in it; it goes with the node. All forms of a device
//! together take a bounded part of memory, the longest unused first to go. Knows nodes and bytes; packing is the product's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::memory::{BlockPool, CpuBuffer};
use crate::backend::Counters;
use crate::graph::Node;
use crate::kernel::AxisList;

/// An operand is packed on its third use. A parameter that is trained is read by at most two products of one kind before it
/// is another node, so nothing is packed in vain.
const USES: u32 = 3;
/// The part of the machine's memory that packed forms may take.
const PART: usize = 8;

/// What of a node's memory is packed: rows and columns of a matrix, as lists of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedKey {
    pub k: usize,
    pub n: usize,
    pub rows: AxisList,
    pub cols: AxisList,
    pub offset: isize,
    pub layout: PackedLayout,
}

/// What an operand is packed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PackedLayout {
    /// Its values, in panels.
    Panels,
    /// Its windows of 3 × 3, transformed by Winograd's minimal filtering.
    Winograd,
    /// Its bytes in panels of quads, for integer products.
    Bytes,
}

impl PackedLayout {
    /// Whether a packed form takes more memory than its operand.
    fn outgrows_operand(self) -> bool {
        self == PackedLayout::Winograd
    }
}

impl PackedKey {
    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        self.rows.size_bytes() + self.cols.size_bytes()
    }
}

/// The packed forms of a device.
pub struct PackedOperands {
    pool: Arc<BlockPool>,
    counters: Arc<Counters>,
    /// Counts uses of all operands.
    clock: AtomicU64,
    /// Counts runs of plans.
    runs: AtomicU64,
    max_bytes: usize,
    /// The forms that have memory, and some that had.
    held: Mutex<Vec<Weak<PackedForm>>>,
}

/// The packed forms of a node.
#[derive(Default)]
struct NodeForms(Mutex<Vec<Arc<PackedForm>>>);

/// One form of a node.
struct PackedForm {
    key: PackedKey,
    state: Mutex<FormState>,
}

#[derive(Default)]
struct FormState {
    n_uses: u32,
    first_use: u64,
    last_use: u64,
    /// The last run that read the form, and the last run before that one that did.
    last_run: u64,
    previous_run: u64,
    memory: Option<Arc<PackedMemory>>,
}

/// The memory of a packed operand. Whoever runs a product holds it meanwhile.
pub struct PackedMemory {
    buffer: CpuBuffer,
    counters: Arc<Counters>,
}

impl PackedMemory {
    /// Where its values start.
    pub fn ptr(&self) -> *mut f32 {
        self.buffer.ptr().cast()
    }
}

impl Drop for PackedMemory {
    fn drop(&mut self) {
        self.counters.bytes_packed.fetch_sub(self.buffer.size_bytes() as u64, Ordering::Relaxed);
    }
}

impl NodeForms {
    // Nothing panics while the lock is held, so a poisoned list is still good.
    fn list(&self) -> MutexGuard<'_, Vec<Arc<PackedForm>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The form with this key, which may have no memory yet.
    fn of(&self, key: &PackedKey) -> Arc<PackedForm> {
        let mut forms = self.list();
        if let Some(form) = forms.iter().find(|form| form.key == *key) {
            return form.clone();
        }
        let form = Arc::new(PackedForm { key: key.clone(), state: Mutex::default() });
        forms.push(form.clone());
        form
    }

    /// Lets go of forms that no product has read since this run.
    fn let_go_before(&self, run: u64) {
        let forms = self.list();
        forms.iter().map(|form| form.state()).filter(|state| state.last_run < run).for_each(|mut state| {
            *state = FormState::default();
        });
    }
}

impl PackedForm {
    // Nothing panics while the lock is held, so a poisoned state is still good.
    fn state(&self) -> MutexGuard<'_, FormState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PackedOperands {
    /// None yet.
    pub fn new(pool: Arc<BlockPool>, counters: Arc<Counters>) -> PackedOperands {
        let max_bytes = pool.total_bytes() / PART;
        PackedOperands {
            pool,
            counters,
            clock: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            max_bytes,
            held: Mutex::default(),
        }
    }

    /// The packed form of an operand that a product is about to read, if there is one or if it is time to make it: `pack`
    /// writes it to memory of so many values.
    pub fn find(
        &self,
        node: &Node,
        key: &PackedKey,
        n_values: usize,
        pack: impl FnOnce(*mut f32),
    ) -> Option<Arc<PackedMemory>> {
        let forms = node.kept::<NodeForms>()?;
        let form = forms.of(key);
        let (now, run) = (self.clock.fetch_add(1, Ordering::Relaxed), self.runs.load(Ordering::Relaxed));
        let mut state = form.state();
        state.last_use = now;
        if state.n_uses == 0 {
            state.first_use = now;
        }
        state.n_uses = state.n_uses.saturating_add(1);
        if state.last_run != run {
            (state.previous_run, state.last_run) = (state.last_run, run);
            let previous_run = state.previous_run;
            drop(state);
            // Two consecutive runs have read this form, and neither of them the other forms: these were packed for earlier sizes.
            forms.let_go_before(previous_run);
            state = form.state();
        }
        if state.memory.is_some() || state.n_uses < USES {
            return state.memory.clone();
        }
        let first_use = state.first_use;
        drop(state);
        // Without memory for it the product packs for itself.
        let buffer = self.room(n_values * 4, first_use).then(|| self.pool.take(n_values * 4).ok()).flatten()?;
        self.counters.bytes_packed.fetch_add(buffer.size_bytes() as u64, Ordering::Relaxed);
        let memory = Arc::new(PackedMemory { buffer, counters: self.counters.clone() });
        pack(memory.ptr());
        form.state().memory = Some(memory.clone());
        let mut held = self.held();
        held.retain(|form| form.strong_count() > 0);
        held.push(Arc::downgrade(&form));
        Some(memory)
    }

    /// Notes that a plan is about to run.
    pub fn begin_run(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a product reads an operand unpacked. Packed forms of the operand that take more memory than the operand are let go, since
    /// products of this size do not read them.
    pub fn pass_over(&self, node: &Node) {
        let Some(forms) = node.kept_so_far::<NodeForms>() else { return };
        let outgrown =
            forms.list().iter().filter(|form| form.key.layout.outgrows_operand()).cloned().collect::<Vec<_>>();
        outgrown.into_iter().for_each(|form| *form.state() = FormState::default());
    }

    /// Lets go of all forms.
    pub fn trim(&self) {
        let held = std::mem::take(&mut *self.held());
        held.iter().filter_map(Weak::upgrade).for_each(|form| *form.state() = FormState::default());
    }

    /// Whether so many bytes more may be held, after forms have gone that were not used since `first_use`. What is in use as
    /// often as the new one stays: in a loop over more operands than there is room for, each would push out the next.
    fn room(&self, size_bytes: usize, first_use: u64) -> bool {
        while self.counters.bytes_packed.load(Ordering::Relaxed) as usize + size_bytes > self.max_bytes {
            let mut held = self.held();
            let last_use = |form: &Weak<PackedForm>| form.upgrade().map_or(0, |form| form.state().last_use);
            let oldest = (0..held.len()).min_by_key(|i| last_use(&held[*i]));
            let Some(oldest) = oldest.filter(|i| last_use(&held[*i]) < first_use) else { return false };
            if let Some(form) = held.swap_remove(oldest).upgrade() {
                *form.state() = FormState::default();
            }
        }
        true
    }

    fn held(&self) -> MutexGuard<'_, Vec<Weak<PackedForm>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::tensor::Tensor;

    fn key() -> PackedKey {
        let list = AxisList::single(4, 1);
        PackedKey { k: 4, n: 4, rows: list.clone(), cols: list, offset: 0, layout: PackedLayout::Panels }
    }

    /// Room for two forms of 100 values.
    fn operands() -> PackedOperands {
        let counters: Arc<Counters> = Arc::default();
        let packed = PackedOperands::new(Arc::new(BlockPool::new(counters.clone())), counters);
        PackedOperands { max_bytes: 2 * 400, ..packed }
    }

    fn tensors(n: usize) -> Vec<Tensor> {
        (0..n).map(|i| Tensor::from_vec(vec![i as f32], [1], &Device::cpu())).collect()
    }

    /// Whether an operand is packed when it is used.
    fn used(operands: &PackedOperands, tensor: &Tensor) -> bool {
        operands.find(tensor.node().unwrap(), &key(), 100, |_| ()).is_some()
    }

    #[test]
    fn the_longest_unused_form_makes_room() {
        let (operands, x) = (operands(), tensors(3));
        for tensor in &x[..2] {
            assert_eq!([0; 4].map(|_| used(&operands, tensor)), [false, false, true, true]);
        }
        assert!(used(&operands, &x[1]));
        assert_eq!([0; 3].map(|_| used(&operands, &x[2])), [false, false, true]);
        assert_eq!(operands.counters.read().bytes_packed, 800);
        // The first of them went, and is counted anew.
        assert!(!used(&operands, &x[0]) && used(&operands, &x[1]) && used(&operands, &x[2]));
        operands.trim();
        assert_eq!(operands.counters.read().bytes_packed, 0);
        assert!(!used(&operands, &x[2]));
    }

    #[test]
    fn a_form_goes_when_two_runs_read_another_of_its_operand() {
        let (operands, x) = (operands(), tensors(1));
        let node = x[0].node().unwrap();
        let keys = [key(), PackedKey { layout: PackedLayout::Winograd, ..key() }];
        let used = |i: usize| {
            operands.begin_run();
            operands.find(node, &keys[i], 50, |_| ()).is_some()
        };
        let bytes = || operands.counters.read().bytes_packed;
        assert_eq!([0; 3].map(used), [false, false, true]);
        assert_eq!(([1; 3].map(used), bytes()), ([false, false, true], 200));
        // Two forms that runs read by turns both stay.
        assert_eq!([0, 1, 0, 1, 0, 1].map(used), [false, true, false, true, true, true]);
        assert_eq!(([0, 1].map(used), bytes()), ([true, true], 400));
        // Two forms that each run reads both stay, however often they are read.
        for _ in 0..2 {
            operands.begin_run();
            assert!([0, 0, 0, 1, 1, 1].iter().all(|i| operands.find(node, &keys[*i], 50, |_| ()).is_some()));
        }
        assert_eq!((used(0), bytes()), (true, 400));
        assert_eq!((used(0), bytes()), (true, 200));
    }

    #[test]
    fn a_form_that_is_larger_than_its_operand_goes_when_a_product_does_not_read_it() {
        let (operands, x) = (operands(), tensors(1));
        let node = x[0].node().unwrap();
        operands.pass_over(node);
        let keys = [key(), PackedKey { layout: PackedLayout::Winograd, ..key() }];
        let used = |i: usize| operands.find(node, &keys[i], 50, |_| ()).is_some();
        assert_eq!([0, 1, 0, 1, 0, 1].map(used), [false, false, false, false, true, true]);
        operands.pass_over(node);
        assert_eq!(([0, 1].map(used), operands.counters.read().bytes_packed), ([true, false], 200));
    }

    #[test]
    fn a_loop_over_more_operands_than_fit_packs_what_fits_once() {
        let (operands, x) = (operands(), tensors(5));
        for _ in 0..3 {
            x.iter().for_each(|tensor| _ = used(&operands, tensor));
        }
        for _ in 0..5 {
            assert_eq!(
                x.iter().map(|tensor| used(&operands, tensor)).collect::<Vec<_>>(),
                [true, true, false, false, false]
            );
        }
        drop(x);
        assert_eq!(operands.counters.read().bytes_packed, 0);
    }
}
