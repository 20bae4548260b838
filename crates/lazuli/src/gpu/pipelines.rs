//! Compiled shaders, found by their text. New ones of a plan are compiled side by side; where the driver can hand out
//! what it compiled, that is kept on disk.

use std::collections::HashMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::disk;
use super::open_device::OpenDevice;
use crate::backend::Counters;
use crate::error::Result;
use crate::interned::{Interned, InternedRef};
use crate::log::{self, Topic};
use crate::wgsl::{Bind, Pass};

/// What is compiled in one go is written to disk no more often than this.
const SAVE_EVERY: Duration = Duration::from_secs(2);

/// What a pipeline takes, about: so much, and so much for each byte of its text. Drivers do not tell.
const PIPELINE_BYTES: usize = 64 << 10;
const TEXT_FACTOR: usize = 32;
/// The same where the driver runs on the CPU and keeps its compiler's form of each shader: measured with Mesa's lavapipe.
const SOFTWARE_PIPELINE_BYTES: usize = 512 << 10;
/// What the driver hands out is begun anew when it is larger than this, in memory and on disk.
const MAX_KEPT: usize = 64 << 20;

/// A compiled shader and the form of what is bound to it.
pub struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// A pipeline that others may use as well.
pub type HeldPipeline = Arc<InternedRef<Arc<str>, Pipeline>>;

/// The pipelines of a device that some plan holds.
pub struct Pipelines {
    by_text: Arc<Interned<Arc<str>, Pipeline>>,
    /// What one takes beside its text.
    pipeline_bytes: usize,
    kept: Option<DriverCache>,
}

/// What the driver hands out, and where it is kept.
struct DriverCache {
    device: wgpu::Device,
    cache: Mutex<wgpu::PipelineCache>,
    path: PathBuf,
    /// Bytes that earlier programs left.
    n_bytes_found: usize,
    saved: Mutex<Option<Instant>>,
    /// Whether anything was compiled since.
    is_new: AtomicBool,
}

impl Pipelines {
    /// None yet, but what earlier programs left on disk.
    pub fn new(device: &wgpu::Device, counters: Arc<Counters>) -> Pipelines {
        let by_text = Interned::new(counters, |counters| &counters.bytes_pipelines);
        let is_software = device.adapter_info().device_type == wgpu::DeviceType::Cpu;
        let pipeline_bytes = if is_software { SOFTWARE_PIPELINE_BYTES } else { PIPELINE_BYTES };
        Pipelines { by_text, pipeline_bytes, kept: DriverCache::open(device) }
    }

