//! Instructions as WGSL: one `let` each, a scalar or a vector of four. Rows bring their own expressions; where an
//! expression is more than operators, a function applies it to each component. Knows bodies; not the loops around them.

use super::convert;
use super::index::{Accesses, At, LoadedElems, Spot};
use super::launch_memory::LaunchMemory;
use super::schedule::VecLoad;
use super::shader::Shader;
use super::tree::{
    ShaderExpr, ShaderFn, ShaderType, Statement, call, lane_name, literal, named, select, template, word,
};
use crate::dtype::Lane;
use crate::kernel::{InstOp, Reg, Store};

/// Evaluates a body's instructions at one spot. Clones know what was evaluated before they were made.
#[derive(Clone)]
pub struct Eval<'a> {
    pub accesses: Accesses<'a>,
    pub memory: &'a LaunchMemory,
    pub spot: Spot,
    pub values: Vec<Option<ShaderExpr>>,
    found: Vec<Option<LoadedElems>>,
}

impl<'a> Eval<'a> {
    /// Nothing evaluated yet.
    pub fn new(accesses: Accesses<'a>, memory: &'a LaunchMemory, spot: Spot) -> Eval<'a> {
        let (n_insts, n_accesses) = (accesses.body.insts.len(), accesses.body.accesses.len());
        Eval { accesses, memory, spot, values: vec![None; n_insts], found: vec![None; n_accesses] }
    }

    /// Writes all that `goals` depend on and that has no value yet.
    pub fn need(&mut self, shader: &mut Shader, goals: impl IntoIterator<Item = Reg>) {
        for reg in self.missing(goals) {
            let value = self.inst(shader, reg);
            self.values[reg as usize] = Some(value);
        }
    }

    /// The registers without a value that `goals` depend on, themselves included, in order.
    pub fn missing(&self, goals: impl IntoIterator<Item = Reg>) -> Vec<Reg> {
        let insts = &self.accesses.body.insts;
        let mut wanted = vec![false; insts.len()];
        goals.into_iter().for_each(|r| wanted[r as usize] = true);
        for reg in (0..insts.len()).rev() {
            wanted[reg] &= self.values[reg].is_none();
            if wanted[reg] {
                insts[reg].op.for_each_reg(|r| wanted[r as usize] = true);
            }
        }
        (0..insts.len()).filter(|r| wanted[*r]).map(|r| r as Reg).collect()
    }

    /// The value of a register that has one.
    pub fn value(&self, reg: Reg) -> &ShaderExpr {
        self.values[reg as usize].as_ref().expect("evaluated before it is used")
    }

    /// Writes where a store goes: for stores inside a block, whose names would end with it.
    pub fn place(&mut self, shader: &mut Shader, store: &Store) {
        self.find(shader, store.access);
    }

    /// Writes a store of a register that has a value.
    pub fn store(&mut self, shader: &mut Shader, store: &Store) {
        let found = self.find(shader, store.access);
        let output = self.accesses.body.inputs.len() + store.output as usize;
        let value = self.value(store.value).clone();
        match &found.at {
            At::One(at) => self.memory.store(shader, output, at, value),
            At::Run(at) => self.memory.store4(shader, output, at, value.as_four()),
            At::Four(at) => self.memory.store_four(shader, output, at, value.as_four()),
            At::Lanes(at) => {
                (0..4).for_each(|k| self.memory.store(shader, output, &at[k], value.component(k)));
            }
            At::Turned { .. } => unreachable!("bug: only loads are turned"),
        }
    }

    fn find(&mut self, shader: &mut Shader, access: u16) -> LoadedElems {
        if let Some(found) = &self.found[access as usize] {
            return found.clone();
        }
        let found = self.accesses.find(shader, access, &self.spot);
        self.found[access as usize] = Some(found.clone());
        found
    }

    fn inst(&mut self, shader: &mut Shader, reg: Reg) -> ShaderExpr {
        let body = self.accesses.body;
        let inst = &body.insts[reg as usize];
        let lane = inst.dtype.lane();
        let operand = |r: &Reg| self.value(*r).clone();
        let lane_of = |r: &Reg| body.insts[*r as usize].dtype.lane();
        let mut value = match &inst.op {
            InstOp::Load { input, access } => self.load(shader, *input, *access),
            InstOp::Valid { access } => {
                let found = self.find(shader, *access);
                found.map(|at| if found.masked { at.component(1) } else { 1.into() })
            }
            InstOp::Index { access } => {
                let found = self.find(shader, *access);
                found.map(|at| at.component(0)).reinterpreted(lane)
            }
            InstOp::Gather { input, access, index, gather } => self.gather(shader, *input, *access, *index, *gather),
            InstOp::Const(idx) => shader.constant(*idx).reinterpreted(lane),
            InstOp::Failed => word("status").at(literal("0", Lane::I32)),
            InstOp::Acc(_) | InstOp::Reduce(..) => unreachable!("bug: {:?} is given, not evaluated", inst.op),
            InstOp::Unary(row, x) => {
                shader.functions(row.wgsl_fns);
                let text = row.wgsl.replace("$t", lane_name(lane_of(x)));
                apply(shader, row.name, &text, &["$x"], vec![operand(x)], lane)
            }
            InstOp::Binary(row, x, y) => {
                shader.functions(row.wgsl_fns);
                let text = row.wgsl.replace("$t", lane_name(lane_of(x)));
                // Shifts take any integer on the right.
                let y = match x == y && !row.commutes && lane_of(x) == Lane::F32 {
                    true => kept_otherwise(shader, operand(y)),
                    false => operand(y).reinterpreted(lane_of(x)),
                };
                apply(shader, row.name, &text, &["$x", "$y"], vec![operand(x), y], lane)
            }
            InstOp::Select(cond, a, b) => {
                let (cond, a, b) = (operand(cond), operand(a).reinterpreted(lane), operand(b).reinterpreted(lane));
                if cond.is_four() || a.is_four() || b.is_four() {
                    select(b.as_four(), a.as_four(), cond.as_four().differs(ShaderExpr::from(0).as_four()))
                } else {
                    select(b, a, cond.differs(0))
                }
            }
            InstOp::Cast(x) => {
                let from = body.insts[*x as usize].dtype;
                let Some(text) = convert::cast(from, inst.dtype) else { return operand(x) };
                shader.functions(convert::FUNCTIONS);
                apply(shader, &format!("{}_as_{}", from, inst.dtype), text, &["$x"], vec![operand(x)], lane)
            }
            InstOp::Custom(op, args) => {
                let args: Vec<ShaderExpr> = args.iter().map(operand).collect();
                let name = custom(shader, reg, &op.0.name, &op.0.wgsl, args.len());
                let holes: Vec<String> = (0..args.len()).map(|i| format!("${i}$")).collect();
                let holes: Vec<&str> = holes.iter().map(|h| h.as_str()).collect();
                apply(shader, &name, &format!("{name}({})", holes.join(", ")), &holes, args, lane)
            }
        };
        if self.accesses.kept[reg as usize] {
            value = kept(shader, value);
        }
        shader.define(format!("r{reg}{}", self.spot.suffix), value)
    }

    fn load(&mut self, shader: &mut Shader, input: u16, access: u16) -> ShaderExpr {
        let found = self.find(shader, access);
        let idx = input as usize;
        let lane = self.accesses.body.inputs[idx].dtype().lane();
        if found.masked {
            let (name, at) = (format!("load_in{input}_if"), named("at", ShaderType::Vec(2, Lane::U32)));
            let read = self.memory.load(shader, idx, at.component(0));
            let body = vec![nothing_if(at.component(1).equals(0), lane), Statement::Return(Some(read))];
            let (arguments, gives) = (vec![("at".to_string(), at.ty())], ShaderType::One(lane));
            shader.function(ShaderFn { name: name.clone(), arguments, gives, body });
            return found.map(|at| call(&name, [at], gives));
        }
        let four = ShaderType::four(lane);
        match &found.at {
            At::One(at) => self.memory.load(shader, idx, at),
            At::Run(at) => self.memory.load4(shader, idx, at),
            At::Four(at) => self.memory.load_four(shader, idx, at.clone()),
            At::Lanes(at) => {
                let each: Vec<ShaderExpr> = at.iter().map(|at| self.memory.load(shader, idx, at)).collect();
                four.make(each)
            }
            At::Turned { first, step } => {
                let column = |c: usize| format!("turned{input}_{access}_{c}");
                if self.spot.row == 0 {
                    for c in 0..4 {
                        let at = if c == 0 { first.clone() } else { first + ShaderExpr::from(c) * step };
                        let read = self.memory.load4(shader, idx, at);
                        shader.define(column(c), read);
                    }
                }
                four.make((0..4).map(|c| named(column(c), four).component(self.spot.row)))
            }
        }
    }

    fn gather(&mut self, shader: &mut Shader, input: u16, access: u16, index: Reg, gather: u16) -> ShaderExpr {
        let found = self.find(shader, access);
        let lane = self.accesses.body.inputs[input as usize].dtype().lane();
        let name = self.gather_function(shader, input, gather, found.masked);
        let index = self.value(index).reinterpreted(Lane::U32);
        let read = |at: &ShaderExpr, k: usize| call(&name, [at.clone(), index.component(k)], ShaderType::One(lane));
        let lanes = match &found.at {
            At::One(at) if !index.is_four() => return read(at, 0),
            At::One(at) => [0; 4].map(|_| at.clone()),
            At::Run(at) => [0, 1, 2, 3].map(|k| at.plus(k)),
            At::Four(at) => [0, 1, 2, 3].map(|k| at * 4 + k),
            At::Lanes(at) => at.clone(),
            At::Turned { .. } => unreachable!("bug: only loads are turned"),
        };
        ShaderType::four(lane).make((0..4).map(|k| read(&lanes[k], k)))
    }

    /// The function that looks up an index: its name.
    fn gather_function(&self, shader: &mut Shader, input: u16, gather: u16, masked: bool) -> String {
        let lane = self.accesses.body.inputs[input as usize].dtype().lane();
        let args = self.accesses.args.gathers[gather as usize];
        let bound = shader.param(&format!("g{gather}_bound"), args.bound);
        let stride = shader.signed_param(&format!("g{gather}_stride"), args.stride);
        let check = shader.param(&format!("g{gather}_check"), args.check as usize);
        let at = named("at", if masked { ShaderType::Vec(2, Lane::U32) } else { ShaderType::One(Lane::U32) });
        let index = word("index");
        let mut body = Vec::new();
        if masked {
            body.push(nothing_if(at.component(1).equals(0), lane));
        }
        let fails = Statement::Do(call("fail", [check, index.clone()], ShaderType::Nothing));
        body.push(Statement::If(vec![(Some(index.at_least(bound)), vec![fails, returns_nothing(lane)])]));
        if let Some((first, n)) = self.accesses.args.index_range {
            let (first, n) = (shader.param("first_served", first), shader.param("n_served", n));
            body.push(nothing_if((&index - first).at_least(n), lane));
        }
        let read = self.memory.load(shader, input as usize, at.component(0) + &index * stride);
        body.push(Statement::Return(Some(read)));
        shader.functions(FAIL);
        let (name, gives) = (format!("gather{gather}"), ShaderType::One(lane));
        let arguments = vec![("at".to_string(), at.ty()), ("index".to_string(), index.ty())];
        shader.function(ShaderFn { name: name.clone(), arguments, gives, body });
        name
    }

    /// The condition under which what is looked up here is this launch's to store; None if it all is. What is out of
    /// range is everybody's.
    pub fn index_range(&self, shader: &mut Shader) -> Option<ShaderExpr> {
        let Accesses { args, body, .. } = self.accesses;
        let (first, n) = args.index_range?;
        let gather = body.insts.iter().find_map(|inst| match inst.op {
            InstOp::Gather { index, gather, .. } => Some((index, gather)),
            _ => None,
        });
        let (index, gather) = gather?;
        let index = self.value(index).reinterpreted(Lane::U32);
        let bound = shader.param(&format!("g{gather}_bound"), args.gathers[gather as usize].bound);
        let (first, n) = (shader.param("first_served", first), shader.param("n_served", n));
        Some((&index - first).less(n).or(index.at_least(bound)))
    }
}

