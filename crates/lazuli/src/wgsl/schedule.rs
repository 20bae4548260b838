//! Which variant of a kernel's text a launch gets: how many elements an invocation takes at once, how each access is
//! read for them, how a reduction is shared out. The only file where sizes and strides change a text; everything else
//! that varies is a parameter.

use std::fmt;

use smallvec::SmallVec;

use crate::dtype::Lane;
use crate::kernel::{AccessForm, Args, Body, InstOp, Order, Reg, Store};
use crate::ops::{CombineStep, RegisterStep, UnaryRow};
use crate::target::{GpuTarget, Threads};
use crate::view::IndexMap;

/// How an access meets the four elements that an invocation takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VecLoad {
    /// One element for all four.
    Splat,
    /// Four elements side by side, the first at a multiple of four.
    Contiguous,
    /// Four elements a constant step apart.
    Strided,
    /// Any four elements.
    Gathered,
    /// Four elements side by side along another axis, four times: a block of four by four that is turned.
    Transposed,
}

/// The four elements that an invocation takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VecAxis {
    /// The axis of the index space along which they lie.
    pub axis: usize,
    /// Whether they never lie across the end of that axis. If they may, they are four of the row-major order.
    pub aligned: bool,
}

/// Maps of fewer elements than this are not worth a second dispatch for what four at a time leave over.
const SHORT_MAP: usize = 1024;

/// Per access, how it meets the elements an invocation takes at once.
pub fn modes(body: &Body, args: &Args, four: Option<VecAxis>) -> Vec<VecLoad> {
    let mode = |(access, (form, map)): (usize, (&AccessForm, &IndexMap))| match four.map(|four| mode(*form, map, four))
    {
        None => VecLoad::Splat,
        Some(VecLoad::Contiguous) if !moves_by_fours(body, args, access) => VecLoad::Strided,
        Some(mode) => mode,
    };
    body.accesses.iter().zip(&args.accesses).enumerate().map(mode).collect()
}

/// Whether an access starts at a multiple of four wherever its run-time offset moves it, if it did before.
fn moves_by_fours(body: &Body, args: &Args, access: usize) -> bool {
    body.offset_of(access as u16).is_none_or(|idx| args.offsets[idx].stride % 4 == 0)
}

fn mode(form: AccessForm, map: &IndexMap, four: VecAxis) -> VecLoad {
    let rank = map.shape().rank();
    let Some(view) = map.views().last().filter(|_| rank > four.axis) else { return VecLoad::Splat };
    let multiple = |n: isize| n % 4 == 0;
    let is_last = four.axis + 1 == rank;
    if form == AccessForm::Linear && is_last {
        // Fours of the whole row-major order start at multiples; fours of a row only if rows do.
        let one_row = view.shape[..four.axis].iter().all(|n| *n == 1);
        let rows_do = !four.aligned || one_row || view.shape[four.axis].is_multiple_of(4);
        return if multiple(view.offset) && rows_do { VecLoad::Contiguous } else { VecLoad::Strided };
    }
    let size = view.shape[four.axis];
    let is_masked = view.mask.is_some_and(|m| m[four.axis] != (0, size));
    if four.aligned && view.strides[four.axis] == 0 && !is_masked {
        return VecLoad::Splat;
    }
    if !four.aligned || matches!(form, AccessForm::Chain { .. }) {
        return VecLoad::Gathered;
    }
    let others = (0..rank).filter(|axis| *axis != four.axis && view.shape[*axis] > 1);
    let starts_at_multiples = multiple(view.offset) && others.map(|axis| view.strides[axis]).all(multiple);
    if view.strides[four.axis] == 1 && starts_at_multiples { VecLoad::Contiguous } else { VecLoad::Strided }
}

/// Whether an access finds the same elements at every outer index.
pub fn is_same_for_all(map: &IndexMap, n_outer: usize) -> bool {
    map.views().last().is_some_and(|view| view.mask.is_none() && view.strides[..n_outer].iter().all(|s| *s == 0))
}

