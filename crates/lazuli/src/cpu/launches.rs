//! The schedule of a plan: for every launch how its loops are cut, shared out and traversed, how many threads take part,
//! and which scratch memory each launch has. Plain data with a text, from a plan's kernels and numbers and what is known of
//! the processor; running it decides nothing more.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::attention::ChainedProductWork;
use super::interior;
use super::matmul::{Matmul, MatmulScratch};
use super::packed::PackedKey;
use super::program::{Code, CpuProgram};
use super::revert::reverted;
use super::routines::{self, Routine};
use super::schedule::Nest;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Args, Body, InstOp, Kernel, RoutineArgs};
use crate::plan::{CompiledKernel, Launch, Plan, Scratch, SlotId, SlotKind, scratch, verify_scratch};
use crate::shape::Shape;
use crate::target::CpuTarget;

/// A plan that takes less than this altogether is run where it was asked for: waking threads costs as much.
const INLINE_NANOS: f64 = 60_000.0;
/// Bytes of a cache line.
const LINE: usize = 64;

/// How a plan is run.
pub struct CpuSchedule {
    pub launches: Vec<ScheduledLaunch>,
    /// How many threads take part.
    pub n_workers: usize,
    /// Lanes that each thread needs for tiles.
    pub frame: usize,
    pub scratch: Scratch,
}

/// How a launch is run.
pub struct ScheduledLaunch {
    pub work: LaunchSchedule,
    /// About how long it takes on one thread.
    nanos: f64,
    /// The bindings that start where a number of the evaluation says.
    pub moved: Vec<MovedBinding>,
    /// What takes its place after a failure, if it commits.
    pub reverted: Option<Box<Reverted>>,
    /// Bytes of each piece of scratch memory of a product, in the order of [`MatmulScratch`].
    pub matmul_scratch: [usize; 6],
}

/// An input, or an output counted after the inputs, that starts at a constant of the plan times so many bytes.
#[derive(Clone, Copy)]
pub struct MovedBinding {
    pub binding: usize,
    pub constant: u32,
    pub stride_bytes: isize,
}

/// A launch that leaves what another commits as it was.
pub struct Reverted {
    pub launch: Launch,
    pub moved: Vec<MovedBinding>,
    pub nest: Nest,
}

/// How a launch is run, by its form.
pub enum LaunchSchedule {
    /// The parts of a loop, one after another: most have one.
    Loop(Vec<Nest>),
    Matmul(Box<Matmul>),
    /// Products, one after another.
    Grouped(Vec<ScheduledLaunch>),
    Attention(Box<ChainedProductWork>),
    Routine {
        routine: &'static Routine,
        args: RoutineArgs,
        inputs: Vec<DType>,
        output: DType,
    },
}

impl CpuSchedule {
    /// The products of a plan, those that share a launch one by one.
    fn products<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (&'a Matmul, &'a Launch)> {
        let each = |(scheduled, launch): (&'a ScheduledLaunch, &'a Launch)| match &scheduled.work {
            LaunchSchedule::Grouped(parts) => parts.iter().zip(&launch.parts),
            _ => std::slice::from_ref(scheduled).iter().zip(std::slice::from_ref(launch)),
        };
        self.launches.iter().zip(&plan.launches).flat_map(each).filter_map(|(scheduled, launch)| {
            match &scheduled.work {
                LaunchSchedule::Matmul(matmul) => Some((&**matmul, launch)),
                _ => None,
            }
        })
    }

    /// Bytes of the inputs of a plan that its products keep packed once they have read them a few times.
    pub fn packed_bytes(&self, plan: &Plan) -> usize {
        let mut kept: Vec<(SlotId, &PackedKey)> = Vec::new();
        let mut n_bytes = 0;
        for (matmul, launch) in self.products(plan) {
            let Some(operand) = &matmul.packable else { continue };
            let slot = launch.reads[operand.idx];
            let is_input = matches!(plan.slots[slot.0 as usize].kind, SlotKind::Input { donated: false, .. });
            if is_input && !kept.contains(&(slot, &operand.key)) {
                kept.push((slot, &operand.key));
                n_bytes += operand.n_values * 4;
            }
        }
        n_bytes
    }

