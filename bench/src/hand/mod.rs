//! The stated limit: what a careful person writes by hand for exactly one workload. Fused loops,
//! explicit vectors, several of them in flight, all threads, the output buffer reused.
//! Engines are judged by their distance from these numbers; nothing here is general.

mod aligned;
mod chain;
mod exp;
mod heat;
mod matmul;
mod rows;
mod stream;
mod sums;
mod threads;
mod vector;

use crate::contender::{Case, Contender, Result};
use crate::inputs::Input;
use crate::workload::Work;
use aligned::AlignedVec;
use matmul::Packed;
pub use vector::use_at_most_lanes;

/// The hand-written side.
pub struct Hand {
    pub n_threads: usize,
}

impl Contender for Hand {
    fn name(&self) -> &'static str {
        "hand"
    }

    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>> {
        // Products that are not square have no loop of their own.
        let n_packed = match work {
            Work::Matmul { m, k, n } if m == k && k == n => n,
            Work::Matmul { .. } | Work::AddTransposed { .. } => return None,
            Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) => return None,
            _ => 0,
        };
        Some(Ok(Box::new(HandCase {
            work,
            n_threads: self.n_threads,
            inputs: inputs.iter().map(|input| AlignedVec::from_slice(&input.data)).collect(),
            y: AlignedVec::zeros(work.n_outputs()),
            packed: Packed::new(n_packed, self.n_threads),
        })))
    }
}

/// Inputs and the one output buffer, all aligned to cache lines.
struct HandCase {
    work: Work,
    n_threads: usize,
    inputs: Vec<AlignedVec>,
    y: AlignedVec,
    packed: Packed,
}

impl Case for HandCase {
    fn call(&mut self) -> Result<()> {
        let x = |idx: usize| &self.inputs[idx][..];
        let (y, n_threads) = (&mut self.y[..], self.n_threads);
        match self.work {
            Work::Copy { .. } => stream::copy(x(0), y, n_threads),
            Work::Read { .. } => y[0] = stream::read(x(0), n_threads),
            Work::Peak { n } => y[0] = stream::peak(n, n_threads),
            Work::Chain3 { .. } => chain::chain3(x(0), x(1), x(2), y, n_threads),
            Work::Chain100 { .. } => chain::chain100(x(0), x(1), y, n_threads),
            Work::Softmax { cols, .. } => rows::softmax(x(0), y, cols, n_threads),
            Work::LayerNorm { cols, .. } => rows::layer_norm(x(0), x(1), x(2), y, cols, n_threads),
            Work::Sum { .. } => y[0] = sums::sum(x(0), n_threads),
            Work::SumAxis { axis: 0, cols, .. } => sums::sum_columns(x(0), y, cols, n_threads),
            Work::SumAxis { cols, .. } => sums::sum_rows(x(0), y, cols, n_threads),
            Work::Heat { side, n_steps } => heat::heat(x(0), y, side, n_steps, n_threads),
            Work::AddTransposed { .. } | Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) => {
                return Err("nobody has written it for processors".into());
            }
            Work::Matmul { n, .. } => matmul::matmul(x(0), x(1), y, n, &mut self.packed, n_threads),
        }
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.y.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::inputs_of;
    use crate::reference::{compare, reference};

    #[test]
    fn every_loop_is_right_at_every_width() {
        let works = [
            Work::Copy { n: 5000 },
            Work::Read { n: 100_003 },
            Work::Chain3 { n: 21 },
            // Long enough to be written past the caches.
            Work::Chain3 { n: (1 << 23) + 4099 },
            Work::Chain100 { n: 40_007 },
            Work::Softmax { rows: 5, cols: 1024 },
            Work::LayerNorm { rows: 5, cols: 1024 },
            Work::Sum { n: 100_003 },
            Work::SumAxis { axis: 0, rows: 48, cols: 256 },
            Work::SumAxis { axis: 1, rows: 48, cols: 256 },
            Work::cube(256),
            Work::Heat { side: 37, n_steps: 3 },
            Work::Heat { side: 64, n_steps: 4 },
        ];
        for work in works {
            let inputs = inputs_of(work);
            let right = reference(work, &inputs);
            for (lanes, n_threads) in [(16, 1), (16, 2), (8, 2), (4, 2), (4, 3)] {
                use_at_most_lanes(lanes);
                let mut case = Hand { n_threads }.prepare(work, &inputs).expect("takes part").expect("prepares");
                case.call().expect("runs");
                let difference = compare(&case.result().expect("has run"), &right, work.tolerance());
                assert!(difference.is_right, "{work:?}, {lanes} lanes, {n_threads} threads: {difference:?}");
            }
        }
    }
}