    /// Bytes of compiled shaders that earlier programs left on disk.
    pub fn n_bytes_found(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.n_bytes_found)
    }

    /// The pipelines of these passes, compiled where they are new.
    pub fn get(&self, live: &OpenDevice, passes: &[&Pass]) -> Result<Vec<HeldPipeline>> {
        // Held from here on, so that what was found stays found.
        let mut found: HashMap<&str, HeldPipeline> = HashMap::new();
        let mut new: Vec<&Pass> = Vec::new();
        for pass in passes.iter().copied() {
            if found.contains_key(&*pass.text) || new.iter().any(|n| n.text == pass.text) {
                continue;
            }
            match self.by_text.get(&*pass.text) {
                Some(pipeline) => drop(found.insert(&pass.text, pipeline)),
                None => new.push(pass),
            }
        }
        if !new.is_empty() {
            let compiled = side_by_side(&new, |pass| self.compile(live, pass))?;
            for (pass, pipeline) in new.iter().zip(compiled) {
                let size_bytes = self.pipeline_bytes + TEXT_FACTOR * pass.text.len();
                found.insert(&pass.text, self.by_text.insert(pass.text.clone(), pipeline, size_bytes));
            }
            self.kept.iter().for_each(|kept| kept.is_new.store(true, Ordering::Relaxed));
            self.save(Some(SAVE_EVERY));
        }
        Ok(passes.iter().map(|pass| found[&*pass.text].clone()).collect())
    }

    /// Writes to disk what the driver hands out, unless that was done within this time.
    pub fn save(&self, unless_within: Option<Duration>) {
        let Some(kept) = &self.kept else { return };
        let mut saved = kept.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.is_new.load(Ordering::Relaxed) {
            return;
        }
        if unless_within.is_some_and(|time| saved.is_some_and(|at| at.elapsed() < time)) {
            return;
        }
        *saved = Some(Instant::now());
        kept.is_new.store(false, Ordering::Relaxed);
        let cache = kept.cache();
        if let Some(data) = cache.get_data() {
            // A cache that cannot be written costs time, nothing else.
            let _ = disk::store(&kept.path, &data);
            if data.len() > MAX_KEPT {
                *kept.cache.lock().unwrap_or_else(PoisonError::into_inner) = new_cache(&kept.device, None);
            }
        }
    }

    fn compile(&self, live: &OpenDevice, pass: &Pass) -> Result<Pipeline> {
        log::show(Topic::Wgsl, || format!("// {}\n{}", pass.label, pass.text));
        Counters::count(&live.counters.pipelines_compiled, 1);
        let label = Some(&*pass.label);
        let cache = self.kept.as_ref().map(DriverCache::cache);
        live.checked(&pass.label, || {
            let text = &*pass.text;
            #[cfg(test)]
            let text = &*super::short_loops::ended_early(text, live.target.max_iterations);
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let module = live.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
            let layout = live
                .device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries(&pass.binds) });
            let desc =
                wgpu::PipelineLayoutDescriptor { label, bind_group_layouts: &[Some(&layout)], immediate_size: 0 };
            let pipeline = live.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: Some(&live.device.create_pipeline_layout(&desc)),
                module: &module,
                entry_point: Some("main"),
                // Every text writes workgroup memory before it reads it: the tests' simulator fails on one that does not.
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: cache.as_ref(),
            });
            Pipeline { pipeline, layout }
        })
    }
}

impl DriverCache {
    fn open(device: &wgpu::Device) -> Option<DriverCache> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = disk::path(&wgpu::util::pipeline_cache_key(&device.adapter_info())?, "pipelines")?;
        let data = disk::load(&path);
        let cache = Mutex::new(new_cache(device, data.as_deref()));
        Some(DriverCache {
            device: device.clone(),
            cache,
            path,
            n_bytes_found: data.map_or(0, |data| data.len()),
            saved: Mutex::default(),
            is_new: AtomicBool::default(),
        })
    }

    fn cache(&self) -> wgpu::PipelineCache {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A cache of the driver's, with what an earlier program left.
fn new_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let desc = wgpu::PipelineCacheDescriptor { label: Some("lazuli"), data, fallback: true };
    // SAFETY: the data is what an earlier program got from `get_data` for this adapter: the name of the file says so, and
    // a checksum that it is whole.
    unsafe { device.create_pipeline_cache(&desc) }
}

/// Binding 0 holds a pass's numbers, the others its memory.
fn entries(binds: &[Bind]) -> Vec<wgpu::BindGroupLayoutEntry> {
    let entry = |binding: usize, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage =
        |(i, bind): (usize, &Bind)| entry(i + 1, wgpu::BufferBindingType::Storage { read_only: !bind.writes });
    std::iter::once(entry(0, wgpu::BufferBindingType::Uniform)).chain(binds.iter().enumerate().map(storage)).collect()
}

/// Applies `f` to all, on as many threads as there are processors.
fn side_by_side<T: Sync, R: Send + Sync>(items: &[T], f: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let results: Vec<OnceLock<Result<R>>> = items.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return };
            // Each is taken once.
            let _ = results[i].set(f(item));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            // If there is no thread to be had, the others do its part.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    results.into_iter().map(|r| r.into_inner().expect("every item was taken")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn side_by_side_keeps_the_order_and_the_first_error() {
        let items: Vec<usize> = (0..50).collect();
        assert_eq!(side_by_side(&items, |i| Ok(i * 2)).unwrap()[49], 98);
        let failed = side_by_side(&items, |i| if *i == 7 { Err(Error::device("x", "y")) } else { Ok(()) });
        assert!(failed.is_err());
        assert!(side_by_side(&[0usize; 0], |_| Ok(())).unwrap().is_empty());
    }
}
