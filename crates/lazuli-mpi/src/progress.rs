//! The thread that drives MPI. It alone initialises MPI (level FUNNELED is enough for that), makes every call of it and ends it;
//! whoever wants a collective hands it over through a channel and is answered through another. While something is under way
//! the thread polls it, so that transfers go on while the program computes; otherwise it sleeps, and looks every few
//! milliseconds for signs of life and word of errors.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::clock::AwakeClock;
use crate::collectives::{Collectives, Reply, Task};
use crate::notice::Notice;
use crate::raw::{Comm, Pending, RawResult, exit_now};
use crate::signs::Signs;

/// What the thread is asked for.
pub enum Command {
    Begin {
        name: String,
        task: Task,
        reply: Sender<Reply>,
    },
    /// This rank cannot go on, for this reason.
    Fail(String),
    /// This rank is done.
    Close,
}

/// Who this rank is, as far as the thread must know.
#[derive(Clone)]
pub struct Place {
    pub rank: usize,
    pub n_ranks: usize,
    pub host: String,
    pub timeout: Duration,
}

/// How the thread ends.
enum End {
    /// All ranks are done.
    Finished,
    /// Somebody failed, or left too early.
    Failed,
}

pub struct Progress {
    place: Place,
    notices: Comm,
    clock: AwakeClock,
    signs: Signs,
    beat_at: Duration,
    /// The receive that is always open, and messages on their way, with whom they go to.
    open: Option<Pending>,
    sending: Vec<(usize, Pending)>,
    running: Collectives,
    n_begun: u64,
    /// Why nothing goes on.
    failed: Option<String>,
    /// A rank that is done although others are not.
    left: Option<usize>,
    /// Since when this rank is done, whether the others were told, and who else has said so after a failure.
    closing: Option<Closing>,
    has_closed: Vec<bool>,
}

struct Closing {
    since: Duration,
    is_told: bool,
}

/// What is left of the timeout after silence was noticed is for ending the job.
pub const NOTICED: f64 = 0.8;
/// How often the thread looks for notices while nothing is under way.
const IDLE: Duration = Duration::from_millis(5);
/// How long something is polled without a pause: small messages arrive within that.
const EAGER: Duration = Duration::from_micros(300);
/// A pause between polls is this part of the time since the oldest of what is under way was asked for, within bounds. Every poll
/// takes a core from who computes: what takes long is polled seldom, and its end is still noticed with little delay.
const PAUSE_PART: u32 = 32;
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(500));
/// How long ranks wait for each other after a failure, so that each can say what it met.
const GRACE: Duration = Duration::from_secs(20);
/// How long after that the job is ended: the launcher loses what it has not yet read of the ranks' output.
const FORWARDED_WITHIN: Duration = Duration::from_millis(700);
/// How long a process may take to end by MPI's means.
const ABORTS_WITHIN: Duration = Duration::from_secs(2);

impl Progress {
    pub fn new(place: Place, running: Collectives, notices: Comm) -> RawResult<Progress> {
        let mut clock = AwakeClock::new();
        let now = clock.now();
        let signs = Signs::new(place.rank, place.n_ranks, now);
        let open = Some(notices.receive(Notice::most_bytes(place.n_ranks))?);
        let has_closed = vec![false; place.n_ranks];
        Ok(Progress {
            place,
            notices,
            clock,
            signs,
            beat_at: now,
            open,
            sending: Vec::new(),
            running,
            n_begun: 0,
            failed: None,
            left: None,
            closing: None,
            has_closed,
        })
    }

    /// Serves until this rank is done and the others are, too. Whoever is not heard of in time ends the whole job.
    pub fn serve(mut self, commands: Receiver<Command>) {
        loop {
            let command = next(&commands, self.patience());
            let now = self.clock.now();
            let obeyed = match command {
                Ok(command) => self.obey(command, now),
                // Nobody is left to ask: the handle is gone.
                Err(true) if self.closing.is_none() => self.obey(Command::Close, now),
                Err(_) => Ok(()),
            };
            let step = obeyed.and_then(|()| self.look(now)).and_then(|()| self.running.advance());
            if let Err(message) = step {
                self.end_job(&format!("MPI says: {message}"));
            }
            match self.over(now) {
                Some(End::Finished) => return,
                Some(End::Failed) => {
                    std::thread::sleep(FORWARDED_WITHIN);
                    abort(&self.notices)
                }
                None => {}
            }
        }
    }

