//! RNN, GRU and LSTM, unrolled over time: each step is recorded, and products with the inputs of all steps are one product. A run
//! that may evaluate takes the steps in chunks.

use std::ops::Range;

use lazuli::{DType, Tensor};

use super::activation::{hard_sigmoid_of, softsign};
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, extent, invalid, listed, value};
use crate::graph::{Attr, Node};

pub const ROWS: &[Row] = &[
    row("RNN", 7, ATTRS, |c| recurrent(c, Cell::Rnn))
        .checked(&[directions_known, |node| activations_known(node, Cell::Rnn)]),
    row("GRU", 7, ATTRS, |c| recurrent(c, Cell::Gru))
        .checked(&[directions_known, |node| activations_known(node, Cell::Gru)]),
    row("LSTM", 7, ATTRS, |c| recurrent(c, Cell::Lstm))
        .checked(&[directions_known, |node| activations_known(node, Cell::Lstm)]),
];

const ATTRS: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
    "linear_before_reset",
];

/// Which recurrence.
#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    fn n_gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// What its activations are if none are named.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Rnn => &["Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// An activation with its constants.
struct Activation {
    name: String,
    alpha: f32,
    beta: f32,
}

/// ONNX's own constants of an activation; None if it is not known.
fn constants(name: &str) -> Option<(f32, f32)> {
    Some(match &name.to_lowercase()[..] {
        "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (0.0, 0.0),
        "affine" => (1.0, 0.0),
        "leakyrelu" => (0.01, 0.0),
        "thresholdedrelu" | "elu" => (1.0, 0.0),
        "scaledtanh" => (1.0, 1.0),
        "hardsigmoid" => (0.2, 0.5),
        _ => return None,
    })
}

impl Activation {
    fn of(&self, x: &Tensor) -> Tensor {
        let (alpha, beta) = (self.alpha, self.beta);
        match &self.name[..] {
            "relu" => x.relu(),
            "tanh" => x.tanh(),
            "sigmoid" => x.sigmoid(),
            "softsign" => softsign(x),
            "softplus" => x.softplus(),
            "affine" => x.mul(alpha).add(beta),
            "leakyrelu" => x.leaky_relu(alpha),
            "thresholdedrelu" => x.ge(alpha).select(x, 0.0),
            "elu" => x.elu(alpha),
            "scaledtanh" => x.mul(beta).tanh().mul(alpha),
            _ => hard_sigmoid_of(x, alpha, beta),
        }
    }
}

/// One direction of one node.
struct Direction {
    cell: Cell,
    n_hidden: usize,
    activations: Vec<Activation>,
    clip: Option<f32>,
    linear_before_reset: bool,
    input_forget: bool,
    /// Recurrence weights `[gates · hidden, hidden]`.
    weights: Tensor,
    /// Biases of the recurrence, `[gates · hidden]`.
    bias: Option<Tensor>,
    /// Weights of an LSTM's cell in its gates, `[3 · hidden]`.
    peepholes: Option<Tensor>,
}

impl Direction {
    fn clipped(&self, x: Tensor) -> Tensor {
        match self.clip {
            Some(bound) => x.clamp(-bound, bound),
            None => x,
        }
    }

    /// Hidden state and cell after a step, from the step's input times the input weights, its bias added.
    fn step(&self, x: &Tensor, h: &Tensor, cell: &Tensor) -> (Tensor, Tensor) {
        let n = self.n_hidden;
        let part = |x: &Tensor, i: usize| x.narrow(1, i * n, n);
        let with_bias = |x: Tensor| match &self.bias {
            Some(bias) => x.add(bias),
            None => x,
        };
        let f = |i: usize, x: Tensor| self.activations[i].of(&self.clipped(x));
        match self.cell {
            Cell::Rnn => (f(0, x.add(&with_bias(h.matmul(&self.weights.t())))), cell.clone()),
            Cell::Gru => {
                let recurrent = with_bias(h.matmul(&self.weights.t()));
                let z = f(0, part(x, 0).add(&part(&recurrent, 0)));
                let r = f(0, part(x, 1).add(&part(&recurrent, 1)));
                let candidate = match self.linear_before_reset {
                    true => part(x, 2).add(&r.mul(&part(&recurrent, 2))),
                    false => {
                        let own = r.mul(h).matmul(&self.weights.narrow(0, 2 * n, n).t());
                        let own = match &self.bias {
                            Some(bias) => own.add(&bias.narrow(0, 2 * n, n)),
                            None => own,
                        };
                        part(x, 2).add(&own)
                    }
                };
                let candidate = f(1, candidate);
                (candidate.sub(&z.mul(&candidate)).add(&z.mul(h)), cell.clone())
            }
            Cell::Lstm => {
                // Gates are in the order input, output, forget, cell.
                let gates = x.add(&with_bias(h.matmul(&self.weights.t())));
                let peep = |i: usize, x: Tensor, cell: &Tensor| match &self.peepholes {
                    Some(peepholes) => x.add(&peepholes.narrow(0, i * n, n).mul(cell)),
                    None => x,
                };
                let input = f(0, peep(0, part(&gates, 0), cell));
                let forget = match self.input_forget {
                    true => input.neg().add(1.0),
                    false => f(0, peep(2, part(&gates, 2), cell)),
                };
                let candidate = f(1, part(&gates, 3));
                let next = forget.mul(cell).add(&input.mul(&candidate));
                let output = f(0, peep(1, part(&gates, 1), &next));
                (output.mul(&self.activations[2].of(&next)), next)
            }
        }
    }
}

