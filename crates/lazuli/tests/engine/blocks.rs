//! Tensors in blocks: what they are widened to, to the bit, and that every op takes them as the f32 tensors they are.

use std::path::Path;

use lazuli::{BlockFormat, DType, Device, DeviceKind, Tensor, keep};

use crate::device::{device, flushes_subnormals};
use crate::{alone, shared};

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    fixture(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A matrix of random blocks, and the numbers that gguf widens them to.
struct Known {
    format: &'static BlockFormat,
    w: Tensor,
    plain: Vec<f32>,
    dims: [usize; 2],
}

fn known() -> impl Iterator<Item = Known> {
    BlockFormat::all().iter().map(|format| {
        let dims = if format.block_len() == 32 { [10, 256] } else { [5, 512] };
        let w = Tensor::from_blocks(format, &fixture(&format!("{format}.blocks")), dims, &device());
        Known { format, w, plain: floats(&format!("{format}.f32")), dims }
    })
}

/// Blocks of ordinary numbers: codes at random, scales near 1/100.
fn ordinary(format: &'static BlockFormat, dims: [usize; 2], seed: u64) -> Vec<u8> {
    let bytes = fixture(&format!("{format}.blocks"));
    let n_bytes = dims[0] * dims[1] / format.block_len() * format.block_bytes();
    let mut state = seed;
    let mut out: Vec<u8> = bytes.iter().cycle().take(n_bytes).copied().collect();
    for block in out.chunks_mut(format.block_bytes()) {
        for byte in block.iter_mut() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        let scale = |by: u64| lazuli::f16::from_f32(0.005 + (by >> 60) as f32 * 1e-3).to_le_bytes();
        let places: &[usize] = match format.name() {
            "Q4_0" | "Q5_0" | "Q8_0" => &[0],
            "Q2_K" => &[80, 82],
            "Q3_K" => &[108],
            "Q6_K" => &[208],
            _ => &[0, 2],
        };
        places.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&scale(state)));
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Some drivers read numbers too small to be normal as zero.
    let flushed = |v: f32| if flushes_subnormals() && !v.is_normal() { 0 } else { v.to_bits() };
    values.iter().map(|v| flushed(*v)).collect()
}

#[track_caller]
fn check_close(got: &Tensor, wanted: &Tensor, what: &str) {
    let (got, wanted) = (got.to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap());
    assert_eq!(got.len(), wanted.len(), "{what}");
    let largest = wanted.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    // The bound is for sums of a few hundred products in f32, in another order; AMX is less exact.
    let by_amx = device().properties().iter().any(|(name, _)| *name == "AMX");
    let bound = if by_amx { 1e-5 } else { 2e-6 };
    for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        assert!((got - wanted).abs() <= bound * largest, "{what}: {got} instead of {wanted} at {i}");
    }
}

#[test]
fn blocks_are_widened_to_the_bit() {
    let _device = shared();
    for Known { format, w, plain, .. } in known() {
        assert_eq!(bits(&w.to_vec::<f32>().unwrap()), bits(&plain), "{format}");
        let widened = format.widen(&fixture(&format!("{format}.blocks"))).unwrap();
        let exact = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
        assert_eq!(exact(&widened), exact(&plain), "{format}");
    }
}

#[test]
fn quantising_gives_the_blocks_that_gguf_gives() {
    for name in ["Q8_0", "Q4_0"] {
        let format = BlockFormat::named(name).unwrap();
        assert_eq!(format.quantize(&floats("values.f32")).unwrap(), fixture(&format!("values.{name}")), "{name}");
    }
    assert!(
        BlockFormat::named("Q4_K").unwrap().quantize(&[0.0; 256]).unwrap_err().to_string().contains("Q8_0 and Q4_0")
    );
    assert!(BlockFormat::named("Q8_0").unwrap().quantize(&[f32::NAN; 32]).is_err());
}

