//! Proves a plan legal, sharing no code with what made it: every read finds the value it expects, every element of
//! every value is written exactly once before it is read, nothing is touched outside its slot, what was not donated is
//! not overwritten, limits are kept, and checks come before what waits for them. Rows are written over the value that they
//! replace rows of, which is whole before and which nobody reads afterwards.

mod bounds;
mod groups;
mod kernels;

use std::collections::{BTreeSet, HashMap};

use super::{Launch, Limits, Plan, SlotKind, ValueId};
use crate::graph::{Graph, Op};
use crate::kernel::{AccessForm, Body, InstOp, Kernel};
use crate::view::IndexMap;
pub use bounds::verify_bounds;
use bounds::{in_order, inside_slots, makes_few, n_bindings};
pub use groups::verify_groups;
pub use kernels::verify_kernels;

/// Above this many elements, coverage is checked by counting instead of element by element.
const EXACT: usize = 1 << 12;

/// Says what is wrong with a graph, if anything: inputs come first and elementwise nodes have the shape of their inputs.
pub fn verify_graph(graph: &Graph) -> Result<(), String> {
    for (i, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            if input as usize >= i {
                return Err(format!("node {i} reads node {input}, which does not come before it"));
            }
            let x = &graph.nodes[input as usize];
            if node.op.is_elementwise() && x.shape != node.shape {
                return Err(format!("node {i} ({}) of {} reads {}", node.op.name(), node.shape, x.shape));
            }
        }
        let seen = match &node.op {
            Op::View(view) | Op::Pad(view) => view.shape == node.shape,
            _ => true,
        };
        if !seen {
            return Err(format!("node {i} has another shape than its view"));
        }
    }
    match graph.outputs.iter().find(|o| **o as usize >= graph.nodes.len()) {
        Some(output) => Err(format!("output {output} does not exist")),
        None => Ok(()),
    }
}

/// Says what is wrong with a plan, if anything.
pub fn verify(plan: &Plan, limits: &Limits) -> Result<(), String> {
    // What each slot holds, and how much of it has been written.
    let mut holds: Vec<SlotContents> = vec![SlotContents::default(); plan.slots.len()];
    let mut written: HashMap<ValueId, Coverage> = HashMap::new();
    let mut ranges = LookedUp::new();
    let mut next_input = plan.input_values.iter();
    let mut inputs: Vec<(u32, usize)> = Vec::new();
    for (i, slot) in plan.slots.iter().enumerate() {
        if let SlotKind::Input { idx, .. } = slot.kind {
            inputs.push((idx, i));
        }
    }
    inputs.sort_unstable();
    for (_, slot) in inputs {
        let value = next_input.next().ok_or("more input slots than inputs")?;
        holds[slot].value = Some(*value);
        written.insert(*value, Coverage::All);
    }
    let there = |n_outputs: usize, holds: &[SlotContents], written: &HashMap<ValueId, Coverage>| {
        for (slot, value) in plan.outputs.iter().zip(&plan.output_values).take(n_outputs) {
            let n_elems = plan.value_elems[*value as usize];
            if n_elems > 0 && holds[slot.0 as usize].value != Some(*value) {
                return Err(format!("output value {value} is not in slot {} when its stage ends", slot.0));
            }
            if n_elems > 0 && !written.get(value).is_some_and(|c| c.is_all(n_elems)) {
                return Err(format!("output value {value} is not written whole"));
            }
        }
        Ok(())
    };
    let mut start = 0;
    for end in &plan.stages {
        let launches = plan.launches.get(start..end.launches).ok_or("a stage ends where there is no launch")?;
        for (i, launch) in launches.iter().enumerate() {
            step(plan, launch, limits, &mut holds, (&mut written, &mut ranges))
                .map_err(|fault| format!("launch {}: {fault}", start + i))?;
        }
        // Outputs of earlier stages, too: whoever reads one meanwhile must not see it change.
        there(end.outputs, &holds, &written)?;
        start = end.launches;
    }
    let end = plan.stages.last().ok_or("there is no stage")?;
    match (end.launches, end.outputs) == (plan.launches.len(), plan.outputs.len()) {
        true => Ok(()),
        false => Err("the last stage is not the end".into()),
    }
}

