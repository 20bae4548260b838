//! Contractions: every invocation makes a tile of the result in registers, then does to it what follows. A long k is
//! shared out: a first dispatch leaves sums over parts of it in scratch memory, a second adds them, always in the same
//! order. Columns that fours leave over are a dispatch of their own.

use super::choose::{self, Cols, Four, K_BLOCK, K_UNROLL, MatmulShape, Mode, Read};
use super::convert::lane_name;
use super::cut::Context;
use super::eval::{Eval, Value};
use super::index::{Accesses, Spot, split};
use super::map::side_by_side;
use super::memory::{LANES, Memory, Use};
use super::shader::Shader;
use super::{Pass, Place, Program, Style};
use crate::dtype::{DType, Lane};
use crate::kernel::{Args, InstOp, MatmulArgs, OperandArgs, Reg, Scope};

/// Values of a tile up to which what follows the sums is written out for each; beyond, it is a loop.
const WRITTEN_OUT: usize = 4;

/// The passes of a matmul.
pub fn program(context: &Context) -> Program {
    let mut program = Program::default();
    for args in context.parts() {
        let Some(matmul) = &args.matmul else { unreachable!("a matmul's launch has its numbers") };
        let by_four = matmul.n / 4 * 4;
        for cols in [(0, by_four), (by_four, matmul.n)].into_iter().filter(|(start, end)| start < end) {
            let shape = choose::matmul_shape(matmul, cols.1 - cols.0, context.caps);
            if shape.splits == 1 {
                program.passes.push(Tiles::new(context, &args, matmul, shape, cols, Sums::Whole).pass());
                continue;
            }
            let size_bytes = scratch_bytes(&args, &shape);
            match program.scratch.first_mut() {
                Some(first) => *first = size_bytes.max(*first),
                None => program.scratch.push(size_bytes),
            }
            for (shape, sums) in [(shape, Sums::Parts), (shape.one_by_one(), Sums::Added)] {
                program.passes.push(Tiles::new(context, &args, matmul, shape, cols, sums).pass());
            }
        }
    }
    program
}

/// Which sums a dispatch makes.
#[derive(Clone, Copy, PartialEq)]
enum Sums {
    /// Over all of k.
    Whole,
    /// Over a part of k per invocation, left in scratch memory.
    Parts,
    /// Of those parts.
    Added,
}

impl MatmulShape {
    /// The smallest tiles.
    fn one_by_one(self) -> MatmulShape {
        let cols = if self.cols == Cols::One { Cols::One } else { Cols::Fours(1) };
        MatmulShape { rows: 1, cols, ..self }
    }
}

/// What the text is written from.
struct Tiles<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    matmul: &'a MatmulArgs,
    shape: MatmulShape,
    /// The columns of the result that are made.
    cols: (usize, usize),
    sums: Sums,
    lane: Lane,
    modes: Vec<Mode>,
    memory: Memory,
}

