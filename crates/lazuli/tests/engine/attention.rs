//! Attention: the method and the same maths, against a computation in f64 and values from outside; its masks, its edges,
//! its errors.

use lazuli::{Attention, DType, DeviceKind, Tensor, f16, keep};

use crate::device::device;
use crate::shared;

/// One case: sizes, and options beyond them.
#[derive(Clone, Copy, Default)]
struct Case {
    heads: usize,
    heads_kv: usize,
    l: usize,
    s: usize,
    d: usize,
    p: usize,
    causal: bool,
    window: Option<usize>,
    has_mask: bool,
    has_bias: bool,
    scale: Option<f32>,
    soft_cap: Option<f32>,
    /// The key and the value at this place have this number everywhere.
    spoilt: Option<(usize, f32)>,
}

/// Small numbers that differ from place to place, as f32 has them.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

impl Case {
    fn q(&self) -> Vec<f32> {
        numbers(self.heads * self.l * self.d, 1).iter().map(|x| 2.0 * x).collect()
    }

    fn k(&self) -> Vec<f32> {
        self.with_spoilt(numbers(self.heads_kv * self.s * self.d, 2), self.d)
    }

    fn v(&self) -> Vec<f32> {
        self.with_spoilt(numbers(self.heads_kv * self.s * self.p, 3), self.p)
    }

    fn with_spoilt(&self, mut rows: Vec<f32>, len: usize) -> Vec<f32> {
        if let Some((place, value)) = self.spoilt {
            rows.chunks_mut(len).skip(place).step_by(self.s).for_each(|row| row.fill(value));
        }
        rows
    }

    fn mask(&self) -> Vec<bool> {
        numbers(self.l * self.s, 4).iter().map(|x| *x < 0.3).collect()
    }

    fn bias(&self) -> Vec<f32> {
        numbers(self.heads * self.l * self.s, 5)
    }

    fn tensors(&self) -> [Tensor; 3] {
        let on = device();
        [
            Tensor::from_vec(self.q(), [self.heads, self.l, self.d], &on),
            Tensor::from_vec(self.k(), [self.heads_kv, self.s, self.d], &on),
            Tensor::from_vec(self.v(), [self.heads_kv, self.s, self.p], &on),
        ]
    }

    fn extras(&self) -> (Option<Tensor>, Option<Tensor>) {
        let on = device();
        let mask = self.has_mask.then(|| Tensor::from_vec(self.mask(), [self.l, self.s], &on));
        let bias = self.has_bias.then(|| Tensor::from_vec(self.bias(), [self.heads, self.l, self.s], &on));
        (mask, bias)
    }

    fn method(&self) -> Tensor {
        let [q, k, v] = self.tensors();
        let (mask, bias) = self.extras();
        let options = Attention {
            causal: self.causal,
            window: self.window,
            mask: mask.as_ref(),
            bias: bias.as_ref(),
            scale: self.scale,
            soft_cap: self.soft_cap,
            ..Attention::default()
        };
        q.attention(&k, &v, options)
    }

    /// Whether query `i` may look at key `j`.
    fn may_look(&self, i: usize, j: usize, mask: &[bool]) -> bool {
        let (at, j_at) = ((i + self.s) as i64 - self.l as i64, j as i64);
        let window = self.window.map_or(i64::MAX, |w| w as i64);
        (!self.causal || j_at <= at)
            && at - j_at < window
            && (self.causal || j_at - at < window)
            && (!self.has_mask || mask[i * self.s + j])
    }

    /// The result in f64.
    fn oracle(&self) -> Vec<f64> {
        let Case { heads, heads_kv, l, s, d, p, .. } = *self;
        let (q, k, v, mask, bias) = (self.q(), self.k(), self.v(), self.mask(), self.bias());
        let scale = self.scale.map_or(1.0 / (d as f64).sqrt(), f64::from);
        let mut out = Vec::with_capacity(heads * l * p);
        for (h, i) in (0..heads).flat_map(|h| (0..l).map(move |i| (h, i))) {
            let kv = h * heads_kv / heads;
            let score = |j: usize| {
                let dot = |c: usize| q[(h * l + i) * d + c] as f64 * k[(kv * s + j) * d + c] as f64;
                let mut score = (0..d).map(dot).sum::<f64>() * scale;
                score = self.soft_cap.map_or(score, |cap| cap as f64 * (score / cap as f64).tanh());
                score + if self.has_bias { bias[(h * l + i) * s + j] as f64 } else { 0.0 }
            };
            let weights: Vec<f64> =
                (0..s).map(|j| if self.may_look(i, j, &mask) { score(j).exp() } else { 0.0 }).collect();
            let sum = weights.iter().sum::<f64>();
            for c in 0..p {
                // A value that may not be looked at has no influence, even if it is NaN.
                let seen = (0..s).filter(|j| self.may_look(i, *j, &mask));
                let total = seen.map(|j| weights[j] * v[(kv * s + j) * p + c] as f64).sum::<f64>();
                out.push(if sum == 0.0 { 0.0 } else { total / sum });
            }
        }
        out
    }

