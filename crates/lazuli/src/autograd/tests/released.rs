//! Gradients after something on the way was computed and has let go of its history: an error if, and only if, the gradient
//! would have gone on through it to what it was asked for; and what is remembered for that stays small.

use std::collections::HashSet;

use super::{device, leaf};
use crate::graph::LOOKED_AT;
use crate::{Attention, Error, Tensor, checkpoint, compute};

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn refused(grad: &Tensor, expect: &str) {
    let error = grad.check().expect_err("is refused");
    assert!(matches!(error, Error::Grad(_)), "{error:?}");
    assert!(error.to_string().contains(expect), "{error}");
}

/// How many tokens are held by way of a tensor, and how long the longest list of them is.
fn tokens(x: &Tensor) -> (usize, usize) {
    let kin = x.node().expect("no mistake").kin();
    let mut seen = HashSet::new();
    let (mut stack, mut longest) = (vec![kin], 0);
    while let Some(kin) = stack.pop() {
        if seen.insert(kin.serial) {
            let from = kin.from();
            longest = longest.max(from.len());
            stack.extend(from);
        }
    }
    (seen.len(), longest)
}

/// One step down the slope of `Σ (w · x + b − y)²`.
fn step(x: &Tensor, y: &Tensor, w: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let g = x.mul(w).add(b).sub(y).square().mean(..).grad(&[w, b]);
    (w.sub(g[0].mul(0.1)), b.sub(g[1].mul(0.1)))
}

/// Decodes step by step with layers of attention over KV caches, without `detach()`. Gives, for each step, how many graph nodes
/// and history entries were visited to record from which earlier tensors its results were computed.
fn looked_at_by_steps(n_layers: usize, n_steps: usize) -> Vec<u64> {
    let on = device();
    let (width, capacity) = (4, n_steps);
    let weights: Vec<[Tensor; 4]> =
        (0..n_layers as u64).map(|i| [0, 1, 2, 3].map(|j| Tensor::rand([width, width], 4 * i + j, &on))).collect();
    let empty = || Tensor::zeros([1, capacity, width], crate::DType::F32, &on).compute().unwrap();
    let mut caches: Vec<[Tensor; 2]> = (0..n_layers).map(|_| [empty(), empty()]).collect();
    let mut position = crate::Position::open(0);
    let mut counts = Vec::new();
    for i in 0..n_steps {
        position = position.moved_to(i);
        let before = LOOKED_AT.get();
        let mut x = Tensor::rand([1, 1, width], i as u64, &on);
        for (weights, cache) in weights.iter().zip(&mut caches) {
            let [q, k, v, out] = weights.each_ref().map(|w| x.matmul(w));
            *cache = [cache[0].write_rows(1, position, &k), cache[1].write_rows(1, position, &v)];
            let options = Attention { length: Some(position + 1), ..Attention::default() };
            x = x.add(q.attention(&cache[0], &cache[1], options)).add(out.tanh());
        }
        let y = x.sum(..);
        let wanted: Vec<&Tensor> = [&y].into_iter().chain(caches.iter().flatten()).collect();
        compute(&wanted).expect("runs");
        drop(x);
        counts.push(LOOKED_AT.get() - before);
    }
    counts
}

#[test]
fn a_loop_over_caches_that_are_not_detached_looks_at_as_much_in_every_step() {
    // The first steps find caches that come from nothing.
    let counts = looked_at_by_steps(6, 300);
    assert!(counts[10..].iter().all(|count| *count == counts[10]), "{counts:?}");
    // Each of the caches notes the weights of all layers before its own, which is as much as the square of the layers.
    let (shallow, deep) = (counts[10], looked_at_by_steps(12, 12)[11]);
    assert!(deep < 6 * shallow, "{shallow} for 6 layers, {deep} for 12");
}

#[test]
fn a_loop_of_updates_goes_on_and_its_memory_stays_flat() {
    let x = Tensor::from_slice(&[-1.0f32, -0.5, 0.5, 1.0], [4], &device());
    let y = Tensor::from_slice(&[-1.0f32, 0.0, 2.0, 3.0], [4], &device());
    let start = (Tensor::scalar(0.0, &device()), Tensor::scalar(0.0, &device()));
    let (mut w, mut b) = start.clone();
    let n_steps = if device() == crate::Device::cpu() { 100_000 } else { 1_000 };
    for i in 0..n_steps {
        let (new_w, new_b) = step(&x, &y, &w, &b);
        compute(&[&new_w, &new_b]).expect("runs");
        (w, b) = (new_w, new_b);
        if i % 1000 == 999 {
            assert!(tokens(&w).0 <= 8 && tokens(&w).1 <= 4, "{:?} after {i} steps", tokens(&w));
        }
    }
    assert!((values(&w)[0] - 2.0).abs() < 1e-3 && (values(&b)[0] - 1.0).abs() < 1e-3);
    // By what the loop started from there is no gradient any more, and it says so; likewise by its data.
    let loss = x.mul(&w).add(&b).sum(..);
    refused(&loss.grad(&[&start.0])[0], "tracked()");
    refused(&loss.grad(&[&x])[0], "detach()");
    assert_eq!(values(&loss.grad(&[&w])[0]), [0.0]);
}

