//! Proves kernels well-formed before they have memory, sharing no code with `lower` and `split`, which made them: instructions
//! read what is there, values are used as what they are stored as, accesses have the shape of the index space, all elements of
//! a value are stored, and no kernel waits for itself.

use std::sync::Arc;

use super::super::ValueId;
use super::super::lower::{LaunchDraft, Lowered, PlanValue};
use crate::blocks::Storage;
use crate::dtype::DType;
use crate::kernel::{Args, Body, Inst, InstOp, Kernel, Reg, Scope};
use crate::view::View;

/// Says what is wrong with kernels, if anything.
pub fn verify_kernels(lowered: &Lowered) -> Result<(), String> {
    let mut makers: Vec<Vec<usize>> = vec![Vec::new(); lowered.values.len()];
    let n_elems = |value: ValueId| lowered.values.get(value as usize).map_or(0, |value| value.n_elems);
    for (i, step) in lowered.steps.iter().enumerate() {
        kernel(&lowered.values, step).map_err(|fault| format!("kernel {i}: {fault}"))?;
        for value in &step.writes {
            if lowered.values[*value as usize].input.is_some() {
                return Err(format!("kernel {i} writes value {value}, which is an input"));
            }
            // A kernel may write one value in several places.
            let makers = &mut makers[*value as usize];
            makers.extend((makers.last() != Some(&i)).then_some(i));
        }
    }
    let is_there = |value: ValueId| {
        let is_input = lowered.values.get(value as usize).is_some_and(|value| value.input.is_some());
        is_input || n_elems(value) == 0 || !makers[value as usize].is_empty()
    };
    let read = lowered.steps.iter().flat_map(LaunchDraft::needs).chain(lowered.outputs.iter().copied());
    if let Some(value) = read.into_iter().find(|value| *value as usize >= makers.len() || !is_there(*value)) {
        return Err(format!("value {value} is read, and nothing makes it"));
    }
    for (value, makers) in (0..).zip(&makers).filter(|(_, makers)| !makers.is_empty()) {
        all_is_stored(lowered, value, makers)?;
    }
    no_circle(lowered, &makers)
}

/// A kernel, or each part of it, is well-formed and bound to values of its types.
fn kernel(values: &[PlanValue], step: &LaunchDraft) -> Result<(), String> {
    let (reads, writes) = step.kernel.bindings();
    if reads.len() != step.reads.len() || writes.len() != step.writes.len() {
        return Err("bindings and values differ in number".into());
    }
    let value = |idx: &ValueId| values.get(*idx as usize).ok_or_else(|| format!("there is no value {idx}"));
    for (idx, storage) in step.reads.iter().zip(reads) {
        let dtype = value(idx)?.dtype;
        if let Storage::Plain(bound) = storage
            && *bound != dtype
        {
            return Err(format!("value {idx} is {dtype}, and read as {bound}"));
        }
    }
    for (idx, bound) in step.writes.iter().zip(writes) {
        let dtype = value(idx)?.dtype;
        if *bound != dtype {
            return Err(format!("value {idx} is {dtype}, and written as {bound}"));
        }
        if step.reads.contains(idx) {
            return Err(format!("value {idx} is both read and written"));
        }
    }
    let args = &step.args;
    match &step.kernel {
        Kernel::Loop(loop_body) if loop_body.makes_operands() => Err("a loop multiplies nothing".into()),
        Kernel::Loop(loop_body) => body(loop_body, args, 0),
        Kernel::Matmul(rest) => {
            let numbers = args.matmul.as_ref().ok_or("a product without its numbers")?;
            for (operand, (made, numbers)) in rest.made.iter().zip(&numbers.made).enumerate() {
                makes_operand(rest, made, numbers).map_err(|fault| format!("operand {operand}: {fault}"))?;
            }
            body(rest, args, 1)
        }
        Kernel::Attention(chained) => {
            let numbers = args.attention.as_ref().ok_or("a chained product without its numbers")?;
            body(&chained.scores, &numbers.scores, chained.n_inner)?;
            body(&chained.result, &numbers.result, 4)?;
            body(&chained.rows, &numbers.rows, 4)
        }
        Kernel::Routine(_) if args.routine.is_some() => Ok(()),
        Kernel::Routine(_) => Err("a routine without its numbers".into()),
        Kernel::Grouped(_) => step.parts.iter().try_for_each(|part| kernel(values, part)),
    }
}

