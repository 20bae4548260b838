//! Evaluations that are recorded once and run with other tensors and positions: the same numbers as evaluations that are
//! recorded anew, no memory that is not the caller's to give, and errors instead of rows out of range.

use lazuli::{Attention, DType, Position, Recording, Tensor};

use crate::device::device;
use crate::{alone, shared};

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (((i * 31 + seed * 17) % 97) as f32 - 40.0) * 0.02).collect();
    Tensor::from_vec(values, shape, &device()).compute().unwrap()
}

const LONGEST: usize = 40;

/// A step of decoding: what a query sees of a cache with one more row, and the cache.
fn decode(k: &Tensor, v: &Tensor, x: &Tensor, position: Position) -> [Tensor; 3] {
    let turned = x.mul(data(&[LONGEST, 16], 7).rows_at(0, position, 1));
    let (k, v) = (k.write_rows(1, position, &turned), v.write_rows(1, position, x));
    let seen = Attention { causal: true, length: Some(position + 1), ..Attention::default() };
    [x.attention(&k, &v, seen).detach(), k.detach(), v.detach()]
}

fn empty() -> Tensor {
    Tensor::zeros([4, LONGEST, 16], DType::F32, &device()).compute().unwrap()
}

#[test]
fn a_recording_gives_what_recording_anew_gives_and_takes_no_memory() {
    let _device = alone();
    let position = Position::open(0);
    let steps: Vec<Tensor> = (0..LONGEST).map(|i| data(&[4, 1, 16], i)).collect();
    let (mut k, mut v) = (empty(), empty());
    let mut wanted = Vec::new();
    for (i, x) in steps.iter().enumerate() {
        let [y, new_k, new_v] = decode(&k, &v, x, position.moved_to(i));
        lazuli::compute(&[&y, &new_k, &new_v]).unwrap();
        wanted.push(y.to_vec::<f32>().unwrap());
        (k, v) = (new_k, new_v);
    }

    let (empty_k, empty_v) = (empty(), empty());
    let made = decode(&empty_k, &empty_v, &steps[0], position);
    let recording = Recording::new(&[&empty_k, &empty_v, &steps[0]], &made.each_ref()).unwrap();
    drop(made);
    let mut cache = vec![empty_k, empty_v];
    let device = device();
    let mut before = device.stats();
    for (i, x) in steps.into_iter().enumerate() {
        if i == 2 {
            before = device.stats();
        }
        cache.push(x);
        let mut made = recording.run(&mut cache, &[position.moved_to(i)]).unwrap();
        assert!(cache.is_empty(), "what was given up is gone");
        assert_eq!(made[0].to_vec::<f32>().unwrap(), wanted[i], "row {i}");
        cache = made.split_off(1);
    }
    let after = device.stats();
    let kept = |stats: &lazuli::Stats| [stats.plans_compiled, stats.plans_filled, stats.buffers_created];
    assert_eq!(kept(&after), kept(&before));
    let cells = |x: &Tensor| x.to_vec::<f32>().unwrap();
    assert_eq!((cells(&cache[0]), cells(&cache[1])), (cells(&k), cells(&v)));
}

#[test]
fn a_tensor_that_somebody_else_holds_is_copied_and_one_that_waits_is_computed() {
    let _device = shared();
    let (x, row, position) = (data(&[4, 3], 1), data(&[1, 3], 2), Position::open(0));
    let written = x.write_rows(0, position, &row);
    let recording = Recording::new(&[&x, &row], &[&written]).unwrap();
    let before = x.to_vec::<f32>().unwrap();
    let view = x.reshape([12]).compute().unwrap();
    for at in [3, 1] {
        // Not computed yet, held twice, or its memory seen by another.
        let waiting = row.mul(2.0);
        let made = recording.run(&mut vec![x.clone(), waiting], &[position.moved_to(at)]).unwrap();
        let wanted = x.write_rows(0, at, &row.mul(2.0));
        assert_eq!(made[0].to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap());
    }
    drop(x);
    assert_eq!(view.to_vec::<f32>().unwrap(), before);
}

