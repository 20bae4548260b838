//! Contractions: every invocation makes a tile of the result in registers, then does to it what follows. Where the
//! planner has split k, a first dispatch leaves sums over its parts in scratch memory, a second adds them, always in the same
//! order. Columns that fours leave over are a dispatch of their own. How large tiles are and how invocations work
//! together is a variant's to say.

mod grouped;
mod lanes;
mod registers;
pub mod shape;
mod subgroup;
mod team;

use super::blocks::BlockSteps;
use super::context::Context;
use super::eval::Eval;
use super::index::{Accesses, Spot, split};
use super::launch_memory::{LaunchMemory, Use};
use super::map::side_by_side;
use super::schedule::{self, VecAxis, VecLoad};
use super::shader::Shader;
use super::tree::{ShaderExpr, ShaderType, all, call, min, named, select, word};
use super::{Pass, PassMemory, ShaderProgram};
use crate::dtype::{DType, Lane};
use crate::kernel::{Args, AxisList, InstOp, MatmulArgs, OperandArgs, Reg, Scope};
use crate::target::variants::{Cols, K_UNROLL, Read, Share};
pub use grouped::{GroupedSchedule, grouped, grouped_memory};
use shape::{MatmulShape, ProductSchedule, TileRest};

/// The memory of each pass of a matmul.
pub fn memory(context: &Context, args: &Args, schedule: &ProductSchedule) -> Vec<LaunchMemory> {
    shaders(context, args, schedule).iter().map(|shader| context.memory_of(shader.uses())).collect()
}

/// The passes of a matmul, each with its memory.
pub fn program(context: &Context, args: &Args, schedule: &ProductSchedule, memory: &[LaunchMemory]) -> ShaderProgram {
    let shaders = shaders(context, args, schedule);
    let scratch = shaders.iter().find(|shader| shader.sums != DispatchSums::Whole);
    let scratch = scratch.map(|shader| scratch_bytes(args, shader.matmul)).into_iter().collect();
    let with_memory = shaders.into_iter().zip(memory);
    let passes = with_memory.map(|(shader, memory)| MatmulShader { memory: memory.clone(), ..shader }.pass());
    ShaderProgram { passes: passes.collect(), scratch }
}

/// The data from which each pass of a matmul is printed, without its memory.
fn shaders<'a>(context: &'a Context, args: &'a Args, schedule: &ProductSchedule) -> Vec<MatmulShader<'a>> {
    let Some(matmul) = &args.matmul else { unreachable!("a matmul's launch has its numbers") };
    let of_columns = |(cols, shape): ((usize, usize), MatmulShape)| match matmul.k_parts.is_whole() {
        true => vec![MatmulShader::new(context, args, matmul, shape, cols, DispatchSums::Whole)],
        false => [(shape, DispatchSums::Parts), (shape.smallest(), DispatchSums::Added)]
            .map(|(shape, sums)| MatmulShader::new(context, args, matmul, shape, cols, sums))
            .into(),
    };
    schedule.columns.iter().copied().flat_map(of_columns).collect()
}

/// Which sums a dispatch makes.
#[derive(Clone, Copy, PartialEq)]
enum DispatchSums {
    /// Over all of k.
    Whole,
    /// Over a part of k per invocation, left in scratch memory.
    Parts,
    /// Of those parts.
    Added,
}

/// What the text is written from.
struct MatmulShader<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    matmul: &'a MatmulArgs,
    shape: MatmulShape,
    /// The columns of the result that are made.
    cols: (usize, usize),
    sums: DispatchSums,
    lane: Lane,
    modes: Vec<VecLoad>,
    memory: LaunchMemory,
    /// What the names of its numbers start with: those of several products may stand in one text.
    prefix: String,
}

