//! A plan told to people and to their tests: kernels, memory, traffic, and how far each is from the least possible.

use std::fmt;

use super::{Launch, Plan, RepeatedWork, Scratch, SlotKind, ValueId};
use crate::dtype::DType;
use crate::kernel::{Args, AttentionArgs, AttentionKernel, Body, InstOp, Kernel, Order, Scope};
use crate::view::IndexMap;

/// What computing some tensors does. Deterministic, so that tests can assert on it.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let x = Tensor::from_vec(vec![1.0f32; 1000], [1000], &cpu);
/// let plan = x.add(1.0).mul(&x).exp().explain()?;
/// assert_eq!(plan.kernels.len(), 1);
/// assert_eq!(plan.peak_temp_bytes, 0);
/// assert_eq!(plan.bytes_moved, plan.bytes_moved_lower_bound);
/// println!("{plan}");
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Explain {
    /// The kernels, in the order they run.
    pub kernels: Vec<KernelInfo>,
    /// Kernels launched.
    pub dispatches: usize,
    /// Times the device is handed work.
    pub submits: usize,
    /// Bytes held only while it runs, beside inputs and outputs: values between kernels, and what kernels need as scratch
    /// memory (packed operands, sums of parts). Threads of the CPU have a few KiB each for tiles, which are not counted.
    pub peak_temp_bytes: usize,
    /// Bytes that a device keeps beside them, once it has run this a few times: inputs of products, packed, so that they need
    /// not be packed again. [`Device::trim`](crate::Device::trim) lets go of them, as does running out of memory.
    pub kept_bytes: usize,
    /// The least that these kernels in this order need.
    pub peak_temp_lower_bound: usize,
    /// How many separate temporaries there are.
    pub temp_slots: usize,
    /// Bytes read and written by all kernels.
    pub bytes_moved: usize,
    /// Each input read once, each output written once.
    pub bytes_moved_lower_bound: usize,
    /// For each pair of kernels of which one reads what the other made: why they are not one.
    pub boundaries: Vec<Boundary>,
    /// What was asked about sizes when this was planned, with the answers, and which loops came of it; on a GPU also the classes
    /// of sizes, strides and offsets that shaders depend on. Where another size changes none of it, nothing is planned or
    /// compiled for it.
    pub edges: Vec<String>,
    /// What is computed again rather than stored, because that is cheap: in several kernels, or for several indices. The kernels'
    /// flops have it in them.
    pub repeated: Vec<RepeatedWork>,
    /// How many of the kernels have run at the end of each stage; one number if nothing is staged.
    pub stages: Vec<usize>,
}

/// One kernel of a plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KernelInfo {
    /// What it computes, as a profiler shows it.
    pub name: String,
    /// `map`, `reduce`, `matmul`, `attention` or `routine`.
    pub form: String,
    /// The ops it computes, in order.
    pub ops: Vec<String>,
    /// The index space.
    pub shape: Vec<usize>,
    /// Bytes it reads: each element it touches once.
    pub bytes_read: usize,
    /// Bytes it writes.
    pub bytes_written: usize,
    /// Floating-point (or integer) operations, counted in additions.
    pub flops: usize,
    /// The shader, on devices that have one.
    pub wgsl: Option<String>,
    /// Which of several ways a device has for it was chosen and why, on devices that have several.
    pub variant: Option<String>,
    /// How its loops are cut and shared out on the device.
    pub schedule: String,
    /// The kernel in one line.
    pub text: String,
}

/// Two kernels that could not be one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Boundary {
    /// The kernel that makes the value.
    pub before: usize,
    /// The kernel that reads it.
    pub after: usize,
    /// Why they did not fuse.
    pub why: String,
}

