//! Sums of exponentials less their largest, as in softmax: one sweep instead of one for the largest and one for the sum.
//! What is subtracted meanwhile is the largest so far, or almost; when that has grown, what was summed is scaled.

use super::pairs::Pairs;
use super::{Reduction, Row, Take};
use crate::dtype::Lane;
use crate::wgsl::eval::Eval;
use crate::wgsl::schedule::OnlineSoftmax;
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderType, literal, named, select, template};

/// By how much the largest may grow before what is subtracted follows. Small, so that nothing large is subtracted from
/// what counts most, which would cost digits; not nothing, so that it follows a few times, not at every step.
const SLACK: &str = "1.0";
/// Less than anything that can be exceeded.
const LOWEST: &str = "-3.4028235e38";

impl<'a> Reduction<'a> {
    /// Declares what is subtracted.
    pub fn declare_shift(&self, shader: &mut Shader, of: OnlineSoftmax) {
        shader.variable(shift(of).to_string(), literal(LOWEST, Lane::F32));
    }

    /// The body of a loop over `j`; `into` is what is folded into, beside `all`.
    pub fn trip_shifted(&'a self, shader: &mut Shader, row: &Row<'a>, of: OnlineSoftmax, take: Take, into: &str) {
        let (x, e) = (self.operand(of.max), self.operand(of.sum));
        let mut steps: Vec<Eval> = Vec::new();
        for step in 0..self.n_steps(take) {
            let mut here = self.at_step(shader, row, take, step);
            here.need(shader, [x]);
            steps.push(here);
        }
        let values = steps.iter().map(|step| step.value(x).clone()).collect();
        let largest = self.in_pairs(shader, of.max, values);
        self.fold_into(shader, of.max, into, "", &largest);

        let sum = of.sum;
        let (shift, top) = (shift(of), self.across(shader, of.max, into, ""));
        let top = shader.define(format!("top{sum}"), top);
        let has_grown = top.more(&shift + literal(SLACK, Lane::F32));
        let next = shader.define(format!("next{sum}"), select(&shift, top, has_grown));
        let sums: &[&str] = if into == "all" { &["all"] } else { &["all", into] };
        self.scale(shader, of, &next, sums);
        shader.assign(&shift, next);

        let mut pairs = Pairs::new(sum);
        for step in &mut steps {
            step.values[of.max as usize] = Some(shift.clone());
            step.need(shader, [e]);
            self.pair(shader, &mut pairs, "", step.value(e));
        }
        self.fold_pairs_into(shader, pairs, into, "");
    }

    /// Makes sums of exponentials less `shift` sums of exponentials less `other`.
    pub fn scale(&self, shader: &mut Shader, of: OnlineSoftmax, other: &ShaderExpr, sums: &[&str]) {
        let sum = of.sum;
        shader.functions(of.exp.wgsl_fns);
        let text = of.exp.wgsl.replace("$t", "f32");
        let exp = template(text, &["$x"], vec![shift(of) - other], ShaderType::One(Lane::F32));
        let scale = shader.define(format!("scale{sum}"), exp);
        for name in sums {
            let of_rows = self.accumulator(name, sum, "", self.shape.four.is_some() && *name != "rest");
            shader.assign(&of_rows, &of_rows * &scale);
        }
    }
}

/// What is subtracted meanwhile.
fn shift(of: OnlineSoftmax) -> ShaderExpr {
    named(format!("shift{}", of.sum), ShaderType::One(Lane::F32))
}
