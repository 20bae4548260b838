//! Batches from a set of examples, shuffled, and made ready by a thread while the last one is being learned from.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;

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
    /// The batch of these examples. Called on the loader's thread. If it panics, so does the loop that asks for the batch;
    /// where making one may fail, let [`Batch`](Dataset::Batch) be a `Result`.
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
/// assert_eq!(loader.to_string(), "10 examples, batches of 4, in the order of seed 7");
/// ```
pub struct Loader<D: Dataset> {
    data: Arc<D>,
    batch: usize,
    seed: Option<u64>,
    only_whole: bool,
    shard: Shard,
}

/// Which part of every batch is taken.
#[derive(Clone, Copy)]
struct Shard {
    rank: usize,
    n_ranks: usize,
}

impl Shard {
    /// This part of a batch: parts are consecutive, and their lengths differ by one at most.
    fn of<'a>(&self, batch: &'a [usize]) -> &'a [usize] {
        let start = |rank: usize| (batch.len() as u128 * rank as u128 / self.n_ranks as u128) as usize;
        &batch[start(self.rank)..start(self.rank + 1)]
    }
}

impl<D: Dataset> Loader<D> {
    /// Batches of this many examples, in order.
    pub fn new(data: D, batch: usize) -> Loader<D> {
        let shard = Shard { rank: 0, n_ranks: 1 };
        Loader { data: Arc::new(data), batch: batch.max(1), seed: None, only_whole: false, shard }
    }

    /// Of every batch only the part of `rank`, for training on `n_ranks` machines or devices at once. All parts together are
    /// the batch, each example in one of them, whether `n_ranks` divides it or not; where a batch has fewer examples than
    /// there are ranks, some parts are empty. So every rank makes the same number of steps, the sum over ranks is what one
    /// alone would see, and a run may go on with another number of ranks.
    ///
    /// A rank that is not below `n_ranks` counts modulo it.
    ///
    /// ```
    /// # use lazuli_nn::data::{Dataset, Loader};
    /// # struct Count;
    /// # impl Dataset for Count {
    /// #     type Batch = Vec<usize>;
    /// #     fn n_examples(&self) -> usize { 10 }
    /// #     fn batch(&self, examples: &[usize]) -> Vec<usize> { examples.to_vec() }
    /// # }
    /// let parts = [0, 1, 2].map(|rank| Loader::new(Count, 4).sharded(rank, 3));
    /// let batch = |rank: usize, i: usize| parts[rank].epoch(0).nth(i).unwrap_or_default();
    /// assert_eq!([batch(0, 0), batch(1, 0), batch(2, 0)], [vec![0], vec![1], vec![2, 3]]);
    /// assert_eq!([batch(0, 2), batch(1, 2), batch(2, 2)], [vec![], vec![8], vec![9]]);
    /// ```
    pub fn sharded(self, rank: usize, n_ranks: usize) -> Loader<D> {
        let n_ranks = n_ranks.max(1);
        Loader { shard: Shard { rank: rank % n_ranks, n_ranks }, ..self }
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

    /// All batches of an epoch. Two are made ready ahead, on a thread that ends with the iterator; where the system gives
    /// no thread, each is made when it is asked for.
    ///
    /// # Panics
    ///
    /// The iterator panics if the dataset does, with the same payload, in place of the batch that could not be made. It
    /// ends there.
    pub fn epoch(&self, epoch: u64) -> Epoch<D::Batch> {
        self.epoch_from(epoch, 0)
    }

    /// The batches of an epoch without the first `skip`: where a run that was stopped goes on.
    pub fn epoch_from(&self, epoch: u64, skip: usize) -> Epoch<D::Batch> {
        let order = Arc::new(order(self.data.n_examples(), self.seed, epoch));
        let (batch, shard) = (self.batch, self.shard);
        let rest = Rest { data: self.data.clone(), order, batch, shard, next: skip, end: self.n_batches() };
        Epoch::new(rest, Builder::new().name("lazuli-loader".into()))
    }
}

/// What decides which examples are in which batch. It is the same for all parts of a batch: who trains on a part each compares it.
impl<D: Dataset> fmt::Display for Loader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} examples, {}batches of {}",
            self.data.n_examples(),
            if self.only_whole { "whole " } else { "" },
            self.batch
        )?;
        match self.seed {
            Some(seed) => write!(f, ", in the order of seed {seed}"),
            None => write!(f, ", in order"),
        }
    }
}

/// The batches of one epoch.
pub struct Epoch<B> {
    source: Source<B>,
}

enum Source<B> {
    /// Made ready by a thread.
    Ahead(Receiver<Result<B, Thrown>>),
    /// Made when asked for.
    Here(Box<dyn Iterator<Item = B> + Send>),
}

/// What the dataset panicked with. Never dropped by the loader: dropping it may panic, too.
struct Thrown(ManuallyDrop<Box<dyn Any + Send>>);

impl<B: Send + 'static> Epoch<B> {
    /// Batches made ready by this thread.
    fn new<D: Dataset<Batch = B>>(rest: Rest<D>, thread: Builder) -> Epoch<B> {
        let (send, batches) = sync_channel(2);
        let mut ahead = rest.clone();
        let make = move || {
            loop {
                let made = match catch_unwind(AssertUnwindSafe(|| ahead.next())) {
                    Ok(None) => return,
                    Ok(Some(batch)) => Ok(batch),
                    Err(thrown) => Err(Thrown(ManuallyDrop::new(thrown))),
                };
                // Nobody listens any more: the iterator was dropped.
                if send.send(made).is_err() {
                    return;
                }
            }
        };
        match thread.spawn(make) {
            Ok(_) => Epoch { source: Source::Ahead(batches) },
            Err(_) => Epoch { source: Source::Here(Box::new(rest)) },
        }
    }
}

