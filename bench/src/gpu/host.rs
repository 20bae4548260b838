//! What an evaluation costs the host: many tiny dispatches, one submit, four bytes read. Lazuli finds its plan, records
//! and submits it; raw wgpu has everything ready and records the same dispatches. The difference has a limit.

use std::time::Duration;

use lazuli::gpu::wgpu;
use lazuli::{Device, Tensor};

use super::hand::{Hand, Step, record};
use super::kernels::{Kernel, Memory};
use crate::contender::{Case, Result};
use crate::measure::{Effort, Runner, median, run_in_turns};

/// Microseconds that Lazuli may add for each dispatch, and for each submit that is read from.
const PER_DISPATCH_US: f64 = 5.0;
const PER_READ_US: f64 = 60.0;
/// Dispatches of an evaluation: products of a vector of eight, and a sum.
const N_PRODUCTS: [usize; 3] = [0, 10, 100];
const SIDE: usize = 8;

/// A line per number of dispatches: CPU time of both, what Lazuli adds (medians of the rounds) and what it may.
pub fn host_cost(device: &Device, n_rounds: usize) -> Result<String> {
    let hand = Hand::new(device)?;
    let mut text = String::from("dispatches  raw wgpu µs  lazuli µs  added µs  limit µs  verdict\n");
    for n_products in N_PRODUCTS {
        let (raw, lazuli) = (RawCase::new(&hand, n_products), LazuliCase::new(device, n_products));
        let n_dispatches = n_products + 1;
        let found = lazuli.n_dispatches()?;
        if found != n_dispatches as u64 {
            return Err(format!("Lazuli dispatches {found} kernels where {n_dispatches} were to be compared"));
        }
        let mut runners = [Runner::new("raw wgpu", Ok(Box::new(raw))), Runner::new("lazuli", Ok(Box::new(lazuli)))];
        run_in_turns(&mut runners, Effort { n_rounds, sample: Duration::from_millis(20) });
        let [raw, lazuli] = runners.map(Runner::finish);
        let ((raw, raw_value), (lazuli, lazuli_value)) = (raw?, lazuli?);
        // Of each round, as for ratios: the machine has fast and slow moments.
        let added = lazuli.cpu_rounds.iter().zip(&raw.cpu_rounds).map(|(lazuli, raw)| (lazuli - raw) * 1e3);
        let added_us = median(added.collect());
        let limit_us = PER_DISPATCH_US * n_dispatches as f64 + PER_READ_US;
        let verdict = match (raw_value == lazuli_value, added_us <= limit_us) {
            (false, _) => "WRONG",
            (true, false) => "OVER",
            (true, true) => "ok",
        };
        text += &format!(
            "{n_dispatches:>10}  {:>11.1}  {:>9.1}  {added_us:>8.1}  {limit_us:>8.1}  {verdict}\n",
            median(raw.cpu_rounds) * 1e3,
            median(lazuli.cpu_rounds) * 1e3
        );
    }
    Ok(text)
}

/// The matrix turns a vector round: sums stay what they are, and are exact.
fn matrix() -> Vec<f32> {
    (0..SIDE * SIDE).map(|i| (i / SIDE == (i + 1) % SIDE) as u8 as f32).collect()
}

fn vector() -> Vec<f32> {
    (0..SIDE).map(|i| i as f32).collect()
}

struct LazuliCase {
    device: Device,
    x: Tensor,
    w: Tensor,
    n_products: usize,
    y: f32,
}

impl LazuliCase {
    fn new(device: &Device, n_products: usize) -> LazuliCase {
        let x = Tensor::from_vec(vector(), [1, SIDE], device);
        let w = Tensor::from_vec(matrix(), [SIDE, SIDE], device);
        LazuliCase { device: device.clone(), x, w, n_products, y: 0.0 }
    }

    fn expression(&self) -> Tensor {
        (0..self.n_products).fold(self.x.clone(), |x, _| x.matmul(&self.w)).sum(..)
    }

    fn n_dispatches(&self) -> Result<u64> {
        let before = self.device.stats().dispatches;
        self.expression().item::<f32>().map_err(|error| error.to_string())?;
        Ok(self.device.stats().dispatches - before)
    }
}

impl Case for LazuliCase {
    fn call(&mut self) -> Result<()> {
        self.y = self.expression().item().map_err(|error| error.to_string())?;
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(vec![self.y])
    }
}

/// Two vectors take turns; the last kernel sums the one that was written last.
struct RawCase {
    device: wgpu::Device,
    queue: wgpu::Queue,
    steps: Vec<Step>,
    y: wgpu::Buffer,
    /// What the host reads, if it cannot read `y` itself.
    staging: Option<wgpu::Buffer>,
    value: f32,
}

impl RawCase {
    fn new(hand: &Hand, n_products: usize) -> RawCase {
        let mappable = hand.device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
        let buffer = |usage: wgpu::BufferUsages| {
            hand.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 16,
                usage,
                mapped_at_creation: false,
            })
        };
        let read = if mappable { wgpu::BufferUsages::MAP_READ } else { wgpu::BufferUsages::COPY_SRC };
        let y = buffer(wgpu::BufferUsages::STORAGE | read);
        let staging = (!mappable).then(|| buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST));
        let inputs = [vector(), matrix(), vec![0.0; SIDE]].map(|data| hand.upload(&data));
        let product = |from: usize, to: usize| Kernel {
            text: PRODUCT.into(),
            memory: vec![Memory::Input(from), Memory::Input(1), Memory::Input(to)],
            n_groups: 1,
            n_scratch: 0,
        };
        let sum = |from: usize| Kernel {
            text: SUM.into(),
            memory: vec![Memory::Input(from), Memory::Y],
            n_groups: 1,
            n_scratch: 0,
        };
        let ends = [0, 2];
        let turns = [product(0, 2), product(2, 0)].map(|kernel| kernel.step(hand, &inputs, &y, &y));
        let last = sum(ends[n_products % 2]).step(hand, &inputs, &y, &y);
        let steps = (0..n_products).map(|i| turns[i % 2].clone()).chain([last]).collect();
        RawCase { device: hand.device.clone(), queue: hand.queue.clone(), steps, y, staging, value: 0.0 }
    }
}

impl Case for RawCase {
    fn call(&mut self) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        record(&mut encoder, &self.steps);
        if let Some(staging) = &self.staging {
            encoder.copy_buffer_to_buffer(&self.y, 0, staging, 0, 4);
        }
        self.queue.submit([encoder.finish()]);
        let read = self.staging.as_ref().unwrap_or(&self.y);
        // Where mapping fails, so does what is asked for below.
        read.map_async(wgpu::MapMode::Read, ..4, |_| ());
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| error.to_string())?;
        let bytes = read.get_mapped_range(..4).map_err(|error| error.to_string())?;
        self.value = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        drop(bytes);
        read.unmap();
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(vec![self.value])
    }
}

const PRODUCT: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var k = 0u; k < 8u; k++) { sum += x[k] * w[k * 8u + lane]; }
    y[lane] = sum;
}";

const SUM: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() {
    var sum = 0.0;
    for (var k = 0u; k < 8u; k++) { sum += x[k]; }
    y[0] = sum;
}";
