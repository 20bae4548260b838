//! What a model has read so far: tokens in, logits out, keys and values kept in between.

use lazuli::{Recording, Result, Tensor};
use lazuli_nn::KvCache;

use crate::fault;
use crate::model::LanguageModel;
use crate::reply::Completion;
use crate::sampling::Sampling;

/// Tokens that are read at once. More of them make products no faster (of SmolLM2 on two threads of a Zen 5, 0.81 ms a token of 64 at
/// once, 0.68 of 128 and of 256 in two parts), what is computed in between larger, and make whoever wants to stop wait longer.
const MAX_CHUNK: usize = 128;

/// A model that reads: tokens in, logits out. It goes on where it was, and can go back.
///
/// ```no_run
/// # fn main() -> Result<(), lazuli::Error> {
/// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
/// let mut session = model.session();
/// let logits = session.read(&model.tokenizer().encode("The capital of France is")?)?;
/// assert_eq!(logits.len(), model.decoder().n_tokens());
/// session.truncate(2);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    model: LanguageModel,
    cache: KvCache,
    tokens: Vec<u32>,
    step: Option<Step>,
}

/// Reading one token after others, recorded once for a capacity of the cache: where a model is small, recording it for every
/// token would take a third of the time.
struct Step {
    recording: Recording,
    capacity: usize,
}

/// An evaluation that was recorded and is still to be run.
struct Recorded {
    logits: Option<Tensor>,
    n_tokens: usize,
}

impl Session {
    /// Nothing is read yet.
    pub(crate) fn new(model: LanguageModel) -> Session {
        let cache = model.decoder().cache(1);
        Session { model, cache, tokens: Vec::new(), step: None }
    }

    /// The same with a cache of another float type: f16 takes half the memory.
    pub fn with_cache_dtype(self, dtype: lazuli::DType) -> Session {
        Session { cache: self.cache.with_dtype(dtype), tokens: Vec::new(), step: None, ..self }
    }