    /// How long the thread sleeps now, unless a command wakes it.
    fn patience(&mut self) -> Duration {
        let begun = self.running.oldest().map(|oldest| oldest.since);
        let Some(since) = begun.or(self.closing.as_ref().map(|closing| closing.since)) else { return IDLE };
        let age = self.clock.now().saturating_sub(since);
        if age < EAGER { Duration::ZERO } else { (age / PAUSE_PART).clamp(PAUSES.0, PAUSES.1) }
    }

    fn obey(&mut self, command: Command, now: Duration) -> RawResult<()> {
        match command {
            Command::Begin { name, task, reply } => {
                self.begin(name, task, reply, now);
                Ok(())
            }
            Command::Fail(text) => {
                if self.failed.is_none() {
                    self.tell_all(&Notice::Failed { rank: self.place.rank, text: text.clone() })?;
                    self.fail(text);
                }
                Ok(())
            }
            Command::Close => {
                if self.failed.is_some() {
                    self.has_closed[self.place.rank] = true;
                    self.tell_all(&Notice::Closed { rank: self.place.rank })?;
                } else {
                    self.n_begun += 1;
                    self.running.ask("the end of the job".into(), self.n_begun, now, Task::Barrier, None);
                }
                self.closing = Some(Closing { since: now, is_told: self.failed.is_some() });
                Ok(())
            }
        }
    }

    fn begin(&mut self, name: String, task: Task, reply: Sender<Reply>, now: Duration) {
        if let Some(text) = &self.failed {
            // Nobody may listen any more.
            let _ = reply.send(Err(text.clone()));
            return;
        }
        self.n_begun += 1;
        self.running.ask(name, self.n_begun, now, task, Some(reply));
        if let Some(rank) = self.left {
            self.fail(left_early(rank));
        }
    }

    /// Signs of life, notices, deadlines.
    fn look(&mut self, now: Duration) -> RawResult<()> {
        for at in (0..self.sending.len()).rev() {
            if self.sending[at].1.test()? {
                self.sending.swap_remove(at);
            }
        }
        if self.place.n_ranks > 1 && now >= self.beat_at {
            self.beat_at = now + (self.place.timeout / 40).clamp(Duration::from_millis(20), Duration::from_secs(1));
            let to = self.signs.beat(self.n_begun, now);
            // One message at most waits for a rank that does not take any.
            if !self.sending.iter().any(|(rank, _)| *rank == to) {
                let bytes = Notice::Signs(self.signs.bytes()).bytes();
                self.sending.push((to, self.notices.send(bytes, to)?));
            }
        }
        while let Some(mut open) = self.open.take() {
            if !open.test()? {
                self.open = Some(open);
                break;
            }
            let notice = Notice::read(&open.received());
            self.open = Some(self.notices.receive(Notice::most_bytes(self.place.n_ranks))?);
            self.take_in(notice, now);
        }
        if self.failed.is_none() {
            self.check_deadlines(now);
        }
        Ok(())
    }

    fn take_in(&mut self, notice: Option<Notice>, now: Duration) {
        match notice {
            Some(Notice::Signs(bytes)) => self.signs.hear(&bytes, now),
            Some(Notice::Failed { rank, text }) => self.fail(format!("rank {rank}: {text}")),
            Some(Notice::Left { rank }) if self.closing.is_none() => {
                self.left = Some(rank);
                if !self.running.is_empty() {
                    self.fail(left_early(rank));
                }
            }
            Some(Notice::Closed { rank }) => {
                if let Some(closed) = self.has_closed.get_mut(rank) {
                    *closed = true;
                }
            }
            // Who is done itself need not know, and what cannot be read is not ours.
            Some(Notice::Left { .. }) | None => {}
        }
    }

    fn check_deadlines(&mut self, now: Duration) {
        let limit = self.place.timeout.mul_f64(NOTICED);
        let oldest = self.running.oldest();
        let late = oldest.filter(|oldest| now.saturating_sub(oldest.since) > limit);
        // Whoever stops in the middle of a collective was heard of a little later than the collective began: once that is
        // late, half of the limit is silence enough to be the reason.
        let silent = self.signs.silent(if late.is_some() { limit / 2 } else { limit }, now);
        let waits = oldest.map(|r| format!(" ({} #{} waits)", r.name, r.number));
        if let Some((_, longest)) = silent.iter().max_by_key(|(_, silence)| *silence) {
            let ranks: Vec<usize> = silent.iter().map(|(rank, _)| *rank).collect();
            let why = format!("{} gave no sign for {} seconds", named(&ranks), longest.as_secs());
            self.end_job(&format!("{why}{}", waits.unwrap_or_default()));
        }
        if let Some(late) = late {
            let seconds = (now - late.since).as_secs();
            let behind = self.signs.behind(late.number);
            let who = match behind.is_empty() {
                true => "all ranks are alive and take part in it; the network may be cut or too slow".to_string(),
                false => format!("{} gave no sign of taking part, although alive", named(&behind)),
            };
            self.end_job(&format!("{} #{} has not ended after {seconds} seconds: {who}", late.name, late.number));
        }
    }

