//! BERT's tokenizer, as a tokenizer.json describes it: text is cleaned, lowered and stripped of accents, cut at spaces and around
//! punctuation, and each word is cut into the longest pieces that the vocabulary has.

use std::collections::HashMap;

use serde_json::Value as Json;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

/// Makes tokens of text.
#[derive(Debug)]
pub struct WordPiece {
    vocabulary: HashMap<String, u32>,
    /// Texts that are a token each wherever they stand, longest first.
    added: Vec<(String, u32)>,
    unknown: u32,
    /// What pieces within a word begin with.
    prefix: String,
    /// Words of more characters are unknown.
    max_chars: usize,
    /// Which tokens stand before and after a text.
    before: Vec<u32>,
    after: Vec<u32>,
    normalizer: Normalizer,
}

/// What is done to text before it is cut.
#[derive(Debug)]
struct Normalizer {
    is_cleaned: bool,
    is_chinese_apart: bool,
    is_stripped: bool,
    is_lowered: bool,
}

impl WordPiece {
    /// Reads a tokenizer.json.
    pub fn parse(text: &str) -> Result<WordPiece, String> {
        let json: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let kinds = [("model", "WordPiece"), ("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")];
        for (part, kind) in kinds {
            if json[part]["type"] != kind {
                return Err(format!(
                    "its {part} is {}, not {kind}: only tokenizers of BERT's kind are read",
                    json[part]["type"]
                ));
            }
        }
        let (model, normal) = (&json["model"], &json["normalizer"]);
        let words = model["vocab"].as_object().ok_or("there is no vocabulary")?;
        let number = |id: &Json| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let vocabulary: Option<HashMap<String, u32>> =
            words.iter().map(|(word, id)| Some((word.clone(), number(id)?))).collect();
        let vocabulary = vocabulary.ok_or("the vocabulary has a word without a number")?;
        let known = |word: &str| vocabulary.get(word).copied().ok_or(format!("`{word}` is not in the vocabulary"));
        let listed = |list: &Json| list.as_array().cloned().unwrap_or_default();
        let mut added: Vec<(String, u32)> = listed(&json["added_tokens"])
            .iter()
            .filter_map(|token| Some((token["content"].as_str()?.to_string(), number(&token["id"])?)))
            .filter(|(content, _)| !content.is_empty())
            .collect();
        added.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        // The template names tokens before and after the text.
        let (mut before, mut after, mut is_after) = (Vec::new(), Vec::new(), false);
        for piece in listed(&json["post_processor"]["single"]) {
            match piece["SpecialToken"]["id"].as_str() {
                Some(token) if is_after => after.push(known(token)?),
                Some(token) => before.push(known(token)?),
                None => is_after = true,
            }
        }
        let is_lowered = normal["lowercase"].as_bool().unwrap_or(true);
        Ok(WordPiece {
            added,
            unknown: known(model["unk_token"].as_str().unwrap_or("[UNK]"))?,
            prefix: model["continuing_subword_prefix"].as_str().unwrap_or("##").to_string(),
            max_chars: model["max_input_chars_per_word"].as_u64().unwrap_or(100) as usize,
            before,
            after,
            normalizer: Normalizer {
                is_cleaned: normal["clean_text"].as_bool().unwrap_or(true),
                is_chinese_apart: normal["handle_chinese_chars"].as_bool().unwrap_or(true),
                // Accents go where letters are lowered, unless it is said.
                is_stripped: normal["strip_accents"].as_bool().unwrap_or(is_lowered),
                is_lowered,
            },
            vocabulary,
        })
    }