fn returns_nothing(lane: Lane) -> Statement {
    Statement::Return(Some(ShaderType::One(lane).make([literal("0", Lane::I32)])))
}

fn nothing_if(condition: ShaderExpr, lane: Lane) -> Statement {
    Statement::If(vec![(Some(condition), vec![returns_nothing(lane)])])
}

/// Notes an index out of range. The least one that failed is kept, so that runs agree.
pub const FAIL: &str = "\
fn fail(check: u32, index: u32) {
    atomicStore(&status[0], 1u);
    atomicStore(&status[2u * check + 2u], 1u);
    atomicMin(&status[2u * check + 3u], index);
}
";

/// `kept_f32` of each component; and the least of other integers than it takes the least of. All numbers are less.
const KEPT: &str = "\
fn kept_f32x4(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(min(bitcast<vec4<u32>>(x), vec4<u32>(0xffc00000u)));
}
fn also_kept_f32(x: f32) -> f32 { return bitcast<f32>(min(bitcast<i32>(x), 0x7fc00000i)); }
fn also_kept_f32x4(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(min(bitcast<vec4<i32>>(x), vec4<i32>(0x7fc00000i)));
}
";

/// The same float, though no compiler can tell: see [`keep`](super::keep).
pub fn kept(shader: &mut Shader, value: ShaderExpr) -> ShaderExpr {
    through(shader, value, "kept_f32")
}

