//! Plans already made, by the structure they were made for. Together with what was compiled for them they take no more
//! bytes than they are allowed; beyond it those go that were used longest ago. Only the last one stays however large it is,
//! or a model that is larger would be compiled for each of its steps. Plans that were filled from templates are soon filled
//! again, so they have a small part of the bytes to themselves: a loop whose lengths grow does not take more and more memory.

use std::borrow::Cow;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::template::{Template, Templates};
use super::{Launch, Made, Plan, Slot, SlotId, StageEnd, ValueId};
use crate::backend::{Counters, Runnable};
use crate::graph::Key;
use crate::lru::Lru;

/// What a map takes for an entry beside its key and value, about.
const ENTRY_BYTES: usize = 128;

/// A plan and its form on the device.
#[derive(Clone)]
pub struct CachedPlan {
    pub plan: Arc<Plan>,
    pub runnable: Arc<dyn Runnable>,
}

/// An entry and what was compiled because of it: about what goes with it.
struct Cached {
    entry: CachedPlan,
    size_bytes: usize,
    compiled_bytes: usize,
}

/// Of the bytes that plans may take, templates may take one in this many.
const TEMPLATE_SHARE: usize = 8;

/// The same for plans that were filled.
const FILLED_SHARE: usize = 16;

/// Plans by key.
type Plans = Lru<Key, Cached, BuildHasherDefault<KeyHasher>>;

/// Plans by key. Lookup hashes nothing: a key brings its hash along.
pub struct Cache {
    templates: Templates,
    plans: Plans,
    filled: Plans,
    /// What was taken out while the lock is held. It may own functions of the user's, and what those do when they are
    /// dropped may need the lock.
    gone: Vec<Cached>,
    max_bytes: usize,
}

impl Cache {
    /// No plans yet, and at most so many bytes of them.
    pub fn new(max_bytes: usize) -> Cache {
        let templates = Templates::new(max_bytes / TEMPLATE_SHARE);
        Cache { templates, plans: Lru::default(), filled: Lru::default(), gone: Vec::new(), max_bytes }
    }

    /// Locks a cache. What is taken out of it goes when it is open again.
    pub fn lock(cache: &Mutex<Cache>) -> Locked<'_> {
        // A panic elsewhere cannot leave the cache half-changed, so a poisoned lock is still good.
        let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { cache, gone: Vec::new(), gone_templates: Vec::new() }
    }

    /// The plan for this structure.
    pub fn get(&mut self, key: &Key) -> Option<CachedPlan> {
        self.plans.get(key).or_else(|| self.filled.get(key)).map(|cached| cached.entry.clone())
    }

    /// What plans of other sizes are filled from.
    pub fn templates(&mut self) -> &mut Templates {
        &mut self.templates
    }

    /// Keeps a plan for which so many bytes were compiled, and lets go of what is too much.
    pub fn insert(&mut self, key: Key, entry: CachedPlan, made: Made, compiled_bytes: usize, counters: &Counters) {
        let size_bytes = ENTRY_BYTES + key.size_bytes() + entry.plan.size_bytes() + entry.runnable.size_bytes();
        let cached = Cached { entry, size_bytes, compiled_bytes };
        let plans = if made == Made::Filled { &mut self.filled } else { &mut self.plans };
        self.gone.extend(plans.insert(key, cached, size_bytes));
        while self.filled.size_bytes() > self.max_bytes / FILLED_SHARE && self.filled.len() > 1 {
            self.gone.extend(self.filled.pop_oldest());
        }
        let all = self.size_bytes() + counters.compiled_bytes();
        let mut too_much = all.saturating_sub(self.max_bytes);
        // Kernels that others use as well stay; if that leaves too much, the next plan finds out.
        while too_much > 0 && self.let_go(&mut too_much, Some(made)) {}
        counters.bytes_plans.store(self.size_bytes() as u64, Ordering::Relaxed);
    }

    /// What plans and templates take.
    fn size_bytes(&self) -> usize {
        self.plans.size_bytes() + self.filled.size_bytes() + self.templates.size_bytes()
    }

    /// Lets go of everything.
    pub fn clear(&mut self, counters: &Counters) {
        while self.let_go(&mut 0, None) {}
        // The lists themselves, too.
        (self.plans, self.filled) = (Lru::default(), Lru::default());
        self.templates.clear();
        counters.bytes_plans.store(0, Ordering::Relaxed);
    }

    /// Takes out the plan that was used longest ago, filled ones first; whether there was one beside the last of those that
    /// were made as the one that must stay.
    fn let_go(&mut self, too_much: &mut usize, stays: Option<Made>) -> bool {
        let n_kept = |made: Made| (stays == Some(made)) as usize;
        let oldest = match () {
            _ if self.filled.len() > n_kept(Made::Filled) => self.filled.pop_oldest(),
            _ if self.plans.len() > n_kept(Made::Compiled) => self.plans.pop_oldest(),
            _ => None,
        };
        let Some(oldest) = oldest else { return false };
        *too_much = too_much.saturating_sub(oldest.size_bytes + oldest.compiled_bytes);
        self.gone.push(oldest);
        true
    }
}

/// A cache that is locked.
pub struct Locked<'a> {
    // Opened first, then what is gone is dropped.
    cache: MutexGuard<'a, Cache>,
    gone: Vec<Cached>,
    gone_templates: Vec<Vec<Template>>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.gone = std::mem::take(&mut self.cache.gone);
        self.gone_templates = self.cache.templates.take_gone();
    }
}

impl Deref for Locked<'_> {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}

impl Plan {
    /// About how many bytes it occupies.
    pub fn size_bytes(&self) -> usize {
        let ids = self.outputs.capacity() * size_of::<SlotId>()
            + (self.output_values.capacity() + self.input_values.capacity()) * size_of::<ValueId>();
        size_of::<Plan>()
            + self.launches.iter().map(Launch::size_bytes).sum::<usize>()
            + self.slots.capacity() * size_of::<Slot>()
            + ids
            + self.value_elems.capacity() * size_of::<usize>()
            + self.checks.capacity() * size_of::<u32>()
            + self.stages.capacity() * size_of::<StageEnd>()
            + self.reasons.capacity() * size_of::<Option<&'static str>>()
    }
}

impl Launch {
    fn size_bytes(&self) -> usize {
        let slots = (self.reads.capacity() + self.writes.capacity()) * size_of::<SlotId>();
        let values = (self.read_values.capacity() + self.write_values.capacity()) * size_of::<ValueId>();
        let values = values + self.bases.capacity() * size_of::<(u16, ValueId)>();
        let ops = self.ops.capacity() * size_of::<Cow<'static, str>>();
        let parts = self.parts.iter().map(Launch::size_bytes).sum::<usize>();
        size_of::<Launch>() + parts + self.kernel.size_bytes() + self.args.size_bytes() + slots + values + ops
    }
}

/// Takes over the hash that a key already has.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys write one u64");
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
