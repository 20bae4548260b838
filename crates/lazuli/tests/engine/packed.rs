//! Operands that do not change are packed once and kept: the same bits as unpacked, never stale, gone with their tensor.

use lazuli::{Conv, DeviceKind, Tensor};

use crate::device::device;
use crate::{alone, shared};

fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..n).map(|i| ((i * 31 + seed * 17) % 1009) as f32 * 0.002 - 0.97).collect();
    Tensor::from_vec(data, shape.to_vec(), &device())
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// The same numbers in a tensor that no product has read yet.
fn fresh(x: &Tensor) -> Tensor {
    Tensor::from_vec(x.to_vec::<f32>().unwrap(), x.shape().unwrap(), &device())
}

/// Bits of a function of an operand on its first uses, when it is not packed, and on later ones.
#[track_caller]
fn check(w: &Tensor, f: impl Fn(&Tensor) -> Tensor) {
    let expect = bits(&f(&fresh(w)));
    for n_uses in 1..6 {
        assert!(bits(&f(w)) == expect, "use {n_uses}");
    }
}

#[test]
fn a_kept_operand_gives_the_same_bits() {
    let _device = shared();
    for [m, k, n] in [[33, 70, 65], [40, 1, 17], [64, 520, 433], [67, 1030, 130], [200, 515, 64], [300, 300, 20]] {
        let (x, w, turned) = (numbers(&[m, k], 1), numbers(&[k, n], 2), numbers(&[n, k], 3));
        check(&w, |w| x.matmul(w));
        check(&turned, |w| x.matmul(&w.t()).relu());
        let batch = numbers(&[3, m, k], 4);
        check(&turned, |w| batch.matmul(&w.t()));
        // Part of a matrix, and a whole one beside it.
        let wide = numbers(&[k, n + 9], 5);
        check(&wide, |w| x.matmul(&w.narrow(1, 5, n)).add(&x.matmul(&w.narrow(1, 9, n))));
    }
    for (channels, size, outputs, window) in [(3, 20, 16, 5), (17, 9, 40, 3), (64, 7, 130, 3)] {
        let x = numbers(&[2, channels, size, size], 6);
        let w = numbers(&[outputs, channels, window, window], 7);
        let options = Conv { padding: (window / 2).into(), ..Conv::default() };
        check(&w, |w| x.conv(w, None, options).relu());
        let g = numbers(&[2, outputs, size, size], 8);
        check(&w, |w| g.conv_transpose(w, None, options));
    }
    // One weight in two layouts: a large image and a small one are multiplied in different ways.
    let (large, small, w) = (numbers(&[1, 24, 17, 18], 9), numbers(&[1, 24, 6, 6], 10), numbers(&[40, 24, 3, 3], 11));
    check(&w, |w| {
        let [large, small] = [&large, &small].map(|x| x.conv(w, None, Conv::default()).reshape([-1]));
        Tensor::cat(&[&large, &small], 0)
    });
}

#[test]
fn a_kept_operand_is_never_stale_in_training() {
    let _device = shared();
    let (x, image) = (numbers(&[48, 96], 1), numbers(&[1, 16, 12, 12], 2));
    let mut w = numbers(&[96, 80], 3).compute().unwrap();
    let mut kernel = numbers(&[24, 16, 3, 3], 4).compute().unwrap();
    for step in 0..4 {
        // Often enough to be packed before the step.
        for _ in 0..5 {
            assert!(bits(&x.matmul(&w)) == bits(&x.matmul(&fresh(&w))), "step {step}");
            let conv = |kernel: &Tensor| image.conv(kernel, None, Conv::default());
            assert!(bits(&conv(&kernel)) == bits(&conv(&fresh(&kernel))), "step {step}");
        }
        let before = bits(&w);
        // The new numbers take the place of the old ones: nobody else holds them.
        let (g, h) = (x.t().matmul(&x.matmul(&w)), kernel.mul(0.5));
        let next = w.sub(&g.mul(1e-3));
        drop((w, g));
        w = next.compute().unwrap();
        let next = kernel.sub(&h);
        drop((kernel, h));
        kernel = next.compute().unwrap();
        assert!(bits(&w) != before);
    }
}

#[test]
fn packed_forms_are_counted_and_go_with_their_tensor() {
    let _device = alone();
    if device().info().kind != DeviceKind::Cpu {
        return;
    }
    device().trim();
    assert_eq!(device().stats().bytes_packed, 0);
    let (x, w, small) = (numbers(&[64, 128], 1), numbers(&[128, 256], 2), numbers(&[256, 64], 3));
    let held = |n_uses: usize| {
        (1..n_uses).for_each(|_| drop(x.matmul(&w).compute().unwrap()));
        x.matmul(&w).compute().unwrap()
    };
    let first = bits(&held(2));
    assert_eq!(device().stats().bytes_packed, 0, "used twice");
    let live = device().stats().bytes_live;
    assert!(bits(&held(1)) == first);
    assert_eq!(device().stats().bytes_packed, 128 * 256 * 4, "the packed form is as large as the operand");
    assert_eq!(device().stats().bytes_live, live + 128 * 256 * 4, "and there is one beside it");
    held(20);
    assert_eq!(device().stats().bytes_packed, 128 * 256 * 4);
    device().trim();
    assert_eq!(device().stats().bytes_packed, 0, "trimmed");
    assert!(bits(&held(3)) == first);
    (0..3).for_each(|_| drop(w.t().matmul(&x.t()).compute().unwrap()));
    (0..3).for_each(|_| drop(x.matmul(&w).matmul(&small).compute().unwrap()));
    assert!(device().stats().bytes_packed > 128 * 256 * 4);
    drop((w, small));
    // The input is the right operand of one of the products.
    drop(x);
    assert_eq!(device().stats().bytes_packed, 0, "gone with the tensors");
}

#[test]
fn at_another_size_no_more_memory_is_kept_than_explain_reports() {
    let _device = alone();
    if device().info().kind != DeviceKind::Cpu {
        return;
    }
    // Batches of many images and of one by turns: their products read different packed forms of the weights, or the weights unpacked.
    for n_channels in [32, 256] {
        device().trim();
        let kernel = numbers(&[n_channels, n_channels, 3, 3], 1);
        for n_images in [8, 1, 8, 1] {
            let images = numbers(&[n_images, n_channels, 7, 7], 2);
            let y = || images.conv(&kernel, None, Conv { padding: 1.into(), ..Conv::default() });
            let kept = y().explain().unwrap().kept_bytes;
            (0..3).for_each(|_| drop(y().compute().unwrap()));
            assert_eq!(device().stats().bytes_packed, kept as u64, "{n_images} images of {n_channels} channels");
        }
    }
}
