//! Sums of products of a workgroup that works together: it brings a few steps of both matrices to workgroup memory,
//! then every invocation takes from there what its tile needs. In workgroup memory four rows (or columns) of one step
//! lie side by side, step after step.

use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, min, word};
use super::variants::{K_BLOCK, Read, Variant};
use super::{MatmulShader, operand_start, place};
use crate::dtype::Lane;
use crate::kernel::{AxisList, OperandArgs};

/// One of the two matrices, seen along the axis that the result has too (`across`) and along k.
struct TileSide<'a> {
    name: &'static str,
    input: usize,
    lies: &'a OperandArgs,
    read: Read,
    /// Elements of the workgroup's tile, where they start, and the end of the axis.
    size: usize,
    start: &'static str,
    end: &'static str,
    /// The operand's own names of both axes, and how they lie.
    across: (&'static str, &'a AxisList),
    along: (&'static str, &'a AxisList),
}

impl MatmulShader<'_> {
    /// Sums of products along k, `k_steps` at a time: `all0_0`, `all0_1`, …, row by row of the invocation's tile.
    pub fn write_team_sums(&self, shader: &mut Shader, k_steps: usize) {
        let &Variant { rows, cols, .. } = self.shape.variant;
        let (n_rows, n_cols) = self.shape.variant.tile();
        let (a, b) = (&self.matmul.a, &self.matmul.b);
        let sides = [
            TileSide {
                name: "a",
                input: 0,
                lies: a,
                read: self.shape.a,
                size: n_rows,
                start: "tile_row",
                end: "params.m",
                across: ("row", &a.rows),
                along: ("col", &a.cols),
            },
            TileSide {
                name: "b",
                input: 1,
                lies: b,
                read: self.shape.b,
                size: n_cols,
                start: "tile_col",
                end: "params.col_end",
                across: ("col", &b.cols),
                along: ("row", &b.rows),
            },
        ];
        for side in &sides {
            // Plain strides are parameters in this order, wherever they are used.
            for (axis, list) in [side.across, side.along] {
                list.stride().iter().for_each(|by| drop(shader.signed_param(&format!("{}_{axis}", side.name), *by)));
            }
        }
        for side in &sides {
            let start = operand_start(shader, side.name, side.lies);
            shader.define(format!("{}_start", side.name), start);
            side.shared(shader, self.lane, k_steps);
        }
        let [start, end] = self.write_range(shader);
        let (all, sums) = (self.values("all"), self.values("sum"));
        self.declare(shader, &all);
        let n_blocks = self.k_len().div_ceil(K_BLOCK);
        let block = shader.open_for("block", start, &end, K_BLOCK, n_blocks);
        self.declare(shader, &sums);
        let block_end = shader.define("block_end", min(&block + K_BLOCK, end));
        let n_brought = n_blocks * K_BLOCK.div_ceil(k_steps);
        shader.open_for("first", block, block_end, k_steps, n_brought);
        sides.iter().for_each(|side| self.write_bring(shader, side, k_steps, n_brought));
        // All of it is there.
        shader.barrier();
        let step = shader.open_for("step", 0, k_steps, 1, n_brought * k_steps);
        let [sh_a, sh_b] = sides.each_ref().map(|side| side.shared(shader, self.lane, k_steps));
        let mut xs = Vec::new();
        for four in 0..rows / 4 {
            let at = &step * (n_rows / 4) + word("down") * (rows / 4) + four;
            xs.push(shader.define(format!("x{four}"), sh_a.at(at)));
        }
        let apart = n_cols / 4 / cols.n_values();
        let mut ys = Vec::new();
        for c in 0..cols.n_values() {
            let at = &step * (n_cols / 4) + word("side") + c * apart;
            ys.push(shader.define(format!("y{c}"), sh_b.at(at)));
        }
        for r in 0..rows {
            for (c, y) in ys.iter().enumerate() {
                shader.add_to(&self.value("sum", r, c), xs[r / 4].component(r % 4) * y);
            }
        }
        shader.close();
        // Everyone has used it.
        shader.barrier();
        shader.close();
        all.iter().zip(sums).for_each(|(all, sum)| shader.add_to(all, sum));
        shader.close();
    }

    /// Brings the next steps of one matrix to workgroup memory. Steps beyond the end are zeros; rows (or columns)
    /// beyond the end are those at the end again, and what becomes of them is not stored.
    fn write_bring(&self, shader: &mut Shader, side: &TileSide, k_steps: usize, n_brought: usize) {
        let group = self.shape.variant.group(self.context.target);
        let (name, fours) = (side.name, side.size / 4);
        // What lies side by side in memory is brought by neighbours.
        let along_k = side.read == Read::AlongK;
        let n_units = if along_k { fours * k_steps / 4 } else { fours * k_steps };
        let n_trips = n_brought * n_units.div_ceil(group);
        let unit = shader.open_for("unit", word("lane"), n_units, group, n_trips);
        let (four, step) = match along_k {
            true => (&unit / (k_steps / 4), &unit % (k_steps / 4) * 4),
            false => (&unit % fours, &unit / fours),
        };
        let (four, step) = (shader.define("four", four), shader.define("step", step));
        let k = shader.define("k", word("first") + &step);
        let first = word(side.start) + &four * 4;
        let at = |shader: &mut Shader, j: usize| {
            let idx = min(first.plus(j), word(side.end) - 1);
            word("from_k") + place(shader, name, side.across.0, side.across.1, &idx)
        };
        let four_type = ShaderType::four(self.lane);
        let n_values = if along_k { 4 } else { 1 };
        let values: Vec<ShaderExpr> =
            (0..n_values).map(|j| shader.variable(format!("v{j}"), four_type.zero())).collect();
        shader.open_if(k.less(word("block_end")));
        let along = place(shader, name, side.along.0, side.along.1, &k);
        let from_k = shader.define("from_k", word(format!("{name}_start")) + along);
        match side.read {
            Read::AlongK => {
                for (j, value) in values.iter().enumerate() {
                    let at = at(shader, j);
                    let read = self.memory.load4(shader, side.input, at);
                    shader.assign(value, read.reinterpreted(self.lane));
                }
            }
            Read::Across => {
                let first = min(first, word(side.end) - 4);
                let first = match side.across.1.stride() {
                    Some(_) => first,
                    None => place(shader, name, side.across.0, side.across.1, &first),
                };
                let read = self.memory.load4(shader, side.input, from_k + first);
                shader.assign(&values[0], read.reinterpreted(self.lane));
            }
            Read::Each => {
                let one = |j: usize| {
                    let at = at(shader, j);
                    self.memory.load(shader, side.input, at).reinterpreted(self.lane)
                };
                let each = [0, 1, 2, 3].map(one);
                shader.assign(&values[0], four_type.make(each));
            }
        }
        shader.close();
        let shared = side.shared(shader, self.lane, k_steps);
        match along_k {
            true => {
                for j in 0..4 {
                    let value = four_type.make(values.iter().map(|value| value.component(j)));
                    shader.assign(&shared.at((&step + j) * fours + &four), value);
                }
            }
            false => shader.assign(&shared.at(step * fours + four), &values[0]),
        }
        shader.close();
    }
}

impl TileSide<'_> {
    /// The workgroup memory that steps of it are brought to.
    fn shared(&self, shader: &mut Shader, lane: Lane, k_steps: usize) -> ShaderExpr {
        shader.shared(&format!("sh_{}", self.name), self.size / 4 * k_steps, ShaderType::four(lane))
    }
}
