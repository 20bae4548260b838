//! Who is alive: a failure detector by gossip. Every rank counts up a number of its own, sends all numbers that it knows to one
//! other rank at each beat, and keeps the larger of what it knows and what it hears. Whom it sends to goes by powers of two, so
//! that news reach n ranks after about log₂ n beats, with one small message a beat and rank. Pure data with a clock handed in;
//! knows no MPI.

use std::time::Duration;

/// What is known of all ranks.
#[derive(Clone, Debug)]
pub struct Signs {
    own: usize,
    /// Per rank, its number of beats and of collectives that it has begun.
    known: Vec<Sign>,
    /// Per rank, when its number of beats last grew.
    heard_at: Vec<Duration>,
    beat: u32,
}

/// What a rank says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sign {
    pub n_beats: u64,
    pub n_begun: u64,
}

impl Signs {
    /// At first everybody was heard of just now.
    pub fn new(own: usize, n_ranks: usize, now: Duration) -> Signs {
        Signs { own, known: vec![Sign::default(); n_ranks], heard_at: vec![now; n_ranks], beat: 0 }
    }

    /// One more beat of this rank. Gives whom to send to.
    pub fn beat(&mut self, n_begun: u64, now: Duration) -> usize {
        let own = &mut self.known[self.own];
        (own.n_beats, own.n_begun) = (own.n_beats + 1, n_begun);
        self.heard_at[self.own] = now;
        let n = self.known.len();
        let n_powers = usize::BITS - (n - 1).leading_zeros();
        let step = 1usize << (self.beat % n_powers.max(1));
        self.beat = self.beat.wrapping_add(1);
        (self.own + step) % n
    }

    /// Takes over what another rank knows.
    pub fn hear(&mut self, bytes: &[u8], now: Duration) {
        for ((known, heard_at), words) in self.known.iter_mut().zip(&mut self.heard_at).zip(bytes.as_chunks::<16>().0) {
            let [beats, begun] = [0, 8].map(|at| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default()));
            if beats > known.n_beats {
                (*known, *heard_at) = (Sign { n_beats: beats, n_begun: begun }, now);
            }
        }
    }

    /// As bytes for others.
    pub fn bytes(&self) -> Vec<u8> {
        self.known.iter().flat_map(|s| [s.n_beats.to_le_bytes(), s.n_begun.to_le_bytes()]).flatten().collect()
    }

    /// The ranks that nothing was heard of for longer than this, and for how long.
    pub fn silent(&self, limit: Duration, now: Duration) -> Vec<(usize, Duration)> {
        let silence = self.heard_at.iter().map(|at| now.saturating_sub(*at)).enumerate();
        silence.filter(|(rank, silence)| *rank != self.own && *silence > limit).collect()
    }

    /// The ranks that have not begun so many collectives, as far as is known.
    pub fn behind(&self, n_begun: u64) -> Vec<usize> {
        let behind = self.known.iter().enumerate().filter(|(rank, sign)| *rank != self.own && sign.n_begun < n_begun);
        behind.map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// So many beats of all ranks but those that are dead, a second each.
    fn beats(signs: &mut [Signs], dead: &[usize], seconds: std::ops::Range<u32>) {
        for second in seconds {
            let now = SECOND * second;
            let messages: Vec<(usize, Vec<u8>)> = (0..signs.len())
                .filter(|rank| !dead.contains(rank))
                .map(|rank| (signs[rank].beat(7, now), signs[rank].bytes()))
                .collect();
            for (to, bytes) in messages {
                signs[to].hear(&bytes, now);
            }
        }
    }

    #[test]
    fn news_reach_everybody_in_a_few_beats() {
        for n in [2, 3, 4, 7, 100, 1000] {
            let mut signs: Vec<Signs> = (0..n).map(|rank| Signs::new(rank, n, Duration::ZERO)).collect();
            let n_powers = (n as f64).log2().ceil() as u32;
            beats(&mut signs, &[], 1..1 + 2 * n_powers);
            for signs in &signs {
                assert!(signs.known.iter().all(|sign| sign.n_begun == 7), "{n} ranks");
            }
        }
    }

    #[test]
    fn everybody_finds_out_who_is_silent_and_blames_nobody_else() {
        for (n, dead) in [(2, vec![1]), (4, vec![2]), (64, vec![5, 6]), (100, vec![0])] {
            let mut signs: Vec<Signs> = (0..n).map(|rank| Signs::new(rank, n, Duration::ZERO)).collect();
            beats(&mut signs, &[], 1..30);
            beats(&mut signs, &dead, 30..100);
            for (rank, signs) in signs.iter().enumerate().filter(|(rank, _)| !dead.contains(rank)) {
                let silent: Vec<usize> = signs.silent(SECOND * 40, SECOND * 100).into_iter().map(|(r, _)| r).collect();
                assert_eq!(silent, dead, "rank {rank} of {n}");
            }
        }
    }

    #[test]
    fn who_has_not_begun_a_collective_is_known() {
        let mut signs = Signs::new(0, 3, Duration::ZERO);
        let mut other = Signs::new(1, 3, Duration::ZERO);
        other.beat(4, SECOND);
        signs.hear(&other.bytes(), SECOND);
        assert_eq!((signs.behind(4), signs.behind(5)), (vec![2], vec![1, 2]));
    }
}
