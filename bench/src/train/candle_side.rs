//! candle: `AdamW` without decay, which is Adam.

use candle_core::{Device, Result as CandleResult, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss};

use super::{BATCH, EPS, LR, Net, Part, SIDE, Trainer, batch};
use crate::contender::Result;
use crate::inputs::Input;

struct Candle {
    parts: Vec<Part>,
    weights: Vec<[Var; 2]>,
    optimizer: AdamW,
    images: Tensor,
    labels: Tensor,
}

pub fn trainer(net: Net, _device: &str) -> Result<Box<dyn Trainer>> {
    prepared(net).map(|candle| Box::new(candle) as Box<dyn Trainer>).map_err(|error| error.to_string())
}

fn prepared(net: Net) -> CandleResult<Candle> {
    let up = |x: &Input| Var::from_tensor(&Tensor::from_slice(&x.data, x.shape.as_slice(), &Device::Cpu)?);
    let weights: CandleResult<Vec<[Var; 2]>> = net.weights().iter().map(|[w, b]| Ok([up(w)?, up(b)?])).collect();
    let weights = weights?;
    let settings = ParamsAdamW { lr: LR, eps: EPS, weight_decay: 0.0, ..ParamsAdamW::default() };
    let optimizer = AdamW::new(weights.iter().flatten().cloned().collect(), settings)?;
    let (images, labels) = batch();
    let images = Tensor::from_vec(images, (BATCH, 1, SIDE, SIDE), &Device::Cpu)?;
    let labels = Tensor::from_vec(labels, BATCH, &Device::Cpu)?;
    Ok(Candle { parts: net.parts(), weights, optimizer, images, labels })
}

impl Candle {
    fn forward(&self) -> CandleResult<Tensor> {
        let mut weights = self.weights.iter();
        let mut x = self.images.clone();
        for part in &self.parts {
            x = match (part, part.has_weights().then(|| weights.next()).flatten()) {
                (Part::Linear(..), Some([w, b])) => x.matmul(&w.t()?)?.broadcast_add(b)?,
                (Part::Conv(_, n_out), Some([w, b])) => {
                    x.conv2d(w, 1, 1, 1, 1)?.broadcast_add(&b.reshape((1, *n_out, 1, 1))?)?
                }
                (Part::Pool, _) => x.max_pool2d(2)?,
                (Part::Flatten, _) => x.flatten_from(1)?,
                _ => x.relu()?,
            };
        }
        Ok(x)
    }
}

impl Trainer for Candle {
    fn step(&mut self) -> Result<f32> {
        let mut step = || {
            let loss = loss::cross_entropy(&self.forward()?, &self.labels)?;
            self.optimizer.backward_step(&loss)?;
            loss.to_scalar::<f32>()
        };
        step().map_err(|error: candle_core::Error| error.to_string())
    }
}
