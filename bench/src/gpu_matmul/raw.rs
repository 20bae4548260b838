//! A hand-written product, compiled and bound on raw wgpu.

use lazuli::gpu::wgpu;
use wgpu::BufferUsages;

use super::hand::{Kernel, Sizes};
use crate::contender::{Case, Result};
use crate::gpu::{Hand, Step, record};

/// A kernel with its inputs, ready to be called.
pub fn case(hand: &Hand, kernel: &Kernel, sizes: Sizes, inputs: [&[f32]; 2]) -> Box<dyn Case> {
    let Bound { step, y, .. } = Bound::new(hand, kernel, sizes, inputs);
    hand.case(vec![step], y, sizes.m * sizes.n)
}

/// The same with its left matrix written and its result read in every call.
pub fn round_trip(hand: Hand, kernel: &Kernel, sizes: Sizes, [a, b]: [&[f32]; 2]) -> Box<dyn Case> {
    let bound = Bound::new(&hand, kernel, sizes, [a, b]);
    let desc = wgpu::BufferDescriptor {
        label: None,
        size: bound.y.size(),
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    };
    let staging = hand.device.create_buffer(&desc);
    Box::new(RoundTrip { hand, bound, staging, input: a.to_vec(), output: vec![0.0; sizes.m * sizes.n] })
}

/// A kernel and the memory it is bound to.
struct Bound {
    step: Step,
    a: wgpu::Buffer,
    y: wgpu::Buffer,
}

impl Bound {
    fn new(hand: &Hand, kernel: &Kernel, Sizes { m, k, n }: Sizes, [a, b]: [&[f32]; 2]) -> Bound {
        let sizes = hand.uniform(&[m as u32, k as u32, n as u32, 0]);
        let (a, y) = (hand.upload(a), hand.buffer(m * n));
        let step = hand.step(&kernel.text, &[&sizes, &a, &hand.upload(b), &y], kernel.n_groups);
        Bound { step, a, y }
    }
}

struct RoundTrip {
    hand: Hand,
    bound: Bound,
    staging: wgpu::Buffer,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Case for RoundTrip {
    fn call(&mut self) -> Result<()> {
        let RoundTrip { hand: Hand { device, queue }, bound, staging, input, output } = self;
        // SAFETY: floats have no padding, and any bytes are floats.
        let bytes = unsafe { std::slice::from_raw_parts(input.as_ptr().cast::<u8>(), size_of_val(&input[..])) };
        queue.write_buffer(&bound.a, 0, bytes);
        let mut encoder = device.create_command_encoder(&Default::default());
        record(&mut encoder, std::slice::from_ref(&bound.step));
        encoder.copy_buffer_to_buffer(&bound.y, 0, staging, 0, staging.size());
        queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| error.to_string())?;
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
