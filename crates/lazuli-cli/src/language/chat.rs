//! `lazuli chat`: a conversation in the terminal. Ctrl-C stops a reply after the token that is made, or the part of the prompt that is
//! read; it ends the program if there is no reply, or if one is being stopped already.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use lazuli_text::{Chat, FullContext};

use super::{Common, Pace, common_help, no_option, printable};
use crate::Outcome;
use crate::args::Words;

/// What `lazuli help chat` prints.
pub const HELP: &str = concat!(
    "\
A conversation with a language model, in the terminal.

Usage: lazuli chat MODEL [OPTIONS]

MODEL is a GGUF file, or a folder with config.json, tokenizer.json and safetensors.
Ctrl-C stops a reply, and ends the program if there is none, or if it comes twice. Ctrl-D ends it, too. /help says what else there is.

Options:
  --system TEXT           What the conversation is about
",
    common_help!()
);

const COMMANDS: &str = "\
/help      This text
/history   What was said
/clear     Forgets what was said
/stats     Tokens a second and memory
/quit      Ends the conversation
";

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    common: Common,
    system: Option<String>,
}

impl Options {
    /// Understands the words after `chat`.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let (mut common, mut system, mut path) = (Common::new(), None, None);
        while let Some((word, given)) = words.next() {
            if word == "--system" {
                system = Some(words.value(&word, given, "'You are a poet.'")?);
            } else if !common.take(&word, given, &mut words)? {
                if word.starts_with('-') {
                    return Err(no_option(&word, &["--system"]));
                }
                if let Some(first) = path.replace(word.clone()) {
                    return Err(format!("one model at a time: `{first}` or `{word}`"));
                }
            }
        }
        common.path = path.ok_or("chat with which model? `lazuli chat model.gguf`")?.into();
        Ok(Options { common, system })
    }
}

/// What Ctrl-C means now.
const ENDS: u8 = 0;
const STOPS_REPLY: u8 = 1;
const STOPPED: u8 = 2;

/// Talks until there is nothing more to say.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let model = options.common.open()?;
    let mut chat = model.chat().with_full_context(FullContext::DropOldest);
    if let Some(n_tokens) = options.common.context {
        chat = chat.with_context(n_tokens)?;
    }
    if let Some(system) = &options.system {
        chat = chat.with_system(system);
    }
    let interrupt = Arc::new(AtomicU8::new(ENDS));
    let noticed = interrupt.clone();
    ctrlc::set_handler(move || {
        if noticed.swap(STOPPED, Ordering::Relaxed) != STOPS_REPLY {
            // As shells report a program that Ctrl-C has ended.
            std::process::exit(130);
        }
    })?;
    let is_seen = std::io::stdin().is_terminal();
    if is_seen {
        writeln!(out, "/help says what there is; Ctrl-C stops a reply.")?;
    }
    let mut pace = Pace::default();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if is_seen {
            write!(out, "> ")?;
            out.flush()?;
        }
        let Some(line) = lines.next().transpose()? else { break };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/help" => out.write_all(COMMANDS.as_bytes())?,
            "/history" => history(&chat, out)?,
            "/clear" => chat.clear(),
            "/stats" => pace.print(chat.session().cache_bytes(), model.decoder().device(), out)?,
            command if command.starts_with('/') && !command.contains(' ') => {
                writeln!(out, "there is no `{command}`; /help says what there is")?;
            }
            said => pace.add(answer(&mut chat, said, options, &interrupt, out)?),
        }
    }
    if is_seen {
        writeln!(out)?;
    }
    if options.common.has_stats || is_seen {
        pace.print(chat.session().cache_bytes(), model.decoder().device(), &mut std::io::stderr())?;
    }
    Ok(())
}

/// Prints an answer as it comes. What cannot be answered is told, and the conversation goes on.
fn answer(
    chat: &mut Chat,
    said: &str,
    options: &Options,
    interrupt: &AtomicU8,
    out: &mut dyn Write,
) -> std::io::Result<Pace> {
    let (n_before, n_forgotten) = (chat.session().tokens().len(), chat.n_forgotten());
    let (start, mut first) = (Instant::now(), None);
    interrupt.store(STOPS_REPLY, Ordering::Relaxed);
    let mut reply = chat.say(said, &options.common.sampling);
    // Step by step, not piece by piece: reading a long prompt takes a while, and not every token makes a character.
    while let Some(text) = reply.step() {
        match text {
            Ok(text) => write!(out, "{}", printable(&text))?,
            Err(error) => write!(out, "\n({})", crate::told(&error))?,
        }
        out.flush()?;
        if !reply.tokens().is_empty() {
            first.get_or_insert_with(Instant::now);
        }
        if interrupt.load(Ordering::Relaxed) == STOPPED {
            break;
        }
    }
    let n_made = reply.tokens().len();
    drop(reply);
    interrupt.store(ENDS, Ordering::Relaxed);
    writeln!(out)?;
    let n_dropped = chat.n_forgotten() - n_forgotten;
    if n_dropped > 0 {
        writeln!(out, "(the context was full: the oldest {n_dropped} messages are forgotten)")?;
    }
    let end = Instant::now();
    let first = first.unwrap_or(end);
    let n_read = (chat.session().tokens().len() + 1).saturating_sub(n_before + n_made.max(1));
    Ok(Pace { n_read, reading: first - start, n_made: n_made.saturating_sub(1), making: end - first })
}

/// What was said so far.
fn history(chat: &Chat, out: &mut dyn Write) -> std::io::Result<()> {
    for message in chat.messages() {
        writeln!(out, "{}: {}", message.role.name(), printable(&message.content))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let parse = |words: &[&str]| Options::parse(words.iter().map(|word| word.to_string()));
        let options = parse(&["m.gguf", "--system", "Be kind.", "--stats"]).unwrap();
        assert_eq!((options.system.as_deref(), options.common.has_stats), (Some("Be kind."), true));
        assert!(parse(&[]).unwrap_err().contains("chat with which model?"));
        assert!(parse(&["a.gguf", "b.gguf"]).unwrap_err().contains("one model at a time: `a.gguf` or `b.gguf`"));
        assert!(parse(&["a.gguf", "--sytem", "x"]).unwrap_err().contains("did you mean `--system`?"));
    }
}
