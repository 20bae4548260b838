//! Losses: how far a prediction is from what was wanted, as one number, the mean over all of them.

use lazuli::{DType, Result, Tensor};

use crate::fault;

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
    paired("mse", x, y, |x, y| x.sub(y).square().mean(..))
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
    paired("l1", x, y, |x, y| x.sub(y).abs().mean(..))
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
    paired("huber", x, y, |x, y| {
        let far = x.sub(y).abs();
        far.le(delta).select(far.square().mul(0.5), far.sub(0.5 * delta).mul(delta)).mean(..)
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
    smooth_cross_entropy(logits, labels, 0.0)
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
    let _caller = fault::caller();
    match fit_labels("cross_entropy", logits, labels) {
        Ok(()) => {
            let loss = nll_of(&logits.to_dtype(DType::F32).log_softmax(-1), labels, smoothing);
            in_dtype_of(logits, None, loss)
        }
        Err(error) => error.into(),
    }
}

/// How a loss is made of those of all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; with weights of classes, the mean by those weights.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// All of them, with the shape of the labels.
    None,
}

/// What [`cross_entropy_with`] takes into account, as PyTorch does.
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
    let _caller = fault::caller();
    match fit_labels("cross_entropy", logits, labels).and_then(|()| fit_weight(logits, options)) {
        Ok(()) => {
            let log_p = logits.to_dtype(DType::F32).log_softmax(-1);
            in_dtype_of(logits, None, weighed_nll(&log_p, labels, options))
        }
        Err(error) => error.into(),
    }
}

/// A weight has one number for each class.
#[track_caller]
fn fit_weight(logits: &Tensor, options: &CrossEntropy) -> Result<()> {
    let (Some(weight), seen) = (&options.weight, logits.shape()?) else { return Ok(()) };
    let classes = seen.last().copied().unwrap_or(0);
    match weight.shape()? {
        [n] if *n == classes => Ok(()),
        other => Err(fault::shape("cross_entropy", format!("wants weights [{classes}] for {seen:?}, not {other:?}"))),
    }
}

#[track_caller]
fn weighed_nll(log_p: &Tensor, labels: &Tensor, options: &CrossEntropy) -> Tensor {
    let classes = log_p.shape().map_or(0, |s| s.last().copied().unwrap_or(0));
    let is_label = labels.one_hot(classes).eq(1);
    // Each class counts by its weight, for the label and for what is spread over all.
    let (weighed, weights) = match &options.weight {
        Some(weight) => {
            let weight = weight.to_dtype(DType::F32);
            (log_p.mul(&weight), is_label.select(&weight, 0.0).sum(-1))
        }
        None => (log_p.clone(), labels.zeros_like().to_dtype(DType::F32).add(1.0)),
    };
    let mut loss = is_label.select(&weighed, 0.0).sum(-1).neg();
    if options.smoothing > 0.0 {
        loss = loss.mul(1.0 - options.smoothing).add(weighed.mean(-1).mul(-options.smoothing));
    }
    let is_class = labels.ge(0).logical_and(labels.lt(classes as i64));
    let mut loss = is_class.select(loss, f32::NAN);
    let mut weights = weights;
    if let Some(ignored) = options.ignore_index {
        let is_ignored = labels.eq(ignored);
        loss = is_ignored.select(0.0, loss);
        weights = is_ignored.select(0.0, weights);
    }
    match options.reduction {
        Reduction::Mean => loss.sum(..).div(weights.sum(..)),
        Reduction::Sum => loss.sum(..),
        Reduction::None => loss,
    }
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
    let _caller = fault::caller();
    match fit_labels("nll", log_probabilities, labels) {
        Ok(()) => {
            let loss = nll_of(&log_probabilities.to_dtype(DType::F32), labels, 0.0);
            in_dtype_of(log_probabilities, None, loss)
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

#[track_caller]
fn nll_of(log_p: &Tensor, labels: &Tensor, smoothing: f32) -> Tensor {
    let classes = log_p.shape().map_or(0, |s| s.last().copied().unwrap_or(0));
    // A comparison and a product fuse with the softmax; a gather would be a scatter on the way back.
    let is_label = labels.one_hot(classes).eq(1);
    let mut loss = is_label.select(log_p, 0.0).sum(-1).neg();
    if smoothing > 0.0 {
        loss = loss.mul(1.0 - smoothing).add(log_p.mean(-1).mul(-smoothing));
    }
    let is_class = labels.ge(0).logical_and(labels.lt(classes as i64));
    is_class.select(loss, f32::NAN).mean(..)
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
    // −y·ln σ(x) − (1 − y)·ln(1 − σ(x)) = softplus(x) − x·y
    paired("bce_with_logits", logits, targets, |x, y| x.softplus().sub(x.mul(y)).mean(..))
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
    paired("kl", log_probabilities, targets, |log_p, y| {
        // 0·ln 0 = 0
        let own = y.gt(0.0).select(y.mul(y.maximum(f32::MIN_POSITIVE).log()), 0.0);
        own.sub(y.mul(log_p)).sum(-1).mean(..)
    })
}

/// A loss of two tensors whose shapes go together.
#[track_caller]
fn paired(op: &str, x: &Tensor, y: &Tensor, loss: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Tensor {
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
            let loss = loss(&x.to_dtype(DType::F32), &y.to_dtype(DType::F32));
            in_dtype_of(x, Some(y), loss)
        }
    }
}

/// A loss as the float that belongs to what it was made of.
#[track_caller]
fn in_dtype_of(x: &Tensor, y: Option<&Tensor>, loss: Tensor) -> Tensor {
    match (x.dtype(), y.map_or(x.dtype(), Tensor::dtype)) {
        (Ok(x), Ok(y)) => loss.to_dtype(x.promote(y).to_float()),
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}
