//! In which order kernels run: each after those it reads from, and as soon as its reader is next, so that few values
//! are held at once. Linear in kernels and reads.

use super::lower::{Lowered, Step};

/// The steps, reordered.
pub fn order(mut lowered: Lowered) -> Lowered {
    let mut makers: Vec<Vec<usize>> = vec![Vec::new(); lowered.values.len()];
    for (i, step) in lowered.steps.iter().enumerate() {
        step.writes.iter().for_each(|v| makers[*v as usize].push(i));
    }
    let mut steps: Vec<Option<Step>> = lowered.steps.into_iter().map(Some).collect();
    let mut opened = vec![false; steps.len()];
    let mut ordered = Vec::with_capacity(steps.len());
    // Depth first from what is wanted: a value's makers run just before its first reader.
    let mut stack: Vec<(usize, bool)> = Vec::new();
    for output in &lowered.outputs {
        stack.extend(makers[*output as usize].iter().rev().map(|m| (*m, false)));
        while let Some((i, inputs_done)) = stack.pop() {
            if inputs_done {
                ordered.extend(steps[i].take());
                continue;
            }
            if std::mem::replace(&mut opened[i], true) {
                continue;
            }
            stack.push((i, true));
            let reads = &steps[i].as_ref().expect("not run yet").reads;
            let needed = reads.iter().rev().flat_map(|v| makers[*v as usize].iter().rev());
            stack.extend(needed.filter(|m| !opened[**m]).map(|m| (*m, false)));
        }
    }
    // What is left over made nothing that is wanted: an empty result needs no kernel at all.
    lowered.steps = ordered;
    lowered
}