    /// The inputs of a plan that products read unpacked, by number, and of which no product keeps a packed form.
    pub fn inputs_read_as_they_are(&self, plan: &Plan) -> Vec<u32> {
        let (mut read, mut kept) = (Vec::new(), Vec::new());
        for (matmul, launch) in self.products(plan) {
            let packed = matmul.packable.as_ref().map(|operand| operand.idx);
            // A product that computes an operand itself multiplies none of the inputs of that map.
            let is_read = |i: &usize| matmul.made[*i].is_none();
            for (i, slot) in launch.reads.iter().enumerate().take(2).filter(|(i, _)| is_read(i)) {
                let SlotKind::Input { idx, donated: false } = plan.slots[slot.0 as usize].kind else { continue };
                let list = if packed == Some(i) { &mut kept } else { &mut read };
                list.push(idx);
            }
        }
        read.retain(|idx| !kept.contains(idx));
        read.sort_unstable();
        read.dedup();
        read
    }

    /// Schedules a plan, whose kernels are programs from this source.
    pub fn new(plan: &Plan, programs: &mut ProgramSource, target: &CpuTarget) -> Result<CpuSchedule> {
        let launches = plan.launches.iter().map(|launch| scheduled(launch, programs, target));
        let mut launches = launches.collect::<Result<Vec<ScheduledLaunch>>>()?;
        let nanos: f64 = launches.iter().map(|l| l.nanos).sum();
        let n_workers = if nanos < INLINE_NANOS { 1 } else { target.threads };
        let frame = launches.iter().map(ScheduledLaunch::frame).max().unwrap_or(0).next_multiple_of(LINE / 4);
        launches.iter_mut().for_each(|launch| launch.share_out(n_workers));
        let needs: Vec<Vec<usize>> = launches.iter().map(|launch| launch.needs(n_workers)).collect();
        let scratch = scratch(plan, &needs);
        if cfg!(debug_assertions) {
            verify_scratch(plan, &needs, &scratch).unwrap_or_else(|fault| panic!("bug in scratch: {fault}\n{plan}"));
        }
        Ok(CpuSchedule { launches, n_workers, frame, scratch })
    }

    /// About how many bytes it occupies.
    pub fn size_bytes(&self) -> usize {
        let works = self.launches.iter().map(|launch| launch.work.size_bytes()).sum::<usize>();
        size_of::<CpuSchedule>() + self.launches.capacity() * size_of::<ScheduledLaunch>() + works
    }
}

/// Passes the program of a kernel to a function. If the kernel is that of a launch, the launch may keep the program (`CompiledKernel`).
pub type ProgramSource<'a> = dyn FnMut(&Kernel, Option<&CompiledKernel>, &mut dyn FnMut(&CpuProgram)) + 'a;

fn scheduled(launch: &Launch, programs: &mut ProgramSource, target: &CpuTarget) -> Result<ScheduledLaunch> {
    let aliased: SmallVec<[bool; 8]> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
    let mut made = None;
    match &launch.kernel {
        Kernel::Grouped(_) => {
            let parts = launch.parts.iter().map(|part| scheduled(part, programs, target));
            let parts = parts.collect::<Result<Vec<ScheduledLaunch>>>()?;
            let nanos = parts.iter().map(|part| part.nanos).sum();
            made = Some(Ok((LaunchSchedule::Grouped(parts), nanos)));
        }
        Kernel::Loop(body) if let Some(parts) = interior::cut(body, &launch.args) => {
            // Each element is computed by one part, from elements that none of them writes or from itself.
            let mut nests = Vec::with_capacity(parts.len());
            for (body, args) in parts {
                programs(&Kernel::Loop(Arc::new(body)), None, &mut |program| {
                    nests.extend(nest_of(program, &args, &aliased, target))
                });
            }
            let nanos = nests.iter().map(|nest| nest.nanos).sum();
            made = Some(Ok((LaunchSchedule::Loop(nests), nanos)));
        }
        kernel => {
            let compiled = Some(&launch.compiled);
            programs(kernel, compiled, &mut |program| made = Some(work_of(launch, program, &aliased, target)))
        }
    }
    let (work, nanos) = made.expect("every kernel has a program")?;
    let (moved, reverted) = (moved(launch), Reverted::of(launch, target));
    Ok(ScheduledLaunch { work, nanos, moved, reverted, matmul_scratch: [0; 6] })
}

