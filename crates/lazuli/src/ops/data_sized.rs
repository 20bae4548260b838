//! Ops whose size depends on the elements themselves. A size is part of a graph, so these cannot be recorded: they run what is
//! needed, read the truth of each element, and record the rest with the places they found. All return a `Result`, and each has
//! a twin that is a future.

use super::movement::reshaped;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// The coordinates of all elements that are not zero (i32), one row for each, row-major: shape `[n, rank]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[0, 5, 0, 7], [2, 2], &Device::cpu());
    /// assert_eq!(x.nonzero()?.to_vec::<i32>()?, [0, 1, 1, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        let mask = self.to_dtype(DType::Bool);
        coordinates(&mask, &mask.to_vec::<bool>()?)
    }

    /// [`nonzero`](Tensor::nonzero), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn places(x: &Tensor) -> lazuli::Result<Tensor> {
    ///     x.nonzero_async().await
    /// }
    /// # let x = Tensor::from_slice(&[0, 5], [2], &Device::cpu());
    /// # let mut future = std::pin::pin!(places(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<i32>()?, [1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero_async(&self) -> impl Future<Output = Result<Tensor>> + Send {
        let mask = self.to_dtype(DType::Bool);
        async move {
            let bits = mask.to_vec_async::<bool>().await?;
            coordinates(&mask, &bits)
        }
    }

    /// The elements, or slices, where `mask` is true; it has the sizes of the first axes: `x[mask]` of NumPy.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([3, 2]);
    /// let mask = Tensor::from_slice(&[true, false, true], [3], &Device::cpu());
    /// assert_eq!(x.index_mask(&mask)?.to_vec::<i32>()?, [0, 1, 4, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_mask(&self, mask: &Tensor) -> Result<Tensor> {
        let masked = Masked::new("index_mask", self, mask)?;
        masked.chosen(&masked.mask.to_vec::<bool>()?)
    }

    /// [`index_mask`](Tensor::index_mask), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn positive(x: &Tensor) -> lazuli::Result<Tensor> {
    ///     x.index_mask_async(&x.gt(0)).await
    /// }
    /// # let x = Tensor::from_slice(&[-1, 5], [2], &Device::cpu());
    /// # let mut future = std::pin::pin!(positive(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<i32>()?, [5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_mask_async(&self, mask: &Tensor) -> impl Future<Output = Result<Tensor>> + Send {
        Masked::chosen_async(Masked::new("index_mask_async", self, mask))
    }

    /// The elements where `mask` is true, as a vector, row-major; both broadcast.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3, -1, 4], [3], &Device::cpu());
    /// assert_eq!(x.masked_select(&x.gt(0))?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let masked = Masked::broadcast("masked_select", self, mask)?;
        masked.chosen(&masked.mask.to_vec::<bool>()?)
    }

    /// [`masked_select`](Tensor::masked_select), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn positive(x: &Tensor) -> lazuli::Result<Tensor> {
    ///     x.masked_select_async(&x.gt(0)).await
    /// }
    /// # let x = Tensor::from_slice(&[-1, 5], [2], &Device::cpu());
    /// # let mut future = std::pin::pin!(positive(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<i32>()?, [5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn masked_select_async(&self, mask: &Tensor) -> impl Future<Output = Result<Tensor>> + Send {
        Masked::chosen_async(Masked::broadcast("masked_select_async", self, mask))
    }

    /// The elements that differ, each once, in order, as a vector. Every NaN differs from every other.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3, 1, 3, 2, 1], [5], &Device::cpu());
    /// assert_eq!(x.unique()?.to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn unique(&self) -> Result<Tensor> {
        let masked = Masked::firsts("unique", self)?;
        masked.chosen(&masked.mask.to_vec::<bool>()?)
    }

    /// [`unique`](Tensor::unique), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn distinct(x: &Tensor) -> lazuli::Result<Tensor> {
    ///     x.unique_async().await
    /// }
    /// # let x = Tensor::from_slice(&[5, -1, 5], [3], &Device::cpu());
    /// # let mut future = std::pin::pin!(distinct(&x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<i32>()?, [-1, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn unique_async(&self) -> impl Future<Output = Result<Tensor>> + Send {
        Masked::chosen_async(Masked::firsts("unique_async", self))
    }
}

