//! Sums of products of a workgroup that works together: it brings a few steps of both matrices to workgroup memory,
//! then every invocation takes from there what its tile needs. While it sums up, what comes next is on its way to its
//! registers. In workgroup memory four rows (or columns) of one step lie side by side, step after step: a step is a constant
//! index, so that a driver that clamps indices clamps one for all steps.

use super::super::blocks::BlockSteps;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, all, min, named, select, word};
use super::shape::SumRun;
use super::{MatmulShader, count_by, digits, operand_start, place};
use crate::dtype::Lane;
use crate::kernel::{AxisList, OperandArgs};
use crate::target::variants::{K_BLOCK, Read, Variant};

/// One of the two matrices, seen along the axis that the result has too (`across`) and along k.
struct TileSide<'a> {
    name: &'static str,
    input: usize,
    lies: &'a OperandArgs,
    read: Read,
    /// Elements of the workgroup's tile, where they start, and the end of the axis.
    size: usize,
    start: &'static str,
    end: ShaderExpr,
    /// The operand's own names of both axes, and how they lie.
    across: (&'static str, &'a AxisList),
    along: (&'static str, &'a AxisList),
    /// Steps along k that are brought at a time, and invocations that bring them.
    k_steps: usize,
    group: usize,
    /// Whether half floats are read in vectors of eight.
    eights: bool,
    /// How a weight in blocks is read.
    blocks: Option<BlockSteps>,
}

/// Which steps are fetched: those that the loop starts with, or those after the ones that are being summed up.
#[derive(Clone, Copy, PartialEq)]
enum Fetched {
    First,
    Next,
}

/// Whether the last steps that are brought may be beyond the end of k.
#[derive(Clone, Copy, PartialEq)]
enum KEnd {
    Whole,
    Ragged,
}

