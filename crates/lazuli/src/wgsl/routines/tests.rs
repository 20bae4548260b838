//! Every routine, for every dtype, as valid WGSL.

use crate::wgsl::tests::{check, data};
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
