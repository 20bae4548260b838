//! Which columns a block of rows looks at. A mask compares values that are affine in row and column: where it fails at the
//! four corners of a block, it fails in all of it. Blocks at either end that masks hide are left out before the loop over
//! columns: a driver that runs on the CPU would go through all of a loop's body even if nothing in it were done.

use super::super::eval::Eval;
use super::super::index::Spot;
use super::super::launch_memory::LaunchMemory;
use super::super::schedule;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, call, literal, min, select, word};
use super::{ChainedMap, ChainedShader, FLOAT, batch_names};
use crate::dtype::{DType, Lane};
use crate::kernel::{AffineMask, InstOp, Reg};

/// Integers up to here are far from wrapping, even if they are rounded to floats.
const NEAR: &str = "2e9f";
/// Floats up to here are exact if they are whole numbers.
const WHOLE: &str = "1.6e7f";

impl ChainedShader<'_> {
    /// The columns that this block of rows looks at, of those of its part: the first, and where they end.
    pub fn write_range(&self, shader: &mut Shader, memory: &LaunchMemory) -> [ShaderExpr; 2] {
        let part_columns = shader.param("part_columns", self.args.column_parts.len());
        let start = shader.define("part_start", word("part") * &part_columns);
        let end = shader.define("part_end", min(&start + part_columns, word("params.n_columns")));
        let masks: Vec<&AffineMask> = self.kernel.masks.iter().filter(|mask| mask.cond.is_some()).collect();
        if masks.is_empty() || !self.are_near(&masks) {
            return [start, end];
        }
        // Hidden scores must have no weight, whichever of the masks hides them.
        let fill = if self.kernel.softmax.is_some() { f32::NEG_INFINITY } else { 0.0 };
        let fill = shader.param("hidden", fill.to_bits() as usize).reinterpreted(Lane::F32);
        let fills =
            self.kernel.masks.iter().map(|mask| shader.constant(mask.fill).reinterpreted(Lane::F32).equals(&fill));
        let is_neutral = fills.reduce(|all, one| all & one);
        let is_neutral = shader.define("is_neutral", is_neutral.unwrap_or(literal("true", Lane::U32)));
        let map = ChainedMap {
            modes: schedule::modes(&self.scores.body, &self.scores.args, None),
            body: self.scores.body.clone(),
            args: self.scores.args.clone(),
            kept: self.scores.kept.clone(),
        };
        let rows = [
            word("row_start"),
            shader
                .define("row_last", min(word("row_start") + (self.tiles.block_rows() - 1), word("params.n_rows") - 1)),
        ];
        let block = self.tiles.block_columns();
        let first = shader.variable("first", end.clone());
        let last = shader.variable("last", start.clone());
        let n_blocks = self.args.column_parts.len().min(self.args.n_columns).div_ceil(block);
        let key = shader.open_for("key", &start, &end, block, n_blocks);
        let columns = [key.clone(), shader.define("key_last", min(&key + (block - 1), word("params.n_columns") - 1))];
        let corners: Vec<Eval> = (0..4)
            .map(|corner| {
                let mut coordinates: Vec<ShaderExpr> =
                    batch_names(self.args.batch.len()).into_iter().map(word).collect();
                coordinates.extend([rows[corner / 2].clone(), columns[corner % 2].clone()]);
                let at = (word("batch") * word("params.n_rows") + &rows[corner / 2]) * word("params.n_columns");
                let at = shader.define(format!("i_c{corner}"), at + &columns[corner % 2]);
                let spot = Spot { coordinates: vec![coordinates], ..Spot::new(at, &format!("_c{corner}")) };
                let mut eval = map.eval(memory, spot);
                eval.need(shader, masks.iter().filter_map(|mask| mask.cond));
                eval
            })
            .collect();
        let mut hidden: Option<ShaderExpr> = None;
        for cond in masks.iter().filter_map(|mask| mask.cond) {
            let fails = corners.iter().map(|eval| eval.value(cond).equals(0) & self.is_exact(eval, cond));
            let fails = fails.reduce(|all, one| all & one);
            hidden = match (hidden, fails) {
                (Some(before), Some(fails)) => Some(before | fails),
                (before, fails) => before.or(fails),
            };
        }
        let Some(hidden) = hidden else { unreachable!("bug: no mask") };
        let seen = shader.define("seen", (hidden & is_neutral).negated());
        shader.assign(&first, select(&first, min(&first, &key), seen.clone()));
        shader.assign(&last, select(&last, min(&key + block, &end), seen));
        shader.close();
        // Where all is hidden, any block will do: it has no weight.
        let first = shader.define("first_key", select(&first, &start, first.at_least(&end)));
        [first, last]
    }

    /// Whether the indices that masks compare are far from wrapping.
    fn are_near(&self, masks: &[&AffineMask]) -> bool {
        let insts = &self.scores.body.insts;
        let mut agenda: Vec<Reg> = masks.iter().filter_map(|mask| mask.cond).collect();
        while let Some(reg) = agenda.pop() {
            let inst = &insts[reg as usize];
            if let InstOp::Index { access } = inst.op {
                let Some(view) = self.scores.args.accesses[access as usize].strided() else { return false };
                let steps = view.shape.iter().zip(view.strides).map(|(n, step)| (*n as isize - 1).max(0) * step.abs());
                if view.offset.abs() + steps.sum::<isize>() > i32::MAX as isize / 2 {
                    return false;
                }
            }
            inst.op.for_each_reg(|reg| agenda.push(reg));
        }
        true
    }

    /// Whether nothing wraps or is rounded on the way to what a mask compares: the same sums as floats are small, and
    /// floats are whole numbers.
    fn is_exact(&self, eval: &Eval, cond: Reg) -> ShaderExpr {
        let insts = &self.scores.body.insts;
        let mut agenda: Vec<Reg> = Vec::new();
        insts[cond as usize].op.for_each_reg(|reg| agenda.push(reg));
        let mut all: Option<ShaderExpr> = None;
        while let Some(reg) = agenda.pop() {
            let inst = &insts[reg as usize];
            let (value, is_float) = (self.as_float(eval, reg), inst.dtype == DType::F32);
            let size = call("abs", [value.clone()], FLOAT);
            let mut is_exact = size.less(literal(if is_float { WHOLE } else { NEAR }, Lane::F32));
            if is_float && matches!(inst.op, InstOp::Const(_)) {
                is_exact = is_exact & call("floor", [value.clone()], FLOAT).equals(value);
            }
            all = Some(match all {
                Some(all) => all & is_exact,
                None => is_exact,
            });
            inst.op.for_each_reg(|reg| agenda.push(reg));
        }
        all.unwrap_or(literal("true", Lane::U32))
    }

    /// An affine value as a float.
    fn as_float(&self, eval: &Eval, reg: Reg) -> ShaderExpr {
        let inst = &self.scores.body.insts[reg as usize];
        match inst.op {
            InstOp::Binary(row, x, y) => {
                let (x, y) = (self.as_float(eval, x), self.as_float(eval, y));
                if row.step == Some(crate::ops::RegisterStep::Sub) { x - y } else { x + y }
            }
            _ if inst.dtype == DType::F32 => eval.value(reg).clone(),
            _ => ShaderType::One(Lane::F32).make([eval.value(reg).reinterpreted(Lane::I32)]),
        }
    }
}
