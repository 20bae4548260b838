//! Rows at run-time positions: `write_rows` and `rows_at` against plain loops over vectors, and what a loop over positions
//! plans, allocates and moves.

use half::{bf16, f16};
use lazuli::{Attention, DType, Element, Stats, Tensor};

use crate::device::device;
use crate::{alone, shared};

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 - 40.0).collect(), shape, &device())
}

/// Where in row-major order, seen as `[before, size, after]`, an axis starts and how far its elements are apart.
fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// `x` with `rows` in place of what is from a position on along an axis, element by element.
fn written<T: Copy>(x: &[T], shape: &[usize], axis: usize, position: usize, rows: &[T], len: usize) -> Vec<T> {
    let (before, after) = around(shape, axis);
    let mut y = x.to_vec();
    for outer in 0..before {
        for row in 0..len {
            let (to, from) = ((outer * shape[axis] + position + row) * after, (outer * len + row) * after);
            y[to..to + after].copy_from_slice(&rows[from..from + after]);
        }
    }
    y
}

fn read<T: Copy>(x: &[T], shape: &[usize], axis: usize, position: usize, len: usize) -> Vec<T> {
    let (before, after) = around(shape, axis);
    let row = |outer: usize, row: usize| (outer * shape[axis] + position + row) * after;
    let places = (0..before).flat_map(|outer| (0..len).map(move |r| row(outer, r)));
    places.flat_map(|at| x[at..at + after].iter().copied()).collect()
}

/// What a loop does to the counters.
fn counted(work: impl FnOnce()) -> Stats {
    let device = device();
    device.trim();
    device.reset_stats();
    work();
    device.stats()
}

const SHAPES: [&[usize]; 6] = [&[9], &[5, 3], &[7, 8], &[2, 6, 4], &[3, 1, 5, 2], &[2, 3, 4, 1, 2]];

/// Every shape, axis, length and position of a type, whose bytes are written with neighbours in the same word.
fn check_type<T: Element + PartialEq>(value: impl Fn(usize) -> T) {
    for shape in SHAPES {
        let n: usize = shape.iter().product();
        for axis in 0..shape.len() {
            for len in (1..=shape[axis]).filter(|len| *len < 3 || *len == shape[axis]) {
                for position in 0..=shape[axis] - len {
                    let (x, n_rows): (Vec<T>, usize) = ((0..n).map(&value).collect(), n / shape[axis] * len);
                    let rows: Vec<T> = (0..n_rows).map(|i| value(i + 77)).collect();
                    let mut rows_shape = shape.to_vec();
                    rows_shape[axis] = len;
                    let (held, new) = (
                        Tensor::from_slice(&x, shape, &device()),
                        Tensor::from_slice(&rows, &rows_shape[..], &device()),
                    );
                    let what = format!("{} {shape:?}, axis {axis}, {len} rows at {position}", T::DTYPE);
                    let wanted = written(&x, shape, axis, position, &rows, len);
                    let y = held.write_rows(axis as i32, position, &new);
                    assert_eq!(y.to_vec::<T>().unwrap(), wanted, "{what}");
                    assert_eq!(held.to_vec::<T>().unwrap(), x, "{what}: what others hold has changed");
                    let donated = Tensor::from_slice(&x, shape, &device()).write_rows(axis as i32, position, &new);
                    assert_eq!(donated.to_vec::<T>().unwrap(), wanted, "{what}, in place");
                    let found = y.rows_at(axis as i32, position, len);
                    assert_eq!(found.to_vec::<T>().unwrap(), rows, "{what}, read again");
                    let found = held.rows_at(axis as i32, position, len);
                    assert_eq!(found.to_vec::<T>().unwrap(), read(&x, shape, axis, position, len), "{what}, read");
                }
            }
        }
    }
}

#[test]
fn rows_of_every_type_are_written_and_read_at_every_position() {
    let _device = shared();
    check_type(|i| i as f32 * 0.5 - 3.0);
    check_type(|i| (i * 7) as i32 - 90);
    check_type(|i| (i * 7) as u32);
    check_type(|i| (i * 37) as u8);
    check_type(|i| i % 3 == 0);
    check_type(|i| f16::from_f32(i as f32 - 20.0));
    check_type(|i| bf16::from_f32(i as f32 - 20.0));
}

