//! A thin way in for people who think in batches of buffers: everything is recorded by number, then run at once. Holds
//! no maths of its own; a buffer is a tensor of one axis.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::place::Caller;
use crate::read::elements_async;
use crate::realize;
use crate::tensor::Tensor;

/// Operations on buffers of f32, recorded and then run together: one submit.
///
/// Wrong numbers and sizes are errors of [`execute`](Batch::execute), not panics.
///
/// ```
/// use lazuli::{Batch, Device};
/// let mut batch = Batch::new(&Device::cpu());
/// let x = batch.upload(&[1.0, 2.0, -3.0, 4.0]);
/// let half = batch.upload(&[0.5; 4]);
/// let positive = batch.relu(x);
/// let doubled = batch.scale(positive, 2.0);
/// let y = batch.add(doubled, half);
/// batch.execute_blocking()?;
/// assert_eq!(batch.read_blocking(y)?, [2.5, 4.5, 0.5, 8.5]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Batch {
    id: u32,
    device: Device,
    buffers: Vec<BatchEntry>,
    n_operations: usize,
}

/// A buffer of a [`Batch`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId {
    batch: u32,
    idx: u32,
}

struct BatchEntry {
    tensor: Tensor,
    /// Whether an operation made it, and whether another uses it: what is used need not be kept.
    is_made: bool,
    is_used: bool,
}