/// Proves that the map of a made operand, if there is one, reads inputs of the product, runs over the dense elements of the operand's
/// source, and stores each element once, in order, as f32.
fn makes_operand(rest: &Body, made: &Option<Arc<Body>>, numbers: &Option<Box<Args>>) -> Result<(), String> {
    let (made, numbers) = match (made, numbers) {
        (Some(made), Some(numbers)) => (made, numbers),
        (None, None) => return Ok(()),
        _ => return Err("has a map without numbers, or numbers without a map".into()),
    };
    body(made, numbers, 0)?;
    let is_dense = |access: u16| numbers.accesses[access as usize].strided().is_some_and(View::is_linear);
    let stores_all = matches!(&made.stores[..], [store] if is_dense(store.access));
    if !stores_all || made.outputs != [DType::F32] || made.inner_rank > 0 || made.makes_operands() {
        return Err("is made by no map of f32 that stores every element in order".into());
    }
    match rest.inputs.starts_with(&made.inputs) && made.offsets.is_empty() && !made.commits() {
        true => Ok(()),
        false => Err("is made of other inputs than the product has, or moves, or commits".into()),
    }
}

/// The instructions of a body are in single-assignment form, vary no less than what they read, and name what there is; sums of
/// the form are below `n_sums`.
fn body(body: &Body, args: &Args, n_sums: u8) -> Result<(), String> {
    if (args.outer.len(), args.inner.len()) != (body.outer_rank as usize, body.inner_rank as usize) {
        return Err("the index space has another rank".into());
    }
    if (args.accesses.len(), args.offsets.len()) != (body.accesses.len(), body.offsets.len()) {
        return Err("accesses and their numbers differ".into());
    }
    for (i, inst) in body.insts.iter().enumerate() {
        instruction(body, args, inst, (i as Reg, n_sums)).map_err(|fault| format!("instruction {i}: {fault}"))?;
    }
    let mut stored = vec![false; body.outputs.len()];
    for store in &body.stores {
        let inst = body.insts.get(store.value as usize).ok_or("a store of no value")?;
        *stored.get_mut(store.output as usize).ok_or("a store to no output")? = true;
        if inst.dtype.lane() != body.outputs[store.output as usize].lane() {
            return Err(format!("output {} is stored as another type than it was computed", store.output));
        }
        access(body, args, store.access, inst.scope).map_err(|fault| format!("output {}: {fault}", store.output))?;
    }
    match stored.iter().position(|stored| !stored) {
        Some(output) => Err(format!("nothing is stored to output {output}")),
        None => Ok(()),
    }
}

fn instruction(body: &Body, args: &Args, inst: &Inst, (i, n_sums): (Reg, u8)) -> Result<(), String> {
    let (mut late, mut read) = (None, Scope::Uniform);
    inst.op.for_each_reg(|reg| match reg < i {
        true => read = read.max(body.insts[reg as usize].scope),
        false => late = Some(reg),
    });
    if let Some(reg) = late {
        return Err(format!("reads {reg}, which does not come before it"));
    }
    let is_reduce = matches!(inst.op, InstOp::Reduce(..));
    if inst.scope < read && !is_reduce {
        return Err(format!("is {:?}, and reads what is {read:?}", inst.scope));
    }
    let dtype = |reg: Reg| body.insts[reg as usize].dtype;
    let has_input = |input: u16, dtype: DType| match body.inputs.get(input as usize) {
        // What passes between the parts of a kernel that was cut may be stored as it is computed.
        Some(storage) if storage.dtype().lane() == dtype.lane() => Ok(()),
        Some(storage) => Err(format!("input {input} is {}, not {dtype}", storage.dtype())),
        None => Err(format!("there is no input {input}")),
    };
    match &inst.op {
        InstOp::Load { input, access: by } => {
            has_input(*input, inst.dtype)?;
            access(body, args, *by, Scope::Uniform)
        }
        InstOp::Valid { access: by } | InstOp::Index { access: by } => access(body, args, *by, Scope::Uniform),
        InstOp::Gather { input, access: by, gather, .. } => {
            has_input(*input, inst.dtype)?;
            match args.gathers.get(*gather as usize) {
                Some(_) => access(body, args, *by, Scope::Uniform),
                None => Err(format!("there is no lookup {gather}")),
            }
        }
        InstOp::Const(constant) if *constant as usize >= args.consts.len() => {
            Err(format!("there is no constant {constant}"))
        }
        InstOp::Acc(sum) if *sum >= n_sums => Err(format!("the form makes no sum {sum}")),
        InstOp::Reduce(..) if inst.scope != Scope::Outer || body.inner_rank == 0 => {
            Err("there is nothing to reduce over".into())
        }
        InstOp::Select(_, a, b) if [dtype(*a), dtype(*b)].map(DType::lane) != [inst.dtype.lane(); 2] => {
            Err("chooses between other types than it gives".into())
        }
        _ => Ok(()),
    }
}

