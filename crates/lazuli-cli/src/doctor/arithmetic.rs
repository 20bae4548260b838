//! Operations per second of kernels that do nothing but multiply and add in registers: what products are measured by. Each
//! element is many chains beside each other, so that none waits for itself: written in WGSL for GPUs, in vectors for processors.

use std::sync::Arc;
use std::time::Duration;

use lazuli::{CustomOp, Device, DeviceKind, Result, Tensor};

use super::speed::best;

/// What every step of a chain multiplies with and adds.
const FACTOR: f32 = 0.75;
const TERM: f32 = 0.125;

/// Operations per second. How many elements there are grows until they take a while.
pub fn operations_per_second(device: &Device) -> Result<f64> {
    let (op, per_elem) = match device.info().kind {
        DeviceKind::Cpu => (of_processor(), flops_of_processor()),
        _ => (of_gpu(), N_CHAINS * (2 * N_STEPS + 2)),
    };
    let mut n_elems = 16 << 10;
    loop {
        let x = Tensor::rand([n_elems], 1, device).compute()?;
        let time = best(device, || Tensor::map_custom(&op, &[&x]).compute())?;
        if time > Duration::from_millis(5) || n_elems >= 16 << 20 {
            return Ok((n_elems * per_elem) as f64 / time.as_secs_f64());
        }
        n_elems *= 4;
    }
}

/// Chains of an element on GPUs, and their steps.
const N_CHAINS: usize = 8;
const N_STEPS: usize = 32;

fn of_gpu() -> CustomOp {
    let chain = |i: usize| {
        let start = format!("($0 + {i}.0)");
        (0..N_STEPS).fold(start, |value, _| format!("({value} * {FACTOR} + {TERM})"))
    };
    let wgsl = (0..N_CHAINS).map(chain).collect::<Vec<_>>().join(" + ");
    let cpu = |x: &[f32]| {
        let chain = |i: usize| (0..N_STEPS).fold(x[0] + i as f32, |value, _| value * FACTOR + TERM);
        (0..N_CHAINS).map(chain).sum()
    };
    CustomOp { name: "multiply_add".into(), wgsl, cpu: Arc::new(cpu), grad: None }
}

/// Vectors of an element on processors: as many as two units whose results take four or five cycles want, and as fit into 16
/// registers beside factor and term. And their steps.
const N_VECTORS: usize = 12;
const N_VECTOR_STEPS: usize = 64;

fn of_processor() -> CustomOp {
    CustomOp { name: "multiply_add".into(), wgsl: "$0".into(), cpu: Arc::new(|x| chains(x[0])), grad: None }
}

fn flops_of_processor() -> usize {
    2 * N_VECTOR_STEPS * N_VECTORS * n_lanes()
}

#[cfg(target_arch = "x86_64")]
fn n_lanes() -> usize {
    match (has_avx512(), has_avx2()) {
        (true, _) => 16,
        (_, true) => 8,
        _ => 4,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn n_lanes() -> usize {
    4
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// The sum of all chains of an element.
#[cfg(target_arch = "x86_64")]
fn chains(x: f32) -> f32 {
    match (has_avx512(), has_avx2()) {
        // SAFETY: the processor has these instructions.
        (true, _) => unsafe { chains_of_avx512(x) },
        // SAFETY: as above.
        (_, true) => unsafe { chains_of_avx2(x) },
        _ => plain_chains(x, |value| value * FACTOR + TERM),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn chains(x: f32) -> f32 {
    match cfg!(target_arch = "aarch64") {
        true => plain_chains(x, |value| value.mul_add(FACTOR, TERM)),
        false => plain_chains(x, |value| value * FACTOR + TERM),
    }
}

/// Chains of multiply-adds on vectors of four, for processors without AVX2 or AVX-512: 128-bit SIMD is what nearly all have.
#[inline(always)]
fn plain_chains(x: f32, step: impl Fn(f32) -> f32) -> f32 {
    let mut sums: [[f32; 4]; N_VECTORS] =
        std::array::from_fn(|v| std::array::from_fn(|lane| x + (v * 4 + lane) as f32));
    for _ in 0..N_VECTOR_STEPS {
        sums.iter_mut().flatten().for_each(|sum| *sum = step(*sum));
    }
    sums.iter().flatten().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn chains_of_avx512(x: f32) -> f32 {
    use std::arch::x86_64::*;
    let (factor, term) = (_mm512_set1_ps(FACTOR), _mm512_set1_ps(TERM));
    let lanes = _mm512_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0);
    let mut sums = [lanes; N_VECTORS];
    for (v, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_add_ps(*sum, _mm512_set1_ps(x + v as f32));
    }
    for _ in 0..N_VECTOR_STEPS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    let mut all = sums[0];
    for sum in &sums[1..] {
        all = _mm512_add_ps(all, *sum);
    }
    _mm512_reduce_add_ps(all)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_of_avx2(x: f32) -> f32 {
    use std::arch::x86_64::*;
    let (factor, term) = (_mm256_set1_ps(FACTOR), _mm256_set1_ps(TERM));
    let mut sums = [_mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0); N_VECTORS];
    for (v, sum) in sums.iter_mut().enumerate() {
        *sum = _mm256_add_ps(*sum, _mm256_set1_ps(x + v as f32));
    }
    for _ in 0..N_VECTOR_STEPS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, term);
        }
    }
    let mut all = sums[0];
    for sum in &sums[1..] {
        all = _mm256_add_ps(all, *sum);
    }
    let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever instructions sum up, it is the sum of these chains: none is left out, no step is.
    #[test]
    fn every_chain_is_summed_up() {
        let n_lanes = n_lanes();
        for x in [0.0, 0.5, 1e6] {
            let start = |i: usize| x as f64 + if n_lanes == 4 { i } else { i % n_lanes + i / n_lanes } as f64;
            let chain = |i: usize| (0..N_VECTOR_STEPS).fold(start(i), |value, _| value * FACTOR as f64 + TERM as f64);
            let sum: f64 = (0..N_VECTORS * n_lanes).map(chain).sum();
            let got = chains(x) as f64;
            assert!((got - sum).abs() < 1e-4 * sum, "{got}, not {sum}");
        }
    }

    #[test]
    fn the_cpu_does_operations() {
        let rate = operations_per_second(&Device::cpu()).expect("the CPU multiplies");
        assert!(rate > 1e8 && rate.is_finite(), "{rate}");
    }
}
