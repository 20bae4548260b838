//! Who makes the steps of a run: this process alone, or all ranks of a job (`ranks`). A run asks for steps, sums and what rank 0
//! has; it does not know how they travel.

use std::time::Duration;

use lazuli::{Device, Result, Tensor};
use lazuli_nn::{Optimizer, Sequential};

/// One step of a model, as one of a team asks for it.
pub struct Step<'m> {
    pub model: &'m mut Sequential,
    pub lr: f64,
    /// The mean over this one's images.
    pub loss: Tensor,
    pub n_images: usize,
    /// Is computed with the step.
    pub more: Vec<Tensor>,
}

/// Whoever takes part in a run, as one of them sees it. Whatever is not said otherwise is so for one who is alone.
pub trait Team {
    /// One step with everybody's images. Gives the loss of this one's, and `more`.
    fn step(&mut self, step: Step) -> Result<(Tensor, Vec<Tensor>)>;
    /// What the optimiser remembers, by name.
    fn named(&mut self, model: &mut Sequential, device: &Device) -> Result<Vec<(String, Tensor)>>;
    /// Goes on from that.
    fn load(&mut self, model: &mut Sequential, find: &dyn Fn(&str) -> Option<Tensor>) -> Result<()>;

    /// Which of them this is, from 0. Number 0 prints and saves.
    fn rank(&self) -> usize {
        0
    }

    /// How many they are.
    fn size(&self) -> usize {
        1
    }

    /// That a text is the same on all ranks.
    fn agree(&self, _what: &str, _text: &str) -> Result<()> {
        Ok(())
    }

    /// Broadcasts the model of rank 0 to all ranks.
    fn share_model(&self, _: &mut Sequential) -> Result<()> {
        Ok(())
    }

    /// Gives everybody the bytes of number 0.
    fn share_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }

    /// The sums of everybody's numbers.
    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    /// After how many steps numbers are summed: seldom enough to cost nothing, often enough for a progress bar.
    fn sums_every(&self) -> u64 {
        1
    }

    /// How long this one has waited for the others.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// Training in one process, without MPI.
pub struct Alone(pub Optimizer);

impl Team for Alone {
    fn step(&mut self, step: Step) -> Result<(Tensor, Vec<Tensor>)> {
        assert!(step.n_images > 0, "who is alone has every batch whole");
        self.0.lr = step.lr;
        self.0.step_with(step.model, step.loss, step.more)
    }

    fn named(&mut self, _: &mut Sequential, device: &Device) -> Result<Vec<(String, Tensor)>> {
        Ok(self.0.named(device))
    }

    fn load(&mut self, model: &mut Sequential, find: &dyn Fn(&str) -> Option<Tensor>) -> Result<()> {
        self.0.load(model, find)
    }
}
