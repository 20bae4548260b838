//! Ops written with other ops against values of NumPy, PyTorch and ONNX's reference implementation: see `tests/fixtures/ops`.

use lazuli::{
    Conv, ConvTranspose, Coordinates, DType, Dft, GridMode, GridPadding, GridSample, Interpolate, Interpolation,
    NearestRule, PadMode, PerAxis, Pool, ScatterReduce, Tensor,
};

use crate::device::device;
use crate::shared;

const TABLE: &str = concat!(include_str!("../fixtures/ops/ops.txt"), include_str!("../fixtures/ops/signals.txt"));

/// What a result may differ by, relative to the largest number of the result or 1: a few roundings of f32.
const TOLERANCE: f64 = 4e-6;

/// One case of the table.
struct Case {
    name: &'static str,
    inputs: Vec<Tensor>,
    outputs: Vec<Expected>,
}

struct Expected {
    dtype: DType,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Expected {
    fn read(words: &str) -> Expected {
        let mut words = words.split(' ');
        let dtype = match words.next() {
            Some("f32") => DType::F32,
            Some("i32") => DType::I32,
            Some("bool") => DType::Bool,
            other => panic!("no dtype: {other:?}"),
        };
        let shape = words.next().expect("has a shape");
        let shape = if shape == "-" { Vec::new() } else { shape.split(',').map(|n| n.parse().unwrap()).collect() };
        Expected { dtype, shape, values: words.map(|word| word.parse().unwrap()).collect() }
    }

    fn tensor(&self) -> Tensor {
        Tensor::from_slice(&self.values, &self.shape[..], &device()).to_dtype(self.dtype)
    }
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in TABLE.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            cases.push(Case { name, inputs: Vec::new(), outputs: Vec::new() });
            continue;
        }
        let case = cases.last_mut().expect("a name comes first");
        match line.split_once(' ') {
            // Integers beyond 2²⁴ do not fit an f32, which is what numbers of 64 bits become.
            Some(("in", words)) if words.starts_with("i32") => {
                let read = Expected::read(words);
                let values: Vec<i32> = read.values.iter().map(|v| *v as i32).collect();
                case.inputs.push(Tensor::from_vec(values, &read.shape[..], &device()));
            }
            Some(("in", words)) => case.inputs.push(Expected::read(words).tensor()),
            Some(("out", words)) => case.outputs.push(Expected::read(words)),
            _ => panic!("neither input nor result: {line}"),
        }
    }
    cases
}

#[track_caller]
fn check(name: &str, got: &[Tensor], want: &[Expected]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.shape().unwrap_or_else(|e| panic!("{name}: {e}")), want.shape, "{name}");
        assert_eq!(got.dtype().unwrap(), want.dtype, "{name}");
        let values = match want.dtype {
            DType::F32 => got.to_vec::<f32>().map(|v| v.iter().map(|v| *v as f64).collect::<Vec<_>>()),
            DType::Bool => got.to_vec::<bool>().map(|v| v.iter().map(|v| *v as u8 as f64).collect()),
            _ => got.to_vec::<i32>().map(|v| v.iter().map(|v| *v as f64).collect()),
        };
        let values = values.unwrap_or_else(|e| panic!("{name}: {e}"));
        let finite = want.values.iter().filter(|v| v.is_finite());
        let scale = finite.fold(1.0f64, |scale, v| scale.max(v.abs()));
        let tolerance = if want.dtype == DType::F32 { TOLERANCE * scale } else { 0.0 };
        for (i, (got, want)) in values.iter().zip(&want.values).enumerate() {
            let close = got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= tolerance;
            assert!(close, "{name}: element {i} is {got}, not {want}");
        }
    }
}

fn coordinates(word: &str) -> Coordinates {
    match word {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        _ => panic!("no coordinates: {word}"),
    }
}

fn rule(word: &str) -> NearestRule {
    match word {
        "round_prefer_floor" => NearestRule::RoundPreferFloor,
        "round_prefer_ceil" => NearestRule::RoundPreferCeil,
        "floor" => NearestRule::Floor,
        "ceil" => NearestRule::Ceil,
        _ => panic!("no rule: {word}"),
    }
}

