//! The same values otherwise: as another dtype, with or without their history.

use std::panic::Location;
use std::sync::Arc;

use super::operand::cast;
use crate::dtype::DType;
use crate::graph::{Expr, Node, Op};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// The values as another dtype. Floats lose their fraction on the way to integers, and stop at the ends of their
    /// range (NaN gives 0); integers wrap; what is not zero is true.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::from_slice(&[1.7f32, -2.5, 1e20], [3], &Device::cpu());
    /// assert_eq!(x.to_dtype(DType::I32).to_vec::<i32>()?, [1, -2, i32::MAX]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        let at = Location::caller();
        Tensor::new(self.node().map(|node| cast(node, dtype, at)))
    }

    /// The same values; whatever depends on them keeps its history after being computed, so that a gradient can still
    /// be asked for.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let w = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu()).tracked();
    /// assert_eq!(w.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn tracked(&self) -> Tensor {
        self.alias(Tracked(true), Location::caller())
    }

    /// The same values without their history: gradients stop here.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let w = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu()).tracked();
    /// assert_eq!(w.mul(2.0).detach().to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        self.alias(Tracked(false), Location::caller())
    }

    /// A node of its own for the same values: a view that changes nothing. Movements never record one, so that an
    /// untracked one is known to be a `detach`.
    fn alias(&self, tracked: Tracked, at: &'static Location<'static>) -> Tensor {
        Tensor::new(self.node().map(|node| {
            if node.tracked && tracked.0 {
                return node.clone();
            }
            let op = Op::View(Arc::new(View::contiguous(node.shape)));
            let expr = Expr { op, inputs: smallvec::smallvec![node.clone()] };
            match tracked {
                Tracked(true) => Node::new(expr, node.shape, node.dtype, node.device.clone(), at, true),
                Tracked(false) => Node::detached(expr, node.shape, node.dtype, node.device.clone(), at),
            }
        }))
    }
}

/// Whether history is kept.
struct Tracked(bool);
