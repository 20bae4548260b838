//! What is kept for gradients and what is let go; and what is said when a gradient cannot be had.

use super::leaf;
use crate::{DType, Error, Tensor};

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn refused(grads: &[Tensor], expect: &str) {
    let error = grads[0].check().expect_err("is refused");
    assert!(matches!(error, Error::Grad(_)), "{error:?}");
    assert!(error.to_string().contains(expect), "{error}");
    assert!(error.to_string().contains("history.rs"), "{error}");
}

#[test]
fn what_is_not_connected_has_zeros() {
    let (x, y) = (leaf(&[2], (0.0, 1.0), 1), leaf(&[3], (0.0, 1.0), 2));
    assert_eq!(values(&x.sum(..).grad(&[&y])[0]), [0.0; 3]);
    // Through what is flat, too.
    assert_eq!(values(&y.floor().sum(..).grad(&[&y])[0]), [0.0; 3]);
    assert_eq!(values(&y.to_dtype(DType::I32).to_dtype(DType::F32).sum(..).grad(&[&y])[0]), [0.0; 3]);
    assert!(x.sum(..).grad(&[]).is_empty());
}

#[test]
fn a_tensor_is_its_own_gradient_by_one() {
    let x = Tensor::scalar(3.0, &super::device());
    assert_eq!(values(&x.grad(&[&x, &x])[1]), [1.0]);
    // One element is enough, whatever the rank.
    assert_eq!(values(&x.reshape([1, 1]).square().grad(&[&x])[0]), [6.0]);
}

#[test]
fn gradients_by_what_lies_on_the_way() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let h = x.square();
    let grads = h.mul(3.0).sum(..).grad(&[&h, &x]);
    assert_eq!(values(&grads[0]), [3.0; 3]);
    assert_eq!(values(&grads[1]), values(&x.mul(2.0).mul(3.0)));
}

#[test]
fn only_one_float_has_a_gradient() {
    let x = leaf(&[2, 3], (0.0, 1.0), 1);
    refused(&x.grad(&[&x]), "the loss has shape [2, 3], not one element; take .sum(..) or .mean(..) first");
    refused(&x.argmax(..).grad(&[&x]), "i32 has no gradient; cast it to a float with to_dtype first");
    let whole = Tensor::from_slice(&[1, 2], [2], &super::device());
    refused(&x.sum(..).grad(&[&whole]), "i32 has no gradient");
    // An error made on the way stays what it was.
    let error = x.matmul(&x).sum(..).grad(&[&x])[0].check().expect_err("does not fit");
    assert!(matches!(error, Error::Shape(_)));
}

#[test]
fn detach_stops_gradients() {
    for w in [leaf(&[2], (1.0, 2.0), 1), leaf(&[2], (1.0, 2.0), 1).tracked()] {
        let loss = w.mul(&w.square().detach()).sum(..);
        assert_eq!(values(&loss.grad(&[&w])[0]), values(&w.square()));
    }
}

#[test]
fn tracked_history_survives_computing() {
    let w = leaf(&[4], (1.0, 2.0), 1).tracked();
    let h = w.exp();
    let loss = h.sum(..);
    let early = values(&loss.grad(&[&w])[0]);
    h.compute().expect("runs");
    assert!(loss.item::<f32>().is_ok());
    assert_eq!(values(&loss.grad(&[&w])[0]), early);
    // A gradient that was computed has a history as well.
    let slope = loss.grad(&[&w])[0].clone();
    slope.compute().expect("runs");
    assert_eq!(values(&slope.sum(..).grad(&[&w])[0]), early);
}

#[test]
fn history_that_was_let_go_is_an_error() {
    let w = leaf(&[4], (1.0, 2.0), 1);
    let h = w.exp().compute().expect("runs");
    refused(&h.sum(..).grad(&[&w]), "has let go of its history; make what you differentiate by tracked()");
    // Part of the way is as bad as all of it.
    refused(&h.mul(&w).sum(..).grad(&[&w]), "tracked()");
    let loss = w.sum(..);
    assert!(loss.item::<f32>().is_ok());
    refused(&loss.grad(&[&w]), "tracked()");
}

#[test]
fn data_computed_beforehand_is_no_lost_history() {
    let x = leaf(&[4], (1.0, 2.0), 1).log().compute().expect("runs");
    let w = leaf(&[4], (1.0, 2.0), 2);
    assert_eq!(values(&w.mul(&x).sum(..).grad(&[&w])[0]), values(&x));
    // Nor is what was made later of nothing but what is later still.
    let later = leaf(&[4], (1.0, 2.0), 1).log().compute().expect("runs");
    assert_eq!(values(&w.mul(&later).sum(..).grad(&[&w])[0]), values(&later));
    // What depends on a tracked tensor never lets go, so whatever did is data.
    let w = w.tracked();
    let mixed = x.mul(leaf(&[4], (1.0, 2.0), 1)).compute().expect("runs");
    assert_eq!(values(&w.mul(&mixed).sum(..).grad(&[&w])[0]), values(&mixed));
}

#[test]
fn a_million_ops_have_a_gradient_on_a_small_stack() {
    let run = || {
        let w = Tensor::scalar(1.0, &super::device());
        let mut y = w.clone();
        for _ in 0..500_000 {
            y = y.mul(1.000_001).add(0.5);
        }
        // Recording it and letting it go again is what must not overflow; running it is tested elsewhere.
        let grads = y.grad(&[&w]);
        assert!(grads[0].check().is_ok());
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("can be started");
    thread.join().expect("does not overflow");
}

#[test]
fn a_shared_node_is_visited_once() {
    // 2³⁰ paths from end to start, 30 nodes: linear or never.
    let w = Tensor::scalar(1.0, &super::device());
    let mut y = w.clone();
    for _ in 0..30 {
        y = y.add(&y);
    }
    assert_eq!(values(&y.grad(&[&w])[0]), [(1u32 << 30) as f32]);
}

#[test]
fn directional_derivatives() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let v = leaf(&[3], (-1.0, 1.0), 2);
    let y = x.exp().mul(x.sum(..));
    let got = y.jvp(&[&x], &[&v]).to_vec::<f64>().expect("no mistake");
    // d(eˣ·s) = eˣ·s·v + eˣ·Σv
    let want = x.exp().mul(x.sum(..)).mul(&v).add(x.exp().mul(v.sum(..)));
    super::compare("jvp", &got, &want.to_vec::<f64>().expect("no mistake"), 1e-6);
    assert!(y.jvp(&[&x], &[]).check().is_err());
}

#[test]
fn seeds_must_fit() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let seed = Tensor::scalar(2.0, &super::device());
    assert_eq!(values(&x.mul(3.0).vjp(&[&x], &seed)[0]), [6.0; 3]);
    assert!(x.vjp(&[&x], &leaf(&[2], (0.0, 1.0), 1))[0].check().is_err());
}
