//! `lazuli generate`: goes on with a text.

use std::io::Write;
use std::time::Instant;

use super::{Common, Pace, common_help, no_option, printable};
use crate::Outcome;
use crate::args::{Words, flag};

/// What `lazuli help generate` prints.
pub const HELP: &str = concat!(
    "\
Goes on with a text, as a language model would.

Usage: lazuli generate MODEL \"PROMPT\" [OPTIONS]

MODEL is a GGUF file, or a folder with config.json, tokenizer.json and safetensors.

Options:
  --json                  One JSON object at the end instead of text as it comes
",
    common_help!()
);

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    common: Common,
    prompt: String,
    is_json: bool,
}

impl Options {
    /// Understands the words after `generate`.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let (mut common, mut is_json, mut named) = (Common::new(), false, Vec::new());
        while let Some((word, given)) = words.next() {
            if word == "--json" {
                flag(&word, given)?;
                is_json = true;
            } else if !common.take(&word, given.clone(), &mut words)? {
                if word.starts_with('-') && word.len() > 1 && named.is_empty() {
                    return Err(no_option(&word, &["--json"]));
                }
                // A text that begins as an option does was taken apart.
                named.push(given.map_or(word.clone(), |rest| format!("{word}={rest}")));
            }
        }
        let [path, prompt] = &named[..] else {
            let example = "`lazuli generate model.gguf \"Once upon a time\"`";
            return Err(match named.len() {
                0 | 1 => format!("generate wants a model and a text to go on with: {example}"),
                _ => format!("generate wants one text, in quotes: {example}"),
            });
        };
        common.path = path.into();
        Ok(Options { common, prompt: prompt.clone(), is_json })
    }
}

/// Goes on with the text, and prints it as it comes.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let model = options.common.open()?;
    let start = Instant::now();
    let mut session = model.session();
    if let Some(n_tokens) = options.common.context {
        session = session.with_context(n_tokens)?;
    }
    let mut completion = session.complete(&options.prompt, &options.common.sampling);
    let (mut text, mut first) = (String::new(), None);
    if !options.is_json {
        write!(out, "{}", printable(&options.prompt))?;
    }
    for piece in completion.by_ref() {
        let piece = piece?;
        first.get_or_insert_with(Instant::now);
        if !options.is_json {
            write!(out, "{}", printable(&piece))?;
            out.flush()?;
        }
        text += &piece;
    }
    let end = Instant::now();
    let session = completion.session();
    let n_made = completion.tokens().len();
    let n_prompt = (session.tokens().len() + 1).saturating_sub(n_made.max(1));
    let first = first.unwrap_or(end);
    // Reading the prompt gives the first token.
    let pace = Pace { n_read: n_prompt, reading: first - start, n_made: n_made.saturating_sub(1), making: end - first };
    if options.is_json {
        let told = serde_json::json!({
            "prompt": options.prompt,
            "text": text,
            "tokens": completion.tokens(),
            "prompt_tokens": n_prompt,
            "prompt_seconds": pace.reading.as_secs_f64(),
            "seconds": (end - start).as_secs_f64(),
            "cache_bytes": session.cache_bytes(),
        });
        writeln!(out, "{told}")?;
    } else {
        writeln!(out)?;
    }
    if options.common.has_stats {
        pace.print(session.cache_bytes(), model.decoder().device(), &mut std::io::stderr())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_fault(words: &str, expect: &str) {
        let error = Options::parse(words.split_whitespace().map(String::from)).unwrap_err();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn words_are_understood_or_refused() {
        let words = ["m.gguf", "a text", "--tokens=5", "--temperature", "0", "--seed", "3", "--json", "--stop", "x"];
        let options = Options::parse(words.map(String::from)).unwrap();
        assert_eq!((options.prompt.as_str(), options.is_json), ("a text", true));
        let sampling = options.common.sampling;
        assert_eq!((sampling.max_tokens, sampling.temperature, sampling.seed), (Some(5), 0.0, 3));
        assert_eq!(sampling.stop, ["x"]);
        let options = Options::parse(["m.gguf", "--x=5 is", "--context", "9"].map(String::from)).unwrap();
        assert_eq!((options.prompt.as_str(), options.common.context), ("--x=5 is", Some(9)));
        check_fault("m.gguf a --context 0", "--context wants a whole number from 1 on");
        check_fault("m.gguf", "generate wants a model and a text to go on with");
        check_fault("m.gguf two words", "generate wants one text, in quotes");
        check_fault("--tokens 0 m.gguf a", "--tokens wants a whole number from 1 on");
        check_fault("--temprature 1 m.gguf a", "did you mean `--temperature`?");
        check_fault("--top-p 2 m.gguf a", "--top-p wants a share from 0 to 1");
    }
}
