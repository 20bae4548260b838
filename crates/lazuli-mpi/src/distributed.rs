//! The training step on many ranks. Gradients are computed in stages, the last layers' first; as soon as a stage is there, its
//! bucket is handed to the thread that drives MPI, and the next stage is computed while it travels. Every rank then applies the
//! same mean to the same parameters, or, sharded, to those that it owns. Knows models and buckets; how numbers travel is the
//! business of `reduce` and `progress`.

use lazuli::{DType, Device, Result, Tensor};
use lazuli_nn::{Clip, Item, Module, Optimizer, buffers, parameters};

use crate::agree::described;
use crate::buckets::{self, Buckets};
use crate::collectives::{Give, Task};
use crate::reduce::{Head, Reduce, Reduction, Values, Wire};
use crate::sharded::{self, Shard};
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
    /// The learning rate. May be set before every step, to the same value on all ranks: another one on some is an error.
    pub lr: f64,
    world: &'w World,
    /// Of the parameters, or of this rank's pieces of them.
    optimizer: Optimizer,
    clip: Option<Clip>,
    wire: Wire,
    bucket_bytes: usize,
    is_sharded: bool,
    overlap: Overlap,
    is_agreed: bool,
    sums: Option<Sums>,
}

/// When gradients begin to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// As soon as they are computed, while the others are.
    #[default]
    On,
    /// When all of them are computed: to see what the other is worth.
    Off,
}

/// Gradients of losses since the last step, times the number of examples, and of how many examples in all.
struct Sums {
    grads: Vec<Tensor>,
    n_examples: usize,
}

/// A model of this rank, and the mean loss of so many examples.
struct Part<'m> {
    model: &'m mut dyn Module,
    loss: Tensor,
    n_examples: usize,
}

/// A module by reference.
struct By<'m, M: ?Sized>(&'m mut M);

impl<M: Module + ?Sized> Module for By<'_, M> {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        self.0.visit(visit);
    }
}

/// The largest bucket unless another size is asked for: large enough for the network, small enough to leave early.
const BUCKET_BYTES: usize = 25 << 20;

impl<'w> Distributed<'w> {
    /// One that makes the steps of `optimizer`, with the mean of all ranks' gradients.
    pub fn new(mut optimizer: Optimizer, world: &'w World) -> Distributed<'w> {
        // A rank that is alone leaves everything to the optimiser.
        let clip = if world.size() > 1 { optimizer.take_clip() } else { None };
        Distributed {
            lr: optimizer.lr,
            world,
            optimizer,
            clip,
            wire: Wire::F32,
            bucket_bytes: BUCKET_BYTES,
            is_sharded: false,
            overlap: Overlap::On,
            is_agreed: false,
            sums: None,
        }
    }

    /// With buckets of at most so many bytes, where no single parameter is larger; an eighth more if a layer fits into that.
    pub fn buckets(self, bucket_bytes: usize) -> Distributed<'w> {
        Distributed { bucket_bytes: bucket_bytes.max(4), ..self }
    }

