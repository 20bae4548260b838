//! Losses: how far a prediction is from what was wanted, as one number, the mean over all elements or rows. Each loss has a
//! twin whose name ends in `_with` and which takes options: weights, what is made of the losses of all elements
//! ([`Reduction`]), and for labels one that does not count. Weights and reductions are applied in one place, `reduced`.

use lazuli::{DType, Result, Tensor};

use crate::fault;

/// What is made of the losses of all elements or rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The mean of the losses; with weights the weighted mean, Σ w·loss / Σ w.
    #[default]
    Mean,
    /// The sum of the losses, each times its weight.
    Sum,
    /// All of them, each by its weight.
    None,
}

/// Options of losses that compare element by element: [`mse_with`], [`l1_with`], [`huber_with`], [`bce_with_logits_with`], and
/// row by row: [`kl_with`].
///
/// ```
/// # use lazuli_nn::loss::{LossOptions, Reduction};
/// let options = LossOptions { reduction: Reduction::Sum, ..LossOptions::default() };
/// assert!(options.weight.is_none());
/// ```
#[derive(Clone, Default)]
pub struct LossOptions {
    /// By how much each element counts, or each row; it broadcasts to the losses.
    pub weight: Option<Tensor>,
    /// What is made of the losses.
    pub reduction: Reduction,
}

/// Options of losses of integer labels: [`cross_entropy_with`] and [`nll_with`].
///
/// ```
/// # use lazuli_nn::loss::{CrossEntropy, Reduction};
/// let options = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
/// assert_eq!(options.reduction, Reduction::Mean);
/// ```
#[derive(Clone, Default)]
pub struct CrossEntropy {
    /// One number for each class, by which its rows count.
    pub weight: Option<Tensor>,
    /// A label whose rows do not count.
    pub ignore_index: Option<i32>,
    /// The part of the weight that is spread over all classes alike.
    pub smoothing: f32,
    /// What is made of the losses of all rows.
    pub reduction: Reduction,
}

/// The mean of `(x − y)²`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 4.0], [2], &Device::cpu()), Tensor::scalar(2.0, &Device::cpu()));
/// assert_eq!(lazuli_nn::loss::mse(&x, &y).item::<f32>()?, 2.5);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn mse(x: &Tensor, y: &Tensor) -> Tensor {
    mse_with(x, y, &LossOptions::default())
}

/// [`mse`] with weights and a reduction.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::loss::{LossOptions, Reduction, mse_with};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 4.0], [2], &Device::cpu()), Tensor::scalar(2.0, &Device::cpu()));
/// let options = LossOptions { reduction: Reduction::None, ..LossOptions::default() };
/// assert_eq!(mse_with(&x, &y, &options).to_vec::<f32>()?, [1.0, 4.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn mse_with(x: &Tensor, y: &Tensor, options: &LossOptions) -> Tensor {
    paired("mse", x, y, options, |x, y| x.sub(y).square())
}

/// The mean of `|x − y|`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 4.0], [2], &Device::cpu()), Tensor::scalar(2.0, &Device::cpu()));
/// assert_eq!(lazuli_nn::loss::l1(&x, &y).item::<f32>()?, 1.5);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn l1(x: &Tensor, y: &Tensor) -> Tensor {
    l1_with(x, y, &LossOptions::default())
}

/// [`l1`] with weights and a reduction.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::loss::{LossOptions, Reduction, l1_with};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 4.0], [2], &Device::cpu()), Tensor::scalar(2.0, &Device::cpu()));
/// let options = LossOptions { reduction: Reduction::None, ..LossOptions::default() };
/// assert_eq!(l1_with(&x, &y, &options).to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn l1_with(x: &Tensor, y: &Tensor, options: &LossOptions) -> Tensor {
    paired("l1", x, y, options, |x, y| x.sub(y).abs())
}

/// Huber's: square near zero, straight beyond `delta`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let (x, y) = (Tensor::from_slice(&[1.5f32, 4.0], [2], &Device::cpu()), Tensor::scalar(1.0, &Device::cpu()));
/// assert_eq!(lazuli_nn::loss::huber(&x, &y, 1.0).item::<f32>()?, (0.125 + 2.5) / 2.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn huber(x: &Tensor, y: &Tensor, delta: f32) -> Tensor {
    huber_with(x, y, delta, &LossOptions::default())
}