fn mode(word: &str) -> Interpolation {
    match word {
        "nearest" => Interpolation::Nearest(NearestRule::RoundPreferFloor),
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic(-0.75),
        _ => panic!("no mode: {word}"),
    }
}

/// `resize MODE …`: the words after the first.
fn resize(words: &[&str], x: &Tensor) -> Tensor {
    let mut options = Interpolate { coordinates: Coordinates::HalfPixel, ..Interpolate::new(mode(words[0])) };
    let single = |scale: f32| scale as f64;
    match words[1..] {
        ["outside"] => {
            options.mode = Interpolation::Cubic(-0.5);
            options.exclude_outside = true;
            x.interpolate(&[9, 8], &options)
        }
        ["crop"] => {
            options.coordinates = Coordinates::CropAndResize;
            let part = |start: f32, end: f32| (start as f64, end as f64);
            options.crop = vec![part(0.2, 0.9), part(-0.3, 1.1)];
            options.extrapolation = 10.0;
            x.interpolate(&[5, 6], &options)
        }
        ["antialias", outside] => {
            options.antialias = true;
            options.exclude_outside = outside == "1";
            x.interpolate_by(&[single(0.6), single(0.35)], &options)
        }
        [nearest] => {
            options.mode = Interpolation::Nearest(rule(nearest));
            x.interpolate(&[14], &options)
        }
        [c, "up"] => x.interpolate(&[7, 9], &Interpolate { coordinates: coordinates(c), ..options }),
        [c, "down"] => {
            x.interpolate_by(&[single(0.6), single(0.7)], &Interpolate { coordinates: coordinates(c), ..options })
        }
        [c, "to", "one"] => x.interpolate(&[1], &Interpolate { coordinates: coordinates(c), ..options }),
        _ => panic!("no resize: {words:?}"),
    }
}

fn pad(words: &[&str], x: &Tensor) -> Tensor {
    let mode = match words[0] {
        "edge" => PadMode::Edge,
        "reflect" => PadMode::Reflect,
        "symmetric" => PadMode::Symmetric,
        "wrap" => PadMode::Wrap,
        other => panic!("no mode: {other}"),
    };
    match words[1..] {
        [] => x.pad_with(&[(1, 2), (3, 1)], mode),
        ["far"] => x.pad_with(&[(7, 5), (0, 11)], mode),
        _ => x.pad_with(&[(2, 1)], mode),
    }
}

fn reduce(word: &str) -> ScatterReduce {
    match word {
        "add" => ScatterReduce::Add,
        "mul" => ScatterReduce::Mul,
        "max" => ScatterReduce::Max,
        "min" => ScatterReduce::Min,
        _ => panic!("no reduction: {word}"),
    }
}

