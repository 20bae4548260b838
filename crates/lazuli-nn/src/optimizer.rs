//! The training step: gradients, clipping and update are recorded after the loss, and all of it is computed at once. Old
//! parameters are let go before that, so that new ones are written over them; but only once nothing can be refused any more,
//! and each under the condition that the evaluation goes well.

use std::sync::Arc;

use lazuli::{DType, Error, Fault, Result, Tensor};

use crate::fault;
use crate::module::{Item, Module, parameters};
use crate::rules::{Rule, Update};

/// How gradients are kept from being too large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// All of them are scaled down together until their common norm is at most this.
    Norm(f64),
    /// Each element is cut off here.
    Value(f64),
}

/// Updates the parameters of a model by a [`Rule`].
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Clip, Layer, Linear, Optimizer, Sgd, loss};
/// let cpu = Device::cpu();
/// let mut model = Linear::new(1, 1, 1, &cpu);
/// let mut optimizer = Optimizer::new(Sgd::default(), 0.1).clipped(Clip::Norm(1.0));
/// let (x, y) = (Tensor::rand([8, 1], 1, &cpu), Tensor::rand([8, 1], 2, &cpu));
/// let mut losses = Vec::new();
/// for _ in 0..20 {
///     let loss = loss::mse(&model.forward(&x), &y);
///     losses.push(optimizer.step(&mut model, loss)?.item::<f32>()?);
/// }
/// assert!(losses[19] < losses[0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Optimizer {
    /// The learning rate. May be set before every step.
    pub lr: f64,
    rule: Box<dyn Rule + Send>,
    clip: Option<Clip>,
    step: u64,
    state: State,
}

/// What is remembered from step to step. A step makes a new one, and takes it over once nothing can be refused any more.
#[derive(Clone, Default)]
struct State {
    /// Per parameter, in the order of visiting: what the rule remembers.
    slots: Vec<(String, Vec<Tensor>)>,
    /// Per device that parameters are on, how many steps were made: u32.
    n_steps: Vec<Tensor>,
    /// Gradients added up since the last step, if there are any.
    sums: Option<Sums>,
}

#[derive(Clone)]
struct Sums {
    /// Per parameter.
    grads: Vec<Tensor>,
    /// Per device, of how many losses: f32.
    n: Vec<Tensor>,
}

/// A step as it is recorded: what takes the place of what.
struct Recorded {
    /// New parameters, in the order of visiting; none if they stay.
    parameters: Vec<Tensor>,
    state: State,
    /// What of the state is new.
    changed: Vec<Tensor>,
}

impl Optimizer {
    /// One that has not made a step yet.
    pub fn new(rule: impl Rule + Send + 'static, lr: f64) -> Optimizer {
        Optimizer { lr, rule: Box::new(rule), clip: None, step: 0, state: State::default() }
    }

    /// With gradients kept from being too large.
    pub fn clipped(self, clip: Clip) -> Optimizer {
        Optimizer { clip: Some(clip), ..self }
    }

    /// How many steps were made, as far as is known without asking a device: a step that `step` or `apply` returned an
    /// error for is not counted. On a GPU, where an index out of range is found out later, such a step is; the device's
    /// own count, which rules see and [`named`](Optimizer::named) saves, leaves it out.
    pub fn n_steps(&self) -> u64 {
        self.step
    }

