//! The network that all families share: an embedding, layers of attention and gated feed-forward networks with norms before
//! them, a last norm, and the output, which may be the embedding once more.

use std::sync::Arc;

use lazuli::{Device, Result, Tensor};
use lazuli_nn::{
    Adapter, GatedMlp, GroupedQueryAttention, Item, KvCache, Layer, Linear, Module, Projection, QkvProjection, RmsNorm,
    Rotary, RotaryPairs, RotaryScaling,
};

use crate::config::ModelConfig;
use crate::fault;
use crate::weights::WeightFiles;

/// A network that reads tokens and says which come next.
///
/// As a [`Module`] it has the parameters of its adapters, and no others: what came from a file stays what it is.
pub struct Decoder {
    config: ModelConfig,
    device: Device,
    embedding: Tensor,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    /// None where the embedding is the output, too.
    output: Option<Tensor>,
    n_tokens: usize,
}

/// One layer.
struct DecoderLayer {
    attention_norm: RmsNorm,
    attention: GroupedQueryAttention,
    after_attention: Option<RmsNorm>,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
    after_mlp: Option<RmsNorm>,
    rotary: Arc<Angles>,
}

/// The rotary embedding of layers: one for sessions as long as in training, perhaps another for longer ones. A session has the
/// same from its first token on, since keys in its cache stay turned as they are.
struct Angles {
    short: Rotary,
    long: Option<Rotary>,
}

impl Angles {
    fn of(&self, is_long: bool) -> &Rotary {
        self.long.as_ref().filter(|_| is_long).unwrap_or(&self.short)
    }
}

/// Loads the weights of a network one by one.
struct Loader<'a> {
    files: &'a WeightFiles,
    config: &'a ModelConfig,
    device: &'a Device,
}

impl Decoder {
    /// Loads a network. `progress` is called with how many layers are there, and how many there will be.
    pub(crate) fn load(
        files: &WeightFiles,
        config: ModelConfig,
        n_tokens: usize,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Decoder> {
        let loader = Loader { files, config: &config, device };
        let embedding = loader.get("token_embd.weight", &[n_tokens, config.width])?;
        let mut layers: Vec<DecoderLayer> = Vec::new();
        // Layers with a window may have angles of their own; otherwise all share their tables.
        let all = Arc::new(loader.angles()?);
        let mut of_windows: Option<Arc<Angles>> = None;
        for i in 0..config.n_layers {
            progress(i, config.n_layers);
            let rotary = match config.window_base_of(i) {
                Some(base) => of_windows.get_or_insert_with(|| Arc::new(loader.angles_of_windows(base))).clone(),
                None => all.clone(),
            };
            layers.push(loader.layer(i, rotary)?);
        }
        progress(config.n_layers, config.n_layers);
        let norm = loader.norm("output_norm", config.width)?;
        let output = loader.find("output.weight", &[n_tokens, config.width])?;
        Ok(Decoder { embedding, layers, norm, output, n_tokens, device: device.clone(), config })
    }

    /// The numbers of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where it computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many tokens it knows.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// An empty cache for so many sequences.
    pub fn cache(&self, n_sequences: usize) -> KvCache {
        let shape = [n_sequences, self.config.n_kv_heads, self.config.head_dim];
        KvCache::new(self.config.n_layers, shape, &self.device).with_max_len(self.config.context)
    }

    /// Angles for as many positions as a cache has room for, so that they grow together with it and not on the way.
    pub(crate) fn reserve(&self, cache: &KvCache) {
        let is_long = self.is_long(cache.max_len());
        self.layers.iter().for_each(|layer| layer.rotary.of(is_long).reserve(cache.capacity()));
    }

    /// Whether so many tokens are more than the angles of short contexts are for.
    fn is_long(&self, n_tokens: Option<usize>) -> bool {
        n_tokens.is_some_and(|n| n > self.config.context)
    }

    /// What the last norm makes of tokens `[sequences, length]`: `[sequences, length, width]`. With a cache, the tokens go on
    /// where it ends; there must be room for them, and it must be advanced afterwards.
    pub fn forward(&self, tokens: &Tensor, mut cache: Option<&mut KvCache>) -> Tensor {
        let n_tokens = match &cache {
            Some(cache) => cache.max_len(),
            None => tokens.shape().ok().and_then(|shape| shape.last().copied()),
        };
        let is_long = self.is_long(n_tokens);
        let mut x = self.embedding.embedding(tokens);
        if self.config.family.scales_embedding {
            x = x.mul((self.config.width as f32).sqrt());
        }
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, layer.rotary.of(is_long), cache.as_mut().map(|cache| (&mut **cache, i)));
        }
        self.norm.forward(&x)
    }

    /// The logits of all tokens, `[…, tokens]`, for what [`forward`](Decoder::forward) makes.
    pub fn logits(&self, x: &Tensor) -> Tensor {
        let weight = self.output.as_ref().unwrap_or(&self.embedding).clone();
        let y = Linear { weight, bias: None }.forward(x);
        match self.config.logit_cap {
            Some(cap) => y.div(cap).tanh().mul(cap),
            None => y,
        }
    }

    /// Puts a low-rank adapter beside the projections of queries and values of every layer, which is what is trained then.
    /// Where queries, keys and values are made by one projection, it gets one.
    #[track_caller]
    pub fn adapt(&mut self, rank: usize, alpha: f32, seed: u64) -> Result<()> {
        let _caller = fault::caller();
        let device = self.device.clone();
        for (i, projection) in self.adapted().into_iter().enumerate() {
            let [n_out, n_in] = projection.linear.weight.dims()?;
            let seed = seed.wrapping_add(i as u64);
            projection.adapter = Some(Adapter::new(n_in, n_out, rank, alpha, seed, &device));
        }
        Ok(())
    }

    /// The projections that adapters stand beside, layer by layer.
    fn adapted(&mut self) -> Vec<&mut Projection> {
        let projections = self.layers.iter_mut().map(|layer| match &mut layer.attention.qkv {
            QkvProjection::Separate { query, value, .. } => vec![query, value],
            QkvProjection::Fused(qkv) => vec![qkv],
        });
        projections.flatten().collect()
    }
}

