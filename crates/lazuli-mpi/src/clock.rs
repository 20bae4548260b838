//! A clock for deadlines, which stands still while the process is suspended. Knows nothing of what waits.

use std::time::{Duration, Instant};

/// Counts the time in which this process could run: if all of a job is suspended for a while, nobody has been silent.
pub struct AwakeClock {
    last: Instant,
    awake: Duration,
}

impl AwakeClock {
    /// Starts at 0.
    pub fn new() -> AwakeClock {
        AwakeClock { last: Instant::now(), awake: Duration::ZERO }
    }

    /// The time so far. Whoever waits asks at least once a second: a longer gap is taken for a suspension.
    pub fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.awake += (now - self.last).min(Duration::from_secs(1));
        self.last = now;
        self.awake
    }
}
