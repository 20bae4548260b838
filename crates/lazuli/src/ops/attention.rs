//! Attention: queries look at keys and take a mean of values. Written with products, a softmax and comparisons, so that
//! it is what the same maths would be. The planner makes one kernel of it, which stores no score; where a device has none,
//! it is two products and a softmax.

use std::panic::Location;
use std::sync::Arc;

use super::create::coordinate;
use super::joining::same_device;
use super::movement::reshaped;
use super::operand::or_error;
use super::position::Position;
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::graph::{CustomOp, CustomRef, Op};
use crate::place::Caller;
use crate::shape::{Shape, keep};
use crate::tensor::Tensor;

/// What [`Tensor::attention`] may do beside scaled dot products: which keys a query may look at, and what is done to the
/// scores. The default is neither.
///
/// ```
/// use lazuli::{Attention, Device, Tensor};
/// let q = Tensor::randn([2, 8, 16, 32], 1, &Device::cpu());
/// let (k, v) = (Tensor::randn([2, 2, 16, 32], 2, &Device::cpu()), Tensor::randn([2, 2, 16, 32], 3, &Device::cpu()));
/// let y = q.attention(&k, &v, Attention { causal: true, soft_cap: Some(30.0), ..Attention::default() });
/// assert_eq!(y.shape()?, [2, 8, 16, 32]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'a> {
    /// Whether a query may look only at keys up to its own place. The last query is at the last key: with fewer queries
    /// than keys they are the last ones, as with a cache of earlier keys.
    pub causal: bool,
    /// How many keys there are, where keys and values are only the first rows of a cache with room for more: the others are not
    /// looked at, and with `causal` the last query is at the last of these keys. A number of the evaluation: another one needs
    /// no new plan, and on the CPU the work is that of so many keys. What the other rows hold should be finite, such as the
    /// zeros of a new cache.
    pub length: Option<Position>,
    /// How far a query may look: at keys less than this many places away, on either side, or before it if `causal`.
    pub window: Option<usize>,
    /// Bools that broadcast to the scores `[…, heads, queries, keys]`: true where a query may look.
    pub mask: Option<&'a Tensor>,
    /// Numbers that broadcast to the scores and are added to them, after scale and soft cap.
    pub bias: Option<&'a Tensor>,
    /// What products are multiplied with; by default `1 / √features`.
    pub scale: Option<f32>,
    /// Scores are kept between plus and minus this, smoothly: `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// The share of weights that is left out at random; the others grow so that the mean stays. 0 for inference.
    pub dropout: f32,
    /// Which weights are left out: the same for the same seed.
    pub seed: u64,
}

impl Tensor {
    /// Attention: `softmax(q · kᵀ · scale + …) · v`, for queries `[…, heads, l, d]`, keys `[…, heads, s, d]` and values
    /// `[…, heads, s, p]`; the result is `[…, heads, l, p]`. Keys and values may have fewer heads, which then serve
    /// several heads of queries each.
    ///
    /// Scores are f32 whatever the operands are. A query that may look nowhere (all its keys are masked, or there are
    /// none) gives zeros, where `softmax` written as maths gives NaN. A key that a query may not look at has no influence
    /// on it, whatever its value is: what fills up a sequence may be NaN.
    ///
    /// No score is stored, and neither is one in the backward pass: gradients compute the scores again from each row's sum. The
    /// same maths written with ops stores no score either, unless its gradient is wanted.
    ///
    /// ```
    /// use lazuli::{Attention, Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], [2, 2], &cpu);
    /// // The first query may look only at the first key, so its result is the first value.
    /// let y = x.attention(&x, &x, Attention { causal: true, ..Attention::default() });
    /// assert_eq!(y.select_index(0, 0).to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn attention(&self, k: &Tensor, v: &Tensor, options: Attention<'_>) -> Tensor {
        let _caller = Caller::of_engine(Location::caller());
        or_error(attend(self, k, v, options))
    }
}