/// One direction of one node on its way through a sequence.
struct Sequence {
    direction: Direction,
    reverse: bool,
    /// The inputs of all steps times the input weights, plus the bias.
    inputs: Tensor,
    /// How many steps each sequence of the batch has; None if each has all steps.
    lengths: Option<Tensor>,
    /// Hidden state and cell before the next step.
    h: Tensor,
    inner: Tensor,
}

impl Sequence {
    /// Takes some steps and gives the hidden states after each, in the order of the sequence.
    fn take(&mut self, range: Range<usize>) -> Tensor {
        let mut order: Vec<usize> = range.collect();
        if self.reverse {
            order.reverse();
        }
        let mut steps = Vec::with_capacity(order.len());
        for t in order {
            let x = self.inputs.select_index(0, t as i64);
            let (next, next_inner) = self.direction.step(&x, &self.h, &self.inner);
            match &self.lengths {
                // Beyond its length a sequence keeps its state and gives zeros.
                Some(lengths) => {
                    let goes = lengths.gt(t as i32);
                    self.h = goes.select(&next, &self.h);
                    self.inner = goes.select(&next_inner, &self.inner);
                    steps.push(goes.select(&next, 0.0));
                }
                None => {
                    (self.h, self.inner) = (next.clone(), next_inner);
                    steps.push(next);
                }
            }
        }
        if self.reverse {
            steps.reverse();
        }
        Tensor::stack(&steps.iter().collect::<Vec<_>>(), 0)
    }
}

/// For each direction of a node whether it goes backwards.
fn directions(node: &Node) -> Result<&'static [bool], Stop> {
    let known: [(&str, &[bool]); 3] = [("forward", &[false]), ("reverse", &[true]), ("bidirectional", &[false, true])];
    node.choice("direction", "forward", &known)
}

fn directions_known(node: &Node) -> Result<(), Stop> {
    directions(node).map(drop)
}

/// All that are not known, in one error.
fn activations_known(node: &Node, cell: Cell) -> Result<(), Stop> {
    let n = cell.activations().len() * directions(node).map_or(1, <[bool]>::len);
    let strange = names(node, cell).into_iter().take(n).filter(|name| constants(name).is_none());
    let strange: Vec<String> = strange.map(|name| format!("`{name}`")).collect();
    if strange.is_empty() { Ok(()) } else { node.unsupported("activations", strange.join(", ")) }
}

/// The names of the activations, of one direction after the other.
fn names(node: &Node, cell: Cell) -> Vec<String> {
    match node.attr("activations") {
        Some(Attr::Texts(names)) => names.clone(),
        _ => [cell.activations(); 2].concat().into_iter().map(String::from).collect(),
    }
}

