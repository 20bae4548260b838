//! A shader in the making: its uniform block, the functions it may call, the lines of `main`. Knows how WGSL is laid
//! out; nothing of kernels. Functions that nobody calls are left out of the text.

use std::fmt::Write;
use std::sync::Arc;

use super::memory::LaunchMemory;
use super::{Bind, Pass};
use crate::ops::WGSL_COMMON;

/// The text of one dispatch, and the numbers that go with it.
#[derive(Default)]
pub struct Shader {
    /// Shown first, for people.
    comment: String,
    n_invocations: usize,
    consts: Vec<u32>,
    params: Vec<(String, u32)>,
    globals: Vec<String>,
    functions: Vec<Function>,
    lines: Vec<ShaderLine>,
    /// Per block that is open, how often it is run in all, at most.
    times: Vec<usize>,
    /// Iterations of the loops of `main`.
    iterations: usize,
}

/// A line of `main`.
struct ShaderLine {
    text: String,
    /// How often it is run in all, at most.
    times: usize,
}

/// A WGSL function.
struct Function {
    name: String,
    text: String,
}

impl Shader {
    /// An empty one. `consts` are the constants of the plan that it uses, in order; `comment` says what it computes.
    pub fn new(comment: String, consts: &[u32], n_invocations: usize) -> Shader {
        let mut shader = Shader { comment, n_invocations, consts: consts.to_vec(), ..Shader::default() };
        shader.functions(WGSL_COMMON);
        shader
    }

    /// The expression for the bits of a constant, by its place in `consts`.
    pub fn constant(&self, idx: u16) -> String {
        format!("params.c{idx}")
    }

    /// The expression for a number of the launch. The same name may be asked for again.
    pub fn param(&mut self, name: &str, value: usize) -> String {
        self.signed_param(name, value as isize)
    }

    /// The same for a number that may be negative: as u32 it wraps, and so does the arithmetic it is used in.
    pub fn signed_param(&mut self, name: &str, value: isize) -> String {
        match self.params.iter().find(|p| p.0 == name) {
            Some(known) => debug_assert_eq!(known.1, value as u32, "{name}"),
            None => self.params.push((name.to_string(), value as u32)),
        }
        format!("params.{name}")
    }

    /// Adds a declaration outside of `main`, once.
    pub fn global(&mut self, text: String) {
        if !self.globals.contains(&text) {
            self.globals.push(text);
        }
    }

    /// Adds functions, each of which starts a line with `fn`. Those that are known already stay as they are.
    pub fn functions(&mut self, text: &str) {
        for text in split_functions(text) {
            let name = name_of(text).to_string();
            if !self.functions.iter().any(|f| f.name == name) {
                self.functions.push(Function { name, text: text.trim().to_string() });
            }
        }
    }

    /// Adds a line to `main`.
    pub fn line(&mut self, text: impl AsRef<str>) {
        let text = format!("{:1$}{2}", "", 4 * (self.times.len() + 1), text.as_ref());
        self.lines.push(ShaderLine { text, times: self.times() });
    }

    /// Adds a line that opens a block, which is not a loop.
    pub fn open(&mut self, text: impl AsRef<str>) {
        debug_assert!(own_trips(text.as_ref()) == 0, "the iterations of a loop are counted: {}", text.as_ref());
        let times = self.times();
        self.line(format!("{} {{", text.as_ref()));
        self.times.push(times);
    }

    /// Adds a line that opens a loop whose body is run so many times in all, at most: within a loop, by all iterations of
    /// that one together.
    pub fn open_loop(&mut self, text: impl AsRef<str>, times: usize) {
        // Drivers that count iterations count the one that finds the end, each time that the loop is entered.
        self.iterations = self.iterations.saturating_add(times).saturating_add(self.times());
        self.line(format!("{} {{", text.as_ref()));
        self.times.push(times);
    }

    /// Closes the innermost block.
    pub fn close(&mut self) {
        self.times.pop();
        self.line("}");
    }

    fn times(&self) -> usize {
        self.times.last().copied().unwrap_or(1)
    }

    /// Starts `main`: the number of its workgroup in `group_idx`, counted row-major through the dispatch. Whoever
    /// writes what follows must leave out the groups that are beyond the end.
    pub fn count_groups(&mut self) {
        self.line("let group_idx = group.x + n_groups.x * (group.y + n_groups.y * group.z);");
    }

    /// The finished dispatch.
    pub fn finish(self, label: String, memory: &LaunchMemory, n_groups: usize) -> Pass {
        let (declarations, binds) = memory.bindings();
        let text = self.text(&declarations);
        let iterations = self.iterations.saturating_add(self.trips_of_calls());
        let params = self.params.iter().map(|p| p.1).collect();
        Pass { label, text, consts: self.consts, params, binds, n_groups, iterations }
    }

    /// Iterations of the loops of all functions that `main` calls.
    fn trips_of_calls(&self) -> usize {
        let of_functions = Iterations::of(self.functions.iter().map(|f| (&*f.name, &*f.text)));
        let of_line = |line: &ShaderLine| of_functions.of_calls(&line.text).saturating_mul(line.times);
        self.lines.iter().map(of_line).fold(0, usize::saturating_add)
    }