/// The sizes of one attention, all checked.
struct AttentionShape {
    /// Of the scores, heads as the user has them.
    scores: Shape,
    /// Heads of keys, and how many heads of queries each serves, where that is more than one.
    groups: Option<(usize, usize)>,
}

#[track_caller]
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, options: Attention<'_>) -> Result<Tensor> {
    let shape = AttentionShape::of(q, k, v)?;
    let dtype = q.node()?.dtype.promote(k.node()?.dtype).promote(v.node()?.dtype);
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    check_options(q, &options, &shape)?;
    let features = q.node()?.shape.last().copied().unwrap_or(1);
    let (q, k, v) = (shape.queries(q)?, shape.keys(k)?, shape.keys(v)?);
    let result = shape.result(v.node()?.shape);
    if shape.scores.n_elems() == 0 {
        // Nothing to look at, or nobody who looks.
        return Ok(Tensor::zeros(result, dtype, &q.node()?.device));
    }
    let bias = options.bias.map(|bias| shape.per_score(bias)).transpose()?;
    let operands = [shape.everywhere(&q)?, shape.everywhere(&k)?, shape.everywhere(&v)?];
    let inputs: Vec<Tensor> = operands.into_iter().chain(bias).map(|x| x.to_dtype(DType::F32)).collect();
    let scale = options.scale.unwrap_or(1.0 / (features.max(1) as f32).sqrt());
    let mask = options.mask.map(|mask| shape.per_score(mask)).transpose()?;
    let y = ScoreMap::new(&inputs, scale, mask, &options)?.attend(&inputs)?;
    reshaped("attention", &y, result).map(|y| y.to_dtype(dtype))
}

/// What is done to products of queries and keys until they are weights. Its numbers are tensors, so that the forward and
/// the backward pass, which both compute scores, use the same: the planner takes two numbers that are written twice for two.
#[derive(Clone)]
struct ScoreMap {
    causal: bool,
    /// How many more keys than queries there are.
    offset: Tensor,
    /// How many keys there are, if not all are.
    length: Option<Tensor>,
    window: Option<Tensor>,
    mask: Option<Tensor>,
    scale: Tensor,
    soft_cap: Option<Tensor>,
    /// What weights are multiplied with: 0 where one is left out.
    kept: Option<Tensor>,
    /// −∞ and 0, what is written where a query may not look; the least number, and 1.
    hidden: Tensor,
    zero: Tensor,
    least: Tensor,
    one: Tensor,
}

/// What a softmax knows of a row: what is subtracted from its scores, and the sum of their exponentials.
struct SoftmaxRows {
    shift: Tensor,
    e: Tensor,
    sum: Tensor,
}

impl ScoreMap {
    #[track_caller]
    fn new(inputs: &[Tensor], scale: f32, mask: Option<Tensor>, options: &Attention<'_>) -> Result<ScoreMap> {
        let (q, k) = (inputs[0].node()?, inputs[1].node()?);
        let rank = q.shape.rank();
        let (l, s) = (q.shape[rank - 2], k.shape[rank - 2]);
        let device = &q.device;
        let number = |x: f32| Tensor::full((), x, device);
        let kept = (options.dropout > 0.0).then(|| {
            let scores: Shape = q.shape[..rank - 1].iter().copied().chain([s]).collect();
            let kept = Tensor::rand(scores, options.seed, device).ge(options.dropout);
            kept.to_dtype(DType::F32).mul(1.0 / (1.0 - options.dropout))
        });
        let window = options.window.map(|window| window.min(i32::MAX as usize / 2));
        // Each of these numbers is a constant with its own name: two that happen to be equal stay two, and need no new plan.
        let at = Location::caller();
        let place = |place: Position, plus: i64, name: &str| {
            let constant = Op::Const(place.constant(plus, s as i64, at, name));
            Tensor::source(constant, Shape::from([]), DType::I32, device, at)
        };
        let n_keys = options.length.unwrap_or(s.into());
        Ok(ScoreMap {
            causal: options.causal,
            offset: place(n_keys, -(l as i64), "attention: offset"),
            length: options.length.map(|_| place(n_keys, 0, "attention: length")),
            window: window.map(|window| place(window.into(), 0, "attention: window")),
            mask,
            scale: number(scale),
            soft_cap: options.soft_cap.map(number),
            kept,
            hidden: number(f32::NEG_INFINITY),
            zero: number(0.0),
            least: number(f32::MIN),
            one: number(1.0),
        })
    }