fn pooled(name: &str, x: &Tensor) -> Vec<Tensor> {
    let both = |(values, indices)| vec![values, indices];
    let p = |window: PerAxis| Pool::new(window);
    match name {
        "max_pool 1" => both(x.max_pool_with_indices(Pool {
            stride: 2.into(),
            padding: 1.into(),
            dilation: 2.into(),
            ..p(3.into())
        })),
        "max_pool 1 ceil" => both(x.max_pool_with_indices(Pool { padding: 1.into(), ceil_mode: true, ..p(3.into()) })),
        "max_pool 2" => {
            both(x.max_pool_with_indices(Pool { stride: [2, 1].into(), padding: [1, 0].into(), ..p([3, 2].into()) }))
        }
        "max_pool 2 large" => {
            both(x.max_pool_with_indices(Pool { stride: 1.into(), padding: 2.into(), ..p([5, 4].into()) }))
        }
        "max_pool 3" => both(x.max_pool_with_indices(p(2.into()))),
        "max_pool asymmetric" => {
            vec![x.max_pool(Pool { stride: 2.into(), padding: [(0, 2), (1, 0)].into(), ..p([3, 2].into()) })]
        }
        "avg_pool 1" => vec![x.avg_pool(Pool { stride: 3.into(), padding: 2.into(), ..p(4.into()) })],
        "avg_pool 1 ceil" => {
            vec![x.avg_pool(Pool { stride: 3.into(), padding: 1.into(), ceil_mode: true, ..p(4.into()) })]
        }
        "avg_pool 1 ceil not counting" => vec![x.avg_pool(Pool {
            stride: 3.into(),
            padding: 1.into(),
            ceil_mode: true,
            count_include_pad: false,
            ..p(4.into())
        })],
        "avg_pool 2" => vec![x.avg_pool(Pool {
            stride: [2, 1].into(),
            padding: 1.into(),
            count_include_pad: false,
            ..p([3, 2].into())
        })],
        "avg_pool 2 large" => {
            vec![x.avg_pool(Pool { stride: 2.into(), padding: 2.into(), ceil_mode: true, ..p(5.into()) })]
        }
        "avg_pool 3" => vec![x.avg_pool(Pool { stride: 1.into(), padding: 1.into(), ..p(2.into()) })],
        "avg_pool asymmetric and dilated" => vec![x.avg_pool(Pool {
            stride: [1, 2].into(),
            padding: [(1, 2), (0, 1)].into(),
            dilation: 2.into(),
            count_include_pad: false,
            ..p([3, 2].into())
        })],
        _ => panic!("no pooling: {name}"),
    }
}

/// The call that a case is.
fn grid_options(words: &[&str]) -> GridSample {
    let mode = match words[0] {
        "nearest" => GridMode::Nearest,
        "linear" => GridMode::Linear,
        _ => GridMode::Cubic,
    };
    let padding = match words[1] {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        _ => GridPadding::Reflection,
    };
    GridSample { mode, padding, align_corners: words[2] == "aligned" }
}

/// Longer than the smallest result, and the gradients by input, weights and bias.
fn conv_transpose(words: &[&str], x: &[Tensor]) -> Vec<Tensor> {
    let conv = Conv::default();
    let options = match words {
        ["1"] => ConvTranspose { conv: Conv { stride: 3.into(), padding: 1.into(), ..conv }, output_padding: 1.into() },
        ["2"] => ConvTranspose {
            conv: Conv { stride: [2, 3].into(), padding: [1, 0].into(), dilation: [2, 1].into(), groups: 2 },
            output_padding: [1, 0].into(),
        },
        ["2", ..] => ConvTranspose { conv: Conv { dilation: [2, 3].into(), ..conv }, output_padding: [1, 2].into() },
        _ => ConvTranspose { conv: Conv { stride: [2, 1, 3].into(), ..conv }, output_padding: [0, 0, 1].into() },
    };
    let [input, weight, bias, g] = [0, 1, 2, 3].map(|i| x[i].tracked());
    let y = input.conv_transpose(&weight, Some(&bias), options);
    let grads = y.mul(&g).sum(..).grad(&[&input, &weight, &bias]);
    std::iter::once(y).chain(grads).collect()
}

fn conv(words: &[&str]) -> Conv {
    let conv = Conv::default();
    match words {
        ["1"] => Conv { stride: 2.into(), padding: 2.into(), groups: 2, ..conv },
        ["2"] => Conv { stride: [2, 1].into(), padding: [1, 0].into(), dilation: [1, 2].into(), ..conv },
        ["2", ..] => Conv { padding: 1.into(), groups: 3, ..conv },
        _ => Conv { stride: [1, 1, 2].into(), padding: [0, 1, 1].into(), ..conv },
    }
}

/// Ops whose size is data; their masks are numbers in the table.
fn of_data(name: &str, x: &[Tensor]) -> lazuli::Result<Tensor> {
    match name {
        "nonzero" => x[0].nonzero(),
        "unique" => x[0].unique(),
        "masked_select" => x[0].masked_select(&x[1].ne(0)),
        _ => x[0].index_mask(&x[1].ne(0)),
    }
}

