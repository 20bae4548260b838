//! Who makes the steps of a run: this process alone, or all ranks of a job (`ranks`). A run asks for steps, sums and what rank 0
//! has; it does not know how they travel.

use std::time::Duration;

use lazuli::{Device, Result, Tensor};
use lazuli_nn::{Optimizer, Sequential};

/// Whoever takes part in a run, as one of them sees it.
pub trait Team {
    /// Which of them this is, from 0. Number 0 prints and saves.
    fn rank(&self) -> usize;
    /// How many they are.
    fn size(&self) -> usize;
    /// One step with everybody's images, of which `loss` is the mean over `n_images` of this one's. Computes `more`, too.
    fn step(
        &mut self,
        model: &mut Sequential,
        lr: f64,
        loss: Tensor,
        n_images: usize,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)>;
    /// What the optimiser remembers, by name.
    fn named(&mut self, model: &mut Sequential, device: &Device) -> Result<Vec<(String, Tensor)>>;
    /// Goes on from that.
    fn load(&mut self, model: &mut Sequential, find: &dyn Fn(&str) -> Option<Tensor>) -> Result<()>;
    /// Gives everybody the model of number 0.
    fn share_model(&self, model: &mut Sequential) -> Result<()>;
    /// Gives everybody the bytes of number 0.
    fn share_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;
    /// The sums of everybody's numbers.
    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>>;
    /// After how many steps numbers are summed: seldom enough to cost nothing, often enough for a progress bar.
    fn sums_every(&self) -> u64;
    /// How long this one has waited for the others.
    fn waited(&self) -> Duration;
}

/// One process, with an optimiser of its own.
pub struct Alone(pub Optimizer);

impl Team for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn step(
        &mut self,
        model: &mut Sequential,
        lr: f64,
        loss: Tensor,
        _: usize,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        self.0.lr = lr;
        self.0.step_with(model, loss, more)
    }

    fn named(&mut self, _: &mut Sequential, device: &Device) -> Result<Vec<(String, Tensor)>> {
        Ok(self.0.named(device))
    }

    fn load(&mut self, model: &mut Sequential, find: &dyn Fn(&str) -> Option<Tensor>) -> Result<()> {
        self.0.load(model, find)
    }

    fn share_model(&self, _: &mut Sequential) -> Result<()> {
        Ok(())
    }

    fn share_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }

    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn sums_every(&self) -> u64 {
        1
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}
