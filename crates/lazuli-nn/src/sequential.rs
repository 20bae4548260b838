//! Layers one after another, and those that have no parameters.

use lazuli::Tensor;

use crate::fault;
use crate::module::{Item, Layer, Module};

/// Layers one after another.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Gelu, Layer, Linear, Sequential};
/// let cpu = Device::cpu();
/// let model = Sequential::new().push(Linear::new(4, 8, 1, &cpu)).push(Gelu).push(Linear::new(8, 2, 2, &cpu));
/// assert_eq!(model.forward(&Tensor::rand([3, 4], 1, &cpu)).shape()?, [3, 2]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer + Send>>,
}

crate::module!(Sequential { layers });

impl Sequential {
    /// None yet.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// One more at the end.
    pub fn push(mut self, layer: impl Layer + Send + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Layer for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.layers.iter().fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

/// Layers without parameters, each a method of tensors.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident => $method:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
        }

        impl Layer for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                let _caller = fault::caller();
                let f: fn(&Tensor) -> Tensor = $method;
                f(x)
            }
        }
    )*};
}

plain! {
    /// [`Tensor::relu`] as a layer.
    Relu => Tensor::relu;
    /// [`Tensor::gelu`] as a layer.
    Gelu => Tensor::gelu;
    /// [`Tensor::tanh`] as a layer.
    Tanh => Tensor::tanh;
    /// All axes but the first as one.
    Flatten => |x| match x.shape() {
        Ok([n, rest @ ..]) => x.reshape([*n, rest.iter().product()]),
        _ => x.clone(),
    };
}
