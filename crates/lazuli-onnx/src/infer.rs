//! Shapes of outputs that a model does not declare. Symbols get sizes and the graph is recorded with zeros of these sizes,
//! twice: recording evaluates nothing, and sizes that are the same both times, or those of a symbol both times, are known.
//! A model that has to look at numbers to go on keeps what it declares.

use std::collections::BTreeMap;

use lazuli::{Device, Tensor};

use crate::graph::Graph;
use crate::machine::{Machine, Progress};
use crate::model::{Declared, Dim, Form};
use crate::value::{Kind, Value};

/// How many nodes are recorded per node of the graph at most: a loop need not end.
const MOST_ROUNDS: usize = 16;

/// Fills in the dimensions of outputs as far as they follow from those of the inputs.
pub fn fill(graph: &Graph, inputs: &[Declared], required: &[Declared], outputs: &mut [Declared], device: &Device) {
    let is_known = |output: &Declared| output.dims.as_ref().is_some_and(|dims| !dims.contains(&Dim::Any));
    if outputs.iter().all(is_known) {
        return;
    }
    // Multiples of 32, so that networks that halve their images several times go on.
    let mut symbols: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for dim in inputs.iter().flat_map(|input| input.dims.iter().flatten()) {
        if let Dim::Symbol(name) = dim {
            let n = 64 * symbols.len();
            symbols.entry(name).or_insert([96 + n, 128 + n]);
        }
    }
    // An input with a default keeps it.
    let is_required = |input: &Declared| required.iter().any(|own| own.name == input.name);
    let shapes = |which: usize| {
        let values = inputs.iter().map(|input| match is_required(input) {
            true => zeros(input, &symbols, which, device).map(Some),
            false => Some(None),
        });
        shapes(graph, values.collect::<Option<_>>()?, device)
    };
    let (Some(first), Some(second)) = (shapes(0), shapes(1)) else { return };
    for (output, (first, second)) in outputs.iter_mut().zip(first.iter().zip(&second)) {
        let (Some(first), Some(second)) = (first, second) else { continue };
        if first.len() != second.len() {
            continue;
        }
        let symbol =
            |sizes: [usize; 2]| symbols.iter().find(|(_, own)| **own == sizes).map(|(name, _)| name.to_string());
        let found = first.iter().zip(second).map(|(a, b)| match symbol([*a, *b]) {
            Some(name) => Dim::Symbol(name),
            None if a == b => Dim::Size(*a),
            None => Dim::Any,
        });
        match &mut output.dims {
            None => output.dims = Some(found.collect()),
            Some(dims) if dims.len() == first.len() => {
                for (dim, found) in dims.iter_mut().zip(found).filter(|(dim, _)| **dim == Dim::Any) {
                    *dim = found;
                }
            }
            Some(_) => {}
        }
    }
}

/// Zeros of an input's shape, where symbols have their first or second size; None if it declares no rank.
fn zeros(input: &Declared, symbols: &BTreeMap<&str, [usize; 2]>, which: usize, device: &Device) -> Option<Value> {
    let (Form::Tensor(elem), Some(dims)) = (input.form, &input.dims) else { return None };
    let size = |dim: &Dim| match dim {
        Dim::Size(n) => *n,
        Dim::Symbol(name) => symbols.get(name.as_str()).map_or(1, |sizes| sizes[which]),
        // Differs from one recording to the other, as every size that depends on it.
        Dim::Any => [64, 96][which],
    };
    let zeros = Tensor::zeros(dims.iter().map(size).collect::<Vec<usize>>(), elem.storage(), device);
    zeros.check().ok()?;
    Some(Value(Kind::Device(zeros, elem)))
}

/// The shapes of the outputs for these inputs. None if numbers decide about them.
fn shapes(graph: &Graph, inputs: Vec<Option<Value>>, device: &Device) -> Option<Vec<Option<Vec<usize>>>> {
    let mut machine = Machine::new(graph, inputs, device).with_most(1000 + MOST_ROUNDS * graph.nodes.len());
    match machine.advance() {
        Ok(Progress::Done(values)) => Some(values.iter().map(|value| value.shape().ok()).collect()),
        _ => None,
    }
}
