//! What a model is: something whose parts can be visited by name. No derive and no registry: a struct lists its fields
//! once, in `module!`, and every kind of part (a parameter, a layer, several of them) knows how to be visited.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lazuli::{Result, Tensor};

use crate::fault;

/// One part of a model, as visitors see it.
pub enum Item<'a> {
    /// Trained.
    Parameter(&'a mut Tensor),
    /// Kept and saved, but not trained.
    Buffer(&'a Buffer),
    /// How often something random was drawn.
    Counter(&'a Counter),
    /// Whether it is being trained.
    Mode(&'a mut Mode),
}

/// Something whose parts can be visited by name.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Layer, Linear, module, named};
///
/// struct Mlp {
///     first: Linear,
///     second: Linear,
/// }
/// module!(Mlp { first, second });
///
/// impl Layer for Mlp {
///     fn forward(&self, x: &Tensor) -> Tensor {
///         self.second.forward(&self.first.forward(x).relu())
///     }
/// }
///
/// let cpu = Device::cpu();
/// let mut mlp = Mlp { first: Linear::new(4, 8, 1, &cpu), second: Linear::new(8, 2, 2, &cpu) };
/// let names: Vec<String> = named(&mut mlp).into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["first.weight", "first.bias", "second.weight", "second.bias"]);
/// assert_eq!(mlp.forward(&Tensor::rand([3, 4], 1, &cpu)).shape()?, [3, 2]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub trait Module {
    /// Calls `visit` with every part and its name, always in the same order.
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item));

    /// The same with `name` before every name.
    fn visit_in(&mut self, name: &str, visit: &mut dyn FnMut(&str, Item)) {
        self.visit(&mut |inner, item| match inner.is_empty() {
            true => visit(name, item),
            false => visit(&format!("{name}.{inner}"), item),
        });
    }
}

/// A module that makes one tensor of another.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, Relu};
/// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2], &Device::cpu());
/// assert_eq!(Relu.forward(&x).to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub trait Layer: Module {
    /// What it makes of `x`.
    fn forward(&self, x: &Tensor) -> Tensor;
}

/// Lists the fields of a struct that are parts of the model: `module!(Name { field, … })`. What is not listed is not
/// visited.
///
/// ```
/// use lazuli_nn::{Linear, module};
/// struct Encoder {
///     layers: Vec<Linear>,
///     width: usize,
/// }
/// module!(Encoder { layers });
/// ```
#[macro_export]
macro_rules! module {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Module for $name {
            fn visit(&mut self, visit: &mut dyn FnMut(&str, $crate::Item)) {
                let _ = &visit;
                $($crate::Module::visit_in(&mut self.$field, stringify!($field), visit);)*
            }
        }
    };
}

/// A tensor that is a field is a parameter.
impl Module for Tensor {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        visit("", Item::Parameter(self));
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        if let Some(module) = self {
            module.visit(visit);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        for (i, module) in self.iter_mut().enumerate() {
            module.visit_in(&i.to_string(), visit);
        }
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        (**self).visit(visit);
    }
}

/// A tensor that a layer keeps from one batch to the next without training it: running means and the like. Its new value
/// is recorded in `forward` and computed together with the step. If that fails, it stays what it was.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let seen = lazuli_nn::Buffer::new(Tensor::scalar(0.0, &Device::cpu()));
/// seen.set(seen.get().add(1.0));
/// assert_eq!(seen.get().item::<f32>()?, 1.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Buffer(Mutex<Tensor>);

impl Buffer {
    /// With this value.
    pub fn new(value: Tensor) -> Buffer {
        Buffer(Mutex::new(value))
    }

    /// Its value.
    pub fn get(&self) -> Tensor {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives it another value, without history, unless the evaluation that computes it fails. A value that carries an error
    /// is not taken: whatever else was made of the same input carries it too.
    pub fn set(&self, value: Tensor) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if value.check().is_err() {
            return;
        }
        let kept = value.detach().unless_failed(&held);
        // Of another shape or type, nothing can take its place.
        *held = if kept.check().is_ok() { kept } else { value.detach() };
    }

    /// Puts a value in its place that has nothing to do with the one before.
    pub(crate) fn replace(&self, value: Tensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value.detach();
    }
}

impl Module for Buffer {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        visit("", Item::Buffer(self));
    }
}

/// Counts how often something random was drawn, so that each time is different and all of them can be repeated.
///
/// ```
/// let counter = lazuli_nn::Counter::new();
/// assert_eq!((counter.next(), counter.next()), (0, 1));
/// ```
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// From 0.
    pub fn new() -> Counter {
        Counter::default()
    }

    /// The number, one more each time.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that comes next.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on from `n`.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

impl Module for Counter {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        visit("", Item::Counter(self));
    }
}

/// Whether a model is being trained or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm looks at the batch.
    Train,
    /// Every element is treated alike, whatever batch it is in.
    Eval,
}

impl Module for Mode {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        visit("", Item::Mode(self));
    }
}

