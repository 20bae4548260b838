//! Running a plan: memory for its slots, then launch after launch. Knows plans and the forms of kernels.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Shared;
use super::gemm::Rooms;
use super::matmul::{self, Matmul};
use super::memory::Storage;
use super::nest::{Form, Nest};
use super::program::{Code, Program};
use super::revert::reverted;
use super::routines::{self, Routine, RoutineCall};
use super::tile::{Bound, Faults};
use super::{map, reduce};
use crate::backend::{Counters, Failure, Outcome, Run, Runnable};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Buffer;
use crate::kernel::{Kernel, RoutineArgs};
use crate::plan::{Launch, Plan, SlotId, SlotKind};

/// A plan that takes less than this altogether is run where it was asked for: waking threads costs as much.
const INLINE_NANOS: f64 = 60_000.0;

/// A plan made ready.
pub struct Ready {
    cpu: Arc<Shared>,
    plan: Arc<Plan>,
    launches: Vec<ReadyLaunch>,
    /// About how long it takes on one thread.
    nanos: f64,
    /// Values that each thread needs room for, in products.
    room: usize,
    /// Bytes for the sums of the product that needs most.
    sums_bytes: usize,
}

struct ReadyLaunch {
    work: Work,
    nanos: f64,
    /// Whether it stores something only if no check has failed.
    commits: bool,
}

enum Work {
    Loop(Box<Nest>),
    Matmul(Box<Matmul>),
    Routine { routine: &'static Routine, args: RoutineArgs, inputs: Vec<DType>, output: DType },
}

impl Ready {
    /// Binds every launch of a plan to its program.
    pub fn new(cpu: Arc<Shared>, plan: Arc<Plan>) -> Result<Ready> {
        let launches = plan.launches.iter().map(|l| ready(&cpu, l)).collect::<Result<Vec<ReadyLaunch>>>()?;
        let nanos = launches.iter().map(|l| l.nanos).sum();
        let products = || launches.iter().filter_map(|l| if let Work::Matmul(m) = &l.work { Some(m) } else { None });
        let room = products().map(|m| m.room()).max().unwrap_or(0);
        let sums_bytes = products().map(|m| m.sums_bytes()).max().unwrap_or(0);
        Ok(Ready { cpu, plan, launches, nanos, room, sums_bytes })
    }

    /// The memory of every slot. All of it before anything runs, so that running out of it spoils nothing.
    fn slots(&self, inputs: &[Buffer]) -> Result<SmallVec<[Buffer; 16]>> {
        let slot = |slot: &crate::plan::Slot| match slot.kind {
            SlotKind::Input { idx, .. } => Ok(inputs[idx as usize].clone()),
            SlotKind::Output | SlotKind::Temp => Ok(Buffer::new(self.cpu.pool.take(slot.size_bytes)?)),
        };
        self.plan.slots.iter().map(slot).collect()
    }