/// Whether anything is read or written four elements at once.
fn any_run(body: &Body, modes: &[VecLoad]) -> bool {
    let loads = body.insts.iter().filter_map(|inst| match inst.op {
        InstOp::Load { access, .. } => Some(access),
        _ => None,
    });
    loads.chain(body.stores.iter().map(|s| s.access)).any(|access| modes[access as usize] == VecLoad::Contiguous)
}

/// How a map's invocations take their elements: four at a time from the start of the row-major order, then one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapSchedule {
    pub four: Option<VecAxis>,
    /// Elements that are taken four at a time.
    pub n_by_four: usize,
    /// How many fours an invocation takes, one beside the other.
    pub vecs_per_thread: usize,
    /// The axis along which it takes four rows of four instead: blocks whose turned accesses are read by fours, too.
    pub block: Option<usize>,
    /// Invocations of a workgroup.
    pub group: usize,
}

impl fmt::Display for MapSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.four, self.block) {
            (None, _) => f.write_str("one element an invocation")?,
            (Some(four), Some(axis)) => write!(f, "blocks of 4×4 along axes {axis} and {}", four.axis)?,
            (Some(four), None) => {
                let along = if four.aligned { format!(" along axis {}", four.axis) } else { String::new() };
                write!(f, "{} × 4 elements an invocation{along}", self.vecs_per_thread)?;
            }
        }
        write!(f, ", {} to a workgroup", self.group)
    }
}

/// Fours that one invocation of a light map takes where it works alone.
const MAP_BESIDE: usize = 2;
/// A map is light if it has no more instructions, and no more functions among them. Others have enough to do with one
/// four, and text that is written out twice takes as long again to compile.
const LIGHT_INSTS: usize = 200;
const LIGHT_FUNCTIONS: usize = 4;
/// Blocks are written out four times.
const BLOCK_INSTS: usize = 64;
/// Invocations of a workgroup of a map.
const MAP_GROUP: usize = 256;
/// Blocks of four by four that a workgroup takes along either axis, so that what it reads along one and along the other
/// shares cache lines.
pub const BLOCK_TILE: usize = 8;

/// The shape of a map.
pub fn map_shape(body: &Body, args: &Args, target: &GpuTarget) -> MapSchedule {
    let n: usize = args.outer.iter().product();
    let last = args.outer.last().copied().unwrap_or(1);
    let four = VecAxis { axis: args.outer.len().saturating_sub(1), aligned: last.is_multiple_of(4) };
    let group = MAP_GROUP.min(target.max_invocations);
    let too_short = n < 4 || (!n.is_multiple_of(4) && n < SHORT_MAP);
    let modes = modes(body, args, Some(four));
    // A block is sixteen elements, and fours side by side are eight.
    let too_long = body.function_iterations() > target.max_iterations / 16;
    // Where only some elements are stored, each is on its own.
    if too_short || too_long || args.index_range.is_some() || !any_run(body, &modes) {
        return MapSchedule { four: None, n_by_four: 0, vecs_per_thread: 1, block: None, group };
    }
    let light = body.insts.len() <= LIGHT_INSTS && n_functions(body) <= LIGHT_FUNCTIONS && !has_gathers(body);
    let vecs_per_thread = if light && target.style == Threads::Independent { MAP_BESIDE } else { 1 };
    let block = block_axis(body, args, four, &modes);
    let group = if block.is_some() { BLOCK_TILE * BLOCK_TILE } else { group };
    MapSchedule { four: Some(four), n_by_four: n / 4 * 4, vecs_per_thread, block, group }
}

/// The axis along which most loads lie side by side that do not along the last one.
fn block_axis(body: &Body, args: &Args, four: VecAxis, modes: &[VecLoad]) -> Option<usize> {
    if !four.aligned || body.insts.len() > BLOCK_INSTS || has_gathers(body) {
        return None;
    }
    let n_turned =
        |axis: usize| turned(body, args, modes, axis).iter().zip(modes).filter(|(turned, mode)| turned != mode).count();
    let axes = (0..four.axis).filter(|axis| n_turned(*axis) > 0);
    axes.max_by_key(|axis| n_turned(*axis))
}

