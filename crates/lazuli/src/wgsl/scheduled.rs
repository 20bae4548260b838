//! The schedule of a launch as one value: how its invocations share it out, decided before anything is printed. A function of
//! kernel, numbers and target, with a text of its own.

use std::fmt;

use super::attention::tiles::AttentionTiles;
use super::matmul::GroupedSchedule;
use super::matmul::variants::ProductSchedule;
use super::schedule::{MapSchedule, ReduceSchedule, map_shape, reduce_shape};
use crate::dtype::DType;
use crate::kernel::{Kernel, MatmulArgs};
use crate::plan::Launch;
use crate::target::GpuTarget;

/// How a launch is shared out on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuSchedule {
    Map(MapSchedule),
    Reduce(ReduceSchedule),
    Matmul(ProductSchedule),
    /// Products of one launch.
    Grouped(GroupedSchedule),
    Attention(AttentionTiles),
    /// Routines share out their own passes.
    Routine,
}

impl GpuSchedule {
    /// The schedule of a launch on a device.
    pub fn new(launch: &Launch, target: &GpuTarget) -> GpuSchedule {
        let args = &launch.args;
        if let (Kernel::Attention(kernel), Some(numbers)) = (&launch.kernel, &args.attention) {
            return GpuSchedule::Attention(AttentionTiles::choose(kernel, numbers, target));
        }
        fn product(launch: &Launch) -> Option<(&MatmulArgs, [DType; 2])> {
            let (Kernel::Matmul(body), Some(matmul)) = (&launch.kernel, &launch.args.matmul) else { return None };
            Some((matmul, [body.inputs[0].dtype(), body.inputs[1].dtype()]))
        }
        match (&launch.kernel, product(launch)) {
            (_, Some((matmul, dtypes))) => GpuSchedule::Matmul(ProductSchedule::new(matmul, dtypes, target)),
            (Kernel::Grouped(_), _) => {
                let products = launch.parts.iter().filter_map(product).collect();
                GpuSchedule::Grouped(GroupedSchedule::new(products, target))
            }
            (Kernel::Loop(body), _) if body.inner_rank > 0 => GpuSchedule::Reduce(reduce_shape(body, args, target)),
            (Kernel::Loop(body), _) => GpuSchedule::Map(map_shape(body, args, target)),
            _ => GpuSchedule::Routine,
        }
    }

    /// Which of several ways was chosen and why; None where there is one.
    pub fn variant(&self) -> Option<String> {
        match self {
            GpuSchedule::Matmul(product) => Some(product.to_string()),
            GpuSchedule::Grouped(grouped) => Some(grouped.to_string()),
            GpuSchedule::Attention(tiles) => Some(tiles.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for GpuSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuSchedule::Map(map) => write!(f, "{map}"),
            GpuSchedule::Reduce(reduce) => write!(f, "{reduce}"),
            GpuSchedule::Matmul(product) => write!(f, "{product}"),
            GpuSchedule::Grouped(products) => write!(f, "{products}"),
            GpuSchedule::Attention(tiles) => write!(f, "{tiles}"),
            GpuSchedule::Routine => f.write_str("shares out its own lines"),
        }
    }
}