    /// What rounding the scores, each of `d` products of numbers up to 2, can do to a mean of values up to 1.
    fn tolerance(&self) -> f64 {
        let scale = self.scale.map_or(1.0 / (self.d as f64).sqrt(), f64::from);
        f64::powi(2.0, -22) * (4.0 + scale * self.d as f64)
    }
}

#[track_caller]
fn check_near(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let far = |i: &usize| (got[*i] as f64 - want[*i]).abs() > tolerance || got[*i].is_nan() != want[*i].is_nan();
    if let Some(i) = (0..got.len()).find(far) {
        panic!("{what}: element {i} is {}, not {}", got[i], want[i]);
    }
}

#[track_caller]
fn check(case: Case, what: &str) {
    let got = case.method().to_vec::<f32>().unwrap();
    check_near(&got, &case.oracle(), case.tolerance(), what);
}

fn plain(heads: usize, l: usize, s: usize, d: usize) -> Case {
    Case { heads, heads_kv: heads, l, s, d, p: d, ..Case::default() }
}

#[test]
fn attention_is_near_its_oracle() {
    let _beside = shared();
    for (l, s, d) in [(1, 1, 1), (5, 7, 3), (16, 16, 64), (70, 130, 32), (131, 300, 40), (1, 517, 64), (3, 2050, 24)] {
        let case = plain(2, l, s, d);
        check(case, "plain");
        check(Case { causal: true, ..case }, "causal");
        check(Case { causal: true, window: Some(5), ..case }, "causal window");
        check(Case { window: Some(3), ..case }, "window");
        check(Case { has_mask: true, ..case }, "mask");
        check(Case { has_bias: true, scale: Some(0.3), ..case }, "bias and scale");
        check(Case { soft_cap: Some(0.7), causal: true, ..case }, "soft cap");
        check(Case { p: 2 * d + 1, ..case }, "wide values");
        let all = Case { has_mask: true, has_bias: true, causal: true, soft_cap: Some(2.0), ..case };
        check(Case { heads: 6, heads_kv: 2, ..all }, "grouped heads");
        check(Case { heads: 4, heads_kv: 1, ..all }, "one head of keys");
    }
}

/// Grouped-query attention of few queries, where the rows of all heads that share a key head are one product: several group
/// sizes, sequences that are split into parts, masks, and head sizes that no vector length divides.
#[test]
fn few_rows_of_heads_that_share_keys_are_near_their_oracle() {
    let _beside = shared();
    for (heads, heads_kv, l, s, d) in [
        (9, 3, 1, 1300, 64),
        (9, 3, 1, 513, 40),
        (7, 1, 2, 1100, 13),
        (40, 1, 1, 530, 20),
        (10, 2, 4, 700, 7),
        (12, 4, 15, 600, 33),
        (2, 2, 1, 2100, 16),
    ] {
        let case = Case { heads_kv, ..plain(heads, l, s, d) };
        check(case, "plain");
        check(Case { p: d + 5, ..case }, "other values");
        check(Case { causal: true, window: Some(600), ..case }, "window");
        check(Case { causal: true, window: Some(3), ..case }, "narrow window");
        check(Case { has_mask: true, soft_cap: Some(0.7), ..case }, "mask and soft cap");
        check(Case { has_bias: true, causal: true, scale: Some(0.3), ..case }, "bias");
        if has_chained_products() {
            let hidden = Case { causal: true, window: Some(20), spoilt: Some((10, f32::NAN)), ..case };
            check(hidden, "a value out of sight that is NaN");
        }
    }
}

/// A causal mask hides a single key from all queries but the last. They give zeros even if its value is NaN, although a softmax of
/// one score is no reduction and so is not computed by the attention kernel, which never reads hidden values.
#[test]
fn one_key_that_is_hidden_has_no_influence() {
    let _beside = shared();
    for l in [2, 3] {
        let case = Case { causal: true, ..plain(2, l, 1, 5) };
        check(case, "one key");
        let got = Case { spoilt: Some((0, f32::NAN)), ..case }.method().to_vec::<f32>().unwrap();
        for head in got.chunks(l * 5) {
            let (before, last) = head.split_at((l - 1) * 5);
            assert!(before.iter().all(|y| *y == 0.0), "queries before the key: {head:?}");
            assert!(last.iter().all(|y| y.is_nan()), "the query at the key: {head:?}");
        }
    }
}

