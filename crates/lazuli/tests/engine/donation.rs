//! An evaluation reuses the memory of inputs that nobody else holds, and other threads must never see it happen: beside
//! an evaluation, gradients, reads and drops give what is right, or the error that says why there is no gradient.

use std::sync::{Arc, Barrier, Mutex};

use lazuli::{CustomOp, Device, Error, Result, Tensor, checkpoint};

use crate::device::device;
use crate::shared;

/// What a second thread does with a tensor while the first computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Grad,
    Vjp,
    Jvp,
    Checkpoint,
    /// Differentiates a custom op whose gradient reads its input.
    Custom,
    Drop,
    Read,
    Explain,
    /// Computes something else from the same tensor.
    Use,
}

const ALL: [Beside; 9] = [
    Beside::Grad,
    Beside::Vjp,
    Beside::Jvp,
    Beside::Checkpoint,
    Beside::Custom,
    Beside::Drop,
    Beside::Read,
    Beside::Explain,
    Beside::Use,
];

/// The same numbers for every round of one size, and what comes of them without any other thread.
struct Case {
    x: Vec<f32>,
    w: Tensor,
    /// `exp(x · w)`.
    y: Vec<f32>,
    /// `x · exp(x · w)`, the gradient by `w`.
    slope: Vec<f32>,
}

impl Case {
    fn new(n: usize, device: &Device) -> Case {
        let x: Vec<f32> = (0..n).map(|i| (i % 113) as f32 * 0.01 + 0.1).collect();
        let w = Tensor::from_vec((0..n).map(|i| (i % 89) as f32 * 0.01 + 0.1).collect(), [n], device);
        let w = w.compute().expect("runs");
        let held = Tensor::from_slice(&x, [n], device);
        let y = held.mul(&w).exp().to_vec().expect("runs");
        let slope = held.mul(held.mul(&w).exp()).to_vec().expect("runs");
        Case { x, w, y, slope }
    }

    fn input(&self) -> Tensor {
        Tensor::from_slice(&self.x, [self.x.len()], self.w.device().expect("no mistake"))
    }
}

/// Whether these are the right numbers, or the error that names what would have helped.
fn is_right(got: Result<Vec<f32>>, want: &[f32]) -> bool {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() * 1e-5;
    match got {
        Ok(got) => got.len() == want.len() && got.iter().zip(want).all(near),
        Err(error @ Error::Grad(_)) => error.to_string().contains("tracked()"),
        Err(error) => panic!("{error}"),
    }
}

/// One evaluation beside one use of what is being computed; `pause` is how long the second thread waits first.
fn round(case: &Case, beside: Beside, pause: usize) -> bool {
    let (x, w) = (case.input(), &case.w);
    let read: Arc<Mutex<Vec<f32>>> = Arc::default();
    let y = match beside {
        Beside::Custom => {
            let read = read.clone();
            let grad = move |inputs: &[Tensor], y: &Tensor, g: &Tensor| {
                *read.lock().expect("no panic") = inputs[0].to_vec().expect("is read");
                vec![g.mul(y).mul(&inputs[1]), g.mul(y).mul(&inputs[0])]
            };
            let cpu = |x: &[f32]| (x[0] * x[1]).exp();
            let op = CustomOp {
                name: "growth".into(),
                wgsl: "exp($0 * $1)".into(),
                cpu: Arc::new(cpu),
                grad: Some(Arc::new(grad)),
            };
            Tensor::map_custom(&op, &[&x, w])
        }
        _ => x.mul(w).exp(),
    };
    let held = matches!(beside, Beside::Drop | Beside::Read).then(|| x.clone());
    drop(x);
    let other = y.clone();
    let start = Barrier::new(2);
    let (computed, fine) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            start.wait();
            y.compute().and_then(|y| y.to_vec::<f32>())
        });
        let second = scope.spawn(|| {
            start.wait();
            (0..pause).for_each(|_| std::hint::spin_loop());
            used(case, beside, other, held)
        });
        (first.join().expect("no panic"), second.join().expect("no panic"))
    });
    let read = std::mem::take(&mut *read.lock().expect("no panic"));
    fine && is_right(computed, &case.y) && (read.is_empty() || read == case.x)
}

fn used(case: &Case, beside: Beside, y: Tensor, held: Option<Tensor>) -> bool {
    let w = &case.w;
    let first = |grads: Vec<Tensor>| grads[0].to_vec::<f32>();
    match beside {
        Beside::Grad | Beside::Custom => is_right(first(y.sum(..).grad(&[w])), &case.slope),
        Beside::Vjp => is_right(first(y.vjp(&[w], &w.ones_like())), &case.slope),
        Beside::Jvp => is_right(y.jvp(&[w], &[&w.ones_like()]).to_vec(), &case.slope),
        Beside::Checkpoint => {
            let again = checkpoint(&[w], |_| y.clone());
            is_right(first(again.sum(..).grad(&[w])), &case.slope)
        }
        Beside::Drop => {
            drop(held);
            true
        }
        Beside::Read => held.is_some_and(|x| x.to_vec::<f32>().is_ok_and(|x| x == case.x)),
        Beside::Explain => y.explain().is_ok() && y.prepare().is_ok(),
        Beside::Use => is_right(y.mul(1.0).to_vec(), &case.y),
    }
}

