//! What a computed node was made of, without holding it: tokens instead of nodes. A node that lets go of its inputs keeps
//! the tokens of those of its ancestors that somebody else still holds, since only of those can a gradient be asked for.
//! Knows serial numbers and who is left; nothing of values.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

/// Tokens, in no particular order.
pub type Kins = SmallVec<[Arc<Kin>; 4]>;

/// Stands for a node: outlives it, and holds no memory of it.
pub struct Kin {
    /// The serial number of its node.
    pub serial: u64,
    /// The serial number of the first made of all that its node depends on, itself included.
    pub oldest: u64,
    is_alive: AtomicBool,
    from: Mutex<From>,
}

#[derive(Default)]
struct From {
    /// Whether `kins` has been set.
    is_known: bool,
    /// The nearest ancestors that have tokens, gradients going through all that lies between.
    kins: Kins,
}

impl Kin {
    /// The token of a node whose ancestors are these, if they are known.
    pub fn new(serial: u64, oldest: u64, kins: Option<Kins>) -> Kin {
        let is_known = kins.is_some();
        let from = From { is_known, kins: kins.map(distinct).unwrap_or_default() };
        Kin { serial, oldest, is_alive: AtomicBool::new(true), from: Mutex::new(from) }
    }

    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn lock(&self) -> MutexGuard<'_, From> {
        self.from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nearest ancestors that have tokens.
    pub fn from(&self) -> Kins {
        self.lock().kins.clone()
    }

    /// Whether its ancestors have been noted.
    pub fn is_known(&self) -> bool {
        self.lock().is_known
    }

    /// Notes its ancestors.
    pub fn note(&self, kins: Kins) {
        let old = std::mem::replace(&mut *self.lock(), From { is_known: true, kins: distinct(kins) });
        // Outside the lock: dropping tokens may drop many.
        drop(old);
    }

    /// Replaces dead tokens by what they came from, if there are few to look at: those of intermediate values are often
    /// dead as soon as an evaluation has ended.
    pub fn tidy(&self) {
        let from = self.lock();
        if from.kins.len() <= FEW && from.kins.iter().any(|kin| !kin.is_alive()) {
            let kins = from.kins.clone();
            drop(from);
            self.note(living(kins));
        }
    }

    fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }

    /// Notes that its node is gone, so that nobody can ask for a gradient by it. If others have the token, dead ones are
    /// replaced by what they came from: else each step of a loop would hold the token of the step before it. What is
    /// left was alive when this died, and what is reached from a dead token died after it: such a chain is no
    /// longer than the number of nodes that were alive at once.
    pub fn die(self: &Arc<Kin>) {
        self.is_alive.store(false, Ordering::Relaxed);
        if Arc::strong_count(self) == 1 {
            return;
        }
        let from = self.from();
        if from.iter().any(|kin| !kin.is_alive()) {
            self.note(living(from));
        }
    }
}

#[cfg(test)]
thread_local! {
    /// How many nodes and tokens this thread has visited to find the ancestors of nodes.
    pub static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts visited nodes or tokens, for tests.
pub(super) fn look_at(n: usize) {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + n as u64);
    #[cfg(not(test))]
    let _ = n;
}

/// Each token once.
fn distinct(mut kins: Kins) -> Kins {
    look_at(kins.len());
    if kins.len() > 1 {
        kins.sort_unstable_by_key(Arc::as_ptr);
        kins.dedup_by_key(|kin| Arc::as_ptr(kin));
    }
    kins
}

/// Up to this many tokens are compared one by one.
pub(super) const FEW: usize = 16;

/// These tokens, the dead ones among them replaced by what they came from.
pub fn living(kins: Kins) -> Kins {
    // All that were seen, held until the end, so that no address comes twice; and their addresses once they are many.
    let mut seen: SmallVec<[Arc<Kin>; FEW]> = SmallVec::new();
    let mut addresses: HashSet<*const Kin> = HashSet::new();
    let mut living = Kins::new();
    let mut stack = kins;
    while let Some(kin) = stack.pop() {
        look_at(1);
        let is_new = match seen.len() < FEW {
            true => !seen.iter().any(|other| Arc::ptr_eq(other, &kin)),
            false => {
                if addresses.is_empty() {
                    addresses.extend(seen.iter().map(Arc::as_ptr));
                }
                addresses.insert(Arc::as_ptr(&kin))
            }
        };
        if !is_new {
            continue;
        }
        seen.push(kin.clone());
        match kin.is_alive() {
            true => living.push(kin),
            false => stack.extend(kin.from()),
        }
    }
    living
}

/// A chain of a hundred thousand tokens must not unwind as many stack frames: they are dropped from a list instead.
impl Drop for Kin {
    fn drop(&mut self) {
        let kins = |kin: &mut Kin| {
            let from = kin.from.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut from.kins)
        };
        let mut pending = kins(self);
        while let Some(kin) = pending.pop() {
            if let Some(mut kin) = Arc::into_inner(kin) {
                pending.extend(kins(&mut kin));
            }
        }
    }
}

/// For each of these tokens, from which of up to 64 nodes, given by their serial numbers, it comes. A token does not come
/// from its own node. Linear in tokens, however many paths there are.
pub fn ancestry(roots: &[Arc<Kin>], serials: &[u64]) -> Vec<u64> {
    assert!(serials.len() <= 64, "one bit each");
    let first = serials.iter().min().copied().unwrap_or(u64::MAX);
    let last = serials.iter().max().copied().unwrap_or(0);
    // A token made before all of them, or of nothing but what was made after all of them, leads to none.
    let may_lead = |kin: &Kin| kin.serial >= first && kin.oldest <= last;
    let mut found: Vec<(Arc<Kin>, Kins)> = Vec::new();
    let mut masks: HashMap<*const Kin, u64> = HashMap::new();
    let mut stack: Vec<Arc<Kin>> = roots.to_vec();
    while let Some(kin) = stack.pop() {
        if may_lead(&kin) && masks.insert(Arc::as_ptr(&kin), 0).is_none() {
            let from = kin.from();
            stack.extend(from.iter().cloned());
            found.push((kin, from));
        }
    }
    // What a node came from was made before it.
    found.sort_unstable_by_key(|(kin, _)| kin.serial);
    let mask_of = |masks: &HashMap<*const Kin, u64>, kin: &Arc<Kin>| masks.get(&Arc::as_ptr(kin)).copied().unwrap_or(0);
    let own = |kin: &Kin| {
        let same = serials.iter().enumerate().filter(|(_, serial)| **serial == kin.serial);
        same.fold(0, |mask, (i, _)| mask | 1 << i)
    };
    for (kin, from) in &found {
        let mask = from.iter().fold(own(kin), |mask, kin| mask | mask_of(&masks, kin));
        masks.insert(Arc::as_ptr(kin), mask);
    }
    roots.iter().map(|kin| mask_of(&masks, kin) & !own(kin)).collect()
}
