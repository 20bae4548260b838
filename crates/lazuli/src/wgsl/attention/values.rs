//! The product of a block's weights with the values.

use super::super::matmul::variants::{Read, Share};
use super::super::memory::LaunchMemory;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, call, min, named, select, word};
use super::{ChainedShader, FLOAT, FLOATS, four};

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
        let weights = shader.shared("sh_weights", n_columns * row_fours, FLOATS);
        for c in 0..tiles.key_fours {
            for j in 0..4 {
                let column = word("side") * 4 + (4 * c * across + j);
                for q in 0..tiles.rows / 4 {
                    let value = FLOATS.make((0..4).map(|r| four("weight", 4 * q + r, c).component(j)));
                    let at = &column * row_fours + word("down") * (tiles.rows / 4) + q;
                    shader.assign(&weights.at(at), value);
                }
            }
        }
        let tile = self.shared_tile(shader);
        let fours = tiles.tile_values() / 4;
        let n_slices = n_blocks * n_columns.div_ceil(k);
        let slice = shader.open_for("slice", 0, n_columns, k, n_slices);
        let n_trips = n_slices * (fours * k).div_ceil(tiles.n_invocations());
        let unit = shader.open_for("unit", word("lane"), fours * k, tiles.n_invocations(), n_trips);
        let column = min(word("key") + &slice + &unit / fours, word("params.n_columns") - 1);
        let at = shader.define("at", word("v_start") + column * word("params.v_place"));
        let value = shader.define("value", word("value_start") + &unit % fours * 4);
        let value = self.value_four(shader, memory, &at, &value);
        shader.assign(&tile.at(unit), value);
        shader.close();
        // Weights and values are there.
        shader.barrier();
        let step = shader.open_for("step", 0, k, 1, n_slices * k);
        let mut xs = Vec::new();
        for q in 0..tiles.rows / 4 {
            let at = (&slice + &step) * row_fours + word("down") * (tiles.rows / 4) + q;
            xs.push(shader.define(format!("x{q}"), weights.at(at)));
        }
        for c in 0..tiles.value_fours {
            let y = shader.define(format!("y{c}"), tile.at(&step * fours + word("side") + c * across));
            for r in 0..tiles.rows {
                let product = self.product(xs[r / 4].component(r % 4), y.clone());
                shader.add_to(&four("out", r, c), product);
            }
        }
        shader.close();
        // Everyone has used them.
        shader.barrier();
        shader.close();
    }
}
