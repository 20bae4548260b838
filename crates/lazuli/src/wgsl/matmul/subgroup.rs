//! Products of a subgroup that makes tiles side by side: the rows of `a` are the same for all of its invocations, so
//! each reads some and hands them to the others. A driver that runs on the CPU reads memory lane by lane, but hands a
//! value from one lane to all in one instruction: this is twice as fast there as reading everything alone.

use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, call, min, word};
use super::{MatmulShader, place};
use crate::target::variants::Read;

impl MatmulShader<'_> {
    /// Where the rows of `a` start that this invocation reads: of every `n_lanes` rows of the tile one.
    pub fn write_subgroup_rows(&self, shader: &mut Shader, n_lanes: usize) {
        for first in (0..self.shape.variant.rows).step_by(n_lanes) {
            let row = min(word("row") + first + word("lane"), self.number("m") - 1);
            let at = place(shader, "a", "row", &self.matmul.a.rows, &row);
            shader.define(format!("a{first}"), word("a_start") + at);
        }
    }

    /// The products of `n` steps from `k` on, row by row, so that a row that was handed over is used at once.
    pub fn write_subgroup_products(&self, shader: &mut Shader, n_lanes: usize, n: usize, into: &str) {
        let rows = self.shape.variant.rows;
        let mut own = Vec::new();
        for first in (0..rows).step_by(n_lanes) {
            let value = self.own_row(shader, first, n);
            own.push(shader.define(format!("own{first}"), value));
        }
        if self.shape.b == Read::AlongK && n > 1 {
            self.write_b_along_k(shader);
        }
        (0..n).for_each(|i| self.write_row_of_b(shader, n, i));
        for r in 0..rows {
            let own = &own[r / n_lanes];
            let x = call("subgroupBroadcast", [own.clone(), (r % n_lanes).into()], own.ty());
            let x = shader.define(format!("x{r}"), x);
            let xs: Vec<ShaderExpr> = (0..n).map(|i| x.component(i)).collect();
            self.write_sum(shader, into, r, &xs);
        }
    }

    /// `n` steps of the row that this invocation reads of those from `first` on.
    fn own_row(&self, shader: &mut Shader, first: usize, n: usize) -> ShaderExpr {
        let value = match (self.shape.a, n) {
            (Read::AlongK, 2..) => {
                let at = self.a_along_k(shader, first);
                self.memory.load4(shader, 0, at)
            }
            (_, 1) => {
                let at = self.a_at(shader, first, 0);
                self.memory.load(shader, 0, at)
            }
            _ => {
                let one = |i: usize| {
                    let at = self.a_at(shader, first, i);
                    self.memory.load(shader, 0, at)
                };
                let each: Vec<ShaderExpr> = (0..n).map(one).collect();
                call("vec4", each, ShaderType::four(self.context.body.inputs[0].dtype().lane()))
            }
        };
        value.reinterpreted(self.lane)
    }
}