/// Says what is wrong with the stages of launches, if anything: each runs in the earliest stage that needs what it makes,
/// and makes nothing that only a later one needs, unless a check is among what it makes that something committed waits for.
pub fn verify_stages(plan: &Plan) -> Result<(), String> {
    if plan.stages.len() < 2 || plan.commits {
        return Ok(());
    }
    // From the end: the earliest stage that needs each value.
    let mut needed_in = vec![usize::MAX; plan.value_elems.len()];
    let mut outputs = plan.output_values.iter();
    for (stage, end) in plan.stages.iter().enumerate() {
        let n_before = stage.checked_sub(1).map_or(0, |before| plan.stages[before].outputs);
        for value in outputs.by_ref().take(end.outputs.saturating_sub(n_before)) {
            needed_in[*value as usize] = needed_in[*value as usize].min(stage);
        }
    }
    for (i, launch) in plan.launches.iter().enumerate().rev() {
        let stage = plan.stages.iter().take_while(|end| end.launches <= i).count();
        let needed: Vec<usize> = launch.write_values.iter().map(|value| needed_in[*value as usize]).collect();
        if needed.iter().min() != Some(&stage) {
            return Err(format!("launch {i} runs in stage {stage}, but makes what stages {needed:?} need"));
        }
        for value in launch.read_values.iter().chain(launch.bases.iter().map(|base| &base.1)) {
            needed_in[*value as usize] = needed_in[*value as usize].min(stage);
        }
    }
    Ok(())
}

/// Says what is wrong with the order of checks and commits, if anything: no launch may fail that something committed
/// before it should have waited for, and none both checks and commits.
pub fn verify_commits(plan: &Plan, graph: &Graph, limits: &Limits) -> Result<(), String> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Commit)) {
        return Ok(());
    }
    // Which nodes depend on a commit, and what lookups check.
    let mut late: Vec<bool> = Vec::new();
    let mut late_origins: BTreeSet<u32> = BTreeSet::new();
    let mut lookups: HashMap<u32, (u32, usize)> = HashMap::new();
    for node in &graph.nodes {
        let is_late = matches!(node.op, Op::Commit) || node.inputs.iter().any(|i| late[*i as usize]);
        late.push(is_late);
        if is_late {
            late_origins.insert(node.origin);
        }
        let axis = match &node.op {
            Op::Gather(axis, _) => *axis,
            Op::Routine(_, params) if node.inputs.len() > 1 => params[0] as usize,
            _ => continue,
        };
        lookups.insert(node.origin, (node.inputs[1], graph.nodes[node.inputs[0] as usize].shape[axis]));
    }
    let mut checked: BTreeSet<(u32, usize)> = BTreeSet::new();
    let mut has_committed = false;
    for (i, launch) in plan.launches.iter().enumerate() {
        let (n_fallible, commits) = match &launch.kernel {
            Kernel::Loop(body) | Kernel::Matmul(body) => {
                let is_fallible = |op: &InstOp| match op {
                    InstOp::Gather { .. } => true,
                    InstOp::Custom(..) => limits.custom_may_fail,
                    _ => false,
                };
                let n = body.insts.iter().filter(|inst| is_fallible(&inst.op)).count();
                (n, body.insts.iter().any(|inst| matches!(inst.op, InstOp::Failed)))
            }
            Kernel::Attention(a) => {
                let bodies = [&a.scores, &a.result, &a.rows];
                let is_placed = |op: &InstOp| matches!(op, InstOp::Gather { .. } | InstOp::Failed | InstOp::Custom(..));
                if bodies.iter().any(|body| body.insts.iter().any(|inst| is_placed(&inst.op))) {
                    return Err(format!("launch {i}: a chained product neither checks nor commits"));
                }
                (0, false)
            }
            Kernel::Routine(routine) => (routine.row.indexes as usize, false),
            Kernel::Grouped(_) => {
                let bodies = launch.parts.iter().filter_map(|part| match &part.kernel {
                    Kernel::Matmul(body) => Some(body),
                    _ => None,
                });
                let is_placed = |op: &InstOp| matches!(op, InstOp::Gather { .. } | InstOp::Failed | InstOp::Custom(..));
                if bodies.flat_map(|body| &body.insts).any(|inst| is_placed(&inst.op)) {
                    return Err(format!("launch {i}: grouped products neither check nor commit"));
                }
                (0, false)
            }
        };
        if n_fallible != launch.may_fail.len() {
            return Err(format!("launch {i} may fail in {n_fallible} ways, but names {:?}", launch.may_fail));
        }
        if n_fallible > 0 && commits {
            return Err(format!("launch {i} commits what it has not checked yet"));
        }
        has_committed |= commits;
        for origin in &launch.may_fail {
            let lookup = lookups.get(origin).copied();
            let is_known = lookup.is_some_and(|lookup| checked.contains(&lookup));
            if has_committed && !late_origins.contains(origin) && !is_known {
                return Err(format!("launch {i} makes the check of node {origin} after something was committed"));
            }
            checked.extend(lookup);
        }
    }
    Ok(())
}

