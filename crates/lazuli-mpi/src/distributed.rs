//! The training step on many ranks. Gradients are computed in stages, the last layers' first; as soon as a stage is there, its
//! bucket is handed to the thread that drives MPI, and the next stage is computed while it travels. Every rank then applies the
//! same mean to the same parameters. Knows models and buckets; how numbers travel is the business of `reduce` and `progress`.

use lazuli::{Result, Tensor};
use lazuli_nn::{Clip, Item, Module, Optimizer, parameters};

use crate::progress::{Give, Task};
use crate::reduce::{Reduce, Reduction, Values, Wire};
use crate::world::{Wait, World, bytes_of, fault, of_words, words, words_of};

/// An optimiser whose steps are those of all ranks together.
///
/// ```
/// use lazuli::Tensor;
/// use lazuli_mpi::{Distributed, World};
/// use lazuli_nn::{Adam, Layer, Linear, Optimizer, loss};
///
/// let world = World::init()?;
/// let device = world.device()?;
/// let mut model = Linear::new(4, 1, 1, &device);
/// world.broadcast(&mut model)?;
/// let mut optimizer = Distributed::new(Optimizer::new(Adam::default(), 1e-2), &world);
/// for step in 0..3 {
///     // Every rank has examples of its own.
///     let seed = (step * world.size() + world.rank()) as u64;
///     let x = Tensor::rand([8, 4], seed, &device);
///     let loss = loss::mse(&model.forward(&x), &x.sum(-1).unsqueeze(-1));
///     optimizer.step(&mut model, loss)?;
/// }
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Distributed<'w> {
    /// The learning rate. May be set before every step, to the same value on all ranks.
    pub lr: f64,
    world: &'w World,
    optimizer: Optimizer,
    clip: Option<Clip>,
    wire: Wire,
    bucket_bytes: usize,
    is_agreed: bool,
}

/// The largest bucket unless another size is asked for: large enough for the network, small enough to leave early.
const BUCKET_BYTES: usize = 25 << 20;
/// With fewer buckets than this, little would travel while the rest is computed.
const FEWEST_BUCKETS: usize = 4;

impl<'w> Distributed<'w> {
    /// One that makes the steps of `optimizer`, with the mean of all ranks' gradients.
    pub fn new(mut optimizer: Optimizer, world: &'w World) -> Distributed<'w> {
        let clip = optimizer.take_clip();
        let (lr, wire, bucket_bytes) = (optimizer.lr, Wire::F32, BUCKET_BYTES);
        Distributed { lr, world, optimizer, clip, wire, bucket_bytes, is_agreed: false }
    }

    /// With buckets of at most so many bytes, where no single parameter is larger.
    pub fn buckets(self, bucket_bytes: usize) -> Distributed<'w> {
        Distributed { bucket_bytes: bucket_bytes.max(4), ..self }
    }