    /// Attention of queries, keys, values and, if there is one, a bias, all f32 with equal batches. The backward pass recomputes
    /// the scores from the sum of each row, instead of keeping them.
    #[track_caller]
    fn attend(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let scores = self.masked(self.scores(&q.matmul(&k.transpose(-1, -2)), inputs.get(3)), &self.hidden)?;
        let SoftmaxRows { e, sum, .. } = self.softmax_rows(&scores);
        let weights = self.dropped(&e.mul(sum.recip()));
        let mut y = weights.matmul(v);
        if k.node()?.shape.iter().rev().nth(1) == Some(&1) {
            // The attention kernel skips values whose weight is 0. Over one key the softmax is no reduction, so that the planner
            // makes no attention kernel, and a hidden value that is NaN would give 0·NaN = NaN.
            y = weights.eq(&self.zero).select(&self.zero, &y);
        }
        let map = self.clone();
        let twin = CustomOp {
            name: "attention".into(),
            wgsl: "$0".into(),
            cpu: Arc::new(|x| x[0]),
            grad: Some(Arc::new(move |inputs, _, g| or_errors(map.gradients(inputs, g), inputs.len()))),
        };
        // Never computed: it is there for its gradient alone.
        let nodes = inputs.iter().map(Tensor::node).collect::<Result<Vec<_>>>()?;
        let (shape, at) = (y.node()?.shape, Location::caller());
        let twin = Tensor::record(Op::Custom(CustomRef(Arc::new(twin))), &nodes, shape, DType::F32, at);
        Ok(y.with_gradient_of(&twin))
    }

