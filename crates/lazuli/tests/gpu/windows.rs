//! Memory that spans more windows than a kernel may bind. A device as small as WebGPU lets one be, with windows of
//! 1 MiB: eight of them are all a kernel sees, and the tensors here have twelve. The CPU says what is right.

use lazuli::{DType, Device, Error, Shape, Tensor, keep};

use crate::{alone, own};

/// Elements of four bytes in twelve windows.
const N: usize = 3 << 20;

fn small() -> Device {
    with_bindings(8)
}

fn with_bindings(n: u32) -> Device {
    let (_, _, gpu) = own(|limits| {
        limits.max_storage_buffers_per_shader_stage = n;
        limits.max_storage_buffer_binding_size = 1 << 20;
        limits.max_buffer_size = 4 << 20;
    });
    gpu
}

/// Twelve windows of small whole numbers, of which sums are exact.
fn numbers(device: &Device) -> Tensor {
    Tensor::from_vec((0..N).map(|i| (i % 8191) as i32 - 4000).collect(), [N], device)
}

/// The same within -1 and 1.
fn fractions(device: &Device) -> Tensor {
    numbers(device).to_dtype(DType::F32).div(4200.0).compute().unwrap()
}

/// So many bytes.
fn bytes(n: usize, device: &Device) -> Tensor {
    Tensor::from_vec((0..n).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>(), [n], device)
}

/// So many half floats, of which sums of a few are exact.
fn halves(n: usize, device: &Device) -> Tensor {
    let quarters = (0..n).map(|i| (i * 7 % 97) as f32 / 4.0 - 12.0);
    Tensor::from_vec(quarters.collect::<Vec<f32>>(), [n], device).to_dtype(DType::F16).compute().unwrap()
}

/// Integers are the same as on the CPU, and one submit is enough.
#[track_caller]
fn check(expression: impl Fn(&Device) -> Tensor) {
    check_on(&small(), expression);
}

#[track_caller]
fn check_on(gpu: &Device, expression: impl Fn(&Device) -> Tensor) {
    let _turn = alone();
    let y = expression(gpu);
    let before = gpu.stats().submits;
    let y = y.compute().unwrap();
    assert_eq!(gpu.stats().submits - before, 1);
    assert!(y.to_vec::<i32>().unwrap() == expression(&Device::cpu()).to_vec::<i32>().unwrap());
}

/// Floats are so near to those of the CPU.
#[track_caller]
fn check_within(tolerance: f32, expression: impl Fn(&Device) -> Tensor) {
    check_within_on(&small(), tolerance, expression);
}

#[track_caller]
fn check_within_on(gpu: &Device, tolerance: f32, expression: impl Fn(&Device) -> Tensor) {
    let _turn = alone();
    let got = expression(gpu).to_vec::<f32>().unwrap();
    let right = expression(&Device::cpu()).to_vec::<f32>().unwrap();
    assert_eq!(got.len(), right.len());
    let far = |(x, y): &(&f32, &f32)| (*x - *y).abs() > tolerance * y.abs().max(1e-30);
    let at = got.iter().zip(&right).position(|pair| far(&pair));
    assert!(at.is_none(), "{at:?}: {:?} {:?}", at.map(|i| got[i]), at.map(|i| right[i]));
}

/// Places all over `bound`.
fn places(n: usize, bound: usize, device: &Device) -> Tensor {
    Tensor::from_vec((0..n).map(|i| (i * 7919 % bound) as i32).collect(), [n], device)
}

#[test]
fn sums_of_all_and_of_columns() {
    check(|device| numbers(device).sum(..));
    check(|device| numbers(device).max(..));
    check(|device| numbers(device).reshape([6144, 512]).sum(0));
    // Rows as long as several windows.
    check(|device| numbers(device).reshape([3, 1 << 20]).sum(0));
    check(|device| numbers(device).reshape([48, 65536]).max(0));
}

#[test]
fn what_lies_side_by_side() {
    check(|device| {
        let x = numbers(device);
        &x + x.mul(2) + x.flip(0)
    });
    check(|device| {
        let x = numbers(device).reshape([1536, 2048]);
        x.t() + x.reshape([2048, 1536])
    });
}

#[test]
fn more_places_of_one_tensor_than_a_kernel_binds() {
    check(|device| {
        let x = numbers(device);
        let n = N / 12;
        (1..12).fold(x.narrow(0, 0, n), |sum, i| sum.mul(3).add(&x.narrow(0, i * n, n)))
    });
}

