//! Attention: each place gathers from the others what its query asks for.

use lazuli::{DType, Device, Tensor};

use crate::fault;
use crate::linear::Linear;
use crate::module::Layer;

/// Several heads of attention over `[batch, length, width]`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, MultiHeadAttention};
/// let cpu = Device::cpu();
/// let attention = MultiHeadAttention::new(8, 2, 1, &cpu).causal();
/// assert_eq!(attention.forward(&Tensor::rand([2, 5, 8], 1, &cpu)).shape()?, [2, 5, 8]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct MultiHeadAttention {
    /// Makes queries.
    pub query: Linear,
    /// Makes keys.
    pub key: Linear,
    /// Makes values.
    pub value: Linear,
    /// Mixes what the heads found.
    pub output: Linear,
    /// How many heads share the width.
    pub heads: usize,
    /// Whether a place sees only itself and those before it.
    pub is_causal: bool,
}

crate::module!(MultiHeadAttention { query, key, value, output });

impl MultiHeadAttention {
    /// Sees every place.
    #[track_caller]
    pub fn new(width: usize, heads: usize, seed: u64, device: &Device) -> MultiHeadAttention {
        let _caller = fault::caller();
        let linear = |i: u64| Linear::new(width, width, seed.wrapping_mul(4).wrapping_add(i), device);
        let (query, key, value, output) = (linear(0), linear(1), linear(2), linear(3));
        MultiHeadAttention { query, key, value, output, heads, is_causal: false }
    }

    /// Sees itself and what came before.
    ///
    /// ```
    /// # use lazuli::Device;
    /// assert!(lazuli_nn::MultiHeadAttention::new(8, 2, 1, &Device::cpu()).causal().is_causal);
    /// ```
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { is_causal: true, ..self }
    }

    /// Queries from `x`, keys and values from `memory`. `mask`, where given, is true where a query (rows) may look at a
    /// key (columns); it broadcasts to `[batch, heads, queries, keys]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// # let attention = lazuli_nn::MultiHeadAttention::new(8, 2, 1, &cpu);
    /// let (x, memory) = (Tensor::rand([2, 3, 8], 1, &cpu), Tensor::rand([2, 7, 8], 2, &cpu));
    /// let mask = Tensor::from_slice(&[true, true, true, true, true, false, false], [7], &cpu);
    /// assert_eq!(attention.attend(&x, &memory, Some(&mask)).shape()?, [2, 3, 8]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn attend(&self, x: &Tensor, memory: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let _caller = fault::caller();
        let (seen, there) = match (x.shape(), memory.shape()) {
            (Ok(seen), Ok(there)) => (seen, there),
            (Err(error), _) | (_, Err(error)) => return error.into(),
        };
        let with_shapes = |what: &str| format!("{what}: input {seen:?}, memory {there:?}");
        let (&[batch, queries, width], &[of_memory, keys, _]) = (seen, there) else {
            return fault::shape("attention", with_shapes("wants [batch, length, width]")).into();
        };
        if batch != of_memory {
            let what = "wants as many sequences in memory as in the input";
            return fault::shape("attention", with_shapes(what)).into();
        }
        if self.heads == 0 || width % self.heads != 0 {
            let what = format!("{} heads do not divide the width", self.heads);
            return fault::shape("attention", with_shapes(&what)).into();
        }
        let size = width / self.heads;
        let split = |y: Tensor, length: usize| y.reshape([batch, length, self.heads, size]).transpose(1, 2);
        let q = split(self.query.forward(x), queries).mul(1.0 / (size.max(1) as f32).sqrt());
        let k = split(self.key.forward(memory), keys);
        let v = split(self.value.forward(memory), keys);
        let mut scores = q.matmul(&k.t());
        // Not −inf: a row that may look nowhere would be NaN.
        if self.is_causal
            && let Ok(device) = x.device()
        {
            let seen = Tensor::ones([queries, keys], DType::F32, device)
                .tril_k((keys as i64 - queries as i64).clamp(i32::MIN as i64, i32::MAX as i64) as i32);
            scores = seen.gt(0.0).select(scores, -1e9);
        }
        if let Some(mask) = mask {
            scores = mask.select(scores, -1e9);
        }
        let found = scores.softmax(-1).matmul(&v).transpose(1, 2).reshape([batch, queries, width]);
        self.output.forward(&found)
    }
}

impl Layer for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.attend(x, x, None)
    }
}