fn call(name: &str, x: &[Tensor]) -> Vec<Tensor> {
    let words: Vec<&str> = name.split(' ').collect();
    match words[0] {
        "pad" => return vec![pad(&words[1..], &x[0])],
        "resize" => return vec![resize(&words[1..], &x[0])],
        "max_pool" | "avg_pool" => return pooled(name, &x[0]),
        "grid_sample" => return vec![x[0].grid_sample(&x[1], grid_options(&words[1..]))],
        "conv_transpose" => return conv_transpose(&words[1..], x),
        "conv" => return vec![x[0].conv(&x[1], Some(&x[2]), conv(&words[1..]))],
        "det" => return vec![x[0].det()],
        "rfft" => return vec![x[0].rfft(if words[1] == "down" { 0 } else { -1 })],
        "fft" => return vec![x[0].fft(-2)],
        "irfft" => return vec![x[0].irfft(words[1].parse().expect("is a length"), -2)],
        "non_max_suppression" => {
            let threshold = words[1].parse().expect("is a number");
            return vec![x[0].non_max_suppression(&x[1], threshold).expect("has boxes")];
        }
        _ => {}
    }
    let both = |(values, indices)| vec![values, indices];
    vec![match name {
        "roll" => x[0].roll(2, 1),
        "roll back" => x[0].roll(-7, 0),
        "diff" => x[0].diff(2, 1),
        "repeat_interleave" => x[0].repeat_interleave(3, 0),
        "movedim" => x[0].movedim([0, 2], [3, 0]),
        "diag of a matrix" => x[0].diag(1),
        "diag below of a matrix" => x[0].diag(-2),
        "diag of a vector" => x[0].diag(2),
        "diag below of a vector" => x[0].diag(-1),
        "trace" => x[0].trace(),
        "hstack" => Tensor::hstack(&[&x[0], &x[1]]),
        "vstack" => Tensor::vstack(&[&x[0], &x[1]]),
        "meshgrid" => return Tensor::meshgrid(&[&x[0], &x[1]]),
        "floor_divide" | "floor_divide of integers" | "floor_divide of special numbers" => x[0].floor_divide(&x[1]),
        "trunc_divide" | "trunc_divide of integers" => x[0].trunc_divide(&x[1]),
        "fmod" | "fmod of integers" | "fmod of special numbers" => x[0].fmod(&x[1]),
        "hypot" => x[0].hypot(&x[1]),
        "logaddexp" => x[0].logaddexp(&x[1]),
        "isclose" => x[0].isclose(&x[1], 0.1, 0.01),
        "lerp" => x[0].lerp(&x[1], &x[2]),
        "logical_xor" => x[0].logical_xor(&x[1]),
        "selu" => x[0].selu(),
        "celu" => x[0].celu(1.5),
        "mish" => x[0].mish(),
        "glu" => x[0].reshape([2, -1]).glu(1),
        "prelu" => x[0].reshape([1, 4, -1]).prelu(&x[1].unsqueeze(-1)),
        "hardsigmoid" => x[0].hardsigmoid(1.0 / 6.0, 0.5),
        "threshold" => x[0].threshold(0.5, -3.0),
        "softsign" => x[0].softsign(),
        "softshrink" => x[0].shrink(0.75, 0.75),
        "hardshrink" => x[0].shrink(0.75, 0.0),
        "log_sigmoid" => x[0].log_sigmoid(),
        "lp_pool" => x[0].lp_pool(3.0, Pool { stride: 2.into(), ..Pool::new([2, 3]) }),
        "adaptive_avg_pool" => x[0].adaptive_avg_pool(&[3, 5]),
        "adaptive_avg_pool even" => x[0].adaptive_avg_pool(&[1, 4]),
        "adaptive_max_pool" => x[0].adaptive_max_pool(&[2, 3, 4]),
        "interpolate linear" => x[0].interpolate(&[7, 3], &Interpolate::new(Interpolation::Linear)),
        "interpolate cubic" => x[0].interpolate(&[7, 9], &Interpolate::new(mode("cubic"))),
        "interpolate cubic aligned" => {
            let aligned = Interpolate { coordinates: Coordinates::AlignCorners, ..Interpolate::new(mode("cubic")) };
            x[0].interpolate(&[7, 9], &aligned)
        }
        "interpolate nearest" => {
            x[0].interpolate(&[7, 3], &Interpolate::new(Interpolation::Nearest(NearestRule::Floor)))
        }
        "layer_norm" => x[0].layer_norm([-2, -1], Some(&x[1]), Some(&x[2]), 1e-3),
        "group_norm" => x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-3),
        "instance_norm" => x[0].instance_norm(Some(&x[1]), Some(&x[2]), 1e-3),
        "local_response_norm" => x[0].local_response_norm(3, 0.5, 0.75, 1.5),
        "local_response_norm even" => x[0].local_response_norm(2, 0.5, 0.75, 1.5),
        "scatter" => x[0].scatter(0, &x[1], &x[2]),
        "scatter mul of many" | "scatter max of many" | "scatter min of many" => {
            x[0].scatter_reduce(1, &x[1], &x[2], reduce(words[1]))
        }
        "scatter add" | "scatter mul" | "scatter max" | "scatter min" => {
            x[0].scatter_reduce(0, &x[1], &x[2], reduce(words[1]))
        }
        "index" => x[0].index(&[&x[1], &x[2]]),
        "index_put" => x[0].index_put(&[&x[1], &x[2]], &x[3]),
        "index_put add" | "index_put max" => x[0].index_put_reduce(&[&x[1], &x[2]], &x[3], reduce(words[1])),
        "index_add" => x[0].index_add(1, &x[1], &x[2]),
        "take" => x[0].take(&x[1]),
        "nan_to_num" | "nan_to_num of infinities" => x[0].nan_to_num(),
        "flatten_axes" => x[0].flatten_axes(1, 2),
        "nonzero" | "unique" | "masked_select" | "index_mask" => of_data(name, x).expect("has a size"),
        "ifft" => x[0].ifft(1),
        "dft longer" => x[0].dft(1, Dft { length: Some(8), ..Dft::default() }),
        "dft shorter" => x[0].dft(1, Dft { length: Some(3), ..Dft::default() }),
        "stft" => x[0].stft(16, 5, None),
        "stft windowed" => x[0].stft(16, 5, Some(&x[1])),
        "cumprod" => x[0].cumprod(1),
        "cumprod down" => x[0].cumprod(0),
        "cummax" | "cummax of integers" => return both(x[0].cummax(1)),
        "cummin of integers" => return both(x[0].cummin(0)),
        "cummin with NaN" => return both(x[0].cummin(1)),
        _ => panic!("no call for {name}"),
    }]
}