impl MatmulShader<'_> {
    /// Sums of products along k, `k_steps` at a time: `all0_0`, `all0_1`, …, row by row of the invocation's tile.
    pub fn write_team_sums(&self, shader: &mut Shader, k_steps: usize) {
        let sides = self.sides(k_steps);
        for side in &sides {
            // Plain strides are parameters in this order, wherever they are used.
            for (axis, list) in [side.across, side.along] {
                list.stride().iter().for_each(|by| drop(shader.signed_param(&format!("{}_{axis}", side.name), *by)));
            }
        }
        for side in &sides {
            let start = operand_start(shader, side.name, side.lies);
            shader.define(format!("{}_start", side.name), start);
            side.shared(shader, self.lane);
        }
        let [start, end] = self.write_range(shader);
        let k_end = match self.matmul.k.is_multiple_of(k_steps) && self.matmul.k_parts.len().is_multiple_of(k_steps) {
            true => KEnd::Whole,
            false => KEnd::Ragged,
        };
        sides.iter().for_each(|side| side.write_units(shader, self.lane));
        sides.iter().for_each(|side| self.write_fetch(shader, side, Fetched::First, k_end));
        let all = self.values("all");
        self.declare(shader, &all);
        if self.shape.run == SumRun::Blocks {
            let sums = self.values("sum");
            let n_blocks = self.k_len().div_ceil(K_BLOCK);
            let block = shader.open_for("block", start, &end, K_BLOCK, n_blocks);
            self.declare(shader, &sums);
            let block_end = shader.define("block_end", min(&block + K_BLOCK, end));
            self.write_steps(shader, &sides, [block, block_end], n_blocks * K_BLOCK.div_ceil(k_steps), k_end);
            all.iter().zip(sums).for_each(|(all, sum)| shader.add_to(all, sum));
            shader.close();
        } else {
            self.write_steps(shader, &sides, [start, end], self.k_len().div_ceil(k_steps), k_end);
        }
    }

    /// Both matrices.
    fn sides(&self, k_steps: usize) -> [TileSide<'_>; 2] {
        let (n_rows, n_cols) = self.shape.variant.tile();
        let group = self.shape.variant.group(self.context.target);
        let (a, b) = (&self.matmul.a, &self.matmul.b);
        [
            TileSide {
                name: "a",
                input: 0,
                lies: a,
                read: self.shape.a,
                size: n_rows,
                start: "tile_row",
                end: self.number("m"),
                across: ("row", &a.rows),
                along: ("col", &a.cols),
                k_steps,
                group,
                eights: self.shape.eights[0],
                blocks: None,
            },
            TileSide {
                name: "b",
                input: 1,
                lies: b,
                read: self.shape.b,
                size: n_cols,
                start: "tile_col",
                end: self.number("col_end"),
                across: ("col", &b.cols),
                along: ("row", &b.rows),
                k_steps,
                group,
                eights: self.shape.eights[1],
                blocks: (self.shape.b == Read::Blocks).then(|| self.block_steps(k_steps)),
            },
        ]
    }

    /// The loop over k, from one of these to the other: brings steps, fetches the next, sums up.
    fn write_steps(
        &self,
        shader: &mut Shader,
        sides: &[TileSide; 2],
        [start, end]: [ShaderExpr; 2],
        times: usize,
        k_end: KEnd,
    ) {
        let k_steps = sides[0].k_steps;
        let first = shader.open_for("first", start, end, k_steps, times);
        sides.iter().for_each(|side| self.write_bring(shader, side));
        // All of it is there.
        shader.barrier();
        let next = shader.define("next", first + k_steps);
        if k_end == KEnd::Whole {
            shader.define("more", next.less(word("k_end")));
        }
        for side in sides {
            side.write_on(shader, k_end);
        }
        sides.iter().for_each(|side| self.write_fetch(shader, side, Fetched::Next, k_end));
        if self.shape.written_out {
            (0..k_steps).for_each(|step| self.write_step(shader, sides, &step.into(), &format!("{step}_")));
        } else {
            let step = shader.open_for("step", 0, k_steps, 1, times * k_steps);
            self.write_step(shader, sides, &step, "");
            shader.close();
        }
        // Everyone has used it.
        shader.barrier();
        shader.close();
    }

    /// The products of one step.
    fn write_step(&self, shader: &mut Shader, sides: &[TileSide; 2], step: &ShaderExpr, prefix: &str) {
        let &Variant { rows, cols, .. } = self.shape.variant;
        let [sh_a, sh_b] = sides.each_ref().map(|side| side.shared(shader, self.lane).at(step));
        let mut xs = Vec::new();
        for four in 0..rows / 4 {
            let at = word("down").times(rows / 4).plus(four);
            xs.push(shader.define(format!("x{prefix}{four}"), sh_a.at(at)));
        }
        let apart = sides[1].size / 4 / cols.n_values();
        let mut ys = Vec::new();
        for c in 0..cols.n_values() {
            ys.push(shader.define(format!("y{prefix}{c}"), sh_b.at(word("side").plus(c * apart))));
        }
        let into = if self.shape.run == SumRun::Blocks { "sum" } else { "all" };
        for r in 0..rows {
            for (c, y) in ys.iter().enumerate() {
                shader.add_to(&self.value(into, r, c), xs[r / 4].component(r % 4) * y);
            }
        }
    }

    /// Reads this invocation's share of some steps to its registers. Steps beyond the end are zeros; rows (or
    /// columns) beyond the end are those at the end again, and what becomes of them is not stored.
    fn write_fetch(&self, shader: &mut Shader, side: &TileSide, fetched: Fetched, k_end: KEnd) {
        let n = side.name;
        let k = word(if fetched == Fetched::First { "k_start" } else { "next" });
        for u in 0..side.n_rounds() {
            let in_k = match k_end {
                KEnd::Ragged => Some((&k + word(format!("{n}_step{u}"))).less(word("k_end"))),
                // A list of axes counts on beyond the end, and so do blocks; a stride stays at the last steps.
                KEnd::Whole if !side.is_strided() && fetched == Fetched::Next => Some(named("more", ShaderType::Bool)),
                KEnd::Whole => None,
            };
            let condition = all(side.has_unit(u).into_iter().chain(in_k));
            condition.iter().for_each(|condition| shader.open_if(condition.clone()));
            let values = side.values(u, self.lane);
            self.write_unit(shader, side, u, &k, &values);
            if condition.is_some() {
                shader.close();
            }
            if k_end == KEnd::Ragged && fetched == Fetched::Next {
                shader.open_else(None);
                values.iter().for_each(|value| shader.assign(value, value.ty().zero()));
                shader.close();
            }
        }
    }
}

