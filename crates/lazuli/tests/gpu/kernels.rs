//! Variants of kernels that the engine picks by shape and layout: each gives what the CPU gives, at sizes that fill its
//! tiles and at sizes that do not.

use lazuli::{DType, Device, Tensor};

use crate::{alone, gpus};

/// Numbers that every dtype holds, and whose sums it holds too.
fn numbers(shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i * 7 % 101) as f32).collect();
    Tensor::from_vec(values, shape.to_vec(), device).to_dtype(dtype)
}

/// The same expression on a GPU and on the CPU gives the same numbers.
#[track_caller]
fn check(what: &str, f: impl Fn(&Device) -> Tensor) {
    let right = f(&Device::cpu()).to_dtype(DType::F32).to_vec::<f32>().unwrap();
    for gpu in gpus() {
        let got = f(&gpu).to_dtype(DType::F32).to_vec::<f32>().unwrap();
        let wrong = got.iter().zip(&right).position(|(got, right)| got != right);
        assert_eq!((got.len(), wrong), (right.len(), None), "{what} on {}", gpu.info());
    }
}

#[test]
fn transposed_operands_are_read_in_blocks_that_are_right_at_every_size() {
    let _turn = alone();
    for n in [4, 8, 28, 32, 36, 100] {
        for dtype in [DType::F32, DType::F16, DType::U8, DType::I32] {
            check(&format!("x + x.t() of {n} {dtype}"), |device| {
                let x = numbers(&[n, n], dtype, device);
                &x + x.t()
            });
        }
    }
    for (rows, cols) in [(4, 64), (36, 8), (100, 68), (5, 8), (8, 5), (1, 4)] {
        check(&format!("x.t() * 2 + y of {rows} x {cols}"), |device| {
            let x = numbers(&[rows, cols], DType::F32, device).compute().unwrap();
            x.t().mul(2.0).add(numbers(&[cols, rows], DType::F32, device))
        });
    }
    for axes in [[2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1]] {
        check(&format!("permute {axes:?}"), |device| {
            let x = numbers(&[12, 20, 8], DType::F32, device).compute().unwrap();
            let y = x.permute(&axes);
            let shape = y.shape().unwrap().to_vec();
            y.sub(numbers(&shape, DType::F32, device))
        });
    }
    check("a part of a transposed matrix", |device| {
        let x = numbers(&[40, 40], DType::F32, device).compute().unwrap();
        x.t().narrow(0, 4, 16).narrow(1, 3, 20).add(1.0)
    });
}

#[test]
fn long_columns_are_cut_and_right() {
    let _turn = alone();
    for (rows, cols) in [(4096, 512), (1000, 256), (515, 1024), (512, 260), (513, 257)] {
        check(&format!("sum(0) of {rows} x {cols}"), |device| numbers(&[rows, cols], DType::I32, device).sum(0));
        check(&format!("max(0) and what follows, of {rows} x {cols}"), |device| {
            numbers(&[rows, cols], DType::F32, device).neg().max(0).mul(2.0).add(1.0)
        });
        check(&format!("the middle axis of 2 x {rows} x {cols}"), |device| {
            numbers(&[2, rows, cols], DType::U32, device).sum(1)
        });
    }
}

#[test]
fn maps_end_where_they_should() {
    let _turn = alone();
    for n in (1..20).chain(1020..1030).chain(4095..4100) {
        check(&format!("{n} elements"), |device| {
            let x = numbers(&[n], DType::F32, device).compute().unwrap();
            // In place: what is done twice would be seen.
            let y = x.mul(2.0).add(1.0);
            drop(x);
            y
        });
    }
    for n in [1023, 4097] {
        check(&format!("{n} elements that are looked up"), |device| {
            let table = numbers(&[101], DType::I32, device).mul(1000);
            let at = numbers(&[n], DType::I32, device).compute().unwrap();
            let y = table.gather(0, &at);
            drop(at);
            y
        });
    }
}
