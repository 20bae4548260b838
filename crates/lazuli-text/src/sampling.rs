//! Which token comes next: the likeliest, or one drawn at random from those that the rules leave. The same seed draws the same
//! tokens from the same logits.

use std::cmp::Ordering;

use lazuli::Result;

use crate::fault;

/// How tokens are chosen, and when to stop.
///
/// Rules apply in this order: the repetition penalty, `top_k`, `top_p`, `min_p`, then the temperature.
///
/// ```
/// use lazuli_text::Sampling;
/// let sampling = Sampling { temperature: 0.5, seed: 7, max_tokens: Some(100), ..Sampling::default() };
/// assert_eq!(Sampling::greedy().temperature, 0.0);
/// # let _ = sampling;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// How daring: logits are divided by this. At 0 the likeliest token is taken, and nothing is random.
    pub temperature: f32,
    /// Only so many of the likeliest tokens are left; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens are left whose probabilities together reach this; 1 for all.
    pub top_p: f32,
    /// Only tokens are left that are at least this share as likely as the likeliest; 0 for all.
    pub min_p: f32,
    /// What logits of tokens that were just there are divided by (multiplied with, if negative); 1 changes nothing.
    pub repetition_penalty: f32,
    /// Over how many of the last tokens the penalty reaches.
    pub repetition_window: usize,
    /// What is drawn at random is the same for the same seed.
    pub seed: u64,
    /// At most so many tokens are made; None is until the model ends or its context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which to stop; they are not part of the reply.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            repetition_window: 64,
            seed: 0,
            max_tokens: None,
            stop: Vec::new(),
        }
    }
}

impl Sampling {
    /// Always the likeliest token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Whether the numbers can be what they are said to be.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let faults = [
            ("temperature", self.temperature, self.temperature >= 0.0 && self.temperature.is_finite(), "at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0"),
        ];
        match faults.iter().find(|(_, _, is_good, _)| !is_good) {
            Some((name, value, _, wanted)) => {
                Err(fault::unsupported("sampling", format!("{name} is {value}; it must be {wanted}")))
            }
            None => Ok(()),
        }
    }
}

/// Draws one token after another.
///
/// ```
/// use lazuli_text::{Sampler, Sampling};
/// let mut sampler = Sampler::new(&Sampling { temperature: 1.0, seed: 3, ..Sampling::default() })?;
/// let logits = [0.0, 5.0, 4.9, -10.0];
/// let drawn: Vec<u32> = (0..50).map(|_| sampler.next(&logits, &[])).collect::<Result<_, _>>()?;
/// assert!(drawn.contains(&1) && drawn.contains(&2) && !drawn.contains(&3));
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Sampler {
    sampling: Sampling,
    n_drawn: u64,
    /// Kept from one draw to the next, so that drawing allocates nothing.
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler that begins with the first draw of its seed.
    #[track_caller]
    pub fn new(sampling: &Sampling) -> Result<Sampler> {
        let _caller = fault::caller();
        sampling.check()?;
        Ok(Sampler { sampling: sampling.clone(), n_drawn: 0, candidates: Vec::new() })
    }

    /// The next token, by the logits of all tokens and the tokens so far.
    #[track_caller]
    pub fn next(&mut self, logits: &[f32], recent: &[u32]) -> Result<u32> {
        let _caller = fault::caller();
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
            let what = if logits.is_empty() { "there are no logits" } else { "a logit is NaN" };
            return Err(fault::parse("sampling", format!("{what}: the model's weights or inputs are broken")));
        }
        let rules = &self.sampling;
        if rules.temperature == 0.0 && rules.repetition_penalty == 1.0 {
            let best = (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
            return Ok(best as u32);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0u32..).map(|(logit, id)| (*logit, id)));
        let mut seen: Vec<u32> = recent[recent.len().saturating_sub(rules.repetition_window)..].to_vec();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some((logit, _)) = self.candidates.get_mut(id as usize) {
                let penalty = rules.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        if rules.temperature == 0.0 {
            return Ok(self.candidates.iter().copied().min_by(likelier).map_or(0, |(_, id)| id));
        }
        let left = shortlist(&mut self.candidates, rules);
        self.n_drawn += 1;
        let u = uniform(rules.seed, self.n_drawn);
        let weights = left.iter().map(|(logit, _)| weight(*logit, left[0].0, rules.temperature));
        let total: f64 = weights.clone().sum();
        let mut passed = 0.0;
        let drawn = left.iter().zip(weights).find(|(_, weight)| {
            passed += weight;
            passed > u * total
        });
        // Rounding may leave the last sum a little below the total.
        Ok(drawn.map_or(left[left.len() - 1].1, |((_, id), _)| *id))
    }
}

