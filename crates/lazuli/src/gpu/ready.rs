//! A plan made ready for one device: its passes compiled, their numbers in one buffer, what is bound to them kept for
//! the next time.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use wgpu::BufferUsages;

use super::memory::Block;
use super::open_device::OpenDevice;
use super::pipelines::HeldPipeline;
use super::{status, tune, watchdog};
use crate::error::{Error, Result};
use crate::kernel::{InstOp, Kernel};
use crate::log::{self, Topic};
use crate::plan::{Launch, Plan, Scratch, scratch, verify_scratch};
use crate::wgsl::{self, Bind, GpuSchedule, Pass, PassMemory, ShaderProgram};

/// Every pass's numbers start at a multiple of this, which every device accepts.
const BLOCK_WORDS: usize = 256 / 4;
/// Bind groups that are kept for each pass: one for each set of buffers that takes turns.
const MAX_GROUPS: usize = 8;
/// What one of them takes, about.
const GROUP_BYTES: usize = 1 << 10;

/// A plan compiled for a device that is live.
pub struct BuiltPlan {
    pub live: Arc<OpenDevice>,
    pub steps: Vec<Dispatch>,
    /// How many of them have run at the end of each stage.
    pub stages: Vec<usize>,
    /// Bytes of each slot that passes need beside the plan's.
    pub scratch: Vec<usize>,
    /// Where the words are that checks are reset from, in the numbers' buffer, in bytes.
    pub fresh_status: usize,
    /// Whether any pass checks anything.
    pub checks: bool,
    numbers: Numbers,
}

/// One dispatch.
pub struct Dispatch {
    pub label: String,
    pub pipeline: HeldPipeline,
    pub groups: [u32; 3],
    pub binds: Vec<Bind>,
    /// Whether the command buffer is cut after it.
    pub cut: bool,
    /// Where its numbers are, in bytes, and how many bytes they are.
    start: usize,
    size_bytes: usize,
    bound: Mutex<Vec<(BoundTo, wgpu::BindGroup)>>,
}

/// The blocks that a bind group names.
type BoundTo = SmallVec<[u64; 8]>;

/// The numbers of all passes, in one buffer.
struct Numbers {
    buffer: wgpu::Buffer,
    /// Which words are which constants of the plan.
    consts: Vec<(usize, u32)>,
    /// What the buffer holds once all that was submitted has run.
    words: Mutex<Vec<u32>>,
}

/// Blocks of a run, by what passes call them.
pub struct Places<'a> {
    /// The plan's, then those that passes need beside them.
    pub slots: &'a [Arc<Block>],
    pub status: Option<&'a Arc<Block>>,
}

impl Places<'_> {
    fn block(&self, place: PassMemory) -> Option<&Arc<Block>> {
        match place {
            PassMemory::Slot(id) => self.slots.get(id.0 as usize),
            PassMemory::Scratch(_) => unreachable!("scratch memory has slots"),
            PassMemory::Status => self.status,
        }
    }
}

/// How each launch of a plan is shared out.
pub fn schedules(plan: &Plan, live: &OpenDevice) -> Vec<GpuSchedule> {
    let target = live.target.tuned_by(live.tuning.tuned());
    plan.launches.iter().map(|launch| GpuSchedule::new(launch, &plan.slots, &target)).collect()
}

/// The passes of each launch of a plan, by these schedules.
pub fn programs(plan: &Plan, schedules: &[GpuSchedule], live: &OpenDevice) -> Vec<ShaderProgram> {
    let scheduled = plan.launches.iter().zip(schedules);
    scheduled.map(|(launch, schedule)| wgsl::print(launch, schedule, &plan.slots, &live.target)).collect()
}

/// Slots for the scratch memory of each launch.
pub fn slots_of_scratch(plan: &Plan, programs: &[ShaderProgram]) -> Scratch {
    let needs: Vec<Vec<usize>> = programs.iter().map(|program| program.scratch.clone()).collect();
    let scratch = scratch(plan, &needs);
    if cfg!(debug_assertions) {
        verify_scratch(plan, &needs, &scratch).unwrap_or_else(|fault| panic!("bug in scratch: {fault}\n{plan}"));
    }
    scratch
}