    /// With gradients that travel so.
    pub fn wire(self, wire: Wire) -> Distributed<'w> {
        Distributed { wire, ..self }
    }

    /// The optimiser, whose state is the same on all ranks: for saving.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimiser, for loading its state.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// One step with the mean of the ranks' gradients, each of which counts the same. Gives this rank's loss.
    ///
    /// If it fails on one rank, it fails on all of them, with that rank's error, and the job cannot go on.
    #[track_caller]
    pub fn step(&mut self, model: &mut (impl Module + ?Sized), loss: Tensor) -> Result<Tensor> {
        self.step_of(model, loss, 1, Vec::new()).map(|(loss, _)| loss)
    }

    /// The same where ranks have different numbers of examples: `loss` is the mean over `n_examples` of them, and the step is the
    /// one of all examples together. A rank without examples takes part with 0. Computes `more` on the way.
    #[track_caller]
    pub fn step_of(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: Tensor,
        n_examples: usize,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let stepped = self.reduced(model, &loss, n_examples, &more).and_then(|grads| {
            let own = (loss.detach(), more.iter().map(Tensor::detach).collect());
            drop((loss, more));
            self.optimizer.lr = self.lr;
            self.optimizer.apply_gradients(model, grads).map(|()| own)
        });
        stepped.inspect_err(|error| self.world.fail(error))
    }

    /// The mean of the ranks' gradients, in the order of parameters, clipped: what [`step_of`](Distributed::step_of) applies.
    ///
    /// ```
    /// # use lazuli::Tensor;
    /// # use lazuli_mpi::{Distributed, World};
    /// # use lazuli_nn::{Layer, Linear, Optimizer, Sgd};
    /// let world = World::init()?;
    /// let mut model = Linear::new(4, 1, 1, &world.device()?);
    /// let mut optimizer = Distributed::new(Optimizer::new(Sgd::default(), 1e-2), &world);
    /// let loss = model.forward(&Tensor::rand([8, 4], 1, &world.device()?)).mean(..);
    /// assert_eq!(optimizer.gradients(&mut model, &loss, 8)?[1].item::<f32>()?, 1.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn gradients(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: &Tensor,
        n_examples: usize,
    ) -> Result<Vec<Tensor>> {
        self.reduced(model, loss, n_examples, &[]).inspect_err(|error| self.world.fail(error))
    }

    /// The mean of the ranks' gradients, in the order of parameters, clipped. Computes the loss, `more` and the model's buffers.
    fn reduced(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: &Tensor,
        n_examples: usize,
        more: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        self.agree(model)?;
        let grads = self.optimizer.gradients(model, loss)?;
        let buckets = self.cut(&grads)?;
        let weight = n_examples as f32;
        let begin = |bucket: &[usize]| -> Result<Wait> {
            let mut values = Vec::new();
            for at in bucket {
                let n_elems: usize = grads[*at].shape()?.iter().product();
                match n_examples {
                    // The mean over nothing is NaN, and must not count.
                    0 => values.resize(values.len() + n_elems, 0.0),
                    _ => values.extend(grads[*at].to_vec::<f32>()?.into_iter().map(|g| g * weight)),
                }
            }
            let values = Values::F32(values);
            let reduction = Reduction { values, reduce: Reduce::Sum, weight: Some(weight), wire: self.wire };
            Ok(self.world.begin("all_reduce of gradients", Task::Reduce(reduction, Give::Whole)))
        };
        let mut waits = Vec::new();
        if n_examples == 0 {
            buckets.iter().try_for_each(|bucket| begin(bucket).map(|wait| waits.push(wait)))?;
        } else {
            let (loss, more, buffers) = (loss.detach(), more, lazuli_nn::buffers(model));
            let mut stages: Vec<Vec<&Tensor>> =
                buckets.iter().map(|bucket| bucket.iter().map(|at| &grads[*at]).collect()).collect();
            if let Some(last) = stages.last_mut() {
                last.extend([&loss].into_iter().chain(more).chain(&buffers));
            }
            let stages: Vec<&[&Tensor]> = stages.iter().map(Vec::as_slice).collect();
            lazuli::compute_staged_with(&stages, |stage| begin(&buckets[stage]).map(|wait| waits.push(wait)))?;
        }
        let mut means: Vec<Vec<f32>> = Vec::new();
        for wait in waits {
            match self.world.wait_values(wait)? {
                Values::F32(values) => means.push(values),
                _ => unreachable!("gradients travel as floats"),
            }
        }
        clip(&mut means, self.clip);
        let mut out: Vec<Option<Tensor>> = vec![None; grads.len()];
        for (bucket, mean) in buckets.iter().zip(&means) {
            let mut rest = &mean[..];
            for at in bucket {
                let shape = grads[*at].shape()?;
                let (own, others) = rest.split_at(shape.iter().product());
                let grad = Tensor::from_slice(own, shape, grads[*at].device()?);
                (out[*at], rest) = (Some(grad.to_dtype(grads[*at].dtype()?)), others);
            }
        }
        Ok(out.into_iter().flatten().collect())
    }

    /// That all ranks train the same model, found out at the first step.
    fn agree(&mut self, model: &mut (impl Module + ?Sized)) -> Result<()> {
        if !self.is_agreed {
            let of = format!("{:?}\n{} bytes\n{:?}\n", self.wire, self.bucket_bytes, self.clip);
            self.world.agree("the model", &(of + &described(model)?))?;
            self.is_agreed = true;
        }
        Ok(())
    }

    /// Which gradients travel together: the last first, so many bytes at once.
    fn cut(&self, grads: &[Tensor]) -> Result<Vec<Vec<usize>>> {
        let mut sizes = Vec::new();
        for grad in grads {
            sizes.push(4 * grad.shape()?.iter().product::<usize>());
        }
        Ok(cut(&sizes, self.bucket_bytes))
    }
}

