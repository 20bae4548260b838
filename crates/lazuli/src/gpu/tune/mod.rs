//! Which variant of a product is fastest on a device: measured for a class of shapes, kept on disk for adapter and
//! driver. Nothing is measured unless it is asked for, by [`tune`] or by `LAZULI_TUNE`, so that first use takes no longer
//! than the pipelines it needs; until then products get their default. What is on disk is always used.

mod fill;
mod kept;
mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::interop::gpu_of;
use super::open_device::OpenDevice;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Kernel, MatmulArgs};
use crate::log::{self, Topic};
use crate::plan::{Launch, Plan};
use crate::target::variants::{Class, OperandLayout};
pub use kept::Tuning;
use trial::Trial;

/// When products are measured by themselves: `LAZULI_TUNE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuneMode {
    /// Never: the default.
    Off,
    /// At the first use of a class, for so long.
    FirstUse(Duration),
}

/// How long `LAZULI_TUNE=fast` and `full` look for a class. Whatever is being tried then is finished.
const FAST: Duration = Duration::from_secs(1);
const FULL: Duration = Duration::from_secs(10);

impl TuneMode {
    /// What the environment says. What it does not say clearly is `off`.
    pub fn of_environment() -> TuneMode {
        let known = [("off", TuneMode::Off), ("fast", TuneMode::FirstUse(FAST)), ("full", TuneMode::FirstUse(FULL))];
        log::choice("LAZULI_TUNE", &known).unwrap_or(TuneMode::Off)
    }
}

/// What was found for one class of products.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TuneStep {
    /// How many classes there are.
    pub total: usize,
    /// How many are done with this one.
    pub done: usize,
    /// The class, for people: `1×4096×4096 f32·f32ᵀ`.
    pub class: String,
    /// The variant that won; None if the budget was spent before there was anything to choose from.
    pub variant: Option<String>,
    /// How many times as fast it is as the default.
    pub speedup: f64,
    /// Candidates that were tried.
    pub tried: usize,
    /// Those of them that gave wrong results on this device.
    pub wrong: usize,
}

/// Measures the variants of the products that models are made of, within a budget, and keeps what is found on disk:
/// from then on every program of this user gets it. `reported` hears of every class; `false` ends it. A variant that gives
/// a wrong result on this device never wins. Plans that were made before keep what they have.
///
/// ```no_run
/// use std::time::Duration;
/// let gpu = lazuli::Device::gpu()?;
/// lazuli::gpu::tune(&gpu, Duration::from_secs(60), |step| {
///     println!("{}: {:?}, {:.2} times as fast", step.class, step.variant, step.speedup);
///     true
/// })?;
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn tune(device: &Device, budget: Duration, mut reported: impl FnMut(&TuneStep) -> bool) -> Result<()> {
    let live = gpu_of("tune", device)?.shared.live()?;
    let classes = common_classes();
    let (start, total) = (Instant::now(), classes.len());
    if !budget.is_zero() {
        // Defaults depend on it, and variants are compared with defaults.
        live.tuning.note_full_groups(fill::full_groups(&live)?);
    }
    for (i, class) in classes.into_iter().enumerate() {
        let mut step =
            TuneStep { total, done: i + 1, class: name_of(&class), variant: None, speedup: 1.0, tried: 0, wrong: 0 };
        let left = budget.saturating_sub(start.elapsed());
        if !left.is_zero() {
            // What one class does not need is there for the others.
            let found = Trial::new(&live, class)?.best(left / (total - i) as u32)?;
            (step.speedup, step.tried, step.wrong) = (found.speedup, found.tried, found.wrong);
            // One candidate alone has nothing to win against.
            if let Some(variant) = found.variant.filter(|_| found.tried > 1) {
                step.variant = Some(variant.name.to_string());
                live.tuning.note(class, variant);
            }
        }
        if !reported(&step) {
            break;
        }
    }
    live.tuning.save();
    Ok(())
}