/// The same modes for blocks of four by four along this axis and the last one.
pub fn turned(body: &Body, args: &Args, modes: &[VecLoad], axis: usize) -> Vec<VecLoad> {
    let only_loads = |access: u16| {
        let other = |op: &InstOp| match op {
            InstOp::Valid { access: a } | InstOp::Index { access: a } | InstOp::Gather { access: a, .. } => {
                *a == access
            }
            _ => false,
        };
        !body.insts.iter().any(|i| other(&i.op)) && !body.stores.iter().any(|s| s.access == access)
    };
    let turns = |access: usize| {
        let Some(view) = args.accesses[access].views().last() else { return false };
        let others = (0..view.shape.rank()).filter(|other| *other != axis && view.shape[*other] > 1);
        body.accesses[access] == AccessForm::Strided
            && view.shape.rank() == args.outer.len()
            && view.shape[axis].is_multiple_of(4)
            && view.strides[axis] == 1
            && view.offset % 4 == 0
            && moves_by_fours(body, args, access)
            && others.map(|other| view.strides[other]).all(|s| s % 4 == 0)
            && only_loads(access as u16)
    };
    let turn = |(access, mode): (usize, &VecLoad)| {
        if *mode == VecLoad::Strided && turns(access) { VecLoad::Transposed } else { *mode }
    };
    modes.iter().enumerate().map(turn).collect()
}

/// Whether anything is read at an index that is itself read, and may be out of range.
pub fn has_gathers(body: &Body) -> bool {
    body.insts.iter().any(|inst| matches!(inst.op, InstOp::Gather { .. }))
}

/// Instructions whose text calls functions.
fn n_functions(body: &Body) -> usize {
    let calls = |op: &InstOp| match op {
        InstOp::Unary(row, _) => !row.wgsl_fns.is_empty(),
        InstOp::Binary(row, ..) => !row.wgsl_fns.is_empty(),
        InstOp::Custom(..) => true,
        _ => false,
    };
    body.insts.iter().filter(|inst| calls(&inst.op)).count()
}

/// How a reduction is shared out. An item is one outer index, or four side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceSchedule {
    /// Four inner elements at once, or four outer ones.
    pub four: Option<VecAxis>,
    /// Items of a workgroup, and invocations that share one.
    pub items: usize,
    pub lanes: usize,
    /// Invocations next to each other, as a subgroup counts them, that hand each other what they have folded without workgroup
    /// memory: every subgroup is a multiple of them. None: all goes through workgroup memory.
    pub shuffle: Option<usize>,
    /// How many fours of columns an item has.
    pub vecs_per_thread: usize,
    /// How many times the body of the main loop is written out for them.
    pub unroll: usize,
    /// Whether that is all of the row: then there are no loops, and values are kept from stage to stage.
    pub kept: bool,
    /// Whether the main loop makes more trips than [`BLOCK_ITERATIONS`].
    pub blocks: bool,
    /// Whether some inner elements are left over by the main loop, and then by fours.
    pub rest: bool,
    pub scalar_tail: bool,
    /// The pairs of folds that one sweep over rows makes (online softmax); every other stage has a sweep of its own.
    pub online_softmax: SmallVec<[OnlineSoftmax; 1]>,
}

impl fmt::Display for ReduceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows a workgroup, {} invocations each", self.items, self.lanes)?;
        match self.shuffle {
            Some(width) if width < self.lanes => write!(f, ", folded by subgroups, {width} at a time")?,
            Some(_) => f.write_str(", folded by subgroups")?,
            None => {}
        }
        if let Some(four) = self.four {
            write!(f, ", {} × 4 elements along axis {}", self.vecs_per_thread, four.axis)?;
        }
        match (self.kept, self.unroll) {
            (true, steps) => write!(f, ", all {steps} steps in registers")?,
            (false, 1) => {}
            (false, unroll) => write!(f, ", unrolled {unroll} times")?,
        }
        if self.blocks {
            f.write_str(", in blocks")?;
        }
        if self.online_softmax.is_empty() { Ok(()) } else { f.write_str(", online softmax") }
    }
}