/// Sets the mode of all parts.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Dropout, Layer, Mode, set_mode};
/// let mut dropout = Dropout::new(0.5, 1);
/// set_mode(&mut dropout, Mode::Eval);
/// let x = Tensor::rand([8], 1, &Device::cpu());
/// assert_eq!(dropout.forward(&x).to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub fn set_mode(model: &mut (impl Module + ?Sized), mode: Mode) {
    model.visit(&mut |_, item| {
        if let Item::Mode(m) = item {
            *m = mode;
        }
    });
}

/// The parameters with their names, in the order of visiting.
///
/// ```
/// # use lazuli::Device;
/// let mut layer = lazuli_nn::Linear::new(2, 3, 1, &Device::cpu());
/// let n: usize = lazuli_nn::parameters(&mut layer).iter().map(|(_, w)| w.shape().map_or(0, |s| s.iter().product())).sum();
/// assert_eq!(n, 9);
/// ```
pub fn parameters(model: &mut (impl Module + ?Sized)) -> Vec<(String, Tensor)> {
    let mut out = Vec::new();
    model.visit(&mut |name, item| {
        if let Item::Parameter(w) = item {
            out.push((name.to_string(), w.clone()));
        }
    });
    out
}

/// The values of all buffers.
///
/// ```
/// # use lazuli::Device;
/// let mut norm = lazuli_nn::BatchNorm::new(4, &Device::cpu());
/// assert_eq!(lazuli_nn::buffers(&mut norm).len(), 2);
/// ```
pub fn buffers(model: &mut (impl Module + ?Sized)) -> Vec<Tensor> {
    let mut out = Vec::new();
    model.visit(&mut |_, item| {
        if let Item::Buffer(b) = item {
            out.push(b.get());
        }
    });
    out
}

/// All that must be saved to go on later: parameters, buffers and counters (as two halves, u32), by name.
///
/// ```
/// # use lazuli::Device;
/// let mut norm = lazuli_nn::BatchNorm::new(4, &Device::cpu());
/// let names: Vec<String> = lazuli_nn::named(&mut norm).into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["weight", "bias", "mean", "var"]);
/// ```
pub fn named(model: &mut (impl Module + ?Sized)) -> Vec<(String, Tensor)> {
    let mut out: Vec<(String, Tensor)> = Vec::new();
    let mut counters = Vec::new();
    model.visit(&mut |name, item| match item {
        Item::Parameter(w) => out.push((name.to_string(), w.detach())),
        Item::Buffer(b) => out.push((name.to_string(), b.get())),
        Item::Counter(c) => counters.push((name.to_string(), c.get())),
        Item::Mode(_) => {}
    });
    let device = out.first().and_then(|(_, t)| t.device().ok().cloned()).unwrap_or_else(lazuli::Device::cpu);
    let halves = |n: u64| Tensor::from_slice(&[n as u32, (n >> 32) as u32], [2], &device);
    out.extend(counters.into_iter().map(|(name, n)| (name, halves(n))));
    out
}

/// Puts saved values back in place. What is missing, or has another shape, is an error, and then nothing is changed.
///
/// ```
/// # use lazuli::Device;
/// # use lazuli_nn::{Linear, load, named};
/// let (mut a, mut b) = (Linear::new(2, 3, 1, &Device::cpu()), Linear::new(2, 3, 2, &Device::cpu()));
/// let saved = named(&mut a);
/// load(&mut b, |name| saved.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone()))?;
/// assert_eq!(a.weight.to_vec::<f32>()?, b.weight.to_vec::<f32>()?);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn load(model: &mut (impl Module + ?Sized), find: impl Fn(&str) -> Option<Tensor>) -> Result<()> {
    let _caller = fault::caller();
    let mut wrong = None;
    let mut have = Vec::new();
    model.visit(&mut |name, item| {
        let shape = match &item {
            Item::Parameter(w) => w.shape().map(<[usize]>::to_vec),
            Item::Buffer(b) => b.get().shape().map(<[usize]>::to_vec),
            Item::Counter(_) => Ok(vec![2]),
            Item::Mode(_) => return,
        };
        match (find(name), shape) {
            (None, _) => {
                wrong.get_or_insert_with(|| format!("there is no tensor `{name}`"));
            }
            (Some(found), Ok(shape)) if found.shape().ok() == Some(&shape[..]) => have.push(found),
            (Some(found), shape) => {
                let (want, got) = (shape.unwrap_or_default(), found.shape().map(<[usize]>::to_vec).unwrap_or_default());
                wrong.get_or_insert_with(|| format!("`{name}` has shape {got:?}, not {want:?}"));
            }
        }
    });
    if let Some(message) = wrong {
        return Err(lazuli::Error::Parse(std::sync::Arc::new(lazuli::Fault::new("load", message))));
    }
    let mut counters = Vec::new();
    let mut values = have.into_iter();
    model.visit(&mut |_, item| match item {
        Item::Parameter(w) => values.next().into_iter().for_each(|t| *w = t.detach().tracked()),
        Item::Buffer(b) => values.next().into_iter().for_each(|t| b.replace(t)),
        Item::Counter(c) => {
            if let Some(halves) = values.next() {
                match halves.to_vec::<u32>() {
                    Ok(h) => c.set(h[0] as u64 | (h[1] as u64) << 32),
                    Err(error) => counters.push(error),
                }
            }
        }
        Item::Mode(_) => {}
    });
    counters.pop().map_or(Ok(()), Err)
}
