//! Integers by chance: uniform ones, permutations, and places by weight. The same seed gives the same numbers on every device.

use std::panic::Location;

use super::create::random_32;
use super::operand::or_error;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// Random integers (i32), uniform from `low` up to but without `high`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::randint(-2, 3, [100], 7, &Device::cpu()).to_vec::<i32>()?;
    /// assert!(x.iter().all(|v| (-2..3).contains(v)) && x.contains(&2));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn randint(low: i32, high: i32, shape: impl Into<Shape>, seed: u64, device: &Device) -> Tensor {
        or_error(uniform(low, high, shape.into(), seed, device))
    }

    /// The numbers from 0 up to but without `n` (i32), in an order by chance.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let mut x = Tensor::randperm(10, 7, &Device::cpu()).to_vec::<i32>()?;
    /// x.sort();
    /// assert_eq!(x, (0..10).collect::<Vec<_>>());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn randperm(n: usize, seed: u64, device: &Device) -> Tensor {
        let shape = Shape::from([n]);
        match shape.check("randperm") {
            Ok(()) => random_32(&shape, seed, 0, device, Location::caller()).argsort(0, false),
            Err(error) => Tensor::new(Err(error)),
        }
    }

    /// For each row of weights `[…, classes]`, `n` classes (i32) by chance, each as likely as its weight is large; one may come
    /// several times.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let weights = Tensor::from_slice(&[0.0f32, 3.0, 0.0, 1.0], [4], &Device::cpu());
    /// let x = weights.multinomial(50, 7).to_vec::<i32>()?;
    /// assert!(x.iter().all(|class| [1, 3].contains(class)) && x.contains(&3));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn multinomial(&self, n: usize, seed: u64) -> Tensor {
        or_error(by_weight(self, n, seed))
    }
}

#[track_caller]
fn uniform(low: i32, high: i32, shape: Shape, seed: u64, device: &Device) -> Result<Tensor> {
    shape.check("randint")?;
    let n = high as i64 - low as i64;
    if !(1..=i32::MAX as i64).contains(&n) {
        let message =
            format!("from {low} up to but without {high} are {n} integers; 1 to {} can be drawn from", i32::MAX);
        return Err(Error::shape("randint", message));
    }
    let bits = random_32(&shape, seed, 0, device, Location::caller());
    Ok(bits.rem(n).to_dtype(DType::I32).add(low))
}

#[track_caller]
fn by_weight(weights: &Tensor, n: usize, seed: u64) -> Result<Tensor> {
    let op = "multinomial";
    let node = weights.node()?;
    let Some((&classes, rows)) = node.shape.split_last().filter(|(classes, _)| **classes > 0) else {
        return Err(Error::shape(
            op,
            format!("wants weights […, classes] with at least one class, not {}", node.shape),
        ));
    };
    let shape: Shape = rows.iter().copied().chain([n]).collect();
    shape.check(op)?;
    let sums = weights.to_dtype(DType::F32).cumsum(-1);
    let total = sums.narrow(-1, classes - 1, 1);
    // A draw below the total, rounding included: as many sums are not above it as there are classes before the one it falls into.
    let draw = Tensor::rand(shape, seed, &node.device).mul(1.0 - f64::powi(2.0, -23)).mul(total);
    Ok(sums.unsqueeze(-2).le(draw.unsqueeze(-1)).to_dtype(DType::I32).sum(-1).clamp(0, classes - 1))
}
