//! Shaders as a tree: typed expressions, statements, functions, and the one printer that makes text of them. Knows how WGSL
//! is written; nothing of kernels, memory or devices.
//!
//! A kernel is written through [`Shader`](super::shader::Shader), which holds the block that is being filled:
//!
//! ```text
//! let n = shader.param("n", 1000);                            // a number of the launch, as an expression
//! let row = shader.define("row", word("group_idx") * 8 + word("lane"));
//! shader.return_if(row.at_least(&n));                          // if (row >= params.n) { return; }
//! let sum = shader.variable("sum", ShaderType::four(Lane::F32).zero());
//! shader.open_for("j", 0, &n, 4, times);                       // for (var j = 0u; j < params.n; j += 4u) {
//! let x = memory.load4(shader, 0, &row * &n + word("j"));
//! shader.add_to(&sum, x);                                      //     sum += in0[(row * params.n + j) >> 2u];
//! shader.close();                                              // }
//! ```
//!
//! Expressions are made with operators and methods and have the type that WGSL gives them; a `usize` is a `u32` literal.
//! Parentheses are the printer's. How often loops run is said where they are opened, and counted on the tree.
//! Expressions of rows are texts with holes: there is one text for each op, in its row.

use std::fmt::{self, Display, Write};
use std::ops;

use crate::dtype::Lane;

/// What an expression gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShaderType {
    /// Called for what it does.
    Nothing,
    Bool,
    One(Lane),
    /// A vector of so many.
    Vec(usize, Lane),
}

/// An expression: what it is made of, and its type.
#[derive(Clone, Debug)]
pub struct ShaderExpr {
    form: ExprForm,
    operands: Vec<ShaderExpr>,
    ty: ShaderType,
}

/// How an expression is written over its operands.
#[derive(Clone, Debug, PartialEq)]
enum ExprForm {
    /// A number or a name.
    Atom(String),
    Prefix(&'static str),
    Infix(&'static str),
    Call(String),
    /// The first operand's element that the second counts.
    Element,
    Component(usize),
    /// A row's text, and the names in it that stand for the operands.
    Template(String, Vec<String>),
}

/// One statement.
#[derive(Clone, Debug)]
pub enum Statement {
    Let(String, ShaderExpr),
    /// A variable of this type, from this value on.
    Var(String, ShaderExpr),
    /// An array of so many zeros.
    Zeroed(String, usize, ShaderType),
    /// `=` or `+=`.
    Assign(ShaderExpr, &'static str, ShaderExpr),
    Do(ShaderExpr),
    /// Branches with their conditions, in turn; the last may have none.
    If(Vec<(Option<ShaderExpr>, Statements)>),
    /// What each number from 0 on does; the last is all others.
    Switch(ShaderExpr, Vec<Statements>),
    For(Box<Loop>, Statements),
    Return(Option<ShaderExpr>),
    /// All invocations of the workgroup arrive here before any goes on, and see what the others wrote.
    Barrier,
}

/// Statements in order.
pub type Statements = Vec<Statement>;

/// The head of a loop over a `u32`.
#[derive(Clone, Debug)]
pub struct Loop {
    pub name: String,
    pub start: ShaderExpr,
    pub condition: ShaderExpr,
    /// What is done to the name after each iteration.
    pub next: (&'static str, ShaderExpr),
    /// How often the body runs at most: within a loop, in all iterations of that one together.
    pub times: usize,
    /// Whether the condition is asked after the body, which then runs once at least. llvmpipe goes through the body once
    /// more, for no invocation, where it is asked before.
    pub asks_after: bool,
}

impl ShaderType {
    /// A vector of four.
    pub fn four(lane: Lane) -> ShaderType {
        ShaderType::Vec(4, lane)
    }

    pub fn lane(self) -> Lane {
        match self {
            ShaderType::One(lane) | ShaderType::Vec(_, lane) => lane,
            ShaderType::Nothing | ShaderType::Bool => Lane::U32,
        }
    }

    /// The same number of another lane.
    fn of(self, lane: Lane) -> ShaderType {
        match self {
            ShaderType::Vec(n, _) => ShaderType::Vec(n, lane),
            _ => ShaderType::One(lane),
        }
    }

    /// Its zero.
    pub fn zero(self) -> ShaderExpr {
        self.make([])
    }

    /// A value of it, made of these.
    pub fn make(self, parts: impl IntoIterator<Item = ShaderExpr>) -> ShaderExpr {
        call(self.to_string(), parts, self)
    }
}

impl Display for ShaderType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ShaderType::Nothing => Ok(()),
            ShaderType::Bool => f.write_str("bool"),
            ShaderType::One(lane) => f.write_str(lane_name(*lane)),
            ShaderType::Vec(n, lane) => write!(f, "vec{n}<{}>", lane_name(*lane)),
        }
    }
}

/// The name of a lane's type.
pub fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::F32 => "f32",
        Lane::I32 => "i32",
        Lane::U32 => "u32",
    }
}

