//! Text that a model makes, token by token. Each piece is computed when it is asked for: whoever stops asking stops the model
//! after the current token, and what it has read stays valid.

use lazuli::Result;

use crate::sampling::{Sampler, Sampling};
use crate::session::Session;
use crate::text_stream::TextStream;

/// The making of one text, apart from who reads the tokens.
pub(crate) struct Making {
    sampler: Sampler,
    stream: TextStream,
    /// Tokens that were made, all of them.
    made: Vec<u32>,
    max_tokens: usize,
    /// Tokens to be read before the next one can be chosen.
    pending: Vec<u32>,
    is_done: bool,
}

impl Making {
    /// Begins by reading the prompt.
    pub fn new(prompt: Vec<u32>, sampling: &Sampling) -> Result<Making> {
        Ok(Making {
            sampler: Sampler::new(sampling)?,
            stream: TextStream::new(&sampling.stop),
            made: Vec::new(),
            max_tokens: sampling.max_tokens.unwrap_or(usize::MAX),
            pending: prompt,
            is_done: sampling.max_tokens == Some(0),
        })
    }

    /// What must be read next; None if there is no more to come.
    pub fn pending(&self) -> Option<&[u32]> {
        (!self.is_done).then_some(&self.pending)
    }

    /// Reads these tokens next instead.
    pub fn set_pending(&mut self, tokens: Vec<u32>) {
        self.pending = tokens;
    }

    /// Goes on after a step that has read some of what was pending: `rest` is still to be read, and there are logits if nothing
    /// is. Gives the text that is certain by now, which is empty if there is none. An error is the end.
    pub fn advance(&mut self, rest: Vec<u32>, logits: Result<Option<Vec<f32>>>, session: &Session) -> Result<String> {
        self.pending = rest;
        let text = match logits {
            Ok(Some(logits)) => self.choose(&logits, session),
            Ok(None) => Ok(String::new()),
            Err(error) => Err(error),
        };
        self.is_done |= text.is_err();
        text
    }

    /// The tokens that were made.
    pub fn made(&self) -> &[u32] {
        &self.made
    }

    /// There is no more to come.
    pub fn end(&mut self) {
        self.is_done = true;
    }

    /// Chooses the next token, and gives the text that is certain by now.
    fn choose(&mut self, logits: &[f32], session: &Session) -> Result<String> {
        // The penalty of repetition sees the prompt, too.
        let token = self.sampler.next(logits, session.tokens())?;
        let tokenizer = session.model().tokenizer();
        if tokenizer.is_end(token) {
            self.is_done = true;
            return Ok(self.stream.finish());
        }
        self.made.push(token);
        self.pending = vec![token];
        let mut text = self.stream.push(tokenizer.bytes(token));
        if self.stream.is_stopped() {
            self.is_done = true;
        } else if self.made.len() >= self.max_tokens {
            self.is_done = true;
            text += &self.stream.finish();
        }
        Ok(text)
    }
}

/// How a model goes on with a text: an iterator over pieces.
///
/// It ends where the model ends, before a text to stop at, or after the wanted number of tokens. A full context is an error.
pub struct Completion {
    session: Session,
    making: Result<Making>,
    is_told: bool,
}

impl Completion {
    pub(crate) fn new(session: Session, prompt: &str, sampling: &Sampling) -> Completion {
        let tokenizer = session.model().tokenizer();
        let tokens = tokenizer.encode(prompt).map(|text| tokenizer.bos().into_iter().chain(text).collect());
        // A model cannot go on with nothing, but with a text that ends at once.
        let tokens = tokens.map(|tokens: Vec<u32>| match (tokens.is_empty(), tokenizer.eos()) {
            (true, Some(eos)) => vec![eos],
            _ => tokens,
        });
        let making = tokens.and_then(|tokens| Making::new(tokens, sampling));
        Completion { session, making, is_told: false }
    }

    /// The tokens that were made so far.
    pub fn tokens(&self) -> &[u32] {
        self.making.as_ref().map_or(&[], Making::made)
    }

    /// What was read: the prompt, and what was made of it but for the last token.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// A step towards the next piece: some of the prompt is read, or a token is made. Its text is empty if none is certain yet.
    /// For programs that must look up in between, as when somebody waits for a long prompt to be read.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lazuli::Error> {
    /// # use std::time::{Duration, Instant};
    /// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
    /// let (start, mut completion) = (Instant::now(), model.complete("Once upon a time", &Default::default()));
    /// while let Some(text) = completion.step() {
    ///     print!("{}", text?);
    ///     if start.elapsed() > Duration::from_secs(5) {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn step(&mut self) -> Option<Result<String>> {
        let pending = match self.next_pending()? {
            Ok(pending) => pending,
            Err(error) => return Some(Err(error)),
        };
        let mut rest = &*pending;
        let logits = self.session.read_chunk(&mut rest);
        Some(self.advance(rest.to_vec(), logits))
    }

    /// The next piece, as a future. It may be dropped at any time.
    pub async fn next_async(&mut self) -> Option<Result<String>> {
        loop {
            let pending = match self.next_pending()? {
                Ok(pending) => pending,
                Err(error) => return Some(Err(error)),
            };
            let mut rest = &*pending;
            let logits = self.session.read_chunk_async(&mut rest).await;
            if let Some(piece) = whole(self.advance(rest.to_vec(), logits)) {
                return Some(piece);
            }
        }
    }

    /// What must be read before the next piece.
    fn next_pending(&mut self) -> Option<Result<Vec<u32>>> {
        match &self.making {
            Ok(making) => making.pending().map(|tokens| Ok(tokens.to_vec())),
            Err(_) if self.is_told => None,
            Err(error) => {
                self.is_told = true;
                Some(Err(error.clone()))
            }
        }
    }

    fn advance(&mut self, rest: Vec<u32>, logits: Result<Option<Vec<f32>>>) -> Result<String> {
        self.making.as_mut().map_err(|error| error.clone())?.advance(rest, logits, &self.session)
    }
}

impl Iterator for Completion {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        loop {
            if let Some(piece) = whole(self.step()?) {
                return Some(piece);
            }
        }
    }
}

/// The text of a step, if it is a piece.
pub(crate) fn whole(text: Result<String>) -> Option<Result<String>> {
    text.map(|text| (!text.is_empty()).then_some(text)).transpose()
}