/// Slices of a tensor, each with a bool that tells whether it is wanted.
struct Masked {
    op: &'static str,
    mask: Tensor,
    /// `[slices, rest]`, and the axes of the rest.
    slices: Tensor,
    rest: Shape,
}

impl Masked {
    #[track_caller]
    fn new(op: &'static str, x: &Tensor, mask: &Tensor) -> Result<Masked> {
        let (shape, wanted) = (x.node()?.shape, mask.node()?.shape);
        if !shape.starts_with(&wanted) {
            return Err(Error::shape(
                op,
                format!("the mask {wanted} does not have the sizes of the first axes of {shape}"),
            ));
        }
        super::joining::same_device(op, x.node()?, mask.node()?)?;
        let n = wanted.n_elems();
        if n > i32::MAX as usize {
            return Err(Error::unsupported(op, format!("the mask {wanted} has more elements than i32 can count")));
        }
        let rest = Shape::from(&shape[wanted.rank()..]);
        let slices = reshaped(op, x, Shape::from([n, rest.n_elems()]))?;
        Ok(Masked { op, mask: mask.to_dtype(DType::Bool), slices, rest })
    }

    #[track_caller]
    fn broadcast(op: &'static str, x: &Tensor, mask: &Tensor) -> Result<Masked> {
        let (shape, wanted) = (x.node()?.shape, mask.node()?.shape);
        match shape.broadcast(&wanted) {
            Some(both) => Masked::new(op, &x.broadcast_to(both), &mask.broadcast_to(both)),
            None => Err(Error::shape(op, format!("shapes do not broadcast: {shape} and the mask {wanted}"))),
        }
    }

    /// All elements in order, and whether each differs from the one before.
    #[track_caller]
    fn firsts(op: &'static str, x: &Tensor) -> Result<Masked> {
        let n = x.node()?.shape.n_elems();
        let sorted = x.flatten().sort(0, false);
        let mask = match n {
            0 | 1 => Tensor::ones([n], DType::Bool, x.device()?),
            _ => sorted.narrow(0, 1, n - 1).ne(sorted.narrow(0, 0, n - 1)).pad(&[(1, 0)], true),
        };
        Masked::new(op, &sorted, &mask)
    }

    #[track_caller]
    fn chosen(&self, bits: &[bool]) -> Result<Tensor> {
        let places: Vec<i32> = (0i32..).zip(bits).filter(|(_, is_wanted)| **is_wanted).map(|(i, _)| i).collect();
        let n = places.len();
        let index = Tensor::from_vec(places, [n], self.mask.device()?);
        let chosen = self.slices.index_select(0, &index);
        reshaped(self.op, &chosen, [n].into_iter().chain(self.rest.iter().copied()).collect())
    }

    async fn chosen_async(masked: Result<Masked>) -> Result<Tensor> {
        let masked = masked?;
        let bits = masked.mask.to_vec_async::<bool>().await?;
        masked.chosen(&bits)
    }
}

/// One row of coordinates for each element that is true.
#[track_caller]
fn coordinates(mask: &Tensor, bits: &[bool]) -> Result<Tensor> {
    let shape = mask.node()?.shape;
    if shape.iter().any(|size| *size > i32::MAX as usize) {
        return Err(Error::unsupported("nonzero", format!("an axis of {shape} is longer than i32 can count")));
    }
    let mut rows: Vec<i32> = Vec::new();
    let mut n = 0;
    for (mut place, _) in bits.iter().enumerate().filter(|(_, is_true)| **is_true) {
        n += 1;
        let start = rows.len();
        rows.resize(start + shape.rank(), 0);
        for (axis, size) in shape.iter().enumerate().rev() {
            rows[start + axis] = (place % size) as i32;
            place /= size;
        }
    }
    Ok(Tensor::from_vec(rows, [n, shape.rank()], mask.device()?))
}
