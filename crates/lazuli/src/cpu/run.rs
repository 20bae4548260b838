//! Running a plan: memory for its slots, then launch after launch. Knows plans and the forms of kernels.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::gemm::PackBuffers;
use super::launches::{CpuSchedule, LaunchSchedule, MovedBinding, Reverted, sums_bytes};
use super::matmul::{Matmul, MatmulScratch};
use super::memory::CpuBuffer;
use super::packed::PackedMemory;
use super::program::CpuProgram;
use super::raw::SharedLanes;
use super::routines::{RoutineCall, RoutineScratch};
use super::schedule::{Nest, Traversal};
use super::tile::{BoundNest, KernelFaults};
use super::{CpuShared, HeldProgram};
use super::{map, reduce, threads};
use crate::backend::{Counters, Failure, InputNodes, Outcome, Run, Runnable};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Buffer, Buffers};
use crate::kernel::Kernel;
use crate::log::{self, Topic};
use crate::plan::{Launch, Plan, Slot, SlotId, SlotKind};
use crate::target::CpuTarget;

/// A plan made ready.
pub struct CpuPlan {
    cpu: Arc<CpuShared>,
    plan: Arc<Plan>,
    /// Held so that other plans find them.
    _programs: Vec<HeldProgram>,
    schedule: CpuSchedule,
    outputs: Vec<OutputMemory>,
    /// The inputs that products read unpacked.
    read_as_they_are: Vec<u32>,
}

/// Where the memory of an output comes from.
enum OutputMemory {
    /// This input's is overwritten.
    Input(u32),
    /// This one of the blocks that a run takes.
    Taken(usize),
}

impl OutputMemory {
    /// Where that of each output of a plan comes from. A run takes a block for every slot that is no input, in order.
    fn of(plan: &Plan) -> Vec<OutputMemory> {
        let mut n_taken = 0;
        let number = |slot: &Slot| {
            n_taken += !matches!(slot.kind, SlotKind::Input { .. }) as usize;
            n_taken
        };
        let numbers: Vec<usize> = plan.slots.iter().map(number).collect();
        let of = |SlotId(slot): &SlotId| match plan.slots[*slot as usize].kind {
            SlotKind::Input { idx, .. } => OutputMemory::Input(idx),
            SlotKind::Output | SlotKind::Temp => OutputMemory::Taken(numbers[*slot as usize] - 1),
        };
        plan.outputs.iter().map(of).collect()
    }
}

/// A launch with what it runs on.
#[derive(Clone, Copy)]
struct RunningLaunch<'a> {
    launch: &'a Launch,
    moved: &'a [MovedBinding],
    memory: &'a CpuRunMemory<'a>,
    constants: &'a [u32],
    faults: &'a KernelFaults,
    idx: usize,
}

impl<'a> RunningLaunch<'a> {
    /// A loop of it, bound to its memory.
    fn bind(&self, nest: &'a Nest) -> BoundNest<'a> {
        let at = |id: &SlotId| self.memory.slots[id.0 as usize];
        let mut bound = BoundNest::new(nest, self.constants, self.faults, self.idx, self.memory.frames);
        // One by one: for the few that there are, extending costs more than what it adds.
        for slot in &self.launch.reads {
            bound.inputs.push(at(slot).cast_const());
        }
        for slot in &self.launch.writes {
            bound.outputs.push(at(slot));
        }
        for MovedBinding { binding, constant, stride_bytes } in self.moved {
            let by = self.constants[*constant as usize] as isize * stride_bytes;
            // All positions are inside the slot, as the verifier has seen and the op has checked; what is added to the
            // start is not read before the rest of an access is.
            match binding.checked_sub(self.launch.reads.len()) {
                None => bound.inputs[*binding] = bound.inputs[*binding].wrapping_offset(by),
                Some(output) => bound.outputs[output] = bound.outputs[output].wrapping_offset(by),
            }
        }
        bound
    }
}

/// Runs a map or a reduction.
fn run_loop(running: &RunningLaunch, nest: &Nest, sums: *mut u8) {
    let mut bound = running.bind(nest);
    // SAFETY: slots have the sizes the plan gives them, and its accesses stay within.
    unsafe {
        bound.evaluate_uniforms();
        match nest.form {
            Traversal::Map(_) => map::run(&bound),
            _ => reduce::run(&bound, SharedLanes::new(sums, nest.sums_bytes())),
        }
    }
}

impl CpuPlan {
    /// Binds every launch of a plan to its program.
    pub fn new(cpu: Arc<CpuShared>, plan: Arc<Plan>, target: &CpuTarget) -> Result<CpuPlan> {
        let mut programs: Vec<HeldProgram> = Vec::with_capacity(plan.launches.len());
        let mut with_program = |kernel: &Kernel, compiled: Option<&_>, use_it: &mut dyn FnMut(&CpuProgram)| {
            let program = cpu.program(kernel, compiled);
            use_it(&program);
            programs.push(program);
        };
        let schedule = CpuSchedule::new(&plan, &mut with_program, target)?;
        log::show(Topic::Schedule, || schedule.to_string());
        let (outputs, read_as_they_are) = (OutputMemory::of(&plan), schedule.inputs_read_as_they_are(&plan));
        Ok(CpuPlan { cpu, plan, _programs: programs, schedule, outputs, read_as_they_are })
    }

