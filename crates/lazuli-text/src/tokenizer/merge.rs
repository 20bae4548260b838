//! Merging neighbours into words, which is what BPE and SentencePiece have in common: of all pairs that may be merged, the
//! one of the best priority is, the leftmost of equals, until no pair may be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A piece of the text that may still be merged; an empty one has become part of its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    left: usize,
    right: usize,
}

/// No neighbour on that side.
const NONE: usize = usize::MAX;

/// A pair that may be merged, ordered by priority and then from left to right.
type Pair = Reverse<(u32, usize, usize, usize)>;

/// Merges the characters of `text` into pieces. `priority` is asked with the text of a pair and the length of its left part;
/// lower comes first, and None is a pair that is not merged.
pub fn merge(text: &str, priority: impl Fn(&str, usize) -> Option<u32>) -> Vec<Range<usize>> {
    let mut symbols: Vec<Symbol> = Vec::new();
    for (i, (start, c)) in text.char_indices().enumerate() {
        symbols.push(Symbol { start, len: c.len_utf8(), left: i.wrapping_sub(1), right: i + 1 });
    }
    let Some(last) = symbols.last_mut() else { return Vec::new() };
    last.right = NONE;
    let mut pairs: BinaryHeap<Pair> = BinaryHeap::new();
    let offer = |symbols: &[Symbol], left: usize, right: usize, pairs: &mut BinaryHeap<Pair>| {
        if left == NONE || right == NONE {
            return;
        }
        let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
        if let Some(rank) = priority(&text[start..start + len], symbols[left].len) {
            pairs.push(Reverse((rank, left, right, len)));
        }
    };
    for right in 1..symbols.len() {
        offer(&symbols, right - 1, right, &mut pairs);
    }
    while let Some(Reverse((_, left, right, len))) = pairs.pop() {
        // One of the two may have been merged with another meanwhile.
        let is_there = symbols[left].len > 0 && symbols[right].len > 0;
        if !is_there || symbols[left].len + symbols[right].len != len {
            continue;
        }
        let after = symbols[right].right;
        symbols[left].len = len;
        symbols[left].right = after;
        symbols[right].len = 0;
        if after != NONE {
            symbols[after].left = left;
        }
        offer(&symbols, symbols[left].left, left, &mut pairs);
        offer(&symbols, left, after, &mut pairs);
    }
    symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.start..symbol.start + symbol.len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, merges: &[(&str, &str)], expect: &[&str]) {
        let rank = |pair: &str, left: usize| {
            merges.iter().position(|(a, b)| (*a, *b) == pair.split_at(left)).map(|rank| rank as u32)
        };
        let pieces: Vec<&str> = merge(text, rank).into_iter().map(|range| &text[range]).collect();
        assert_eq!(pieces, expect, "{text}");
    }

    #[test]
    fn the_best_pair_is_merged_first_and_the_leftmost_of_equals() {
        check("", &[], &[]);
        check("abc", &[], &["a", "b", "c"]);
        check("aaa", &[("a", "a")], &["aa", "a"]);
        check("abcab", &[("b", "c"), ("a", "b"), ("a", "bc")], &["abc", "ab"]);
        check("世界世", &[("世", "界")], &["世界", "世"]);
    }
}