/// For each value that one kernel makes and another reads, why they are two.
fn boundaries(plan: &Plan) -> Vec<Boundary> {
    let mut maker: Vec<Vec<usize>> = vec![Vec::new(); plan.value_elems.len()];
    // Of the parts of one kernel the last stands for all.
    let part_of = |launch: usize| plan.launches[launch].part_of;
    let mut found: Vec<Boundary> = Vec::new();
    for (after, launch) in plan.launches.iter().enumerate() {
        for read in launch.read_values.iter().chain(launch.bases.iter().map(|base| &base.1)) {
            for &before in &maker[*read as usize] {
                let why = plan.reasons[*read as usize].unwrap_or("its result is kept for others too");
                let boundary = Boundary { before, after, why: why.to_string() };
                if !found.iter().rev().take_while(|b| b.after == after).any(|b| *b == boundary) {
                    found.push(boundary);
                }
            }
        }
        for value in &launch.write_values {
            let makers = &mut maker[*value as usize];
            makers.pop_if(|before| launch.part_of.is_some() && part_of(*before) == launch.part_of);
            makers.push(after);
        }
    }
    found
}

impl Explain {
    /// Tells a plan.
    pub(crate) fn new(plan: &Plan) -> Explain {
        let kernels: Vec<KernelInfo> = plan.launches.iter().map(|l| kernel_info(plan, l)).collect();
        let is_temp = |s: &&super::Slot| s.kind == SlotKind::Temp;
        Explain {
            dispatches: kernels.len(),
            submits: plan.n_submits(),
            stages: plan.stages.iter().map(|end| end.launches).collect(),
            peak_temp_bytes: plan.slots.iter().filter(is_temp).map(|s| s.size_bytes).sum(),
            kept_bytes: 0,
            peak_temp_lower_bound: plan.temp_lower_bound,
            temp_slots: plan.slots.iter().filter(is_temp).count(),
            bytes_moved: kernels.iter().map(|k| k.bytes_read + k.bytes_written).sum(),
            bytes_moved_lower_bound: least_bytes(plan),
            boundaries: boundaries(plan),
            edges: Vec::new(),
            repeated: Vec::new(),
            kernels,
        }
    }

    /// Counts the scratch memory that schedules ask for.
    pub(crate) fn add_scratch(&mut self, scratch: &Scratch) {
        self.peak_temp_bytes += scratch.size_bytes();
        self.temp_slots += scratch.extra.len();
        self.peak_temp_lower_bound = scratch.lower_bound;
    }

    /// The operations that are done again rather than that their results are stored: part of the kernels' flops.
    pub fn repeated_flops(&self) -> usize {
        self.repeated.iter().map(|work| work.flops).sum()
    }

    /// The same as JSON.
    pub fn to_json(&self) -> String {
        let kernels: Vec<String> = self.kernels.iter().map(KernelInfo::to_json).collect();
        let boundary =
            |b: &Boundary| format!("{{\"before\":{},\"after\":{},\"why\":{}}}", b.before, b.after, quoted(&b.why));
        let boundaries: Vec<String> = self.boundaries.iter().map(boundary).collect();
        let repeated = |work: &RepeatedWork| {
            let RepeatedWork { op, n_elems, places, flops } = work;
            format!("{{\"op\":{},\"n_elems\":{n_elems},\"places\":{places},\"flops\":{flops}}}", quoted(op))
        };
        let repeated: Vec<String> = self.repeated.iter().map(repeated).collect();
        format!(
            "{{\"dispatches\":{},\"submits\":{},\"peak_temp_bytes\":{},\"kept_bytes\":{},\
             \"peak_temp_lower_bound\":{},\"temp_slots\":{},\"bytes_moved\":{},\"bytes_moved_lower_bound\":{},\"kernels\":[{}],\"boundaries\":[{}],\"edges\":[{}],\
             \"repeated\":[{}],\"stages\":{:?}}}",
            self.dispatches,
            self.submits,
            self.peak_temp_bytes,
            self.kept_bytes,
            self.peak_temp_lower_bound,
            self.temp_slots,
            self.bytes_moved,
            self.bytes_moved_lower_bound,
            kernels.join(","),
            boundaries.join(","),
            self.edges.iter().map(|edge| quoted(edge)).collect::<Vec<_>>().join(","),
            repeated.join(","),
            self.stages,
        )
    }

