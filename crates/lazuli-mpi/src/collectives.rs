//! A first-in, first-out queue of collectives. MPI demands that all ranks begin the collectives of a communicator in the same
//! order, so they begin in the order of the queue, and completion is tested in that order. An all-reduce is a reduce-scatter
//! (each rank receives its chunk from all others and adds it up) followed by an all-gather of the sums on a communicator of its
//! own; because reduce-scatters complete in queue order, all-gathers begin in that order, too. A large reduction is cut into
//! rounds and pipelined: while one round is gathered, later ones are exchanged. Deadlines and lost ranks are handled elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::raw::{Comm, Pending, RawResult};
use crate::reduce::{Reduction, Values};

/// A collective.
pub enum Task {
    Barrier,
    Broadcast {
        bytes: Vec<u8>,
        root: usize,
    },
    /// The bytes of all ranks, of which each has so many.
    Gather {
        bytes: Vec<u8>,
        counts: Vec<usize>,
    },
    /// Everything on all ranks, or on each its chunk.
    Reduce(Reduction, Give),
}

/// How much of a reduction a rank gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Give {
    Whole,
    OwnChunk,
}

/// What comes of a collective.
pub enum Done {
    Bytes(Vec<u8>),
    Values(Values),
}

/// An error is one that another rank met, or this one.
pub type Reply = Result<Done, String>;

/// What is counted for whoever asks.
#[derive(Default)]
pub struct Counts {
    pub sent_bytes: AtomicU64,
    pub n_collectives: AtomicU64,
}

/// All that was asked for and has not ended, the oldest first.
pub struct Collectives {
    calls: Calls,
    asked: VecDeque<Asked>,
    /// Rounds and single calls under way.
    n_begun: usize,
}

/// A collective that was asked for.
pub struct Asked {
    pub name: String,
    /// Which one it is of all that the program asks for, counted from 1.
    pub number: u64,
    pub since: Duration,
    state: State,
    reply: Option<Sender<Reply>>,
}

enum State {
    /// Those before it have not all begun.
    Waits(Task),
    /// A single call of MPI.
    Simple(Pending),
    Reduce(Rounds),
    Over,
}

/// A reduction under way. Rounds begin, are added up and end one after another.
struct Rounds {
    reduction: Reduction,
    give: Give,
    n_rounds: usize,
    n_begun: usize,
    n_added: usize,
    n_ended: usize,
    /// How ranks contradict each other, if they do. All of them find it, and the reduction ends with it.
    contradiction: Option<String>,
    exchanges: VecDeque<Pending>,
    gathers: VecDeque<Pending>,
}

/// This rank and its communicators.
struct Calls {
    rank: usize,
    n_ranks: usize,
    exchange: Comm,
    gather: Comm,
    counts: Arc<Counts>,
}

/// The most rounds and single calls that are under way at once: enough to keep the network busy between two polls. With more each
/// poll would take longer, since MPI makes progress on all of them in every call.
const MOST_BEGUN: usize = 16;

impl Collectives {
    pub fn new(rank: usize, n_ranks: usize, exchange: Comm, gather: Comm, counts: Arc<Counts>) -> Collectives {
        let calls = Calls { rank, n_ranks, exchange, gather, counts };
        Collectives { calls, asked: VecDeque::new(), n_begun: 0 }
    }

    /// Appends a collective to the queue. Its result is sent to `reply`; without one the result is dropped.
    pub fn ask(&mut self, name: String, number: u64, since: Duration, task: Task, reply: Option<Sender<Reply>>) {
        self.calls.counts.n_collectives.fetch_add(reply.is_some() as u64, Ordering::Relaxed);
        self.asked.push_back(Asked { name, number, since, state: State::Waits(task), reply });
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// The oldest collective that has not ended.
    pub fn oldest(&self) -> Option<&Asked> {
        self.asked.front()
    }

    /// Answers every collective that has not ended with this error. Calls of MPI that are under way are not waited for.
    pub fn fail(&mut self, text: &str) {
        self.asked.drain(..).for_each(|mut asked| asked.end(Err(text.to_string())));
        self.n_begun = 0;
    }

    /// Tests what is under way, and begins what can begin.
    pub fn advance(&mut self) -> RawResult<()> {
        self.begin()?;
        let has_ended = self.end_exchanges()? | self.end_gathers()?;
        if has_ended {
            self.asked.retain(|asked| !matches!(asked.state, State::Over));
            self.begin()?;
        }
        Ok(())
    }

    /// Begins as much as may be under way, in order.
    fn begin(&mut self) -> RawResult<()> {
        for asked in &mut self.asked {
            if self.n_begun >= MOST_BEGUN {
                break;
            }
            asked.state = match std::mem::replace(&mut asked.state, State::Over) {
                State::Waits(Task::Reduce(reduction, give)) => {
                    State::Reduce(Rounds::new(reduction, give, self.calls.n_ranks))
                }
                State::Waits(task) => {
                    self.n_begun += 1;
                    State::Simple(self.calls.simple(task)?)
                }
                state => state,
            };
            if let State::Reduce(rounds) = &mut asked.state {
                while rounds.n_begun < rounds.n_rounds && self.n_begun < MOST_BEGUN {
                    rounds.begin(&self.calls)?;
                    self.n_begun += 1;
                }
            }
        }
        Ok(())
    }

    /// Ends single calls and exchanges in order, up to the first that is still under way. Whether any has ended.
    fn end_exchanges(&mut self) -> RawResult<bool> {
        let mut has_ended = false;
        for asked in &mut self.asked {
            match &mut asked.state {
                State::Simple(pending) => {
                    if !pending.test()? {
                        return Ok(has_ended);
                    }
                    let bytes = pending.received();
                    asked.end(Ok(Done::Bytes(bytes)));
                    self.n_begun -= 1;
                    has_ended = true;
                }
                State::Reduce(rounds) => {
                    while let Some(exchange) = rounds.exchanges.front_mut() {
                        if !exchange.test()? {
                            return Ok(has_ended);
                        }
                        self.n_begun -= rounds.add_up(&self.calls)?;
                        has_ended = true;
                    }
                    asked.end_if_over(&self.calls);
                }
                State::Waits(_) => break,
                State::Over => {}
            }
        }
        Ok(has_ended)
    }

    /// Ends the all-gathers of all-reduces in order, up to the first that is still under way. Whether any has ended.
    fn end_gathers(&mut self) -> RawResult<bool> {
        let mut has_ended = false;
        for asked in &mut self.asked {
            let State::Reduce(rounds) = &mut asked.state else { continue };
            while let Some(gather) = rounds.gathers.front_mut() {
                if !gather.test()? {
                    return Ok(has_ended);
                }
                rounds.take(&self.calls);
                self.n_begun -= 1;
                has_ended = true;
            }
            asked.end_if_over(&self.calls);
        }
        Ok(has_ended)
    }
}

impl Asked {
    fn end(&mut self, reply: Reply) {
        self.state = State::Over;
        if let Some(sender) = self.reply.take() {
            // Who asked may have given up after an error.
            let _ = sender.send(reply);
        }
    }

