//! Which numbers travel together and who owns which: parameters in buckets, the last first, and each bucket in chunks, one a
//! rank. A sharded optimiser (ZeRO-1) updates the pieces of parameters that lie in its rank's chunks. Pure data; knows neither
//! tensors nor MPI.

use std::ops::Range;

use lazuli_nn::Clip;

use crate::reduce::chunks;

/// Parameters in buckets, for so many ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Parameters by number, the last first.
    pub each: Vec<Vec<usize>>,
    /// Elements per parameter.
    sizes: Vec<usize>,
    n_ranks: usize,
}

/// Some elements of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub parameter: usize,
    pub elems: Range<usize>,
}

/// With fewer buckets than this, little would travel while the rest is computed.
const FEWEST_BUCKETS: usize = 4;

impl Buckets {
    /// Of parameters by name and number of elements, which travel as f32.
    pub fn new(parameters: &[(&str, usize)], bucket_bytes: usize, n_ranks: usize) -> Buckets {
        let sizes = parameters.iter().map(|(_, n_elems)| *n_elems).collect();
        Buckets { each: cut(parameters, bucket_bytes / 4), sizes, n_ranks }
    }

    /// How many elements a bucket has.
    pub fn n_elems(&self, bucket: usize) -> usize {
        self.each[bucket].iter().map(|at| self.sizes[*at]).sum()
    }

    /// Where each parameter of a bucket lies in it.
    pub fn places(&self, bucket: usize) -> Vec<(usize, Range<usize>)> {
        let mut start = 0;
        let place = |at: &usize| {
            start += self.sizes[*at];
            (*at, start - self.sizes[*at]..start)
        };
        self.each[bucket].iter().map(place).collect()
    }

    /// The pieces of parameters in a rank's chunks of all buckets, one after another.
    pub fn pieces(&self, rank: usize) -> Vec<Piece> {
        let all = (0..self.each.len()).flat_map(|bucket| self.pieces_in(bucket, rank));
        all.filter(|piece| !piece.elems.is_empty()).collect()
    }

    fn pieces_in(&self, bucket: usize, rank: usize) -> impl Iterator<Item = Piece> {
        let chunk = chunks(self.n_elems(bucket), self.n_ranks)[rank].clone();
        self.places(bucket).into_iter().map(move |(parameter, place)| {
            let (start, end) = (chunk.start.max(place.start), chunk.end.min(place.end));
            Piece { parameter, elems: start.saturating_sub(place.start)..end.max(start).saturating_sub(place.start) }
        })
    }

    /// How many elements of a bucket each rank has.
    pub fn chunk_lens(&self, bucket: usize) -> Vec<usize> {
        chunks(self.n_elems(bucket), self.n_ranks).iter().map(Range::len).collect()
    }

    /// The sum of squares in each rank's chunks of all buckets. Always added up in the same order, whoever does it: ranks
    /// that hold all of a gradient and ranks that hold a chunk of it find the same norm.
    pub fn squares(&self, means: &[Vec<f32>]) -> Vec<f64> {
        let of_rank = |rank: usize| {
            let own = |(bucket, mean): (usize, &Vec<f32>)| {
                squares(&mean[chunks(self.n_elems(bucket), self.n_ranks)[rank].clone()])
            };
            means.iter().enumerate().map(own).sum()
        };
        (0..self.n_ranks).map(of_rank).collect()
    }
}

/// The sum of squares of some elements.
pub fn squares(values: &[f32]) -> f64 {
    values.iter().map(|g| (*g as f64).powi(2)).sum()
}

/// Clips the mean of all ranks, as one machine would with the whole batch. On the host, so that it is the same on every rank;
/// `squares` of each rank's chunks are asked for where the norm is needed.
pub fn clip<E>(
    means: &mut [Vec<f32>],
    clip: Option<Clip>,
    squares: impl FnOnce(&[Vec<f32>]) -> Result<Vec<f64>, E>,
) -> Result<(), E> {
    match clip {
        None => {}
        Some(Clip::Value(most)) => {
            means.iter_mut().flatten().for_each(|g| *g = g.clamp(-most as f32, most as f32));
        }
        Some(Clip::Norm(most)) => {
            let norm = squares(means)?.iter().sum::<f64>().sqrt();
            let scale = (most / (norm + 1e-12)).min(1.0) as f32;
            means.iter_mut().flatten().for_each(|g| *g *= scale);
        }
    }
    Ok(())
}

/// Parameters in buckets of so many elements, the last first. A layer's parameters stay together where they can: a bucket that
/// took the bias of the layer before along would have to wait for that layer's gradient, with the rest of it ready to leave.
fn cut(parameters: &[(&str, usize)], most: usize) -> Vec<Vec<usize>> {
    let n_elems = |range: Range<usize>| parameters[range].iter().map(|(_, n)| n).sum::<usize>();
    let most = most.min(n_elems(0..parameters.len()).div_ceil(FEWEST_BUCKETS));
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut filled = usize::MAX;
    let mut end = parameters.len();
    while end > 0 {
        let start = unit_start(parameters, end, most);
        if filled.saturating_add(n_elems(start..end)) > most {
            buckets.push(Vec::new());
            filled = 0;
        }
        filled += n_elems(start..end);
        if let Some(bucket) = buckets.last_mut() {
            bucket.extend((start..end).rev());
        }
        end = start;
    }
    buckets
}

