//! Ops of models that random programs do not draw: convolutions, attention, and weights in blocks. Their oracles are written
//! with those of other ops, or as the loops of their definitions.

use lazuli::{Attention, BlockFormat, Conv, DType, Device, Tensor};

use crate::array::{Array, for_each_coordinate};
use crate::cell::Cell;
use crate::contract::{matmul, summed};
use crate::data::noise;
use crate::line::Line;
use crate::map::{binary, select};
use crate::program::Op;

/// An op of models.
#[derive(Clone, Debug)]
pub enum Model {
    /// Of `[batch, channels, height, width]` with `[out, channels / groups, height, width]`; all the same along both axes.
    Convolve { stride: usize, padding: usize, dilation: usize, groups: usize },
    /// Of queries, keys and values `[batch, heads, rows, features]`; keys may have fewer heads.
    Attend { causal: bool },
    /// A leaf: weights in blocks of random bytes, which every device widens to the bits that the host does.
    Blocks { format: &'static BlockFormat, shape: [usize; 2], seed: u32 },
}

/// Random blocks whose scales are finite.
fn blocks(format: &BlockFormat, shape: [usize; 2], seed: u32) -> Vec<u8> {
    let n_blocks = shape[0] * shape[1] / format.block_len();
    let mut at = 0;
    let mut block = || {
        loop {
            let bytes: Vec<u8> = (0..format.block_bytes()).map(|i| (noise(seed, at + i) >> 32) as u8).collect();
            at += format.block_bytes();
            if format.widen(&bytes).is_ok_and(|values| values.iter().all(|value| value.is_finite())) {
                return bytes;
            }
        }
    };
    (0..n_blocks).flat_map(|_| block()).collect()
}

fn convolve(x: &Array, w: &Array, stride: usize, padding: usize, dilation: usize, groups: usize) -> Array {
    let ([batch, _, height, width], [n_out, channels, tall, wide]) = (sizes(x), sizes(w));
    let n_windows = |size: usize, window: usize| (size + 2 * padding - dilation * (window - 1) - 1) / stride + 1;
    let shape = vec![batch, n_out, n_windows(height, tall), n_windows(width, wide)];
    let mut cells = Vec::new();
    for_each_coordinate(&shape, |at| {
        let group = at[1] / (n_out / groups);
        let mut products = Vec::new();
        for_each_coordinate(&[channels, tall, wide], |inside| {
            let place = |axis: usize| (at[axis + 2] * stride + inside[axis + 1] * dilation).checked_sub(padding);
            let (Some(row), Some(column)) = (place(0), place(1)) else { return };
            if row < height && column < width {
                let pixel = x.at(&[at[0], group * channels + inside[0], row, column]);
                products.push(vec![pixel, w.at(&[at[1], inside[0], inside[1], inside[2]])]);
            }
        });
        cells.push(summed(products.into_iter(), x.dtype, channels * tall * wide + 1).kept(x.dtype));
    });
    Array::new(shape, x.dtype, cells)
}

fn sizes(x: &Array) -> [usize; 4] {
    [x.shape[0], x.shape[1], x.shape[2], x.shape[3]]
}

fn attend(q: &Array, k: &Array, v: &Array, causal: bool) -> Array {
    let wide = [q, k, v].map(|x| x.cast(DType::F32));
    let [batch, heads, n_queries, depth] = sizes(q);
    let (n_keys, shared) = (k.shape[2], heads / k.shape[1]);
    // Heads of keys and values, each as often as it serves.
    let spread = |x: &Array, shape: Vec<usize>, swap: bool| {
        x.moved(shape, Cell::ANY, |at| {
            let (row, column) = if swap { (at[3], at[2]) } else { (at[2], at[3]) };
            Some(vec![at[0], at[1] / shared, row, column])
        })
    };
    let keys = spread(&wide[1], vec![batch, heads, depth, n_keys], true);
    let values = spread(&wide[2], vec![batch, heads, n_keys, v.shape[3]], false);
    let mut scores = binary("mul", &matmul(&wide[0], &keys), 1.0 / (depth as f32).sqrt());
    if causal {
        let sees = |i: usize| i % n_keys <= i / n_keys + n_keys - n_queries;
        let cells = (0..n_queries * n_keys).map(|i| Cell::point(sees(i) as u8 as f64)).collect();
        scores = select(&Array::new(vec![n_queries, n_keys], DType::Bool, cells), &scores, f32::NEG_INFINITY);
    }
    matmul(&Line::Softmax(-1).expect(&[&scores]), &values).cast(q.dtype)
}

impl Op for Model {
    fn expect(&self, inputs: &[&Array]) -> Array {
        match self {
            Model::Convolve { stride, padding, dilation, groups } => {
                convolve(inputs[0], inputs[1], *stride, *padding, *dilation, *groups)
            }
            Model::Attend { causal } => attend(inputs[0], inputs[1], inputs[2], *causal),
            Model::Blocks { format, shape, seed } => {
                let values = format.widen(&blocks(format, *shape, *seed)).expect("the blocks are whole");
                let cells = values.into_iter().map(|value| Cell::point(value as f64)).collect();
                Array::new(shape.to_vec(), DType::F32, cells)
            }
        }
    }

    fn call(&self, inputs: &[&Tensor], device: &Device) -> Tensor {
        match self {
            Model::Convolve { stride, padding, dilation, groups } => {
                let (stride, padding, dilation) = ((*stride).into(), (*padding).into(), (*dilation).into());
                inputs[0].conv(inputs[1], None, Conv { stride, padding, dilation, groups: *groups })
            }
            Model::Attend { causal } => {
                inputs[0].attention(inputs[1], inputs[2], Attention { causal: *causal, ..Attention::default() })
            }
            Model::Blocks { format, shape, seed } => {
                Tensor::from_blocks(format, &blocks(format, *shape, *seed), *shape, device)
            }
        }
    }

    fn sums(&self) -> bool {
        !matches!(self, Model::Blocks { .. })
    }

    fn text(&self, inputs: &[&str]) -> String {
        match self {
            Model::Convolve { stride, padding, dilation, groups } => format!(
                "{}.conv(&{}, None, lazuli::Conv {{ stride: {stride}.into(), padding: {padding}.into(), \
                 dilation: {dilation}.into(), groups: {groups} }})",
                inputs[0], inputs[1]
            ),
            Model::Attend { causal } => format!(
                "{}.attention(&{}, &{}, lazuli::Attention {{ causal: {causal}, ..Default::default() }})",
                inputs[0], inputs[1], inputs[2]
            ),
            Model::Blocks { format, shape, seed } => format!(
                "Tensor::from_blocks(lazuli::BlockFormat::named({:?})?, &{:?}, {shape:?}, &cpu)",
                format.name(),
                blocks(format, *shape, *seed)
            ),
        }
    }
}