impl Batch {
    /// Nothing recorded yet.
    pub fn new(device: &Device) -> Batch {
        static IDS: AtomicU32 = AtomicU32::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Batch { id, device: device.clone(), buffers: Vec::new(), n_operations: 0 }
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Numbers from the host.
    #[track_caller]
    pub fn upload(&mut self, data: &[f32]) -> BufferId {
        let tensor = Tensor::from_slice(data, [data.len()], &self.device);
        self.push(tensor, false)
    }

    /// A tensor that is there already, its elements row-major: nothing is uploaded.
    #[track_caller]
    pub fn import_tensor(&mut self, tensor: &Tensor) -> BufferId {
        let flat = tensor.to_device(&self.device).to_dtype(DType::F32).flatten();
        self.push(flat, false)
    }

    /// `max(x, 0)`.
    #[track_caller]
    pub fn relu(&mut self, x: BufferId) -> BufferId {
        self.unary(x, |x| x.relu())
    }

    /// `x · s`.
    #[track_caller]
    pub fn scale(&mut self, x: BufferId, s: f32) -> BufferId {
        self.unary(x, |x| x.mul(s))
    }

    /// `1 / (1 + e⁻ˣ)`.
    #[track_caller]
    pub fn sigmoid(&mut self, x: BufferId) -> BufferId {
        self.unary(x, |x| x.sigmoid())
    }

    /// The hyperbolic tangent.
    #[track_caller]
    pub fn tanh(&mut self, x: BufferId) -> BufferId {
        self.unary(x, |x| x.tanh())
    }

    /// `x · σ(x)`.
    #[track_caller]
    pub fn swish(&mut self, x: BufferId) -> BufferId {
        self.unary(x, |x| x.swish())
    }

    /// The Gaussian error linear unit.
    #[track_caller]
    pub fn gelu(&mut self, x: BufferId) -> BufferId {
        self.unary(x, |x| x.gelu())
    }

    /// `a + b`, of the same length.
    #[track_caller]
    pub fn add(&mut self, a: BufferId, b: BufferId) -> BufferId {
        self.binary("add", a, b, |a, b| a.add(b))
    }

    /// `a - b`, of the same length.
    #[track_caller]
    pub fn sub(&mut self, a: BufferId, b: BufferId) -> BufferId {
        self.binary("sub", a, b, |a, b| a.sub(b))
    }

    /// `a · b`, element by element, of the same length.
    #[track_caller]
    pub fn mul(&mut self, a: BufferId, b: BufferId) -> BufferId {
        self.binary("mul", a, b, |a, b| a.mul(b))
    }

    /// The sum of `a · b`: a buffer of one element.
    #[track_caller]
    pub fn dot(&mut self, a: BufferId, b: BufferId) -> BufferId {
        self.binary("dot", a, b, |a, b| a.dot(b).reshape([1]))
    }

    /// `[m, k] × [k, n]`, all row-major.
    #[track_caller]
    pub fn matmul(&mut self, a: BufferId, b: BufferId, m: usize, k: usize, n: usize) -> BufferId {
        let (x, y) = (self.operand(a), self.operand(b));
        let made = x.reshape([m, k]).matmul(&y.reshape([k, n])).flatten();
        self.made(made)
    }

    /// Runs all that was recorded, together. What only other operations use is not kept; reading it computes it again.
    ///
    /// ```
    /// # use lazuli::{Batch, Device};
    /// async fn tanh_of(numbers: &[f32]) -> lazuli::Result<Vec<f32>> {
    ///     let mut batch = Batch::new(&Device::best());
    ///     let x = batch.upload(numbers);
    ///     let y = batch.tanh(x);
    ///     batch.execute().await?;
    ///     batch.read(y).await
    /// }
    /// ```
    #[track_caller]
    pub fn execute(&self) -> impl Future<Output = Result<()>> + Send {
        let at = Location::caller();
        async move {
            self.check()?;
            realize::compute_async_at(&self.results(), at).await
        }
    }

    /// [`execute`](Batch::execute), returning when the work is submitted.
    #[track_caller]
    pub fn execute_blocking(&self) -> Result<()> {
        self.check()?;
        realize::compute(&self.results())
    }

    /// The numbers in a buffer.
    #[track_caller]
    pub fn read(&self, id: BufferId) -> impl Future<Output = Result<Vec<f32>>> + Send {
        let (at, tensor) = (Location::caller(), self.tensor(id));
        async move { elements_async("read", &tensor, at).await }
    }

    /// [`read`](Batch::read), waited for.
    #[track_caller]
    pub fn read_blocking(&self, id: BufferId) -> Result<Vec<f32>> {
        self.tensor(id).to_vec()
    }

    /// A buffer as a tensor; one that carries an error if there is no such buffer.
    #[track_caller]
    pub fn tensor(&self, id: BufferId) -> Tensor {
        match self.buffers.get(id.idx as usize).filter(|_| id.batch == self.id) {
            Some(entry) => entry.tensor.clone(),
            None => Tensor::new(Err(Error::index("batch", format!("buffer {} is of another batch", id.idx)))),
        }
    }

    /// How many operations were recorded.
    pub fn num_operations(&self) -> usize {
        self.n_operations
    }

    /// How many buffers there are, uploaded and computed.
    pub fn num_buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The first error that recording met.
    fn check(&self) -> Result<()> {
        self.buffers.iter().try_for_each(|entry| entry.tensor.check())
    }

    /// What operations made and no other uses.
    fn results(&self) -> Vec<&Tensor> {
        self.buffers.iter().filter(|entry| entry.is_made && !entry.is_used).map(|entry| &entry.tensor).collect()
    }

    #[track_caller]
    fn operand(&mut self, id: BufferId) -> Tensor {
        if id.batch == self.id
            && let Some(entry) = self.buffers.get_mut(id.idx as usize)
        {
            entry.is_used = true;
        }
        self.tensor(id)
    }

    #[track_caller]
    fn unary(&mut self, x: BufferId, f: impl FnOnce(&Tensor) -> Tensor) -> BufferId {
        let _caller = Caller::of_engine(Location::caller());
        let x = self.operand(x);
        self.made(f(&x))
    }

    #[track_caller]
    fn binary(&mut self, op: &str, a: BufferId, b: BufferId, f: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> BufferId {
        let _caller = Caller::of_engine(Location::caller());
        let (x, y) = (self.operand(a), self.operand(b));
        let made = match (x.shape(), y.shape()) {
            (Ok(left), Ok(right)) if left != right => {
                let message = format!("lengths differ: {} and {}", left[0], right[0]);
                Tensor::new(Err(Error::shape(op, message)))
            }
            _ => f(&x, &y),
        };
        self.made(made)
    }

    fn made(&mut self, tensor: Tensor) -> BufferId {
        self.n_operations += 1;
        self.push(tensor, true)
    }

    fn push(&mut self, tensor: Tensor, is_made: bool) -> BufferId {
        let idx = self.buffers.len() as u32;
        self.buffers.push(BatchEntry { tensor, is_made, is_used: false });
        BufferId { batch: self.id, idx }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_evaluation_of_what_is_wanted() {
        let mut batch = Batch::new(&Device::cpu());
        let x = batch.upload(&[1.0, 2.0, 3.0, 4.0]);
        let y = batch.matmul(x, x, 2, 2, 2);
        let z = batch.dot(x, y);
        batch.execute_blocking().unwrap();
        assert_eq!(batch.read_blocking(z).unwrap(), [7.0 + 20.0 + 45.0 + 88.0]);
        assert_eq!(batch.read_blocking(y).unwrap(), [7.0, 10.0, 15.0, 22.0]);
        assert_eq!((batch.num_operations(), batch.num_buffers()), (2, 3));
    }

    #[test]
    fn wrong_numbers_and_sizes_are_errors_at_execute() {
        let mut other = Batch::new(&Device::cpu());
        let foreign = other.upload(&[1.0]);
        let mut batch = Batch::new(&Device::cpu());
        let x = batch.upload(&[1.0, 2.0]);
        batch.add(x, foreign);
        assert!(matches!(batch.execute_blocking(), Err(Error::Index(_))));

        let mut batch = Batch::new(&Device::cpu());
        let (x, y) = (batch.upload(&[1.0, 2.0]), batch.upload(&[1.0]));
        batch.add(x, y);
        assert!(matches!(batch.execute_blocking(), Err(Error::Shape(_))));
        batch.matmul(x, y, 2, 2, 2);
        assert!(batch.execute_blocking().is_err());
    }

    #[test]
    fn an_imported_tensor_is_not_uploaded_again() {
        let cpu = Device::cpu();
        let tensor = Tensor::arange(0.0, 4.0, 1.0, &cpu).reshape([2, 2]);
        let mut batch = Batch::new(&cpu);
        let x = batch.import_tensor(&tensor);
        let y = batch.scale(x, 2.0);
        batch.execute_blocking().unwrap();
        assert_eq!(batch.read_blocking(y).unwrap(), [0.0, 2.0, 4.0, 6.0]);
    }
}
