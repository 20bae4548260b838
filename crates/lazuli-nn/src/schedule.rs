//! Learning rates as functions of the step.

/// Rises to `peak` over `warm_up` steps, then falls along half a cosine to `floor` at `total` steps.
///
/// ```
/// use lazuli_nn::schedule::warm_up_cosine;
/// assert_eq!(warm_up_cosine(4, 1.0, 10, 100, 0.0), 0.5);
/// assert_eq!(warm_up_cosine(10, 1.0, 10, 100, 0.0), 1.0);
/// assert!(warm_up_cosine(99, 1.0, 10, 100, 0.0) < 0.01);
/// ```
pub fn warm_up_cosine(step: u64, peak: f64, warm_up: u64, total: u64, floor: f64) -> f64 {
    if step < warm_up {
        return peak * (step + 1) as f64 / warm_up as f64;
    }
    let way = (step - warm_up) as f64 / total.saturating_sub(warm_up).max(1) as f64;
    floor + (peak - floor) * 0.5 * (1.0 + (std::f64::consts::PI * way.min(1.0)).cos())
}

/// Falls by `factor` every `every` steps.
///
/// ```
/// assert_eq!(lazuli_nn::schedule::steps(25, 1.0, 10, 0.5), 0.25);
/// ```
pub fn steps(step: u64, start: f64, every: u64, factor: f64) -> f64 {
    start * factor.powf((step / every.max(1)) as f64)
}
