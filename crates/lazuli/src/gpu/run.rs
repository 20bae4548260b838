//! Running a plan: memory for its slots, then for each stage one encoder, one pass, one submit. Returns when all work is
//! handed over; what comes of it is known when something is read.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::fault::{no_memory, refused};
use super::memory::{Block, Staging};
use super::open_device::OpenDevice;
use super::ready::{BuiltPlan, Places};
use super::status::{self, Check, Status};
use super::storage::GpuBuffer;
use super::wait::may_wait;
use super::{GpuShared, profile};
use crate::backend::{Counters, Outcome, Run, Runnable};
use crate::error::Result;
use crate::graph::{Buffer, Buffers};
use crate::plan::{Plan, SlotKind};

/// Results up to this size are brought along when they will be read at once.
const BRING_ALONG: usize = 64 << 20;

/// No GPU has this much memory.
const MOST_BYTES: usize = if usize::BITS > 42 { 1usize.unbounded_shl(42) } else { usize::MAX };

/// A plan made ready.
pub struct GpuPlan {
    gpu: Arc<GpuShared>,
    plan: Arc<Plan>,
    checks: Arc<[Check]>,
    /// Per slot, whether any launch writes it.
    written: Vec<bool>,
    /// Per output, the stage that makes it.
    made_in: Vec<usize>,
    built: Mutex<Option<Arc<BuiltPlan>>>,
}

/// The memory of one run.
struct GpuRunMemory {
    /// The plan's, then those that passes need beside them.
    slots: SmallVec<[Arc<Block>; 16]>,
    status: Option<Arc<Block>>,
    /// Inputs that are overwritten while somebody else holds their memory: from, to.
    copies: Vec<(Arc<Block>, Arc<Block>)>,
    /// Checks of earlier runs that the inputs come from.
    inherited: Vec<Arc<Status>>,
}

impl GpuPlan {
    /// Compiles a plan.
    pub fn new(gpu: Arc<GpuShared>, plan: Arc<Plan>) -> Result<GpuPlan> {
        let live = gpu.live()?;
        live.has_room(&plan)?;
        let built = Arc::new(BuiltPlan::new(&live, &plan)?);
        let mut written = vec![false; plan.slots.len()];
        plan.launches.iter().flat_map(|l| &l.writes).for_each(|w| written[w.0 as usize] = true);
        let checks = status::checks(&plan);
        let made_in = plan.made_in();
        Ok(GpuPlan { gpu, plan, checks, written, made_in, built: Mutex::new(Some(built)) })
    }

    /// The plan compiled for the device as it is now: again, if it was lost and opened anew.
    fn built(&self) -> Result<Arc<BuiltPlan>> {
        let live = self.gpu.live()?;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match &*built {
            Some(built) if built.live.id == live.id => Ok(built.clone()),
            _ => {
                let new = Arc::new(BuiltPlan::new(&live, &self.plan)?);
                *built = Some(new.clone());
                Ok(new)
            }
        }
    }

    /// All the memory of a run, before anything of it is recorded.
    fn memory(&self, built: &BuiltPlan, run: &Run<'_>) -> Result<GpuRunMemory> {
        let live = &built.live;
        let mut copies = Vec::new();
        let mut inherited: Vec<Arc<Status>> = Vec::new();
        let mut slots: SmallVec<[Arc<Block>; 16]> = SmallVec::new();
        for (slot, written) in self.plan.slots.iter().zip(&self.written) {
            let SlotKind::Input { idx, .. } = slot.kind else {
                slots.push(match slot.kind {
                    SlotKind::Temp => live.take_temporary(slot.size_bytes)?,
                    _ => live.take(slot.size_bytes)?,
                });
                continue;
            };
            let storage = storage(&run.inputs[idx as usize])?;
            // What is committed must be good. Checks of other runs are not this run's to ask on the device, so they are
            // waited for, where that is possible.
            if self.plan.commits && storage.unresolved()?.next().is_some() && may_wait().is_ok() {
                live.wait()?;
            }
            for status in storage.unresolved()? {
                if !inherited.iter().any(|s| Arc::ptr_eq(s, status)) {
                    inherited.push(status.clone());
                }
            }
            let block = storage.block(live)?;
            // The storage and this run hold it; whoever else does must not see it change.
            let is_shared = Arc::strong_count(&block) > 2;
            // A reader that has let go of it was done with it before that.
            fence(Ordering::Acquire);
            if *written && (is_shared || block.is_foreign()) {
                let own = live.take(slot.size_bytes)?;
                copies.push((block, own.clone()));
                slots.push(own);
            } else {
                slots.push(block);
            }
        }
        for size_bytes in &built.scratch {
            slots.push(live.take_temporary(*size_bytes)?);
        }
        let n_checks = self.plan.checks.len();
        let status = if built.checks { Some(live.take_temporary(status::size_bytes(n_checks))?) } else { None };
        Ok(GpuRunMemory { slots, status, copies, inherited })
    }