impl<'a> MatmulShader<'a> {
    fn new(
        context: &'a Context,
        args: &'a Args,
        matmul: &'a MatmulArgs,
        shape: MatmulShape,
        cols: (usize, usize),
        sums: DispatchSums,
    ) -> MatmulShader<'a> {
        let four = (shape.variant.cols != Cols::One).then_some(VecAxis { axis: args.outer.len() - 1, aligned: true });
        let modes = schedule::modes(context.body, args, four);
        let acc = context.body.insts.iter().find(|i| matches!(i.op, InstOp::Acc(_)));
        let lane = acc.map_or(Lane::F32, |i| i.dtype.lane());
        let (memory, prefix) = (LaunchMemory::default(), String::new());
        MatmulShader { context, args, matmul, shape, cols, sums, lane, modes, memory, prefix }
    }

    /// How it uses memory.
    fn uses(&self) -> Vec<Use> {
        let mut uses = match self.sums {
            DispatchSums::Parts => self.context.uses(self.args, &[]),
            _ => self.context.uses(self.args, &[&self.modes]),
        };
        if self.sums != DispatchSums::Added {
            let rest = !self.matmul.k.is_multiple_of(K_UNROLL);
            let reads = [self.shape.a, self.shape.b].into_iter().zip(self.shape.eights);
            for (one, (read, by_eight)) in uses.iter_mut().zip(reads) {
                let by_vector = by_eight || read == Read::Blocks;
                one.by_vector |= by_vector;
                one.by_four |= read != Read::Each && !by_vector;
                // What is left over of k is read one by one.
                one.by_one |= read == Read::Each || (read == Read::AlongK && rest);
            }
        }
        if self.sums != DispatchSums::Whole {
            uses.push(scratch(self.args, self.matmul, self.lane));
        }
        uses
    }

    /// How a weight in blocks is read, at most so many steps at a time.
    fn block_steps(&self, n_steps: usize) -> BlockSteps {
        let Some(blocks) = self.context.body.inputs[1].blocks() else { unreachable!("bug: it is no weight in blocks") };
        BlockSteps::of_vector(blocks).at_most(n_steps)
    }

    /// A number of the launch that is known already.
    fn number(&self, name: &str) -> ShaderExpr {
        word(format!("params.{}{name}", self.prefix))
    }

    fn pass(&self) -> Pass {
        let group = self.shape.variant.group(self.context.target);
        let mut shader = Shader::new(self.context.comment(), &self.args.consts, group);
        // All numbers at once: llvmpipe reads what is the same for all lanes once only where nothing branches.
        shader.define("params", word("params"));
        if self.shape.shuffle.is_some() {
            shader.count_by_subgroup();
        }
        let group_idx = shader.count_groups();
        self.write(&mut shader, group_idx);
        shader.finish(self.context.label(), &self.memory, self.n_groups())
    }

    /// Writes what the workgroups of this product do, of which this is the number of one.
    fn write(&self, shader: &mut Shader, group_idx: ShaderExpr) {
        self.write_place(shader, group_idx);
        match (self.sums, self.shape.variant.team) {
            (DispatchSums::Added, _) => self.write_added(shader),
            (_, Share::WorkgroupTile { k, .. }) => self.write_team_sums(shader, k),
            (_, Share::SplitK { lanes, .. }) => {
                self.write_operands(shader);
                self.write_lane_sums(shader, lanes);
            }
            _ => {
                self.write_operands(shader);
                self.write_sums(shader);
            }
        }
        match self.shape.variant.team {
            // Of those that share a tile the first goes on.
            Share::SplitK { .. } => {
                shader.open_if(word("k_lane").equals(0).and(named("is_there", ShaderType::Bool)));
                self.write_rest(shader);
                shader.close();
            }
            _ => self.write_rest(shader),
        }
    }

    /// Workgroups that make all tiles.
    fn n_groups(&self) -> usize {
        let n_once = self.tiles().iter().product::<usize>() * self.n_batch();
        let n_tiles = n_once * if self.sums == DispatchSums::Parts { self.matmul.k_parts.count() } else { 1 };
        n_tiles.div_ceil(self.tiles_of_group())
    }

    /// Tiles across and down a matrix.
    fn tiles(&self) -> [usize; 2] {
        let (rows, width) = self.shape.variant.tile();
        [(self.cols.1 - self.cols.0).div_ceil(width), self.matmul.m.div_ceil(rows)]
    }

    fn n_batch(&self) -> usize {
        self.matmul.batch.iter().product()
    }

    /// Tiles that a workgroup makes.
    fn tiles_of_group(&self) -> usize {
        let group = self.shape.variant.group(self.context.target);
        match self.shape.variant.team {
            Share::Alone => group,
            Share::WorkgroupTile { .. } | Share::SubgroupBroadcast(_) => 1,
            Share::SplitK { lanes, .. } => group / lanes,
        }
    }

    /// Which tile this invocation makes.
    fn write_place(&self, shader: &mut Shader, group_idx: ShaderExpr) {
        let group = self.shape.variant.group(self.context.target);
        let (rows, width) = self.shape.variant.tile();
        let [n_across, n_down] = self.tiles();
        let n_once = self.n_batch() * n_down * n_across;
        let n_tiles = n_once * if self.sums == DispatchSums::Parts { self.matmul.k_parts.count() } else { 1 };
        let tiles = shader.param("n_tiles", n_tiles);
        let (across, down) = (shader.param("tiles_across", n_across), shader.param("tiles_down", n_down));
        let (first, _) = (shader.param("col_start", self.cols.0), shader.param("col_end", self.cols.1));
        shader.param("m", self.matmul.m);
        shader.param("n", self.matmul.n);
        self.write_number(shader, group_idx, group, &tiles);
        if self.sums == DispatchSums::Parts {
            let once = shader.param("tiles_once", n_once);
            shader.define("part", word("number") / &once);
            shader.define("tile", word("number") % once);
        }
        // Tiles are counted down strips of columns, so that what is read of `b` for one is in the cache for the next.
        let wide = self.shape.variant.strip(group);
        let n_axes = self.matmul.batch.len();
        let mut tile = word("tile");
        if n_axes > 0 {
            let batch = shader.define("batch", &tile / (&across * &down));
            tile = shader.define("of_batch", tile % (&across * &down));
            let sizes: Vec<ShaderExpr> =
                (0..n_axes).map(|axis| shader.param(&format!("batch{axis}"), self.matmul.batch[axis])).collect();
            split(shader, &batch, &batch_names(n_axes), &sizes);
        }
        let of_strip = ShaderExpr::from(wide) * down;
        let strip = shader.define("strip", &tile / &of_strip * wide);
        let of_strip = shader.define("of_strip", tile % of_strip);
        let strip_width = shader.define("strip_width", min(wide, across - &strip));
        let start_row = &of_strip / &strip_width * rows;
        let start_col = first + (strip + of_strip % strip_width) * width;
        let lane = word("lane");
        match self.shape.variant.team {
            Share::WorkgroupTile { across, .. } => {
                let tile_row = shader.define("tile_row", start_row);
                let tile_col = shader.define("tile_col", start_col);
                let down = shader.define("down", &lane / across);
                let side = shader.define("side", lane % across);
                shader.define("row", tile_row + down * self.shape.variant.rows);
                shader.define("col", tile_col + side * 4);
            }
            Share::SubgroupBroadcast(_) => {
                shader.define("col", start_col + lane * self.shape.variant.cols.n_cols());
                shader.define("row", start_row);
            }
            Share::Alone | Share::SplitK { .. } => {
                shader.define("col", start_col);
                shader.define("row", start_row);
            }
        }
    }

    /// The number of this invocation's tile: `tile`, or `number` where tiles are counted once for every part of k.
    fn write_number(&self, shader: &mut Shader, group_idx: ShaderExpr, group: usize, tiles: &ShaderExpr) {
        let lane = word("lane");
        let number = if self.sums == DispatchSums::Parts { "number" } else { "tile" };
        match self.shape.variant.team {
            Share::Alone => {
                let number = shader.define(number, group_idx * group + lane);
                shader.return_if(number.at_least(tiles));
            }
            Share::WorkgroupTile { .. } | Share::SubgroupBroadcast(_) => {
                let number = shader.define(number, group_idx);
                shader.return_if(number.at_least(tiles));
            }
            Share::SplitK { lanes, .. } => {
                // All stay until the last barrier, those beyond the end at the last tile.
                let n_beside = group / lanes;
                let (k_lane, beside) = match n_beside {
                    1 => (lane, 0.into()),
                    _ => (&lane / n_beside, lane % n_beside),
                };
                shader.define("k_lane", k_lane);
                let here = shader.define("here", group_idx.times(n_beside) + beside);
                shader.define("is_there", here.less(tiles));
                shader.define(number, min(here, tiles - 1));
            }
        }
    }

    /// The variables that hold a tile's values, row by row.
    fn values(&self, prefix: &str) -> Vec<ShaderExpr> {
        let n_cols = self.shape.variant.cols.n_values();
        (0..self.shape.variant.rows * n_cols).map(|v| self.value(prefix, v / n_cols, v % n_cols)).collect()
    }

    /// The variable that holds one of them.
    fn value(&self, prefix: &str, row: usize, col: usize) -> ShaderExpr {
        named(format!("{prefix}{row}_{col}"), self.value_type())
    }

    /// Declares variables for a tile's values, all zero.
    fn declare(&self, shader: &mut Shader, values: &[ShaderExpr]) {
        values.iter().for_each(|value| drop(shader.variable(value.to_string(), value.ty().zero())));
    }

    /// The type of a value.
    fn value_type(&self) -> ShaderType {
        match self.shape.variant.cols {
            Cols::One => ShaderType::One(self.lane),
            Cols::Fours(_) => ShaderType::four(self.lane),
        }
    }

    /// Which part of k is summed up: its start and its end.
    fn write_range(&self, shader: &mut Shader) -> [ShaderExpr; 2] {
        let k = shader.param("k", self.matmul.k);
        match self.sums {
            DispatchSums::Parts => {
                let per = shader.param("k_per_part", self.matmul.k_parts.len());
                let start = shader.define("k_start", word("part") * &per);
                let end = shader.define("k_end", min(&start + per, k));
                [start, end]
            }
            _ => [shader.define("k_start", 0), shader.define("k_end", k)],
        }
    }

    /// How much of k an invocation sums up at most.
    fn k_len(&self) -> usize {
        if self.sums == DispatchSums::Parts { self.matmul.k_parts.len() } else { self.matmul.k }
    }

    /// The sum of all parts, in `all0_0`.
    fn write_added(&self, shader: &mut Shader) {
        let n_parts = shader.param("n_parts", self.matmul.k_parts.count());
        let n_elems = shader.param("n_elems", self.args.outer.iter().product());
        let all = self.value("all", 0, 0);
        self.declare(shader, std::slice::from_ref(&all));
        let first = shader.define("first", self.element(&word("row"), &word("col")));
        let part = shader.open_for("part", 0, n_parts, 1, self.matmul.k_parts.count());
        let (idx, at) = (self.scratch_idx(), first + part * n_elems);
        let value = match self.shape.variant.cols {
            Cols::One => self.memory.load(shader, idx, at),
            Cols::Fours(_) => self.memory.load4(shader, idx, at),
        };
        shader.add_to(&all, value);
        shader.close();
    }

    fn scratch_idx(&self) -> usize {
        self.context.body.inputs.len() + self.context.body.outputs.len()
    }

    /// The element of the result at a row and column of this batch.
    fn element(&self, row: &ShaderExpr, col: &ShaderExpr) -> ShaderExpr {
        let row = match self.matmul.batch.is_empty() {
            true => row.clone(),
            false => word("batch") * self.number("m") + row,
        };
        row * self.number("n") + col
    }

    /// What follows the sums, value by value of the tile.
    fn write_rest(&self, shader: &mut Shader) {
        let body = self.context.body;
        let kept = self.context.kept();
        let accesses = Accesses { body, args: self.args, modes: &self.modes, kept: &kept };
        let mut eval = Eval::new(accesses, &self.memory, Spot::new(0.into(), ""));
        if self.sums != DispatchSums::Parts {
            let uniform = (0..body.insts.len() as Reg).filter(|r| body.insts[*r as usize].scope == Scope::Uniform);
            eval.need(shader, uniform);
        }
        let (values, n_cols) = (self.values("all"), self.shape.variant.cols.n_values());
        // Where the next four columns are, and whether even the first row and column may be beyond the end.
        let (apart, may_miss) = match self.shape.variant.team {
            Share::WorkgroupTile { across, .. } => (4 * across, [true, true]),
            Share::SubgroupBroadcast(_) => (4, [false, true]),
            Share::Alone | Share::SplitK { .. } => (4, [false, false]),
        };
        let (row, col) = (word("row"), word("col"));
        let is_row = |row: &ShaderExpr| row.less(self.number("m"));
        let is_col = |col: &ShaderExpr| col.less(self.number("col_end"));
        if self.shape.rest != TileRest::WrittenOut && self.sums != DispatchSums::Parts {
            // In memory, to be counted through: what follows is long, and should be compiled once.
            let n = values.len();
            let value_at = self.keep_values(shader, values);
            let v = shader.open_for("v", 0, n, 1, n);
            let row = shader.define("row_v", row + &v / n_cols);
            let col = shader.define("col_v", col + &v % n_cols * apart);
            shader.open_if(is_row(&row).and(is_col(&col)));
            self.write_value(shader, &eval, value_at(v), [row, col], "_v");
            shader.close();
            shader.close();
            return;
        }
        for (v, value) in values.into_iter().enumerate() {
            let (r, c) = (v / n_cols, v % n_cols);
            let (row, col) = (row.plus(r), col.plus(apart * c));
            let row_may_miss = (r > 0 || may_miss[0]).then(|| is_row(&row));
            let col_may_miss = (c > 0 || may_miss[1]).then(|| is_col(&col));
            let inside = all(row_may_miss.into_iter().chain(col_may_miss));
            let may_miss = inside.is_some();
            inside.into_iter().for_each(|inside| shader.open_if(inside));
            let suffix = if v > 0 { format!("_{v}") } else { String::new() };
            self.write_value(shader, &eval, value, [row, col], &suffix);
            if may_miss {
                shader.close();
            }
        }
    }

    /// Puts the values of a tile into the memory where a loop finds them.
    fn keep_values(&self, shader: &mut Shader, values: Vec<ShaderExpr>) -> Box<dyn Fn(ShaderExpr) -> ShaderExpr> {
        let (n, group) = (values.len(), self.shape.variant.group(self.context.target));
        if self.shape.rest == TileRest::LoopOverArray {
            let array = call(format!("array<{}, {n}>", self.value_type()), values, self.value_type());
            let values = shader.variable("all", array);
            return Box::new(move |v| values.at(v));
        }
        let shared = shader.shared_rows("sh_tile", [n, group], self.value_type());
        for (v, value) in values.into_iter().enumerate() {
            shader.assign(&shared.at(v).at(word("lane")), value);
        }
        Box::new(move |v| shared.at(v).at(word("lane")))
    }

    /// Writes what becomes of one value of the tile.
    fn write_value(
        &self,
        shader: &mut Shader,
        eval: &Eval,
        sum: ShaderExpr,
        [row, col]: [ShaderExpr; 2],
        suffix: &str,
    ) {
        let body = self.context.body;
        let at = shader.define(format!("i{suffix}"), self.element(&row, &col));
        if self.sums == DispatchSums::Parts {
            let n_elems = shader.param("n_elems", self.args.outer.iter().product());
            let at = word("part") * n_elems + at;
            return match sum.is_four() {
                true => self.memory.store4(shader, self.scratch_idx(), at, sum),
                false => self.memory.store(shader, self.scratch_idx(), at, sum),
            };
        }
        let mut here = eval.clone();
        let mut coordinates: Vec<ShaderExpr> = batch_names(self.matmul.batch.len()).into_iter().map(word).collect();
        coordinates.extend([row, col]);
        let along = sum.is_four().then_some(coordinates.len() - 1);
        let coordinates = side_by_side(coordinates, along);
        here.spot = Spot { coordinates, outer_suffix: String::new(), ..Spot::new(at, suffix) };
        for (reg, inst) in body.insts.iter().enumerate() {
            if let InstOp::Acc(_) = inst.op {
                here.values[reg] = Some(sum.reinterpreted(inst.dtype.lane()));
            }
        }
        here.need(shader, body.stores.iter().map(|s| s.value));
        body.stores.iter().for_each(|s| here.store(shader, s));
    }
}