/// Keys and values of two bytes are widened in registers: the bits are those of the same numbers in a cache of floats.
#[test]
fn halves_in_a_cache_are_read_as_the_floats_that_they_are() {
    let _beside = shared();
    for (l, d) in [(1, 64), (3, 40), (2, 5), (20, 16)] {
        let case = Case { heads_kv: 2, ..plain(6, l, 700, d) };
        let [q, k, v] = case.tensors();
        for dtype in [DType::F16, DType::BF16] {
            let narrow = |x: &Tensor| x.to_dtype(dtype).compute().unwrap();
            let wide = |x: &Tensor| narrow(x).to_dtype(DType::F32).compute().unwrap();
            let options = Attention { causal: true, ..Attention::default() };
            let got = q.attention(&narrow(&k), &narrow(&v), options).to_vec::<f32>().unwrap();
            let want = q.attention(&wide(&k), &wide(&v), options).to_vec::<f32>().unwrap();
            assert_eq!(got, want, "{l} rows of {d}, {dtype}");
        }
    }
}

/// Computed by a program of its own in double precision, to six digits.
#[test]
fn attention_has_known_values() {
    let _beside = shared();
    let on = device();
    let q = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 2.0], [2, 2], &on);
    let k = Tensor::from_slice(&[1.0f32, 1.0, -1.0, 0.5, 0.0, 2.0], [3, 2], &on);
    let v = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2], &on);
    let y = |options| q.attention(&k, &v, options).to_vec::<f32>().unwrap();
    check_near(&y(Attention::default()), &PLAIN, 1e-6, "plain");
    check_near(&y(Attention { causal: true, ..Attention::default() }), &CAUSAL, 1e-6, "causal");
    check_near(&y(Attention { soft_cap: Some(0.5), ..Attention::default() }), &CAPPED, 1e-6, "soft cap");
}

const PLAIN: [f64; 4] = [2.4160401291, 3.4160401291, 4.1106219035, 5.1106219035];
const CAUSAL: [f64; 4] = [1.3911406350, 2.3911406350, 4.1106219035, 5.1106219035];
const CAPPED: [f64; 4] = [2.6505431506, 3.6505431506, 3.0023540414, 4.0023540414];

#[test]
fn attention_written_as_maths_is_the_same() {
    let _beside = shared();
    for (l, s) in [(9, 9), (65, 200)] {
        let case = plain(3, l, s, 16);
        let [q, k, v] = case.tensors();
        let y = q.matmul(&k.transpose(-1, -2)).mul(0.25).softmax(-1).matmul(&v);
        check_near(&y.to_vec::<f32>().unwrap(), &case.oracle(), case.tolerance(), "maths");
    }
}

#[test]
fn queries_that_may_look_nowhere_give_zeros_and_softmax_of_nothing_is_nan() {
    let _beside = shared();
    let on = device();
    let x = Tensor::from_vec(numbers(4 * 8, 7), [4, 8], &on);
    let mask = Tensor::from_slice(&[true, false, true, false], [4, 1], &on);
    let y = x.attention(&x, &x, Attention { mask: Some(&mask), ..Attention::default() });
    let rows: Vec<f32> = y.abs().sum(-1).to_vec().unwrap();
    assert!(rows[0] > 0.0 && rows[2] > 0.0);
    assert_eq!([rows[1], rows[3]], [0.0, 0.0]);
    let scores = mask.select(x.matmul(&x.t()), f32::NEG_INFINITY);
    let rows: Vec<f32> = scores.softmax(-1).matmul(&x).sum(-1).to_vec().unwrap();
    assert!(rows[0].is_finite() && rows[1].is_nan() && rows[2].is_finite() && rows[3].is_nan(), "{rows:?}");
}

/// Keys of the first blocks are all out of sight: what was found there must not spoil what comes after.
#[test]
fn windows_whose_first_blocks_are_masked_are_as_the_oracle_says() {
    let _beside = shared();
    let case = Case { causal: true, window: Some(40), ..plain(2, 700, 700, 16) };
    check(case, "a window near the end");
    let mask = |i: usize, j: usize| j >= 600 - (i % 3);
    let [q, k, v] = plain(1, 5, 640, 8).tensors();
    let bools: Vec<bool> = (0..5).flat_map(|i| (0..640).map(move |j| mask(i, j))).collect();
    let bools = Tensor::from_vec(bools, [5, 640], &device());
    let got = q.attention(&k, &v, Attention { mask: Some(&bools), ..Attention::default() });
    let last = |i: usize| {
        let (k, v) = (k.narrow(1, 600 - i, 40 + i), v.narrow(1, 600 - i, 40 + i));
        q.attention(&k, &v, Attention::default()).to_vec::<f32>().unwrap()
    };
    let got = got.to_vec::<f32>().unwrap();
    for i in 0..5 {
        let want: Vec<f64> = last(i % 3)[i * 8..][..8].iter().map(|x| *x as f64).collect();
        check_near(&got[i * 8..][..8], &want, 1e-5, "a mask of the end");
    }
}

