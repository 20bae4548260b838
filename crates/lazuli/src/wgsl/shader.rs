//! A shader in the making: its uniform block, the functions it may call, the statements of `main`, block by block. Knows
//! how WGSL is laid out; nothing of kernels. Functions that nobody calls are left out of the text.

use std::fmt::Write;
use std::sync::Arc;

use super::launch_memory::LaunchMemory;
use super::tree::{self, CallText, Loop, ShaderExpr, ShaderFn, ShaderType, Statement, Statements, named, word};
use super::{Bind, Pass};
use crate::ops::WGSL_COMMON;
use crate::ops::wgsl_loops::{Iterations, calls_of, name_of, split_functions};

/// The text of one dispatch, and the numbers that go with it.
#[derive(Default)]
pub struct Shader {
    /// Shown first, for people.
    comment: String,
    n_invocations: usize,
    /// Whether `lane` counts invocations as subgroups do.
    counts_by_subgroup: bool,
    consts: Vec<u32>,
    params: Vec<(String, u32)>,
    /// What names of numbers start with now, and which constants are meant: those of a part of the launch.
    prefix: String,
    first_const: usize,
    globals: Vec<String>,
    functions: Vec<Function>,
    /// The statements of the innermost block that is open.
    block: Statements,
    /// The blocks around it, each with what the block inside it will be.
    around: Vec<(Statements, OpenBlock)>,
}

/// What a block becomes when it is closed.
enum OpenBlock {
    If(ShaderExpr),
    /// Another branch of the statement before.
    Else(Option<ShaderExpr>),
    For(Box<Loop>),
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

    /// Invocations are counted subgroup after subgroup from here on, each of which is full: WGSL does not promise that
    /// their places in the workgroup follow each other in a subgroup.
    pub fn count_by_subgroup(&mut self) {
        self.counts_by_subgroup = true;
        self.define("lane", word("subgroup") * word("subgroup_size") + word("subgroup_place"));
    }

    /// The bits of a constant, by its place in `consts`.
    pub fn constant(&self, idx: u16) -> ShaderExpr {
        word(format!("params.c{}", self.first_const + idx as usize))
    }

    /// Numbers and constants from here on are those of a part of the launch: names start with this, and these are its
    /// constants.
    pub fn start_part(&mut self, prefix: &str, consts: &[u32]) {
        self.prefix = prefix.to_string();
        self.first_const = self.consts.len();
        self.consts.extend(consts);
    }

    /// A number of the launch. The same name may be asked for again.
    pub fn param(&mut self, name: &str, value: usize) -> ShaderExpr {
        self.signed_param(name, value as isize)
    }

    /// The same for a number that may be negative: as u32 it wraps, and so does the arithmetic it is used in.
    pub fn signed_param(&mut self, name: &str, value: isize) -> ShaderExpr {
        let name = format!("{}{name}", self.prefix);
        match self.params.iter().find(|p| p.0 == name) {
            Some(known) => debug_assert_eq!(known.1, value as u32, "{name}"),
            None => self.params.push((name.clone(), value as u32)),
        }
        word(format!("params.{name}"))
    }

    /// Adds a declaration outside of `main`, once.
    pub fn global(&mut self, text: String) {
        if !self.globals.contains(&text) {
            self.globals.push(text);
        }
    }

    /// An array that the invocations of a workgroup share.
    pub fn shared(&mut self, name: &str, n: usize, element: ShaderType) -> ShaderExpr {
        self.global(format!("var<workgroup> {name}: array<{element}, {n}>;"));
        named(name, element)
    }

    /// The same for an array of arrays: so many rows of so many elements.
    pub fn shared_rows(&mut self, name: &str, [n_rows, n]: [usize; 2], element: ShaderType) -> ShaderExpr {
        self.global(format!("var<workgroup> {name}: array<array<{element}, {n}>, {n_rows}>;"));
        named(name, element)
    }

    /// Adds functions of a library, each of which starts a line with `fn`. Those that are known already stay as they are.
    pub fn functions(&mut self, text: &str) {
        for text in split_functions(text) {
            let name = name_of(text).to_string();
            if !self.functions.iter().any(|f| f.name == name) {
                self.functions.push(Function { name, text: text.trim().to_string() });
            }
        }
    }

    /// Adds a function, unless one of its name is known.
    pub fn function(&mut self, function: ShaderFn) {
        if !self.functions.iter().any(|f| f.name == function.name) {
            let text = function.to_string().trim().to_string();
            self.functions.push(Function { name: function.name, text });
        }
    }