impl<'a> Tiles<'a> {
    fn new(
        context: &'a Context,
        args: &'a Args,
        matmul: &'a MatmulArgs,
        shape: MatmulShape,
        cols: (usize, usize),
        sums: Sums,
    ) -> Tiles<'a> {
        let four = (shape.cols != Cols::One).then_some(Four { axis: args.outer.len() - 1, aligned: true });
        let modes = choose::modes(context.body, args, four);
        let acc = context.body.insts.iter().find(|i| matches!(i.op, InstOp::Acc));
        let lane = acc.map_or(Lane::F32, |i| i.dtype.lane());
        let mut uses = match sums {
            Sums::Parts => context.uses(args, &[]),
            _ => context.uses(args, &[&modes]),
        };
        if sums != Sums::Added {
            let rest = !matmul.k.is_multiple_of(K_UNROLL);
            for (one, read) in uses.iter_mut().zip([shape.a, shape.b]) {
                one.by_four |= read != Read::Each;
                // What is left over of k is read one by one.
                one.by_one |= read == Read::Each || (read == Read::AlongK && rest);
            }
        }
        if sums != Sums::Whole {
            uses.push(scratch(args, &shape, lane));
        }
        Tiles { context, args, matmul, shape, cols, sums, lane, modes, memory: context.memory_of(uses) }
    }

    fn pass(&self) -> Pass {
        let wanted = if self.context.caps.style == Style::Alone { 8 } else { 64 };
        let group = wanted.min(self.context.caps.max_invocations);
        let mut shader = Shader::new(self.context.comment(), &self.args.consts, group);
        let n_tiles = self.write_place(&mut shader, group);
        match self.sums {
            Sums::Added => self.write_added(&mut shader),
            _ => {
                self.write_operands(&mut shader);
                self.write_sums(&mut shader);
            }
        }
        self.write_rest(&mut shader);
        shader.finish(self.context.label(), &self.memory, n_tiles.div_ceil(group))
    }

    /// Columns of a tile.
    fn width(&self) -> usize {
        self.shape.cols.n_values() * self.shape.cols.per_value()
    }

    /// Which tile this invocation makes. Gives how many there are.
    fn write_place(&self, shader: &mut Shader, group: usize) -> usize {
        let (rows, width) = (self.shape.rows, self.width());
        let (n_across, n_down) = ((self.cols.1 - self.cols.0).div_ceil(width), self.matmul.m.div_ceil(rows));
        let n_batch: usize = self.matmul.batch.iter().product();
        let n_once = n_batch * n_down * n_across;
        let n_tiles = n_once * if self.sums == Sums::Parts { self.shape.splits } else { 1 };
        let tiles = shader.param("n_tiles", n_tiles);
        let (across, down) = (shader.param("tiles_across", n_across), shader.param("tiles_down", n_down));
        let (first, _) = (shader.param("col_start", self.cols.0), shader.param("col_end", self.cols.1));
        shader.param("m", self.matmul.m);
        shader.param("n", self.matmul.n);
        shader.count_groups();
        let number = if self.sums == Sums::Parts { "number" } else { "tile" };
        shader.line(format!("let {number} = group_idx * {group}u + lane;"));
        shader.line(format!("if ({number} >= {tiles}) {{ return; }}"));
        if self.sums == Sums::Parts {
            let once = shader.param("tiles_once", n_once);
            shader.line(format!("let part = number / {once};"));
            shader.line(format!("let tile = number % {once};"));
        }
        shader.line(format!("let col = {first} + tile % {across} * {width}u;"));
        shader.line(format!("let row = tile / {across} % {down} * {rows}u;"));
        let n_axes = self.matmul.batch.len();
        if n_axes > 0 {
            shader.line(format!("let batch = tile / ({across} * {down});"));
            let sizes: Vec<String> =
                (0..n_axes).map(|axis| shader.param(&format!("batch{axis}"), self.matmul.batch[axis])).collect();
            split(shader, "batch", &batch_names(n_axes), &sizes);
        }
        n_tiles
    }

    /// Where the rows of `a` and the columns of `b` start. Those beyond the end are those at the end again; what
    /// becomes of them is not stored.
    fn write_operands(&self, shader: &mut Shader) {
        let MatmulShape { rows, cols, .. } = self.shape;
        let a_start = operand_start(shader, "a", &self.matmul.a);
        shader.line(format!("let a_start = {a_start};"));
        let down = stride(shader, "a", "row", self.matmul.a.row_stride);
        let per = if self.shape.a == Read::Across { 4 } else { 1 };
        for r in (0..rows).step_by(per) {
            let row = if r == 0 { "row".to_string() } else { format!("min(row + {r}u, params.m - {per}u)") };
            shader.line(format!("let a{r} = a_start + {row} * {down};"));
        }
        let b_start = operand_start(shader, "b", &self.matmul.b);
        shader.line(format!("let b_start = {b_start};"));
        let across = stride(shader, "b", "col", self.matmul.b.col_stride);
        for c in 0..cols.n_values() {
            let col = if c == 0 { "col".to_string() } else { format!("min(col + {}u, params.col_end - 4u)", 4 * c) };
            shader.line(format!("let b{c} = b_start + {col} * {across};"));
        }
    }

    /// The names of a tile's values, row by row.
    fn names(&self, prefix: &str) -> Vec<String> {
        let n_cols = self.shape.cols.n_values();
        (0..self.shape.rows * n_cols).map(|v| format!("{prefix}{}_{}", v / n_cols, v % n_cols)).collect()
    }

    /// The type of a value.
    fn value_type(&self) -> String {
        let lane = lane_name(self.lane);
        if self.shape.cols == Cols::One { lane.to_string() } else { format!("vec4<{lane}>") }
    }

    /// Sums of products along k: `all0_0`, `all0_1`, …, row by row of the tile.
    fn write_sums(&self, shader: &mut Shader) {
        let value = self.value_type();
        let (all, sums) = (self.names("all"), self.names("sum"));
        let k = shader.param("k", self.matmul.k);
        match self.sums {
            Sums::Parts => {
                let per = shader.param("k_per_part", self.shape.k_per_split);
                shader.line(format!("let k_start = part * {per};"));
                shader.line(format!("let k_end = min(k_start + {per}, {k});"));
            }
            _ => {
                shader.line("let k_start = 0u;");
                shader.line(format!("let k_end = {k};"));
            }
        }
        all.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
        let rest = !self.matmul.k.is_multiple_of(K_UNROLL);
        match rest {
            true => shader.line(format!("let k_whole = k_start + (k_end - k_start) / {K_UNROLL}u * {K_UNROLL}u;")),
            false => shader.line("let k_whole = k_end;"),
        }
        shader.open(format!("for (var block = k_start; block < k_whole; block += {K_BLOCK}u)"));
        sums.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
        shader.line(format!("let block_end = min(block + {K_BLOCK}u, k_whole);"));
        shader.open(format!("for (var k = block; k < block_end; k += {K_UNROLL}u)"));
        self.write_products(shader, K_UNROLL, "sum");
        shader.close();
        all.iter().zip(&sums).for_each(|(all, sum)| shader.line(format!("{all} += {sum};")));
        shader.close();
        if rest {
            shader.open("for (var k = k_whole; k < k_end; k++)");
            self.write_products(shader, 1, "all");
            shader.close();
        }
    }

    /// The products of `n` steps from `k` on.
    fn write_products(&self, shader: &mut Shader, n: usize, into: &str) {
        let MatmulShape { rows, cols, .. } = self.shape;
        let xs = self.write_a(shader, n);
        if self.shape.b == Read::AlongK && n > 1 {
            self.write_b_along_k(shader);
        }
        for i in 0..n {
            for c in 0..cols.n_values() {
                let value = self.value_of_b(shader, n, i, c);
                shader.line(format!("let y{c}_{i} = {value};"));
            }
            for (r, x) in xs.iter().enumerate().take(rows) {
                for c in 0..cols.n_values() {
                    shader.line(format!("{into}{r}_{c} += {} * y{c}_{i};", x[i]));
                }
            }
        }
    }

    /// Reads the elements of `a` for `n` steps. Gives, per row of the tile, an expression for each step.
    fn write_a(&self, shader: &mut Shader, n: usize) -> Vec<Vec<String>> {
        let along = stride(shader, "a", "col", self.matmul.a.col_stride);
        let lane = self.context.body.inputs[0].lane();
        let as_lane = |text: String, four: bool| Value { text, lane, four }.reinterpreted(self.lane).text;
        let mut rows = Vec::new();
        for r in 0..self.shape.rows {
            let row = match (self.shape.a, n) {
                (Read::AlongK, 2..) => {
                    let value = as_lane(self.memory.load4(shader, 0, &format!("a{r} + k")), true);
                    shader.line(format!("let x{r} = {value};"));
                    (0..n).map(|i| format!("x{r}{}", LANES[i])).collect()
                }
                (Read::Across, _) => {
                    let first = r / 4 * 4;
                    for i in (0..n).filter(|_| r == first) {
                        let at = format!("a{r} + {} * {along}", step(i));
                        let value = as_lane(self.memory.load4(shader, 0, &at), true);
                        shader.line(format!("let x{r}_{i} = {value};"));
                    }
                    (0..n).map(|i| format!("x{first}_{i}{}", LANES[r % 4])).collect()
                }
                _ => {
                    for i in 0..n {
                        let at = format!("a{r} + {} * {along}", step(i));
                        let value = as_lane(self.memory.load(shader, 0, &at), false);
                        shader.line(format!("let x{r}_{i} = {value};"));
                    }
                    (0..n).map(|i| format!("x{r}_{i}")).collect()
                }
            };
            rows.push(row);
        }
        rows
    }

    /// Reads four steps of every column of the tile.
    fn write_b_along_k(&self, shader: &mut Shader) {
        let across = stride(shader, "b", "col", self.matmul.b.col_stride);
        let cols = self.shape.cols;
        for c in 0..cols.n_values() {
            for j in 0..cols.per_value() {
                let at = if j == 0 { format!("b{c} + k") } else { format!("b{c} + k + {j}u * {across}") };
                let value = self.memory.load4(shader, 1, &at);
                shader.line(format!("let w{c}_{j} = {value};"));
            }
        }
    }

    /// The elements of `b` at step `i` of `n`, for a value of the tile.
    fn value_of_b(&self, shader: &mut Shader, n: usize, i: usize, c: usize) -> String {
        let lies = &self.matmul.b;
        let down = stride(shader, "b", "row", lies.row_stride);
        let across = stride(shader, "b", "col", lies.col_stride);
        let at = format!("b{c} + {} * {down}", step(i));
        let lane = self.context.body.inputs[1].lane();
        let four = self.shape.cols != Cols::One;
        let text = match self.shape.b {
            Read::Across => self.memory.load4(shader, 1, &at),
            read => {
                let one = |j: usize| match (read, n, j) {
                    (Read::AlongK, 2.., _) => format!("w{c}_{j}{}", LANES[i]),
                    (_, _, 0) => self.memory.load(shader, 1, &at),
                    _ => self.memory.load(shader, 1, &format!("{at} + {j}u * {across}")),
                };
                let each: Vec<String> = (0..self.shape.cols.per_value()).map(one).collect();
                if four { format!("vec4<{}>({})", lane_name(lane), each.join(", ")) } else { each.concat() }
            }
        };
        Value { text, lane, four }.reinterpreted(self.lane).text
    }

    /// The sum of all parts, in `all0_0`.
    fn write_added(&self, shader: &mut Shader) {
        let n_parts = shader.param("n_parts", self.shape.splits);
        let n_elems = shader.param("n_elems", self.args.outer.iter().product());
        shader.line(format!("var all0_0 = {}();", self.value_type()));
        shader.line(format!("let first = ({}row) * params.n + col;", self.rows_before()));
        shader.open(format!("for (var part = 0u; part < {n_parts}; part++)"));
        let (idx, at) = (self.scratch_idx(), format!("first + part * {n_elems}"));
        let value = match self.shape.cols {
            Cols::One => self.memory.load(shader, idx, &at),
            Cols::Fours(_) => self.memory.load4(shader, idx, &at),
        };
        shader.line(format!("all0_0 += {value};"));
        shader.close();
    }

    fn scratch_idx(&self) -> usize {
        self.context.body.inputs.len() + self.context.body.outputs.len()
    }

    fn rows_before(&self) -> &'static str {
        if self.matmul.batch.is_empty() { "" } else { "batch * params.m + " }
    }

    /// What follows the sums, value by value of the tile.
    fn write_rest(&self, shader: &mut Shader) {
        let body = self.context.body;
        let accesses = Accesses { body, args: self.args, modes: &self.modes };
        let mut eval = Eval::new(accesses, &self.memory, Spot { coordinates: vec![Vec::new()], ..Spot::default() });
        if self.sums != Sums::Parts {
            let uniform = (0..body.insts.len() as Reg).filter(|r| body.insts[*r as usize].scope == Scope::Uniform);
            eval.need(shader, uniform);
        }
        let (names, n_cols) = (self.names("all"), self.shape.cols.n_values());
        if names.len() > WRITTEN_OUT {
            // In memory, to be counted through: what follows is long, and should be compiled once.
            shader.line(format!("var all = array<{}, {}>({});", self.value_type(), names.len(), names.join(", ")));
            shader.open(format!("for (var v = 0u; v < {}u; v++)", names.len()));
            shader.line(format!("let row_v = row + v / {n_cols}u;"));
            shader.line(format!("let col_v = col + v % {n_cols}u * 4u;"));
            shader.open("if (row_v < params.m && col_v < params.col_end)");
            self.write_value(shader, &eval, "all[v]", ["row_v", "col_v"], "_v");
            shader.close();
            shader.close();
            return;
        }
        for (v, name) in names.iter().enumerate() {
            let (r, c) = (v / n_cols, v % n_cols);
            let row = if r == 0 { "row".to_string() } else { format!("(row + {r}u)") };
            let col = if c == 0 { "col".to_string() } else { format!("(col + {}u)", 4 * c) };
            match (r, c) {
                (0, 0) => {}
                (_, 0) => shader.open(format!("if ({row} < params.m)")),
                (0, _) => shader.open(format!("if ({col} < params.col_end)")),
                _ => shader.open(format!("if ({row} < params.m && {col} < params.col_end)")),
            }
            self.write_value(shader, &eval, name, [&row, &col], &if v > 0 { format!("_{v}") } else { String::new() });
            if v > 0 {
                shader.close();
            }
        }
    }

    fn write_value(&self, shader: &mut Shader, eval: &Eval, sum: &str, [row, col]: [&str; 2], suffix: &str) {
        let body = self.context.body;
        let four = self.shape.cols != Cols::One;
        let at = format!("i{suffix}");
        shader.line(format!("let {at} = ({}{row}) * params.n + {col};", self.rows_before()));
        if self.sums == Sums::Parts {
            let n_elems = shader.param("n_elems", self.args.outer.iter().product());
            let at = format!("part * {n_elems} + {at}");
            let lines = match four {
                true => self.memory.store4(shader, self.scratch_idx(), &at, sum),
                false => vec![self.memory.store(shader, self.scratch_idx(), &at, sum)],
            };
            lines.iter().for_each(|line| shader.line(line));
            return;
        }
        let mut here = eval.clone();
        let mut names = batch_names(self.matmul.batch.len());
        names.extend([row.to_string(), col.to_string()]);
        let along = four.then_some(names.len() - 1);
        here.spot =
            Spot { outer: at, coordinates: side_by_side(names, along), suffix: suffix.to_string(), ..Spot::default() };
        let sum = Value { text: sum.to_string(), lane: self.lane, four };
        for (reg, inst) in body.insts.iter().enumerate() {
            if let InstOp::Acc = inst.op {
                here.values[reg] = Some(sum.clone().reinterpreted(inst.dtype.lane()));
            }
        }
        here.need(shader, body.stores.iter().map(|s| s.value));
        body.stores.iter().for_each(|s| here.store(shader, s));
    }
}

/// `k`, `i` steps on.
fn step(i: usize) -> String {
    if i == 0 { "k".to_string() } else { format!("(k + {i}u)") }
}

fn scratch_bytes(args: &Args, shape: &MatmulShape) -> usize {
    4 * shape.splits * args.outer.iter().product::<usize>()
}

/// The sums of parts: the result once per part.
fn scratch(args: &Args, shape: &MatmulShape, lane: Lane) -> Use {
    let size_bytes = scratch_bytes(args, shape);
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
