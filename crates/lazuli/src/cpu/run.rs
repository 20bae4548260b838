//! Running a plan: memory for its slots, then launch after launch. Knows plans and the forms of kernels.

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::attention::ChainedProductWork;
use super::gemm::PackBuffers;
use super::matmul::{self, Matmul};
use super::memory::CpuBuffer;
use super::program::{Code, CpuProgram};
use super::revert::reverted;
use super::routines::{self, Routine, RoutineCall, RoutineScratch};
use super::schedule::{Nest, Traversal};
use super::tile::{BoundNest, KernelFaults};
use super::{CpuShared, HeldProgram};
use super::{interior, map, reduce, threads};
use crate::backend::{Counters, Failure, Outcome, Run, Runnable};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Buffer;
use crate::kernel::{Args, Body, Kernel, RoutineArgs};
use crate::plan::{Launch, Plan, SlotId, SlotKind};
use crate::shape::Shape;

/// A plan that takes less than this altogether is run where it was asked for: waking threads costs as much.
const INLINE_NANOS: f64 = 60_000.0;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A plan made ready.
pub struct CpuPlan {
    cpu: Arc<CpuShared>,
    plan: Arc<Plan>,
    launches: Vec<ReadyLaunch>,
    /// About how long it takes on one thread.
    nanos: f64,
    /// Values that each thread needs room for, in products.
    room: usize,
    /// Lanes that each thread needs for tiles.
    frame: usize,
    /// Bytes for what the launch that needs most keeps beside its slots: sums, or a routine's own.
    sums_bytes: usize,
}

struct ReadyLaunch {
    /// Held so that other plans find them.
    _programs: SmallVec<[HeldProgram; 1]>,
    work: LaunchWork,
    nanos: f64,
    /// What takes its place after a failure, if it commits.
    reverted: Option<Reverted>,
}

/// A launch that leaves what another commits as it was.
struct Reverted {
    launch: Launch,
    nest: Box<Nest>,
}

enum LaunchWork {
    /// The parts of a loop, one after another: most have one.
    Loop(Vec<Nest>),
    Matmul(Box<Matmul>),
    Attention(Box<ChainedProductWork>),
    Routine {
        routine: &'static Routine,
        args: RoutineArgs,
        inputs: Vec<DType>,
        output: DType,
    },
}

/// Runs a map or a reduction.
fn run_loop(nest: &Nest, launch: &Launch, memory: &CpuRunMemory, constants: &[u32], faults: &KernelFaults, idx: usize) {
    let at = |id: &SlotId| memory.slots[id.0 as usize];
    let mut bound = BoundNest::new(nest, constants, faults, idx, memory.frames);
    bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
    bound.outputs.extend(launch.writes.iter().map(at));
    // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
    unsafe {
        bound.evaluate_uniforms();
        match nest.form {
            Traversal::Map(_) => map::run(&bound),
            _ => reduce::run(&bound, memory.sums),
        }
    }
}

impl CpuPlan {
    /// Binds every launch of a plan to its program.
    pub fn new(cpu: Arc<CpuShared>, plan: Arc<Plan>) -> Result<CpuPlan> {
        let launches = plan.launches.iter().map(|l| ready(&cpu, l)).collect::<Result<Vec<ReadyLaunch>>>()?;
        let nanos = launches.iter().map(|l| l.nanos).sum();
        let products =
            || launches.iter().filter_map(|l| if let LaunchWork::Matmul(m) = &l.work { Some(m) } else { None });
        let chained =
            || launches.iter().filter_map(|l| if let LaunchWork::Attention(a) = &l.work { Some(a) } else { None });
        let room = products().map(|m| m.room()).chain(chained().map(|a| a.room())).max().unwrap_or(0);
        let reverted = || launches.iter().filter_map(|launch| launch.reverted.as_ref());
        let frame = |launch: &ReadyLaunch| match &launch.work {
            LaunchWork::Loop(nests) => nests.iter().map(|nest| nest.scratch.n_lanes()).max().unwrap_or(0),
            LaunchWork::Matmul(matmul) => matmul.nest.scratch.n_lanes(),
            LaunchWork::Attention(attention) => attention.frame(),
            LaunchWork::Routine { .. } => 0,
        };
        let frame = launches.iter().map(frame).chain(reverted().map(|r| r.nest.scratch.n_lanes())).max();
        let frame = frame.unwrap_or(0).next_multiple_of(LINE / 4);
        let n_workers = n_workers(&cpu, nanos);
        let sums_bytes = |launch: &ReadyLaunch| match &launch.work {
            LaunchWork::Loop(nests) => nests.iter().map(Nest::sums_bytes).max().unwrap_or(0),
            LaunchWork::Matmul(matmul) => matmul.sums_bytes(),
            LaunchWork::Attention(attention) => attention.parts_bytes(),
            LaunchWork::Routine { routine, args, .. } => (routine.scratch)(args, n_workers),
        };
        let sums_bytes =
            launches.iter().map(sums_bytes).chain(reverted().map(|r| r.nest.sums_bytes())).max().unwrap_or(0);
        Ok(CpuPlan { cpu, plan, launches, nanos, room, frame, sums_bytes })
    }

