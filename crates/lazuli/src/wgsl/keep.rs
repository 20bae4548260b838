//! Which values a driver's compiler must not see through. WGSL lets compilers take floats for real numbers: (a + b) − a
//! becomes b, a·b + a·c becomes a·(b + c), ∞ − ∞ becomes 0, and a product and a sum become one operation that rounds once.
//! Each of our ops rounds, so where the next one could be folded with it, its value is kept: passed through an operation on
//! its bits that changes none of them, which no compiler looks through. Knows instructions; writes no text.

use crate::dtype::Lane;
use crate::kernel::{Body, InstOp, Reg};
use crate::ops::{NEG, RegisterStep};
use crate::target::{Folds, GpuTarget};

/// Per register of a body, whether its value is kept.
pub fn kept(body: &Body, target: &GpuTarget) -> Vec<bool> {
    let mut keep = FoldAnalysis { body, kept: vec![false; body.insts.len()], terms: Vec::new() };
    for reg in 0..body.insts.len() as Reg {
        keep.look_at(reg, target.folds);
        keep.note(reg);
    }
    keep.kept
}

/// What is known so far.
struct FoldAnalysis<'a> {
    body: &'a Body,
    kept: Vec<bool>,
    /// Per register, what a sum is made of: itself where it is none, or is kept.
    terms: Vec<Set>,
}

/// Registers, a bit each.
#[derive(Clone, Default)]
struct Set(Vec<u64>);

/// What arithmetic an instruction on floats is, as far as compilers fold it.
#[derive(Clone, Copy, PartialEq)]
enum FoldableOp {
    Sum(Reg, Reg),
    Product(Reg, Reg),
    Negative(Reg),
    Other,
}

impl FoldAnalysis<'_> {
    fn kind(&self, reg: Reg) -> FoldableOp {
        let inst = &self.body.insts[reg as usize];
        if inst.dtype.lane() != Lane::F32 {
            return FoldableOp::Other;
        }
        match inst.op {
            InstOp::Binary(row, x, y) => match row.step {
                Some(RegisterStep::Add | RegisterStep::Sub) => FoldableOp::Sum(x, y),
                Some(RegisterStep::Mul) => FoldableOp::Product(x, y),
                _ => FoldableOp::Other,
            },
            InstOp::Unary(row, x) if row.step == Some(RegisterStep::Square) => FoldableOp::Product(x, x),
            InstOp::Unary(row, x) if row == &NEG => FoldableOp::Negative(x),
            _ => FoldableOp::Other,
        }
    }

    /// Keeps operands of an instruction that it could be folded with.
    fn look_at(&mut self, reg: Reg, folds: Folds) {
        let (x, y, is_sum) = match self.kind(reg) {
            FoldableOp::Sum(x, y) => (x, y, true),
            FoldableOp::Product(x, y) => (x, y, false),
            FoldableOp::Negative(_) | FoldableOp::Other => return,
        };
        // x + x is taken for 2·x, which is regrouped with all that it meets, as all products by a known number are.
        let is_twice = |r: Reg| matches!(self.kind(r), FoldableOp::Sum(a, b) if a == b);
        let is_doubled = is_twice(reg);
        let is_arithmetic =
            |r: Reg| (folds == Folds::Any || is_doubled || is_twice(r)) && self.kind(r) != FoldableOp::Other;
        // What a short row is folded to may be its one element, which a compiler sees.
        let is_fold = |r: Reg| is_sum && matches!(self.body.insts[r as usize].op, InstOp::Reduce(..));
        let always: Vec<Reg> = [x, y].into_iter().filter(|r| is_arithmetic(*r) || is_fold(*r)).collect();
        always.into_iter().for_each(|r| self.keep(r));
        if !is_sum {
            return;
        }
        let is_product = |r: Reg| matches!(self.unsigned(r), FoldableOp::Product(..));
        let are_products = is_product(x) && is_product(y);
        if x != y && (are_products || self.terms[x as usize].meets(&self.terms[y as usize])) {
            // One of both is enough: what is left of the other is met by nothing.
            self.keep(if self.kind(x) != FoldableOp::Other { x } else { y });
        }
    }

    fn keep(&mut self, reg: Reg) {
        self.kept[reg as usize] = true;
        self.terms[reg as usize] = Set::of(reg);
    }

    /// Notes what a register is made of.
    fn note(&mut self, reg: Reg) {
        let terms = match self.kind(reg) {
            FoldableOp::Sum(x, y) => self.terms[x as usize].with(&self.terms[y as usize]),
            FoldableOp::Negative(x) => self.terms[x as usize].clone(),
            FoldableOp::Product(..) | FoldableOp::Other => Set::of(reg),
        };
        self.terms.push(terms);
    }

    /// What a register is but for its sign.
    fn unsigned(&self, mut reg: Reg) -> FoldableOp {
        while let (FoldableOp::Negative(x), false) = (self.kind(reg), self.kept[reg as usize]) {
            reg = x;
        }
        if self.kept[reg as usize] { FoldableOp::Other } else { self.kind(reg) }
    }
}

impl Set {
    fn of(reg: Reg) -> Set {
        let mut words = vec![0; reg as usize / 64 + 1];
        words[reg as usize / 64] = 1 << (reg % 64);
        Set(words)
    }

    fn with(&self, other: &Set) -> Set {
        let (long, short) = if self.0.len() < other.0.len() { (other, self) } else { (self, other) };
        let mut words = long.0.clone();
        words.iter_mut().zip(&short.0).for_each(|(a, b)| *a |= b);
        Set(words)
    }

    fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
}