#[test]
fn composed_ops_are_numpys_pytorchs_and_onnxs() {
    let _device = shared();
    let cases = cases();
    assert!(cases.len() > 100, "the table was read");
    for case in cases {
        check(case.name, &call(case.name, &case.inputs), &case.outputs);
    }
}

/// The error that a mistake carries.
#[track_caller]
fn check_error(made: Tensor, parts: &[&str]) {
    let error = made.to_dtype(DType::F32).to_vec::<f32>().expect_err("is a mistake").to_string();
    for part in parts {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn mistakes_name_the_op_and_the_shapes() {
    let _device = shared();
    let x = Tensor::zeros([2, 3, 4], DType::F32, &device());
    let places = Tensor::from_slice(&[0, 5], [2], &device());
    let plain = Interpolate::new(Interpolation::Linear);
    let w = Tensor::zeros([3, 1, 2], DType::F32, &device());
    for (made, parts) in [
        (x.reshape([5, -1]), &["reshape", "[2, 3, 4]", "24 elements", "[5, -1]"][..]),
        (x.reshape([-1, -1]), &["reshape", "[-1, -1]", "more than one -1"]),
        (x.reshape([-2, 12]), &["reshape", "-2", "[-2, 12]"]),
        (x.reshape([0, -1]), &["reshape", "[0, -1]"]),
        (x.flatten_axes(2, 1), &["flatten_axes", "[2, 3, 4]"]),
        (x.movedim([0, 1], 2), &["movedim", "2 axes", "1 place"]),
        (x.pad_with(&[(1, 1); 4], PadMode::Edge), &["pad_with", "4 pairs", "3 axes"]),
        (x.narrow(0, 0, 0).pad_with(&[(1, 0)], PadMode::Wrap), &["pad_with", "[0, 3, 4]"]),
        (
            x.conv_transpose(&w, None, ConvTranspose { output_padding: 1.into(), ..ConvTranspose::default() }),
            &["conv_transpose1d", "an output padding of 1", "less than stride or dilation", "[2, 3, 4]"],
        ),
        (
            x.conv_transpose(&w, None, ConvTranspose { output_padding: [0, 0].into(), ..ConvTranspose::default() }),
            &["conv_transpose1d", "an output padding of [0, 0]", "one for each"],
        ),
        (x.max_pool(Pool::new(5)), &["max_pool", "[2, 3, 4]", "pad more"]),
        (x.avg_pool(Pool { stride: 0.into(), ..Pool::new(2) }), &["avg_pool", "at least 1"]),
        (x.max_pool(Pool::new([2, 2])), &["max_pool", "[2, 3, 4]"]),
        (x.max_pool(Pool { padding: usize::MAX.into(), ..Pool::new(2) }), &["max_pool", "addressed"]),
        (x.adaptive_avg_pool(&[0]), &["adaptive_avg_pool", "[2, 3, 4]"]),
        (x.interpolate(&[1, 1, 1, 1], &plain), &["interpolate", "[2, 3, 4]"]),
        (x.interpolate_by(&[-1.0], &plain), &["interpolate_by", "-1"]),
        (
            x.interpolate(&[1, 1], &Interpolate { scales: vec![1.0], ..plain.clone() }),
            &["interpolate", "1 scale for 2 sizes", "[2, 3, 4]"],
        ),
        (x.interpolate(&[1], &Interpolate { scales: vec![0.0], ..plain.clone() }), &["interpolate", "scaled by 0"]),
        (x.group_norm(2, None, None, 0.0), &["group_norm", "[2, 3, 4]"]),
        (x.layer_norm([1, 2], Some(&places), None, 0.0), &["layer_norm", "[3, 4]", "[2]"]),
        (x.glu(1), &["glu", "[2, 3, 4]"]),
        (x.scatter(0, &places, &x), &["scatter", "[2]", "[2, 3, 4]"]),
        (x.index(&[]), &["index", "[2, 3, 4]"]),
        (x.index_add(0, &places, &x.narrow(0, 0, 1)), &["index_add", "[2, 3, 4]", "[1, 3, 4]"]),
        (x.floor_divide(&places), &["floor_divide", "[2, 3, 4]", "[2]"]),
        (x.fft(0), &["fft", "[2, 3, 4]", "rfft"]),
        (x.dft(2, Dft::default()), &["dft", "[2, 3, 4]"]),
        (x.rfft(3), &["rfft", "axis 3"]),
        (x.narrow(2, 0, 2).dft(0, Dft { length: Some(0), ..Dft::default() }), &["dft", "length 0"]),
        (x.narrow(2, 0, 2).dft(0, Dft { length: Some(1 << 40), ..Dft::default() }), &["dft", "at most"]),
        (x.narrow(2, 0, 2).dft(0, Dft { length: Some(8191), ..Dft::default() }), &["dft", "8191", "prime"]),
        (x.stft(9, 1, None), &["stft", "9", "[2, 3, 4]"]),
        (x.stft(2, 1, Some(&places.narrow(0, 0, 1))), &["stft", "[2]", "[1]"]),
        (x.grid_sample(&x, GridSample::default()), &["grid_sample", "[2, 3, 4]"]),
        (x.det(), &["det", "[2, 3, 4]"]),
        (x.diag(i32::MAX).add(&x.narrow(2, 0, 3)), &["add"]),
    ] {
        check_error(made, parts);
    }
    // Only when it runs is it known that a place is none.
    let flat = x.flatten();
    check_error(flat.narrow(0, 0, 4).index(&[&places]), &["index"]);
    check_error(flat.narrow(0, 0, 4).index_put(&[&places], &places.to_dtype(DType::F32)), &["out of range"]);
    // The first number of a pair is out of range, their place row-major is not.
    check_error(flat.reshape([4, 6]).index(&[&places.sub(1), &places.add(1)]), &["index"]);
}

#[test]
fn padding_and_pooling_of_integers_and_halves() {
    let _device = shared();
    let x = Tensor::from_slice(&[-5, -3, -9], [1, 1, 3], &device());
    let pool = Pool { stride: 1.into(), padding: 1.into(), ..Pool::new(2) };
    assert_eq!(x.max_pool(pool).to_vec::<i32>().unwrap(), [-5, -3, -3, -9]);
    assert_eq!(x.avg_pool(Pool::new(2)).to_vec::<f32>().unwrap(), [-4.0]);
    let half = x.to_dtype(DType::F16);
    assert_eq!(half.max_pool(pool).dtype().unwrap(), DType::F16);
    assert_eq!(half.avg_pool(pool).dtype().unwrap(), DType::F16);
    let bytes = x.neg().to_dtype(DType::U8);
    assert_eq!(bytes.pad_with(&[(0, 0), (0, 0), (1, 1)], PadMode::Edge).to_vec::<u8>().unwrap(), [5, 5, 3, 9, 9]);
}

#[test]
fn long_transforms_give_the_signal_back() {
    let _device = shared();
    // 20,000 = 125 · 160, and 160 is cut again; 16,384 is a power of two.
    for n in [16_384, 20_000] {
        let x = Tensor::rand([n], 1, &device()).compute().unwrap();
        let back = x.rfft(0).irfft(n, 0).to_vec::<f32>().unwrap();
        let most = x.to_vec::<f32>().unwrap().iter().zip(back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 2e-6, "{n}: {most}");
        // All that an impulse at 3 has is a turn by 3·2π/n from frequency to frequency.
        let impulse = Tensor::arange(0, n as i32, 1, &device()).eq(3).to_dtype(DType::F32).rfft(0);
        let at = impulse.narrow(0, n / 8, 1).to_vec::<f32>().unwrap();
        let angle = -2.0 * std::f64::consts::PI * 3.0 / 8.0;
        assert!((at[0] as f64 - angle.cos()).abs() < 1e-6 && (at[1] as f64 - angle.sin()).abs() < 1e-6, "{at:?}");
    }
}

#[test]
fn long_scans_stay_a_few_maps() {
    let _device = shared();
    let n = 5000;
    let ones = Tensor::full([n], 1.0f32, &device());
    // 1 + 1/n multiplied up is nearly e: no step is lost, none is made twice.
    let product = ones.add(1.0 / n as f32).cumprod(0);
    assert!((product.select_index(0, -1).item::<f32>().unwrap() - std::f32::consts::E).abs() < 2e-3);
    let text = product.explain().unwrap().to_string();
    assert!(text.matches("kernel").count() < 60, "{text}");
    let (_, places) = Tensor::arange(0, n as i32, 1, &device()).rem(1000).cummax(0);
    assert_eq!(places.select_index(0, -1).item::<i32>().unwrap(), 4999);
}

#[test]
fn the_mean_of_a_window_in_the_padding_alone_is_of_nothing() {
    let _device = shared();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 4.0], [1, 1, 3], &device());
    let pool = Pool { stride: 1.into(), padding: [(3, 4)].into(), count_include_pad: false, ..Pool::new(2) };
    let y = x.avg_pool(pool).to_vec::<f32>().unwrap();
    assert_eq!(y[2..6], [1.0, 1.5, 3.0, 4.0]);
    assert!(y.len() == 9 && y[..2].iter().chain(&y[6..]).all(|y| y.is_nan()), "{y:?}");
    let counted = x.avg_pool(Pool { count_include_pad: true, ..pool }).to_vec::<f32>().unwrap();
    assert_eq!(counted, [0.0, 0.0, 0.5, 1.5, 3.0, 2.0, 0.0, 0.0, 0.0]);
}

