//! Convolutions: their values and both gradients by the definition, over one to three axes, and that no windows are copied.

use lazuli::{Conv, DType, PerAxis, Tensor};

use crate::device::device;
use crate::shared;

/// Small whole numbers, of which sums of products are exact.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 23) as f32 - 11.0;
    Tensor::from_vec((0..n).map(number).collect(), shape, &device())
}

#[track_caller]
fn check(y: &Tensor, shape: &[usize], values: &[f32]) {
    assert_eq!(y.shape().unwrap(), shape);
    assert_eq!(y.to_vec::<f32>().unwrap(), values);
}

/// A convolution of so many axes with options of its own.
#[derive(Clone, Debug)]
struct Case {
    n: usize,
    c: usize,
    o: usize,
    sizes: Vec<usize>,
    windows: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
}

fn per_axis(numbers: &[usize]) -> PerAxis {
    match *numbers {
        [a] => [a].into(),
        [a, b] => [a, b].into(),
        [a, b, c] => [a, b, c].into(),
        _ => unreachable!("one to three axes"),
    }
}

/// Calls `f` with all coordinates of a shape.
fn for_all(shape: &[usize], mut f: impl FnMut(&[usize])) {
    let n: usize = shape.iter().product();
    let mut at = vec![0; shape.len()];
    for mut i in 0..n {
        for axis in (0..shape.len()).rev() {
            (at[axis], i) = (i % shape[axis], i / shape[axis]);
        }
        f(&at);
    }
}

fn linear(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |i, (at, size)| i * size + at)
}

impl Case {
    fn options(&self) -> Conv {
        let (stride, padding, dilation) = (per_axis(&self.stride), per_axis(&self.padding), per_axis(&self.dilation));
        Conv { stride, padding: padding.into(), dilation, groups: self.groups }
    }

    fn x_shape(&self) -> Vec<usize> {
        [self.n, self.c].into_iter().chain(self.sizes.iter().copied()).collect()
    }

    fn w_shape(&self) -> Vec<usize> {
        [self.o, self.c / self.groups].into_iter().chain(self.windows.iter().copied()).collect()
    }

    fn y_shape(&self) -> Vec<usize> {
        let out = (0..self.sizes.len()).map(|a| {
            (self.sizes[a] + 2 * self.padding[a] - self.dilation[a] * (self.windows[a] - 1) - 1) / self.stride[a] + 1
        });
        [self.n, self.o].into_iter().chain(out).collect()
    }

