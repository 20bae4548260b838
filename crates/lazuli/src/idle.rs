//! How much memory a pool keeps that nobody uses. A loop that has settled takes again what it gave back, before long; what
//! a tensor that grew has left behind, or shapes that come no more, nobody takes again. So blocks go that nobody wanted
//! while as much was taken as was in use at once lately, or, where such blocks were missed afterwards, several times as
//! much.

use std::collections::BTreeSet;

/// So much is always kept.
const LEAST: usize = 64 << 20;
/// More than this never is.
const MOST: usize = 1 << 30;
/// Bytes that are taken until a block that was not among them goes, in peaks of use, at most.
const MAX_PATIENCE: u64 = 8;
/// Blocks taken after which an old peak is forgotten, at least; at most twice as many.
const WINDOW: u32 = 1024;

/// What may be idle, and for how long.
pub struct IdleBound {
    most: usize,
    /// The most in use at once in this window and in the one before.
    now: usize,
    before: usize,
    n_taken: u32,
    /// All bytes that were ever taken: the clock by which blocks age.
    clock: u64,
    looked_at: u64,
    /// How many peaks of use blocks wait for.
    patience: u64,
    /// Classes that blocks were let go of.
    freed: BTreeSet<usize>,
}

/// What to let go of.
#[derive(Debug, PartialEq)]
pub struct Excess {
    /// Blocks last used before this, while more than `keep` bytes are idle.
    pub before: u64,
    pub keep: usize,
    /// Any, while more than this is idle.
    pub most: usize,
}

impl IdleBound {
    /// Nothing was in use yet; no more than `most` bytes are ever kept.
    pub fn new(most: usize) -> IdleBound {
        IdleBound {
            most: most.min(MOST),
            now: 0,
            before: 0,
            n_taken: 0,
            clock: 0,
            looked_at: 0,
            patience: 1,
            freed: BTreeSet::new(),
        }
    }

    /// Notes that a block was let go of.
    pub fn freed(&mut self, class: usize) {
        self.freed.insert(class);
    }

    /// Notes that there was no block of a class: if there would have been, blocks wait longer from now on.
    pub fn missed(&mut self, class: usize) {
        if self.freed.remove(&class) {
            self.patience = (self.patience * 2).min(MAX_PATIENCE);
        }
    }

    /// Forgets what was let go of, since that was everything.
    pub fn forget(&mut self) {
        self.patience = 1;
        self.freed.clear();
    }

    /// Notes that a block is taken, and how many bytes are in use with it.
    pub fn note(&mut self, size_bytes: usize, live_bytes: usize) {
        if self.n_taken == WINDOW {
            (self.before, self.now, self.n_taken) = (self.now, 0, 0);
        }
        self.n_taken += 1;
        self.now = self.now.max(live_bytes);
        self.clock = self.clock.saturating_add(size_bytes as u64);
    }

    /// The time, for a block that is given back.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// What to let go of now that so much is idle. Mostly nothing, so that nobody has to look.
    pub fn excess(&mut self, idle_bytes: usize) -> Option<Excess> {
        let peak = self.now.max(self.before) as u64;
        let is_due = idle_bytes > LEAST && self.clock - self.looked_at >= peak / 4;
        if !is_due && idle_bytes <= self.most {
            return None;
        }
        self.looked_at = self.clock;
        let before = self.clock.saturating_sub(peak.saturating_mul(self.patience));
        Some(Excess { before, keep: LEAST.min(self.most), most: self.most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_while_a_peak_was_is_too_much() {
        const MIB: usize = 1 << 20;
        let mut bound = IdleBound::new(usize::MAX);
        (0..3).for_each(|_| bound.note(100 * MIB, 200 * MIB));
        assert_eq!(bound.excess(LEAST), None);
        let excess = |before: usize| Some(Excess { before: before as u64, keep: LEAST, most: MOST });
        assert_eq!(bound.excess(100 * MIB), excess(100 * MIB));
        // It was looked at just now.
        assert_eq!(bound.excess(100 * MIB), None);
        assert_eq!(bound.excess(MOST + 1), excess(100 * MIB));
        // What was let go of and is missed makes the others wait longer.
        bound.freed(7);
        bound.missed(6);
        bound.note(100 * MIB, 200 * MIB);
        assert_eq!(bound.excess(100 * MIB), excess(200 * MIB));
        bound.missed(7);
        bound.missed(7);
        bound.note(100 * MIB, 200 * MIB);
        assert_eq!(bound.excess(100 * MIB), excess(100 * MIB));
        bound.forget();
        // A peak that is long ago is none.
        (0..2 * WINDOW).for_each(|_| bound.note(MIB, MIB));
        let clock = bound.clock() as usize;
        assert_eq!(bound.excess(100 * MIB), excess(clock - MIB));
    }
}