    /// The storage of each output. `statuses` has the checks made until the end of each stage, where there are any.
    fn outputs(
        &self,
        run: &Run<'_>,
        memory: &GpuRunMemory,
        statuses: &[Option<Arc<Status>>],
        mut staged: Vec<StagedCopy>,
    ) -> Buffers {
        let mut made: Vec<(usize, Buffer)> = Vec::new();
        let output = |(output, settled): (usize, bool)| {
            let slot = self.plan.outputs[output].0 as usize;
            if let Some((_, buffer)) = made.iter().find(|(s, _)| *s == slot) {
                return buffer.clone();
            }
            let buffer = match self.plan.slots[slot].kind {
                // Nothing was computed: it is the input itself.
                SlotKind::Input { idx, .. } if !self.written[slot] => run.inputs[idx as usize].clone(),
                _ => {
                    // What was committed is good whatever the checks of this run find.
                    let own = statuses[self.made_in[output]].as_ref().filter(|_| !settled);
                    let pending = memory.inherited.iter().chain(own).cloned().collect();
                    let staged = staged.iter().position(|s| s.slot == slot).map(|at| staged.remove(at).staging);
                    Buffer::new(GpuBuffer::of_block(memory.slots[slot].clone(), pending, staged))
                }
            };
            made.push((slot, buffer.clone()));
            buffer
        };
        let settled = self.plan.settled.iter().copied().chain(std::iter::repeat(false));
        (0..self.plan.outputs.len()).zip(settled).map(output).collect()
    }

    /// Memory for copies of results on their way to the host. Those of the last stage have one if they will be read and
    /// cannot be mapped. Those of earlier stages always have: a copy that is asked for later would wait for what was
    /// submitted meanwhile.
    fn staged(&self, built: &BuiltPlan, run: &Run<'_>) -> Result<Vec<StagedCopy>> {
        let last = built.last_stage();
        let brings_last = run.read && !built.live.target.map_results;
        let mut staged: Vec<StagedCopy> = Vec::new();
        for (slot, stage) in self.plan.outputs.iter().map(|id| id.0 as usize).zip(self.made_in.iter().copied()) {
            let size_bytes = self.plan.slots[slot].size_bytes;
            let is_new = self.written[slot] && !staged.iter().any(|s| s.slot == slot);
            let is_wanted = stage < last || brings_last;
            if is_new && is_wanted && (1..=BRING_ALONG.min(built.live.pool.shard_bytes())).contains(&size_bytes) {
                staged.push(StagedCopy { slot, stage, staging: built.live.staging(size_bytes)? });
            }
        }
        Ok(staged)
    }

    /// Records and submits one stage.
    fn submit_stage(&self, built: &BuiltPlan, stage: usize, of: &RunParts<'_>) {
        let live = &built.live;
        let mut encoder = new_encoder(live);
        let steps = built.steps_of(stage);
        if steps.start == 0 {
            reset(built, of.memory, of.numbers, &mut encoder);
        }
        encoder = record(built, steps, of.memory, of.numbers, encoder, of.timer);
        let copies = || of.staged.iter().filter(|copy| copy.stage == stage);
        for StagedCopy { slot, staging, .. } in copies() {
            let n_bytes = self.plan.slots[*slot].size_bytes.next_multiple_of(4) as u64;
            encoder.copy_buffer_to_buffer(of.memory.slots[*slot].at(0).0, 0, staging.buffer(), 0, n_bytes);
        }
        if let (Some(words), Some(status)) = (&of.words[stage], &of.memory.status) {
            let n_bytes = status::size_bytes(self.plan.checks.len()) as u64;
            encoder.copy_buffer_to_buffer(status.at(0).0, 0, words.buffer(), 0, n_bytes);
        }
        if let Some(timer) = of.timer.filter(|_| stage == built.last_stage()) {
            timer.resolve(&mut encoder);
        }
        let submission = live.submit([encoder.finish()]);
        copies().for_each(|copy| copy.staging.copied_by(&submission));
    }

