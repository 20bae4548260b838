//! What every form of kernel looks like under every schedule, as snapshots: one for each expression below, with the texts
//! for the three kinds of device. A change of text is reviewed there like code.

use super::*;

/// Devices of three kinds: a driver that runs on the CPU, hardware, and one that offers the least that WebGPU asks for.
fn devices() -> [(&'static str, GpuTarget); 3] {
    let software = GpuTarget { subgroup: Some(8), ..target(Threads::Independent) };
    let minimum =
        GpuTarget { max_bindings: 8, large_shaders: false, max_iterations: 4096, ..target(Threads::Cooperative) };
    [("software", software), ("hardware", target(Threads::Cooperative)), ("minimum", minimum)]
}

/// Compares the passes of an expression with its snapshot. A text that was shown before is not shown again.
#[track_caller]
fn check_form(name: &str, outputs: &[&Tensor]) {
    check_form_on(name, outputs, &devices());
}

#[track_caller]
fn check_form_on(name: &str, outputs: &[&Tensor], devices: &[(&str, GpuTarget)]) {
    let mut shown: Vec<(Arc<str>, String)> = Vec::new();
    let mut text = String::new();
    for (device, target) in devices {
        for (idx, pass) in passes(&plan_on(outputs, target), target).iter().enumerate() {
            validate(&pass.text);
            let title = format!("{device}, pass {idx}");
            text += &format!("==== {title}: {}, {} iterations\n", pass.label, pass.iterations);
            match shown.iter().find(|known| known.0 == pass.text) {
                Some((_, before)) => text += &format!("the text of {before}\n"),
                None => {
                    text += own_text(&pass.text).as_str();
                    shown.push((pass.text.clone(), title));
                }
            }
        }
    }
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
}

/// A text without the functions of rows and conversions, which are the same wherever they are called.
fn own_text(text: &str) -> String {
    let table = crate::ops::table();
    let rows = table.unary.iter().map(|row| row.wgsl_fns).chain(table.binary.iter().map(|row| row.wgsl_fns));
    let library: Vec<&str> = [crate::ops::WGSL_COMMON, convert::FUNCTIONS].into_iter().chain(rows).collect();
    let is_own =
        |block: &&str| !block.starts_with("fn ") || !library.iter().any(|text| text.contains(block.trim_end()));
    text.split("\n\n").filter(is_own).collect::<Vec<_>>().join("\n\n")
}

fn f32s(shape: &[usize]) -> Tensor {
    data(shape, DType::F32)
}

#[test]
fn maps() {
    let (a, b) = (f32s(&[64, 100]), f32s(&[64, 100]));
    check_form("map_by_four", &[&a.add(&b).mul(5.0)]);
    check_form("map_by_one", &[&f32s(&[3]).add(1.0)]);
    check_form("map_with_a_rest", &[&data([4099], DType::U8).add(1)]);
    check_form("map_in_blocks", &[&(f32s(&[64, 64]) + f32s(&[64, 64]).t())]);
    check_form("map_with_a_row", &[&(&a + f32s(&[100])).sin()]);
    check_form("map_backwards", &[&f32s(&[63, 33]).flip(1).add(1.0)]);
    check_form("map_masked", &[&a.pad(&[(1, 2), (3, 4)], 1).add(1.0)]);
    check_form("map_through_reshapes", &[&f32s(&[3, 32, 32]).permute(&[2, 0, 1]).reshape([96, 32]).add(1.0)]);
    check_form("map_joined", &[&Tensor::cat(&[&a, &b.exp()], 0).mul(2.0)]);
    check_form("map_looked_up", &[&a.index_select(0, &data([6], DType::I32)).add(1.0)]);
    check_form("map_looked_up_into_bytes", &[&data([16, 7], DType::U8).index_select(0, &data([6], DType::I32))]);
    check_form("map_of_half_floats", &[&data([64, 100], DType::F16).mul(2.0), &data([99], DType::BF16).exp()]);
    check_form("map_of_choices", &[&a.gt(&b).select(a.to_dtype(DType::I32), 7)]);
    check_form("map_of_indices", &[&Tensor::arange(0, 1000, 1, &Device::cpu()).mul(3)]);
    check_form("map_with_kept_roundings", &[&a.add(1e8).sub(1e8).mul(&b).add(&a)]);
    check_form("map_of_two_results", &[&a.add(&b), &a.sub(&b)]);
}

#[test]
fn maps_with_a_users_function() {
    let hypot = crate::CustomOp {
        name: "hypot".into(),
        wgsl: "length(vec2($0, $1))".into(),
        cpu: Arc::new(|x| x[0].hypot(x[1])),
        grad: None,
    };
    check_form("map_custom", &[&Tensor::map_custom(&hypot, &[&f32s(&[64, 100]), &f32s(&[100])]).mul(2.0)]);
}

#[test]
fn rows_at_a_position() {
    let cache = f32s(&[64, 96]);
    check_form("rows_at_a_position", &[&cache.rows_at(0, 3, 8).mul(2.0)]);
    check_form("rows_written_at_a_position", &[&cache.add(1.0).write_rows(0, 3, &f32s(&[8, 96]).exp())]);
    // Columns from any place on are not whole fours.
    check_form("columns_at_a_position", &[&cache.rows_at(1, 5, 12).sum(0)]);
}

#[test]
fn maps_that_commit() {
    let (x, at) = (f32s(&[8, 4]), data([3], DType::I32));
    check_form("map_committed", &[&x.index_select(0, &at).sum(..).add(&x).unless_failed(&x)]);
}

#[test]
fn memory_in_windows() {
    let small =
        |max_bindings: usize| GpuTarget { max_binding_bytes: 1 << 20, max_bindings, ..target(Threads::Independent) };
    let devices = [("1 MiB windows", small(32)), ("1 MiB windows, 6 bindings", small(6))];
    let x = f32s(&[640, 1024]);
    check_form_on("windows_of_a_map", &[&x.add(1.0)], &devices[..1]);
    check_form_on("windows_of_a_lookup", &[&x.index_select(0, &data([64], DType::I32))], &devices);
    check_form_on("windows_of_columns", &[&x.sum(0)], &devices);
    check_form_on("windows_far_apart", &[&(x.narrow(0, 0, 100) + x.narrow(0, 530, 100))], &devices[..1]);
    check_form_on("windows_of_half_floats", &[&data([1280, 1023], DType::F16).t().add(1.0)], &devices[..1]);
    check_form_on("windows_of_sorted_lines", &[&x.sort(0, false)], &devices[1..]);
}

#[test]
fn reductions() {
    check_form("reduce_short_rows", &[&f32s(&[300, 16]).sum(-1)]);
    check_form("reduce_rows", &[&f32s(&[300, 1024]).sum(-1)]);
    check_form("reduce_long_rows", &[&f32s(&[300, 16_000]).max(-1)]);
    check_form("reduce_rows_with_a_rest", &[&f32s(&[300, 1003]).mean(-1)]);
    check_form("reduce_few_rows", &[&f32s(&[2, 8000]).prod(-1)]);
    check_form("reduce_columns", &[&f32s(&[200, 64]).sum(0)]);
    check_form("reduce_columns_of_half_floats", &[&data([1024, 512], DType::F16).sum(0)]);
    check_form("reduce_uneven_columns", &[&f32s(&[300, 101]).sum(0)]);
    check_form("reduce_middle_axis", &[&f32s(&[3, 50, 7]).max(1)]);
    check_form("reduce_in_pieces", &[&f32s(&[1_000_003]).square().sum(..).sqrt()]);
    check_form("reduce_places", &[&f32s(&[30, 500]).argmax(-1)]);
    check_form("reduce_masked", &[&f32s(&[30, 50]).pad(&[(1, 1), (2, 3)], 1).sum(-1)]);
    check_form("reduce_looked_up", &[&f32s(&[30, 50]).index_select(0, &data([6], DType::I32)).sum(-1)]);
    check_form("reduce_two_axes", &[&f32s(&[4, 6, 5, 7]).permute(&[0, 2, 1, 3]).sum([1, 3])]);
    check_form("reduce_variance", &[&f32s(&[96, 600]).var(-1, 1)]);
    check_form("softmax_short", &[&f32s(&[512, 64]).softmax(-1)]);
    check_form("softmax", &[&f32s(&[512, 1024]).softmax(-1)]);
    check_form("softmax_with_a_rest", &[&f32s(&[512, 1001]).softmax(-1)]);
    check_form("softmax_of_columns", &[&f32s(&[100, 64]).softmax(0)]);
    check_form("logsumexp", &[&f32s(&[512, 6000]).logsumexp(-1)]);
    let (x, w, b) = (f32s(&[96, 384]), data([384], DType::F16), f32s(&[384]));
    check_form("layer_norm", &[&x.layer_norm(-1, Some(&w), Some(&b), 1e-5)]);
}

/// Reductions on hardware with subgroup shuffles: rows that one subgroup reduces, and longer rows that several share.
#[test]
fn reductions_by_subgroups() {
    let subgroups = |style: Threads, sizes: [usize; 2]| GpuTarget { subgroup_sizes: Some(sizes), ..target(style) };
    let devices = [
        ("hardware", GpuTarget { full_groups: 8, ..subgroups(Threads::Cooperative, [32, 64]) }),
        ("software", subgroups(Threads::Independent, [8, 8])),
    ];
    check_form_on("subgroup_rows", &[&f32s(&[4096, 256]).sum(-1)], &devices);
    check_form_on("subgroup_long_rows", &[&f32s(&[4, 16_000]).max(-1)], &devices);
    check_form_on("subgroup_softmax", &[&f32s(&[4096, 256]).softmax(-1)], &devices[..1]);
}

/// Operands that are lists of axes: windows of images are read in place, and so are heads inside rows.
#[test]
fn products_of_axis_lists() {
    use crate::Conv;
    let (x, w) = (f32s(&[2, 8, 12, 12]), f32s(&[16, 8, 3, 3]));
    let conv = Conv { padding: 1.into(), ..Conv::default() };
    check_form("convolution", &[&x.conv(&w, Some(&f32s(&[16])), conv).relu()]);
    let strided = Conv { stride: 2.into(), ..Conv::default() };
    check_form("convolution_strided", &[&f32s(&[1, 3, 17, 17]).conv(&f32s(&[8, 3, 5, 5]), None, strided)]);
    let heads = f32s(&[4, 6, 8]).permute(&[1, 0, 2]).reshape([6, 32]);
    check_form("matmul_of_axis_lists", &[&heads.matmul(&f32s(&[32, 20]))]);
}

/// Weights in blocks: of each kind of format, by a row and by many, in vectors.
#[test]
fn matmuls_of_blocks() {
    use crate::BlockFormat;
    let stored = |name: &str| {
        let format = BlockFormat::named(name).expect("it is known");
        let bytes = vec![0; 64 * 256 / format.block_len() * format.block_bytes()];
        Tensor::from_blocks(format, &bytes, [64, 256], &Device::cpu())
    };
    for name in ["Q4_0", "Q8_0", "Q6_K"] {
        let w = stored(name);
        check_form(&format!("matmul_of_a_row_and_{name}"), &[&f32s(&[1, 256]).matmul(&w.t())]);
        check_form(&format!("matmul_of_rows_and_{name}"), &[&f32s(&[32, 256]).matmul(&w.t())]);
    }
    check_form("rows_of_blocks_looked_up", &[&stored("Q4_0").index_select(0, &data([6], DType::I32))]);
}

#[test]
fn matmuls() {
    let product = |m: usize, k: usize, n: usize| f32s(&[m, k]).matmul(&f32s(&[k, n]));
    check_form("matmul", &[&product(64, 64, 64)]);
    check_form("matmul_with_a_rest", &[&product(17, 63, 65)]);
    check_form("matmul_of_a_row", &[&product(1, 640, 64)]);
    check_form("matmul_by_rows", &[&f32s(&[24, 32]).matmul(&data([20, 32], DType::F32).t())]);
    check_form("matmul_transposed", &[&data([32, 24], DType::F16).t().matmul(&data([32, 20], DType::F16))]);
    check_form("matmul_split_k", &[&product(2, 30_000, 4)]);
    check_form("matmul_batched", &[&f32s(&[3, 2, 8, 16]).matmul(&f32s(&[2, 16, 12]))]);
    check_form("matmul_of_integers", &[&data([5, 6], DType::I32).matmul(&data([6, 7], DType::I32))]);
    let bias = product(32, 64, 32) + f32s(&[32]);
    check_form("matmul_with_a_bias", &[&bias]);
    let (x, w) = (f32s(&[40, 64]), f32s(&[64, 48]));
    check_form(
        "matmul_grouped",
        &[&(x.matmul(&w) + f32s(&[48])), &x.matmul(&f32s(&[64, 32])).mul(0.5), &x.matmul(&w.exp())],
    );
    check_form("matmul_then_much", &[&(0..12).fold(bias.clone(), |x, i| x.mul(0.5 + i as f64).tanh())]);
}

#[test]
fn variants_of_matmuls() {
    let y = f32s(&[65, 67]).matmul(&f32s(&[67, 132]));
    for variant in VARIANTS {
        let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
        let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
        let name = variant.name.replace(' ', "_");
        check_form_on(&format!("matmul_variant_{name}"), &[&y], &[("forced", target)]);
    }
}

/// Hardware with subgroups of 32 or 64.
#[test]
fn folds_by_subgroups() {
    let hardware = GpuTarget { subgroup_sizes: Some([32, 64]), ..target(Threads::Cooperative) };
    let row = f32s(&[1, 640]);
    check_form_on("matmul_of_a_row_by_subgroups", &[&row.matmul(&f32s(&[640, 64]))], &[("hardware", hardware.clone())]);
    let stored = row.matmul(&f32s(&[64, 640]).t());
    check_form_on("matmul_of_a_stored_row_by_subgroups", &[&stored], &[("hardware", hardware.clone())]);
    let (q, k) = (f32s(&[2, 8, 8]), f32s(&[2, 64, 8]));
    let attention = q.attention(&k, &k, crate::Attention::default());
    check_form_on("attention_by_subgroups", &[&attention], &[("hardware", hardware)]);
}

#[test]
fn chained_products() {
    use crate::Attention;
    let of = |l: usize, s: usize, d: usize| (f32s(&[2, l, d]), f32s(&[2, s, d]));
    let (q, k) = of(8, 64, 8);
    check_form("attention", &[&q.attention(&k, &k, Attention::default())]);
    let options = Attention { causal: true, soft_cap: Some(3.0), ..Attention::default() };
    check_form("attention_causal", &[&q.attention(&k, &k, options)]);
    let (q, k) = of(1, 3000, 8);
    check_form("attention_of_a_row", &[&q.attention(&k, &k, Attention::default())]);
    let (q, k) = of(3, 7, 5);
    check_form("attention_with_a_rest", &[&q.attention(&k, &k, Attention::default())]);
    let (q, k) = (q.to_dtype(DType::F16).compute().unwrap(), k.to_dtype(DType::F16).compute().unwrap());
    let grad = q.attention(&k, &k, Attention::default()).sum(..).grad(&[&q]);
    check_form("attention_gradient_of_half_floats", &[&grad[0]]);
}

#[test]
fn routines_of_all_kinds() {
    let x = f32s(&[3, 1000, 2]);
    check_form("cumsum", &[&x.cumsum(1)]);
    check_form("cumsum_of_half_floats", &[&data([40_000], DType::F16).cumsum(0)]);
    check_form("sort", &[&x.sort(1, false)]);
    check_form("argsort_downwards", &[&data([2, 300], DType::I32).argsort(1, true)]);
    check_form("scatter_add", &[&f32s(&[300]).scatter_add(0, &data([500], DType::I32), &f32s(&[500]))]);
    let index = data([4, 500], DType::I32);
    check_form("scatter_add_of_bytes", &[&data([4, 9], DType::U8).scatter_add(1, &index, &data([4, 500], DType::U8))]);
}
