//! Every order in which an evaluation, a gradient and a reader can take their steps, for the smallest graph that has
//! everything: `y`, which is wanted, of `h`, of `x`, which is memory. Nobody may read `x` while or after it is overwritten.
//! A model of `flight.rs`, step by atomic step, not that code itself.

use std::collections::HashSet;

/// How an evaluation makes sure that nobody gets at what it overwrites.
#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    /// It counts holders under the lock of `y`, and leaves `y` in flight.
    InFlight,
    /// It only counts holders.
    CountOnly,
    /// It puts `y` in flight, but counts before that.
    CountFirst,
}

/// What the reader holds at first.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Nothing,
    Middle,
    Leaf,
}

/// References of one thread.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Refs {
    h: bool,
    x: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct ModelState {
    /// Where the evaluation, the gradient and the reader are in their programs.
    at: [u8; 3],
    refs: [Refs; 3],
    is_locked: bool,
    in_flight: bool,
    y_let_go: bool,
    h_kept: bool,
    donated: bool,
    is_writing: bool,
    is_spoiled: bool,
    is_reading: [bool; 3],
}

const EVALUATION: usize = 0;
const GRADIENT: usize = 1;
const READER: usize = 2;

impl ModelState {
    fn n_holders_of_h(&self) -> usize {
        !self.y_let_go as usize + self.refs.iter().filter(|r| r.h).count()
    }

    /// `h` itself holds `x` for as long as anything holds `h`.
    fn n_holders_of_x(&self) -> usize {
        (self.n_holders_of_h() > 0) as usize + self.refs.iter().filter(|r| r.x).count()
    }

    /// Takes a step of one thread; None if it must wait or has ended.
    fn step(mut self, thread: usize, protocol: Protocol) -> Option<ModelState> {
        let done = match thread {
            EVALUATION => self.evaluate(protocol),
            GRADIENT => self.differentiate(protocol),
            _ => self.read(READER, 0),
        };
        done.then(|| {
            self.at[thread] += 1;
            self
        })
    }

    fn evaluate(&mut self, protocol: Protocol) -> bool {
        let counts_late = protocol != Protocol::CountFirst;
        match self.at[EVALUATION] {
            // The walk.
            0 => self.refs[EVALUATION] = Refs { h: true, x: true },
            1 if protocol == Protocol::InFlight && self.is_locked => return false,
            1 => self.is_locked = protocol == Protocol::InFlight || self.is_locked,
            // One edge and the walk's own reference are not somebody else's.
            2 => self.h_kept = self.n_holders_of_h() != 2,
            3 => self.donated = !self.h_kept && self.n_holders_of_x() == 2,
            4 if !counts_late && self.is_locked => return false,
            4 => {
                self.in_flight = protocol != Protocol::CountOnly;
                self.is_locked &= protocol != Protocol::InFlight;
            }
            5 => self.is_writing = self.donated,
            6 => (self.is_spoiled, self.is_writing) = (self.donated, false),
            // Completing takes the lock of `y`, so it waits for who has it.
            7 if self.is_locked => return false,
            7 => (self.y_let_go, self.in_flight) = (true, false),
            8 => self.refs[EVALUATION] = Refs::default(),
            _ => return false,
        }
        true
    }

    /// The way of `history`: the recipe of `y` under its lock, that of `h`, and then `x` is read.
    fn differentiate(&mut self, _protocol: Protocol) -> bool {
        match self.at[GRADIENT] {
            0 if self.is_locked => return false,
            0 => self.is_locked = true,
            1 => self.refs[GRADIENT].h = !self.in_flight && !self.y_let_go,
            2 => self.is_locked = false,
            _ => return self.read(GRADIENT, 3),
        }
        true
    }

    /// From `h`, if it is held, to `x`, which is read, and both are let go.
    fn read(&mut self, thread: usize, start: u8) -> bool {
        match self.at[thread] - start {
            0 => self.refs[thread].x |= self.refs[thread].h,
            1 => self.is_reading[thread] = self.refs[thread].x,
            2 => self.is_reading[thread] = false,
            3 => self.refs[thread].h = false,
            4 => self.refs[thread].x = false,
            _ => return false,
        }
        true
    }

    fn is_wrong(&self) -> bool {
        self.is_reading.contains(&true) && (self.is_writing || self.is_spoiled)
    }
}

/// What can happen.
#[derive(Default)]
struct Seen {
    wrong: bool,
    donated: bool,
    differentiated: bool,
}

fn explore(protocol: Protocol, holds: Holds) -> Seen {
    let mut start = ModelState::default();
    start.refs[READER] = Refs { h: holds == Holds::Middle, x: holds == Holds::Leaf };
    let mut seen = Seen::default();
    let mut known = HashSet::from([start]);
    let mut stack = vec![start];
    while let Some(state) = stack.pop() {
        seen.wrong |= state.is_wrong();
        seen.donated |= state.donated;
        seen.differentiated |= state.is_reading[GRADIENT];
        stack.extend((0..3).filter_map(|thread| state.step(thread, protocol)).filter(|next| known.insert(*next)));
    }
    seen
}

#[test]
fn no_order_of_steps_lets_anybody_read_what_is_overwritten() {
    for holds in [Holds::Nothing, Holds::Middle, Holds::Leaf] {
        let seen = explore(Protocol::InFlight, holds);
        assert!(!seen.wrong);
        // Neither is forbidden altogether.
        assert!(seen.donated && seen.differentiated);
    }
}

#[test]
fn the_model_finds_the_races_of_weaker_protocols() {
    assert!(explore(Protocol::CountOnly, Holds::Nothing).wrong);
    assert!(explore(Protocol::CountFirst, Holds::Nothing).wrong);
}
