//! Things that are dear to make and that several plans share: found by key for as long as somebody holds one, and gone
//! with the last who does. So what is compiled lives exactly as long as the plans that use it, and the bound on plans is
//! the bound on it.

use std::borrow::Borrow;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::backend::Counters;
use crate::fast_hash::FastMap;

/// Where things are found while somebody holds them.
pub struct Interned<K: Eq + Hash, V> {
    known: Mutex<FastMap<K, Weak<InternedRef<K, V>>>>,
    counters: Arc<Counters>,
    gauge: fn(&Counters) -> &AtomicU64,
}

/// A thing that is held.
pub struct InternedRef<K: Eq + Hash, V> {
    value: V,
    key: K,
    size_bytes: u64,
    counters: Arc<Counters>,
    gauge: fn(&Counters) -> &AtomicU64,
    home: Weak<Interned<K, V>>,
}

impl<K: Eq + Hash + Clone, V> Interned<K, V> {
    /// Nothing yet. The gauge says what all that is held takes.
    pub fn new(counters: Arc<Counters>, gauge: fn(&Counters) -> &AtomicU64) -> Arc<Interned<K, V>> {
        Arc::new(Interned { known: Mutex::default(), counters, gauge })
    }

    /// What has this key, if somebody holds it.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Arc<InternedRef<K, V>>>
    where
        K: Borrow<Q>,
    {
        self.lock().get(key)?.upgrade()
    }

    /// Lets a thing of so many bytes be found; if somebody else was faster, theirs is returned.
    pub fn insert(self: &Arc<Self>, key: K, value: V, size_bytes: usize) -> Arc<InternedRef<K, V>> {
        let size_bytes = size_bytes as u64;
        let (counters, gauge) = (self.counters.clone(), self.gauge);
        gauge(&counters).fetch_add(size_bytes, Ordering::Relaxed);
        let held = InternedRef { value, key: key.clone(), size_bytes, counters, gauge, home: Arc::downgrade(self) };
        let held = Arc::new(held);
        let mut known = self.lock();
        if let Some(other) = known.get(&key).and_then(Weak::upgrade) {
            // Dropped without the lock, which the one that is not needed takes when it goes.
            drop(known);
            return other;
        }
        known.insert(key, Arc::downgrade(&held));
        held
    }
}

impl<K: Eq + Hash, V> Interned<K, V> {
    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn lock(&self) -> MutexGuard<'_, FastMap<K, Weak<InternedRef<K, V>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> Deref for InternedRef<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Eq + Hash, V> Drop for InternedRef<K, V> {
    fn drop(&mut self) {
        (self.gauge)(&self.counters).fetch_sub(self.size_bytes, Ordering::Relaxed);
        let Some(home) = self.home.upgrade() else { return };
        let mut known = home.lock();
        // Another may have taken its place already.
        if known.get(&self.key).is_some_and(|held| held.strong_count() == 0) {
            known.remove(&self.key);
            if known.len() < known.capacity() / 4 {
                known.shrink_to_fit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_found_while_it_is_held_and_counted_once() {
        let counters: Arc<Counters> = Arc::default();
        let gauge = || counters.read().bytes_programs;
        let interned = Interned::<Arc<str>, u32>::new(counters.clone(), |c| &c.bytes_programs);
        let first = interned.insert("a".into(), 1, 100);
        let again = interned.get("a").unwrap();
        assert!(Arc::ptr_eq(&first, &again) && gauge() == 100);
        // Who comes second is given the first.
        let second = interned.insert("a".into(), 2, 100);
        assert_eq!((**second, gauge()), (1, 100));
        drop((first, second));
        assert_eq!(gauge(), 100);
        drop(again);
        assert!(interned.get("a").is_none() && interned.lock().is_empty());
        assert_eq!(gauge(), 0);
        let late = interned.insert("b".into(), 3, 50);
        drop(interned);
        assert_eq!((**late, gauge()), (3, 50));
        drop(late);
        assert_eq!(gauge(), 0);
    }
}
