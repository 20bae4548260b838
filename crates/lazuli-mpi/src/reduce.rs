//! A reduction as data: which rank adds up which chunk, how numbers travel, in which order they are added. A chunk is added up by
//! one rank, in the order of ranks: the result has the same bits from run to run, whatever the network, the MPI and the size of
//! buckets, and a sharded optimiser sees the very numbers that the others see. A reduction travels in rounds, in each of which
//! a part of every rank's chunk is added up, so that messages stay small and rounds follow each other closely. Knows no MPI.

use std::ops::Range;

/// How the floats of gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 16 bits: half the bytes. Sums are made in f32 and rounded once.
    Bf16,
}

impl Wire {
    fn n_bytes(self) -> usize {
        match self {
            Wire::F32 => 4,
            Wire::Bf16 => 2,
        }
    }
}

/// What becomes of the numbers of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum; integers wrap.
    Sum,
    /// The largest; NaN if one is.
    Max,
    /// The smallest; NaN if one is.
    Min,
}

/// Numbers to be reduced.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U32(Vec<u32>),
}

/// A reduction: of which numbers, how, and how they travel.
#[derive(Clone, Debug)]
pub struct Reduction {
    pub values: Values,
    pub reduce: Reduce,
    /// With a head, the result is the weighted mean: the values come multiplied, the sum is divided by the sum of weights.
    pub head: Option<Head>,
    pub wire: Wire,
}

/// What precedes the values of a rank in every message of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Of how many examples the values are.
    pub weight: f32,
    /// The learning rate of the step, which must be the same on all ranks.
    pub lr: f64,
}

/// The largest message of a round. Over TCP, Open MPI sends up to 64 KB at once (its eager limit). It sends the rest of a larger
/// message only after the receiver has answered. The answer waits until a core that computes polls MPI, and until the messages
/// before it have been sent; meanwhile the network is idle.
const MESSAGE_BYTES: usize = 60 << 10;

/// The parts that `n_elems` elements are cut into, one a rank; their lengths differ by one at most.
pub fn chunks(n_elems: usize, n_ranks: usize) -> Vec<Range<usize>> {
    (0..n_ranks).map(|rank| part(n_elems, n_ranks, rank)).collect()
}

/// One of `n_parts` parts of `n_elems` elements.
fn part(n_elems: usize, n_parts: usize, at: usize) -> Range<usize> {
    let start = |at: usize| (n_elems as u128 * at as u128 / n_parts as u128) as usize;
    start(at)..start(at + 1)
}

impl Values {
    pub fn n_elems(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::I32(values) => values.len(),
            Values::U32(values) => values.len(),
        }
    }

    /// The bytes of some elements.
    fn bytes(&self, of: Range<usize>, wire: Wire, out: &mut Vec<u8>) {
        match (self, wire) {
            (Values::F32(v), Wire::F32) => append(&v[of], f32::to_le_bytes, out),
            (Values::F32(v), Wire::Bf16) => append(&v[of], |x| to_bf16(x).to_le_bytes(), out),
            (Values::I32(v), _) => append(&v[of], i32::to_le_bytes, out),
            (Values::U32(v), _) => append(&v[of], u32::to_le_bytes, out),
        }
    }

    /// Some elements, alone.
    fn slice(&self, of: Range<usize>) -> Values {
        match self {
            Values::F32(v) => Values::F32(v[of].to_vec()),
            Values::I32(v) => Values::I32(v[of].to_vec()),
            Values::U32(v) => Values::U32(v[of].to_vec()),
        }
    }

    /// Takes these elements, of the same type, from `start` on.
    fn set(&mut self, start: usize, elems: &Values) {
        match (self, elems) {
            (Values::F32(v), Values::F32(new)) => v[start..start + new.len()].copy_from_slice(new),
            (Values::I32(v), Values::I32(new)) => v[start..start + new.len()].copy_from_slice(new),
            (Values::U32(v), Values::U32(new)) => v[start..start + new.len()].copy_from_slice(new),
            _ => unreachable!("parts of one reduction have one type"),
        }
    }

    /// Of the same type, from bytes.
    fn of_bytes(&self, bytes: &[u8], wire: Wire) -> Values {
        let words = || bytes.as_chunks::<4>().0.iter();
        match (self, wire) {
            (Values::F32(_), Wire::F32) => Values::F32(words().map(|w| f32::from_le_bytes(*w)).collect()),
            (Values::F32(_), Wire::Bf16) => {
                let halves = bytes.as_chunks::<2>().0.iter();
                Values::F32(halves.map(|h| f32::from_bits((u16::from_le_bytes(*h) as u32) << 16)).collect())
            }
            (Values::I32(_), _) => Values::I32(words().map(|w| i32::from_le_bytes(*w)).collect()),
            (Values::U32(_), _) => Values::U32(words().map(|w| u32::from_le_bytes(*w)).collect()),
        }
    }
}