#[test]
fn a_loop_over_positions_plans_twice_and_moves_the_rows_alone() {
    let _device = alone();
    const CAPACITY: usize = 160;
    for axis in [0, 1] {
        let shape = if axis == 0 { [CAPACITY, 96] } else { [96, CAPACITY] };
        let row_shape = if axis == 0 { [1, 96] } else { [96, 1] };
        let mut cache = Tensor::zeros(shape, DType::F32, &device());
        cache.compute().unwrap();
        let mut wanted = vec![0.0; 96 * CAPACITY];
        let mut last = 0;
        let stats = counted(|| {
            for position in 0..150 {
                let row = data(&row_shape, position);
                wanted = written(&wanted, &shape, axis, position, &row.mul(2.0).to_vec::<f32>().unwrap(), 1);
                if position == 2 {
                    device().reset_stats();
                }
                cache = cache.write_rows(axis as i32, position, &row.mul(2.0));
                if position > 2 {
                    let plan = lazuli::explain(&[&cache]).unwrap();
                    assert_eq!(
                        (plan.kernels.len(), plan.bytes_moved, plan.peak_temp_bytes),
                        (1, 2 * 96 * 4, 0),
                        "{plan}"
                    );
                    last = plan.kernels[0].bytes_written;
                }
                cache.compute().unwrap();
            }
        });
        assert_eq!(last, 96 * 4);
        assert_eq!((stats.plans_compiled, stats.plans_filled), (0, 0), "{stats:?}");
        assert_eq!(cache.to_vec::<f32>().unwrap(), wanted);
    }
}

#[test]
fn from_the_start_a_loop_over_positions_makes_two_plans() {
    let _device = alone();
    let row = data(&[1, 16], 1);
    row.compute().unwrap();
    let stats = counted(|| {
        let mut cache = Tensor::zeros([150, 16], DType::F32, &device());
        for position in 0..150 {
            cache = cache.write_rows(0, position, &row.add(position as f32));
            cache.compute().unwrap();
        }
    });
    // The first makes the cache, too.
    assert_eq!((stats.plans_compiled, stats.plans_filled), (2, 0), "{stats:?}");
    assert_eq!(stats.submits, 150, "{stats:?}");
    assert!(stats.dispatches <= 152, "{stats:?}");
    assert!(stats.buffers_created <= 4, "{stats:?}");
}

#[test]
fn rows_come_from_any_kernel_and_go_into_any_value() {
    let _device = shared();
    let (a, b) = (data(&[6, 5], 1), data(&[5, 4], 2));
    let bases = [data(&[9, 4], 3), data(&[9, 4], 4).mul(3.0), data(&[4, 9], 5).t(), data(&[36], 6).reshape([9, 4])];
    let rows: [Tensor; 5] = [
        a.matmul(&b).relu(),
        data(&[6, 4, 7], 7).sum(2),
        data(&[6, 4], 8).cumsum(0),
        data(&[4, 6], 9).t(),
        data(&[1, 4], 10).broadcast_to([6, 4]),
    ];
    for base in &bases {
        for rows in &rows {
            let y = base.write_rows(0, 2, rows);
            let (x, new) = (base.to_vec::<f32>().unwrap(), rows.to_vec::<f32>().unwrap());
            assert_eq!(y.to_vec::<f32>().unwrap(), written(&x, &[9, 4], 0, 2, &new, 6));
        }
    }
}

#[test]
fn rows_that_are_made_of_what_they_are_written_into_see_it_as_it_was() {
    let _device = shared();
    for position in [0, 3, 5] {
        let x = data(&[8, 4], 1);
        let before = x.to_vec::<f32>().unwrap();
        let rows = x.rows_at(0, 1, 3).mul(2.0).add(x.narrow(0, 4, 3));
        let new: Vec<f32> = (0..12).map(|i| before[4 + i] * 2.0 + before[16 + i]).collect();
        let y = x.write_rows(0, position, &rows);
        drop(x);
        assert_eq!(y.to_vec::<f32>().unwrap(), written(&before, &[8, 4], 0, position, &new, 3));
    }
}

