//! Leaving out part of what passes by.

use lazuli::Tensor;

use crate::fault;
use crate::module::{Counter, Layer, Mode};

/// While training, sets elements to zero with this probability and scales the others up. Which ones is a function of the
/// seed and of how often it was asked: no state but a counter, which is saved with the model.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// # use lazuli_nn::{Dropout, Layer};
/// let x = Tensor::ones([1000], DType::F32, &Device::cpu());
/// let kept = Dropout::new(0.25, 7).forward(&x).gt(0.0).sum(..).item::<i32>()?;
/// assert!((700..800).contains(&kept));
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Dropout {
    /// The probability of leaving an element out.
    pub probability: f32,
    /// Tells this layer from others.
    pub seed: u64,
    /// How often it was asked.
    pub drawn: Counter,
    /// Whether it drops.
    pub mode: Mode,
}

crate::module!(Dropout { drawn, mode });

impl Dropout {
    /// Drops at once; [`set_mode`](crate::set_mode) with [`Mode::Eval`] stops it.
    pub fn new(probability: f32, seed: u64) -> Dropout {
        Dropout { probability, seed, drawn: Counter::new(), mode: Mode::Train }
    }
}

impl Layer for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let (Mode::Train, true, Ok(shape), Ok(device)) = (self.mode, self.probability > 0.0, x.shape(), x.device())
        else {
            return x.clone();
        };
        // Seeds of different layers are far apart, however often each is asked.
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.drawn.next());
        let kept = Tensor::rand(shape, seed, device).ge(self.probability);
        kept.select(x.mul(1.0 / (1.0 - self.probability).max(f32::MIN_POSITIVE)), 0.0)
    }
}