/// The bindings of a launch that its run-time offsets move: the verifier has seen that each is moved in one way only.
fn moved(launch: &Launch) -> Vec<MovedBinding> {
    let mut moved: Vec<MovedBinding> = Vec::new();
    let mut add = |body: &Body, args: &Args, first_output: usize| {
        for (offset, numbers) in body.offsets.iter().zip(&args.offsets) {
            let inputs = body.insts.iter().filter_map(|inst| match inst.op {
                InstOp::Load { input, access } if access == offset.access => {
                    Some((input as usize, body.inputs[input as usize].unit_bytes()))
                }
                _ => None,
            });
            let stores = body.stores.iter().filter(|store| store.access == offset.access);
            let outputs = stores.map(|store| {
                let output = store.output as usize;
                (launch.reads.len() + first_output + output, body.outputs[output].size())
            });
            for (binding, size) in inputs.chain(outputs) {
                if moved.iter().all(|known| known.binding != binding) {
                    let constant = args.consts[offset.constant as usize];
                    moved.push(MovedBinding { binding, constant, stride_bytes: numbers.stride * size as isize });
                }
            }
        }
    };
    match (&launch.kernel, &launch.args.attention) {
        (Kernel::Loop(body) | Kernel::Matmul(body), _) => add(body, &launch.args, 0),
        (Kernel::Attention(kernel), Some(args)) => {
            add(&kernel.scores, &args.scores, 0);
            add(&kernel.result, &args.result, 0);
            add(&kernel.rows, &args.rows, kernel.result.stores.len());
        }
        _ => {}
    }
    moved
}

fn nest_of(program: &CpuProgram, args: &Args, aliased: &[bool], target: &CpuTarget) -> Option<Nest> {
    let CpuProgram::Loop(code) = program else { unreachable!("made as a loop") };
    Some(Nest::new(code.clone(), args, aliased, target))
}

fn work_of(
    launch: &Launch,
    program: &CpuProgram,
    aliased: &[bool],
    target: &CpuTarget,
) -> Result<(LaunchSchedule, f64)> {
    Ok(match program {
        CpuProgram::Loop(code) => {
            let nest = Nest::new(code.clone(), &launch.args, aliased, target);
            let nanos = nest.nanos;
            (LaunchSchedule::Loop(vec![nest]), nanos)
        }
        CpuProgram::Matmul(code, made) => {
            let matmul = Matmul::new((code.clone(), made), &launch.args, aliased, target);
            let nanos = matmul.nanos;
            (LaunchSchedule::Matmul(Box::new(matmul)), nanos)
        }
        CpuProgram::Attention(code) => {
            let attention = ChainedProductWork::new(code, &launch.args, target);
            let nanos = attention.nanos;
            (LaunchSchedule::Attention(Box::new(attention)), nanos)
        }
        CpuProgram::Routine(kernel) => {
            let Some(routine) = routines::find(kernel.row) else {
                return Err(Error::unsupported(kernel.row.name, "the CPU has no such routine"));
            };
            let args = launch.args.routine.as_deref().cloned().expect("a routine's launch has its numbers");
            let n_elems = args.output_shape.n_elems() + args.input_shapes.iter().map(|s| s.n_elems()).sum::<usize>();
            let inputs = kernel.inputs.iter().map(|storage| storage.dtype()).collect();
            let output = kernel.outputs[0];
            // Routines share out their own work; sorting is the dearest.
            (LaunchSchedule::Routine { routine, args, inputs, output }, n_elems as f64 * 10.0)
        }
    })
}

/// Bytes for the sums of the parts of a loop, which run one after another.
pub fn sums_bytes(nests: &[Nest]) -> usize {
    nests.iter().map(Nest::sums_bytes).max().unwrap_or(0)
}

impl Reverted {
    fn of(launch: &Launch, target: &CpuTarget) -> Option<Box<Reverted>> {
        let launch = reverted(launch)?;
        let Kernel::Loop(body) = &launch.kernel else { unreachable!("made as a loop") };
        let aliased: SmallVec<[bool; 8]> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
        let nest = Nest::new(Arc::new(Code::new(body)), &launch.args, &aliased, target);
        Some(Box::new(Reverted { moved: moved(&launch), launch, nest }))
    }
}

impl ScheduledLaunch {
    /// Decides the parts of the schedule that depend on the number of threads.
    fn share_out(&mut self, n_workers: usize) {
        match &mut self.work {
            LaunchSchedule::Matmul(matmul) => matmul.share_out(n_workers),
            LaunchSchedule::Grouped(parts) => parts.iter_mut().for_each(|part| part.share_out(n_workers)),
            LaunchSchedule::Loop(_) | LaunchSchedule::Attention(_) | LaunchSchedule::Routine { .. } => {}
        }
        self.matmul_scratch = self.work.matmul_scratch(n_workers);
    }