fn scratch_bytes(args: &Args, matmul: &MatmulArgs) -> usize {
    4 * matmul.k_parts.count() * args.outer.iter().product::<usize>()
}

/// The sums of parts: the result once per part.
fn scratch(args: &Args, matmul: &MatmulArgs, lane: Lane) -> Use {
    let size_bytes = scratch_bytes(args, matmul);
    let dtype = match lane {
        Lane::F32 => DType::F32,
        Lane::I32 => DType::I32,
        Lane::U32 => DType::U32,
    };
    let by_four = args.outer.last().is_some_and(|n| n.is_multiple_of(4));
    Use {
        place: PassMemory::Scratch(0),
        name: "sums".to_string(),
        storage: dtype.into(),
        by_one: !by_four,
        by_four,
        by_vector: false,
        writes: true,
        size_bytes,
        touched: (0, size_bytes.saturating_sub(1)),
    }
}

fn batch_names(n: usize) -> Vec<String> {
    (0..n).map(|axis| format!("batch_{axis}")).collect()
}

/// Where an operand's matrix of this batch starts.
fn operand_start(shader: &mut Shader, name: &str, lies: &OperandArgs) -> ShaderExpr {
    let mut start = shader.signed_param(&format!("{name}_offset"), lies.offset);
    for (axis, list) in lies.batch.iter().enumerate() {
        start = start + place(shader, name, &format!("batch{axis}"), list, &word(format!("batch_{axis}")));
    }
    start
}

