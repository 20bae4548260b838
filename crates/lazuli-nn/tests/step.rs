//! A step is one plan: counters prove it, and what it computes is what the formulas say, on the CPU or on what
//! `LAZULI_TEST_DEVICE` names.

use lazuli::{Device, Stats, Tensor};
use lazuli_check::testing::{alone, device};
use lazuli_nn::*;

fn mlp(device: &Device) -> Sequential {
    Sequential::new().push(Linear::new(784, 256, 1, device)).push(Relu).push(Linear::new(256, 10, 2, device))
}

fn batch(seed: u64, n: usize) -> (Tensor, Tensor) {
    let cpu = device();
    let x = Tensor::rand([n, 784], seed, &cpu).compute().unwrap();
    // On the device before the first step: what is new to it takes memory when it is first read.
    let (first, n) = (seed as i64, n as i64);
    let labels = Tensor::arange(first, first + n, 1, &cpu).mul(7).rem(10).compute().unwrap();
    (x, labels)
}

fn cost(mut f: impl FnMut()) -> Stats {
    device().reset_stats();
    f();
    device().stats()
}

#[test]
fn from_the_third_step_on_nothing_is_compiled_or_allocated() {
    let _device = alone();
    let mut model = mlp(&device());
    let mut optimizer = Optimizer::new(Adam::default(), 1e-3).clipped(Clip::Norm(1.0));
    let batches: Vec<_> = (0..6).map(|i| batch(i, 64)).collect();
    let mut step = |i: usize| {
        // Another learning rate each time.
        optimizer.lr = 1e-3 / (i + 1) as f64;
        let (x, labels) = &batches[i % batches.len()];
        let logits = model.forward(x);
        let accuracy = metrics::accuracy(&logits, labels);
        let loss = loss::cross_entropy(&logits, labels);
        drop(logits);
        optimizer.step_with(&mut model, loss, vec![accuracy]).unwrap();
    };
    step(0);
    step(1);
    let mut packed = device().stats().bytes_packed;
    for i in 2..300 {
        let stats = cost(|| step(i));
        // A batch that comes for the third time is packed for the product that reads it: that is all that is new.
        let n_packed = (stats.bytes_packed > packed) as u64;
        packed = stats.bytes_packed;
        assert_eq!((stats.plans_compiled, stats.pipelines_compiled), (0, 0), "step {i}: {stats:?}");
        assert!(stats.buffers_created <= n_packed, "step {i}: {stats:?}");
        assert!(n_packed == 0 || (12..18).contains(&i), "step {i}: {stats:?}");
        assert_eq!(stats.submits, 1, "step {i}");
    }
}

#[test]
fn old_parameters_are_let_go_during_the_step() {
    let _device = alone();
    let cpu = device();
    let mut model = mlp(&cpu);
    let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    let (x, labels) = batch(1, 64);
    let mut step = || {
        let loss = loss::cross_entropy(&model.forward(&x), &labels);
        optimizer.step(&mut model, loss).unwrap();
    };
    step();
    step();
    // The third use of a batch packs it; what is kept so has a counter of its own.
    let unpacked = |stats: &Stats| stats.bytes_live - stats.bytes_packed;
    let live = unpacked(&cpu.stats());
    let stats = cost(&mut step);
    assert_eq!(unpacked(&stats), live);
    // New weights and moments are written over old ones by the product that makes the gradient. What is held for a moment
    // are activations and what products need for themselves: less than a second copy would be.
    let copy = 3 * 4 * (784 * 256 + 256 * 10);
    assert!(stats.bytes_peak < live + copy, "{} above {live}", stats.bytes_peak - live);
}