/// [`huber`] with weights and a reduction. The mean is by weights here, too; PyTorch divides by the number of elements.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::loss::{LossOptions, Reduction, huber_with};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 4.0], [2], &Device::cpu()), Tensor::scalar(2.0, &Device::cpu()));
/// let options = LossOptions { reduction: Reduction::None, ..LossOptions::default() };
/// assert_eq!(huber_with(&x, &y, 1.0, &options).to_vec::<f32>()?, [0.5, 1.5]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn huber_with(x: &Tensor, y: &Tensor, delta: f32, options: &LossOptions) -> Tensor {
    paired("huber", x, y, options, |x, y| {
        let far = x.sub(y).abs();
        far.le(delta).select(far.square().mul(0.5), far.sub(0.5 * delta).mul(delta))
    })
}

/// Cross-entropy of logits `[…, classes]` with integer labels `[…]`. A label that is no class makes the loss NaN.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// let cpu = Device::cpu();
/// let labels = Tensor::from_slice(&[0, 2], [2], &cpu);
/// let even = lazuli_nn::loss::cross_entropy(&Tensor::zeros([2, 4], DType::F32, &cpu), &labels);
/// assert!((even.item::<f32>()? - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    cross_entropy_with(logits, labels, &CrossEntropy::default())
}

/// [`cross_entropy`] with `smoothing` of the weight spread over all classes alike.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let (logits, labels) = (Tensor::rand([2, 4], 1, &cpu), Tensor::from_slice(&[0, 2], [2], &cpu));
/// let smooth = lazuli_nn::loss::smooth_cross_entropy(&logits, &labels, 0.1).item::<f32>()?;
/// assert!(smooth.is_finite());
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn smooth_cross_entropy(logits: &Tensor, labels: &Tensor, smoothing: f32) -> Tensor {
    cross_entropy_with(logits, labels, &CrossEntropy { smoothing, ..CrossEntropy::default() })
}

/// [`cross_entropy`] with weights of classes, a label to ignore, smoothing, and a reduction. If all rows are ignored, the mean
/// is NaN.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// use lazuli_nn::loss::{CrossEntropy, Reduction, cross_entropy_with};
/// let cpu = Device::cpu();
/// let (logits, labels) = (Tensor::zeros([3, 4], DType::F32, &cpu), Tensor::from_slice(&[0, -1, 2], [3], &cpu));
/// let options = CrossEntropy { ignore_index: Some(-1), reduction: Reduction::Sum, ..CrossEntropy::default() };
/// let loss = cross_entropy_with(&logits, &labels, &options).item::<f32>()?;
/// assert!((loss - 2.0 * 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy_with(logits: &Tensor, labels: &Tensor, options: &CrossEntropy) -> Tensor {
    labelled("cross_entropy", logits, labels, options, |logits| logits.log_softmax(-1))
}

/// The negative log-likelihood of integer labels under log-probabilities `[…, classes]`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let (logits, labels) = (Tensor::rand([2, 4], 1, &cpu), Tensor::from_slice(&[0, 2], [2], &cpu));
/// let nll = lazuli_nn::loss::nll(&logits.log_softmax(-1), &labels).item::<f32>()?;
/// assert_eq!(nll, lazuli_nn::loss::cross_entropy(&logits, &labels).item::<f32>()?);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Tensor {
    nll_with(log_probabilities, labels, &CrossEntropy::default())
}

/// [`nll`] with weights of classes, a label to ignore, smoothing, and a reduction.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// use lazuli_nn::loss::{CrossEntropy, nll_with};
/// let cpu = Device::cpu();
/// let (log_p, labels) = (Tensor::full([3, 4], -2.0f32, &cpu), Tensor::from_slice(&[0, -1, 2], [3], &cpu));
/// let options = CrossEntropy { ignore_index: Some(-1), ..CrossEntropy::default() };
/// assert_eq!(nll_with(&log_p, &labels, &options).item::<f32>()?, 2.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn nll_with(log_probabilities: &Tensor, labels: &Tensor, options: &CrossEntropy) -> Tensor {
    labelled("nll", log_probabilities, labels, options, Tensor::clone)
}

