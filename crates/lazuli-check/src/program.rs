//! A random program: ops over earlier ops, each with what is known of its result. And the table it is drawn at.

use std::fmt;
use std::rc::Rc;

use lazuli::{DType, Device, Tensor};

use crate::array::{Array, n_elems};
use crate::dice::Dice;
use crate::{contract, index, join, leaf, line, map, movement, reduce};

/// One op of the public API with its parameters: what it should give, how it is called, how the call is written.
pub trait Op: fmt::Debug {
    /// What is known of the result.
    fn expect(&self, inputs: &[&Array]) -> Array;
    /// The engine's result.
    fn call(&self, inputs: &[&Tensor], device: &Device) -> Tensor;
    /// The call in Rust; inputs are names of tensors.
    fn text(&self, inputs: &[&str]) -> String;
    /// Whether numbers of both signs may be added up in it: its error is then in proportion to them, not to their sum.
    fn sums(&self) -> bool {
        false
    }
    /// An op that takes the same inputs, gives the same shape and dtype, and should be told apart from this one.
    fn mutant(&self) -> Option<Rc<dyn Op>> {
        None
    }
}

/// An op over earlier nodes.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Rc<dyn Op>,
    /// The nodes it computes it from.
    pub inputs: Vec<usize>,
    /// What is known of its result.
    pub expect: Rc<Array>,
}

/// Nodes in the order they are written, and which of them are wanted.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Ops over earlier ones.
    pub nodes: Vec<Node>,
    /// Which of them are wanted.
    pub outputs: Vec<usize>,
}

/// How large programs may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Elements of a leaf.
    pub leaf_elems: usize,
    /// Elements of any node.
    pub elems: usize,
    /// Products in a contraction.
    pub products: usize,
}

impl Limits {
    /// Small enough for thousands of programs a minute.
    pub const SMALL: Limits = Limits { leaf_elems: 400, elems: 1_500, products: 20_000 };
    /// Large enough for every way that kernels cut their work.
    pub const LARGE: Limits = Limits { leaf_elems: 150_000, elems: 200_000, products: 3_000_000 };
}

impl Program {
    /// Draws a program: one run of dice per op, so that leaving out a run leaves out an op.
    pub fn draw(dice: &[Vec<u32>], limits: Limits) -> Program {
        let mut table = Table { program: Program::default(), dice: Dice::new(&[]), limits };
        let skipped = std::env::var("LAZULI_RANDOM_SKIP").unwrap_or_default();
        let is_skipped = |node: &Node| {
            let text = node.op.text(&["x", "y", "z", "w"]);
            skipped.split(',').any(|name| !name.is_empty() && text.contains(&format!("{name}(")))
        };
        for run in dice {
            table.dice = Dice::new(run);
            let n = table.program.nodes.len();
            table.draw();
            if table.program.nodes[n..].iter().any(is_skipped) {
                table.program.nodes.truncate(n.max(1));
            }
        }
        let mut program = table.program;
        let used = |i: usize| program.nodes.iter().any(|n| n.inputs.contains(&i));
        // What nobody uses is wanted; of the rest, some.
        let wanted = |i: &usize| !used(*i) || dice.get(*i).is_some_and(|run| run.last().is_some_and(|w| w % 4 == 3));
        program.outputs = (0..program.nodes.len()).filter(wanted).collect();
        program
    }

    /// Adds an op over earlier nodes; which node it is.
    pub fn push(&mut self, op: Rc<dyn Op>, inputs: Vec<usize>) -> usize {
        let arrays: Vec<&Array> = inputs.iter().map(|i| &*self.nodes[*i].expect).collect();
        let expect = Rc::new(op.expect(&arrays));
        self.nodes.push(Node { op, inputs, expect });
        self.nodes.len() - 1
    }

    /// The same program with some ops replaced, and with what is then expected.
    pub fn with(&self, replace: impl Fn(usize) -> Option<(Rc<dyn Op>, Vec<usize>)>) -> Program {
        let mut out = Program { nodes: Vec::new(), outputs: self.outputs.clone() };
        for (i, node) in self.nodes.iter().enumerate() {
            let (op, inputs) = replace(i).unwrap_or((node.op.clone(), node.inputs.clone()));
            out.push(op, inputs);
        }
        out
    }

    /// Only the nodes that outputs depend on.
    pub fn trimmed(&self) -> Program {
        let mut live = vec![false; self.nodes.len()];
        self.outputs.iter().for_each(|o| live[*o] = true);
        for i in (0..self.nodes.len()).rev().collect::<Vec<_>>() {
            if live[i] {
                self.nodes[i].inputs.iter().for_each(|j| live[*j] = true);
            }
        }
        let mut place = vec![0; self.nodes.len()];
        let mut out = Program::default();
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            place[i] = out.nodes.len();
            let inputs = node.inputs.iter().map(|j| place[*j]).collect();
            out.nodes.push(Node { inputs, ..node.clone() });
        }
        out.outputs = self.outputs.iter().map(|o| place[*o]).collect();
        out
    }
}

