//! Nothing is touched outside its slot: every access of every instruction, and every operand of a product. Linear in
//! instructions, whatever the sizes are, so that filled plans are checked in all builds.

use smallvec::SmallVec;

use super::super::{Launch, Limits, Plan};
use crate::kernel::{Args, AttentionArgs, AttentionKernel, Body, InstOp, Kernel, MatmulArgs, Scope, Store};
use crate::shape::{MAX_RANK, Shape};

/// Says whether anything is touched outside its slot, if it is: what is checked of every filled plan, in all builds. Linear in
/// instructions, whatever the sizes are.
pub fn verify_bounds(plan: &Plan, limits: &Limits) -> Result<(), String> {
    for launch in &plan.launches {
        let (reads, writes) = launch.kernel.bindings();
        if n_bindings(launch) > limits.max_bindings {
            return Err("more bindings than there may be".into());
        }
        let bound = launch.reads.iter().zip(&launch.read_values).zip(reads);
        let bound = bound.map(|(at, storage)| (at, storage.unit_bytes()));
        let written = launch.writes.iter().zip(&launch.write_values).zip(writes.iter().map(|dtype| dtype.size()));
        for ((slot, value), unit_bytes) in bound.chain(written) {
            if plan.slots[slot.0 as usize].size_bytes < plan.value_elems[*value as usize] * unit_bytes {
                return Err(format!("value {value} does not fit slot {}", slot.0));
            }
        }
        inside_slots(plan, launch)?;
        makes_few(launch, limits)?;
    }
    Ok(())
}

/// Proves that no launch makes an operand larger than the device takes.
pub fn makes_few(launch: &Launch, limits: &Limits) -> Result<(), String> {
    let products = launch.each().iter().filter_map(|part| part.args.matmul.as_deref());
    let most = products.flat_map(|matmul| [0, 1].map(|operand| matmul.n_made(operand))).flatten().max();
    match most.filter(|most| *most > limits.max_made_elems) {
        Some(most) => Err(format!("makes an operand of {most} elements, above the limit of {}", limits.max_made_elems)),
        None => Ok(()),
    }
}

/// Slots that a launch is bound to; where parts of it share some, each counts once.
pub fn n_bindings(launch: &Launch) -> usize {
    let (n_reads, n_writes) = (launch.reads.len(), launch.writes.len());
    if launch.parts.is_empty() {
        return n_reads + n_writes;
    }
    let mut slots: Vec<_> = launch.reads.iter().chain(&launch.writes).collect();
    slots.sort_unstable();
    slots.dedup();
    slots.len()
}

/// Proves that each instruction of a launch, and of its parts, reads only results of earlier instructions, and that reductions have an
/// axis to reduce over. Both are structure, which a filled plan shares with the plan that it was filled from.
pub fn in_order(launch: &Launch) -> Result<(), String> {
    for part in launch.each() {
        match &part.kernel {
            Kernel::Loop(body) | Kernel::Matmul(body) => body_in_order(body)?,
            Kernel::Attention(kernel) => {
                [&kernel.scores, &kernel.result, &kernel.rows].into_iter().try_for_each(|body| body_in_order(body))?
            }
            Kernel::Routine(_) | Kernel::Grouped(_) => {}
        }
    }
    Ok(())
}

fn body_in_order(body: &Body) -> Result<(), String> {
    for (i, inst) in body.insts.iter().enumerate() {
        let mut late = None;
        inst.op.for_each_reg(|r| late = late.or((r as usize >= i).then_some(r)));
        if let Some(r) = late {
            return Err(format!("instruction {i} reads {r}, which does not come before it"));
        }
        if matches!(inst.op, InstOp::Reduce(..)) && (inst.scope != Scope::Outer || body.inner_rank == 0) {
            return Err(format!("reduction {i} has nothing to reduce over"));
        }
    }
    body.made.iter().flatten().try_for_each(|made| body_in_order(made))
}

/// All that a launch, or any part of it, touches is inside its slots.
pub fn inside_slots(plan: &Plan, launch: &Launch) -> Result<(), String> {
    for part in launch.each() {
        maps(plan, part)?;
        if let Some(matmul) = &part.args.matmul {
            operands(plan, part, matmul)?;
        }
    }
    Ok(())
}