#[test]
fn a_nan_reaches_the_queries_that_see_it() {
    let _beside = shared();
    let [q, k, v] = plain(1, 40, 40, 8).tensors();
    // The scores of key 20 are NaN; queries before it do not look at it.
    let spoilt = k.mul(Tensor::arange(0, 40, 1, &device()).ne(20).select(1.0, f32::NAN).reshape([40, 1]));
    let y = q.attention(&spoilt, &v, Attention { causal: true, ..Attention::default() });
    let rows = y.sum(-1).is_nan().to_vec::<bool>().unwrap();
    assert_eq!(rows, (0..40).map(|i| i >= 20).collect::<Vec<_>>());
}

/// A key and a value that are not numbers reach the queries that may look at them, and no others: blocks that masks hide as
/// a whole, blocks that they cut, and masks that are tensors.
#[test]
fn hidden_keys_and_values_have_no_influence() {
    let _beside = shared();
    if !has_chained_products() {
        return;
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (l, s, place) in [(6, 6, 5), (70, 70, 30), (400, 400, 399), (300, 700, 650), (1, 300, 40), (3, 9000, 8000)]
        {
            let case = Case { spoilt: Some((place, value)), ..plain(2, l, s, 16) };
            check(Case { causal: true, ..case }, &format!("{value} at {place} of {s}, causal"));
            check(Case { window: Some(20), ..case }, &format!("{value} at {place} of {s}, a window"));
            check(Case { has_mask: true, ..case }, &format!("{value} at {place} of {s}, a mask"));
            let [q, k, v] = case.tensors();
            let mask = Tensor::from_vec(case.mask(), [l, s], &device());
            let scores = mask.select(q.matmul(&k.transpose(-1, -2)).mul(0.25), f32::NEG_INFINITY);
            let got = scores.softmax(-1).matmul(&v).to_vec::<f32>().unwrap();
            let want = Case { has_mask: true, ..case }.oracle();
            check_near(&got, &want, case.tolerance(), &format!("{value} at {place} of {s}, as maths"));
            let half = |x: &Tensor| x.to_dtype(DType::F16);
            let options = Attention { mask: Some(&mask), ..Attention::default() };
            let got = half(&q).attention(&half(&k), &half(&v), options).to_vec::<f16>().unwrap();
            let is_nan: Vec<bool> = got.iter().map(|x| x.is_nan()).collect();
            assert_eq!(is_nan, want.iter().map(|x| x.is_nan()).collect::<Vec<_>>(), "{value} at {place} of {s}, f16");
        }
    }
}

