//! Folding two by two, so that neither rounding nor waiting adds up.

use super::Reduction;
use crate::kernel::Reg;
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::ShaderExpr;

/// Values that are folded two by two as they come.
pub struct Pairs {
    pub fold: Reg,
    /// What is not folded yet, and how many values it is made of: fewer and fewer.
    held: Vec<(ShaderExpr, usize)>,
    n_names: usize,
}

impl Pairs {
    /// None yet.
    pub fn new(fold: Reg) -> Pairs {
        Pairs { fold, held: Vec::new(), n_names: 0 }
    }
}

impl Reduction<'_> {
    /// Takes one more value. What can be folded is, at once: drivers keep the order, and few registers.
    pub fn pair(&self, shader: &mut Shader, pairs: &mut Pairs, suffix: &str, value: &ShaderExpr) {
        let (mut folded, mut n_values) = (value.clone(), 1);
        while let Some((other, _)) = pairs.held.pop_if(|(_, n)| *n == n_values) {
            let both = self.combined(shader, pairs.fold, &other, &folded);
            folded = shader.define(format!("pair{}_{}{suffix}", pairs.fold, pairs.n_names), both);
            n_values *= 2;
            pairs.n_names += 1;
        }
        pairs.held.push((folded, n_values));
    }

    /// Folds all that was taken into an accumulator.
    pub fn fold_pairs_into(&self, shader: &mut Shader, pairs: Pairs, into: &str, suffix: &str) {
        let held = pairs.held.into_iter().map(|(value, _)| value).collect();
        let value = self.in_pairs(shader, pairs.fold, held);
        self.fold_into(shader, pairs.fold, into, suffix, &value);
    }

    /// Values that are all there, folded.
    pub fn in_pairs(&self, shader: &mut Shader, fold: Reg, mut values: Vec<ShaderExpr>) -> ShaderExpr {
        while values.len() > 1 {
            let pair = |pair: &[ShaderExpr]| match pair {
                [x, y] => self.combined(shader, fold, x, y),
                _ => pair[0].clone(),
            };
            values = values.chunks(2).map(pair).collect();
        }
        values[0].reinterpreted(self.lane(fold))
    }
}
