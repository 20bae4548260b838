//! Instructions as WGSL: one `let` each, a scalar or a vector of four. Rows bring their own expressions; where an
//! expression is more than operators, a function applies it to each component. Knows bodies; not the loops around them.

use super::convert::{self, lane_name};
use super::index::{Accesses, At, LoadedElems, Spot};
use super::memory::{LANES, LaunchMemory};
use super::schedule::VecLoad;
use super::shader::Shader;
use crate::dtype::Lane;
use crate::kernel::{InstOp, Reg, Store};

/// A value while it is computed.
#[derive(Clone, Debug)]
pub struct ShaderValue {
    /// The name of a variable, or an expression as short.
    pub text: String,
    pub lane: Lane,
    /// Whether it is a vector of four.
    pub four: bool,
}

/// Evaluates a body's instructions at one spot. Clones know what was evaluated before they were made.
#[derive(Clone)]
pub struct Eval<'a> {
    pub accesses: Accesses<'a>,
    pub memory: &'a LaunchMemory,
    pub spot: Spot,
    pub values: Vec<Option<ShaderValue>>,
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
    pub fn value(&self, reg: Reg) -> &ShaderValue {
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
            At::One(at) => {
                let line = self.memory.store(shader, output, at, &value.text);
                shader.line(line);
            }
            At::Run(at) => {
                let lines = self.memory.store4(shader, output, at, &value.as_four());
                lines.iter().for_each(|line| shader.line(line));
            }
            At::Four(at) => {
                let lines = self.memory.store_four(shader, output, at, &value.as_four());
                lines.iter().for_each(|line| shader.line(line));
            }
            At::Lanes(at) => {
                for (at, lane) in at.iter().zip(LANES) {
                    let line = self.memory.store(shader, output, at, &value.lane_text(lane));
                    shader.line(line);
                }
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

    fn inst(&mut self, shader: &mut Shader, reg: Reg) -> ShaderValue {
        let body = self.accesses.body;
        let inst = &body.insts[reg as usize];
        let lane = inst.dtype.lane();
        let operand = |r: &Reg| self.value(*r).clone();
        let lane_of = |r: &Reg| body.insts[*r as usize].dtype.lane();
        let (text, four) = match &inst.op {
            InstOp::Load { input, access } => self.load(shader, *input, *access),
            InstOp::Valid { access } => {
                let found = self.find(shader, *access);
                found.map(|at| if found.masked { format!("{at}.y") } else { "1u".to_string() }, "u32")
            }
            InstOp::Index { access } => {
                let found = self.find(shader, *access);
                let index = |at: &str| if found.masked { format!("{at}.x") } else { at.to_string() };
                let (text, four) = found.map(index, "u32");
                match (lane, four) {
                    (Lane::I32, false) => (format!("bitcast<i32>({text})"), four),
                    (Lane::I32, true) => (format!("bitcast<vec4<i32>>({text})"), four),
                    _ => (text, four),
                }
            }
            InstOp::Gather { input, access, index, gather } => self.gather(shader, *input, *access, *index, *gather),
            InstOp::Const(idx) => (reinterpreted(Lane::U32, lane, &shader.constant(*idx)), false),
            InstOp::Failed => ("status[0]".to_string(), false),
            InstOp::Acc(_) | InstOp::Reduce(..) => unreachable!("bug: {:?} is given, not evaluated", inst.op),
            InstOp::Unary(row, x) => {
                shader.functions(row.wgsl_fns);
                let text = row.wgsl.replace("$t", lane_name(lane_of(x)));
                apply(shader, row.name, &text, &["$x"], &[operand(x)], lane)
            }
            InstOp::Binary(row, x, y) => {
                shader.functions(row.wgsl_fns);
                let text = row.wgsl.replace("$t", lane_name(lane_of(x)));
                // Shifts take any integer on the right.
                let y = match x == y && !row.commutes && lane_of(x) == Lane::F32 {
                    true => operand(y).kept_otherwise(shader),
                    false => operand(y).reinterpreted(lane_of(x)),
                };
                apply(shader, row.name, &text, &["$x", "$y"], &[operand(x), y], lane)
            }
            InstOp::Select(cond, a, b) => {
                let (cond, a, b) = (operand(cond), operand(a).reinterpreted(lane), operand(b).reinterpreted(lane));
                if cond.four || a.four || b.four {
                    (format!("select({}, {}, {} != vec4(0u))", b.as_four(), a.as_four(), cond.as_four()), true)
                } else {
                    (format!("select({}, {}, {} != 0u)", b.text, a.text, cond.text), false)
                }
            }
            InstOp::Cast(x) => {
                let from = body.insts[*x as usize].dtype;
                let Some(text) = convert::cast(from, inst.dtype) else { return operand(x) };
                shader.functions(convert::FUNCTIONS);
                let name = format!("{}_as_{}", from, inst.dtype);
                apply(shader, &name, text, &["$x"], &[operand(x)], lane)
            }
            InstOp::Custom(op, args) => {
                let args: Vec<ShaderValue> = args.iter().map(operand).collect();
                let name = custom(shader, reg, &op.0.name, &op.0.wgsl, args.len());
                let holes: Vec<String> = (0..args.len()).map(|i| format!("${i}$")).collect();
                let holes: Vec<&str> = holes.iter().map(|h| h.as_str()).collect();
                apply(shader, &name, &format!("{name}({})", holes.join(", ")), &holes, &args, lane)
            }
        };
        let mut value = ShaderValue { text, lane, four };
        if self.accesses.kept[reg as usize] {
            value = value.kept(shader);
        }
        let name = format!("r{reg}{}", self.spot.suffix);
        shader.line(format!("let {name} = {};", without_parens(&value.text)));
        ShaderValue { text: name, ..value }
    }

    fn load(&mut self, shader: &mut Shader, input: u16, access: u16) -> (String, bool) {
        let found = self.find(shader, access);
        let idx = input as usize;
        let dtype = self.accesses.body.inputs[idx];
        let lane = lane_name(dtype.lane());
        if found.masked {
            let read = self.memory.load(shader, idx, "at.x");
            let name = format!("load_in{input}_if");
            shader.functions(&format!(
                "fn {name}(at: vec2<u32>) -> {lane} {{\n    if (at.y == 0u) {{ return {lane}(0); }}\n    \
                 return {read};\n}}\n"
            ));
            return found.map(|at| format!("{name}({at})"), lane);
        }
        match &found.at {
            At::One(at) => (self.memory.load(shader, idx, at), false),
            At::Run(at) => (self.memory.load4(shader, idx, at), true),
            At::Four(at) => (self.memory.load_four(shader, idx, at), true),
            At::Lanes(at) => {
                let each: Vec<String> = at.iter().map(|at| self.memory.load(shader, idx, at)).collect();
                (format!("vec4<{lane}>({})", each.join(", ")), true)
            }
            At::Turned { first, step } => {
                let column = |c: usize| format!("turned{input}_{access}_{c}");
                if self.spot.row == 0 {
                    for c in 0..4 {
                        let at = if c == 0 { first.clone() } else { format!("{first} + {c}u * {step}") };
                        let read = self.memory.load4(shader, idx, &at);
                        shader.line(format!("let {} = {read};", column(c)));
                    }
                }
                let each = [0, 1, 2, 3].map(|c| format!("{}{}", column(c), LANES[self.spot.row]));
                (format!("vec4<{lane}>({})", each.join(", ")), true)
            }
        }
    }

    fn gather(&mut self, shader: &mut Shader, input: u16, access: u16, index: Reg, gather: u16) -> (String, bool) {
        let found = self.find(shader, access);
        let index = self.value(index).reinterpreted(Lane::U32);
        let lane = lane_name(self.accesses.body.inputs[input as usize].lane());
        let args = self.accesses.args.gathers[gather as usize];
        let bound = shader.param(&format!("g{gather}_bound"), args.bound);
        let stride = shader.signed_param(&format!("g{gather}_stride"), args.stride);
        let check = shader.param(&format!("g{gather}_check"), args.check as usize);
        let (at, skip) = match found.masked {
            true => ("at.x", format!("if (at.y == 0u) {{ return {lane}(0); }}\n    ")),
            false => ("at", String::new()),
        };
        let elsewhere = match self.accesses.args.index_range {
            Some((first, n)) => {
                let (first, n) = (shader.param("first_served", first), shader.param("n_served", n));
                format!("if (index - {first} >= {n}) {{ return {lane}(0); }}\n    ")
            }
            None => String::new(),
        };
        let at_type = if found.masked { "vec2<u32>" } else { "u32" };
        let read = self.memory.load(shader, input as usize, &format!("{at} + index * {stride}"));
        shader.functions(FAIL);
        let name = format!("gather{gather}");
        shader.functions(&format!(
            "fn {name}(at: {at_type}, index: u32) -> {lane} {{\n    {skip}if (index >= {bound}) {{\n        \
             fail({check}, index);\n        return {lane}(0);\n    }}\n    {elsewhere}return {read};\n}}\n"
        ));
        let lanes: [String; 4] = match &found.at {
            At::One(at) if !index.four => return (format!("{name}({at}, {})", index.text), false),
            At::One(at) => [0; 4].map(|_| at.clone()),
            At::Run(at) => [0, 1, 2, 3].map(|k| super::memory::plus(at, k)),
            At::Four(at) => [0, 1, 2, 3].map(|k| format!("({at}) * 4u + {k}u")),
            At::Lanes(at) => at.clone(),
            At::Turned { .. } => unreachable!("bug: only loads are turned"),
        };
        let call = |k: usize| format!("{name}({}, {})", lanes[k], index.lane_text(LANES[k]));
        (format!("vec4<{lane}>({})", [0, 1, 2, 3].map(call).join(", ")), true)
    }

    /// The condition under which what is looked up here is this launch's to store; None if it all is. What is out of
    /// range is everybody's.
    pub fn index_range(&self, shader: &mut Shader) -> Option<String> {
        let Accesses { args, body, .. } = self.accesses;
        let (first, n) = args.index_range?;
        let gather = body.insts.iter().find_map(|inst| match inst.op {
            InstOp::Gather { index, gather, .. } => Some((index, gather)),
            _ => None,
        });
        let (index, gather) = gather?;
        let index = self.value(index).reinterpreted(Lane::U32).text;
        let bound = shader.param(&format!("g{gather}_bound"), args.gathers[gather as usize].bound);
        let (first, n) = (shader.param("first_served", first), shader.param("n_served", n));
        Some(format!("({index} - {first} < {n} || {index} >= {bound})"))
    }
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

impl ShaderValue {
    /// As a vector of four.
    pub fn as_four(&self) -> String {
        if self.four { self.text.clone() } else { format!("vec4({})", self.text) }
    }

    /// One of four.
    pub fn lane_text(&self, lane: &str) -> String {
        if self.four { format!("{}{lane}", self.text) } else { self.text.clone() }
    }

    /// The same float, though no compiler can tell: see [`keep`](super::keep).
    pub fn kept(self, shader: &mut Shader) -> ShaderValue {
        self.through(shader, "kept_f32")
    }

    /// The same, kept in another way: done twice, one way is no more than done once, and x − x, which is NaN for some x,
    /// would be forgotten of an x that is kept.
    pub fn kept_otherwise(self, shader: &mut Shader) -> ShaderValue {
        self.through(shader, "also_kept_f32")
    }

    fn through(self, shader: &mut Shader, function: &str) -> ShaderValue {
        shader.functions(KEPT);
        let four = if self.four { "x4" } else { "" };
        ShaderValue { text: format!("{function}{four}({})", without_parens(&self.text)), ..self }
    }

    /// The same bits as another lane.
    pub fn reinterpreted(&self, to: Lane) -> ShaderValue {
        if self.lane == to {
            return self.clone();
        }
        let text = match self.four {
            true => format!("bitcast<vec4<{}>>({})", lane_name(to), self.text),
            false => reinterpreted(self.lane, to, &self.text),
        };
        ShaderValue { text, lane: to, four: self.four }
    }
}

impl LoadedElems {
    /// What `f` makes of each index, as one value of this type or a vector of four.
    fn map(&self, f: impl Fn(&str) -> String, lane: &str) -> (String, bool) {
        match &self.at {
            At::One(at) => (f(at), false),
            At::Run(at) => {
                let each = [0, 1, 2, 3].map(|k| f(&super::memory::plus(at, k)));
                (format!("vec4<{lane}>({})", each.join(", ")), true)
            }
            At::Four(at) => {
                let each = [0, 1, 2, 3].map(|k| f(&format!("({at}) * 4u + {k}u")));
                (format!("vec4<{lane}>({})", each.join(", ")), true)
            }
            At::Lanes(at) => {
                let each: Vec<String> = at.iter().map(|at| f(at)).collect();
                (format!("vec4<{lane}>({})", each.join(", ")), true)
            }
            At::Turned { .. } => unreachable!("bug: only loads are turned"),
        }
    }
}

/// An expression without the parentheses around all of it, if there are some.
pub fn without_parens(text: &str) -> &str {
    let Some(inside) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    let closes_early = inside.chars().any(|c| {
        depth += (c == '(') as i32 - (c == ')') as i32;
        depth < 0
    });
    if closes_early { text } else { inside }
}

fn reinterpreted(from: Lane, to: Lane, text: &str) -> String {
    if from == to { text.to_string() } else { format!("bitcast<{}>({text})", lane_name(to)) }
}

/// An expression applied to values, and whether it gives a vector of four. `holes` are the expression's names for them.
pub fn apply(
    shader: &mut Shader,
    name: &str,
    text: &str,
    holes: &[&str],
    values: &[ShaderValue],
    gives: Lane,
) -> (String, bool) {
    let fill = |with: &dyn Fn(usize) -> String| {
        holes.iter().enumerate().fold(text.to_string(), |text, (i, hole)| text.replace(hole, &with(i)))
    };
    if values.iter().all(|v| !v.four) {
        return (fill(&|i| values[i].text.clone()), false);
    }
    if is_operators(text, holes) {
        return (fill(&|i| values[i].as_four()), true);
    }
    let gives = lane_name(gives);
    let name = format!("{name}_{}x4", lane_name(values[0].lane));
    let arguments: Vec<String> =
        values.iter().enumerate().map(|(i, v)| format!("x{i}: vec4<{}>", lane_name(v.lane))).collect();
    let each = LANES.map(|lane| fill(&|i| format!("x{i}{lane}")));
    shader.functions(&format!(
        "fn {name}({}) -> vec4<{gives}> {{\n    return vec4<{gives}>({});\n}}\n",
        arguments.join(", "),
        each.join(", ")
    ));
    let values: Vec<String> = values.iter().map(ShaderValue::as_four).collect();
    (format!("{name}({})", values.join(", ")), true)
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
    let arguments: Vec<String> = (0..n_args).map(|i| format!("x{i}: f32")).collect();
    shader.functions(&format!("fn {name}({}) -> f32 {{\n    return {text};\n}}\n", arguments.join(", ")));
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