/// The same, kept in another way: done twice, one way is no more than done once, and x − x, which is NaN for some x,
/// would be forgotten of an x that is kept.
pub fn kept_otherwise(shader: &mut Shader, value: ShaderExpr) -> ShaderExpr {
    through(shader, value, "also_kept_f32")
}

fn through(shader: &mut Shader, value: ShaderExpr, function: &str) -> ShaderExpr {
    shader.functions(KEPT);
    let (ty, four) = (value.ty(), if value.is_four() { "x4" } else { "" });
    call(format!("{function}{four}"), [value], ty)
}

impl LoadedElems {
    /// What `f` makes of each index: one value, or a vector of four.
    fn map(&self, f: impl Fn(ShaderExpr) -> ShaderExpr) -> ShaderExpr {
        let at = |k: usize| match &self.at {
            At::One(at) => at.clone(),
            At::Run(at) => at.plus(k),
            At::Four(at) => at * 4 + k,
            At::Lanes(at) => at[k].clone(),
            At::Turned { .. } => unreachable!("bug: only loads are turned"),
        };
        match self.at {
            At::One(_) => f(at(0)),
            _ => {
                let each = [0, 1, 2, 3].map(|k| f(at(k)));
                ShaderType::four(each[0].lane()).make(each)
            }
        }
    }
}