#[test]
fn a_recording_that_only_reads_writes_over_no_input_and_hands_back_what_is_there() {
    let _device = alone();
    let (x, weight) = (data(&[64, 3], 1), data(&[3], 2));
    let sum = |x: &Tensor| x.add(&weight).relu();
    let recording = Recording::reading(&[&x], &[&sum(&x), &x, &weight]).unwrap();
    let (y, before) = (data(&[64, 3], 5), data(&[64, 3], 5).to_vec::<f32>().unwrap());
    let wanted = sum(&y).to_vec::<f32>().unwrap();
    for _ in 0..3 {
        // Held by nobody but the list: memory that a recording made by `new` would take.
        let mut given = vec![y.add(0.0).compute().unwrap()];
        let made = recording.run(&mut given, &[]).unwrap();
        assert!(given.is_empty());
        let made: Vec<Vec<f32>> = made.iter().map(|made| made.to_vec().unwrap()).collect();
        assert_eq!(made, [wanted.clone(), before.clone(), weight.to_vec().unwrap()]);
    }
    // Nothing is to be computed.
    let recording = Recording::reading(&[&x], &[&x]).unwrap();
    let mut given = vec![y];
    assert_eq!(recording.run(&mut given, &[]).unwrap()[0].to_vec::<f32>().unwrap(), before);
    assert!(given.is_empty());
}

#[test]
fn positions_out_of_range_and_other_tensors_are_errors_that_leave_everything_as_it_was() {
    let _device = shared();
    let (x, row, position) = (data(&[4, 3], 1), data(&[2, 3], 2), Position::open(1));
    let table = data(&[8, 3], 3);
    let sum = |x: &Tensor, position: Position| x.write_rows(0, position, &row).add(table.rows_at(0, position + 1, 4));
    let written = sum(&x, position);
    let recording = Recording::new(&[&x, &row], &[&written]).unwrap();
    let mut given = vec![data(&[4, 3], 5), row.clone()];
    for far in [3, usize::MAX >> 1] {
        let error = recording.run(&mut given, &[position.moved_to(far)]).unwrap_err().to_string();
        assert!(error.starts_with("recording: position") && error.contains("out of range"), "{error}");
        assert_eq!(given.len(), 2);
    }
    for (mut wrong, says) in [
        (vec![x.clone()], "wants 2 tensors, not 1"),
        (vec![x.clone(), x.clone()], "tensor 1 is f32[4, 3], not f32[2, 3]"),
        (vec![x.to_dtype(DType::F16), row.clone()], "tensor 0 is f16[4, 3], not f32[4, 3]"),
    ] {
        let error = recording.run(&mut wrong, &[]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(!wrong.is_empty());
    }
    // Where it was recorded.
    let made = recording.run(&mut given, &[]).unwrap();
    assert!(given.is_empty());
    let wanted = sum(&data(&[4, 3], 5), 1.into());
    assert_eq!(made[0].to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap());
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let _device = shared();
    let x = data(&[2, 2], 1);
    let says = |outcome: lazuli::Result<Recording>| outcome.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(says(Recording::new(&[&x], &[])).contains("nothing to compute"));
    assert!(says(Recording::new(&[&x], &[&x])).contains("computed already"));
    // Runs would read what was recorded instead of what they are given.
    let waiting = x.mul(2.0);
    assert!(
        says(Recording::reading(&[&x, &waiting], &[&waiting.exp()])).contains("input 1, f32[2, 2], is not computed")
    );
    assert!(says(Recording::reading(&[&x, &x], &[&x.add(&x)])).contains("input 1, f32[2, 2], is given twice"));
}

#[test]
fn an_index_out_of_range_is_found_in_a_run() {
    let _device = shared();
    let (table, index) = (data(&[4, 3], 1), Tensor::from_vec(vec![0i32, 3], [2], &device()).compute().unwrap());
    let found = table.embedding(&index);
    let recording = Recording::new(&[&index], &[&found]).unwrap();
    let ask = |places: Vec<i32>| {
        let mut given = vec![Tensor::from_vec(places, [2], &device())];
        recording.run(&mut given, &[]).and_then(|made| made[0].to_vec::<f32>())
    };
    assert_eq!(ask(vec![1, 2]).unwrap(), table.narrow(0, 1, 2).to_vec::<f32>().unwrap());
    let error = ask(vec![1, 4]).unwrap_err().to_string();
    assert!(error.contains("index 4 is out of range for an axis of size 4"), "{error}");
}