#[test]
fn several_writes_of_one_evaluation_each_see_what_they_are_made_of() {
    let _device = shared();
    let (x, first, second) = (data(&[10, 3], 1), data(&[2, 3], 2), data(&[4, 3], 3));
    let [v, a, b] = [&x, &first, &second].map(|t| t.to_vec::<f32>().unwrap());
    // One after another, and two of the same base; the sum needs the base as it was.
    let both = x.write_rows(0, 1, &first.neg()).write_rows(0, 2, &second);
    let (one, two, sum) = (x.write_rows(0, 5, &first), x.write_rows(0, 6, &second), x.sum(0));
    lazuli::compute(&[&both, &one, &two, &sum]).unwrap();
    let negative: Vec<f32> = a.iter().map(|v| -v).collect();
    let wanted = written(&written(&v, &[10, 3], 0, 1, &negative, 2), &[10, 3], 0, 2, &b, 4);
    assert_eq!(both.to_vec::<f32>().unwrap(), wanted);
    assert_eq!(one.to_vec::<f32>().unwrap(), written(&v, &[10, 3], 0, 5, &a, 2));
    assert_eq!(two.to_vec::<f32>().unwrap(), written(&v, &[10, 3], 0, 6, &b, 4));
    let sums: Vec<f32> = (0..3).map(|c| (0..10).map(|r| v[r * 3 + c]).sum()).collect();
    assert_eq!(sum.to_vec::<f32>().unwrap(), sums);
}

#[test]
fn an_earlier_stage_keeps_what_a_later_one_writes_into() {
    let _device = shared();
    let (x, row) = (data(&[6, 4], 1), data(&[1, 4], 2));
    let v = x.to_vec::<f32>().unwrap();
    let first = x.mul(2.0);
    let second = first.write_rows(0, 3, &row.mul(3.0));
    let third = second.write_rows(0, 4, &first.rows_at(0, 0, 1));
    lazuli::compute_staged(&[&[&first], &[&second], &[&third, &second.sum(1)]]).unwrap();
    let doubled: Vec<f32> = v.iter().map(|v| v * 2.0).collect();
    let tripled: Vec<f32> = row.to_vec::<f32>().unwrap().iter().map(|v| v * 3.0).collect();
    let after = written(&doubled, &[6, 4], 0, 3, &tripled, 1);
    assert_eq!(first.to_vec::<f32>().unwrap(), doubled);
    assert_eq!(second.to_vec::<f32>().unwrap(), after);
    assert_eq!(third.to_vec::<f32>().unwrap(), written(&after, &[6, 4], 0, 4, &doubled[..4], 1));
}

#[test]
fn rows_are_written_beside_checks_and_commits() {
    let _device = shared();
    let table = data(&[5, 3], 1);
    for (word, fails) in [(4, false), (9, true)] {
        let old = data(&[6, 3], 2);
        let before = old.to_vec::<f32>().unwrap();
        let index = Tensor::from_slice(&[word], [1], &device());
        let row = table.embedding(&index);
        let new = old.write_rows(0, 2, &row).unless_failed(&old);
        let committed = old.add(1.0).unless_failed(&old).write_rows(0, 1, &row.mul(2.0));
        // A GPU says that something failed when what depends on it is read.
        let computed = lazuli::compute(&[&new, &committed]).and_then(|_| committed.to_vec::<f32>());
        assert_eq!(computed.is_err(), fails);
        match fails {
            true => assert_eq!(new.to_vec::<f32>().unwrap(), before),
            false => {
                let row = table.narrow(0, 4, 1).to_vec::<f32>().unwrap();
                assert_eq!(new.to_vec::<f32>().unwrap(), written(&before, &[6, 3], 0, 2, &row, 1));
                let (more, twice): (Vec<f32>, Vec<f32>) =
                    (before.iter().map(|v| v + 1.0).collect(), row.iter().map(|v| v * 2.0).collect());
                assert_eq!(committed.to_vec::<f32>().unwrap(), written(&more, &[6, 3], 0, 1, &twice, 1));
            }
        }
    }
}

#[test]
fn gradients_go_to_the_rows_and_around_them() {
    let _device = shared();
    let (x, rows, weights) = (data(&[5, 3], 1).tracked(), data(&[2, 3], 2).tracked(), data(&[5, 3], 3));
    let w = weights.to_vec::<f32>().unwrap();
    let y = x.write_rows(0, 2, &rows);
    let loss = y.mul(&weights).sum(..);
    let [dx, drows] = &loss.grad(&[&x, &rows])[..] else { panic!("two gradients") };
    assert_eq!(dx.to_vec::<f32>().unwrap(), written(&w, &[5, 3], 0, 2, &[0.0; 6], 2));
    assert_eq!(drows.to_vec::<f32>().unwrap(), read(&w, &[5, 3], 0, 2, 2));
    let part = data(&[2, 3], 4);
    let loss = x.rows_at(0, 1, 2).mul(&part).sum(..);
    let dx = loss.grad(&[&x])[0].to_vec::<f32>().unwrap();
    assert_eq!(dx, written(&[0.0; 15], &[5, 3], 0, 1, &part.to_vec::<f32>().unwrap(), 2));
    // A tracked tensor is held by its graph, so that nothing is written over it.
    assert_eq!(y.detach().rows_at(0, 2, 2).to_vec::<f32>().unwrap(), rows.to_vec::<f32>().unwrap());
    assert_eq!(x.to_vec::<f32>().unwrap(), data(&[5, 3], 1).to_vec::<f32>().unwrap());
}

