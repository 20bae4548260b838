//! `unless_failed`: what one evaluation makes of the last survives an evaluation that fails.

use lazuli::{DType, Device, Error, Tensor, keep};

use crate::device::device;
use crate::{alone, shared};

fn ints<const N: usize>(values: [i32; N]) -> Tensor {
    Tensor::from_slice(&values, [N], &device())
}

fn floats<const N: usize>(values: [f32; N]) -> Tensor {
    Tensor::from_slice(&values, [N], &device())
}

/// Computes these together; the error is that of an index, found at once or when the first is read.
#[track_caller]
fn fails(tensors: &[&Tensor]) {
    let error = lazuli::compute(tensors).and_then(|()| tensors[0].to_vec::<f32>()).unwrap_err();
    assert!(matches!(error, Error::Index(_)), "{error}");
}

#[test]
fn a_failed_evaluation_leaves_what_was_there() {
    let _device = shared();
    let table = floats([1.0, 2.0, 3.0, 4.0]).reshape([4, 1]);
    for held in [true, false] {
        let old = floats([10.0, 20.0]);
        let keep = held.then(|| old.clone());
        let rows = table.embedding(&ints([1, 4])).reshape([2]);
        let mut kept = old.add(&rows).unless_failed(&old);
        drop(old);
        fails(&[&rows, &kept]);
        assert_eq!(kept.to_vec::<f32>().unwrap(), [10.0, 20.0]);
        assert_eq!(keep.map(|t| t.to_vec::<f32>().unwrap()), held.then(|| vec![10.0, 20.0]));
        // It goes on from there.
        for index in [[0, 1], [-1, 0], [3, 3]] {
            let rows = table.embedding(&ints(index)).reshape([2]);
            kept = kept.add(&rows).unless_failed(&kept);
            match index[0] < 0 {
                true => fails(&[&rows, &kept]),
                false => lazuli::compute(&[&rows, &kept]).unwrap(),
            }
        }
        assert_eq!(kept.to_vec::<f32>().unwrap(), [10.0 + 1.0 + 4.0, 20.0 + 2.0 + 4.0]);
    }
}

#[test]
fn a_lookup_that_has_nothing_to_do_with_it_counts_too() {
    let _device = shared();
    let (old, table) = (floats([1.0, 2.0, 3.0]), floats([0.0, 1.0]).reshape([2, 1]));
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::Bool] {
        let old = old.to_dtype(dtype).compute().unwrap();
        let kept = old.logical_not().to_dtype(dtype).unless_failed(&old);
        let rows = table.embedding(&ints([0, 2]));
        fails(&[&rows, &kept]);
        assert_eq!(
            kept.to_dtype(DType::F32).to_vec::<f32>().unwrap(),
            old.to_dtype(DType::F32).to_vec::<f32>().unwrap()
        );
    }
}

#[test]
fn products_reductions_and_parts_are_left_as_they_were() {
    let _device = shared();
    let device = device();
    let read = |t: &Tensor| t.to_vec::<f32>().unwrap();
    for n in [5usize, 64, 300] {
        // Whole numbers: their sums are exact in whatever order a plan adds them.
        let x = Tensor::rand([n, n], 1, &device).mul(8).floor().compute().unwrap();
        let makers: [fn(&Tensor) -> Tensor; 6] = [
            |x| x.matmul(x),
            |x| x.matmul(x).mul(0.5).add(x),
            |x| x.sum(0),
            |x| x.sub(&x.max(keep(-1))).sum(1),
            |x| Tensor::cat(&[&x.exp(), x], 0),
            |x| x.cumsum(0),
        ];
        for (i, make) in makers.iter().enumerate() {
            let new = make(&x);
            let old = Tensor::rand(new.shape().unwrap(), 7, &device);
            // As memory that is held, memory that is not, and something that is yet to be computed.
            for k in 0..3 {
                let old = if k == 2 {
                    old.detach()
                } else {
                    Tensor::rand(new.shape().unwrap(), 7, &device).compute().unwrap()
                };
                let keep = (k == 0).then(|| old.clone());
                let kept = new.unless_failed(&old);
                let want = read(&Tensor::rand(new.shape().unwrap(), 7, &device));
                drop(old);
                fails(&[&x.embedding(&ints([0, n as i32])), &kept]);
                assert_eq!(read(&kept), want, "{n} {i} {k}");
                drop(keep);
            }
            // With a good index it is the new one.
            let kept = new.unless_failed(&old);
            lazuli::compute(&[&x.embedding(&ints([0, n as i32 - 1])), &kept]).unwrap();
            assert_eq!(read(&kept), read(&new), "{n} {i}");
        }
    }
}