#[test]
fn ops_whose_size_is_data_are_numpys() {
    let _device = shared();
    let x = Tensor::from_slice(&[3.0f32, 0.0, -1.0, 0.0, 3.0, f32::NAN], [2, 3], &device());
    let places = x.nonzero().unwrap();
    assert_eq!(places.shape().unwrap(), [4, 2]);
    assert_eq!(places.to_vec::<i32>().unwrap(), [0, 0, 0, 2, 1, 1, 1, 2]);
    assert_eq!(x.masked_select(&x.ge(0)).unwrap().to_vec::<f32>().unwrap(), [3.0, 0.0, 0.0, 3.0]);
    // One row of bools for both rows of numbers.
    let columns = Tensor::from_slice(&[true, false, true], [3], &device());
    assert_eq!(x.nan_to_num().masked_select(&columns).unwrap().to_vec::<f32>().unwrap(), [3.0, -1.0, 0.0, 0.0]);
    let second = Tensor::from_slice(&[false, true], [2], &device());
    assert_eq!(x.nan_to_num().index_mask(&second).unwrap().to_vec::<f32>().unwrap(), [0.0, 3.0, 0.0]);
    let none = x.index_mask(&second.logical_and(false)).unwrap();
    assert_eq!(none.shape().unwrap(), [0, 3]);
    assert_eq!(x.nan_to_num().unique().unwrap().to_vec::<f32>().unwrap(), [-1.0, 0.0, 3.0]);
    assert_eq!(x.flatten().narrow(0, 0, 0).unique().unwrap().shape().unwrap(), [0]);
    let error = x.index_mask(&columns).expect_err("is a mistake").to_string();
    assert!(error.contains("index_mask") && error.contains("[3]") && error.contains("[2, 3]"), "{error}");
    let error = x.masked_select(&second).expect_err("is a mistake").to_string();
    assert!(error.contains("masked_select") && error.contains("[2]"), "{error}");
    // What is chosen keeps its history.
    let leaf = x.nan_to_num().compute().unwrap();
    let chosen = leaf.square().masked_select(&leaf.gt(0)).unwrap();
    assert_eq!(chosen.sum(..).grad(&[&leaf])[0].to_vec::<f32>().unwrap(), [6.0, 0.0, 0.0, 0.0, 6.0, 0.0]);
}

