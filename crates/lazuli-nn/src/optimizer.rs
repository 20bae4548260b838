//! The training step: gradients, clipping and update are recorded after the loss, and all of it is computed at once. Old
//! parameters are let go before that, so that new ones are written over them.

use std::sync::Arc;

use lazuli::{Error, Fault, Result, Tensor};

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
    /// Per parameter, in the order of visiting: what the rule remembers.
    slots: Vec<(String, Vec<Tensor>)>,
    /// Gradients added up since the last step, and of how many losses.
    sums: Vec<Tensor>,
    n_sums: u64,
}

impl Optimizer {
    /// One that has not made a step yet.
    pub fn new(rule: impl Rule + Send + 'static, lr: f64) -> Optimizer {
        let rule: Box<dyn Rule + Send> = Box::new(rule);
        Optimizer { lr, rule, clip: None, step: 0, slots: Vec::new(), sums: Vec::new(), n_sums: 0 }
    }

    /// With gradients kept from being too large.
    pub fn clipped(self, clip: Clip) -> Optimizer {
        Optimizer { clip: Some(clip), ..self }
    }

    /// How many steps were made.
    pub fn n_steps(&self) -> u64 {
        self.step
    }

    /// One step: the gradients of `loss` by all parameters, and their update, computed together. Gives the loss.
    ///
    /// Hand over the loss itself and let go of what else depends on the parameters (or `detach` it): only then can new
    /// parameters take the place of old ones in memory. For the same reason a step that fails half-way (an index out of
    /// range) leaves no parameters behind: go on from a saved model.
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
        let grads = self.gradients(model, &loss)?;
        let (loss, more) = apart(loss, more);
        self.update(model, grads, loss, more)
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
        let grads = self.gradients(model, &loss)?;
        let (loss, _) = apart(loss, Vec::new());
        self.sums = grads.iter().map(Tensor::detach).collect();
        drop(grads);
        self.n_sums += 1;
        let buffers = crate::buffers(model);
        let wanted: Vec<&Tensor> = [&loss].into_iter().chain(&self.sums).chain(&buffers).collect();
        lazuli::compute(&wanted)?;
        Ok(loss)
    }

    /// The step with the mean of the gradients that were accumulated. Does nothing if there are none.
    #[track_caller]
    pub fn apply(&mut self, model: &mut (impl Module + ?Sized)) -> Result<()> {
        let _caller = fault::caller();
        let Some(first) = self.sums.first() else { return Ok(()) };
        let none = Tensor::scalar(0.0, first.device()?);
        let share = 1.0 / self.n_sums as f64;
        let grads = std::mem::take(&mut self.sums).into_iter().map(|g| g.mul(share)).collect();
        self.update(model, grads, none, Vec::new()).map(|_| ())
    }

    /// The gradients of a loss, with those that wait added.
    fn gradients(&mut self, model: &mut (impl Module + ?Sized), loss: &Tensor) -> Result<Vec<Tensor>> {
        loss.check()?;
        let named = parameters(model);
        let wrt: Vec<&Tensor> = named.iter().map(|(_, w)| w).collect();
        let mut grads = loss.grad(&wrt);
        if self.slots.is_empty() {
            let zeros = |w: &Tensor| (0..self.rule.n_slots()).map(|_| w.zeros_like()).collect();
            self.slots = named.iter().map(|(name, w)| (name.clone(), zeros(w))).collect();
        }
        if self.slots.len() != grads.len() {
            let message = format!("the model has {} parameters, the optimizer knows {}", grads.len(), self.slots.len());
            return Err(Error::Shape(Arc::new(Fault::new("step", message))));
        }
        for (g, sum) in grads.iter_mut().zip(std::mem::take(&mut self.sums)) {
            *g = g.add(sum);
        }
        Ok(grads)
    }

    fn update(
        &mut self,
        model: &mut (impl Module + ?Sized),
        grads: Vec<Tensor>,
        loss: Tensor,
        more: Vec<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        self.step += 1;
        self.n_sums = 0;
        let at = Update { lr: self.lr, step: self.step };
        let grads = match self.clip {
            Some(clip) => clipped(grads, clip),
            None => grads,
        };
        // Old parameters, gradients and slots are let go one by one as new ones take their place: when the step is
        // computed, only the step itself holds them.
        let mut work = grads.into_iter().zip(&mut self.slots);
        let (rule, mut new) = (&self.rule, Vec::new());
        model.visit(&mut |_, item| {
            if let (Item::Parameter(w), Some((g, (_, slots)))) = (item, work.next()) {
                let (next, kept) = rule.update(&w.detach(), &g.detach(), slots, at);
                *slots = kept;
                *w = next.detach();
                new.push(w.clone());
            }
        });
        drop(work);
        let buffers = crate::buffers(model);
        let slots = self.slots.iter().flat_map(|(_, slots)| slots);
        let wanted: Vec<&Tensor> = [&loss].into_iter().chain(&more).chain(&new).chain(slots).chain(&buffers).collect();
        lazuli::compute(&wanted)?;
        let mut computed = new.into_iter();
        model.visit(&mut |_, item| {
            if let (Item::Parameter(w), Some(new)) = (item, computed.next()) {
                *w = new.tracked();
            }
        });
        Ok((loss, more))
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
        let halves = [self.step as u32, (self.step >> 32) as u32];
        let mut out = vec![(format!("{rule}.step"), Tensor::from_slice(&halves, [2], device))];
        for (name, slots) in &self.slots {
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
        self.slots = slots;
        (self.sums, self.n_sums) = (Vec::new(), 0);
        Ok(())
    }
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
