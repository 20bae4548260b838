//! Cuts a map whose accesses have masks into boxes: one inside all masks, where every access is plain strides and nothing
//! asks which elements there are, and thin ones around it that ask as before. So a stencil written with `pad` runs as the
//! loop over its inside would. From a kernel and its numbers to kernels and numbers; knows neither memory nor threads.

use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Reg};
use crate::view::{IndexMap, View};

/// Maps of fewer elements are not cut: each box costs as much as a small launch.
const MIN_ELEMS: usize = if cfg!(test) { 1 } else { 16 * 1024 };
/// Rows inside that are shorter than this are not run as vectors, so that cutting them free gains nothing.
const MIN_ROW: usize = if cfg!(test) { 1 } else { 64 };

/// [`MIN_ROW`] for maps that only copy: uncut, they fill rows run by run, which is as fast as a copy of rows inside, and one launch. Measured
/// on an AMD EPYC: whole, 192 × 8 × 82 takes 56 µs for 144 µs in boxes, and 48 × 98 × 322 takes 500 µs for 427 µs.
const MIN_COPIED_ROW: usize = if cfg!(test) { 16 } else { 256 };

/// Coordinates from the first of each pair to before the second, per axis.
type IndexBox = Vec<(usize, usize)>;

/// The boxes of a map, the inside first, each with the kernel and the numbers that compute it; None if the map is better
/// left whole.
pub fn cut(body: &Body, args: &Args) -> Option<Vec<(Body, Args)>> {
    let inside = inside(body, args)?;
    let around = around(&inside, &args.outer);
    Some([inside].iter().chain(&around).map(|part| restricted(body, args, part)).collect())
}

/// Where all masks have an element.
fn inside(body: &Body, args: &Args) -> Option<IndexBox> {
    // Failures name the first element that failed, counted over the whole map.
    let may_fail = |op: &InstOp| matches!(op, InstOp::Gather { .. } | InstOp::Custom(..) | InstOp::Failed);
    let is_map = body.inner_rank == 0 && !body.ragged && args.index_range.is_none();
    if !is_map || body.insts.iter().any(|inst| may_fail(&inst.op)) {
        return None;
    }
    let mut inside: IndexBox = args.outer.iter().map(|size| (0, *size)).collect();
    for view in args.accesses.iter().filter_map(|map| map.views().last()) {
        if let Some(mask) = view.mask.filter(|_| view.shape.rank() == inside.len()) {
            for (range, (low, high)) in inside.iter_mut().zip(mask) {
                *range = (range.0.max(low), range.1.min(high));
            }
        }
    }
    let len = |range: &(usize, usize)| range.1.saturating_sub(range.0);
    let (n, n_inside): (usize, usize) = (args.outer.iter().product(), inside.iter().map(len).product());
    let computes = |inst: &Inst| {
        use InstOp::{Const, Load, Select, Valid};
        !matches!(inst.op, Load { .. } | Valid { .. } | Select(..) | Const(_))
    };
    let min_row = if body.insts.iter().any(computes) { MIN_ROW } else { MIN_COPIED_ROW };
    let is_worth_it = n >= MIN_ELEMS && n_inside >= n.div_ceil(2) && inside.last().map_or(0, len) >= min_row;
    (n_inside < n && n_inside > 0 && is_worth_it).then_some(inside)
}

/// The rest of an index space: along each axis what lies before and after the inside, of what the axes before it leave.
fn around(inside: &IndexBox, sizes: &[usize]) -> Vec<IndexBox> {
    let mut boxes = Vec::new();
    for (axis, &(low, high)) in inside.iter().enumerate() {
        for slab in [(0, low), (high, sizes[axis])] {
            if slab.0 < slab.1 {
                let after = sizes[axis + 1..].iter().map(|size| (0, *size));
                boxes.push(inside[..axis].iter().copied().chain([slab]).chain(after).collect());
            }
        }
    }
    boxes
}

