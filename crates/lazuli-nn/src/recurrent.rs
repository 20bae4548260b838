//! Layers that go along a sequence step by step, carrying a state. All steps are recorded and run as one.

use lazuli::{DType, Device, Result, Tensor};

use crate::fault;
use crate::linear::Linear;
use crate::module::Layer;

/// Long short-term memory over `[batch, length, features]`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, Lstm};
/// let cpu = Device::cpu();
/// assert_eq!(Lstm::new(3, 4, 1, &cpu).forward(&Tensor::rand([2, 5, 3], 1, &cpu)).shape()?, [2, 5, 4]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Lstm {
    /// From the input to the four gates: in, forget, cell, out.
    pub input: Linear,
    /// From the state to the four gates.
    pub hidden: Linear,
}

crate::module!(Lstm { input, hidden });

impl Lstm {
    /// Weights as [`Linear`] makes them.
    #[track_caller]
    pub fn new(n_in: usize, n_hidden: usize, seed: u64, device: &Device) -> Lstm {
        let hidden =
            Linear::new(n_hidden, n_hidden.saturating_mul(4), seed.wrapping_add(1 << 40), device).without_bias();
        Lstm { input: Linear::new(n_in, n_hidden.saturating_mul(4), seed, device), hidden }
    }

    /// The output of each step, and the last state: hidden and cell.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// # let lstm = lazuli_nn::Lstm::new(3, 4, 1, &cpu);
    /// let (y, (h, c)) = lstm.run(&Tensor::rand([2, 5, 3], 1, &cpu), None);
    /// assert_eq!((y.shape()?, h.shape()?, c.shape()?), (&[2, 5, 4][..], &[2, 4][..], &[2, 4][..]));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<(Tensor, Tensor)>) -> (Tensor, (Tensor, Tensor)) {
        let _caller = fault::caller();
        let [n_hidden, batch, length] = match sizes("lstm", &self.hidden, x) {
            Ok(sizes) => sizes,
            Err(error) => return (error.clone().into(), (error.clone().into(), error.into())),
        };
        let (mut h, mut c) = state.unwrap_or_else(|| (start(x, batch, n_hidden), start(x, batch, n_hidden)));
        // The inputs of all steps in one product.
        let inputs = self.input.forward(x);
        let mut steps = Vec::with_capacity(length);
        for t in 0..length {
            let gates = inputs.select_index(1, t as isize).add(self.hidden.forward(&h));
            let parts = gates.split(-1, &[n_hidden; 4]);
            c = parts[1].sigmoid().mul(&c).add(parts[0].sigmoid().mul(parts[2].tanh()));
            h = parts[3].sigmoid().mul(c.tanh());
            steps.push(h.clone());
        }
        (stacked(&steps, x), (h, c))
    }
}

impl Layer for Lstm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.run(x, None).0
    }
}

/// A gated recurrent unit over `[batch, length, features]`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Gru, Layer};
/// let cpu = Device::cpu();
/// assert_eq!(Gru::new(3, 4, 1, &cpu).forward(&Tensor::rand([2, 5, 3], 1, &cpu)).shape()?, [2, 5, 4]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Gru {
    /// From the input to the gates: reset, update, new.
    pub input: Linear,
    /// From the state to the gates.
    pub hidden: Linear,
}

crate::module!(Gru { input, hidden });

impl Gru {
    /// Weights as [`Linear`] makes them.
    #[track_caller]
    pub fn new(n_in: usize, n_hidden: usize, seed: u64, device: &Device) -> Gru {
        let hidden = Linear::new(n_hidden, n_hidden.saturating_mul(3), seed.wrapping_add(1 << 40), device);
        Gru { input: Linear::new(n_in, n_hidden.saturating_mul(3), seed, device), hidden }
    }