    /// The memory of every slot. All of it before anything runs, so that running out of it spoils nothing.
    fn slots(&self, inputs: &[Buffer]) -> Result<SmallVec<[Buffer; 16]>> {
        let slot = |slot: &crate::plan::Slot| match slot.kind {
            SlotKind::Input { idx, .. } => Ok(inputs[idx as usize].clone()),
            SlotKind::Output | SlotKind::Temp => Ok(Buffer::new(self.cpu.pool.take(slot.size_bytes)?)),
        };
        self.plan.slots.iter().map(slot).collect()
    }

    fn run_launches(&self, which: Range<usize>, memory: &CpuRunMemory, constants: &[u32], faults: &KernelFaults) {
        let CpuRunMemory { slots, scratch, sums, rooms, frames } = memory;
        let launches = self.launches.iter().zip(&self.plan.launches).enumerate();
        for (idx, (ready, launch)) in launches.take(which.end).skip(which.start) {
            let at = |id: &SlotId| slots[id.0 as usize];
            if let Some(Reverted { launch, nest }) = ready.reverted.as_ref().filter(|_| faults.any()) {
                run_loop(nest, launch, memory, constants, faults, idx);
                continue;
            }
            match &ready.work {
                LaunchWork::Attention(attention) => {
                    let bind = |nest| {
                        let mut bound = BoundNest::new(nest, constants, faults, idx, *frames);
                        bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
                        bound.outputs.extend(launch.writes.iter().map(at));
                        bound
                    };
                    // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
                    unsafe { attention.run(bind, constants, *sums, *rooms) };
                }
                LaunchWork::Routine { .. } => self.run_routine(ready, launch, memory, idx, faults),
                LaunchWork::Loop(nests) => {
                    nests.iter().for_each(|nest| run_loop(nest, launch, memory, constants, faults, idx));
                }
                LaunchWork::Matmul(matmul) => {
                    let mut bound = BoundNest::new(&matmul.nest, constants, faults, idx, *frames);
                    bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
                    bound.outputs.extend(launch.writes.iter().map(at));
                    let scratch = scratch[idx].as_ref().expect("a matmul has scratch");
                    // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
                    unsafe {
                        bound.evaluate_uniforms();
                        matmul.run(&bound, scratch, *sums, *rooms);
                    }
                }
            }
        }
    }

    fn run_routine(
        &self,
        ready: &ReadyLaunch,
        launch: &Launch,
        memory: &CpuRunMemory,
        idx: usize,
        faults: &KernelFaults,
    ) {
        let LaunchWork::Routine { routine, args, inputs, output } = &ready.work else {
            unreachable!("called for routines")
        };
        // SAFETY: slots have these sizes; a routine's inputs and output are different slots.
        let bytes = |id: &SlotId, n_elems: usize, dtype: DType| unsafe {
            std::slice::from_raw_parts_mut(memory.slots[id.0 as usize], n_elems * dtype.size())
        };
        let reads: SmallVec<[(&[u8], DType); 4]> = (launch.reads.iter().zip(inputs).zip(&args.input_shapes))
            .map(|((slot, dtype), shape)| (&*bytes(slot, shape.n_elems(), *dtype), *dtype))
            .collect();
        let call = RoutineCall {
            inputs: &reads,
            output: bytes(&launch.writes[0], args.output_shape.n_elems(), *output),
            output_dtype: *output,
            args,
            // SAFETY: as large as the largest of the plan's routines asked for; launches run one after another.
            scratch: unsafe { RoutineScratch::new(memory.sums, self.sums_bytes) },
            n_workers: n_workers(&self.cpu, self.nanos),
        };
        if let Err(failed) = (routine.run)(call) {
            faults.index_out_of_range(idx, 0, failed);
        }
    }
}

