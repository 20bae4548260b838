//! Sharded optimiser state (ZeRO-1): a rank remembers only what belongs to its pieces of the parameters, updates these, and gets
//! the others from the ranks that own them. Gradients are reduced to their owners and new parameters gathered, so that as
//! many bytes travel as with an all-reduce. Rules work element by element, hence the numbers are those of an optimiser
//! that is not sharded, bit for bit.

use lazuli::{DType, Device, Result, Tensor};
use lazuli_nn::{Item, Module, Optimizer};

use crate::buckets::{Buckets, Piece};
use crate::collectives::Task;
use crate::world::{Wait, World, bytes_of, fault, of_words, words, words_of};

/// The pieces of a rank as a model, which an optimiser can update.
pub struct Shard {
    named: Vec<(String, Tensor)>,
}

impl Module for Shard {
    fn visit(&mut self, visit: &mut dyn FnMut(&str, Item)) {
        for (name, piece) in &mut self.named {
            visit(name, Item::Parameter(piece));
        }
    }
}

impl Shard {
    /// The pieces of a rank.
    pub fn new(parameters: &[(String, Tensor)], pieces: &[Piece]) -> Shard {
        let piece = |piece: &Piece| {
            let (name, w) = &parameters[piece.parameter];
            let (start, end) = (piece.elems.start, piece.elems.end);
            (format!("{name}[{start}..{end}]"), w.detach().flatten().narrow(0, start, end - start))
        };
        Shard { named: pieces.iter().map(piece).collect() }
    }

    /// Gradients of the pieces, from the rank's chunks of all buckets one after another.
    pub fn gradients(&self, mut chunks: &[f32]) -> Result<Vec<Tensor>> {
        let mut grads = Vec::new();
        for (_, w) in &self.named {
            let (own, others) = chunks.split_at(w.shape()?.iter().product());
            grads.push(Tensor::from_slice(own, [own.len()], w.device()?).to_dtype(w.dtype()?));
            chunks = others;
        }
        Ok(grads)
    }

    /// The numbers of all pieces, one after another.
    fn words(&self) -> Result<Vec<u32>> {
        let all: Result<Vec<Vec<u32>>> = self.named.iter().map(|(_, piece)| words(piece)).collect();
        Ok(all?.concat())
    }
}

impl World {
    /// Gives every rank the parameters that others have updated: all of them, in the order of visiting.
    pub(crate) fn gather_parameters(
        &self,
        shard: &Shard,
        old: &[(String, Tensor)],
        buckets: &Buckets,
    ) -> Result<Vec<Tensor>> {
        let (words, mut start) = (shard.words()?, 0);
        let mut waits: Vec<Wait> = Vec::new();
        for bucket in 0..buckets.each.len() {
            let lens = buckets.chunk_lens(bucket);
            let bytes = bytes_of(&words[start..start + lens[self.rank()]]);
            start += lens[self.rank()];
            let counts = lens.iter().map(|n| 4 * n).collect();
            waits.push(self.begin("all_gather of parameters", Task::Gather { bytes, counts }));
        }
        let mut new: Vec<Option<Tensor>> = vec![None; old.len()];
        for (bucket, wait) in waits.into_iter().enumerate() {
            let words = words_of(&self.wait_bytes(wait)?);
            for (at, place) in buckets.places(bucket) {
                let w = &old[at].1;
                new[at] = Some(of_words(&words[place], w.shape()?, w.dtype()?, w.device()?).compute()?);
            }
        }
        Ok(new.into_iter().flatten().collect())
    }

    /// The state of a sharded optimiser, whole and under the names that one which is not sharded gives it.
    pub(crate) fn gather_state(
        &self,
        optimizer: &Optimizer,
        parameters: &[(String, Tensor)],
        buckets: &Buckets,
        device: &Device,
    ) -> Result<Vec<(String, Tensor)>> {
        let own = optimizer.named(device);
        if optimizer.n_steps() == 0 {
            return Ok(own);
        }
        let (rule, n_slots) = (optimizer.rule().name(), optimizer.rule().n_slots());
        let pieces: Vec<Vec<Piece>> = (0..self.size()).map(|rank| buckets.pieces(rank)).collect();
        let len = |pieces: &Vec<Piece>| pieces.iter().map(|piece| piece.elems.len()).sum::<usize>();
        let counts: Vec<usize> = pieces.iter().map(|pieces| 4 * len(pieces)).collect();
        let mut whole: Vec<Vec<Vec<u32>>> = Vec::new();
        for slot in 0..n_slots {
            // The first is the number of steps; then there are the slots of a piece, one after another.
            let slots: Result<Vec<Vec<u32>>> =
                own[1..].iter().skip(slot).step_by(n_slots).map(|(_, t)| words(t)).collect();
            let all = words_of(&self.gather_bytes("the optimiser's state", bytes_of(&slots?.concat()), &counts)?);
            let mut slots = Vec::new();
            for (_, w) in parameters {
                slots.push(vec![0; w.shape()?.iter().product()]);
            }
            let mut rest = &all[..];
            for piece in pieces.iter().flatten() {
                let (words, others) = rest.split_at(piece.elems.len());
                slots[piece.parameter][piece.elems.clone()].copy_from_slice(words);
                rest = others;
            }
            whole.push(slots);
        }
        let mut named = own[..1].to_vec();
        for (at, (name, w)) in parameters.iter().enumerate() {
            for (slot, slots) in whole.iter().enumerate() {
                let t = of_words(&slots[at], w.shape()?, w.dtype()?, w.device()?);
                named.push((format!("{rule}.{slot}.{name}"), t));
            }
        }
        Ok(named)
    }
}

/// Gives an optimiser of pieces its part of a whole state.
pub fn load(optimizer: &mut Optimizer, shard: &mut Shard, find: impl Fn(&str) -> Option<Tensor>) -> Result<()> {
    optimizer.load(shard, |name| {
        // A piece is called `parameter[start..end]`.
        let Some((whole, range)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) else {
            return find(name);
        };
        let (start, end) = range.split_once("..")?;
        let (start, end) = (start.parse::<usize>().ok()?, end.parse::<usize>().ok()?);
        Some(find(whole)?.flatten().narrow(0, start, end - start))
    })
}

/// That a rule can be applied to pieces, and that numbers travel unchanged.
pub fn check(optimizer: &Optimizer, parameters: &[(String, Tensor)]) -> Result<()> {
    let rule = optimizer.rule();
    if !rule.is_elementwise() {
        let name = rule.name();
        let message = format!("{name} does not say that it updates every element by itself (`Rule::is_elementwise`)");
        return Err(fault("sharded", format!("{message}; train without `sharded`")));
    }
    for (name, w) in parameters {
        if !matches!(w.dtype()?, DType::F32 | DType::F16 | DType::BF16) {
            return Err(fault("sharded", format!("`{name}` is {}; parameters are floats", w.dtype()?)));
        }
    }
    Ok(())
}
