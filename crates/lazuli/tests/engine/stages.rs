//! Stages: one plan, one submit each, nothing computed twice, the same bits, and what a caller sees in between.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli::{CustomOp, DType, Device, Error, Explain, Tensor, compute_staged, compute_staged_with, explain_staged};

use crate::device::device;
use crate::{alone, shared};

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), shape, &device())
}

fn flops(plan: &Explain) -> usize {
    plan.kernels.iter().map(|kernel| kernel.flops).sum()
}

/// Gradients of a net of four layers, the last layer's first, a stage each.
fn layers() -> Vec<Vec<Tensor>> {
    let widths = [12, 24, 16, 20, 5];
    let weights: Vec<Tensor> = widths.windows(2).enumerate().map(|(i, w)| data(&[w[0], w[1]], i)).collect();
    let biases: Vec<Tensor> = widths[1..].iter().enumerate().map(|(i, n)| data(&[*n], i + 7)).collect();
    let hidden = |x: Tensor, (w, b): (&Tensor, &Tensor)| x.matmul(w).add(b).gelu();
    let y = weights.iter().zip(&biases).fold(data(&[33, 12], 9), hidden);
    let loss = y.log_softmax(-1).square().mean(..);
    let of: Vec<&Tensor> = weights.iter().zip(&biases).rev().flat_map(|(w, b)| [w, b]).collect();
    loss.grad(&of).chunks(2).map(|pair| pair.to_vec()).collect()
}

/// Gradients of a block of attention with norms around it, in three stages.
fn block() -> Vec<Vec<Tensor>> {
    let (rows, width, heads) = (14, 24, 3);
    let norm = [0, 1].map(|i| [data(&[width], i), data(&[width], i + 3)]);
    let [qkv, out, up, down] =
        [[width, 3 * width], [width, width], [width, 2 * width], [2 * width, width]].map(|s| data(&s, s[0] + s[1]));
    let x = data(&[rows, width], 5);
    let seen = x.layer_norm(-1, Some(&norm[0][0]), Some(&norm[0][1]), 1e-5).matmul(&qkv);
    let parts = seen.reshape([rows, 3, heads, width / heads]).permute(&[1, 2, 0, 3]);
    let [q, k, v] = [0, 1, 2].map(|i| parts.select_index(0, i));
    let scores = q.matmul(&k.transpose(-1, -2)).mul(0.3).softmax(-1);
    let x = x.add(scores.matmul(&v).permute(&[1, 0, 2]).reshape([rows, width]).matmul(&out));
    let y = x.layer_norm(-1, Some(&norm[1][0]), Some(&norm[1][1]), 1e-5).matmul(&up).silu().matmul(&down).add(&x);
    let stages: [&[&Tensor]; 3] = [&[&down, &up], &[&norm[1][0], &norm[1][1], &out], &[&qkv, &norm[0][0], &norm[0][1]]];
    let grads = y.square().mean(..).grad(&stages.concat());
    let mut grads = grads.into_iter();
    stages.iter().map(|stage| grads.by_ref().take(stage.len()).collect()).collect()
}