/// What fills up a sequence is hidden from all queries, so no gradient depends on it.
#[test]
fn hidden_keys_and_values_have_no_influence_on_gradients() {
    let _beside = shared();
    if !has_chained_products() {
        return;
    }
    for (l, s) in [(5, 7), (130, 300)] {
        let clean = plain(2, l, s, 16);
        let mask = Tensor::arange(0, s as i32, 1, &device()).lt(s as i32 - 2).reshape([1, s]);
        let grads = |case: &Case| {
            let [q, k, v] = case.tensors();
            let y = q.attention(&k, &v, Attention { mask: Some(&mask), ..Attention::default() });
            let grads = y.square().sum(..).grad(&[&q, &k, &v]);
            grads.iter().map(|grad| grad.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        };
        let want = grads(&clean);
        let got = grads(&Case { spoilt: Some((s - 1, f32::NAN)), ..clean });
        for (got, want) in got.iter().zip(&want) {
            let want: Vec<f64> = want.iter().map(|x| *x as f64).collect();
            check_near(got, &want, 1e-5, &format!("{l} queries, {s} keys"));
        }
    }
}

/// Comparisons that wrap are no half-planes: they are computed element by element.
#[test]
fn masks_whose_numbers_wrap_are_computed_element_by_element() {
    let _beside = shared();
    let [q, k, v] = plain(1, 70, 300, 8).tensors();
    let place = |axis: i32, n: i32| Tensor::arange(0, n, 1, &device()).unsqueeze(axis);
    // column + (2³¹ − 100) wraps from column 100 on, and is negative there.
    let mask = place(0, 300).add(i32::MAX - 99).ge(place(1, 70));
    let scores = mask.select(q.matmul(&k.transpose(-1, -2)), f32::NEG_INFINITY);
    let got = scores.softmax(-1).matmul(&v).to_vec::<f32>().unwrap();
    let (k, v) = (k.narrow(1, 0, 100), v.narrow(1, 0, 100));
    let want = q.attention(&k, &v, Attention { scale: Some(1.0), ..Attention::default() }).to_vec::<f32>().unwrap();
    let want: Vec<f64> = want.iter().map(|x| *x as f64).collect();
    check_near(&got, &want, 1e-5, "a mask that wraps");
}

/// A mask that compares row and column numbers as floats may skip whole blocks only if these are integers that f32 holds
/// exactly. Offsets with a fraction, numbers beyond 2²⁴ and infinity must give the same result as the mask computed beforehand.
#[test]
fn masks_of_floats_hide_what_their_comparisons_say() {
    let _beside = shared();
    let (l, s) = (70, 300);
    let [q, k, v] = plain(1, l, s, 8).tensors();
    // Rows count up to 276 and columns up to 299, from `start` on; what a row sees ends `ahead` of its own column.
    for (start, ahead) in [(0.0, 200.0), (7.0, 206.5), (16_777_000.0, 200.0), (3e8, 40.0), (0.25, f32::INFINITY)] {
        let place = |axis: i32, n: usize| {
            Tensor::arange(0, n as i32, 1, &device()).to_dtype(DType::F32).add(start).unsqueeze(axis)
        };
        let mask = place(1, l).add(ahead).ge(place(0, s));
        let seen = mask.to_vec::<bool>().unwrap();
        let scores = q.matmul(&k.transpose(-1, -2));
        let got = mask.select(&scores, f32::NEG_INFINITY).softmax(-1).matmul(&v).to_vec::<f32>().unwrap();
        let mask = Tensor::from_vec(seen, [l, s], &device());
        let want = q.attention(&k, &v, Attention { scale: Some(1.0), mask: Some(&mask), ..Attention::default() });
        let want: Vec<f64> = want.to_vec::<f32>().unwrap().iter().map(|x| *x as f64).collect();
        check_near(&got, &want, 1e-5, &format!("from {start}, {ahead} ahead"));
    }
}

#[test]
fn sequences_may_be_empty() {
    let _beside = shared();
    let on = device();
    let empty = |l: usize| Tensor::zeros([2, l, 4], DType::F32, &on);
    let x = Tensor::ones([2, 3, 4], DType::F32, &on);
    let y = x.attention(&empty(0), &empty(0), Attention { causal: true, ..Attention::default() });
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0; 24]);
    let y = empty(0).attention(&x, &x, Attention::default());
    assert_eq!(y.shape().unwrap(), [2, 0, 4]);
    assert_eq!(y.to_vec::<f32>().unwrap(), []);
    let none = Tensor::zeros([2, 3, 0], DType::F32, &on);
    assert_eq!(none.attention(&none, &x, Attention::default()).to_vec::<f32>().unwrap(), [1.0; 24]);
    assert_eq!(x.attention(&x, &none, Attention::default()).shape().unwrap(), [2, 3, 0]);
}

#[test]
fn half_floats_are_rounded_once() {
    let _beside = shared();
    let case = plain(2, 33, 70, 16);
    let halves = case.tensors().map(|x| x.to_dtype(DType::F16).compute().unwrap());
    let wide = halves.clone().map(|x| x.to_dtype(DType::F32));
    let options = Attention { causal: true, ..Attention::default() };
    let y = halves[0].attention(&halves[1], &halves[2], options);
    assert_eq!(y.dtype().unwrap(), DType::F16);
    let want = wide[0].attention(&wide[1], &wide[2], options).to_vec::<f32>().unwrap();
    for (got, want) in y.to_vec::<f16>().unwrap().iter().zip(&want) {
        let ulp = f32::powi(2.0, (want.abs().max(1e-4)).log2().floor() as i32 - 10);
        assert!((got.to_f32() - want).abs() <= 0.51 * ulp, "{got} is not {want} rounded once");
    }
}

#[test]
fn dropout_leaves_out_its_share_and_keeps_the_mean() {
    let _beside = shared();
    let on = device();
    let (n, d) = (64, 64);
    let q = Tensor::zeros([n, 8], DType::F32, &on);
    let v = Tensor::eye(d, DType::F32, &on);
    let k = Tensor::zeros([d, 8], DType::F32, &on);
    let of = |seed| q.attention(&k, &v, Attention { dropout: 0.25, seed, ..Attention::default() });
    let weights = of(1).to_vec::<f32>().unwrap();
    let kept = weights.iter().filter(|w| **w != 0.0).count() as f64 / weights.len() as f64;
    assert!((kept - 0.75).abs() < 0.03, "{kept}");
    let whole = 1.0 / (d as f32 * 0.75);
    assert!(weights.iter().all(|w| *w == 0.0 || (w - whole).abs() < 1e-6));
    assert_eq!(of(1).to_vec::<f32>().unwrap(), weights);
    assert_ne!(of(2).to_vec::<f32>().unwrap(), weights);
}