/// Trips of a reduction's main loop whose values are folded one after another; beyond, blocks are.
pub const BLOCK_ITERATIONS: usize = 64;
/// Elements (or fours) that one trip of a reduction's main loop takes; and where invocations work alone and little is
/// done with each.
const UNROLL: usize = 4;
const UNROLL_LIGHT: usize = 16;
/// Steps of a row that a subgroup keeps in registers: 32 of them for fours, and as many for what is computed from them.
const SUBGROUP_STEPS: usize = 8;
/// So many instructions are little.
const LITTLE: usize = 8;
/// Fours of columns that one invocation takes where it works alone: many, because each row of memory that it touches is
/// another page; fewer if much is computed for each.
const BESIDE: [(usize, usize); 2] = [(8, 8), (4, 32)];

/// The shape of a reduction.
pub fn reduce_shape(body: &Body, args: &Args, target: &GpuTarget) -> ReduceSchedule {
    let four = reduce_four(body, args, body.order == Order::OuterFast);
    let (shape, iterations) = reduce_shape_of(body, args, target, four, target.large_shaders);
    let shape = match iterations <= target.max_iterations {
        true => shape,
        // As little for each invocation as can be: then it makes no more iterations than kernels were cut for.
        false => {
            let four = four.filter(|_| body.function_iterations() == 0);
            reduce_shape_of(body, args, target, four, false).0
        }
    };
    ReduceSchedule { online_softmax: online_softmax(body, args, &shape), ..shape }
}

/// The shape of a reduction by these fours, written out for many values or not, and about how many loop iterations an
/// invocation makes.
fn reduce_shape_of(
    body: &Body,
    args: &Args,
    target: &GpuTarget,
    four: Option<VecAxis>,
    large: bool,
) -> (ReduceSchedule, usize) {
    let outer: usize = args.outer.iter().product();
    let inner: usize = args.inner.iter().product();
    let columns = body.order == Order::OuterFast;
    let by_four = if four.is_some() && !columns { 4 } else { 1 };
    // Side by side only where all columns of a row can be shared out that way.
    let wide = |n: usize| args.outer.last().is_some_and(|last| last.is_multiple_of(4 * n));
    // A function is as much text as many instructions.
    let n_insts = body.insts.len() + 8 * n_functions(body);
    let fits = BESIDE.iter().find(|(n, max_insts)| large && wide(*n) && n_insts <= *max_insts);
    let alone = four.is_some() && columns && target.style == Threads::Independent;
    let vecs_per_thread = fits.filter(|_| alone).map_or(1, |(n, _)| *n);
    let n_items = if four.is_some() && columns { outer / (4 * vecs_per_thread) } else { outer };
    let unroll = match target.style {
        _ if !large => 1,
        Threads::Independent if vecs_per_thread > 1 => 1,
        Threads::Independent if !columns && n_insts <= LITTLE => UNROLL_LIGHT,
        _ => UNROLL,
    };

    let columns_at_once = if four.is_some() && columns { 4 * vecs_per_thread } else { 1 };
    let subgroup = subgroup_of_row(target, n_items, inner.div_ceil(by_four)).filter(|_| large && !columns);
    let (lanes, iterations) = reduce_lanes(body, target, n_items, inner, (by_four * unroll, columns_at_once), subgroup);
    let items = match target.style {
        Threads::Independent => (8 / lanes).max(1),
        Threads::Cooperative => (target.max_invocations.min(WORKGROUP) / lanes).clamp(1, 64),
    };
    let steps = inner.div_ceil(lanes * by_four);
    // Not of columns: how long they are is most often a batch size, which should compile nothing.
    let most = if subgroup == Some(lanes) { SUBGROUP_STEPS } else { UNROLL };
    let kept = !columns && (1..=most).contains(&steps) && inner.is_multiple_of(by_four) && !body.ragged;
    // The invocations of a column do not follow each other.
    let shuffle = target.shuffle_width(items * lanes).filter(|_| lanes > 1 && (!columns || items == 1));
    let unroll = if kept { steps } else { unroll };
    let blocks = columns || body.ragged || inner > lanes * by_four * unroll * BLOCK_ITERATIONS;
    let shape = ReduceSchedule {
        four,
        items,
        lanes,
        shuffle,
        vecs_per_thread,
        unroll,
        kept,
        blocks,
        rest: body.ragged || !inner.is_multiple_of(lanes * by_four * unroll),
        scalar_tail: by_four == 4 && (!inner.is_multiple_of(4) || (body.ragged && !args.limit.is_multiple_of(4))),
        online_softmax: SmallVec::new(),
    };
    (shape, iterations)
}