/// Measures how many workgroups of 64 invocations keep a GPU busy, and keeps that on disk as [`tune`] keeps what it finds: a
/// product that starts fewer has its sums cut into parts from then on. It takes less than a second or two.
///
/// ```no_run
/// let gpu = lazuli::Device::gpu()?;
/// println!("{} workgroups fill it", lazuli::gpu::measure_full_groups(&gpu)?);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn measure_full_groups(device: &Device) -> Result<usize> {
    let live = gpu_of("measure_full_groups", device)?.shared.live()?;
    let n_groups = fill::full_groups(&live)?;
    live.tuning.note_full_groups(n_groups);
    live.tuning.save();
    Ok(n_groups)
}

/// Measures what a plan needs and nobody has measured, if the environment asks for that.
pub fn first_use(live: &Arc<OpenDevice>, plan: &Plan) {
    let TuneMode::FirstUse(budget) = live.tuning.mode else { return };
    let mut is_new = false;
    for launch in plan.launches.iter().flat_map(Launch::each) {
        let (Kernel::Matmul(body), Some(matmul)) = (&launch.kernel, &launch.args.matmul) else { continue };
        let Some(class) = Class::of(matmul, [body.inputs[0], body.inputs[1]]) else { continue };
        if live.tuning.knows(&class) {
            continue;
        }
        match Trial::new(live, class).and_then(|trial| trial.best(budget)) {
            Ok(found) => {
                // A class in which nothing could be measured is not tried again in this run.
                live.tuning.note(class, found.variant.unwrap_or(found.default));
                is_new = true;
            }
            Err(error) => log::show(Topic::Tune, || format!("{} was not tuned: {error}", name_of(&class))),
        }
    }
    if is_new {
        live.tuning.save();
    }
}

/// The products that models are made of, most used first: few rows and many, weights stored both ways.
fn common_classes() -> Vec<Class> {
    let mut classes = Vec::new();
    for size in [1024, 2048, 4096, 256] {
        for m in [1, 8, 64, 1024, 256] {
            for transposed in [true, false] {
                let lies = |transposed| OperandLayout { dtype: DType::F32, transposed };
                classes.push(Class { batch: 1, m, k: size, n: size, a: lies(false), b: lies(transposed) });
            }
        }
    }
    classes
}

fn name_of(class: &Class) -> String {
    let Class { batch, m, k, n, a, b } = class;
    let batch = if *batch > 1 { format!("{batch}×") } else { String::new() };
    format!("{batch}{m}×{k}×{n} {a}·{b}")
}

/// Multiplications of a product.
fn n_products(matmul: &MatmulArgs) -> usize {
    matmul.batch.iter().product::<usize>() * matmul.m * matmul.k * matmul.n
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::adapters;
    use super::*;

    #[test]
    fn what_a_plan_needs_is_tuned_once_and_only_if_asked() {
        assert!(!adapters::found().is_empty(), "no GPU adapter was found");
        for found in adapters::found() {
            let mut live = found.live().unwrap();
            let class = Class { m: 2, k: 64, n: 64, ..common_classes()[0] };
            let plan = trial::plan(&class);
            for (mode, is_tuned) in [(TuneMode::Off, false), (TuneMode::FirstUse(Duration::ZERO), true)] {
                Arc::get_mut(&mut live).expect("nobody else has it").tuning = Tuning::in_memory(mode);
                first_use(&live, &plan);
                assert_eq!(live.tuning.knows(&class), is_tuned);
                let n_compiled = live.counters.pipelines_compiled.load(Ordering::Relaxed);
                first_use(&live, &plan);
                assert_eq!(live.counters.pipelines_compiled.load(Ordering::Relaxed), n_compiled);
            }
        }
    }

    #[test]
    fn common_classes_are_classes_of_their_products() {
        for class in common_classes() {
            assert_eq!(
                Class::of(&class.product(), [class.a.dtype.into(), class.b.dtype.into()]).map(|c| c.b),
                Some(class.b)
            );
        }
    }
}