#[test]
fn gradients_are_those_of_the_maths() {
    let _beside = shared();
    for (l, s) in [(4, 6), (70, 150)] {
        let case = Case { causal: true, soft_cap: Some(3.0), heads: 4, heads_kv: 2, ..plain(2, l, s, 8) };
        let [q, k, v] = case.tensors();
        let weight = Tensor::from_vec(numbers(4 * l * 8, 9), [4, l, 8], &device());
        let grads = |y: Tensor| y.mul(&weight).sum(..).grad(&[&q, &k, &v]);
        let options = Attention { causal: true, soft_cap: Some(3.0), ..Attention::default() };
        let got = grads(q.attention(&k, &v, options));
        let wide = |x: &Tensor| x.reshape([2, 1, s, 8]).broadcast_to([2, 2, s, 8]).reshape([4, s, 8]);
        let scores = q.matmul(&wide(&k).transpose(1, 2)).mul(1.0 / 8f32.sqrt()).div(3.0).tanh().mul(3.0);
        let place = |axis: i32, n: usize| Tensor::arange(0, n as i32, 1, &device()).unsqueeze(axis);
        let scores = place(0, s).le(place(1, l).add(s as i32 - l as i32)).select(&scores, f32::NEG_INFINITY);
        let e = scores.sub(scores.max(keep(-1)).detach()).exp();
        let want = grads(e.div(e.sum(keep(-1))).matmul(&wide(&v)));
        for (got, want) in got.iter().zip(&want) {
            let want: Vec<f64> = want.to_vec::<f32>().unwrap().iter().map(|x| *x as f64).collect();
            check_near(&got.to_vec::<f32>().unwrap(), &want, 2e-5, "gradient");
        }
    }
}

/// With a bias that gradients go to, a window, and weights that are left out: all of them at once. Which weights are left out is
/// seen from values of which each is one in a place of its own.
#[test]
fn gradients_through_bias_window_and_dropout_are_those_of_the_maths() {
    let _beside = shared();
    let on = device();
    for (causal, l, s, window) in [(true, 5, 7, 3), (false, 6, 6, 4), (true, 70, 150, 40)] {
        let case = Case { causal, window: Some(window), has_bias: true, ..plain(2, l, s, 8) };
        let [q, k, v] = case.tensors();
        // One number for each score, and one for each pair of places, which both heads share.
        let biases = [case.extras().1.unwrap(), Tensor::from_vec(numbers(l * s, 6), [l, s], &on)];
        let weight = Tensor::from_vec(numbers(2 * l * 8, 9), [2, l, 8], &on);
        let place = |axis: i32, n: usize| Tensor::arange(0, n as i32, 1, &on).unsqueeze(axis);
        let ahead = place(0, s).sub(place(1, l).add(s as i32 - l as i32));
        let is_near = ahead.gt(-(window as i32)).logical_and(ahead.lt(if causal { 1 } else { window as i32 }));
        for (bias, dropout) in biases.iter().flat_map(|bias| [0.0, 0.3].map(|dropout| (bias, dropout))) {
            let options =
                Attention { causal, window: Some(window), bias: Some(bias), dropout, seed: 7, ..Attention::default() };
            let eye = Tensor::eye(s, DType::F32, &on).broadcast_to([2, s, s]);
            let kept = q.attention(&k, &eye, options).ne(0.0).to_dtype(DType::F32).mul(1.0 / (1.0 - dropout));
            let kept = kept.compute().unwrap();
            let scores = q.matmul(&k.transpose(1, 2)).mul(1.0 / 8f32.sqrt()).add(bias);
            let scores = is_near.select(&scores, f32::NEG_INFINITY);
            let e = scores.sub(scores.max(keep(-1)).detach()).exp();
            let maths = e.div(e.sum(keep(-1))).mul(&kept).matmul(&v);
            let y = q.attention(&k, &v, options);
            let near = |got: &Tensor, want: &Tensor, what: &str| {
                let want: Vec<f64> = want.to_vec::<f32>().unwrap().iter().map(|x| *x as f64).collect();
                check_near(&got.to_vec::<f32>().unwrap(), &want, 4e-5, what);
            };
            let grads = |y: &Tensor| y.mul(&weight).sum(..).grad(&[&q, &k, &v, bias]);
            let (got, want) = (grads(&y), grads(&maths));
            near(&y, &maths, "attention");
            for ((got, want), of) in got.iter().zip(&want).zip(["q", "k", "v", "bias"]) {
                let what = format!("gradient by {of}, {l} × {s}, dropout {dropout}");
                assert_eq!(got.shape().unwrap(), want.shape().unwrap(), "{what}");
                near(got, want, &what);
            }
            // Some weights were left out, or this would say nothing of it.
            let n_left_out =
                is_near.sum(..).mul(2).item::<i32>().unwrap() - kept.ne(0.0).sum(..).item::<i32>().unwrap();
            assert_eq!(n_left_out > 0, dropout > 0.0, "{n_left_out} of {l} × {s}");
        }
    }
}

