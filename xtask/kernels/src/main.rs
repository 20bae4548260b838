//! The computations whose kernels `cargo xtask isa` looks at: those of the benchmarks, and one of each kernel form beside
//! them. Each case is evaluated on the device that is named, and says so on standard error, among what the driver writes
//! there. What the driver makes of the kernels is read by xtask; nothing here knows of it.

use std::process::ExitCode;

use lazuli::{BlockFormat, DType, Device, Result, Tensor};
use lazuli_nn::{Conv2d, Layer, Window};

/// A computation by name.
struct Case {
    name: &'static str,
    build: fn(&Device) -> Vec<Tensor>,
}

const fn case(name: &'static str, build: fn(&Device) -> Vec<Tensor>) -> Case {
    Case { name, build }
}

/// All of them, in the order in which they are printed.
const CASES: &[Case] = &[
    case("chain of 3, 16 Mi", |d| {
        let [a, b, c] = [(); 3].map(|()| zeros(&[16 << 20], d));
        vec![a.add(&b).mul(5.0).sub(&c)]
    }),
    case("chain of 100, 1 Mi", |d| {
        let (x, t) = (zeros(&[1 << 20], d), zeros(&[1 << 20], d));
        vec![(0..50).fold(x, |x, i| x.mul(0.9 + 0.001 * i as f32).add(&t))]
    }),
    case("x + x.t() 4096²", |d| {
        let x = zeros(&[4096, 4096], d);
        vec![x.add(&x.t())]
    }),
    case("gelu f16, 16 Mi", |d| vec![halves(&[16 << 20], d).gelu()]),
    case("softmax 4096×1024", |d| vec![zeros(&[4096, 1024], d).softmax(-1)]),
    case("softmax 64×100000", |d| vec![zeros(&[64, 100_000], d).softmax(-1)]),
    case("layer_norm 4096×1024", |d| {
        let (x, w, b) = (zeros(&[4096, 1024], d), zeros(&[1024], d), zeros(&[1024], d));
        vec![x.layer_norm(-1, Some(&w), Some(&b), 1e-5)]
    }),
    case("sum 16 Mi", |d| vec![zeros(&[16 << 20], d).sum(..)]),
    case("sum axis 0 4096²", |d| vec![zeros(&[4096, 4096], d).sum(0)]),
    case("sum axis 1 4096²", |d| vec![zeros(&[4096, 4096], d).sum(1)]),
    case("256³", |d| vec![product(256, 256, 256, d)]),
    case("1024³", |d| vec![product(1024, 1024, 1024, d)]),
    case("1024³, bias, gelu", |d| vec![product(1024, 1024, 1024, d).add(&zeros(&[1024], d)).gelu()]),
    case("1024³, W [n, k]", |d| vec![by_weight(1024, 1024, 1024, DType::F32, d)]),
    case("1024³, aᵀ", |d| vec![zeros(&[1024, 1024], d).t().matmul(&zeros(&[1024, 1024], d))]),
    case("2048³", |d| vec![product(2048, 2048, 2048, d)]),
    case("1×1536²", |d| vec![product(1, 1536, 1536, d)]),
    case("1×1536², f16", |d| vec![product_of_halves(1, 1536, 1536, d)]),
    case("1×1536², W [n, k]", |d| vec![by_weight(1, 1536, 1536, DType::F32, d)]),
    case("1×1536², W [n, k] f16", |d| vec![by_weight(1, 1536, 1536, DType::F16, d)]),
    case("1×1536², W Q4_1", |d| in_blocks(1, 1536, 1536, "Q4_1", d)),
    case("1×1536², W Q8_0", |d| in_blocks(1, 1536, 1536, "Q8_0", d)),
    case("1×4096²", |d| vec![product(1, 4096, 4096, d)]),
    case("1×4096², f16", |d| vec![product_of_halves(1, 4096, 4096, d)]),
    case("1×4096², W [n, k]", |d| vec![by_weight(1, 4096, 4096, DType::F32, d)]),
    case("1×4096², W [n, k] f16", |d| vec![by_weight(1, 4096, 4096, DType::F16, d)]),
    case("1×4096², W Q4_1", |d| in_blocks(1, 4096, 4096, "Q4_1", d)),
    case("1×4096², W Q8_0", |d| in_blocks(1, 4096, 4096, "Q8_0", d)),
    case("1×4096², W Q6_K", |d| in_blocks(1, 4096, 4096, "Q6_K", d)),
    case("8×1536²", |d| vec![product(8, 1536, 1536, d)]),
    case("8×1536², f16", |d| vec![product_of_halves(8, 1536, 1536, d)]),
    case("8×1536², W [n, k]", |d| vec![by_weight(8, 1536, 1536, DType::F32, d)]),
    case("8×1536², W [n, k] f16", |d| vec![by_weight(8, 1536, 1536, DType::F16, d)]),
    case("8×1536², W Q4_1", |d| in_blocks(8, 1536, 1536, "Q4_1", d)),
    case("8×1536², W Q8_0", |d| in_blocks(8, 1536, 1536, "Q8_0", d)),
    case("64×1536²", |d| vec![product(64, 1536, 1536, d)]),
    case("64×1536², f16", |d| vec![product_of_halves(64, 1536, 1536, d)]),
    case("64×1536², W [n, k]", |d| vec![by_weight(64, 1536, 1536, DType::F32, d)]),
    case("64×1536², W [n, k] f16", |d| vec![by_weight(64, 1536, 1536, DType::F16, d)]),
    case("64×1536², W Q4_1", |d| in_blocks(64, 1536, 1536, "Q4_1", d)),
    case("64×1536², W Q8_0", |d| in_blocks(64, 1536, 1536, "Q8_0", d)),
    case("attention 12×512×64", |d| vec![attention(12, 512, 64, Mask::None, d)]),
    case("attention 12×512×64, causal", |d| vec![attention(12, 512, 64, Mask::Causal, d)]),
    case("encoder, 6 layers of 128×384", |d| vec![encoder(6, d)]),
    case("conv 3×224² → 64 k7 s2", |d| vec![convolution([1, 3, 224], 64, 7, 2, d)]),
    case("conv 64×56² → 64 k3", |d| vec![convolution([1, 64, 56], 64, 3, 1, d)]),
    case("conv 64×56² → 256 k1", |d| vec![convolution([1, 64, 56], 256, 1, 1, d)]),
    case("conv 256×14² → 256 k3", |d| vec![convolution([1, 256, 14], 256, 3, 1, d)]),
    case("conv 512×7² → 512 k3", |d| vec![convolution([1, 512, 7], 512, 3, 1, d)]),
    case("embedding 512 of 32000×768", |d| vec![zeros(&[32_000, 768], d).embedding(&indices(512, d))]),
    case("scatter_add 4096 rows", |d| {
        let at = indices(4096, d).reshape([4096, 1]).broadcast_to([4096, 64]);
        vec![zeros(&[32_000, 64], d).scatter_add(0, &at, &zeros(&[4096, 64], d))]
    }),
    case("cumsum 4096×1024", |d| vec![zeros(&[4096, 1024], d).cumsum(-1)]),
    case("cumsum 4 Mi", |d| vec![zeros(&[4 << 20], d).cumsum(0)]),
    case("sort 4096×1024", |d| vec![zeros(&[4096, 1024], d).sort(-1, false)]),
    case("argmax 64×32000", |d| vec![zeros(&[64, 32_000], d).argmax(-1)]),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", device] => run(device),
        ["plan", device] => plan(device),
        ["time", device] => time(device, ""),
        ["time", device, part] => time(device, part),
        _ => {
            eprintln!("Usage: isa-kernels run|plan DEVICE, or isa-kernels time DEVICE [PART OF A NAME]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isa-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Evaluates every case.
fn run(device: &str) -> Result<()> {
    let device = Device::open(device)?;
    eprintln!("DEVICE {}", device.info().driver);
    device.properties().iter().for_each(|(name, value)| eprintln!("TARGET {name}: {value}"));
    for case in CASES {
        let wanted = (case.build)(&device);
        eprintln!("CASE {}", case.name);
        lazuli::compute(&wanted.iter().collect::<Vec<_>>())?;
        eprintln!("END");
    }
    Ok(())
}

/// Plans every case, and prints how many kernels it has.
fn plan(device: &str) -> Result<()> {
    let device = Device::open(device)?;
    for case in CASES {
        let wanted = (case.build)(&device);
        let explain = lazuli::explain(&wanted.iter().collect::<Vec<_>>())?;
        println!("{}\t{}", case.name, explain.kernels.len());
    }
    Ok(())
}

/// Evaluates every case whose name has this part twice, and prints the CPU seconds of this process that the first evaluation takes more than the second:
/// those of planning and of compiling its kernels, if no cache of the driver's has them (`MESA_SHADER_CACHE_DISABLE=true`).
fn time(device: &str, part: &str) -> Result<()> {
    let device = Device::open(device)?;
    let evaluate = |case: &Case| -> Result<f64> {
        let wanted = (case.build)(&device);
        device.sync()?;
        let before = cpu_seconds();
        lazuli::compute(&wanted.iter().collect::<Vec<_>>())?;
        device.sync()?;
        Ok(cpu_seconds() - before)
    };
    for case in CASES.iter().filter(|case| case.name.contains(part)) {
        let (first, second) = (evaluate(case)?, evaluate(case)?);
        println!("{}\t{:.2}", case.name, first - second);
    }
    Ok(())
}

/// CPU time of all threads of this process so far, in steps of 10 ms; 0 where the system does not tell as Linux does.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name of the program, which may hold spaces, field 12 and 13 of the rest are user and system time.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Memory on the device. Its values are of no interest.
fn zeros(shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec(vec![0.0f32; shape.iter().product()], shape, device)
}

fn halves(shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec(vec![lazuli::f16::ZERO; shape.iter().product()], shape, device)
}

fn indices(n: usize, device: &Device) -> Tensor {
    Tensor::from_vec(vec![0i32; n], [n], device)
}

fn product(m: usize, k: usize, n: usize, device: &Device) -> Tensor {
    zeros(&[m, k], device).matmul(&zeros(&[k, n], device))
}

fn product_of_halves(m: usize, k: usize, n: usize, device: &Device) -> Tensor {
    halves(&[m, k], device).matmul(&halves(&[k, n], device))
}

/// A product with a weight in blocks of a format; nothing, if there is no such format, which `rows` then reports.
fn in_blocks(m: usize, k: usize, n: usize, format: &str, device: &Device) -> Vec<Tensor> {
    let Ok(format) = BlockFormat::named(format) else { return Vec::new() };
    let bytes = vec![0; n * k / format.block_len() * format.block_bytes()];
    vec![zeros(&[m, k], device).matmul(&Tensor::from_blocks(format, &bytes, [n, k], device).t())]
}

/// A product with a weight as models store it, a row for each output.
fn by_weight(m: usize, k: usize, n: usize, dtype: DType, device: &Device) -> Tensor {
    let memory = if dtype == DType::F16 { halves } else { zeros };
    memory(&[m, k], device).matmul(&memory(&[n, k], device).t())
}

enum Mask {
    None,
    Causal,
}

/// Attention as maths: softmax(q·kᵀ/√size + mask)·v.
fn attention(heads: usize, length: usize, size: usize, mask: Mask, device: &Device) -> Tensor {
    let [q, k, v] = [(); 3].map(|()| zeros(&[1, heads, length, size], device));
    let scores = q.matmul(&k.transpose(-1, -2)).mul(1.0 / (size as f32).sqrt());
    let scores = match mask {
        Mask::None => scores,
        Mask::Causal => {
            let at = Tensor::arange(0.0, length as f32, 1.0, device);
            at.unsqueeze(1).ge(&at.unsqueeze(0)).select(&scores, f32::NEG_INFINITY)
        }
    };
    scores.softmax(-1).matmul(&v)
}

/// An encoder: layers of attention (12 heads) and an MLP of four times the width, each with a norm before it.
fn encoder(n_layers: usize, device: &Device) -> Tensor {
    let norm = |x: &Tensor| x.layer_norm(-1, Some(&zeros(&[384], device)), Some(&zeros(&[384], device)), 1e-5);
    (0..n_layers).fold(zeros(&[128, 384], device), |x, _| {
        let normed = norm(&x);
        let heads = |w: Tensor| normed.matmul(&w).reshape([128, 12, 32]).permute(&[1, 0, 2]);
        let [q, k, v] = [(); 3].map(|()| heads(zeros(&[384, 384], device)));
        let scores = q.matmul(&k.transpose(-1, -2)).mul(1.0 / 32f32.sqrt()).softmax(-1);
        let mixed = scores.matmul(&v).permute(&[1, 0, 2]).reshape([128, 384]);
        let x = x.add(&mixed.matmul(&zeros(&[384, 384], device)));
        let hidden = norm(&x).matmul(&zeros(&[384, 1536], device)).add(&zeros(&[1536], device)).gelu();
        x.add(&hidden.matmul(&zeros(&[1536, 384], device))).add(&zeros(&[384], device))
    })
}

/// A convolution of square windows with bias and activation, padded so that a stride of one keeps the size.
fn convolution([batch, n_in, side]: [usize; 3], n_out: usize, size: usize, stride: usize, device: &Device) -> Tensor {
    let window = Window { stride, padding: size / 2, ..Window::default() };
    let weight = zeros(&[n_out, n_in, size, size], device);
    let conv = Conv2d { weight, bias: Some(zeros(&[n_out], device)), window };
    conv.forward(&zeros(&[batch, n_in, side, side], device)).relu()
}
