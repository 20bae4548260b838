//! Inner products of a block, and the weights made of them.

use super::super::butterfly::exchange;
use super::super::eval::{Eval, apply};
use super::super::launch_memory::LaunchMemory;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, call, min, select, word};
use super::{ChainedShader, FLOAT, FLOATS, four, least, one};
use crate::dtype::Lane;
use crate::kernel::InstOp;
use crate::ops::UnaryRow;
use crate::target::variants::{Read, Share};

/// A four of places that an invocation brings to workgroup memory: at one step, or at four.
struct BroughtUnit {
    step: ShaderExpr,
    four_idx: ShaderExpr,
    /// Whether this invocation has it; None if all do.
    has_unit: Option<ShaderExpr>,
    /// Of one step the four places; of four steps, the steps of each place.
    values: Vec<ShaderExpr>,
}

impl BroughtUnit {
    fn write_to(&self, shader: &mut Shader, tile: &ShaderExpr, first: usize) {
        self.has_unit.iter().for_each(|has_unit| shader.open_if(has_unit.clone()));
        for s in 0..self.values.len() {
            let value = match self.values.len() {
                1 => self.values[0].clone(),
                _ => FLOATS.make(self.values.iter().map(|value| value.component(s))),
            };
            shader.assign(&tile.at(self.step.plus(s)).at(self.four_idx.plus(first)), value);
        }
        if self.has_unit.is_some() {
            shader.close();
        }
    }
}

