//! How many workgroups keep a device busy: measured with a product, of which more and more workgroups are started. While the
//! device has room, more of them take no longer; once it is full, twice as many take twice as long.

use std::sync::Arc;
use std::time::Duration;

use super::trial::Trial;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::open_device::OpenDevice;
use crate::log::{self, Topic};
use crate::target::variants::{Class, OperandLayout, named};

/// The variant that is started: its workgroups have 64 invocations, and as many registers and as much workgroup memory as
/// those of other products.
const VARIANT: &str = "4x4 of 32x32, 16 deep";
/// Dispatches of a measurement, one after another: what it costs to hand them over counts little.
const N_TIMES: usize = 16;
/// What takes longer is not doubled any more.
const LONGEST: Duration = Duration::from_millis(100);
/// A device is full where it does this share of the most that it does.
const FULL: f64 = 0.9;

/// Workgroups of 64 invocations that keep the device busy.
pub fn full_groups(live: &Arc<OpenDevice>) -> Result<usize> {
    let lies = OperandLayout { dtype: DType::F32, transposed: false };
    let trial = Trial::new(live, Class { batch: 1, m: 1024, k: 1024, n: 1024, a: lies, b: lies })?;
    let variant =
        named(VARIANT).ok_or_else(|| Error::unsupported("tune", format!("no variant is called {VARIANT}")))?;
    let mut rates: Vec<(usize, f64)> = Vec::new();
    // All that the product has are 1024.
    for n_groups in (0..10).flat_map(|i| [1 << i, 3 << i >> 1]).filter(|n| *n > 1).chain([1024]) {
        let seconds = trial.seconds_of_groups(variant, n_groups, N_TIMES)?;
        log::show(Topic::Tune, || format!("{n_groups} workgroups take {:.3} ms", seconds * 1e3 / N_TIMES as f64));
        rates.push((n_groups, n_groups as f64 / seconds));
        if seconds > LONGEST.as_secs_f64() {
            break;
        }
    }
    Ok(full_of(&rates))
}

/// The fewest workgroups that do about as many a second as any number does.
fn full_of(rates: &[(usize, f64)]) -> usize {
    let most = rates.iter().fold(0.0, |most: f64, (_, rate)| most.max(*rate));
    rates.iter().find(|(_, rate)| *rate >= FULL * most).map_or(1, |(n_groups, _)| *n_groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::adapters;

    #[test]
    fn a_device_is_full_where_more_workgroups_take_longer() {
        // Room for 96 workgroups, and a little time that it takes to start any.
        let seconds = |n: usize| 1e-6 + 20e-6 * n.div_ceil(96) as f64;
        let sizes = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
        assert_eq!(full_of(&sizes.map(|n| (n, n as f64 / seconds(n)))), 96);
        // Each takes as long as the last one: the fewest fill it.
        assert_eq!(full_of(&sizes.map(|n| (n, 1e3))), 2);
        assert_eq!(full_of(&[]), 1);
    }

    #[test]
    fn what_fills_a_device_is_measured() {
        for found in adapters::found() {
            let n_groups = full_groups(&found.live().unwrap()).unwrap();
            assert!((1..=1024).contains(&n_groups), "{n_groups}");
        }
    }
}
