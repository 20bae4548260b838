//! Tokenizers as GGUF files describe them, in the keys `tokenizer.ggml.*`.

use lazuli::Result;
use lazuli_io::GgufMetadata;

use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{Spelling, TokenKind, Vocabulary};
use super::{Algorithm, Tokenizer, merges_of};
use crate::fault;

/// The numbers that files have for kinds of tokens.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// What models say when they have ended. A token of such a name that steers is an end, whatever else a file says: files name
/// one end, and models that chat have one for texts and one for turns.
pub const ENDS: [&str; 13] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "</s>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
];

impl Tokenizer {
    /// The tokenizer that a GGUF file holds.
    #[track_caller]
    pub fn from_gguf(metadata: &GgufMetadata) -> Result<Tokenizer> {
        let _caller = fault::caller();
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let model: &str = metadata.get(&key("model"))?;
        let names: &[String] = metadata.get(&key("tokens"))?;
        let kinds: Option<Vec<i64>> = metadata.find(&key("token_type"))?;
        let scores: Option<&[f32]> = metadata.find(&key("scores"))?;
        for (what, n) in [("token_type", kinds.as_ref().map(Vec::len)), ("scores", scores.map(<[f32]>::len))] {
            if let Some(n) = n.filter(|n| *n != names.len()) {
                let message = format!("`{}` has {n} elements for {} tokens", key(what), names.len());
                return Err(fault::parse("tokenizer", message));
            }
        }
        let id = |name: &str| -> Result<Option<u32>> {
            match metadata.find::<i64>(&key(name))? {
                // Some files write −1 for a token that is not there, as one number or another.
                None | Some(-1 | 0xffff_ffff) => Ok(None),
                Some(id) if (0..names.len() as i64).contains(&id) => Ok(Some(id as u32)),
                Some(id) => {
                    let message = format!("`{}` is {id}, and there are {} tokens", key(name), names.len());
                    Err(fault::parse("tokenizer", message))
                }
            }
        };
        let kind = |i: usize, _: &str| match kinds.as_ref().map(|kinds| kinds[i]) {
            Some(UNKNOWN | CONTROL) => TokenKind::Control,
            Some(USER_DEFINED) => TokenKind::UserDefined,
            _ => TokenKind::Normal,
        };
        let score = |i: usize| scores.map_or(0.0, |scores| scores[i]);
        let owned = names.iter().cloned();
        let unknown = id("unknown_token_id")?;
        let (algorithm, vocabulary, adds_bos) = match model {
            "gpt2" => {
                let pre = PreTokenizer::named(metadata.find(&key("pre"))?.unwrap_or("default"))?;
                let merges: &[String] = metadata.get(&key("merges"))?;
                let mut pairs = Vec::with_capacity(merges.len());
                for line in merges {
                    // A space inside a part would be `Ġ`, but the left part may begin with one in odd vocabularies.
                    let at = line.char_indices().skip(1).find(|(_, c)| *c == ' ');
                    let Some((at, _)) = at else {
                        return Err(fault::parse("tokenizer", format!("`{line}` is no merge: it has no space inside")));
                    };
                    pairs.push((&line[..at], &line[at + 1..]));
                }
                let adds_bos = pre.adds_bos;
                let merges = merges_of(pairs.into_iter());
                let vocabulary = Vocabulary::new(owned, kind, score, Spelling::ByteChars, None);
                (Algorithm::Bpe { pre, merges }, vocabulary, adds_bos)
            }
            "llama" => {
                let adds_space = metadata.find(&key("add_space_prefix"))?.unwrap_or(true);
                let vocabulary = Vocabulary::new(owned, kind, score, Spelling::SentencePiece, unknown.or(Some(0)));
                (Algorithm::SentencePiece { adds_space, merges: None }, vocabulary, true)
            }
            other => {
                let message = format!("tokenizer `{other}` is not supported; there are gpt2 and llama");
                return Err(fault::unsupported("tokenizer", message));
            }
        };
        let mut tokenizer = Tokenizer {
            vocabulary,
            algorithm,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            ends: Vec::new(),
            adds_bos: metadata.find(&key("add_bos_token"))?.unwrap_or(adds_bos),
        };
        // Phi-3's control tokens take the line feed along that its template writes after them.
        let name = metadata.find::<&str>("general.name")?.unwrap_or_default().to_lowercase();
        if name.contains("phi-3") || name.contains("phi3") {
            tokenizer.vocabulary.strip_right(|text| !["<unk>", "<s>", "<|endoftext|>"].contains(&text));
        }
        let named_ends = [id("eos_token_id")?, id("eot_token_id")?, id("eom_token_id")?];
        tokenizer.set_ends(named_ends.into_iter().flatten());
        Ok(tokenizer)
    }

    /// Ends are the tokens that are named as such, and those that every model means so.
    pub(super) fn set_ends(&mut self, named: impl Iterator<Item = u32>) {
        let marked = self.vocabulary.marked().iter().copied();
        let known = marked.filter(|id| {
            let token = self.vocabulary.token(*id);
            token.kind == TokenKind::Control && ENDS.contains(&&*token.text)
        });
        let mut ends: Vec<u32> = named.chain(known).collect();
        ends.sort_unstable();
        ends.dedup();
        self.ends = ends;
    }
}
