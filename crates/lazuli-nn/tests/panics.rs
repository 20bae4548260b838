//! Code of the user's that is called on the caller's own stack panics as if the caller had called it, and the device works
//! on.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use lazuli::{Device, Tensor};
use lazuli_nn::{Item, Layer, Linear, Module, Optimizer, Rule, Sgd, Update};

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// Ways to panic, with their texts.
const PANICS: [(fn(), &str); 3] = [
    (|| panic!("plain text"), "plain text"),
    (|| panic!("text with {}", 1 + 1), "text with 2"),
    (|| panic_any(Bomb), "a bomb"),
];

struct PanickyRule(fn());

impl Rule for PanickyRule {
    fn name(&self) -> &'static str {
        "panicky"
    }
    fn n_slots(&self) -> usize {
        0
    }
    fn update(&self, w: &Tensor, _: &Tensor, _: &[Tensor], _: Update) -> (Tensor, Vec<Tensor>) {
        (self.0)();
        (w.clone(), Vec::new())
    }
}

struct PanickyModel(Linear, fn());

impl Module for PanickyModel {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        self.0.visit(visit);
        (self.1)();
    }
}

/// The text of the panic that a step ends with; then the device must work on.
fn panic_of(optimizer: &mut Optimizer, model: &mut dyn Module, loss: Tensor) -> String {
    let thrown = catch_unwind(AssertUnwindSafe(|| optimizer.step(model, loss).map(drop))).unwrap_err();
    let text = thrown.downcast_ref::<String>().cloned().or(thrown.downcast_ref::<&str>().map(|text| text.to_string()));
    std::mem::forget(thrown);
    let (cpu, mut good) = (Device::cpu(), Linear::new(2, 1, 1, &Device::cpu()));
    let loss = good.forward(&Tensor::rand([3, 2], 1, &cpu)).square().mean(..);
    assert!(Optimizer::new(Sgd::default(), 0.1).step(&mut good, loss).unwrap().item::<f32>().unwrap().is_finite());
    text.unwrap_or("a bomb".into())
}

#[test]
fn rules_and_visitors_that_panic_do_so_through_the_step() {
    let x = Tensor::rand([3, 2], 1, &Device::cpu());
    for (panics, text) in PANICS {
        let mut model = Linear::new(2, 1, 1, &Device::cpu());
        let loss = model.forward(&x).square().mean(..);
        assert_eq!(panic_of(&mut Optimizer::new(PanickyRule(panics), 0.1), &mut model, loss), text);

        let mut model = PanickyModel(Linear::new(2, 1, 1, &Device::cpu()), panics);
        let loss = model.0.forward(&x).square().mean(..);
        assert_eq!(panic_of(&mut Optimizer::new(Sgd::default(), 0.1), &mut model, loss), text);
    }
}
