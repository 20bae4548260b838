//! Proves a plan legal, sharing no code with what made it: every read finds the value it expects, every element of
//! every value is written exactly once before it is read, nothing is touched outside its slot, what was not donated is
//! not overwritten, limits are kept, and checks come before what waits for them.

use std::collections::{BTreeSet, HashMap};

use super::{Launch, Limits, Plan, SlotKind, ValueId};
use crate::graph::{Graph, Op};
use crate::kernel::{AccessForm, Args, AttentionArgs, AttentionKernel, Body, InstOp, Kernel, MatmulArgs, Scope};
use crate::view::IndexMap;

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
    let mut holds: Vec<Option<ValueId>> = vec![None; plan.slots.len()];
    let mut written: HashMap<ValueId, Coverage> = HashMap::new();
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
        holds[slot] = Some(*value);
        written.insert(*value, Coverage::All);
    }
    let there = |n_outputs: usize, holds: &[Option<ValueId>], written: &HashMap<ValueId, Coverage>| {
        for (slot, value) in plan.outputs.iter().zip(&plan.output_values).take(n_outputs) {
            let n_elems = plan.value_elems[*value as usize];
            if n_elems > 0 && holds[slot.0 as usize] != Some(*value) {
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
            step(plan, launch, limits, &mut holds, &mut written)
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
        for value in &launch.read_values {
            needed_in[*value as usize] = needed_in[*value as usize].min(stage);
        }
    }
    Ok(())
}

/// Says whether anything is touched outside its slot, if it is: what is checked of every filled plan, in all builds. Linear in
/// instructions, whatever the sizes are.
pub fn verify_bounds(plan: &Plan, limits: &Limits) -> Result<(), String> {
    for launch in &plan.launches {
        let (reads, writes) = launch.kernel.bindings();
        if reads.len() + writes.len() > limits.max_bindings {
            return Err("more bindings than there may be".into());
        }
        let bound = launch.reads.iter().zip(&launch.read_values).zip(reads);
        for ((slot, value), dtype) in bound.chain(launch.writes.iter().zip(&launch.write_values).zip(writes)) {
            if plan.slots[slot.0 as usize].size_bytes < plan.value_elems[*value as usize] * dtype.size() {
                return Err(format!("value {value} does not fit slot {}", slot.0));
            }
        }
        maps(plan, launch)?;
        if let Some(matmul) = &launch.args.matmul {
            operands(plan, launch, matmul)?;
        }
    }
    Ok(())
}

/// Every map of a launch stays inside what it reads and writes.
fn maps(plan: &Plan, launch: &Launch) -> Result<(), String> {
    match &launch.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => inside(plan, launch, (body, &launch.args), 0),
        Kernel::Attention(kernel) => {
            let args = launch.args.attention.as_deref().ok_or("a chained product without its numbers")?;
            chained(plan, launch, kernel, args)
        }
        Kernel::Routine(_) => Ok(()),
    }
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
    holds: &mut [Option<ValueId>],
    written: &mut HashMap<ValueId, Coverage>,
) -> Result<(), String> {
    let (reads, writes) = launch.kernel.bindings();
    if reads.len() != launch.reads.len() || writes.len() != launch.writes.len() {
        return Err("slots and bindings differ in number".into());
    }
    if reads.len() + writes.len() > limits.max_bindings {
        return Err(format!("{} bindings are above the limit of {}", reads.len() + writes.len(), limits.max_bindings));
    }
    for (slot, value) in launch.reads.iter().zip(&launch.read_values) {
        let n_elems = plan.value_elems[*value as usize];
        if n_elems > 0 && holds[slot.0 as usize] != Some(*value) {
            return Err(format!("reads value {value} from slot {}, which holds {:?}", slot.0, holds[slot.0 as usize]));
        }
        if n_elems > 0 && !written.get(value).is_some_and(|c| c.is_all(n_elems)) {
            return Err(format!("reads value {value} before all of it is written"));
        }
    }
    maps(plan, launch)?;
    if let Some(matmul) = &launch.args.matmul {
        operands(plan, launch, matmul)?;
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
        cover(written, *value, elements, n_elems)?;
    }
    for (slot, value) in launch.writes.iter().zip(&launch.write_values) {
        holds[slot.0 as usize] = Some(*value);
    }
    Ok(())
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

/// Every access of every instruction stays inside what it reads or writes; the body's outputs are those from `first` on.
fn inside(plan: &Plan, launch: &Launch, (body, args): (&Body, &Args), first: usize) -> Result<(), String> {
    for (i, inst) in body.insts.iter().enumerate() {
        let mut late = None;
        inst.op.for_each_reg(|r| late = late.or((r as usize >= i).then_some(r)));
        if let Some(r) = late {
            return Err(format!("instruction {i} reads {r}, which does not come before it"));
        }
        match inst.op {
            InstOp::Load { input, access } => {
                let n_elems = plan.value_elems[launch.read_values[input as usize] as usize];
                reach(launch, args, access, n_elems, 0).map_err(|e| format!("load {i}: {e}"))?;
            }
            InstOp::Gather { input, access, gather, .. } => {
                let n_elems = plan.value_elems[launch.read_values[input as usize] as usize];
                let lookup = args.gathers[gather as usize];
                let more = lookup.stride * (lookup.bound as isize - 1).max(0);
                reach(launch, args, access, n_elems, more).map_err(|e| format!("gather {i}: {e}"))?;
            }
            InstOp::Reduce(..) if inst.scope != Scope::Outer || body.inner_rank == 0 => {
                return Err(format!("reduction {i} has nothing to reduce over"));
            }
            _ => {}
        }
    }
    for store in &body.stores {
        let n_elems = plan.value_elems[launch.write_values[first + store.output as usize] as usize];
        reach(launch, args, store.access, n_elems, 0).map_err(|e| format!("store {}: {e}", store.output))?;
    }
    Ok(())
}

/// The parts of a chained product belong together, and each stays inside what it reads and writes.
fn chained(plan: &Plan, launch: &Launch, kernel: &AttentionKernel, args: &AttentionArgs) -> Result<(), String> {
    let AttentionArgs { batch, n_rows, n_columns, n_values, .. } = args;
    let n_operands = 2 * kernel.n_inner as usize + 1;
    if args.inner.len() != kernel.n_inner as usize || !(1..=2).contains(&kernel.n_inner) {
        return Err("the inner products of kernel and numbers differ".into());
    }
    let space = |more: &[&usize]| batch.iter().chain([n_rows]).chain(more.iter().copied()).copied().collect::<Vec<_>>();
    let parts = [
        (&kernel.scores, &args.scores, space(&[n_columns])),
        (&kernel.result, &args.result, space(&[n_values])),
        (&kernel.rows, &args.rows, space(&[])),
    ];
    for (i, (body, numbers, sizes)) in parts.into_iter().enumerate() {
        if numbers.outer != sizes || body.inner_rank != 0 || !kernel.inputs.starts_with(&body.inputs) {
            return Err(format!("map {i} of a chained product does not belong to it"));
        }
        let no_stores = Body { stores: Vec::new(), ..body.clone() };
        let (body, first) = match i {
            0 => (&no_stores, 0),
            1 => (body, 0),
            _ => (body, kernel.result.stores.len()),
        };
        inside(plan, launch, (body, numbers), first)?;
    }
    let inner = args.inner.iter().flat_map(|x| [(&x.a, *n_rows, x.depth), (&x.b, *n_columns, x.depth)]);
    let operands = inner.chain([(&args.values, *n_columns, *n_values)]);
    for (input, (lies, n_places, along)) in operands.enumerate().take(n_operands) {
        let axes = batch.iter().copied().zip(lies.batch.iter().copied());
        let (mut low, mut high) = (lies.offset, lies.offset);
        for (size, stride) in axes.chain([(n_places, lies.place), (along, lies.along)]) {
            low += (stride * (size as isize - 1)).min(0);
            high += (stride * (size as isize - 1)).max(0);
        }
        let n_elems = plan.value_elems[launch.read_values[input] as usize];
        if low < 0 || high >= n_elems as isize {
            return Err(format!("operand {input} reaches elements {low} to {high} of {n_elems}"));
        }
    }
    Ok(())
}

/// Every element of a product's operands is inside what it reads.
fn operands(plan: &Plan, launch: &Launch, matmul: &MatmulArgs) -> Result<(), String> {
    let &MatmulArgs { ref batch, m, k, n, ref a, ref b, panels } = matmul;
    if batch.contains(&0) || m == 0 || k == 0 || n == 0 {
        return Ok(());
    }
    for (input, (lies, rows, cols)) in [(a, m, k), (b, k, n)].into_iter().enumerate() {
        let panels = panels.filter(|_| input == 1);
        let mut axes: Vec<(usize, isize)> = Vec::new();
        if lies.batch.len() != batch.len() {
            return Err(format!("operand {input} has lists for {} batch axes of {}", lies.batch.len(), batch.len()));
        }
        let cols = panels.map_or(cols, |panels| panels.width);
        let wanted = batch.iter().copied().chain([rows, cols]);
        for (list, wanted) in lies.batch.iter().chain([&lies.rows, &lies.cols]).zip(wanted) {
            let size: usize = list.axes().iter().map(|axis| axis.0).product();
            // Panels may be wider than what is left of the columns, and fewer columns than a panel make one.
            if size != wanted && panels.is_none() {
                return Err(format!("operand {input} has a list of {size} where the product has {wanted}"));
            }
            match panels {
                Some(_) => axes.push((wanted, list.axes()[0].1)),
                None => axes.extend(list.axes()),
            }
        }
        axes.extend(panels.map(|panels| (n.div_ceil(panels.width), panels.stride)));
        let (mut low, mut high) = (lies.offset, lies.offset);
        for (size, stride) in axes {
            low += (stride * (size as isize - 1)).min(0);
            high += (stride * (size as isize - 1)).max(0);
        }
        let n_elems = plan.value_elems[launch.read_values[input] as usize];
        if low < 0 || high >= n_elems as isize {
            return Err(format!("operand {input} reaches elements {low} to {high} of {n_elems}"));
        }
    }
    Ok(())
}

/// The lowest and highest element an access can name, if it is strides, must exist.
fn reach(launch: &Launch, args: &Args, access: u16, n_elems: usize, more: isize) -> Result<(), String> {
    let map = &args.accesses[access as usize];
    let view = &map.views()[0];
    if map.shape().n_elems() == 0 || n_elems == 0 || map.is_masked() {
        return Ok(());
    }
    let (mut low, mut high) = (view.offset + more.min(0), view.offset + more.max(0));
    // The last piece of a cut reduction is short: its axes together end at the limit.
    let meets_pieces = map.views().len() == 1 && view.shape.rank() == args.outer.len() + 1;
    let ragged = matches!(&launch.kernel, Kernel::Loop(b) if b.ragged) && meets_pieces;
    for (axis, (&size, &stride)) in view.shape.iter().zip(&view.strides).enumerate() {
        let last_axis = axis + 1 == view.shape.rank();
        let count = match ragged {
            true if axis == 0 => 1,
            true if last_axis => args.limit,
            _ => size,
        };
        low += (stride * (count as isize - 1)).min(0);
        high += (stride * (count as isize - 1)).max(0);
    }
    if low < 0 || high >= n_elems as isize {
        return Err(format!("reaches elements {low} to {high} of {n_elems}"));
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
    };
    if launch.reads[..n_operands].contains(&launch.writes[output]) {
        return Err(format!("output {output} lies over an operand of the product"));
    }
    let form = |access: u16| body.accesses[access as usize];
    let stored = body.stores[output].access;
    let other_way = body.insts.iter().any(|inst| match inst.op {
        InstOp::Load { input: i, access } => i as usize == input && access != stored,
        InstOp::Gather { input: i, .. } => i as usize == input,
        _ => false,
    });
    let same_size = body.inputs[input].size() == body.outputs[output].size();
    if body.inner_rank > 0 || other_way || form(stored) != AccessForm::Linear || !same_size {
        return Err(format!("output {output} lies over input {input}, which is read in another order"));
    }
    Ok(())
}
