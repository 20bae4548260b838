//! What becomes one kernel, what it reads and what it keeps: chains, reductions, matmuls and views.

use lazuli::{DType, DeviceKind, Explain, Tensor, keep, s};

use crate::device::device;
use crate::shared;

fn data(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| (i * 37 % 101) as f32 * 0.03125 - 1.5).collect(), shape, &device())
}

/// One kernel, no temporary, each input read once and each output written once. Where an index is checked, a GPU has a few
/// words for the outcome.
#[track_caller]
fn check_least(out: &Tensor) -> Explain {
    let plan = out.explain().unwrap();
    assert_eq!(plan.kernels.len(), 1, "{plan}");
    let has_check = plan.kernels[0].ops.iter().any(|op| op == "gather");
    let status_bytes = if has_check && device().info().kind != DeviceKind::Cpu { 16 } else { 0 };
    assert_eq!(plan.peak_temp_bytes, status_bytes, "{plan}");
    assert_eq!(plan.bytes_moved, plan.bytes_moved_lower_bound, "{plan}");
    plan
}

/// One kernel that reads these many bytes.
#[track_caller]
fn check_reads_once(out: &Tensor, n_bytes: usize) {
    let plan = check_least(out);
    assert_eq!(plan.kernels[0].bytes_read, n_bytes, "{plan}");
}

#[track_caller]
fn check_values(out: &Tensor, expect: impl IntoIterator<Item = f32>) {
    let got = out.to_vec::<f32>().unwrap();
    let expect: Vec<f32> = expect.into_iter().collect();
    assert_eq!(got.len(), expect.len());
    if let Some(i) = (0..got.len()).find(|i| got[*i].to_bits() != expect[*i].to_bits()) {
        panic!("element {i} is {:e}, not {:e}", got[i], expect[i]);
    }
}