/// What is called `name`: a variable, an argument, a piece of memory (then the type is that of an element).
pub fn named(name: impl Into<String>, ty: ShaderType) -> ShaderExpr {
    ShaderExpr { form: ExprForm::Atom(name.into()), operands: Vec::new(), ty }
}

/// What is called `name` and is a `u32`.
pub fn word(name: impl Into<String>) -> ShaderExpr {
    named(name, ShaderType::One(Lane::U32))
}

/// A number of a lane, as WGSL writes it.
pub fn literal(text: impl Into<String>, lane: Lane) -> ShaderExpr {
    named(text, ShaderType::One(lane))
}

/// A call of a function.
pub fn call(
    function: impl Into<String>,
    operands: impl IntoIterator<Item = ShaderExpr>,
    gives: ShaderType,
) -> ShaderExpr {
    ShaderExpr { form: ExprForm::Call(function.into()), operands: operands.into_iter().collect(), ty: gives }
}

/// A row's expression, with what takes the place of each of the `holes` in it.
pub fn template(text: String, holes: &[&str], operands: Vec<ShaderExpr>, gives: ShaderType) -> ShaderExpr {
    let holes = holes.iter().map(|hole| hole.to_string()).collect();
    ShaderExpr { form: ExprForm::Template(text, holes), operands, ty: gives }
}

/// The less of two.
pub fn min(x: impl Into<ShaderExpr>, y: impl Into<ShaderExpr>) -> ShaderExpr {
    let x = x.into();
    let ty = x.ty;
    call("min", [x, y.into()], ty)
}

/// `yes` where the condition holds, else `no`.
pub fn select(no: impl Into<ShaderExpr>, yes: impl Into<ShaderExpr>, condition: ShaderExpr) -> ShaderExpr {
    let no = no.into();
    let ty = no.ty;
    call("select", [no, yes.into(), condition], ty)
}

/// All of these conditions; None if there is none.
pub fn all(conditions: impl IntoIterator<Item = ShaderExpr>) -> Option<ShaderExpr> {
    conditions.into_iter().reduce(|all, one| all.and(one))
}

impl From<usize> for ShaderExpr {
    fn from(n: usize) -> ShaderExpr {
        literal(format!("{n}u"), Lane::U32)
    }
}

impl From<&ShaderExpr> for ShaderExpr {
    fn from(expr: &ShaderExpr) -> ShaderExpr {
        expr.clone()
    }
}

macro_rules! operator {
    ($($name:ident $method:ident $text:literal;)*) => {$(
        impl<T: Into<ShaderExpr>> ops::$name<T> for ShaderExpr {
            type Output = ShaderExpr;
            fn $method(self, other: T) -> ShaderExpr {
                ShaderExpr::infix(self, $text, other.into())
            }
        }
        impl<T: Into<ShaderExpr>> ops::$name<T> for &ShaderExpr {
            type Output = ShaderExpr;
            fn $method(self, other: T) -> ShaderExpr {
                ShaderExpr::infix(self.clone(), $text, other.into())
            }
        }
    )*};
}

operator! {
    Add add "+"; Sub sub "-"; Mul mul "*"; Div div "/"; Rem rem "%"; Shl shl "<<"; Shr shr ">>"; BitAnd bitand "&";
    BitOr bitor "|"; BitXor bitxor "^";
}

