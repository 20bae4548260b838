//! Random kernels: any instructions in any scope over any axes, compared to the bit.

use proptest::prelude::*;

use super::*;
use crate::ops::*;

/// Numbers drawn one after another.
struct Dice<'a> {
    numbers: &'a [usize],
    next: usize,
}

impl Dice<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        self.next += 1;
        self.numbers[self.next % self.numbers.len()].wrapping_add(self.next * 7) % sides.max(1)
    }
}

/// A view over `dims` of an input made to fit: any order of axes, some broadcast, some reversed, some padded.
fn any_map(dice: &mut Dice, dims: &[usize]) -> (IndexMap, usize) {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    if dice.roll(3) == 0 && !order.is_empty() {
        let by = dice.roll(order.len());
        order.rotate_left(by);
    }
    let mut strides = vec![0isize; dims.len()];
    let (mut step, mut offset) = (1isize, 0);
    for &axis in order.iter().rev() {
        if dice.roll(4) == 0 {
            continue;
        }
        strides[axis] = step;
        if dice.roll(8) == 0 && dims[axis] > 0 {
            offset += step * (dims[axis] as isize - 1);
            strides[axis] = -step;
        }
        step *= dims[axis].max(1) as isize;
    }
    let mut view = View::from_axes(dims.iter().copied().zip(strides), offset);
    if dice.roll(5) == 0 && !dims.is_empty() {
        let mut mask = [(0, 0); crate::shape::MAX_RANK];
        for (axis, &size) in dims.iter().enumerate() {
            let low = dice.roll(3).min(size);
            mask[axis] = (low, (size - dice.roll(2).min(size)).max(low));
        }
        view.mask = Some(mask);
    }
    (view.into(), step as usize)
}

fn any_case(outer: Vec<usize>, inner: Vec<usize>, order: Order, dice: &mut Dice) -> Case {
    let mut case = Case::new(&outer, &inner, order);
    let space = case.space();
    let full = if inner.is_empty() { Scope::Outer } else { Scope::Inner };
    let mut regs: Vec<Reg> = Vec::new();
    for i in 0..2 + dice.roll(3) {
        let dtype = [DType::F32, DType::F32, DType::F16, DType::I32, DType::U8][dice.roll(5)];
        let scope = if dice.roll(4) == 0 { Scope::Outer } else { full };
        let dims = if scope == full { &space[..] } else { &outer[..] };
        let (map, n) = any_map(dice, dims);
        let input = case.numbers(dtype, n, i);
        let reg = case.load(input, map, scope);
        regs.push(case.cast(reg, DType::F32));
    }
    regs.push(case.constant(DType::F32, 2.0));
    for _ in 0..3 + dice.roll(12) {
        let (x, y) = (regs[regs.len() - 1 - dice.roll(3).min(regs.len() - 1)], regs[dice.roll(regs.len())]);
        let choice = dice.roll(9);
        let reg = match choice {
            0 => case.binary(&ADD, x, y),
            1 => case.binary(&SUB, y, x),
            2 => case.binary(&MAXIMUM, x, y),
            3 => {
                let two = case.constant(DType::F32, 0.5);
                case.binary(&MUL, x, two)
            }
            4 => {
                let less = case.binary(&LT, x, y);
                case.select(less, y, x)
            }
            5 => {
                // Adding 0 makes −0 a 0: which of two zeros a maximum gives is not promised.
                let (negated, zero) = (case.unary(&NEG, x), case.constant(DType::F32, 0.0));
                case.binary(&ADD, negated, zero)
            }
            6 => {
                // Rounded, so that sums of sums of products stay exact.
                let whole = case.cast(x, DType::I32);
                case.cast(whole, DType::F32)
            }
            _ if inner.is_empty() => case.binary(&SUB, x, y),
            7 => case.reduce(&SUM, x),
            _ => case.reduce(&MAX, x),
        };
        // Keep numbers small: sums of sums grow fast.
        let (low, high) = (case.constant(DType::F32, -64.0), case.constant(DType::F32, 64.0));
        let clamped = case.binary(&MAXIMUM, reg, low);
        let clamped = case.binary(&MINIMUM, clamped, high);
        let whole = case.cast(clamped, DType::I32);
        // Halves are made whole again, so that every sum of whole numbers this small is exact.
        regs.push(if choice == 3 || dice.roll(3) == 0 { case.cast(whole, DType::F32) } else { clamped });
    }
    let last = regs[regs.len() - 1];
    for reg in [last, regs[dice.roll(regs.len())]] {
        match case.body.insts[reg as usize].scope {
            Scope::Inner => case.store_all(reg),
            _ if dice.roll(2) == 0 && !inner.is_empty() => case.store_all(reg),
            _ => case.store_outer(reg),
        }
    }
    case
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_kernel_is_its_elements(
        outer in prop::collection::vec(prop_oneof![1usize..5, 1usize..60, 250usize..300], 0..3),
        inner in prop::collection::vec(prop_oneof![1usize..5, 1usize..40, 250usize..600], 0..3),
        columns in any::<bool>(),
        numbers in prop::collection::vec(0usize..10_000, 40),
    ) {
        let n: usize = outer.iter().chain(&inner).product();
        prop_assume!(n < 40_000);
        let order = if columns && !inner.is_empty() { Order::OuterFast } else { Order::InnerFast };
        let case = any_case(outer, inner, order, &mut Dice { numbers: &numbers, next: 0 });
        case.check();
    }
}