impl Head {
    const N_BYTES: usize = 12;

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.weight.to_le_bytes().into_iter().chain(self.lr.to_le_bytes())
    }

    /// None of messages that have no head.
    fn of_bytes(bytes: &[u8]) -> Option<Head> {
        let (weight, lr) = bytes.split_first_chunk()?;
        Some(Head { weight: f32::from_le_bytes(*weight), lr: f64::from_le_bytes(lr.try_into().ok()?) })
    }
}

impl Reduction {
    /// Bytes per element on the way.
    fn size(&self) -> usize {
        match self.values {
            Values::F32(_) => self.wire.n_bytes(),
            _ => 4,
        }
    }

    fn head_bytes(&self) -> usize {
        if self.head.is_some() { Head::N_BYTES } else { 0 }
    }

    /// How many rounds it takes for no message to be too large.
    pub fn n_rounds(&self, n_ranks: usize) -> usize {
        (self.values.n_elems().div_ceil(n_ranks) * self.size()).div_ceil(MESSAGE_BYTES).max(1)
    }

    /// The elements of a rank's chunk that are added up in a round.
    fn span(&self, rank: usize, round: usize, n_ranks: usize) -> Range<usize> {
        let chunk = part(self.values.n_elems(), n_ranks, rank);
        let of_round = part(chunk.len(), self.n_rounds(n_ranks), round);
        chunk.start + of_round.start..chunk.start + of_round.end
    }

    /// What is sent in a round: to each rank a part of its chunk, after the head if there is one; and how many bytes to each.
    pub fn parts(&self, round: usize, n_ranks: usize) -> (Vec<u8>, Vec<usize>) {
        let spans: Vec<Range<usize>> = (0..n_ranks).map(|rank| self.span(rank, round, n_ranks)).collect();
        let n_elems: usize = spans.iter().map(Range::len).sum();
        let mut bytes = Vec::with_capacity(n_ranks * self.head_bytes() + n_elems * self.size());
        for span in &spans {
            bytes.extend(self.head.iter().flat_map(Head::bytes));
            self.values.bytes(span.clone(), self.wire, &mut bytes);
        }
        (bytes, spans.iter().map(|span| self.head_bytes() + span.len() * self.size()).collect())
    }

    /// How many bytes come from each rank in a round: its part of the chunk of `rank`.
    pub fn received_bytes(&self, rank: usize, round: usize, n_ranks: usize) -> Vec<usize> {
        vec![self.head_bytes() + self.span(rank, round, n_ranks).len() * self.size(); n_ranks]
    }

    /// This rank's part of a round, from what all ranks sent, in the order of ranks, as bytes to be sent on.
    pub fn reduced(&self, received: &[u8], n_ranks: usize) -> Vec<u8> {
        let mut total_weight = 0.0f32;
        let mut chunk: Option<Values> = None;
        for (head, part) in self.split(received, n_ranks) {
            total_weight += head.map_or(0.0, |head| head.weight);
            let part = self.values.of_bytes(part, self.wire);
            match &mut chunk {
                None => chunk = Some(part),
                Some(chunk) => combine(chunk, &part, self.reduce),
            }
        }
        let mut chunk = chunk.unwrap_or_else(|| self.values.of_bytes(&[], self.wire));
        if let (Some(_), Values::F32(values)) = (self.head, &mut chunk) {
            // Nobody had an example: nothing moves.
            let divisor = if total_weight > 0.0 { total_weight } else { 1.0 };
            values.iter_mut().for_each(|x| *x /= divisor);
        }
        let mut bytes = Vec::new();
        chunk.bytes(0..chunk.n_elems(), self.wire, &mut bytes);
        bytes
    }

