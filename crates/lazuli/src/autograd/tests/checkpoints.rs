//! What a checkpoint promises: the same values and gradients, held for a shorter time.

use super::leaf;
use crate::{Tensor, checkpoint};

fn block(x: &Tensor, w: &Tensor) -> Tensor {
    (0..4).fold(x.clone(), |x, _| x.matmul(w).tanh().add(x.detach().mul(0.1)))
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn values_and_gradients_are_the_same() {
    let (x, w) = (leaf(&[5, 4], (-1.0, 1.0), 1), leaf(&[4, 4], (-1.0, 1.0), 2));
    let plain = block(&block(&x, &w), &w).sum(..);
    // The weights are captured, not named: their gradients come all the same.
    let kept = |x: &Tensor| checkpoint(&[x], |x| block(&x[0], &w));
    let thrifty = kept(&kept(&x)).sum(..);
    assert_eq!(values(&plain), values(&kept(&kept(&x)).sum(..)));
    for (a, b) in block(&block(&x, &w), &w).sum(..).grad(&[&x, &w]).iter().zip(thrifty.grad(&[&x, &w])) {
        let (a, b) = (values(a), values(&b));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-6 * (1.0 + a.abs())), "{a:?} {b:?}");
    }
}

#[test]
fn second_order_goes_through() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let y = checkpoint(&[&x], |x| x[0].exp().mul(&x[0])).sum(..);
    let second = y.grad(&[&x])[0].sum(..).grad(&[&x]);
    // (x·eˣ)″ = (x + 2)·eˣ
    let want = values(&x.add(2.0).mul(x.exp()));
    assert!(values(&second[0]).iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5 * b));
}

#[test]
fn history_is_kept_and_let_go_as_elsewhere() {
    let w = leaf(&[3], (0.5, 1.5), 1).tracked();
    let loss = checkpoint(&[&w], |w| w[0].square()).sum(..);
    assert!(loss.item::<f32>().is_ok());
    assert_eq!(values(&loss.grad(&[&w])[0]), values(&w.mul(2.0)));
    let w = leaf(&[3], (0.5, 1.5), 1);
    let y = checkpoint(&[&w], |w| w[0].square()).compute().expect("runs");
    assert!(y.sum(..).grad(&[&w])[0].check().is_err());
}

#[test]
fn errors_inside_are_carried() {
    let x = leaf(&[2, 3], (0.0, 1.0), 1);
    assert!(checkpoint(&[&x], |x| x[0].matmul(&x[0])).check().is_err());
    let words = Tensor::from_slice(&[1, 0], [2], &super::device());
    let y = checkpoint(&[&x, &words], |x| x[0].embedding(&x[1]).square()).sum(..);
    assert_eq!(values(&y.grad(&[&x])[0]), values(&x.mul(2.0)));
}
