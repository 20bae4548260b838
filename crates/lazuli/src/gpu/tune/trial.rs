//! Candidates for one class of products, tried on the device. Matrices are small whole numbers, so that every right
//! kernel gives the same bits in whatever order it adds; the result times a random vector is compared with the product
//! of both matrices and that vector, computed exactly on the host. A kernel that is cut short or reads the wrong
//! element does not pass, and what does not pass is not timed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::n_products;
use crate::backend::Counters;
use crate::dtype::{DType, Lane};
use crate::error::Result;
use crate::gpu::memory::Block;
use crate::gpu::open_device::OpenDevice;
use crate::gpu::read::read;
use crate::gpu::ready::{BuiltPlan, Places};
use crate::gpu::run::dispatch;
use crate::gpu::storage::GpuBuffer;
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, OperandArgs, Scope, Store};
use crate::log::{self, Topic};
use crate::plan::{CompiledKernel, Launch, LaunchStructure, Plan, Slot, SlotId, SlotKind, StageEnd, k_parts};
use crate::shape::Shape;
use crate::target::products::default_of;
use crate::target::variants::{Class, Tuned, VARIANTS, Variant};
use crate::target::{GpuTarget, Machine};
use crate::view::IndexMap;
use crate::wgsl::{self, ShaderProgram};

/// Times that a candidate is run once it is warm; the fastest counts.
const RUNS: usize = 5;
/// Another than the default wins only if it takes at most this part of its time: less is noise.
const CLEARLY: f64 = 0.95;

/// A product on a device.
pub struct Trial {
    live: Arc<OpenDevice>,
    class: Class,
    plan: Plan,
    /// Both matrices, and memory for the result.
    slots: [Arc<Block>; 3],
    /// The random vector, and per row of the result what it times the row must be.
    vector: Vec<i64>,
    expected: Vec<i64>,
}

/// What came of it.
pub struct TrialResult {
    /// The fastest of those that are right; None if none is.
    pub variant: Option<&'static Variant>,
    pub default: &'static Variant,
    pub speedup: f64,
    pub tried: usize,
    pub wrong: usize,
}

/// A candidate that is right, or whose result nobody asks for, ready to be timed.
struct Checked {
    built: BuiltPlan,
    /// The trial's, then its own.
    slots: Vec<Arc<Block>>,
}

/// Something that may win.
pub struct Candidate {
    pub variant: &'static Variant,
    pub program: ShaderProgram,
}

impl Trial {
    /// Uploads matrices of a class.
    pub fn new(live: &Arc<OpenDevice>, class: Class) -> Result<Trial> {
        let plan = plan(&class);
        let Some(matmul) = &plan.launches[0].args.matmul else { unreachable!("it is a product") };
        let (m, k, n) = (matmul.m, matmul.k, matmul.n);
        let n_batch: usize = matmul.batch.iter().product();
        let (a, b) = (numbers(n_batch * m * k, 1), numbers(n_batch * k * n, 2));
        let vector: Vec<i64> = (0..n).map(|j| (hash(j, 3) >> 16) as i64 - (1 << 15)).collect();
        let mut expected = Vec::with_capacity(n_batch * m);
        for batch in 0..n_batch {
            let (a_at, b_at) = (place(&matmul.a, batch), place(&matmul.b, batch));
            let dot = |p: usize| (0..n).map(|j| b[b_at(p, j)] as i64 * vector[j]).sum::<i64>();
            let through: Vec<i64> = (0..k).map(dot).collect();
            expected.extend((0..m).map(|i| (0..k).map(|p| a[a_at(i, p)] as i64 * through[p]).sum::<i64>()));
        }
        let slots = [
            live.take_with(&stored(&a, class.a.dtype))?,
            live.take_with(&stored(&b, class.b.dtype))?,
            live.take(n_batch * m * n * 4)?,
        ];
        Ok(Trial { live: live.clone(), class, plan, slots, vector, expected })
    }

    /// The best variant that is found within a budget. The default is always measured; whatever is being tried when
    /// the budget ends is finished.
    pub fn best(&self, budget: Duration) -> Result<TrialResult> {
        self.among(self.candidates(), budget)
    }

    /// Every variant that this device can run and that fits the shape, the default first.
    pub fn candidates(&self) -> Vec<Candidate> {
        let (target, mut launch) = (&self.live.target, self.plan.launches[0].clone());
        split(&mut launch, target);
        let (Kernel::Matmul(body), Some(matmul)) = (&launch.kernel, &launch.args.matmul) else {
            unreachable!("bug: it is a product")
        };
        let default = default_of(matmul, matmul.n, [body.inputs[0], body.inputs[1]], target, &|_| matmul.k_parts);
        let others = VARIANTS.into_iter().filter(|v| *v != default && v.is_sensible(matmul, matmul.n));
        let fits = |v: &&'static Variant| v.fits(matmul, matmul.n, target);
        let candidate = |variant| Candidate { variant, program: self.program(variant) };
        std::iter::once(default).chain(others.filter(fits)).map(candidate).collect()
    }

