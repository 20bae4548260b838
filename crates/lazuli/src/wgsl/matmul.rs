//! Contractions: every invocation makes a small tile of the result in registers, then does to it what follows. A k too
//! long for one invocation's loops is cut: earlier dispatches leave their sums in scratch memory.

use super::choose::{self, Four, MatmulShape, Mode};
use super::convert::lane_name;
use super::cut::Context;
use super::eval::{Eval, Value};
use super::index::{Accesses, Spot, split};
use super::map::side_by_side;
use super::memory::{LANES, Memory, Use};
use super::shader::Shader;
use super::{Pass, Place, Program};
use crate::dtype::{DType, Lane};
use crate::kernel::{Args, InstOp, MatmulArgs, OperandArgs, Reg, Scope};

/// Invocations of a workgroup.
const GROUP: usize = 64;
/// Products that are summed up one after another; beyond, their sums are.
const BLOCK: usize = 256;
/// Elements along k that one trip takes.
const UNROLL: usize = 4;

/// The passes of a matmul.
pub fn program(context: &Context) -> Program {
    let mut program = Program::default();
    for args in context.parts() {
        let Some(matmul) = &args.matmul else { unreachable!("a matmul's launch has its numbers") };
        // Trips over k, over blocks, and over what is left.
        let trips = (context.caps.max_trips.min(1 << 28) / 2).saturating_sub(8).max(1);
        let longest = (trips * UNROLL / BLOCK * BLOCK).max(BLOCK);
        let cuts = matmul.k.div_ceil(longest).max(1);
        if cuts > 1 {
            let size_bytes = 4 * args.outer.iter().product::<usize>();
            match program.scratch.first_mut() {
                Some(first) => *first = size_bytes.max(*first),
                None => program.scratch.push(size_bytes),
            }
        }
        for cut in 0..cuts {
            let range = (cut * longest, ((cut + 1) * longest).min(matmul.k));
            let sums = match (cut, cuts) {
                (_, 1) => Sums::Whole,
                (cut, cuts) if cut + 1 == cuts => Sums::Last,
                (0, _) => Sums::First,
                _ => Sums::Middle,
            };
            program.passes.push(Tiles::new(context, &args, matmul, sums).pass(range));
        }
    }
    program
}

/// Which part of k a dispatch sums up.
#[derive(Clone, Copy, PartialEq)]
enum Sums {
    /// All.
    Whole,
    /// A part, left in scratch memory: the first, or one that is added to what is there.
    First,
    Middle,
    /// The last, added to what is in scratch memory.
    Last,
}

/// What the text is written from.
struct Tiles<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    matmul: &'a MatmulArgs,
    shape: MatmulShape,
    sums: Sums,
    lane: Lane,
    modes: Vec<Mode>,
    memory: Memory,
}

