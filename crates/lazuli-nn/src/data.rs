//! Batches from a set of examples, shuffled, and made ready by a thread while the last one is being learned from.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Examples that batches can be made of.
///
/// ```
/// use lazuli_nn::data::Dataset;
/// struct Squares;
/// impl Dataset for Squares {
///     type Batch = Vec<(usize, usize)>;
///     fn n_examples(&self) -> usize {
///         100
///     }
///     fn batch(&self, examples: &[usize]) -> Vec<(usize, usize)> {
///         examples.iter().map(|i| (*i, i * i)).collect()
///     }
/// }
/// assert_eq!(Squares.batch(&[3]), [(3, 9)]);
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// What a batch is: tensors, mostly.
    type Batch: Send + 'static;
    /// How many examples there are.
    fn n_examples(&self) -> usize;
    /// The batch of these examples. Called on the loader's thread.
    fn batch(&self, examples: &[usize]) -> Self::Batch;
}

/// Cuts a [`Dataset`] into batches.
///
/// ```
/// # use lazuli_nn::data::{Dataset, Loader};
/// # struct Count;
/// # impl Dataset for Count {
/// #     type Batch = Vec<usize>;
/// #     fn n_examples(&self) -> usize { 10 }
/// #     fn batch(&self, examples: &[usize]) -> Vec<usize> { examples.to_vec() }
/// # }
/// let loader = Loader::new(Count, 4).shuffled(7);
/// let epoch: Vec<Vec<usize>> = loader.epoch(0).collect();
/// assert_eq!(epoch.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
/// assert_eq!(epoch, loader.epoch(0).collect::<Vec<_>>());
/// assert_ne!(epoch, loader.epoch(1).collect::<Vec<_>>());
/// ```
pub struct Loader<D: Dataset> {
    data: Arc<D>,
    batch: usize,
    seed: Option<u64>,
    only_whole: bool,
}

impl<D: Dataset> Loader<D> {
    /// Batches of this many examples, in order.
    pub fn new(data: D, batch: usize) -> Loader<D> {
        Loader { data: Arc::new(data), batch: batch.max(1), seed: None, only_whole: false }
    }

    /// In an order that depends on the seed and the epoch alone.
    pub fn shuffled(self, seed: u64) -> Loader<D> {
        Loader { seed: Some(seed), ..self }
    }

    /// Without a last batch that is smaller than the others (and would need a plan of its own).
    pub fn only_whole(self) -> Loader<D> {
        Loader { only_whole: true, ..self }
    }

    /// How many batches an epoch has.
    pub fn n_batches(&self) -> usize {
        let n = self.data.n_examples();
        if self.only_whole { n / self.batch } else { n.div_ceil(self.batch) }
    }

    /// The examples.
    pub fn data(&self) -> &D {
        &self.data
    }

    /// All batches of an epoch. Two are made ready ahead, on a thread that ends with the iterator.
    pub fn epoch(&self, epoch: u64) -> Epoch<D::Batch> {
        self.epoch_from(epoch, 0)
    }

    /// The batches of an epoch without the first `skip`: where a run that was stopped goes on.
    pub fn epoch_from(&self, epoch: u64, skip: usize) -> Epoch<D::Batch> {
        let order = order(self.data.n_examples(), self.seed, epoch);
        let (data, batch, n_batches) = (self.data.clone(), self.batch, self.n_batches());
        let (send, batches) = sync_channel(2);
        thread::spawn(move || {
            for examples in order.chunks(batch).take(n_batches).skip(skip) {
                // Nobody listens any more: the iterator was dropped.
                if send.send(data.batch(examples)).is_err() {
                    return;
                }
            }
        });
        Epoch { batches }
    }
}

/// The batches of one epoch.
pub struct Epoch<B> {
    batches: Receiver<B>,
}

impl<B> Iterator for Epoch<B> {
    type Item = B;
    fn next(&mut self) -> Option<B> {
        self.batches.recv().ok()
    }
}

/// The examples in the order of an epoch: Fisher and Yates, from a seed.
fn order(n: usize, seed: Option<u64>, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let Some(seed) = seed else { return order };
    let mut state = seed ^ epoch.wrapping_mul(0xd134_2543_de82_ef95);
    for i in (1..n).rev() {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(i, ((x ^ (x >> 31)) % (i as u64 + 1)) as usize);
    }
    order
}