fn ready(cpu: &CpuShared, launch: &Launch) -> Result<ReadyLaunch> {
    let aliased: Vec<bool> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
    let parts = match &launch.kernel {
        Kernel::Loop(body) => interior::cut(body, &launch.args),
        _ => None,
    };
    if let Some(parts) = parts {
        return Ok(ready_parts(cpu, launch, parts, &aliased));
    }
    let program = cpu.program(&launch.kernel);
    let (work, nanos) = match &**program {
        CpuProgram::Loop(code) => {
            let nest = Nest::new(code.clone(), &launch.args, &aliased);
            let nanos = nest.nanos;
            (LaunchWork::Loop(vec![nest]), nanos)
        }
        CpuProgram::Matmul(code) => {
            let matmul = Matmul::new(code.clone(), &launch.args, &aliased);
            let nanos = matmul.nanos;
            (LaunchWork::Matmul(Box::new(matmul)), nanos)
        }
        CpuProgram::Attention(code) => {
            let attention = ChainedProductWork::new(code, &launch.args);
            let nanos = attention.nanos;
            (LaunchWork::Attention(Box::new(attention)), nanos)
        }
        CpuProgram::Routine(kernel) => {
            let Some(routine) = routines::find(kernel.row) else {
                return Err(Error::unsupported(kernel.row.name, "the CPU has no such routine"));
            };
            let args = launch.args.routine.clone().expect("a routine's launch has its numbers");
            let n_elems = args.output_shape.n_elems() + args.input_shapes.iter().map(|s| s.n_elems()).sum::<usize>();
            let work = LaunchWork::Routine { routine, args, inputs: kernel.inputs.clone(), output: kernel.outputs[0] };
            // Routines share out their own work; sorting is the dearest.
            (work, n_elems as f64 * 10.0)
        }
    };
    Ok(ReadyLaunch { _programs: smallvec![program], work, nanos, reverted: Reverted::of(launch) })
}

/// A map cut into parts. Each element is computed by one of them, from elements that none of them writes or from itself.
fn ready_parts(cpu: &CpuShared, launch: &Launch, parts: Vec<(Body, Args)>, aliased: &[bool]) -> ReadyLaunch {
    let (mut programs, mut nests) = (SmallVec::new(), Vec::with_capacity(parts.len()));
    for (body, args) in parts {
        let program = cpu.program(&Kernel::Loop(body));
        let CpuProgram::Loop(code) = &**program else { unreachable!("made as a loop") };
        nests.push(Nest::new(code.clone(), &args, aliased));
        programs.push(program);
    }
    let nanos = nests.iter().map(|nest| nest.nanos).sum();
    ReadyLaunch { _programs: programs, work: LaunchWork::Loop(nests), nanos, reverted: Reverted::of(launch) }
}

impl Reverted {
    fn of(launch: &Launch) -> Option<Reverted> {
        let launch = reverted(launch)?;
        let Kernel::Loop(body) = &launch.kernel else { unreachable!("made as a loop") };
        let aliased: Vec<bool> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
        let nest = Box::new(Nest::new(Arc::new(Code::new(body)), &launch.args, &aliased));
        Some(Reverted { launch, nest })
    }
}

impl LaunchWork {
    fn size_bytes(&self) -> usize {
        match self {
            LaunchWork::Loop(nests) => nests.iter().map(Nest::size_bytes).sum(),
            LaunchWork::Matmul(matmul) => matmul.size_bytes(),
            LaunchWork::Attention(attention) => attention.size_bytes(),
            LaunchWork::Routine { args, inputs, .. } => {
                inputs.capacity() + args.input_shapes.capacity() * size_of::<Shape>()
            }
        }
    }
}