impl BuiltPlan {
    /// Compiles a plan.
    pub fn new(live: &Arc<OpenDevice>, plan: &Plan) -> Result<BuiltPlan> {
        tune::first_use(live, plan);
        let schedules = schedules(plan, live);
        log::show(Topic::Schedule, || schedules.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
        BuiltPlan::of(live, plan, programs(plan, &schedules, live))
    }

    /// Compiles these passes for a plan's launches.
    pub fn of(live: &Arc<OpenDevice>, plan: &Plan, programs: Vec<ShaderProgram>) -> Result<BuiltPlan> {
        let passes: Vec<&Pass> = programs.iter().flat_map(|p| &p.passes).collect();
        if let Some(fault) = passes.iter().find_map(|pass| wgsl::verify(pass, &live.target).err()) {
            debug_assert!(false, "bug in wgsl: {fault}");
            return Err(Error::unsupported("prepare", fault));
        }
        let pipelines = live.pipelines.get(live, &passes).map_err(|error| blame(plan, error))?;
        let cuts = watchdog::cuts(plan, live.target.pace);

        let mut steps = Vec::new();
        let mut stages = Vec::with_capacity(plan.stages.len());
        let mut words: Vec<u32> = Vec::new();
        let mut consts = Vec::new();
        let scratch = slots_of_scratch(plan, &programs);
        let mut pipelines = pipelines.into_iter();
        for (i, program) in programs.into_iter().enumerate() {
            stages.resize(plan.stages.iter().take_while(|end| end.launches <= i).count(), steps.len());
            for pass in program.passes {
                let pipeline = pipelines.next().expect("one for each pass");
                let start = words.len();
                consts.extend(pass.consts.iter().enumerate().map(|(at, constant)| (start + at, *constant)));
                words.resize(start + pass.consts.len(), 0);
                words.extend(&pass.params);
                let n_words = (words.len() - start).next_multiple_of(4).max(4);
                words.resize((start + n_words).next_multiple_of(BLOCK_WORDS), 0);
                if pass.n_groups == 0 {
                    continue;
                }
                let mut binds = pass.binds;
                for bind in &mut binds {
                    if let PassMemory::Scratch(idx) = bind.place {
                        bind.place = PassMemory::Slot(scratch.of[i][idx as usize]);
                    }
                }
                steps.push(Dispatch {
                    label: pass.label,
                    pipeline,
                    groups: grid(pass.n_groups, live.limits.max_compute_workgroups_per_dimension),
                    binds,
                    cut: false,
                    start: start * 4,
                    size_bytes: n_words * 4,
                    bound: Mutex::default(),
                });
            }
            if cuts.contains(&i)
                && let Some(step) = steps.last_mut()
            {
                step.cut = true;
            }
        }
        stages.resize(plan.stages.len(), steps.len());
        let fresh_status = words.len() * 4;
        let checks = steps.iter().any(|s| s.binds.iter().any(|b| b.place == PassMemory::Status));
        if checks {
            words.extend(status::fresh_words(plan.checks.len()));
        }
        let numbers = Numbers { buffer: live.numbers(&words)?, consts, words: Mutex::new(words) };
        Ok(BuiltPlan { live: live.clone(), steps, stages, scratch: scratch.extra, fresh_status, checks, numbers })
    }

    /// The dispatches of a stage.
    pub fn steps_of(&self, stage: usize) -> Range<usize> {
        stage.checked_sub(1).map_or(0, |before| self.stages[before])..self.stages[stage]
    }

    /// Whether a stage is submitted: one without work is not, unless it is all there is.
    pub fn is_submitted(&self, stage: usize) -> bool {
        !self.steps_of(stage).is_empty() || self.stages.len() == 1
    }

    /// The last stage that is submitted.
    pub fn last_stage(&self) -> usize {
        (0..self.stages.len()).rfind(|stage| self.is_submitted(*stage)).unwrap_or(0)
    }

    /// About how many bytes it occupies, on the host and on the device, without its pipelines. What is bound is counted
    /// before it is: sooner or later most of it will be.
    pub fn size_bytes(&self) -> usize {
        let step = |step: &Dispatch| {
            size_of::<Dispatch>()
                + step.label.capacity()
                + step.binds.capacity() * size_of::<Bind>()
                + MAX_GROUPS * GROUP_BYTES
        };
        let n_words = self.words().capacity();
        self.steps.iter().map(step).sum::<usize>()
            + 2 * n_words * size_of::<u32>()
            + self.numbers.consts.capacity() * size_of::<(usize, u32)>()
            + (self.scratch.capacity() + self.stages.capacity()) * size_of::<usize>()
    }

    /// The buffer with the numbers of all passes, given these constants. What is submitted already sees the numbers it
    /// was submitted with.
    pub fn numbers(&self, constants: &[u32]) -> &wgpu::Buffer {
        let mut words = self.words();
        let mut changed: Option<(usize, usize)> = None;
        for (at, constant) in &self.numbers.consts {
            let value = constants[*constant as usize];
            if words[*at] != value {
                words[*at] = value;
                let (low, high) = changed.unwrap_or((*at, *at));
                changed = Some((low.min(*at), high.max(*at)));
            }
        }
        if let Some((low, high)) = changed {
            let bytes: Vec<u8> = words[low..=high].iter().flat_map(|w| w.to_ne_bytes()).collect();
            self.live.queue.write_buffer(&self.numbers.buffer, low as u64 * 4, &bytes);
        }
        &self.numbers.buffer
    }

    /// A buffer of its own with these numbers, for commands that somebody else submits some day.
    pub fn own_numbers(&self, constants: &[u32]) -> Result<wgpu::Buffer> {
        let mut words = self.words().clone();
        self.numbers.consts.iter().for_each(|(at, constant)| words[*at] = constants[*constant as usize]);
        self.live.numbers(&words)
    }

    fn words(&self) -> MutexGuard<'_, Vec<u32>> {
        self.numbers.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenDevice {
    /// A buffer for the numbers of passes.
    fn numbers(&self, words: &[u32]) -> Result<wgpu::Buffer> {
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        let size = (words.len() * 4).max(16) as u64;
        let desc = wgpu::BufferDescriptor { label: Some("numbers"), size, usage, mapped_at_creation: false };
        let buffer = self.checked("prepare", || self.device.create_buffer(&desc))?;
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.checked("prepare", || self.queue.write_buffer(&buffer, 0, &bytes))?;
        Ok(buffer)
    }
}

impl Dispatch {
    /// What is bound to it in a run. Kept, unless it names memory that is not ours to keep.
    pub fn bind_group(
        &self,
        live: &OpenDevice,
        numbers: &wgpu::Buffer,
        places: &Places<'_>,
        keep: bool,
    ) -> wgpu::BindGroup {
        let blocks: SmallVec<[&Arc<Block>; 8]> =
            self.binds.iter().map(|b| places.block(b.place).expect("a pass binds memory of its plan")).collect();
        if !keep || blocks.iter().any(|b| b.is_foreign()) {
            return self.make_group(live, numbers, &blocks);
        }
        let bound_to: BoundTo = blocks.iter().map(|b| b.id).collect();
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = bound.iter().position(|(to, _)| *to == bound_to) {
            // The one used longest ago comes first.
            bound[at..].rotate_left(1);
            return bound[bound.len() - 1].1.clone();
        }
        let group = self.make_group(live, numbers, &blocks);
        if bound.len() == MAX_GROUPS {
            bound.remove(0);
        }
        bound.push((bound_to, group.clone()));
        group
    }

    fn make_group(&self, live: &OpenDevice, numbers: &wgpu::Buffer, blocks: &[&Arc<Block>]) -> wgpu::BindGroup {
        let mut entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = SmallVec::new();
        let part = |buffer, offset: usize, size: usize| {
            let size = std::num::NonZero::new(size as u64);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: offset as u64, size })
        };
        entries.push(wgpu::BindGroupEntry { binding: 0, resource: part(numbers, self.start, self.size_bytes) });
        for (i, (bind, block)) in self.binds.iter().zip(blocks).enumerate() {
            let (buffer, at) = block.at(bind.start);
            let len = if bind.place == PassMemory::Status { block.size_bytes() } else { bind.len };
            // Whole vectors where the buffer has them: shaders that read vectors are bound no less than one.
            let len = len.next_multiple_of(16).max(16).min(buffer.size() as usize - at);
            entries.push(wgpu::BindGroupEntry { binding: i as u32 + 1, resource: part(buffer, at, len) });
        }
        live.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&self.label),
            layout: &self.pipeline.layout,
            entries: &entries,
        })
    }
}

