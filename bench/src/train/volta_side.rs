//! volta on the CPU. Labels are one-hot, as its loss wants them.

use volta::{
    Adam, Conv2d, Flatten, Linear, MaxPool2d, Module, RawTensor, ReLU, Sequential, Storage, Tensor, TensorOps,
};

use super::{BATCH, CLASSES, EPS, LR, Net, Part, SIDE, Trainer, batch, transposed};
use crate::contender::Result;

struct Volta {
    model: Sequential,
    optimizer: Adam,
    images: Tensor,
    labels: Tensor,
}

pub fn trainer(net: Net, _device: &str) -> Result<Box<dyn Trainer>> {
    let layer = |part: Part| -> Box<dyn Module> {
        match part {
            Part::Linear(n_in, n_out) => Box::new(Linear::new(n_in, n_out, true)),
            Part::Conv(n_in, n_out) => Box::new(Conv2d::new(n_in, n_out, 3, 1, 1, true)),
            Part::Relu => Box::new(ReLU),
            Part::Pool => Box::new(MaxPool2d::new(2, 2, 0)),
            Part::Flatten => Box::new(Flatten),
        }
    };
    let model = Sequential::new(net.parts().into_iter().map(layer).collect());
    for (both, [w, b]) in model.parameters().chunks_exact(2).zip(net.weights()) {
        let w = if w.shape.len() == 2 { transposed(&w) } else { w };
        both[0].borrow_mut().data = Storage::cpu(w.data);
        both[1].borrow_mut().data = Storage::cpu(b.data);
    }
    let (images, labels) = batch();
    let hot =
        labels.iter().flat_map(|label| (0..CLASSES as u32).map(move |class| f32::from(u8::from(class == *label))));
    Ok(Box::new(Volta {
        optimizer: Adam::new(model.parameters(), LR as f32, (0.9, 0.999), EPS as f32, 0.0),
        model,
        images: RawTensor::new(images, &[BATCH, 1, SIDE, SIDE], false),
        labels: RawTensor::new(hot.collect(), &[BATCH, CLASSES], false),
    }))
}

impl Trainer for Volta {
    fn step(&mut self) -> Result<f32> {
        self.optimizer.zero_grad();
        let loss = RawTensor::cross_entropy_loss(&self.model.forward(&self.images), &self.labels);
        loss.backward();
        self.optimizer.step();
        let loss = loss.borrow().data.as_slice().first().copied();
        loss.ok_or_else(|| "the loss is empty".into())
    }
}