#[test]
fn a_step_holds_little_more_than_it_must() {
    let _device = alone();
    let mut model = mlp(&device());
    let (x, labels) = batch(1, 64);
    let named = parameters(&mut model);
    let wrt: Vec<&Tensor> = named.iter().map(|(_, w)| w).collect();
    let loss = loss::cross_entropy(&model.forward(&x), &labels);
    let grads = loss.grad(&wrt);
    let slots: Vec<Vec<Tensor>> = wrt.iter().map(|w| vec![w.zeros_like().compute().unwrap(); 2]).collect();
    let at = Update { lr: 1e-3, step: &Tensor::scalar(1.0, &device()) };
    let updates =
        named.iter().zip(&grads).zip(&slots).map(|(((_, w), g), slots)| Adam::default().update(w, g, slots, at));
    let new: Vec<Tensor> = updates.flat_map(|(w, slots)| [w].into_iter().chain(slots)).map(|t| t.detach()).collect();
    let plan = lazuli::explain(&new.iter().chain([&loss.detach()]).collect::<Vec<_>>()).unwrap();
    let ratio = plan.peak_temp_bytes as f64 / plan.peak_temp_lower_bound.max(1) as f64;
    assert!(ratio <= 1.25, "{} of {}\n{plan}", plan.peak_temp_bytes, plan.peak_temp_lower_bound);
}

#[test]
fn a_long_run_keeps_no_history() {
    let _device = alone();
    let cpu = device();
    let mut model = Linear::new(6, 4, 1, &cpu);
    let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    let x = Tensor::rand([8, 6], 1, &cpu).compute().unwrap();
    let mut step = || {
        let loss = model.forward(&x).square().mean(..);
        optimizer.step(&mut model, loss).unwrap().item::<f32>().unwrap()
    };
    (0..10).for_each(|_| {
        step();
    });
    let live = cpu.stats().bytes_live;
    (0..2000).for_each(|_| {
        step();
    });
    assert_eq!(cpu.stats().bytes_live, live);
}

/// One step by hand, in f64, of a single weight with gradient `g`.
#[track_caller]
fn check_rule(rule: impl Rule + Send + 'static, expect: &[f64]) {
    let cpu = device();
    struct One {
        w: Tensor,
    }
    module!(One { w });
    let mut model = One { w: Tensor::scalar(1.0, &cpu).compute().unwrap().tracked() };
    let mut optimizer = Optimizer::new(rule, 0.1);
    for want in expect {
        // The gradient of w² is 2w.
        let loss = model.w.square();
        optimizer.step(&mut model, loss).unwrap();
        let got = model.w.item::<f32>().unwrap() as f64;
        assert!((got - want).abs() < 2e-6, "{got}, not {want}");
    }
}

