//! Chained products (attention): a workgroup takes a block of rows and goes through the columns block by block. Scores of a
//! block are made in registers, become weights there (online softmax: the greatest score and the sum of a row are kept, and
//! all that was summed up is rescaled when a greater score comes), and are multiplied with the values. No score is stored.
//! Where columns are cut into parts, a second dispatch puts the parts together, always in the same order.

mod masks;
mod rows;
mod scores;
mod values;

use super::eval::{Eval, reached};
use super::index::{Accesses, Spot, split};
use super::keep;
use super::launch_memory::{LaunchMemory, StatusUse, Use};
use super::map::side_by_side;
use super::schedule::{self, VecAxis, VecLoad};
use super::shader::Shader;
use super::tree::{ShaderExpr, ShaderType, literal, min, named, word};
use super::{Pass, PassMemory, ShaderProgram};
use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::kernel::{
    AccessForm, Args, AttentionArgs, AttentionKernel, AttentionOperand, Body, Inst, InstOp, Reg, Scope,
};
use crate::plan::{Launch, Slot};
use crate::target::GpuTarget;
use crate::target::attention_tiles::AttentionTiles;
use crate::target::variants::{Read, Share};

/// The memory of each pass of a chained product.
pub fn memory(
    launch: &Launch,
    kernel: &AttentionKernel,
    tiles: AttentionTiles,
    slots: &[Slot],
    target: &GpuTarget,
) -> Vec<LaunchMemory> {
    let chained = ChainedShader::new(launch, kernel, tiles, target);
    let is_whole = chained.args.column_parts.is_whole();
    let all: &[bool] = if is_whole { &[true] } else { &[true, false] };
    all.iter().map(|is_first| chained.memory(slots, *is_first)).collect()
}

/// The passes of a chained product, each with its memory.
pub fn program(
    launch: &Launch,
    kernel: &AttentionKernel,
    tiles: AttentionTiles,
    target: &GpuTarget,
    memory: &[LaunchMemory],
) -> ShaderProgram {
    let chained = ChainedShader::new(launch, kernel, tiles, target);
    let mut program = ShaderProgram::default();
    program.passes.push(chained.pass(&memory[0]));
    if !chained.args.column_parts.is_whole() {
        program.scratch.push(chained.scratch_bytes());
        program.passes.push(chained.combine_pass(&memory[1]));
    }
    program
}

/// What the texts are written from.
struct ChainedShader<'a> {
    launch: &'a Launch,
    kernel: &'a AttentionKernel,
    args: &'a AttentionArgs,
    tiles: AttentionTiles,
    target: &'a GpuTarget,
    scores: ChainedMap,
    result: ChainedMap,
    rows: ChainedMap,
    /// The registers of the score and of the factor, if there is one.
    score: Reg,
    factor: Option<Reg>,
    /// The constants of all three maps, one after another.
    consts: Vec<u32>,
}

/// One of the kernel's maps. Its accesses, constants and outputs are counted through all three, so that names in a text
/// are unique.
struct ChainedMap {
    body: Body,
    args: Args,
    modes: Vec<VecLoad>,
    kept: Vec<bool>,
}

/// The least number: what scores are shifted by at least, so that −∞ less it is −∞.
fn least() -> ShaderExpr {
    literal("-3.40282347e+38f", Lane::F32)
}

const FLOAT: ShaderType = ShaderType::One(Lane::F32);
const FLOATS: ShaderType = ShaderType::Vec(4, Lane::F32);