/// Binary cross-entropy of logits with targets between 0 and 1, in a form that does not overflow.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// let cpu = Device::cpu();
/// let even = lazuli_nn::loss::bce_with_logits(&Tensor::zeros([3], DType::F32, &cpu), &Tensor::ones([3], DType::F32, &cpu));
/// assert!((even.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, targets: &Tensor) -> Tensor {
    bce_with_logits_with(logits, targets, &LossOptions::default())
}

/// [`bce_with_logits`] with weights and a reduction. The mean is by weights here, too; PyTorch divides by the
/// number of elements.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// # use lazuli_nn::loss::{LossOptions, bce_with_logits_with};
/// let cpu = Device::cpu();
/// let (logits, targets) = (Tensor::from_slice(&[0.0f32, 9.0], [2], &cpu), Tensor::ones([2], DType::F32, &cpu));
/// let options = LossOptions { weight: Some(Tensor::from_slice(&[1.0f32, 0.0], [2], &cpu)), ..LossOptions::default() };
/// assert!((bce_with_logits_with(&logits, &targets, &options).item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn bce_with_logits_with(logits: &Tensor, targets: &Tensor, options: &LossOptions) -> Tensor {
    // −y·ln σ(x) − (1 − y)·ln(1 − σ(x)) = softplus(x) − x·y
    paired("bce_with_logits", logits, targets, options, |x, y| x.softplus().sub(x.mul(y)))
}

/// The Kullback-Leibler divergence of log-probabilities from target probabilities `[…, classes]`, per row.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let p = Tensor::rand([2, 4], 1, &Device::cpu()).softmax(-1);
/// assert!(lazuli_nn::loss::kl(&p.log(), &p).item::<f32>()?.abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn kl(log_probabilities: &Tensor, targets: &Tensor) -> Tensor {
    kl_with(log_probabilities, targets, &LossOptions::default())
}

/// [`kl`] with weights and a reduction.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::loss::{LossOptions, Reduction, kl_with};
/// let p = Tensor::rand([2, 4], 1, &Device::cpu()).softmax(-1);
/// let options = LossOptions { reduction: Reduction::None, ..LossOptions::default() };
/// assert_eq!(kl_with(&p.log(), &p, &options).shape()?, [2]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn kl_with(log_probabilities: &Tensor, targets: &Tensor, options: &LossOptions) -> Tensor {
    paired("kl", log_probabilities, targets, options, |log_p, y| {
        // 0·ln 0 = 0
        let own = y.gt(0.0).select(y.mul(y.maximum(f32::MIN_POSITIVE).log()), 0.0);
        own.sub(y.mul(log_p)).sum(-1)
    })
}

/// What is made of the losses of all elements or rows, and the number by which each counts.
#[track_caller]
fn reduced(losses: Tensor, weights: Option<Tensor>, reduction: Reduction) -> Tensor {
    match (reduction, weights) {
        (Reduction::Mean, None) => losses.mean(..),
        // Weights of rows or columns count for each of their elements.
        (Reduction::Mean, Some(weights)) => losses.sum(..).div(losses.zeros_like().add(&weights).sum(..)),
        (Reduction::Sum, _) => losses.sum(..),
        (Reduction::None, _) => losses,
    }
}

