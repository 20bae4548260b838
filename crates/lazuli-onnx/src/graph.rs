//! A model's graph after checking: names are slots, every node has its row, functions are expanded, bodies of `If`, `Loop` and
//! `Scan` say which outer values they read, and the last use of every value is known. Knows nothing of running.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use lazuli::Tensor;

use crate::ops::{Check, Row};
use crate::value::Value;

/// Where a value lives while a graph runs.
pub type Slot = usize;

/// A checked graph.
#[derive(Debug, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub n_slots: usize,
    /// One slot per input, in order.
    pub inputs: Vec<Slot>,
    pub outputs: Vec<Slot>,
    /// Constants, resident as long as the model is.
    pub constants: Vec<(Slot, Value)>,
    /// `(slot of the graph around, slot here)`: values of the graph around that a body reads.
    pub captures: Vec<(Slot, Slot)>,
}

/// An operator applied to slots.
#[derive(Debug)]
pub struct Node {
    /// For errors: the node's name, or its first output's.
    pub name: String,
    pub action: Action,
    /// None is an optional input that is left out.
    pub inputs: Vec<Option<Slot>>,
    /// None is an output that nobody reads.
    pub outputs: Vec<Option<Slot>>,
    pub attrs: Attrs,
    /// Which version of its operator set the node is written in.
    pub opset: i64,
    /// Slots that no later node reads.
    pub dead: Vec<Slot>,
    /// Per input, whether it is the same in every run. Filled in by [`Graph::mark_constants`].
    pub is_constant: Vec<bool>,
    /// Tensors that the row has computed from the model's constants alone and that all runs share, such as packed weights: one list
    /// for each [`KeptFor`].
    pub kept: [OnceLock<Vec<Tensor>>; 2],
    /// What the node gives, once for all runs, where all it reads are constants (constant folding).
    pub folded: OnceLock<Vec<Value>>,
}

/// What a row keeps tensors for. Which way it goes may depend on the sizes of a run, and each keeps something else.
#[derive(Clone, Copy, Debug)]
pub enum KeptFor {
    /// Products of floats.
    Floats,
    /// Products of bytes.
    Bytes,
}

/// What a node does.
#[derive(Debug)]
pub enum Action {
    /// The operator of a row.
    Row(&'static Row),
    If,
    Loop,
    Scan,
}

/// The attributes of a node, by name.
#[derive(Debug, Default)]
pub struct Attrs(pub HashMap<String, Attr>);

/// A constant of a node.
#[derive(Clone, Debug)]
pub enum Attr {
    Float(f32),
    Int(i64),
    Text(String),
    Tensor(Value),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    Graph(Arc<Graph>),
}

impl Node {
    /// The body that an attribute holds; the builder has checked that it is there.
    pub fn body(&self, name: &str) -> Option<&Graph> {
        match self.attrs.0.get(name) {
            Some(Attr::Graph(graph)) => Some(graph),
            _ => None,
        }
    }

    /// All bodies, in no order that matters.
    pub fn bodies(&self) -> impl Iterator<Item = &Graph> {
        self.attrs.0.values().filter_map(|attr| match attr {
            Attr::Graph(graph) => Some(&**graph),
            _ => None,
        })
    }

    /// Whether it gives the same in every run: an operator that reads constants alone, and draws no random numbers.
    pub fn is_fixed(&self) -> bool {
        let is_fixed = |(slot, is_constant): (&Option<Slot>, &bool)| slot.is_none() || *is_constant;
        matches!(self.action, Action::Row(row) if !row.is_random())
            && self.inputs.iter().zip(&self.is_constant).all(is_fixed)
    }

    /// What must hold of its attributes.
    pub fn checks(&self) -> &'static [Check] {
        match self.action {
            Action::Row(row) => row.checks,
            _ => &[],
        }
    }

    /// The name of the operator.
    pub fn op(&self) -> &'static str {
        match self.action {
            Action::Row(row) => row.name,
            Action::If => "If",
            Action::Loop => "Loop",
            Action::Scan => "Scan",
        }
    }
}

impl Graph {
    /// Fills in which inputs of nodes are constants, those of bodies included. `around` says which slots of the graph around
    /// are. An input of the graph with a default is none: a run may be given another.
    pub fn mark_constants(&mut self, around: &[bool]) {
        let mut is_constant = vec![false; self.n_slots];
        for (slot, _) in &self.constants {
            is_constant[*slot] = true;
        }
        for (outer, inner) in &self.captures {
            is_constant[*inner] = around.get(*outer).copied().unwrap_or(false);
        }
        for slot in &self.inputs {
            is_constant[*slot] = false;
        }
        for node in &mut self.nodes {
            node.is_constant = node.inputs.iter().map(|slot| slot.is_some_and(|slot| is_constant[slot])).collect();
            let is_fixed = node.is_fixed();
            for slot in node.outputs.iter().flatten().filter(|_| is_fixed) {
                is_constant[*slot] = true;
            }
            for attr in node.attrs.0.values_mut() {
                // A body that somebody else holds, too, keeps its nodes unmarked, which costs speed alone.
                if let Attr::Graph(body) = attr
                    && let Some(body) = Arc::get_mut(body)
                {
                    body.mark_constants(&is_constant);
                }
            }
        }
    }

    /// Fills in after which node each slot is read no more.
    pub fn find_last_uses(&mut self) {
        let mut last: Vec<Option<usize>> = vec![None; self.n_slots];
        for (i, node) in self.nodes.iter().enumerate() {
            let captured = node.bodies().flat_map(|body| body.captures.iter().map(|(outer, _)| *outer));
            for slot in
                node.inputs.iter().flatten().copied().chain(captured).chain(node.outputs.iter().flatten().copied())
            {
                last[slot] = Some(i);
            }
        }
        for slot in &self.outputs {
            last[*slot] = None;
        }
        for (slot, node) in last.iter().enumerate() {
            if let Some(node) = node {
                self.nodes[*node].dead.push(slot);
            }
        }
    }
}