    /// The tokens of a text, at most `n_most` of them, those around it included; and whether some were left out.
    pub fn encode(&self, text: &str, n_most: usize) -> (Vec<u32>, bool) {
        let mut inner = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let next = self.added.iter().filter_map(|(content, id)| Some((rest.find(content)?, content.len(), *id)));
            // The leftmost one counts, of several that begin there the longest.
            match next.min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len))) {
                Some((at, len, id)) => {
                    self.words(&rest[..at], &mut inner);
                    inner.push(id);
                    rest = &rest[at + len..];
                }
                None => {
                    self.words(rest, &mut inner);
                    rest = "";
                }
            }
        }
        let room = n_most.saturating_sub(self.before.len() + self.after.len());
        let is_cut = inner.len() > room;
        inner.truncate(room);
        ([&self.before[..], &inner, &self.after].concat(), is_cut)
    }

    /// Appends the tokens of a text without added ones.
    fn words(&self, text: &str, tokens: &mut Vec<u32>) {
        let text = self.normalizer.apply(text);
        for spaced in text.split_whitespace() {
            let mut word = String::new();
            for c in spaced.chars() {
                if is_punctuation(c) {
                    self.pieces(&word, tokens);
                    self.pieces(c.encode_utf8(&mut [0; 4]), tokens);
                    word.clear();
                } else {
                    word.push(c);
                }
            }
            self.pieces(&word, tokens);
        }
    }

    /// Appends the longest pieces of a word from the left; a word that cannot be cut so is unknown.
    fn pieces(&self, word: &str, tokens: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let n_before = tokens.len();
        let (mut start, is_long) = (0, word.chars().count() > self.max_chars);
        while start < word.len() && !is_long {
            let ends = word[start..].char_indices().map(|(i, c)| start + i + c.len_utf8()).rev();
            let found = ends.into_iter().find_map(|end| {
                let piece = &word[start..end];
                let id = match start {
                    0 => self.vocabulary.get(piece),
                    _ => self.vocabulary.get(&format!("{}{piece}", self.prefix)),
                };
                id.map(|id| (*id, end))
            });
            let Some((id, end)) = found else { break };
            tokens.push(id);
            start = end;
        }
        if start < word.len() {
            tokens.truncate(n_before);
            tokens.push(self.unknown);
        }
    }
}

impl Normalizer {
    fn apply(&self, text: &str) -> String {
        let mut cleaned = String::with_capacity(text.len());
        for c in text.chars() {
            if self.is_cleaned && (c == '\0' || c == '\u{fffd}' || is_control(c)) {
                continue;
            }
            match c {
                _ if self.is_cleaned && c.is_whitespace() => cleaned.push(' '),
                _ if self.is_chinese_apart && is_chinese(c) => cleaned.extend([' ', c, ' ']),
                _ => cleaned.push(c),
            }
        }
        if self.is_stripped {
            let is_accent = |c: &char| c.general_category() == GeneralCategory::NonspacingMark;
            cleaned = cleaned.nfd().filter(|c| !is_accent(c)).collect();
        }
        if self.is_lowered { cleaned.chars().flat_map(char::to_lowercase).collect() } else { cleaned }
    }
}

fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r') && c.general_category_group() == GeneralCategoryGroup::Other
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

/// The blocks of Chinese characters that BERT takes for words of their own.
fn is_chinese(c: char) -> bool {
    matches!(c as u32,
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f | 0x2b740..=0x2b81f
        | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small tokenizer with the parts that BERT's has.
    fn small() -> WordPiece {
        let words = ["[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "hello", ",", "cafe", "東", "!", "##e"];
        let vocabulary: HashMap<&str, usize> = words.iter().enumerate().map(|(i, word)| (*word, i)).collect();
        let json = serde_json::json!({
            "added_tokens": [{ "id": 2, "content": "[SEP]" }],
            "normalizer": { "type": "BertNormalizer", "clean_text": true, "lowercase": true, "strip_accents": null },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "post_processor": { "single": [
                { "SpecialToken": { "id": "[CLS]" } }, { "Sequence": { "id": "A" } }, { "SpecialToken": { "id": "[SEP]" } }
            ] },
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary, "max_input_chars_per_word": 12 },
        });
        WordPiece::parse(&json.to_string()).expect("it is a tokenizer")
    }

    #[test]
    fn words_become_the_longest_pieces() {
        let check =
            |text: &str, tokens: &[u32]| assert_eq!(small().encode(text, 16), (tokens.to_vec(), false), "{text}");
        check("unaffable", &[1, 3, 4, 5, 2]);
        check("Hello,  HELLO!", &[1, 6, 7, 6, 10, 2]);
        check("Café\u{200b}", &[1, 8, 2]);
        check("cafe\u{301}", &[1, 8, 2]);
        check("東hello", &[1, 9, 6, 2]);
        check("unknown", &[1, 0, 2]);
        check("unununununununun", &[1, 0, 2]);
        check("hello[SEP]hello", &[1, 6, 2, 6, 2]);
        check("", &[1, 2]);
        assert_eq!(small().encode("hello hello hello", 4), (vec![1, 6, 6, 2], true));
    }

    #[test]
    fn tokenizers_of_other_kinds_are_named() {
        let error = WordPiece::parse(r#"{"model": {"type": "BPE"}}"#).expect_err("it is another kind");
        assert!(error.contains("its model is \"BPE\", not WordPiece"), "{error}");
    }
}
