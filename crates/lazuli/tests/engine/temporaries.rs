//! `explain` counts every byte that an evaluation holds only while it runs: what it tells is what the device asks its pool
//! for. Counters belong to the device, which all tests share, so these tests have it to themselves.

use lazuli::{DType, Tensor};

use crate::alone;
use crate::device::device;

fn data(shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::from_vec((0..n).map(|i| (i % 13) as f32 * 0.1 - 0.5).collect(), shape, &device());
    x.to_dtype(dtype).compute().unwrap()
}

/// Graphs whose kernels need scratch memory of every kind, and some that need none.
fn graphs() -> Vec<(&'static str, Tensor)> {
    let f32 = |shape: &[usize]| data(shape, DType::F32);
    let f16 = |shape: &[usize]| data(shape, DType::F16);
    let index = Tensor::from_vec((0..300).map(|i| i * 7 % 200).collect::<Vec<i32>>(), [300], &device());
    vec![
        ("a map", f32(&[1000]).exp()),
        ("a softmax", f32(&[64, 300]).softmax(-1)),
        ("a packed operand", f32(&[96, 200]).matmul(&f32(&[200, 150]))),
        ("a transposed operand", f32(&[40, 300]).matmul(&f32(&[170, 300]).t())),
        ("narrow operands", f16(&[40, 300]).matmul(&f16(&[300, 170]))),
        ("few rows of narrow operands", f16(&[2, 64]).matmul(&f16(&[64, 70]))),
        ("integers", f32(&[9, 30]).to_dtype(DType::I32).matmul(&f32(&[30, 20]).to_dtype(DType::I32))),
        ("sums apart from the result", f32(&[70, 90]).matmul(&f32(&[90, 50])).to_dtype(DType::F16)),
        ("a batch with an epilogue", f32(&[6, 40, 64]).matmul(&f32(&[6, 64, 40])).gelu().to_dtype(DType::BF16)),
        ("split-k", f32(&[16, 40_000]).matmul(&f32(&[40_000, 16]))),
        ("one row of a long k", f32(&[1, 9000]).matmul(&f32(&[9000, 40]))),
        ("a long sum", f32(&[3_000_000]).sum(..)),
        ("long columns", f32(&[20_000, 70]).sum(0)),
        ("sorting", f32(&[50, 3000]).sort(-1, true)),
        ("running sums", f32(&[5, 70_000]).cumsum(-1)),
        (
            "scattering",
            f32(&[200, 30]).scatter_add(0, &index.reshape([300, 1]).broadcast_to([300, 30]), &f32(&[300, 30])),
        ),
        ("looking up", f32(&[200, 30]).index_select(0, &index)),
        ("several products", {
            let x = f32(&[90, 80]).matmul(&f32(&[80, 100])).gelu();
            x.matmul(&f32(&[100, 60])).softmax(-1).matmul(&f32(&[60, 10]).to_dtype(DType::F16).to_dtype(DType::F32))
        }),
    ]
}

#[test]
fn temporaries_that_explain_tells_are_those_asked_of_the_pool() {
    let _device = alone();
    let (mut with_scratch, graphs) = (0, graphs());
    for (name, y) in &graphs {
        let plan = y.explain().unwrap();
        let before = device().stats().bytes_temporary;
        y.compute().unwrap();
        assert_eq!(device().stats().bytes_temporary - before, plan.peak_temp_bytes as u64, "{name}\n{plan}");
        assert!(plan.peak_temp_bytes >= plan.peak_temp_lower_bound, "{name}\n{plan}");
        assert!(plan.kernels.iter().all(|kernel| !kernel.schedule.is_empty()), "{name}\n{plan}");
        with_scratch += (plan.peak_temp_bytes > 0) as usize;
    }
    assert!(with_scratch >= 5, "{with_scratch} of {} need scratch memory", graphs.len());
}
