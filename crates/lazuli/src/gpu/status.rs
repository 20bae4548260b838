//! Checks that kernels make while they run: an index out of range is noted in a few words of memory that travel back
//! after the run. Whoever reads what such a run made, or waits for the device, is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::fault::lost;
use super::memory::Staging;
use super::signal::Signal;
use crate::backend::{FailedCheck, Site};
use crate::dtype::DType;
use crate::error::Error;
use crate::kernel::{InstOp, Kernel};
use crate::plan::Plan;

/// What a check of a plan looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Check {
    /// Indices must stay below it.
    pub bound: usize,
    /// Whether the words noted are signed.
    pub signed: bool,
}

/// The outcome of the checks of one run.
pub struct Status {
    sites: Vec<Site>,
    checks: Arc<[Check]>,
    outcome: Mutex<Verdict>,
    /// Whether the words can be read.
    asked: Arc<Signal<bool>>,
    is_told: AtomicBool,
}

enum Verdict {
    /// The words are on their way; whether the run was submitted when they were asked for.
    Away(Staging, Submitted),
    Known(Option<Error>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Submitted {
    Yes,
    /// An application does so some day, or never.
    Maybe,
}

/// Bytes of memory that the checks of a plan need: two words for all, and two for each.
pub fn size_bytes(n_checks: usize) -> usize {
    8 + n_checks * 8
}

/// What that memory holds before a run: no failure, and no index that is least.
pub fn fresh_words(n_checks: usize) -> impl Iterator<Item = u32> {
    [0, 0].into_iter().chain((0..n_checks).flat_map(|_| [0, u32::MAX]))
}

/// What each check of a plan looks at.
pub fn checks(plan: &Plan) -> Arc<[Check]> {
    let mut checks = vec![Check::default(); plan.checks.len()];
    for launch in &plan.launches {
        match &launch.kernel {
            Kernel::Loop(body) | Kernel::Matmul(body) => {
                for inst in &body.insts {
                    if let InstOp::Gather { index, gather, .. } = inst.op {
                        let args = &launch.args.gathers[gather as usize];
                        let signed = body.insts[index as usize].dtype == DType::I32;
                        checks[args.check as usize] = Check { bound: args.bound, signed };
                    }
                }
            }
            // A chained product looks nothing up, nor do grouped ones.
            Kernel::Attention(_) | Kernel::Grouped(_) => {}
            // A routine that indexes does so along its first parameter's axis of its first input.
            Kernel::Routine(_) => {
                let Some(args) = &launch.args.routine else { continue };
                let bound = args.input_shapes.first().and_then(|s| s.get(args.params[0] as usize));
                if let (Some(bound), Some(check)) = (bound, checks.get_mut(args.check as usize))
                    && check.bound == 0
                {
                    *check = Check { bound: *bound, signed: true };
                }
            }
        }
    }
    checks.into()
}

impl Status {
    /// Of a run that is submitted: the words are read as soon as it is done.
    pub fn of_run(sites: &[Site], checks: &Arc<[Check]>, words: Staging) -> Arc<Status> {
        let asked = words.ask(size_bytes(checks.len()));
        Status::new(sites, checks, Verdict::Away(words, Submitted::Yes), asked)
    }

    /// Of a run that is in an encoder.
    pub fn of_encoder(
        sites: &[Site],
        checks: &Arc<[Check]>,
        words: Staging,
        encoder: &wgpu::CommandEncoder,
    ) -> Arc<Status> {
        let asked = words.ask_after(encoder, size_bytes(checks.len()));
        Status::new(sites, checks, Verdict::Away(words, Submitted::Maybe), asked)
    }

    fn new(sites: &[Site], checks: &Arc<[Check]>, outcome: Verdict, asked: Arc<Signal<bool>>) -> Arc<Status> {
        Arc::new(Status {
            sites: sites.to_vec(),
            checks: checks.clone(),
            outcome: Mutex::new(outcome),
            asked,
            is_told: AtomicBool::new(false),
        })
    }

    /// What was found, if it is known yet: it is once somebody has waited for the run.
    pub fn known(&self) -> Option<Option<Error>> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match &*outcome {
            Verdict::Known(found) => return Some(found.clone()),
            Verdict::Away(words, submitted) => {
                let mut bytes = vec![0; size_bytes(self.checks.len())];
                // The answer first: what was refused may have been readable a moment before.
                let answer = self.asked.get();
                match (words.read(&mut bytes), answer, submitted) {
                    (true, ..) => self.first_failure(&bytes),
                    (false, Some(false), Submitted::Yes) => Some(lost("compute", "the device was lost during the run")),
                    // A run that never happens finds nothing.
                    (false, Some(false), Submitted::Maybe) => words.live().lost(),
                    (false, ..) => return None,
                }
            }
        };
        *outcome = Verdict::Known(found.clone());
        Some(found)
    }

    /// Notes that somebody was told of what was found.
    pub fn reported(&self) {
        self.is_told.store(true, Ordering::Relaxed);
    }

    /// Whether somebody was.
    pub fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// What is found, once it is known.
    pub async fn wait(&self) -> Option<Error> {
        self.asked.wait().await;
        self.known().flatten()
    }

    fn first_failure(&self, words: &[u8]) -> Option<Error> {
        let words: Vec<u32> = words.as_chunks().0.iter().map(|w| u32::from_ne_bytes(*w)).collect();
        let failed = |(i, pair): (usize, &[u32; 2])| {
            let Check { bound, signed } = self.checks[i];
            let index = if signed { pair[1] as i32 as i64 } else { pair[1] as i64 };
            (pair[0] != 0).then(|| self.sites[i].error(FailedCheck { check: i as u32, index, bound }))
        };
        words.as_chunks().0.iter().skip(1).enumerate().take(self.checks.len()).find_map(failed)
    }
}