    /// Records a run into the caller's encoder, who submits it. What it uses is held until that has run.
    pub fn encode(&self, run: Run<'_>, encoder: &mut wgpu::CommandEncoder) -> Result<Outcome> {
        let built = self.built()?;
        let memory = self.memory(&built, &run)?;
        let numbers = built.own_numbers(run.constants)?;
        let n_bytes = status::size_bytes(self.plan.checks.len());
        let words = if built.checks { Some(built.live.staging(n_bytes)?) } else { None };
        built.live.checked("encode", || {
            reset(&built, &memory, &numbers, encoder);
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for step in &built.steps {
                let group = step.bind_group(&built.live, &numbers, &memory.places(), false);
                dispatch(&mut pass, step, &group);
            }
            drop(pass);
            if let (Some(words), Some(status)) = (&words, &memory.status) {
                encoder.copy_buffer_to_buffer(status.at(0).0, 0, words.buffer(), 0, n_bytes as u64);
            }
        })?;
        let status = words.map(|words| Status::of_encoder(run.sites, &self.checks, words, encoder));
        if let Some(status) = &status {
            built.live.note(status);
        }
        Counters::count(&built.live.counters.dispatches, built.steps.len() as u64);
        // One encoder has all stages.
        let outputs = self.outputs(&run, &memory, &vec![status; self.plan.stages.len()], Vec::new());
        let inputs = run.inputs.to_vec();
        encoder.on_submitted_work_done(move || drop((memory, inputs)));
        Ok(Outcome { outputs, failed: None })
    }
}

/// A copy of an output on its way to the host.
struct StagedCopy {
    slot: usize,
    /// The stage that makes the output.
    stage: usize,
    staging: Staging,
}

/// What the stages of one run share.
struct RunParts<'a> {
    memory: &'a GpuRunMemory,
    numbers: &'a wgpu::Buffer,
    staged: &'a [StagedCopy],
    /// Per stage, where the words of checks go that were made until its end.
    words: &'a [Option<Staging>],
    timer: Option<&'a profile::Timer>,
}

impl GpuRunMemory {
    fn places(&self) -> Places<'_> {
        Places { slots: &self.slots, status: self.status.as_ref() }
    }
}

impl Runnable for GpuPlan {
    fn size_bytes(&self) -> usize {
        let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        size_of::<GpuPlan>() + self.written.capacity() + built.as_ref().map_or(0, |built| built.size_bytes())
    }

    fn run(&self, run: Run<'_>) -> Result<Outcome> {
        let built = self.built()?;
        let live = &built.live;
        let memory = self.memory(&built, &run)?;
        let staged = self.staged(&built, &run)?;
        let n_bytes = status::size_bytes(self.plan.checks.len());
        let stages: Vec<usize> = (0..self.plan.stages.len()).filter(|stage| built.is_submitted(*stage)).collect();
        let mut words: Vec<Option<Staging>> = self.plan.stages.iter().map(|_| None).collect();
        if built.checks {
            for stage in &stages {
                words[*stage] = Some(live.staging(n_bytes)?);
            }
        }
        let timer = profile::Timer::wanted(live, built.steps.len())?;

        live.checked("compute", || {
            let numbers = built.numbers(run.constants);
            let parts = RunParts { memory: &memory, numbers, staged: &staged, words: &words, timer: timer.as_ref() };
            stages.iter().for_each(|stage| self.submit_stage(&built, *stage, &parts));
        })?;
        Counters::count(&live.counters.dispatches, built.steps.len() as u64);
        let status = |words: Option<Staging>| words.map(|words| Status::of_run(run.sites, &self.checks, words));
        let statuses: Vec<Option<Arc<Status>>> = words.into_iter().map(status).collect();
        statuses.iter().flatten().for_each(|status| live.note(status));
        if let Some(timer) = timer {
            timer.report(live, &built.steps)?;
        }
        Ok(Outcome { outputs: self.outputs(&run, &memory, &statuses, staged), failed: None })
    }
}

impl OpenDevice {
    /// Memory that is held only while something runs.
    fn take_temporary(self: &Arc<OpenDevice>, size_bytes: usize) -> Result<Arc<Block>> {
        Counters::count(&self.counters.bytes_temporary, size_bytes as u64);
        self.take(size_bytes)
    }