    /// Lanes that each thread needs for tiles.
    fn frame(&self) -> usize {
        let own = match &self.work {
            LaunchSchedule::Loop(nests) => nests.iter().map(|nest| nest.scratch.n_lanes()).max().unwrap_or(0),
            LaunchSchedule::Matmul(matmul) => matmul.frame(),
            LaunchSchedule::Attention(attention) => attention.frame(),
            LaunchSchedule::Grouped(parts) => parts.iter().map(ScheduledLaunch::frame).max().unwrap_or(0),
            LaunchSchedule::Routine { .. } => 0,
        };
        own.max(self.reverted.as_ref().map_or(0, |reverted| reverted.nest.scratch.n_lanes()))
    }

    /// Bytes of each piece of scratch memory; none is empty.
    fn needs(&self, n_workers: usize) -> Vec<usize> {
        let mut needs = match &self.work {
            LaunchSchedule::Loop(nests) => vec![sums_bytes(nests)],
            LaunchSchedule::Matmul(_) | LaunchSchedule::Grouped(_) => self.matmul_scratch.to_vec(),
            LaunchSchedule::Attention(attention) => {
                vec![attention.parts_bytes(), attention.room() * n_workers * 4]
            }
            LaunchSchedule::Routine { routine, args, .. } => vec![(routine.scratch)(args, n_workers)],
        };
        // A loop that takes another's place never needs more than one piece, which is the first of either.
        if let Some(reverted) = &self.reverted {
            needs[0] = needs[0].max(reverted.nest.sums_bytes());
        }
        needs.retain(|bytes| *bytes > 0);
        needs
    }
}

impl LaunchSchedule {
    /// The products of a launch.
    fn matmuls(&self) -> impl Iterator<Item = &Matmul> {
        let (own, parts) = match self {
            LaunchSchedule::Matmul(matmul) => (Some(&**matmul), &[][..]),
            LaunchSchedule::Grouped(parts) => (None, &parts[..]),
            _ => (None, &[][..]),
        };
        own.into_iter().chain(parts.iter().filter_map(|part| match &part.work {
            LaunchSchedule::Matmul(matmul) => Some(&**matmul),
            _ => None,
        }))
    }

    /// Bytes of each piece of scratch memory of a product. Grouped ones share them, but for the sums of those that run at the
    /// same time.
    fn matmul_scratch(&self, n_workers: usize) -> [usize; 6] {
        let mut needs = self.matmuls().fold([0; 6], |most, matmul| {
            let own = matmul.scratch_bytes(n_workers);
            std::array::from_fn(|piece| own[piece].max(most[piece]))
        });
        if self.matmuls().all(Matmul::reads_blocks) {
            needs[MatmulScratch::SUMS] = self.matmuls().map(Matmul::sums_bytes).sum();
        }
        needs
    }

    fn size_bytes(&self) -> usize {
        match self {
            LaunchSchedule::Loop(nests) => nests.iter().map(Nest::size_bytes).sum(),
            LaunchSchedule::Matmul(matmul) => matmul.size_bytes(),
            LaunchSchedule::Grouped(parts) => {
                let own = parts.capacity() * size_of::<ScheduledLaunch>();
                own + parts.iter().map(|part| part.work.size_bytes()).sum::<usize>()
            }
            LaunchSchedule::Attention(attention) => attention.size_bytes(),
            LaunchSchedule::Routine { args, inputs, .. } => {
                inputs.capacity() + args.input_shapes.capacity() * size_of::<Shape>()
            }
        }
    }
}

impl fmt::Display for ScheduledLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            LaunchSchedule::Loop(nests) => {
                for (i, nest) in nests.iter().enumerate() {
                    write!(f, "{}{nest}", if i > 0 { " | " } else { "" })?;
                }
                Ok(())
            }
            LaunchSchedule::Matmul(matmul) => write!(f, "{matmul}"),
            LaunchSchedule::Grouped(parts) => {
                for (i, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if i > 0 { " | then " } else { "" })?;
                }
                Ok(())
            }
            LaunchSchedule::Attention(attention) => write!(f, "{attention}"),
            LaunchSchedule::Routine { .. } => write!(f, "shares out its own lines"),
        }
    }
}

/// One line a launch.
impl fmt::Display for CpuSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.n_workers == 1 { "" } else { "s" };
        write!(f, "{} thread{plural}, {} lanes of tiles each", self.n_workers, self.frame)?;
        self.launches.iter().try_for_each(|launch| write!(f, "\n    {launch}"))
    }
}
