//! Maps: every invocation takes fours of elements of the index space side by side, or one where they cannot be read or
//! written together. What fours leave over is a dispatch of its own. Where an operand is transposed, an invocation takes
//! a block of four by four, so that all that is read is read by fours.

use std::ops::Range;

use super::Pass;
use super::context::Context;
use super::eval::Eval;
use super::index::{Accesses, Spot, split};
use super::launch_memory::LaunchMemory;
use super::schedule::{self, BLOCK_TILE, MapSchedule, VecAxis, VecLoad};
use super::shader::Shader;
use super::tree::{ShaderExpr, all, min, word};
use crate::kernel::{AccessForm, Args, InstOp};

/// The memory of each dispatch of a map.
pub fn memory(context: &Context, args: &Args, shape: &MapSchedule) -> Vec<LaunchMemory> {
    let n: usize = args.outer.iter().product();
    let by = |four: Option<VecAxis>| context.memory(args, &[&schedule::modes(context.body, args, four)]);
    let mut all = Vec::new();
    match (shape.four, shape.block) {
        (Some(four), Some(axis)) => return vec![context.memory(args, &[&block_modes(context, args, (four, axis))])],
        (Some(_), None) => all.push(by(shape.four)),
        (None, _) => {}
    }
    if shape.n_by_four < n {
        all.push(by(None));
    }
    all
}

/// The dispatches of a map, each with its memory.
pub fn passes(context: &Context, args: &Args, shape: &MapSchedule, memory: &[LaunchMemory]) -> Vec<Pass> {
    let n: usize = args.outer.iter().product();
    let mut passes = Vec::new();
    match (shape.four, shape.block) {
        (Some(four), Some(axis)) => return vec![block_pass(context, args, &memory[0], shape.group, (four, axis))],
        (Some(four), None) => {
            let beside = (shape.group, shape.vecs_per_thread);
            passes.push(pass(context, args, &memory[0], beside, Some(four), 0..shape.n_by_four));
        }
        (None, _) => {}
    }
    if shape.n_by_four < n {
        passes.push(pass(context, args, &memory[passes.len()], (shape.group, 1), None, shape.n_by_four..n));
    }
    passes
}

/// The dispatch over these positions of the index space, in workgroups of `group` invocations, each of which takes
/// `vecs_per_thread` fours, or elements.
fn pass(
    context: &Context,
    args: &Args,
    memory: &LaunchMemory,
    (group, vecs_per_thread): (usize, usize),
    four: Option<VecAxis>,
    positions: Range<usize>,
) -> Pass {
    let modes = schedule::modes(context.body, args, four);
    let kept = context.kept();
    let accesses = Accesses { body: context.body, args, modes: &modes, kept: &kept };
    let per = if four.is_some() { 4 } else { 1 };
    let mut shader = Shader::new(context.comment(), &args.consts, group);
    let (first, end) = (shader.param("start", positions.start), shader.param("end", positions.end));
    let invocation = shader.count_groups() * group + word("lane");
    // Where each invocation's values end up is decided last: a branch around all of it would cost some drivers more
    // than what those beyond the end do in vain. They do the last element again and store nothing.
    let wanted = shader.define("wanted", first + invocation.times(per * vecs_per_thread));
    if schedule::has_gathers(context.body) {
        // Unless what they do in vain could fail.
        shader.return_if(wanted.at_least(&end));
    }
    let mut evals: Vec<Eval> = Vec::new();
    for idx in 0..vecs_per_thread {
        let suffix = suffix(idx);
        let position = shader.define(format!("i{suffix}"), min(wanted.plus(idx * per), &end - per));
        let spot = spot(&mut shader, &accesses, position, four, &suffix);
        let mut eval = Eval::new(accesses, memory, spot);
        eval.need(&mut shader, context.body.stores.iter().map(|s| s.value));
        evals.push(eval);
    }
    for (idx, eval) in evals.iter_mut().enumerate() {
        let inside = wanted.plus(idx * per).less(&end);
        let served = accesses.is_served(&mut shader);
        let inside = all([inside].into_iter().chain(eval.index_range(&mut shader)).chain(served));
        store_if(&mut shader, context, std::slice::from_mut(eval), inside);
    }
    shader.finish(context.label(), memory, positions.len().div_ceil(per * vecs_per_thread * group))
}

/// How each access reads or writes blocks of four rows along `axis`, with four elements of the last axis in each row.
fn block_modes(context: &Context, args: &Args, (four, axis): (VecAxis, usize)) -> Vec<VecLoad> {
    schedule::turned(context.body, args, &schedule::modes(context.body, args, Some(four)), axis)
}

