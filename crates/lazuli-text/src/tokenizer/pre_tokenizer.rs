//! How byte-level BPE cuts text into words before it merges: a row for each kind that GGUF files name. Every pattern of a row
//! cuts the pieces that the one before it has left; what lies between two matches is a piece, too.

use fancy_regex::Regex;
use lazuli::Result;

use crate::fault;

/// A kind of pre-tokenizer.
struct PreRow {
    /// What files call it.
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Whether a word that is a token is one, whatever the merges would make of it.
    whole_words: bool,
    /// Whether a text begins with the token of beginnings, where the file does not say.
    adds_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const ROWS: &[PreRow] = &[
    PreRow {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        whole_words: false,
        adds_bos: false,
    },
    PreRow {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "mellum", "a.x-4.0", "trillion", "granite-docling"],
        patterns: &[GPT2],
        whole_words: false,
        adds_bos: false,
    },
    PreRow {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        patterns: &[r"\p{N}", GPT2],
        whole_words: false,
        adds_bos: false,
    },
    PreRow {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        whole_words: true,
        adds_bos: true,
    },
    PreRow { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA3], whole_words: false, adds_bos: false },
    PreRow {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "megrez", "solar-open"],
        patterns: &[QWEN2],
        whole_words: false,
        adds_bos: false,
    },
    PreRow {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        whole_words: false,
        adds_bos: false,
    },
    PreRow {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        whole_words: false,
        adds_bos: false,
    },
    PreRow { names: &["tekken"], patterns: &[TEKKEN], whole_words: true, adds_bos: true },
    PreRow { names: &["gpt-4o", "llama4", "kanana2"], patterns: &[GPT4O], whole_words: false, adds_bos: false },
];

/// A pre-tokenizer, its patterns compiled.
pub struct PreTokenizer {
    patterns: Vec<Regex>,
    pub whole_words: bool,
    pub adds_bos: bool,
}

impl PreTokenizer {
    /// The one that a file names.
    pub fn named(name: &str) -> Result<PreTokenizer> {
        let Some(row) = ROWS.iter().find(|row| row.names.contains(&name)) else {
            let known: Vec<&str> = ROWS.iter().flat_map(|row| row.names).copied().collect();
            let message = format!("pre-tokenizer `{name}` is not supported; there are {}", known.join(", "));
            return Err(fault::unsupported("tokenizer", message));
        };
        PreTokenizer::of(row.patterns, row.whole_words, row.adds_bos)
    }

    /// Of patterns, one after another.
    pub fn of(patterns: &[impl AsRef<str>], whole_words: bool, adds_bos: bool) -> Result<PreTokenizer> {
        let compiled = patterns.iter().map(|pattern| {
            let pattern = pattern.as_ref();
            let fault = |e| fault::parse("tokenizer", format!("pattern `{pattern}`: {e}"));
            Regex::new(pattern).map_err(fault)
        });
        Ok(PreTokenizer { patterns: compiled.collect::<Result<_>>()?, whole_words, adds_bos })
    }

    /// The words of a text, in order; together they are the text.
    pub fn split<'a>(&self, text: &'a str) -> Result<Vec<&'a str>> {
        let mut words = vec![text];
        for pattern in &self.patterns {
            let mut finer = Vec::with_capacity(words.len());
            for word in words {
                let mut end = 0;
                for found in pattern.find_iter(word) {
                    let found = found.map_err(|e| fault::parse("tokenizer", format!("a text cannot be split: {e}")))?;
                    finer.extend([&word[end..found.start()], found.as_str()].iter().filter(|piece| !piece.is_empty()));
                    end = found.end();
                }
                finer.extend((end < word.len()).then_some(&word[end..]));
            }
            words = finer;
        }
        words.retain(|word| !word.is_empty());
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_compiles_and_no_name_comes_twice() {
        let names: Vec<&str> = ROWS.iter().flat_map(|row| row.names).copied().collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
            let text = "I'll pay 12345 €, \n\n ok?  世界 \u{1f600}\t";
            assert_eq!(PreTokenizer::named(name).unwrap().split(text).unwrap().concat(), text, "{name}");
        }
        let error = PreTokenizer::named("klingon").map(drop).unwrap_err().to_string();
        assert!(error.contains("pre-tokenizer `klingon` is not supported; there are default, gpt-2"), "{error}");
    }

    #[test]
    fn words_are_cut_as_the_kinds_say() {
        let split = |name: &str, text: &'static str| PreTokenizer::named(name).unwrap().split(text).unwrap();
        assert_eq!(split("gpt-2", "it's 1234  ok"), ["it", "'s", " 1234", " ", " ok"]);
        assert_eq!(split("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(split("llama-bpe", "I'LL 12345\n\n x"), ["I", "'LL", " ", "123", "45", "\n\n", " x"]);
        assert_eq!(split("qwen2", "12 3"), ["1", "2", " ", "3"]);
    }
}
