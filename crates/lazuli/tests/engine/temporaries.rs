//! `explain` counts every byte that an evaluation holds only while it runs: what it tells is what the device asks its pool
//! for. Counters belong to the device, which all tests share, so these tests have it to themselves.

use lazuli::{Attention, BlockFormat, Conv, DType, Tensor};

use crate::alone;
use crate::device::device;

fn data(shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::from_vec((0..n).map(|i| (i % 13) as f32 * 0.1 - 0.5).collect(), shape, &device());
    x.to_dtype(dtype).compute().unwrap()
}

/// Attention whole, with its keys in parts, for few rows of many heads, with everything that it may do, and its gradients.
fn attentions() -> Vec<(&'static str, Vec<Tensor>)> {
    let of = |heads: usize, n: usize, d: usize| data(&[heads, n, d], DType::F32);
    let (q, k, v) = (of(4, 70, 32), of(4, 90, 32), of(4, 90, 24));
    let mask = data(&[70, 90], DType::F32).gt(0.0).compute().unwrap();
    let options = Attention { mask: Some(&mask), window: Some(40), soft_cap: Some(5.0), ..Attention::default() };
    let causal = Attention { causal: true, ..Attention::default() };
    let one = of(8, 1, 64);
    let (long_k, long_v) = (of(2, 3000, 64), of(2, 3000, 64));
    vec![
        ("attention", vec![q.attention(&k, &v, Attention::default())]),
        ("attention with a mask", vec![q.attention(&k, &v, options)]),
        ("attention of halves", vec![q.to_dtype(DType::F16).attention(&k.to_dtype(DType::F16), &v, causal)]),
        ("attention of a row over many keys", vec![one.attention(&long_k, &long_v, Attention::default())]),
        ("attention of few rows over many keys", vec![of(2, 5, 64).attention(&long_k, &long_v, causal)]),
        ("gradients of attention", q.attention(&k, &v, causal).square().sum(..).grad(&[&q, &k, &v])),
    ]
}

/// Convolutions: windows read in place, by Winograd, in groups, with strides, channels last, and both gradients.
fn convolutions() -> Vec<(&'static str, Vec<Tensor>)> {
    let f32 = |shape: &[usize]| data(shape, DType::F32);
    let padded = Conv { padding: 1.into(), ..Conv::default() };
    let strided = Conv { stride: 2.into(), padding: 3.into(), ..Conv::default() };
    let (image, small) = (f32(&[1, 32, 56, 56]), f32(&[2, 8, 14, 14]));
    let w = f32(&[8, 8, 3, 3]);
    let last = f32(&[1, 40, 40, 32]).permute(&[0, 3, 1, 2]);
    vec![
        ("a convolution", vec![small.conv(&w, Some(&f32(&[8])), padded).relu()]),
        ("a convolution by Winograd", vec![image.conv(&f32(&[32, 32, 3, 3]), Some(&f32(&[32])), padded).relu()]),
        ("a batch by Winograd", vec![f32(&[3, 16, 28, 28]).conv(&f32(&[24, 16, 3, 3]), None, padded)]),
        ("channels last by Winograd", vec![last.conv(&f32(&[32, 32, 3, 3]), None, padded)]),
        ("a convolution of one element", vec![image.conv(&f32(&[48, 32, 1, 1]), None, Conv::default())]),
        ("a strided convolution", vec![f32(&[1, 3, 64, 64]).conv(&f32(&[16, 3, 7, 7]), None, strided)]),
        ("a convolution in groups", vec![small.conv(&f32(&[8, 1, 3, 3]), None, Conv { groups: 8, ..padded })]),
        ("gradients of a convolution", small.conv(&w, None, padded).square().sum(..).grad(&[&small, &w])),
    ]
}

/// Products of weights in blocks, of bytes, and several of one left operand.
fn stored_products() -> Vec<(&'static str, Vec<Tensor>)> {
    let f32 = |shape: &[usize]| data(shape, DType::F32);
    let blocks = |name: &str| {
        let format = BlockFormat::named(name).unwrap();
        let bytes = vec![0; 96 * 512 / format.block_len() * format.block_bytes()];
        Tensor::from_blocks(format, &bytes, [96, 512], &device())
    };
    let bytes = |shape: &[usize]| data(shape, DType::F32).mul(100.0).add(60.0).to_dtype(DType::U8).compute().unwrap();
    let wide = |x: Tensor| x.to_dtype(DType::I32);
    let x = f32(&[50, 64]);
    vec![
        ("a row and a weight in blocks", vec![f32(&[1, 512]).matmul(&blocks("Q4_0").t())]),
        ("rows and a weight in blocks", vec![f32(&[40, 512]).matmul(&blocks("Q8_0").t()).relu()]),
        ("rows and a weight in K blocks", vec![f32(&[9, 512]).matmul(&blocks("Q6_K").t())]),
        ("rows of blocks", vec![blocks("Q4_K").index_select(0, &wide(bytes(&[7])).rem(96))]),
        ("bytes", vec![wide(bytes(&[40, 70])).matmul(&wide(bytes(&[60, 70])).t())]),
        (
            "bytes that a kernel makes",
            vec![wide(f32(&[40, 70]).add(1.0).to_dtype(DType::U8)).matmul(&wide(bytes(&[70, 60])))],
        ),
        ("grouped products", [40, 40, 56].map(|n| x.matmul(&f32(&[64, n])).add(&f32(&[n]))).to_vec()),
        ("grouped rows", [40, 40].map(|n| f32(&[1, 640]).matmul(&f32(&[640, n]))).to_vec()),
    ]
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
    let single = graphs().into_iter().map(|(name, y)| (name, vec![y]));
    let several = attentions().into_iter().chain(convolutions()).chain(stored_products());
    let (mut with_scratch, graphs) = (0, single.chain(several).collect::<Vec<_>>());
    for (name, wanted) in &graphs {
        let wanted: Vec<&Tensor> = wanted.iter().collect();
        let plan = lazuli::explain(&wanted).unwrap();
        let before = device().stats().bytes_temporary;
        lazuli::compute(&wanted).unwrap();
        assert_eq!(device().stats().bytes_temporary - before, plan.peak_temp_bytes as u64, "{name}\n{plan}");
        assert!(plan.peak_temp_bytes >= plan.peak_temp_lower_bound, "{name}\n{plan}");
        assert!(plan.kernels.iter().all(|kernel| !kernel.schedule.is_empty()), "{name}\n{plan}");
        with_scratch += (plan.peak_temp_bytes > 0) as usize;
    }
    assert!(with_scratch >= 5, "{with_scratch} of {} need scratch memory", graphs.len());
}
