//! Sums of many terms in shaders. Knows lanes; nothing of what is added.

use crate::dtype::{DType, Lane};
use crate::wgsl::launch_memory::LaunchMemory;
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderType, call, literal, named};

/// A running sum in a shader. Floats are summed in two parts, the second taking what the first rounds away, so that
/// the order and number of terms hardly matter; integers wrap.
#[derive(Clone, Copy)]
pub struct Sum {
    lane: Lane,
    /// Whether it is stored as a half float.
    half: bool,
}

impl Sum {
    /// A sum that is stored as this dtype.
    pub fn of(dtype: DType, shader: &mut Shader) -> Sum {
        shader.functions(
            "\
fn sum_of(sum: vec2<f32>, x: f32) -> vec2<f32> {
    let total = kept_f32(sum.x + x);
    if ((bitcast<u32>(total) & 0x7f800000u) == 0x7f800000u) { return vec2<f32>(total, 0.0); }
    let added = kept_f32(total - sum.x);
    return vec2<f32>(total, sum.y + ((sum.x - (total - added)) + (x - added)));
}
fn to_be_rounded(sum: vec2<f32>) -> f32 {
    let total = kept_f32(sum.x + sum.y);
    let rest = sum.y - kept_f32(total - sum.x);
    let bits = bitcast<u32>(total);
    if (rest == 0.0 || (bits & 0x7f800000u) == 0x7f800000u) { return total; }
    // Not exact: the last bit says so, that rounding to fewer bits is not misled.
    return bitcast<f32>(select(bits - 1u, bits, (rest > 0.0) == (total > 0.0)) | 1u);
}
",
        );
        Sum { lane: dtype.lane(), half: dtype.size() == 2 }
    }

    /// Words that hold one.
    pub fn words(dtype: DType) -> usize {
        if dtype.lane() == Lane::F32 { 2 } else { 1 }
    }

    /// The variable that holds it.
    pub fn variable(&self) -> ShaderExpr {
        named("sum", self.zero().ty())
    }

    /// Declares it: 0.
    pub fn start(&self, shader: &mut Shader) {
        shader.variable("sum", self.zero());
    }

    /// Makes it 0 again.
    pub fn restart(&self, shader: &mut Shader) {
        shader.assign(&self.variable(), self.zero());
    }

    fn zero(&self) -> ShaderExpr {
        match self.lane {
            Lane::F32 => ShaderType::Vec(2, Lane::F32).make([literal("0.0", Lane::F32), literal("0.0", Lane::F32)]),
            Lane::I32 => literal("0i", Lane::I32),
            Lane::U32 => 0.into(),
        }
    }

    /// Adds a term.
    pub fn add(&self, shader: &mut Shader, x: ShaderExpr) {
        let sum = self.variable();
        match self.lane {
            Lane::F32 => shader.assign(&sum, call("sum_of", [sum.clone(), x], sum.ty())),
            _ => shader.add_to(&sum, x),
        }
    }

    /// What is stored.
    pub fn value(&self) -> ShaderExpr {
        let sum = self.variable();
        match self.lane {
            Lane::F32 if self.half => call("to_be_rounded", [sum], ShaderType::One(Lane::F32)),
            Lane::F32 => sum.component(0) + sum.component(1),
            _ => sum,
        }
    }

    /// Adds a term that is given as the bits of a lane.
    pub fn add_bits(&self, shader: &mut Shader, bits: ShaderExpr) {
        self.add(shader, bits.reinterpreted(self.lane));
    }

    /// Words that hold it.
    pub fn n_words(&self) -> usize {
        if self.lane == Lane::F32 { 2 } else { 1 }
    }

    /// Writes it to scratch, from word `at` on.
    pub fn save(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &ShaderExpr) {
        for k in 0..self.n_words() {
            let bits = self.variable().component(k).reinterpreted(Lane::U32);
            memory.store(shader, idx, at + k, bits);
        }
    }

    /// Goes on from what scratch holds from word `at` on.
    pub fn resume(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &ShaderExpr) {
        let parts: Vec<ShaderExpr> =
            (0..self.n_words()).map(|k| memory.load(shader, idx, at + k).reinterpreted(self.lane)).collect();
        let sum = self.variable();
        match &parts[..] {
            [only] => shader.assign(&sum, only),
            _ => shader.assign(&sum, sum.ty().make(parts)),
        }
    }

    /// Adds what scratch holds from word `at` on.
    pub fn add_saved(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &ShaderExpr) {
        for k in 0..self.n_words() {
            let word = memory.load(shader, idx, at + k);
            self.add_bits(shader, word);
        }
    }
}