    /// With gradients that travel so.
    pub fn wire(self, wire: Wire) -> Distributed<'w> {
        Distributed { wire, ..self }
    }

    /// With gradients that begin to travel then.
    pub fn overlap(self, overlap: Overlap) -> Distributed<'w> {
        Distributed { overlap, ..self }
    }

    /// With the optimiser's state cut among ranks (ZeRO-1): each remembers only what belongs to its part of the parameters,
    /// updates that part and sends it to the others. As many bytes travel, and the numbers are the same, bit for bit. For
    /// rules that update every element by itself, and an optimiser that has not made a step yet.
    ///
    /// ```
    /// # use lazuli::Tensor;
    /// # use lazuli_mpi::{Distributed, World};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer};
    /// let world = World::init()?;
    /// let mut model = Linear::new(4, 1, 1, &world.device()?);
    /// let mut optimizer = Distributed::new(Optimizer::new(Adam::default(), 1e-2), &world).sharded();
    /// let loss = model.forward(&Tensor::rand([8, 4], 1, &world.device()?)).mean(..);
    /// optimizer.step(&mut model, loss)?;
    /// assert_eq!(optimizer.named(&mut model)?[1].0, "adam.0.weight");
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn sharded(self) -> Distributed<'w> {
        Distributed { is_sharded: self.world.size() > 1, ..self }
    }

    /// How many steps were made.
    pub fn n_steps(&self) -> u64 {
        self.optimizer.n_steps()
    }

    /// All that must be saved to go on later, under the names of [`Optimizer::named`]: with any number of ranks, sharded or not.
    /// All ranks call it, and all get everything.
    #[track_caller]
    pub fn named(&mut self, model: &mut (impl Module + ?Sized)) -> Result<Vec<(String, Tensor)>> {
        let parameters = parameters(model);
        let device = parameters.first().map_or(Ok(Device::cpu()), |(_, w)| w.device().cloned())?;
        if !self.is_sharded {
            return Ok(self.optimizer.named(&device));
        }
        let gathered = self
            .cut(&parameters)
            .and_then(|buckets| self.world.gather_state(&self.optimizer, &parameters, &buckets, &device));
        gathered.inspect_err(|error| self.world.fail(error))
    }

    /// Goes on from what was saved, of which every rank is given all.
    #[track_caller]
    pub fn load(&mut self, model: &mut (impl Module + ?Sized), find: impl Fn(&str) -> Option<Tensor>) -> Result<()> {
        if !self.is_sharded {
            return self.optimizer.load(model, find);
        }
        let parameters = parameters(model);
        let pieces = self.cut(&parameters)?.pieces(self.world.rank());
        sharded::load(&mut self.optimizer, &mut Shard::new(&parameters, &pieces), find)
    }

    /// One step with the mean of the ranks' gradients, each of which counts the same. Gives this rank's loss.
    ///
    /// If it fails on one rank, it fails on all of them, with that rank's error, and the job cannot go on.
    #[track_caller]
    pub fn step(&mut self, model: &mut (impl Module + ?Sized), loss: Tensor) -> Result<Tensor> {
        self.step_of(model, loss, 1, Vec::new()).map(|(loss, _)| loss)
    }

    /// The same where ranks have different numbers of examples: `loss` is the mean over `n_examples` of them, and the step is the
    /// one of all examples together, those that were [accumulated](Distributed::accumulate) among them. A rank without
    /// examples takes part with 0, and its loss and `more` are not computed. Computes `more` on the way.
    #[track_caller]
    pub fn step_of(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: Tensor,
        n_examples: usize,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        if self.world.size() == 1 && self.sums.is_none() && n_examples > 0 {
            self.optimizer.lr = self.lr;
            return self.optimizer.step_with(model, loss, more).inspect_err(|error| self.world.fail(error));
        }
        let mut model = By(model);
        let (own, more) = (loss.detach(), more.iter().map(Tensor::detach).collect::<Vec<_>>());
        let part = Part { model: &mut model, loss, n_examples };
        let stepped = self.step_parts(vec![part], &more);
        stepped.inspect_err(|error| self.world.fail(error)).map(|()| (own, more))
    }

    /// One step of a rank that has several devices: a replica of the model on each, and of each the mean loss of so many
    /// examples. The step is that of all examples of all devices and ranks; the first replica is updated, and the others
    /// become equal to it. Devices that compute by themselves do so at the same time.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_mpi::{Distributed, World};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer};
    /// let world = World::init()?;
    /// let devices = [Device::cpu(), Device::cpu()];
    /// let [mut a, mut b] = devices.map(|device| Linear::new(4, 1, 1, &device));
    /// let mut optimizer = Distributed::new(Optimizer::new(Adam::default(), 1e-2), &world);
    /// let losses = [&a, &b].map(|model| (model.forward(&Tensor::rand([8, 4], 1, &Device::cpu())).mean(..), 8));
    /// optimizer.step_replicas(&mut [&mut a, &mut b], losses.into())?;
    /// assert_eq!(a.weight.to_vec::<f32>()?, b.weight.to_vec::<f32>()?);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn step_replicas(
        &mut self,
        replicas: &mut [&mut dyn Module],
        losses: Vec<(Tensor, usize)>,
    ) -> Result<Vec<Tensor>> {
        if replicas.is_empty() || replicas.len() != losses.len() {
            let (n, m) = (replicas.len(), losses.len());
            return Err(fault("step_replicas", format!("wants one loss for each replica, not {m} losses for {n}")));
        }
        let own: Vec<Tensor> = losses.iter().map(|(loss, _)| loss.detach()).collect();
        let mut parts = Vec::new();
        for (model, (loss, n_examples)) in replicas.iter_mut().zip(losses) {
            parts.push(Part { model: &mut **model, loss, n_examples });
        }
        let stepped = self.step_parts(parts, &[]);
        stepped.inspect_err(|error| self.world.fail(error)).map(|()| own)
    }

    /// Adds the gradients of `loss`, the mean over `n_examples`, to those of the next step and computes them. Nothing travels
    /// until [`apply`](Distributed::apply) or a step reduces the sum, once.
    ///
    /// ```
    /// # use lazuli::Tensor;
    /// # use lazuli_mpi::{Distributed, World};
    /// # use lazuli_nn::{Layer, Linear, Optimizer, Sgd};
    /// let world = World::init()?;
    /// let mut model = Linear::new(4, 1, 1, &world.device()?);
    /// let mut optimizer = Distributed::new(Optimizer::new(Sgd::default(), 1e-2), &world);
    /// for part in 0..4 {
    ///     let loss = model.forward(&Tensor::rand([8, 4], part, &world.device()?)).mean(..);
    ///     optimizer.accumulate(&mut model, loss, 8)?;
    /// }
    /// optimizer.apply(&mut model)?;
    /// assert_eq!(optimizer.n_steps(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn accumulate(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: Tensor,
        n_examples: usize,
    ) -> Result<Tensor> {
        let own = loss.detach();
        if n_examples == 0 {
            return Ok(own);
        }
        let mut added = || -> Result<()> {
            let before = self.sums.as_ref();
            let grads = weighted(&self.optimizer, model, &loss, n_examples, before)?;
            let n_examples = n_examples + before.map_or(0, |sums| sums.n_examples);
            let buffers = buffers(model);
            lazuli::compute(&grads.iter().chain([&own]).chain(&buffers).collect::<Vec<_>>())?;
            self.sums = Some(Sums { grads: grads.iter().map(Tensor::detach).collect(), n_examples });
            Ok(())
        };
        added().inspect_err(|error| self.world.fail(error)).map(|()| own)
    }

    /// The step with the mean of all that was accumulated on all ranks. All ranks call it, also one that has nothing.
    #[track_caller]
    pub fn apply(&mut self, model: &mut (impl Module + ?Sized)) -> Result<()> {
        let mut model = By(model);
        let nothing = Tensor::scalar(0.0, &Device::cpu());
        let part = Part { model: &mut model, loss: nothing, n_examples: 0 };
        self.step_parts(vec![part], &[]).inspect_err(|error| self.world.fail(error))
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
        let mut model = By(model);
        let mut reduced = || {
            let parameters = parameters(&mut model);
            let buckets = self.cut(&parameters)?;
            let mut parts = [Part { model: &mut model, loss: loss.clone(), n_examples }];
            let means = self.reduced(&mut parts, &[], &buckets, Give::Whole)?;
            whole(&parameters, &buckets, &means)
        };
        reduced().inspect_err(|error| self.world.fail(error))
    }

    /// One step with what each replica of this rank has to add.
    #[track_caller]
    fn step_parts(&mut self, mut parts: Vec<Part>, more: &[Tensor]) -> Result<()> {
        let old = parameters(parts[0].model);
        let buckets = self.cut(&old)?;
        self.optimizer.lr = self.lr;
        if self.is_sharded {
            let means = self.reduced(&mut parts, more, &buckets, Give::OwnChunk)?;
            let mut shard = Shard::new(&old, &buckets.pieces(self.world.rank()));
            let grads = shard.gradients(&means.concat())?;
            self.optimizer.apply_gradients(&mut shard, grads)?;
            let mut new = self.world.gather_parameters(&shard, &old, &buckets)?.into_iter();
            set(parts[0].model, &mut |_| new.next());
        } else {
            let means = self.reduced(&mut parts, more, &buckets, Give::Whole)?;
            let grads = whole(&old, &buckets, &means)?;
            // Nothing else holds the old parameters when the new ones are computed, which may take their place.
            drop(old);
            self.optimizer.apply_gradients(parts[0].model, grads)?;
        }
        if let Some((first, others)) = parts.split_first_mut() {
            let new: Vec<Tensor> = parameters(first.model).iter().map(|(_, w)| w.detach()).collect();
            if !others.is_empty() {
                // Evaluated together, or each would be by itself when it is moved.
                lazuli::compute(&new.iter().collect::<Vec<_>>())?;
            }
            for other in others {
                let mut new = new.iter();
                set(other.model, &mut |w| w.device().ok().zip(new.next()).map(|(there, w)| w.to_device(there)));
            }
        }
        Ok(())
    }

    /// The mean of the gradients of all parts on all ranks, a vector a bucket, clipped; whole, or this rank's chunks. Computes
    /// losses, `more` and the models' buffers, and lets go of the losses.
    #[track_caller]
    fn reduced(&mut self, parts: &mut [Part], more: &[Tensor], buckets: &Buckets, give: Give) -> Result<Vec<Vec<f32>>> {
        self.agree(parts)?;
        let mut sums = self.sums.take();
        let n_examples = sums.as_ref().map_or(0, |sums| sums.n_examples);
        let weight = (n_examples + parts.iter().map(|part| part.n_examples).sum::<usize>()) as f32;
        // Of every part its gradients and what else is computed with them; of a part without examples, nothing.
        let mut terms: Vec<(Vec<Tensor>, Vec<Tensor>)> = Vec::new();
        for (i, part) in parts.iter_mut().enumerate().filter(|(_, part)| part.n_examples > 0) {
            // What was accumulated is on the first device.
            let sums = if i == 0 { sums.take() } else { None };
            let grads = weighted(&self.optimizer, part.model, &part.loss, part.n_examples, sums.as_ref())?;
            let more = if i == 0 { more } else { &[] };
            let more = [part.loss.detach()].into_iter().chain(more.iter().cloned()).chain(buffers(part.model));
            terms.push((grads, more.collect()));
        }
        terms.extend(sums.map(|sums| (sums.grads, Vec::new())));
        let begin = |bucket: usize| -> Result<Wait> {
            let mut values: Vec<f32> = Vec::with_capacity(buckets.n_elems(bucket));
            for at in &buckets.each[bucket] {
                let start = values.len();
                for (grads, _) in &terms {
                    let own = grads[*at].to_vec::<f32>()?;
                    match values.len() - start {
                        0 => values.extend(own),
                        _ => values[start..].iter_mut().zip(own).for_each(|(sum, g)| *sum += g),
                    }
                }
            }
            values.resize(buckets.n_elems(bucket), 0.0);
            let values = Values::F32(values);
            let head = Some(Head { weight, lr: self.lr });
            let reduction = Reduction { values, reduce: Reduce::Sum, head, wire: self.wire };
            Ok(self.world.begin("reduction of gradients", Task::Reduce(reduction, give)))
        };
        let stages: Vec<Vec<Vec<&Tensor>>> = terms.iter().map(|(grads, more)| staged(buckets, grads, more)).collect();
        let stages: Vec<Vec<&[&Tensor]>> =
            stages.iter().map(|stages| stages.iter().map(Vec::as_slice).collect()).collect();
        let mut waits = Vec::new();
        // Those of further devices are handed over first: the first device's are waited for one by one.
        stages.iter().skip(1).try_for_each(|stages| lazuli::compute_staged(stages))?;
        match (stages.first(), self.overlap) {
            (Some(stages), Overlap::On) => {
                lazuli::compute_staged_with(stages, |stage| begin(stage).map(|wait| waits.push(wait)))?;
            }
            (Some(stages), Overlap::Off) => lazuli::compute_staged(stages)?,
            (None, _) => {}
        }
        for bucket in waits.len()..buckets.each.len() {
            waits.push(begin(bucket)?);
        }
        let nothing = Tensor::scalar(0.0, &Device::cpu());
        parts.iter_mut().for_each(|part| part.loss = nothing.clone());
        let mut means: Vec<Vec<f32>> = Vec::new();
        for wait in waits {
            match self.world.wait_values(wait)? {
                Values::F32(values) => means.push(values),
                _ => unreachable!("gradients travel as floats"),
            }
        }
        buckets::clip(&mut means, self.clip, |means| match give {
            Give::Whole => Ok(buckets.squares(means)),
            Give::OwnChunk => {
                let own: f64 = means.iter().map(|chunk| buckets::squares(chunk)).sum();
                let all = self.world.gather_bytes("norm", own.to_le_bytes().to_vec(), &vec![8; self.world.size()])?;
                Ok(all.as_chunks::<8>().0.iter().map(|n| f64::from_le_bytes(*n)).collect())
            }
        })?;
        Ok(means)
    }

    /// That all ranks train the same model from the same values by the same rule, found out at the first step.
    #[track_caller]
    fn agree(&mut self, parts: &mut [Part]) -> Result<()> {
        if self.is_agreed {
            return Ok(());
        }
        let (sharded, rule) = (self.is_sharded, self.optimizer.rule());
        let of = format!("{:?}\n{} bytes\n{:?}\nsharded: {sharded}\n", self.wire, self.bucket_bytes, self.clip);
        let rule = format!("{}\n{}\n", rule.name(), rule.settings());
        let model = described(parts[0].model)?;
        for part in parts.iter_mut().skip(1) {
            let other = described(part.model)?;
            if other != model {
                return Err(fault(
                    "step_replicas",
                    "replicas differ: make them by the same function, one for each device",
                ));
            }
        }
        let parameters = parameters(parts[0].model);
        if sharded {
            sharded::check(&self.optimizer, &parameters)?;
        }
        self.world.agree("the model", &(of + &rule + &model))?;
        self.world.agree_on_values(&parameters, &self.optimizer, sharded)?;
        self.is_agreed = true;
        Ok(())
    }

    fn cut(&self, parameters: &[(String, Tensor)]) -> Result<Buckets> {
        let mut sizes = Vec::new();
        for (name, w) in parameters {
            sizes.push((name.as_str(), w.shape()?.iter().product()));
        }
        Ok(Buckets::new(&sizes, self.bucket_bytes, self.world.size()))
    }
}

