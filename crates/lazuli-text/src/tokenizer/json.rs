//! Tokenizers as `tokenizer.json` describes them, beside safetensors: byte-level BPE with the patterns that are written there,
//! and BPE over characters with bytes to fall back on, as SentencePiece's models are converted to.

use lazuli::Result;
use serde_json::Value;

use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{Spelling, TokenKind, Vocabulary};
use super::{Algorithm, Tokenizer, merges_of};
use crate::fault;

/// What byte-level BPE cuts text by where no other pattern is given.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`. `settings` is what `tokenizer_config.json` says, `config` what `config.json` does:
    /// which tokens begin and end a text.
    pub(crate) fn from_json(json: &Value, settings: &Value, config: &Value) -> Result<Tokenizer> {
        let model = &json["model"];
        let kind = model["type"].as_str().unwrap_or("BPE");
        if kind != "BPE" {
            let message = format!("tokenizer.json: a model of type `{kind}` is not supported; there is BPE");
            return Err(fault::unsupported("tokenizer", message));
        }
        let (names, kinds) = names_and_kinds(json)?;
        let pairs = merges(model)?;
        let merges = merges_of(pairs.iter().map(|(left, right)| (&**left, &**right)));
        let whole_words = model["ignore_merges"].as_bool().unwrap_or(false);
        let kind_of = |i: usize, _: &str| kinds[i];
        let owned = names.iter().cloned();
        let steps = steps_of(&json["pre_tokenizer"], "pretokenizers");
        let is_byte_level = steps.iter().any(|step| step["type"] == "ByteLevel");
        let unknown = |names: &[String]| names.iter().position(|name| model["unk_token"] == **name).map(|id| id as u32);
        let (algorithm, vocabulary) = if is_byte_level {
            let pre = PreTokenizer::of(&patterns_of(&steps)?, whole_words, false)?;
            (Algorithm::Bpe { pre, merges }, Vocabulary::new(owned, kind_of, |_| 0.0, Spelling::ByteChars, None))
        } else {
            let adds_space = adds_space(json);
            let unknown = unknown(&names);
            let vocabulary = Vocabulary::new(owned, kind_of, |_| 0.0, Spelling::SentencePiece, unknown);
            (Algorithm::SentencePiece { adds_space, merges: Some(merges) }, vocabulary)
        };
        let mut tokenizer =
            Tokenizer { vocabulary, algorithm, bos: None, eos: None, ends: Vec::new(), adds_bos: false };
        let named = |key: &str| {
            let name = settings[key].as_str().or_else(|| settings[key]["content"].as_str());
            let id = || config[key.replace("token", "token_id")].as_u64().map(|id| id as u32);
            name.and_then(|name| tokenizer.find(name)).or_else(id)
        };
        let (bos, eos) = (named("bos_token"), named("eos_token"));
        let also = config["eos_token_id"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let ends: Vec<u32> = eos.into_iter().chain(also.map(|id| id as u32)).collect();
        // What is put before a text is told by the step after the model, or by a setting of older files.
        let adds_bos = settings["add_bos_token"].as_bool().unwrap_or_else(|| begins_with(&json["post_processor"], bos));
        (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) = (bos, eos, adds_bos);
        tokenizer.set_ends(ends.into_iter());
        Ok(tokenizer)
    }
}

