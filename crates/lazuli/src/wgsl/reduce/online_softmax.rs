//! Sums of exponentials less their largest, as in softmax: one sweep instead of one for the largest and one for the sum.
//! What is subtracted meanwhile is the largest so far, or almost; when that has grown, what was summed is scaled.

use super::pairs::Pairs;
use super::{Reduction, Row, Take};
use crate::dtype::Lane;
use crate::wgsl::eval::{Eval, ShaderValue, without_parens};
use crate::wgsl::schedule::OnlineSoftmax;
use crate::wgsl::shader::Shader;

/// By how much the largest may grow before what is subtracted follows. Small, so that nothing large is subtracted from
/// what counts most, which would cost digits; not nothing, so that it follows a few times, not at every step.
const SLACK: &str = "1.0";
/// Less than anything that can be exceeded.
const LOWEST: &str = "-3.4028235e38";

impl<'a> Reduction<'a> {
    /// Declares what is subtracted.
    pub fn declare_shift(&self, shader: &mut Shader, of: OnlineSoftmax) {
        shader.line(format!("var shift{} = {LOWEST};", of.sum));
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
        let top = self.across(shader, of.max, into, "");
        shader.line(format!("let top{sum} = {};", without_parens(&top.text)));
        shader.line(format!("let next{sum} = select(shift{sum}, top{sum}, top{sum} > shift{sum} + {SLACK});"));
        let sums: &[&str] = if into == "all" { &["all"] } else { &["all", into] };
        self.scale(shader, of, &format!("next{sum}"), sums);
        shader.line(format!("shift{sum} = next{sum};"));

        let shift = ShaderValue { text: format!("shift{sum}"), lane: Lane::F32, four: false };
        let mut pairs = Pairs::new(sum);
        for step in &mut steps {
            step.values[of.max as usize] = Some(shift.clone());
            step.need(shader, [e]);
            self.pair(shader, &mut pairs, "", step.value(e));
        }
        self.fold_pairs_into(shader, pairs, into, "");
    }

    /// Makes sums of exponentials less `shift` sums of exponentials less `other`.
    pub fn scale(&self, shader: &mut Shader, of: OnlineSoftmax, other: &str, sums: &[&str]) {
        let sum = of.sum;
        shader.functions(of.exp.wgsl_fns);
        let exp = of.exp.wgsl.replace("$t", "f32").replace("$x", &format!("shift{sum} - {other}"));
        shader.line(format!("let scale{sum} = {exp};"));
        sums.iter().for_each(|name| shader.line(format!("{name}{sum} = {name}{sum} * scale{sum};")));
    }
}
