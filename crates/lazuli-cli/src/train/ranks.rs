//! All ranks of a job over MPI as the team of a run.

use std::io::{self, Write};
use std::time::Duration;

use lazuli::{Device, Result, Tensor};
use lazuli_mpi::{Distributed, Reduce, World};
use lazuli_nn::{Adam, Optimizer, Sequential};

use super::team::{Step, Team};
use super::{Options, trained};
use crate::Outcome;

struct Ranks<'w> {
    world: &'w World,
    optimizer: Distributed<'w>,
}

/// Trains as one of the ranks that `mpirun` or `srun` has started. An error on one of them is an error on all.
pub fn run(options: Options, out: &mut dyn Write) -> Outcome {
    let world = World::init()?;
    let outcome = of_world(&world, options, out).inspect_err(|error| world.fail(error));
    // Waits for the others; after a failure it says what it was and ends the job.
    drop(world);
    outcome
}

fn of_world(world: &World, options: Options, out: &mut dyn Write) -> Outcome {
    let Options { preset, epochs, batch, lr, seed, resume, .. } = &options;
    let must_agree = format!("{preset:?}\nepochs {epochs}\nbatch {batch}\nlr {lr}\nseed {seed}\nresume {resume}");
    world.agree("the options", &must_agree)?;
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => world.device()?,
    };
    let optimizer = Distributed::new(Optimizer::new(Adam::default(), options.lr), world);
    let out: &mut dyn Write = if world.rank() == 0 { out } else { &mut io::sink() };
    trained(options, device, Box::new(Ranks { world, optimizer }), out)
}

impl Team for Ranks<'_> {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn step(&mut self, Step { model, lr, loss, n_images, more }: Step) -> Result<(Tensor, Vec<Tensor>)> {
        self.optimizer.lr = lr;
        self.optimizer.step_of(model, loss, n_images, more)
    }

    fn named(&mut self, model: &mut Sequential, _: &Device) -> Result<Vec<(String, Tensor)>> {
        self.optimizer.named(model)
    }

    fn load(&mut self, model: &mut Sequential, find: &dyn Fn(&str) -> Option<Tensor>) -> Result<()> {
        self.optimizer.load(model, find)
    }

    fn agree(&self, what: &str, text: &str) -> Result<()> {
        self.world.agree(what, text)
    }

    fn share_model(&self, model: &mut Sequential) -> Result<()> {
        self.world.broadcast(model)
    }

    fn share_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.world.broadcast_bytes(bytes)
    }

    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let n = values.len();
        self.world.all_reduce(&Tensor::from_vec(values, [n], &Device::cpu()), Reduce::Sum)?.to_vec()
    }

    fn sums_every(&self) -> u64 {
        16
    }

    fn waited(&self) -> Duration {
        self.world.waited()
    }
}
