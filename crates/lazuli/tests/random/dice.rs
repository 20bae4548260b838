//! Choices as numbers: a program is drawn by reading dice, so that shrinking the dice shrinks the program. Zero is
//! always the simplest choice, and dice that have run out show zero.

/// A run of dice, read from the front.
pub struct Dice<'a> {
    words: &'a [u32],
}

impl<'a> Dice<'a> {
    pub fn new(words: &'a [u32]) -> Dice<'a> {
        Dice { words }
    }

    pub fn word(&mut self) -> u32 {
        match self.words.split_first() {
            Some((first, rest)) => {
                self.words = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `n`; smaller dice give smaller numbers.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.word() as u64 * n as u64) >> 32) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}
