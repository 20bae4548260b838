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
    Workload { name: "chain of 3, n = 16", work: Work::Chain3 { n: 16 } },
];

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

    /// Only the hand-written side runs these: they measure the machine.
    pub fn is_yardstick(self) -> bool {
        matches!(self, Work::Copy { .. } | Work::Read { .. } | Work::Peak { .. })
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
        }
    }

    /// What bounds the workload on `n_threads` threads.
    pub fn limit(self, n_threads: usize) -> Limit {
        match self {
            Work::Peak { n } => Limit::Arithmetic { flops: n * n_threads },
            // A single row reads more than it computes.
            Work::Matmul { m, k, n } if m > 1 => Limit::Arithmetic { flops: 2 * m * k * n },
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
            Work::Matmul { .. } => Tolerance { abs: 1e-3, rel: 0.0 },
        }
    }
}
