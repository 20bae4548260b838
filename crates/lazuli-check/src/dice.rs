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

/// Dice that are thrown: SplitMix64, whose words depend on all bits of the seed. The same seed gives the same words.
///
/// ```
/// use lazuli_check::testing::Rolls;
/// let (mut x, mut y) = (Rolls::new(17), Rolls::new(17));
/// assert_eq!((x.next(), x.below(6)), (y.next(), y.below(6)));
/// ```
pub struct Rolls(u64);

impl Rolls {
    /// Dice of a seed.
    pub fn new(seed: u64) -> Rolls {
        Rolls(seed)
    }

    /// 64 bits.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// 32 bits.
    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