#[test]
fn views_lookups_and_elementwise_ops_read_blocks() {
    let _device = shared();
    for Known { format, w, plain, dims } in known() {
        let plain = Tensor::from_slice(&plain, dims, &device());
        let index = Tensor::from_slice(&[3u32, 0, 4, 3], [4], &device());
        let pairs = [
            (w.embedding(&index), plain.embedding(&index)),
            (w.index_select(1, &index), plain.index_select(1, &index)),
            (w.t(), plain.t()),
            (w.narrow(0, 1, 3).narrow(1, 17, 200), plain.narrow(0, 1, 3).narrow(1, 17, 200)),
            (w.flip(-1), plain.flip(-1)),
            (w.reshape([dims[0] * dims[1]]), plain.reshape([dims[0] * dims[1]])),
            (w.pad(&[(1, 1), (0, 3)], 2.0), plain.pad(&[(1, 1), (0, 3)], 2.0)),
            (w.to_dtype(DType::F32).neg(), plain.neg()),
            (Tensor::cat(&[&w, &w], 0), Tensor::cat(&[&plain, &plain], 0)),
            (w.max(keep(0)), plain.max(keep(0))),
            (w.sort(-1, false), plain.sort(-1, false)),
            (w.rows_at(0, 2, 2), plain.rows_at(0, 2, 2)),
        ];
        for (i, (got, wanted)) in pairs.iter().enumerate() {
            let (got, wanted) = (got.to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap());
            assert_eq!(bits(&got), bits(&wanted), "{format}, case {i}");
        }
    }
}

#[test]
fn products_read_blocks_of_either_operand() {
    let _device = shared();
    for format in BlockFormat::all() {
        let dims = [37, 512];
        let bytes = ordinary(format, dims, 7);
        let w = Tensor::from_blocks(format, &bytes, dims, &device());
        let plain = Tensor::from_vec(format.widen(&bytes).unwrap(), dims, &device());
        // A software driver compiles each shader for seconds.
        let is_slow = device().info().kind == DeviceKind::Software && format.name() != "Q4_1";
        for m in if is_slow { vec![1] } else { vec![1, 2, 5, 33, 130] } {
            let x = Tensor::randn([m, 512], m as u64, &device());
            check_close(&x.matmul(&w.t()), &x.matmul(&plain.t()), &format!("{format}, {m} rows"));
            let g = Tensor::randn([m, 37], m as u64, &device());
            check_close(&g.matmul(&w), &g.matmul(&plain), &format!("{format}, {m} rows, transposed"));
            check_close(&w.matmul(&x.t()), &plain.matmul(&x.t()), &format!("{format}, {m} columns"));
        }
        if is_slow {
            continue;
        }
        let x = Tensor::randn([2, 3, 512], 5, &device());
        let part = (w.narrow(0, 16, 16), plain.narrow(0, 16, 16));
        check_close(&x.matmul(&part.0.t()).relu(), &x.matmul(&part.1.t()).relu(), &format!("{format}, some rows"));
        let part = (w.narrow(0, 3, 20).narrow(1, 256, 256), plain.narrow(0, 3, 20).narrow(1, 256, 256));
        let x = Tensor::randn([4, 256], 6, &device());
        check_close(&x.matmul(&part.0.t()), &x.matmul(&part.1.t()), &format!("{format}, a part"));
    }
}

#[test]
fn gradients_by_the_other_operand_go_through_blocks() {
    let _device = shared();
    let format = BlockFormat::named("Q4_1").unwrap();
    let bytes = ordinary(format, [64, 96], 3);
    let w = Tensor::from_blocks(format, &bytes, [64, 96], &device());
    let plain = Tensor::from_vec(format.widen(&bytes).unwrap(), [64, 96], &device());
    let grad = |w: &Tensor| {
        let x = Tensor::randn([3, 96], 1, &device()).compute().unwrap().tracked();
        x.matmul(&w.t()).square().sum(..).grad(&[&x]).remove(0)
    };
    check_close(&grad(&w), &grad(&plain), "gradient by x");
    // By the weight itself there is one as well: it is a tensor like any other.
    let x = Tensor::randn([3, 96], 1, &device());
    let by_weight = |w: &Tensor| x.matmul(&w.t()).sum(..).grad(&[w]).remove(0);
    check_close(&by_weight(&w), &by_weight(&plain), "gradient by w");
}

