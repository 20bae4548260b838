//! Folding what the invocations of a row have, so that all of them get the result: through workgroup memory with a barrier for
//! every halving; or by subgroups, whose invocations hand values to each other, and with one barrier where a row has several.
//! In which order values are folded depends on the schedule alone and not on how large subgroups turn out to be.

use super::super::butterfly::exchange;
use super::super::schedule::ReduceSchedule;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, lane_name, word};
use super::Reduction;
use crate::kernel::Reg;

impl Reduction<'_> {
    /// Folds the values of a row's invocations through workgroup memory, half of them at a time.
    pub fn through_memory(&self, shader: &mut Shader, fold: Reg, suffix: &str, value: ShaderExpr) -> ShaderExpr {
        let ReduceSchedule { items, lanes, .. } = *self.shape;
        let name = format!("sh_{}{}", lane_name(value.lane()), if value.is_four() { "x4" } else { "" });
        let shared = shader.shared(&name, items * lanes, value.ty());
        let (lane, part) = (word("lane"), word("part"));
        let own = shared.at(&lane);
        shader.assign(&own, value);
        shader.barrier();
        let half = shader.open_halving("half", lanes / 2, lanes.ilog2() as usize);
        let (first, apart) = match (items, self.columns) {
            (1, _) => (0.into(), half.clone()),
            (_, true) => (&lane % items, &half * items),
            (_, false) => (&lane - &part, half.clone()),
        };
        shader.open_if(part.less(half));
        let both = self.combined(shader, fold, &own, &shared.at(lane + apart));
        shader.assign(&own, both);
        shader.close();
        shader.barrier();
        shader.close();
        let result = shader.define(format!("r{fold}{suffix}"), shared.at(first));
        shader.barrier();
        result
    }

    /// Folds the values of a row's invocations by subgroups, of which so many invocations that follow each other are sure to be
    /// in one.
    pub fn through_subgroups(
        &self,
        shader: &mut Shader,
        fold: Reg,
        suffix: &str,
        value: ShaderExpr,
        width: usize,
    ) -> ShaderExpr {
        let ReduceSchedule { items, lanes, .. } = *self.shape;
        let all = shader.variable(format!("both{fold}{suffix}"), value);
        exchange(shader, &all, lanes.min(width), 1, |shader, x, y| self.combined(shader, fold, x, y));
        if lanes > width {
            let n_parts = lanes / width;
            let (lane, part) = (word("lane"), word("part"));
            // An array of its own for every fold: none is written while another is read.
            let name = format!("sh_{}{fold}{suffix}", lane_name(all.lane()));
            let shared = shader.shared(&name, items * n_parts, all.ty());
            shader.open_if((&part % width).equals(0));
            shader.assign(&shared.at(&lane / width), all.clone());
            shader.close();
            // What every part has folded is there.
            shader.barrier();
            let n_side_by_side = n_parts.min(width);
            let first = shader.define(format!("first{fold}{suffix}"), (&lane - &part) / width + part % n_side_by_side);
            let values = (0..n_parts).step_by(n_side_by_side).map(|by| shared.at(&first + by)).collect();
            let own = self.in_pairs(shader, fold, values);
            shader.assign(&all, own);
            exchange(shader, &all, n_side_by_side, 1, |shader, x, y| self.combined(shader, fold, x, y));
        }
        shader.define(format!("r{fold}{suffix}"), all)
    }
}
