//! Draws programs from a seed and checks one after another. The first that fails is made small: first its dice, as long as
//! what they draw still fails, then the program itself (`shrink`).

use std::time::{Duration, Instant};

use crate::check::{Failure, check};
use crate::dice::Rolls;
use crate::program::{Limits, Program};
use crate::shrink::shrink;

/// Dice per op.
const N_DICE: usize = 28;
/// How long dice, and then programs, are made smaller.
const SHRINK_FOR: Duration = Duration::from_secs(60);

/// A program that fails, and how.
#[derive(Clone, Debug)]
pub struct Found {
    /// The program, as small as it could be made.
    pub program: Program,
    /// What went wrong with it.
    pub failure: Failure,
}

/// The dice of programs of 2 to `max_ops` ops.
fn thrown(seed: u64, n_programs: usize, max_ops: usize) -> impl Iterator<Item = Vec<Vec<u32>>> {
    let mut rolls = Rolls::new(seed);
    (0..n_programs).map(move |_| {
        let n_ops = 2 + rolls.word() as usize % (max_ops.max(2) - 1);
        (0..n_ops).map(|_| (0..N_DICE).map(|_| rolls.word()).collect()).collect()
    })
}

/// Programs drawn from a seed: the same ones every time.
///
/// ```
/// use lazuli_check::{Limits, drawn};
/// let programs: Vec<_> = drawn(1, 10, 6, Limits::SMALL).collect();
/// assert!(programs.iter().all(|p| p.nodes.len() >= 2 && !p.outputs.is_empty()));
/// ```
pub fn drawn(seed: u64, n_programs: usize, max_ops: usize, limits: Limits) -> impl Iterator<Item = Program> {
    thrown(seed, n_programs, max_ops).map(move |dice| Program::draw(&dice, limits))
}

/// Draws and checks this many programs; gives the first that fails, made small.
///
/// ```
/// use lazuli_check::{Limits, search};
/// assert!(search(1, 3, 6, Limits::SMALL).is_none());
/// ```
pub fn search(seed: u64, n_programs: usize, max_ops: usize, limits: Limits) -> Option<Found> {
    thrown(seed, n_programs, max_ops).find_map(|dice| {
        let failure = check(&Program::draw(&dice, limits)).err()?;
        let (dice, failure) = smaller_dice(dice, limits, failure, Instant::now() + SHRINK_FOR);
        let (program, failure) = shrink(&Program::draw(&dice, limits), failure, Instant::now() + SHRINK_FOR);
        Some(Found { program, failure })
    })
}

/// Fewer and smaller dice whose program fails, too: without an op, then with a word that is zero or half.
fn smaller_dice(
    mut dice: Vec<Vec<u32>>,
    limits: Limits,
    mut failure: Failure,
    end: Instant,
) -> (Vec<Vec<u32>>, Failure) {
    let fails = |dice: &[Vec<u32>]| check(&Program::draw(dice, limits)).err();
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for op in (0..dice.len()).rev() {
            let mut fewer = dice.clone();
            fewer.remove(op);
            if Instant::now() > end {
                return (dice, failure);
            }
            if let Some(found) = Some(fewer).filter(|d| !d.is_empty()).and_then(|d| Some((fails(&d)?, d))) {
                (failure, dice, has_changed) = (found.0, found.1, true);
            }
        }
        for (op, word) in (0..dice.len()).flat_map(|op| (0..N_DICE).map(move |word| (op, word))) {
            for less in [0, dice[op][word] / 2] {
                if Instant::now() > end {
                    return (dice, failure);
                }
                let before = dice[op][word];
                if less == before {
                    continue;
                }
                dice[op][word] = less;
                match fails(&dice) {
                    Some(found) => {
                        (failure, has_changed) = (found, true);
                        break;
                    }
                    None => dice[op][word] = before,
                }
            }
        }
    }
    (dice, failure)
}
