//! Boxes of which none overlaps a better one: how many there are is data, so boxes are read and chosen on the host, in f64.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Of boxes `[n, 4]`, each by two opposite corners, the indices (i32) of those that overlap no box of a higher score by more
    /// than `iou` of their union, highest score first.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let boxes = [0.0f32, 0.0, 2.0, 2.0, 0.1, 0.0, 2.1, 2.0, 5.0, 5.0, 6.0, 6.0];
    /// let boxes = Tensor::from_slice(&boxes, [3, 4], &cpu);
    /// let scores = Tensor::from_slice(&[0.5f32, 0.9, 0.7], [3], &cpu);
    /// assert_eq!(boxes.non_max_suppression(&scores, 0.5)?.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn non_max_suppression(&self, scores: &Tensor, iou: f32) -> Result<Tensor> {
        let table = scored("non_max_suppression", self, scores)?;
        kept(&table, &table.to_vec::<f32>()?, iou)
    }

    /// [`non_max_suppression`](Tensor::non_max_suppression), as a future.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// async fn best(boxes: &Tensor, scores: &Tensor) -> lazuli::Result<Tensor> {
    ///     boxes.non_max_suppression_async(scores, 0.5).await
    /// }
    /// # let cpu = Device::cpu();
    /// # let boxes = Tensor::from_slice(&[0.0f32, 0.0, 2.0, 2.0], [1, 4], &cpu);
    /// # let scores = Tensor::from_slice(&[0.5f32], [1], &cpu);
    /// # let mut future = std::pin::pin!(best(&boxes, &scores));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?.to_vec::<i32>()?, [0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn non_max_suppression_async(&self, scores: &Tensor, iou: f32) -> impl Future<Output = Result<Tensor>> + Send {
        let table = scored("non_max_suppression_async", self, scores);
        async move {
            let table = table?;
            let numbers = table.to_vec_async::<f32>().await?;
            kept(&table, &numbers, iou)
        }
    }
}

/// Boxes and their scores in one tensor `[n, 5]`, so that they are read at once.
#[track_caller]
fn scored(op: &'static str, boxes: &Tensor, scores: &Tensor) -> Result<Tensor> {
    let (shape, n_scores) = (boxes.node()?.shape, scores.node()?.shape);
    match (&shape[..], &n_scores[..]) {
        (&[n, 4], &[of_scores]) if n == of_scores && n <= i32::MAX as usize => {
            let (boxes, scores) = (boxes.to_dtype(DType::F32), scores.to_dtype(DType::F32).unsqueeze(1));
            Ok(Tensor::cat(&[&boxes, &scores], 1))
        }
        _ => Err(Error::shape(op, format!("takes boxes [n, 4] and scores [n]: {shape} and {n_scores}"))),
    }
}

/// A box by its corners.
struct Corners {
    low: [f64; 2],
    high: [f64; 2],
}

impl Corners {
    fn new(row: &[f32]) -> Corners {
        let at = |i: usize| row[i] as f64;
        Corners { low: [at(0).min(at(2)), at(1).min(at(3))], high: [at(0).max(at(2)), at(1).max(at(3))] }
    }

    fn area(&self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The share of both boxes' union that both cover.
    fn overlap(&self, other: &Corners) -> f64 {
        let side = |i: usize| (self.high[i].min(other.high[i]) - self.low[i].max(other.low[i])).max(0.0);
        let both = side(0) * side(1);
        let union = self.area() + other.area() - both;
        if union <= 0.0 { 0.0 } else { both / union }
    }
}

#[track_caller]
fn kept(table: &Tensor, rows: &[f32], iou: f32) -> Result<Tensor> {
    let rows: Vec<&[f32]> = rows.chunks_exact(5).collect();
    let corners: Vec<Corners> = rows.iter().map(|row| Corners::new(row)).collect();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    // Stable, so that of equal scores the first box comes first.
    order.sort_by(|a, b| rows[*b][4].total_cmp(&rows[*a][4]));
    let mut chosen: Vec<usize> = Vec::new();
    for i in order {
        if chosen.iter().all(|k| corners[i].overlap(&corners[*k]) <= iou as f64) {
            chosen.push(i);
        }
    }
    let chosen: Vec<i32> = chosen.into_iter().map(|i| i as i32).collect();
    let n = chosen.len();
    Ok(Tensor::from_vec(chosen, [n], table.device()?))
}