#[test]
fn random_integers_are_where_and_as_often_as_they_should_be() {
    let _device = shared();
    let n = 60_000;
    let count = |x: &[i32], v: i32| x.iter().filter(|x| **x == v).count() as f64 / x.len() as f64;
    let x = Tensor::randint(-1, 5, [n], 3, &device()).to_vec::<i32>().unwrap();
    // Six standard deviations of a share of 1/6.
    assert!((-1..5).all(|v| (count(&x, v) - 1.0 / 6.0).abs() < 6.0 * (5.0 / 36.0 / n as f64).sqrt()));
    assert_eq!(x, Tensor::randint(-1, 5, [n], 3, &device()).to_vec::<i32>().unwrap());
    assert!(x.iter().all(|v| (-1..5).contains(v)));
    let mut order = Tensor::randperm(1000, 3, &device()).to_vec::<i32>().unwrap();
    assert_ne!(order, (0..1000).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..1000).collect::<Vec<_>>());
    let weights = Tensor::from_slice(&[0.0f32, 1.0, 3.0, 0.0, 5.0, 5.0, 0.0, 0.0], [2, 4], &device());
    let drawn = weights.multinomial(n, 3);
    assert_eq!(drawn.shape().unwrap(), [2, n]);
    let drawn = drawn.to_vec::<i32>().unwrap();
    for (row, shares) in drawn.chunks(n).zip([[0.0, 0.25, 0.75, 0.0], [0.5, 0.5, 0.0, 0.0]]) {
        for (class, share) in shares.into_iter().enumerate() {
            let deviation = (share * (1.0 - share) / n as f64).sqrt();
            assert!((count(row, class as i32) - share).abs() <= 6.0 * deviation, "class {class} of {shares:?}");
        }
    }
    check_error(Tensor::randint(3, 3, [2], 1, &device()), &["randint", "3"]);
    check_error(Tensor::scalar(1.0, &device()).multinomial(2, 1), &["multinomial", "[]"]);
}
