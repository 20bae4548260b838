//! How the invocations of a routine share out its lines: plain data, decided before anything is printed. Parts of a grid that
//! bind no more windows than there may be are `grid`'s to cut.

use std::fmt;

use super::{ROUTINES, RoutineOf};
use crate::kernel::RoutineKernel;
use crate::plan::Launch;
use crate::target::GpuTarget;

/// How a routine is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutineSchedule {
    /// Invocations of a workgroup.
    pub group: usize,
    pub lines: RoutineLines,
}

/// How the lines of a routine are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutineLines {
    /// Into blocks of so many elements, each of one invocation, of which one dispatch takes so many.
    Blocks { len: usize, step: usize },
    /// They are sorted.
    Sorted(SortSchedule),
}

/// How lines are sorted, and what follows is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortSchedule {
    /// Pairs of a tile, which one invocation goes through, at most; a power of two.
    pub max_tile: usize,
    /// Words that an invocation of a scan goes through.
    pub scan_block: usize,
    /// Terms that an invocation adds up at a level of the tree of sums, where there is one.
    pub n_terms: usize,
}

/// Invocations of a workgroup.
const GROUP: usize = 64;

impl RoutineSchedule {
    /// The schedule of a launch; None if there is no such routine.
    pub fn new(launch: &Launch, routine: &RoutineKernel, target: &GpuTarget) -> Option<RoutineSchedule> {
        let (_, schedule, _) = ROUTINES.iter().find(|r| r.0 == routine.row)?;
        let args = launch.args.routine.as_ref()?;
        let lines = schedule(&RoutineOf { launch, routine, args, target });
        Some(RoutineSchedule { group: GROUP.min(target.max_invocations), lines })
    }

    /// How lines are sorted, if they are.
    pub fn sorted(&self) -> SortSchedule {
        match self.lines {
            RoutineLines::Sorted(sort) => sort,
            RoutineLines::Blocks { .. } => unreachable!("bug: the schedule of another routine"),
        }
    }
}

impl fmt::Display for RoutineSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lines {
            RoutineLines::Blocks { len, step } => {
                write!(f, "blocks of {len} elements an invocation, {step} in a dispatch")?;
            }
            RoutineLines::Sorted(SortSchedule { max_tile, scan_block, n_terms }) => {
                write!(f, "radix sort of tiles of at most {max_tile} pairs, counts scanned {scan_block} at a time")?;
                if n_terms > 0 {
                    write!(f, ", {n_terms} terms added at a time")?;
                }
            }
        }
        write!(f, ", {} to a workgroup", self.group)
    }
}