    /// What all ranks sent in a round, in the order of ranks: heads, if there are any, and values.
    fn split<'b>(&self, received: &'b [u8], n_ranks: usize) -> impl Iterator<Item = (Option<Head>, &'b [u8])> {
        let n_bytes = self.head_bytes();
        received.chunks((received.len() / n_ranks).max(1)).map(move |part| {
            let (head, values) = part.split_at(n_bytes);
            (Head::of_bytes(head), values)
        })
    }

    /// How the heads of a round contradict each other, if they do. Every rank gets a message of every other, if only with a
    /// head, so that all ranks find the same.
    pub fn contradiction(&self, received: &[u8], n_ranks: usize) -> Option<String> {
        let lrs: Vec<f64> = self.split(received, n_ranks).filter_map(|(head, _)| Some(head?.lr)).collect();
        let first = *lrs.first()?;
        let differs = |(_, lr): &(usize, &f64)| lr.to_bits() != first.to_bits();
        let said = lrs.iter().enumerate().filter(differs).map(|(rank, lr)| format!("rank {rank} has {lr:?}"));
        let said: Vec<String> = said.collect();
        let differences = format!("{} where rank 0 has {first:?}", said.join(", "));
        (!said.is_empty()).then(|| format!("the learning rate: the ranks differ: {differences}"))
    }

    /// How many bytes of a round's result each rank has.
    pub fn gathered_bytes(&self, round: usize, n_ranks: usize) -> Vec<usize> {
        (0..n_ranks).map(|rank| self.span(rank, round, n_ranks).len() * self.size()).collect()
    }

    /// Replaces the values that were sent in a round by their results: the parts of these ranks, one after another.
    pub fn take(&mut self, mut bytes: &[u8], ranks: Range<usize>, round: usize, n_ranks: usize) {
        for rank in ranks {
            let span = self.span(rank, round, n_ranks);
            let (own, others) = bytes.split_at(span.len() * self.size());
            let elems = self.values.of_bytes(own, self.wire);
            self.values.set(span.start, &elems);
            bytes = others;
        }
    }

    /// Moves the values out; the reduction has none afterwards.
    pub fn take_values(&mut self) -> Values {
        std::mem::replace(&mut self.values, Values::F32(Vec::new()))
    }

    /// The chunk of a rank.
    pub fn chunk(&self, rank: usize, n_ranks: usize) -> Values {
        self.values.slice(part(self.values.n_elems(), n_ranks, rank))
    }
}

/// The bytes of elements, behind those that are there.
fn append<T: Copy, const N: usize>(elems: &[T], bytes: impl Fn(T) -> [u8; N], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + N * elems.len(), 0);
    out[start..].as_chunks_mut::<N>().0.iter_mut().zip(elems).for_each(|(to, x)| *to = bytes(*x));
}

fn combine(chunk: &mut Values, part: &Values, reduce: Reduce) {
    // A NaN anywhere is a NaN in the result, unlike with `f32::max`.
    let larger = |x: f32, y: f32| if x > y || x.is_nan() { x } else { y };
    let smaller = |x: f32, y: f32| if x < y || x.is_nan() { x } else { y };
    match (chunk, part) {
        (Values::F32(a), Values::F32(b)) => match reduce {
            Reduce::Sum => each(a, b, |x, y| x + y),
            Reduce::Max => each(a, b, larger),
            Reduce::Min => each(a, b, smaller),
        },
        (Values::I32(a), Values::I32(b)) => match reduce {
            Reduce::Sum => each(a, b, i32::wrapping_add),
            Reduce::Max => each(a, b, i32::max),
            Reduce::Min => each(a, b, i32::min),
        },
        (Values::U32(a), Values::U32(b)) => match reduce {
            Reduce::Sum => each(a, b, u32::wrapping_add),
            Reduce::Max => each(a, b, u32::max),
            Reduce::Min => each(a, b, u32::min),
        },
        _ => unreachable!("parts of one reduction have one type"),
    }
}

