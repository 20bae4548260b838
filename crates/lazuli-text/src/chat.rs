//! A conversation: messages rendered by the model's template, read as far as they are new, and answered. What a user writes
//! stays text, even if it looks like the end of a turn.

use lazuli::Result;

use crate::fault;
use crate::model::LanguageModel;
use crate::reply::{Making, whole};
use crate::sampling::Sampling;
use crate::session::Session;
use crate::template::{Message, Role};

/// What happens when a conversation no longer fits the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullContext {
    /// An error, and the conversation stays what it was.
    Error,
    /// The oldest turns are forgotten, as few as possible; [`Chat::n_forgotten`] counts them.
    DropOldest,
}

/// A conversation with a model.
///
/// ```no_run
/// # fn main() -> Result<(), lazuli::Error> {
/// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
/// use lazuli_text::Sampling;
/// let mut chat = model.chat().with_system("You are a poet.");
/// let answer: String = chat.say("Who are you?", &Sampling::default()).collect::<Result<_, _>>()?;
/// assert_eq!(chat.messages().last().unwrap().content, answer);
/// # Ok(())
/// # }
/// ```
pub struct Chat {
    session: Session,
    messages: Vec<Message>,
    full: FullContext,
    n_forgotten: usize,
    /// What the template wrote of what the session has read, and how many tokens that is.
    read: String,
    n_read: usize,
    guard: Option<char>,
}

impl Chat {
    pub(crate) fn new(model: LanguageModel) -> Chat {
        let session = Session::new(model);
        let (messages, read) = (Vec::new(), String::new());
        Chat { session, messages, full: FullContext::Error, n_forgotten: 0, read, n_read: 0, guard: None }
    }

    /// The same, told first what it is about.
    pub fn with_system(mut self, text: impl Into<String>) -> Chat {
        self.messages.insert(0, Message::new(Role::System, text));
        self
    }

    /// The same with room for so many tokens: see [`Session::with_context`].
    #[track_caller]
    pub fn with_context(self, n_tokens: usize) -> Result<Chat> {
        let _caller = fault::caller();
        Ok(Chat { session: self.session.with_context(n_tokens)?, read: String::new(), n_read: 0, ..self })
    }

    /// The same with another answer to a full context.
    pub fn with_full_context(self, full: FullContext) -> Chat {
        Chat { full, ..self }
    }

    /// What was said, in order. An answer that was not heard to its end is there as far as it was.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// How many messages were forgotten because the context was full.
    pub fn n_forgotten(&self) -> usize {
        self.n_forgotten
    }

    /// What the model has read.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Forgets what was said, but not what the conversation is about.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.n_forgotten = 0;
    }

    /// Says something and hears the answer, piece by piece: an iterator that computes each piece when it is asked for it.
    ///
    /// Whoever drops it stops the model after the current token. If something cannot be said, the only piece is the error, and
    /// the conversation stays what it was.
    #[track_caller]
    pub fn say(&mut self, text: impl Into<String>, sampling: &Sampling) -> Reply<'_> {
        let _caller = fault::caller();
        let n_before = self.messages.len();
        self.messages.push(Message::new(Role::User, text));
        let reserve = sampling.max_tokens.unwrap_or(usize::MAX).min(self.context() / 4).max(1);
        let making = self.prompt(&[], reserve).and_then(|prompt| Making::new(prompt, sampling));
        if making.is_err() {
            self.messages.truncate(n_before);
        }
        Reply { chat: self, making, text: String::new(), is_told: false }
    }

    fn context(&self) -> usize {
        self.session.context()
    }

    /// What is to be read now, after the session was set back to what it has in common with the conversation. `made` is the
    /// part of an answer that is there already, and `reserve` how many tokens must still fit.
    fn prompt(&mut self, made: &[u32], reserve: usize) -> Result<Vec<u32>> {
        loop {
            let tokens = self.unread(made)?;
            let n_tokens = self.session.tokens().len() + tokens.len();
            let context = self.context();
            if n_tokens + reserve <= context {
                return Ok(tokens);
            }
            if self.full == FullContext::Error {
                // Without a reserve a prompt that fits is taken: the answer may be short.
                if n_tokens < context {
                    return Ok(tokens);
                }
                let message = format!("the conversation has {n_tokens} tokens and does not fit a context of {context}");
                return Err(fault::index("chat", message));
            }
            self.forget_oldest()?;
        }
    }

    /// The tokens of the conversation that the session has not read; it forgets what does not belong there.
    fn unread(&mut self, made: &[u32]) -> Result<Vec<u32>> {
        let model = self.session.model().clone();
        let tokenizer = model.tokenizer();
        let contents: Vec<&str> = self.messages.iter().map(|message| &*message.content).collect();
        let guard = tokenizer.guard(&contents)?;
        let guarded: Vec<Message> = self
            .messages
            .iter()
            .map(|message| Message::new(message.role, tokenizer.guarded(&message.content, guard)))
            .collect();
        let (bos, eos) = tokenizer.template_names();
        let text = model.template().render(&guarded, bos, eos)?;
        // Where the text only goes on, the tokens that are read stay, whatever else they could have been.
        let n_tokens = self.session.tokens().len();
        let goes_on = made.is_empty() && self.guard == Some(guard) && n_tokens == self.n_read && n_tokens > 0;
        if goes_on && let Some(rest) = text.strip_prefix(&*self.read).filter(|rest| !rest.is_empty()) {
            let tokens = tokenizer.encode_with_guard(rest, Some(guard))?;
            self.n_read += tokens.len();
            self.read = text;
            return Ok(tokens);
        }
        let mut tokens = tokenizer.encode_with_guard(&text, Some(guard))?;
        if let Some(bos) = tokenizer.bos().filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        self.n_read = tokens.len();
        tokens.extend_from_slice(made);
        self.guard = Some(guard);
        self.read = text;
        let equal = self.session.tokens().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        // At least one token is read: logits come of reading.
        let n_kept = equal.min(tokens.len().saturating_sub(1));
        self.session.truncate(n_kept);
        Ok(tokens.split_off(n_kept))
    }

    /// Forgets the oldest message that is neither about the conversation nor the last one said, and the answer to it.
    fn forget_oldest(&mut self) -> Result<()> {
        let first = self.messages.iter().position(|message| message.role != Role::System);
        let last_said = self.messages.iter().rposition(|message| message.role == Role::User);
        let (Some(first), Some(last_said)) = (first, last_said) else {
            return Err(fault::index("chat", "the context is full, and there is nothing to forget"));
        };
        if first >= last_said {
            let message = format!("the last message alone does not fit a context of {}", self.context());
            return Err(fault::index("chat", message));
        }
        let after = &self.messages[first + 1..];
        let n = 1 + after.iter().take_while(|message| message.role == Role::Assistant).count();
        self.messages.drain(first..first + n);
        self.n_forgotten += n;
        Ok(())
    }
}

