//! Leaving the lazy world: numbers out of tensors. Everything here returns a `Result`, since this is where a carried
//! error, a device or a conversion can say no.

use std::panic::Location;

use smallvec::smallvec;

use crate::awaited;
use crate::device::{Device, DeviceKind};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result, counted};
use crate::graph::{Expr, Node, NodeRef, Op};
use crate::plan::Explain;
use crate::realize::{self, Purpose};
use crate::room::{zeroed, zeroed_bytes};
use crate::tensor::Tensor;

/// So many bytes in the host's own memory are copied where they are awaited: less than handing that over takes.
const AT_HAND_BYTES: usize = 64 << 10;

impl Tensor {
    /// Runs what is needed for this tensor, now; it stays on its device. The result is the same tensor.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2], DType::F32, &Device::cpu()).add(1.0).compute()?;
    /// assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn compute(&self) -> Result<Tensor> {
        realize::compute(&[self])?;
        Ok(self.clone())
    }

    /// [`compute`](Tensor::compute), as a future. Needs no async runtime; what it does meanwhile is said at
    /// [`compute_async`](crate::compute_async).
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// async fn two() -> lazuli::Result<Tensor> {
    ///     Tensor::ones([2], DType::F32, &Device::cpu()).add(1.0).compute_async().await
    /// }
    /// # let mut future = std::pin::pin!(two());
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn compute_async(&self) -> impl Future<Output = Result<Tensor>> + Send {
        let at = Location::caller();
        async move {
            realize::compute_async_at(&[self], at).await?;
            Ok(self.clone())
        }
    }

    /// Runs it and reads all elements, row-major. `T` may be wider than the dtype, but never so that a value is lost.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1, 2, 3], [3], &Device::cpu());
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2, 3]);
    /// assert_eq!(x.to_vec::<i64>()?, [1, 2, 3]);
    /// assert!(x.to_vec::<f32>().is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let node = self.readable::<T>("to_vec")?;
        realize::compute_for(&[self], Purpose::Read)?;
        read("to_vec", node)
    }

    /// [`to_vec`](Tensor::to_vec), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn numbers(x: &Tensor) -> lazuli::Result<Vec<i32>> {
    ///     x.to_vec_async().await
    /// }
    /// # let x = Tensor::from_slice(&[1, 2, 3], [3], &Device::cpu());
    /// # let mut future = std::pin::pin!(numbers(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?, [1, 2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn to_vec_async<T: Element>(&self) -> impl Future<Output = Result<Vec<T>>> + Send {
        elements_async("to_vec_async", self, Location::caller())
    }

    /// Runs it and reads its one element, whatever its rank.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.5f32, 2.5], [2], &Device::cpu());
    /// assert_eq!(x.sum(..).item::<f32>()?, 4.0);
    /// assert!(x.item::<f32>().is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let node = self.single::<T>("item")?;
        realize::compute_for(&[self], Purpose::Read)?;
        first("item", read("item", node)?)
    }

    /// [`item`](Tensor::item), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn total(x: &Tensor) -> lazuli::Result<f32> {
    ///     x.sum(..).item_async().await
    /// }
    /// # let x = Tensor::from_slice(&[1.5f32, 2.5], [2], &Device::cpu());
    /// # let mut future = std::pin::pin!(total(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?, 4.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn item_async<T: Element>(&self) -> impl Future<Output = Result<T>> + Send {
        let at = Location::caller();
        let checked = self.single::<T>("item_async").map(drop);
        async move {
            checked?;
            first("item_async", elements_async("item_async", self, at).await?)
        }
    }

    /// The size of each of its `N` axes; another rank is an error.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let [rows, columns] = Tensor::zeros([2, 3], DType::F32, &Device::cpu()).dims()?;
    /// assert_eq!((rows, columns), (2, 3));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> Result<[usize; N]> {
        let shape = &self.node()?.shape;
        match shape[..].try_into() {
            Ok(dims) => Ok(dims),
            Err(_) => Err(Error::shape("dims", format!("{shape} has {}, not {N}", counted(shape.rank(), "axis")))),
        }
    }

    /// What computing it would do: kernels, memory, and why neighbouring kernels are two.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([8], DType::F32, &Device::cpu());
    /// assert_eq!(x.add(1.0).exp().mul(&x).explain()?.kernels.len(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn explain(&self) -> Result<Explain> {
        realize::explain(&[self])
    }

    /// Plans and compiles what computing this tensor needs, and runs nothing: computing it then compiles nothing.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2], DType::F32, &Device::cpu()).add(1.0);
    /// x.prepare()?;
    /// assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn prepare(&self) -> Result<()> {
        realize::prepare(&[self])
    }

    /// The same tensor on another device: moved when it is needed there.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let (cpu, best) = (Device::cpu(), Device::best());
    /// let there = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu).to_device(&best);
    /// assert_eq!(there.device()?, &best);
    /// assert_eq!(there.add(1.0).to_device(&cpu).to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Tensor {
        let at = Location::caller();
        Tensor::attempt(|| {
            let node = self.node()?;
            if node.device == *device {
                return Ok(self.clone());
            }
            let moved = |node: &NodeRef| {
                let moved = Expr { op: Op::Data, inputs: smallvec![node.clone()] };
                Node::new(moved, node.shape, node.dtype, device.clone(), at, false)
            };
            // Blocks are held alike everywhere: they move as they are.
            let moved = match node.blocks() {
                Some((format, blocks)) => {
                    let widened = Expr { op: Op::Widen(format), inputs: smallvec![moved(&blocks)] };
                    Node::new(widened, node.shape, node.dtype, device.clone(), at, false)
                }
                None => moved(node),
            };
            Ok(Tensor::new(Ok(moved)))
        })
    }

    /// The node, if its elements can be read as `T`: found out before anything runs.
    #[track_caller]
    fn readable<T: Element>(&self, op: &str) -> Result<&NodeRef> {
        let node = self.node()?;
        match T::load(&[], node.dtype) {
            Ok(_) => Ok(node),
            Err(error) => Err(Error::dtype(op, error.fault().message.as_str())),
        }
    }

    /// The node, if it has one element that can be read as `T`.
    #[track_caller]
    fn single<T: Element>(&self, op: &str) -> Result<&NodeRef> {
        let node = self.readable::<T>(op)?;
        if node.shape.n_elems() != 1 {
            let message = format!("{} has {} elements, not one", node.shape, node.shape.n_elems());
            return Err(Error::shape(op, message));
        }
        Ok(node)
    }
}