/// The kernel for one box.
fn restricted(body: &Body, args: &Args, part: &IndexBox) -> (Body, Args) {
    let (mut body, mut args) = (body.clone(), args.clone());
    args.outer = part.iter().map(|(low, high)| high - low).collect();
    for (map, form) in args.accesses.iter_mut().zip(&mut body.accesses) {
        // What is the same everywhere has no axes.
        if map.shape().rank() == part.len() {
            *map = restricted_map(map, part);
            *form = AccessForm::of(map);
        }
    }
    // Where an access has every element, select(valid, x, fill) = x.
    let is_x = |op: &InstOp| match op {
        InstOp::Select(valid, x, _) => match body.insts[*valid as usize].op {
            InstOp::Valid { access } if !args.accesses[access as usize].is_masked() => Some(*x),
            _ => None,
        },
        _ => None,
    };
    let (mut insts, mut holders): (Vec<Inst>, Vec<Reg>) = (Vec::new(), Vec::new());
    for inst in &body.insts {
        let holder = match is_x(&inst.op) {
            Some(x) => holders[x as usize],
            None => {
                insts.push(Inst { op: inst.op.with_regs(|reg| holders[reg as usize]), ..*inst });
                insts.len() as Reg - 1
            }
        };
        holders.push(holder);
    }
    body.insts = insts;
    body.stores.iter_mut().for_each(|store| store.value = holders[store.value as usize]);
    (body, args)
}

/// A map, seen from a box of its index space.
fn restricted_map(map: &IndexMap, part: &IndexBox) -> IndexMap {
    let ranges: Vec<(usize, isize, usize)> = part.iter().map(|(low, high)| (*low, 1, high - low)).collect();
    let seen = IndexMap::from(View::slice(map.shape(), &ranges));
    map.views().iter().rev().fold(seen, |seen, view| seen.of(view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::Scope;
    use crate::shape::Shape;

    /// A map that loads `x` of these sizes with so much fill around it, and stores its opposite.
    fn padded(sizes: &[usize], pads: &[(usize, usize)]) -> (Body, Args) {
        let pad = View::pad(&Shape::from(sizes), pads);
        let maps: Vec<IndexMap> = vec![pad.into(), IndexMap::identity(pad.shape)];
        let inst = |op, dtype| Inst { op, dtype, scope: Scope::Outer };
        let insts = vec![
            inst(InstOp::Load { input: 0, access: 0 }, DType::F32),
            inst(InstOp::Valid { access: 0 }, DType::Bool),
            Inst { op: InstOp::Const(0), dtype: DType::F32, scope: Scope::Uniform },
            inst(InstOp::Select(1, 0, 2), DType::F32),
            inst(InstOp::Unary(&crate::ops::NEG, 3), DType::F32),
        ];
        let body = Body {
            outer_rank: sizes.len() as u8,
            accesses: maps.iter().map(AccessForm::of).collect(),
            insts,
            ..Body::default()
        };
        (body, Args { outer: pad.shape.to_vec(), accesses: maps, ..Args::default() })
    }

    #[test]
    fn boxes_cover_the_space_once_and_the_first_asks_nothing() {
        for rank in 1..5 {
            let sizes = &[5, 4, 6, 7][4 - rank..];
            for sides in 0..3usize.pow(rank as u32) {
                let pads: Vec<(usize, usize)> =
                    (0..rank).map(|axis| [(1, 0), (0, 2), (0, 0)][sides / 3usize.pow(axis as u32) % 3]).collect();
                let (body, args) = padded(sizes, &pads);
                let is_mostly_fill = sizes.iter().product::<usize>() * 2 < args.outer.iter().product();
                let Some(parts) = cut(&body, &args) else {
                    assert!(is_mostly_fill || pads.iter().all(|pad| *pad == (0, 0)), "{pads:?}");
                    continue;
                };
                let mut seen = vec![0; args.outer.iter().product()];
                for (i, (body, args)) in parts.iter().enumerate() {
                    assert_eq!(i == 0, !args.accesses[0].is_masked(), "{pads:?}");
                    assert_eq!(i == 0, !body.insts.iter().any(|inst| matches!(inst.op, InstOp::Select(..))));
                    for n in 0..args.outer.iter().product() {
                        let mut rest = n;
                        let mut at = vec![0; rank];
                        for axis in (0..rank).rev() {
                            (at[axis], rest) = (rest % args.outer[axis], rest / args.outer[axis]);
                        }
                        seen[args.accesses[1].at(&at).unwrap()] += 1;
                    }
                }
                assert!(seen.iter().all(|n| *n == 1), "{pads:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn what_is_mostly_fill_or_has_no_mask_stays_whole() {
        let (body, args) = padded(&[4, 4], &[(4, 4), (0, 0)]);
        assert!(cut(&body, &args).is_none());
        let (body, args) = padded(&[4, 4], &[(0, 0), (0, 0)]);
        assert!(cut(&body, &args).is_none());
        // A copy is cut if its rows are long.
        for (len, is_cut) in [(15, false), (16, true)] {
            let (mut body, args) = padded(&[4, len], &[(1, 1), (1, 1)]);
            assert!(cut(&body, &args).is_some());
            body.insts.pop();
            assert_eq!(cut(&body, &args).is_some(), is_cut);
        }
    }
}
