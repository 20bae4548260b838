//! The schedule of a launch as one value: how its invocations share it out, decided before anything is printed. A function of
//! kernel, numbers and target, with a text of its own.

use std::fmt;

use super::context::Context;
use super::launch_memory::LaunchMemory;
use super::matmul::shape::{ProductSchedule, TileRest};
use super::matmul::{self, GroupedSchedule};
use super::routines::RoutineSchedule;
use super::schedule::{MapSchedule, ReduceSchedule, VecAxis, map_shape, modes, reduce_shape, turned};
use super::{attention, map, reduce};
use crate::kernel::{Args, AxisList, Body, Kernel, MatmulArgs, OperandArgs};
use crate::plan::{Launch, Slot};
use crate::target::GpuTarget;
use crate::target::attention_tiles::AttentionTiles;
use crate::target::variants::{Cols, K_UNROLL, Share};

/// How a launch is run on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSchedule {
    pub form: FormSchedule,
    /// How the memory of each pass is bound and declared; empty for routines, which read all elements one by one.
    pub memory: Vec<LaunchMemory>,
}

/// How a launch is shared out among invocations, by its form.
#[derive(Clone, Debug, PartialEq)]
pub enum FormSchedule {
    Map(MapSchedule),
    Reduce(ReduceSchedule),
    Matmul(ProductSchedule),
    /// Products of one launch.
    Grouped(GroupedSchedule),
    Attention(AttentionTiles),
    Routine(RoutineSchedule),
}

impl GpuSchedule {
    /// The schedule of a launch on a device.
    pub fn new(launch: &Launch, slots: &[Slot], target: &GpuTarget) -> GpuSchedule {
        let form = FormSchedule::new(launch, target);
        let args = &launch.args;
        let memory = match (&form, &launch.kernel) {
            (FormSchedule::Map(map), Kernel::Loop(body)) => {
                map::memory(&Context::new(launch, body, slots, target), args, map)
            }
            (FormSchedule::Reduce(reduce), Kernel::Loop(body)) => {
                vec![reduce::memory(&Context::new(launch, body, slots, target), args, reduce)]
            }
            (FormSchedule::Matmul(product), Kernel::Matmul(body)) => {
                matmul::memory(&Context::new(launch, body, slots, target), args, product)
            }
            (FormSchedule::Grouped(grouped), _) => matmul::grouped_memory(launch, grouped, slots, target),
            (FormSchedule::Attention(tiles), Kernel::Attention(kernel)) => {
                attention::memory(launch, kernel, *tiles, slots, target)
            }
            _ => Vec::new(),
        };
        GpuSchedule { form, memory }
    }

    /// The classes of sizes, strides and offsets that the shaders of a launch depend on beside its kernel: whether fours are
    /// whole and lie at multiples of four, how each access meets them, what is left over. Launches of one kernel that have
    /// these in common have their shaders in common, whatever their numbers are.
    pub fn classes(&self, launch: &Launch) -> String {
        let over: Vec<Option<usize>> =
            launch.writes.iter().map(|slot| launch.reads.iter().position(|read| read == slot)).collect();
        let over = if over.iter().all(Option::is_none) { String::new() } else { format!(", in place of {over:?}") };
        let own = match (&self.form, &launch.kernel) {
            (FormSchedule::Map(map), Kernel::Loop(body)) => map_classes(map, body, &launch.args),
            (FormSchedule::Reduce(reduce), Kernel::Loop(body)) => {
                let left_over = [(reduce.rest, ", steps left over"), (reduce.scalar_tail, ", elements left over")];
                let left_over: String =
                    left_over.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect();
                format!("{reduce}{left_over}, {:?}", modes(body, &launch.args, reduce.four))
            }
            (FormSchedule::Matmul(product), Kernel::Matmul(_)) => product_classes(product, launch),
            (FormSchedule::Grouped(grouped), _) => {
                let products = grouped.products.iter().zip(&launch.parts);
                let products: Vec<String> = products.map(|(product, part)| product_classes(product, part)).collect();
                let dispatches = if grouped.one_dispatch { "one dispatch" } else { "a dispatch each" };
                format!("{dispatches}: {}", products.join(" | "))
            }
            (FormSchedule::Attention(tiles), _) => attention_classes(tiles, launch),
            _ => "a routine".to_string(),
        };
        own + &over
    }

    /// Which of several ways was chosen and why; None where there is one.
    pub fn variant(&self) -> Option<String> {
        match &self.form {
            FormSchedule::Matmul(product) => Some(product.to_string()),
            FormSchedule::Grouped(grouped) => Some(grouped.to_string()),
            FormSchedule::Attention(tiles) => Some(tiles.to_string()),
            _ => None,
        }
    }
}

impl FormSchedule {
    fn new(launch: &Launch, target: &GpuTarget) -> FormSchedule {
        let args = &launch.args;
        if let (Kernel::Attention(kernel), Some(numbers)) = (&launch.kernel, &args.attention) {
            return FormSchedule::Attention(AttentionTiles::choose(kernel, numbers, target));
        }
        fn product(launch: &Launch) -> Option<(&MatmulArgs, &Body)> {
            let (Kernel::Matmul(body), Some(matmul)) = (&launch.kernel, &launch.args.matmul) else { return None };
            Some((matmul, body))
        }
        match (&launch.kernel, product(launch)) {
            (_, Some((matmul, body))) => FormSchedule::Matmul(ProductSchedule::new(matmul, body, target)),
            (Kernel::Grouped(_), _) => {
                let products = launch.parts.iter().filter_map(product).collect();
                FormSchedule::Grouped(GroupedSchedule::new(products, target))
            }
            (Kernel::Loop(body), _) if body.inner_rank > 0 => FormSchedule::Reduce(reduce_shape(body, args, target)),
            (Kernel::Loop(body), _) => FormSchedule::Map(map_shape(body, args, target)),
            (Kernel::Routine(routine), _) => RoutineSchedule::new(launch, routine, target)
                .map(FormSchedule::Routine)
                .unwrap_or_else(|| unreachable!("bug: no WGSL for the routine {}", routine.row.name)),
            (Kernel::Matmul(_) | Kernel::Attention(_), _) => unreachable!("bug: a launch without its numbers"),
        }
    }
}

