//! Attention and its kin: scaled dot products, linear attention as a recurrence, rotary embeddings, and the short causal
//! convolution that stands before them.

use lazuli::{Attention, Conv, DType, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, invalid, size, value};
use crate::graph::Node;

pub const ROWS: &[Row] = &[
    row(
        "Attention",
        23,
        &["is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"],
        attention,
    )
    .checked(&[|node| told_scores(node).map(drop)]),
    row("LinearAttention", 1, &["chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"], linear_attention)
        .checked(&[|node| update_rule(node).map(drop)]),
    row("CausalConvWithState", 1, &["activation"], causal_conv).checked(&[|node| is_silu(node).map(drop)]),
    row("RotaryEmbedding", 23, &["interleaved", "num_heads", "rotary_embedding_dim"], rotary_embedding),
    Row {
        name: "FlexAttention",
        domain: "ai.onnx.preview",
        since: 1,
        attrs: &["scale", "softmax_precision"],
        checks: &[],
        run: flex_attention,
    },
];

/// Which scores the last output of `Attention` has.
enum Scores {
    Plain,
    Masked,
    Weights,
}

fn told_scores(node: &Node) -> Result<Scores, Stop> {
    match node.attr_int("qk_matmul_output_mode", 0)? {
        0 | 1 => Ok(Scores::Plain),
        2 => Ok(Scores::Masked),
        3 => Ok(Scores::Weights),
        mode => node.unsupported("qk_matmul_output_mode", mode),
    }
}

/// Whether the state of `LinearAttention` is gated, and whether it is corrected by what it holds already.
fn update_rule(node: &Node) -> Result<(bool, bool), Stop> {
    let known =
        [("linear", (false, false)), ("gated", (true, false)), ("delta", (false, true)), ("gated_delta", (true, true))];
    node.choice("update_rule", "gated_delta", &known)
}

/// `[batch, length, heads · features]` as `[batch, heads, length, features]`.
fn heads_of(x: &Tensor, n_heads: usize) -> Result<Tensor, Stop> {
    match x.shape()? {
        &[batch, length, features] if n_heads > 0 && length <= 1 << 31 && features.is_multiple_of(n_heads) => {
            Ok(x.reshape([batch, length, n_heads, features / n_heads]).permute(&[0, 2, 1, 3]))
        }
        shape => invalid(format!("{shape:?} does not split into {n_heads} heads")),
    }
}

/// The opposite of [`heads_of`].
fn joined(x: &Tensor) -> Result<Tensor, Stop> {
    match x.shape()? {
        &[batch, n_heads, length, features] => {
            Ok(x.permute(&[0, 2, 1, 3]).reshape([batch, length, n_heads * features]))
        }
        shape => invalid(format!("[batch, heads, length, features] is wanted, not {shape:?}")),
    }
}

/// Each head several times, one after another.
fn repeated(x: &Tensor, times: usize) -> Result<Tensor, Stop> {
    match x.shape()? {
        _ if times == 1 => Ok(x.clone()),
        &[batch, heads, a, b] => {
            let wide = x.unsqueeze(2).broadcast_to([batch, heads, times, a, b]);
            Ok(wide.reshape([batch, heads * times, a, b]))
        }
        shape => invalid(format!("[batch, heads, length, features] is wanted, not {shape:?}")),
    }
}

fn attention(c: &Call) -> Outputs {
    let (mut q, mut k, mut v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let is_flat = c.rank(0)? == 3;
    if is_flat {
        let (q_heads, kv_heads) = (size(c.attr_int("q_num_heads", 0)?)?, size(c.attr_int("kv_num_heads", 0)?)?);
        (q, k, v) = (heads_of(&q, q_heads)?, heads_of(&k, kv_heads)?, heads_of(&v, kv_heads)?);
    }
    let mut n_past = 0;
    if let Some(past) = c.optional(4)? {
        n_past = past.shape()?.get(2).copied().unwrap_or(0);
        k = Tensor::cat(&[&past, &k], 2);
    }
    if let Some(past) = c.optional(5)? {
        v = Tensor::cat(&[&past, &v], 2);
    }
    let (&[batch, q_heads, n_queries, features], &[_, kv_heads, n_keys, _]) = (q.shape()?, k.shape()?) else {
        return invalid(format!("Attention: {:?} and {:?} have no four axes", q.shape()?, k.shape()?));
    };
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        return invalid(format!("Attention: {q_heads} heads of queries for {kv_heads} of keys"));
    }
    let (mask, bias) = masks(c, [batch, n_queries, n_keys], n_past)?;
    let scale = c.attr_float("scale", 1.0 / (features as f32).sqrt())?;
    let soft_cap = Some(c.attr_float("softcap", 0.0)?).filter(|cap| *cap > 0.0);
    let elem = c.elem(0)?;
    let (y, scores) = match c.wants(3) {
        false => {
            let options = Attention {
                mask: mask.as_ref(),
                bias: bias.as_ref(),
                scale: Some(scale),
                soft_cap,
                ..Attention::default()
            };
            (q.attention(&k, &v, options), None)
        }
        true => {
            let times = q_heads / kv_heads;
            let mut scores = q.matmul(&repeated(&k, times)?.t()).to_dtype(DType::F32).mul(scale);
            if let Some(cap) = soft_cap {
                scores = scores.div(cap).tanh().mul(cap);
            }
            let mut masked = scores.clone();
            if let Some(bias) = &bias {
                masked = masked.add(bias);
            }
            if let Some(mask) = &mask {
                masked = mask.select(&masked, f32::NEG_INFINITY);
            }
            let weights = masked.softmax(-1);
            let told = match told_scores(c.node)? {
                Scores::Plain => scores,
                Scores::Masked => masked,
                Scores::Weights => weights.clone(),
            };
            (weights.matmul(&repeated(&v, times)?.to_dtype(DType::F32)), Some(told))
        }
    };
    let y = if is_flat { joined(&y)? } else { y };
    let mut outputs = vec![value(y, elem)?, value(k, c.elem(1)?)?, value(v, c.elem(2)?)?];
    if let Some(scores) = scores {
        outputs.push(value(scores, elem)?);
    }
    Ok(outputs)
}

