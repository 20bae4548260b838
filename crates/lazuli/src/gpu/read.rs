//! Bytes from the device to the host: a copy to memory that the host can read, or a look at where they lie. A thread
//! waits; a future is woken.

use super::fault::lost;
use super::memory::{Block, Staging};
use super::open_device::OpenDevice;
use super::signal::Signal;
use super::storage::{GpuBuffer, Source};
use crate::backend::Counters;
use crate::error::{Error, Result};

/// The first bytes of a storage, waited for.
pub fn read(storage: &GpuBuffer, counters: &Counters, out: &mut [u8]) -> Result<()> {
    match storage.source(out)? {
        Source::Host => return Ok(()),
        Source::Staged(staged) => fetch(&staged, out)?,
        Source::Block(block) if block.live().target.map_results && !block.is_foreign() => look(&block, out)?,
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
            status.reported();
            return Err(error);
        }
    }
    Ok(())
}

/// The same as a future. Always through memory that the host can read: mapping a tensor's own memory would keep others
/// from using it until somebody polls again.
pub async fn read_async(storage: &GpuBuffer, counters: &Counters, out: &mut [u8]) -> Result<()> {
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
            status.reported();
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
        staging.copied_by(&live.submit([encoder.finish()]));
    })?;
    Ok(staging)
}

/// Where each part of the first bytes starts, and how long it is.
fn parts(block: &Block, n_bytes: usize) -> Vec<(usize, usize)> {
    block.pieces(n_bytes).map(|(_, _, start, len)| (start, len)).collect()
}

/// Reads what was copied, and waits for it.
fn fetch(staging: &Staging, out: &mut [u8]) -> Result<()> {
    staging.ask(out.len());
    staging.wait()?;
    match staging.read(out) {
        true => Ok(()),
        false => Err(failed(staging.live())),
    }
}

async fn fetch_async(staging: &Staging, out: &mut [u8]) -> Result<()> {
    let asked = staging.ask(out.len());
    staging.live().waiter.watch(&asked);
    arrive(staging, &asked, out).await
}

/// Reads what was asked for, once it is there.
async fn arrive(staging: &Staging, asked: &Signal<bool>, out: &mut [u8]) -> Result<()> {
    // The answer says when to look, the memory says whether it can be read: if a callback of somebody else panics, those
    // that would have been called after it are dropped, and the answer is no though the memory is there.
    asked.wait().await;
    match staging.read(out) {
        true => Ok(()),
        false => Err(failed(staging.live())),
    }
}

/// Reads a block where it lies. The device must not be given it meanwhile.
fn look(block: &Block, out: &mut [u8]) -> Result<()> {
    let live = block.live();
    // Without the turn: others may submit while this thread waits.
    live.wait()?;
    for (buffer, at, start, len) in block.pieces(out.len()) {
        let _turn = live.queue_lock();
        let range = at as u64..(at + len.next_multiple_of(4)) as u64;
        // Another thread that polls may be the one that is told, and late. So nobody listens: whoever has polled sees
        // whether it is mapped.
        buffer.map_async(wgpu::MapMode::Read, range.clone(), drop);
        let mut copy = || {
            let bytes = buffer.get_mapped_range(range.clone()).ok()?;
            out[start..start + len].copy_from_slice(&bytes[..len]);
            Some(())
        };
        let mut polled = live.poll(wgpu::PollType::Poll).map(drop);
        let mut copied = copy();
        if copied.is_none() && polled.is_ok() {
            // Somebody has submitted work that reads it.
            polled = live.wait();
            copied = copy();
        }
        buffer.unmap();
        polled?;
        copied.ok_or_else(|| failed(live))?;
    }
    Ok(())
}

fn failed(live: &OpenDevice) -> Error {
    let unknown = || lost("read", "the device did not hand out its memory");
    live.lost().unwrap_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::super::adapters;
    use super::super::signal::now;
    use super::super::status::{Check, Status};
    use super::*;
    use crate::backend::Site;
    use crate::shape::Shape;

    /// What `look` sees of what was asked for and waited for, while another thread, which found that it can be read, is
    /// kept from saying so.
    fn told_late<T, U>(live: &Arc<OpenDevice>, ask: impl FnOnce() -> T, look: impl FnOnce(T) -> U) -> U {
        let first = live.staging(4).unwrap();
        let (tell, reported) = channel();
        let (go_on, held) = channel::<()>();
        first.buffer().map_async(wgpu::MapMode::Read, .., move |_| {
            tell.send(()).unwrap();
            let _ = held.recv();
        });
        let asked = ask();
        std::thread::scope(|scope| {
            scope.spawn(|| live.wait().unwrap());
            reported.recv().unwrap();
            live.wait().unwrap();
            let seen = look(asked);
            drop(go_on);
            seen
        })
    }

    #[test]
    fn memory_is_read_though_another_thread_was_told_that_it_can_be() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let block = live.take_with(&[1, 2, 3, 4]).unwrap();
            let staging = copy(&block, 0, 4).unwrap();
            let mut bytes = [0; 4];
            let (asked, is_read) = told_late(&live, || staging.ask(4), |asked| (asked.get(), staging.read(&mut bytes)));
            assert_eq!((asked, is_read, bytes), (None, true, [1, 2, 3, 4]));
            drop(staging);
            let n_buffers = live.counters.read().buffers_created;
            fetch(&copy(&block, 0, 4).unwrap(), &mut bytes).unwrap();
            assert_eq!(live.counters.read().buffers_created, n_buffers, "it is used again");
        }
    }

    #[test]
    fn memory_is_read_though_a_callback_of_somebody_else_panics_before_ours_is_called() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let block = live.take_with(&[1, 2, 3, 4]).unwrap();
            let other = live.staging(4).unwrap();
            let staging = copy(&block, 0, 4).unwrap();
            other.buffer().map_async(wgpu::MapMode::Read, .., |_| std::panic::resume_unwind(Box::new(())));
            let asked = staging.ask(4);
            live.wait().unwrap();
            assert_eq!((asked.get(), live.lost().is_none()), (Some(false), true));
            let mut bytes = [0; 4];
            now(arrive(&staging, &asked, &mut bytes)).unwrap().unwrap();
            assert_eq!(bytes, [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_failed_check_is_reported_though_another_thread_was_told() {
        let site =
            Site { op: "gather".into(), shape: Shape::from(3), is_unsigned: false, at: std::panic::Location::caller() };
        let checks: Arc<[Check]> = Arc::new([Check { bound: 3, signed: true }]);
        for found in adapters::found() {
            let live = found.live().unwrap();
            let noted: Vec<u8> = [1u32, 0, 1, 7].into_iter().flat_map(u32::to_ne_bytes).collect();
            let words = copy(&live.take_with(&noted).unwrap(), 0, noted.len()).unwrap();
            let watch = || Status::of_run(std::slice::from_ref(&site), &checks, words);
            let found = told_late(&live, watch, |status| status.known());
            assert!(matches!(found, Some(Some(Error::Index(_)))), "{found:?}");
        }
    }
}