/// The dispatch of a map whose invocations take blocks of four rows along `axis`, each four elements of the last one.
fn block_pass(
    context: &Context,
    args: &Args,
    memory: &LaunchMemory,
    group: usize,
    (four, axis): (VecAxis, usize),
) -> Pass {
    let modes = block_modes(context, args, (four, axis));
    let kept = context.kept();
    let accesses = Accesses { body: context.body, args, modes: &modes, kept: &kept };
    let mut shader = Shader::new(context.comment(), &args.consts, group);
    let n_axes = args.outer.len();
    let sizes: Vec<ShaderExpr> = (0..n_axes).map(|a| shader.param(&format!("outer{a}"), args.outer[a])).collect();

    // The workgroup's tile, then this invocation's block of it.
    let in_block = |a: usize| a == axis || a == four.axis;
    let in_tiles = |a: usize| if in_block(a) { args.outer[a].div_ceil(4 * BLOCK_TILE) } else { args.outer[a] };
    let tiles: Vec<ShaderExpr> = (0..n_axes).map(|a| shader.param(&format!("tiles{a}"), in_tiles(a))).collect();
    let names: Vec<String> = (0..n_axes).map(|a| format!("tile{a}")).collect();
    let group_idx = shader.count_groups();
    let tiles = split(&mut shader, &group_idx, &names, &tiles);
    let lane = word("lane");
    let mut wanted = Vec::new();
    for a in 0..n_axes {
        let part = if a == axis { &lane / BLOCK_TILE } else { &lane % BLOCK_TILE };
        let position = if in_block(a) { (&tiles[a] * BLOCK_TILE + part) * 4 } else { tiles[a].clone() };
        wanted.push(shader.define(format!("wanted{a}"), position));
    }
    // Those beyond the end do the last block again and store nothing.
    let last = |a: usize| &sizes[a] - if in_block(a) { 4 } else { 1 };
    let first: Vec<ShaderExpr> =
        (0..n_axes).map(|a| shader.define(format!("o{a}"), min(&wanted[a], last(a)))).collect();
    let served = accesses.is_served(&mut shader);
    let inside = all((0..n_axes).map(|a| wanted[a].less(&sizes[a])).chain(served));
    let position = (1..n_axes).fold(first[0].clone(), |at, a| at * &sizes[a] + &first[a]);
    let position = shader.define("i", position);
    let apart = shader.param("row_elems", args.outer[axis + 1..].iter().product());

    let mut evals: Vec<Eval> = Vec::new();
    for row in 0..4 {
        let suffix = suffix(row);
        let (mut coordinates, mut outer) = (first.clone(), position.clone());
        if row > 0 {
            coordinates[axis] = shader.define(format!("o{axis}{suffix}"), &first[axis] + row);
            outer = shader.define(format!("i{suffix}"), &position + ShaderExpr::from(row) * &apart);
        }
        let coordinates = side_by_side(coordinates, Some(four.axis));
        let spot = Spot { coordinates, row, ..Spot::new(outer, &suffix) };
        let mut eval = Eval::new(accesses, memory, spot);
        eval.need(&mut shader, context.body.stores.iter().map(|s| s.value));
        evals.push(eval);
    }
    store_if(&mut shader, context, &mut evals, inside);
    shader.finish(context.label(), memory, (0..n_axes).map(in_tiles).product())
}

/// Writes all stores, under a condition.
fn store_if(shader: &mut Shader, context: &Context, evals: &mut [Eval], condition: Option<ShaderExpr>) {
    let Some(condition) = condition else { unreachable!("bug: a map without an end") };
    let stores = &context.body.stores;
    evals.iter_mut().for_each(|eval| stores.iter().for_each(|store| eval.place(shader, store)));
    shader.open_if(condition);
    evals.iter_mut().for_each(|eval| stores.iter().for_each(|store| eval.store(shader, store)));
    shader.close();
}

/// What tells the names of one copy of unrolled code from another's.
fn suffix(idx: usize) -> String {
    if idx == 0 { String::new() } else { format!("_{idx}") }
}

/// Writes the coordinates of a row-major outer position, if anything needs them.
pub fn spot(
    shader: &mut Shader,
    accesses: &Accesses,
    position: ShaderExpr,
    four: Option<VecAxis>,
    suffix: &str,
) -> Spot {
    let outer = &accesses.args.outer;
    let mut spot = Spot::new(position.clone(), suffix);
    if !needs_coordinates(accesses) {
        return spot;
    }
    let sizes: Vec<ShaderExpr> =
        outer.iter().enumerate().map(|(axis, n)| shader.param(&format!("outer{axis}"), *n)).collect();
    let names = |letter: &str| (0..outer.len()).map(|axis| format!("o{axis}{letter}{suffix}")).collect::<Vec<_>>();
    spot.coordinates = match four {
        Some(VecAxis { aligned: false, .. }) => {
            let of_lane = |(k, letter): (usize, &&str)| split(shader, &position.plus(k), &names(letter), &sizes);
            ["x", "y", "z", "w"].iter().enumerate().map(of_lane).collect()
        }
        four => {
            let first = split(shader, &position, &names(""), &sizes);
            side_by_side(first, four.map(|f| f.axis).filter(|axis| *axis < outer.len()))
        }
    };
    spot
}

/// The coordinates of four elements side by side along an axis, or of one.
pub fn side_by_side(first: Vec<ShaderExpr>, along: Option<usize>) -> Vec<Vec<ShaderExpr>> {
    let Some(axis) = along else { return vec![first] };
    let lane = |k: usize| {
        let mut coordinates = first.clone();
        coordinates[axis] = first[axis].plus(k);
        coordinates
    };
    (0..4).map(lane).collect()
}

/// Whether any access goes by coordinates rather than by the row-major position.
fn needs_coordinates(accesses: &Accesses) -> bool {
    let by_coordinates = |access: u16| {
        let form = accesses.body.accesses[access as usize];
        form == AccessForm::Strided || super::context::is_chain(form)
    };
    let of_inst = |op: &InstOp| match op {
        InstOp::Load { access, .. }
        | InstOp::Valid { access }
        | InstOp::Index { access }
        | InstOp::Gather { access, .. } => by_coordinates(*access),
        _ => false,
    };
    let body = accesses.body;
    body.insts.iter().any(|i| of_inst(&i.op)) || body.stores.iter().any(|s| by_coordinates(s.access))
}
