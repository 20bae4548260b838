//! Update rules: what becomes of a parameter, given its gradient and what the rule remembers. Pure functions of tensors;
//! numbers that change from step to step are scalars, so that no step needs a new plan.
//! How many steps were made is a tensor, too: see `Update`.

use lazuli::Tensor;

/// What a rule is told beside the tensors.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The learning rate of this step.
    pub lr: f64,
    /// The number of this step, from 1: one f32 on the device of the parameter, since only the device knows in time
    /// which steps before this one could be made.
    pub step: &'a Tensor,
}

/// How a parameter is updated.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Optimizer, Rule, Update};
///
/// /// Moves by the sign of the gradient.
/// struct SignSgd;
/// impl Rule for SignSgd {
///     fn name(&self) -> &'static str {
///         "sign"
///     }
///     fn n_slots(&self) -> usize {
///         0
///     }
///     fn update(&self, w: &Tensor, g: &Tensor, _: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
///         (w.sub(g.sign().mul(at.lr)), Vec::new())
///     }
/// }
/// let optimizer = Optimizer::new(SignSgd, 0.1);
/// ```
pub trait Rule {
    /// What it is called in saved state.
    fn name(&self) -> &'static str;
    /// How many tensors it remembers per parameter; they start as zeros.
    fn n_slots(&self) -> usize;
    /// The new parameter and what is remembered, from the old ones and the gradient.
    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>);
    /// All numbers that it was made with, a line each: machines that train one model compare them. A rule that does not say
    /// is known by its name alone.
    ///
    /// ```
    /// # use lazuli_nn::{Adam, Rule};
    /// assert!(Adam { beta1: 0.8, ..Adam::default() }.settings().contains("beta1: 0.8,"));
    /// ```
    fn settings(&self) -> String {
        self.name().to_string()
    }
    /// Whether every element is updated by itself, so that a parameter may be cut into pieces that different machines
    /// update. A rule that looks at a whole parameter, such as at its norm, says no; so does one that does not say.
    fn is_elementwise(&self) -> bool {
        false
    }
}

/// Gradient descent, with momentum if asked for.
///
/// ```
/// # use lazuli_nn::{Optimizer, Sgd};
/// let optimizer = Optimizer::new(Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() }, 0.1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Sgd {
    /// How much of the last step goes on; 0 for none.
    pub momentum: f64,
    /// Whether the gradient looks ahead along the momentum.
    pub nesterov: bool,
    /// How much of the parameter is added to its gradient.
    pub weight_decay: f64,
}

impl Rule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn settings(&self) -> String {
        format!("{self:#?}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn n_slots(&self) -> usize {
        (self.momentum != 0.0) as usize
    }

    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
        let g = decayed(w, g, self.weight_decay);
        let [v] = slots else { return (w.sub(g.mul(at.lr)), Vec::new()) };
        let v = v.mul(self.momentum).add(&g);
        let along = if self.nesterov { g.add(v.mul(self.momentum)) } else { v.clone() };
        (w.sub(along.mul(at.lr)), vec![v])
    }
}

/// Adam: steps scaled by running means of the gradient and its square.
///
/// ```
/// # use lazuli_nn::{Adam, Optimizer};
/// let optimizer = Optimizer::new(Adam::default(), 1e-3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// How slowly the mean of the gradient changes.
    pub beta1: f64,
    /// How slowly the mean of its square changes.
    pub beta2: f64,
    /// Added to the divisor.
    pub eps: f64,
    /// How much of the parameter is added to its gradient.
    pub weight_decay: f64,
}

