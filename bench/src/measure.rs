//! Clocks and rounds. Contenders take turns within a round (A, B, C, A, B, C, …), so that whatever
//! else the machine does hits all of them. Knows nothing of what is computed.

use std::time::{Duration, Instant};

use crate::contender::{Case, Result};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds; each gives every runner one sample.
    pub n_rounds: usize,
    /// A sample repeats short calls until it lasts about this long.
    pub sample: Duration,
}

/// Per call, in milliseconds.
#[derive(Clone, Debug)]
pub struct Timing {
    pub best_ms: f64,
    pub median_ms: f64,
    /// Least CPU time of the whole process, all threads together: what others do to the caches only adds to it.
    pub cpu_ms: f64,
    /// The CPU time of each round.
    pub cpu_rounds: Vec<f64>,
}

/// A case that takes turns, with its samples so far. The first error ends its part.
pub struct Runner {
    pub contender: &'static str,
    case: Result<Box<dyn Case>>,
    calls_per_sample: usize,
    wall_ms: Vec<f64>,
    cpu_ms: Vec<f64>,
}

/// Gives each runner one sample per round, in turn.
pub fn run_in_turns(runners: &mut [Runner], effort: Effort) {
    for runner in &mut *runners {
        runner.warm_up(effort.sample);
    }
    for _ in 0..effort.n_rounds {
        for runner in &mut *runners {
            runner.sample();
        }
    }
}

impl Runner {
    pub fn new(contender: &'static str, case: Result<Box<dyn Case>>) -> Runner {
        Runner { contender, case, calls_per_sample: 1, wall_ms: Vec::new(), cpu_ms: Vec::new() }
    }

    /// The timing and the latest result's values, or what went wrong.
    pub fn finish(self) -> Result<(Timing, Vec<f32>)> {
        let result = self.case?.result()?;
        let timing = Timing {
            best_ms: least(&self.wall_ms),
            median_ms: median(self.wall_ms),
            cpu_ms: least(&self.cpu_ms),
            cpu_rounds: self.cpu_ms,
        };
        Ok((timing, result))
    }

    /// One sample: as many calls as fill it. An untimed call goes first, so that caches hold what
    /// this contender left there rather than what its neighbour did.
    fn sample(&mut self) {
        let Ok(case) = &mut self.case else { return };
        match time_calls(&mut **case, self.calls_per_sample) {
            Ok((wall_ms, cpu_ms)) => {
                self.wall_ms.push(wall_ms);
                self.cpu_ms.push(cpu_ms);
            }
            Err(error) => self.case = Err(error),
        }
    }

    /// Warms the case up and decides how many calls make a sample of the wanted length.
    fn warm_up(&mut self, sample: Duration) {
        let Ok(case) = &mut self.case else { return };
        match calls_to_fill(&mut **case, sample) {
            Ok(n_calls) => self.calls_per_sample = n_calls,
            Err(error) => self.case = Err(error),
        }
    }
}

/// Wall and CPU milliseconds per call.
fn time_calls(case: &mut dyn Case, n_calls: usize) -> Result<(f64, f64)> {
    case.call()?;
    let (wall, cpu) = (Instant::now(), process_cpu_time());
    for _ in 0..n_calls {
        case.call()?;
    }
    let (wall, cpu) = (wall.elapsed(), process_cpu_time().saturating_sub(cpu));
    let per_call = |time: Duration| time.as_secs_f64() * 1e3 / n_calls as f64;
    Ok((per_call(wall), per_call(cpu)))
}

/// Doubles the number of calls until they last as long as a sample should.
fn calls_to_fill(case: &mut dyn Case, sample: Duration) -> Result<usize> {
    let mut n_calls = 1;
    loop {
        let (wall_ms, _) = time_calls(case, n_calls)?;
        if wall_ms * n_calls as f64 >= sample.as_secs_f64() * 1e3 / 2.0 {
            return Ok(n_calls);
        }
        n_calls *= 2;
    }
}

fn least(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// CPU time of all threads of this process, running and ended.
#[cfg(unix)]
pub fn process_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the call writes nothing else.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "every unix has the process CPU clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Not measured elsewhere: the CPU column reads zero.
#[cfg(not(unix))]
pub fn process_cpu_time() -> Duration {
    Duration::ZERO
}
