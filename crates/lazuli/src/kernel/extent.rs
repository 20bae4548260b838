//! Which elements of its memory a launch can touch: what is cut for bindings and what is bound both go by it. Knows index maps
//! and operands; nothing of bytes or devices.

use super::{Args, InstOp, Kernel, OperandArgs};
use crate::shape::Shape;
use crate::view::{IndexMap, View};

/// The first and last of some elements.
pub type ElementRange = (usize, usize);

impl Kernel {
    /// Per input, then per output, the first and last element of each way in which a launch with these numbers touches it. A
    /// chained product and a routine are not looked into.
    pub fn touched(&self, args: &Args) -> Vec<Vec<ElementRange>> {
        let (Kernel::Loop(body) | Kernel::Matmul(body)) = self else { return Vec::new() };
        debug_assert!(!body.makes_operands(), "only devices whose memory is never cut have made operands");
        let n_inputs = body.inputs.len();
        let mut ranges: Vec<Vec<ElementRange>> = vec![Vec::new(); n_inputs + body.outputs.len()];
        // How far the positions that are served move an access.
        let moved = |access: u16| body.offset_of(access).map_or((0, 0), |idx| args.offsets[idx].reach());
        let mut widen = |idx: usize, range: Option<ElementRange>| ranges[idx].extend(range);
        for inst in &body.insts {
            match inst.op {
                InstOp::Load { input, access } => {
                    widen(input as usize, extent(&args.accesses[access as usize], moved(access)));
                }
                InstOp::Gather { input, access, gather, .. } => {
                    let gather = args.gathers[gather as usize];
                    let (first, n) = args.index_range.unwrap_or((0, gather.bound));
                    let by = |index: usize| gather.stride * index as isize;
                    let further = (by(first), by(first + n.max(1) - 1));
                    widen(input as usize, extent(&args.accesses[access as usize], further));
                }
                _ => {}
            }
        }
        for store in &body.stores {
            let range = extent(&args.accesses[store.access as usize], moved(store.access));
            widen(n_inputs + store.output as usize, range);
        }
        if let (Kernel::Matmul(_), Some(m)) = (self, &args.matmul) {
            let operand = |lies: &OperandArgs, rows: usize, cols: usize| {
                let (low, high) = lies.extent(&m.batch, rows, cols)?;
                Some((usize::try_from(low).ok()?, usize::try_from(high).ok()?))
            };
            widen(0, operand(&m.a, m.m, m.k));
            widen(1, operand(&m.b, m.k, m.n));
        }
        ranges
    }
}

/// The first and last element of a map, or so much further on; None if there is none.
fn extent(map: &IndexMap, further: (isize, isize)) -> Option<ElementRange> {
    let mut views = map.views().iter().rev();
    let seen = views.next().expect("never empty");
    let all: Option<Vec<(usize, usize)>> = seen.shape.iter().map(|size| Some((0, size.checked_sub(1)?))).collect();
    let mut found = reach_of(seen, &all?)?;
    for view in views {
        found = reach_of(view, &coordinates_between(&view.shape, found))?;
    }
    let by = |at: usize, by: isize| at.saturating_add_signed(by);
    let (low, high) = (further.0.min(further.1), further.0.max(further.1));
    Some((by(found.0, low), by(found.1, high)))
}

/// The first and last element that a view gives for coordinates in these ranges, both ends included.
pub fn reach_of(view: &View, ranges: &[(usize, usize)]) -> Option<ElementRange> {
    let (mut low, mut high) = (view.offset, view.offset);
    for (axis, (first, last)) in ranges.iter().enumerate() {
        let (inside_low, inside_high) = view.inside(axis);
        let (first, end) = ((*first).max(inside_low), (last + 1).min(inside_high));
        let n = end.checked_sub(first).filter(|n| *n > 0)?;
        let (start, more) = (first as isize * view.strides[axis], (n - 1) as isize * view.strides[axis]);
        (low, high) = (low + start + more.min(0), high + start + more.max(0));
    }
    Some((low.max(0) as usize, high.max(0) as usize))
}

/// Per axis, the coordinates that elements between two row-major numbers may have.
pub fn coordinates_between(shape: &Shape, (mut low, mut high): ElementRange) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    for (axis, size) in shape.iter().enumerate() {
        let below = shape[axis + 1..].iter().product::<usize>().max(1);
        let (first, last) = (low / below, high / below);
        let end = size.saturating_sub(1);
        ranges.push((first.min(end), last.min(end)));
        match first == last {
            true => (low, high) = (low % below, high % below),
            // From here on every coordinate occurs.
            false => (low, high) = (0, below - 1),
        }
    }
    ranges
}
