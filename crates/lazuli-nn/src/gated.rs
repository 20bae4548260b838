//! Gated feed-forward networks: one projection says how much of another goes on. With SiLU it is SwiGLU, with GELU GeGLU.

use lazuli::Tensor;

use crate::fault;
use crate::module::Layer;
use crate::projection::Projection;

/// What a gate does to its projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x · σ(x)`: SwiGLU.
    Silu,
    /// GELU by `tanh`: GeGLU.
    Gelu,
}

/// `down(gate(x) ∘ up(x))`.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Gate, GatedMlp, Layer, Linear};
/// let cpu = Device::cpu();
/// let linear = |n_in, n_out, seed| Linear::new(n_in, n_out, seed, &cpu).without_bias().into();
/// let mlp = GatedMlp { gate: Some(linear(8, 32, 1)), up: linear(8, 32, 2), down: linear(32, 8, 3), function: Gate::Silu };
/// assert_eq!(mlp.forward(&Tensor::rand([2, 8], 1, &cpu)).shape()?, [2, 8]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct GatedMlp {
    /// Makes the gate; without it the first half of what `up` makes is the gate.
    pub gate: Option<Projection>,
    /// Makes what goes through the gate.
    pub up: Projection,
    /// Brings it back to the width.
    pub down: Projection,
    /// What is done to the gate.
    pub function: Gate,
}

crate::module!(GatedMlp { gate, up, down });

impl Layer for GatedMlp {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let up = self.up.forward(x);
        let (gate, up) = match &self.gate {
            Some(gate) => (gate.forward(x), up),
            None => match up.shape() {
                Ok([.., n]) if n.is_multiple_of(2) => (up.narrow(-1, 0, n / 2), up.narrow(-1, n / 2, n / 2)),
                Ok(seen) => {
                    let message =
                        format!("wants gate and values side by side, an even number of features, not {seen:?}");
                    return fault::shape("gated_mlp", message).into();
                }
                Err(error) => return error.into(),
            },
        };
        let gate = match self.function {
            Gate::Silu => gate.silu(),
            Gate::Gelu => gate.gelu_tanh(),
        };
        self.down.forward(&gate.mul(up))
    }
}
