//! Sums of products of a workgroup that works together: it brings a few steps of both matrices to workgroup memory,
//! then every invocation takes from there what its tile needs. In workgroup memory four rows (or columns) of one step
//! lie side by side, step after step.

use super::super::shader::Shader;
use super::super::tree::lane_name;
use super::variants::{K_BLOCK, Read, Variant};
use super::{LANES, MatmulShader, operand_start, place};
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
            shader.line(format!("let {}_start = {start};", side.name));
            let n_fours = side.size / 4 * k_steps;
            shader.global(format!(
                "var<workgroup> sh_{}: array<vec4<{}>, {n_fours}>;",
                side.name,
                lane_name(self.lane)
            ));
        }
        self.write_range(shader);
        let value = self.value_type();
        let (all, sums) = (self.names("all"), self.names("sum"));
        all.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
        let n_blocks = self.k_len().div_ceil(K_BLOCK);
        shader.open_loop(format!("for (var block = k_start; block < k_end; block += {K_BLOCK}u)"), n_blocks);
        sums.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
        shader.line(format!("let block_end = min(block + {K_BLOCK}u, k_end);"));
        let n_brought = n_blocks * K_BLOCK.div_ceil(k_steps);
        shader.open_loop(format!("for (var first = block; first < block_end; first += {k_steps}u)"), n_brought);
        sides.iter().for_each(|side| self.write_bring(shader, side, k_steps, n_brought));
        // All of it is there.
        shader.line("workgroupBarrier();");
        shader.open_loop(format!("for (var step = 0u; step < {k_steps}u; step++)"), n_brought * k_steps);
        for four in 0..rows / 4 {
            shader.line(format!("let x{four} = sh_a[step * {}u + down * {}u + {four}u];", n_rows / 4, rows / 4));
        }
        let apart = n_cols / 4 / cols.n_values();
        for c in 0..cols.n_values() {
            shader.line(format!("let y{c} = sh_b[step * {}u + side + {}u];", n_cols / 4, c * apart));
        }
        for r in 0..rows {
            for c in 0..cols.n_values() {
                shader.line(format!("sum{r}_{c} += x{}{} * y{c};", r / 4, LANES[r % 4]));
            }
        }
        shader.close();
        // Everyone has used it.
        shader.line("workgroupBarrier();");
        shader.close();
        all.iter().zip(&sums).for_each(|(all, sum)| shader.line(format!("{all} += {sum};")));
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
        shader.open_loop(format!("for (var unit = lane; unit < {n_units}u; unit += {group}u)"), n_trips);
        match along_k {
            true => {
                shader.line(format!("let four = unit / {}u;", k_steps / 4));
                shader.line(format!("let step = unit % {}u * 4u;", k_steps / 4));
            }
            false => {
                shader.line(format!("let four = unit % {fours}u;"));
                shader.line(format!("let step = unit / {fours}u;"));
            }
        }
        shader.line("let k = first + step;");
        let at = |shader: &mut Shader, j: usize| {
            let wanted = if j == 0 { String::new() } else { format!(" + {j}u") };
            let idx = format!("min({} + four * 4u{wanted}, {} - 1u)", side.start, side.end);
            place(shader, name, side.across.0, side.across.1, &idx)
        };
        let four_type = format!("vec4<{}>", lane_name(self.lane));
        let n_values = if along_k { 4 } else { 1 };
        (0..n_values).for_each(|j| shader.line(format!("var v{j} = {four_type}();")));
        shader.open("if (k < block_end)");
        let along = place(shader, name, side.along.0, side.along.1, "k");
        shader.line(format!("let from_k = {name}_start + {along};"));
        match side.read {
            Read::AlongK => {
                for j in 0..4 {
                    let at = at(shader, j);
                    let value = self.memory.load4(shader, side.input, &format!("from_k + {at}"));
                    shader.line(format!("v{j} = {};", value.reinterpreted(self.lane)));
                }
            }
            Read::Across => {
                let first = format!("min({} + four * 4u, {} - 4u)", side.start, side.end);
                let first = match side.across.1.stride() {
                    Some(_) => first,
                    None => place(shader, name, side.across.0, side.across.1, &first),
                };
                let value = self.memory.load4(shader, side.input, &format!("from_k + {first}"));
                shader.line(format!("v0 = {};", value.reinterpreted(self.lane)));
            }
            Read::Each => {
                let one = |j: usize| {
                    let at = at(shader, j);
                    let value = self.memory.load(shader, side.input, &format!("from_k + {at}"));
                    value.reinterpreted(self.lane).to_string()
                };
                let each: Vec<String> = (0..4).map(one).collect();
                shader.line(format!("v0 = {four_type}({});", each.join(", ")));
            }
        }
        shader.close();
        match along_k {
            true => {
                for (j, lane) in LANES.iter().enumerate() {
                    let value = format!("{four_type}(v0{lane}, v1{lane}, v2{lane}, v3{lane})");
                    shader.line(format!("sh_{name}[(step + {j}u) * {fours}u + four] = {value};"));
                }
            }
            false => shader.line(format!("sh_{name}[step * {fours}u + four] = v0;")),
        }
        shader.close();
    }
}