fn map_classes(map: &MapSchedule, body: &Body, args: &Args) -> String {
    let n_elems: usize = args.outer.iter().product();
    let left_over = if map.n_by_four < n_elems && map.four.is_some() { ", elements left over" } else { "" };
    let by_four = modes(body, args, map.four);
    let modes = map.block.map_or_else(|| by_four.clone(), |axis| turned(body, args, &by_four, axis));
    format!("{map}{left_over}, {modes:?}")
}

/// The classes of a product: how its operands are read, whether their lists are single axes or whole fours, which steps of k are
/// whole, and how what follows the sums meets fours of columns.
fn product_classes(product: &ProductSchedule, launch: &Launch) -> String {
    let (Kernel::Matmul(body), Some(matmul)) = (&launch.kernel, &launch.args.matmul) else { return String::new() };
    let lists = |lies: &OperandArgs| {
        let class = |list: &AxisList| {
            let by_four =
                list.axes().last().is_some_and(|axis| axis.0.is_multiple_of(4)) && list.start().is_multiple_of(4);
            (list.axes().len(), list.stride() == Some(1), list.axes().len() > 1 && by_four)
        };
        lies.batch.iter().chain([&lies.rows, &lies.cols]).map(class).collect::<Vec<_>>()
    };
    let mut classes = format!("lists {:?} × {:?}", lists(&matmul.a), lists(&matmul.b));
    for (_, shape) in &product.columns {
        let four = VecAxis { axis: launch.args.outer.len() - 1, aligned: true };
        let modes = modes(body, &launch.args, (shape.variant.cols != Cols::One).then_some(four));
        let step = if let Share::WorkgroupTile { k, .. } = shape.variant.team { k } else { shape.k_trip };
        let is_whole = |step: usize| matmul.k.is_multiple_of(step) && matmul.k_parts.len().is_multiple_of(step);
        classes += &format!(
            "; {} reads {:?} × {:?}{}, sums {:?}{}{}{}, k in whole fours {}, in whole steps {}/{}, {modes:?}",
            shape.variant.name,
            shape.a,
            shape.b,
            if shape.eights == [false; 2] { String::new() } else { format!(" by eights {:?}", shape.eights) },
            shape.run,
            if !matmul.k_parts.is_whole() { ", k in parts" } else { "" },
            if shape.written_out { ", written out" } else { "" },
            match shape.rest {
                TileRest::WrittenOut => "",
                TileRest::LoopOverShared => ", then a loop over workgroup memory",
                TileRest::LoopOverArray => ", then a loop over an array",
            },
            matmul.k.is_multiple_of(K_UNROLL),
            matmul.k.is_multiple_of(step),
            is_whole(step),
        );
    }
    classes
}

/// The classes of a chained product: its tiles, but for how many columns a part has.
fn attention_classes(tiles: &AttentionTiles, launch: &Launch) -> String {
    let (Kernel::Attention(kernel), Some(args)) = (&launch.kernel, &launch.args.attention) else {
        return String::new();
    };
    let AttentionTiles { share, rows, key_fours, value_fours, reads, values, .. } = tiles;
    let last = VecAxis { axis: args.batch.len() + 1, aligned: true };
    let of_scores = modes(&kernel.scores, &args.scores, Some(VecAxis { aligned: tiles.keys_by_four, ..last }));
    let by_four = tiles.values_by_four && args.column_parts.is_whole();
    let of_result = modes(&kernel.result, &args.result, by_four.then_some(last));
    format!(
        "{share:?} {rows} × {key_fours} × {value_fours}, reads {reads:?} and {values:?}, whole fours {:?}, parts {}, hides {}, \
         {of_scores:?}, {of_result:?}",
        (tiles.keys_by_four, tiles.values_by_four, tiles.depth_by_four),
        !args.column_parts.is_whole(),
        tiles.hides,
    )
}

/// Shows how a launch is shared out, and the memory of each pass that could be declared in several ways.
impl fmt::Display for GpuSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.form)?;
        let mut memory: Vec<String> = self.memory.iter().map(ToString::to_string).collect();
        memory.dedup();
        memory.retain(|told| !told.is_empty());
        if memory.is_empty() { Ok(()) } else { write!(f, ", {}", memory.join(", then ")) }
    }
}

impl fmt::Display for FormSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormSchedule::Map(map) => write!(f, "{map}"),
            FormSchedule::Reduce(reduce) => write!(f, "{reduce}"),
            FormSchedule::Matmul(product) => write!(f, "{product}"),
            FormSchedule::Grouped(products) => write!(f, "{products}"),
            FormSchedule::Attention(tiles) => write!(f, "{tiles}"),
            FormSchedule::Routine(routine) => write!(f, "{routine}"),
        }
    }
}