    /// Adds a statement to the innermost block.
    pub fn add(&mut self, statement: Statement) {
        self.block.push(statement);
    }

    /// `let name = value;`
    pub fn define(&mut self, name: impl Into<String>, value: impl Into<ShaderExpr>) -> ShaderExpr {
        let (name, value) = (name.into(), value.into());
        let defined = named(name.clone(), value.ty());
        self.add(Statement::Let(name, value));
        defined
    }

    /// `var name = value;`
    pub fn variable(&mut self, name: impl Into<String>, value: impl Into<ShaderExpr>) -> ShaderExpr {
        let (name, value) = (name.into(), value.into());
        let variable = named(name.clone(), value.ty());
        self.add(Statement::Var(name, value));
        variable
    }

    /// An array of zeros that each invocation has for itself.
    pub fn zeros(&mut self, name: &str, n: usize, element: ShaderType) -> ShaderExpr {
        self.add(Statement::Zeroed(name.to_string(), n, element));
        named(name, element)
    }

    /// `place = value;`
    pub fn assign(&mut self, place: &ShaderExpr, value: impl Into<ShaderExpr>) {
        self.add(Statement::Assign(place.clone(), "=", value.into()));
    }

    /// `place += value;`
    pub fn add_to(&mut self, place: &ShaderExpr, value: impl Into<ShaderExpr>) {
        self.add(Statement::Assign(place.clone(), "+=", value.into()));
    }

    /// `if (condition) { return; }`
    pub fn return_if(&mut self, condition: ShaderExpr) {
        self.add(Statement::If(vec![(Some(condition), vec![Statement::Return(None)])]));
    }

    /// Waits for all invocations of the workgroup.
    pub fn barrier(&mut self) {
        self.add(Statement::Barrier);
    }

    fn open_block(&mut self, opened: OpenBlock) {
        self.around.push((std::mem::take(&mut self.block), opened));
    }

    /// Opens a block that is run if a condition holds.
    pub fn open_if(&mut self, condition: ShaderExpr) {
        self.open_block(OpenBlock::If(condition));
    }

    /// Opens the block that is run if none before it is, after [`Shader::close`]; under a condition if there is one.
    pub fn open_else(&mut self, condition: Option<ShaderExpr>) {
        self.open_block(OpenBlock::Else(condition));
    }

    /// Opens a loop: `name` goes from `start` to below `end`, by `step`. Its body is run so many times in all, at most:
    /// within a loop, by all iterations of that one together.
    pub fn open_for(
        &mut self,
        name: &str,
        start: impl Into<ShaderExpr>,
        end: impl Into<ShaderExpr>,
        step: usize,
        times: usize,
    ) -> ShaderExpr {
        self.open_loop(name, start.into(), end.into(), step, times, false)
    }

    /// The same for a loop that runs once at least.
    pub fn open_repeat(
        &mut self,
        name: &str,
        start: impl Into<ShaderExpr>,
        end: impl Into<ShaderExpr>,
        step: usize,
        times: usize,
    ) -> ShaderExpr {
        self.open_loop(name, start.into(), end.into(), step, times, true)
    }

    fn open_loop(
        &mut self,
        name: &str,
        start: ShaderExpr,
        end: ShaderExpr,
        step: usize,
        times: usize,
        asks_after: bool,
    ) -> ShaderExpr {
        let (name, condition, next) = (name.to_string(), word(name).less(end), ("+=", step.into()));
        let counted = word(&*name);
        self.open_block(OpenBlock::For(Box::new(Loop { name, start, condition, next, times, asks_after })));
        counted
    }

    /// Opens a loop in which `name` is halved from `start` on, down to one.
    pub fn open_halving(&mut self, name: &str, start: usize, times: usize) -> ShaderExpr {
        let (condition, next) = (word(name).more(0), (">>=", 1.into()));
        self.open_block(OpenBlock::For(Box::new(Loop {
            name: name.to_string(),
            start: start.into(),
            condition,
            next,
            times,
            asks_after: false,
        })));
        word(name)
    }