/// Parameters by size in bytes, the last first, in buckets.
fn cut(sizes: &[usize], bucket_bytes: usize) -> Vec<Vec<usize>> {
    let most = bucket_bytes.min(sizes.iter().sum::<usize>().div_ceil(FEWEST_BUCKETS));
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut filled = usize::MAX;
    for at in (0..sizes.len()).rev() {
        if filled.saturating_add(sizes[at]) > most {
            buckets.push(Vec::new());
            filled = 0;
        }
        filled += sizes[at];
        if let Some(bucket) = buckets.last_mut() {
            bucket.push(at);
        }
    }
    buckets
}

/// Clips the mean of all ranks, as one machine would with the whole batch. On the host in f64: the same on every rank.
fn clip(means: &mut [Vec<f32>], clip: Option<Clip>) {
    let each = means.iter_mut().flatten();
    match clip {
        None => {}
        Some(Clip::Value(most)) => each.for_each(|g| *g = g.clamp(-most as f32, most as f32)),
        Some(Clip::Norm(most)) => {
            let norm = means.iter().flatten().map(|g| (*g as f64).powi(2)).sum::<f64>().sqrt();
            let scale = (most / (norm + 1e-12)).min(1.0) as f32;
            means.iter_mut().flatten().for_each(|g| *g *= scale);
        }
    }
}

/// Names, shapes and types, a line each.
fn described(model: &mut (impl Module + ?Sized)) -> Result<String> {
    let mut text = String::new();
    for (name, w) in parameters(model) {
        text += &format!("{name}: {}{:?}\n", w.dtype()?, w.shape()?);
    }
    Ok(text)
}

impl World {
    /// Gives all ranks the model of rank 0: parameters, buffers and counters. That it is the same model is checked first.
    /// Counters of what is random begin elsewhere on every rank, so that dropout leaves out something else on each.
    ///
    /// ```
    /// # use lazuli_mpi::World;
    /// # use lazuli_nn::Linear;
    /// let world = World::init()?;
    /// let mut model = Linear::new(4, 2, world.rank() as u64, &world.device()?);
    /// world.broadcast(&mut model)?;
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast(&self, model: &mut (impl Module + ?Sized)) -> Result<()> {
        self.agree("the model", &described(model)?)?;
        let mut outcome = Ok(());
        model.visit(&mut |_, item| {
            if outcome.is_ok() {
                outcome = self.broadcast_item(item);
            }
        });
        outcome.inspect_err(|error| self.fail(error))
    }

    fn broadcast_item(&self, item: Item) -> Result<()> {
        let all = |words: Vec<u32>| -> Result<Vec<u32>> {
            let task = Task::Broadcast { bytes: bytes_of(&words), root: 0 };
            Ok(words_of(&self.wait_bytes(self.begin("broadcast", task))?))
        };
        let tensor =
            |t: &Tensor| -> Result<Tensor> { Ok(of_words(&all(words(t)?)?, t.shape()?, t.dtype()?, t.device()?)) };
        match item {
            Item::Parameter(w) => *w = tensor(&w.detach())?.compute()?.tracked(),
            Item::Buffer(b) => b.set(tensor(&b.get())?),
            Item::Counter(c) => match all(vec![c.get() as u32, (c.get() >> 32) as u32])?[..] {
                [low, high] => c.set((low as u64 | (high as u64) << 32).wrapping_add((self.rank() as u64) << 40)),
                _ => return Err(fault("broadcast", "a counter has two words")),
            },
            Item::Mode(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_begin_with_the_last_parameters() {
        assert_eq!(cut(&[4, 4, 4, 4], 100), [[3], [2], [1], [0]]);
        assert_eq!(cut(&[40, 4, 4, 4, 4, 40], 48), [vec![5], vec![4, 3, 2, 1], vec![0]]);
        assert_eq!(cut(&[400, 4, 4], 8), [vec![2, 1], vec![0]]);
        assert_eq!(cut(&[], 8), Vec::<Vec<usize>>::new());
    }
}
