//! Lazuli: nothing is kept ready; every step records its graph anew, as a user's loop does.

use lazuli::{Device, Tensor};
use lazuli_nn::{Adam, Conv2d, Flatten, Layer, Linear, MaxPool2d, Optimizer, Relu, Sequential, Window, loss};

use super::{BATCH, EPS, LR, Net, Part, SIDE, Trainer, batch};
use crate::contender::Result;
use crate::inputs::Input;

struct Lazuli {
    model: Sequential,
    optimizer: Optimizer,
    images: Tensor,
    labels: Tensor,
}

pub fn trainer(net: Net, device: &str) -> Result<Box<dyn Trainer>> {
    let device = Device::open(device).map_err(|error| error.to_string())?;
    let mut weights = net.weights().into_iter();
    let mut next = || {
        let up = |x: &Input| Tensor::from_slice(&x.data, x.shape.clone(), &device).tracked();
        let [weight, bias] = weights.next().ok_or("a layer has no weights")?;
        Ok::<_, String>((up(&weight), Some(up(&bias))))
    };
    let window = Window { padding: 1, ..Window::default() };
    let mut model = Sequential::new();
    for part in net.parts() {
        model = match part {
            Part::Linear(..) => {
                let (weight, bias) = next()?;
                model.push(Linear { weight, bias })
            }
            Part::Conv(..) => {
                let (weight, bias) = next()?;
                model.push(Conv2d { weight, bias, window })
            }
            Part::Relu => model.push(Relu),
            Part::Pool => model.push(MaxPool2d::new(2)),
            Part::Flatten => model.push(Flatten),
        };
    }
    let (images, labels) = batch();
    Ok(Box::new(Lazuli {
        model,
        optimizer: Optimizer::new(Adam { eps: EPS, ..Adam::default() }, LR),
        images: Tensor::from_vec(images, [BATCH, 1, SIDE, SIDE], &device),
        labels: Tensor::from_vec(labels, [BATCH], &device),
    }))
}

impl Trainer for Lazuli {
    fn step(&mut self) -> Result<f32> {
        let loss = loss::cross_entropy(&self.model.forward(&self.images), &self.labels);
        let loss = self.optimizer.step(&mut self.model, loss).and_then(|loss| loss.item());
        loss.map_err(|error| error.to_string())
    }
}