    /// Whatever waits is answered with this, and so is all that is asked for later. What MPI still has is left to it.
    fn fail(&mut self, text: String) {
        if self.failed.is_some() {
            return;
        }
        self.running.fail(&text);
        if self.closing.is_some() {
            eprintln!("lazuli-mpi: rank {} of {} on {}: {text}", self.place.rank, self.place.n_ranks, self.place.host);
        }
        self.failed = Some(text);
    }

    fn tell_all(&mut self, notice: &Notice) -> RawResult<()> {
        for rank in (0..self.place.n_ranks).filter(|rank| *rank != self.place.rank) {
            self.sending.push((rank, self.notices.send(notice.bytes(), rank)?));
        }
        Ok(())
    }

    /// Whether this rank is done and needs to wait for nobody.
    fn over(&mut self, now: Duration) -> Option<End> {
        let (since, is_told) = self.closing.as_ref().map(|closing| (closing.since, closing.is_told))?;
        if self.failed.is_none() && self.running.is_empty() {
            if let Some(open) = self.open.take() {
                open.cancel();
            }
            return Some(End::Finished);
        }
        if !is_told && now.saturating_sub(since) > Duration::from_secs(1) {
            let own = self.place.rank;
            let notice = match self.failed {
                None => Notice::Left { rank: own },
                Some(_) => {
                    self.has_closed[own] = true;
                    Notice::Closed { rank: own }
                }
            };
            if let Err(message) = self.tell_all(&notice) {
                self.end_job(&format!("MPI says: {message}"));
            }
            self.closing = Some(Closing { since, is_told: true });
        }
        let all_closed = self.has_closed.iter().all(|closed| *closed) && self.sending.is_empty();
        let is_late = now.saturating_sub(since) > GRACE.min(self.place.timeout / 4);
        (self.failed.is_some() && (all_closed || is_late)).then_some(End::Failed)
    }

    /// Says why, and ends all processes of the job; this one ends even if MPI does not do it.
    fn end_job(&self, why: &str) -> ! {
        let Place { rank, n_ranks, host, timeout } = &self.place;
        eprintln!("lazuli-mpi: rank {rank} of {n_ranks} on {host}: {why}; the job ends");
        std::thread::sleep(moment_for_others(*timeout));
        abort(&self.notices)
    }
}

/// The next command, if one comes within so long; it wakes the thread at once. Otherwise, whether none can come any more.
fn next(commands: &Receiver<Command>, patience: Duration) -> Result<Command, bool> {
    if patience.is_zero() {
        // What is waited for may need this core: ranks can be more than cores.
        std::thread::yield_now();
    }
    commands.recv_timeout(patience).map_err(|error| {
        let is_gone = error == RecvTimeoutError::Disconnected;
        if is_gone {
            std::thread::sleep(patience);
        }
        is_gone
    })
}

/// How long a rank that gives up waits before it ends the job, so that the others can notice and say so, too.
pub fn moment_for_others(timeout: Duration) -> Duration {
    (timeout / 20).min(Duration::from_secs(1))
}

/// Ends all processes of the job.
fn abort(comm: &Comm) -> ! {
    let last_resort = || {
        std::thread::sleep(ABORTS_WITHIN);
        exit_now(1)
    };
    // Without a thread there is only MPI's own way.
    let _ = std::thread::Builder::new().name("lazuli-mpi-end".into()).spawn(last_resort);
    comm.abort(1);
    exit_now(1)
}

fn left_early(rank: usize) -> String {
    format!("rank {rank} has ended its part of the job while others wait for it")
}

/// `rank 3`, `ranks 1, 2`.
fn named(ranks: &[usize]) -> String {
    const MOST: usize = 8;
    let list: Vec<String> = ranks.iter().take(MOST).map(usize::to_string).collect();
    let more = if ranks.len() > MOST { format!(" and {} more", ranks.len() - MOST) } else { String::new() };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, list.join(", "))
}