#[test]
fn attention_says_what_does_not_fit() {
    let _beside = shared();
    let on = device();
    let of = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &on);
    let x = of(&[2, 4, 3, 8]);
    let error =
        |q: &Tensor, k: &Tensor, v: &Tensor, options| q.attention(k, v, options).check().unwrap_err().to_string();
    let plain = Attention::default();
    let check = |text: String, start: &str| assert!(text.starts_with(start), "{text}");
    check(error(&of(&[8]), &x, &x, plain), "attention: each operand needs a row for each place");
    check(
        error(&x, &of(&[2, 4, 3, 7]), &x, plain),
        "attention: queries and keys differ in features: queries [2, 4, 3, 8], keys [2, 4, 3, 7], values [2, 4, 3, 8] (",
    );
    check(error(&x, &x, &of(&[2, 4, 5, 8]), plain), "attention: there must be a value for each key: ");
    let three = of(&[2, 3, 3, 8]);
    check(error(&x, &three, &three, plain), "attention: heads of queries must be a multiple of those of keys");
    let other = of(&[3, 4, 3, 8]);
    check(error(&x, &other, &other, plain), "attention: batches do not broadcast: ");
    let mask = of(&[3, 3]);
    let with_mask = Attention { mask: Some(&mask), ..plain };
    check(error(&x, &x, &x, with_mask), "attention: the mask is f32, not bool; ");
    let bias = of(&[5, 3]);
    let with_bias = Attention { bias: Some(&bias), ..plain };
    check(error(&x, &x, &x, with_bias), "attention: the bias [5, 3] does not broadcast to the scores [2, 4, 3, 3] (");
    check(error(&x, &x, &x, Attention { dropout: 1.5, ..plain }), "attention: a dropout of 1.5 is no share; ");
    let text = error(&x, &three, &three, plain);
    assert!(text.contains("attention.rs:"), "{text}");
}

/// Whether the device has kernels for chained products.
fn has_chained_products() -> bool {
    // Of drivers that run on the CPU, those with subgroups have: llvmpipe by Vulkan, which the driver's name tells.
    let device = device();
    let info = device.info();
    info.kind != DeviceKind::Software || info.driver.contains("llvmpipe")
}

/// Bytes of all scores of a case.
fn score_bytes(case: &Case) -> usize {
    case.heads * case.l * case.s * 4
}

#[test]
fn attention_is_one_kernel_that_stores_no_score() {
    let _beside = shared();
    if !has_chained_products() {
        return;
    }
    let case = Case { causal: true, soft_cap: Some(5.0), scale: Some(0.2), ..plain(4, 1024, 1024, 32) };
    for case in [case, Case { has_mask: true, has_bias: true, ..case }, Case { heads_kv: 2, window: Some(9), ..case }] {
        let plan = case.method().explain().unwrap();
        assert_eq!(plan.kernels.len(), 1, "{plan}");
        assert_eq!(plan.kernels[0].form, "attention");
        assert!(plan.peak_temp_bytes < score_bytes(&case) / 8, "{plan}");
    }
    let [q, k, v] = case.tensors();
    let maths = q.matmul(&k.transpose(-1, -2)).mul(0.25).softmax(-1).matmul(&v);
    let plan = maths.explain().unwrap();
    assert_eq!(plan.kernels.len(), 1, "{plan}");
    // What is wanted beside the result is stored, and then the result is made of it.
    let scores = q.matmul(&k.transpose(-1, -2)).mul(0.25);
    let plan = lazuli::explain(&[&scores, &scores.softmax(-1).matmul(&v)]).unwrap();
    assert!(plan.kernels.iter().all(|kernel| kernel.form != "attention"), "{plan}");
}