    /// The kernels and who reads from whom, for Graphviz.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph plan {\n");
        for (i, kernel) in self.kernels.iter().enumerate() {
            dot += &format!("  k{i} [shape=box, label={}];\n", quoted(&format!("{}\n{:?}", kernel.name, kernel.shape)));
        }
        for b in &self.boundaries {
            dot += &format!("  k{} -> k{} [label={}];\n", b.before, b.after, quoted(&b.why));
        }
        dot + "}\n"
    }
}

impl KernelInfo {
    fn to_json(&self) -> String {
        let ops: Vec<String> = self.ops.iter().map(|op| quoted(op)).collect();
        let or_null = |text: &Option<String>| text.as_ref().map_or("null".to_string(), |t| quoted(t));
        let (wgsl, variant) = (or_null(&self.wgsl), or_null(&self.variant));
        format!(
            "{{\"name\":{},\"form\":{},\"ops\":[{}],\"shape\":{:?},\"bytes_read\":{},\"bytes_written\":{},\"flops\":{},\
             \"text\":{},\"schedule\":{},\"variant\":{variant},\"wgsl\":{wgsl}}}",
            quoted(&self.name),
            quoted(&self.form),
            ops.join(","),
            self.shape,
            self.bytes_read,
            self.bytes_written,
            self.flops,
            quoted(&self.text),
            quoted(&self.schedule),
        )
    }
}

/// The loops of each kernel, as far as sizes decide them: what lowering asked.
pub(super) fn loops(plan: &Plan) -> impl Iterator<Item = String> + '_ {
    let each = plan.launches.iter().enumerate().flat_map(|(i, launch)| launch.each().iter().map(move |part| (i, part)));
    each.map(|(i, launch)| {
        let (Kernel::Loop(body) | Kernel::Matmul(body)) = &launch.kernel else {
            return format!("kernel {i}: a routine");
        };
        let order = if body.order == Order::OuterFast { ", by column" } else { "" };
        let pieces = if body.ragged { ", in pieces" } else { "" };
        let form = launch.kernel.form();
        let (outer, inner) = (body.outer_rank, body.inner_rank);
        format!("kernel {i}: {form} over {outer} + {inner} axes{order}{pieces}; {:?}", body.accesses)
    })
}

/// A JSON (and DOT) string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Grouped products told as one kernel.
fn grouped_info(plan: &Plan, launch: &Launch) -> KernelInfo {
    let parts: Vec<KernelInfo> = launch.parts.iter().map(|part| kernel_info(plan, part)).collect();
    let sum = |of: fn(&KernelInfo) -> usize| parts.iter().map(of).sum();
    // What several parts read is read once.
    let mut first_reads: Vec<(ValueId, usize)> = Vec::new();
    for part in &launch.parts {
        for (input, value) in part.read_values.iter().enumerate() {
            let bytes = read_bytes(plan, part, input);
            match first_reads.iter_mut().find(|known| known.0 == *value) {
                Some((_, known)) => *known = bytes.max(*known),
                None => first_reads.push((*value, bytes)),
            }
        }
    }
    let names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
    KernelInfo {
        name: match names.iter().all(|name| *name == names[0]) {
            true => format!("{}x_{}", names.len(), names[0]),
            false => names.join("_beside_"),
        },
        form: launch.kernel.form().to_string(),
        ops: parts.iter().flat_map(|part| part.ops.iter().cloned()).collect(),
        shape: vec![parts.iter().map(|part| part.shape.iter().product::<usize>()).sum()],
        bytes_read: first_reads.iter().map(|read| read.1).sum(),
        bytes_written: sum(|part| part.bytes_written),
        flops: sum(|part| part.flops),
        wgsl: None,
        variant: None,
        schedule: String::new(),
        text: launch.text(),
    }
}

