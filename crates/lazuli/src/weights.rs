//! A thin way in for people who think in named weights: uploaded once, multiplied many times. Holds no maths of its own;
//! a weight is a tensor, a product the plan that `matmul` has anywhere.

use std::collections::BTreeMap;
use std::panic::Location;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::place::Caller;
use crate::read::elements_async;
use crate::realize::{self, Purpose};
use crate::tensor::Tensor;

/// Matrices that stay on a device, by name.
///
/// A weight is `[rows, cols]`, row-major, whatever it is multiplied with: `y[m, rows] = x[m, cols] · Wᵀ`, so one upload
/// serves a single row of inputs as well as many. It is kept as the device reads it best: on the CPU large ones lie in the
/// panels in which a product would otherwise lay them out, call after call. The second product of a kind makes nothing
/// new: no memory, no plan, no pipeline.
///
/// ```
/// use lazuli::{Device, Weights};
/// let mut weights = Weights::new(&Device::cpu());
/// weights.upload("up", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 2)?;
/// let mut y = [0.0; 3];
/// weights.matmul("up", &[1.0, 10.0], &mut y, 1)?;
/// assert_eq!(y, [21.0, 43.0, 65.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Weights {
    device: Device,
    named: BTreeMap<String, Weight>,
}

struct Weight {
    /// Seen as `[cols, rows]`, however it lies.
    turned: Tensor,
    rows: usize,
    cols: usize,
    size_bytes: usize,
}

impl Weights {
    /// None yet.
    pub fn new(device: &Device) -> Weights {
        Weights { device: device.clone(), named: BTreeMap::new() }
    }

    /// The device they are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Puts a matrix on the device, in place of one that had its name.
    #[track_caller]
    pub fn upload(&mut self, name: &str, data: &[f32], rows: usize, cols: usize) -> Result<()> {
        self.upload_as(name, data, rows, cols, DType::F32)
    }