    /// One step: the gradients of `loss` by all parameters, and their update, computed together. Gives the loss.
    ///
    /// Hand over the loss itself and let go of what else depends on the parameters (or `detach` it): only then can new
    /// parameters take the place of old ones in memory.
    ///
    /// A step that cannot be made changes nothing: neither parameters nor what the rule remembers nor a layer's buffers. If
    /// the loss is refused (it is not one number, say), nothing runs. If the evaluation fails (an index out of range, no
    /// memory), everything is as if the batch had never been: go on with the next one. On a GPU the error comes when the
    /// loss is read.
    ///
    /// ```
    /// use lazuli::{Device, Error, Tensor};
    /// use lazuli_nn::{Adam, Embedding, Layer, Optimizer};
    /// let cpu = Device::cpu();
    /// let (mut model, mut optimizer) = (Embedding::new(10, 4, 1, &cpu), Optimizer::new(Adam::default(), 1e-3));
    /// for words in [[1, 2, 3], [4, 10, 5], [6, 7, 8]] {
    ///     let loss = model.forward(&Tensor::from_slice(&words, [3], &cpu)).square().mean(..);
    ///     match optimizer.step(&mut model, loss).and_then(|loss| loss.item::<f32>()) {
    ///         Ok(loss) => println!("{loss}"),
    ///         Err(Error::Index(_)) => println!("a word that is not in the vocabulary; its batch is left out"),
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// # assert_eq!(optimizer.n_steps(), 2);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn step(&mut self, model: &mut (impl Module + ?Sized), loss: Tensor) -> Result<Tensor> {
        let _caller = fault::caller();
        self.step_with(model, loss, Vec::new()).map(|(loss, _)| loss)
    }

    /// A step that computes some more tensors on the way, such as an accuracy.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer, loss, metrics};
    /// # let cpu = Device::cpu();
    /// # let mut model = Linear::new(4, 3, 1, &cpu);
    /// # let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// # let (x, labels) = (Tensor::rand([2, 4], 1, &cpu), Tensor::from_slice(&[0, 2], [2], &cpu));
    /// let logits = model.forward(&x);
    /// let accuracy = metrics::accuracy(&logits, &labels);
    /// let loss = loss::cross_entropy(&logits, &labels);
    /// drop(logits);
    /// let (loss, more) = optimizer.step_with(&mut model, loss, vec![accuracy])?;
    /// println!("{loss} {}", more[0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn step_with(
        &mut self,
        model: &mut (impl Module + ?Sized),
        loss: Tensor,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let _caller = fault::caller();
        let mut state = self.known(model)?;
        // Gradients that wait and those of this loss are one sum.
        let sums = state.sums.take();
        let grads = gradients(model, &loss, sums.as_ref())?;
        drop(sums);
        let recorded = self.update(model, grads, state, None)?;
        let (loss, more) = apart(loss, more);
        more.iter().try_for_each(Tensor::check)?;
        let results: Vec<&Tensor> = [&loss].into_iter().chain(&more).collect();
        self.compute(model, recorded, &results)?;
        self.step += 1;
        Ok((loss, more))
    }

    /// Adds the gradients of `loss` to those of the next step and computes them, without a step: for batches too large
    /// to hold at once. [`apply`](Optimizer::apply) makes the step with their mean.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer, loss};
    /// # let cpu = Device::cpu();
    /// # let mut model = Linear::new(4, 3, 1, &cpu);
    /// # let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// for part in 0..4 {
    ///     let x = Tensor::rand([2, 4], part, &cpu);
    ///     let loss = model.forward(&x).square().mean(..);
    ///     optimizer.accumulate(&mut model, loss)?;
    /// }
    /// optimizer.apply(&mut model)?;
    /// assert_eq!(optimizer.n_steps(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn accumulate(&mut self, model: &mut (impl Module + ?Sized), loss: Tensor) -> Result<Tensor> {
        let _caller = fault::caller();
        let mut state = self.known(model)?;
        let parameters: Vec<Tensor> = parameters(model).into_iter().map(|(_, w)| w).collect();
        let zeros = |w: &Tensor| w.detach().zeros_like();
        let none = || Ok(Sums { grads: parameters.iter().map(zeros).collect(), n: counts(&parameters, DType::F32)? });
        let before = state.sums.take().map_or_else(none, Ok)?;
        let grads = gradients(model, &loss, Some(&before))?;
        let sum = |(g, before): (&Tensor, &Tensor)| g.detach().unless_failed(before);
        let sums = Sums {
            grads: grads.iter().zip(&before.grads).map(sum).collect(),
            n: before.n.iter().map(one_more).collect(),
        };
        let changed: Vec<Tensor> = sums.grads.iter().chain(&sums.n).cloned().collect();
        changed.iter().try_for_each(Tensor::check)?;
        let (loss, _) = apart(loss, Vec::new());
        // Nothing else holds what was there before when this is computed.
        drop((grads, before, parameters));
        state.sums = Some(sums);
        self.compute(model, Recorded { parameters: Vec::new(), state, changed }, &[&loss])?;
        Ok(loss)
    }

    /// The step with the mean of the gradients that were accumulated. Does nothing if there are none.
    #[track_caller]
    pub fn apply(&mut self, model: &mut (impl Module + ?Sized)) -> Result<()> {
        let _caller = fault::caller();
        let mut state = self.known(model)?;
        let Some(sums) = state.sums.take() else { return Ok(()) };
        let mut grads = Vec::new();
        for (sum, (_, w)) in sums.grads.iter().zip(parameters(model)) {
            let share = here(&sums.n, &w)?.maximum(1.0).recip();
            grads.push(sum.mul(share).to_dtype(sum.dtype()?));
        }
        let recorded = self.update(model, grads, state, Some(&sums.n))?;
        drop(sums);
        self.compute(model, recorded, &[])?;
        self.step += 1;
        Ok(())
    }

    /// The gradients of `loss` by all parameters, in the order of visiting, recorded and not computed: for whoever adds them
    /// up elsewhere, such as over machines, before [`apply_gradients`](Optimizer::apply_gradients) makes the step. Those that
    /// [`accumulate`](Optimizer::accumulate) left waiting are not among them.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer};
    /// # let cpu = Device::cpu();
    /// # let mut model = Linear::new(4, 3, 1, &cpu);
    /// # let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// let loss = model.forward(&Tensor::rand([2, 4], 1, &cpu)).square().mean(..);
    /// let grads = optimizer.gradients(&mut model, &loss)?;
    /// let halves = grads.iter().map(|g| g.mul(0.5)).collect();
    /// drop((grads, loss));
    /// optimizer.apply_gradients(&mut model, halves)?;
    /// assert_eq!(optimizer.n_steps(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn gradients(&self, model: &mut (impl Module + ?Sized), loss: &Tensor) -> Result<Vec<Tensor>> {
        let _caller = fault::caller();
        gradients(model, loss, None)
    }

    /// One step with gradients that were made elsewhere, one for each parameter in the order of visiting: clipping and
    /// update, computed together. As with [`step`](Optimizer::step), a step that cannot be made changes nothing.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Linear, Optimizer, Sgd};
    /// # let cpu = Device::cpu();
    /// let mut model = Linear::new(2, 1, 1, &cpu);
    /// let before = model.bias.clone().map_or(0.0, |b| b.item::<f32>().unwrap_or(0.0));
    /// let grads = vec![Tensor::zeros([1, 2], lazuli::DType::F32, &cpu), Tensor::full([1], 1.0, &cpu)];
    /// Optimizer::new(Sgd::default(), 0.5).apply_gradients(&mut model, grads)?;
    /// # let after = model.bias.clone().map_or(0.0, |b| b.item::<f32>().unwrap_or(0.0));
    /// # assert_eq!(after, before - 0.5);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn apply_gradients(&mut self, model: &mut (impl Module + ?Sized), grads: Vec<Tensor>) -> Result<()> {
        let _caller = fault::caller();
        fit(&parameters(model), &grads)?;
        let state = self.known(model)?;
        let recorded = self.update(model, grads, state, None)?;
        self.compute(model, recorded, &[])?;
        self.step += 1;
        Ok(())
    }

    /// How gradients are clipped, which from now on they are not: for whoever clips them elsewhere.
    ///
    /// ```
    /// # use lazuli_nn::{Clip, Optimizer, Sgd};
    /// let mut optimizer = Optimizer::new(Sgd::default(), 0.1).clipped(Clip::Norm(1.0));
    /// assert_eq!(optimizer.take_clip(), Some(Clip::Norm(1.0)));
    /// assert_eq!(optimizer.take_clip(), None);
    /// ```
    pub fn take_clip(&mut self) -> Option<Clip> {
        self.clip.take()
    }

    /// How parameters are updated.
    ///
    /// ```
    /// # use lazuli_nn::{Adam, Optimizer};
    /// let optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// assert_eq!((optimizer.rule().name(), optimizer.rule().n_slots()), ("adam", 2));
    /// ```
    pub fn rule(&self) -> &dyn Rule {
        &*self.rule
    }

    /// What is remembered of a model with these parameters: at first, nothing.
    fn known(&self, model: &mut (impl Module + ?Sized)) -> Result<State> {
        let named = parameters(model);
        let mut state = self.state.clone();
        if state.slots.is_empty() {
            let zeros = |w: &Tensor| (0..self.rule.n_slots()).map(|_| w.detach().zeros_like()).collect();
            state.slots = named.iter().map(|(name, w)| (name.clone(), zeros(w))).collect();
        }
        if state.slots.len() != named.len() {
            let message =
                format!("the model has {} parameters, the optimizer knows {}", named.len(), state.slots.len());
            return Err(fault::shape("step", message));
        }
        let parameters: Vec<Tensor> = named.into_iter().map(|(_, w)| w).collect();
        for count in counts(&parameters, DType::U32)? {
            if !state.n_steps.iter().any(|n| n.device().ok() == count.device().ok()) {
                let known = u32::try_from(self.step).unwrap_or(u32::MAX);
                state.n_steps.push(if self.step == 0 { count } else { count.add(known) });
            }
        }
        Ok(state)
    }

    /// Records a step with these gradients, and refuses what can be refused. With `n`, nothing changes where it is 0.
    fn update(
        &self,
        model: &mut (impl Module + ?Sized),
        grads: Vec<Tensor>,
        mut state: State,
        n: Option<&[Tensor]>,
    ) -> Result<Recorded> {
        let grads = match self.clip {
            Some(clip) => clipped(grads, clip),
            None => grads,
        };
        let steps: Vec<Tensor> = state.n_steps.iter().map(|n| n.add(1).to_dtype(DType::F32)).collect();
        let mut new = Vec::new();
        for (((name, w), g), (_, slots)) in parameters(model).iter().zip(&grads).zip(&mut state.slots) {
            let at = Update { lr: self.lr, step: &here(&steps, w)? };
            let w = w.detach();
            let (next, kept) = self.rule.update(&w, &g.detach(), slots, at);
            if kept.len() != slots.len() {
                let (rule, n) = (self.rule.name(), kept.len());
                let message = format!("{rule} gave {n} tensors to remember of `{name}`, not {}", slots.len());
                return Err(fault::shape("step", message));
            }
            let any = n.map(|n| here(n, &w)).transpose()?.map(|n| n.gt(0.0));
            let settle = |new: &Tensor, old: &Tensor| match &any {
                Some(any) => any.select(new, old).detach().unless_failed(old),
                None => new.detach().unless_failed(old),
            };
            new.push(settle(&next, &w));
            *slots = kept.iter().zip(&*slots).map(|(new, old)| settle(new, old)).collect();
        }
        for count in &mut state.n_steps {
            let next = match n {
                Some(n) => count.add(here(n, count)?.gt(0.0)),
                None => count.add(1),
            };
            *count = next.unless_failed(count);
        }
        let changed: Vec<Tensor> =
            state.slots.iter().flat_map(|(_, slots)| slots).chain(&state.n_steps).cloned().collect();
        new.iter().chain(&changed).try_for_each(Tensor::check)?;
        Ok(Recorded { parameters: new, state, changed })
    }

    /// Puts what was recorded in place and computes it. Old parameters, gradients and slots are let go before that: when
    /// it is computed, only the evaluation itself holds them, and new ones are written over them. If it fails, what is new
    /// holds what was there before.
    fn compute(&mut self, model: &mut (impl Module + ?Sized), recorded: Recorded, results: &[&Tensor]) -> Result<()> {
        let Recorded { parameters, state, changed } = recorded;
        let mut new = parameters.iter();
        model.visit(&mut |_, item| {
            if let (Item::Parameter(w), Some(new)) = (item, new.next()) {
                *w = new.clone();
            }
        });
        self.state = state;
        let buffers = crate::buffers(model);
        let wanted: Vec<&Tensor> = results.iter().copied().chain(&parameters).chain(&changed).chain(&buffers).collect();
        let computed = lazuli::compute(&wanted);
        let mut new = parameters.iter();
        model.visit(&mut |_, item| {
            if let (Item::Parameter(w), Some(new)) = (item, new.next()) {
                *w = new.tracked();
            }
        });
        computed
    }

    /// All that must be saved to go on later, by name: the number of steps and what the rule remembers.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer};
    /// # let cpu = Device::cpu();
    /// # let mut model = Linear::new(2, 1, 1, &cpu);
    /// let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// let loss = model.forward(&Tensor::rand([3, 2], 1, &cpu)).sum(..);
    /// optimizer.step(&mut model, loss)?;
    /// let names: Vec<String> = optimizer.named(&cpu).into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names[..3], ["adam.step", "adam.0.weight", "adam.1.weight"]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn named(&self, device: &lazuli::Device) -> Vec<(String, Tensor)> {
        let rule = self.rule.name();
        // Two halves of a number, of which the second is 0 for as long as anybody trains.
        let step = match self.state.n_steps.first() {
            Some(n) => Tensor::stack(&[n, &n.zeros_like()], 0),
            None => Tensor::from_slice(&[self.step as u32, (self.step >> 32) as u32], [2], device),
        };
        let mut out = vec![(format!("{rule}.step"), step)];
        for (name, slots) in &self.state.slots {
            out.extend(slots.iter().enumerate().map(|(i, slot)| (format!("{rule}.{i}.{name}"), slot.clone())));
        }
        out
    }

    /// Goes on from what was saved for the same rule and model.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Adam, Layer, Linear, Optimizer};
    /// # let cpu = Device::cpu();
    /// # let mut model = Linear::new(2, 1, 1, &cpu);
    /// # let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    /// # let loss = model.forward(&Tensor::rand([3, 2], 1, &cpu)).sum(..);
    /// # optimizer.step(&mut model, loss)?;
    /// let saved = optimizer.named(&cpu);
    /// let mut again = Optimizer::new(Adam::default(), 1e-3);
    /// again.load(&mut model, |name| saved.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone()))?;
    /// assert_eq!(again.n_steps(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn load(&mut self, model: &mut (impl Module + ?Sized), find: impl Fn(&str) -> Option<Tensor>) -> Result<()> {
        let _caller = fault::caller();
        let rule = self.rule.name();
        let parse = |message: String| Error::Parse(Arc::new(Fault::new("load", message)));
        let found = |name: String, shape: &[usize]| match find(&name) {
            Some(t) if t.shape().ok() == Some(shape) => Ok(t),
            Some(t) => Err(parse(format!("`{name}` has shape {:?}, not {shape:?}", t.shape().unwrap_or_default()))),
            None => Err(parse(format!("there is no tensor `{name}`"))),
        };
        let step = found(format!("{rule}.step"), &[2])?.to_vec::<u32>()?;
        let mut slots = Vec::new();
        for (name, w) in parameters(model) {
            let shape = w.shape()?.to_vec();
            let each = (0..self.rule.n_slots()).map(|i| found(format!("{rule}.{i}.{name}"), &shape));
            let each = each.collect::<Result<Vec<Tensor>>>()?;
            slots.push((name, each));
        }
        self.step = step[0] as u64 | (step[1] as u64) << 32;
        self.state = State { slots, ..State::default() };
        Ok(())
    }
}