impl MatmulShader<'_> {
    /// Reads a unit of the steps from `k` on to its registers. What is packed stays so until it is brought: unpacking waits
    /// for memory.
    fn write_unit(&self, shader: &mut Shader, side: &TileSide, u: usize, k: &ShaderExpr, values: &[ShaderExpr]) {
        let n = side.name;
        if let Some(blocks) = side.blocks {
            let k = k + word(format!("{n}_step{u}"));
            let raw = blocks.read(shader, &self.memory, side.input, &format!("{n}{u}"), &k);
            return values.iter().zip(raw).for_each(|(value, raw)| shader.assign(value, raw));
        }
        let along = match side.along.1.stride() {
            Some(_) => word(format!("{n}_k")),
            None => word(format!("{n}{u}_at")),
        };
        for (j, value) in values.iter().enumerate() {
            let at = |j: usize| word(format!("{n}_from{u}_{j}")) + &along;
            let read = match side.read {
                Read::Each => {
                    let each = [0, 1, 2, 3].map(|j| self.memory.load(shader, side.input, at(j)));
                    ShaderType::four(each[0].lane()).make(each)
                }
                _ if side.eights => self.memory.load_vector(shader, side.input, at(j)),
                _ if side.in_vectors() => self.memory.load_four(shader, side.input, at(j)),
                _ => self.memory.load4(shader, side.input, at(j)),
            };
            shader.assign(value, read.reinterpreted(value.lane()));
        }
    }

    /// What was fetched of a unit, as numbers: per step, and per four of the axis that the result has too.
    fn unit_values(&self, shader: &mut Shader, side: &TileSide, u: usize) -> Vec<Vec<ShaderExpr>> {
        let (n, values) = (side.name, side.values(u, self.lane));
        if let Some(blocks) = side.blocks {
            let name = format!("{n}{u}_y");
            let codes = blocks.widen_scales(shader, &name, &values);
            let fours = (0..blocks.n_steps / 4).flat_map(|four| blocks.widen_four(shader, &name, &codes, four));
            return fours.map(|step| vec![step]).collect();
        }
        let fours: Vec<Vec<ShaderExpr>> = match side.eights {
            false => values.into_iter().map(|value| vec![value]).collect(),
            true => {
                let mut unpacked = |(j, words): (usize, ShaderExpr)| {
                    let fours = self.memory.eight_of(shader, side.input, &words).into_iter().enumerate();
                    let name = |h: usize| format!("{n}{u}_{j}_{h}");
                    fours.map(|(h, four)| shader.define(name(h), four.reinterpreted(self.lane))).collect()
                };
                values.into_iter().enumerate().map(&mut unpacked).collect()
            }
        };
        if side.read != Read::AlongK {
            return fours;
        }
        // Four rows of some steps each become steps of four rows each.
        let row_of = |step: usize| fours.iter().map(move |row| row[step / 4].component(step % 4));
        (0..side.steps_of_unit()).map(|step| vec![ShaderType::four(self.lane).make(row_of(step))]).collect()
    }

    /// Writes what was fetched to workgroup memory.
    fn write_bring(&self, shader: &mut Shader, side: &TileSide) {
        let (n, shared) = (side.name, side.shared(shader, self.lane));
        for u in 0..side.n_rounds() {
            let (step, four) = (word(format!("{n}_step{u}")), word(format!("{n}_four{u}")));
            let has_unit = side.has_unit(u);
            has_unit.iter().for_each(|condition| shader.open_if(condition.clone()));
            for (j, fours) in self.unit_values(shader, side, u).into_iter().enumerate() {
                for (i, value) in fours.into_iter().enumerate() {
                    shader.assign(&shared.at(step.plus(j)).at(four.plus(i)), value);
                }
            }
            if has_unit.is_some() {
                shader.close();
            }
        }
    }
}