    /// The convolution of `x` and `w` and its gradients for an incoming `g`, all by the definition, in f64.
    fn reference(&self, x: &[f32], w: &[f32], g: &[f32]) -> [Vec<f64>; 3] {
        let (xs, ws, ys) = (self.x_shape(), self.w_shape(), self.y_shape());
        let (mut y, mut dx, mut dw) = (vec![0.0; g.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        for_all(&ys, |at| {
            let group = at[1] / (self.o / self.groups);
            for_all(&ws[1..], |within| {
                let mut from = vec![at[0], group * ws[1] + within[0]];
                for a in 0..self.sizes.len() {
                    let place = at[a + 2] * self.stride[a] + within[a + 1] * self.dilation[a];
                    match place.checked_sub(self.padding[a]).filter(|place| *place < self.sizes[a]) {
                        Some(place) => from.push(place),
                        None => return,
                    }
                }
                let of: Vec<usize> = std::iter::once(at[1]).chain(within.iter().copied()).collect();
                let (i, j, k) = (linear(at, &ys), linear(&from, &xs), linear(&of, &ws));
                y[i] += x[j] as f64 * w[k] as f64;
                dx[j] += g[i] as f64 * w[k] as f64;
                dw[k] += g[i] as f64 * x[j] as f64;
            });
        });
        [y, dx, dw]
    }

    fn check(&self) {
        let (x, w) = (numbers(&self.x_shape(), 1).tracked(), numbers(&self.w_shape(), 2).tracked());
        let g = numbers(&self.y_shape(), 3);
        let y = x.conv(&w, None, self.options());
        assert_eq!(y.shape().unwrap(), self.y_shape(), "{self:?}");
        let grads = y.mul(&g).sum(..).grad(&[&x, &w]);
        let host = |t: &Tensor| t.to_vec::<f32>().unwrap();
        let expect = self.reference(&host(&x), &host(&w), &host(&g));
        for ((what, got), expect) in [("y", &y), ("dx", &grads[0]), ("dw", &grads[1])].into_iter().zip(expect) {
            let got: Vec<f64> = host(got).into_iter().map(f64::from).collect();
            assert_eq!(got, expect, "{what} of {self:?}");
        }
        // The same with channels last in memory.
        let rank = self.sizes.len() as i32 + 2;
        let last: Vec<i32> = std::iter::once(0).chain(2..rank).chain([1]).collect();
        let first: Vec<i32> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let stored = x.detach().permute(&last).compute().unwrap();
        assert_eq!(host(&stored.permute(&first).conv(&w, None, self.options())), host(&y), "channels last, {self:?}");
    }
}

#[test]
fn values_are_those_of_another_library() {
    let _shared = shared();
    // Computed by onnxruntime 1.2x (Conv, ConvTranspose) from the same numbers.
    let y = numbers(&[1, 2, 7], 1).conv(
        &numbers(&[2, 2, 3], 2),
        None,
        Conv { stride: 2.into(), padding: 1.into(), ..Conv::default() },
    );
    check(&y, &[1, 2, 4], &[-29.0, 250.0, -100.0, 89.0, -47.0, 109.0, 21.0, 63.0]);
    let options = Conv { stride: [1, 2].into(), padding: [1, 0].into(), dilation: [1, 2].into(), groups: 2 };
    let y = numbers(&[1, 2, 4, 5], 1).conv(&numbers(&[2, 1, 3, 2], 2), None, options);
    let expect = [-173, 24, 93, -96, 115, 87, 84, -158, -152, 120, 207, -249, -243, 198, 138, -144];
    check(&y, &[1, 2, 4, 2], &expect.map(|v| v as f32));
    let options = Conv { stride: [1, 2, 1].into(), padding: [0, 1, 0].into(), ..Conv::default() };
    let y = numbers(&[1, 1, 3, 4, 3], 1).conv(&numbers(&[2, 1, 2, 2, 2], 2), None, options);
    let expect = [
        19, -135, 182, 11, -119, 25, 126, 18, -260, -17, 114, -110, 28, 131, -155, 50, -28, 5, -116, 33, 235, -135, 0,
        -36,
    ];
    check(&y, &[1, 2, 2, 3, 2], &expect.map(|v| v as f32));
    let options = Conv { stride: [2, 1].into(), padding: [0, 1].into(), ..Conv::default() };
    let y = numbers(&[1, 2, 3, 2], 1).conv_transpose(&numbers(&[2, 1, 2, 3], 2), None, options);
    let expect = [126, -44, 7, -2, -91, 62, 138, -77, 106, -154, 62, -37];
    check(&y, &[1, 1, 6, 2], &expect.map(|v| v as f32));
}

#[test]
fn every_combination_of_options_is_its_definition() {
    let _shared = shared();
    for n_axes in 1..=3 {
        // Different along each axis.
        let along = |first: usize, step: usize| -> Vec<usize> { (0..n_axes).map(|a| first + a * step).collect() };
        for stride in [1, 2] {
            for dilation in [1, 2] {
                for padding in [0, 2] {
                    // All channels together, in two groups, and each by itself.
                    let groups = if (stride, padding) == (1, 2) { &[1, 2, 4][..] } else { &[1, 2] };
                    for &groups in groups {
                        let (stride, dilation) = (along(stride, stride - 1), along(dilation, 0));
                        let (sizes, windows) =
                            (along(7 - n_axes, 1), along(2, 1).iter().map(|k| (*k).min(3)).collect());
                        let padding = along(padding, 0);
                        Case { n: 2, c: 4, o: 4, sizes, windows, stride, padding, dilation, groups }.check();
                    }
                }
            }
        }
    }
}

#[test]
fn pads_may_differ_from_side_to_side() {
    let _shared = shared();
    for last in [false, true] {
        let (mut x, w) = (numbers(&[2, 4, 7, 6], 1).tracked(), numbers(&[6, 4, 3, 2], 2).tracked());
        if last {
            x = x.detach().permute(&[0, 2, 3, 1]).compute().unwrap().permute(&[0, 3, 1, 2]).tracked();
        }
        let options = Conv { stride: [2, 1].into(), ..Conv::default() };
        let made = x.conv(&w, None, Conv { padding: [(2, 0), (1, 3)].into(), ..options });
        let expect = x.pad(&[(0, 0), (0, 0), (2, 0), (1, 3)], 0.0).conv(&w, None, options);
        let all = |y: &Tensor| {
            let grads = y.square().sum(..).grad(&[&x, &w]);
            [y, &grads[0], &grads[1]].map(|t| (t.shape().unwrap().to_vec(), t.to_vec::<f32>().unwrap()))
        };
        assert_eq!(all(&made), all(&expect));
        // The way back cuts as much off each side.
        let g = numbers(&[2, 6, 4, 5], 3);
        let back = |options: Conv| g.conv_transpose(&w, None, options);
        let (cut, whole) = (back(Conv { padding: [(2, 0), (1, 3)].into(), ..options }), back(options));
        let [h, v] = [whole.shape().unwrap()[2], whole.shape().unwrap()[3]];
        let expect = whole.narrow(2, 2, h - 2).narrow(3, 1, v - 4);
        assert_eq!(cut.to_vec::<f32>().unwrap(), expect.to_vec::<f32>().unwrap());
    }
}

#[test]
fn windows_side_by_side_are_put_back_by_a_product_without_zeros_between() {
    let _shared = shared();
    let of = |n: &[usize], groups| Case {
        n: 2,
        c: 4,
        o: 6,
        sizes: n.iter().map(|n| 3 * n).collect(),
        windows: n.to_vec(),
        stride: n.to_vec(),
        padding: vec![0; n.len()],
        dilation: vec![1; n.len()],
        groups,
    };
    for windows in [&[2][..], &[2, 3], &[1, 2], &[3, 1, 2]] {
        of(windows, 1).check();
        of(windows, 2).check();
    }
    let options = Conv { stride: 2.into(), ..Conv::default() };
    let y = numbers(&[1, 4, 5, 6], 1).conv_transpose(&numbers(&[4, 3, 2, 2], 2), None, options);
    let (texts, _) = kernels(&[&y]);
    assert!(texts.iter().all(|text| !text.contains("inside")), "{texts:?}");
}

#[test]
fn windows_of_three_by_three_with_many_channels_are_their_definition() {
    let _shared = shared();
    for (n, c, o, sizes, groups) in [(1, 16, 32, [15, 13], 1), (2, 32, 20, [9, 10], 1), (1, 40, 64, [14, 12], 2)] {
        let (windows, stride, padding, dilation) = (vec![3, 3], vec![1, 1], vec![1, 1], vec![1, 1]);
        Case { n, c, o, sizes: sizes.to_vec(), windows, stride, padding, dilation, groups }.check();
    }
}

#[test]
fn windows_that_see_only_padding_are_zero() {
    let _shared = shared();
    let one = |sizes: usize, windows: usize, stride: usize, padding: usize| Case {
        n: 1,
        c: 2,
        o: 3,
        sizes: vec![sizes],
        windows: vec![windows],
        stride: vec![stride],
        padding: vec![padding],
        dilation: vec![1],
        groups: 1,
    };
    for (sizes, windows, stride, padding) in [(1, 1, 1, 5), (2, 1, 4, 5), (1, 2, 50, 9), (3, 3, 1, 7), (5, 5, 3, 0)] {
        one(sizes, windows, stride, padding).check();
    }
}

#[test]
fn gradients_of_gradients_are_convolutions_too() {
    let _shared = shared();
    let options = Conv { stride: 2.into(), padding: 1.into(), dilation: 2.into(), groups: 2 };
    let (x, w) = (numbers(&[2, 4, 7, 6], 1).tracked(), numbers(&[2, 2, 3, 2], 2).tracked());
    let (u, v) = (numbers(&[2, 4, 7, 6], 4), numbers(&[2, 2, 3, 2], 5));
    let y = x.conv(&w, None, options);
    let g = numbers(y.shape().unwrap(), 3);
    // y is linear in x and in w: d⟨dy/dx · u, v⟩ by w is the convolution of u, and so on.
    let dx = y.vjp(&[&x], &g).swap_remove(0);
    let mixed = dx.mul(&u).sum(..).grad(&[&w]).swap_remove(0);
    let expect = u.conv(&w, None, options).mul(&g).sum(..).grad(&[&w]).swap_remove(0);
    assert_eq!(mixed.to_vec::<f32>().unwrap(), expect.to_vec::<f32>().unwrap());
    let dw = y.vjp(&[&w], &g).swap_remove(0);
    let mixed = dw.mul(&v).sum(..).grad(&[&x]).swap_remove(0);
    let expect = x.conv(&v, None, options).mul(&g).sum(..).grad(&[&x]).swap_remove(0);
    assert_eq!(mixed.to_vec::<f32>().unwrap(), expect.to_vec::<f32>().unwrap());
    let forth = y.jvp(&[&x], &[&u]).to_vec::<f32>().unwrap();
    assert_eq!(forth, u.conv(&w, None, options).to_vec::<f32>().unwrap());
}

/// The kernels of an evaluation, and how much is kept between them.
fn kernels(outs: &[&Tensor]) -> (Vec<String>, usize) {
    let plan = lazuli::explain(outs).unwrap();
    let kept = plan.kernels.iter().rev().skip(1).map(|kernel| kernel.bytes_written).sum();
    (plan.kernels.iter().map(|kernel| kernel.form.to_string()).collect(), kept)
}

#[test]
fn a_convolution_is_one_kernel_beside_the_padding_of_its_image() {
    let _shared = shared();
    let options = Conv { padding: 1.into(), ..Conv::default() };
    let (x, w, b) = (numbers(&[2, 8, 12, 10], 1), numbers(&[16, 8, 3, 3], 2), numbers(&[16], 3));
    let padded_bytes = 2 * 8 * 14 * 12 * 4;
    let y = x.conv(&w, Some(&b), options).relu();
    assert_eq!(kernels(&[&y]), (vec!["map".to_string(), "matmul".to_string()], padded_bytes));
    // Channels last in memory, before and after.
    let stored = x.permute(&[0, 2, 3, 1]).compute().unwrap();
    let last = stored.permute(&[0, 3, 1, 2]).conv(&w, Some(&b), options).permute(&[0, 2, 3, 1]).relu();
    assert_eq!(kernels(&[&last]), (vec!["map".to_string(), "matmul".to_string()], padded_bytes));
    assert_eq!(last.permute(&[0, 3, 1, 2]).to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
    // Without padding there is nothing but the product, grouped or not, in one to three axes.
    for (xs, ws, groups) in [
        (vec![2, 4, 9], vec![6, 4, 3], 1),
        (vec![2, 4, 9], vec![6, 2, 3], 2),
        (vec![2, 4, 9, 8], vec![6, 4, 3, 2], 1),
        (vec![2, 4, 9, 8], vec![6, 2, 3, 2], 2),
        (vec![2, 4, 5, 6, 7], vec![6, 4, 3, 2, 2], 1),
        (vec![2, 4, 5, 6, 7], vec![6, 2, 3, 2, 2], 2),
    ] {
        for (stride, dilation) in [(1, 1), (2, 1), (1, 2)] {
            let options = Conv { stride: stride.into(), dilation: dilation.into(), groups, ..Conv::default() };
            let y = numbers(&xs, 1).conv(&numbers(&ws, 2), Some(&numbers(&[6], 3)), options).tanh();
            assert_eq!(kernels(&[&y]), (vec!["matmul".to_string()], 0), "{xs:?} {ws:?} {options:?}");
        }
    }
}

#[test]
fn gradients_of_convolutions_copy_no_windows() {
    let _shared = shared();
    for groups in [1, 2] {
        let options = Conv { padding: 1.into(), groups, ..Conv::default() };
        let (x, w) = (numbers(&[4, 8, 12, 10], 1).tracked(), numbers(&[8, 8 / groups, 3, 3], 2).tracked());
        let g = numbers(&[4, 8, 12, 10], 3);
        let grads = x.conv(&w, None, options).vjp(&[&x, &w], &g);
        let padded_bytes = 4 * 8 * 14 * 12 * 4;
        let padded_and_product = (vec!["map".to_string(), "matmul".to_string()], padded_bytes);
        assert_eq!(kernels(&[&grads[0]]), padded_and_product, "by the input");
        assert_eq!(kernels(&[&grads[1]]), padded_and_product, "by the weights");
    }
}

#[test]
fn heads_are_read_where_they_are() {
    let _shared = shared();
    // [b, h, l, d] → [b, l, h·d] before the output projection, and key heads shared by groups of query heads.
    let (heads, w) = (numbers(&[2, 4, 6, 8], 1), numbers(&[32, 16], 2));
    let merged = heads.permute(&[0, 2, 1, 3]).reshape([2, 6, 32]);
    let y = merged.matmul(&w).add(numbers(&[16], 3));
    assert_eq!(kernels(&[&y]).0, ["matmul"]);
    let copied = merged.compute().unwrap().matmul(&w).add(numbers(&[16], 3));
    assert_eq!(y.to_vec::<f32>().unwrap(), copied.to_vec::<f32>().unwrap());
    let keys = numbers(&[2, 2, 6, 8], 4).unsqueeze(2).broadcast_to([2, 2, 2, 6, 8]).reshape([2, 4, 6, 8]);
    let scores = heads.matmul(&keys.transpose(-2, -1));
    assert_eq!(kernels(&[&scores]).0, ["matmul"]);
    let copied = heads.matmul(&keys.compute().unwrap().transpose(-2, -1));
    assert_eq!(scores.to_vec::<f32>().unwrap(), copied.to_vec::<f32>().unwrap());
}

#[test]
fn halves_and_integers_are_convolved_too() {
    let _shared = shared();
    let options = Conv { padding: 1.into(), ..Conv::default() };
    let (x, w) = (numbers(&[1, 3, 6, 5], 1), numbers(&[4, 3, 3, 3], 2));
    let expect = x.conv(&w, None, options).to_vec::<f32>().unwrap();
    for dtype in [DType::I32, DType::F16, DType::BF16] {
        let y = x.to_dtype(dtype).compute().unwrap().conv(&w.to_dtype(dtype).compute().unwrap(), None, options);
        assert_eq!(y.dtype().unwrap(), dtype);
        let wanted: Vec<f32> = Tensor::from_slice(&expect, [expect.len()], &device())
            .to_dtype(dtype)
            .to_dtype(DType::F32)
            .to_vec()
            .unwrap();
        // Stored, so that it is rounded.
        assert_eq!(y.compute().unwrap().to_dtype(DType::F32).to_vec::<f32>().unwrap(), wanted, "{dtype}");
    }
}

#[test]
fn errors_say_what_would_fit() {
    let _shared = shared();
    let (x, w) = (numbers(&[1, 4, 5, 5], 1), numbers(&[2, 3, 3, 3], 2));
    let message = |y: Tensor| y.check().expect_err("it cannot be").to_string();
    assert!(
        message(x.conv(&w, None, Conv::default()))
            .starts_with("conv2d: the input has 4 channels, the weights are for 3")
    );
    let w = numbers(&[2, 4, 3, 3], 2);
    let bias = numbers(&[3], 1);
    assert!(message(x.conv(&w, Some(&bias), Conv::default())).contains("one number for each of 2 outputs, not [3]"));
    assert!(message(x.conv(&w, None, Conv { stride: [1, 2, 3].into(), ..Conv::default() })).contains("one for each"));
    assert!(message(x.conv(&numbers(&[2, 4], 1), None, Conv::default())).starts_with("conv: wants an input"));
    assert!(message(x.conv(&w, None, Conv { padding: usize::MAX.into(), ..Conv::default() })).contains("addressed"));
}

/// A tile of what follows a convolution does not run on into the next image, where the bias begins again.
#[test]
fn a_batch_with_a_bias_is_its_images() {
    let _beside = shared();
    for (n, o, size) in [(5, 32, 14), (3, 48, 7), (16, 16, 28)] {
        let (x, w, bias) = (numbers(&[n, 16, size, size], 1), numbers(&[o, 16, 3, 3], 2), numbers(&[o], 3));
        let options = Conv { padding: 1.into(), ..Conv::default() };
        let made = |x: &Tensor| x.conv(&w, Some(&bias), options).relu().to_vec::<f32>().unwrap();
        let images: Vec<f32> = (0..n).flat_map(|i| made(&x.narrow(0, i, 1))).collect();
        assert_eq!(made(&x), images, "{n} images, {o} channels");
    }
}

/// What follows a product is done block by block, by whoever has made the block; blocks end at other places for every size.
#[test]
fn what_follows_a_product_is_done_once_to_every_result() {
    let _beside = shared();
    let check = |product: Tensor, others: &[Tensor]| {
        let shape = product.shape().unwrap();
        let follow = |y: &Tensor| {
            let sums = others.iter().fold(y.mul(2.0), |y, other| y.add(other));
            [sums.relu(), y.add(1.0), y.to_dtype(DType::F16).to_dtype(DType::F32)]
        };
        let fused = follow(&product);
        lazuli::compute(&fused.iter().collect::<Vec<_>>()).unwrap();
        let apart = follow(&product.compute().unwrap().detach());
        for (fused, apart) in fused.iter().zip(&apart) {
            assert!(fused.to_vec::<f32>().unwrap() == apart.to_vec::<f32>().unwrap(), "{shape:?}");
        }
    };
    for (n, o, size) in [(1, 64, 7), (3, 70, 8), (1, 33, 56)] {
        let (x, w) = (numbers(&[n, 9, size, size], 1), numbers(&[o, 9, 3, 3], 2));
        let y = || x.conv(&w, None, Conv { padding: 1.into(), ..Conv::default() });
        check(y(), &[numbers(&[o, 1, 1], 3), numbers(&[size], 4)]);
        check(y(), &[numbers(&[n, o, size, size], 5), numbers(&[size, o, size], 6).transpose(0, 1)]);
    }
    // The last one splits k.
    for [m, k, n] in [[40, 30, 20], [200, 33, 300], [33, 2100, 100]] {
        let (x, w) = (numbers(&[m, k], 7), numbers(&[k, n], 8));
        check(x.matmul(&w), &[numbers(&[n], 9), numbers(&[m, 1], 10)]);
        check(x.matmul(&w), &[numbers(&[m, n], 11), numbers(&[n, m], 12).t()]);
        let batch = numbers(&[3, m, k], 13);
        check(batch.matmul(&w), &[numbers(&[n], 14), numbers(&[3, 1, 1], 15)]);
    }
}
