//! Maps: every invocation takes four elements of the index space side by side, or one where they cannot be read or
//! written together. What fours leave over is a dispatch of its own.

use super::Pass;
use super::choose::{self, Four};
use super::cut::Context;
use super::eval::Eval;
use super::index::{Accesses, Spot, split};
use super::shader::Shader;
use crate::kernel::{AccessForm, Args, InstOp};

/// Invocations of a workgroup.
const GROUP: usize = 256;

/// The dispatches of one part of a map.
pub fn passes(context: &Context, args: &Args) -> Vec<Pass> {
    let n: usize = args.outer.iter().product();
    let shape = choose::map_shape(context.body, args);
    let mut passes = Vec::new();
    if let Some(four) = shape.four {
        passes.push(pass(context, args, Some(four), 0, shape.n_by_four));
    }
    if shape.n_by_four < n {
        passes.push(pass(context, args, None, shape.n_by_four, n));
    }
    passes
}

/// The dispatch over positions `start..end` of the index space.
fn pass(context: &Context, args: &Args, four: Option<Four>, start: usize, end: usize) -> Pass {
    let modes = choose::modes(context.body, args, four);
    let memory = context.memory(args, &[&modes]);
    let accesses = Accesses { body: context.body, args, modes: &modes };
    let group = GROUP.min(context.caps.max_invocations);
    let per = if four.is_some() { 4 } else { 1 };
    let mut shader = Shader::new(context.comment(), &args.consts, group);
    let (first, n) = (shader.param("start", start), shader.param("end", end));
    shader.count_groups();
    let each = if per == 4 { " * 4u" } else { "" };
    shader.line(format!("let i = {first} + (group_idx * {group}u + lane){each};"));
    shader.line(format!("if (i >= {n}) {{ return; }}"));

    let spot = spot(&mut shader, &accesses, "i", four, "");
    let mut eval = Eval::new(accesses, &memory, spot);
    eval.need(&mut shader, context.body.stores.iter().map(|s| s.value));
    for store in &context.body.stores {
        eval.store(&mut shader, store);
    }
    shader.finish(context.label(), &memory, (end - start).div_ceil(per * group))
}

/// Writes the coordinates of a row-major outer position, if anything needs them.
pub fn spot(shader: &mut Shader, accesses: &Accesses, position: &str, four: Option<Four>, suffix: &str) -> Spot {
    let outer = &accesses.args.outer;
    let mut spot = Spot {
        outer: position.to_string(),
        suffix: suffix.to_string(),
        outer_suffix: suffix.to_string(),
        ..Spot::default()
    };
    if !needs_coordinates(accesses) {
        spot.coordinates = vec![Vec::new()];
        return spot;
    }
    let sizes: Vec<String> =
        outer.iter().enumerate().map(|(axis, n)| shader.param(&format!("outer{axis}"), *n)).collect();
    let names = |letter: &str| (0..outer.len()).map(|axis| format!("o{axis}{letter}{suffix}")).collect::<Vec<_>>();
    match four {
        Some(Four { aligned: false, .. }) => {
            for (k, letter) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let position = if k == 0 { position.to_string() } else { format!("({position} + {k}u)") };
                split(shader, &position, &names(letter), &sizes);
                spot.coordinates.push(names(letter));
            }
        }
        four => {
            split(shader, position, &names(""), &sizes);
            let along = four.map(|f| f.axis).filter(|axis| *axis < outer.len());
            spot.coordinates = side_by_side(names(""), along);
        }
    }
    spot
}

/// The coordinates of four elements side by side along an axis, or of one.
pub fn side_by_side(first: Vec<String>, along: Option<usize>) -> Vec<Vec<String>> {
    let Some(axis) = along else { return vec![first] };
    let lane = |k: usize| {
        let mut coordinates = first.clone();
        if k > 0 {
            coordinates[axis] = format!("({} + {k}u)", coordinates[axis]);
        }
        coordinates
    };
    (0..4).map(lane).collect()
}

/// Whether any access goes by coordinates rather than by the row-major position.
fn needs_coordinates(accesses: &Accesses) -> bool {
    let by_coordinates = |access: u16| {
        let form = accesses.body.accesses[access as usize];
        form == AccessForm::Strided || super::cut::is_chain(form)
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