/// Every map of a launch stays inside what it reads and writes.
fn maps(plan: &Plan, launch: &Launch) -> Result<(), String> {
    match &launch.kernel {
        Kernel::Loop(body) => inside(plan, launch, (body, &launch.args), (&body.stores, 0)),
        Kernel::Matmul(body) => {
            // The store of a made operand goes to scratch memory and not to a value.
            let numbers = launch.args.matmul.iter().flat_map(|matmul| &matmul.made);
            for (made, numbers) in body.made.iter().zip(numbers) {
                if let (Some(made), Some(numbers)) = (made, numbers) {
                    inside(plan, launch, (made, numbers), (&[], 0))?;
                }
            }
            inside(plan, launch, (body, &launch.args), (&body.stores, 0))
        }
        Kernel::Attention(kernel) => {
            let args = launch.args.attention.as_deref().ok_or("a chained product without its numbers")?;
            chained(plan, launch, kernel, args)
        }
        Kernel::Routine(_) => Ok(()),
        Kernel::Grouped(_) => Err("a group within a group".into()),
    }
}

/// The elements of an input.
fn n_elems(plan: &Plan, launch: &Launch, input: usize) -> usize {
    launch.kernel.bindings().0[input].n_elems(plan.value_elems[launch.read_values[input] as usize])
}

/// Every access of every instruction and of these stores stays inside what it reads or writes; the outputs of the stores
/// are those from `first` on.
fn inside(
    plan: &Plan,
    launch: &Launch,
    (body, args): (&Body, &Args),
    (stores, first): (&[Store], usize),
) -> Result<(), String> {
    for (i, inst) in body.insts.iter().enumerate() {
        match inst.op {
            InstOp::Load { input, access } => {
                let n_elems = n_elems(plan, launch, input as usize);
                let more = moved(body, args, access)?;
                reach(launch, args, access, n_elems, more).map_err(|e| format!("load {i}: {e}"))?;
            }
            InstOp::Gather { input, access, gather, .. } => {
                let n_elems = n_elems(plan, launch, input as usize);
                let lookup = args.gathers[gather as usize];
                let more = lookup.stride * (lookup.bound as isize - 1).max(0);
                reach(launch, args, access, n_elems, more).map_err(|e| format!("gather {i}: {e}"))?;
            }
            _ => {}
        }
    }
    for store in stores {
        let n_elems = plan.value_elems[launch.write_values[first + store.output as usize] as usize];
        let more = moved(body, args, store.access)?;
        reach(launch, args, store.access, n_elems, more).map_err(|e| format!("store {}: {e}", store.output))?;
    }
    Ok(())
}

/// How far the last position moves an access. All accesses of an input are moved alike, or none is.
fn moved(body: &Body, args: &Args, access: u16) -> Result<isize, String> {
    let Some(idx) = body.offsets.iter().position(|offset| offset.access == access) else { return Ok(0) };
    let (Some(numbers), constant) = (args.offsets.get(idx), body.offsets[idx].constant as usize) else {
        return Err(format!("access {access} is moved by nothing"));
    };
    let by = |access: u16| {
        let idx = body.offsets.iter().position(|offset| offset.access == access)?;
        Some((body.offsets[idx].constant, args.offsets.get(idx).map(|numbers| (numbers.stride, numbers.bound))))
    };
    let own = by(access);
    for inst in &body.insts {
        if let InstOp::Load { input, access: a } = inst.op
            && a == access
            && body.insts.iter().any(|other| match other.op {
                InstOp::Load { input: i, access } | InstOp::Gather { input: i, access, .. } => {
                    i == input && by(access) != own
                }
                _ => false,
            })
        {
            return Err(format!("input {input} is read from two positions"));
        }
    }
    match constant < args.consts.len() && numbers.served.0 + numbers.served.1 <= numbers.bound && numbers.served.1 > 0 {
        true => Ok(numbers.stride * (numbers.bound as isize - 1)),
        false => Err(format!("the position of access {access} is no constant, or has no place")),
    }
}