#[test]
fn no_widened_copy_is_kept() {
    let _device = alone();
    let device = device();
    let format = BlockFormat::named("Q4_0").unwrap();
    let bytes = ordinary(format, [512, 512], 3);
    let before = device.stats().bytes_live;
    let w = Tensor::from_blocks(format, &bytes, [512, 512], &device);
    let x = Tensor::randn([3, 512], 1, &device).compute().unwrap();
    x.matmul(&w.t()).to_vec::<f32>().unwrap();
    w.compute().unwrap();
    w.to_vec::<f32>().unwrap();
    w.sum(..).item::<f32>().unwrap();
    w.embedding(&Tensor::from_slice(&[1u32], [1], &device)).to_vec::<f32>().unwrap();
    device.trim();
    let held = device.stats().bytes_live - before;
    assert!(held < 512 * 512 * 3 / 4, "{held} bytes for a matrix of 4.5 bits a weight");
    assert!(format!("{w:?}").contains("ready"));
}

#[test]
fn products_and_lookups_read_blocks_in_place() {
    let _device = shared();
    let format = BlockFormat::named("Q4_1").unwrap();
    let w = Tensor::from_blocks(format, &ordinary(format, [64, 512], 3), [64, 512], &device());
    let x = Tensor::randn([1, 512], 1, &device()).compute().unwrap();
    let index = Tensor::from_slice(&[1u32], [1], &device());
    for y in [x.matmul(&w.t()).relu(), w.embedding(&index).mul(2.0), x.matmul(&w.narrow(0, 16, 32).t())] {
        let explain = y.explain().unwrap();
        assert_eq!(explain.kernels.len(), 1, "{explain}");
        // 20 bytes for 32 numbers, and what else there is.
        assert!(explain.kernels[0].bytes_read < 64 * 512 * 20 / 32 + 4 * 512 + 64, "{explain}");
        assert!(explain.peak_temp_bytes < 64 * 512, "{explain}");
    }
    if device().info().kind == DeviceKind::Cpu {
        let explain = x.matmul(&w.t()).explain().unwrap();
        assert!(explain.kernels[0].schedule.contains("GEMV of Q4_1 blocks"), "{explain}");
    }
}

