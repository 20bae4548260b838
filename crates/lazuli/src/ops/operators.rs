//! `+ - * / %`, `& | ^ << >>`, unary `-` and `!`, on tensors, references to them and numbers on either side.

use std::ops;

use half::{bf16, f16};

use super::operand::{Number, Operand, binary, binary_from};
use super::row::BinaryRow;
use super::{ADD, BIT_AND, BIT_OR, BIT_XOR, DIV, MUL, REM, SHL, SHR, SUB};
use crate::tensor::Tensor;

/// `a op b` with a tensor on the left, whatever is on the right, and `a op= b`.
macro_rules! tensor_first {
    ($($op:ident $method:ident, $assign:ident $assign_method:ident, $row:ident;)*) => {$(
        impl<R: Into<Operand>> ops::$op<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(&$row, &self, rhs.into())
            }
        }
        impl<R: Into<Operand>> ops::$op<R> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(&$row, self, rhs.into())
            }
        }
        impl<R: Into<Operand>> ops::$assign<R> for Tensor {
            #[track_caller]
            fn $assign_method(&mut self, rhs: R) {
                *self = binary(&$row, self, rhs.into());
            }
        }
        number_first!($op $method $row: f32 i32 bool f16 bf16);
    )*};
}

/// `a op b` with a number on the left. One float and one integer only: with two, the compiler would not know which
/// one the literal of `(2.0 * &x).exp()` is, and refuse it. On the right any number will do.
macro_rules! number_first {
    ($op:ident $method:ident $row:ident: $($number:ty)*) => {$(
        impl ops::$op<Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Tensor {
                from_number(&$row, self, &rhs)
            }
        }
        impl ops::$op<&Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Tensor {
                from_number(&$row, self, rhs)
            }
        }
    )*};
}

#[track_caller]
fn from_number(row: &'static BinaryRow, x: impl Into<Number>, y: &Tensor) -> Tensor {
    binary_from(row, x.into(), y)
}

tensor_first! {
    Add add, AddAssign add_assign, ADD;
    Sub sub, SubAssign sub_assign, SUB;
    Mul mul, MulAssign mul_assign, MUL;
    Div div, DivAssign div_assign, DIV;
    Rem rem, RemAssign rem_assign, REM;
    BitAnd bitand, BitAndAssign bitand_assign, BIT_AND;
    BitOr bitor, BitOrAssign bitor_assign, BIT_OR;
    BitXor bitxor, BitXorAssign bitxor_assign, BIT_XOR;
    Shl shl, ShlAssign shl_assign, SHL;
    Shr shr, ShrAssign shr_assign, SHR;
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(&self)
    }
}

impl ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(self)
    }
}

impl ops::Not for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        self.bit_not()
    }
}

impl ops::Not for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        self.bit_not()
    }
}
