//! Keys and values of what a model has read, so that each token is computed once. New rows are written in place; how many rows
//! there are is a number of the evaluation, so reading on plans nothing.

use lazuli::{DType, Device, Position, Result, Tensor};

use crate::fault;

/// Rows that a new cache has room for.
const FIRST_CAPACITY: usize = 256;

/// The keys and values of all layers of a model, for one sequence or several that are read together.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::KvCache;
/// let cpu = Device::cpu();
/// let mut cache = KvCache::new(1, [1, 2, 4], &cpu);
/// for position in 0..3 {
///     cache.make_room(1)?;
///     let rows = Tensor::full([1, 2, 1, 4], position as f32, &cpu);
///     let (keys, _values) = cache.write(0, &rows, &rows);
///     assert_eq!(keys.narrow(2, position, 1).to_vec::<f32>()?, [position as f32; 8]);
///     cache.advance(1);
/// }
/// assert_eq!(cache.len(), 3);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone)]
pub struct KvCache {
    /// Keys and values of each layer, `[sequences, heads, capacity, features]`.
    layers: Vec<(Tensor, Tensor)>,
    shape: [usize; 3],
    dtype: DType,
    device: Device,
    /// Where the next row goes.
    position: Position,
    capacity: usize,
    max_len: Option<usize>,
    /// The first row of each sequence, where they differ.
    starts: Option<Vec<i32>>,
    /// Which rows belong to a sequence, `[sequences, 1, 1, capacity]`, where they begin at different ones.
    mask: Option<Tensor>,
}

impl KvCache {
    /// An empty cache of f32, for `[sequences, heads, features]` in each layer. Memory is taken when rows are written.
    pub fn new(n_layers: usize, shape: [usize; 3], device: &Device) -> KvCache {
        let [sequences, heads, features] = shape;
        let empty = || Tensor::zeros([sequences, heads, 0, features], DType::F32, device);
        let layers = (0..n_layers).map(|_| (empty(), empty())).collect();
        let (position, dtype, device) = (Position::open(0), DType::F32, device.clone());
        KvCache { layers, shape, dtype, device, position, capacity: 0, max_len: None, starts: None, mask: None }
    }

    /// The same with elements of another float type: f16 takes half the memory, and products still sum in f32.
    ///
    /// ```
    /// # use lazuli::{DType, Device};
    /// let cache = lazuli_nn::KvCache::new(2, [1, 4, 64], &Device::cpu()).with_dtype(DType::F16);
    /// assert_eq!(cache.bytes_for(1_000), 2 * 2 * 4 * 64 * 2 * 1_000);
    /// ```
    pub fn with_dtype(self, dtype: DType) -> KvCache {
        let [sequences, heads, features] = self.shape;
        let empty = || Tensor::zeros([sequences, heads, 0, features], dtype, &self.device);
        let layers = self.layers.iter().map(|_| (empty(), empty())).collect();
        KvCache { layers, dtype, position: self.position.moved_to(0), capacity: 0, ..self }
    }