fn each<T: Copy>(a: &mut [T], b: &[T], f: impl Fn(T, T) -> T) {
    a.iter_mut().zip(b).for_each(|(x, y)| *x = f(*x, *y));
}

/// Rounded to the nearest, ties to even; NaN stays one.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result on every rank, computed without a network.
    fn reduce(all: &[Reduction]) -> Vec<Values> {
        let n = all.len();
        let mut results = all.to_vec();
        for round in 0..all[0].n_rounds(n) {
            let sent: Vec<(Vec<u8>, Vec<usize>)> = all.iter().map(|r| r.parts(round, n)).collect();
            let chunk = |rank: usize| {
                let part = |(bytes, counts): &(Vec<u8>, Vec<usize>)| {
                    let start: usize = counts[..rank].iter().sum();
                    bytes[start..start + counts[rank]].to_vec()
                };
                let received: Vec<Vec<u8>> = sent.iter().map(part).collect();
                let lens: Vec<usize> = received.iter().map(Vec::len).collect();
                assert_eq!(lens, all[rank].received_bytes(rank, round, n));
                assert!(lens.iter().all(|len| *len <= MESSAGE_BYTES + Head::N_BYTES), "messages of {lens:?} bytes");
                all[rank].reduced(&received.concat(), n)
            };
            let gathered: Vec<Vec<u8>> = (0..n).map(chunk).collect();
            let lens: Vec<usize> = gathered.iter().map(Vec::len).collect();
            for result in &mut results {
                assert_eq!(lens, result.gathered_bytes(round, n));
                result.take(&gathered.concat(), 0..n, round, n);
            }
        }
        results.into_iter().map(|result| result.values).collect()
    }

    fn sum(values: Values) -> Reduction {
        Reduction { values, reduce: Reduce::Sum, head: None, wire: Wire::F32 }
    }

    #[test]
    fn chunks_are_everything_once() {
        for (n_elems, n_ranks) in [(0, 3), (1, 4), (10, 3), (16, 4), (1000, 7)] {
            let chunks = chunks(n_elems, n_ranks);
            assert_eq!(chunks.iter().cloned().flatten().collect::<Vec<_>>(), (0..n_elems).collect::<Vec<_>>());
            let lens = || chunks.iter().map(Range::len);
            assert!(lens().max() <= lens().min().map(|n| n + 1));
        }
    }

    #[test]
    fn sums_are_made_in_the_order_of_ranks() {
        // 1 + 1e8 − 1e8 is 0 in this order alone.
        let values = [1.0f32, 1e8, -1e8].map(|x| sum(Values::F32(vec![x; 5])));
        assert!(reduce(&values).iter().all(|v| *v == Values::F32(vec![0.0; 5])));
        let values = [1e8f32, -1e8, 1.0].map(|x| sum(Values::F32(vec![x; 5])));
        assert!(reduce(&values).iter().all(|v| *v == Values::F32(vec![1.0; 5])));
    }

    #[test]
    fn rounds_are_every_element_once_and_leave_chunks_to_their_owners() {
        for (n_elems, n_ranks, n_rounds) in [(0, 2, 1), (1, 3, 1), (15_360, 1, 1), (15_361, 1, 2), (100_003, 3, 3)] {
            let own = |rank: usize| (0..n_elems as i32).map(|i| i * (rank as i32 + 1)).collect();
            let all: Vec<Reduction> = (0..n_ranks).map(|rank| sum(Values::I32(own(rank)))).collect();
            assert_eq!(all[0].n_rounds(n_ranks), n_rounds, "{n_elems} elements, {n_ranks} ranks");
            let total: i32 = (1..=n_ranks as i32).sum();
            let wanted = Values::I32((0..n_elems as i32).map(|i| i * total).collect());
            assert!(reduce(&all).iter().all(|v| *v == wanted), "{n_elems} elements, {n_ranks} ranks");
            let chunk = sum(wanted.clone()).chunk(n_ranks - 1, n_ranks);
            assert_eq!(chunk, wanted.slice(chunks(n_elems, n_ranks)[n_ranks - 1].clone()));
        }
    }

    #[test]
    fn means_are_weighted_and_who_has_no_weight_has_no_part() {
        let of = |values: Vec<f32>, weight: f32| Reduction {
            values: Values::F32(values.iter().map(|x| x * weight).collect()),
            reduce: Reduce::Sum,
            head: Some(Head { weight, lr: 0.1 }),
            wire: Wire::F32,
        };
        let all = [of(vec![1.0, 2.0], 3.0), of(vec![5.0, 6.0], 1.0), of(vec![0.0, 0.0], 0.0)];
        assert!(reduce(&all).iter().all(|v| *v == Values::F32(vec![2.0, 3.0])));
        assert!(reduce(&[of(vec![0.0], 0.0), of(vec![0.0], 0.0)]).iter().all(|v| *v == Values::F32(vec![0.0])));
    }

    #[test]
    fn learning_rates_that_differ_are_found_by_every_rank() {
        for wire in [Wire::F32, Wire::Bf16] {
            let found = |lrs: [f64; 3]| {
                let of = |lr| Reduction { head: Some(Head { weight: 2.0, lr }), wire, ..sum(Values::F32(vec![0.5])) };
                let sent: Vec<(Vec<u8>, Vec<usize>)> = lrs.iter().map(|lr| of(*lr).parts(0, 3)).collect();
                // One element: two of the ranks get heads alone.
                let received = |rank: usize| {
                    let part = |(bytes, counts): &(Vec<u8>, Vec<usize>)| {
                        let start: usize = counts[..rank].iter().sum();
                        bytes[start..start + counts[rank]].to_vec()
                    };
                    sent.iter().flat_map(part).collect::<Vec<u8>>()
                };
                [0, 1, 2].map(|rank| of(lrs[rank]).contradiction(&received(rank), 3))
            };
            assert_eq!(found([0.1; 3]), [None, None, None]);
            let text = "the learning rate: the ranks differ: rank 1 has 0.2, rank 2 has 1e-5 where rank 0 has 0.1";
            assert_eq!(found([0.1, 0.2, 1e-5]), [(); 3].map(|()| Some(text.to_string())));
        }
        assert_eq!(sum(Values::F32(vec![1.0])).contradiction(&[0; 8], 2), None);
    }

    #[test]
    fn halves_are_added_in_f32() {
        // 256 + 1 is no bf16; with sums in bf16 the ones would be lost one by one.
        let all: Vec<Reduction> = std::iter::once(256.0)
            .chain([1.0; 8])
            .map(|x| Reduction { wire: Wire::Bf16, ..sum(Values::F32(vec![x; 3])) })
            .collect();
        assert!(reduce(&all).iter().all(|v| *v == Values::F32(vec![264.0; 3])));
        assert_eq!(all[0].parts(0, 9).0.len(), 6);
        assert_eq!([1.0f32, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0].map(to_bf16), [0x3f80, 0x3f80, 0x3f82]);
        assert!(f32::from_bits((to_bf16(f32::NAN) as u32) << 16).is_nan());
        assert_eq!(to_bf16(f32::INFINITY), 0x7f80);
    }

    #[test]
    fn integers_and_extremes() {
        let of = |v: Vec<i32>, reduce| Reduction { reduce, ..sum(Values::I32(v)) };
        let all = |r| [of(vec![i32::MAX, 3], r), of(vec![1, -4], r)];
        assert_eq!(reduce(&all(Reduce::Sum))[1], Values::I32(vec![i32::MIN, -1]));
        assert_eq!(reduce(&all(Reduce::Max))[0], Values::I32(vec![i32::MAX, 3]));
        assert_eq!(reduce(&all(Reduce::Min))[0], Values::I32(vec![1, -4]));
        let nan = [f32::NAN, 1.0].map(|x| Reduction { reduce: Reduce::Max, ..sum(Values::F32(vec![x])) });
        assert!(matches!(&reduce(&nan)[0], Values::F32(v) if v[0].is_nan()));
        let nan = [1.0, f32::NAN].map(|x| Reduction { reduce: Reduce::Min, ..sum(Values::F32(vec![x])) });
        assert!(matches!(&reduce(&nan)[0], Values::F32(v) if v[0].is_nan()));
    }
}