/// An answer, piece by piece.
pub struct Reply<'a> {
    chat: &'a mut Chat,
    making: Result<Making>,
    text: String,
    is_told: bool,
}

impl Reply<'_> {
    /// The tokens of the answer so far.
    pub fn tokens(&self) -> &[u32] {
        self.making.as_ref().map_or(&[], Making::made)
    }

    /// A step towards the next piece: some of what was said is read, or a token is made. Its text is empty if none is certain
    /// yet. For programs that must look up in between, as when somebody waits for a long prompt to be read: whoever drops the
    /// answer then has stopped it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lazuli::Error> {
    /// # let model = lazuli_text::LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
    /// # let is_stopped = || false;
    /// let mut chat = model.chat();
    /// let mut reply = chat.say("Who are you?", &Default::default());
    /// while let Some(text) = reply.step() {
    ///     print!("{}", text?);
    ///     if is_stopped() {
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
        let logits = self.chat.session.read_chunk(&mut rest);
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
            let logits = self.chat.session.read_chunk_async(&mut rest).await;
            if let Some(piece) = whole(self.advance(rest.to_vec(), logits)) {
                return Some(piece);
            }
        }
    }

    /// What must be read before the next piece. If the context is full, room is made first, where that is wanted.
    fn next_pending(&mut self) -> Option<Result<Vec<u32>>> {
        let making = match &mut self.making {
            Ok(making) => making,
            Err(_) if self.is_told => return None,
            Err(error) => {
                self.is_told = true;
                return Some(Err(error.clone()));
            }
        };
        let pending = making.pending()?.to_vec();
        if pending.len() <= self.chat.session.room() {
            return Some(Ok(pending));
        }
        let made = making.made().to_vec();
        let reserve = (self.chat.context() / 4).max(1);
        let again = match self.chat.full {
            FullContext::Error => {
                let context = self.chat.context();
                Err(fault::index("chat", format!("the answer does not fit what is left of a context of {context}")))
            }
            FullContext::DropOldest => self.chat.prompt(&made, reserve),
        };
        match &again {
            Ok(tokens) => making.set_pending(tokens.clone()),
            Err(_) => making.end(),
        }
        Some(again)
    }

    /// Goes on after a step, and gives its text.
    fn advance(&mut self, rest: Vec<u32>, logits: Result<Option<Vec<f32>>>) -> Result<String> {
        let text = self.making.as_mut().map_err(|error| error.clone())?.advance(rest, logits, &self.chat.session)?;
        self.text.push_str(&text);
        Ok(text)
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        loop {
            if let Some(piece) = whole(self.step()?) {
                return Some(piece);
            }
        }
    }
}

impl Drop for Reply<'_> {
    /// What was heard is part of the conversation from now on.
    fn drop(&mut self) {
        if self.making.is_err() {
            return;
        }
        // Of the answer, all but the last token was read. If not even the prompt was, or the answer ends inside a character,
        // the next prompt is compared token by token.
        let chat = &mut *self.chat;
        let tokenizer = chat.session.model().tokenizer();
        let tokens = chat.session.tokens();
        let heard =
            tokens.get(chat.n_read..).map(|heard| heard.iter().flat_map(|token| tokenizer.bytes(*token)).copied());
        let heard = heard.and_then(|bytes| String::from_utf8(bytes.collect()).ok());
        if let (Some(heard), Some(guard)) = (heard, chat.guard) {
            chat.read.push_str(&tokenizer.guarded(&heard, guard));
            chat.n_read = tokens.len();
        }
        chat.messages.push(Message::new(Role::Assistant, std::mem::take(&mut self.text)));
    }
}