/// Which keys a query may look at, and what is added to its scores.
fn masks(c: &Call, sizes: [usize; 3], n_past: usize) -> Result<(Option<Tensor>, Option<Tensor>), Stop> {
    let [batch, n_queries, n_keys] = sizes;
    let (mut mask, mut bias) = (None::<Tensor>, None);
    let mut also = |other: Tensor| {
        mask = Some(match &mask {
            Some(mask) => mask.logical_and(&other),
            None => other,
        });
    };
    if let Some(given) = c.optional(3)? {
        let shape = given.shape()?.to_vec();
        let is_bool = given.dtype()? == DType::Bool;
        // A mask may be shorter than the keys: the others are hidden.
        let missing = n_keys.saturating_sub(shape.last().copied().unwrap_or(0));
        let mut pads = vec![(0, 0); shape.len()];
        if let Some(last) = pads.last_mut() {
            last.1 = missing;
        }
        match is_bool {
            true if missing > 0 => also(given.pad(&pads, false)),
            true => also(given),
            false if missing > 0 => bias = Some(given.pad(&pads, f32::NEG_INFINITY)),
            false => bias = Some(given),
        }
    }
    let index = |n: usize| Tensor::arange(0i32, n as i32, 1, c.device);
    if c.attr_int("is_causal", 0)? != 0 {
        let last = index(n_queries).add(n_past as i32).unsqueeze(1);
        also(index(n_keys).unsqueeze(0).le(&last));
    }
    if let Some(lengths) = c.optional(6)? {
        also(index(n_keys).reshape([1, 1, 1, n_keys]).lt(&lengths.reshape([batch, 1, 1, 1])));
    }
    Ok((mask, bias))
}

fn flex_attention(c: &Call) -> Outputs {
    let q = c.tensor(0)?;
    let features = *q.shape()?.last().unwrap_or(&1) as f32;
    let options = Attention { scale: Some(c.attr_float("scale", 1.0 / features.sqrt())?), ..Attention::default() };
    give(q.attention(&c.tensor(1)?, &c.tensor(2)?, options), c.elem(0)?)
}

