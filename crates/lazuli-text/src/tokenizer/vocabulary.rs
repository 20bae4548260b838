//! The tokens of a model: what they are called, which bytes they add to a text, and which of them steer instead.

use std::collections::HashMap;

use super::byte_chars::byte_of;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Part of a text.
    Normal,
    /// Steers the model and is no text: beginnings and ends of turns, what stands for the unknown.
    Control,
    /// Text that is always one token, wherever it stands.
    UserDefined,
}

/// One token.
pub struct TokenEntry {
    /// Its name in the vocabulary; for tokens that are not [`TokenKind::Normal`], how they are written out.
    pub text: Box<str>,
    /// What it adds to a text.
    pub bytes: Box<[u8]>,
    pub kind: TokenKind,
    /// The lower, the earlier it is merged.
    pub priority: u32,
    /// Whether white space that follows it, where it is written out, goes with it.
    pub strips_right: bool,
}

/// How names stand for bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// A character a byte.
    ByteChars,
    /// UTF-8 with `▁` for spaces, and `<0x0A>` for single bytes.
    SentencePiece,
}

/// All tokens, found by number and by name.
pub struct Vocabulary {
    tokens: Vec<TokenEntry>,
    /// Normal and user-defined tokens by name.
    by_text: HashMap<Box<str>, u32>,
    /// Tokens of single bytes, which SentencePiece falls back on.
    of_bytes: HashMap<u8, u32>,
    unknown: Option<u32>,
    /// All that are not normal, the longest first.
    marked: Vec<u32>,
}

impl Vocabulary {
    /// Of names, kinds and scores, of which there may be none. `unknown` stands for what is no token.
    pub fn new(
        names: impl ExactSizeIterator<Item = String>,
        kind: impl Fn(usize, &str) -> TokenKind,
        score: impl Fn(usize) -> f32,
        spelling: Spelling,
        unknown: Option<u32>,
    ) -> Vocabulary {
        let mut tokens = Vec::with_capacity(names.len());
        let (mut by_text, mut of_bytes) = (HashMap::with_capacity(names.len()), HashMap::new());
        for (id, name) in names.enumerate() {
            let kind = kind(id, &name);
            let byte = if spelling == Spelling::SentencePiece { single_byte(&name) } else { None };
            let bytes: Box<[u8]> = match (kind, spelling, byte) {
                (TokenKind::Control | TokenKind::UserDefined, Spelling::ByteChars, _) => name.bytes().collect(),
                (_, Spelling::ByteChars, _) => bytes_of(&name),
                (TokenKind::Normal, Spelling::SentencePiece, Some(byte)) => Box::new([byte]),
                (_, Spelling::SentencePiece, _) => name.replace('▁', " ").into_bytes().into(),
            };
            if let (TokenKind::Normal, Some(byte)) = (kind, byte) {
                of_bytes.entry(byte).or_insert(id as u32);
            } else if kind != TokenKind::Control {
                by_text.insert(name.clone().into_boxed_str(), id as u32);
            }
            let priority = priority_of(score(id));
            tokens.push(TokenEntry { text: name.into(), bytes, kind, priority, strips_right: false });
        }
        let mut marked: Vec<u32> = (0..tokens.len() as u32).collect();
        marked.retain(|id| tokens[*id as usize].kind != TokenKind::Normal);
        marked.sort_by_key(|id| std::cmp::Reverse(tokens[*id as usize].text.len()));
        Vocabulary { tokens, by_text, of_bytes, unknown, marked }
    }

    /// The text of these tokens takes the white space after it along.
    pub fn strip_right(&mut self, names: impl Fn(&str) -> bool) {
        for token in self.tokens.iter_mut().filter(|token| token.kind != TokenKind::Normal && names(&token.text)) {
            token.strips_right = true;
        }
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// A token that is there.
    pub fn token(&self, id: u32) -> &TokenEntry {
        &self.tokens[id as usize]
    }

    /// A token, if it is there.
    pub fn get(&self, id: u32) -> Option<&TokenEntry> {
        self.tokens.get(id as usize)
    }

    /// The token that a piece of text is.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// When a pair that is this token is merged.
    pub fn priority(&self, id: u32) -> u32 {
        self.token(id).priority
    }

    /// The token of a byte, or of what is unknown.
    pub fn of_byte(&self, byte: u8) -> Option<u32> {
        self.of_bytes.get(&byte).copied().or(self.unknown)
    }

    /// All tokens that are not normal, the longest first.
    pub fn marked(&self) -> &[u32] {
        &self.marked
    }
}

/// The highest score first: an order of unsigned numbers that is the reverse of that of the floats.
fn priority_of(score: f32) -> u32 {
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// The bytes that a name of byte-level BPE stands for; a character that stands for none is itself.
fn bytes_of(name: &str) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(name.len());
    for c in name.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes.into()
}

/// The byte of a name such as `<0x0A>`.
fn single_byte(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_are_merged_earlier() {
        let ordered = [f32::INFINITY, 3.0, 0.0, -0.0, -1.5, -1e30, f32::NEG_INFINITY].map(priority_of);
        assert!(ordered.is_sorted(), "{ordered:?}");
    }

    #[test]
    fn names_of_bytes_are_bytes() {
        assert_eq!((single_byte("<0x0A>"), single_byte("<0xA>"), single_byte("<0xZZ>")), (Some(10), None, None));
        assert_eq!(&*bytes_of("Ġa世"), " a世".as_bytes());
    }
}
