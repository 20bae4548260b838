//! Products of one launch in one dispatch: each has workgroups of its own, which take one branch of the text. Workgroups of one
//! product follow those of another, so that all invocations of a workgroup take the same branch, and barriers within it are
//! reached by all of them.

use std::fmt;

use super::super::context::Context;
use super::super::launch_memory::{LaunchMemory, StatusUse};
use super::super::shader::Shader;
use super::super::tree::word;
use super::super::{Pass, ShaderProgram};
use super::shape::ProductSchedule;
use super::{DispatchSums, MatmulShader, memory, program};
use crate::kernel::{Body, Kernel, MatmulArgs};
use crate::plan::{Launch, Slot};
use crate::target::{GpuTarget, Threads};

/// How grouped products are shared out.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedSchedule {
    pub products: Vec<ProductSchedule>,
    /// Whether all are one dispatch, each with workgroups of its own.
    pub one_dispatch: bool,
}

impl GroupedSchedule {
    /// The schedule of these products, each with what comes after its sums. One dispatch needs one variant for all, each product
    /// in one run over all of its columns, and workgroups that run as such: llvmpipe passes through every branch with all
    /// lanes masked, and compiles the text of each product anew (an encoder took 11.0 s of first use instead of 7.3, and 1.8
    /// times as long to run).
    pub fn new(products: Vec<(&MatmulArgs, &Body)>, target: &GpuTarget) -> GroupedSchedule {
        let lanes = products.iter().map(|(_, body)| body.inputs[0].dtype().is_float());
        let is_one_lane = lanes.clone().all(|is_float| is_float) || lanes.clone().all(|is_float| !is_float);
        // Loops over k are counted twice: to bring operands, and to multiply.
        let n_iterations: usize = products.iter().map(|(matmul, _)| 4 * matmul.k + 256).sum();
        // All of them fill the device together.
        let share = GpuTarget { full_groups: target.full_groups.div_ceil(products.len()), ..target.clone() };
        let schedules: Vec<ProductSchedule> =
            products.iter().map(|(matmul, body)| ProductSchedule::new(matmul, body, &share)).collect();
        let is_whole = products.iter().all(|(matmul, _)| matmul.k_parts.is_whole());
        let variant = |product: &ProductSchedule| match product.columns[..] {
            [(_, shape)] if is_whole => Some(shape.variant.name),
            _ => None,
        };
        let first = schedules.first().and_then(variant);
        let one_dispatch = target.style == Threads::Cooperative
            && is_one_lane
            && n_iterations <= target.max_iterations
            && first.is_some()
            && schedules.iter().all(|product| variant(product) == first);
        GroupedSchedule { products: schedules, one_dispatch }
    }
}

impl fmt::Display for GroupedSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, product) in self.products.iter().enumerate() {
            write!(f, "{}{product}", if i > 0 { " | " } else { "" })?;
        }
        f.write_str(if self.one_dispatch { ", in one dispatch" } else { ", a dispatch each" })
    }
}

/// The memory of each pass of grouped products.
pub fn grouped_memory(
    launch: &Launch,
    schedule: &GroupedSchedule,
    slots: &[Slot],
    target: &GpuTarget,
) -> Vec<LaunchMemory> {
    let contexts = contexts(launch, slots, target);
    if !schedule.one_dispatch {
        let products = contexts.iter().zip(&schedule.products);
        return products.flat_map(|(context, product)| memory(context, &context.launch.args, product)).collect();
    }
    // All products share the bindings of the dispatch: memory that several of them read is bound once.
    let mut uses = Vec::new();
    for shader in shaders(&contexts, schedule) {
        let mut own = shader.uses();
        own.iter_mut().for_each(|one| one.name = format!("{}{}", shader.prefix, one.name));
        uses.extend(own);
    }
    vec![LaunchMemory::new(&uses, StatusUse::None, target)]
}

/// The context of each product, as if it were a launch of its own.
fn contexts<'a>(launch: &'a Launch, slots: &'a [Slot], target: &'a GpuTarget) -> Vec<Context<'a>> {
    let context = |part: &'a Launch| match &part.kernel {
        Kernel::Matmul(body) => Context::new(part, body, slots, target),
        _ => unreachable!("bug: only products are grouped"),
    };
    launch.parts.iter().map(context).collect()
}

/// The passes of grouped products, each with its memory.
pub fn grouped(
    launch: &Launch,
    schedule: &GroupedSchedule,
    slots: &[Slot],
    target: &GpuTarget,
    memory: &[LaunchMemory],
) -> ShaderProgram {
    let contexts = contexts(launch, slots, target);
    if schedule.one_dispatch {
        return ShaderProgram { passes: vec![one_pass(&contexts, schedule, target, &memory[0])], scratch: Vec::new() };
    }
    let mut all = ShaderProgram::default();
    for (context, product) in contexts.iter().zip(&schedule.products) {
        let memory = &memory[all.passes.len()..];
        let ShaderProgram { passes, scratch } = program(context, &context.launch.args, product, memory);
        all.passes.extend(passes);
        // Passes run one after another, and share the memory for sums of parts.
        all.scratch.resize(all.scratch.len().max(scratch.len()), 0);
        all.scratch.iter_mut().zip(scratch).for_each(|(most, bytes)| *most = bytes.max(*most));
    }
    all
}

/// The data from which the branch of each product in one dispatch is printed, without its memory.
fn shaders<'a>(contexts: &'a [Context], schedule: &GroupedSchedule) -> Vec<MatmulShader<'a>> {
    let mut shaders = Vec::with_capacity(contexts.len());
    for (number, (context, product)) in contexts.iter().zip(&schedule.products).enumerate() {
        let ((cols, shape), args) = (product.columns[0], &context.launch.args);
        let Some(matmul) = &args.matmul else { unreachable!("a matmul's launch has its numbers") };
        let mut shader = MatmulShader::new(context, args, matmul, shape, cols, DispatchSums::Whole);
        shader.prefix = if number > 0 { format!("p{number}_") } else { String::new() };
        shaders.push(shader);
    }
    shaders
}

/// All products in one dispatch.
fn one_pass(contexts: &[Context], schedule: &GroupedSchedule, target: &GpuTarget, memory: &LaunchMemory) -> Pass {
    let mut shaders = shaders(contexts, schedule);
    let mut n_before = 0;
    for shader in &mut shaders {
        let n_uses = shader.uses().len();
        shader.memory = memory.part(n_before..n_before + n_uses);
        n_before += n_uses;
    }
    let group = shaders[0].shape.variant.group(target);
    let mut text = Shader::new(String::new(), &[], group);
    text.define("params", word("params"));
    if shaders.iter().any(|shader| shader.shape.shuffle.is_some()) {
        text.count_by_subgroup();
    }
    let group_idx = text.count_groups();
    let mut n_groups = 0;
    for (number, shader) in shaders.iter().enumerate() {
        text.start_part(&shader.prefix, &shader.args.consts);
        let own = shader.n_groups();
        let (start, end) = (text.param("group_start", n_groups), text.param("group_end", n_groups + own));
        n_groups += own;
        let is_here = group_idx.less(end);
        match number {
            0 => text.open_if(is_here),
            // Workgroups beyond the end find no tile of the last product.
            _ => text.open_else((number + 1 < shaders.len()).then_some(is_here)),
        }
        let group_idx = text.define("group_of_part", &group_idx - start);
        shader.write(&mut text, group_idx);
        text.close();
    }
    let label = format!("{}x_{}", contexts.len(), contexts[0].label());
    text.finish(label, memory, n_groups)
}