    /// The gradients of all inputs, with P = exp(score − lse) and D = Σ g·y along a row:
    /// dV = Pᵀ·g, dS = P·(g·Vᵀ − D), and through the map of scores dQ = dS·K, dK = dSᵀ·Q.
    #[track_caller]
    fn gradients(&self, inputs: &[Tensor], g: &Tensor) -> Result<Vec<Tensor>> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let products = q.matmul(&k.transpose(-1, -2));
        let open = self.scores(&products, inputs.get(3));
        let scores = self.masked(open.clone(), &self.hidden)?;
        let SoftmaxRows { shift, sum, .. } = self.softmax_rows(&scores);
        let p = scores.sub(shift.add(sum.log())).exp();
        let d = g.mul(self.attend(inputs)?).sum(keep(-1));
        let ds = p.mul(self.dropped(&g.matmul(&v.transpose(-1, -2))).sub(d));
        // The mask once more, where the planner sees it: nothing is read of what it hides.
        let ds = self.masked(ds, &self.zero)?;
        let wrt: Vec<&Tensor> = [&products].into_iter().chain(inputs.get(3)).collect();
        let mut through = open.vjp(&wrt, &ds).into_iter();
        let ds = through.next().map_or(Ok(ds), |ds| self.masked(ds, &self.zero))?;
        let weights = self.masked(self.dropped(&p), &self.zero)?;
        let grads = [ds.matmul(k), ds.transpose(-1, -2).matmul(q), weights.transpose(-1, -2).matmul(g)];
        Ok(grads.into_iter().chain(through).collect())
    }

    /// Scaled, capped and biased.
    #[track_caller]
    fn scores(&self, products: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let mut scores = products.mul(&self.scale);
        if let Some(cap) = &self.soft_cap {
            scores = scores.div(cap).tanh().mul(cap);
        }
        match bias {
            Some(bias) => scores.add(bias),
            None => scores,
        }
    }

    /// `fill` where a query may not look. Places are compared, so that the planner knows which blocks are hidden.
    #[track_caller]
    fn masked(&self, scores: Tensor, fill: &Tensor) -> Result<Tensor> {
        let mut scores = match &self.mask {
            Some(mask) => mask.select(&scores, fill),
            None => scores,
        };
        let node = scores.node()?;
        let (rank, device, at) = (node.shape.rank(), node.device.clone(), Location::caller());
        let (l, s) = (node.shape[rank - 2], node.shape[rank - 1]);
        let place = |axis: usize| coordinate(&Shape::from([l, s]), axis, &device, at);
        let (row, column) = (place(0).add(&self.offset), place(1));
        if let Some(length) = &self.length {
            scores = column.lt(length).select(&scores, fill);
        }
        if self.causal {
            scores = column.le(&row).select(&scores, fill);
        }
        if let Some(window) = &self.window {
            scores = row.sub(&column).lt(window).select(&scores, fill);
            if !self.causal {
                scores = column.sub(&row).lt(window).select(&scores, fill);
            }
        }
        Ok(scores)
    }

    /// Some left out at random, the others larger by as much.
    #[track_caller]
    fn dropped(&self, weights: &Tensor) -> Tensor {
        match &self.kept {
            Some(kept) => weights.mul(kept),
            None => weights.clone(),
        }
    }

    /// exp(score − max) and its sum. What is subtracted does not change a softmax, so it has no gradient. A maximum of −∞ is
    /// raised to the least number, and the sum, which is then 0 and otherwise 1 at least, to 1: such rows are zeros.
    #[track_caller]
    fn softmax_rows(&self, scores: &Tensor) -> SoftmaxRows {
        let shift = scores.max(keep(-1)).detach().maximum(&self.least);
        let e = scores.sub(&shift).exp();
        let sum = e.sum(keep(-1)).maximum(&self.one);
        SoftmaxRows { shift, e, sum }
    }
}

/// The gradients, or as many times the error.
fn or_errors(grads: Result<Vec<Tensor>>, n: usize) -> Vec<Tensor> {
    grads.unwrap_or_else(|error| (0..n).map(|_| Tensor::new(Err(error.clone()))).collect())
}

#[track_caller]
fn check_options(q: &Tensor, options: &Attention<'_>, shape: &AttentionShape) -> Result<()> {
    for (what, extra) in [("mask", options.mask), ("bias", options.bias)] {
        let Some(extra) = extra else { continue };
        let node = extra.node()?;
        same_device("attention", q.node()?, node)?;
        if what == "mask" && node.dtype != DType::Bool {
            let message = format!("the mask is {}, not bool; numbers to be added to scores are a bias", node.dtype);
            return Err(Error::dtype("attention", message));
        }
        if node.shape.broadcast(&shape.scores) != Some(shape.scores) {
            let message = format!("the {what} {} does not broadcast to the scores {}", node.shape, shape.scores);
            return Err(misfit(message, &[&node.shape, &shape.scores]));
        }
    }
    let s = shape.scores[shape.scores.rank() - 1];
    if let Some(length) = options.length.map(Position::value).filter(|length| *length > s) {
        let message = format!("a length of {length} is more than the {s} keys that there are");
        return Err(misfit(message, &[&shape.scores]));
    }
    if !(0.0..1.0).contains(&options.dropout) {
        let message = format!("a dropout of {} is no share; it must be at least 0 and less than 1", options.dropout);
        return Err(Error::shape("attention", message));
    }
    Ok(())
}

#[track_caller]
fn misfit(message: String, shapes: &[&Shape]) -> Error {
    Error::Shape(Arc::new(Fault::new("attention", message).shapes(shapes)))
}