impl Runnable for CpuPlan {
    fn size_bytes(&self) -> usize {
        let works = self.launches.iter().map(|launch| launch.work.size_bytes()).sum::<usize>();
        size_of::<CpuPlan>() + self.launches.capacity() * size_of::<ReadyLaunch>() + works
    }

    fn run(&self, Run { inputs, constants, stage_done, .. }: Run<'_>) -> Result<Outcome> {
        let buffers = self.slots(inputs)?;
        let mut scratch = SmallVec::<[Option<matmul::MatmulScratch>; 8]>::new();
        for launch in &self.launches {
            scratch.push(match &launch.work {
                LaunchWork::Matmul(matmul) => Some(matmul.scratch(&self.cpu.pool)?),
                LaunchWork::Attention(_) | LaunchWork::Routine { .. } | LaunchWork::Loop(_) => None,
            });
        }
        let slots: SmallVec<[*mut u8; 16]> = (buffers.iter().zip(&self.plan.slots))
            .map(|(buffer, slot)| {
                let storage = buffer.storage::<CpuBuffer>().expect("memory of this device");
                assert!(storage.size_bytes() >= slot.size_bytes, "bug in the planner: a slot larger than its memory");
                storage.ptr()
            })
            .collect();
        let n_workers = n_workers(&self.cpu, self.nanos);
        // What each thread needs, then what all share, each on a cache line of its own.
        let rooms_bytes = (n_workers * self.room * 4).next_multiple_of(LINE);
        let beside = self.cpu.pool.take(rooms_bytes.saturating_add(self.sums_bytes))?;
        let tiles = self.cpu.pool.take_uncounted(n_workers * self.frame * 4)?;
        let rooms = PackBuffers { first: beside.ptr().cast(), size: self.room };
        let frames = PackBuffers { first: tiles.ptr().cast(), size: self.frame };
        let sums = beside.ptr().wrapping_add(rooms_bytes);
        let memory = CpuRunMemory { slots, scratch, sums, rooms, frames };
        let counters = &self.cpu.counters;
        let outputs: Vec<Buffer> = self.plan.outputs.iter().map(|o| buffers[o.0 as usize].clone()).collect();
        let faults = KernelFaults::default();
        let n_stages = self.plan.stages.len();
        let mut start = 0;
        for (stage, end) in self.plan.stages.iter().enumerate() {
            let which = start..end.launches;
            start = end.launches;
            if !which.is_empty() || n_stages == 1 {
                Counters::count(&counters.submits, 1);
                Counters::count(&counters.dispatches, which.len() as u64);
                let run = || self.run_launches(which, &memory, constants, &faults);
                match n_workers {
                    1 => threads::alone(run),
                    _ => self.cpu.threads.enter(run),
                }
            }
            // After a failure later stages run all the same: what they commit must become what it was before.
            if stage + 1 < n_stages && !faults.any() {
                stage_done(stage, &outputs);
            }
        }
        let custom = |(op, text): (String, String)| {
            Failure::Custom(Error::custom(op, format!("the function given for the CPU panicked: {text}")))
        };
        let failed = faults.panicked().map(custom).or(faults.failed().map(Failure::Index));
        Ok(Outcome { outputs, failed })
    }
}

/// The memory of a run, for whichever thread runs the plan.
struct CpuRunMemory {
    slots: SmallVec<[*mut u8; 16]>,
    scratch: SmallVec<[Option<matmul::MatmulScratch>; 8]>,
    /// For sums that have no place in a slot and for what routines keep: one launch at a time uses it.
    sums: *mut u8,
    /// For the operands of products, laid out anew: a part for each worker.
    rooms: PackBuffers,
    /// For tiles, likewise.
    frames: PackBuffers,
}

/// How many threads take part in a plan that takes about so long on one.
fn n_workers(cpu: &CpuShared, nanos: f64) -> usize {
    if nanos < INLINE_NANOS { 1 } else { cpu.threads.count() }
}
