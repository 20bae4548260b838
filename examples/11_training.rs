//! A training loop in full: a small network learns to tell two spirals apart. Each step (forward, loss, gradients,
//! update) is one plan and one submit, and from the third on nothing is compiled or allocated.

use lazuli::{Device, Result, Tensor};
use lazuli_nn::{Adam, Layer, Linear, Optimizer, loss, metrics, module, parameters, schedule};

/// Two hidden layers.
struct Net {
    first: Linear,
    second: Linear,
    last: Linear,
}
module!(Net { first, second, last });

impl Net {
    fn new(device: &Device) -> Net {
        let linear = |n_in, n_out, seed| Linear::new(n_in, n_out, seed, device);
        Net { first: linear(2, 32, 1), second: linear(32, 32, 2), last: linear(32, 2, 3) }
    }
}

impl Layer for Net {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.first.forward(x).tanh();
        self.last.forward(&self.second.forward(&x).tanh())
    }
}

/// Points of two spirals, one turned by half a circle, and which one each is of.
fn spirals(n: usize, device: &Device) -> (Tensor, Tensor) {
    let label = Tensor::arange(0, n as i32, 1, device).rem(2);
    let way = Tensor::rand([n], 5, device).sqrt();
    let angle = way.mul(6.0).add(label.mul(std::f32::consts::PI));
    let points = Tensor::stack(&[&way.mul(angle.cos()), &way.mul(angle.sin())], -1);
    (points, label)
}

fn main() -> Result<()> {
    let device = Device::best();
    let (points, labels) = spirals(400, &device);
    lazuli::compute(&[&points, &labels])?;
    let mut net = Net::new(&device);
    println!("{} tensors of parameters", parameters(&mut net).len());

    let mut optimizer = Optimizer::new(Adam::default(), 0.0);
    for step in 0..300 {
        optimizer.lr = schedule::warm_up_cosine(step, 0.02, 20, 300, 0.0);
        let loss = loss::cross_entropy(&net.forward(&points), &labels);
        let before = device.stats();
        let loss = optimizer.step(&mut net, loss)?;
        let after = device.stats();
        assert_eq!(after.submits - before.submits, 1);
        assert!(step < 2 || after.plans_compiled == before.plans_compiled);
        if step % 50 == 0 {
            println!("step {step:>3}: loss {loss}");
        }
    }
    let accuracy = metrics::accuracy(&net.forward(&points), &labels).item::<f32>()?;
    println!("accuracy {:.1} %", 100.0 * accuracy);
    assert!(accuracy > 0.95);
    Ok(())
}