#[test]
fn a_training_step_with_attention_stores_no_score() {
    let _beside = shared();
    if !has_chained_products() {
        return;
    }
    for dropout in [0.0, 0.1] {
        let step = |case: &Case| {
            let [q, k, v] = case.tensors();
            let options = Attention { causal: true, dropout, ..Attention::default() };
            let loss = q.attention(&k, &v, options).square().sum(..);
            let grads = loss.grad(&[&q, &k, &v]);
            (lazuli::explain(&[&loss, &grads[0], &grads[1], &grads[2]]).unwrap(), grads)
        };
        // What threads keep of a block is counted, so there must be many blocks for it to be little.
        let large = plain(4, 1024, 1024, 32);
        let (plan, _) = step(&large);
        assert!(plan.peak_temp_bytes < score_bytes(&large) / 2, "{plan}");
        let case = plain(4, 256, 256, 32);
        let (plan, grads) = step(&case);
        let largest = plan.kernels.iter().map(|kernel| kernel.bytes_written).max().unwrap();
        assert!(largest < score_bytes(&case) / 2, "{plan}");
        assert_eq!(plan.kernels.iter().filter(|kernel| kernel.form == "attention").count(), 4, "{plan}");
        // Without the loss, what rows need of the forward pass comes first all the same.
        let plan = lazuli::explain(&[&grads[2], &grads[1]]).unwrap();
        let largest = plan.kernels.iter().map(|kernel| kernel.bytes_written).max().unwrap();
        assert!(largest < score_bytes(&case) / 2, "{plan}");
    }
}

#[test]
fn gradients_of_gradients_go_through_attention() {
    let _beside = shared();
    let case = plain(1, 5, 6, 3);
    let [q, k, v] = case.tensors();
    let second = |y: Tensor| {
        let first = y.square().sum(..).grad(&[&q, &k, &v]);
        let all = first.iter().map(|g| g.square().sum(..)).reduce(|a, b| a.add(b)).unwrap();
        all.grad(&[&q, &k, &v])
    };
    let got = second(q.attention(&k, &v, Attention::default()));
    let maths = q.matmul(&k.transpose(-1, -2)).mul(1.0 / 3f32.sqrt()).softmax(-1).matmul(&v);
    for (got, want) in got.iter().zip(second(maths)) {
        let want: Vec<f64> = want.to_vec::<f32>().unwrap().iter().map(|x| *x as f64).collect();
        let size = want.iter().fold(1.0, |a: f64, x| a.max(x.abs()));
        check_near(&got.to_vec::<f32>().unwrap(), &want, 1e-5 * size, "second gradient");
    }
}

#[test]
fn layouts_with_heads_inside_are_read_where_they_lie() {
    let _beside = shared();
    let on = device();
    let of = |seed: u64| Tensor::from_vec(numbers(2 * 70 * 3 * 16, seed), [2, 70, 3, 16], &on);
    let heads = |x: &Tensor| x.transpose(1, 2);
    let y = heads(&of(1)).attention(&heads(&of(2)), &heads(&of(3)), Attention::default());
    let n_kernels = y.explain().unwrap().kernels.len();
    let dense = |x: Tensor| heads(&x).mul(1.0).compute().unwrap();
    let want = dense(of(1)).attention(&dense(of(2)), &dense(of(3)), Attention::default());
    assert_eq!(y.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    if has_chained_products() {
        assert_eq!(n_kernels, 1);
    }
}

/// The same bits for one, two and eight threads, for many rows and for one row over many keys, whose columns are cut.
#[test]
fn bits_do_not_depend_on_threads() {
    const SAID: &str = "attention digest ";
    let _beside = shared();
    if std::env::var_os("LAZULI_TEST_DIGEST").is_some() {
        let grouped = [(9, 3, 1), (8, 1, 3)].map(|(heads, heads_kv, l)| Case { heads_kv, ..plain(heads, l, 2000, 24) });
        let cases = [plain(3, 300, 500, 16), plain(2, 1, 9000, 16), plain(1, 7, 5000, 8), grouped[0], grouped[1]];
        let causal = cases.map(|case| Case { causal: true, ..case });
        let spoilt = Case { has_mask: true, spoilt: Some((250, f32::NAN)), ..plain(1, 700, 300, 16) };
        let bits = causal.iter().chain([&spoilt]).flat_map(|case| case.method().to_vec::<f32>().unwrap());
        let digest = bits.fold(0u64, |sum, x| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(x.to_bits() as u64));
        println!("{SAID}{digest}");
        return;
    }
    let digest = |threads: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["attention::bits_do_not_depend_on_threads", "--exact", "--nocapture"]);
        command.envs([("LAZULI_TEST_DIGEST", "1"), ("LAZULI_THREADS", threads)]);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let at = said.find(SAID).expect("a digest is printed");
        said[at..].lines().next().unwrap_or_default().to_string()
    };
    let one = digest("1");
    assert_eq!((digest("2"), digest("8")), (one.clone(), one));
}