    /// The memory of every slot, the schedule's last. All of it before anything runs, so that running out of it spoils
    /// nothing. `taken` holds what is not an input, in order.
    fn slots(&self, inputs: &[Buffer], taken: &mut Buffers) -> Result<SlotPointers> {
        let mut slots = SlotPointers::new();
        let mut take = |size_bytes: usize, is_temp: bool| {
            if is_temp {
                Counters::count(&self.cpu.counters.bytes_temporary, size_bytes as u64);
            }
            let storage = self.cpu.pool.take(size_bytes)?;
            let ptr = storage.ptr();
            taken.push(Buffer::new(storage));
            Ok::<_, Error>(ptr)
        };
        for slot in &self.plan.slots {
            slots.push(match slot.kind {
                SlotKind::Input { idx, .. } => {
                    let storage = inputs[idx as usize].storage::<CpuBuffer>().expect("memory of this device");
                    let is_large_enough = storage.size_bytes() >= slot.size_bytes;
                    assert!(is_large_enough, "bug in the planner: a slot larger than its memory");
                    storage.ptr()
                }
                SlotKind::Output => take(slot.size_bytes, false)?,
                SlotKind::Temp => take(slot.size_bytes, true)?,
            });
        }
        for size_bytes in &self.schedule.scratch.extra {
            slots.push(take(*size_bytes, true)?);
        }
        Ok(slots)
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
            let running = RunningLaunch { launch, moved: &scheduled.moved, memory, constants, faults, idx };
            let _timed = LaunchTimer::start(launch);
            if let Some(Reverted { launch, moved, nest }) = scheduled.reverted.as_deref().filter(|_| faults.any()) {
                run_loop(&RunningLaunch { launch, moved, ..running }, nest, piece(nest.sums_bytes()));
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
                    nests.iter().for_each(|nest| run_loop(&running, nest, sums));
                }
                LaunchSchedule::Attention(attention) => {
                    let parts = piece(attention.parts_bytes());
                    let rooms = piece(attention.room() * self.schedule.n_workers * 4);
                    let rooms = PackBuffers { first: rooms.cast(), size: attention.room() };
                    // SAFETY: slots have the sizes the plan and its schedule give them, and accesses stay within.
                    unsafe { attention.run(|nest| running.bind(nest), constants, parts, rooms) };
                }
                LaunchSchedule::Matmul(matmul) => {
                    let pieces = scheduled.matmul_scratch.map(&mut piece);
                    self.run_matmul(matmul, &running, MatmulScratch::new(pieces));
                }
                LaunchSchedule::Grouped(parts) => {
                    let pieces = scheduled.matmul_scratch.map(&mut piece);
                    let mut products: SmallVec<[(&Matmul, RunningLaunch); 4]> = SmallVec::new();
                    for (part, launch) in parts.iter().zip(&launch.parts) {
                        let LaunchSchedule::Matmul(matmul) = &part.work else { unreachable!("products are grouped") };
                        products.push((matmul, RunningLaunch { launch, moved: &part.moved, ..running }));
                    }
                    self.run_grouped(&products, MatmulScratch::new(pieces));
                }
            }
        }
    }

    fn run_matmul(&self, matmul: &Matmul, running: &RunningLaunch, scratch: MatmulScratch) {
        let mut bound = running.bind(&matmul.nest);
        // SAFETY: slots have the sizes the plan and its schedule give them, and accesses stay within.
        unsafe {
            for (made, to) in matmul.made.iter().zip([scratch.a, scratch.b]) {
                made.iter().for_each(|nest| Matmul::make_operand(running.bind(nest), to));
            }
            bound.evaluate_uniforms();
            let kept = self.packed(matmul, running);
            let kept = kept.as_ref().map_or(std::ptr::null(), |kept| kept.ptr().cast_const());
            matmul.run(&bound, scratch, kept);
        }
    }

    /// Runs products that share their left operand: at the same time if they can be, else one after another.
    fn run_grouped<'a>(&self, products: &[(&'a Matmul, RunningLaunch<'a>)], scratch: MatmulScratch) {
        if products.iter().all(|(matmul, _)| matmul.reads_blocks()) {
            let mut bound: SmallVec<[(&Matmul, BoundNest); 4]> = SmallVec::new();
            for (matmul, running) in products {
                bound.push((matmul, running.bind(&matmul.nest)));
            }
            // SAFETY: slots have the sizes the plan and its schedule give them, and accesses stay within.
            unsafe {
                bound.iter_mut().for_each(|(_, nest)| nest.evaluate_uniforms());
                if Matmul::run_blocks(&bound, scratch) {
                    return;
                }
            }
        }
        products.iter().for_each(|(matmul, running)| self.run_matmul(matmul, running, scratch));
    }

    /// The packed form of an operand of a product that is an input of the plan, if it is kept.
    fn packed(&self, matmul: &Matmul, running: &RunningLaunch) -> Option<Arc<PackedMemory>> {
        let operand = matmul.packable.as_ref()?;
        if running.moved.iter().any(|moved| moved.binding == operand.idx) {
            return None;
        }
        let (slot, memory) = (running.launch.reads[operand.idx], running.memory);
        // What is donated may be overwritten, and is gone after this run.
        let SlotKind::Input { idx, donated: false } = self.plan.slots[slot.0 as usize].kind else { return None };
        let from = memory.slots[slot.0 as usize];
        // SAFETY: the slot has the size the plan gives it, and the memory is as large as asked for.
        let pack = |to: *mut f32| unsafe { matmul.pack(from, to) };
        self.cpu.packed.find(memory.nodes.get(idx as usize)?, &operand.key, operand.n_values, pack)
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
        size_of::<CpuPlan>()
            + self.schedule.size_bytes()
            + self.outputs.capacity() * size_of::<OutputMemory>()
            + self.read_as_they_are.capacity() * size_of::<u32>()
    }

    fn run(&self, Run { inputs, nodes, constants, stage_done, .. }: Run<'_>) -> Result<Outcome> {
        self.cpu.packed.begin_run();
        let read = self.read_as_they_are.iter().filter_map(|idx| nodes.get(*idx as usize));
        read.for_each(|node| self.cpu.packed.pass_over(node));
        let mut taken = Buffers::new();
        let slots = self.slots(inputs, &mut taken)?;
        let CpuSchedule { n_workers, frame, .. } = self.schedule;
        let tiles = self.cpu.pool.take_uncounted(n_workers * frame * 4)?;
        let frames = PackBuffers { first: tiles.ptr().cast(), size: frame };
        let memory = CpuRunMemory { slots, frames, nodes };
        let counters = &self.cpu.counters;
        let mut outputs = Buffers::new();
        for output in &self.outputs {
            outputs.push(match output {
                OutputMemory::Input(idx) => inputs[*idx as usize].clone(),
                OutputMemory::Taken(idx) => taken[*idx].clone(),
            });
        }
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

/// Says how long a launch took when it is dropped.
struct LaunchTimer<'a> {
    launch: &'a Launch,
    start: Instant,
}

impl LaunchTimer<'_> {
    /// A timer, if `LAZULI_LOG=time` asks for times.
    fn start(launch: &Launch) -> Option<LaunchTimer<'_>> {
        log::wants(Topic::Time).then(|| LaunchTimer { launch, start: Instant::now() })
    }
}

impl Drop for LaunchTimer<'_> {
    fn drop(&mut self) {
        let micros = self.start.elapsed().as_secs_f64() * 1e6;
        log::show(Topic::Time, || format!("{micros:>10.1} µs  {}", self.launch.text()));
    }
}

/// Where the memory of each slot starts.
type SlotPointers = SmallVec<[*mut u8; 16]>;

/// The memory of a run, for whichever thread runs the plan.
struct CpuRunMemory<'a> {
    /// The plan's, then the schedule's.
    slots: SlotPointers,
    /// For tiles: a part for each worker.
    frames: PackBuffers,
    /// The nodes that inputs are.
    nodes: InputNodes<'a>,
}