/// How far from the first a value of an operand's index is: a multiple of its stride, or the sum over its axes, each found
/// by dividing.
fn place(shader: &mut Shader, name: &str, axis: &str, list: &AxisList, idx: &ShaderExpr) -> ShaderExpr {
    if let Some(by) = list.stride() {
        return idx * shader.signed_param(&format!("{name}_{axis}"), by);
    }
    let digits = digits(shader, name, axis, list, idx);
    let terms = list
        .axes()
        .iter()
        .zip(digits)
        .enumerate()
        .map(|(i, ((_, by), digit))| digit * shader.signed_param(&format!("{name}_{axis}_{i}"), *by));
    terms.reduce(|sum, term| sum + term).unwrap_or(0.into())
}

/// Where on each of its axes a value of a list is.
fn digits(shader: &mut Shader, name: &str, axis: &str, list: &AxisList, idx: &ShaderExpr) -> Vec<ShaderExpr> {
    let idx = idx + shader.param(&format!("{name}_{axis}_start"), list.start());
    let n_axes = list.axes().len();
    let digit = |i: usize| {
        let (size, _) = list.axes()[i];
        let per: usize = list.axes()[i + 1..].iter().map(|axis| axis.0).product();
        let size = shader.param(&format!("{name}_{axis}_size{i}"), size);
        let per = shader.param(&format!("{name}_{axis}_per{i}"), per);
        match i {
            0 => &idx / per,
            _ if i + 1 == n_axes => &idx % size,
            _ => &idx / per % size,
        }
    };
    (0..n_axes).map(digit).collect()
}