fn kernel_info(plan: &Plan, launch: &Launch) -> KernelInfo {
    if !launch.parts.is_empty() {
        return grouped_info(plan, launch);
    }
    let args = &launch.args;
    let mut shape: Vec<usize> = args.outer.iter().chain(&args.inner).copied().collect();
    if let Some(routine) = &args.routine {
        shape = routine.output_shape.to_vec();
    }
    let flops = match &launch.kernel {
        Kernel::Loop(body) => body_flops(body, &args.outer, &args.inner),
        Kernel::Matmul(body) => {
            let k = args.matmul.as_ref().map_or(0, |m| m.k);
            let made: usize = made_operands(body, args).map(|(made, args)| body_flops(made, &args.outer, &[])).sum();
            shape.iter().product::<usize>() * 2 * k + made + body_flops(body, &args.outer, &args.inner)
        }
        Kernel::Attention(kernel) => args.attention.as_ref().map_or(0, |args| attention_flops(kernel, args)),
        Kernel::Routine(_) => shape.iter().product(),
        Kernel::Grouped(_) => unreachable!("told part by part"),
    };
    let (reads, writes) = launch.kernel.bindings();
    let bytes_read = (0..reads.len()).map(|i| read_bytes(plan, launch, i)).sum();
    let bytes_written = writes.iter().enumerate().map(|(i, d)| write_bytes(plan, launch, i, *d)).sum();
    KernelInfo {
        name: launch.kernel.name(&launch.ops),
        form: launch.kernel.form().to_string(),
        ops: launch.ops.iter().map(|op| op.to_string()).collect(),
        shape,
        bytes_read,
        bytes_written,
        flops,
        wgsl: None,
        variant: None,
        schedule: String::new(),
        text: launch.kernel.text(args),
    }
}

/// Both products and the three maps; a softmax is an exponential and two steps more. Blocks that a mask leaves out count.
fn attention_flops(kernel: &AttentionKernel, args: &AttentionArgs) -> usize {
    let n_scores = args.scores.outer.iter().product::<usize>();
    let depth = args.inner.iter().map(|inner| inner.depth).sum::<usize>() + args.n_values;
    let softmax = kernel.softmax.map_or(0, |exp| exp.cost as usize + 2);
    let maps = [(&kernel.scores, &args.scores), (&kernel.result, &args.result), (&kernel.rows, &args.rows)];
    n_scores * (2 * depth + softmax) + maps.map(|(body, args)| body_flops(body, &args.outer, &[])).iter().sum::<usize>()
}

/// The maps of a product's made operands, with their numbers.
fn made_operands<'a>(body: &'a Body, args: &'a Args) -> impl Iterator<Item = (&'a Body, &'a Args)> {
    let numbers = args.matmul.iter().flat_map(|matmul| &matmul.made);
    body.made.iter().zip(numbers).filter_map(|(made, args)| Some((made.as_deref()?, args.as_deref()?)))
}

fn body_flops(body: &Body, outer: &[usize], inner: &[usize]) -> usize {
    let (n_outer, n_inner): (usize, usize) = (outer.iter().product(), inner.iter().product());
    let cost = |op: &InstOp| match op {
        InstOp::Reduce(..) => n_inner,
        op => op.cost(),
    };
    let times = |scope: Scope| match scope {
        Scope::Uniform => 1,
        Scope::Outer => n_outer,
        Scope::Inner => n_outer * n_inner,
    };
    body.insts.iter().map(|i| cost(&i.op) * times(i.scope)).sum()
}

/// Bytes a launch reads of one input: each element it touches once.
fn read_bytes(plan: &Plan, launch: &Launch, input: usize) -> usize {
    let storage = launch.kernel.bindings().0[input];
    let whole = plan.value_elems[launch.read_values[input] as usize] * storage.unit_bytes();
    let touched = match (&launch.kernel, &launch.args.attention) {
        (Kernel::Loop(body), _) => touched(body, &launch.args, input),
        (Kernel::Matmul(body), _) if input >= 2 || body.made[input].is_some() => {
            let made: usize = made_operands(body, &launch.args).map(|(made, args)| touched(made, args, input)).sum();
            made + touched(body, &launch.args, input)
        }
        (Kernel::Attention(kernel), Some(args)) if input > 2 * kernel.n_inner as usize => {
            let maps = [(&kernel.scores, &args.scores), (&kernel.result, &args.result), (&kernel.rows, &args.rows)];
            maps.iter().map(|(body, args)| touched(body, args, input)).sum()
        }
        _ => return whole,
    };
    storage.bytes_of(touched).min(whole)
}