#[test]
fn rules_follow_their_formulas() {
    let _device = alone();
    check_rule(Sgd::default(), &[0.8, 0.64]);
    // v = 2, then 0.9·2 + 1.6 = 3.4
    check_rule(Sgd { momentum: 0.9, ..Sgd::default() }, &[0.8, 0.46]);
    check_rule(Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() }, &[0.62, 0.62 - 0.1 * (1.24 + 0.9 * 3.04)]);
    let adam = |n: usize| -> Vec<f64> {
        let (mut w, mut m, mut v) = (1.0f64, 0.0, 0.0);
        (1..=n as i32)
            .map(|t| {
                let g = 2.0 * w;
                m = 0.9 * m + 0.1 * g;
                v = 0.999 * v + 0.001 * g * g;
                w -= 0.1 * (m / (1.0 - 0.9f64.powi(t))) / ((v / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
                w
            })
            .collect()
    };
    check_rule(Adam::default(), &adam(5));
    check_rule(AdamW { weight_decay: 0.0, ..AdamW::default() }, &adam(5));
    check_rule(RmsProp::default(), &[1.0 - 0.1 * 2.0 / 0.2]);
    check_rule(Lion::default(), &[0.9, 0.8]);
}

#[test]
fn clipping() {
    let _device = alone();
    let cpu = device();
    for (clip, want) in [(Clip::Norm(1.0), [0.6, 0.8]), (Clip::Value(3.5), [3.0, 3.5]), (Clip::Norm(9.0), [3.0, 4.0])] {
        struct Two {
            w: Tensor,
        }
        module!(Two { w });
        let mut model = Two { w: init::zeros([2], &cpu) };
        let mut optimizer = Optimizer::new(Sgd::default(), 1.0).clipped(clip);
        let loss = model.w.mul(Tensor::from_slice(&[3.0f32, 4.0], [2], &cpu)).sum(..);
        optimizer.step(&mut model, loss).unwrap();
        let got = model.w.to_vec::<f32>().unwrap();
        assert!(got.iter().zip(want).all(|(g, w)| (g + w).abs() < 1e-5), "{clip:?}: {got:?}");
    }
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let _device = alone();
    let cpu = device();
    let x = Tensor::rand([8, 6], 1, &cpu).compute().unwrap();
    let run = |parts: usize| {
        let mut model = Linear::new(6, 4, 1, &cpu);
        let mut optimizer = Optimizer::new(Sgd::default(), 0.5);
        for part in x.chunk(0, parts) {
            let loss = model.forward(&part).square().mean(..);
            optimizer.accumulate(&mut model, loss).unwrap();
        }
        optimizer.apply(&mut model).unwrap();
        model.weight.to_vec::<f32>().unwrap()
    };
    let (whole, parts) = (run(1), run(4));
    assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn gradients_applied_by_hand_are_the_step() {
    let _device = alone();
    let weights = |by_hand: bool| {
        let mut model = mlp(&device());
        let mut optimizer = Optimizer::new(Adam::default(), 1e-3).clipped(Clip::Norm(0.5));
        for i in 0..3 {
            let (x, labels) = batch(i, 32);
            let loss = loss::cross_entropy(&model.forward(&x), &labels);
            if by_hand {
                let grads = optimizer.gradients(&mut model, &loss).unwrap();
                drop(loss);
                lazuli::compute(&grads.iter().collect::<Vec<_>>()).unwrap();
                optimizer.apply_gradients(&mut model, grads).unwrap();
            } else {
                optimizer.step(&mut model, loss).unwrap();
            }
        }
        assert_eq!(optimizer.n_steps(), 3);
        let values = parameters(&mut model).into_iter().flat_map(|(_, w)| w.to_vec::<f32>().unwrap());
        values.collect::<Vec<f32>>()
    };
    let (by_hand, step) = (weights(true), weights(false));
    let far = by_hand.iter().zip(&step).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Stored in between, gradients are rounded where one plan may not round them.
    assert!(far < 1e-5, "{far}");
}

#[test]
fn gradients_that_do_not_fit_are_refused_and_change_nothing() {
    let _device = alone();
    let mut model = Linear::new(3, 2, 1, &device());
    let before = model.weight.to_vec::<f32>().unwrap();
    let mut optimizer = Optimizer::new(Sgd::default(), 0.1);
    let zeros = |shape: &[usize]| Tensor::zeros(shape, lazuli::DType::F32, &device());
    let table: [(Vec<Tensor>, &str); 3] = [
        (vec![zeros(&[2, 3])], "the model has 2 parameters, not the 1 of the gradients"),
        (vec![zeros(&[3, 2]), zeros(&[2])], "`weight` is f32[2, 3], its gradient f32[3, 2]"),
        (vec![zeros(&[2, 3]), zeros(&[2]).to_dtype(lazuli::DType::F16)], "`bias` is f32[2], its gradient f16[2]"),
    ];
    for (grads, expect) in table {
        let error = optimizer.apply_gradients(&mut model, grads).unwrap_err().to_string();
        assert!(error.starts_with(&format!("apply_gradients: {expect}")), "{error}");
    }
    assert_eq!((optimizer.n_steps(), model.weight.to_vec::<f32>().unwrap()), (0, before));
}