    /// [`upload`](Weights::upload), stored as `f16` or `bf16`: half the memory, and half the reading. Products are
    /// computed in `f32`.
    ///
    /// ```
    /// # use lazuli::{Device, DType, Weights};
    /// let mut weights = Weights::new(&Device::cpu());
    /// weights.upload_as("w", &[1.0, 2.0], 1, 2, DType::F16)?;
    /// assert_eq!(weights.bytes(), 4);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_as(&mut self, name: &str, data: &[f32], rows: usize, cols: usize, dtype: DType) -> Result<()> {
        let _caller = Caller::of_engine(Location::caller());
        if rows.checked_mul(cols) != Some(data.len()) {
            let message = format!("`{name}` would be [{rows}, {cols}], but there are {} numbers", data.len());
            return Err(Error::shape("upload", message));
        }
        if !dtype.is_float() {
            let message = format!("`{name}` cannot be stored as {dtype}; f32, f16 and bf16 can be multiplied");
            return Err(Error::dtype("upload", message));
        }
        self.insert(name, &Tensor::from_slice(data, [rows, cols], &self.device).to_dtype(dtype), rows, cols, true)
    }

    /// Takes a tensor of two axes as a weight. One that is in the memory of the device already is shared as it lies, so
    /// that nothing is kept twice; any other becomes what [`upload`](Weights::upload) would make of it.
    ///
    /// ```
    /// # use lazuli::{Device, DType, Tensor, Weights};
    /// let mut weights = Weights::new(&Device::cpu());
    /// weights.import("w", &Tensor::ones([3, 2], DType::F32, &Device::cpu()))?;
    /// let mut y = [0.0; 3];
    /// weights.matmul("w", &[1.0, 2.0], &mut y, 1)?;
    /// assert_eq!(y, [3.0; 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn import(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let _caller = Caller::of_engine(Location::caller());
        let dtype = tensor.dtype()?;
        let [rows, cols] = tensor.dims()?;
        if !dtype.is_float() {
            let message = format!("`{name}` is {dtype}; f32, f16 and bf16 can be multiplied");
            return Err(Error::dtype("import", message));
        }
        let is_there = tensor.node()?.is_ready() && *tensor.device()? == self.device;
        self.insert(name, &tensor.to_device(&self.device).detach(), rows, cols, !is_there)
    }

    /// `output[m, rows] = input[m, cols] · Wᵀ`, all row-major.
    #[track_caller]
    pub fn matmul(&self, name: &str, input: &[f32], output: &mut [f32], m: usize) -> Result<()> {
        let y = self.product(name, input, output, m)?;
        realize::compute_for(&[&y], Purpose::Read)?;
        realize::read(y.node()?, bytes_of(output))
    }

    /// [`matmul`](Weights::matmul), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Weights};
    /// async fn doubled(weights: &Weights, x: &[f32]) -> lazuli::Result<Vec<f32>> {
    ///     let mut y = vec![0.0; x.len()];
    ///     weights.matmul_async("twice", x, &mut y, x.len()).await?;
    ///     Ok(y)
    /// }
    /// # let mut weights = Weights::new(&Device::cpu());
    /// # weights.upload("twice", &[2.0], 1, 1)?;
    /// # let mut future = std::pin::pin!(doubled(&weights, &[1.0, 2.0]));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?, [2.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn matmul_async(
        &self,
        name: &str,
        input: &[f32],
        output: &mut [f32],
        m: usize,
    ) -> impl Future<Output = Result<()>> {
        let (at, y) = (Location::caller(), self.product(name, input, output, m));
        async move {
            // A thread cannot write to what is only borrowed: the future may be dropped before.
            let elements: Vec<f32> = elements_async("matmul_async", &y?, at).await?;
            output.copy_from_slice(&elements);
            Ok(())
        }
    }

    /// A weight as a tensor `[rows, cols]`, for any other maths.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        Ok(self.find("tensor", name)?.turned.t())
    }

    /// Forgets a weight and says whether there was one. Its memory is free once no tensor uses it either.
    pub fn remove(&mut self, name: &str) -> bool {
        self.named.remove(name).is_some()
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.named.len()
    }

    /// What they take on the device.
    pub fn bytes(&self) -> usize {
        self.named.values().map(|weight| weight.size_bytes).sum()
    }

    /// Keeps a tensor that is on the device, laid out anew where the device would rather have it so.
    fn insert(&mut self, name: &str, tensor: &Tensor, rows: usize, cols: usize, may_lay_out: bool) -> Result<()> {
        // Sizes are those of a tensor only if it is one: nothing is counted with others.
        tensor.check()?;
        let widths = self.device.backend().target().limits.panels.filter(|_| may_lay_out);
        let weight = match widths.and_then(|widths| widths.of(rows)) {
            Some(width) => in_panels(tensor, rows, cols, width)?,
            None => as_it_lies(tensor, rows, cols)?,
        };
        self.named.insert(name.to_string(), weight);
        Ok(())
    }

    /// The product, still to be computed.
    #[track_caller]
    fn product(&self, name: &str, input: &[f32], output: &[f32], m: usize) -> Result<Tensor> {
        let weight = self.find("matmul", name)?;
        let (rows, cols) = (weight.rows, weight.cols);
        if m.checked_mul(cols) != Some(input.len()) {
            let message = format!(
                "`{name}` is [{rows}, {cols}], so m = {m} takes an input of {m} × {cols}; it has {}",
                input.len()
            );
            return Err(Error::shape("matmul", message));
        }
        if m.checked_mul(rows) != Some(output.len()) {
            let message = format!(
                "`{name}` is [{rows}, {cols}], so m = {m} makes an output of {m} × {rows}; there is room for {}",
                output.len()
            );
            return Err(Error::shape("matmul", message));
        }
        Ok(Tensor::from_slice(input, [m, cols], &self.device).matmul(&weight.turned))
    }

    #[track_caller]
    fn find(&self, op: &str, name: &str) -> Result<&Weight> {
        if let Some(weight) = self.named.get(name) {
            return Ok(weight);
        }
        let names: Vec<&str> = self.names().take(8).collect();
        let there = match &names[..] {
            [] => "none was uploaded".to_string(),
            _ => format!("there are {}", names.join(", ")),
        };
        Err(Error::index(op, format!("there is no weight `{name}`; {there}")))
    }
}