    fn text(&self, declarations: &[String]) -> Arc<str> {
        let mut main = String::new();
        for line in &self.lines {
            main.push_str(&line.text);
            main.push('\n');
        }
        let mut text = String::new();
        if !self.comment.is_empty() {
            let _ = writeln!(text, "// {}", self.comment);
        }
        if !self.consts.is_empty() || !self.params.is_empty() {
            let consts = (0..self.consts.len()).map(|i| format!("c{i}"));
            let fields: Vec<String> =
                consts.chain(self.params.iter().map(|p| p.0.clone())).map(|f| format!("    {f}: u32,\n")).collect();
            let _ = writeln!(text, "struct Params {{\n{}}}", fields.concat());
            let _ = writeln!(text, "@group(0) @binding(0) var<uniform> params: Params;");
        }
        for line in declarations.iter().chain(&self.globals) {
            let _ = writeln!(text, "{line}");
        }
        for function in self.called(&main) {
            let _ = writeln!(text, "\n{}", function.text);
        }
        let _ = write!(
            text,
            "\n@compute @workgroup_size({})\nfn main(\n    @builtin(workgroup_id) group: vec3<u32>,\n    \
             @builtin(num_workgroups) n_groups: vec3<u32>,\n    @builtin(local_invocation_index) lane: u32,\n) {{\n\
             {main}}}\n",
            self.n_invocations
        );
        text.into()
    }

    /// The functions that `main` calls, itself or through others, in the order they were added.
    fn called(&self, main: &str) -> Vec<&Function> {
        let mut is_called = vec![false; self.functions.len()];
        let mut texts = vec![main];
        while let Some(text) = texts.pop() {
            for (function, called) in self.functions.iter().zip(&mut is_called) {
                if !*called && calls(text, &function.name) {
                    *called = true;
                    texts.push(&function.text);
                }
            }
        }
        self.functions.iter().zip(is_called).filter(|f| f.1).map(|f| f.0).collect()
    }
}

/// Iterations that the loops of functions make per call, at most; of those that make any.
pub struct Iterations<'a> {
    functions: Vec<(&'a str, usize)>,
}

/// Iterations of a loop whose header does not say how many: none makes more than one per bit of a number.
const TRIPS_BY_BITS: usize = 32;

impl<'a> Iterations<'a> {
    /// Of these functions, by name and text.
    pub fn of(functions: impl Iterator<Item = (&'a str, &'a str)>) -> Iterations<'a> {
        let texts: Vec<(&str, &str)> = functions.collect();
        let mut iterations = Iterations { functions: Vec::new() };
        // Functions call functions, so what is known of some says more of others, until nothing is new.
        loop {
            let of_text = |text: &str| own_trips(text).saturating_add(iterations.of_calls(text));
            let is_new = |name: &str, n: usize| n > 0 && !iterations.functions.contains(&(name, n));
            let found: Vec<(&str, usize)> =
                texts.iter().map(|(name, text)| (*name, of_text(body_of(text)))).filter(|f| is_new(f.0, f.1)).collect();
            if found.is_empty() {
                return iterations;
            }
            iterations.functions.retain(|(name, _)| found.iter().all(|f| f.0 != *name));
            iterations.functions.extend(found);
        }
    }

    /// Of the functions of these texts.
    pub fn of_texts(texts: &[&'a str]) -> Iterations<'a> {
        Iterations::of(texts.iter().flat_map(|text| split_functions(text)).map(|text| (name_of(text), text)))
    }

    /// Those of the calls in a text.
    pub fn of_calls(&self, text: &str) -> usize {
        let of_one = |(name, iterations): &(&str, usize)| calls_of(text, name).count().saturating_mul(*iterations);
        self.functions.iter().map(of_one).fold(0, usize::saturating_add)
    }
}

/// Iterations of the loops in a function's own text. None of them is within another, and none calls another.
fn own_trips(text: &str) -> usize {
    let of_loop = |header: &str| {
        let bound = header.split(';').nth(1).and_then(|condition| condition.split('<').nth(1));
        let bound = bound.and_then(|bound| bound.trim().trim_end_matches('u').parse::<usize>().ok());
        bound.unwrap_or(TRIPS_BY_BITS) + 1
    };
    text.split("for (").skip(1).map(of_loop).fold(0, usize::saturating_add)
}

/// A function's text without its first line, which names it.
fn body_of(function: &str) -> &str {
    function.find('{').map_or("", |at| &function[at..])
}

/// The functions of a text, each from its `fn` to the next.
fn split_functions(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find("\nfn ").map_or(rest.len(), |at| at + 1);
        let (function, after) = rest.split_at(end);
        rest = after;
        Some(function)
    })
}

fn name_of(function: &str) -> &str {
    let after = function.trim_start_matches("fn ").trim_start();
    &after[..after.find('(').unwrap_or(after.len())]
}

/// Whether `text` calls the function of this name.
fn calls(text: &str, name: &str) -> bool {
    calls_of(text, name).next().is_some()
}

/// Where it does.
fn calls_of<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_call = move |at: &usize| {
        let before = text[..*at].chars().next_back();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        text[at + name.len()..].starts_with('(') && !before.is_some_and(is_word)
    };
    text.match_indices(name).map(|(at, _)| at).filter(is_call)
}

/// What `memory` binds: a line of text each, and what the runtime is told.
pub type Bindings = (Vec<String>, Vec<Bind>);