#[test]
fn rows_at_positions() {
    for position in [0, 1000, 2047, 3070] {
        check(|device| {
            let rows = numbers(device).narrow(0, 5, 2048).reshape([2, 1024]);
            numbers(device).reshape([3072, 1024]).write_rows(0, position, &rows)
        });
        check(|device| numbers(device).reshape([3072, 1024]).rows_at(0, position, 2).add(1));
        // Rows lie all over memory, a few in every window.
        check(|device| {
            numbers(device).reshape([16, 6144, 32]).write_rows(
                1,
                2 * position,
                &bytes(1024, device).to_dtype(DType::I32).reshape([16, 2, 32]),
            )
        });
        check(|device| numbers(device).reshape([16, 6144, 32]).rows_at(1, 2 * position, 2).sum(0));
        check(|device| {
            let rows = bytes(777, device).reshape([3, 7, 37]);
            let y = bytes(3 * 6144 * 481 + 3 * 37, device).narrow(0, 0, 3 * 6144 * 481).reshape([3, 79872, 37]);
            y.write_rows(1, 20 * position + 3, &rows).to_dtype(DType::I32)
        });
    }
}

#[test]
fn lookups() {
    check(|device| numbers(device).reshape([3072, 1024]).index_select(0, &places(700, 3072, device)).add(1));
    check(|device| numbers(device).index_select(0, &places(5000, N, device)));
    // Within rows, of which each is looked up by its own indices.
    check(|device| {
        let idx = places(1024 * 5, 3072, device).reshape([1024, 5]);
        numbers(device).reshape([1024, 3072]).gather(1, &idx)
    });
    // In a column that goes through all of it, from places that are looked up themselves, and then summed.
    check(|device| {
        let table = numbers(device).reshape([3072, 1024]);
        let idx = places(3000, 3072, device).index_select(0, &places(900, 3000, device));
        table.index_select(0, &idx).mul(2).sum(-1)
    });
    check(|device| {
        let bytes = numbers(device).to_dtype(DType::U8).reshape([1024, 3072]).compute().unwrap();
        let bytes = Tensor::cat(&[&bytes, &bytes, &bytes, &bytes], 0).compute().unwrap();
        bytes.index_select(0, &places(50, 4096, device)).to_dtype(DType::I32)
    });
}

#[test]
fn a_lookup_out_of_range_is_an_error() {
    let _turn = alone();
    let gpu = small();
    let table = numbers(&gpu).reshape([3072, 1024]);
    let idx = Tensor::from_slice(&[5i32, 3072, 7], [3], &gpu);
    let error = table.index_select(0, &idx).to_vec::<i32>().unwrap_err();
    assert!(matches!(error, Error::Index(_)), "{error}");
    let idx = Tensor::from_slice(&[5i32, 3071, 7], [3], &gpu);
    assert_eq!(table.index_select(0, &idx).to_vec::<i32>().unwrap()[1024], ((3071 * 1024) % 8191) - 4000);
}

#[test]
fn pads_and_views_of_views() {
    check(|device| numbers(device).pad(&[(5, 7)], 3).add(1));
    check(|device| numbers(device).reshape([1536, 2048]).pad(&[(3, 0), (0, 9)], -1).mul(2));
    check(|device| numbers(device).reshape([1536, 2048]).t().reshape([3072, 1024]).pad(&[(1, 1), (1, 1)], 0).flip(1));
    check(|device| {
        let x = numbers(device).reshape([1536, 2048]);
        &x.pad(&[(0, 1), (0, 0)], 0).narrow(0, 1, 1536) - &x
    });
}

#[test]
fn reductions_whose_rows_are_needed_again() {
    check_within(1e-5, |device| fractions(device).softmax(0));
    check_within(1e-5, |device| fractions(device).reshape([3072, 1024]).softmax(0));
    check_within(1e-5, |device| fractions(device).reshape([3, 1 << 20]).softmax(0));
    check_within(1e-4, |device| fractions(device).reshape([3072, 1024]).var(0, 1));
    check_within(1e-5, |device| fractions(device).reshape([48, 65536]).logsumexp(0));
    check(|device| numbers(device).reshape([3072, 1024]).argmax(0));
    check(|device| numbers(device).argmin(..));
    check(|device| {
        let x = numbers(device).reshape([6144, 512]);
        x.sub(x.max(keep(0))).add(&x.min(keep(0)))
    });
}

