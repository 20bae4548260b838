//! Running a plan: memory for its slots, then launch after launch. Knows plans and the forms of kernels.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::gemm::PackBuffers;
use super::launches::{CpuSchedule, LaunchSchedule, Reverted, sums_bytes};
use super::matmul::MatmulScratch;
use super::memory::CpuBuffer;
use super::program::CpuProgram;
use super::routines::{RoutineCall, RoutineScratch};
use super::schedule::{Nest, Traversal};
use super::tile::{BoundNest, KernelFaults};
use super::{CpuShared, HeldProgram};
use super::{map, reduce, threads};
use crate::backend::{Counters, Failure, Outcome, Run, Runnable};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Buffer;
use crate::kernel::Kernel;
use crate::log::{self, Topic};
use crate::plan::{Launch, Plan, SlotId, SlotKind};
use crate::target::CpuTarget;

/// A plan made ready.
pub struct CpuPlan {
    cpu: Arc<CpuShared>,
    plan: Arc<Plan>,
    /// Held so that other plans find them.
    _programs: Vec<HeldProgram>,
    schedule: CpuSchedule,
}

/// Runs a map or a reduction.
fn run_loop(
    nest: &Nest,
    launch: &Launch,
    memory: &CpuRunMemory,
    sums: *mut u8,
    constants: &[u32],
    faults: &KernelFaults,
    idx: usize,
) {
    let at = |id: &SlotId| memory.slots[id.0 as usize];
    let mut bound = BoundNest::new(nest, constants, faults, idx, memory.frames);
    bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
    bound.outputs.extend(launch.writes.iter().map(at));
    // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
    unsafe {
        bound.evaluate_uniforms();
        match nest.form {
            Traversal::Map(_) => map::run(&bound),
            _ => reduce::run(&bound, sums),
        }
    }
}

impl CpuPlan {
    /// Binds every launch of a plan to its program.
    pub fn new(cpu: Arc<CpuShared>, plan: Arc<Plan>, target: &CpuTarget) -> Result<CpuPlan> {
        let mut programs: Vec<HeldProgram> = Vec::with_capacity(plan.launches.len());
        let mut with_program = |kernel: &Kernel, use_it: &mut dyn FnMut(&CpuProgram)| {
            let program = cpu.program(kernel);
            use_it(&program);
            programs.push(program);
        };
        let schedule = CpuSchedule::new(&plan, &mut with_program, target)?;
        log::show(Topic::Schedule, || schedule.to_string());
        Ok(CpuPlan { cpu, plan, _programs: programs, schedule })
    }

    /// The memory of every slot, the schedule's last. All of it before anything runs, so that running out of it spoils
    /// nothing.
    fn slots(&self, inputs: &[Buffer]) -> Result<SmallVec<[Buffer; 16]>> {
        let take = |size_bytes: usize, is_temp: bool| {
            if is_temp {
                Counters::count(&self.cpu.counters.bytes_temporary, size_bytes as u64);
            }
            Ok(Buffer::new(self.cpu.pool.take(size_bytes)?))
        };
        let slot = |slot: &crate::plan::Slot| match slot.kind {
            SlotKind::Input { idx, .. } => Ok(inputs[idx as usize].clone()),
            SlotKind::Output | SlotKind::Temp => take(slot.size_bytes, slot.kind == SlotKind::Temp),
        };
        let extra = self.schedule.scratch.extra.iter().map(|size_bytes| take(*size_bytes, true));
        self.plan.slots.iter().map(slot).chain(extra).collect()
    }