    fn end_if_over(&mut self, calls: &Calls) {
        let State::Reduce(rounds) = &mut self.state else { return };
        if rounds.n_ended == rounds.n_rounds {
            let reply = match (rounds.contradiction.take(), rounds.give) {
                (Some(contradiction), _) => Err(contradiction),
                (None, Give::Whole) => Ok(Done::Values(rounds.reduction.take_values())),
                (None, Give::OwnChunk) => Ok(Done::Values(rounds.reduction.chunk(calls.rank, calls.n_ranks))),
            };
            self.end(reply);
        }
    }
}

impl Rounds {
    fn new(reduction: Reduction, give: Give, n_ranks: usize) -> Rounds {
        let n_rounds = reduction.n_rounds(n_ranks);
        let (exchanges, gathers) = (VecDeque::new(), VecDeque::new());
        Rounds {
            reduction,
            give,
            n_rounds,
            n_begun: 0,
            n_added: 0,
            n_ended: 0,
            contradiction: None,
            exchanges,
            gathers,
        }
    }

    /// Begins the next round.
    fn begin(&mut self, calls: &Calls) -> RawResult<()> {
        let (rank, n, round) = (calls.rank, calls.n_ranks, self.n_begun);
        let (bytes, counts) = self.reduction.parts(round, n);
        calls.count(counts.iter().sum::<usize>() - counts[rank]);
        let received = self.reduction.received_bytes(rank, round, n);
        self.exchanges.push_back(calls.exchange.all_to_all(bytes, &counts, &received)?);
        self.n_begun += 1;
        Ok(())
    }

    /// Adds up what was received in the oldest exchange, which has ended, and begins to gather the sums. Returns the number of
    /// rounds that have ended with it.
    fn add_up(&mut self, calls: &Calls) -> RawResult<usize> {
        let (rank, n, round) = (calls.rank, calls.n_ranks, self.n_added);
        let Some(mut exchange) = self.exchanges.pop_front() else { return Ok(0) };
        let received = exchange.received();
        if round == 0 {
            self.contradiction = self.reduction.contradiction(&received, n);
        }
        let sums = self.reduction.reduced(&received, n);
        self.n_added += 1;
        if self.give == Give::OwnChunk {
            self.reduction.take(&sums, rank..rank + 1, round, n);
            self.n_ended += 1;
            return Ok(1);
        }
        let counts = self.reduction.gathered_bytes(round, n);
        calls.count(counts[rank] * (n - 1));
        self.gathers.push_back(calls.gather.all_gather(sums, &counts)?);
        Ok(0)
    }

    /// Stores the sums that were received in the oldest all-gather, which has ended.
    fn take(&mut self, calls: &Calls) {
        if let Some(mut gather) = self.gathers.pop_front() {
            self.reduction.take(&gather.received(), 0..calls.n_ranks, self.n_ended, calls.n_ranks);
            self.n_ended += 1;
        }
    }
}

impl Calls {
    fn simple(&self, task: Task) -> RawResult<Pending> {
        match task {
            Task::Barrier => self.exchange.barrier(),
            Task::Broadcast { bytes, root } => {
                self.count(if self.rank == root { bytes.len() } else { 0 });
                self.exchange.broadcast(bytes, root)
            }
            Task::Gather { bytes, counts } => {
                self.count(bytes.len() * (self.n_ranks - 1));
                self.exchange.all_gather(bytes, &counts)
            }
            Task::Reduce(..) => unreachable!("a reduction has rounds"),
        }
    }

    fn count(&self, n_sent: usize) {
        self.counts.sent_bytes.fetch_add(n_sent as u64, Ordering::Relaxed);
    }
}
