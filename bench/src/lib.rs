//! Lazuli side by side with its peers and with hand-written loops.
//!
//! Reading order: a [`workload`] says what is computed, on which [`inputs`], and how its result is
//! judged ([`reference`]); a [`contender`] turns it into a callable case; [`measure`] runs the cases
//! in turn; [`report`] judges and prints. `hand/` holds the stated limit, `*_side.rs` one peer each.

pub mod command;
pub mod contender;
pub mod hand;
pub mod inputs;
pub mod measure;
pub mod reference;
pub mod report;
pub mod train;
pub mod workload;

#[cfg(any(feature = "burn", feature = "burn-wgpu"))]
pub mod burn_side;
#[cfg(feature = "candle")]
pub mod candle_side;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "gpu-matmul")]
pub mod gpu_matmul;
#[cfg(feature = "lazuli")]
pub mod lazuli_side;

use contender::Contender;

/// Everyone this build can measure; the hand-written loops come first, since ratios are to them.
pub fn contenders(n_threads: usize) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(hand::Hand { n_threads }),
        #[cfg(feature = "lazuli")]
        Box::new(lazuli_side::Lazuli { device: lazuli::Device::cpu(), hold: lazuli_side::Hold::Previous }),
        #[cfg(feature = "lazuli")]
        Box::new(lazuli_side::Lazuli { device: lazuli::Device::cpu(), hold: lazuli_side::Hold::Nothing }),
        #[cfg(feature = "lazuli")]
        Box::new(lazuli_side::LazuliWeight { device: lazuli::Device::cpu() }),
        #[cfg(feature = "candle")]
        Box::new(candle_side::Candle),
        #[cfg(feature = "burn")]
        Box::new(burn_side::Burn::flex()),
    ]
}