macro_rules! comparison {
    ($($(#[$doc:meta])* $method:ident $text:literal;)*) => {$(
        $(#[$doc])*
        pub fn $method(&self, other: impl Into<ShaderExpr>) -> ShaderExpr {
            ShaderExpr { ty: ShaderType::Bool, ..ShaderExpr::infix(self.clone(), $text, other.into()) }
        }
    )*};
}

impl ShaderExpr {
    comparison! {
        less "<"; more ">"; at_least ">="; equals "=="; differs "!="; and "&&"; or "||";
    }

    fn infix(x: ShaderExpr, operator: &'static str, y: ShaderExpr) -> ShaderExpr {
        // A vector and a number give a vector.
        let ty = if matches!(y.ty, ShaderType::Vec(..)) { y.ty } else { x.ty };
        ShaderExpr { form: ExprForm::Infix(operator), operands: vec![x, y], ty }
    }

    fn prefix(self, operator: &'static str) -> ShaderExpr {
        let ty = self.ty;
        ShaderExpr { form: ExprForm::Prefix(operator), operands: vec![self], ty }
    }

    pub fn ty(&self) -> ShaderType {
        self.ty
    }

    pub fn lane(&self) -> Lane {
        self.ty.lane()
    }

    /// Whether it is a vector of four.
    pub fn is_four(&self) -> bool {
        matches!(self.ty, ShaderType::Vec(4, _))
    }

    /// Each bit the other way round.
    pub fn inverted(self) -> ShaderExpr {
        self.prefix("~")
    }

    /// That a condition does not hold.
    pub fn negated(self) -> ShaderExpr {
        self.prefix("!")
    }

    /// Where it lies, for atomic operations.
    pub fn pointer(self) -> ShaderExpr {
        self.prefix("&")
    }

    /// Itself and a number: as short as that can be said.
    pub fn plus(&self, k: usize) -> ShaderExpr {
        if k == 0 { self.clone() } else { self + k }
    }

    /// Itself times a number.
    pub fn times(&self, k: usize) -> ShaderExpr {
        if k == 1 { self.clone() } else { self * k }
    }

    /// The element at an index, of memory or an array.
    pub fn at(&self, index: impl Into<ShaderExpr>) -> ShaderExpr {
        ShaderExpr { form: ExprForm::Element, operands: vec![self.clone(), index.into()], ty: self.ty }
    }

    /// One component of a vector; all of a scalar.
    pub fn component(&self, k: usize) -> ShaderExpr {
        match self.ty {
            ShaderType::Vec(_, lane) => {
                ShaderExpr { form: ExprForm::Component(k), operands: vec![self.clone()], ty: ShaderType::One(lane) }
            }
            _ => self.clone(),
        }
    }

    /// As a vector of four.
    pub fn as_four(&self) -> ShaderExpr {
        if self.is_four() { self.clone() } else { call("vec4", [self.clone()], ShaderType::four(self.lane())) }
    }

    /// The same bits as another lane.
    pub fn reinterpreted(&self, to: Lane) -> ShaderExpr {
        if self.lane() == to {
            return self.clone();
        }
        let ty = self.ty.of(to);
        call(format!("bitcast<{ty}>"), [self.clone()], ty)
    }

    /// Calls `found` with each function that is called in it, and each text of a row.
    pub fn for_each_call(&self, found: &mut dyn FnMut(CallText)) {
        match &self.form {
            ExprForm::Call(name) => found(CallText::Name(name)),
            ExprForm::Template(text, _) => found(CallText::Text(text)),
            _ => {}
        }
        self.operands.iter().for_each(|operand| operand.for_each_call(found));
    }
}

/// Where functions are called: by name, or in the text of a row.
#[derive(Clone, Copy)]
pub enum CallText<'a> {
    Name(&'a str),
    Text(&'a str),
}

/// Calls `found` with each expression of a block and how often it is evaluated at most, and `looped` with the iterations of
/// each loop. A loop finds its end once more than it runs, each time that it is entered: some drivers count that.
pub fn count(
    block: &Statements,
    times: usize,
    found: &mut dyn FnMut(&ShaderExpr, usize),
    looped: &mut dyn FnMut(usize),
) {
    for statement in block {
        match statement {
            Statement::Let(_, value) | Statement::Var(_, value) | Statement::Do(value) => found(value, times),
            Statement::Assign(place, _, value) => [place, value].into_iter().for_each(|e| found(e, times)),
            Statement::Return(value) => value.iter().for_each(|e| found(e, times)),
            Statement::If(branches) => {
                for (condition, block) in branches {
                    condition.iter().for_each(|e| found(e, times));
                    count(block, times, found, looped);
                }
            }
            Statement::Switch(value, blocks) => {
                found(value, times);
                blocks.iter().for_each(|block| count(block, times, found, looped));
            }
            Statement::For(head, block) => {
                looped(head.times.saturating_add(times));
                found(&head.start, times);
                [&head.condition, &head.next.1].into_iter().for_each(|e| found(e, head.times));
                count(block, head.times, found, looped);
            }
            Statement::Barrier | Statement::Zeroed(..) => {}
        }
    }
}

/// How tightly operators hold what is beside them.
fn binding_power(operator: &str) -> usize {
    match operator {
        "*" | "/" | "%" => 5,
        "+" | "-" => 4,
        "<<" | ">>" => 3,
        "<" | ">" | ">=" | "==" | "!=" => 2,
        "&" | "|" | "^" => 1,
        _ => 0,
    }
}

impl ShaderExpr {
    /// Whether it is put in parentheses as an operand of an operator, on the right of it or on the left.
    fn is_grouped(&self, operator: &str, on_the_right: bool) -> bool {
        let ExprForm::Infix(own) = self.form else { return false };
        let (own_power, power) = (binding_power(own), binding_power(operator));
        match operator {
            // Bits are combined and shifted as WGSL's grammar wants it: nothing but parentheses groups.
            "<<" | ">>" => true,
            "&" | "|" | "^" => own != operator,
            "&&" | "||" => own != operator && own_power < 2,
            "<" | ">" | ">=" | "==" | "!=" => own_power <= 2,
            _ => own_power < power || (on_the_right && own_power == power),
        }
    }

    /// Prints it where nothing stands beside it: rows' own parentheses go.
    fn print_alone(&self, out: &mut String) {
        match self.form {
            ExprForm::Template(..) => out.push_str(without_parens(&self.to_string())),
            _ => self.print(out),
        }
    }

    fn print_operand(&self, out: &mut String, grouped: bool) {
        if grouped {
            out.push('(');
        }
        self.print(out);
        if grouped {
            out.push(')');
        }
    }

    fn print(&self, out: &mut String) {
        let is_infix = |e: &ShaderExpr| matches!(e.form, ExprForm::Infix(_));
        match (&self.form, &self.operands[..]) {
            (ExprForm::Atom(text), _) => out.push_str(text),
            (ExprForm::Prefix(operator), [x]) => {
                out.push_str(operator);
                x.print_operand(out, is_infix(x));
            }
            (ExprForm::Infix(operator), [x, y]) => {
                x.print_operand(out, x.is_grouped(operator, false));
                let _ = write!(out, " {operator} ");
                y.print_operand(out, y.is_grouped(operator, true));
            }
            (ExprForm::Call(function), operands) => {
                let _ = write!(out, "{function}(");
                for (idx, operand) in operands.iter().enumerate() {
                    out.push_str(if idx > 0 { ", " } else { "" });
                    operand.print_alone(out);
                }
                out.push(')');
            }
            (ExprForm::Element, [array, index]) => {
                array.print(out);
                out.push('[');
                index.print_alone(out);
                out.push(']');
            }
            (ExprForm::Component(k), [x]) => {
                x.print_operand(out, is_infix(x));
                out.push_str([".x", ".y", ".z", ".w"][*k]);
            }
            (ExprForm::Template(text, holes), operands) => {
                let mut text = text.clone();
                for (hole, operand) in holes.iter().zip(operands) {
                    let mut value = String::new();
                    let is_alone = text.contains(&format!("({hole})"));
                    operand.print_operand(&mut value, is_infix(operand) && !is_alone);
                    text = text.replace(hole, &value);
                }
                out.push_str(&text);
            }
            (form, operands) => unreachable!("bug: {form:?} over {} operands", operands.len()),
        }
    }
}

impl Display for ShaderExpr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut text = String::new();
        self.print(&mut text);
        f.write_str(&text)
    }
}

/// An expression without the parentheses around all of it, if there are some.
fn without_parens(text: &str) -> &str {
    let Some(inside) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    let closes_early = inside.chars().any(|c| {
        depth += (c == '(') as i32 - (c == ')') as i32;
        depth < 0
    });
    if closes_early { text } else { inside }
}

/// A function: its name, its arguments, what it gives, what it does.
pub struct ShaderFn {
    pub name: String,
    pub arguments: Vec<(String, ShaderType)>,
    pub gives: ShaderType,
    pub body: Statements,
}

/// The longest line of text.
const MAX_COLUMNS: usize = 120;

impl Display for ShaderFn {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let arguments: Vec<String> = self.arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        write!(f, "fn {}({}) ", self.name, arguments.join(", "))?;
        if self.gives != ShaderType::Nothing {
            write!(f, "-> {} ", self.gives)?;
        }
        let inline = on_one_line(&self.body);
        let head: usize = self.name.len() + arguments.iter().map(|a| a.len() + 2).sum::<usize>() + 24;
        let is_plain = |s: &Statement| !matches!(s, Statement::If(_) | Statement::Switch(..) | Statement::For(..));
        if self.body.len() < 3 && self.body.iter().all(is_plain) && head + inline.len() < MAX_COLUMNS {
            return writeln!(f, "{{ {inline} }}");
        }
        let mut text = String::new();
        print_block(&self.body, 1, &mut text);
        writeln!(f, "{{\n{text}}}")
    }
}