/// The parts of a chained product belong together, and each stays inside what it reads and writes.
fn chained(plan: &Plan, launch: &Launch, kernel: &AttentionKernel, args: &AttentionArgs) -> Result<(), String> {
    let AttentionArgs { batch, n_rows, n_columns, n_values, column_parts, .. } = args;
    if !column_parts.cover(*n_columns) {
        return Err(format!("a chained product over {n_columns} columns is made in {column_parts}"));
    }
    let n_operands = 2 * kernel.n_inner as usize + 1;
    if args.inner.len() != kernel.n_inner as usize || !(1..=2).contains(&kernel.n_inner) {
        return Err("the inner products of kernel and numbers differ".into());
    }
    let space = |more: &[&usize]| batch.iter().chain([n_rows]).chain(more.iter().copied()).copied().collect::<Shape>();
    let parts = [
        (&kernel.scores, &args.scores, space(&[n_columns])),
        (&kernel.result, &args.result, space(&[n_values])),
        (&kernel.rows, &args.rows, space(&[])),
    ];
    for (i, (body, numbers, sizes)) in parts.into_iter().enumerate() {
        if numbers.outer != *sizes || body.inner_rank != 0 || !kernel.inputs.starts_with(&body.inputs) {
            return Err(format!("map {i} of a chained product does not belong to it"));
        }
        // What is stored of scores goes nowhere.
        let stores = match i {
            0 => (&[][..], 0),
            1 => (&body.stores[..], 0),
            _ => (&body.stores[..], kernel.result.stores.len()),
        };
        inside(plan, launch, (body, numbers), stores)?;
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
        let n_elems = n_elems(plan, launch, input);
        if low < 0 || high >= n_elems as isize {
            return Err(format!("operand {input} reaches elements {low} to {high} of {n_elems}"));
        }
    }
    Ok(())
}

/// Every element of a product's operands is inside what it reads.
fn operands(plan: &Plan, launch: &Launch, matmul: &MatmulArgs) -> Result<(), String> {
    let &MatmulArgs { ref batch, m, k, n, ref a, ref b, panels, k_parts, ref made } = matmul;
    if !k_parts.cover(k) {
        return Err(format!("a sum of {k} products is made in {k_parts}"));
    }
    if batch.contains(&0) || m == 0 || k == 0 || n == 0 {
        return Ok(());
    }
    let Kernel::Matmul(body) = &launch.kernel else { return Err("operands of what is no product".into()) };
    let is_part = body.stores.iter().any(|store| {
        let value = launch.write_values[store.output as usize];
        launch.args.accesses[store.access as usize].shape().n_elems() < plan.value_elems[value as usize]
    });
    for (input, (lies, rows, cols)) in [(a, m, k), (b, k, n)].into_iter().enumerate() {
        let panels = panels.filter(|_| input == 1);
        let mut axes: SmallVec<[(usize, isize); MAX_RANK]> = SmallVec::new();
        if lies.batch.len() != batch.len() {
            return Err(format!("operand {input} has lists for {} batch axes of {}", lies.batch.len(), batch.len()));
        }
        let cols = panels.map_or(cols, |panels| panels.width);
        let wanted = batch.iter().copied().chain([rows, cols]);
        for (list, wanted) in lies.batch.iter().chain([&lies.rows, &lies.cols]).zip(wanted) {
            let size: usize = list.axes().iter().map(|axis| axis.0).product();
            // Panels may be wider than what is left of the columns, and fewer columns than a panel make one.
            // A part of a product may have a part of a list.
            let has_all = if is_part { size >= list.start() + wanted } else { size == wanted };
            if !has_all && panels.is_none() {
                return Err(format!("operand {input} has a list of {size} where the product has {wanted}"));
            }
            match panels {
                Some(_) => axes.push((wanted, list.axes()[0].1)),
                None => axes.extend_from_slice(list.axes()),
            }
        }
        axes.extend(panels.map(|panels| (n.div_ceil(panels.width), panels.stride)));
        let (mut low, mut high) = (lies.offset, lies.offset);
        for (size, stride) in axes {
            low += (stride * (size as isize - 1)).min(0);
            high += (stride * (size as isize - 1)).max(0);
        }
        let n_elems = match &made[input] {
            Some(made) => made.outer.iter().product(),
            None => n_elems(plan, launch, input),
        };
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
