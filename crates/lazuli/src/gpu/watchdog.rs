//! How long launches take, roughly, so that no submit outlives a watchdog. Knows plans and cautious figures.

use crate::plan::{Explain, Plan};
use crate::target::Pace;

/// After which launches of a plan the command buffer is cut. The end is no cut.
pub fn cuts(plan: &Plan, pace: Option<Pace>) -> Vec<usize> {
    let Some(pace) = pace else { return Vec::new() };
    let seconds = |k: &crate::plan::KernelInfo| {
        let bytes = (k.bytes_read + k.bytes_written) as f64;
        (bytes / pace.bytes_per_second).max(k.flops as f64 / pace.flops_per_second)
    };
    let seconds: Vec<f64> = Explain::new(plan).kernels.iter().map(seconds).collect();
    cut_between(&seconds, pace.max_seconds)
}

/// Cuts so that each piece takes at most `max_seconds`, if none of its parts takes longer by itself.
fn cut_between(seconds: &[f64], max_seconds: f64) -> Vec<usize> {
    let mut cuts = Vec::new();
    let mut sum = 0.0;
    for (i, s) in seconds.iter().enumerate() {
        if i > 0 && sum + s > max_seconds {
            cuts.push(i - 1);
            sum = 0.0;
        }
        sum += s;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_plans_are_one_submit() {
        assert_eq!(cut_between(&[0.2, 0.3, 0.4], 1.0), []);
        assert_eq!(cut_between(&[], 1.0), []);
    }

    #[test]
    fn long_plans_are_cut_before_a_watchdog_bites() {
        assert_eq!(cut_between(&[0.6, 0.6, 0.3, 0.2], 1.0), [0, 2]);
        assert_eq!(cut_between(&[5.0, 5.0, 5.0], 1.0), [0, 1]);
    }
}