impl TileSide<'_> {
    /// The workgroup memory that steps of it are brought to.
    fn shared(&self, shader: &mut Shader, lane: Lane) -> ShaderExpr {
        shader.shared_rows(&format!("sh_{}", self.name), [self.k_steps, self.size / 4], ShaderType::four(lane))
    }

    /// What is brought at once: four rows (or columns) of one step, or of several steps where those lie side by side; with
    /// eights across, eight of one step.
    fn steps_of_unit(&self) -> usize {
        match (self.read, self.blocks) {
            (Read::Blocks, Some(blocks)) => blocks.n_steps,
            (Read::AlongK, _) => 4 << self.eights as usize,
            _ => 1,
        }
    }

    fn fours_of_unit(&self) -> usize {
        if self.read == Read::Across && self.eights { 2 } else { 1 }
    }

    fn n_units(&self) -> usize {
        self.size / 4 / self.fours_of_unit() * self.k_steps / self.steps_of_unit()
    }

    /// Units of an invocation.
    fn n_rounds(&self) -> usize {
        self.n_units().div_ceil(self.group)
    }

    /// The logarithm of how many elements are read at once, if where units lie is counted in vectors of as many.
    fn log_vector(&self) -> Option<usize> {
        let is_counted = matches!(self.read, Read::AlongK | Read::Across) && self.along.1.stride().is_some();
        is_counted.then_some(if self.eights { 3 } else { 2 })
    }

    fn in_vectors(&self) -> bool {
        self.log_vector().is_some()
    }

    /// Whether the next steps are found by adding to where the last ones were.
    fn is_strided(&self) -> bool {
        self.blocks.is_none() && self.along.1.stride().is_some()
    }

    /// Whether an invocation has this unit; None if all do.
    fn has_unit(&self, u: usize) -> Option<ShaderExpr> {
        ((u + 1) * self.group > self.n_units()).then(|| word(format!("{}_unit{u}", self.name)).less(self.n_units()))
    }

    /// The registers of a unit: a vector of each of four rows along k, of one step one; or what is read of blocks.
    fn values(&self, u: usize, lane: Lane) -> Vec<ShaderExpr> {
        let types = match (self.blocks, self.read) {
            (Some(blocks), _) => blocks.raw_types(),
            (_, read) => {
                let n = if read == Read::AlongK { 4 } else { 1 };
                vec![ShaderType::four(if self.eights { Lane::U32 } else { lane }); n]
            }
        };
        types.into_iter().enumerate().map(|(j, ty)| named(format!("{}{u}_{j}", self.name), ty)).collect()
    }

    /// Which units this invocation brings, and where they lie at the first steps: all that does not change from step to
    /// step.
    fn write_units(&self, shader: &mut Shader, lane: Lane) {
        let (n, fours, per) = (self.name, self.size / 4 / self.fours_of_unit(), self.steps_of_unit());
        // Where one operand keeps some invocations busy, the others bring the other one.
        let is_turned = self.input == 1 && self.n_units() < self.group;
        let own = match is_turned {
            true => shader.define(format!("{n}_lane"), (word("lane") + self.n_units()) % self.group),
            false => word("lane"),
        };
        for u in 0..self.n_rounds() {
            let unit = shader.define(format!("{n}_unit{u}"), own.plus(u * self.group));
            // What lies side by side in memory is brought by neighbours.
            let is_k_first = per >= 4 || self.along.1.stride() == Some(1);
            let n_steps = self.k_steps / per;
            let (four, step) = match is_k_first {
                // Four fours of columns, then steps, then the next columns.
                true if self.blocks.is_some() => {
                    ((&unit / (4 * n_steps)) * 4 + (&unit & 3), ((unit >> 2) % n_steps).times(per))
                }
                true => (&unit / n_steps, (&unit % n_steps).times(per)),
                false => ((&unit % fours).times(self.fours_of_unit()), unit / fours),
            };
            let four = shader.define(format!("{n}_four{u}"), four);
            let step = shader.define(format!("{n}_step{u}"), step);
            let k = word("k_start") + step;
            let along = match self.along.1.stride() {
                Some(_) => place(shader, n, self.along.0, self.along.1, &k),
                None => 0.into(),
            };
            let along = word(format!("{n}_start")) + along;
            let first = word(self.start) + four * 4;
            let n_places = if matches!(self.read, Read::Across | Read::Blocks) { 1 } else { 4 };
            for j in 0..n_places {
                let idx = match self.read {
                    Read::Across | Read::Blocks => min(first.clone(), self.end.clone() - 4 * self.fours_of_unit()),
                    _ => min(first.plus(j), self.end.clone() - 1),
                };
                let at = place(shader, n, self.across.0, self.across.1, &idx);
                if let Some(blocks) = self.blocks {
                    blocks.write_rows(shader, &format!("{n}{u}"), word(format!("{n}_start")) + at);
                    continue;
                }
                let at = &along + at;
                let at = self.log_vector().map_or(at.clone(), |by| at >> by);
                shader.define(format!("{n}_from{u}_{j}"), at);
            }
            if self.along.1.stride().is_none() {
                let at = place(shader, n, self.along.0, self.along.1, &k);
                shader.variable(format!("{n}{u}_at"), at);
                let digits = digits(shader, n, self.along.0, self.along.1, &k);
                for (i, digit) in digits.into_iter().enumerate().skip(1) {
                    shader.variable(format!("{n}{u}_place{i}"), digit);
                }
            }
            for value in self.values(u, lane) {
                shader.variable(value.to_string(), value.ty().zero());
            }
        }
        if self.is_strided() {
            shader.variable(format!("{n}_k"), 0);
        }
    }

    /// On to the next steps.
    fn write_on(&self, shader: &mut Shader, k_end: KEnd) {
        let n = self.name;
        if self.blocks.is_some() {
            return;
        }
        let Some(by) = self.along.1.stride() else {
            let (axis, list) = self.along;
            (0..self.n_rounds()).for_each(|u| count_by(shader, &format!("{n}{u}"), (n, axis), list, self.k_steps));
            return;
        };
        let by = (self.k_steps as isize * by) >> self.log_vector().unwrap_or(0);
        let on = shader.signed_param(&format!("{n}_on"), by);
        let on = match k_end {
            KEnd::Ragged => on,
            KEnd::Whole => select(0, on, named("more", ShaderType::Bool)),
        };
        shader.add_to(&word(format!("{n}_k")), on);
    }
}
