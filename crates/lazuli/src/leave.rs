//! Leaving the lazy world: numbers out of tensors. Everything here returns a `Result`, since this is where a carried
//! error, a device or a conversion can say no.

use std::panic::Location;

use smallvec::smallvec;

use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::graph::{Expr, Node, NodeRef, Op};
use crate::plan::Explain;
use crate::realize::{self, Purpose};
use crate::room::{zeroed, zeroed_bytes};
use crate::tensor::Tensor;

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

    /// [`compute`](Tensor::compute), as a future. Needs no async runtime.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// async fn two() -> lazuli::Result<Tensor> {
    ///     Tensor::ones([2], DType::F32, &Device::cpu()).add(1.0).compute_async().await
    /// }
    /// # let done = std::pin::pin!(two()).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    /// # assert!(matches!(done, std::task::Poll::Ready(Ok(_))));
    /// ```
    pub async fn compute_async(&self) -> Result<Tensor> {
        realize::compute_async(&[self]).await?;
        Ok(self.clone())
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
    /// # let done = std::pin::pin!(numbers(&x)).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    /// # assert!(matches!(done, std::task::Poll::Ready(Ok(v)) if v == [1, 2, 3]));
    /// ```
    pub async fn to_vec_async<T: Element>(&self) -> Result<Vec<T>> {
        let node = self.readable::<T>("to_vec_async")?;
        realize::compute_for_async(&[self], Purpose::Read).await?;
        read_async("to_vec_async", node).await
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
    /// # let done = std::pin::pin!(total(&x)).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    /// # assert!(matches!(done, std::task::Poll::Ready(Ok(4.0))));
    /// ```
    pub async fn item_async<T: Element>(&self) -> Result<T> {
        let node = self.single::<T>("item_async")?;
        realize::compute_for_async(&[self], Purpose::Read).await?;
        first("item_async", read_async("item_async", node).await?)
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
            Err(_) => Err(Error::shape("dims", format!("{shape} has {} axes, not {N}", shape.rank()))),
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
            let moved = Expr { op: Op::Data, inputs: smallvec![node.clone()] };
            Ok(Tensor::new(Ok(Node::new(moved, node.shape, node.dtype, device.clone(), at, false))))
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

async fn read_async<T: Element>(op: &str, node: &NodeRef) -> Result<Vec<T>> {
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
