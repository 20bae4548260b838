//! Deterministic input values: the same numbers on every run and in `python/cpu_peers.py`.

use crate::workload::Work;

/// One input: its shape and its values, row-major.
#[derive(Clone, Debug)]
pub struct Input {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// The inputs of a workload; the n-th is seeded by n.
pub fn inputs_of(work: Work) -> Vec<Input> {
    let shapes = work.input_shapes().into_iter().enumerate();
    let input = |(seed, shape): (usize, Vec<usize>)| {
        let mut data = values(seed as u32, shape.iter().product());
        let scale = work.input_scale(&shape);
        data.iter_mut().for_each(|value| *value *= scale);
        Input { data, shape }
    };
    shapes.map(input).collect()
}

/// `n` values in [-1, 1): a 32-bit hash of the index, its top 24 bits read as a fixed-point number.
pub fn values(seed: u32, n: usize) -> Vec<f32> {
    let first = seed.wrapping_mul(0x9e37_79b9);
    (0..n as u32).map(|idx| (hash(first.wrapping_add(idx)) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// An integer hash without visible patterns (two rounds of xor-shift and multiply).
fn hash(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_centred_and_in_range() {
        let data = values(1, 1 << 16);
        assert!(data.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = data.iter().map(|&x| x as f64).sum::<f64>() / data.len() as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
    }
}