/// An expression applied to values: a vector of four if one of them is. `holes` are the expression's names for them.
pub fn apply(
    shader: &mut Shader,
    name: &str,
    text: &str,
    holes: &[&str],
    values: Vec<ShaderExpr>,
    gives: Lane,
) -> ShaderExpr {
    let (one, four) = (ShaderType::One(gives), ShaderType::four(gives));
    if values.iter().all(|v| !v.is_four()) {
        return template(text.to_string(), holes, values, one);
    }
    let name = format!("{name}_{}x4", lane_name(values[0].lane()));
    let values: Vec<ShaderExpr> = values.iter().map(ShaderExpr::as_four).collect();
    if is_operators(text, holes) {
        return template(text.to_string(), holes, values, four);
    }
    let arguments: Vec<ShaderExpr> = values.iter().enumerate().map(|(i, v)| named(format!("x{i}"), v.ty())).collect();
    let each = |k: usize| {
        let lanes = arguments.iter().map(|x| x.component(k)).collect();
        template(text.to_string(), holes, lanes, one)
    };
    shader.function(ShaderFn {
        name: name.clone(),
        arguments: arguments.iter().map(|x| (x.to_string(), x.ty())).collect(),
        gives: four,
        body: vec![Statement::Return(Some(four.make((0..4).map(each))))],
    });
    call(name, values, four)
}

/// Whether an expression is made of operators alone, which take vectors as they take scalars.
fn is_operators(text: &str, holes: &[&str]) -> bool {
    let rest = holes.iter().fold(text.to_string(), |text, hole| text.replace(hole, ""));
    !rest.contains(|c: char| c.is_alphanumeric() || c == '_')
}

/// A function for the user's own expression over `$0`, `$1`, …; its name.
fn custom(shader: &mut Shader, reg: Reg, name: &str, text: &str, n_args: usize) -> String {
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let name = format!("custom{reg}_{plain}");
    // From the last on, so that `$1` is not found in `$10`.
    let text = (0..n_args).rev().fold(text.to_string(), |text, i| text.replace(&format!("${i}"), &format!("x{i}")));
    let one = ShaderType::One(Lane::F32);
    shader.function(ShaderFn {
        name: name.clone(),
        arguments: (0..n_args).map(|i| (format!("x{i}"), one)).collect(),
        gives: one,
        body: vec![Statement::Return(Some(template(text, &[], Vec::new(), one)))],
    });
    name
}

/// Whether and how each input and output is reached: one element at a time, four at a time.
pub fn reached(accesses: &Accesses) -> Vec<(bool, bool)> {
    let body = accesses.body;
    let mut reached = vec![(false, false); body.inputs.len() + body.outputs.len()];
    let mut reach = |idx: usize, access: u16| match accesses.modes[access as usize] {
        VecLoad::Contiguous | VecLoad::Transposed => reached[idx].1 = true,
        _ => reached[idx].0 = true,
    };
    for inst in &body.insts {
        if let InstOp::Load { input, access } = inst.op {
            reach(input as usize, access);
        }
    }
    body.stores.iter().for_each(|s| reach(body.inputs.len() + s.output as usize, s.access));
    for inst in &body.insts {
        if let InstOp::Gather { input, .. } = inst.op {
            reached[input as usize].0 = true;
        }
    }
    reached
}
