//! How long each kernel took by the device's own clock, where it has one. Only when `LAZULI_LOG=time` asks: each kernel
//! then is a pass of its own, and every evaluation is waited for.

use std::sync::Arc;

use wgpu::BufferUsages;

use super::memory::Staging;
use super::open_device::OpenDevice;
use super::ready::Dispatch;
use crate::error::Result;
use crate::log::{self, Topic};

/// Times of one evaluation.
pub struct Timer {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: Staging,
    n_steps: usize,
}

impl Timer {
    /// One, if times are wanted and can be had.
    pub fn wanted(live: &Arc<OpenDevice>, n_steps: usize) -> Result<Option<Timer>> {
        let can = live.device.features().contains(wgpu::Features::TIMESTAMP_QUERY);
        let count = 2 * n_steps as u32;
        if !log::wants(Topic::Time) || !can || n_steps == 0 || count > wgpu::QUERY_SET_MAX_QUERIES {
            return Ok(None);
        }
        let desc = wgpu::QuerySetDescriptor { label: Some("times"), ty: wgpu::QueryType::Timestamp, count };
        let queries = live.checked("time", || live.device.create_query_set(&desc))?;
        let n_bytes = n_steps * 16;
        let resolved = live.buffer("times", n_bytes, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC)?;
        Ok(Some(Timer { queries, resolved, staging: live.staging(n_bytes)?, n_steps }))
    }

    /// When a step's pass begins and ends.
    pub fn writes(&self, step: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * step as u32),
            end_of_pass_write_index: Some(2 * step as u32 + 1),
        }
    }

    /// Has the times copied to where the host can read them.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2 * self.n_steps as u32, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, self.staging.buffer(), 0, self.n_steps as u64 * 16);
    }

    /// Waits for the run and shows how long each kernel took.
    pub fn report(self, live: &OpenDevice, steps: &[Dispatch]) -> Result<()> {
        let mut bytes = vec![0; self.n_steps * 16];
        self.staging.ask(bytes.len());
        live.wait()?;
        if !self.staging.read(&mut bytes) {
            return Ok(());
        }
        let ticks: Vec<u64> = bytes.as_chunks().0.iter().map(|t| u64::from_ne_bytes(*t)).collect();
        let period = live.queue.get_timestamp_period() as f64;
        for (step, [start, end]) in steps.iter().zip(ticks.as_chunks().0) {
            let micros = end.saturating_sub(*start) as f64 * period / 1000.0;
            log::show(Topic::Time, || format!("{micros:>10.1} µs  {}", step.label));
        }
        Ok(())
    }
}