/// A loss of two tensors whose shapes go together, made of the losses of all elements or rows.
#[track_caller]
fn paired(
    op: &str,
    x: &Tensor,
    y: &Tensor,
    options: &LossOptions,
    losses: impl FnOnce(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    let _caller = fault::caller();
    let fit = |x: &[usize], y: &[usize]| x.iter().rev().zip(y.iter().rev()).all(|(a, b)| a == b || *a == 1 || *b == 1);
    match (x.shape(), y.shape()) {
        (Ok(seen), Ok(wanted)) if !fit(seen, wanted) => {
            let message = format!("predictions {seen:?} and targets {wanted:?} differ; give both one shape");
            fault::shape(op, message).into()
        }
        (Err(error), _) | (_, Err(error)) => error.into(),
        _ => {
            // In f32, rounded once: half floats would overflow, and differences of theirs have no digits left.
            let losses = losses(&x.to_dtype(DType::F32), &y.to_dtype(DType::F32));
            let loss = match &options.weight {
                Some(weight) => match fit_weights(op, &losses, weight) {
                    Ok(weight) => reduced(losses.mul(&weight), Some(weight), options.reduction),
                    Err(error) => error.into(),
                },
                None => reduced(losses, None, options.reduction),
            };
            in_dtype_of(x, Some(y), loss)
        }
    }
}

/// Weights, broadcast to the shape of the losses; an error if the losses would have to be broadcast as well.
#[track_caller]
fn fit_weights(op: &str, losses: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (seen, given) = (losses.shape()?, weight.shape()?);
    let fits = given.len() <= seen.len() && given.iter().rev().zip(seen.iter().rev()).all(|(w, n)| w == n || *w == 1);
    match fits {
        true => Ok(weight.to_dtype(DType::F32)),
        false => Err(fault::shape(op, format!("weights {given:?} do not broadcast to losses {seen:?}"))),
    }
}

/// The part that losses of integer labels share: the loss of each label, given the logarithms of the classes' probabilities.
#[track_caller]
fn labelled(
    op: &str,
    predictions: &Tensor,
    labels: &Tensor,
    options: &CrossEntropy,
    log_p: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    let _caller = fault::caller();
    match fit_labels(op, predictions, labels).and_then(|()| fit_classes(op, predictions, options)) {
        Ok(()) => {
            let loss = likelihood(&log_p(&predictions.to_dtype(DType::F32)), labels, options);
            in_dtype_of(predictions, None, loss)
        }
        Err(error) => error.into(),
    }
}

/// Labels are integers, one for each row of classes.
#[track_caller]
fn fit_labels(op: &str, logits: &Tensor, labels: &Tensor) -> Result<()> {
    let (seen, shape, dtype) = (logits.shape()?, labels.shape()?, labels.dtype()?);
    let fits = matches!(seen, [lead @ .., _] if lead == shape);
    match fits && !dtype.is_float() {
        true => Ok(()),
        false => {
            let message =
                format!("wants predictions […, classes] and integer labels […]: {seen:?} and {dtype} {shape:?}");
            Err(fault::shape(op, message))
        }
    }
}

/// A weight has one number for each class.
#[track_caller]
fn fit_classes(op: &str, predictions: &Tensor, options: &CrossEntropy) -> Result<()> {
    let (Some(weight), seen) = (&options.weight, predictions.shape()?) else { return Ok(()) };
    let classes = seen.last().copied().unwrap_or(0);
    match weight.shape()? {
        [n] if *n == classes => Ok(()),
        other => Err(fault::shape(op, format!("wants weights [{classes}] for {seen:?}, not {other:?}"))),
    }
}

/// The negative log-likelihood of labels. A label that is neither a class nor ignored makes it NaN.
#[track_caller]
fn likelihood(log_p: &Tensor, labels: &Tensor, options: &CrossEntropy) -> Tensor {
    let classes = log_p.shape().map_or(0, |s| s.last().copied().unwrap_or(0));
    // A comparison and a product fuse with the softmax; a gather would be a scatter on the way back.
    let is_label = labels.one_hot(classes).eq(1);
    // Each class counts by its weight, for the label and for what is spread over all.
    let (weighed, mut weights) = match &options.weight {
        Some(weight) => {
            let weight = weight.to_dtype(DType::F32);
            (log_p.mul(&weight), Some(is_label.select(&weight, 0.0).sum(-1)))
        }
        None => (log_p.clone(), None),
    };
    let mut losses = is_label.select(&weighed, 0.0).sum(-1).neg();
    if options.smoothing > 0.0 {
        losses = losses.mul(1.0 - options.smoothing).add(weighed.mean(-1).mul(-options.smoothing));
    }
    let is_class = labels.ge(0).logical_and(labels.lt(classes as i64));
    let mut losses = is_class.select(losses, f32::NAN);
    if let Some(ignored) = options.ignore_index {
        let is_ignored = labels.eq(ignored);
        losses = is_ignored.select(0.0, losses);
        let ones = || labels.zeros_like().to_dtype(DType::F32).add(1.0);
        weights = Some(is_ignored.select(0.0, weights.unwrap_or_else(ones)));
    }
    reduced(losses, weights, options.reduction)
}

/// A loss as the float that belongs to what it was made of.
#[track_caller]
fn in_dtype_of(x: &Tensor, y: Option<&Tensor>, loss: Tensor) -> Tensor {
    match (x.dtype(), y.map_or(x.dtype(), Tensor::dtype)) {
        (Ok(x), Ok(y)) => loss.to_dtype(x.promote(y).to_float()),
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}