/// Which elements of a value have been written.
enum Coverage {
    All,
    Some(BTreeSet<usize>),
    /// Too many to keep: how many.
    Count(usize),
}

impl Coverage {
    fn is_all(&self, n_elems: usize) -> bool {
        match self {
            Coverage::All => true,
            Coverage::Some(set) => set.len() == n_elems,
            Coverage::Count(n) => *n == n_elems,
        }
    }
}

fn step(
    plan: &Plan,
    launch: &Launch,
    limits: &Limits,
    holds: &mut [SlotContents],
    (written, ranges): (&mut HashMap<ValueId, Coverage>, &mut LookedUp),
) -> Result<(), String> {
    let (reads, writes) = launch.kernel.bindings();
    if reads.len() != launch.reads.len() || writes.len() != launch.writes.len() {
        return Err("slots and bindings differ in number".into());
    }
    if n_bindings(launch) > limits.max_bindings {
        return Err(format!("{} bindings are above the limit of {}", n_bindings(launch), limits.max_bindings));
    }
    for (slot, value) in launch.reads.iter().zip(&launch.read_values) {
        let n_elems = plan.value_elems[*value as usize];
        let held = holds[slot.0 as usize];
        // A part of a kernel may still read, of what other parts have begun to overwrite, the elements it overwrites itself.
        let is_there = held.value == Some(*value) || (held.over == Some(*value) && launch.writes.contains(slot));
        if n_elems > 0 && !is_there {
            return Err(format!("reads value {value} from slot {}, which holds {held:?}", slot.0));
        }
        let is_looked_up = ranges.get(value).is_none_or(|(_, end, bound)| end == bound);
        if n_elems > 0 && !(is_looked_up && written.get(value).is_some_and(|c| c.is_all(n_elems))) {
            return Err(format!("reads value {value} before all of it is written"));
        }
    }
    in_order(launch)?;
    inside_slots(plan, launch)?;
    makes_few(launch, limits)?;
    if let Kernel::Grouped(_) = launch.kernel {
        return grouped(plan, launch, limits, holds, (written, ranges));
    }
    for (output, (slot, value)) in launch.writes.iter().zip(&launch.write_values).enumerate() {
        let n_elems = plan.value_elems[*value as usize];
        let held = &plan.slots[slot.0 as usize];
        if let SlotKind::Input { donated: false, idx } = held.kind {
            return Err(format!("writes over input {idx}, which was not donated"));
        }
        if held.size_bytes < n_elems * writes[output].size() {
            return Err(format!("value {value} does not fit slot {}", slot.0));
        }
        if let Some(input) = launch.reads.iter().position(|r| r == slot) {
            in_place(launch, input, output)?;
        }
        if launch.writes.iter().filter(|w| *w == slot).count() > 1
            && launch.write_values.iter().any(|v| v != value && launch.writes[position(launch, *v)] == *slot)
        {
            return Err(format!("two values are written to slot {}", slot.0));
        }
        let elements = stored_elements(launch, output, n_elems);
        match launch.bases.iter().find(|base| base.0 as usize == output) {
            Some((_, base)) => {
                let held = holds[slot.0 as usize];
                let is_begun = held.value == Some(*value) && held.over == Some(*base);
                if !is_begun {
                    replaces(plan, *base, *value, held.value, written)?;
                }
                // Within the rows nothing is written twice; what is not written is the base's.
                cover(&mut HashMap::new(), *value, elements, n_elems)?;
                if launch.reads.contains(slot) {
                    return Err(format!("reads slot {} while rows of it are written", slot.0));
                }
                if written.insert(*value, Coverage::All).is_some() && !is_begun {
                    return Err(format!("value {value} is written before its rows are"));
                }
            }
            None if looks_up_next(launch, *value, ranges)? => cover(written, *value, elements, n_elems)?,
            None => {}
        }
    }
    for (slot, value) in launch.writes.iter().zip(&launch.write_values) {
        let held = &mut holds[slot.0 as usize];
        if held.value != Some(*value) {
            let is_base = |base: &(u16, ValueId)| launch.writes[base.0 as usize] == *slot;
            let is_replaced = launch.reads.contains(slot) || launch.bases.iter().any(is_base);
            let over = held.value.filter(|_| is_replaced);
            *held = SlotContents { value: Some(*value), over };
        }
    }
    Ok(())
}

