//! Sharing with an application that uses wgpu itself: its device, its buffers, its encoders.

use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use super::adapters;
use super::open_device::{DeviceOwner, OpenDevice};
use super::run::{ready, storage};
use super::storage::GpuBuffer;
use super::{Gpu, Origin};
use crate::backend::Counters;
use crate::batch::{Batch, BufferId};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Buffer, Node};
use crate::place::Caller;
use crate::realize;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A device of the application's own: tensors live in its memory and are computed on its queue.
///
/// The application keeps its error handler and its callback for a lost device. Every call gives a device of its own:
/// make it once.
///
/// ```no_run
/// # async fn shared(adapter: lazuli::gpu::wgpu::Adapter) -> Result<(), Box<dyn std::error::Error>> {
/// use lazuli::gpu::wgpu;
/// let (device, queue) = adapter.request_device(&wgpu::DeviceDescriptor::default()).await?;
/// let gpu = lazuli::gpu::from_wgpu(device, queue, adapter.get_info())?;
/// let x = lazuli::Tensor::arange(0.0, 4.0, 1.0, &gpu);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn from_wgpu(device: wgpu::Device, queue: wgpu::Queue, info: wgpu::AdapterInfo) -> Result<Device> {
    let limits = device.limits();
    if limits.max_storage_buffers_per_shader_stage < 4 {
        let n = limits.max_storage_buffers_per_shader_stage;
        return Err(Error::unsupported("from_wgpu", format!("the device binds {n} storage buffers; 4 are needed")));
    }
    let info = adapters::describe(&info, &limits);
    let counters: Arc<Counters> = Arc::default();
    let target = adapters::target_of(&device, &adapters::quirks_of(&info));
    let live = OpenDevice::new((device, queue), target, counters.clone(), DeviceOwner::Application);
    Ok(Device::new(Box::new(Gpu::new(info, counters, live, Origin::Application))))
}

/// The wgpu device and queue behind a device, for an application that wants to use them, too.
///
/// ```
/// use lazuli::Device;
/// // The CPU has none.
/// assert!(lazuli::gpu::handles(&Device::cpu()).is_err());
/// ```
#[track_caller]
pub fn handles(device: &Device) -> Result<(wgpu::Device, wgpu::Queue)> {
    let _caller = Caller::of_engine(Location::caller());
    let live = gpu_of("handles", device)?.shared.live()?;
    Ok((live.device.clone(), live.queue.clone()))
}

/// Bytes of compiled shaders that earlier programs left on disk for this device and driver. Where there are none (or the
/// driver hands none out), whatever runs for the first time is compiled first.
///
/// ```
/// use lazuli::Device;
/// // The CPU compiles no shaders.
/// assert!(lazuli::gpu::compiled_bytes(&Device::cpu()).is_err());
/// ```
#[track_caller]
pub fn compiled_bytes(device: &Device) -> Result<usize> {
    let _caller = Caller::of_engine(Location::caller());
    Ok(gpu_of("compiled_bytes", device)?.shared.live()?.pipelines.n_bytes_found())
}

/// A tensor that is this buffer: nothing is copied. It must be a `STORAGE | COPY_SRC` buffer of the device's own wgpu
/// device, its elements row-major as the dtype stores them. What is written to it later is seen by what is computed later.
///
/// A buffer that does not fit, was destroyed, is mapped, or is another device's is an error of this call. If it is
/// destroyed or mapped later, evaluations that read it are errors, and nothing else is. (wgpu knows buffers by numbers that
/// every `wgpu::Instance` gives out anew: one of another instance is refused unless it has the number and the size of one
/// that is here.)
///
/// ```no_run
/// # fn shared(buffer: lazuli::gpu::wgpu::Buffer) -> lazuli::Result<()> {
/// use lazuli::{DType, Device};
/// let gpu = Device::gpu()?;
/// let x = lazuli::gpu::from_buffer(buffer, [2, 2], DType::F32, &gpu)?;
/// println!("{}", x.exp());
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn from_buffer(buffer: wgpu::Buffer, shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let (at, shape) = (Location::caller(), shape.into());
    let _caller = Caller::of_engine(at);
    let gpu = gpu_of("from_buffer", device)?;
    shape.check("from_buffer")?;
    let n_bytes = shape.n_elems() * dtype.size();
    let needed = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    if buffer.size() < n_bytes.next_multiple_of(4) as u64 || !buffer.size().is_multiple_of(4) {
        let message = format!("{dtype}{shape} takes {n_bytes} bytes, whole words; the buffer has {}", buffer.size());
        return Err(Error::shape("from_buffer", message));
    }
    if !buffer.usage().contains(needed) {
        let message = format!("the buffer must allow {needed:?}, not only {:?}", buffer.usage());
        return Err(Error::device("from_buffer", message));
    }
    let live = gpu.shared.live()?;
    may_be_read(&live, &buffer)?;
    let memory = Buffer::new(GpuBuffer::of_block(live.adopt(buffer, n_bytes), Vec::new(), None));
    Ok(Tensor::new(Ok(Node::data(memory, shape, dtype, device.clone(), at))))
}