/// Parameters are put into buckets in units: `start..end` is the unit that ends before parameter `end`, and `start` is returned. A
/// unit is a whole layer (parameters whose names share what precedes the last dot) if the layer has at most 9/8 of the elements of a
/// bucket, or of its own largest parameter if that is larger than a bucket: the eighth lets a bias join a weight that fills a bucket
/// alone. A larger layer is cut, and the unit is its last parameter.
fn unit_start(parameters: &[(&str, usize)], end: usize, most: usize) -> usize {
    let layer = |at: usize| parameters[at].0.rsplit_once('.').map(|(layer, _)| layer);
    let start = (0..end).rev().take_while(|at| layer(*at).is_some() && layer(*at) == layer(end - 1)).last();
    let start = start.unwrap_or(end - 1);
    let sizes = || parameters[start..end].iter().map(|(_, n_elems)| *n_elems);
    let most = sizes().max().unwrap_or(0).max(most);
    if sizes().sum::<usize>() <= most + most / 8 { start } else { end - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_begin_with_the_last_parameters() {
        let cut_sizes = |sizes: &[usize], most| cut(&sizes.iter().map(|n| ("w", *n)).collect::<Vec<_>>(), most);
        assert_eq!(cut_sizes(&[1, 1, 1, 1], 25), [[3], [2], [1], [0]]);
        assert_eq!(cut_sizes(&[10, 1, 1, 1, 1, 10], 12), [vec![5], vec![4, 3, 2, 1], vec![0]]);
        assert_eq!(cut_sizes(&[100, 1, 1], 2), [vec![2, 1], vec![0]]);
        assert_eq!(cut_sizes(&[], 2), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn a_bucket_does_not_wait_for_the_bias_of_the_layer_before() {
        let layers = |weight: usize, bias: usize| {
            let names =
                ["0.weight", "0.bias", "1.weight", "1.bias", "2.a.weight", "2.a.bias", "2.b.weight", "2.b.bias"];
            let names = names.into_iter().chain(["3.weight", "3.bias"]);
            names.map(|name| (name, if name.ends_with("bias") { bias } else { weight })).collect::<Vec<_>>()
        };
        let by_layer = [[9, 8], [7, 6], [5, 4], [3, 2], [1, 0]];
        // There is room for one more bias; weights alone fill a bucket; weights are larger than a bucket.
        for (weight, bias) in [(90, 4), (100, 10), (1000, 10)] {
            assert_eq!(cut(&layers(weight, bias), 100), by_layer, "{weight} and {bias}");
        }
        // Small layers share a bucket, and a layer that is much larger than one is cut.
        let small: Vec<(&str, usize)> = layers(10, 1).into_iter().chain([("4.weight", 100)]).collect();
        assert_eq!(cut(&small, 25), [vec![10], vec![9, 8, 7, 6], vec![5, 4, 3, 2], vec![1, 0]]);
        assert_eq!(cut(&layers(90, 80), 100)[..2], [[9], [8]]);
    }

    #[test]
    fn pieces_of_all_ranks_are_every_parameter_once() {
        for n_ranks in [1, 2, 3, 7, 50] {
            let sizes = [10, 0, 3, 1, 40, 7];
            let named: Vec<(&str, usize)> = sizes.iter().map(|n| ("w", *n)).collect();
            let buckets = Buckets::new(&named, 48, n_ranks);
            let mut seen: Vec<Vec<usize>> = sizes.iter().map(|n| vec![0; *n]).collect();
            for rank in 0..n_ranks {
                let pieces = buckets.pieces(rank);
                let n: usize = pieces.iter().map(|piece| piece.elems.len()).sum();
                let chunks = (0..buckets.each.len()).map(|bucket| buckets.chunk_lens(bucket)[rank]);
                assert_eq!(n, chunks.sum::<usize>(), "rank {rank} of {n_ranks}");
                pieces.iter().for_each(|p| seen[p.parameter][p.elems.clone()].iter_mut().for_each(|n| *n += 1));
            }
            assert!(seen.iter().flatten().all(|n| *n == 1), "{n_ranks} ranks");
        }
    }

    #[test]
    fn a_norm_is_the_same_from_the_whole_and_from_chunks() {
        let buckets = Buckets::new(&[("a", 5), ("b", 8)], 1 << 20, 3);
        let means = vec![vec![0.1f32; 8], vec![0.7; 5]];
        let whole = buckets.squares(&means);
        let chunk =
            |bucket: usize, rank: usize| means[bucket][chunks(buckets.n_elems(bucket), 3)[rank].clone()].to_vec();
        let parts: Vec<f64> =
            (0..3).map(|rank| (0..2).map(|bucket| squares(&chunk(bucket, rank))).sum::<f64>()).collect();
        assert_eq!(whole, parts);
        let mut clipped = means.clone();
        clip(&mut clipped, Some(Clip::Norm(1.0)), |m| Ok::<_, ()>(buckets.squares(m))).expect("cannot fail");
        assert!((squares(&clipped.concat()) - 1.0).abs() < 1e-6);
    }
}
