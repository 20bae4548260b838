//! Hand-written kernels, run by as little wgpu as it takes: everything is compiled and bound beforehand, a call records
//! one pass, submits it and waits.

use lazuli::Device;
use lazuli::gpu::wgpu;
use wgpu::BufferUsages;

use super::kernels::{Kernel, Memory, kernels};
use crate::contender::{Case, Contender, Result};
use crate::inputs::Input;
use crate::workload::Work;

/// The hand-written side.
pub struct Hand {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
}

impl Hand {
    /// On the wgpu device behind `device`.
    pub fn new(device: &Device) -> Result<Hand> {
        let (device, queue) = lazuli::gpu::handles(device).map_err(|error| error.to_string())?;
        Ok(Hand { device, queue })
    }

    /// Memory for `n` values.
    pub fn buffer(&self, n: usize) -> wgpu::Buffer {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let size = (n * size_of::<f32>()).next_multiple_of(16) as u64;
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// Memory with these values.
    pub fn upload(&self, values: &[f32]) -> wgpu::Buffer {
        let buffer = self.buffer(values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        self.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    }

    /// Numbers that a kernel binds as a uniform block.
    pub fn uniform(&self, words: &[u32; 4]) -> wgpu::Buffer {
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&desc);
        self.queue.write_buffer(&buffer, 0, &words.map(u32::to_ne_bytes).concat());
        buffer
    }

    /// A kernel, compiled, its bindings being these buffers in order.
    pub fn step(&self, text: &str, buffers: &[&wgpu::Buffer], n_groups: u32) -> Step {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let mut entries = Vec::new();
        for (binding, buffer) in buffers.iter().enumerate() {
            entries.push(wgpu::BindGroupEntry { binding: binding as u32, resource: buffer.as_entire_binding() });
        }
        let layout = &pipeline.get_bind_group_layout(0);
        let group =
            self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });
        Step { pipeline, group, n_groups }
    }

    /// Dispatches that leave `n` values in `y`, to be called.
    pub fn case(&self, steps: Vec<Step>, y: wgpu::Buffer, n: usize) -> Box<dyn Case> {
        let (device, queue) = (self.device.clone(), self.queue.clone());
        Box::new(HandCase { device, queue, steps, y, n })
    }
}

impl Contender for Hand {
    fn name(&self) -> &'static str {
        "hand"
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        let kernels = kernels(work)?;
        let inputs: Vec<wgpu::Buffer> = inputs.iter().map(|input| self.upload(&input.data)).collect();
        let n_scratch = kernels.iter().map(|k| k.n_scratch).max().unwrap_or(0);
        let (scratch, y) = (self.buffer(n_scratch.max(4)), self.buffer(work.n_outputs()));
        let steps = kernels.iter().map(|kernel| kernel.step(self, &inputs, &scratch, &y)).collect();
        Some(Ok(self.case(steps, y, work.n_outputs())))
    }
}

impl Kernel {
    /// Compiled and bound.
    pub fn step(&self, hand: &Hand, inputs: &[wgpu::Buffer], scratch: &wgpu::Buffer, y: &wgpu::Buffer) -> Step {
        let buffer = |memory: &Memory| match memory {
            Memory::Input(idx) => &inputs[*idx],
            Memory::Scratch => scratch,
            Memory::Y => y,
        };
        let buffers: Vec<&wgpu::Buffer> = self.memory.iter().map(buffer).collect();
        hand.step(&self.text, &buffers, self.n_groups as u32)
    }
}

/// A dispatch.
#[derive(Clone)]
pub struct Step {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    n_groups: u32,
}

/// Records dispatches as one pass.
pub fn record(encoder: &mut wgpu::CommandEncoder, steps: &[Step]) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    for step in steps {
        pass.set_pipeline(&step.pipeline);
        pass.set_bind_group(0, &step.group, &[]);
        pass.dispatch_workgroups(step.n_groups, 1, 1);
    }
}

struct HandCase {
    device: wgpu::Device,
    queue: wgpu::Queue,
    steps: Vec<Step>,
    y: wgpu::Buffer,
    n: usize,
}

impl HandCase {
    fn wait(&self) -> Result<()> {
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl Case for HandCase {
    fn call(&mut self) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        record(&mut encoder, &self.steps);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        let size = self.y.size();
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging =
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.y, 0, &staging, 0, size);
        self.queue.submit([encoder.finish()]);
        // Where mapping fails, so does what is asked for below.
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        self.wait()?;
        let bytes = staging.get_mapped_range(..).map_err(|error| error.to_string())?;
        let values = bytes.chunks_exact(4).take(self.n).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        Ok(values.collect())
    }
}