/// The gradients of a loss by all parameters, with those that wait added.
fn gradients(model: &mut (impl Module + ?Sized), loss: &Tensor, sums: Option<&Sums>) -> Result<Vec<Tensor>> {
    loss.check()?;
    let named = parameters(model);
    let wrt: Vec<&Tensor> = named.iter().map(|(_, w)| w).collect();
    let mut grads = loss.grad(&wrt);
    if let Some(sums) = sums {
        grads = grads.iter().zip(&sums.grads).map(|(g, sum)| g.add(sum)).collect();
    }
    grads.iter().try_for_each(Tensor::check)?;
    Ok(grads)
}

/// That there is a gradient for each parameter, of its shape and type, and on its device.
fn fit(named: &[(String, Tensor)], grads: &[Tensor]) -> Result<()> {
    if named.len() != grads.len() {
        let message = format!("the model has {} parameters, not the {} of the gradients", named.len(), grads.len());
        return Err(fault::shape("apply_gradients", message));
    }
    for ((name, w), g) in named.iter().zip(grads) {
        let ((shape, dtype), (g_shape, g_dtype)) = ((w.shape()?, w.dtype()?), (g.shape()?, g.dtype()?));
        if (shape, dtype) != (g_shape, g_dtype) {
            let message = format!("`{name}` is {dtype}{shape:?}, its gradient {g_dtype}{g_shape:?}");
            return Err(fault::shape("apply_gradients", message));
        }
        if w.device()? != g.device()? {
            let (there, here) = (&g.device()?.info().name, &w.device()?.info().name);
            let message = format!("the gradient of `{name}` is on {there}; bring it with `to_device` to {here}");
            return Err(fault::shape("apply_gradients", message));
        }
    }
    Ok(())
}

