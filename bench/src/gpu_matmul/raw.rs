//! A hand-written kernel on wgpu with nothing in between: everything is made beforehand, a call is one submit.

use lazuli::gpu::wgpu;
use wgpu::BufferUsages;

use super::hand::{Kernel, Sizes};
use crate::contender::{Case, Result};

/// A kernel ready to run.
pub struct Raw {
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    n_groups: u32,
    a: wgpu::Buffer,
    y: wgpu::Buffer,
}

impl Raw {
    /// Compiles a kernel and uploads its inputs.
    pub fn new(
        (device, queue): (wgpu::Device, wgpu::Queue),
        kernel: &Kernel,
        sizes: Sizes,
        [a, b]: [&[f32]; 2],
    ) -> Raw {
        let source = wgpu::ShaderSource::Wgsl(kernel.text.as_str().into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let filled = |bytes: &[u8], usage: BufferUsages| {
            let size = bytes.len() as u64;
            let usage = usage | BufferUsages::COPY_DST;
            let desc = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
            let buffer = device.create_buffer(&desc);
            queue.write_buffer(&buffer, 0, bytes);
            buffer
        };
        let bytes_of = |values: &[f32]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let words = [sizes.m, sizes.k, sizes.n, 0].map(|size| (size as u32).to_ne_bytes());
        let y = vec![0; sizes.m * sizes.n * 4];
        let buffers = [
            filled(&words.concat(), BufferUsages::UNIFORM),
            filled(&bytes_of(a), BufferUsages::STORAGE),
            filled(&bytes_of(b), BufferUsages::STORAGE),
            filled(&y, BufferUsages::STORAGE | BufferUsages::COPY_SRC),
        ];
        let mut entries = Vec::new();
        for (i, buffer) in buffers.iter().enumerate() {
            entries.push(wgpu::BindGroupEntry { binding: i as u32, resource: buffer.as_entire_binding() });
        }
        let layout = &pipeline.get_bind_group_layout(0);
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });
        let [_, a, _, y] = buffers;
        Raw { device, queue, pipeline, group, n_groups: kernel.n_groups, a, y }
    }

    fn wait(&self) -> Result<()> {
        self.device.poll(wgpu::PollType::wait_indefinitely()).map(|_| ()).map_err(|error| error.to_string())
    }

    fn recorded(&self) -> wgpu::CommandEncoder {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(self.n_groups, 1, 1);
        drop(pass);
        encoder
    }

    /// Memory that the result can be copied to and read from.
    fn staging(&self) -> wgpu::Buffer {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: None, size: self.y.size(), usage, mapped_at_creation: false };
        self.device.create_buffer(&desc)
    }
}

impl Case for Raw {
    fn call(&mut self) -> Result<()> {
        self.queue.submit([self.recorded().finish()]);
        self.wait()
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        let staging = self.staging();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.y, 0, &staging, 0, self.y.size());
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        self.wait()?;
        let bytes = staging.get_mapped_range(..).map_err(|error| error.to_string())?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}

/// The same with its left matrix written and its result read in every call.
pub struct RoundTrip {
    raw: Raw,
    staging: wgpu::Buffer,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl RoundTrip {
    pub fn new(raw: Raw, input: &[f32]) -> RoundTrip {
        let (staging, output) = (raw.staging(), vec![0.0; raw.y.size() as usize / 4]);
        RoundTrip { raw, staging, input: input.to_vec(), output }
    }
}

impl Case for RoundTrip {
    fn call(&mut self) -> Result<()> {
        let RoundTrip { raw, staging, input, output } = self;
        // SAFETY: floats have no padding, and any bytes are floats.
        let bytes = unsafe { std::slice::from_raw_parts(input.as_ptr().cast::<u8>(), size_of_val(&input[..])) };
        raw.queue.write_buffer(&raw.a, 0, bytes);
        let mut encoder = raw.recorded();
        encoder.copy_buffer_to_buffer(&raw.y, 0, staging, 0, staging.size());
        raw.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        raw.wait()?;
        let bytes = staging.get_mapped_range(..).map_err(|error| error.to_string())?;
        let numbers = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        output.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
        drop(bytes);
        staging.unmap();
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.output.clone())
    }
}
