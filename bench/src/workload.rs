//! What is measured: the table of workloads, their input shapes, the bytes or flops they cannot do
//! without, and how far a right answer may be from the reference. Knows no contender.

/// One computation with its sizes. All values are f32, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Yardstick: copy `n` values, output reused.
    Copy { n: usize },
    /// Yardstick: read `n` values and do next to nothing with them.
    Read { n: usize },
    /// Yardstick: fused multiply-adds that never leave registers, `n` flops per thread.
    Peak { n: usize },
    /// `(m1 + m2) * 5 - m3`.
    Chain3 { n: usize },
    /// `x * s₀ + t`, then `* s₁ + t`, and so on: [`CHAIN_PAIRS`] times, one op each.
    Chain100 { n: usize },
    /// Softmax over the last axis.
    Softmax { rows: usize, cols: usize },
    /// Layer normalisation over the last axis with weight and bias.
    LayerNorm { rows: usize, cols: usize },
    /// Sum of everything.
    Sum { n: usize },
    /// Sum over one axis of a matrix.
    SumAxis { axis: usize, rows: usize, cols: usize },
    /// A square matrix and its transpose, added.
    AddTransposed { n: usize },
    /// `[m, k] × [k, n]`.
    Matmul { m: usize, k: usize, n: usize },
    /// Scaled dot-product attention of one sequence.
    Attention(Attention),
    /// A convolution of images with square windows and a bias, channels first; what lies outside of an image is zero.
    Conv(Conv),
    /// Layers of attention and a two-layer perceptron, each behind a layer normalisation and around it a residual.
    Encoder(Encoder),
    /// Steps of a five-point heat equation on a square whose surroundings are zero.
    Heat { side: usize, n_steps: usize },
}

/// The sizes of an attention: inputs are queries `[heads, queries, width]`, keys and values `[heads, keys, width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    /// Whether a query sees no key behind its own place.
    pub causal: bool,
}

/// The sizes of a convolution; padding is half the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    pub batch: usize,
    pub channels: usize,
    pub side: usize,
    pub out: usize,
    pub window: usize,
    pub stride: usize,
}

impl Conv {
    /// Rows and columns of the result.
    pub fn out_side(self) -> usize {
        (self.side + 2 * (self.window / 2) - self.window) / self.stride + 1
    }
}

/// The sizes of an encoder: the input is `[length, width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoder {
    pub n_layers: usize,
    pub length: usize,
    pub width: usize,
    pub heads: usize,
    pub hidden: usize,
}

impl Encoder {
    /// The shapes of a layer's parameters: norm weight and bias; queries, keys, values and output, each matrix and bias; the
    /// second norm; the perceptron's two matrices, each with its bias.
    pub fn layer_shapes(self) -> Vec<Vec<usize>> {
        let (w, h) = (self.width, self.hidden);
        let projection = [vec![w, w], vec![w]];
        let mut shapes = vec![vec![w], vec![w]];
        (0..4).for_each(|_| shapes.extend(projection.clone()));
        shapes.extend([vec![w], vec![w], vec![w, h], vec![h], vec![h, w], vec![w]]);
        shapes
    }
}

/// A named row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub work: Work,
}

/// What a workload is limited by, hence the unit of its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Bytes that must move: each input read once, each output written once.
    Bandwidth { bytes: usize },
    /// Floating-point operations.
    Arithmetic { flops: usize },
    /// Fixed costs only; no rate makes sense.
    Overhead,
}

/// A result `y` is right when `|y - r| <= abs + rel * |r|` for the reference `r`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub abs: f64,
    pub rel: f64,
}

/// Multiply and add pairs in the long chain: two ops each.
pub const CHAIN_PAIRS: usize = 50;
/// The epsilon of layer normalisation.
pub const LAYER_NORM_EPS: f32 = 1e-5;

const MI: usize = 1 << 20;

