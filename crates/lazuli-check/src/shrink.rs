//! Makes a failing program smaller by cutting it at its nodes: what smaller dice cannot do, because other dice draw
//! another program.

use std::rc::Rc;
use std::time::Instant;

use crate::check::{Failure, What, check, quietly};
use crate::leaf::Leaf;
use crate::program::{Op, Program};

/// A smaller program that fails too, and how; the smallest that is found until the time is over.
pub fn shrink(program: &Program, failure: Failure, end: Instant) -> (Program, Failure) {
    let mut best = (program.clone(), failure);
    loop {
        let in_time = |_: &Program| Instant::now() < end;
        let smaller = candidates(&best.0, &best.1).into_iter().take_while(in_time).find_map(|candidate| {
            // An index that is no longer in range is another fault than the one that is looked for.
            let is_error = |f: &Failure| matches!(f.what, What::Error(_));
            let failure = check(&candidate).err().filter(|f| is_error(f) == is_error(&best.1))?;
            Some((candidate, failure))
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// Programs with less in them, the boldest cuts first.
fn candidates(program: &Program, failure: &Failure) -> Vec<Program> {
    let mut out = Vec::new();
    let node = match failure.what {
        What::Element { node, .. } | What::Type { node, .. } | What::Differs { node, .. } => Some(node),
        What::Error(_) | What::Panic(_) | What::Twice { .. } => None,
    };
    // Only what failed is wanted; or any one output; or all but one.
    for output in node.into_iter().chain(program.outputs.iter().copied()) {
        if program.outputs != [output] {
            out.push(Program { outputs: vec![output], ..program.clone() }.trimmed());
        }
    }
    for leave_out in 0..program.outputs.len() {
        let mut outputs = program.outputs.clone();
        outputs.remove(leave_out);
        if !outputs.is_empty() {
            out.push(Program { outputs, ..program.clone() }.trimmed());
        }
    }
    for (i, node) in program.nodes.iter().enumerate().rev() {
        // A node becomes data, late ones first: any, or else what it is.
        if !node.inputs.is_empty() {
            let (shape, dtype) = (node.expect.shape.clone(), node.expect.dtype);
            let noise: Rc<dyn Op> = Rc::new(Leaf::Noise { shape, dtype, kind: 0, seed: 1 });
            for leaf in [noise].into_iter().chain(as_data(program, i)) {
                // The oracle panics where an index would be out of range.
                out.extend(quietly(|| program.with(|j| (j == i).then(|| (leaf.clone(), Vec::new()))).trimmed()));
            }
        }
        // A node is passed over where an input could stand for it.
        for &input in &node.inputs {
            let x = &program.nodes[input].expect;
            if x.shape == node.expect.shape && x.dtype == node.expect.dtype {
                let bypass = |j: usize| {
                    let node = &program.nodes[j];
                    let inputs = node.inputs.iter().map(|k| if *k == i { input } else { *k }).collect();
                    Some((node.op.clone(), inputs))
                };
                let mut shorter = program.with(bypass);
                shorter.outputs.iter_mut().for_each(|o| *o = if *o == i { input } else { *o });
                shorter.outputs.dedup();
                out.push(shorter.trimmed());
            }
        }
    }
    // A cut must make it smaller, or there would be no end.
    let size = |p: &Program| (p.nodes.len(), p.nodes.iter().filter(|n| !n.inputs.is_empty()).count(), p.outputs.len());
    out.retain(|p| size(p) < size(program));
    out
}

/// A node's value as data, if it is known.
fn as_data(program: &Program, node: usize) -> Option<Rc<dyn Op>> {
    let expect = &program.nodes[node].expect;
    let middle = |c: &crate::cell::Cell| match c.value() {
        Some(value) => Some(value),
        None if c.is_nan() => Some(f64::NAN),
        None => (expect.dtype.is_float() && c.lo.is_finite() && c.hi.is_finite()).then_some(0.5 * (c.lo + c.hi)),
    };
    let values: Option<Vec<f64>> = expect.cells.iter().map(middle).collect();
    let values = values?.into_iter().map(|v| crate::leaf::narrowed(v, expect.dtype)).collect();
    Some(Rc::new(Leaf::Data { shape: expect.shape.clone(), dtype: expect.dtype, values }))
}
