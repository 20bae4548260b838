//! Plans already made, by the structure they were made for.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::Plan;
use crate::backend::Runnable;
use crate::graph::Key;

/// The most bytes of keys and plans kept, roughly; beyond it the oldest half is let go.
const MAX_BYTES: usize = 256 << 20;

/// A plan and its form on the device.
#[derive(Clone)]
pub struct Entry {
    pub plan: Arc<Plan>,
    pub runnable: Arc<dyn Runnable>,
}

/// Plans by key. Lookup hashes nothing: a key brings its hash along.
#[derive(Default)]
pub struct Cache {
    entries: HashMap<Key, (u64, Entry), BuildHasherDefault<KeyHasher>>,
    n_bytes: usize,
    clock: u64,
}

impl Cache {
    /// The plan for this structure.
    pub fn get(&mut self, key: &Key) -> Option<Entry> {
        self.clock += 1;
        let (used, entry) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(entry.clone())
    }

    /// Keeps a plan.
    pub fn insert(&mut self, key: Key, entry: Entry) {
        self.clock += 1;
        self.n_bytes += cost(&key, &entry);
        self.entries.insert(key, (self.clock, entry));
        if self.n_bytes > MAX_BYTES {
            let mut ages: Vec<u64> = self.entries.values().map(|e| e.0).collect();
            ages.sort_unstable();
            let oldest_kept = ages[ages.len() / 2];
            self.entries.retain(|_, (used, _)| *used >= oldest_kept);
            self.n_bytes = self.entries.iter().map(|(k, (_, e))| cost(k, e)).sum();
        }
    }
}

fn cost(key: &Key, entry: &Entry) -> usize {
    // A launch with its instructions and numbers is about this large.
    key.size_bytes() + entry.plan.launches.len() * 4096
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