/// All workloads in the order in which they are run and printed. The yardsticks come first.
pub const ALL: &[Workload] = &[
    // As many bytes as the chain of 3 below moves.
    Workload { name: "copy 32 Mi", work: Work::Copy { n: 32 * MI } },
    Workload { name: "read 16 Mi", work: Work::Read { n: 16 * MI } },
    Workload { name: "peak fma", work: Work::Peak { n: 256 * MI } },
    Workload { name: "chain of 3, 16 Mi", work: Work::Chain3 { n: 16 * MI } },
    Workload { name: "chain of 100, 1 Mi", work: Work::Chain100 { n: MI } },
    Workload { name: "softmax [4096, 1024]", work: Work::Softmax { rows: 4096, cols: 1024 } },
    Workload { name: "layer_norm [4096, 1024]", work: Work::LayerNorm { rows: 4096, cols: 1024 } },
    Workload { name: "sum 16 Mi", work: Work::Sum { n: 16 * MI } },
    Workload { name: "sum axis 0 [4096, 4096]", work: Work::SumAxis { axis: 0, rows: 4096, cols: 4096 } },
    Workload { name: "sum axis 1 [4096, 4096]", work: Work::SumAxis { axis: 1, rows: 4096, cols: 4096 } },
    Workload { name: "matmul 256³", work: Work::cube(256) },
    Workload { name: "matmul 1024³", work: Work::cube(1024) },
    Workload { name: "matmul 2048³", work: Work::cube(2048) },
    Workload { name: "matmul 1 × 1536²", work: Work::Matmul { m: 1, k: 1536, n: 1536 } },
    Workload { name: "matmul 1 × 4096²", work: Work::Matmul { m: 1, k: 4096, n: 4096 } },
    Workload { name: "matmul 8 × 1536²", work: Work::Matmul { m: 8, k: 1536, n: 1536 } },
    Workload { name: "matmul 64 × 1536²", work: Work::Matmul { m: 64, k: 1536, n: 1536 } },
    Workload { name: "attention 128", work: Work::attention(128, 128, false) },
    Workload { name: "attention 512", work: Work::attention(512, 512, false) },
    Workload { name: "attention 2048", work: Work::attention(2048, 2048, false) },
    Workload { name: "attention 128, causal", work: Work::attention(128, 128, true) },
    Workload { name: "attention 512, causal", work: Work::attention(512, 512, true) },
    Workload { name: "attention 2048, causal", work: Work::attention(2048, 2048, true) },
    Workload { name: "attention 1 over 2048", work: Work::attention(1, 2048, false) },
    Workload { name: "conv 3 × 224² → 64, 7 × 7 by 2", work: Work::conv(1, 3, 224, 64, 7, 2) },
    Workload { name: "conv 64 × 56² → 64, 3 × 3", work: Work::conv(1, 64, 56, 64, 3, 1) },
    Workload { name: "conv 256 × 14² → 256, 3 × 3", work: Work::conv(1, 256, 14, 256, 3, 1) },
    Workload { name: "conv 512 × 7² → 512, 3 × 3", work: Work::conv(1, 512, 7, 512, 3, 1) },
    Workload { name: "conv 64 × 56² → 256, 1 × 1", work: Work::conv(1, 64, 56, 256, 1, 1) },
    Workload { name: "conv 8 × 64 × 56² → 64, 3 × 3", work: Work::conv(8, 64, 56, 64, 3, 1) },
    Workload {
        name: "encoder, 6 layers of 128 × 384",
        work: Work::Encoder(Encoder { n_layers: 6, length: 128, width: 384, heads: 12, hidden: 1536 }),
    },
    Workload { name: "heat 1024², 20 steps", work: Work::Heat { side: 1024, n_steps: 20 } },
    Workload { name: "chain of 3, n = 16", work: Work::Chain3 { n: 16 } },
];

/// How much of the difference to its neighbours a cell of the heat equation takes over in a step.
pub const HEAT_RATE: f32 = 0.1;

/// The scalar of the `pair_idx`-th multiplication in the long chain. They differ, so that no
/// contender gains from seeing the same operation twice, and stay below one, so that nothing grows.
pub fn chain_scalar(pair_idx: usize) -> f32 {
    0.9 + 0.001 * pair_idx as f32
}

impl Work {
    /// A product of square matrices.
    pub const fn cube(n: usize) -> Work {
        Work::Matmul { m: n, k: n, n }
    }

    /// Twelve heads of 64.
    pub const fn attention(queries: usize, keys: usize, causal: bool) -> Work {
        Work::Attention(Attention { heads: 12, queries, keys, width: 64, causal })
    }

    /// A convolution.
    pub const fn conv(batch: usize, channels: usize, side: usize, out: usize, window: usize, stride: usize) -> Work {
        Work::Conv(Conv { batch, channels, side, out, window, stride })
    }

    /// What the values of an input are multiplied by, to keep those of deep computations near one: matrices of an encoder
    /// are scaled by about the root of their rows.
    pub fn input_scale(self, shape: &[usize]) -> f32 {
        match self {
            Work::Encoder(encoder) if shape.len() == 2 && shape[0] >= encoder.width => 0.0625,
            _ => 1.0,
        }
    }

    /// Only the hand-written side runs these: they measure the machine.
    pub fn is_yardstick(self) -> bool {
        matches!(self, Work::Copy { .. } | Work::Read { .. } | Work::Peak { .. })
    }