impl Module for Decoder {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let (names, projections) = match &mut layer.attention.qkv {
                QkvProjection::Separate { query, value, .. } => (&["query", "value"][..], vec![query, value]),
                QkvProjection::Fused(qkv) => (&["qkv"][..], vec![qkv]),
            };
            for (name, projection) in names.iter().zip(projections) {
                projection.adapter.visit_in(&format!("layers.{i}.{name}"), visit);
            }
        }
    }
}

impl DecoderLayer {
    fn forward(&self, x: &Tensor, rotary: &Rotary, cache: Option<(&mut KvCache, usize)>) -> Tensor {
        let after = |y: Tensor, norm: &Option<RmsNorm>| match norm {
            Some(norm) => norm.forward(&y),
            None => y,
        };
        let found = self.attention.attend(&self.attention_norm.forward(x), Some(rotary), cache);
        let x = x.add(after(found, &self.after_attention));
        let y = self.mlp.forward(&self.mlp_norm.forward(&x));
        x.add(after(y, &self.after_mlp))
    }
}

impl Loader<'_> {
    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.files.get(name, shape, self.config, self.device)
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        self.files.find(name, shape, self.config, self.device)
    }

    fn norm(&self, name: &str, n: usize) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.get(&format!("{name}.weight"), &[n])?, eps: self.config.norm_eps })
    }

    fn norm_if(&self, name: &str, n: usize) -> Result<Option<RmsNorm>> {
        let weight = self.find(&format!("{name}.weight"), &[n])?;
        Ok(weight.map(|weight| RmsNorm { weight, eps: self.config.norm_eps }))
    }

    fn projection(&self, name: &str, n_out: usize, n_in: usize) -> Result<Projection> {
        let weight = self.get(&format!("{name}.weight"), &[n_out, n_in])?;
        let bias = self.find(&format!("{name}.bias"), &[n_out])?;
        Ok(Linear { weight, bias }.into())
    }

    fn projection_if(&self, name: &str, n_out: usize, n_in: usize) -> Result<Option<Projection>> {
        let Some(weight) = self.find(&format!("{name}.weight"), &[n_out, n_in])? else { return Ok(None) };
        let bias = self.find(&format!("{name}.bias"), &[n_out])?;
        Ok(Some(Linear { weight, bias }.into()))
    }

    fn layer(&self, i: usize, rotary: Arc<Angles>) -> Result<DecoderLayer> {
        let config = self.config;
        let name = |part: &str| format!("blk.{i}.{part}");
        let (width, ff) = (config.width, config.feed_forward);
        let (n_q, n_kv) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        let qkv = match self.projection_if(&name("attn_qkv"), n_q + 2 * n_kv, width)? {
            Some(qkv) => QkvProjection::Fused(qkv),
            None => QkvProjection::Separate {
                query: self.projection(&name("attn_q"), n_q, width)?,
                key: self.projection(&name("attn_k"), n_kv, width)?,
                value: self.projection(&name("attn_v"), n_kv, width)?,
            },
        };
        let output = self.projection(&name("attn_output"), width, n_q)?;
        let heads = [config.n_heads, config.n_kv_heads, config.head_dim];
        let mut attention = GroupedQueryAttention::new(qkv, output, heads);
        attention.query_norm = self.norm_if(&name("attn_q_norm"), config.head_dim)?;
        attention.key_norm = self.norm_if(&name("attn_k_norm"), config.head_dim)?;
        attention.window = config.window.filter(|_| config.family.is_local(i));
        attention.scale = config.attention_scale;
        attention.soft_cap = config.attention_cap;
        let gate = self.projection_if(&name("ffn_gate"), ff, width)?;
        let up = match (&gate, self.files.is_safetensors()) {
            (Some(_), _) => self.projection(&name("ffn_up"), ff, width)?,
            (None, true) => self.projection(&name("ffn_gate_up"), 2 * ff, width)?,
            (None, false) => self.projection(&name("ffn_up"), 2 * ff, width)?,
        };
        let down = self.projection(&name("ffn_down"), width, ff)?;
        let after = |part: &str| match config.family.norms_after {
            true => self.norm(&name(part), width).map(Some),
            false => Ok(None),
        };
        Ok(DecoderLayer {
            attention_norm: self.norm(&name("attn_norm"), width)?,
            attention,
            after_attention: after("post_attention_norm")?,
            mlp_norm: self.norm(&name("ffn_norm"), width)?,
            mlp: GatedMlp { gate, up, down, function: config.family.gate },
            after_mlp: after("post_ffw_norm")?,
            rotary,
        })
    }

    fn rotary(&self, base: f64, scaling: &RotaryScaling) -> Rotary {
        let pairs = if self.files.is_safetensors() { RotaryPairs::Halves } else { self.config.family.pairs };
        Rotary::scaled(self.config.rotary_dims, base, pairs, scaling, self.device)
    }

    /// The rotary embedding of layers whose window has a base of its own: what scales the angles of others is for distances that
    /// they do not see.
    fn angles_of_windows(&self, base: f64) -> Angles {
        Angles { short: self.rotary(base, &RotaryScaling::None), long: None }
    }

    /// The rotary embedding. Factors of pairs may be tensors of the file.
    fn angles(&self) -> Result<Angles> {
        let config = self.config;
        let rotary = |scaling: &RotaryScaling| self.rotary(config.rotary_base, scaling);
        let short = match self.factors("rope_factors_short.weight")? {
            Some(factors) => Some(factors),
            None => self.factors("rope_freqs.weight")?,
        };
        let long = self.factors("rope_factors_long.weight")?.or_else(|| config.long_scaling.clone());
        Ok(Angles { short: rotary(short.as_ref().unwrap_or(&config.rotary_scaling)), long: long.as_ref().map(rotary) })
    }

    /// Factors of pairs that are a tensor of the file.
    fn factors(&self, name: &str) -> Result<Option<RotaryScaling>> {
        let Some(factors) = self.find(name, &[self.config.rotary_dims / 2])? else { return Ok(None) };
        let factors = factors.to_vec::<f32>()?.into_iter().map(f64::from).collect();
        Ok(Some(RotaryScaling::Factors { factors, attention_factor: self.config.rotary_attention_factor }))
    }
}