fn recurrent(c: &Call, cell: Cell) -> Outputs {
    let batch_first = c.attr_int("layout", 0)? != 0;
    let mut x = c.tensor(0)?.to_dtype(DType::F32);
    if batch_first {
        x = x.transpose(0, 1);
    }
    let &[n_steps, batch, n_features] = x.shape()? else { return invalid("the input has no three axes") };
    let n_hidden = extent(c.attr_int("hidden_size", 0)?)?;
    let reverses = directions(c.node)?;
    let (n_directions, n_gates) = (reverses.len(), cell.n_gates());
    let expect = |i: usize, shape: &[usize]| match c.has(i) && c.shape(i)? != shape {
        true => invalid(format!("input {i} is {:?}, not {shape:?}", c.shape(i)?)),
        false => Ok(()),
    };
    expect(1, &[n_directions, n_gates * n_hidden, n_features])?;
    expect(2, &[n_directions, n_gates * n_hidden, n_hidden])?;
    expect(3, &[n_directions, 2 * n_gates * n_hidden])?;
    expect(4, &[batch])?;
    let state_shape = match batch_first {
        true => [batch, n_directions, n_hidden],
        false => [n_directions, batch, n_hidden],
    };
    expect(5, &state_shape)?;
    expect(6, &state_shape)?;
    expect(7, &[n_directions, 3 * n_hidden])?;
    if n_hidden == 0 || n_steps == 0 {
        return invalid("there are no steps or no hidden elements");
    }
    let lengths = c.optional(4)?.map(|lengths| lengths.unsqueeze(1));
    let mut sequences = Vec::with_capacity(n_directions);
    for (i, &reverse) in reverses.iter().enumerate() {
        let state = |input: usize| -> Result<Tensor, Stop> {
            Ok(match c.optional(input)? {
                Some(state) if batch_first => state.select_index(1, i as i64),
                Some(state) => state.select_index(0, i as i64),
                None => Tensor::zeros([batch, n_hidden], DType::F32, c.device),
            })
        };
        let (h, inner) = (state(5)?, state(6)?);
        let weights = c.tensor(1)?.select_index(0, i as i64);
        let mut inputs = x.reshape([n_steps * batch, n_features]).matmul(&weights.t());
        if let Some(bias) = c.optional(3)? {
            inputs = inputs.add(&bias.select_index(0, i as i64).narrow(0, 0, n_gates * n_hidden));
        }
        let inputs = inputs.reshape([n_steps, batch, n_gates * n_hidden]);
        let lengths = lengths.clone();
        sequences.push(Sequence { direction: direction(c, cell, i, n_hidden)?, reverse, inputs, lengths, h, inner });
    }
    let all = 0..listed(n_steps)?;
    // A sequence of a single step needs no chunks: recorded as a whole, such sequences have one structure.
    let chunks = c.chunks.filter(|_| n_steps > 1);
    if let Some(chunks) = chunks {
        let states = sequences.iter().flat_map(|s| [s.inputs.clone(), s.h.clone(), s.inner.clone()]);
        chunks.begin(states.collect())?;
    }
    let (mut outputs, mut last_hidden, mut last_cell) = (Vec::new(), Vec::new(), Vec::new());
    for mut sequence in sequences {
        outputs.push(match chunks {
            Some(chunks) => chunks.over(n_steps, sequence.reverse, |steps| {
                let y = sequence.take(steps);
                vec![y, sequence.h.clone(), sequence.inner.clone()]
            })?,
            None => sequence.take(all.clone()),
        });
        last_hidden.push(sequence.h);
        last_cell.push(sequence.inner);
    }
    let stacked = |tensors: &[Tensor], axis: i32| Tensor::stack(&tensors.iter().collect::<Vec<_>>(), axis);
    // [steps, directions, batch, hidden], or with the batch first [batch, steps, directions, hidden].
    let y = stacked(&outputs, 1);
    let y = if batch_first { y.permute(&[2, 0, 1, 3]) } else { y };
    let state_axis = if batch_first { 1 } else { 0 };
    let elem = c.elem(0)?;
    let mut results = vec![value(y, elem)?, value(stacked(&last_hidden, state_axis), elem)?];
    if cell == Cell::Lstm {
        results.push(value(stacked(&last_cell, state_axis), elem)?);
    }
    Ok(results)
}

fn direction(c: &Call, cell: Cell, i: usize, n_hidden: usize) -> Result<Direction, Stop> {
    let names = names(c.node, cell);
    let n_each = cell.activations().len();
    let (alphas, betas) = (c.attr_floats("activation_alpha")?, c.attr_floats("activation_beta")?);
    let mut activations = Vec::new();
    for at in i * n_each..(i + 1) * n_each {
        let Some(name) = names.get(at) else { return invalid(format!("{} activations are too few", names.len())) };
        let constant = |list: Option<&[f32]>| list.and_then(|list| list.get(at).copied());
        let Some((alpha, beta)) = constants(name) else { return c.node.unsupported("activations", name) };
        activations.push(Activation {
            name: name.to_lowercase(),
            alpha: constant(alphas).unwrap_or(alpha),
            beta: constant(betas).unwrap_or(beta),
        });
    }
    let n_bias = cell.n_gates() * n_hidden;
    let bias = c.optional(3)?.map(|bias| bias.select_index(0, i as i64).narrow(0, n_bias, n_bias));
    Ok(Direction {
        cell,
        n_hidden,
        activations,
        clip: if c.attr("clip").is_some() { Some(c.attr_float("clip", 0.0)?) } else { None },
        linear_before_reset: c.attr_int("linear_before_reset", 0)? != 0,
        input_forget: c.attr_int("input_forget", 0)? != 0,
        weights: c.tensor(2)?.select_index(0, i as i64),
        bias,
        peepholes: match cell {
            Cell::Lstm => c.optional(7)?.map(|peepholes| peepholes.select_index(0, i as i64)),
            _ => None,
        },
    })
}