impl<B> Iterator for Epoch<B> {
    type Item = B;
    fn next(&mut self) -> Option<B> {
        match &mut self.source {
            Source::Here(rest) => rest.next(),
            Source::Ahead(batches) => match batches.recv().ok()? {
                Ok(batch) => Some(batch),
                Err(Thrown(thrown)) => resume_unwind(ManuallyDrop::into_inner(thrown)),
            },
        }
    }
}

/// The batches that are still to be made.
struct Rest<D> {
    data: Arc<D>,
    order: Arc<Vec<usize>>,
    batch: usize,
    shard: Shard,
    next: usize,
    end: usize,
}

impl<D> Clone for Rest<D> {
    fn clone(&self) -> Rest<D> {
        Rest { data: self.data.clone(), order: self.order.clone(), ..*self }
    }
}

impl<D: Dataset> Iterator for Rest<D> {
    type Item = D::Batch;
    fn next(&mut self) -> Option<D::Batch> {
        let examples = self.order.chunks(self.batch).nth(self.next).filter(|_| self.next < self.end)?;
        // If making it panics, there are no more.
        let next = std::mem::replace(&mut self.next, self.end) + 1;
        let batch = self.data.batch(self.shard.of(examples));
        self.next = next;
        Some(batch)
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

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Counts, and panics at one example.
    struct Count(Option<(usize, fn())>);

    impl Dataset for Count {
        type Batch = Vec<usize>;
        fn n_examples(&self) -> usize {
            100
        }
        fn batch(&self, examples: &[usize]) -> Vec<usize> {
            if let Some((_, panics)) = self.0.filter(|(bad, _)| examples.contains(bad)) {
                panics();
            }
            examples.to_vec()
        }
    }

    /// Panics when it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    /// An epoch with a thread, and one for which the system has none: there is no room for such a stack.
    fn epochs(data: Count) -> [Epoch<Vec<usize>>; 2] {
        let order = Arc::new((0..100).collect());
        let shard = Shard { rank: 0, n_ranks: 1 };
        let rest = Rest { data: Arc::new(data), order, batch: 10, shard, next: 1, end: 10 };
        let none = Builder::new().stack_size(isize::MAX as usize / 2);
        let epochs = [Epoch::new(rest.clone(), Builder::new()), Epoch::new(rest, none)];
        assert!(matches!(epochs[0].source, Source::Ahead(_)) && matches!(epochs[1].source, Source::Here(_)));
        epochs
    }

    #[test]
    fn an_epoch_is_the_same_without_a_thread() {
        for epoch in epochs(Count(None)) {
            let expect: Vec<Vec<usize>> = (1..10).map(|i| (10 * i..10 * i + 10).collect()).collect();
            assert_eq!(epoch.collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn shards_of_a_batch_are_the_batch() {
        for (n_ranks, batch) in [(1, 10), (2, 7), (3, 10), (4, 16), (7, 3), (13, 100), (100, 33)] {
            let loader = |rank| Loader::new(Count(None), batch).shuffled(5).sharded(rank, n_ranks);
            let parts: Vec<Vec<Vec<usize>>> = (0..n_ranks).map(|rank| loader(rank).epoch(3).collect()).collect();
            let whole: Vec<Vec<usize>> = Loader::new(Count(None), batch).shuffled(5).epoch(3).collect();
            for (i, whole) in whole.iter().enumerate() {
                assert_eq!(parts.iter().flat_map(|part| part[i].clone()).collect::<Vec<_>>(), *whole);
                let lens = || parts.iter().map(|part| part[i].len());
                assert!(lens().max() <= lens().min().map(|least| least + 1), "{n_ranks} ranks, batches of {batch}");
            }
            assert!(parts.iter().all(|part| part.len() == whole.len()));
        }
    }

    #[test]
    fn a_panic_of_the_dataset_reaches_the_loop_and_ends_the_epoch() {
        let panics: [(fn(), &str); 3] = [
            (|| panic!("plain text"), "plain text"),
            (|| panic!("text with {}", 1 + 1), "text with 2"),
            (|| panic_any(Bomb), "bomb"),
        ];
        for (panics, text) in panics {
            for mut epoch in epochs(Count(Some((35, panics)))) {
                assert_eq!(epoch.by_ref().take(2).map(|batch| batch[0]).collect::<Vec<_>>(), [10, 20]);
                let thrown = catch_unwind(AssertUnwindSafe(|| epoch.next())).unwrap_err();
                let said =
                    thrown.downcast_ref::<String>().map(String::as_str).or(thrown.downcast_ref::<&str>().copied());
                assert_eq!(said.unwrap_or("bomb"), text);
                std::mem::forget(thrown);
                assert_eq!((epoch.next(), epoch.next()), (None, None));
            }
        }
    }

    #[test]
    fn an_epoch_may_be_dropped_before_a_panic_is_seen() {
        for epoch in epochs(Count(Some((35, || panic_any(Bomb))))) {
            // Time enough for the thread to get there, or none: both must do.
            drop(epoch);
        }
        let [mut epoch, _] = epochs(Count(Some((35, || panic_any(Bomb)))));
        assert_eq!(epoch.by_ref().take(2).count(), 2);
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(epoch);
    }
}