impl<'a> ChainedShader<'a> {
    fn new(
        launch: &'a Launch,
        kernel: &'a AttentionKernel,
        tiles: AttentionTiles,
        target: &'a GpuTarget,
    ) -> ChainedShader<'a> {
        let Some(args) = launch.args.attention.as_deref() else { unreachable!("a chained product has its numbers") };
        let stores = &kernel.scores.stores;
        let rank = args.batch.len() + 2;
        let fours = |is_whole: bool| Some(VecAxis { axis: rank - 1, aligned: is_whole });
        let maps = [
            (&kernel.scores, &args.scores, fours(tiles.keys_by_four)),
            (
                &kernel.result,
                &args.result,
                fours(true).filter(|_| tiles.values_by_four && args.column_parts.is_whole()),
            ),
            (&kernel.rows, &args.rows, None),
        ];
        let forms = maps.iter().flat_map(|(body, _, four)| match four {
            // Fours that may end behind the last column are found column by column.
            Some(VecAxis { aligned: false, .. }) => strided(&body.accesses),
            _ => body.accesses.clone(),
        });
        let forms: Vec<_> = forms.collect();
        let accesses: Vec<_> = maps.iter().flat_map(|(_, args, _)| args.accesses.iter().cloned()).collect();
        let consts: Vec<u32> = maps.iter().flat_map(|(_, args, _)| args.consts.iter().copied()).collect();
        let (mut n_accesses, mut n_consts, mut n_outputs) = (0, 0, 0);
        let [scores, result, rows] = maps.map(|(body, args, four)| {
            let of_all = |inst: &Inst| Inst { op: counted_from(&inst.op, n_accesses, n_consts), ..inst.clone() };
            let mut joined = Body {
                inputs: kernel.inputs.clone(),
                outputs: kernel.outputs.clone(),
                accesses: forms.clone(),
                insts: body.insts.iter().map(of_all).collect(),
                stores: body.stores.clone(),
                offsets: body.offsets.clone(),
                made: [None, None],
                ..**body
            };
            for offset in &mut joined.offsets {
                (offset.access, offset.constant) = (offset.access + n_accesses, offset.constant + n_consts);
            }
            for store in &mut joined.stores {
                (store.access, store.output) = (store.access + n_accesses, store.output + n_outputs);
            }
            if std::ptr::eq(body, &kernel.scores) {
                joined.stores.clear();
            } else {
                n_outputs += body.outputs.len() as u16;
            }
            n_accesses += body.accesses.len() as u16;
            n_consts += args.consts.len() as u16;
            let args = Args { accesses: accesses.clone(), consts: consts.clone(), ..args.clone() };
            let modes = schedule::modes(&joined, &args, four);
            ChainedMap { kept: keep::kept(&joined, target), body: joined, args, modes }
        });
        let (score, factor) = (stores[0].value, stores.get(1).map(|store| store.value));
        ChainedShader { launch, kernel, args, tiles, target, scores, result, rows, score, factor, consts }
    }

    fn label(&self) -> String {
        self.launch.kernel.name(&self.launch.ops)
    }

    fn shader(&self, n_invocations: usize) -> Shader {
        let mut shader = Shader::new(String::new(), &self.consts, n_invocations);
        // All numbers at once: llvmpipe reads what is the same for all lanes once only where nothing branches.
        shader.define("params", word("params"));
        shader
    }

    /// The dispatch that goes through the columns.
    fn pass(&self, memory: &LaunchMemory) -> Pass {
        let mut shader = self.shader(self.tiles.n_invocations());
        if self.tiles.shuffle.is_some() {
            shader.count_by_subgroup();
        }
        let n_groups = self.write_place(&mut shader);
        let mut eval = self.scores.eval(memory, Spot::new(0.into(), "_s"));
        eval.need(&mut shader, self.scores.uniform());
        let [first, end] = self.write_range(&mut shader, memory);
        self.write_starts(&mut shader);
        self.write_row_state(&mut shader);
        self.write_hiding(&mut shader);
        let n_blocks = self.args.column_parts.len().min(self.args.n_columns).div_ceil(self.tiles.block_columns());
        // Where masks hide all columns, one block is looked at in vain.
        shader.open_repeat("key", first, end, self.tiles.block_columns(), n_blocks);
        self.write_keys(&mut shader);
        (0..self.args.inner.len()).for_each(|i| self.write_inner_product(&mut shader, memory, i, n_blocks));
        self.write_weights(&mut shader, &eval, n_blocks);
        self.write_values(&mut shader, memory, n_blocks);
        shader.close();
        self.write_rows(&mut shader, memory);
        shader.finish(self.label(), memory, n_groups)
    }

    /// Which block this workgroup takes, and where in it this invocation is. Gives how many workgroups there are.
    fn write_place(&self, shader: &mut Shader) -> usize {
        let (tiles, args) = (&self.tiles, self.args);
        let n_batch: usize = args.batch.iter().product();
        let sizes = [
            n_batch,
            args.n_rows.div_ceil(tiles.block_rows()),
            args.n_values.div_ceil(tiles.tile_values()),
            args.column_parts.count(),
        ];
        let names = ["batch", "row_block", "value_tile", "part"];
        let params: Vec<ShaderExpr> =
            names.iter().zip(sizes).map(|(name, n)| shader.param(&format!("n_{name}"), n)).collect();
        shader.param("n_rows", args.n_rows);
        shader.param("n_columns", args.n_columns);
        shader.param("n_values", args.n_values);
        let group_idx = shader.count_groups();
        let n_groups: usize = sizes.iter().product();
        let all = shader.param("n_blocks", n_groups);
        shader.return_if(group_idx.at_least(all));
        split(shader, &group_idx, &names.map(String::from), &params);
        self.write_batch(shader);
        let lane = word("lane");
        let down = match tiles.share {
            Share::WorkgroupTile { across, .. } => {
                shader.define("side", &lane % across);
                Some(shader.define("down", lane / across))
            }
            _ => {
                shader.define("side", lane);
                None
            }
        };
        let row_start = shader.define("row_start", word("row_block") * tiles.block_rows());
        let row = down.map_or(row_start.clone(), |down| row_start + down * tiles.rows);
        shader.define("row", row);
        for r in 0..tiles.rows {
            let row = min(word("row").plus(r), word("params.n_rows") - 1);
            shader.define(format!("row{r}"), row);
        }
        shader.define("value_start", word("value_tile") * tiles.tile_values());
        let (from_lane, from_four) = self.four_steps();
        for c in 0..tiles.value_fours {
            let value = word("value_start") + word("side") * (4 * from_lane(tiles.value_fours)) + 4 * c * from_four;
            shader.define(format!("value{c}"), value);
        }
        n_groups
    }

    /// The coordinates of the batch index.
    fn write_batch(&self, shader: &mut Shader) {
        let batch = &self.args.batch;
        let sizes: Vec<ShaderExpr> =
            batch.iter().enumerate().map(|(axis, n)| shader.param(&format!("batch{axis}"), *n)).collect();
        split(shader, &word("batch"), &batch_names(batch.len()), &sizes);
    }

    /// How many fours one invocation's first four is from the next one's, and its own fours from each other: a subgroup that
    /// is a vector of the processor reads what lies side by side in one invocation, hardware in neighbours.
    fn four_steps(&self) -> (impl Fn(usize) -> usize, usize) {
        let is_subgroup = matches!(self.tiles.share, Share::SubgroupBroadcast(_));
        (move |n_fours: usize| if is_subgroup { n_fours } else { 1 }, if is_subgroup { 1 } else { self.tiles.across() })
    }

    /// Where the matrices of this batch index start.
    fn write_starts(&self, shader: &mut Shader) {
        for (i, inner) in self.args.inner.iter().enumerate() {
            self.write_start(shader, &format!("left{i}"), &inner.a);
            self.write_start(shader, &format!("right{i}"), &inner.b);
            shader.param(&format!("depth{i}"), inner.depth);
            if let Share::SubgroupBroadcast(n) = self.tiles.share {
                for first in (0..self.tiles.rows).step_by(n) {
                    let row = min(word("row") + first + word("lane"), word("params.n_rows") - 1);
                    let at = word(format!("left{i}_start")) + row * word(format!("params.left{i}_place"));
                    shader.define(format!("left{i}_at{first}"), at);
                }
            }
        }
        self.write_start(shader, "v", &self.args.values);
    }

    fn write_start(&self, shader: &mut Shader, name: &str, lies: &AttentionOperand) {
        let mut start = shader.signed_param(&format!("{name}_offset"), lies.offset);
        for (axis, step) in lies.batch.iter().enumerate() {
            start = start + word(format!("batch_{axis}")) * shader.signed_param(&format!("{name}_batch{axis}"), *step);
        }
        shader.define(format!("{name}_start"), start);
        shader.signed_param(&format!("{name}_place"), lies.place);
        shader.signed_param(&format!("{name}_along"), lies.along);
    }

    /// The columns of this invocation in the block from `key` on: the first of each four, and which of them there are.
    fn write_keys(&self, shader: &mut Shader) {
        let (from_lane, from_four) = self.four_steps();
        for c in 0..self.tiles.key_fours {
            let wanted = word("key") + word("side") * (4 * from_lane(self.tiles.key_fours)) + 4 * c * from_four;
            let wanted = shader.define(format!("wanted{c}"), wanted);
            if self.tiles.keys_by_four {
                shader.define(format!("key{c}"), min(&wanted, word("params.n_columns") - 4));
                shader.define(format!("has{c}"), wanted.less(word("params.n_columns")));
                continue;
            }
            let four = ShaderType::four(Lane::U32);
            let each = shader.define(format!("each{c}"), four.make([0, 1, 2, 3].map(|k| wanted.plus(k))));
            let ends = word("params.n_columns").as_four();
            shader.define(format!("has{c}"), each.less(ends));
        }
    }

    /// Column `j` of an invocation's four, or of the four that starts at `four`; the last one where there is none.
    fn column(&self, four: &ShaderExpr, j: usize) -> ShaderExpr {
        match self.tiles.keys_by_four {
            true => four.plus(j),
            false => min(four.plus(j), word("params.n_columns") - 1),
        }
    }

    /// The first column of an invocation's four.
    fn four_of_keys(&self, c: usize) -> ShaderExpr {
        word(format!("{}{c}", if self.tiles.keys_by_four { "key" } else { "wanted" }))
    }

    /// What is kept of each row: its greatest score, the sum of the weights that this invocation made, and the sums of
    /// products of its values.
    fn write_row_state(&self, shader: &mut Shader) {
        let minus_infinity =
            shader.param("minus_infinity", f32::NEG_INFINITY.to_bits() as usize).reinterpreted(Lane::F32);
        for r in 0..self.tiles.rows {
            if self.kernel.softmax.is_some() {
                shader.variable(format!("max{r}"), minus_infinity.clone());
                shader.variable(format!("sum{r}"), FLOAT.zero());
            }
            for c in 0..self.tiles.value_fours {
                shader.variable(format!("out{r}_{c}"), FLOATS.zero());
            }
        }
    }

    /// Where a score is: of a row and a four of columns.
    fn score_spot(&self, shader: &mut Shader, r: usize, c: usize) -> Spot {
        let suffix = format!("_s{r}_{c}");
        let (row, four) = (word(format!("row{r}")), self.four_of_keys(c));
        let at = (word("batch") * word("params.n_rows") + &row) * word("params.n_columns") + &four;
        let at = shader.define(format!("i{suffix}"), at);
        let mut first: Vec<ShaderExpr> = batch_names(self.args.batch.len()).into_iter().map(word).collect();
        first.extend([row, four.clone()]);
        let axis = first.len() - 1;
        let mut coordinates = side_by_side(first, Some(axis));
        for (j, lane) in coordinates.iter_mut().enumerate() {
            lane[axis] = self.column(&four, j);
        }
        Spot { coordinates, ..Spot::new(at, &suffix) }
    }

    /// The memory of a dispatch: the one that goes through the columns, or the one that puts parts together.
    fn memory(&self, slots: &[Slot], is_first: bool) -> LaunchMemory {
        let n_inputs = self.kernel.inputs.len();
        let mut uses: Vec<Use> = Vec::new();
        let outputs = self.kernel.outputs.iter().map(|dtype| Storage::Plain(*dtype));
        let storages = self.kernel.inputs.iter().copied().chain(outputs);
        let slot_ids = self.launch.reads.iter().chain(&self.launch.writes);
        for (idx, (storage, slot)) in storages.zip(slot_ids).enumerate() {
            let name = if idx < n_inputs { format!("in{idx}") } else { format!("out{}", idx - n_inputs) };
            let size_bytes = slots[slot.0 as usize].size_bytes;
            let (place, writes) = (PassMemory::Slot(*slot), idx >= n_inputs);
            let touched = (0, size_bytes.saturating_sub(1));
            uses.push(Use {
                place,
                name,
                storage,
                by_one: false,
                by_four: false,
                by_vector: false,
                writes,
                size_bytes,
                touched,
            });
        }
        let mut reads = |idx: usize, by_four: bool| {
            uses[idx].by_four |= by_four;
            uses[idx].by_one |= !by_four;
        };
        if is_first {
            for (i, pair) in self.tiles.reads.iter().enumerate().take(self.args.inner.len()) {
                pair.iter().enumerate().for_each(|(side, read)| reads(2 * i + side, *read != Read::Each));
            }
            reads(2 * self.args.inner.len(), self.tiles.values != Read::Each);
        }
        let is_finished = !is_first || self.args.column_parts.is_whole();
        let maps = [(&self.scores, is_first), (&self.result, is_finished), (&self.rows, is_finished)];
        for (map, _) in maps.into_iter().filter(|(_, is_used)| *is_used) {
            for (one, (by_one, by_four)) in uses.iter_mut().zip(reached(&map.accesses())) {
                one.by_one |= by_one;
                one.by_four |= by_four;
            }
        }
        if !self.args.column_parts.is_whole() {
            let size_bytes = self.scratch_bytes();
            uses.push(Use {
                place: PassMemory::Scratch(0),
                name: "parts".to_string(),
                storage: DType::F32.into(),
                by_one: true,
                by_four: false,
                by_vector: false,
                writes: true,
                size_bytes,
                touched: (0, size_bytes - 1),
            });
        }
        LaunchMemory::new(&uses, StatusUse::None, self.target)
    }

    /// Bytes of what parts leave of their rows: sums of products, the greatest score, the sum of weights.
    fn scratch_bytes(&self) -> usize {
        4 * self.args.column_parts.count() * self.n_all_rows() * (self.args.n_values + 2)
    }

    fn scratch_idx(&self) -> usize {
        self.kernel.inputs.len() + self.kernel.outputs.len()
    }

    /// Rows of all batch indices.
    fn n_all_rows(&self) -> usize {
        self.args.batch.iter().product::<usize>() * self.args.n_rows
    }
}