/// A box of at least this many workgroups, each side at most `max`, with few to spare.
fn grid(n_groups: usize, max: u32) -> [u32; 3] {
    let max = (max as usize).max(1);
    let z = n_groups.div_ceil(max * max).max(1);
    let y = n_groups.div_ceil(z).div_ceil(max).max(1);
    let x = n_groups.div_ceil(y * z).max(1);
    [x, y, z].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// If a shader with a custom op does not compile, the op's author is told.
fn blame(plan: &Plan, error: Error) -> Error {
    let Error::Device(fault) = &error else { return error };
    let custom = |launch: &Launch| {
        let (Kernel::Loop(body) | Kernel::Matmul(body)) = &launch.kernel else { return None };
        body.insts.iter().find_map(|inst| match &inst.op {
            InstOp::Custom(op, _) => Some(op.0.name.clone()),
            _ => None,
        })
    };
    match plan.launches.iter().flat_map(Launch::each).find_map(custom) {
        Some(name) => Error::custom(name, format!("its WGSL does not compile: {}", fault.message)),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_room_for_all_groups_and_few_more() {
        for n in [1, 2, 65_535, 65_536, 100_000, 65_535 * 65_535, 65_535 * 65_535 + 1, 300_000_000_000_000 / 1000] {
            let [x, y, z] = grid(n, 65_535).map(|s| s as usize);
            assert!(x <= 65_535 && y <= 65_535 && z <= 65_535, "{n}: {x} {y} {z}");
            assert!(x * y * z >= n && x * y * z - n < y * z, "{n}: {x} {y} {z}");
        }
    }
}
