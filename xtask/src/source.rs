//! A Rust file as the rules see it: code without comments, without what is in strings, and without tests. Not a
//! parser: it knows where comments, strings and braces begin and end, which is all that the rules need.

use std::collections::BTreeSet;

use crate::workspace;

/// A Rust file.
pub struct Source {
    pub path: String,
    pub text: String,
    /// One entry a line, so that line numbers stay. Comments, strings and tests are blank.
    pub code: Vec<String>,
    /// The same with tests.
    pub code_and_tests: Vec<String>,
    /// Whether all of it is tests.
    pub is_test: bool,
}

impl Source {
    /// A file with this path and text. A `mod` line in another file may say that it is compiled only for tests, which [`all`] finds out.
    pub fn new(path: String, text: String) -> Source {
        let code_and_tests = blank(&text);
        let code = without_tests(&code_and_tests);
        let is_test = path.contains("/tests/");
        Source { path, text, code, code_and_tests, is_test }
    }

    /// Lines that are code: neither blank nor comment nor test.
    pub fn n_code_lines(&self) -> usize {
        self.code.iter().filter(|line| !line.trim().is_empty()).count()
    }
}

/// Stands for what was in a string. Not a blank: the lines of a long string are code.
const IN_STRING: char = '\u{1}';

/// All Rust files of the repository.
pub fn all() -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in workspace::files("", &[".rs"])? {
        let text = workspace::read(&path)?;
        sources.push(Source::new(path, text));
    }
    let test_files: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        source.is_test |= test_files.contains(&source.path);
        if source.is_test {
            source.code.iter_mut().for_each(String::clear);
        }
    }
    Ok(sources)
}

/// The text line by line, with comments and the contents of strings and characters blanked.
fn blank(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let rest = &chars[i..];
        let n = match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest),
            ['r' | 'b' | 'c', ..] if !is_word(i.checked_sub(1).map(|b| chars[b])) => match prefixed_string(rest) {
                0 => 1,
                n => n,
            },
            ['\'', '\\', ..] => 2 + rest[3.min(rest.len())..].iter().take_while(|c| **c != '\'').count() + 2,
            ['\'', _, '\'', ..] => 3,
            _ => 1,
        };
        let n = n.min(rest.len());
        let is_comment = rest.starts_with(&['/', '/']) || rest.starts_with(&['/', '*']);
        for (at, c) in rest[..n].iter().enumerate() {
            out.push(match c {
                '\n' => '\n',
                _ if n == 1 => *c,
                _ if is_comment => ' ',
                // The quotes stay, so that it still looks like a string.
                _ if at == 0 || at == n - 1 => *c,
                _ => IN_STRING,
            });
        }
        i += n;
    }
    out.lines().map(String::from).collect()
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// How long the block comment at the start is; they nest.
fn block_comment(text: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < text.len() {
        match &text[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

/// How long the string at the start is, quotes included.
fn string(text: &[char]) -> usize {
    let mut i = 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// How long the string with a prefix (`r#"…"#`, `b"…"`) at the start is; 0 if there is none.
fn prefixed_string(text: &[char]) -> usize {
    let n_letters = text.iter().take_while(|c| ['r', 'b', 'c'].contains(c)).count();
    let n_hashes = text[n_letters..].iter().take_while(|c| **c == '#').count();
    let start = n_letters + n_hashes;
    if n_letters > 2 || text.get(start) != Some(&'"') {
        return 0;
    }
    if !text[..n_letters].contains(&'r') {
        return if n_hashes == 0 { start + string(&text[start..]) } else { 0 };
    }
    let closes = |at: usize| text[at] == '"' && text[at + 1..].iter().take_while(|c| **c == '#').count() >= n_hashes;
    let end = (start + 1..text.len()).find(|at| closes(*at)).unwrap_or(text.len());
    end + 1 + n_hashes
}

/// Blanks every item under `#[cfg(test)]` or `#[test]`.
fn without_tests(lines: &[String]) -> Vec<String> {
    let mut out = lines.to_vec();
    let mut i = 0;
    while i < out.len() {
        if !is_test_attribute(&out[i]) {
            i += 1;
            continue;
        }
        let n = item_lines(&out[i..]);
        out[i..i + n].iter_mut().for_each(String::clear);
        i += n;
    }
    out
}

fn is_test_attribute(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") || line.starts_with("#[test]")
}

/// How many lines the item at the start takes: to the brace that closes it, or to a semicolon before any.
fn item_lines(lines: &[String]) -> usize {
    let mut depth = 0i32;
    for (i, line) in lines.iter().enumerate() {
        // Attributes have brackets, not braces; the first `;` or `}` at depth 0 ends the item.
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && (c == '}' || c == ';') {
                return i + 1;
            }
        }
    }
    lines.len()
}

/// The files of the modules that are compiled for tests only.
fn test_modules(source: &Source) -> Vec<String> {
    let folder = match source.path.strip_suffix("/mod.rs").or(source.path.strip_suffix("/lib.rs")) {
        Some(folder) => folder,
        None => source.path.trim_end_matches(".rs"),
    };
    let lines = source.code_and_tests.iter();
    let pairs = lines.clone().zip(lines.skip(1));
    let under_test = pairs.filter(|(attribute, _)| is_test_attribute(attribute)).filter_map(|(_, item)| {
        let name = item.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        name.strip_prefix("mod ")?.strip_suffix(';')
    });
    under_test.map(|name| format!("{folder}/{name}.rs")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let shown = blank(text).join("\n").replace(IN_STRING, "_");
        assert_eq!(shown, expect);
    }

    #[test]
    fn comments_and_strings_are_blanked_and_lines_stay() {
        check("a // b\nc /* d\n /* e */ */ f", "a     \nc     \n            f");
        check(r#"f("x // y", '"', 'a') + 'b"#, r#"f("______", '_', '_') + 'b"#);
        check("r#\"a\"b\"# + b\"c\\\"d\"", "r______# + b_____\"");
        check("let r = b; for x in c {}", "let r = b; for x in c {}");
        check(r"('\'', '\n', '\u{41}')", r"('__', '__', '______')");
    }

    #[test]
    fn tests_are_not_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}";
        let code = without_tests(&blank(text));
        let left: Vec<&str> = code.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        assert_eq!(left, ["fn a() {}", "fn c() {}", "fn e() {}"]);
    }

    #[test]
    fn modules_of_tests_are_test_files() {
        let of = |path: &str, text: &str| test_modules(&Source::new(path.into(), text.into()));
        assert_eq!(of("a/mod.rs", "#[cfg(test)]\nmod b;"), ["a/b.rs"]);
        assert_eq!(of("a/c.rs", "#[cfg(test)]\nmod b;"), ["a/c/b.rs"]);
        assert!(of("a/mod.rs", "mod b;").is_empty());
    }
}