/// An error if the device could not read this buffer now: it was destroyed, it is mapped, or it is another device's. Only
/// a submit tells, so its last word is copied.
#[track_caller]
fn may_be_read(live: &Arc<OpenDevice>, buffer: &wgpu::Buffer) -> Result<()> {
    const WORD: u64 = 4;
    let Some(last) = buffer.size().checked_sub(WORD) else { return Ok(()) };
    let target = live.take(WORD as usize)?;
    let copy = |start: u64| {
        let mut encoder = live.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("import") });
        encoder.copy_buffer_to_buffer(buffer, start, target.at(0).0, 0, WORD);
        encoder.finish()
    };
    let copied = live.checked("from_buffer", || live.submit([copy(last)]));
    // wgpu would take a buffer of another instance for whichever of ours has its number: that it ends where this one ends
    // is what can be asked.
    let is_longer = || live.checked("from_buffer", || copy(buffer.size())).is_ok();
    match copied {
        Ok(_) if is_longer() => Err(Error::device("from_buffer", "the buffer is another wgpu device's")),
        Ok(_) => Ok(()),
        Err(Error::Device(fault)) => {
            Err(Error::device("from_buffer", format!("the device cannot read the buffer: {}", fault.message)))
        }
        Err(error) => Err(error),
    }
}

/// The buffer of a tensor, computed if need be: nothing is copied. It may be longer than the tensor, whose elements
/// come first. Do not write to it; hold the tensor for as long as its bytes are wanted, since its memory is used again
/// after it.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu());
/// // A tensor of the CPU has no such buffer.
/// assert!(lazuli::gpu::buffer(&x).is_err());
/// ```
#[track_caller]
pub fn buffer(tensor: &Tensor) -> Result<wgpu::Buffer> {
    let _caller = Caller::of_engine(Location::caller());
    let node = tensor.node()?;
    let gpu = gpu_of("buffer", &node.device)?;
    realize::compute(&[tensor])?;
    if let Some((format, _)) = node.blocks() {
        let message =
            format!("its elements are in blocks ({format}), not in a buffer of f32; `x.mul(1.0)` is a copy that is");
        return Err(Error::unsupported("buffer", message));
    }
    let memory = node.buffer().ok_or_else(|| Error::device("buffer", "the tensor's memory was given away"))?;
    let block = storage(&memory)?.block(&gpu.shared.live()?)?;
    match block.buffers() {
        [buffer] => Ok(buffer.clone()),
        buffers => {
            let message = format!("the tensor is larger than one buffer: it lies in {}", buffers.len());
            Err(Error::unsupported("buffer", message))
        }
    }
}

/// Records what computes these tensors into the caller's encoder, instead of submitting it. They hold their values once
/// the caller has submitted it; until then reading them shows whatever their memory held before.
///
/// ```no_run
/// # fn frame() -> lazuli::Result<()> {
/// use lazuli::{Device, Tensor};
/// let gpu = Device::gpu()?;
/// let (device, queue) = lazuli::gpu::handles(&gpu)?;
/// let y = Tensor::arange(0.0, 4.0, 1.0, &gpu).exp();
/// let mut encoder = device.create_command_encoder(&Default::default());
/// lazuli::gpu::encode(&[&y], &mut encoder)?;
/// queue.submit([encoder.finish()]);
/// println!("{y}");
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn encode(tensors: &[&Tensor], encoder: &mut wgpu::CommandEncoder) -> Result<()> {
    let _caller = Caller::of_engine(Location::caller());
    for tensor in tensors {
        gpu_of("encode", tensor.device()?)?;
    }
    realize::compute_with(tensors, &mut |runnable, run| match ready(runnable) {
        Some(ready) => ready.encode(run, encoder),
        None => Err(Error::device("encode", "the tensor is not on a GPU")),
    })
}

impl Batch {
    /// The first `len` f32 of an application's own buffer: nothing is copied or uploaded. See [`from_buffer`].
    ///
    /// ```no_run
    /// # async fn shared(buffer: lazuli::gpu::wgpu::Buffer) -> lazuli::Result<()> {
    /// use lazuli::{Batch, Device};
    /// let mut batch = Batch::new(&Device::gpu()?);
    /// let x = batch.import_buffer(buffer, 1024)?;
    /// let y = batch.relu(x);
    /// batch.execute().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn import_buffer(&mut self, buffer: wgpu::Buffer, len: usize) -> Result<BufferId> {
        let tensor = from_buffer(buffer, [len], DType::F32, self.device())?;
        Ok(self.import_tensor(&tensor))
    }
}

/// The device as what it is here.
#[track_caller]
pub fn gpu_of<'a>(op: &str, device: &'a Device) -> Result<&'a Gpu> {
    let backend: &dyn Any = device.backend();
    match backend.downcast_ref::<Gpu>() {
        Some(gpu) => {
            // A device that is gone says so only when asked.
            let live = gpu.shared.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let _ = live.poll(wgpu::PollType::Poll);
            Ok(gpu)
        }
        None => Err(Error::device(op, format!("{} is no GPU", device.info().name))),
    }
}