/// The elements of a computed node.
#[track_caller]
fn read<T: Element>(op: &str, node: &NodeRef) -> Result<Vec<T>> {
    let mut elements = Elements::<T>::new(op, node)?;
    realize::read(node, elements.bytes())?;
    elements.finish(node.dtype)
}

/// The elements of a tensor, computed and read by a thread of its device. `at` is where the user asked for them.
pub async fn elements_async<T: Element>(
    op: &'static str,
    tensor: &Tensor,
    at: &'static Location<'static>,
) -> Result<Vec<T>> {
    let node = tensor.readable::<T>(op).map_err(|error| error.called_at(at))?;
    let is_at_hand = node.device.info().kind == DeviceKind::Cpu && node.is_ready();
    if is_at_hand && node.shape.n_elems() * node.dtype.size() <= AT_HAND_BYTES {
        return read(op, node).map_err(|error| error.called_at(at));
    }
    if !awaited::HAS_THREADS {
        return elements_here(op, tensor).await;
    }
    let wanted = tensor.clone();
    let call = move || {
        realize::compute_for(&[&wanted], Purpose::Read)?;
        read(op, wanted.node()?)
    };
    realize::awaited(&node.device, at, call).await
}

/// The same without another thread: evaluated in `poll`, but no device is waited for.
async fn elements_here<T: Element>(op: &str, tensor: &Tensor) -> Result<Vec<T>> {
    realize::compute_for_async(&[tensor], Purpose::Read).await?;
    let node = tensor.node()?;
    let mut elements = Elements::<T>::new(op, node)?;
    realize::read_async(node, elements.bytes()).await?;
    elements.finish(node.dtype)
}

/// Where the bytes of a node arrive on their way to being `T`s.
enum Elements<T> {
    /// Their bytes are those that are stored.
    Same(Vec<T>),
    /// To be converted.
    Other(Vec<u8>),
}

impl<T: Element> Elements<T> {
    #[track_caller]
    fn new(op: &str, node: &NodeRef) -> Result<Elements<T>> {
        let n_elems = node.shape.n_elems();
        // A bool that is neither 0 nor 1 would be undefined behaviour, so bools take the checked way.
        match T::SAME_BYTES && T::DTYPE == node.dtype && T::DTYPE != DType::Bool {
            // SAFETY: zero is a number of every type whose bytes are the stored bytes.
            true => Ok(Elements::Same(unsafe { zeroed::<T>(op, n_elems)? })),
            false => Ok(Elements::Other(zeroed_bytes(op, n_elems * node.dtype.size())?)),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Elements::Same(out) => {
                let n_bytes = std::mem::size_of_val(out.as_slice());
                // SAFETY: elements whose bytes are the stored bytes are plain numbers: no padding, any bits are valid.
                unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), n_bytes) }
            }
            Elements::Other(bytes) => bytes,
        }
    }

    fn finish(self, dtype: DType) -> Result<Vec<T>> {
        match self {
            Elements::Same(out) => Ok(out),
            Elements::Other(bytes) => T::load(&bytes, dtype),
        }
    }
}

#[track_caller]
fn first<T: Element>(op: &str, elements: Vec<T>) -> Result<T> {
    elements.first().copied().ok_or_else(|| Error::shape(op, "the tensor is empty"))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// The way of a browser, where there are no threads, must work wherever it can be tried.
    #[test]
    fn elements_arrive_without_a_thread_that_waits_for_them() {
        for idx in 0..Device::all().len() {
            let device = Device::open(&idx.to_string()).unwrap();
            // From another device, and too large to be at hand.
            let x = Tensor::arange(0.0, 100_000.0, 1.0, &Device::cpu()).add(0.5).to_device(&device);
            let (good, bad) = (x.mul(2.0), x.gather(0, &Tensor::full([1], 100_000, &device)));
            let read = |tensor: &Tensor| {
                let mut future = pin!(elements_here::<f32>("to_vec_async", tensor));
                loop {
                    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(elements) => return elements,
                        Poll::Pending => std::thread::yield_now(),
                    }
                }
            };
            assert_eq!(read(&good).unwrap()[99_999], 199_999.0);
            assert!(matches!(read(&bad), Err(Error::Index(_))));
            let _ = device.sync();
        }
    }
}