impl ChainedMap {
    fn accesses(&self) -> Accesses<'_> {
        Accesses { body: &self.body, args: &self.args, modes: &self.modes, kept: &self.kept }
    }

    fn eval<'a>(&'a self, memory: &'a LaunchMemory, spot: Spot) -> Eval<'a> {
        Eval::new(self.accesses(), memory, spot)
    }

    /// The registers that are the same everywhere.
    fn uniform(&self) -> impl Iterator<Item = Reg> {
        let is_uniform = |reg: &Reg| self.body.insts[*reg as usize].scope == Scope::Uniform;
        (0..self.body.insts.len() as Reg).filter(is_uniform)
    }
}

/// An instruction whose accesses and constants are counted from these numbers on.
fn counted_from(op: &InstOp, n_accesses: u16, n_consts: u16) -> InstOp {
    match op {
        InstOp::Load { input, access } => InstOp::Load { input: *input, access: access + n_accesses },
        InstOp::Valid { access } => InstOp::Valid { access: access + n_accesses },
        InstOp::Index { access } => InstOp::Index { access: access + n_accesses },
        InstOp::Const(idx) => InstOp::Const(idx + n_consts),
        InstOp::Gather { .. } => unreachable!("bug: a chained product looks nothing up"),
        other => other.clone(),
    }
}

/// Forms of accesses that go by strides where they counted row-major.
fn strided(forms: &[AccessForm]) -> Vec<AccessForm> {
    let strided = |form: &AccessForm| if *form == AccessForm::Linear { AccessForm::Strided } else { *form };
    forms.iter().map(strided).collect()
}

fn batch_names(n: usize) -> Vec<String> {
    (0..n).map(|axis| format!("batch_{axis}")).collect()
}

/// A variable of a row and a four.
fn four(name: &str, r: usize, c: usize) -> ShaderExpr {
    named(format!("{name}{r}_{c}"), FLOATS)
}

/// A variable of a row.
fn one(name: &str, r: usize) -> ShaderExpr {
    named(format!("{name}{r}"), FLOAT)
}