#[test]
fn products_with_matrices_that_do_not_fit() {
    // Small whole numbers, of which sums of products are exact.
    let few = |n: usize, shape: [usize; 2], device: &Device| {
        Tensor::from_vec((0..n).map(|i| (i % 13) as f32 - 6.0).collect(), shape, device)
    };
    let product = |a: Tensor, b: Tensor| a.matmul(&b).to_dtype(DType::I32).add(1);
    check(|device| product(few(5 * 3072, [5, 3072], device), few(N, [3072, 1024], device)));
    check(|device| product(few(2 * N / 8, [2, N / 8], device), few(N, [N / 8, 8], device)));
    check(|device| product(few(N, [3072, 1024], device), few(1024 * 3, [1024, 3], device)));
    check(|device| product(few(3 * 1024, [3, 1024], device), few(N, [3072, 1024], device).t()));
    check(|device| product(few(N, [3072, 1024], device).t(), few(3072 * 2, [3072, 2], device)));
    // Both operands are the same memory, far apart.
    check(|device| {
        let x = few(N, [12, N / 12], device).compute().unwrap();
        product(x.clone(), x.t())
    });
    check(|device| {
        let x = few(N, [3072, 1024], device).compute().unwrap();
        product(x.narrow(0, 3000, 8), x.t())
    });
}

#[test]
fn results_may_replace_what_they_are_made_of() {
    let _turn = alone();
    let (cpu, gpu) = (Device::cpu(), small());
    let both = |device: &Device| {
        let (x, table) = (numbers(device).compute().unwrap(), numbers(device).mul(3).compute().unwrap());
        let idx = places(N, N, device).compute().unwrap();
        let (a, b) = (table.index_select(0, &idx).add(&x), table.index_select(0, &idx).sub(&x));
        drop((x, idx));
        lazuli::compute(&[&a, &b]).unwrap();
        [a, b].map(|y| y.to_vec::<i32>().unwrap())
    };
    assert!(both(&gpu) == both(&cpu));
}

#[test]
fn running_sums() {
    check(|device| numbers(device).cumsum(0));
    check(|device| numbers(device).reshape([3072, 1024]).cumsum(1));
    check(|device| numbers(device).reshape([6, 128, 4096]).cumsum(1));
    check(|device| numbers(device).reshape([3072, 1024]).cumsum(0));
    // Rows as long as several windows.
    check(|device| numbers(device).reshape([3, 1 << 20]).cumsum(0));
    check_within(1e-6, |device| fractions(device).cumsum(0));
    check_within(1e-6, |device| fractions(device).reshape([3, 1 << 20]).cumsum(0));
    check(|device| bytes(4 * N, device).reshape([12, 1 << 20]).cumsum(1).to_dtype(DType::I32));
    check_within(1e-3, |device| halves(2 * N, device).reshape([3072, 2048]).cumsum(0).to_dtype(DType::F32));
}

/// Elements that are sorted: three windows of four bytes each. With keys and places that is more than the six windows
/// that a kernel of the tests below sees, and less work than all of `N`.
const SORTED: usize = 600 << 10;

/// Small whole numbers to be sorted.
fn some(shape: impl Into<Shape>, device: &Device) -> Tensor {
    numbers(device).narrow(0, 0, SORTED).reshape(shape)
}

#[test]
fn lines_in_order() {
    let gpu = with_bindings(6);
    check_on(&gpu, |device| some([SORTED], device).sort(0, false));
    check_on(&gpu, |device| some([600, 1024], device).sort(1, true));
    check_on(&gpu, |device| some([3, 200, 1024], device).sort(1, false));
    check_on(&gpu, |device| some([600, 1024], device).sort(0, false));
    check_on(&gpu, |device| some([2, SORTED / 2], device).sort(0, false));
    check_on(&gpu, |device| some([600, 1024], device).argsort(1, true));
    check_on(&gpu, |device| some([3, 200, 1024], device).argsort(1, false));
    let fraction = |device: &Device| some([2400, 256], device).to_dtype(DType::F32).div(4200.0).compute().unwrap();
    check_within_on(&gpu, 0.0, |device| fraction(device).sort(0, true));
    check_on(&gpu, |device| bytes(4 * SORTED, device).reshape([600 * 256, 16]).sort(1, true).to_dtype(DType::I32));
    check_within_on(&gpu, 0.0, |device| {
        halves(2 * SORTED, device).reshape([32, 600 * 64]).sort(0, false).to_dtype(DType::F32)
    });
}