#[test]
fn a_chain_of_three_is_one_kernel_without_temporaries() {
    let _device = shared();
    let (x, y) = (data(&[1000]), data(&[1000]).mul(2.0).compute().unwrap());
    let out = x.add(&y).mul(5.0).sub(&x);
    let plan = check_least(&out);
    assert_eq!(plan.bytes_moved, 3 * 4000);
    let (a, b) = (x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
    check_values(&out, a.iter().zip(&b).map(|(a, b)| (a + b) * 5.0 - a));
}

#[test]
fn a_chain_of_a_hundred_is_one_kernel_without_temporaries() {
    let _device = shared();
    let (x, y) = (data(&[5000]), data(&[5000]).add(0.5).compute().unwrap());
    let (mut out, mut expect) = (x.clone(), x.to_vec::<f32>().unwrap());
    let other = y.to_vec::<f32>().unwrap();
    for i in 0..25 {
        out = out.add(&y).mul(0.5).sub(i as f32 * 0.125).maximum(&x);
        let first = x.to_vec::<f32>().unwrap();
        expect = (0..5000).map(|j| ((expect[j] + other[j]) * 0.5 - i as f32 * 0.125).max(first[j])).collect();
    }
    let plan = check_least(&out);
    assert_eq!(plan.bytes_moved, 3 * 20_000);
    check_values(&out, expect);
}

/// One of a few elementwise ops, on tensors and on numbers.
fn step(i: usize, v: &Tensor, y: &Tensor, z: &Tensor) -> Tensor {
    match i % 7 {
        0 => v.add(y),
        1 => v.mul(0.5),
        2 => v.sub(z).abs(),
        3 => v.gt(y).select(v, z),
        4 => v.neg(),
        5 => 0.25 - v,
        _ => v.maximum(0.125).minimum(y.abs().add(1.0)),
    }
}

fn step_of_number(i: usize, v: f32, y: f32, z: f32) -> f32 {
    match i % 7 {
        0 => v + y,
        1 => v * 0.5,
        2 => (v - z).abs(),
        3 => {
            if v > y {
                v
            } else {
                z
            }
        }
        4 => -v,
        5 => 0.25 - v,
        _ => v.max(0.125).min(y.abs() + 1.0),
    }
}

#[test]
fn a_hundred_thousand_mixed_ops_are_right_and_need_two_temporaries() {
    let _device = shared();
    const N_OPS: usize = 100_000;
    let (x, y, z) = (data(&[300]), data(&[300]).mul(0.75).compute().unwrap(), data(&[300]).sub(0.3).compute().unwrap());
    let mut out = x.clone();
    for i in 0..N_OPS {
        out = step(i, &out, &y, &z);
    }
    let plan = out.explain().unwrap();
    assert!(plan.temp_slots <= 2, "{} temporaries", plan.temp_slots);
    assert!(plan.peak_temp_bytes <= 2 * 1200, "{} bytes of temporaries", plan.peak_temp_bytes);
    let [x, y, z] = [&x, &y, &z].map(|t| t.to_vec::<f32>().unwrap());
    check_values(&out, (0..300).map(|j| (0..N_OPS).fold(x[j], |v, i| step_of_number(i, v, y[j], z[j]))));
}

#[test]
fn a_million_ops_are_built_run_and_dropped_on_a_small_stack() {
    let _device = shared();
    let run = || {
        let mut out = data(&[4]);
        for _ in 0..500_000 {
            out = out.add(1.0).neg();
        }
        // Two ops take x to −(x + 1), four to x: after 500,000 pairs it is where it was.
        check_values(&out, data(&[4]).to_vec::<f32>().unwrap());
        // Once more without running: dropping what was never computed.
        let mut out = data(&[4]);
        for _ in 0..1_000_000 {
            out = out.add(1.0);
        }
        drop(out);
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(run).unwrap();
    thread.join().expect("no overflow");
}

#[test]
fn a_diamond_of_depth_sixty_is_linear_and_right() {
    let _device = shared();
    let x = data(&[1000]);
    let mut out = x.clone();
    for _ in 0..60 {
        out = out.mul(0.5).add(&out.mul(0.5));
    }
    let plan = check_least(&out);
    assert!(plan.kernels[0].flops <= 60 * 3 * 1000, "{plan}");
    check_values(&out, x.to_vec::<f32>().unwrap());
    // And through reductions, which are never done twice.
    let mut out = x.clone();
    for _ in 0..20 {
        out = out.sub(&out.mean(keep(..))).add(&out.sub(out.max(keep(..))).mul(0.0));
    }
    let plan = out.explain().unwrap();
    assert!(plan.kernels.len() <= 60, "{plan}");
    assert!(out.to_vec::<f32>().unwrap().iter().sum::<f32>().abs() < 1e-2);
}

#[test]
fn normalisations_are_one_kernel_and_read_their_input_once() {
    let _device = shared();
    for shape in [[12, 40, 56], [3, 7, 1025], [130, 5, 3]] {
        let n_bytes = shape.iter().product::<usize>() * 4;
        for axis in [-1, 0, 1] {
            let size = if axis < 0 { shape[2] } else { shape[axis as usize] };
            let x = data(&shape);
            let (weight, bias) = (data(&[size]), data(&[size]).add(1.0).compute().unwrap());
            check_reads_once(&x.softmax(axis), n_bytes);
            check_reads_once(&x.log_softmax(axis), n_bytes);
            check_reads_once(&x.var(axis, 0), n_bytes);
            check_reads_once(&x.std(axis, 1), n_bytes);
            check_reads_once(&x.logsumexp(axis), n_bytes);
            check_reads_once(&x.layer_norm(axis, None, None, 1e-5), n_bytes);
            check_reads_once(&x.rms_norm(axis, None, 1e-5), n_bytes);
            check_reads_once(&x.layer_norm(axis, Some(&weight), Some(&bias), 1e-5), n_bytes + 8 * size);
            check_reads_once(&x.rms_norm(axis, Some(&weight), 1e-5), n_bytes + 4 * size);
            check_reads_once(&x.exp().sum(axis).log(), n_bytes);
        }
    }
}

#[test]
fn cross_entropy_per_sample_is_one_kernel_and_reads_its_input_once() {
    let _device = shared();
    let (rows, classes) = (70, 300);
    for axis in [1, 0] {
        let shape = if axis == 1 { [rows, classes] } else { [classes, rows] };
        let x = data(&shape);
        let target = Tensor::from_vec((0..rows as i32).map(|i| i * 7 % 300).collect(), [rows], &device());
        let loss = x.logsumexp(keep(axis)).sub(x.gather(axis, &target.unsqueeze(axis)));
        check_reads_once(&loss, rows * classes * 4 + rows * 4);
        let by_rows = if axis == 1 { x.clone() } else { x.t() };
        let (x, target) = (by_rows.to_vec::<f32>().unwrap(), target.to_vec::<i32>().unwrap());
        for (i, got) in loss.to_vec::<f32>().unwrap().into_iter().enumerate() {
            let row = &x[i * classes..(i + 1) * classes];
            let sum: f64 = row.iter().map(|v| (*v as f64).exp()).sum();
            let want = sum.ln() - row[target[i] as usize] as f64;
            let allowed = 8.0 * f32::EPSILON as f64 * sum.ln().abs().max(1.5);
            assert!((got as f64 - want).abs() < allowed, "{got} is not {want}");
        }
    }
}

#[test]
fn a_hundred_matmuls_in_a_row_need_two_temporaries() {
    let _device = shared();
    let n = 48;
    // A rotation of the columns: products are exact.
    let turn: Vec<f32> = (0..n * n).map(|i| ((i / n + 1) % n == i % n) as u8 as f32).collect();
    let (x, turn) = (data(&[n, n]), Tensor::from_vec(turn, [n, n], &device()));
    let mut out = x.clone();
    for _ in 0..100 {
        out = out.matmul(&turn);
    }
    let plan = out.explain().unwrap();
    // And one for the operand that a thread of the CPU packs.
    assert!(plan.kernels.len() == 100 && plan.temp_slots <= 3, "{plan}");
    let x = x.to_vec::<f32>().unwrap();
    check_values(&out, (0..n * n).map(|i| x[i / n * n + (i % n + n - 100 % n) % n]));
}

#[test]
fn what_follows_a_matmul_is_part_of_its_kernel() {
    let _device = shared();
    let (x, w, bias) = (data(&[40, 64]), data(&[64, 24]), data(&[24]));
    let plan = x.matmul(&w).add(&bias).relu().explain().unwrap();
    assert_eq!(plan.kernels.len(), 1, "{plan}");
    // A transpose of either is only another way to read it.
    let plan = w.t().matmul(&x.t()).mul(0.5).explain().unwrap();
    assert_eq!(plan.kernels.len(), 1, "{plan}");
}

#[test]
fn views_in_an_elementwise_expression_cost_no_kernel_and_no_copy() {
    let _device = shared();
    let (x, row) = (data(&[64, 96]), data(&[30]));
    let seen = x.t().slice(s![90..30;-2, 4..64;2]);
    let out = seen.add(&row).mul(&seen.flip(0));
    let plan = out.explain().unwrap();
    assert_eq!((plan.kernels.len(), plan.peak_temp_bytes), (1, 0), "{plan}");
    // Two looks at 30 × 30 elements of x, and the row.
    assert!(plan.kernels[0].bytes_read <= (2 * 900 + 30) * 4, "{plan}");
    let (x, row) = (x.to_vec::<f32>().unwrap(), row.to_vec::<f32>().unwrap());
    let at = |i: usize, j: usize| x[(4 + 2 * j) * 96 + 90 - 2 * i];
    check_values(&out, (0..900).map(|n| (at(n / 30, n % 30) + row[n % 30]) * at(29 - n / 30, n % 30)));
}

#[test]
fn what_is_computed_together_is_computed_once() {
    let _device = shared();
    let x = data(&[300, 40]);
    let shared_part = x.exp();
    let (a, b) = (shared_part.add(1.0), shared_part.mul(2.0));
    let plan = lazuli::explain(&[&a, &b]).unwrap();
    assert_eq!(plan.kernels.len(), 1, "{plan}");
    assert_eq!(plan.kernels[0].ops.iter().filter(|op| *op == "exp").count(), 1, "{plan}");
    assert_eq!(plan.submits, 1);
    // Equal expressions written twice are one.
    let plan = x.exp().add(&x.exp()).explain().unwrap();
    assert_eq!(plan.kernels[0].ops.iter().filter(|op| *op == "exp").count(), 1, "{plan}");
}

#[test]
fn what_is_computed_again_is_told_with_its_flops() {
    let _device = shared();
    let x = data(&[32, 64]);
    let both = |y: &Tensor| lazuli::explain(&[&y.sum(0), &y.sum(1)]).unwrap();
    // Cheap enough for both reductions to compute it rather than to load it.
    let plan = both(&x.mul(2.0));
    let [work] = &plan.repeated[..] else { panic!("{plan}") };
    assert_eq!((&*work.op, work.n_elems, work.places, work.flops), ("mul", 2048, 2, 2048), "{plan}");
    assert_eq!(plan.repeated_flops(), 2048);
    assert_eq!(plan.kernels.iter().map(|kernel| kernel.flops).sum::<usize>(), 4 * 2048, "{plan}");
    let text = plan.to_string();
    assert!(text.contains("mul of 2048 elements is computed in 2 places: 2048 flops again"), "{text}");
    assert!(plan.to_json().contains("\"repeated\":[{\"op\":\"mul\",\"n_elems\":2048,"), "{}", plan.to_json());
    assert!(!plan.edges.is_empty() && plan.edges.iter().all(|edge| text.contains(edge)), "{text}");
    // What is not cheap is stored, and one kernel computes it.
    let plan = both(&x.exp());
    assert!(plan.repeated.is_empty() && plan.repeated_flops() == 0, "{plan}");
    // A row that every other row sees is computed for each of them.
    let plan = x.add(data(&[64]).mul(2.0)).explain().unwrap();
    assert_eq!(plan.repeated_flops(), 31 * 64, "{plan}");
}

#[test]
fn explaining_is_deterministic_and_tells_why_kernels_are_two() {
    let _device = shared();
    let x = data(&[64, 64]);
    let out = || x.matmul(&x).softmax(0).matmul(&x);
    let (a, b) = (out().explain().unwrap(), out().explain().unwrap());
    assert_eq!(a, b);
    assert_eq!((a.to_string(), a.to_json(), a.to_dot()), (b.to_string(), b.to_json(), b.to_dot()));
    assert!(a.kernels.len() >= 2 && !a.boundaries.is_empty(), "{a}");
    assert!(a.boundaries.iter().all(|b| !b.why.is_empty()), "{a}");
}

#[test]
fn a_computed_tensor_costs_nothing_more() {
    let _device = shared();
    let x = data(&[10]).add(1.0).compute().unwrap();
    assert_eq!(x.explain().unwrap().kernels.len(), 0);
    assert_eq!(Tensor::zeros([3], DType::F32, &device()).explain().unwrap().peak_temp_bytes, 0);
}

/// Computes results twice, with their inputs held by somebody and not: in their own memory and over their inputs.
#[track_caller]
fn check_in_place(inputs: &[&[usize]], f: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    let make = || inputs.iter().map(|shape| data(shape).add(0.25).compute().unwrap()).collect::<Vec<Tensor>>();
    let run = |results: Vec<Tensor>| {
        lazuli::compute(&results.iter().collect::<Vec<_>>()).unwrap();
        results.iter().map(|t| t.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let held = make();
    let apart = run(f(&held));
    let over = f(&make());
    assert_eq!(run(over), apart);
}

#[test]
fn a_product_that_updates_what_it_is_added_to_gives_the_same_bits_in_place() {
    let _device = shared();
    // Momentum and weight: both are read and written by the product that makes the gradient. The second size is more
    // than one panel of sums.
    for (m, k, n) in [(70, 33, 90), (1100, 5, 513), (8, 3, 8), (3, 200, 1)] {
        check_in_place(&[&[m, n], &[m, n], &[m, k], &[k, n]], |t| {
            let v = t[1].mul(0.9).add(t[2].matmul(&t[3]));
            vec![t[0].sub(v.mul(0.1)), v]
        });
    }
    // Batches, and an operand that is also added.
    check_in_place(&[&[4, 9, 7], &[4, 9, 5], &[4, 5, 7]], |t| vec![t[0].mul(0.5).add(t[1].matmul(&t[2]))]);
    check_in_place(&[&[16, 16], &[16, 16]], |t| vec![t[0].add(t[0].matmul(&t[1])), t[1].sub(t[0].matmul(&t[1]))]);
}

#[test]
fn a_stream_to_which_products_are_added_is_held_once() {
    let _device = shared();
    let (x, w) = (data(&[16, 16]), data(&[16, 16]));
    let out = (0..10).fold(x.clone(), |h, _| h.softmax(-1).matmul(&w).add(&h));
    // What is multiplied, and on the CPU the sums that are added to the stream, which is where the result will be.
    assert!(out.explain().unwrap().peak_temp_bytes <= 2 * 4 * 16 * 16);
}

#[test]
fn a_slice_of_a_cat_reads_the_part() {
    let _device = shared();
    let (a, b) = (data(&[6, 10]), data(&[6, 30]).mul(3.0).compute().unwrap());
    let (x, y) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    let cat = Tensor::cat(&[&a, &b], 1);
    // Columns 12 to 36 of 40 are columns 2 to 26 of the second part.
    let inside = cat.slice(s![1..5, 12..36;3]).add(1.0);
    check_reads_once(&inside, 4 * 8 * 4);
    check_values(&inside, (1..5).flat_map(|i| (2..26).step_by(3).map(|j| y[i * 30 + j] + 1.0).collect::<Vec<_>>()));
    let backwards = cat.slice(s![.., ..10]).flip(1).mul(2.0);
    check_reads_once(&backwards, 6 * 10 * 4);
    check_values(&backwards, (0..6).flat_map(|i| (0..10).rev().map(|j| x[i * 10 + j] * 2.0).collect::<Vec<_>>()));
    // Rows of one part, and what lies in both.
    let rows = Tensor::cat(&[&a, &a.neg()], 0).narrow(0, 6, 6);
    check_values(&rows, x.iter().map(|x| -x));
    let both = cat.narrow(1, 8, 4);
    let at = |i: usize, j: usize| if j < 10 { x[i * 10 + j] } else { y[i * 30 + j - 10] };
    check_values(&both, (0..6).flat_map(|i| (8..12).map(|j| at(i, j)).collect::<Vec<_>>()));
}

#[test]
fn what_is_copied_beside_an_update_in_place_is_the_old_value() {
    let _device = shared();
    for (axis, shapes) in [(0, [&[300][..], &[200]]), (1, [&[20, 70], &[20, 65]])] {
        check_in_place(&shapes, |t| vec![t[0].add(1.0), Tensor::cat(&[&t[0], &t[1]], axis)]);
        check_in_place(&shapes, |t| vec![Tensor::cat(&[&t[0], &t[1]], axis), t[0].add(1.0), t[1].exp()]);
    }
}

/// A number for each row, and for each column, that lies among others: what is computed of it alone takes the right ones.
#[test]
fn numbers_of_rows_may_lie_apart() {
    let _beside = shared();
    for (m, n) in [(300, 64), (64, 300), (500, 2), (2, 500), (7, 5)] {
        let (x, w) = (data(&[m, n]), data(&[m, 7]));
        let (xs, ws) = (x.to_vec::<f32>().unwrap(), w.to_vec::<f32>().unwrap());
        let column = w.narrow(1, 3, 1);
        let got = x.add(column.neg().mul(2.0)).to_vec::<f32>().unwrap();
        let sums = x.maximum(column.neg()).max(1).to_vec::<f32>().unwrap();
        for row in 0..m {
            let own = &xs[row * n..(row + 1) * n];
            let number = ws[row * 7 + 3];
            assert!((0..n).all(|i| got[row * n + i] == own[i] + -number * 2.0), "{m}×{n}, row {row}");
            assert_eq!(sums[row], own.iter().fold(-number, |a, b| a.max(*b)), "{m}×{n}, row {row}");
        }
        let w = data(&[n, 7]);
        let ws = w.to_vec::<f32>().unwrap();
        let most = x.maximum(w.narrow(1, 3, 1).reshape([n]).neg()).max(1).to_vec::<f32>().unwrap();
        for row in 0..m {
            let all = (0..n).map(|i| xs[row * n + i].max(-ws[i * 7 + 3]));
            assert_eq!(most[row], all.fold(f32::NEG_INFINITY, f32::max), "{m}×{n}, row {row}");
        }
    }
}
