//! A map that knows how many bytes its entries stand for and which was used longest ago. What is too much is taken out by
//! whoever owns the map; every access takes the same time, however many entries there are.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// In place of a slot: there is none.
const NONE: usize = usize::MAX;

/// Values by key, in the order of their last use.
pub struct Lru<K, V, S> {
    places: HashMap<Arc<K>, usize, S>,
    slots: Vec<Option<LruSlot<K, V>>>,
    /// Slots that hold nothing.
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    size_bytes: usize,
}

/// An entry and its neighbours in the order of use.
struct LruSlot<K, V> {
    key: Arc<K>,
    value: V,
    size_bytes: usize,
    newer: usize,
    older: usize,
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Default for Lru<K, V, S> {
    fn default() -> Self {
        let (places, slots, free) = (HashMap::default(), Vec::new(), Vec::new());
        Lru { places, slots, free, newest: NONE, oldest: NONE, size_bytes: 0 }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Lru<K, V, S> {
    /// The bytes of all entries.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The value of a key, which is now the one used last.
    pub fn get<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        Arc<K>: Borrow<Q>,
    {
        let at = *self.places.get(key)?;
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
        self.slots[at].as_ref().map(|slot| &slot.value)
    }

    /// Adds an entry of so many bytes as the one used last. Returns the value that had its key.
    pub fn insert(&mut self, key: K, value: V, size_bytes: usize) -> Option<V> {
        let key = Arc::new(key);
        let before = self.places.get(&key).copied().map(|at| self.take(at));
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(LruSlot { key: key.clone(), value, size_bytes, newer: NONE, older: NONE });
        self.places.insert(key, at);
        self.size_bytes += size_bytes;
        self.link(at);
        before
    }

    /// Takes out the value of a key.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        Arc<K>: Borrow<Q>,
    {
        let at = *self.places.get(key)?;
        Some(self.take(at))
    }

    /// Takes out the entry that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<V> {
        (self.oldest != NONE).then(|| self.take(self.oldest))
    }

    /// Takes an entry out of its slot.
    fn take(&mut self, at: usize) -> V {
        self.unlink(at);
        let slot = self.slots[at].take().expect("what is listed is there");
        self.places.remove(&slot.key);
        self.size_bytes -= slot.size_bytes;
        self.free.push(at);
        slot.value
    }

    /// Makes a slot the newest.
    fn link(&mut self, at: usize) {
        let older = std::mem::replace(&mut self.newest, at);
        let slot = self.slots[at].as_mut().expect("what is listed is there");
        (slot.older, slot.newer) = (older, NONE);
        match self.slots.get_mut(older) {
            Some(Some(slot)) => slot.newer = at,
            _ => self.oldest = at,
        }
    }

    /// Takes a slot out of the order.
    fn unlink(&mut self, at: usize) {
        let slot = self.slots[at].as_ref().expect("what is listed is there");
        let (newer, older) = (slot.newer, slot.older);
        match self.slots.get_mut(newer) {
            Some(Some(slot)) => slot.older = older,
            _ => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(Some(slot)) => slot.newer = newer,
            _ => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::hash_map::RandomState;

    type Map = Lru<u32, u32, RandomState>;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut map = Map::default();
        (0..4).for_each(|i| assert_eq!(map.insert(i, i * 10, 100), None));
        assert_eq!(map.get(&0), Some(&0));
        assert_eq!(map.get(&2), Some(&20));
        assert_eq!((map.size_bytes(), map.len()), (400, 4));
        assert_eq!(map.pop_oldest(), Some(10));
        assert_eq!(map.get(&1), None);
        assert_eq!(map.insert(3, 31, 7), Some(30));
        assert_eq!(map.size_bytes(), 207);
        assert_eq!((map.remove(&2), map.remove(&2), map.size_bytes()), (Some(20), None, 107));
        assert_eq!([map.pop_oldest(), map.pop_oldest()], [Some(0), Some(31)]);
        assert_eq!((map.pop_oldest(), map.size_bytes(), map.len()), (None, 0, 0));
    }

    #[test]
    fn it_agrees_with_a_list_that_is_searched() {
        let (mut map, mut list): (Map, Vec<(u32, u32)>) = Default::default();
        let mut state = 1u32;
        for i in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (key, what) = (state >> 20 & 63, state >> 28);
            let at = list.iter().position(|(k, _)| *k == key);
            match what {
                0..8 => {
                    let found = at.map(|at| list.remove(at));
                    list.extend(found);
                    assert_eq!(map.get(&key).copied(), found.map(|(_, value)| value));
                }
                8..14 => {
                    let before = at.map(|at| list.remove(at).1);
                    list.push((key, i));
                    assert_eq!(map.insert(key, i, key as usize), before);
                }
                _ => {
                    let oldest = (!list.is_empty()).then(|| list.remove(0).1);
                    assert_eq!(map.pop_oldest(), oldest);
                }
            }
            assert_eq!(map.size_bytes(), list.iter().map(|(key, _)| *key as usize).sum::<usize>());
            assert_eq!(map.len(), list.len());
        }
        assert!(map.slots.len() <= 64, "slots are used again");
    }
}