impl Default for Adam {
    fn default() -> Adam {
        Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

impl Rule for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn settings(&self) -> String {
        format!("{self:#?}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn n_slots(&self) -> usize {
        2
    }

    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
        let g = decayed(w, g, self.weight_decay);
        let m = toward(&slots[0], &g, 1.0 - self.beta1);
        let v = toward(&slots[1], &g.square(), 1.0 - self.beta2);
        // lr · m̂ / (√v̂ + eps) with m̂ = m / c₁ and v̂ = v / c₂², c₁ = 1 − β₁ᵗ and c₂² = 1 − β₂ᵗ, the numbers gathered.
        // 1 − βᵗ = −expm1(t · ln β) keeps its digits where βᵗ is close to 1.
        let c1 = at.step.mul(self.beta1.ln()).expm1().neg();
        let c2 = at.step.mul(self.beta2.ln()).expm1().neg().sqrt();
        let step = m.div(v.sqrt().add(c2.mul(self.eps))).mul(c2.div(c1).mul(at.lr));
        // The numbers are f32, whatever the parameter is.
        let step = w.dtype().map_or_else(Tensor::from, |dtype| step.to_dtype(dtype));
        (w.sub(step), vec![m, v])
    }
}

/// Adam whose weight decay is apart from the gradient.
///
/// ```
/// # use lazuli_nn::{AdamW, Optimizer};
/// let optimizer = Optimizer::new(AdamW::default(), 1e-3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Adam, without a decay of its own.
    pub adam: Adam,
    /// How much of the parameter goes each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { adam: Adam::default(), weight_decay: 0.01 }
    }
}

impl Rule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn settings(&self) -> String {
        format!("{self:#?}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn n_slots(&self) -> usize {
        2
    }

    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
        self.adam.update(&w.mul(1.0 - at.lr * self.weight_decay), g, slots, at)
    }
}

/// Steps scaled by a running mean of the gradient's square.
///
/// ```
/// # use lazuli_nn::{Optimizer, RmsProp};
/// let optimizer = Optimizer::new(RmsProp::default(), 1e-3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RmsProp {
    /// How slowly the mean changes.
    pub alpha: f64,
    /// Added to the divisor.
    pub eps: f64,
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp { alpha: 0.99, eps: 1e-8 }
    }
}

impl Rule for RmsProp {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn settings(&self) -> String {
        format!("{self:#?}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn n_slots(&self) -> usize {
        1
    }

    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
        let v = toward(&slots[0], &g.square(), 1.0 - self.alpha);
        (w.sub(g.div(v.sqrt().add(self.eps)).mul(at.lr)), vec![v])
    }
}

/// Steps by the sign of a momentum.
///
/// ```
/// # use lazuli_nn::{Lion, Optimizer};
/// let optimizer = Optimizer::new(Lion::default(), 1e-4);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// How much of the momentum decides the step.
    pub beta1: f64,
    /// How slowly the momentum changes.
    pub beta2: f64,
    /// How much of the parameter goes each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for Lion {
    fn default() -> Lion {
        Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

impl Rule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn settings(&self) -> String {
        format!("{self:#?}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn n_slots(&self) -> usize {
        1
    }

    fn update(&self, w: &Tensor, g: &Tensor, slots: &[Tensor], at: Update<'_>) -> (Tensor, Vec<Tensor>) {
        let way = toward(&slots[0], g, 1.0 - self.beta1).sign();
        let m = toward(&slots[0], g, 1.0 - self.beta2);
        let w = if self.weight_decay != 0.0 { w.mul(1.0 - at.lr * self.weight_decay) } else { w.clone() };
        (w.sub(way.mul(at.lr)), vec![m])
    }
}

/// The running mean after one more value: `mean + (x − mean) · share`. A chain of steps from `x` on, which needs no place
/// for a second product as `mean · (1 − share) + x · share` does.
fn toward(mean: &Tensor, x: &Tensor, share: f64) -> Tensor {
    x.sub(mean).mul(share).add(mean)
}

fn decayed(w: &Tensor, g: &Tensor, weight_decay: f64) -> Tensor {
    if weight_decay == 0.0 { g.clone() } else { g.add(w.mul(weight_decay)) }
}