    fn run_launches(&self, which: Range<usize>, memory: &CpuRunMemory, constants: &[u32], faults: &KernelFaults) {
        let launches = self.schedule.launches.iter().zip(&self.plan.launches).enumerate();
        for (idx, (scheduled, launch)) in launches.take(which.end).skip(which.start) {
            let at = |id: &SlotId| memory.slots[id.0 as usize];
            let mut pieces = self.schedule.scratch.of[idx].iter().map(at);
            let mut piece = |size_bytes: usize| match size_bytes {
                0 => std::ptr::null_mut(),
                _ => pieces.next().expect("a slot for every piece"),
            };
            if let Some(Reverted { launch, nest }) = scheduled.reverted.as_ref().filter(|_| faults.any()) {
                run_loop(nest, launch, memory, piece(nest.sums_bytes()), constants, faults, idx);
                continue;
            }
            match &scheduled.work {
                LaunchSchedule::Routine { routine, args, .. } => {
                    let size_bytes = (routine.scratch)(args, self.schedule.n_workers);
                    // SAFETY: a slot of that size, or nothing; it starts on a cache line, and launches run one after another.
                    let scratch = unsafe { RoutineScratch::new(piece(size_bytes), size_bytes) };
                    self.run_routine(&scheduled.work, launch, memory, scratch, (idx, faults));
                }
                LaunchSchedule::Loop(nests) => {
                    let sums = piece(sums_bytes(nests));
                    nests.iter().for_each(|nest| run_loop(nest, launch, memory, sums, constants, faults, idx));
                }
                LaunchSchedule::Attention(attention) => {
                    let bind = |nest| {
                        let mut bound = BoundNest::new(nest, constants, faults, idx, memory.frames);
                        bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
                        bound.outputs.extend(launch.writes.iter().map(at));
                        bound
                    };
                    let parts = piece(attention.parts_bytes());
                    let rooms = piece(attention.room() * self.schedule.n_workers * 4);
                    let rooms = PackBuffers { first: rooms.cast(), size: attention.room() };
                    // SAFETY: slots have the sizes the plan and its schedule give them, and accesses stay within.
                    unsafe { attention.run(bind, constants, parts, rooms) };
                }
                LaunchSchedule::Matmul(matmul) => {
                    let mut bound = BoundNest::new(&matmul.nest, constants, faults, idx, memory.frames);
                    bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
                    bound.outputs.extend(launch.writes.iter().map(at));
                    let [a, b, parts, sums, rooms] = matmul.scratch_bytes(self.schedule.n_workers).map(&mut piece);
                    // SAFETY: slots have the sizes the plan and its schedule give them, and accesses stay within.
                    unsafe {
                        bound.evaluate_uniforms();
                        matmul.run(&bound, MatmulScratch { a, b, parts, sums, rooms });
                    }
                }
            }
        }
    }

    fn run_routine(
        &self,
        work: &LaunchSchedule,
        launch: &Launch,
        memory: &CpuRunMemory,
        scratch: RoutineScratch,
        (idx, faults): (usize, &KernelFaults),
    ) {
        let LaunchSchedule::Routine { routine, args, inputs, output } = work else {
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
            scratch,
            n_workers: self.schedule.n_workers,
        };
        if let Err(failed) = (routine.run)(call) {
            faults.index_out_of_range(idx, 0, failed);
        }
    }
}

impl Runnable for CpuPlan {
    fn size_bytes(&self) -> usize {
        size_of::<CpuPlan>() + self.schedule.size_bytes()
    }

    fn run(&self, Run { inputs, constants, stage_done, .. }: Run<'_>) -> Result<Outcome> {
        let buffers = self.slots(inputs)?;
        let sizes =
            self.plan.slots.iter().map(|slot| slot.size_bytes).chain(self.schedule.scratch.extra.iter().copied());
        let slots: SmallVec<[*mut u8; 16]> = (buffers.iter().zip(sizes))
            .map(|(buffer, size_bytes)| {
                let storage = buffer.storage::<CpuBuffer>().expect("memory of this device");
                assert!(storage.size_bytes() >= size_bytes, "bug in the planner: a slot larger than its memory");
                storage.ptr()
            })
            .collect();
        let CpuSchedule { n_workers, frame, .. } = self.schedule;
        let tiles = self.cpu.pool.take_uncounted(n_workers * frame * 4)?;
        let memory = CpuRunMemory { slots, frames: PackBuffers { first: tiles.ptr().cast(), size: frame } };
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
    /// The plan's, then the schedule's.
    slots: SmallVec<[*mut u8; 16]>,
    /// For tiles: a part for each worker.
    frames: PackBuffers,
}