/// The parts of a grouped launch are legal in any order: each by itself, none reads or writes what another writes, and
/// together they read and write what the launch says.
fn grouped(
    plan: &Plan,
    launch: &Launch,
    limits: &Limits,
    holds: &mut [SlotContents],
    (written, ranges): (&mut HashMap<ValueId, Coverage>, &mut LookedUp),
) -> Result<(), String> {
    for (i, part) in launch.parts.iter().enumerate() {
        let others = launch.parts.iter().enumerate().filter(|(other, _)| *other != i);
        for slot in others.flat_map(|(_, other)| other.reads.iter().chain(&other.writes)) {
            if part.writes.contains(slot) {
                return Err(format!("part {i} writes slot {}, which another part uses", slot.0));
            }
        }
    }
    let reads = launch.parts.iter().flat_map(|part| part.reads.iter().zip(&part.read_values));
    let writes = launch.parts.iter().flat_map(|part| part.writes.iter().zip(&part.write_values));
    if !reads.eq(launch.reads.iter().zip(&launch.read_values))
        || !writes.eq(launch.writes.iter().zip(&launch.write_values))
        || launch.parts.iter().any(|part| !matches!(part.kernel, Kernel::Matmul(_)))
    {
        return Err("a grouped launch is not its parts".into());
    }
    launch.parts.iter().try_for_each(|part| step(plan, part, limits, holds, (written, ranges)))
}

/// A value whose rows are written takes over all of its base, which is in the slot, and whole.
fn replaces(
    plan: &Plan,
    base: ValueId,
    value: ValueId,
    held: Option<ValueId>,
    written: &HashMap<ValueId, Coverage>,
) -> Result<(), String> {
    let n_elems = |value: ValueId| plan.value_elems[value as usize];
    if n_elems(base) != n_elems(value) {
        return Err(format!("rows of value {base} are replaced in value {value}, which has another size"));
    }
    if held != Some(base) {
        return Err(format!("writes rows over value {base} where {held:?} is"));
    }
    match written.get(&base).is_some_and(|coverage| coverage.is_all(n_elems(base))) {
        true => Ok(()),
        false => Err(format!("writes rows over value {base} before all of it is written")),
    }
}

/// What is in a slot: a value, perhaps not all of it yet, and the value whose elements it replaces one by one.
#[derive(Clone, Copy, Debug, Default)]
struct SlotContents {
    value: Option<ValueId>,
    over: Option<ValueId>,
}

/// Per value that is looked up by ranges of indices: the latest range, from its first index to its end, and where all end.
type LookedUp = HashMap<ValueId, (usize, usize, usize)>;

/// Whether a launch writes elements for the first time. One that looks up a range of indices stores what others have not:
/// ranges follow each other, and those of the first write what all of them do. Launches that serve some positions of run-time
/// offsets likewise: one that serves the first positions stands for all.
fn looks_up_next(launch: &Launch, value: ValueId, ranges: &mut LookedUp) -> Result<bool, String> {
    let Some((first, n)) = launch.args.index_range else {
        return Ok(launch.args.offsets.iter().all(|numbers| numbers.served.0 == 0));
    };
    let bound = launch.args.gathers.last().map_or(0, |gather| gather.bound);
    let latest = ranges.insert(value, (first, first + n, bound)).unwrap_or((0, 0, bound));
    match first == latest.1 || (first, first + n) == (latest.0, latest.1) {
        true => Ok(first == 0),
        false => Err(format!("value {value} is looked up from {first} on after {} to {}", latest.0, latest.1)),
    }
}