/// Elements of an input that the instructions of a body name.
fn touched(body: &Body, args: &Args, input: usize) -> usize {
    let mut touched = 0;
    for inst in &body.insts {
        match inst.op {
            InstOp::Load { input: i, access } if i as usize == input => {
                touched += elements(&args.accesses[access as usize])
            }
            // Which rows a gather reads is not known beforehand: one element for each index.
            InstOp::Gather { input: i, .. } if i as usize == input => {
                let inner = if inst.scope == Scope::Inner { &args.inner[..] } else { &[] };
                touched += args.outer.iter().chain(inner).product::<usize>();
            }
            _ => {}
        }
    }
    touched
}

/// How many different elements a map names: along axes without a step it is always the same one.
fn elements(map: &IndexMap) -> usize {
    let view = map.views().last().expect("never empty");
    view.shape.iter().zip(view.strides).map(|(d, s)| if s == 0 { (*d).min(1) } else { *d }).product()
}

fn write_bytes(plan: &Plan, launch: &Launch, output: usize, dtype: DType) -> usize {
    let n_elems = match &launch.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => {
            elements(&launch.args.accesses[body.stores[output].access as usize])
        }
        Kernel::Attention(_) | Kernel::Routine(_) | Kernel::Grouped(_) => {
            plan.value_elems[launch.write_values[output] as usize]
        }
    };
    n_elems * dtype.size()
}

/// What of each input is needed at all, once, and each output once.
fn least_bytes(plan: &Plan) -> usize {
    let mut inputs = 0;
    for value in &plan.input_values {
        let mut needed = 0;
        for launch in plan.launches.iter().flat_map(Launch::each) {
            for (i, _) in launch.read_values.iter().enumerate().filter(|(_, v)| *v == value) {
                needed = needed.max(read_bytes(plan, launch, i));
            }
        }
        inputs += needed;
    }
    let mut outputs: Vec<_> =
        plan.outputs.iter().zip(&plan.output_values).filter(|(_, v)| !plan.input_values.contains(v)).collect();
    outputs.sort();
    outputs.dedup();
    inputs + outputs.iter().map(|(slot, _)| plan.slots[slot.0 as usize].size_bytes).sum::<usize>()
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        writeln!(
            f,
            "{} kernel{}, {} submit{}; temporaries {} B (least {} B); traffic {} (least {})",
            self.dispatches,
            plural(self.dispatches),
            self.submits,
            plural(self.submits),
            self.peak_temp_bytes,
            self.peak_temp_lower_bound,
            bytes(self.bytes_moved),
            bytes(self.bytes_moved_lower_bound),
        )?;
        for (i, kernel) in self.kernels.iter().enumerate() {
            // Stages that add no kernel are passed over.
            let stage = self.stages.iter().take_while(|end| **end <= i).count();
            if self.stages.len() > 1 && self.stages[..stage].last().map_or(i == 0, |end| *end == i) {
                writeln!(f, "      stage {stage}")?;
            }
            writeln!(
                f,
                "{i:>4}  {}  reads {}, writes {}, {} flops",
                kernel.name,
                bytes(kernel.bytes_read),
                bytes(kernel.bytes_written),
                kernel.flops
            )?;
            let text: String = kernel.text.chars().take(300).collect();
            let dots = if text.len() < kernel.text.len() { " …" } else { "" };
            writeln!(f, "      {text}{dots}")?;
            if !kernel.schedule.is_empty() {
                writeln!(f, "      {}", kernel.schedule)?;
            }
            if let Some(variant) = &kernel.variant {
                writeln!(f, "      tiles of {variant}")?;
            }
        }
        for b in &self.boundaries {
            writeln!(f, "      {} and {} are two kernels: {}", b.before, b.after, b.why)?;
        }
        self.repeated.iter().try_for_each(|work| writeln!(f, "      {work}"))?;
        self.edges.iter().try_for_each(|edge| writeln!(f, "      edge: {edge}"))
    }
}

/// Bytes as people read them.
fn bytes(n: usize) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / (1 << 20) as f64),
    }
}