#[test]
fn rows_at_a_position_are_read_by_all_kinds_of_kernels() {
    let _device = shared();
    let table = data(&[12, 8], 1);
    let x = data(&[2, 8], 2);
    for position in [0, 3, 10] {
        let (at, plain) = (table.rows_at(0, position, 2), table.narrow(0, position, 2));
        let all = |rows: &Tensor| {
            [
                x.mul(rows).add(rows.flip(1)),
                rows.pad(&[(1, 2), (0, 1)], 0.5).mul(2.0),
                rows.sum(0),
                rows.max(1),
                rows.t().matmul(&x),
                rows.reshape([4, 4]).t().mul(3.0),
                rows.cumsum(1),
                rows.narrow(0, 0, 1).broadcast_to([3, 8]).exp().sub(rows.narrow(0, 1, 1)),
                rows.sum(..),
            ]
        };
        for (i, (found, wanted)) in all(&at).iter().zip(all(&plain)).enumerate() {
            assert_eq!(found.to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap(), "{i} at {position}");
        }
        let columns = (table.rows_at(1, position / 2, 3).exp(), table.narrow(1, position / 2, 3).exp());
        assert_eq!(columns.0.to_vec::<f32>().unwrap(), columns.1.to_vec::<f32>().unwrap());
    }
}

#[test]
fn a_loop_that_reads_at_positions_plans_once_and_reads_the_rows_alone() {
    let _device = alone();
    let (table, x) = (data(&[200, 32], 1), data(&[1, 32], 2));
    lazuli::compute(&[&table, &x]).unwrap();
    let stats = counted(|| {
        for position in 0..200 {
            let y = x.mul(table.rows_at(0, position, 1));
            let plan = lazuli::explain(&[&y]).unwrap();
            assert_eq!((plan.kernels.len(), plan.bytes_moved), (1, 3 * 32 * 4), "{plan}");
            y.compute().unwrap();
        }
    });
    assert_eq!((stats.plans_compiled, stats.plans_filled), (1, 0), "{stats:?}");
}

