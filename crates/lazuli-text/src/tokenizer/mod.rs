//! Text to tokens and back. A tokenizer is what a GGUF file says it is: byte-level BPE (`gpt2`) or SentencePiece (`llama`).
//! Tokens that steer a model, such as ends of turns, are only made of text by whoever asks for it: in what a user wrote they
//! stay text.

mod byte_chars;
mod merge;
mod pre_tokenizer;
mod vocabulary;
mod gguf;
mod json;

use std::borrow::Cow;
use std::collections::HashMap;

use lazuli::Result;

use crate::fault;
use merge::merge;
use pre_tokenizer::PreTokenizer;
use vocabulary::Vocabulary;

pub use vocabulary::TokenKind;

/// Makes tokens of text, and text of tokens.
///
/// ```
/// use lazuli_io::{Gguf, GgufWriter};
/// use lazuli_text::Tokenizer;
/// let mut file = GgufWriter::new();
/// file.set("tokenizer.ggml.model", "gpt2");
/// file.set("tokenizer.ggml.pre", "gpt-2");
/// file.set("tokenizer.ggml.tokens", ["<|end|>", "h", "i", "hi", "Ġ"].map(String::from).to_vec());
/// file.set("tokenizer.ggml.token_type", vec![3i32, 1, 1, 1, 1]);
/// file.set("tokenizer.ggml.merges", vec!["h i".to_string()]);
/// file.set("tokenizer.ggml.eos_token_id", 0u32);
/// let tokenizer = Tokenizer::from_gguf(Gguf::from_bytes(file.to_bytes()?)?.metadata())?;
/// assert_eq!(tokenizer.encode("hi hi")?, [3, 4, 3]);
/// assert_eq!(tokenizer.decode(&[3, 4, 3, 0]), "hi hi");
/// assert_eq!(tokenizer.encode_marked("hi<|end|>")?, [3, 0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Tokens after which there is no more to say.
    ends: Vec<u32>,
    adds_bos: bool,
}

/// How words become tokens.
enum Algorithm {
    /// Byte-level BPE.
    Bpe { pre: PreTokenizer, merges: Merges },
    /// SentencePiece: whole texts, spaces as `▁`, merged by score or, where there are merges, by those.
    SentencePiece { adds_space: bool, merges: Option<Merges> },
}

/// What a merged pair is written as, the lengths of the left part with which it is a pair, and their ranks.
type Merges = HashMap<Box<str>, Vec<(u32, u32)>>;

/// A part of a text: text, or a token that was written out.
enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

