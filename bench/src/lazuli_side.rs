//! Lazuli on any of its devices. Every call builds the expression anew, as a program does, and waits
//! for the numbers to be there.

use lazuli::{Device, Tensor, Weights, s};

use crate::contender::{Case, Contender, Result};
use crate::inputs::Input;
use crate::workload::{Attention, CHAIN_PAIRS, Conv, Encoder, HEAT_RATE, LAYER_NORM_EPS, Work, chain_scalar};

/// What is still alive while the next result is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    /// The previous result, as in `y = f(&x)`: two buffers take turns.
    Previous,
    /// Nothing: the previous result goes first, and its buffer serves the next one.
    Nothing,
}

/// Lazuli on one device, the right operand of a product a resident weight.
pub struct LazuliWeight {
    pub device: Device,
}

impl Contender for LazuliWeight {
    fn name(&self) -> &'static str {
        "lazuli, weight"
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        let Work::Matmul { k, n, .. } = work else { return None };
        Some(self.case(work, inputs, k, n).map_err(text))
    }
}

impl LazuliWeight {
    fn case(&self, work: Work, inputs: &[Input], k: usize, n: usize) -> lazuli::Result<Box<dyn Case>> {
        let device = self.device.clone();
        let [a, b] = inputs else { unreachable!("a product has two operands") };
        let turned = Tensor::from_slice(&b.data, [k, n], &device).t().to_vec::<f32>()?;
        let mut weights = Weights::new(&device);
        weights.upload("w", &turned, n, k)?;
        let inputs = vec![Tensor::from_slice(&a.data, a.shape.clone(), &device), weights.tensor("w")?.t()];
        Ok(Box::new(LazuliCase { work, hold: Hold::Previous, inputs, device, y: None }))
    }
}

/// Lazuli on one device.
pub struct Lazuli {
    pub device: Device,
    pub hold: Hold,
}

impl Contender for Lazuli {
    fn name(&self) -> &'static str {
        match self.hold {
            Hold::Previous => "lazuli",
            Hold::Nothing => "lazuli, reusing",
        }
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        if work.is_yardstick() {
            return None;
        }
        let device = self.device.clone();
        let upload = |input: &Input| Tensor::from_slice(&input.data, input.shape.clone(), &device);
        let inputs = inputs.iter().map(upload).collect();
        Some(Ok(Box::new(LazuliCase { work, hold: self.hold, inputs, device, y: None })))
    }
}

struct LazuliCase {
    work: Work,
    hold: Hold,
    inputs: Vec<Tensor>,
    device: Device,
    y: Option<Tensor>,
}

impl Case for LazuliCase {
    fn call(&mut self) -> Result<()> {
        if self.hold == Hold::Nothing {
            self.y = None;
        }
        let y = expression(self.work, &self.inputs).compute().map_err(text)?;
        // `compute` may return once the work is submitted; only finished work counts.
        self.device.sync().map_err(text)?;
        self.y = Some(y);
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        self.y.as_ref().ok_or("not called yet")?.to_vec().map_err(text)
    }
}

fn expression(work: Work, x: &[Tensor]) -> Tensor {
    match work {
        Work::Copy { .. } | Work::Read { .. } | Work::Peak { .. } => unreachable!("yardsticks are not prepared"),
        Work::Chain3 { .. } => x[0].add(&x[1]).mul(5.0).sub(&x[2]),
        Work::Chain100 { .. } => {
            (0..CHAIN_PAIRS).fold(x[0].clone(), |y, pair_idx| y.mul(chain_scalar(pair_idx)).add(&x[1]))
        }
        Work::Softmax { .. } => x[0].softmax(-1),
        Work::LayerNorm { .. } => x[0].layer_norm(-1, Some(&x[1]), Some(&x[2]), LAYER_NORM_EPS),
        Work::Sum { .. } => x[0].sum(..),
        Work::SumAxis { axis, .. } => x[0].sum(axis as i32),
        Work::AddTransposed { .. } => &x[0] + x[0].t(),
        Work::Matmul { .. } => x[0].matmul(&x[1]),
        Work::Attention(Attention { causal, .. }) => {
            x[0].attention(&x[1], &x[2], lazuli::Attention { causal, ..Default::default() })
        }
        Work::Conv(Conv { window, stride, .. }) => {
            let options = lazuli::Conv { stride: stride.into(), padding: (window / 2).into(), ..Default::default() };
            x[0].conv(&x[1], Some(&x[2]), options)
        }
        Work::Encoder(sizes) => encoder(x, sizes),
        Work::Heat { n_steps, .. } => (0..n_steps).fold(x[0].clone(), |x, _| heat_step(&x)),
    }
}

fn encoder(x: &[Tensor], sizes: Encoder) -> Tensor {
    let Encoder { length, width, heads, .. } = sizes;
    x[1..].chunks(sizes.layer_shapes().len()).fold(x[0].clone(), |x, p| {
        let norm = |x: &Tensor, at: usize| x.layer_norm(-1, Some(&p[at]), Some(&p[at + 1]), LAYER_NORM_EPS);
        let linear = |x: &Tensor, at: usize| x.matmul(&p[at]).add(&p[at + 1]);
        let normal = norm(&x, 0);
        let by_head = |at: usize| linear(&normal, at).reshape([length, heads, width / heads]).transpose(0, 1);
        let seen = by_head(2).attention(&by_head(4), &by_head(6), lazuli::Attention::default());
        let x = x.add(&linear(&seen.transpose(0, 1).reshape([length, width]), 8));
        x.add(&linear(&linear(&norm(&x, 10), 12).gelu(), 14))
    })
}

fn heat_step(x: &Tensor) -> Tensor {
    let padded = x.pad(&[(1, 1), (1, 1)], 0.0);
    let beside = padded.slice(s![..-2, 1..-1]).add(&padded.slice(s![2.., 1..-1]));
    let beside = beside.add(&padded.slice(s![1..-1, ..-2])).add(&padded.slice(s![1..-1, 2..]));
    x.add(&beside.sub(&x.mul(4.0)).mul(HEAT_RATE)).compute().unwrap_or_else(Tensor::from)
}

fn text(error: lazuli::Error) -> String {
    error.to_string()
}