#[test]
fn rows_that_do_not_fit_are_refused_with_op_shapes_and_position() {
    let x = data(&[4, 3], 1);
    let text = |y: Tensor| y.compute().unwrap_err().to_string();
    let far = text(x.write_rows(0, 3, &data(&[2, 3], 2)));
    assert!(far.starts_with("write_rows: rows [2, 3] from 3 on do not fit axis 0 of [4, 3]"), "{far}");
    let beside = text(x.write_rows(0, 0, &data(&[1, 2], 2)));
    assert!(beside.starts_with("write_rows: rows [1, 2] and [4, 3] differ in more than axis 0"), "{beside}");
    let dtype = text(x.write_rows(0, 0, &data(&[1, 3], 2).to_dtype(DType::F16)));
    assert!(dtype.starts_with("write_rows: the rows are f16, what they are written into is f32"), "{dtype}");
    let axis = text(x.write_rows(2, 0, &data(&[1, 3], 2)));
    assert!(axis.starts_with("write_rows: "), "{axis}");
    let read = text(x.rows_at(1, 2, 2));
    assert!(read.starts_with("rows_at: 2 elements from 2 on do not fit axis 1 of [4, 3]"), "{read}");
    for huge in [usize::MAX, 1 << 40] {
        assert!(x.write_rows(0, huge, &data(&[1, 3], 2)).check().is_err());
        assert!(x.rows_at(0, huge, 1).check().is_err());
    }
    // No rows change nothing, wherever they are.
    let none = x.write_rows(0, 4, &Tensor::zeros([0, 3], DType::F32, &device()));
    assert_eq!(none.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    assert_eq!(x.rows_at(0, 4, 0).shape().unwrap(), [0, 3]);
}

/// A step of decoding: the new cache and what the query sees of it.
fn decode(k: &Tensor, v: &Tensor, [q, key, value]: [&Tensor; 3], position: usize) -> [Tensor; 3] {
    let (k, v) = (k.write_rows(1, position, key), v.write_rows(1, position, value));
    let seen = Attention { length: Some((position + 1).into()), ..Attention::default() };
    [q.attention(&k, &v, seen), k, v]
}

#[test]
fn decoding_over_a_cache_that_is_written_plans_at_most_twice_and_takes_no_memory() {
    let _device = alone();
    const LONGEST: usize = 150;
    let data = |seed: usize| data(&[4, 1, 16], seed).mul(0.02).compute().unwrap();
    let steps: Vec<[Tensor; 3]> = (0..LONGEST).map(|i| [data(i), data(i + 500), data(i + 900)]).collect();
    let empty = || Tensor::zeros([4, LONGEST, 16], DType::F32, &device()).compute().unwrap();
    let (mut k, mut v) = (empty(), empty());
    let mut results = Vec::new();
    let device = device();
    device.trim();
    let mut after_two = Stats::default();
    device.reset_stats();
    for (position, [q, key, value]) in steps.iter().enumerate() {
        let [y, new_k, new_v] = decode(&k, &v, [q, key, value], position);
        (k, v) = (new_k, new_v);
        if position == 100 {
            // The rows are all that is written of the caches.
            let plan = lazuli::explain(&[&y, &k, &v]).unwrap();
            let is_copy = |op: &String| op == "copy";
            assert!(!plan.kernels.iter().any(|kernel| kernel.ops.iter().any(is_copy)), "{plan}");
            let written: usize = plan.kernels.iter().map(|kernel| kernel.bytes_written).sum();
            assert!(written < 4 * LONGEST * 16 * 4, "{plan}");
        }
        lazuli::compute(&[&y, &k, &v]).unwrap();
        results.push(y.to_vec::<f32>().unwrap());
        if position == 1 {
            after_two = device.stats();
        }
    }
    let stats = device.stats();
    assert!(stats.plans_compiled <= 2, "{stats:?}");
    assert_eq!(stats.plans_filled, 0, "{stats:?}");
    assert_eq!(stats.buffers_created, after_two.buffers_created, "{stats:?}");
    assert_eq!(stats.pipelines_compiled, after_two.pipelines_compiled, "{stats:?}");
    // As f64 says: a softmax over the keys that there are.
    let cells = |t: &Tensor| -> Vec<f64> { t.to_vec::<f32>().unwrap().iter().map(|x| *x as f64).collect() };
    let known: Vec<[Vec<f64>; 3]> = steps.iter().map(|step| step.each_ref().map(cells)).collect();
    for (position, found) in results.iter().enumerate() {
        for head in 0..4 {
            let part = |x: &[f64]| x[head * 16..(head + 1) * 16].to_vec();
            let q = part(&known[position][0]);
            let dot = |k: Vec<f64>| k.iter().zip(&q).map(|(a, b)| a * b).sum::<f64>() / 4.0;
            let weights: Vec<f64> = (0..=position).map(|i| dot(part(&known[i][1])).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for column in 0..16 {
                let wanted: f64 = (0..=position).map(|i| weights[i] / sum * known[i][2][head * 16 + column]).sum();
                let got = found[head * 16 + column] as f64;
                assert!((got - wanted).abs() < 1e-5, "{position}, {head}, {column}: {got}, {wanted}");
            }
        }
    }
}

#[test]
fn a_length_counts_the_keys_that_there_are() {
    let _device = shared();
    let (q, k, v) = (data(&[2, 3, 8], 1).mul(0.1), data(&[2, 9, 8], 2).mul(0.1), data(&[2, 9, 8], 3));
    for length in [0, 1, 3, 8, 9] {
        for (causal, window) in [(false, None), (true, None), (true, Some(2)), (false, Some(2))] {
            let options = Attention { causal, window, ..Attention::default() };
            let found = q.attention(&k, &v, Attention { length: Some(length.into()), ..options });
            let wanted = match length {
                0 => Tensor::zeros([2, 3, 8], DType::F32, &device()),
                _ => q.attention(&k.narrow(1, 0, length), &v.narrow(1, 0, length), options),
            };
            let (found, wanted) = (found.to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap());
            let far = found.iter().zip(&wanted).position(|(a, b)| (a - b).abs() > 1e-4);
            assert_eq!(far, None, "{length}, {causal}, {window:?}: {found:?} {wanted:?}");
        }
    }
    let far = q.attention(&k, &v, Attention { length: Some(10.into()), ..Attention::default() }).check().unwrap_err();
    assert!(far.to_string().starts_with("attention: a length of 10 is more than the 9 keys that there are"), "{far}");
}