#[test]
fn a_loop_that_also_keeps_the_state_before_stays_flat() {
    let mut x = Tensor::scalar(1.0, &device());
    let mut before: Vec<Tensor> = Vec::new();
    for _ in 0..2_000 {
        let next = x.mul(0.5).add(before.iter().fold(x.mul(0.1), |sum, b| sum.add(b.mul(0.01)))).tanh();
        next.compute().expect("runs");
        before.push(std::mem::replace(&mut x, next));
        if before.len() > 3 {
            before.remove(0);
        }
        assert!(tokens(&x).0 <= 32, "{:?}", tokens(&x));
    }
}

#[test]
fn a_trajectory_whose_states_are_all_kept_takes_linear_memory() {
    let n = if device() == crate::Device::cpu() { 100_000 } else { 1_000 };
    let start = Tensor::scalar(0.5, &device());
    let mut states = vec![start.clone()];
    for t in 0..n {
        let next = states[t].mul(0.9).add(0.1).compute().expect("runs");
        states.push(next);
    }
    let last = &states[n];
    let (n_tokens, longest) = tokens(last);
    assert!(n_tokens <= n + 4 && longest <= 2, "{n_tokens}, {longest}");
    // Each of them is known to come from each before it, and from none after it.
    refused(&last.mul(2.0).grad(&[&states[n / 2]])[0], "tracked()");
    refused(&last.mul(2.0).grad(&[&start])[0], "tracked()");
    assert_eq!(values(&states[n / 2].mul(2.0).grad(&[last])[0]), [0.0]);
    // Letting them go, from either end, needs no stack.
    let second = states.split_off(n / 2);
    let keep = second[second.len() - 1].clone();
    drop(second);
    states.into_iter().rev().for_each(drop);
    refused(&keep.mul(2.0).grad(&[&start])[0], "tracked()");
}

#[test]
fn many_outputs_of_many_inputs_remember_each_its_own() {
    // More than sixty-four outputs, which are looked at sixty-four at a time.
    let inputs: Vec<Tensor> = (0..150).map(|i| Tensor::scalar(i as f32, &device())).collect();
    let outputs: Vec<Tensor> = inputs.windows(2).map(|pair| pair[0].mul(&pair[1])).collect();
    compute(&outputs.iter().collect::<Vec<_>>()).expect("runs");
    for (i, output) in outputs.iter().enumerate() {
        for (j, grad) in output.grad(&inputs.iter().collect::<Vec<_>>()).iter().enumerate() {
            assert_eq!(grad.check().is_err(), j == i || j == i + 1, "{i} by {j}");
        }
    }
}

#[test]
fn the_cure_is_named() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let w = x.mul(2.0).compute().expect("runs");
    // `w` is one of those asked for: that it was once made of `x` is what an update loop has.
    let grads = x.mul(&w).sum(..).grad(&[&x, &w]);
    refused(&grads[0], "one that you differentiate by");
    refused(&grads[0], "detach()");
    assert!(!grads[0].check().expect_err("is refused").to_string().contains("tracked()"));
    assert_eq!(values(&grads[1]), values(&x));
    let w = w.detach();
    assert_eq!(values(&x.mul(&w).sum(..).grad(&[&x])[0]), values(&w));
    // Detached first and computed then is the same.
    let w = x.mul(2.0).detach().compute().expect("runs");
    assert_eq!(values(&x.mul(&w).sum(..).grad(&[&x])[0]), values(&w));
    let h = x.exp().compute().expect("runs");
    refused(&h.sum(..).grad(&[&x])[0], "make what you differentiate by tracked()");
}

#[test]
fn what_is_flat_has_no_ancestors() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let flat = x.floor().add(1.0).compute().expect("runs");
    assert_eq!(values(&flat.mul(&x).sum(..).grad(&[&x])[0]), values(&flat));
    // Nor does a gradient arrive at what it is used by through something flat.
    let h = x.exp().compute().expect("runs");
    assert_eq!(values(&h.floor().mul(&x).sum(..).grad(&[&x])[0]), values(&h.floor()));
}