/// Starts counting through a list along k, from `k_start` on: `{name}_at` is where it is, `{name}_place1`, … where on each axis
/// but the slowest. The loop over k then divides nothing.
fn write_count(shader: &mut Shader, name: &str, axis: &str, list: &AxisList) {
    let at = place(shader, name, axis, list, &word("k_start"));
    shader.variable(format!("{name}_at"), at);
    let digits = digits(shader, name, axis, list, &word("k_start"));
    for (i, digit) in digits.into_iter().enumerate().skip(1) {
        shader.variable(format!("{name}_place{i}"), digit);
    }
}

/// One step on. Without branches: invocations side by side take all of them at once.
fn write_count_on(shader: &mut Shader, name: &str, axis: &str, list: &AxisList) {
    let axes = list.axes();
    let last = axes.len() - 1;
    let at = word(format!("{name}_at"));
    let place = |i: usize| word(format!("{name}_place{i}"));
    let by = shader.signed_param(&format!("{name}_{axis}_{last}"), axes[last].1);
    shader.add_to(&at, by);
    shader.add_to(&place(last), 1);
    for i in (1..=last).rev() {
        // From behind the end of this axis back to its start, and one on along the next.
        let jump = axes[i - 1].1 - axes[i].0 as isize * axes[i].1;
        let jump = shader.signed_param(&format!("{name}_{axis}_jump{i}"), jump);
        let size = shader.param(&format!("{name}_{axis}_size{i}"), axes[i].0);
        let is_behind = place(i).equals(size);
        shader.assign(&at, select(&at, &at + jump, is_behind.clone()));
        if i > 1 {
            shader.assign(&place(i - 1), select(place(i - 1), place(i - 1) + 1, is_behind.clone()));
        }
        shader.assign(&place(i), select(place(i), 0, is_behind));
    }
}

