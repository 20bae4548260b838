//! A cost model of a step on many ranks: what a reduction takes by latency, bandwidth, ranks and bytes, and how much of it is
//! hidden behind the backward pass. Pure numbers; knows neither MPI nor files.

/// A network, as ranks see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds that a reduction takes however small it is.
    pub fixed: f64,
    /// Seconds for each further rank: a message to it and one from it, in each of two halves.
    pub per_rank: f64,
    /// Seconds per byte that a rank sends, with what the host does for it.
    pub per_byte: f64,
}

/// How an all-reduce is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ours: everybody sends to everybody at once, twice; 2·(n−1)/n of the bytes.
    Exchange,
    /// 2·(n−1) messages one after another, as many bytes.
    Ring,
    /// Up and down a binary tree: 2·log₂ n messages one after another, each with all bytes.
    Tree,
}

/// A reduction that was measured: ranks, bytes, seconds.
pub type Measured = (usize, f64, f64);

impl Link {
    /// The seconds of one reduction.
    pub fn reduction(&self, algorithm: Algorithm, n_ranks: usize, n_bytes: f64) -> f64 {
        let n = n_ranks as f64;
        if n_ranks == 1 {
            return 0.0;
        }
        // One message: half of what two ranks need for the two halves.
        let message = (self.fixed + self.per_rank) / 2.0;
        match algorithm {
            Algorithm::Exchange => self.fixed + (n - 1.0) * self.per_rank + sent(n_ranks, n_bytes) * self.per_byte,
            Algorithm::Ring => 2.0 * (n - 1.0) * message + sent(n_ranks, n_bytes) * self.per_byte,
            Algorithm::Tree => 2.0 * n.log2().ceil() * (message + n_bytes * self.per_byte),
        }
    }

    /// The link that fits measurements best: least squares of relative errors.
    pub fn fit(measured: &[Measured]) -> Option<Link> {
        let mut normal = [[0.0; 4]; 3];
        for (n, n_bytes, seconds) in measured {
            let row = [1.0, *n as f64 - 1.0, sent(*n, *n_bytes)].map(|x| x / seconds);
            for i in 0..3 {
                (0..3).for_each(|j| normal[i][j] += row[i] * row[j]);
                normal[i][3] += row[i];
            }
        }
        let [fixed, per_rank, per_byte] = solve(normal)?;
        // A latency cannot be negative; where noise makes it so, there is only the other one.
        match (fixed > 0.0, per_rank > 0.0) {
            (true, true) => Some(Link { fixed, per_rank, per_byte }),
            (false, _) => Some(Link { fixed: 0.0, per_rank: per_rank + fixed, per_byte }),
            (_, false) => Some(Link { fixed: fixed + per_rank, per_rank: 0.0, per_byte }),
        }
    }

    /// The median relative error of a link, and the largest.
    pub fn error(&self, measured: &[Measured]) -> (f64, f64) {
        let error = |(n, n_bytes, seconds): &Measured| {
            (self.reduction(Algorithm::Exchange, *n, *n_bytes) / seconds - 1.0).abs()
        };
        let mut errors: Vec<f64> = measured.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        (errors[errors.len() / 2], errors[errors.len() - 1])
    }
}

/// The bytes that a rank sends for an all-reduce of `n_bytes`.
fn sent(n_ranks: usize, n_bytes: f64) -> f64 {
    2.0 * (n_ranks as f64 - 1.0) / n_ranks as f64 * n_bytes
}

/// Gauss's elimination with pivots.
fn solve(mut m: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for i in 0..3 {
        let pivot = (i..3).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-300 {
            return None;
        }
        for row in (0..3).filter(|row| *row != i) {
            let by = m[row][i] / m[i][i];
            (0..4).for_each(|j| m[row][j] -= by * m[i][j]);
        }
    }
    Some([0, 1, 2].map(|i| m[i][3] / m[i][i]))
}

/// A step: how long it computes, and what travels.
#[derive(Clone, Copy, Debug)]
pub struct StepCost {
    /// Seconds of a step without a network.
    pub compute: f64,
    pub n_bytes: f64,
    pub bucket_bytes: f64,
}

/// The forward pass is a third of the work, the backward pass the rest: it has two products for each of the forward pass.
const FORWARD: f64 = 1.0 / 3.0;

impl StepCost {
    /// Seconds of a step on so many ranks, with reductions behind the backward pass or after it.
    pub fn seconds(&self, link: &Link, algorithm: Algorithm, n_ranks: usize, overlaps: bool) -> f64 {
        let n_buckets = (self.n_bytes / self.bucket_bytes).ceil().max(1.0);
        let each = link.reduction(algorithm, n_ranks, self.n_bytes / n_buckets);
        let backward = self.compute * (1.0 - FORWARD) / n_buckets;
        let mut sent_at: f64 = 0.0;
        for bucket in 1..=n_buckets as usize {
            let ready = match overlaps {
                true => self.compute * FORWARD + backward * bucket as f64,
                false => self.compute,
            };
            sent_at = sent_at.max(ready) + each;
        }
        if n_ranks == 1 { self.compute } else { sent_at.max(self.compute) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { fixed: 1e-4, per_rank: 2e-5, per_byte: 1e-8 };

    #[test]
    fn a_link_is_found_again() {
        let measured: Vec<Measured> = [2, 4]
            .iter()
            .flat_map(|n| [4.0, 1e3, 1e6, 8e6].map(|b| (*n, b, LINK.reduction(Algorithm::Exchange, *n, b))))
            .collect();
        let fitted = Link::fit(&measured).expect("can be solved");
        assert!((fitted.per_byte / LINK.per_byte - 1.0).abs() < 1e-6 && (fitted.fixed / LINK.fixed - 1.0).abs() < 1e-6);
        assert!(fitted.error(&measured).1 < 1e-6);
    }

    #[test]
    fn overlap_hides_all_but_the_last_bucket_of_a_fast_network() {
        let step = StepCost { compute: 1.0, n_bytes: 8e6, bucket_bytes: 1e6 };
        let fast = Link { fixed: 0.0, per_rank: 0.0, per_byte: 1e-8 };
        let seconds = |overlaps| step.seconds(&fast, Algorithm::Ring, 2, overlaps);
        assert!((seconds(false) - 1.08).abs() < 1e-9);
        assert!((seconds(true) - 1.01).abs() < 1e-9);
        assert_eq!(step.seconds(&fast, Algorithm::Ring, 1, true), 1.0);
    }
}
