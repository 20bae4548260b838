//! In which order kernels run: each after those it reads from, and as soon as its reader is next, so that few values
//! are held at once. What an earlier stage needs runs in it, the rest of a later one's work after it. Where something is
//! committed, the kernels whose checks it waits for run first. Linear in kernels and reads.

use smallvec::SmallVec;

use super::ValueId;
use super::lower::{LaunchDraft, Lowered};
use super::stages::StageEnd;

/// A check that commits wait for needs what a kernel makes that commits.
#[derive(Debug)]
pub struct Circle;

/// The steps that write a value: one, but for the parts of a concatenation or of a kernel that was cut.
pub type Makers = SmallVec<[usize; 2]>;

/// Kernels in the order in which they run, and where each stage ends.
pub type Ordered = (Lowered, Vec<StageEnd>);

/// The steps, reordered, and where each stage ends, of those that end at these outputs.
pub fn order(mut lowered: Lowered, ends: &[usize]) -> Result<Ordered, Circle> {
    let mut makers: Vec<Makers> = vec![Makers::new(); lowered.values.len()];
    for (i, step) in lowered.steps.iter().enumerate() {
        step.writes.iter().for_each(|v| makers[*v as usize].push(i));
    }
    let all = [lowered.outputs.len()];
    let ends = if ends.is_empty() { &all } else { ends };
    let first = first(&lowered.steps, &makers, &lowered.outputs);
    let mut ordering = Ordering {
        opened: vec![false; lowered.steps.len()],
        ordered: Vec::with_capacity(lowered.steps.len()),
        steps: lowered.steps.into_iter().map(Some).collect(),
        makers: &makers,
    };
    let first_commit = if first.is_empty() { 0 } else { ordering.first_commit(&lowered.outputs, ends) };
    let mut stages = Vec::with_capacity(ends.len());
    let mut start = 0;
    for (stage, end) in ends.iter().enumerate() {
        if stage == first_commit {
            ordering.run(&first);
            if ordering.ordered.iter().any(LaunchDraft::commits) {
                return Err(Circle);
            }
        }
        lowered.outputs[start..*end].iter().for_each(|output| ordering.run(&makers[*output as usize]));
        stages.push(StageEnd { launches: ordering.ordered.len(), outputs: *end });
        start = *end;
    }
    // What is left over made nothing that is wanted: an empty result needs no kernel at all.
    lowered.steps = ordering.ordered;
    Ok((lowered, stages))
}

struct Ordering<'a> {
    steps: Vec<Option<LaunchDraft>>,
    opened: Vec<bool>,
    ordered: Vec<LaunchDraft>,
    makers: &'a [Makers],
}

impl Ordering<'_> {
    /// Runs these steps next, and before them what they need. Depth first: a value's makers run just before its first
    /// reader.
    fn run(&mut self, goals: &[usize]) {
        let mut stack: Vec<(usize, bool)> = goals.iter().rev().map(|m| (*m, false)).collect();
        while let Some((i, inputs_done)) = stack.pop() {
            if inputs_done {
                self.ordered.extend(self.steps[i].take());
                continue;
            }
            if std::mem::replace(&mut self.opened[i], true) {
                continue;
            }
            stack.push((i, true));
            let step = self.steps[i].as_ref().expect("not run yet");
            let needed = step.needs().rev().flat_map(|v| self.makers[v as usize].iter().rev());
            stack.extend(needed.filter(|m| !self.opened[**m]).map(|m| (*m, false)));
        }
    }

    /// The first stage that commits something; the first of all if none does.
    fn first_commit(&self, outputs: &[ValueId], ends: &[usize]) -> usize {
        let steps: Vec<&LaunchDraft> = self.steps.iter().flatten().collect();
        let mut needed = vec![false; steps.len()];
        let mut start = 0;
        for (stage, end) in ends.iter().enumerate() {
            if reach(&steps, self.makers, &outputs[start..*end], &mut needed).any(|step| step.commits()) {
                return stage;
            }
            start = *end;
        }
        0
    }
}

/// The steps that must run before any that commits, of those that something wanted depends on.
fn first(steps: &[LaunchDraft], makers: &[Makers], outputs: &[ValueId]) -> Vec<usize> {
    if !steps.iter().any(|step| step.first) {
        return Vec::new();
    }
    let steps: Vec<&LaunchDraft> = steps.iter().collect();
    let mut needed = vec![false; steps.len()];
    reach(&steps, makers, outputs, &mut needed).for_each(drop);
    (0..steps.len()).filter(|i| needed[*i] && steps[*i].first).collect()
}

/// The steps that these outputs depend on and that were not needed before; they are noted as needed.
fn reach<'a>(
    steps: &'a [&LaunchDraft],
    makers: &'a [Makers],
    outputs: &[ValueId],
    needed: &'a mut [bool],
) -> impl Iterator<Item = &'a LaunchDraft> {
    let mut stack: Vec<usize> = outputs.iter().flat_map(|output| makers[*output as usize].iter().copied()).collect();
    std::iter::from_fn(move || {
        loop {
            let i = stack.pop()?;
            if !std::mem::replace(&mut needed[i], true) {
                stack.extend(steps[i].needs().flat_map(|v| makers[v as usize].iter().copied()));
                return Some(steps[i]);
            }
        }
    })
}
