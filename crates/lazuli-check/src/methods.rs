//! Elementwise methods by name, so that tests can go through the table of ops.
//!
//! ```
//! use lazuli_check::methods::{UNARY, call_unary};
//! let x = lazuli::Tensor::full([2], 4.0f32, &lazuli::Device::cpu());
//! assert!(UNARY.contains(&"sqrt"));
//! assert_eq!(call_unary("sqrt", &x).to_vec::<f32>()?, [2.0, 2.0]);
//! # Ok::<(), lazuli::Error>(())
//! ```

use lazuli::Tensor;
use lazuli::ops::Operand;

/// Methods by name: `x.method(args)` for each.
macro_rules! methods {
    ($names:ident fn $call:ident $params:tt, $name:ident => $x:ident . $args:tt: $($method:ident)*) => {
        /// Methods of one form.
        pub const $names: &[&str] = &[$(stringify!($method)),*];
        /// Calls one of them.
        pub fn $call $params -> Tensor {
            match $name {
                $(stringify!($method) => $x.$method $args,)*
                _ => unreachable!("{} is not drawn", $name),
            }
        }
    };
}

methods! { UNARY fn call_unary(name: &str, x: &Tensor), name => x.():
    neg abs sign sqrt rsqrt recip floor ceil round trunc logical_not is_nan is_inf bit_not
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh cbrt erf erfc
    square is_finite relu softplus sigmoid silu swish gelu gelu_tanh hardswish zeros_like ones_like detach tracked
}
methods! { BINARY fn call_binary(name: &str, x: &Tensor, y: impl Into<Operand>), name => x.(y):
    add sub mul div rem pow maximum minimum atan2 eq ne lt le gt ge logical_and logical_or
    bit_and bit_or bit_xor shl shr floor_divide
}
methods! { SHAPED fn call_shaped(name: &str, x: &Tensor, parameter: f32), name => x.(parameter): leaky_relu elu }