/// The likelier first; of equals, the lower number.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// exp((logit − max) / temperature).
fn weight(logit: f32, max: f32, temperature: f32) -> f64 {
    ((logit as f64 - max as f64) / temperature as f64).exp()
}

/// The candidates that the rules leave, the likeliest first; at least one.
fn shortlist<'a>(candidates: &'a mut [(f32, u32)], rules: &Sampling) -> &'a [(f32, u32)] {
    let k = if rules.top_k == 0 { candidates.len() } else { rules.top_k.min(candidates.len()) };
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, likelier);
    }
    let left = &mut candidates[..k];
    left.sort_unstable_by(likelier);
    let max = left[0].0;
    let mut n = left.len();
    if rules.top_p < 1.0 {
        let total: f64 = left.iter().map(|(logit, _)| weight(*logit, max, 1.0)).sum();
        let mut passed = 0.0;
        let reached = left.iter().position(|(logit, _)| {
            passed += weight(*logit, max, 1.0);
            passed >= rules.top_p as f64 * total
        });
        n = reached.map_or(n, |i| i + 1);
    }
    let n = left[..n].iter().position(|(logit, _)| weight(*logit, max, 1.0) < rules.min_p as f64).unwrap_or(n);
    &candidates[..n.max(1)]
}

/// A number in [0, 1) for each draw of a seed (splitmix64).
fn uniform(seed: u64, n: u64) -> f64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of each token among many draws, with every rule off but those given.
    fn shares(logits: &[f32], rules: Sampling) -> Vec<f64> {
        let mut sampler = Sampler::new(&rules).unwrap();
        let mut counts = vec![0.0; logits.len()];
        (0..20_000).for_each(|_| counts[sampler.next(logits, &[]).unwrap() as usize] += 1.0 / 20_000.0);
        counts
    }

    fn open() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
    }

    /// Logits of probabilities.
    fn logits(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln()).collect()
    }

    #[track_caller]
    fn check(rules: Sampling, expect: [f64; 4]) {
        let shares = shares(&logits(&[0.1, 0.4, 0.3, 0.2]), rules);
        assert!(shares.iter().zip(expect).all(|(got, want)| (got - want).abs() < 0.015), "{shares:?}");
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        check(open(), [0.1, 0.4, 0.3, 0.2]);
    }

    #[test]
    fn rules_leave_the_likeliest() {
        check(Sampling { top_k: 2, ..open() }, [0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0]);
        check(Sampling { top_p: 0.65, ..open() }, [0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0]);
        check(Sampling { min_p: 0.45, ..open() }, [0.0, 4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0]);
        check(Sampling { top_k: 1, ..open() }, [0.0, 1.0, 0.0, 0.0]);
        // Squares: 16 : 9 : 4 : 1.
        check(Sampling { temperature: 0.5, ..open() }, [1.0 / 30.0, 16.0 / 30.0, 9.0 / 30.0, 4.0 / 30.0]);
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let p = logits(&[0.25; 4]);
        let drawn = |seed| {
            let mut sampler = Sampler::new(&Sampling { seed, ..open() }).unwrap();
            (0..20).map(|_| sampler.next(&p, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn repetition_is_discouraged_where_the_window_reaches() {
        let rules = Sampling { repetition_penalty: 2.0, repetition_window: 2, ..Sampling::greedy() };
        let mut sampler = Sampler::new(&rules).unwrap();
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0], &[]).unwrap(), 0);
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0], &[0, 2]).unwrap(), 1);
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0], &[0, 2, 2]).unwrap(), 0);
        // A negative logit becomes more so.
        assert_eq!(sampler.next(&[-1.0, -1.5], &[0]).unwrap(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        for (rules, word) in [
            (Sampling { temperature: -1.0, ..open() }, "temperature is -1; it must be at least 0"),
            (Sampling { top_p: 0.0, ..open() }, "top_p is 0; it must be above 0 and at most 1"),
            (Sampling { min_p: 2.0, ..open() }, "min_p is 2"),
            (Sampling { repetition_penalty: 0.0, ..open() }, "repetition_penalty is 0"),
        ] {
            let error = Sampler::new(&rules).map(drop).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let mut sampler = Sampler::new(&Sampling::greedy()).unwrap();
        assert!(sampler.next(&[], &[]).is_err() && sampler.next(&[0.0, f32::NAN], &[]).is_err());
        assert_eq!(sampler.next(&[f32::NEG_INFINITY, 1.0, 1.0], &[]).unwrap(), 1);
    }
}