impl<'a> Tiles<'a> {
    fn new(context: &'a Context, args: &'a Args, matmul: &'a MatmulArgs, sums: Sums) -> Tiles<'a> {
        let shape = choose::matmul_shape(matmul);
        let four = (shape.cols == 4).then_some(Four { axis: args.outer.len() - 1, aligned: true });
        let modes = choose::modes(context.body, args, four);
        let acc = context.body.insts.iter().find(|i| matches!(i.op, InstOp::Acc));
        let lane = acc.map_or(Lane::F32, |i| i.dtype.lane());
        let mut uses = match sums {
            Sums::First | Sums::Middle => context.uses(args, &[]),
            _ => context.uses(args, &[&modes]),
        };
        for (one, by_four) in uses.iter_mut().zip([shape.a_by_four, shape.b_by_four]) {
            one.by_four |= by_four;
            one.by_one |= !by_four;
        }
        // What is left over of k is read one by one.
        uses[0].by_one |= !matmul.k.is_multiple_of(UNROLL);
        if sums != Sums::Whole {
            uses.push(scratch(args, lane));
        }
        Tiles { context, args, matmul, shape, sums, lane, modes, memory: context.memory_of(uses) }
    }

    fn pass(&self, k: (usize, usize)) -> Pass {
        let group = GROUP.min(self.context.caps.max_invocations);
        let mut shader = Shader::new(self.context.comment(), &self.args.consts, group);
        let MatmulShape { rows, cols, .. } = self.shape;
        let n_batch: usize = self.matmul.batch.iter().product();
        let n_tiles = n_batch * self.matmul.m.div_ceil(rows) * (self.matmul.n / cols);
        self.write_place(&mut shader, group, n_tiles);
        self.write_sums(&mut shader, k);
        self.write_rest(&mut shader);
        shader.finish(self.context.label(), &self.memory, n_tiles.div_ceil(group))
    }

    /// Which tile this invocation makes.
    fn write_place(&self, shader: &mut Shader, group: usize, n_tiles: usize) {
        let MatmulShape { rows, cols, .. } = self.shape;
        let tiles = shader.param("n_tiles", n_tiles);
        let across = shader.param("tiles_across", self.matmul.n / cols);
        let down = shader.param("tiles_down", self.matmul.m.div_ceil(rows));
        shader.count_groups();
        shader.line(format!("let tile = group_idx * {group}u + lane;"));
        shader.line(format!("if (tile >= {tiles}) {{ return; }}"));
        shader.line(format!("let col = tile % {across} * {cols}u;"));
        shader.line(format!("let row = tile / {across} % {down} * {rows}u;"));
        let n_batch = self.matmul.batch.len();
        if n_batch > 0 {
            shader.line(format!("let batch = tile / ({across} * {down});"));
            let sizes: Vec<String> =
                (0..n_batch).map(|axis| shader.param(&format!("batch{axis}"), self.matmul.batch[axis])).collect();
            split(shader, "batch", &batch_names(n_batch), &sizes);
        }
        shader.param("m", self.matmul.m);
        for (name, lies) in [("a", &self.matmul.a), ("b", &self.matmul.b)] {
            let start = operand_start(shader, name, lies);
            let across = stride(shader, name, "col", lies.col_stride);
            match name {
                "a" => shader.line(format!("let a_start = {start};")),
                _ => shader.line(format!("let b_start = {start} + col * {across};")),
            }
        }
        let down = stride(shader, "a", "row", self.matmul.a.row_stride);
        for r in 0..rows {
            // Rows beyond the end are those at the end again; they are not stored.
            let row = if r == 0 { "row".to_string() } else { format!("min(row + {r}u, params.m - 1u)") };
            shader.line(format!("let a{r} = a_start + {row} * {down};"));
        }
    }

    /// Sums of products along k, in `all0`, `all1`, …, one per row of the tile.
    fn write_sums(&self, shader: &mut Shader, k: (usize, usize)) {
        let MatmulShape { rows, cols, .. } = self.shape;
        let (start, end) = (shader.param("k_start", k.0), shader.param("k_end", k.1));
        let lane = lane_name(self.lane);
        let zero = if cols == 4 { format!("vec4<{lane}>()") } else { format!("{lane}()") };
        for r in 0..rows {
            shader.line(format!("var all{r} = {zero};"));
        }
        let rest = !self.matmul.k.is_multiple_of(UNROLL);
        match rest {
            true => shader.line(format!("let k_whole = {start} + ({end} - {start}) / {UNROLL}u * {UNROLL}u;")),
            false => shader.line(format!("let k_whole = {end};")),
        }
        shader.open(format!("for (var block = {start}; block < k_whole; block += {BLOCK}u)"));
        for r in 0..rows {
            shader.line(format!("var sum{r} = {zero};"));
        }
        shader.line(format!("let block_end = min(block + {BLOCK}u, k_whole);"));
        shader.open(format!("for (var k = block; k < block_end; k += {UNROLL}u)"));
        self.write_products(shader, UNROLL, "sum");
        shader.close();
        (0..rows).for_each(|r| shader.line(format!("all{r} += sum{r};")));
        shader.close();
        if rest {
            shader.open(format!("for (var k = k_whole; k < {end}; k++)"));
            self.write_products(shader, 1, "all");
            shader.close();
        }
    }

    /// The products of `n` steps from `k` on.
    fn write_products(&self, shader: &mut Shader, n: usize, into: &str) {
        let MatmulShape { rows, a_by_four, .. } = self.shape;
        let along = stride(shader, "a", "col", self.matmul.a.col_stride);
        let a_lane = self.context.body.inputs[0].lane();
        for r in 0..rows {
            let value = match (n, a_by_four) {
                (1, _) => self.memory.load(shader, 0, &format!("a{r} + k * {along}")),
                (_, true) => self.memory.load4(shader, 0, &format!("a{r} + k")),
                _ => {
                    let at = |i: usize| match i {
                        0 => format!("a{r} + k * {along}"),
                        _ => format!("a{r} + (k + {i}u) * {along}"),
                    };
                    let each: Vec<String> = (0..n).map(|i| self.memory.load(shader, 0, &at(i))).collect();
                    format!("vec4<{}>({})", lane_name(a_lane), each.join(", "))
                }
            };
            let value = Value { text: value, lane: a_lane, four: n > 1 }.reinterpreted(self.lane);
            shader.line(format!("let x{r} = {};", value.text));
        }
        for i in 0..n {
            let at = if i == 0 { "k".to_string() } else { format!("(k + {i}u)") };
            let value = self.row_of_b(shader, &at);
            shader.line(format!("let y{i} = {value};"));
            for r in 0..rows {
                let x = if n > 1 { format!("x{r}{}", LANES[i]) } else { format!("x{r}") };
                shader.line(format!("{into}{r} += {x} * y{i};"));
            }
        }
    }

    /// The elements of `b` at one step along k, for the columns of the tile.
    fn row_of_b(&self, shader: &mut Shader, k: &str) -> String {
        let MatmulShape { cols, b_by_four, .. } = self.shape;
        let lies = &self.matmul.b;
        let down = stride(shader, "b", "row", lies.row_stride);
        let across = stride(shader, "b", "col", lies.col_stride);
        let at = format!("b_start + {k} * {down}");
        let lane = self.context.body.inputs[1].lane();
        let text = match (cols, b_by_four) {
            (1, _) => self.memory.load(shader, 1, &at),
            (_, true) => self.memory.load4(shader, 1, &at),
            _ => {
                let step = |i: usize| if i == 0 { at.clone() } else { format!("{at} + {i}u * {across}") };
                let each: Vec<String> = (0..4).map(|i| self.memory.load(shader, 1, &step(i))).collect();
                format!("vec4<{}>({})", lane_name(lane), each.join(", "))
            }
        };
        Value { text, lane, four: cols == 4 }.reinterpreted(self.lane).text
    }

    /// What follows the sums, row by row of the tile.
    fn write_rest(&self, shader: &mut Shader) {
        let body = self.context.body;
        let accesses = Accesses { body, args: self.args, modes: &self.modes };
        let mut eval = Eval::new(accesses, &self.memory, Spot { coordinates: vec![Vec::new()], ..Spot::default() });
        if matches!(self.sums, Sums::Whole | Sums::Last) {
            let uniform = (0..body.insts.len() as Reg).filter(|r| body.insts[*r as usize].scope == Scope::Uniform);
            eval.need(shader, uniform);
        }
        let n = shader.param("n", self.matmul.n);
        let batch = if self.matmul.batch.is_empty() { "" } else { "batch * params.m + " };
        for r in 0..self.shape.rows {
            let row = if r == 0 { "row".to_string() } else { format!("(row + {r}u)") };
            if r > 0 {
                shader.open(format!("if ({row} < params.m)"));
            }
            shader.line(format!("let i{r} = ({batch}{row}) * {n} + col;"));
            self.write_row(shader, &eval, r, row);
            if r > 0 {
                shader.close();
            }
        }
    }

    fn write_row(&self, shader: &mut Shader, eval: &Eval, r: usize, row: String) {
        let body = self.context.body;
        let four = self.shape.cols == 4;
        let mut sum = Value { text: format!("all{r}"), lane: self.lane, four };
        let idx = body.inputs.len() + body.outputs.len();
        let at = format!("i{r}");
        if matches!(self.sums, Sums::Middle | Sums::Last) {
            let before = match four {
                true => self.memory.load4(shader, idx, &at),
                false => self.memory.load(shader, idx, &at),
            };
            shader.line(format!("all{r} += {before};"));
        }
        if matches!(self.sums, Sums::First | Sums::Middle) {
            let lines = match four {
                true => self.memory.store4(shader, idx, &at, &sum.text),
                false => vec![self.memory.store(shader, idx, &at, &sum.text)],
            };
            lines.iter().for_each(|line| shader.line(line));
            return;
        }
        let mut here = eval.clone();
        let mut names = batch_names(self.matmul.batch.len());
        names.extend([row, "col".to_string()]);
        let along = four.then_some(names.len() - 1);
        here.spot = Spot {
            outer: at,
            coordinates: side_by_side(names, along),
            suffix: if r > 0 { format!("_{r}") } else { String::new() },
            ..Spot::default()
        };
        for (reg, inst) in body.insts.iter().enumerate() {
            if let InstOp::Acc = inst.op {
                sum = sum.reinterpreted(inst.dtype.lane());
                here.values[reg] = Some(sum.clone());
            }
        }
        here.need(shader, body.stores.iter().map(|s| s.value));
        body.stores.iter().for_each(|s| here.store(shader, s));
    }
}

fn scratch(args: &Args, lane: Lane) -> Use {
    let size_bytes = 4 * args.outer.iter().product::<usize>();
    let dtype = match lane {
        Lane::F32 => DType::F32,
        Lane::I32 => DType::I32,
        Lane::U32 => DType::U32,
    };
    let by_four = args.outer.last().is_some_and(|n| n.is_multiple_of(4));
    Use {
        place: Place::Scratch(0),
        name: "sums".to_string(),
        dtype,
        by_one: !by_four,
        by_four,
        writes: true,
        size_bytes,
        touched: (0, size_bytes.saturating_sub(1)),
    }
}

fn batch_names(n: usize) -> Vec<String> {
    (0..n).map(|axis| format!("batch_{axis}")).collect()
}

/// Where an operand's matrix of this batch starts.
fn operand_start(shader: &mut Shader, name: &str, lies: &OperandArgs) -> String {
    let mut text = shader.signed_param(&format!("{name}_offset"), lies.offset);
    for (axis, by) in lies.batch_strides.iter().enumerate() {
        let by = shader.signed_param(&format!("{name}_batch{axis}"), *by);
        text = format!("{text} + batch_{axis} * {by}");
    }
    text
}

fn stride(shader: &mut Shader, name: &str, axis: &str, by: isize) -> String {
    shader.signed_param(&format!("{name}_{axis}"), by)
}
