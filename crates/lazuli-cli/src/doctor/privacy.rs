//! Takes out of texts that others wrote (drivers, errors) who is asked: where files are, and with that names of users and hosts.

/// Characters at which a path in a sentence may begin or end.
const DELIMITERS: [char; 9] = [' ', '\n', '\t', '(', ')', '"', '\'', ',', ';'];
const QUOTES: [char; 2] = ['"', '\''];
/// Folders that hold those of users.
const PARENTS_OF_HOMES: [&str; 5] = ["home", "Users", "users", "Documents and Settings", "media"];
/// Words of a user's name, at most.
const MAX_NAMES: usize = 4;

/// A text with only the last part of each path in it, and nothing of a path that ends at a user's folder.
pub fn without_paths(text: &str) -> String {
    let home = std::env::home_dir().map(|home| home.to_string_lossy().into_owned());
    without_paths_below(text, home.as_deref())
}

/// The same for a user whose own folder is this one.
fn without_paths_below(text: &str, home: Option<&str>) -> String {
    // Wherever that is, and whatever blanks are in it. That of a machine's only user may be `/`.
    let text = match home.filter(|home| home.len() > 1) {
        Some(home) => text.replace(home.trim_end_matches(['/', '\\']), "~"),
        None => text.to_string(),
    };
    let (mut rest, mut before, mut kept) = (&*text, None, String::new());
    while let Some(first) = rest.chars().next() {
        let n_bytes = match DELIMITERS.contains(&first) {
            true => first.len_utf8(),
            false => word_of(rest).len(),
        };
        let mut part = &rest[..n_bytes];
        if is_path(part) {
            part = path_of(rest, before);
            kept += &last_part(part);
        } else {
            kept += part;
        }
        before = part.chars().next_back();
        rest = &rest[part.len()..];
    }
    kept
}

/// What stands before the next delimiter.
fn word_of(text: &str) -> &str {
    text.split(DELIMITERS).next().unwrap_or_default()
}

fn is_separator(c: char) -> bool {
    c == '/' || c == '\\'
}

/// Whether a path begins here whatever stands before it.
fn is_absolute(word: &str) -> bool {
    let has_drive = word.as_bytes().get(1) == Some(&b':') && word[2..].starts_with(is_separator);
    has_drive || word.starts_with(is_separator) || word.starts_with('~')
}

fn is_path(word: &str) -> bool {
    let n_separators = word.matches(is_separator).count();
    word.len() > 1 && n_separators < word.len() && (n_separators >= 2 || is_absolute(word))
}

/// The path that starts here, after this character. One in quotes ends where they do. Others end at a blank, unless what
/// follows goes on with them: the blank was in the name of a folder.
fn path_of(text: &str, before: Option<char>) -> &str {
    let line = text.lines().next().unwrap_or_default();
    if let Some(quote) = before.filter(|c| QUOTES.contains(c))
        && let Some(end) = line.find(quote)
    {
        return &text[..end];
    }
    let mut end = word_of(text).len();
    'more: loop {
        // A name of a user may have several blanks; of other folders one is expected.
        let n_words = if is_home(&text[..end]) { MAX_NAMES } else { 1 };
        let mut at = end;
        for _ in 0..n_words {
            let Some(next) = line.get(at..).and_then(|rest| rest.strip_prefix(' ')).map(word_of) else { break };
            if next.is_empty() || is_absolute(next) {
                break;
            }
            at += 1 + next.len();
            if next.contains(is_separator) {
                end = at;
                continue 'more;
            }
        }
        return &text[..end];
    }
}

/// Whether a path ends at a user's folder.
fn is_home(path: &str) -> bool {
    let mut parts = path.rsplit(is_separator).filter(|part| !part.is_empty());
    match (parts.next(), parts.next()) {
        (Some(_), Some(parent)) => PARENTS_OF_HOMES.contains(&parent),
        // `~ada`, or `\\host`.
        (Some(_), None) => ["~", "\\\\", "//"].iter().any(|start| path.starts_with(start)),
        (None, _) => false,
    }
}

/// What is told of a path.
fn last_part(path: &str) -> String {
    if !is_home(path) {
        return path.trim_end_matches(is_separator).rsplit(is_separator).next().unwrap_or_default().to_string();
    }
    let word = path.trim_end_matches([':', '.', '!', '?']);
    format!("~{}", &path[word.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cases: &[(&str, &str)], home: Option<&str>) {
        for (text, expect) in cases {
            assert_eq!(without_paths_below(text, home), *expect, "{text}");
        }
    }

    #[test]
    fn paths_are_taken_out_and_other_words_stay() {
        check(
            &[
                (
                    "error: open: no such file (/opt/ada/lazuli/src/map.rs:3:4)",
                    "error: open: no such file (map.rs:3:4)",
                ),
                ("C:\\Users\\Ada\\cache.bin is gone", "cache.bin is gone"),
                ("C:\\cache.bin is gone", "cache.bin is gone"),
                ("see ~/secret, \"/etc/passwd\"", "see secret, \"passwd\""),
                ("12 GB/s, 3 × 3 / 2, a // comment", "12 GB/s, 3 × 3 / 2, a // comment"),
                ("crates/lazuli-check/src/leaf.rs:3", "leaf.rs:3"),
                ("/opt/a/one 12 GB\n/opt/b/two µ", "one 12 GB\ntwo µ"),
                ("/opt/a/one or /opt/b/two", "one or two"),
            ],
            None,
        );
    }

    #[test]
    fn blanks_in_folders_leak_no_name() {
        check(
            &[
                ("C:\\Users\\Ada Lovelace\\cache.bin is gone", "cache.bin is gone"),
                ("C:\\Users\\Ada King of Lovelace\\a b\\cache.bin is gone", "cache.bin is gone"),
                ("no \"C:\\Users\\Ada Lovelace\" here", "no \"~\" here"),
                ("open '/media/Ada Lovelace' failed", "open '~' failed"),
                ("/opt/Ada Lovelace/cache.bin: denied", "cache.bin: denied"),
                ("/export/home/ada lovelace/x and /export/home/ada/y", "x and y"),
            ],
            None,
        );
    }

    #[test]
    fn a_path_that_ends_at_a_users_folder_leaks_no_name() {
        check(
            &[
                ("/export/home/ada: permission denied", "~: permission denied"),
                ("not in /Volumes/disk/Users/ada.", "not in ~."),
                ("C:\\Users\\Ada is read-only", "~ is read-only"),
                ("D:/media/Ada/ is read-only", "~ is read-only"),
                ("in ~ada, in ~", "in ~, in ~"),
                ("\\\\ENGINE\\Users\\Ada", "~"),
                ("\\\\ENGINE is away, //engine too", "~ is away, ~ too"),
            ],
            None,
        );
    }

    #[test]
    fn the_users_own_folder_is_known_wherever_it_is() {
        check(
            &[
                ("cannot open /data/Ada Lovelace", "cannot open ~"),
                ("/data/Ada Lovelace/lazuli/cache.bin is gone", "cache.bin is gone"),
                ("/data/Ada Lovelace: denied", "~: denied"),
            ],
            Some("/data/Ada Lovelace/"),
        );
        check(&[("/etc/passwd and 3 / 2", "passwd and 3 / 2")], Some("/"));
    }
}
