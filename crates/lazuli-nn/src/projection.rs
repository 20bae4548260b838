//! Linear layers of models that come from files: the weight stays what it is, and what is learned is a product of two thin
//! matrices beside it (LoRA).

use lazuli::{Device, Tensor};

use crate::fault;
use crate::init;
use crate::linear::Linear;
use crate::module::Layer;

/// A low-rank adapter: `y = (x · Aᵀ · Bᵀ) · scale`.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Adapter, Layer};
/// let cpu = Device::cpu();
/// let adapter = Adapter::new(16, 8, 2, 4.0, 1, &cpu);
/// // B is zero at first, so a new adapter changes nothing.
/// assert_eq!(adapter.forward(&Tensor::rand([3, 16], 1, &cpu)).to_vec::<f32>()?, [0.0; 24]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Adapter {
    /// `A`, `[rank, n_in]`.
    pub a: Tensor,
    /// `B`, `[n_out, rank]`.
    pub b: Tensor,
    /// `alpha / rank`.
    pub scale: f32,
}

crate::module!(Adapter { a, b });

impl Adapter {
    /// `A` is uniform within `1/√n_in`, `B` is zero.
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, rank: usize, alpha: f32, seed: u64, device: &Device) -> Adapter {
        let _caller = fault::caller();
        let bound = 1.0 / (n_in.max(1) as f32).sqrt();
        let a = init::uniform([rank, n_in], bound, seed, device);
        Adapter { a, b: init::zeros([n_out, rank], device), scale: alpha / rank.max(1) as f32 }
    }
}

impl Layer for Adapter {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        x.matmul(&self.a.t()).matmul(&self.b.t()).mul(self.scale)
    }
}

/// A linear layer, perhaps with an adapter beside it.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Adapter, Layer, Linear, Projection};
/// let cpu = Device::cpu();
/// let mut layer = Projection::from(Linear::new(16, 8, 1, &cpu));
/// layer.adapter = Some(Adapter::new(16, 8, 2, 4.0, 2, &cpu));
/// assert_eq!(layer.forward(&Tensor::rand([3, 16], 1, &cpu)).shape()?, [3, 8]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Projection {
    /// The layer.
    pub linear: Linear,
    /// What is added to its result.
    pub adapter: Option<Adapter>,
}

crate::module!(Projection { linear, adapter });

impl From<Linear> for Projection {
    fn from(linear: Linear) -> Projection {
        Projection { linear, adapter: None }
    }
}

impl Layer for Projection {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let y = self.linear.forward(x);
        match &self.adapter {
            Some(adapter) => y.add(adapter.forward(x)),
            None => y,
        }
    }
}