    /// The same for sequences of unequal lengths: sequence i begins at row `starts[i]`, and nobody looks at rows before it. A
    /// shorter sequence is filled up at its front with any tokens, so that all of them end at the same row and go on together.
    /// A rotary embedding sees only distances between rows, so where a sequence begins makes no difference to it.
    ///
    /// ```
    /// use lazuli::{Attention, Device, Tensor};
    /// let cpu = Device::cpu();
    /// // Two sequences of 3 and of 1 rows.
    /// let mut cache = lazuli_nn::KvCache::new(1, [2, 1, 4], &cpu).with_starts(&[0, 2])?;
    /// cache.make_room(3)?;
    /// let rows = Tensor::rand([2, 1, 3, 4], 1, &cpu);
    /// let (keys, values) = cache.write(0, &rows, &rows);
    /// let options = Attention { causal: true, length: Some(3.into()), mask: cache.mask(), ..Attention::default() };
    /// let found = rows.attention(&keys, &values, options);
    /// // The only row of the second sequence finds itself.
    /// let last = |x: &Tensor| x.narrow(0, 1, 1).narrow(2, 2, 1).to_vec::<f32>();
    /// assert_eq!(last(&found)?, last(&rows)?);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn with_starts(self, starts: &[usize]) -> Result<KvCache> {
        let _caller = fault::caller();
        if starts.len() != self.shape[0] {
            let message = format!("{} beginnings for {} sequences", starts.len(), self.shape[0]);
            return Err(fault::shape("kv_cache", message));
        }
        let row = |start: &usize| {
            i32::try_from(*start)
                .map_err(|_| fault::shape("kv_cache", format!("a sequence that begins at row {start}")))
        };
        let starts = Some(starts.iter().map(row).collect::<Result<_>>()?);
        Ok(KvCache { starts, position: self.position.moved_to(0), capacity: 0, mask: None, ..self })
    }

    /// Which rows belong to each sequence, as attention's mask; None if all rows belong to all of them, or if there is no room
    /// for rows yet.
    pub fn mask(&self) -> Option<&Tensor> {
        self.mask.as_ref()
    }

    /// The same with room for at most so many rows: more are an error instead of more memory.
    ///
    /// ```
    /// # use lazuli::Device;
    /// let mut cache = lazuli_nn::KvCache::new(1, [1, 1, 8], &Device::cpu()).with_max_len(10);
    /// assert!(cache.make_room(10).is_ok() && cache.make_room(11).is_err());
    /// ```
    pub fn with_max_len(self, max_len: usize) -> KvCache {
        KvCache { max_len: Some(max_len), ..self }
    }

    /// How many rows there may be at most.
    pub fn max_len(&self) -> Option<usize> {
        self.max_len
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.position.value()
    }

    /// Where the next row goes, as a [`Recording`](lazuli::Recording) that writes to the cache is told.
    ///
    /// ```
    /// # use lazuli::Device;
    /// assert_eq!(lazuli_nn::KvCache::new(1, [1, 1, 8], &Device::cpu()).position().value(), 0);
    /// ```
    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many rows there is memory for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many layers there are.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// The bytes that so many rows of all layers take, or [`usize::MAX`] if they are more than that.
    pub fn bytes_for(&self, n_rows: usize) -> usize {
        let row_bytes =
            self.shape.iter().fold(2 * self.layers.len() * self.dtype.size(), |n, size| n.saturating_mul(*size));
        row_bytes.saturating_mul(n_rows)
    }

    /// The capacity that so many rows make it grow to.
    fn capacity_for(&self, n_rows: usize) -> usize {
        let capacity = n_rows.checked_next_power_of_two().unwrap_or(n_rows).max(FIRST_CAPACITY);
        self.max_len.map_or(capacity, |max_len| capacity.min(max_len))
    }

    /// The capacities that it will have after this one, as rows come one by one: the row after each is the first that does not
    /// fit, and makes it grow to the next.
    ///
    /// ```
    /// # use lazuli::Device;
    /// let mut cache = lazuli_nn::KvCache::new(1, [1, 1, 8], &Device::cpu()).with_max_len(1_500);
    /// assert_eq!(cache.next_capacities().collect::<Vec<_>>(), [256, 512, 1_024, 1_500]);
    /// cache.make_room(300)?;
    /// assert_eq!(cache.next_capacities().next(), Some(1_024));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn next_capacities(&self) -> impl Iterator<Item = usize> + '_ {
        let next = |capacity: &usize| {
            // The list ends where the next power of two does not fit a usize.
            let grown = self.capacity_for(capacity.checked_add(1)?.checked_next_power_of_two()?);
            (grown > *capacity).then_some(grown)
        };
        std::iter::successors(next(&self.capacity), next)
    }

    /// Makes sure that so many more rows fit. Capacity doubles, and what is there is copied; otherwise nothing happens.
    #[track_caller]
    pub fn make_room(&mut self, n_rows: usize) -> Result<()> {
        let _caller = fault::caller();
        let wanted = self.len().saturating_add(n_rows);
        if let Some(max_len) = self.max_len.filter(|max_len| wanted > *max_len) {
            let message = format!("{n_rows} more than {} rows do not fit a cache of at most {max_len}", self.len());
            return Err(fault::shape("kv_cache", message));
        }
        if wanted <= self.capacity {
            return Ok(());
        }
        let capacity = self.capacity_for(wanted);
        let [sequences, heads, features] = self.shape;
        // Rows beyond the length are looked at by nobody, but must be finite.
        let grown = |x: &Tensor| {
            let room = Tensor::zeros([sequences, heads, capacity, features], self.dtype, &self.device);
            if self.capacity == 0 { room } else { room.write_rows(2, 0, x) }
        };
        let layers: Vec<(Tensor, Tensor)> = self.layers.iter().map(|(k, v)| (grown(k), grown(v))).collect();
        lazuli::compute(&layers.iter().flat_map(|(k, v)| [k, v]).collect::<Vec<_>>())?;
        if let Some(starts) = &self.starts {
            let rows = Tensor::arange(0, capacity as i32, 1, &self.device).reshape([1, 1, 1, capacity]);
            let starts = Tensor::from_slice(starts, [sequences, 1, 1, 1], &self.device);
            self.mask = Some(rows.ge(starts).compute()?);
        }
        self.layers = layers;
        self.capacity = capacity;
        Ok(())
    }

    /// Records that new rows, `[sequences, heads, rows, features]`, are written after those that are there, and gives the
    /// layer's keys and values with them. There must be room, and the length stays until [`advance`](KvCache::advance). No gradient
    /// passes through a cache.
    #[track_caller]
    pub fn write(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> (Tensor, Tensor) {
        let _caller = fault::caller();
        let n_layers = self.layers.len();
        let Some(place) = self.layers.get_mut(layer) else {
            let error: Tensor = fault::shape("kv_cache", format!("there is no layer {layer} of {n_layers}")).into();
            return (error.clone(), error);
        };
        // Detached: otherwise a cache would note at every token which weights each of its layers was made of.
        let write = |x: &Tensor, rows: &Tensor| x.write_rows(2, self.position, &rows.to_dtype(self.dtype)).detach();
        let (k, v) = (write(&place.0, keys), write(&place.1, values));
        // Rows that do not fit leave the cache what it was.
        if k.check().is_ok() && v.check().is_ok() {
            *place = (k.clone(), v.clone());
        }
        (k, v)
    }

    /// So many more rows are there from now on.
    pub fn advance(&mut self, n_rows: usize) {
        self.position = self.position.moved_to(self.len().saturating_add(n_rows).min(self.capacity));
    }

    /// Forgets all rows but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.position = self.position.moved_to(self.len().min(len));
    }

    /// All keys and values, to be computed together with what was made of them.
    ///
    /// ```
    /// # use lazuli::Device;
    /// assert_eq!(lazuli_nn::KvCache::new(3, [1, 1, 8], &Device::cpu()).tensors().count(), 6);
    /// ```
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|(k, v)| [k, v])
    }

    /// All keys and values, taken out for something that will write to them; they or others like them must be
    /// [put back](KvCache::put) before the cache is used again.
    ///
    /// ```
    /// # use lazuli::Device;
    /// let mut cache = lazuli_nn::KvCache::new(3, [1, 1, 8], &Device::cpu());
    /// let taken: Vec<lazuli::Tensor> = cache.take().collect();
    /// cache.put(taken);
    /// assert_eq!(cache.n_layers(), 3);
    /// ```
    pub fn take(&mut self) -> impl Iterator<Item = Tensor> + use<> {
        std::mem::take(&mut self.layers).into_iter().flat_map(|(k, v)| [k, v])
    }

    /// Puts back keys and values, in the order of [`take`](KvCache::take).
    pub fn put(&mut self, tensors: impl IntoIterator<Item = Tensor>) {
        let mut tensors = tensors.into_iter();
        self.layers = std::iter::from_fn(|| Some((tensors.next()?, tensors.next()?))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_of_a_cache_without_an_end_are_the_powers_of_two() {
        let cache = KvCache::new(3, [1, 2, 64], &Device::cpu());
        for cache in [cache.clone().with_max_len(usize::MAX), cache] {
            let capacities: Vec<usize> = cache.next_capacities().take(100).collect();
            assert_eq!(capacities, (8..usize::BITS).map(|bits| 1 << bits).collect::<Vec<usize>>());
            assert_eq!(capacities.into_iter().map(|n| cache.bytes_for(n)).max(), Some(usize::MAX));
        }
    }
}