    /// The same with room for so many tokens at most, which a model may allow more of than a session has by default. Models with
    /// rotary factors for long contexts (`longrope`, as Phi 3 has) then take those, from the first token on.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lazuli::Error> {
    /// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
    /// let session = model.session().with_context(model.decoder().config().max_context)?;
    /// assert_eq!(session.room(), session.context());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_context(self, n_tokens: usize) -> Result<Session> {
        let _caller = fault::caller();
        let most = self.model.decoder().config().max_context;
        if n_tokens == 0 || n_tokens > most {
            return Err(fault::index("context", format!("{n_tokens} tokens: the model has a context of 1 to {most}")));
        }
        Ok(Session { cache: self.empty_cache(n_tokens), tokens: Vec::new(), step: None, ..self })
    }

    /// How many tokens there is room for.
    pub fn context(&self) -> usize {
        self.cache.max_len().unwrap_or(self.model.decoder().config().context)
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel {
        &self.model
    }

    /// What was read.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many more tokens fit the context.
    pub fn room(&self) -> usize {
        self.context().saturating_sub(self.tokens.len())
    }

    /// The bytes that the cache takes for what was read.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes_for(self.cache.capacity())
    }

    /// Forgets all tokens but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
        self.tokens.truncate(len);
    }

    /// Reads tokens, and gives the logits of what may follow the last one.
    ///
    /// If it fails, the session is what it was before the call, or has read some of the tokens; if its memory was lost, it has
    /// read none.
    #[track_caller]
    pub fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let _caller = fault::caller();
        self.check(tokens)?;
        let mut rest = tokens;
        loop {
            if let Some(logits) = self.read_chunk(&mut rest)? {
                return Ok(logits);
            }
        }
    }

    /// Reads as many tokens as are read at once, and leaves the others; with the last of them come the logits of what may follow.
    pub(crate) fn read_chunk(&mut self, tokens: &mut &[u32]) -> Result<Option<Vec<f32>>> {
        self.check(tokens)?;
        if let &[token] = *tokens {
            *tokens = &[];
            return self.read_one(token).map(Some);
        }
        let (chunk, rest) = tokens.split_at(MAX_CHUNK.min(tokens.len()));
        let recorded = self.record(chunk, rest.is_empty())?;
        lazuli::compute(&self.wanted(&recorded))?;
        self.advance(chunk, &recorded);
        *tokens = rest;
        recorded.logits.map(|logits| logits.to_vec()).transpose()
    }

    /// [`read`](Session::read), as a future. Every token is recorded anew: a future may be dropped while it is computed, and a
    /// recording would have the cache's memory then.
    pub async fn read_async(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        let mut rest = tokens;
        loop {
            if let Some(logits) = self.read_chunk_async(&mut rest).await? {
                return Ok(logits);
            }
        }
    }

    /// [`read_chunk`](Session::read_chunk), as a future.
    pub(crate) async fn read_chunk_async(&mut self, tokens: &mut &[u32]) -> Result<Option<Vec<f32>>> {
        self.check(tokens)?;
        let (chunk, rest) = tokens.split_at(MAX_CHUNK.min(tokens.len()));
        let recorded = self.record(chunk, rest.is_empty())?;
        lazuli::compute_async(&self.wanted(&recorded)).await?;
        self.advance(chunk, &recorded);
        *tokens = rest;
        match recorded.logits {
            Some(logits) => logits.to_vec_async().await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads tokens, and gives the logits of what may follow each of them, `[tokens, vocabulary]`.
    #[track_caller]
    pub fn read_each(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let _caller = fault::caller();
        self.check(tokens)?;
        let mut parts = Vec::new();
        for chunk in tokens.chunks(MAX_CHUNK) {
            let x = self.forward(chunk)?;
            let logits = self.model.decoder().logits(&x).squeeze(0).detach();
            let recorded = Recorded { logits: Some(logits.clone()), n_tokens: chunk.len() };
            lazuli::compute(&self.wanted(&recorded))?;
            self.advance(chunk, &recorded);
            parts.push(logits);
        }
        Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0))
    }

    /// The plan for decoding one more token, as [`lazuli::explain`] gives it. The session stays as it was. The last of its
    /// `edges` are the lengths at which the KV cache grows: the first token that does not fit allocates a larger cache, and that
    /// token and the next one are planned anew. From the third token on, no other token plans, compiles or allocates.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lazuli::Error> {
    /// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
    /// let mut session = model.session();
    /// session.read(&[1, 2, 3])?;
    /// println!("{}", session.explain(4)?.edges.join("\n"));
    /// assert_eq!(session.tokens(), [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn explain(&mut self, token: u32) -> Result<lazuli::Explain> {
        let _caller = fault::caller();
        self.check(&[token])?;
        let before = self.cache.clone();
        let explain = self
            .make_room(1)
            .and_then(|()| self.with_step(token, |inputs, outputs| Recording::explain(inputs, outputs)));
        let (grown, mut explain) = (std::mem::replace(&mut self.cache, before), explain?);
        let mut capacity = grown.capacity();
        for next in grown.next_capacities() {
            let n_bytes = grown.bytes_for(next);
            let edge = format!(
                "cache of {capacity} rows: token {} makes it {next}, {n_bytes} bytes, and a new plan",
                capacity + 1
            );
            explain.edges.push(edge);
            capacity = next;
        }
        Ok(explain)
    }

    /// How the model would go on with a text after what was read: [`LanguageModel::complete`] in a session of one's own, perhaps with
    /// another context or cache.
    #[track_caller]
    pub fn complete(self, prompt: &str, sampling: &Sampling) -> Completion {
        let _caller = fault::caller();
        Completion::new(self, prompt, sampling)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let n_tokens = self.model.decoder().n_tokens();
        if tokens.is_empty() {
            return Err(fault::index("read", "there are no tokens to read"));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= n_tokens) {
            return Err(fault::index("read", format!("there is no token {token}: the model has {n_tokens}")));
        }
        if tokens.len() > self.room() {
            let (n, context) = (self.tokens.len(), self.context());
            let message = format!("{} tokens after {n} do not fit a context of {context}", tokens.len());
            return Err(fault::index("read", message));
        }
        Ok(())
    }

    /// A cache like this one's for so many tokens, without any.
    fn empty_cache(&self, n_tokens: usize) -> KvCache {
        self.model.decoder().cache(1).with_dtype(self.cache.dtype()).with_max_len(n_tokens)
    }

    /// Reads one token by a recording.
    fn read_one(&mut self, token: u32) -> Result<Vec<f32>> {
        self.make_room(1)?;
        let step = match self.step.take().filter(|step| step.capacity == self.cache.capacity()) {
            Some(step) => step,
            None => self.record_step(token)?,
        };
        let mut tensors: Vec<Tensor> = [self.ids(&[token])].into_iter().chain(self.cache.take()).collect();
        let made = step.recording.run(&mut tensors, &[self.cache.position()]);
        self.step = Some(step);
        let mut made = match made {
            Ok(made) => made.into_iter(),
            Err(error) => {
                match tensors.is_empty() {
                    true => (self.cache, self.tokens) = (self.empty_cache(self.context()), Vec::new()),
                    false => self.cache.put(tensors.into_iter().skip(1)),
                }
                return Err(error);
            }
        };
        let logits = made.next();
        self.cache.put(made);
        self.cache.advance(1);
        self.tokens.push(token);
        logits.map_or(Ok(Vec::new()), |logits| logits.to_vec())
    }

    /// Records reading one token; the cache stays what it is.
    fn record_step(&mut self, token: u32) -> Result<Step> {
        let recording = self.with_step(token, |inputs, outputs| Recording::new(inputs, outputs))?;
        Ok(Step { recording, capacity: self.cache.capacity() })
    }

    /// Calls `f` with what reading one token takes and makes: token and cache, logits and cache. The cache stays what it is.
    fn with_step<R>(&mut self, token: u32, f: impl FnOnce(&[&Tensor], &[&Tensor]) -> Result<R>) -> Result<R> {
        let (ids, before) = (self.ids(&[token]), self.cache.tensors().cloned().collect::<Vec<_>>());
        lazuli::compute(&before.iter().collect::<Vec<_>>())?;
        let decoder = self.model.decoder();
        let logits = decoder.logits(&decoder.forward(&ids, Some(&mut self.cache))).detach();
        let inputs: Vec<&Tensor> = [&ids].into_iter().chain(&before).collect();
        let outputs: Vec<&Tensor> = [&logits].into_iter().chain(self.cache.tensors()).collect();
        let made = f(&inputs, &outputs);
        self.cache.put(before);
        made
    }

    /// Tokens as the network takes them.
    fn ids(&self, tokens: &[u32]) -> Tensor {
        let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        Tensor::from_vec(ids, [1, tokens.len()], self.model.decoder().device())
    }

    fn make_room(&mut self, n_tokens: usize) -> Result<()> {
        self.cache.make_room(n_tokens)?;
        self.model.decoder().reserve(&self.cache);
        Ok(())
    }

    /// What the network makes of tokens, recorded.
    fn forward(&mut self, tokens: &[u32]) -> Result<Tensor> {
        self.make_room(tokens.len())?;
        let ids = self.ids(tokens);
        Ok(self.model.decoder().forward(&ids, Some(&mut self.cache)))
    }

    fn record(&mut self, tokens: &[u32], is_last: bool) -> Result<Recorded> {
        let x = self.forward(tokens)?;
        let n_tokens = tokens.len();
        // Nobody asks for gradients of a session, and without them nothing is noted of what logits were made of.
        let logits = is_last.then(|| self.model.decoder().logits(&x.narrow(1, n_tokens - 1, 1)).detach());
        Ok(Recorded { logits, n_tokens })
    }

    /// Logits and cache are computed together: one plan, one submit.
    fn wanted<'a>(&'a self, recorded: &'a Recorded) -> Vec<&'a Tensor> {
        recorded.logits.iter().chain(self.cache.tensors()).collect()
    }

    fn advance(&mut self, tokens: &[u32], recorded: &Recorded) {
        self.cache.advance(recorded.n_tokens);
        self.tokens.extend_from_slice(tokens);
    }
}