/// A weight in row-major order.
fn as_it_lies(tensor: &Tensor, rows: usize, cols: usize) -> Result<Weight> {
    let size_bytes = rows * cols * tensor.dtype()?.size();
    Ok(Weight { turned: tensor.compute()?.t(), rows, cols, size_bytes })
}

/// A weight in panels of so many rows, each turned: they are a product's columns.
fn in_panels(tensor: &Tensor, rows: usize, cols: usize, width: usize) -> Result<Weight> {
    let n_rows = rows.next_multiple_of(width);
    let filled_up = tensor.pad(&[(0, n_rows - rows), (0, 0)], 0.0f32);
    let panels = filled_up.reshape([n_rows / width, width, cols]).permute(&[0, 2, 1]).compute()?;
    let turned = panels.permute(&[1, 0, 2]).reshape([cols, n_rows]).narrow(1, 0, rows);
    Ok(Weight { turned, rows, cols, size_bytes: n_rows * cols * tensor.dtype()?.size() })
}

fn bytes_of(numbers: &mut [f32]) -> &mut [u8] {
    // SAFETY: any bytes are floats, and floats have no padding.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), std::mem::size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_upload_serves_any_number_of_rows() {
        let mut weights = Weights::new(&Device::cpu());
        weights.upload("w", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 2).unwrap();
        let mut y = [0.0; 9];
        weights.matmul("w", &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &mut y, 3).unwrap();
        assert_eq!(y, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0, 3.0, 7.0, 11.0]);
        weights.matmul("w", &[1.0, 1.0], &mut y[..3], 1).unwrap();
        assert_eq!(y[..3], [3.0, 7.0, 11.0]);
        weights.matmul("w", &[], &mut [], 0).unwrap();
    }

    #[test]
    fn weights_are_counted_and_replaced() {
        let mut weights = Weights::new(&Device::cpu());
        weights.upload("a", &[1.0; 6], 2, 3).unwrap();
        weights.upload_as("b", &[1.0; 6], 2, 3, DType::BF16).unwrap();
        assert_eq!((weights.count(), weights.bytes()), (2, 36));
        weights.upload("a", &[1.0; 2], 1, 2).unwrap();
        assert_eq!((weights.count(), weights.bytes()), (2, 20));
        assert!(weights.remove("b") && !weights.remove("b"));
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn wrong_names_and_sizes_say_what_would_be_right() {
        #[track_caller]
        fn check(result: Result<()>, message: &str) {
            let text = result.unwrap_err().to_string();
            assert!(text.starts_with(message) && text.contains("weights.rs"), "{text}");
        }
        let mut weights = Weights::new(&Device::cpu());
        check(weights.matmul("w", &[], &mut [], 0), "matmul: there is no weight `w`; none was uploaded");
        weights.upload("up", &[0.0; 6], 3, 2).unwrap();
        let mut y = [0.0; 3];
        check(weights.matmul("down", &[0.0; 2], &mut y, 1), "matmul: there is no weight `down`; there are up");
        check(
            weights.matmul("up", &[0.0; 3], &mut y, 1),
            "matmul: `up` is [3, 2], so m = 1 takes an input of 1 × 2; it has 3",
        );
        check(
            weights.matmul("up", &[0.0; 4], &mut y, 2),
            "matmul: `up` is [3, 2], so m = 2 makes an output of 2 × 3; there is room for 3",
        );
        check(weights.upload("w", &[0.0; 5], 3, 2), "upload: `w` would be [3, 2], but there are 5 numbers");
        check(weights.upload_as("w", &[0.0], 1, 1, DType::I32), "upload: `w` cannot be stored as i32");
        check(
            weights.matmul("up", &[0.0; 2], &mut y, usize::MAX),
            "matmul: `up` is [3, 2], so m = 18446744073709551615",
        );
    }
}