impl AttentionShape {
    #[track_caller]
    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionShape> {
        let (q, k, v) = (q.node()?, k.node()?, v.node()?);
        same_device("attention", q, k)?;
        same_device("attention", q, v)?;
        let (q, k, v) = (&q.shape, &k.shape, &v.shape);
        let fault = |what: &str| misfit(format!("{what}: queries {q}, keys {k}, values {v}"), &[q, k, v]);
        if q.rank().min(k.rank()).min(v.rank()) < 2 {
            return Err(fault("each operand needs a row for each place, [places, features] at least"));
        }
        if q[q.rank() - 1] != k[k.rank() - 1] {
            return Err(fault("queries and keys differ in features"));
        }
        let (l, s) = (q[q.rank() - 2], k[k.rank() - 2]);
        if v[v.rank() - 2] != s {
            return Err(fault("there must be a value for each key"));
        }
        let heads = |x: &Shape| x.rank().checked_sub(3).map_or(1, |axis| x[axis]);
        let (h, h_kv) = (heads(q), heads(k));
        let is_grouped = h_kv > 1 && h != h_kv;
        if is_grouped && (heads(v) != h_kv || !h.is_multiple_of(h_kv)) {
            return Err(fault("heads of queries must be a multiple of those of keys and values"));
        }
        let groups = is_grouped.then(|| (h_kv, h / h_kv));
        let n_heads = if is_grouped { 3 } else { 2 };
        let batch = |x: &Shape| Shape::from(&x[..x.rank().saturating_sub(n_heads)]);
        let both = batch(q).broadcast(&batch(k)).and_then(|both| both.broadcast(&batch(v)));
        let Some(both) = both else { return Err(fault("batches do not broadcast")) };
        let heads = if is_grouped { &[h][..] } else { &[] };
        let scores: Shape = both.iter().chain(heads).copied().chain([l, s]).collect();
        scores.check("attention")?;
        Ok(AttentionShape { scores, groups })
    }

    /// `[…, h, l, d]` as `[…, h_kv, group, l, d]`, where heads are grouped.
    #[track_caller]
    fn queries(&self, q: &Tensor) -> Result<Tensor> {
        let Some((h_kv, group)) = self.groups else { return Ok(q.clone()) };
        let shape = q.node()?.shape;
        let heads = shape.rank() - 3;
        let split = shape[..heads].iter().copied().chain([h_kv, group]).chain(shape[heads + 1..].iter().copied());
        reshaped("attention", q, split.collect())
    }

    /// Keys or values with an axis for the heads that they serve.
    #[track_caller]
    fn keys(&self, x: &Tensor) -> Result<Tensor> {
        Ok(if self.groups.is_some() { x.unsqueeze(-3) } else { x.clone() })
    }

    /// A mask or bias, its heads grouped as those of the scores.
    #[track_caller]
    fn per_score(&self, x: &Tensor) -> Result<Tensor> {
        let shape = x.node()?.shape;
        match shape.rank().checked_sub(3) {
            Some(heads) if shape[heads] > 1 => self.queries(x),
            Some(_) => self.keys(x),
            None => Ok(x.clone()),
        }
    }

    /// An operand for every index of the batch.
    #[track_caller]
    fn everywhere(&self, x: &Tensor) -> Result<Tensor> {
        let shape = x.node()?.shape;
        let batch = &self.scores[..self.scores.rank() - 2];
        let heads = self.groups.map(|(h_kv, group)| [h_kv, group]);
        let n_own = batch.len() - heads.is_some() as usize;
        let batch = batch[..n_own].iter().copied().chain(heads.into_iter().flatten());
        Ok(x.broadcast_to(batch.chain(shape[shape.rank() - 2..].iter().copied()).collect::<Shape>()))
    }

    /// The shape of the result, heads as the user has them.
    fn result(&self, values: Shape) -> Shape {
        let rank = self.scores.rank();
        self.scores[..rank - 1].iter().copied().chain(values.last().copied()).collect()
    }
}