#[test]
fn several_in_a_row_are_all_as_before() {
    let _device = shared();
    let old = floats([1.0, 2.0]);
    let first = old.add(1.0).unless_failed(&old);
    let second = first.mul(10.0).unless_failed(&first);
    let rows = old.reshape([2, 1]).embedding(&ints([5]));
    fails(&[&rows, &second, &first]);
    assert_eq!(second.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(first.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_look_at_it_is_as_good_as_itself() {
    let _device = shared();
    let old = floats([1.0, 2.0, 3.0, 4.0]);
    let kept = old.add(1.0).unless_failed(&old);
    let (seen, tracked) = (kept.reshape([2, 2]), kept.tracked());
    let rows = old.reshape([4, 1]).embedding(&ints([5]));
    fails(&[&rows, &seen, &tracked]);
    assert_eq!(seen.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(tracked.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn what_was_there_before_must_be_good_itself() {
    let _device = shared();
    let table = floats([1.0, 2.0]).reshape([2, 1]);
    let old = table.embedding(&ints([7]));
    let kept = table.embedding(&ints([0])).unless_failed(&old);
    fails(&[&kept]);
    assert!(matches!(kept.to_vec::<f32>(), Err(Error::Index(_))));
}

#[test]
fn a_failure_of_an_earlier_evaluation_counts() {
    let _device = shared();
    let table = floats([1.0, 2.0]).reshape([2, 1]);
    let rows = table.embedding(&ints([0, 9]));
    // On a GPU nobody knows yet.
    let _ = rows.compute();
    let old = floats([5.0]);
    let kept = old.add(rows.sum(0)).unless_failed(&old);
    drop(old);
    assert!(matches!(kept.compute().and_then(|k| k.add(&rows.sum(0)).to_vec::<f32>()), Err(Error::Index(_))));
    assert_eq!(kept.to_vec::<f32>().unwrap(), [5.0]);
}

#[test]
fn no_memory_leaves_what_was_there() {
    let _device = shared();
    let old = floats([5.0]);
    let kept = old.add(1.0).unless_failed(&old);
    drop(old);
    let huge = Tensor::rand([1 << 21, 1 << 21], 1, &device());
    assert!(matches!(lazuli::compute(&[&kept, &huge]), Err(Error::OutOfMemory(_))));
    assert_eq!(kept.add(1.0).to_vec::<f32>().unwrap(), [6.0]);
    assert_eq!(kept.to_vec::<f32>().unwrap(), [5.0]);
}

#[test]
fn gradients_go_to_what_is_new() {
    let _device = shared();
    let (w, old) = (floats([1.0, 2.0]).tracked(), floats([7.0, 8.0]).tracked());
    let kept = w.square().unless_failed(&old);
    let grads = kept.sum(..).grad(&[&w, &old]);
    assert_eq!(grads[0].to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(grads[1].to_vec::<f32>().unwrap(), [0.0, 0.0]);
}

#[test]
fn what_cannot_take_the_others_place_is_an_error() {
    let _device = shared();
    let old = floats([1.0, 2.0]);
    let said = |new: Tensor| new.unless_failed(&old).check().unwrap_err().to_string();
    let shape = said(floats([1.0, 2.0, 3.0]));
    assert!(shape.starts_with("unless_failed: [3] cannot take the place of [2]: shapes must be equal"), "{shape}");
    let dtype = said(ints([1, 2]));
    assert!(dtype.starts_with("unless_failed: i32 cannot take the place of f32; cast it with to_dtype"), "{dtype}");
    assert!(dtype.contains("kept.rs"), "{dtype}");
    let _ = Device::cpu();
}

#[test]
fn a_loop_by_hand_runs_in_place_and_survives_bad_batches() {
    let _device = alone();
    let device = device();
    let table = Tensor::rand([64, 256], 1, &device).compute().unwrap();
    let batches: Vec<Tensor> = (0..4).map(|i| ints([i, 63, if i == 2 { 64 } else { 5 }, 7])).collect();
    let mut state = Tensor::zeros([256], DType::F32, &device).compute().unwrap();
    let mut want = vec![0.0f32; 256];
    // What other tests have left is not this one's.
    let _ = device.sync();
    for i in 0..16 {
        device.reset_stats();
        let live = device.stats().bytes_live;
        let rows = table.embedding(&batches[i % 4]);
        let before = state.detach();
        state = before.mul(0.5).add(rows.sum(0)).unless_failed(&before);
        drop((rows, before));
        let done = lazuli::compute(&[&state]).and_then(|()| device.sync());
        assert_eq!(done.is_err(), i % 4 == 2, "{i}: {done:?}");
        let stats = device.stats();
        if i >= 4 {
            assert_eq!((stats.plans_compiled, stats.pipelines_compiled, stats.buffers_created), (0, 0, 0), "{i}");
            assert_eq!(stats.bytes_live, live, "{i}");
        }
        if i % 4 != 2 {
            let sum = table.embedding(&batches[i % 4]).sum(0).to_vec::<f32>().unwrap();
            want.iter_mut().zip(sum).for_each(|(w, s)| *w = *w * 0.5 + s);
        }
    }
    let got = state.to_vec::<f32>().unwrap();
    assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?}\n{want:?}");
}