    fn run_all(&self, memory: &Memory, constants: &[u32], faults: &Faults) {
        let Memory { slots, scratch, sums, rooms } = memory;
        for (idx, (ready, launch)) in self.launches.iter().zip(&self.plan.launches).enumerate() {
            let at = |id: &SlotId| slots[id.0 as usize];
            if ready.commits && faults.any() {
                self.revert(launch, slots, constants, faults, idx);
                continue;
            }
            match &ready.work {
                Work::Routine { .. } => self.run_routine(ready, launch, slots, idx, faults),
                Work::Loop(nest) => self.run_loop(nest, launch, slots, constants, faults, idx),
                Work::Matmul(matmul) => {
                    let mut bound = Bound::new(&matmul.nest, constants, faults, idx);
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

    /// Leaves what a launch commits as it was.
    fn revert(&self, launch: &Launch, slots: &[*mut u8], constants: &[u32], faults: &Faults, idx: usize) {
        let launch = reverted(launch);
        let Kernel::Loop(body) = &launch.kernel else { unreachable!("made as a loop") };
        let aliased: Vec<bool> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
        let nest = Nest::new(Arc::new(Code::new(body)), &launch.args, &aliased);
        self.run_loop(&nest, &launch, slots, constants, faults, idx);
    }

    fn run_loop(
        &self,
        nest: &Nest,
        launch: &Launch,
        slots: &[*mut u8],
        constants: &[u32],
        faults: &Faults,
        idx: usize,
    ) {
        let at = |id: &SlotId| slots[id.0 as usize];
        let mut bound = Bound::new(nest, constants, faults, idx);
        bound.inputs.extend(launch.reads.iter().map(|r| at(r).cast_const()));
        bound.outputs.extend(launch.writes.iter().map(at));
        // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
        unsafe {
            bound.evaluate_uniforms();
            match nest.form {
                Form::Map(_) => map::run(&bound),
                _ => reduce::run(&bound),
            }
        }
    }

    fn run_routine(&self, ready: &ReadyLaunch, launch: &Launch, slots: &[*mut u8], idx: usize, faults: &Faults) {
        let Work::Routine { routine, args, inputs, output } = &ready.work else { unreachable!("called for routines") };
        // SAFETY: slots have these sizes; a routine's inputs and output are different slots.
        let bytes = |id: &SlotId, n_elems: usize, dtype: DType| unsafe {
            std::slice::from_raw_parts_mut(slots[id.0 as usize], n_elems * dtype.size())
        };
        let reads: SmallVec<[(&[u8], DType); 4]> = (launch.reads.iter().zip(inputs).zip(&args.input_shapes))
            .map(|((slot, dtype), shape)| (&*bytes(slot, shape.n_elems(), *dtype), *dtype))
            .collect();
        let call = RoutineCall {
            inputs: &reads,
            output: bytes(&launch.writes[0], args.output_shape.n_elems(), *output),
            output_dtype: *output,
            args,
        };
        if let Err(failed) = (routine.run)(call) {
            faults.index_out_of_range(idx, 0, failed);
        }
    }
}

fn ready(cpu: &Shared, launch: &Launch) -> Result<ReadyLaunch> {
    let aliased: Vec<bool> = launch.writes.iter().map(|w| launch.reads.contains(w)).collect();
    let (work, nanos) = match &*cpu.program(&launch.kernel) {
        Program::Loop(code) => {
            let nest = Nest::new(code.clone(), &launch.args, &aliased);
            let nanos = nest.nanos;
            (Work::Loop(Box::new(nest)), nanos)
        }
        Program::Matmul(code) => {
            let matmul = Matmul::new(code.clone(), &launch.args, &aliased);
            let nanos = matmul.nanos;
            (Work::Matmul(Box::new(matmul)), nanos)
        }
        Program::Routine(kernel) => {
            let Some(routine) = routines::find(kernel.row) else {
                return Err(Error::unsupported(kernel.row.name, "the CPU has no such routine"));
            };
            let args = launch.args.routine.clone().expect("a routine's launch has its numbers");
            let n_elems = args.output_shape.n_elems() + args.input_shapes.iter().map(|s| s.n_elems()).sum::<usize>();
            let work = Work::Routine { routine, args, inputs: kernel.inputs.clone(), output: kernel.outputs[0] };
            // Routines share out their own work; sorting is the dearest.
            (work, n_elems as f64 * 10.0)
        }
    };
    let commits = match &launch.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => body.commits(),
        Kernel::Routine(_) => false,
    };
    Ok(ReadyLaunch { work, nanos, commits })
}

impl Runnable for Ready {
    fn run(&self, Run { inputs, constants, .. }: Run<'_>) -> Result<Outcome> {
        let buffers = self.slots(inputs)?;
        let mut scratch = SmallVec::<[Option<matmul::Scratch>; 8]>::new();
        for launch in &self.launches {
            scratch.push(match &launch.work {
                Work::Matmul(matmul) => Some(matmul.scratch(&self.cpu.pool)?),
                Work::Routine { routine, args, .. } => {
                    self.cpu.pool.spare((routine.scratch)(args))?;
                    None
                }
                Work::Loop(_) => None,
            });
        }
        let slots: SmallVec<[*mut u8; 16]> = (buffers.iter().zip(&self.plan.slots))
            .map(|(buffer, slot)| {
                let storage = buffer.storage::<Storage>().expect("memory of this device");
                assert!(storage.size_bytes() >= slot.size_bytes, "bug in the planner: a slot larger than its memory");
                storage.ptr()
            })
            .collect();
        let counters = &self.cpu.counters;
        Counters::count(&counters.submits, 1);
        Counters::count(&counters.dispatches, self.launches.len() as u64);
        let faults = Faults::default();
        let alone = self.nanos < INLINE_NANOS;
        let n_workers = if alone { 1 } else { self.cpu.threads.count() };
        let rooms = match self.room {
            0 => None,
            room => Some(self.cpu.pool.take(n_workers * room * 4)?),
        };
        let sums = match self.sums_bytes {
            0 => None,
            bytes => Some(self.cpu.pool.take(bytes)?),
        };
        let sums_at = sums.as_ref().map_or(std::ptr::null_mut(), |sums| sums.ptr());
        let first = rooms.as_ref().map_or(std::ptr::null_mut(), |rooms| rooms.ptr().cast());
        let memory = Memory { slots, scratch, sums: sums_at, rooms: Rooms { first, size: self.room } };
        let run = || self.run_all(&memory, constants, &faults);
        if alone {
            run()
        } else {
            self.cpu.threads.enter(run)
        }
        let custom = |op: String| Failure::Custom(Error::custom(op, "the function given for the CPU panicked"));
        let failed = faults.panicked().map(custom).or(faults.failed().map(Failure::Index));
        let outputs = self.plan.outputs.iter().map(|o| buffers[o.0 as usize].clone()).collect();
        Ok(Outcome { outputs, failed })
    }
}

/// The memory of a run, for whichever thread runs the plan.
struct Memory {
    slots: SmallVec<[*mut u8; 16]>,
    scratch: SmallVec<[Option<matmul::Scratch>; 8]>,
    /// For sums that have no place in a slot: one product at a time uses it.
    sums: *mut u8,
    rooms: Rooms,
}