#[test]
fn a_left_operand_of_blocks_is_read_as_a_right_one() {
    let _device = shared();
    let format = BlockFormat::named("Q4_1").unwrap();
    let bytes = ordinary(format, [64, 512], 3);
    let w = Tensor::from_blocks(format, &bytes, [64, 512], &device());
    let plain = Tensor::from_vec(format.widen(&bytes).unwrap(), [64, 512], &device());
    let x = Tensor::randn([512], 1, &device()).compute().unwrap();
    let (many, wide) = (Tensor::randn([512, 40], 2, &device()), Tensor::randn([2, 64, 5], 3, &device()));
    let (many, wide) = (many.compute().unwrap(), wide.compute().unwrap());
    let turned = |x: &Tensor| x.transpose(-1, -2);
    // Each product, how it would be written with blocks on the right, and how many bytes its result has.
    let products = |w: &Tensor| {
        [
            (w.matmul(&x), x.matmul(&w.t()), 4 * 64),
            (w.narrow(0, 16, 32).matmul(&x), x.matmul(&w.narrow(0, 16, 32).t()), 4 * 32),
            (w.matmul(&many).relu(), turned(&turned(&many).matmul(&w.t())).relu(), 4 * 64 * 40),
            (w.t().matmul(&wide), turned(&turned(&wide).matmul(w)), 2 * 4 * 512 * 5),
        ]
    };
    for ((y, right, n_bytes), (expect, ..)) in products(&w).iter().zip(products(&plain)) {
        let (explain, right) = (y.explain().unwrap(), right.explain().unwrap());
        // The result may have to be laid out anew; no copy of the weights, which would be 131,072 bytes more.
        assert!(explain.peak_temp_bytes <= right.peak_temp_bytes + n_bytes, "{explain}{right}");
        let n_read = |explain: &lazuli::Explain| explain.kernels.iter().map(|kernel| kernel.bytes_read).sum::<usize>();
        assert!(n_read(&explain) <= n_read(&right) + n_bytes, "{explain}{right}");
        check_close(y, &expect, &explain.to_string());
    }
    // By the same kernel as from the right, and so to the bit.
    let (left, right) = (w.matmul(&x), x.matmul(&w.t()));
    assert_eq!(bits(&left.to_vec::<f32>().unwrap()), bits(&right.to_vec::<f32>().unwrap()));
    if device().info().kind == DeviceKind::Cpu {
        let explain = w.matmul(&x).explain().unwrap();
        assert!(explain.kernels.len() == 1 && explain.kernels[0].schedule.contains("GEMV of Q4_1 blocks"), "{explain}");
    }
    // Gradients go through it, too.
    let grad = |w: &Tensor| {
        let x = x.tracked();
        w.matmul(&x).square().sum(..).grad(&[&x]).remove(0)
    };
    check_close(&grad(&w), &grad(&plain), "gradient by x");
}

#[test]
fn numbers_of_rows_are_filled_into_products_with_blocks() {
    let _device = alone();
    let device = device();
    let format = BlockFormat::named("Q8_0").unwrap();
    let w = Tensor::from_blocks(format, &ordinary(format, [48, 96], 3), [48, 96], &device);
    let before = device.stats().plans_compiled;
    for m in 1..=20 {
        let x = Tensor::randn([m, 96], m as u64, &device).compute().unwrap();
        x.matmul(&w.t()).tanh().to_vec::<f32>().unwrap();
    }
    // The random numbers and the product each have a plan for one row and one for several.
    let n_plans = device.stats().plans_compiled - before;
    assert!(n_plans <= 4, "{n_plans} plans");
}

#[test]
fn blocks_move_between_devices_as_they_are() {
    let _device = shared();
    let (here, cpu) = (device(), Device::cpu());
    let format = BlockFormat::named("Q6_K").unwrap();
    let bytes = ordinary(format, [3, 256], 3);
    let w = Tensor::from_blocks(format, &bytes, [3, 256], &cpu).to_device(&here);
    assert_eq!(w.to_vec::<f32>().unwrap(), format.widen(&bytes).unwrap());
    assert_eq!(w.to_device(&cpu).to_vec::<f32>().unwrap(), format.widen(&bytes).unwrap());
}

#[test]
fn wrong_sizes_are_errors_that_the_tensor_carries() {
    let _device = shared();
    let format = BlockFormat::named("Q4_1").unwrap();
    let error = |bytes: usize, dims: &[usize]| {
        let made = Tensor::from_blocks(format, &vec![0; bytes], dims, &device()).add(1.0);
        made.to_vec::<f32>().unwrap_err().to_string()
    };
    assert!(error(20, &[33]).contains("rows of [33] are not whole blocks of 32 elements (Q4_1)"));
    assert!(error(19, &[32]).contains("19 bytes do not fill [32], which has 20 in Q4_1"));
    assert!(error(20, &[]).contains("not whole blocks"));
    assert!(error(0, &[usize::MAX, 32]).contains("from_blocks"));
    assert_eq!(Tensor::from_blocks(format, &[], [0, 32], &device()).to_vec::<f32>().unwrap(), []);
    assert_eq!(Tensor::from_blocks(format, &[], [4, 0], &device()).shape().unwrap(), [4, 0]);
    assert!(format.widen(&[0; 19]).unwrap_err().to_string().contains("19 bytes are not whole blocks of 20"));
}