/// Invocations of a workgroup that shares rows, on hardware; and those that count as one when it is asked whether a device is full.
const WORKGROUP: usize = 256;
const GROUP: usize = 64;

/// How many invocations of a subgroup share a row where its steps then fit in registers and there are enough rows to fill the
/// device: no invocation waits at a barrier.
fn subgroup_of_row(target: &GpuTarget, n_rows: usize, n_steps: usize) -> Option<usize> {
    let width = target.shuffle_width(WORKGROUP).filter(|_| target.style == Threads::Cooperative)?;
    let is_full = n_rows.saturating_mul(width) >= target.full_groups * GROUP;
    (is_full && n_steps > width && n_steps.div_ceil(width) <= SUBGROUP_STEPS).then_some(width)
}

/// A row's largest element and the sum of exponentials less it, Σ exp(x − max x): one sweep can find both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnlineSoftmax {
    pub max: Reg,
    pub sum: Reg,
    pub exp: &'static UnaryRow,
}

/// The pairs of folds that one sweep makes: each all that its two stages do inside rows.
fn online_softmax(body: &Body, args: &Args, shape: &ReduceSchedule) -> SmallVec<[OnlineSoftmax; 1]> {
    let mut found = SmallVec::new();
    let mut sweeps = stages_of_rows(body, args).into_iter().peekable();
    while let Some(sweep) = sweeps.next() {
        let with = |next: &RowStage| match (&sweep.folds[..], &next.folds[..]) {
            ([max], [sum]) if sweep.stores.is_empty() && next.stores.is_empty() => {
                shifted(body, args, shape, *max, *sum)
            }
            _ => None,
        };
        if let Some(pair) = sweeps.peek().and_then(with) {
            sweeps.next();
            found.push(pair);
        }
    }
    found
}

/// What one stage of a reduction does inside rows: the reductions that it makes, by their registers, and what it stores.
#[derive(Clone, Debug, Default)]
pub struct RowStage<'a> {
    pub folds: Vec<Reg>,
    pub stores: Vec<&'a Store>,
}

/// The stages of a reduction in order, each with its folds and with the elements that are stored before the next one's folds;
/// elements that are stored after all folds are those of the last stage, which has no fold.
pub fn stages_of_rows<'a>(body: &'a Body, args: &Args) -> Vec<RowStage<'a>> {
    let stages = body.stages();
    let is_reduce = |r: Reg| matches!(body.insts[r as usize].op, InstOp::Reduce(..));
    let reduces: Vec<Reg> = (0..body.insts.len() as Reg).filter(|r| is_reduce(*r)).collect();
    let n_stages = reduces.iter().map(|r| stages[*r as usize] + 1).max().unwrap_or(0);
    let mut all = vec![RowStage::default(); n_stages as usize + 1];
    for fold in reduces {
        all[stages[fold as usize] as usize].folds.push(fold);
    }
    let is_inner = |s: &&Store| args.accesses[s.access as usize].shape().rank() > args.outer.len();
    for store in body.stores.iter().filter(is_inner) {
        let stage = (stages[store.value as usize] + is_reduce(store.value) as u16).min(n_stages);
        all[stage as usize].stores.push(store);
    }
    all
}