fn position(launch: &Launch, value: ValueId) -> usize {
    launch.write_values.iter().position(|v| *v == value).expect("one of its own")
}

/// A map's elements, if they are few enough to list, and how many there are.
fn stored_elements(launch: &Launch, output: usize, n_elems: usize) -> (Option<Vec<usize>>, usize) {
    let (body, args, output) = match (&launch.kernel, &launch.args.attention) {
        (Kernel::Loop(body) | Kernel::Matmul(body), _) => (body, &launch.args, output),
        (Kernel::Attention(a), Some(args)) => match output.checked_sub(a.result.stores.len()) {
            None => (&a.result, &args.result, output),
            Some(output) => (&a.rows, &args.rows, output),
        },
        _ => return ((n_elems <= EXACT).then(|| (0..n_elems).collect()), n_elems),
    };
    let map = &args.accesses[body.stores[output].access as usize];
    let n = map.shape().n_elems();
    let all = (n <= EXACT).then(|| every_index(map).map(|c| map.at(&c).unwrap_or(usize::MAX)).collect());
    (all, n)
}

/// Every coordinate of a map's shape.
fn every_index(map: &IndexMap) -> impl Iterator<Item = Vec<usize>> + '_ {
    let shape = *map.shape();
    (0..shape.n_elems()).map(move |mut i| {
        let mut at = vec![0; shape.rank()];
        for axis in (0..shape.rank()).rev() {
            (at[axis], i) = (i % shape[axis], i / shape[axis]);
        }
        at
    })
}

fn cover(
    written: &mut HashMap<ValueId, Coverage>,
    value: ValueId,
    elements: (Option<Vec<usize>>, usize),
    n_elems: usize,
) -> Result<(), String> {
    let empty = if n_elems <= EXACT { Coverage::Some(BTreeSet::new()) } else { Coverage::Count(0) };
    match (written.entry(value).or_insert(empty), elements) {
        (Coverage::Some(set), (Some(elements), _)) => {
            for element in elements {
                if element >= n_elems || !set.insert(element) {
                    return Err(format!("element {element} of value {value} is outside it or written twice"));
                }
            }
        }
        (Coverage::Count(n), (_, more)) => {
            *n += more;
            if *n > n_elems {
                return Err(format!("value {value} is written more often than it has elements"));
            }
        }
        _ => return Err(format!("value {value} is written again after it was whole")),
    }
    Ok(())
}

/// An output may lie over an input only if each element is read by the index that writes it, and no other way.
fn in_place(launch: &Launch, input: usize, output: usize) -> Result<(), String> {
    let (body, n_operands) = match &launch.kernel {
        Kernel::Loop(body) => (body, 0),
        Kernel::Matmul(body) => (body, 2),
        Kernel::Attention(_) => return Err("chained products do not write in place".into()),
        Kernel::Routine(_) => return Err("routines do not write in place".into()),
        Kernel::Grouped(_) => return Err("only parts of a group write in place".into()),
    };
    if launch.reads[..n_operands].contains(&launch.writes[output]) {
        return Err(format!("output {output} lies over an operand of the product"));
    }
    let makes_of = |made: &Body| {
        made.insts.iter().any(|inst| match inst.op {
            InstOp::Load { input, .. } => launch.reads.get(input as usize) == Some(&launch.writes[output]),
            _ => false,
        })
    };
    if body.made.iter().flatten().any(|made| makes_of(made)) {
        return Err(format!("output {output} lies over what an operand of the product is made of"));
    }
    let form = |access: u16| body.accesses[access as usize];
    let stored = body.stores[output].access;
    let other_way = body.insts.iter().any(|inst| match inst.op {
        InstOp::Load { input: i, access } => i as usize == input && access != stored,
        InstOp::Gather { input: i, .. } => i as usize == input,
        _ => false,
    });
    let same_size = body.inputs[input].plain().is_some_and(|dtype| dtype.size() == body.outputs[output].size());
    // By strides only parts of a kernel do, which together write every element once: that is checked where they write.
    let is_plain = matches!(form(stored), AccessForm::Linear | AccessForm::Strided);
    if body.inner_rank > 0 || other_way || !is_plain || !same_size {
        return Err(format!("output {output} lies over input {input}, which is read in another order"));
    }
    Ok(())
}