#[test]
fn nested_checkpoints_have_gradients() {
    let x = leaf(&[3], (0.5, 1.5), 1);
    let inner = |x: &[Tensor]| checkpoint(&[&x[0]], |x| x[0].exp()).mul(2.0);
    let plain = x.exp().mul(2.0).sum(..).grad(&[&x]).swap_remove(0);
    assert_eq!(values(&checkpoint(&[&x], inner).sum(..).grad(&[&x])[0]), values(&plain));
    let rounded = |x: &[Tensor]| x[0].round().with_gradient_of(&x[0].mul(3.0));
    assert_eq!(values(&checkpoint(&[&x], rounded).sum(..).grad(&[&x])[0]), [3.0; 3]);
}

/// A tensor of a random program: beside it the same one of which nothing is ever computed.
struct Entry {
    tensor: Option<Tensor>,
    mirror: Tensor,
    /// What gradients pass to.
    below: Vec<usize>,
    is_released: bool,
}

/// Whether the gradient of `y` by `target` would go on through something that has let go of its history.
fn is_lost(entries: &[Entry], y: usize, target: usize) -> bool {
    let (mut stack, mut seen) = (vec![(y, false)], HashSet::new());
    while let Some((i, through_released)) = stack.pop() {
        if !seen.insert((i, through_released)) {
            continue;
        }
        if i == target {
            if through_released {
                return true;
            }
            continue;
        }
        let entry = &entries[i];
        stack.extend(entry.below.iter().map(|below| (*below, through_released || entry.is_released)));
    }
    false
}

#[test]
fn random_programs_lose_gradients_exactly_where_history_was_let_go() {
    let n_seeds = if device() == crate::Device::cpu() { 150 } else { 25 };
    for seed in 0..n_seeds {
        let mut state = seed * 2 + 1;
        let mut draw = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % n
        };
        let mut entries: Vec<Entry> = Vec::new();
        for i in 0..3 {
            let x = leaf(&[2], (0.2, 0.9), seed + i);
            entries.push(Entry { tensor: Some(x.clone()), mirror: x, below: vec![], is_released: false });
        }
        for _ in 0..24 {
            let live: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].tensor.is_some()).collect();
            let (a, b) = (live[draw(live.len())], live[draw(live.len())]);
            let op = draw(12);
            if op == 0 || op == 1 {
                let tensors = [&entries[a], &entries[b]].map(|e| e.tensor.clone().expect("is live"));
                compute(&tensors.each_ref()).expect("runs");
                [a, b].into_iter().filter(|i| *i > 2).for_each(|i| entries[i].is_released = true);
                continue;
            }
            if op == 2 && a > 2 {
                entries[a].tensor = None;
                continue;
            }
            let record = |x: &Tensor, y: &Tensor| match op {
                3 => x.detach(),
                4 => x.floor().add(0.5),
                5 => x.sin().with_gradient_of(y),
                6 => checkpoint(&[x], |x| x[0].tanh().mul(0.9)),
                7 | 8 => x.mul(y),
                9 => x.tanh(),
                _ => x.sub(y.mul(0.5)),
            };
            let below = match op {
                3 | 4 => vec![],
                5 => vec![b],
                6 | 9 => vec![a],
                _ => vec![a, b],
            };
            let of = |i: usize| entries[i].tensor.as_ref().expect("is live");
            let (tensor, mirror) = (record(of(a), of(b)), record(&entries[a].mirror, &entries[b].mirror));
            entries.push(Entry { tensor: Some(tensor), mirror, below, is_released: false });
        }
        let live: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].tensor.is_some()).collect();
        let targets: Vec<&Tensor> = live.iter().filter_map(|i| entries[*i].tensor.as_ref()).collect();
        let mirrors: Vec<&Tensor> = live.iter().map(|i| &entries[*i].mirror).collect();
        for y in &live {
            let entry = &entries[*y];
            let grads = entry.tensor.as_ref().expect("is live").sum(..).grad(&targets);
            let wants = entry.mirror.sum(..).grad(&mirrors);
            for (i, target) in live.iter().enumerate() {
                let is_lost = is_lost(&entries, *y, *target);
                assert_eq!(grads[i].check().is_err(), is_lost, "seed {seed}: {y} by {target}");
                if !is_lost && draw(16) == 0 {
                    let (got, want) = (values(&grads[i]), values(&wants[i]));
                    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
                    assert!(got.iter().zip(&want).all(is_near), "seed {seed}: {y} by {target}: {got:?} for {want:?}");
                }
            }
        }
    }
}