/// Whether these two folds, one of a stage and one of the next, are found in one sweep over rows.
fn shifted(body: &Body, args: &Args, shape: &ReduceSchedule, max: Reg, sum: Reg) -> Option<OnlineSoftmax> {
    let op = |reg: Reg| &body.insts[reg as usize].op;
    let (InstOp::Reduce(greatest, x), InstOp::Reduce(total, e)) = (op(max), op(sum)) else { return None };
    let InstOp::Unary(exp, difference) = op(*e) else { return None };
    let InstOp::Binary(less, from, subtracted) = op(*difference) else { return None };
    let steps = (greatest.step, total.step, exp.step, less.step);
    let is_it = steps
        == (Some(CombineStep::Max), Some(CombineStep::Add), Some(RegisterStep::Exp), Some(RegisterStep::Sub))
        && (from, *subtracted) == (x, max);
    let is_float = body.insts[sum as usize].dtype.lane() == Lane::F32;
    // A row that is kept is read once anyway. Of columns each would need an exponential more for every element or few;
    // what is left over by fours, sums of its own.
    let is_row = body.order != Order::OuterFast && !body.ragged && !args.inner.contains(&0);
    (is_it && is_float && is_row && !shape.kept && !shape.scalar_tail).then_some(OnlineSoftmax { max, sum, exp })
}

/// The four elements of a reduction that go together, if any do.
fn reduce_four(body: &Body, args: &Args, columns: bool) -> Option<VecAxis> {
    let (n_outer, n_axes) = (args.outer.len(), args.outer.len() + args.inner.len());
    let multiple = |n: Option<&usize>| n.is_some_and(|n| *n > 0 && n.is_multiple_of(4));
    let whole = match columns {
        // The pieces of a cut axis differ in length, so four of them do not go together.
        true if body.ragged && n_outer == 1 => false,
        true => multiple(args.outer.last()),
        false => multiple(args.inner.last()),
    };
    // What is left over of an inner axis would have to be stored one by one, and several axes leave over in each.
    let stores_inner = body.stores.iter().any(|s| args.accesses[s.access as usize].shape().rank() > n_outer);
    let may_leave = !columns && args.inner.len() == 1 && args.inner[0] >= 64 && !stores_inner;
    let axis = if columns { n_outer.max(1) - 1 } else { n_axes - 1 };
    let four = VecAxis { axis, aligned: true };
    ((whole || may_leave) && any_run(body, &modes(body, args, Some(four)))).then_some(four)
}

/// How many invocations share a row, as many as the device likes, and enough that none makes too many iterations, if that can
/// be; and about how many those are. An iteration takes so many elements of so many rows.
fn reduce_lanes(
    body: &Body,
    target: &GpuTarget,
    n_items: usize,
    inner: usize,
    (per_trip, n_rows): (usize, usize),
    subgroup: Option<usize>,
) -> (usize, usize) {
    let max_lanes = target.max_reduce_lanes();
    // One sweep per stage and a last one, each with a few more trips for blocks and for what is left over. How many they
    // really are is counted when they are printed.
    let n_sweeps = body.stages().iter().max().map_or(1, |s| *s as usize) + 2;
    let of_functions = body.function_iterations();
    let iterations = |lanes: usize| {
        let n_chunks = inner.div_ceil(lanes * per_trip);
        n_sweeps.saturating_mul((n_chunks * 2 + 16).saturating_add((n_chunks + 1) * of_functions * per_trip * n_rows))
    };
    let wanted = subgroup.unwrap_or_else(|| match target.style {
        Threads::Independent if n_items < 16 && inner >= 1024 => 8,
        Threads::Independent => 1,
        Threads::Cooperative => match inner.div_ceil(per_trip) {
            0..=1 => 1,
            2..=8 => 8,
            9..=64 => 64,
            _ => 256,
        },
    });
    let mut choices = [1, 8, 64, 256, wanted];
    choices.sort_unstable();
    let choices = choices.into_iter().filter(|l| *l >= wanted && *l <= max_lanes);
    let fitting = choices.clone().find(|l| iterations(*l) <= target.max_iterations);
    let lanes = fitting.or(choices.max()).unwrap_or(max_lanes);
    (lanes, iterations(lanes))
}