impl Tokenizer {
    /// The tokens of a text as somebody wrote it: what looks like a control token is text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens_of(text, |kind| kind == TokenKind::UserDefined, None)
    }

    /// The tokens of a text in which control tokens may be written out, such as what a chat template makes.
    ///
    /// It does not put a token of beginnings before the text: see [`bos`](Tokenizer::bos).
    pub fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_with_guard(text, None)
    }

    /// The same, but text with the `guard` inside is no control token, and the guard itself is left out.
    pub(crate) fn encode_with_guard(&self, text: &str, guard: Option<char>) -> Result<Vec<u32>> {
        self.tokens_of(text, |kind| kind != TokenKind::Normal, guard)
    }

    fn tokens_of(&self, text: &str, is_marked: impl Fn(TokenKind) -> bool, guard: Option<char>) -> Result<Vec<u32>> {
        let mut parts = vec![Part::Text(text)];
        for id in self.vocabulary.marked() {
            let token = self.vocabulary.token(*id);
            if is_marked(token.kind) && !token.text.is_empty() && text.contains(&*token.text) {
                parts = parts.into_iter().flat_map(|part| cut(part, &token.text, *id, token.strips_right)).collect();
            }
        }
        let mut tokens = Vec::new();
        let mut is_first = true;
        for part in parts {
            match part {
                Part::Token(id) => tokens.push(id),
                Part::Text(text) => {
                    let text = match guard {
                        Some(guard) if text.contains(guard) => Cow::Owned(text.replace(guard, "")),
                        _ => Cow::Borrowed(text),
                    };
                    self.encode_text(&text, is_first, &mut tokens)?;
                }
            }
            // SentencePiece takes text after a control token for a new beginning.
            is_first = matches!(part, Part::Token(_));
        }
        Ok(tokens)
    }

    /// The tokens of a text without control tokens.
    fn encode_text(&self, text: &str, is_first: bool, tokens: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.algorithm {
            Algorithm::Bpe { pre, merges } => {
                for word in pre.split(text)? {
                    let word: String = word.bytes().map(byte_chars::char_of).collect();
                    if pre.whole_words
                        && let Some(id) = self.vocabulary.find(&word)
                    {
                        tokens.push(id);
                        continue;
                    }
                    for piece in merge(&word, |pair, left| rank(merges, pair, left)) {
                        self.token_or_characters(&word[piece], tokens);
                    }
                }
            }
            Algorithm::SentencePiece { adds_space, merges } => {
                let space = if *adds_space && is_first { "▁" } else { "" };
                let text = format!("{space}{}", text.replace(' ', "▁"));
                let pieces = match merges {
                    Some(merges) => merge(&text, |pair, left| rank(merges, pair, left)),
                    None => merge(&text, |pair, _| self.vocabulary.find(pair).map(|id| self.vocabulary.priority(id))),
                };
                pieces.into_iter().for_each(|piece| self.token_or_bytes(&text[piece], tokens));
            }
        }
        Ok(())
    }

    /// A piece of byte-level BPE. If it is no token, each of its bytes is, in any vocabulary that has all of them; bytes
    /// without a token cannot be said to this model and are left out.
    fn token_or_characters(&self, piece: &str, tokens: &mut Vec<u32>) {
        match self.vocabulary.find(piece) {
            Some(id) => tokens.push(id),
            None => tokens.extend(piece.chars().filter_map(|c| self.vocabulary.find(c.encode_utf8(&mut [0; 4])))),
        }
    }

    /// A piece of SentencePiece: a token, or the tokens of its bytes, or the unknown one.
    fn token_or_bytes(&self, piece: &str, tokens: &mut Vec<u32>) {
        match self.vocabulary.find(piece) {
            Some(id) => tokens.push(id),
            None => tokens.extend(piece.bytes().filter_map(|byte| self.vocabulary.of_byte(byte))),
        }
    }

    /// The text of tokens. Control tokens have none; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.bytes(*token)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match self.algorithm {
            Algorithm::SentencePiece { adds_space: true, .. } => text.strip_prefix(' ').unwrap_or(&text).to_string(),
            _ => text.into_owned(),
        }
    }

    /// The bytes that a token adds to a text, which may end inside a character. None for control tokens, and for numbers that
    /// are no tokens.
    ///
    /// ```
    /// # fn bytes(tokenizer: &lazuli_text::Tokenizer) {
    /// assert_eq!(tokenizer.bytes(u32::MAX), b"");
    /// # }
    /// ```
    pub fn bytes(&self, token: u32) -> &[u8] {
        match self.vocabulary.get(token) {
            Some(token) if token.kind != TokenKind::Control => &token.bytes,
            _ => &[],
        }
    }

    /// What the vocabulary calls a token: `Ġthe`, `<|im_end|>`. None if there is no such token.
    pub fn name(&self, token: u32) -> Option<&str> {
        self.vocabulary.get(token).map(|token| &*token.text)
    }

    /// The token of a name that [`name`](Tokenizer::name) gives.
    pub fn find(&self, name: &str) -> Option<u32> {
        let marked = self.vocabulary.marked().iter().find(|id| *self.vocabulary.token(**id).text == *name);
        marked.copied().or_else(|| self.vocabulary.find(name))
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that texts begin with, if the model was trained so that they do.
    pub fn bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.adds_bos)
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a model that says this token has ended: its text, or its turn of a chat.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// What a chat template calls the tokens of beginning and end.
    pub(crate) fn template_names(&self) -> (&str, &str) {
        let name = |id: Option<u32>| id.and_then(|id| self.name(id)).unwrap_or_default();
        (name(self.bos), name(self.eos))
    }

    /// A character that keeps what looks like a control token from being one: none that these texts contain.
    pub(crate) fn guard(&self, texts: &[&str]) -> Result<char> {
        // Noncharacters: Unicode promises that no text to be exchanged has them, so all of them together come by design only.
        let mut candidates = ('\u{fdd0}'..='\u{fdef}').chain(['\u{1fffe}', '\u{1ffff}', '\u{2fffe}', '\u{2ffff}']);
        let free = candidates.find(|c| texts.iter().all(|text| !text.contains(*c)));
        free.ok_or_else(|| {
            fault::unsupported("chat", "a text holds every noncharacter of Unicode from U+FDD0 to U+FDEF")
        })
    }

    /// A text in which every control token that is written out has the guard inside.
    pub(crate) fn guarded(&self, text: &str, guard: char) -> String {
        let mut guarded = text.to_string();
        for id in self.vocabulary.marked() {
            let token = self.vocabulary.token(*id);
            let mut characters = token.text.chars();
            if token.kind != TokenKind::UserDefined
                && let Some(first) = characters.next()
                && guarded.contains(&*token.text)
            {
                guarded = guarded.replace(&*token.text, &format!("{first}{guard}{}", characters.as_str()));
            }
        }
        guarded
    }
}

/// The rank of a pair among merges.
fn rank(merges: &Merges, pair: &str, left: usize) -> Option<u32> {
    merges.get(pair)?.iter().find(|(len, _)| *len as usize == left).map(|(_, rank)| *rank)
}

/// Merges from pairs of texts, the first of the lowest rank.
fn merges_of<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Merges {
    let mut merges = Merges::new();
    for (rank, (left, right)) in pairs.enumerate() {
        let entry = merges.entry(format!("{left}{right}").into()).or_default();
        entry.push((left.len() as u32, rank as u32));
    }
    merges
}

/// A part with every occurrence of a token's text made the token.
fn cut<'a>(part: Part<'a>, token: &str, id: u32, strips_right: bool) -> Vec<Part<'a>> {
    let Part::Text(mut text) = part else { return vec![part] };
    let mut parts = Vec::new();
    while let Some(at) = text.find(token) {
        parts.extend((at > 0).then(|| Part::Text(&text[..at])));
        parts.push(Part::Token(id));
        text = &text[at + token.len()..];
        if strips_right {
            text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
        }
    }
    parts.extend((!text.is_empty()).then_some(Part::Text(text)));
    parts
}
