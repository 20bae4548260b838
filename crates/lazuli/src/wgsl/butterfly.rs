//! Butterfly reductions: invocations of a subgroup hand each other what they have until all of them have the same, without
//! workgroup memory and barriers. Knows nothing of who folds what.

use super::shader::Shader;
use super::tree::{ShaderExpr, call};

/// Folds a variable over `n` invocations that stand so many places `apart`, each of which then has the result. All `n` must be
/// in one subgroup; so must everyone who takes part.
pub fn exchange(
    shader: &mut Shader,
    all: &ShaderExpr,
    n: usize,
    apart: usize,
    mut both: impl FnMut(&mut Shader, &ShaderExpr, &ShaderExpr) -> ShaderExpr,
) {
    for step in (0..n.ilog2()).rev().map(|bit| 1usize << bit) {
        let other = call("subgroupShuffleXor", [all.clone(), (step * apart).into()], all.ty());
        let folded = both(shader, all, &other);
        shader.assign(all, folded);
    }
}
