//! In which order kernels run: each after those it reads from, and as soon as its reader is next, so that few values
//! are held at once. Where something is committed, the kernels whose checks it waits for run first. Linear in kernels
//! and reads.

use super::ValueId;
use super::lower::{LaunchDraft, Lowered};

/// A check that commits wait for needs what a kernel makes that commits.
#[derive(Debug)]
pub struct Circle;

/// The steps, reordered.
pub fn order(mut lowered: Lowered) -> Result<Lowered, Circle> {
    let mut makers: Vec<Vec<usize>> = vec![Vec::new(); lowered.values.len()];
    for (i, step) in lowered.steps.iter().enumerate() {
        step.writes.iter().for_each(|v| makers[*v as usize].push(i));
    }
    let first = first(&lowered.steps, &makers, &lowered.outputs);
    let mut steps: Vec<Option<LaunchDraft>> = lowered.steps.into_iter().map(Some).collect();
    let mut opened = vec![false; steps.len()];
    let mut ordered: Vec<LaunchDraft> = Vec::with_capacity(steps.len());
    // Depth first from what is wanted: a value's makers run just before its first reader.
    let mut stack: Vec<(usize, bool)> = Vec::new();
    let wanted = lowered.outputs.iter().map(|output| &makers[*output as usize][..]);
    for (round, goals) in [&first[..]].into_iter().chain(wanted).enumerate() {
        if round == 1 && ordered.iter().any(LaunchDraft::commits) {
            return Err(Circle);
        }
        stack.extend(goals.iter().rev().map(|m| (*m, false)));
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
    Ok(lowered)
}

/// The steps that must run before any that commits, of those that something wanted depends on.
fn first(steps: &[LaunchDraft], makers: &[Vec<usize>], outputs: &[ValueId]) -> Vec<usize> {
    if !steps.iter().any(|step| step.first) {
        return Vec::new();
    }
    let mut needed = vec![false; steps.len()];
    let mut stack: Vec<usize> = outputs.iter().flat_map(|output| makers[*output as usize].iter().copied()).collect();
    while let Some(i) = stack.pop() {
        if !std::mem::replace(&mut needed[i], true) {
            stack.extend(steps[i].reads.iter().flat_map(|v| makers[*v as usize].iter().copied()));
        }
    }
    (0..steps.len()).filter(|i| needed[*i] && steps[*i].first).collect()
}
