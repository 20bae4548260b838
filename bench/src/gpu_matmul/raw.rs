//! A hand-written product, compiled and bound on raw wgpu.

use super::hand::{Kernel, Sizes};
use crate::contender::Case;
use crate::gpu::Hand;

/// A kernel with its inputs, ready to be called.
pub fn case(hand: &Hand, kernel: &Kernel, sizes: Sizes, [a, b]: [&[f32]; 2]) -> Box<dyn Case> {
    let Sizes { m, k, n } = sizes;
    let (sizes, y) = (hand.uniform(&[m as u32, k as u32, n as u32, 0]), hand.buffer(m * n));
    let step = hand.step(&kernel.text, &[&sizes, &hand.upload(a), &hand.upload(b), &y], kernel.n_groups);
    hand.case(vec![step], y, m * n)
}
