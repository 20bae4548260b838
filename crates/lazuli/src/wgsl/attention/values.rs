//! The product of a block's weights with the values.

use super::super::launch_memory::LaunchMemory;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, Statement, call, min, named, select, word};
use super::{ChainedShader, FLOAT, FLOATS, four};
use crate::dtype::Lane;
use crate::target::variants::{Read, Share};

const WORD: ShaderType = ShaderType::One(Lane::U32);

const IS_FINITE: &str = "
fn is_finite_f32x4(x: vec4<f32>) -> bool {
    let size = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(size.x, size.y), max(size.z, size.w)) < 0x7f800000u;
}
";

impl ChainedShader<'_> {
    /// Adds the products of the block's weights and values to `out{r}_{c}`.
    pub fn write_values(&self, shader: &mut Shader, memory: &LaunchMemory, n_blocks: usize) {
        match self.tiles.share {
            Share::SubgroupBroadcast(n) => self.write_broadcast_values(shader, memory, n, n_blocks),
            _ => self.write_shared_values(shader, memory, n_blocks),
        }
    }

    /// Each invocation in turn hands its weights to the others, which read the values that go with them.
    fn write_broadcast_values(&self, shader: &mut Shader, memory: &LaunchMemory, n_lanes: usize, n_blocks: usize) {
        let tiles = &self.tiles;
        // A loop for each four of columns: a body with all of them does not fit into the instruction cache of a processor.
        for k in 0..tiles.key_fours {
            let giver = shader.open_for("giver", 0, n_lanes, 1, n_blocks * n_lanes);
            let first = word("key") + &giver * (4 * tiles.key_fours) + 4 * k;
            let first = match tiles.keys_by_four {
                true => min(first, word("params.n_columns") - 4),
                false => first,
            };
            let first = shader.define(format!("first{k}"), first);
            for j in 0..4 {
                let at = word("v_start") + self.column(&first, j) * word("params.v_place");
                let at = shader.define(format!("v_at{k}_{j}"), at);
                for c in 0..tiles.value_fours {
                    let value = self.value_four(shader, memory, &at, &word(format!("value{c}")));
                    shader.define(format!("v{k}_{j}_{c}"), value);
                }
            }
            for r in 0..tiles.rows {
                let x = call("subgroupShuffle", [four("weight", r, k), giver.clone()], FLOATS);
                let x = shader.define(format!("x{k}_{r}"), x);
                for c in 0..tiles.value_fours {
                    let product = |j: usize| self.product(x.component(j), named(format!("v{k}_{j}_{c}"), FLOATS));
                    let sum = (0..4).map(product).reduce(|sum, product| sum + product);
                    sum.into_iter().for_each(|sum| shader.add_to(&four("out", r, c), sum));
                }
            }
            shader.close();
        }
    }

    /// A weight times values. Where masks hide columns, a weight of 0 hides what is not finite, too.
    fn product(&self, weight: ShaderExpr, values: ShaderExpr) -> ShaderExpr {
        match self.tiles.hides {
            true => select(FLOATS.zero(), &weight * values, weight.differs(FLOAT.zero())),
            false => weight * values,
        }
    }

    /// Four values of the column whose values start at `at`. Those behind the end are the last ones again, and what
    /// becomes of them is not stored.
    fn value_four(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        at: &ShaderExpr,
        value: &ShaderExpr,
    ) -> ShaderExpr {
        let input = 2 * self.args.inner.len();
        let n_values = word("params.n_values");
        if self.tiles.values == Read::Across {
            return memory.load4(shader, input, at + min(value, n_values - 4));
        }
        let each = [0, 1, 2, 3].map(|k| {
            let value = min(value.plus(k), &n_values - 1) * word("params.v_along");
            memory.load(shader, input, at + value)
        });
        FLOATS.make(each)
    }

    /// Weights go through workgroup memory, and so do the values, some columns at a time.
    fn write_shared_values(&self, shader: &mut Shader, memory: &LaunchMemory, n_blocks: usize) {
        let tiles = &self.tiles;
        let Share::WorkgroupTile { across, k, .. } = tiles.share else { unreachable!("bug: no workgroup's tile") };
        let (row_fours, n_columns) = (tiles.block_rows() / 4, tiles.block_columns());
        let weights = shader.shared_rows("sh_weights", [n_columns, row_fours], FLOATS);
        for c in 0..tiles.key_fours {
            for j in 0..4 {
                let column = word("side") * 4 + (4 * c * across + j);
                for q in 0..tiles.rows / 4 {
                    let value = FLOATS.make((0..4).map(|r| four("weight", 4 * q + r, c).component(j)));
                    let at = word("down").times(tiles.rows / 4).plus(q);
                    shader.assign(&weights.at(&column).at(at), value);
                }
            }
        }
        let tile = self.shared_tile(shader);
        let fours = tiles.tile_values() / 4;
        let (n_slices, n_units, group) = (n_columns.div_ceil(k), fours * k, tiles.n_invocations());
        let slice = shader.open_for("slice", 0, n_columns, k, n_blocks * n_slices);
        for u in 0..n_units.div_ceil(group) {
            let unit = shader.define(format!("unit{u}"), word("lane").plus(u * group));
            let is_partial = (u + 1) * group > n_units;
            if is_partial {
                shader.open_if(unit.less(n_units));
            }
            let (step, four_idx) = (&unit / fours, &unit % fours);
            let column = min(word("key") + &slice + &step, word("params.n_columns") - 1);
            let at = shader.define(format!("at{u}"), word("v_start") + column * word("params.v_place"));
            let value = shader.define(format!("at_value{u}"), word("value_start") + &four_idx * 4);
            let value = self.value_four(shader, memory, &at, &value);
            let value = shader.define(format!("brought{u}"), value);
            if tiles.hides {
                shader.functions(IS_FINITE);
                shader.open_if(call("is_finite_f32x4", [value.clone()], ShaderType::Bool).negated());
                let noted = call("atomicStore", [named("sh_infinite", WORD).pointer(), 1.into()], ShaderType::Nothing);
                shader.add(Statement::Do(noted));
                shader.close();
            }
            shader.assign(&tile.at(step).at(four_idx), value);
            if is_partial {
                shader.close();
            }
        }
        // Weights and values are there.
        shader.barrier();
        if tiles.hides {
            let infinite = call("atomicLoad", [named("sh_infinite", WORD).pointer()], WORD);
            shader.open_if(infinite.differs(0));
            let step = shader.open_for("step", 0, k, 1, n_blocks * n_slices * k);
            self.write_step_of_values(shader, &weights, &slice, &step, "_h", tiles.hides);
            shader.close();
            shader.close();
            shader.open_else(None);
        }
        for step in 0..k {
            self.write_step_of_values(shader, &weights, &slice, &step.into(), &step.to_string(), false);
        }
        if tiles.hides {
            shader.close();
        }
        // Everyone has used them.
        shader.barrier();
        shader.close();
    }

    /// The products of one column's weights and values.
    fn write_step_of_values(
        &self,
        shader: &mut Shader,
        weights: &ShaderExpr,
        slice: &ShaderExpr,
        step: &ShaderExpr,
        suffix: &str,
        hides: bool,
    ) {
        let tiles = &self.tiles;
        let Share::WorkgroupTile { across, .. } = tiles.share else { unreachable!("bug: no workgroup's tile") };
        let weights = weights.at(slice + step);
        let tile = self.shared_tile(shader).at(step);
        let mut xs = Vec::new();
        for q in 0..tiles.rows / 4 {
            let at = word("down").times(tiles.rows / 4).plus(q);
            xs.push(shader.define(format!("x{suffix}_{q}"), weights.at(at)));
        }
        for c in 0..tiles.value_fours {
            let y = shader.define(format!("y{suffix}_{c}"), tile.at(word("side").plus(c * across)));
            for r in 0..tiles.rows {
                let x = xs[r / 4].component(r % 4);
                let product = if hides { self.product(x, y.clone()) } else { x * &y };
                shader.add_to(&four("out", r, c), product);
            }
        }
    }

    /// Before the first block: no value that is not finite was met. Weights of 0 hide those, which takes longer than a
    /// product.
    pub fn write_hiding(&self, shader: &mut Shader) {
        if !self.tiles.hides || matches!(self.tiles.share, Share::SubgroupBroadcast(_)) {
            return;
        }
        shader.global("var<workgroup> sh_infinite: atomic<u32>;".to_string());
        shader.open_if(word("lane").equals(0));
        let nothing = call("atomicStore", [named("sh_infinite", WORD).pointer(), 0.into()], ShaderType::Nothing);
        shader.add(Statement::Do(nothing));
        shader.close();
        shader.barrier();
    }
}
