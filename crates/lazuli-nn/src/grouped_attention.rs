//! Grouped-query attention: several heads of queries share one head of keys and values, so that a cache of them is small.

use lazuli::{Attention, Position, Tensor};

use crate::fault;
use crate::kv_cache::KvCache;
use crate::module::Layer;
use crate::norm::RmsNorm;
use crate::projection::Projection;
use crate::rotary::Rotary;

/// What makes queries, keys and values.
pub enum QkvProjection {
    /// A projection each.
    Separate {
        /// Makes queries.
        query: Projection,
        /// Makes keys.
        key: Projection,
        /// Makes values.
        value: Projection,
    },
    /// One for all of them, side by side.
    Fused(Projection),
}

impl crate::Module for QkvProjection {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, crate::Item)) {
        match self {
            QkvProjection::Separate { query, key, value } => {
                query.visit_in("query", visit);
                key.visit_in("key", visit);
                value.visit_in("value", visit);
            }
            QkvProjection::Fused(qkv) => qkv.visit_in("qkv", visit),
        }
    }
}

/// Causal attention over `[sequences, length, width]`, with or without a cache of what came before.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{GroupedQueryAttention, KvCache, Linear, QkvProjection, Rotary, RotaryPairs};
/// let cpu = Device::cpu();
/// let linear = |n_in, n_out, seed| Linear::new(n_in, n_out, seed, &cpu).without_bias().into();
/// let (query, key, value) = (linear(16, 16, 1), linear(16, 8, 2), linear(16, 8, 3));
/// let attention = GroupedQueryAttention::new(QkvProjection::Separate { query, key, value }, linear(16, 16, 4), [4, 2, 4]);
/// let rotary = Rotary::new(4, 10_000.0, RotaryPairs::Halves, &cpu);
///
/// // All at once, or one by one with a cache: the same.
/// let x = Tensor::rand([1, 3, 16], 1, &cpu);
/// let whole = attention.attend(&x, Some(&rotary), None).to_vec::<f32>()?;
/// let mut cache = KvCache::new(1, [1, 2, 4], &cpu);
/// for i in 0..3 {
///     cache.make_room(1)?;
///     let row = attention.attend(&x.narrow(1, i, 1), Some(&rotary), Some((&mut cache, 0))).to_vec::<f32>()?;
///     cache.advance(1);
///     assert!(row.iter().zip(&whole[16 * i..]).all(|(a, b)| (a - b).abs() < 1e-5));
/// }
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct GroupedQueryAttention {
    /// Makes queries, keys and values.
    pub qkv: QkvProjection,
    /// Mixes what the heads found.
    pub output: Projection,
    /// Brings each head's queries to mean square 1, where a model has that.
    pub query_norm: Option<RmsNorm>,
    /// The same for keys.
    pub key_norm: Option<RmsNorm>,
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// How far back a place sees, itself included; None is to the beginning.
    pub window: Option<usize>,
    /// What products are multiplied with; by default `1/√head_dim`.
    pub scale: Option<f32>,
    /// Between which numbers scores are kept, smoothly.
    pub soft_cap: Option<f32>,
}

crate::module!(GroupedQueryAttention { qkv, output, query_norm, key_norm });

impl GroupedQueryAttention {
    /// Of projections, for `[heads of queries, heads of keys and values, features of a head]`, without norms or a window.
    pub fn new(qkv: QkvProjection, output: Projection, heads: [usize; 3]) -> GroupedQueryAttention {
        let [n_heads, n_kv_heads, head_dim] = heads;
        let (query_norm, key_norm, window, scale, soft_cap) = (None, None, None, None, None);
        GroupedQueryAttention {
            qkv,
            output,
            query_norm,
            key_norm,
            n_heads,
            n_kv_heads,
            head_dim,
            window,
            scale,
            soft_cap,
        }
    }

    /// What each place gathers from itself and those before it. With a cache, `x` goes on where the cache ends, its rows are
    /// written into the given layer, and there must be room for them.
    #[track_caller]
    pub fn attend(&self, x: &Tensor, rotary: Option<&Rotary>, cache: Option<(&mut KvCache, usize)>) -> Tensor {
        let _caller = fault::caller();
        let (batch, length) = match x.shape() {
            Ok(&[batch, length, _]) => (batch, length),
            Ok(seen) => {
                let message = format!("wants [sequences, length, width], not {seen:?}");
                return fault::shape("grouped_query_attention", message).into();
            }
            Err(error) => return error.into(),
        };
        let (n_q, n_kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let (q, k, v) = match &self.qkv {
            QkvProjection::Separate { query, key, value } => (query.forward(x), key.forward(x), value.forward(x)),
            QkvProjection::Fused(qkv) => {
                let y = qkv.forward(x);
                (y.narrow(-1, 0, n_q), y.narrow(-1, n_q, n_kv), y.narrow(-1, n_q + n_kv, n_kv))
            }
        };
        let heads = |y: Tensor, n_heads: usize| y.reshape([batch, length, n_heads, self.head_dim]);
        let normed = |y: Tensor, norm: &Option<RmsNorm>| match norm {
            Some(norm) => norm.forward(&y),
            None => y,
        };
        let q = normed(heads(q, self.n_heads), &self.query_norm).transpose(1, 2);
        let k = normed(heads(k, self.n_kv_heads), &self.key_norm).transpose(1, 2);
        let v = heads(v, self.n_kv_heads).transpose(1, 2);
        let position = cache.as_ref().map_or(Position::from(0), |(cache, _)| cache.position());
        let turned = |x: &Tensor| rotary.map_or_else(|| x.clone(), |rotary| rotary.turn(x, position));
        let (q, k) = (turned(&q), turned(&k));
        let mut options = Attention { causal: true, window: self.window, ..Attention::default() };
        options.scale = self.scale;
        options.soft_cap = self.soft_cap;
        let found = match cache {
            Some((cache, layer)) => {
                let (keys, values) = cache.write(layer, &k, &v);
                let (length, mask) = (Some(position + length), cache.mask());
                q.attention(&keys, &values, Attention { length, mask, ..options })
            }
            None => q.attention(&k, &v, options),
        };
        self.output.forward(&found.transpose(1, 2).reshape([batch, length, n_q]))
    }
}