/// An access runs over the index space, or its outer axes, or none of it: at least as much as what is stored by it varies.
fn access(body: &Body, args: &Args, access: u16, scope: Scope) -> Result<(), String> {
    let map = args.accesses.get(access as usize).ok_or_else(|| format!("there is no access {access}"))?;
    let n_axes = match map.shape().rank() {
        0 => Scope::Uniform,
        n if n == body.outer_rank as usize => Scope::Outer,
        n if n == body.outer_rank as usize + body.inner_rank as usize => Scope::Inner,
        n => return Err(format!("access {access} has {n} axes")),
    };
    let space = args.outer.iter().chain(&args.inner);
    if !map.shape().iter().zip(space).all(|(own, size)| own == size) {
        return Err(format!("access {access} has another shape than the index space: {}", map.shape()));
    }
    // Where there is one outer index, what varies with it is one element.
    match n_axes >= scope || args.outer.iter().product::<usize>() == 1 && scope == Scope::Outer {
        true => Ok(()),
        false => Err(format!("access {access} is {n_axes:?}, and what is stored by it {scope:?}")),
    }
}

/// All elements of a value are stored, once, as far as counting tells. What is written over another value, or by kernels of
/// which each serves some positions or indices, is not counted.
fn all_is_stored(lowered: &Lowered, value: ValueId, makers: &[usize]) -> Result<(), String> {
    let mut n_stored = 0;
    for step in makers.iter().map(|maker| &lowered.steps[*maker]) {
        let each = if step.parts.is_empty() { std::slice::from_ref(step) } else { &step.parts };
        for part in each.iter().filter(|part| part.writes.contains(&value)) {
            let (Kernel::Loop(body) | Kernel::Matmul(body)) = &part.kernel else { return Ok(()) };
            if !part.own_bases.is_empty() || !part.args.offsets.is_empty() || part.args.index_range.is_some() {
                return Ok(());
            }
            let stores = body.stores.iter().filter(|store| part.writes[store.output as usize] == value);
            n_stored += stores.map(|s| part.args.accesses[s.access as usize].shape().n_elems()).sum::<usize>();
        }
    }
    match lowered.values[value as usize].n_elems {
        n_elems if n_elems == n_stored => Ok(()),
        n_elems => Err(format!("of the {n_elems} elements of value {value}, {n_stored} are stored")),
    }
}

/// A kernel that waits for itself, by way of others, can never run. Parts of a kernel that was cut do not wait for each other.
fn no_circle(lowered: &Lowered, makers: &[Vec<usize>]) -> Result<(), String> {
    let mut n_waits_for: Vec<usize> = vec![0; lowered.steps.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); lowered.steps.len()];
    for (i, step) in lowered.steps.iter().enumerate() {
        for maker in step.needs().flat_map(|value| &makers[value as usize]) {
            readers[*maker].push(i);
            n_waits_for[i] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..readers.len()).filter(|i| n_waits_for[*i] == 0).collect();
    while let Some(i) = ready.pop() {
        for reader in &readers[i] {
            n_waits_for[*reader] -= 1;
            ready.extend((n_waits_for[*reader] == 0).then_some(*reader));
        }
    }
    match n_waits_for.iter().position(|n| *n > 0) {
        Some(i) => Err(format!("kernel {i} waits for itself")),
        None => Ok(()),
    }
}