/// Lists of references, as the calls take them.
macro_rules! lists {
    ($stages:expr) => {
        $stages.iter().map(|stage| stage.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
}

fn slices<'a>(lists: &'a [Vec<&'a Tensor>]) -> Vec<&'a [&'a Tensor]> {
    lists.iter().map(Vec::as_slice).collect()
}

fn bits(stages: &[Vec<Tensor>]) -> Vec<Vec<u32>> {
    let bits = |t: &Tensor| t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    stages.iter().flatten().map(bits).collect()
}

#[test]
fn stages_are_one_plan_and_a_submit_each() {
    let _device = alone();
    // Other tests may have planned the same.
    device().trim();
    for (make, n_stages) in [(layers as fn() -> Vec<Vec<Tensor>>, 4), (block, 3)] {
        for n_plans in [1, 0] {
            let stages = make();
            let lists = lists!(stages);
            device().sync().unwrap();
            device().reset_stats();
            compute_staged(&slices(&lists)).unwrap();
            let stats = device().stats();
            assert_eq!((stats.submits, stats.plans_compiled), (n_stages, n_plans), "{stats:?}");
        }
    }
}

#[test]
fn stages_compute_nothing_twice_and_give_the_same_bits() {
    let _device = shared();
    for make in [layers as fn() -> Vec<Vec<Tensor>>, block] {
        let (staged, together) = (make(), make());
        let lists = lists!(staged);
        let plan = explain_staged(&slices(&lists)).unwrap();
        let all: Vec<&Tensor> = together.iter().flatten().collect();
        let unstaged = lazuli::explain(&all).unwrap();
        assert_eq!(flops(&plan), flops(&unstaged), "{plan}\n{unstaged}");
        assert_eq!((plan.submits, plan.stages.len()), (staged.len(), staged.len()), "{plan}");
        assert_eq!(plan.stages.last(), Some(&plan.kernels.len()), "{plan}");
        assert!(plan.stages.is_sorted() && plan.stages[0] > 0, "{plan}");
        assert!(plan.to_string().contains("stage 1"), "{plan}");
        compute_staged(&slices(&lists)).unwrap();
        lazuli::compute(&all).unwrap();
        assert_eq!(bits(&staged), bits(&together));
    }
}

#[test]
fn a_stage_can_be_read_before_the_next_is_computed() {
    let _device = shared();
    let n_computed = Arc::new(AtomicUsize::new(0));
    let counted = n_computed.clone();
    let cpu = move |x: &[f32]| {
        counted.fetch_add(1, Ordering::Relaxed);
        x[0] + 1.0
    };
    let op = CustomOp { name: "counted".into(), wgsl: "$0 + 1.0".into(), cpu: Arc::new(cpu), grad: None };
    let x = data(&[64], 1);
    let first = x.exp();
    let second = Tensor::map_custom(&op, &[&first.mul(2.0)]);
    let mut seen = Vec::new();
    compute_staged_with(&[&[&first], &[&second]], |stage| {
        let values = [&first, &second][stage].to_vec::<f32>()?;
        seen.push((stage, n_computed.load(Ordering::Relaxed) > 0, values));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1]);
    if device() == Device::cpu() {
        assert_eq!((seen[0].1, seen[1].1), (false, true));
    }
    let expected: Vec<f32> = seen[0].2.iter().map(|x| x * 2.0 + 1.0).collect();
    assert_eq!(seen[1].2, expected);
    assert_eq!(first.to_vec::<f32>().unwrap(), seen[0].2);
}

#[test]
fn a_later_stage_reads_what_nobody_else_holds() {
    let _device = shared();
    let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.001).collect();
    let x = Tensor::from_slice(&values, [1000], &device()).add(0.0).compute().unwrap();
    let (first, second, third) = (x.mul(2.0), x.mul(3.0), x.mul(4.0));
    drop(x);
    compute_staged(&[&[&first], &[&second], &[&third]]).unwrap();
    for (tensor, factor) in [(first, 2.0), (second, 3.0), (third, 4.0)] {
        assert!(tensor.to_vec::<f32>().unwrap().iter().zip(&values).all(|(y, x)| *y == x * factor));
    }
}

#[test]
fn odd_lists_are_good() {
    let _device = shared();
    compute_staged(&[]).unwrap();
    compute_staged(&[&[], &[]]).unwrap();
    assert_eq!(explain_staged(&[&[], &[]]).unwrap(), Explain::default());
    let x = data(&[8], 1);
    let (a, b, c) = (x.exp(), x.sin(), x.cos());
    b.compute().unwrap();
    let mut called = Vec::new();
    // An empty stage, one tensor in two stages, and one that is there already.
    let stages: [&[&Tensor]; 5] = [&[], &[&a, &b], &[&a, &x], &[&c, &a], &[]];
    compute_staged_with(&stages, |stage| {
        stages[stage].iter().try_for_each(|tensor| tensor.to_vec::<f32>().map(drop))?;
        called.push(stage);
        Ok(())
    })
    .unwrap();
    assert_eq!(called, [0, 1, 2, 3, 4]);
    // Everything is there.
    compute_staged(&stages).unwrap();
    assert_eq!(explain_staged(&stages).unwrap().kernels.len(), 0);
    // One stage is no stage: the plan is that of `compute`.
    let y = x.tanh();
    assert_eq!(explain_staged(&[&[&y]]).unwrap(), lazuli::explain(&[&y]).unwrap());
    // No elements.
    let empty = Tensor::zeros([0, 3], DType::F32, &device()).add(1.0);
    compute_staged(&[&[&empty], &[&y], &[&empty.exp()]]).unwrap();
    assert!(empty.to_vec::<f32>().unwrap().is_empty());
}

#[test]
fn bad_lists_are_errors_and_compute_nothing() {
    let _device = shared();
    let x = data(&[8], 1);
    let good = x.exp();
    let bad = x.matmul(&data(&[3, 3], 2));
    assert!(matches!(compute_staged(&[&[&good], &[&bad]]), Err(Error::Shape(_))));
    assert!(matches!(explain_staged(&[&[&good], &[&bad]]), Err(Error::Shape(_))));
    let elsewhere = if device() == Device::cpu() { None } else { Some(Tensor::ones([4], DType::F32, &Device::cpu())) };
    if let Some(other) = elsewhere {
        let error = compute_staged(&[&[&good], &[&other.exp()]]).unwrap_err();
        assert!(matches!(&error, Error::Device(_)) && error.to_string().contains("compute_staged"), "{error}");
        // What is there already may be anywhere, and what must be brought is brought.
        let brought = other.exp().to_device(&device()).add(1.0);
        compute_staged(&[&[&other.compute().unwrap(), &brought], &[&brought.exp()]]).unwrap();
        assert_eq!(brought.to_vec::<f32>().unwrap(), [1f32.exp() + 1.0; 4]);
    }
    assert!(format!("{good:?}").contains("8"));
}

#[test]
fn a_function_that_fails_is_called_no_more_and_all_is_computed() {
    let _device = shared();
    let x = data(&[8], 1);
    let outputs = [x.exp(), x.sin(), x.cos()];
    let mut n_calls = 0;
    let result = compute_staged_with(&[&[&outputs[0]], &[&outputs[1]], &[&outputs[2]]], |_| {
        n_calls += 1;
        x.matmul(&data(&[3], 3)).check()
    });
    assert!(matches!(result, Err(Error::Shape(_))), "{result:?}");
    assert_eq!(n_calls, 1);
    let before = device().stats().submits;
    lazuli::compute(&outputs.iter().collect::<Vec<_>>()).unwrap();
    assert!(device().stats().submits >= before);
    assert!(explain_staged(&[&[&outputs[0], &outputs[1], &outputs[2]]]).unwrap().kernels.is_empty());
}

#[test]
fn a_function_may_use_what_is_there() {
    let _device = shared();
    let x = data(&[8], 1);
    let (first, second) = (x.exp(), x.sin());
    let mut found = Vec::new();
    compute_staged_with(&[&[&first], &[&second]], |stage| {
        if stage == 0 {
            found.push(first.add(1.0).compute().map(drop));
            found.push(second.compute().map(drop));
            device().trim();
        }
        Ok(())
    })
    .unwrap();
    for result in found {
        match device() == Device::cpu() {
            // The CPU is in the middle of it.
            true => assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}"),
            false => result.unwrap(),
        }
    }
    // Afterwards everything goes.
    assert_eq!(first.add(1.0).to_vec::<f32>().unwrap().len(), 8);
    assert_eq!(second.to_vec::<f32>().unwrap(), x.sin().to_vec::<f32>().unwrap());
}

#[test]
fn a_function_that_panics_leaves_what_was_done() {
    let _device = shared();
    let x = data(&[64], 1).add(0.5).compute().unwrap();
    let (first, second) = (x.exp(), x.sin());
    drop(x);
    let panicked =
        catch_unwind(AssertUnwindSafe(|| compute_staged_with(&[&[&first], &[&second]], |_| panic!("in the middle"))));
    assert!(panicked.is_err());
    assert_eq!(first.to_vec::<f32>().unwrap().len(), 64);
    // The second is there, was not begun, or can never be computed; whatever it is, it is said.
    let _ = second.to_vec::<f32>().map_err(|error| assert!(error.to_string().contains("panic"), "{error}"));
    assert_eq!(data(&[4], 1).exp().to_vec::<f32>().unwrap().len(), 4);
}

/// An index out of range in the last of three stages, and what becomes of the others. Inputs that nobody holds are
/// overwritten on the way.
#[test]
fn a_stage_that_fails_leaves_what_came_before() {
    let _device = shared();
    let table = data(&[4, 8], 1);
    let x = data(&[8], 2).add(0.0).compute().unwrap();
    let expected = x.exp().to_vec::<f32>().unwrap();
    let bad = Tensor::from_slice(&[9i32], [1], &device());
    let (first, second) = (x.exp(), x.exp().sum(..));
    let third = table.embedding(&bad).add(&x);
    drop(x);
    let mut called = Vec::new();
    let computed = compute_staged_with(&[&[&first], &[&second], &[&third]], |stage| {
        called.push(stage);
        Ok(())
    });
    let error = computed.and_then(|()| third.to_vec::<f32>().map(drop)).unwrap_err();
    assert!(matches!(error, Error::Index(_)), "{error}");
    assert!(called.starts_with(&[0, 1]), "{called:?}");
    assert_eq!(first.to_vec::<f32>().unwrap(), expected);
    assert!(second.item::<f32>().unwrap() > 0.0);
    assert!(third.to_vec::<f32>().is_err());
    // The device is told of it once, and well.
    let _ = device().sync();
    assert!(device().sync().is_ok());
}

#[test]
fn what_is_committed_waits_for_the_checks_of_all_stages() {
    let _device = shared();
    let table = data(&[4, 8], 1);
    for (index, goes_well) in [(1, true), (9, false)] {
        let old = data(&[8], 3).compute().unwrap();
        let was = old.to_vec::<f32>().unwrap();
        let kept = old.add(1.0).unless_failed(&old);
        let free = old.exp();
        drop(old);
        let rows = table.embedding(&Tensor::from_slice(&[index], [1], &device()));
        let result = compute_staged(&[&[&free], &[&kept], &[&rows]]).and_then(|()| rows.to_vec::<f32>().map(drop));
        assert_eq!(result.is_ok(), goes_well, "{result:?}");
        let more = if goes_well { 1.0 } else { 0.0 };
        let expected: Vec<f32> = was.iter().map(|x| x + more).collect();
        assert_eq!(kept.to_vec::<f32>().unwrap(), expected);
        let _ = device().sync();
    }
}
