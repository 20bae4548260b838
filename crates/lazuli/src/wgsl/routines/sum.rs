//! Sums of many terms in shaders. Knows lanes; nothing of what is added.

use crate::dtype::{DType, Lane};
use crate::wgsl::convert::lane_name;
use crate::wgsl::memory::LaunchMemory;
use crate::wgsl::shader::Shader;

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

    /// Declares it: 0.
    pub fn start(&self, shader: &mut Shader) {
        shader.line(format!("var sum = {};", self.zero()));
    }

    /// Makes it 0 again.
    pub fn restart(&self, shader: &mut Shader) {
        shader.line(format!("sum = {};", self.zero()));
    }

    fn zero(&self) -> &'static str {
        match self.lane {
            Lane::F32 => "vec2<f32>(0.0, 0.0)",
            Lane::I32 => "0i",
            Lane::U32 => "0u",
        }
    }

    /// Adds a term.
    pub fn add(&self, shader: &mut Shader, x: &str) {
        shader.line(match self.lane {
            Lane::F32 => format!("sum = sum_of(sum, {x});"),
            _ => format!("sum += {x};"),
        });
    }

    /// The expression for what is stored.
    pub fn value(&self) -> &'static str {
        match self.lane {
            Lane::F32 if self.half => "to_be_rounded(sum)",
            Lane::F32 => "(sum.x + sum.y)",
            _ => "sum",
        }
    }

    /// The words that hold it.
    fn parts(&self) -> &'static [&'static str] {
        match self.lane {
            Lane::F32 => &["bitcast<u32>(sum.x)", "bitcast<u32>(sum.y)"],
            _ => &["bitcast<u32>(sum)"],
        }
    }

    /// Adds a term that is given as the bits of a lane.
    pub fn add_bits(&self, shader: &mut Shader, bits: &str) {
        self.add(shader, &format!("bitcast<{}>({bits})", lane_name(self.lane)));
    }

    /// Words that hold it.
    pub fn n_words(&self) -> usize {
        self.parts().len()
    }

    /// Writes it to scratch, from word `at` on.
    pub fn save(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &str) {
        for (k, part) in self.parts().iter().enumerate() {
            let line = memory.store(shader, idx, &format!("{at} + {k}u"), part);
            shader.line(line);
        }
    }

    /// Goes on from what scratch holds from word `at` on.
    pub fn resume(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &str) {
        let mut word = |k: usize| memory.load(shader, idx, &format!("{at} + {k}u"));
        let text = match self.lane {
            Lane::F32 => format!("vec2<f32>(bitcast<f32>({}), bitcast<f32>({}))", word(0), word(1)),
            lane => format!("bitcast<{}>({})", lane_name(lane), word(0)),
        };
        shader.line(format!("sum = {text};"));
    }

    /// Adds what scratch holds from word `at` on.
    pub fn add_saved(&self, shader: &mut Shader, memory: &LaunchMemory, idx: usize, at: &str) {
        for k in 0..self.n_words() {
            let word = memory.load(shader, idx, &format!("{at} + {k}u"));
            self.add_bits(shader, &word);
        }
    }
}
