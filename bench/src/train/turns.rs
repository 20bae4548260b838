//! Rounds: everyone makes some steps, then the next one does, so that whatever else the machine does hits all of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::process::Process;
use super::report::Row;
use super::{Local, Net, Trainer};
use crate::contender::Result;
use crate::measure::{median, process_cpu_time};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Effort {
    pub n_rounds: usize,
    pub n_threads: usize,
    /// Where Lazuli runs, as `Device::open` takes it.
    pub device: String,
    /// Commands that start other processes with peers.
    pub peers: Vec<String>,
}

/// Losses are compared after this many steps from the same weights.
const CHECKED_STEPS: usize = 10;
/// A sample takes about this long.
const SAMPLE_MS: f64 = 20.0;

/// Who makes steps.
enum Contender {
    Here(Box<dyn Trainer>),
    There(Rc<RefCell<Process>>, String),
}

impl Contender {
    /// Wall and CPU milliseconds of some steps, and the last loss.
    fn steps(&mut self, net: Net, n_steps: usize) -> Result<[f64; 3]> {
        match self {
            Contender::There(process, peer) => process.borrow_mut().steps(peer, net.name(), n_steps),
            Contender::Here(trainer) => {
                let (wall, cpu, mut loss) = (Instant::now(), process_cpu_time(), f32::NAN);
                for _ in 0..n_steps {
                    loss = trainer.step()?;
                }
                let (wall, cpu) = (wall.elapsed(), process_cpu_time().saturating_sub(cpu));
                Ok([wall.as_secs_f64() * 1e3, cpu.as_secs_f64() * 1e3, loss as f64])
            }
        }
    }
}

/// One contender's samples so far.
struct Runner {
    name: String,
    contender: Result<Contender>,
    loss: f64,
    n_steps: usize,
    wall_ms: Vec<f64>,
    cpu_ms: Vec<f64>,
}

/// Everyone on one net.
pub fn measure(net: Net, locals: &[Local], effort: &Effort) -> Result<Vec<Row>> {
    let mut contenders: Vec<(String, Result<Contender>)> =
        locals.iter().map(|(name, make)| (name.to_string(), make(net, &effort.device).map(Contender::Here))).collect();
    for command in &effort.peers {
        let (process, peers) = Process::start(command, effort.n_threads)?;
        let process = Rc::new(RefCell::new(process));
        contenders.extend(peers.into_iter().map(|peer| (peer.clone(), Ok(Contender::There(process.clone(), peer)))));
    }
    let mut runners: Vec<Runner> = contenders.into_iter().map(|(name, c)| Runner::new(name, c)).collect();
    for runner in &mut runners {
        runner.warm_up(net);
    }
    for _ in 0..effort.n_rounds {
        for runner in &mut runners {
            runner.sample(net);
        }
    }
    let first = runners.first().map_or(f64::NAN, |first| first.loss);
    Ok(runners.into_iter().map(|runner| runner.row(net, first)).collect())
}

impl Runner {
    fn new(name: String, contender: Result<Contender>) -> Runner {
        Runner { name, contender, loss: f64::NAN, n_steps: 1, wall_ms: Vec::new(), cpu_ms: Vec::new() }
    }

    fn steps(&mut self, net: Net, n_steps: usize) -> Option<[f64; 3]> {
        match self.contender.as_mut().ok()?.steps(net, n_steps) {
            Ok(numbers) => Some(numbers),
            Err(error) => {
                self.contender = Err(error);
                None
            }
        }
    }

    fn warm_up(&mut self, net: Net) {
        let Some([_, _, loss]) = self.steps(net, CHECKED_STEPS) else { return };
        self.loss = loss;
        if let Some([wall_ms, ..]) = self.steps(net, 4) {
            self.n_steps = (SAMPLE_MS / (wall_ms / 4.0)).ceil().clamp(1.0, 100.0) as usize;
        }
    }

    /// One untimed step goes first: caches then hold what this contender left there.
    fn sample(&mut self, net: Net) {
        let n_steps = self.n_steps;
        if self.steps(net, 1).is_some()
            && let Some([wall_ms, cpu_ms, _]) = self.steps(net, n_steps)
        {
            self.wall_ms.push(wall_ms / n_steps as f64);
            self.cpu_ms.push(cpu_ms / n_steps as f64);
        }
    }

    fn row(self, net: Net, first_loss: f64) -> Row {
        let error = self.contender.err();
        // Sums in another order, ten steps long; a wrong gradient is off in the second digit.
        let agrees = (self.loss - first_loss).abs() <= 2e-3 * first_loss.abs();
        let least = |ms: &[f64]| ms.iter().copied().fold(f64::INFINITY, f64::min);
        Row {
            net: net.name().into(),
            contender: self.name,
            best_ms: least(&self.wall_ms),
            best_cpu_ms: least(&self.cpu_ms),
            cpu_ms: median(self.cpu_ms),
            loss: self.loss,
            verdict: match error {
                Some(error) => format!("error: {error}"),
                None if agrees => "ok".into(),
                None => "DIFFERS".into(),
            },
        }
    }
}
