//! Sums of exponentials less their largest, as in softmax: one sweep instead of one for the largest and one for the sum.
//! What is subtracted meanwhile is the largest so far, or almost; when that has grown, what was summed is scaled.

use super::{Pairs, Reduction, Row, Sweep, Take};
use crate::dtype::Lane;
use crate::kernel::{InstOp, Reg};
use crate::ops::UnaryRow;
use crate::wgsl::choose::ReduceShape;
use crate::wgsl::eval::{Eval, Value, apply, without_parens};
use crate::wgsl::shader::Shader;

/// By how much the largest may grow before what is subtracted follows. Small, so that nothing large is subtracted from
/// what counts most, which would cost digits; not nothing, so that it follows a few times, not at every step.
const SLACK: &str = "1.0";
/// Less than anything that can be exceeded.
const LOWEST: &str = "-3.4028235e38";

/// Σ exp(x − max x) of a row.
#[derive(Clone, Copy)]
pub struct Shifted {
    pub max: Reg,
    pub sum: Reg,
    exp: &'static UnaryRow,
}

impl<'a> Reduction<'a> {
    /// Whether one sweep finds a largest element and the next sums exponentials less it, of rows that would be read
    /// twice.
    pub fn shifted(&self, first: &Sweep, then: &Sweep) -> Option<Shifted> {
        let (&[max], &[sum], [], []) = (&first.folds[..], &then.folds[..], &first.stores[..], &then.stores[..]) else {
            return None;
        };
        let insts = &self.context.body.insts;
        let InstOp::Unary(exp, difference) = insts[self.operand(sum) as usize].op else { return None };
        let InstOp::Binary(sub, x, subtracted) = insts[difference as usize].op else { return None };
        let named = [self.row(max).name, self.row(sum).name, exp.name, sub.name] == ["max", "sum", "exp", "sub"];
        let is_it = named && subtracted == max && x == self.operand(max) && self.lane(sum) == Lane::F32;
        let ReduceShape { kept, rest_of_four, .. } = self.shape;
        let is_read_twice = !kept && !rest_of_four && !self.context.body.ragged && !self.args.inner.contains(&0);
        (is_it && is_read_twice).then_some(Shifted { max, sum, exp })
    }

    /// What is subtracted: of the whole row, or of each column.
    fn shift(&self, of: Shifted, suffix: &str) -> Value {
        let four = self.columns && self.shape.four.is_some();
        Value { text: format!("shift{}{suffix}", of.sum), lane: Lane::F32, four }
    }

    /// Declares what is subtracted.
    pub fn declare_shift(&self, shader: &mut Shader, of: Shifted, suffix: &str) {
        let shift = self.shift(of, suffix);
        let lowest = Value { text: LOWEST.to_string(), four: false, ..shift };
        let start = if shift.four { lowest.as_four() } else { lowest.text };
        shader.line(format!("var {} = {start};", shift.text));
    }

    /// The body of a loop over `j`, for one row; `into` is what is summed into, beside `all`.
    pub fn trip_shifted(&'a self, shader: &mut Shader, row: &Row<'a>, of: Shifted, take: Take, into: &str) {
        let (x, e) = (self.operand(of.max), self.operand(of.sum));
        let mut steps: Vec<Eval> = Vec::new();
        for step in 0..self.n_steps(take) {
            let mut here = self.at_step(shader, row, take, step);
            here.need(shader, [x]);
            steps.push(here);
        }
        let values = steps.iter().map(|step| step.value(x).clone()).collect();
        let largest = self.in_pairs(shader, of.max, values);
        self.fold_into(shader, of.max, into, &row.suffix, &largest);

        let shift = self.shift(of, &row.suffix);
        let top = self.across(shader, of.max, into, &row.suffix).text;
        let name = |what: &str| format!("{what}{}{}", of.sum, row.suffix);
        let slack = if shift.four { format!("vec4({SLACK})") } else { SLACK.to_string() };
        shader.line(format!("let {} = {};", name("top"), without_parens(&top)));
        shader.line(format!(
            "let {} = select({shift}, {top}, {top} > {shift} + {slack});",
            name("next"),
            shift = shift.text,
            top = name("top"),
        ));
        let sums: &[&str] = if into == "all" { &["all"] } else { &["all", into] };
        self.scale(shader, of, &row.suffix, &name("next"), sums);
        shader.line(format!("{} = {};", shift.text, name("next")));

        let mut pairs = Pairs::new(of.sum);
        for step in &mut steps {
            step.values[of.max as usize] = Some(shift.clone());
            step.need(shader, [e]);
            self.pair(shader, &mut pairs, &row.suffix, step.value(e));
        }
        self.fold_pairs_into(shader, pairs, into, &row.suffix);
    }

    /// Makes sums that are less `shift` less `other`.
    pub fn scale(&self, shader: &mut Shader, of: Shifted, suffix: &str, other: &str, sums: &[&str]) {
        let shift = self.shift(of, suffix);
        shader.functions(of.exp.wgsl_fns);
        let difference = Value { text: format!("{} - {other}", shift.text), ..shift };
        let text = of.exp.wgsl.replace("$t", "f32");
        let (text, four) = apply(shader, of.exp.name, &text, &["$x"], &[difference], Lane::F32);
        let scale = Value { text: format!("scale{}{suffix}", of.sum), lane: Lane::F32, four };
        shader.line(format!("let {} = {text};", scale.text));
        let by = if self.shape.four.is_some() { scale.as_four() } else { scale.text };
        for sum in sums {
            shader.line(format!("{sum}{fold}{suffix} = {sum}{fold}{suffix} * {by};", fold = of.sum));
        }
    }
}