#[test]
fn sums_at_named_places() {
    let gpu = with_bindings(6);
    // Some places are named by many, most by none.
    let sums = |shape: &'static [usize], axis: usize| {
        move |device: &Device| {
            let index = some(shape, device).abs().mul(97).rem(shape[axis] as i32);
            let src = some(shape, device).mul(3).add(1);
            some(shape, device).scatter_add(axis as i32, &index, &src)
        }
    };
    check_on(&gpu, sums(&[SORTED], 0));
    check_on(&gpu, sums(&[600, 1024], 1));
    check_on(&gpu, sums(&[3, 200, 1024], 1));
    check_on(&gpu, sums(&[600, 1024], 0));
    check_on(&gpu, sums(&[2, SORTED / 2], 0));
    // An index that is smaller than what is added to.
    check_on(&gpu, |device| {
        let index = places(100 * 700, 1024, device).reshape([10, 10, 700]);
        let src = some([SORTED], device).narrow(0, 5, 100 * 700).reshape([10, 10, 700]);
        numbers(device).reshape([96, 32, 1024]).scatter_add(2, &index, &src)
    });
    check_on(&gpu, |device| {
        let index = places(128 * 4096, 1 << 14, device).reshape([128, 4096]);
        let src = bytes(128 * 4096, device).reshape([128, 4096]);
        bytes(4 * N, device).reshape([N >> 10, 4096]).scatter_add(0, &index.rem(3072), &src).to_dtype(DType::I32)
    });
    check_within_on(&gpu, 0.0, |device| {
        let index = places(3000 * 64, 256, device).reshape([3000, 64]);
        let src = halves(3000 * 64, device).reshape([3000, 64]);
        halves(8 * SORTED, device).reshape([19200, 256]).scatter_add(1, &index, &src).to_dtype(DType::F32)
    });
}

#[test]
fn cutting_a_routine_changes_no_bit() {
    let _turn = alone();
    let (cut, whole) = (with_bindings(6), own(|_| {}).2);
    let check = |expression: &dyn Fn(&Device) -> Tensor| {
        let bits =
            |device| expression(device).to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(&cut) == bits(&whole));
    };
    check(&|device| fractions(device).cumsum(0));
    check(&|device| fractions(device).reshape([3072, 1024]).cumsum(0));
    check(&|device| fractions(device).reshape([384, 8192]).cumsum(0));
    check(&|device| fractions(device).reshape([3, 1 << 20]).cumsum(0));
    // More terms for one place than one pass adds up.
    check(&|device| {
        let index = places(100_000, 2, device).mul(N as i32 - 1);
        fractions(device).scatter_add(0, &index, &fractions(device).narrow(0, 0, 100_000).add(0.37))
    });
}

/// What is carried from one pass to the next loses nothing.
#[test]
fn a_long_sum_at_one_place_is_rounded_once() {
    let n = 100_000;
    check_within_on(&with_bindings(6), 1e-7, |device| {
        let index = places(n, 2, device).mul(N as i32 - 1);
        fractions(device).scatter_add(0, &index, &fractions(device).narrow(0, 0, n).add(0.37))
    });
}

#[test]
fn a_sum_at_a_place_out_of_range_is_an_error() {
    let _turn = alone();
    let gpu = with_bindings(6);
    let x = some([600, 1024], &gpu);
    let sums = |wrong: i32| {
        let is_last = Tensor::arange(0, SORTED as i32, 1, &gpu).eq(SORTED as i32 - 1).reshape([600, 1024]);
        let index = is_last.select(&Tensor::scalar(wrong, &gpu), &Tensor::scalar(7, &gpu));
        x.scatter_add(1, &index, &x).to_vec::<i32>()
    };
    for wrong in [-1, 1024] {
        let error = sums(wrong).unwrap_err();
        assert!(matches!(error, Error::Index(_)), "{error}");
    }
    sums(1023).unwrap();
}

#[test]
fn a_large_tensor_is_updated_in_place_window_by_window() {
    let _turn = alone();
    // 300 MiB, seen through windows of 128 MiB.
    const LARGE: usize = 75 << 20;
    let (_, _, gpu) = own(|limits| limits.max_storage_buffer_binding_size = 128 << 20);
    let mut w = Tensor::arange(0, LARGE as i32, 1, &gpu).rem(1000).to_dtype(DType::F32).compute().unwrap();
    gpu.sync().unwrap();
    gpu.reset_stats();
    let held = gpu.stats().bytes_live;
    assert_eq!(held, 4 * LARGE as u64);
    for _ in 0..3 {
        let next = &w * 0.5 + 1.0;
        drop(std::mem::replace(&mut w, next));
        assert_eq!(w.explain().unwrap().peak_temp_bytes, 0);
        w = w.compute().unwrap();
    }
    let stats = gpu.stats();
    assert_eq!((stats.bytes_peak, stats.bytes_temporary), (held, 0), "{stats:?}");
    let expect = |i: usize| (0..3).fold((i % 1000) as f32, |w, _| w * 0.5 + 1.0);
    for start in [0, (32 << 20) - 2, (64 << 20) - 2, LARGE - 4] {
        let part = w.narrow(0, start, 4).to_vec::<f32>().unwrap();
        assert_eq!(part, (start..start + 4).map(expect).collect::<Vec<f32>>(), "from {start}");
    }
}
