//! Everyone on one GPU: kernels written by hand for exactly one workload (the stated limit), and Lazuli, on the same
//! wgpu device.

mod hand;
mod host;
mod kernels;

use lazuli::Device;

use crate::contender::{Contender, Result};
use crate::lazuli_side::{Hold, Lazuli};
use crate::workload::{Work, Workload};
pub use hand::{Hand, Step, record};
pub use host::host_cost;

const MI: usize = 1 << 20;

/// What is run on GPUs, in order. The yardstick comes first.
pub const WORKLOADS: &[Workload] = &[
    // As many bytes as the chain of 3 below moves.
    Workload { name: "copy 32 Mi", work: Work::Copy { n: 32 * MI } },
    Workload { name: "chain of 3, 16 Mi", work: Work::Chain3 { n: 16 * MI } },
    Workload { name: "chain of 100, 1 Mi", work: Work::Chain100 { n: MI } },
    Workload { name: "softmax [4096, 1024]", work: Work::Softmax { rows: 4096, cols: 1024 } },
    Workload { name: "layer_norm [4096, 1024]", work: Work::LayerNorm { rows: 4096, cols: 1024 } },
    Workload { name: "sum 16 Mi", work: Work::Sum { n: 16 * MI } },
    Workload { name: "sum axis 0 [4096, 4096]", work: Work::SumAxis { axis: 0, rows: 4096, cols: 4096 } },
    Workload { name: "sum axis 1 [4096, 4096]", work: Work::SumAxis { axis: 1, rows: 4096, cols: 4096 } },
    Workload { name: "x + x.t() [4096, 4096]", work: Work::AddTransposed { n: 4096 } },
    Workload { name: "attention 512", work: Work::attention(512, 512, false) },
    Workload { name: "attention 512, causal", work: Work::attention(512, 512, true) },
    Workload { name: "conv 64 × 56² → 64, 3 × 3", work: Work::conv(1, 64, 56, 64, 3, 1) },
    Workload { name: "conv 512 × 7² → 512, 3 × 3", work: Work::conv(1, 512, 7, 512, 3, 1) },
];

/// Everyone this build can measure on a device; the hand-written kernels come first.
pub fn contenders(device: &Device) -> Result<Vec<Box<dyn Contender>>> {
    Ok(vec![
        Box::new(Hand::new(device)?),
        Box::new(Lazuli { device: device.clone(), hold: Hold::Previous }),
        // As the hand-written kernels do, which write to the same memory again and again.
        Box::new(Lazuli { device: device.clone(), hold: Hold::Nothing }),
        #[cfg(feature = "burn-wgpu")]
        Box::new(crate::burn_side::Burn::wgpu(device.info().kind)),
    ])
}
