//! Compiled shaders, found by their text. New ones of a plan are compiled side by side; where the driver can hand out
//! what it compiled, that is kept on disk.

use std::collections::HashMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::disk;
use super::live::Live;
use crate::backend::Counters;
use crate::error::Result;
use crate::log::{self, Topic};
use crate::wgsl::{Bind, Pass};

/// What is compiled in one go is written to disk no more often than this.
const SAVE_EVERY: Duration = Duration::from_secs(2);

/// A compiled shader and the form of what is bound to it.
pub struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// All pipelines of a device.
pub struct Pipelines {
    by_text: Mutex<HashMap<Arc<str>, Arc<Pipeline>>>,
    kept: Option<Kept>,
}

/// What the driver hands out, and where it is kept.
struct Kept {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    saved: Mutex<Option<Instant>>,
    /// Whether anything was compiled since.
    is_new: AtomicBool,
}

impl Pipelines {
    /// None yet, but what earlier programs left on disk.
    pub fn new(device: &wgpu::Device) -> Pipelines {
        Pipelines { by_text: Mutex::default(), kept: Kept::open(device) }
    }

    /// The pipelines of these passes, compiled where they are new.
    pub fn get(&self, live: &Live, passes: &[&Pass]) -> Result<Vec<Arc<Pipeline>>> {
        let known = self.lock();
        let mut new: Vec<&Pass> = Vec::new();
        for pass in passes {
            if !known.contains_key(&pass.text) && !new.iter().any(|n| n.text == pass.text) {
                new.push(pass);
            }
        }
        drop(known);
        if !new.is_empty() {
            let compiled = side_by_side(&new, |pass| self.compile(live, pass))?;
            let mut known = self.lock();
            new.iter().zip(compiled).for_each(|(pass, pipeline)| {
                known.insert(pass.text.clone(), Arc::new(pipeline));
            });
            drop(known);
            self.kept.iter().for_each(|kept| kept.is_new.store(true, Ordering::Relaxed));
            self.save(Some(SAVE_EVERY));
        }
        let known = self.lock();
        Ok(passes.iter().map(|pass| known[&pass.text].clone()).collect())
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
        if let Some(data) = kept.cache.get_data() {
            // A cache that cannot be written costs time, nothing else.
            let _ = disk::store(&kept.path, &data);
        }
    }

    fn compile(&self, live: &Live, pass: &Pass) -> Result<Pipeline> {
        log::show(Topic::Wgsl, || format!("// {}\n{}", pass.label, pass.text));
        Counters::count(&live.counters.pipelines_compiled, 1);
        let label = Some(&*pass.label);
        live.checked(&pass.label, || {
            let text = &*pass.text;
            #[cfg(test)]
            let text = &*super::short_loops::ended_early(text, live.quirks.max_trips);
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
                compilation_options: Default::default(),
                cache: self.kept.as_ref().map(|kept| &kept.cache),
            });
            Pipeline { pipeline, layout }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Pipeline>>> {
        self.by_text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn open(device: &wgpu::Device) -> Option<Kept> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = disk::path(&wgpu::util::pipeline_cache_key(&device.adapter_info())?, "pipelines")?;
        let data = disk::load(&path);
        let desc = wgpu::PipelineCacheDescriptor { label: Some("lazuli"), data: data.as_deref(), fallback: true };
        // SAFETY: the data is what an earlier program got from `get_data` for this adapter: the name of the file says
        // so, and a checksum that it is whole.
        let cache = unsafe { device.create_pipeline_cache(&desc) };
        Some(Kept { cache, path, saved: Mutex::default(), is_new: AtomicBool::default() })
    }
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