    /// Parts of models, for contenders that are written for them: Lazuli, PyTorch and onnxruntime.
    pub fn is_model(self) -> bool {
        matches!(self, Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) | Work::Heat { .. })
    }

    /// The shapes of the inputs, in the order in which a case receives them.
    pub fn input_shapes(self) -> Vec<Vec<usize>> {
        match self {
            Work::Copy { n } | Work::Read { n } | Work::Sum { n } => vec![vec![n]],
            Work::Peak { .. } => vec![],
            Work::Chain3 { n } => vec![vec![n]; 3],
            Work::Chain100 { n } => vec![vec![n]; 2],
            Work::Softmax { rows, cols } | Work::SumAxis { rows, cols, .. } => vec![vec![rows, cols]],
            Work::AddTransposed { n } => vec![vec![n, n]],
            Work::LayerNorm { rows, cols } => vec![vec![rows, cols], vec![cols], vec![cols]],
            Work::Matmul { m, k, n } => vec![vec![m, k], vec![k, n]],
            Work::Attention(Attention { heads, queries, keys, width, .. }) => {
                vec![vec![heads, queries, width], vec![heads, keys, width], vec![heads, keys, width]]
            }
            Work::Conv(Conv { batch, channels, side, out, window, .. }) => {
                vec![vec![batch, channels, side, side], vec![out, channels, window, window], vec![out]]
            }
            Work::Encoder(encoder) => {
                let x = vec![encoder.length, encoder.width];
                [x].into_iter().chain((0..encoder.n_layers).flat_map(|_| encoder.layer_shapes())).collect()
            }
            Work::Heat { side, .. } => vec![vec![side, side]],
        }
    }

    /// How many values the result has.
    pub fn n_outputs(self) -> usize {
        match self {
            Work::Copy { n } | Work::Chain3 { n } | Work::Chain100 { n } => n,
            Work::Read { .. } | Work::Peak { .. } | Work::Sum { .. } => 1,
            Work::Softmax { rows, cols } | Work::LayerNorm { rows, cols } => rows * cols,
            Work::SumAxis { axis: 0, cols, .. } => cols,
            Work::SumAxis { rows, .. } => rows,
            Work::AddTransposed { n } => n * n,
            Work::Matmul { m, n, .. } => m * n,
            Work::Attention(Attention { heads, queries, width, .. }) => heads * queries * width,
            Work::Conv(conv) => conv.batch * conv.out * conv.out_side().pow(2),
            Work::Encoder(encoder) => encoder.length * encoder.width,
            Work::Heat { side, .. } => side * side,
        }
    }

    /// What bounds the workload on `n_threads` threads.
    pub fn limit(self, n_threads: usize) -> Limit {
        match self {
            Work::Peak { n } => Limit::Arithmetic { flops: n * n_threads },
            // A single row reads more than it computes.
            Work::Matmul { m, k, n } if m > 1 => Limit::Arithmetic { flops: 2 * m * k * n },
            // What a causal mask leaves out is not counted.
            Work::Attention(Attention { heads, queries, keys, width, causal }) if queries > 1 => {
                let n_scores = if causal { queries * (queries + 1) / 2 } else { queries * keys };
                Limit::Arithmetic { flops: 4 * heads * n_scores * width }
            }
            Work::Conv(conv) => {
                let n_windows = conv.batch * conv.out_side().pow(2);
                Limit::Arithmetic { flops: 2 * n_windows * conv.out * conv.channels * conv.window.pow(2) }
            }
            Work::Encoder(Encoder { n_layers, length, width, hidden, .. }) => {
                let products = length * width * (4 * width + 2 * hidden);
                Limit::Arithmetic { flops: 2 * n_layers * (products + 2 * length * length * width) }
            }
            // Each step reads and writes the square once.
            Work::Heat { side, n_steps } => Limit::Bandwidth { bytes: 2 * n_steps * side * side * size_of::<f32>() },
            // Under a page of data only fixed costs are visible.
            Work::Chain3 { n } if n <= 1024 => Limit::Overhead,
            _ => {
                let n_inputs: usize = self.input_shapes().iter().map(|s| s.iter().product::<usize>()).sum();
                Limit::Bandwidth { bytes: (n_inputs + self.n_outputs()) * size_of::<f32>() }
            }
        }
    }

    /// How far a right f32 answer may be from the f64 reference. Inputs lie in [-1, 1).
    pub fn tolerance(self) -> Tolerance {
        match self {
            Work::Copy { .. } => Tolerance { abs: 0.0, rel: 0.0 },
            // One rounding of values up to 2.
            Work::AddTransposed { .. } => Tolerance { abs: 2e-7, rel: 0.0 },
            // The result of the peak loop is not looked at.
            Work::Peak { .. } => Tolerance { abs: f64::INFINITY, rel: 0.0 },
            // A few roundings of values up to 11.
            Work::Chain3 { .. } => Tolerance { abs: 4e-6, rel: 0.0 },
            // A hundred roundings of values up to about 30, each shrunk by the scalars that follow.
            Work::Chain100 { .. } => Tolerance { abs: 1e-4, rel: 0.0 },
            Work::Softmax { .. } => Tolerance { abs: 0.0, rel: 2e-5 },
            Work::LayerNorm { .. } => Tolerance { abs: 2e-5, rel: 2e-5 },
            // Partial sums reach the thousands, where one rounding is 1e-4; sequential sums
            // over a few lanes are bad but not called wrong.
            Work::Read { .. } | Work::Sum { .. } => Tolerance { abs: 0.5, rel: 0.0 },
            Work::SumAxis { .. } => Tolerance { abs: 2e-3, rel: 0.0 },
            Work::Matmul { .. } | Work::Conv(_) => Tolerance { abs: 1e-3, rel: 0.0 },
            // Averages of values in [-1, 1).
            Work::Attention(_) => Tolerance { abs: 2e-5, rel: 0.0 },
            // Residuals grow to about ten.
            Work::Encoder(_) => Tolerance { abs: 5e-4, rel: 0.0 },
            Work::Heat { .. } => Tolerance { abs: 1e-5, rel: 0.0 },
        }
    }
}
