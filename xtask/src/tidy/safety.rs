//! Rules about unsafe code: every unsafe function documents what its caller must promise.

use super::Finding;
use crate::source::Source;

/// Every `unsafe fn`, also in tests and macros, has a section `# Safety` on what its caller must see to. Methods of an `impl` of a trait
/// need none, since the trait has it, and a trait may have one section for all its methods.
pub fn contracts(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let text: Vec<&str> = source.text.lines().collect();
        let lines = source.code_and_tests.iter().enumerate();
        for (i, line) in lines.filter(|(_, line)| declares_unsafe_fn(line)) {
            let above = container(&source.code_and_tests, i);
            let is_of_trait = above.is_some_and(|above| {
                let item = item_of(&source.code_and_tests[above]);
                item.starts_with("impl") && item.contains(" for ")
                    || item.starts_with("trait ") && has_contract(&text, above)
            });
            if !is_of_trait && !has_contract(&text, i) {
                let message = "an `unsafe fn` without a section `# Safety`: what must its caller see to?";
                findings.push(Finding::at(&source.path, i, format!("{message} ({})", line.trim())));
            }
        }
    }
    findings
}

/// Whether an unsafe function begins in this line. `unsafe fn(` is a type.
fn declares_unsafe_fn(line: &str) -> bool {
    let is_name = |c: char| c.is_alphabetic() || c == '_' || c == '$';
    line.match_indices("unsafe ").any(|(at, word)| {
        let is_whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = line[at + word.len()..].trim_start();
        // `code` blanks the text of strings but not their quotes, so an ABI's name is blank here.
        let rest = match rest.strip_prefix("extern") {
            Some(abi) => abi.trim_start().trim_start_matches(|c: char| c != ' '),
            None => rest,
        };
        is_whole && rest.trim_start().strip_prefix("fn ").is_some_and(|name| name.starts_with(is_name))
    })
}

/// The line that opens the block around a line, found by indentation.
fn container(code: &[String], i: usize) -> Option<usize> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let own = depth(&code[i]);
    (0..i).rev().find(|above| {
        let line = code[*above].trim();
        // Attributes, and the last line of a header that spans several lines, do not open a block.
        let is_opening = !line.is_empty() && !line.starts_with(['#', ')', '}', '{']) && !line.starts_with("where");
        is_opening && depth(&code[*above]) < own
    })
}

/// The line of an item without its visibility and `unsafe`.
fn item_of(line: &str) -> &str {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(") ").map_or(rest, |(_, item)| item),
        None => rest.trim_start(),
    });
    line.trim_start_matches("unsafe ")
}

/// Whether the documentation above a line has a section on safety.
fn has_contract(text: &[&str], i: usize) -> bool {
    let above = text[..i].iter().rev().map(|line| line.trim_start());
    let mut above = above.take_while(|line| ["///", "#[", "$(#[", "#!["].iter().any(|start| line.starts_with(start)));
    above.any(|line| line.trim_end() == "/// # Safety")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which lines the rule reports, counted from 1.
    #[track_caller]
    fn check(text: &str, expect: &[usize]) {
        let source = Source::new("a.rs".into(), text.into());
        let found: Vec<usize> = contracts(&[source]).iter().map(|finding| finding.line).collect();
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn an_unsafe_function_without_its_contract_is_found() {
        check("unsafe fn f() {}", &[1]);
        check("/// Does it.\npub unsafe fn f() {}", &[2]);
        check("/// Does it.\n///\n/// # Safety\n/// The pointer is valid.\n#[inline]\npub unsafe fn f() {}", &[]);
        // The section of a neighbouring function does not count, nor does a plain comment.
        check("/// # Safety\n/// As told.\nunsafe fn f() {}\nunsafe fn g() {}", &[4]);
        check("// # Safety\nunsafe fn f() {}", &[2]);
        check("#[cfg(test)]\nmod tests {\n    unsafe extern \"C\" fn f() {}\n}", &[3]);
        check("macro_rules! m {\n    () => {\n        #[inline]\n        unsafe fn $name() {}\n    };\n}", &[4]);
        check("impl A {\n    unsafe fn f() {}\n}", &[2]);
    }

    #[test]
    fn methods_may_leave_their_contract_to_a_trait() {
        check("unsafe impl T for A {\n    unsafe fn f() {}\n}", &[]);
        check("impl<X> T for A<X> {\n    /// Does it.\n    #[inline]\n    unsafe fn f() {}\n}", &[]);
        check("/// # Safety\n/// For all methods.\npub(crate) unsafe trait T {\n    unsafe fn f();\n}", &[]);
        check("/// Nothing is said.\npub trait T {\n    unsafe fn f();\n}", &[3]);
    }

    #[test]
    fn function_types_and_strings_are_not_reported() {
        check("type F = unsafe fn(x: usize);\nstruct A {\n    f: unsafe fn(),\n}", &[]);
        check("const TEXT: &str = \"unsafe fn f()\"; // unsafe fn g()", &[]);
    }
}