/// Where programs are drawn: what there is so far, and the dice of the op that comes next.
pub struct Table<'a> {
    pub program: Program,
    pub dice: Dice<'a>,
    pub limits: Limits,
}

impl Table<'_> {
    fn draw(&mut self) {
        if self.program.nodes.is_empty() {
            leaf::draw(self);
            return;
        }
        // How often each family is drawn.
        let families: [(usize, fn(&mut Self) -> Option<usize>); 8] = [
            (9, map::draw),
            (6, movement::draw),
            (4, reduce::draw),
            (3, line::draw),
            (2, join::draw),
            (2, contract::draw),
            (2, index::draw),
            (1, leaf::draw),
        ];
        let mut at = self.dice.below(families.iter().map(|f| f.0).sum());
        for (weight, draw) in families {
            if at < weight {
                draw(self);
                return;
            }
            at -= weight;
        }
    }

    pub fn array(&self, node: usize) -> &Array {
        &self.program.nodes[node].expect
    }

    /// Adds a node, if its result is small enough.
    pub fn push(&mut self, op: impl Op + 'static, inputs: Vec<usize>) -> usize {
        self.program.push(Rc::new(op), inputs)
    }

    /// Adds a node, but mostly not if it forgets all that was known of its inputs: what is unknown cannot be checked.
    pub fn push_if_known(&mut self, op: impl Op + 'static, inputs: Vec<usize>) -> Option<usize> {
        let vague = |a: &Array| {
            2 * a.cells.iter().filter(|c| c.lo == f64::NEG_INFINITY && c.hi == f64::INFINITY).count() > a.n_elems()
        };
        let was_vague = inputs.iter().any(|i| vague(self.array(*i)));
        let node = self.push(op, inputs);
        if vague(self.array(node)) && !was_vague && !self.dice.once_in(5) {
            self.program.nodes.pop();
            return None;
        }
        Some(node)
    }

    /// Some node, most likely a late one.
    pub fn any(&mut self) -> usize {
        self.node_where(|_| true).expect("there is a node")
    }

    /// Some node of a kind.
    pub fn node_where(&mut self, fits: impl Fn(&Array) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.program.nodes.len()).rev().filter(|i| fits(self.array(*i))).collect();
        if fitting.is_empty() {
            return None;
        }
        // Squaring makes the latest the likeliest.
        let at = self.dice.below(1 << 10) as f64 / 1024.0;
        Some(fitting[(at * at * fitting.len() as f64) as usize])
    }

    /// Some node that is not of rank 0.
    pub fn with_axes(&mut self) -> Option<usize> {
        self.node_where(|a| !a.shape.is_empty())
    }

    pub fn axis(&mut self, node: usize) -> usize {
        let rank = self.array(node).shape.len();
        // The last axis is the simplest.
        rank - 1 - self.dice.below(rank)
    }

    /// An axis as a user may write it.
    pub fn signed(&mut self, axis: usize, rank: usize) -> i32 {
        if self.dice.once_in(3) { axis as i32 } else { axis as i32 - rank as i32 }
    }

    pub fn is_small(&self, shape: &[usize]) -> bool {
        shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_some_and(|n| n <= self.limits.elems)
    }

    /// A node of this kind, or a new leaf of this shape.
    pub fn node_or_leaf(&mut self, shape: Vec<usize>, dtypes: &[DType], fits: impl Fn(&Array) -> bool) -> usize {
        if self.dice.below(2) == 0
            && let Some(node) = self.node_where(fits)
        {
            return node;
        }
        let dtype = self.dice.pick(dtypes);
        leaf::noise(self, shape, dtype)
    }

    /// An operand that broadcasts with a node, the result not being too large.
    pub fn partner(&mut self, node: usize, dtypes: &[DType]) -> usize {
        let (shape, limit) = (self.array(node).shape.clone(), self.limits.elems);
        let fits = |a: &Array| {
            let both = crate::array::broadcast(&a.shape, &shape);
            dtypes.contains(&a.dtype) && both.is_some_and(|s| n_elems(&s) <= limit)
        };
        // The same shape, or with some axes of size 1, or without some leading axes.
        let mut wanted = shape.clone();
        for size in wanted.iter_mut() {
            if self.dice.once_in(4) {
                *size = 1;
            }
        }
        let lead = if self.dice.once_in(3) { self.dice.between(0, shape.len()) } else { 0 };
        self.node_or_leaf(wanted[lead..].to_vec(), dtypes, fits)
    }
}
