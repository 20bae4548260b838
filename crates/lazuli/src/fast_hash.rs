//! A hash of one multiply a word, for keys that are made by the engine itself: structures, views, kernels. Nobody outside
//! can choose them so that they collide, and planning hashes thousands of words, for which the standard hash takes longer
//! than the rest of planning. Maps of these keys are only looked up in, never walked.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A map of the engine's own keys.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Rotates, combines and multiplies, word by word.
#[derive(Clone, Copy, Default)]
pub struct FastHasher(u64);

/// An odd number without pattern: the fractional bits of 2⁶⁴/π.
const MULTIPLIER: u64 = 0x517c_c1b7_2722_0a95;

impl FastHasher {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    }
}

impl Hasher for FastHasher {
    /// Maps take their buckets from the low bits, which a multiply mixes least: the high ones are folded in.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.word(*byte as u64));
    }
    fn write_u8(&mut self, n: u8) {
        self.word(n as u64);
    }
    fn write_u16(&mut self, n: u16) {
        self.word(n as u64);
    }
    fn write_u32(&mut self, n: u32) {
        self.word(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
}

/// The hash of one value.
pub fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = FastHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_fall_into_different_buckets() {
        let buckets =
            |mask: u64| (0u32..64).map(|n| hash_of(&n) & mask).collect::<std::collections::HashSet<_>>().len();
        assert!(buckets(127) > 40 && buckets(1023) > 55);
    }
}