/// The gradients of a mean loss by all parameters as f32, times the number of examples, and what was summed before.
fn weighted(
    optimizer: &Optimizer,
    model: &mut (impl Module + ?Sized),
    loss: &Tensor,
    n_examples: usize,
    before: Option<&Sums>,
) -> Result<Vec<Tensor>> {
    let grads = optimizer.gradients(model, loss)?;
    let weight = n_examples as f32;
    let mut out = Vec::new();
    for (at, grad) in grads.iter().enumerate() {
        let grad = grad.to_dtype(DType::F32).mul(weight);
        out.push(before.map_or(grad.clone(), |sums| grad.add(&sums.grads[at])));
    }
    out.iter().try_for_each(Tensor::check)?;
    Ok(out)
}

/// Gradients by bucket; with the last of them, what else is to be computed.
fn staged<'t>(buckets: &Buckets, grads: &'t [Tensor], more: &'t [Tensor]) -> Vec<Vec<&'t Tensor>> {
    let of = |bucket: &Vec<usize>| bucket.iter().map(|at| &grads[*at]).collect();
    let mut stages: Vec<Vec<&Tensor>> = buckets.each.iter().map(of).collect();
    if let Some(last) = stages.last_mut() {
        last.extend(more);
    }
    stages
}

/// Gradients of parameters from buckets.
fn whole(parameters: &[(String, Tensor)], buckets: &Buckets, means: &[Vec<f32>]) -> Result<Vec<Tensor>> {
    let mut out: Vec<Option<Tensor>> = vec![None; parameters.len()];
    for (bucket, mean) in means.iter().enumerate() {
        for (at, place) in buckets.places(bucket) {
            let w = &parameters[at].1;
            out[at] = Some(Tensor::from_slice(&mean[place], w.shape()?, w.device()?).to_dtype(w.dtype()?));
        }
    }
    Ok(out.into_iter().flatten().collect())
}

/// Gives a model other parameters, one after another; those that there is none for stay.
fn set(model: &mut dyn Module, new: &mut dyn FnMut(&Tensor) -> Option<Tensor>) {
    model.visit(&mut |_, item| {
        if let Item::Parameter(w) = item
            && let Some(new) = new(w)
        {
            *w = new.tracked();
        }
    });
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
