//! Chat templates: what a model was trained to read as a conversation, written in Jinja by whoever made the model. A template is
//! a program from a file, so it has limits: steps, its own size and that of what it writes.

use std::io::{self, Write};

use lazuli::Result;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::fault;

/// The longest template that is read, in bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The longest conversation that a template may write, in bytes.
const MAX_WRITTEN_BYTES: usize = 64 << 20;
/// Steps of the template engine: those of a thousand messages are below a tenth of this.
const MAX_STEPS: u64 = 5_000_000;

/// What is used where a file has no template: the form that most models without one were trained on.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content \
    + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// The same where a vocabulary has no such tokens.
pub const PLAIN: &str = "{% for message in messages %}{{ message.role | title + ': ' + message.content + '\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

/// Who says something in a conversation.
///
/// ```
/// assert_eq!(lazuli_text::Role::Assistant.name(), "assistant");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Says what the conversation is about, before it begins.
    System,
    /// Asks.
    User,
    /// Answers: the model.
    Assistant,
}

impl Role {
    /// What templates call it.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// What somebody said.
///
/// ```
/// use lazuli_text::{Message, Role};
/// let message = Message::new(Role::User, "Good morning");
/// assert_eq!(message.content, "Good morning");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub content: String,
}

impl Message {
    /// What somebody said.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into() }
    }
}

/// A chat template.
///
/// ```
/// use lazuli_text::{ChatTemplate, Message, Role};
/// let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content.strip() }}{% endfor %}{{ eos_token }}")?;
/// let messages = [Message::new(Role::User, " Hello ")];
/// assert_eq!(template.render(&messages, "<s>", "</s>")?, "<user>Hello</s>");
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// A template from its source, which is parsed.
    #[track_caller]
    pub fn new(source: impl Into<String>) -> Result<ChatTemplate> {
        let _caller = fault::caller();
        let source = source.into();
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("it has {} bytes; {MAX_SOURCE_BYTES} are the most", source.len());
            return Err(fault::parse("chat template", message));
        }
        environment().template_from_str(&source).map_err(|error| broken(&error))?;
        Ok(ChatTemplate { source })
    }

    /// Its source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as the model reads it, up to where its answer begins. `bos` and `eos` are what the template may write
    /// where texts begin and end.
    #[track_caller]
    pub fn render(&self, messages: &[Message], bos: &str, eos: &str) -> Result<String> {
        let _caller = fault::caller();
        let said = messages
            .iter()
            .map(|message| Value::from_iter([("role", message.role.name()), ("content", &*message.content)]));
        let context = context! {
            messages => Value::from(said.collect::<Vec<Value>>()),
            add_generation_prompt => true,
            bos_token => bos,
            eos_token => eos,
        };
        let environment = environment();
        let template = environment.template_from_str(&self.source).map_err(|error| broken(&error))?;
        let mut written = Limited { bytes: Vec::new() };
        template.render_captured_to(context, &mut written).map_err(|error| broken(&error))?;
        String::from_utf8(written.bytes).map_err(|_| fault::parse("chat template", "it wrote what is no UTF-8"))
    }
}

/// Jinja as the models' makers have it: blocks take their line along, strings have Python's methods, and there are two more
/// functions.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(100);
    environment.set_unknown_method_callback(unknown_method_callback);
    let raise = |message: String| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("it says: {message}")))
    };
    environment.add_function("raise_exception", raise);
    environment.add_function("strftime_now", today);
    environment
}

/// The date, for templates that tell the model; in UTC. Knows the fields that templates ask for.
fn today(format: String) -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds / 86_400, &format)
}

/// A day since 1970 in the form that `format` asks for.
fn date(day: u64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    // Days since 0000-03-01, in eras of 400 years, years of the era and days of the year that begins in March.
    let z = day + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + (month < 2) as u64;
    let name = MONTHS[month as usize];
    format
        .replace("%d", &format!("{day_of_month:02}"))
        .replace("%m", &format!("{:02}", month + 1))
        .replace("%Y", &format!("{year}"))
        .replace("%y", &format!("{:02}", year % 100))
        .replace("%B", name)
        .replace("%b", &name[..3])
}

#[track_caller]
fn broken(error: &minijinja::Error) -> lazuli::Error {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    let message = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {MAX_STEPS} steps{line}"),
        // Nothing but the limit can fail when bytes are written to memory.
        ErrorKind::WriteFailure => format!("it writes more than {MAX_WRITTEN_BYTES} bytes{line}"),
        _ => format!("{}{line}", error.detail().map_or_else(|| error.kind().to_string(), String::from)),
    };
    fault::parse("chat template", message)
}

/// Takes so many bytes and no more.
struct Limited {
    bytes: Vec<u8>,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_WRITTEN_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expect: &str) {
        let messages = [Message::new(Role::System, "Be kind."), Message::new(Role::User, " Hello ")];
        let rendered = ChatTemplate::new(source).unwrap().render(&messages, "<s>", "</s>");
        assert_eq!(rendered.unwrap_or_else(|error| error.to_string()), expect, "{source}");
    }

    #[track_caller]
    fn check_fault(source: &str, expect: &str) {
        let messages = [Message::new(Role::User, "Hello")];
        let error = ChatTemplate::new(source).and_then(|t| t.render(&messages, "", "")).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn templates_have_what_their_makers_use() {
        check("{{ bos_token }}{{ messages[1]['content'] | trim }}{{ eos_token }}", "<s>Hello</s>");
        check("{{ messages[0].content.upper().split('.')[0] }}", "BE KIND");
        check(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        );
        check("{% for m in messages %}\n{{ loop.index0 }}{% if loop.last %}!{% endif %}\n{% endfor %}", "01!");
        check("{{ messages[0] | tojson }}", r#"{"content":"Be kind.","role":"system"}"#);
        check("{{ tools is defined }} {% if not tools %}none{% endif %}", "False none");
        check("{{ messages[1].content.startswith(' H') and 'kind' in messages[0].content }}", "True");
        check("{%- for m in messages -%} {{ m.role }} {%- endfor -%}", "systemuser");
    }

    #[test]
    fn defaults_are_templates() {
        check(
            CHATML,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hello <|im_end|>\n<|im_start|>assistant\n",
        );
        check(PLAIN, "System: Be kind.\nUser:  Hello \nAssistant:");
    }

    #[test]
    fn templates_have_limits() {
        check_fault(
            "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}",
            "more than 5000000 steps",
        );
        check_fault("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
        let long =
            format!("{{% set x = '{}' %}}{{% for a in range(999) %}}{{{{ x }}}}{{% endfor %}}", "x".repeat(100_000));
        check_fault(&long, "it writes more than 67108864 bytes");
        check_fault(&" ".repeat(MAX_SOURCE_BYTES + 1), "are the most");
    }

    #[test]
    fn faults_are_told() {
        check_fault(
            "{{ raise_exception('roles must alternate') }}",
            "chat template: it says: roles must alternate (line 1)",
        );
        check_fault("{% for %}", "(line 1)");
        check_fault("{{ messages.nothing.at.all }}", "undefined");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Day numbers by `date -d DATE +%s` / 86400.
        assert_eq!(date(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(date(11_016, "%Y-%m-%d"), "2000-02-29");
        assert_eq!(date(20_775, "%d %B %y"), "18 November 26");
    }
}