/// A number for each device that tensors are on: 0.
fn counts(tensors: &[Tensor], dtype: DType) -> Result<Vec<Tensor>> {
    let mut counts: Vec<Tensor> = Vec::new();
    for tensor in tensors {
        let device = tensor.device()?;
        if !counts.iter().any(|n| n.device().ok() == Some(device)) {
            counts.push(Tensor::zeros((), dtype, device));
        }
    }
    Ok(counts)
}

/// The number that is on the device of a tensor.
fn here(counts: &[Tensor], tensor: &Tensor) -> Result<Tensor> {
    let device = tensor.device()?;
    let found = counts.iter().find(|n| n.device().ok() == Some(device));
    found.cloned().ok_or_else(|| fault::shape("step", "a parameter has moved to another device since the last loss"))
}

/// One more than a number, unless it cannot be computed.
fn one_more(n: &Tensor) -> Tensor {
    n.add(1.0).unless_failed(n)
}

/// Results without their history, which is let go here.
fn apart(loss: Tensor, more: Vec<Tensor>) -> (Tensor, Vec<Tensor>) {
    (loss.detach(), more.iter().map(Tensor::detach).collect())
}

fn clipped(grads: Vec<Tensor>, clip: Clip) -> Vec<Tensor> {
    match clip {
        Clip::Value(most) => grads.iter().map(|g| g.clamp(-most, most)).collect(),
        Clip::Norm(most) => {
            let squares = grads.iter().map(|g| g.square().sum(..)).reduce(|a, b| a.add(b));
            let Some(squares) = squares else { return grads };
            // min(1, most / norm); a norm of 0 scales nothing.
            let scale = squares.sqrt().add(1e-12).recip().mul(most).minimum(1.0);
            grads.iter().map(|g| g.mul(&scale)).collect()
        }
    }
}