/// The same by many steps at once, for a place whose variables start with `name`: the digits of that many are added to the
/// place's own, with a carry from each axis to the next slower one.
fn count_by(shader: &mut Shader, name: &str, (operand, axis): (&str, &str), list: &AxisList, n_steps: usize) {
    let axes = list.axes();
    let at = word(format!("{name}_at"));
    let digit = |i: usize| {
        let per: usize = axes[i + 1..].iter().map(|axis| axis.0).product();
        if i == 0 { n_steps / per } else { n_steps / per % axes[i].0 }
    };
    let by: isize = (0..axes.len()).map(|i| digit(i) as isize * axes[i].1).sum();
    let by = shader.signed_param(&format!("{operand}_{axis}_on"), by);
    shader.add_to(&at, by);
    let mut carry: Option<ShaderExpr> = None;
    for i in (1..axes.len()).rev() {
        let place = word(format!("{name}_place{i}"));
        let on = shader.param(&format!("{operand}_{axis}_on{i}"), digit(i));
        shader.add_to(&place, carry.map_or(on.clone(), |carry| select(&on, &on + 1, carry)));
        // From behind the end of this axis back to its start, and one on along the next.
        let jump = axes[i - 1].1 - axes[i].0 as isize * axes[i].1;
        let jump = shader.signed_param(&format!("{operand}_{axis}_jump{i}"), jump);
        let size = shader.param(&format!("{operand}_{axis}_size{i}"), axes[i].0);
        let is_behind = shader.define(format!("{name}_behind{i}"), place.at_least(&size));
        shader.assign(&at, select(&at, &at + jump, is_behind.clone()));
        shader.assign(&place, select(&place, &place - size, is_behind.clone()));
        carry = Some(is_behind);
    }
}