/// A state that keys write values into and queries read, one step of time after another.
fn linear_attention(c: &Call) -> Outputs {
    let (q_heads, kv_heads) = (size(c.attr_int("q_num_heads", 0)?)?, size(c.attr_int("kv_num_heads", 0)?)?);
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        return invalid(format!("LinearAttention: {q_heads} heads of queries for {kv_heads} of keys"));
    }
    let wide = |i: usize| -> Result<Tensor, Stop> { Ok(c.tensor(i)?.to_dtype(DType::F32)) };
    let (q, k, v) = (heads_of(&wide(0)?, q_heads)?, heads_of(&wide(1)?, kv_heads)?, heads_of(&wide(2)?, kv_heads)?);
    let (&[batch, _, length, d_k], &[_, _, _, d_v]) = (q.shape()?, v.shape()?) else {
        return invalid("LinearAttention: operands have no three axes");
    };
    let (gates, corrects) = update_rule(c.node)?;
    let decay = if gates { Some(wide(4)?) } else { None };
    let decay = match decay {
        Some(decay) if decay.shape()?.last() == Some(&kv_heads) => Some(decay.permute(&[0, 2, 1]).unsqueeze(-1)),
        Some(decay) => Some(heads_of(&decay, kv_heads)?),
        None => None,
    };
    let beta = if corrects { Some(wide(5)?.permute(&[0, 2, 1]).unsqueeze(-1)) } else { None };
    let scale = match c.attr_float("scale", 0.0)? {
        0.0 => 1.0 / (d_k as f32).sqrt(),
        scale => scale,
    };
    let mut state = match c.has(3) {
        true => wide(3)?,
        false => Tensor::zeros([batch, kv_heads, d_k, d_v], DType::F32, c.device),
    };
    let mut steps = Vec::with_capacity(length);
    for i in 0..length {
        let at = |x: &Tensor| x.select_index(2, i as i64);
        let key = at(&k).unsqueeze(-1);
        if let Some(decay) = &decay {
            state = state.mul(&at(decay).exp().unsqueeze(-1));
        }
        let mut written = at(&v);
        if let Some(beta) = &beta {
            written = at(beta).mul(&written.sub(&state.mul(&key).sum(2)));
        }
        state = state.add(&key.mul(&written.unsqueeze(2)));
        let read = repeated(&state, q_heads / kv_heads)?;
        steps.push(at(&q).unsqueeze(2).matmul(&read).squeeze(2).mul(scale));
    }
    let elem = c.elem(0)?;
    let state_elem = if c.has(3) { c.elem(3)? } else { elem };
    let y = match steps.is_empty() {
        true => Tensor::zeros([batch, 0, q_heads * d_v], DType::F32, c.device),
        false => joined(&Tensor::stack(&steps.iter().collect::<Vec<_>>(), 2))?,
    };
    Ok(vec![value(y, elem)?, value(state, state_elem)?])
}

fn is_silu(node: &Node) -> Result<bool, Stop> {
    node.choice("activation", "none", &[("none", false), ("silu", true), ("swish", true)])
}

fn causal_conv(c: &Call) -> Outputs {
    let (x, weight) = (c.tensor(0)?, c.tensor(1)?);
    let (&[batch, channels, _], &[_, _, width]) = (x.shape()?, weight.shape()?) else {
        return invalid("CausalConvWithState: operands have no three axes");
    };
    let past = match c.optional(3)? {
        Some(past) => past,
        None => Tensor::zeros([batch, channels, width.saturating_sub(1)], x.dtype()?, c.device),
    };
    let whole = Tensor::cat(&[&past, &x], 2);
    let options = Conv { groups: channels, ..Conv::default() };
    let y = whole.conv(&weight, c.optional(2)?.as_ref(), options);
    let y = if is_silu(c.node)? { y.silu() } else { y };
    let n_kept = width.saturating_sub(1);
    let kept = whole.narrow(2, whole.shape()?[2] - n_kept, n_kept);
    Ok(vec![value(y, c.elem(0)?)?, value(kept, c.elem(0)?)?])
}

fn rotary_embedding(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let is_flat = c.rank(0)? == 3;
    // [batch, heads, length, features]
    let x = if is_flat { heads_of(&x, size(c.attr_int("num_heads", 0)?)?)? } else { x };
    let &[_, _, _, features] = x.shape()? else { return invalid("RotaryEmbedding: the input has no four axes") };
    let n_rotated = match size(c.attr_int("rotary_embedding_dim", 0)?)? {
        0 => features,
        n if n <= features => n,
        n => return invalid(format!("RotaryEmbedding: {n} of {features} features")),
    };
    let cache = |i: usize| -> Result<Tensor, Stop> {
        let cache = c.tensor(i)?;
        let cache = match c.optional(3)? {
            Some(positions) => cache.embedding(&positions),
            None => cache,
        };
        Ok(cache.unsqueeze(1))
    };
    let (cos, sin) = (cache(1)?, cache(2)?);
    let rotated = x.narrow(3, 0, n_rotated);
    let half = n_rotated / 2;
    let shape = rotated.shape()?.to_vec();
    let interleaved = c.attr_int("interleaved", 0)? != 0;
    let (a, b) = match interleaved {
        true => {
            let pairs = rotated.reshape([shape[0], shape[1], shape[2], half, 2]);
            (pairs.select_index(4, 0), pairs.select_index(4, 1))
        }
        false => (rotated.narrow(3, 0, half), rotated.narrow(3, half, half)),
    };
    let (real, imaginary) = (cos.mul(&a).sub(&sin.mul(&b)), sin.mul(&a).add(&cos.mul(&b)));
    let rotated = match interleaved {
        true => Tensor::stack(&[&real, &imaginary], 4).reshape(shape),
        false => Tensor::cat(&[&real, &imaginary], 3),
    };
    let y = match n_rotated == features {
        true => rotated,
        false => Tensor::cat(&[&rotated, &x.narrow(3, n_rotated, features - n_rotated)], 3),
    };
    give(if is_flat { joined(&y)? } else { y }, c.elem(0)?)
}
