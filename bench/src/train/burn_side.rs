//! burn with its autodiff, its layers and its Adam: on flex, or on a GPU through wgpu with fusion and autotune.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Int, Tensor, TensorData, activation, module};

use super::{BATCH, EPS, LR, Net, Part, SIDE, Trainer, batch, transposed};
use crate::contender::Result;
use crate::inputs::Input;

/// Convolutions, each with a pool, then linear layers: the shape of both nets.
#[derive(Module, Debug)]
struct Model {
    convs: Vec<Conv2d>,
    linears: Vec<Linear>,
}

struct Burn {
    model: Option<Model>,
    optimizer: ModuleOptimizer,
    loss: CrossEntropyLoss,
    images: Tensor<4>,
    labels: Tensor<1, Int>,
}

/// On the CPU.
#[cfg(feature = "burn")]
pub fn flex(net: Net, _device: &str) -> Result<Box<dyn Trainer>> {
    trainer(net, Device::flex())
}

/// On the GPU that Lazuli runs on.
#[cfg(feature = "burn-wgpu")]
pub fn wgpu(net: Net, device: &str) -> Result<Box<dyn Trainer>> {
    let device = lazuli::Device::open(device).map_err(|error| error.to_string())?;
    trainer(net, crate::burn_side::wgpu_device(device.info().kind))
}

fn trainer(net: Net, device: Device) -> Result<Box<dyn Trainer>> {
    let device = device.autodiff();
    let data = |x: &Input| TensorData::new(x.data.clone(), x.shape.clone());
    let mut model = Model { convs: Vec::new(), linears: Vec::new() };
    let layers: Vec<Part> = net.parts().into_iter().filter(|part| part.has_weights()).collect();
    for (part, [w, b]) in layers.iter().zip(net.weights()) {
        match *part {
            Part::Conv(n_in, n_out) => {
                let config = Conv2dConfig::new([n_in, n_out], [3, 3]);
                let mut conv = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(&device);
                conv.weight = Param::from_data(data(&w), &device);
                conv.bias = Some(Param::from_data(data(&b), &device));
                model.convs.push(conv);
            }
            Part::Linear(n_in, n_out) => {
                let mut linear = LinearConfig::new(n_in, n_out).init(&device);
                linear.weight = Param::from_data(data(&transposed(&w)), &device);
                linear.bias = Some(Param::from_data(data(&b), &device));
                model.linears.push(linear);
            }
            _ => return Err(format!("{part:?} has no weights")),
        }
    }
    let (images, labels) = batch();
    let labels: Vec<i32> = labels.iter().map(|label| *label as i32).collect();
    Ok(Box::new(Burn {
        model: Some(model),
        optimizer: AdamConfig::new().with_epsilon(EPS as f32).init(),
        loss: CrossEntropyLossConfig::new().init(&device),
        images: Tensor::from_data(TensorData::new(images, [BATCH, 1, SIDE, SIDE]), &device),
        labels: Tensor::from_data(TensorData::new(labels, [BATCH]), &device),
    }))
}

impl Model {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let pool = |x| {
            let options = MaxPoolOptions {
                kernel_size: [2, 2],
                stride: [2, 2],
                padding: [(0, 0); 2],
                dilation: [1, 1],
                ceil_mode: false,
            };
            module::max_pool2d(x, options)
        };
        let x = self.convs.iter().fold(images, |x, conv| pool(activation::relu(conv.forward(x))));
        let mut x: Tensor<2> = x.flatten(1, 3);
        for (i, linear) in self.linears.iter().enumerate() {
            x = linear.forward(x);
            if i + 1 < self.linears.len() {
                x = activation::relu(x);
            }
        }
        x
    }
}

impl Trainer for Burn {
    fn step(&mut self) -> Result<f32> {
        let model = self.model.take().ok_or("an earlier step failed")?;
        let loss = self.loss.forward(model.forward(self.images.clone()), self.labels.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(LR, model, grads));
        loss.into_data().try_to_vec::<f32>().map(|loss| loss[0]).map_err(|error| format!("{error:?}"))
    }
}