impl ChainedShader<'_> {
    /// The sums of inner product `i` of this invocation's part of the block: `inner{i}_{r}_{c}`.
    pub fn write_inner_product(&self, shader: &mut Shader, memory: &LaunchMemory, i: usize, n_blocks: usize) {
        let name = format!("inner{i}_");
        for r in 0..self.tiles.rows {
            (0..self.tiles.key_fours).for_each(|c| drop(shader.variable(format!("{name}{r}_{c}"), FLOATS.zero())));
        }
        match self.tiles.share {
            Share::SubgroupBroadcast(n) => self.write_broadcast_product(shader, memory, i, n, n_blocks),
            _ => self.write_shared_product(shader, memory, i, n_blocks),
        }
    }

    /// Every invocation reads the columns that it has, and some of the rows, which it hands to the others.
    fn write_broadcast_product(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        i: usize,
        n_lanes: usize,
        n_blocks: usize,
    ) {
        let tiles = &self.tiles;
        for c in 0..tiles.key_fours {
            for j in 0..4 {
                let column = self.column(&self.four_of_keys(c), j);
                let at = word(format!("right{i}_start")) + column * word(format!("params.right{i}_place"));
                shader.define(format!("right{i}_at{c}_{j}"), at);
            }
        }
        let n_steps = n_blocks * self.args.inner[i].depth.div_ceil(4);
        // A sum of no products takes no step.
        let depth = word(format!("params.depth{i}"));
        let d = match self.args.inner[i].depth {
            0 => shader.open_for("d", 0, depth, 4, n_steps),
            _ => shader.open_repeat("d", 0, depth, 4, n_steps),
        };
        let mut own = Vec::new();
        for first in (0..tiles.rows).step_by(n_lanes) {
            let value = self.along(shader, memory, (i, 0), &word(format!("left{i}_at{first}")), &d);
            own.push(shader.define(format!("own{first}"), value));
        }
        for c in 0..tiles.key_fours {
            let mut read = Vec::new();
            for j in 0..4 {
                let value = self.along(shader, memory, (i, 1), &word(format!("right{i}_at{c}_{j}")), &d);
                read.push(shader.define(format!("w{c}_{j}"), value));
            }
            for step in 0..4 {
                let y = FLOATS.make(read.iter().map(|w| w.component(step)));
                shader.define(format!("y{c}_{step}"), y);
            }
        }
        for r in 0..tiles.rows {
            let x = call("subgroupBroadcast", [own[r / n_lanes].clone(), (r % n_lanes).into()], FLOATS);
            let x = shader.define(format!("x{r}"), x);
            for c in 0..tiles.key_fours {
                // Four products are added up before their sum is added to what is there: a fourth of the roundings.
                let products = (0..4).map(|step| x.component(step) * four("y", c, step));
                let sum = products.reduce(|sum, product| sum + product);
                sum.into_iter().for_each(|sum| shader.add_to(&four(&format!("inner{i}_"), r, c), sum));
            }
        }
        shader.close();
    }

    /// Four elements of an operand's place from `d` on; zeros behind the end.
    fn along(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        (i, side): (usize, usize),
        at: &ShaderExpr,
        d: &ShaderExpr,
    ) -> ShaderExpr {
        let input = 2 * i + side;
        if self.tiles.reads[i][side] == Read::AlongK {
            return memory.load4(shader, input, at + d);
        }
        let step = word(format!("params.{}{i}_along", ["left", "right"][side]));
        let depth = word(format!("params.depth{i}"));
        let each = [0, 1, 2, 3].map(|k| match self.tiles.depth_by_four[i] {
            true => memory.load(shader, input, at + d.plus(k) * &step),
            false => {
                let value = memory.load(shader, input, at + min(d.plus(k), &depth - 1) * &step);
                select(FLOAT.zero(), value, d.plus(k).less(&depth))
            }
        });
        FLOATS.make(each)
    }

    /// The workgroup brings some steps of all rows and columns of the block to its memory at a time. Steps are written out: a
    /// loop would cost a branch and clamped indices at each.
    fn write_shared_product(&self, shader: &mut Shader, memory: &LaunchMemory, i: usize, n_blocks: usize) {
        let tiles = &self.tiles;
        let Share::WorkgroupTile { across, k, .. } = tiles.share else { unreachable!("bug: no workgroup's tile") };
        let row_fours = tiles.block_rows() / 4;
        let tile = self.shared_tile(shader);
        let n_slices = n_blocks * self.args.inner[i].depth.div_ceil(k);
        shader.open_for("d", 0, word(format!("params.depth{i}")), k, n_slices);
        // All reads come first.
        let brought = [0, 1].map(|side| self.write_reads(shader, memory, i, side));
        for (side, units) in brought.iter().enumerate() {
            let first = [0, row_fours][side];
            units.iter().for_each(|unit| unit.write_to(shader, &tile, first));
        }
        // All of it is there.
        shader.barrier();
        for step in 0..k {
            let tile = tile.at(step);
            let mut xs = Vec::new();
            for q in 0..tiles.rows / 4 {
                let at = word("down").times(tiles.rows / 4).plus(q);
                xs.push(shader.define(format!("x{step}_{q}"), tile.at(at)));
            }
            for c in 0..tiles.key_fours {
                let y = shader.define(format!("y{step}_{c}"), tile.at(word("side") + (c * across + row_fours)));
                for r in 0..tiles.rows {
                    shader.add_to(&four(&format!("inner{i}_"), r, c), xs[r / 4].component(r % 4) * &y);
                }
            }
        }
        // Everyone has used it.
        shader.barrier();
        shader.close();
    }

    /// Reads this invocation's share of the steps from `d` on of one operand. Steps behind the end are zeros; places behind
    /// the end are the last one again, and what becomes of them is not used.
    fn write_reads(&self, shader: &mut Shader, memory: &LaunchMemory, i: usize, side: usize) -> Vec<BroughtUnit> {
        let tiles = &self.tiles;
        let Share::WorkgroupTile { k, .. } = tiles.share else { unreachable!("bug: no workgroup's tile") };
        let (start, end, fours) = match side {
            0 => (word("row_start"), word("params.n_rows"), tiles.block_rows() / 4),
            _ => (word("key"), word("params.n_columns"), tiles.block_columns() / 4),
        };
        let (name, depth) = (format!("{}{i}", ["left", "right"][side]), word(format!("params.depth{i}")));
        let by_four = tiles.reads[i][side] == Read::AlongK;
        // A unit is a four of places at one step, or at four steps that are read at once.
        let per = if by_four { 4 } else { 1 };
        let (n_units, group) = (fours * k / per, tiles.n_invocations());
        let mut units = Vec::new();
        for u in 0..n_units.div_ceil(group) {
            // Where one operand keeps some invocations busy, the others bring the other one.
            let own = match side == 1 && n_units < group {
                true => (word("lane") + n_units) % group,
                false => word("lane").plus(u * group),
            };
            let suffix = format!("_{name}_{u}");
            let unit = shader.define(format!("unit{suffix}"), own);
            let step = shader.define(format!("step{suffix}"), (&unit / fours).times(per));
            let four_idx = shader.define(format!("four{suffix}"), &unit % fours);
            let has_unit = ((u + 1) * group > n_units).then(|| unit.less(n_units));
            let values: Vec<ShaderExpr> =
                (0..per).map(|s| shader.variable(format!("v{s}{suffix}"), FLOATS.zero())).collect();
            let is_there = (word("d") + &step).less(depth.clone());
            shader.open_if(has_unit.clone().map_or(is_there.clone(), |has_unit| has_unit.and(is_there)));
            let along = word("d") + &step;
            let along = if by_four { along } else { along * word(format!("params.{name}_along")) };
            let at = shader.define("at", word(format!("{name}_start")) + along);
            let place = shader.define("place", start.clone() + &four_idx * 4);
            let input = 2 * i + side;
            let each = [0, 1, 2, 3].map(|j| {
                let at = &at + min(place.plus(j), &end - 1) * word(format!("params.{name}_place"));
                match by_four {
                    true => memory.load4(shader, input, at),
                    false => memory.load(shader, input, at),
                }
            });
            match by_four {
                true => values.iter().zip(each).for_each(|(value, read)| shader.assign(value, read)),
                false => shader.assign(&values[0], FLOATS.make(each)),
            }
            shader.close();
            units.push(BroughtUnit { step, four_idx, has_unit, values });
        }
        units
    }

    /// Workgroup memory that holds steps of both operands, or some values: an array for each step.
    pub fn shared_tile(&self, shader: &mut Shader) -> ShaderExpr {
        let tiles = &self.tiles;
        let Share::WorkgroupTile { k, .. } = tiles.share else { unreachable!("bug: no workgroup's tile") };
        let fours = ((tiles.block_rows() + tiles.block_columns()) / 4).max(tiles.tile_values() / 4);
        shader.shared_rows("sh_tile", [k, fours], FLOATS)
    }

    /// The weights of the block, `weight{r}_{c}`, from its inner products; the state of rows goes along.
    pub fn write_weights(&self, shader: &mut Shader, eval: &Eval, n_blocks: usize) {
        let tiles = &self.tiles;
        let mut factors: Vec<Vec<ShaderExpr>> = Vec::new();
        let minus_infinity = word("params.minus_infinity").reinterpreted(Lane::F32);
        for r in 0..tiles.rows {
            let mut of_row = Vec::new();
            for c in 0..tiles.key_fours {
                let mut here = eval.clone();
                here.spot = self.score_spot(shader, r, c);
                for (reg, inst) in self.scores.body.insts.iter().enumerate() {
                    if let InstOp::Acc(i) = inst.op {
                        here.values[reg] = Some(four(&format!("inner{i}_"), r, c));
                    }
                }
                here.need(shader, [self.score].into_iter().chain(self.factor));
                let has = word(format!("has{c}"));
                let score = here.value(self.score).as_four();
                let hidden = if self.kernel.softmax.is_some() { minus_infinity.as_four() } else { FLOATS.zero() };
                shader.variable(format!("weight{r}_{c}"), select(hidden, score, has));
                of_row.extend(self.factor.map(|factor| here.value(factor).clone()));
            }
            factors.push(of_row);
        }
        if let Some(exp) = self.kernel.softmax {
            self.write_softmax(shader, exp, n_blocks);
        }
        for (r, of_row) in factors.into_iter().enumerate() {
            for (c, factor) in of_row.into_iter().enumerate() {
                let weight = four("weight", r, c);
                // What is behind the last column has no weight, whatever is found there for a factor.
                let product = &weight * factor.as_four();
                shader.assign(&weight, select(FLOATS.zero(), product, word(format!("has{c}"))));
            }
        }
    }

    /// Turns scores into weights `exp(score − shift)`; rows whose greatest score grows are rescaled.
    fn write_softmax(&self, shader: &mut Shader, exp: &'static UnaryRow, n_blocks: usize) {
        let tiles = &self.tiles;
        let max = |x: ShaderExpr, y: ShaderExpr| {
            let ty = x.ty();
            call("max", [x, y], ty)
        };
        for r in 0..tiles.rows {
            let all = (0..tiles.key_fours).map(|c| four("weight", r, c)).reduce(max);
            let Some(all) = all else { unreachable!("bug: no columns") };
            let all = shader.define(format!("tops{r}"), all);
            let top = max(max(all.component(0), all.component(1)), max(all.component(2), all.component(3)));
            shader.variable(format!("top{r}"), top);
        }
        self.write_across(shader, "top", "max", n_blocks);
        for r in 0..tiles.rows {
            let old = shader.define(format!("old{r}"), max(one("max", r), least()));
            shader.assign(&one("max", r), max(one("max", r), one("top", r)));
            let new = shader.define(format!("shift{r}"), max(one("max", r), least()));
            let grown = exponential(shader, exp, old - &new);
            let scale = shader.define(format!("scale{r}"), grown);
            let mut sums = Vec::new();
            for c in 0..tiles.key_fours {
                let weight = four("weight", r, c);
                let value = exponential(shader, exp, &weight - new.as_four());
                shader.assign(&weight, value);
                sums.push(weight);
            }
            let sums = sums.into_iter().reduce(|all, one| all + one).unwrap_or(FLOATS.zero());
            let sums = shader.define(format!("sums{r}"), sums);
            let sum = sums.component(0) + sums.component(1) + sums.component(2) + sums.component(3);
            shader.assign(&one("sum", r), one("sum", r) * &scale + sum);
            for c in 0..tiles.value_fours {
                let out = four("out", r, c);
                shader.assign(&out, &out * &scale);
            }
        }
    }

    /// Combines a variable of each row over all invocations that share rows, `max` or `+`: all of them get it.
    pub fn write_across(&self, shader: &mut Shader, name: &str, how: &str, n_times: usize) {
        let tiles = &self.tiles;
        let both = |x: &ShaderExpr, y: &ShaderExpr| match how {
            "max" => call("max", [x.clone(), y.clone()], x.ty()),
            _ => x + y,
        };
        // A butterfly of subgroup shuffles, also where a driver runs a subgroup as one CPU vector: llvmpipe compiles `subgroupMax` and
        // `subgroupAdd` to loops over invocations. Without these 64 loops it executes 8 % fewer instructions to compile
        // attention of 24 rows.
        let near = match tiles.share {
            Share::SubgroupBroadcast(n) => n,
            _ => tiles.shuffle.unwrap_or(1),
        };
        for r in tiles.rows / 4 * 4..tiles.rows {
            exchange(shader, &one(name, r), near, 1, |_, x, y| both(x, y));
        }
        let fours = tiles.rows / 4;
        let rows_of = |q: usize| FLOATS.make((0..4).map(|j| one(name, 4 * q + j)));
        let folded = |shader: &mut Shader, q: usize| {
            let all = shader.variable(format!("all_{name}{q}"), rows_of(q));
            exchange(shader, &all, near, 1, |_, x, y| both(x, y));
            all
        };
        let mut alls: Vec<ShaderExpr> = (0..fours).map(|q| folded(shader, q)).collect();
        let n_parts = tiles.across() / near;
        if n_parts > 1 {
            let [shared, own] = self.row_memory(shader, fours * n_parts);
            let is_first = (near > 1).then(|| (word("side") % near).equals(0));
            is_first.iter().for_each(|is_first| shader.open_if(is_first.clone()));
            let part = if near > 1 { word("side") / near } else { word("side") };
            for (q, all) in alls.iter().enumerate() {
                shader.assign(&shared.at(&own + (q * n_parts) + &part), all);
            }
            if is_first.is_some() {
                shader.close();
            }
            // What everyone has is there.
            shader.barrier();
            for (q, all) in alls.iter_mut().enumerate() {
                shader.assign(all, shared.at(&own + (q * n_parts)));
                let other = shader.open_for("other", 1, n_parts, 1, n_times * n_parts);
                let other = shared.at(&own + (q * n_parts) + other);
                shader.assign(all, both(all, &other));
                shader.close();
            }
            // The memory is free for the next.
            shader.barrier();
        }
        for (q, all) in alls.iter().enumerate() {
            (0..4).for_each(|j| shader.assign(&one(name, 4 * q + j), all.component(j)));
        }
    }

    /// Workgroup memory for so many values of this invocation's rows, and where they start in it. The memory of steps is free then:
    /// rows share an array of it, or two do.
    fn row_memory(&self, shader: &mut Shader, n: usize) -> [ShaderExpr; 2] {
        let Share::WorkgroupTile { down, k, .. } = self.tiles.share else { unreachable!("bug: no workgroup's tile") };
        let tile = self.shared_tile(shader);
        match down > k {
            true => [tile.at(word("down") % k), word("down") / k * n],
            false => [tile.at(word("down")), 0.into()],
        }
    }
}

/// The softmax's own exponential.
pub fn exponential(shader: &mut Shader, exp: &'static UnaryRow, x: ShaderExpr) -> ShaderExpr {
    shader.functions(exp.wgsl_fns);
    let text = exp.wgsl.replace("$t", "f32");
    debug_assert!(matches!(x.ty(), ShaderType::One(Lane::F32) | ShaderType::Vec(4, Lane::F32)));
    apply(shader, exp.name, &text, &["$x"], vec![x], Lane::F32)
}