    /// Closes the innermost block.
    pub fn close(&mut self) {
        let Some((around, opened)) = self.around.pop() else { unreachable!("bug: no block is open") };
        let block = std::mem::replace(&mut self.block, around);
        match (opened, self.block.last_mut()) {
            (OpenBlock::If(condition), _) => self.add(Statement::If(vec![(Some(condition), block)])),
            (OpenBlock::Else(condition), Some(Statement::If(branches))) => branches.push((condition, block)),
            (OpenBlock::Else(_), _) => unreachable!("bug: an else without its if"),
            (OpenBlock::For(head), _) => self.add(Statement::For(head, block)),
        }
    }

    /// Starts `main`: the number of its workgroup, counted row-major through the dispatch. Whoever writes what follows must
    /// leave out the groups that are beyond the end.
    pub fn count_groups(&mut self) -> ShaderExpr {
        let [x, y, z] = ["group.x", "group.y", "group.z"].map(word);
        self.define("group_idx", x + word("n_groups.x") * (y + word("n_groups.y") * z))
    }

    /// The finished dispatch.
    pub fn finish(self, label: String, memory: &LaunchMemory, n_groups: usize) -> Pass {
        debug_assert!(self.around.is_empty(), "a block is open: {label}");
        let (declarations, binds) = memory.bindings();
        let text = self.text(&declarations);
        let iterations = self.iterations();
        let params = self.params.iter().map(|p| p.1).collect();
        Pass { label, text, consts: self.consts, params, binds, n_groups, iterations }
    }

    /// Iterations of all loops, those of functions that `main` calls included.
    fn iterations(&self) -> usize {
        let functions = Iterations::of(self.functions.iter().map(|f| (&*f.name, &*f.text)));
        let (mut in_functions, mut in_main) = (0usize, 0usize);
        let mut found = |value: &ShaderExpr, times: usize| {
            value.for_each_call(&mut |call| {
                in_functions =
                    in_functions.saturating_add(functions.of_times(|name| call.n_calls(name)).saturating_mul(times));
            });
        };
        tree::count(&self.block, 1, &mut found, &mut |n| in_main = in_main.saturating_add(n));
        in_main.saturating_add(in_functions)
    }

    fn text(&self, declarations: &[String]) -> Arc<str> {
        let mut main = String::new();
        tree::print_block(&self.block, 1, &mut main);
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
        for function in self.called() {
            let _ = writeln!(text, "\n{}", function.text);
        }
        let places: &[(&str, &str)] = match self.counts_by_subgroup {
            false => &[("local_invocation_index", "lane")],
            true => &[
                ("subgroup_id", "subgroup"),
                ("subgroup_size", "subgroup_size"),
                ("subgroup_invocation_id", "subgroup_place"),
            ],
        };
        let places: String =
            places.iter().map(|(builtin, name)| format!("    @builtin({builtin}) {name}: u32,\n")).collect();
        let _ = write!(
            text,
            "\n@compute @workgroup_size({})\nfn main(\n    @builtin(workgroup_id) group: vec3<u32>,\n    \
             @builtin(num_workgroups) n_groups: vec3<u32>,\n{places}) {{\n{main}}}\n",
            self.n_invocations
        );
        text.into()
    }

    /// The functions that `main` calls, itself or through others, in the order they were added.
    fn called(&self) -> Vec<&Function> {
        let mut is_called = vec![false; self.functions.len()];
        let mut texts: Vec<&str> = Vec::new();
        let mut found = |value: &ShaderExpr, _: usize| {
            value.for_each_call(&mut |call| {
                for (function, called) in self.functions.iter().zip(&mut is_called) {
                    if !*called && call.n_calls(&function.name) > 0 {
                        *called = true;
                        texts.push(&function.text);
                    }
                }
            });
        };
        tree::count(&self.block, 1, &mut found, &mut |_| {});
        while let Some(text) = texts.pop() {
            for (function, called) in self.functions.iter().zip(&mut is_called) {
                if !*called && CallText::Text(text).n_calls(&function.name) > 0 {
                    *called = true;
                    texts.push(&function.text);
                }
            }
        }
        self.functions.iter().zip(is_called).filter(|f| f.1).map(|f| f.0).collect()
    }
}

impl CallText<'_> {
    /// How often it calls the function of this name.
    fn n_calls(self, name: &str) -> usize {
        match self {
            CallText::Name(called) => (called == name) as usize,
            CallText::Text(text) => calls_of(text, name).count(),
        }
    }
}

/// What `memory` binds: a line of text each, and what the runtime is told.
pub type Bindings = (Vec<String>, Vec<Bind>);
