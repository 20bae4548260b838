//! candle on its CPU backend, written as its users write it.

use candle_core::{Device, Result as CandleResult, Tensor};

use crate::contender::{Case, Contender, Fresh, Result};
use crate::inputs::Input;
use crate::workload::{CHAIN_PAIRS, LAYER_NORM_EPS, Work, chain_scalar};

/// candle-core and candle-nn, default features.
pub struct Candle;

impl Contender for Candle {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        if work.is_yardstick() || work.is_model() {
            return None;
        }
        let upload = |input: &Input| Tensor::from_slice(&input.data, input.shape.as_slice(), &Device::Cpu);
        let tensors: CandleResult<Vec<Tensor>> = inputs.iter().map(upload).collect();
        Some(
            tensors
                .map_err(text)
                .map(|tensors| Fresh::case(Box::new(move || compute(work, &tensors).map_err(text)), read)),
        )
    }
}

fn compute(work: Work, x: &[Tensor]) -> CandleResult<Tensor> {
    match work {
        Work::Copy { .. } | Work::Read { .. } | Work::Peak { .. } => unreachable!("yardsticks are not prepared"),
        Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) | Work::Heat { .. } => {
            unreachable!("models are not prepared")
        }
        Work::Chain3 { .. } => ((&x[0] + &x[1])? * 5.0)? - &x[2],
        Work::Chain100 { .. } => {
            let mut y = x[0].clone();
            for pair_idx in 0..CHAIN_PAIRS {
                y = ((y * chain_scalar(pair_idx) as f64)? + &x[1])?;
            }
            Ok(y)
        }
        Work::Softmax { .. } => candle_nn::ops::softmax_last_dim(&x[0]),
        Work::LayerNorm { .. } => candle_nn::ops::layer_norm(&x[0], &x[1], &x[2], LAYER_NORM_EPS),
        Work::Sum { .. } => x[0].sum_all(),
        Work::SumAxis { axis, .. } => x[0].sum(axis),
        Work::AddTransposed { .. } => &x[0] + x[0].t()?,
        Work::Matmul { .. } => x[0].matmul(&x[1]),
    }
}

fn read(y: &Tensor) -> Result<Vec<f32>> {
    y.flatten_all().and_then(|y| y.to_vec1()).map_err(text)
}

fn text(error: candle_core::Error) -> String {
    error.to_string()
}