    /// Whether there could be memory for every slot: nobody should print kernels for what can never run.
    fn has_room(&self, plan: &Plan) -> Result<()> {
        let most = if self.target.host_memory { crate::cpu::free_bytes().unwrap_or(MOST_BYTES) } else { MOST_BYTES };
        match plan.slots.iter().map(|slot| slot.size_bytes).max() {
            Some(largest) if largest > most => {
                let gib = |n: usize| n as f64 / (1u64 << 30) as f64;
                let message = format!("{:.1} GiB were wanted, {:.1} GiB are the most", gib(largest), gib(most));
                Err(no_memory("compute", message))
            }
            _ => Ok(()),
        }
    }

    /// Remembers checks that have not reported yet, and of those that have, the ones nobody was told of.
    fn note(&self, status: &Arc<Status>) {
        const MAX_UNTOLD: usize = 64;
        let mut unknown = self.unknown();
        unknown.retain(|s| s.known().is_none_or(|found| found.is_some() && !s.is_told()));
        let n_over = (unknown.len() + 1).saturating_sub(MAX_UNTOLD);
        let mut n_dropped = 0;
        unknown.retain(|s| {
            let drop = n_dropped < n_over && s.known().is_some();
            n_dropped += drop as usize;
            !drop
        });
        unknown.push(status.clone());
    }
}

/// The storage behind a buffer of this device.
pub fn storage(buffer: &Buffer) -> Result<&GpuBuffer> {
    buffer.storage::<GpuBuffer>().ok_or_else(|| refused("compute", "the memory is another device's"))
}

fn new_encoder(live: &OpenDevice) -> wgpu::CommandEncoder {
    live.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("lazuli") })
}

/// What must be so before the first pass.
fn reset(built: &BuiltPlan, memory: &GpuRunMemory, numbers: &wgpu::Buffer, encoder: &mut wgpu::CommandEncoder) {
    for (from, to) in &memory.copies {
        let n_bytes = to.size_bytes().next_multiple_of(4);
        for (buffer, at, start, len) in from.pieces(n_bytes) {
            let (target, target_at) = to.at(start);
            encoder.copy_buffer_to_buffer(buffer, at as u64, target, target_at as u64, len as u64);
        }
    }
    if let Some(status) = &memory.status {
        let n_bytes = status.size_bytes() as u64;
        encoder.copy_buffer_to_buffer(numbers, built.fresh_status as u64, status.at(0).0, 0, n_bytes);
    }
}

/// Records these passes, and submits where the plan is cut; the encoder that is returned is yet to be submitted.
fn record(
    built: &BuiltPlan,
    which: Range<usize>,
    memory: &GpuRunMemory,
    numbers: &wgpu::Buffer,
    mut encoder: wgpu::CommandEncoder,
    timer: Option<&profile::Timer>,
) -> wgpu::CommandEncoder {
    let live = &built.live;
    let mut steps = built.steps.iter().enumerate().take(which.end).skip(which.start).peekable();
    while steps.peek().is_some() {
        let is_timed = timer.is_some();
        let first = steps.peek().map_or(0, |(i, _)| *i);
        let timestamp_writes = timer.map(|t| t.writes(first));
        let desc = wgpu::ComputePassDescriptor { label: Some("lazuli"), timestamp_writes };
        let mut pass = encoder.begin_compute_pass(&desc);
        let mut cut = false;
        for (_, step) in steps.by_ref() {
            let group = step.bind_group(live, numbers, &memory.places(), true);
            dispatch(&mut pass, step, &group);
            cut = step.cut;
            // Times are taken between passes, so each is one.
            if cut || is_timed {
                break;
            }
        }
        drop(pass);
        if cut && steps.peek().is_some() {
            let done = std::mem::replace(&mut encoder, new_encoder(live));
            live.submit([done.finish()]);
        }
    }
    encoder
}

/// Records one step.
pub fn dispatch(pass: &mut wgpu::ComputePass<'_>, step: &super::ready::Dispatch, group: &wgpu::BindGroup) {
    let [x, y, z] = step.groups;
    pass.set_pipeline(&step.pipeline.pipeline);
    pass.set_bind_group(0, group, &[]);
    pass.dispatch_workgroups(x, y, z);
}

/// A plan of this backend, behind the engine's trait.
pub fn ready(runnable: &dyn Runnable) -> Option<&GpuPlan> {
    (runnable as &dyn Any).downcast_ref()
}