/// The names of all tokens by number, and their kinds.
fn names_and_kinds(json: &Value) -> Result<(Vec<String>, Vec<TokenKind>)> {
    let broken = |what: &str| fault::parse("tokenizer", format!("tokenizer.json: {what}"));
    let vocab = json["model"]["vocab"].as_object().ok_or_else(|| broken("it has no `model.vocab`"))?;
    let added = json["added_tokens"].as_array().map_or(&[][..], |added| added);
    let mut entries: Vec<(usize, &str, TokenKind)> = Vec::with_capacity(vocab.len() + added.len());
    for (name, id) in vocab {
        let id = id.as_u64().ok_or_else(|| broken("a token of `model.vocab` has no number"))?;
        entries.push((id as usize, name, TokenKind::Normal));
    }
    for token in added {
        let (Some(id), Some(name)) = (token["id"].as_u64(), token["content"].as_str()) else {
            return Err(broken("one of `added_tokens` has no `id` or no `content`"));
        };
        let is_special = token["special"].as_bool().unwrap_or(false);
        entries.push((id as usize, name, if is_special { TokenKind::Control } else { TokenKind::UserDefined }));
    }
    let n_tokens = entries.iter().map(|(id, ..)| id + 1).max().unwrap_or(0);
    if n_tokens > 2 * entries.len() + 65_536 {
        return Err(broken(&format!("it has {} tokens with numbers up to {n_tokens}", entries.len())));
    }
    let (mut names, mut kinds) = (vec![String::new(); n_tokens], vec![TokenKind::Normal; n_tokens]);
    for (id, name, kind) in entries {
        names[id] = name.to_string();
        kinds[id] = kind;
    }
    Ok((names, kinds))
}

/// Merges, which are written as `"a b"` or as `["a", "b"]`.
fn merges(model: &Value) -> Result<Vec<(String, String)>> {
    let broken = |merge: &Value| fault::parse("tokenizer", format!("tokenizer.json: {merge} is no merge of two"));
    let merges = model["merges"].as_array().map_or(&[][..], |merges| merges);
    let pair = |merge: &Value| match (merge.as_str(), merge.as_array().map(|pair| &pair[..])) {
        (Some(text), _) => text.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
        (_, Some([a, b])) => a.as_str().zip(b.as_str()).map(|(a, b)| (a.to_string(), b.to_string())),
        _ => None,
    };
    merges.iter().map(|merge| pair(merge).ok_or_else(|| broken(merge))).collect()
}

/// The steps of a sequence, or the one step that it is.
fn steps_of<'a>(json: &'a Value, name: &str) -> Vec<&'a Value> {
    match json[name].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![json],
    }
}

/// The patterns by which steps cut text.
fn patterns_of(steps: &[&Value]) -> Result<Vec<String>> {
    let mut patterns = Vec::new();
    for step in steps {
        match step["type"].as_str().unwrap_or_default() {
            "Split" => match step["pattern"]["Regex"].as_str() {
                Some(pattern) => patterns.push(pattern.to_string()),
                None => {
                    return Err(fault::unsupported("tokenizer", "tokenizer.json: a split by something but a regex"));
                }
            },
            "Digits" => patterns.push(if step["individual_digits"] == true { r"\p{N}" } else { r"\p{N}+" }.to_string()),
            "ByteLevel" if step["use_regex"] != false => patterns.push(BYTE_LEVEL.to_string()),
            "ByteLevel" => {}
            other => {
                let message = format!("tokenizer.json: pre-tokenizer `{other}` is not supported");
                return Err(fault::unsupported("tokenizer", message));
            }
        }
    }
    Ok(patterns)
}

/// Whether a text begins as if a space were before it.
fn adds_space(json: &Value) -> bool {
    let prepends = steps_of(&json["normalizer"], "normalizers").iter().any(|step| step["type"] == "Prepend");
    let steps = steps_of(&json["pre_tokenizer"], "pretokenizers");
    let metaspace = steps.into_iter().find(|step| step["type"] == "Metaspace");
    let by_metaspace = metaspace.is_some_and(|step| match step["prepend_scheme"].as_str() {
        Some(scheme) => scheme != "never",
        None => step["add_prefix_space"].as_bool().unwrap_or(true),
    });
    prepends || by_metaspace
}

/// Whether the step after the model begins every text with this token.
fn begins_with(post: &Value, bos: Option<u32>) -> bool {
    let steps = steps_of(post, "processors");
    let template = steps.into_iter().find(|step| step["type"] == "TemplateProcessing");
    let first = template.map(|step| &step["single"][0]["SpecialToken"]["id"]).and_then(Value::as_str);
    bos.is_some() && first.is_some()
}