    /// The passes of the product, made that way wherever it fits.
    fn program(&self, variant: &'static Variant) -> ShaderProgram {
        self.program_on(variant, &self.live.target)
    }

    fn program_on(&self, variant: &'static Variant, target: &GpuTarget) -> ShaderProgram {
        let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
        let target = GpuTarget { tuned, ..target.clone() };
        let mut launch = self.plan.launches[0].clone();
        split(&mut launch, &target);
        wgsl::program(&launch, &self.plan.slots, &target)
    }

    /// The best of some candidates, of which the first is the default.
    pub fn among(&self, candidates: Vec<Candidate>, budget: Duration) -> Result<TrialResult> {
        let start = Instant::now();
        let default = candidates[0].variant;
        let mut found = TrialResult { variant: None, default, speedup: 1.0, tried: 0, wrong: 0 };
        let mut of_default: Option<Checked> = None;
        let mut best: Option<(&'static Variant, Checked, f64)> = None;
        for Candidate { variant, program } in candidates {
            if found.tried > 0 && start.elapsed() >= budget {
                break;
            }
            found.tried += 1;
            let Some(checked) = self.checked(program)? else {
                found.wrong += 1;
                log::show(Topic::Tune, || format!("{}: {} is wrong on this device", self.class, variant.name));
                continue;
            };
            let seconds = self.fastest(&[&checked])?[0];
            log::show(Topic::Tune, || format!("{}: {} takes {:.3} ms", self.class, variant.name, seconds * 1e3));
            if variant == default {
                found.variant = Some(default);
                of_default = Some(checked);
            } else if best.as_ref().is_none_or(|best| seconds < best.2) {
                best = Some((variant, checked, seconds));
            }
        }
        match (of_default, best) {
            // Once more, in turns: whatever else the machine did may have hit one of them.
            (Some(default), Some((variant, checked, _))) => {
                let seconds = self.fastest(&[&default, &checked])?;
                if seconds[1] < seconds[0] * CLEARLY {
                    (found.variant, found.speedup) = (Some(variant), seconds[0] / seconds[1]);
                }
            }
            (None, Some((variant, ..))) => found.variant = Some(variant),
            _ => {}
        }
        Ok(found)
    }

    /// A candidate compiled and run once; None if its result is wrong.
    fn checked(&self, program: ShaderProgram) -> Result<Option<Checked>> {
        let checked = self.built(program)?;
        self.clear();
        self.run(&checked)?;
        Ok(self.is_right()?.then_some(checked))
    }

    fn built(&self, program: ShaderProgram) -> Result<Checked> {
        let built = BuiltPlan::of(&self.live, &self.plan, vec![program])?;
        let own = built.scratch.iter().map(|n| self.live.take(*n));
        let slots = self.slots.iter().cloned().map(Ok).chain(own).collect::<Result<Vec<_>>>()?;
        Ok(Checked { built, slots })
    }

    /// How long it takes to run so many workgroups of a variant, and that so many times: the fastest of several runs.
    pub fn seconds_of_groups(&self, variant: &'static Variant, n_groups: usize, n_times: usize) -> Result<f64> {
        let mut program = self.program(variant);
        program.passes.truncate(1);
        program.passes.iter_mut().for_each(|pass| pass.n_groups = n_groups);
        program.passes = std::iter::repeat_n(program.passes, n_times).flatten().collect();
        Ok(self.fastest(&[&self.built(program)?])?[0])
    }

    /// How long each takes: the fastest of several runs, in turns.
    fn fastest(&self, all: &[&Checked]) -> Result<Vec<f64>> {
        let mut best = vec![f64::INFINITY; all.len()];
        for _ in 0..RUNS {
            for (best, one) in best.iter_mut().zip(all) {
                *best = best.min(self.run(one)?);
            }
        }
        Ok(best)
    }

    /// Forgets the result of whoever was before: it might be the right one.
    fn clear(&self) {
        for (buffer, at, _, len) in self.slots[2].pieces(self.slots[2].size_bytes()) {
            self.live.queue.write_buffer(buffer, at as u64, &vec![0xff; len]);
        }
    }

    /// Runs it once and waits. Gives seconds.
    fn run(&self, Checked { built, slots }: &Checked) -> Result<f64> {
        let live = &self.live;
        let places = Places { slots, status: None };
        // What was handed over before is not counted.
        live.wait()?;
        let start = Instant::now();
        live.checked("tune", || {
            let numbers = built.numbers(&[]);
            let mut encoder = live.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for step in &built.steps {
                dispatch(&mut pass, step, &step.bind_group(live, numbers, &places, true));
            }
            drop(pass);
            live.submit([encoder.finish()]);
        })?;
        live.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn is_right(&self) -> Result<bool> {
        let mut bytes = vec![0; self.slots[2].size_bytes()];
        read(&GpuBuffer::of_block(self.slots[2].clone(), Vec::new(), None), &Counters::default(), &mut bytes)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let n = self.vector.len();
        let is_whole = |y: &f32| y.is_finite() && y.fract() == 0.0 && y.abs() < (1 << 24) as f32;
        let row_is_right = |(row, expected): (&[f32], &i64)| {
            row.iter().all(is_whole)
                && row.iter().zip(&self.vector).map(|(y, v)| *y as i64 * v).sum::<i64>() == *expected
        };
        Ok(values.chunks(n.max(1)).zip(&self.expected).all(row_is_right))
    }
}

/// Splits the sums of a product as the planner does for a device.
fn split(launch: &mut Launch, target: &GpuTarget) {
    let Kernel::Matmul(body) = &launch.kernel else { return };
    let stored = [body.inputs[0], body.inputs[1]];
    let Some(matmul) = &mut launch.args.matmul else { return };
    matmul.k_parts = k_parts(matmul, stored, (Lane::F32, 1), &Machine::Gpu(target.clone()));
}

/// The plan of a product that stands for a class, smaller where it would take long.
pub fn plan(class: &Class) -> Plan {
    let mut class = *class;
    while n_products(&class.product()) > MOST_PRODUCTS {
        let largest = [&mut class.k, &mut class.n, &mut class.m, &mut class.batch].into_iter().max_by_key(|s| **s);
        largest.into_iter().for_each(|size| *size /= 2);
    }
    let matmul = class.product();
    let outer: Vec<usize> = matmul.batch.iter().copied().chain([matmul.m, matmul.n]).collect();
    let n_batch: usize = matmul.batch.iter().product();
    let n_elems = [n_batch * matmul.m * matmul.k, n_batch * matmul.k * matmul.n, n_batch * matmul.m * matmul.n];
    let body = Body {
        outer_rank: outer.len() as u8,
        inputs: vec![class.a.dtype.into(), class.b.dtype.into()],
        outputs: vec![DType::F32],
        accesses: vec![AccessForm::Linear],
        insts: vec![Inst { op: InstOp::Acc(0), dtype: DType::F32, scope: Scope::Outer }],
        stores: vec![Store { value: 0, output: 0, access: 0 }],
        ..Body::default()
    };
    let accesses = vec![IndexMap::identity(outer.iter().copied().collect::<Shape>())];
    let slot = |kind: SlotKind, n: usize, dtype: DType| Slot { kind, size_bytes: n * dtype.size() };
    let structure = LaunchStructure {
        kernel: Kernel::Matmul(Arc::new(body)),
        reads: vec![SlotId(0), SlotId(1)],
        writes: vec![SlotId(2)],
        read_values: vec![0, 1],
        write_values: vec![2],
        bases: Vec::new(),
        may_fail: Vec::new(),
        ops: vec!["matmul".into()],
        part_of: None,
        compiled: CompiledKernel::default(),
    };
    let args = Args { outer, accesses, matmul: Some(Box::new(matmul)), ..Args::default() };
    Plan {
        launches: vec![Launch::new(structure, args)],
        slots: vec![
            slot(SlotKind::Input { idx: 0, donated: false }, n_elems[0], class.a.dtype),
            slot(SlotKind::Input { idx: 1, donated: false }, n_elems[1], class.b.dtype),
            slot(SlotKind::Output, n_elems[2], DType::F32),
        ],
        outputs: vec![SlotId(2)],
        output_values: vec![2],
        stages: vec![StageEnd { launches: 1, outputs: 1 }],
        input_values: vec![0, 1],
        value_elems: n_elems.to_vec(),
        ..Plan::default()
    }
}

/// Multiplications of the largest product that is tried: half a second on a processor that stands in for a GPU.
const MOST_PRODUCTS: usize = 1 << 30;

/// Whole numbers from -3 to 3, which every float holds, without a pattern.
fn numbers(n: usize, seed: u32) -> Vec<i8> {
    (0..n).map(|i| (hash(i, seed) % 7) as i8 - 3).collect()
}

/// An integer hash (two rounds of xor-shift and multiply).
fn hash(i: usize, seed: u32) -> u32 {
    let mut x = (i as u32).wrapping_add(seed.wrapping_mul(0x9e37_79b9));
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Where an element of a matrix of the batch is.
fn place(lies: &OperandArgs, batch: usize) -> impl Fn(usize, usize) -> usize {
    let start = lies.batch.first().map_or(0, |list| list.at(batch));
    let (down, across) = lies.steps().unwrap_or((0, 0));
    move |row, col| (start + row as isize * down + col as isize * across) as usize
}

/// Numbers as a dtype stores them.
fn stored(numbers: &[i8], dtype: DType) -> Vec<u8> {
    let values = numbers.iter().map(|x| f32::from(*x));
    match dtype {
        DType::F16 => values.flat_map(|x| half::f16::from_f32(x).to_ne_bytes()).collect(),
        DType::BF16 => values.flat_map(|x| half::bf16::from_f32(x).to_ne_bytes()).collect(),
        _ => values.flat_map(|x| x.to_ne_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::adapters;
    use crate::target::Threads;
    use crate::target::variants::OperandLayout;

    fn class(m: usize, k: usize, n: usize, transposed: [bool; 2]) -> Class {
        let [a, b] = transposed.map(|transposed| OperandLayout { dtype: DType::F32, transposed });
        Class { batch: 1, m, k, n, a, b }
    }

    /// The texts that a device gets, and those of hardware, which are written out: whole tiles, and rows, columns and steps
    /// that every tile leaves over; f16 and bf16 as stored.
    #[test]
    fn every_variant_is_right_on_every_device() {
        assert!(!adapters::found().is_empty(), "no GPU adapter was found");
        let layouts = [[false, false], [false, true], [true, false], [true, true]];
        let mut classes: Vec<Class> = layouts.map(|layout| class(65, 67, 135, layout)).into();
        classes.push(class(128, 64, 128, [true, false]));
        let [a, b] =
            [(DType::BF16, false), (DType::F16, true)].map(|(dtype, transposed)| OperandLayout { dtype, transposed });
        classes.push(Class { batch: 3, a, b, ..class(33, 40, 72, [false, false]) });
        for found in adapters::found() {
            let live = found.live().unwrap();
            for class in &classes {
                let trial = Trial::new(&live, *class).unwrap();
                for variant in VARIANTS {
                    let is_right = trial.checked(trial.program(variant)).unwrap().is_some();
                    assert!(is_right, "{} of {class} is wrong", variant.name);
                }
                let hardware = GpuTarget { style: Threads::Cooperative, ..live.target.clone() };
                for variant in VARIANTS.into_iter().filter(|v| v.name.contains("deep") || v.name.contains("lanes")) {
                    let is_right = trial.checked(trial.program_on(variant, &hardware)).unwrap().is_some();
                    assert!(is_right, "{} of {class}, as on hardware, is wrong", variant.name);
                }
            }
        }
    }

    #[test]
    fn every_variant_that_fits_is_a_candidate() {
        for found in adapters::found() {
            let trial = Trial::new(&found.live().unwrap(), class(256, 64, 256, [false, false])).unwrap();
            let candidates = trial.candidates();
            let with = |name: &str| candidates.iter().filter(|c| c.variant.name.contains(name)).count();
            assert!(with("") >= 12 && with("lanes") == 11 && with("deep") == 5);
            let by_subgroup = if trial.live.target.subgroup == Some(8) { 5 } else { 0 };
            assert_eq!(with("by subgroup"), by_subgroup);
            assert_eq!(with("16x8") - by_subgroup / 5, 1);
        }
    }

    #[test]
    fn a_faster_kernel_that_is_cut_short_loses() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let trial = Trial::new(&live, class(64, 256, 256, [false, false])).unwrap();
            let mut candidates = trial.candidates();
            candidates.truncate(2);
            let [right, short] = &mut candidates[..] else { panic!("two variants fit") };
            let default = right.variant;
            for pass in &mut short.program.passes {
                let text = pass.text.replace("let k_end = params.k;", "let k_end = params.k / 8u;");
                assert_ne!(text, *pass.text, "the text has changed");
                pass.text = text.into();
            }
            let found = trial.among(candidates, Duration::MAX).unwrap();
            assert_eq!((found.variant, found.tried, found.wrong), (Some(default), 2, 1));
        }
    }

    #[test]
    fn where_nothing_is_right_nothing_wins() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let trial = Trial::new(&live, class(8, 64, 64, [false, false])).unwrap();
            let mut candidates = trial.candidates();
            for candidate in &mut candidates {
                candidate.program.passes.iter_mut().for_each(|pass| pass.n_groups = 0);
            }
            let found = trial.among(candidates, Duration::MAX).unwrap();
            assert_eq!((found.variant, found.wrong), (None, found.tried));
        }
    }
}
