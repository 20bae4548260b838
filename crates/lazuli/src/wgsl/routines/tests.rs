//! Every routine, for every dtype, as valid WGSL.

use crate::wgsl::tests::{check, check_small, data};
use crate::{DType, Device, Tensor};

#[test]
fn routines_are_valid_for_every_dtype_and_shape() {
    for dtype in DType::ALL {
        for (shape, axis) in [(&[5usize][..], 0), (&[3, 1, 7], 2), (&[40, 3], 0), (&[2, 1000, 3], 1), (&[1 << 20], 0)] {
            let x = data(shape, dtype);
            check(&[&x.sort(axis, false)]);
            check(&[&x.argsort(axis, true)]);
            if dtype != DType::Bool {
                check(&[&x.cumsum(axis)]);
            }
        }
        let index = Tensor::from_slice(&[0, 2, 1, 1], [2, 2], &Device::cpu());
        let x = data([4, 3], dtype);
        check(&[&x.scatter_add(0, &index, &data([2, 2], dtype))]);
        check(&[&x.scatter_add(1, &index, &data([2, 2], dtype)).sum(0)]);
    }
}

#[test]
fn routines_bind_few_windows_however_large_tensors_are() {
    let n = 1 << 20;
    for (shape, axis) in [(&[n][..], 0), (&[1024, 1000], 1), (&[5, 300, 700], 1), (&[1024, 1024], 0), (&[2, n / 2], 0)]
    {
        let (x, index) = (data(shape, DType::F32), data(shape, DType::I32));
        for y in [x.cumsum(axis), x.sort(axis, true), x.argsort(axis, true), x.scatter_add(axis, &index, &x)] {
            check_small(&[&y], 6);
        }
    }
}

#[test]
fn routines_have_few_texts_however_large_tensors_are() {
    let texts = |n: usize| {
        let x = data([n, 1024], DType::F32);
        let index = data([n, 1024], DType::I32);
        [x.cumsum(0), x.sort(0, true), x.scatter_add(0, &index, &x)].map(|y| check_small(&[&y], 8).len())
    };
    // There is another text for each number of windows that a pass binds, which are few.
    assert_eq!(texts(4096), texts(8192));
    assert!(texts(8192).iter().all(|n| *n < 16), "{:?}", texts(8192));
}