#[test]
fn nobody_sees_memory_that_an_evaluation_reuses() {
    let _device = shared();
    let device = device();
    let n_rounds = 10_080;
    let sizes = match device == Device::cpu() {
        true => [1 << 10, 1 << 14, 1 << 14, 1 << 17],
        false => [1 << 14; 4],
    };
    let cases = sizes.map(|n| Case::new(n, &device));
    let mut wrong = Vec::new();
    for i in 0..n_rounds {
        let (beside, at) = (ALL[i % ALL.len()], i / ALL.len() % cases.len());
        if !round(&cases[at], beside, i % 41 * 50) {
            wrong.push((beside, sizes[at]));
        }
    }
    assert!(wrong.is_empty(), "{} of {n_rounds}: {wrong:?}", wrong.len());
}

/// An op that calls `f` once, while it is computed on the CPU; else it hands on its input.
fn calling(f: impl FnOnce() + Send + 'static) -> CustomOp {
    let once = Mutex::new(Some(f));
    let cpu = move |x: &[f32]| {
        if let Some(f) = once.lock().expect("no panic").take() {
            f();
        }
        x[0]
    };
    let grad = |_: &[Tensor], _: &Tensor, g: &Tensor| vec![g.clone()];
    CustomOp { name: "calling".into(), wgsl: "$0".into(), cpu: Arc::new(cpu), grad: Some(Arc::new(grad)) }
}

#[test]
fn a_gradient_beside_an_evaluation_does_not_wait_for_it() {
    let cpu = Device::cpu();
    let (started, is_started) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let op = calling(move || {
        started.send(()).expect("somebody waits");
        may_go_on.recv().expect("somebody says so");
    });
    let (x, w) = (Tensor::from_slice(&[3.0f32], [1], &cpu), Tensor::from_slice(&[2.0f32], [1], &cpu));
    let y = Tensor::map_custom(&op, &[&x.mul(&w)]);
    let z = y.mul(2.0);
    drop(x);
    std::thread::scope(|scope| {
        scope.spawn(|| y.compute().expect("runs"));
        is_started.recv().expect("the evaluation has begun");
        // If this waited for the device, it would wait for ever.
        let through = z.sum(..).grad(&[&w, &z]);
        assert!(matches!(through[0].check(), Err(Error::Grad(_))), "{:?}", through[0].check());
        assert!(through[1].check().is_ok());
        let other = w.square().sum(..).grad(&[&w]);
        go_on.send(()).expect("the evaluation waits");
        assert_eq!(other[0].to_vec::<f32>().expect("runs"), [4.0]);
    });
    assert_eq!(y.to_vec::<f32>().expect("runs"), [6.0]);
}

#[test]
fn an_op_that_differentiates_what_is_being_computed_gets_no_spoiled_numbers() {
    let cpu = Device::cpu();
    let (x, w) = (Tensor::from_slice(&[2.0f32], [1], &cpu), Tensor::from_slice(&[1.0f32], [1], &cpu));
    let (sent, wanted): (_, std::sync::mpsc::Receiver<Tensor>) = std::sync::mpsc::channel();
    let found: Arc<Mutex<Option<Tensor>>> = Arc::default();
    let (keep, by) = (found.clone(), w.clone());
    let op = calling(move || {
        let y: Tensor = wanted.recv().expect("is sent");
        *keep.lock().expect("no panic") = Some(y.sum(..).grad(&[&by]).swap_remove(0));
    });
    let y = Tensor::map_custom(&op, &[&x.mul(&w).mul(3.0)]).div(3.0);
    drop(x);
    sent.send(y.clone()).expect("the op waits");
    assert_eq!(y.to_vec::<f32>().expect("runs"), [2.0]);
    let gradient = found.lock().expect("no panic").take().expect("the op was called");
    assert!(is_right(gradient.to_vec(), &[2.0]));
}

#[test]
fn what_failed_half_way_stays_an_error_for_all_that_is_made_of_it() {
    let cpu = Device::cpu();
    let n = 1 << 16;
    let (x, w) = (Tensor::from_vec(vec![1.0f32; n], [n], &cpu), Tensor::from_vec(vec![2.0f32; n], [n], &cpu));
    let op = calling(|| panic!("half-way"));
    let y = Tensor::map_custom(&op, &[&x.mul(&w)]).add(1.0);
    drop(x);
    let error = y.compute().expect_err("panics");
    assert!(matches!(error, Error::Custom(_)), "{error}");
    for error in [
        y.compute().expect_err("stays so"),
        y.add(1.0).to_vec::<f32>().expect_err("is made of it"),
        y.sum(..).grad(&[&w])[0].check().expect_err("goes through it"),
        checkpoint(&[&w], |_| y.clone()).check().expect_err("is made of it"),
    ] {
        assert!(matches!(error, Error::Custom(_)), "{error}");
    }
    // The device and whatever was held go on.
    assert_eq!(w.sum(..).item::<f32>().expect("runs"), 2.0 * n as f32);
}
