//! Bytes from the device to the host: a copy to memory that the host can read, or a look at where they lie. A thread
//! waits; a future is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::fault::{lost, refused};
use super::live::Live;
use super::memory::{Block, Staging};
use super::storage::{Source, Storage};
use crate::backend::Counters;
use crate::error::{Error, Result};

/// The first bytes of a storage, waited for.
pub fn read(storage: &Storage, counters: &Counters, out: &mut [u8]) -> Result<()> {
    match storage.source(out)? {
        Source::Host => return Ok(()),
        Source::Staged(staged) => fetch(&staged, out)?,
        Source::Block(block) if block.live().quirks.map_results && !block.is_foreign() => look(&block, out)?,
        Source::Block(block) => {
            for (start, len) in parts(&block, out.len()) {
                fetch(&copy(&block, start, len)?, &mut out[start..start + len])?;
            }
        }
    }
    Counters::count(&counters.bytes_downloaded, out.len() as u64);
    // The run is over, so whatever it found is known, or a word away.
    for status in storage.pending() {
        if status.known().is_none()
            && let Source::Block(block) = storage.source(&mut [])?
        {
            block.live().wait()?;
        }
        if let Some(Some(error)) = status.known() {
            status.told();
            return Err(error);
        }
    }
    Ok(())
}

/// The same as a future. Always through memory that the host can read: mapping a tensor's own memory would keep others
/// from using it until somebody polls again.
pub async fn read_async(storage: &Storage, counters: &Counters, out: &mut [u8]) -> Result<()> {
    match storage.source(out)? {
        Source::Host => return Ok(()),
        Source::Staged(staged) => fetch_async(&staged, out).await?,
        Source::Block(block) => {
            for (start, len) in parts(&block, out.len()) {
                fetch_async(&copy(&block, start, len)?, &mut out[start..start + len]).await?;
            }
        }
    }
    Counters::count(&counters.bytes_downloaded, out.len() as u64);
    for status in storage.pending() {
        if let Some(error) = status.wait().await {
            status.told();
            return Err(error);
        }
    }
    Ok(())
}

/// Copies part of a block to memory that the host can read.
fn copy(block: &Block, start: usize, len: usize) -> Result<Staging> {
    let live = block.live();
    let staging = live.staging(len)?;
    live.checked("read", || {
        let mut encoder = live.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("read") });
        let (buffer, at) = block.at(start);
        let n_bytes = len.next_multiple_of(4) as u64;
        encoder.copy_buffer_to_buffer(buffer, at as u64, staging.buffer(), 0, n_bytes);
        live.submit([encoder.finish()]);
    })?;
    Ok(staging)
}

/// Where each part of the first bytes starts, and how long it is.
fn parts(block: &Block, n_bytes: usize) -> Vec<(usize, usize)> {
    block.pieces(n_bytes).map(|(_, _, start, len)| (start, len)).collect()
}

/// Reads what was copied, and waits for it.
fn fetch(staging: &Staging, out: &mut [u8]) -> Result<()> {
    let asked = staging.ask(out.len());
    staging.live().wait()?;
    match asked.get() == Some(true) && staging.read(out) {
        true => Ok(()),
        false => Err(failed(staging.live())),
    }
}

async fn fetch_async(staging: &Staging, out: &mut [u8]) -> Result<()> {
    let asked = staging.ask(out.len());
    staging.live().waiter.watch(&asked);
    match asked.wait().await && staging.read(out) {
        true => Ok(()),
        false => Err(failed(staging.live())),
    }
}

/// Reads a block where it lies. The device must not be given it meanwhile.
fn look(block: &Block, out: &mut [u8]) -> Result<()> {
    const WAITING: u8 = 0;
    const MAPPED: u8 = 1;
    let live = block.live();
    // Without the turn: others may submit while this thread waits.
    live.wait()?;
    for (buffer, at, start, len) in block.pieces(out.len()) {
        let _turn = live.turn();
        let state = Arc::new(AtomicU8::new(WAITING));
        let range = at as u64..(at + len.next_multiple_of(4)) as u64;
        let seen = state.clone();
        buffer.map_async(wgpu::MapMode::Read, range.clone(), move |mapped| {
            seen.store(if mapped.is_ok() { MAPPED } else { MAPPED + 1 }, Ordering::Release);
        });
        live.poll(wgpu::PollType::Poll)?;
        if state.load(Ordering::Acquire) == WAITING {
            // Somebody has submitted work that reads it.
            live.wait()?;
        }
        if state.load(Ordering::Acquire) != MAPPED {
            return Err(failed(live));
        }
        let copied = buffer.get_mapped_range(range).map(|bytes| out[start..start + len].copy_from_slice(&bytes[..len]));
        buffer.unmap();
        copied.map_err(|error| refused("read", error.to_string()))?;
    }
    Ok(())
}

fn failed(live: &Live) -> Error {
    let unknown = || lost("read", "the device did not hand out its memory");
    live.lost().unwrap_or_else(unknown)
}
