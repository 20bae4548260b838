//! burn, written as its users write it: on its pure-Rust CPU backend (flex), or on a GPU through wgpu with fusion and
//! autotune.

use burn::tensor::{Device, Tensor, TensorData, activation, module};

use crate::contender::{Case, Contender, Fresh, Result};
use crate::inputs::Input;
use crate::workload::{CHAIN_PAIRS, LAYER_NORM_EPS, Work, chain_scalar};

/// burn on one of its devices.
pub struct Burn {
    name: &'static str,
    device: Device,
}

impl Burn {
    /// On the CPU.
    #[cfg(feature = "burn")]
    pub fn flex() -> Burn {
        Burn { name: "burn-flex", device: Device::flex() }
    }

    /// On a GPU. It tunes its kernels while a case is warmed up.
    #[cfg(feature = "burn-wgpu")]
    pub fn wgpu(kind: lazuli::DeviceKind) -> Burn {
        Burn { name: "burn-wgpu", device: wgpu_device(kind) }
    }
}

/// The first GPU of a kind, through burn's own wgpu device.
#[cfg(feature = "burn-wgpu")]
pub fn wgpu_device(kind: lazuli::DeviceKind) -> Device {
    use burn::tensor::DeviceKind;
    Device::wgpu(match kind {
        lazuli::DeviceKind::Discrete => DeviceKind::DiscreteGpu(0),
        lazuli::DeviceKind::Integrated => DeviceKind::IntegratedGpu(0),
        lazuli::DeviceKind::Virtual => DeviceKind::VirtualGpu(0),
        _ => DeviceKind::Cpu,
    })
}

/// burn's tensors carry their rank in the type; a result here may have either.
enum AnyRank {
    One(Tensor<1>),
    Two(Tensor<2>),
}

impl Contender for Burn {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        if work.is_yardstick() || work.is_model() {
            return None;
        }
        let device = self.device.clone();
        let tensors: Vec<AnyRank> = inputs.iter().map(|input| upload(input, &device)).collect();
        let run = move || {
            let y = compute(work, &tensors);
            // Ops are queued, and fused when the queue is asked for; only finished work counts.
            device.sync().map_err(|error| format!("{error:?}"))?;
            Ok(y)
        };
        Some(Ok(Fresh::case(Box::new(run), read)))
    }
}

fn upload(input: &Input, device: &Device) -> AnyRank {
    let data = TensorData::new(input.data.clone(), input.shape.clone());
    match input.shape.len() {
        1 => AnyRank::One(Tensor::from_data(data, device)),
        _ => AnyRank::Two(Tensor::from_data(data, device)),
    }
}

fn compute(work: Work, x: &[AnyRank]) -> AnyRank {
    // Ops take their inputs by value; a clone is a new handle, as in any burn program.
    let vector = |idx: usize| match &x[idx] {
        AnyRank::One(x) => x.clone(),
        AnyRank::Two(_) => unreachable!("input {idx} of {work:?} is a vector"),
    };
    let matrix = |idx: usize| match &x[idx] {
        AnyRank::Two(x) => x.clone(),
        AnyRank::One(_) => unreachable!("input {idx} of {work:?} is a matrix"),
    };
    match work {
        Work::Copy { .. } | Work::Read { .. } | Work::Peak { .. } => unreachable!("yardsticks are not prepared"),
        Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) | Work::Heat { .. } => {
            unreachable!("models are not prepared")
        }
        Work::Chain3 { .. } => AnyRank::One((vector(0) + vector(1)) * 5.0 - vector(2)),
        Work::Chain100 { .. } => {
            let mut y = vector(0);
            for pair_idx in 0..CHAIN_PAIRS {
                y = y * chain_scalar(pair_idx) + vector(1);
            }
            AnyRank::One(y)
        }
        Work::Softmax { .. } => AnyRank::Two(activation::softmax(matrix(0), 1)),
        Work::LayerNorm { .. } => {
            AnyRank::Two(module::layer_norm(matrix(0), vector(1), Some(vector(2)), LAYER_NORM_EPS as f64))
        }
        Work::Sum { .. } => AnyRank::One(vector(0).sum()),
        Work::SumAxis { axis, .. } => AnyRank::Two(matrix(0).sum_dim(axis)),
        Work::AddTransposed { .. } => AnyRank::Two(matrix(0) + matrix(0).transpose()),
        Work::Matmul { .. } => AnyRank::Two(matrix(0).matmul(matrix(1))),
    }
}

fn read(y: &AnyRank) -> Result<Vec<f32>> {
    let data = match y {
        AnyRank::One(y) => y.to_data(),
        AnyRank::Two(y) => y.to_data(),
    };
    data.try_to_vec().map_err(|error| format!("{error:?}"))
}