/// Prints statements at a level of indentation.
pub fn print_block(block: &Statements, level: usize, out: &mut String) {
    for statement in block {
        let _ = write!(out, "{:1$}", "", 4 * level);
        statement.print(level, out);
        out.push('\n');
    }
}

/// Statements side by side; those that hold blocks take lines.
fn on_one_line(block: &Statements) -> String {
    let mut parts = Vec::new();
    for statement in block {
        let mut text = String::new();
        statement.print(1, &mut text);
        parts.push(text);
    }
    parts.join(" ")
}

impl Statement {
    fn print(&self, level: usize, out: &mut String) {
        let indent = " ".repeat(4 * level);
        match self {
            Statement::Let(name, value) => {
                let _ = write!(out, "let {name} = ");
                value.print_alone(out);
                out.push(';');
            }
            Statement::Var(name, value) => {
                let _ = write!(out, "var {name} = {value};");
            }
            Statement::Zeroed(name, n, element) => {
                let _ = write!(out, "var {name}: array<{element}, {n}>;");
            }
            Statement::Assign(place, operator, value) => {
                let _ = write!(out, "{place} {operator} ");
                value.print_alone(out);
                out.push(';');
            }
            Statement::Do(value) => {
                let _ = write!(out, "{value};");
            }
            Statement::Return(None) => out.push_str("return;"),
            Statement::Return(Some(value)) => {
                out.push_str("return ");
                value.print_alone(out);
                out.push(';');
            }
            Statement::Barrier => out.push_str("workgroupBarrier();"),
            Statement::If(branches) => {
                for (idx, (condition, block)) in branches.iter().enumerate() {
                    out.push_str(if idx > 0 { " else " } else { "" });
                    if let Some(condition) = condition {
                        let _ = write!(out, "if ({condition}) ");
                    }
                    match &block[..] {
                        [Statement::Return(_)] => out.push_str(&format!("{{ {} }}", on_one_line(block))),
                        _ => {
                            out.push_str("{\n");
                            print_block(block, level + 1, out);
                            let _ = write!(out, "{indent}}}");
                        }
                    }
                }
            }
            Statement::Switch(value, blocks) => {
                let _ = writeln!(out, "switch ({value}) {{");
                for (idx, block) in blocks.iter().enumerate() {
                    let case = if idx + 1 == blocks.len() { "default".to_string() } else { format!("case {idx}u") };
                    let _ = writeln!(out, "{indent}    {case}: {{ {} }}", on_one_line(block));
                }
                let _ = write!(out, "{indent}}}");
            }
            Statement::For(head, block) => {
                let Loop { name, start, condition, next: (operator, by), asks_after, .. } = &**head;
                if *asks_after {
                    let _ = writeln!(out, "{{\n{indent}    var {name} = {start};\n{indent}    loop {{");
                    print_block(block, level + 2, out);
                    let _ = writeln!(out, "{indent}        {name} {operator} {by};");
                    let _ = writeln!(out, "{indent}        if (!({condition})) {{ break; }}");
                    let _ = write!(out, "{indent}    }}\n{indent}}}");
                    return;
                }
                let next = match (*operator, by.to_string().as_str()) {
                    ("+=", "1u") => format!("{name}++"),
                    (operator, by) => format!("{name} {operator} {by}"),
                };
                let _ = writeln!(out, "for (var {name} = {start}; {condition}; {next}) {{");
                print_block(block, level + 1, out);
                let _ = write!(out, "{indent}}}");
            }
        }
    }
}