    /// The output of each step, and the last state.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// # let gru = lazuli_nn::Gru::new(3, 4, 1, &cpu);
    /// let (y, h) = gru.run(&Tensor::rand([2, 5, 3], 1, &cpu), None);
    /// assert_eq!(y.select_index(1, -1).to_vec::<f32>()?, h.to_vec::<f32>()?);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<Tensor>) -> (Tensor, Tensor) {
        let _caller = fault::caller();
        let [n_hidden, batch, length] = match sizes("gru", &self.hidden, x) {
            Ok(sizes) => sizes,
            Err(error) => return (error.clone().into(), error.into()),
        };
        let mut h = state.unwrap_or_else(|| start(x, batch, n_hidden));
        let inputs = self.input.forward(x);
        let mut steps = Vec::with_capacity(length);
        for t in 0..length {
            let (i, g) = (
                inputs.select_index(1, t as isize).split(-1, &[n_hidden; 3]),
                self.hidden.forward(&h).split(-1, &[n_hidden; 3]),
            );
            let (reset, update) = (i[0].add(&g[0]).sigmoid(), i[1].add(&g[1]).sigmoid());
            let new = i[2].add(reset.mul(&g[2])).tanh();
            // (1 − z)·new + z·h
            h = new.add(update.mul(h.sub(&new)));
            steps.push(h.clone());
        }
        (stacked(&steps, x), h)
    }
}

impl Layer for Gru {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.run(x, None).0
    }
}

/// A recurrent layer without gates over `[batch, length, features]`: `h = act(W·x + b + U·h)`.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, Rnn};
/// let cpu = Device::cpu();
/// assert_eq!(Rnn::new(3, 4, 1, &cpu).forward(&Tensor::rand([2, 5, 3], 1, &cpu)).shape()?, [2, 5, 4]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Rnn {
    /// From the input to the state.
    pub input: Linear,
    /// From the state to the next one.
    pub hidden: Linear,
    /// What a state goes through; PyTorch knows `tanh`, which is the default, and `relu`.
    pub activation: fn(&Tensor) -> Tensor,
}

crate::module!(Rnn { input, hidden });

impl Rnn {
    /// Weights as [`Linear`] makes them, and `tanh`.
    #[track_caller]
    pub fn new(n_in: usize, n_hidden: usize, seed: u64, device: &Device) -> Rnn {
        let hidden = Linear::new(n_hidden, n_hidden, seed.wrapping_add(1 << 40), device).without_bias();
        Rnn { input: Linear::new(n_in, n_hidden, seed, device), hidden, activation: Tensor::tanh }
    }

    /// The output of each step, and the last state.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// let rnn = lazuli_nn::Rnn { activation: Tensor::relu, ..lazuli_nn::Rnn::new(3, 4, 1, &cpu) };
    /// let (y, h) = rnn.run(&Tensor::rand([2, 5, 3], 1, &cpu), None);
    /// assert_eq!(y.select_index(1, -1).to_vec::<f32>()?, h.to_vec::<f32>()?);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<Tensor>) -> (Tensor, Tensor) {
        let _caller = fault::caller();
        let [n_hidden, batch, length] = match sizes("rnn", &self.hidden, x) {
            Ok(sizes) => sizes,
            Err(error) => return (error.clone().into(), error.into()),
        };
        let mut h = state.unwrap_or_else(|| start(x, batch, n_hidden));
        let inputs = self.input.forward(x);
        let mut steps = Vec::with_capacity(length);
        for t in 0..length {
            h = (self.activation)(&inputs.select_index(1, t as isize).add(self.hidden.forward(&h)));
            steps.push(h.clone());
        }
        (stacked(&steps, x), h)
    }
}

impl Layer for Rnn {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.run(x, None).0
    }
}

/// The size of the state, the batch and the number of steps.
#[track_caller]
fn sizes(op: &str, hidden: &Linear, x: &Tensor) -> Result<[usize; 3]> {
    let n_hidden = hidden.weight.dims::<2>()?[1];
    match *x.shape()? {
        [batch, length, _] => Ok([n_hidden, batch, length]),
        ref seen => Err(fault::shape(op, format!("wants [batch, length, features], not {seen:?}"))),
    }
}

fn start(x: &Tensor, batch: usize, n_hidden: usize) -> Tensor {
    match x.device() {
        Ok(device) => Tensor::zeros([batch, n_hidden], DType::F32, device),
        Err(_) => x.clone(),
    }
}

/// The steps along axis 1; the input, with the error it carries, where there are none.
#[track_caller]
fn stacked(steps: &[Tensor], x: &Tensor) -> Tensor {
    match steps.is_empty() {
        true => x.clone(),
        false => Tensor::stack(&steps.iter().collect::<Vec<_>>(), 1),
    }
}
