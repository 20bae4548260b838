//! Plans as text, and a verifier that is shown to find what is wrong.

mod filled;
mod made;
mod texts;

use super::*;
use crate::graph::{NodeRef, capture};
use crate::kernel::{AxisList, AxisParts, MatmulArgs};
use crate::{DType, Device, Tensor, keep};

fn limits() -> Limits {
    Limits {
        max_bindings: 32,
        max_insts: 256,
        max_reduce: 65536,
        max_piece: 65536,
        max_column: usize::MAX,
        min_rows: 64,
        panels: None,
        max_list_elems: 0,
        products_of_bytes: false,
        max_made_elems: 0,
        max_chained_depth: 512,
        max_chained_elems: usize::MAX,
        max_binding_bytes: usize::MAX,
        max_windows: usize::MAX,
        max_elems: usize::MAX,
        max_iterations: usize::MAX,
        max_lanes: 1,
        custom_may_fail: true,
        fuse: true,
    }
}

fn plan_with(outputs: &[&Tensor], limits: &Limits) -> Plan {
    let nodes: Vec<&NodeRef> = outputs.iter().map(|t| t.node().expect("a good tensor")).collect();
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    compile(capture(&nodes, &[]).graph(), &Target { limits: limits.clone(), ..Target::baseline() })
}

fn data(shape: impl Into<crate::Shape>) -> Tensor {
    let shape = shape.into();
    Tensor::from_vec(vec![1.0f32; shape.n_elems()], shape, &Device::cpu())
}

/// The launches of a plan, one line each.
#[track_caller]
fn check_plan(outputs: &[&Tensor], expect: &[&str]) {
    let plan = plan_with(outputs, &limits());
    let lines: Vec<String> = plan.launches.iter().map(|l| l.kernel.text(&l.args)).collect();
    assert_eq!(lines, expect, "\n{plan}");
}

#[test]
fn a_chain_is_one_kernel() {
    let (a, b) = (data([8]), data([8]));
    check_plan(&[&a.add(&b).mul(5.0).sub(&a).tanh()], &["map [8]: out0 = tanh(sub(mul(add(in0, in1), c0), in0))"]);
}

#[test]
fn equal_nodes_are_computed_once() {
    let (a, b) = (data([8]), data([8]));
    let y = (&a * &b).exp() + (&b * &a).exp();
    check_plan(&[&y], &["map [8]: r3 = exp(mul(in0, in1)); out0 = add(r3, r3)"]);
}

#[test]
fn softmax_is_one_kernel() {
    check_plan(
        &[&data([4, 8]).softmax(-1)],
        &["reduce [4] | [8]: r3 = exp(sub(in0, max(in0))); out0 = mul(r3, recip(sum(r3)))"],
    );
}

#[test]
fn a_reduction_over_the_first_axis_goes_by_column() {
    check_plan(&[&data([64, 32]).sum(0)], &["reduce [32] | [64] by column: out0 = sum(in0)"]);
}

#[test]
fn columns_are_cut_into_pieces_only_where_one_reduction_is_all() {
    let x = data([64, 32]);
    let launches = |y: &Tensor| plan_with(&[y], &Limits { max_column: 16, ..limits() }).launches.len();
    assert_eq!(launches(&x.sum(0)), 2);
    // A mean of each piece would not be the mean.
    assert_eq!(launches(&x.var(0, 0)), 1);
}

#[test]
fn a_long_reduction_is_cut_into_pieces() {
    check_plan(
        &[&data([200_000]).square().sum(..).sqrt()],
        &["reduce [4] | [50176] of 200000: out0 = sum(mul(in0, in0))", "reduce [] | [4]: out0 = sqrt(sum(in0))"],
    );
}

#[test]
fn views_cost_no_kernel() {
    let (a, b) = (data([6, 4]), data([4, 6]));
    let y = a.t().add(&b).flip(0).mul(&data([6]));
    assert_eq!(plan_with(&[&y], &limits()).launches.len(), 1);
}

#[test]
fn a_product_reads_small_floats_as_they_are_stored() {
    for dtype in [DType::F16, DType::BF16] {
        let w = Tensor::ones([16, 8], dtype, &Device::cpu()).compute().expect("enough memory");
        let plan = plan_with(&[&data([5, 8]).matmul(&w.to_dtype(DType::F32).t())], &limits());
        assert_eq!(plan.launches.len(), 1, "\n{plan}");
        assert_eq!(plan.launches[0].kernel.bindings().0, [DType::F32.into(), dtype.into()]);
    }
}

#[test]
fn a_product_reads_panels_as_they_lie() {
    let panels = Some(PanelWidths { unit: 4, best: 8 });
    let check = |w: &Tensor, expect: Option<(usize, isize)>| {
        let plan = plan_with(&[&data([5, 3]).matmul(w)], &Limits { panels, ..limits() });
        let panels = plan.launches.iter().find_map(|l| l.args.matmul.as_ref()).expect("a product").panels;
        assert_eq!(panels.map(|panels| (panels.width, panels.stride)), expect, "{plan}");
        assert_eq!(plan.launches.len(), if expect.is_some() { 1 } else { 2 }, "{plan}");
        assert_eq!(plan_with(&[&data([5, 3]).matmul(w)], &limits()).launches.len(), 2);
    };
    let seen =
        |n_panels: usize, width: usize| data([n_panels, 3, width]).permute(&[1, 0, 2]).reshape([3, n_panels * width]);
    check(&seen(4, 8), Some((8, 24)));
    check(&seen(4, 4), Some((4, 12)));
    check(&seen(4, 8).narrow(1, 0, 27), Some((8, 24)));
    // The same by way of its transpose, and some panels only.
    check(&data([4, 3, 8]).permute(&[0, 2, 1]).reshape([32, 3]).t(), Some((8, 24)));
    check(&seen(4, 8).narrow(1, 8, 20), Some((8, 24)));
    // Too wide, not a multiple, not from the start of a panel, columns that are not side by side.
    check(&seen(2, 16), None);
    check(&seen(4, 6), None);
    check(&seen(4, 8).narrow(1, 1, 20), None);
    check(&data([3, 8, 4]).permute(&[0, 2, 1]).reshape([3, 32]), None);
    let counted = data([4, 3, 8]).to_dtype(DType::I32).compute().expect("enough memory");
    let counted = counted.permute(&[1, 0, 2]).reshape([3, 32]);
    let x = Tensor::ones([5, 3], DType::I32, &Device::cpu());
    let plan = plan_with(&[&x.matmul(&counted)], &Limits { panels, ..limits() });
    assert!(plan.launches.iter().all(|l| l.args.matmul.as_ref().is_none_or(|m| m.panels.is_none())), "{plan}");
}

#[test]
fn panels_are_as_wide_as_wastes_little() {
    let widths = PanelWidths { unit: 16, best: 64 };
    for (n, width) in [(1, None), (64, None), (65, None), (128, Some(64)), (144, Some(48)), (200, Some(32))] {
        assert_eq!(widths.of(n), width, "{n}");
    }
    assert!((512..5000).all(|n| widths.of(n) == Some(64)));
}

#[test]
fn an_operand_that_reaches_too_far_is_found() {
    let faults: [fn(&mut MatmulArgs); 3] = [
        |product| product.a.offset += 1,
        |product| product.b.rows = AxisList::single(8, 5),
        |product| product.b.offset -= 1,
    ];
    for reach in faults {
        let mut plan = plan_with(&[&data([5, 8]).matmul(&data([8, 4]))], &limits());
        reach(plan.launches[0].args.matmul.as_mut().expect("a product"));
        let fault = verify::verify(&plan, &limits()).expect_err("it reads past its end");
        assert!(fault.contains("operand") && fault.contains("reaches elements"), "{fault}");
    }
}

#[test]
fn integer_products_read_bytes_where_a_device_takes_them() {
    let bytes = |shape: [usize; 2]| data(shape).to_dtype(DType::U8).compute().unwrap();
    let (a, b, zero) = (bytes([5, 8]), bytes([4, 8]), data([1]).to_dtype(DType::I32).compute().unwrap());
    let planned = |y: &Tensor, products_of_bytes: bool| {
        let plan = plan_with(&[y], &Limits { products_of_bytes, ..limits() });
        plan.launches.iter().map(|launch| launch.kernel.text(&launch.args)).collect::<Vec<_>>()
    };
    let wide = |x: &Tensor| x.to_dtype(DType::I32);
    let y = wide(&a).matmul(&wide(&b).t());
    assert_eq!(planned(&y, true), ["matmul [] 5×8×4: out0 = a·b"]);
    assert_eq!(planned(&y, false).len(), 3);
    // What a kernel makes is stored as bytes; what takes a zero point from the sums is computed with them.
    let made = data([5, 8]).mul(3.0).round().to_dtype(DType::U8);
    let y = wide(&made).matmul(&wide(&b).t()).sub(&wide(&made).sum(keep(-1)).mul(&zero));
    let expect = [
        "map [40]: out0 = u8(round(mul(in0, c0)))",
        "reduce [5] | [8]: out0 = mul(sum(i32(u8(round(mul(in0, c0))))), in1)",
        "matmul [] 5×8×4: out0 = sub(a·b, in2)",
    ];
    assert_eq!(planned(&y, true), expect);
}

#[test]
fn parts_of_a_sum_that_leave_something_out_are_found() {
    for parts in [AxisParts::whole(7), AxisParts::of_len(16, 4), AxisParts::of_len(4, 2), AxisParts::whole(9)] {
        let mut plan = plan_with(&[&data([5, 8]).matmul(&data([8, 4]))], &limits());
        plan.launches[0].args.matmul.as_mut().expect("a product").k_parts = parts;
        let fault = verify::verify(&plan, &limits()).expect_err("it leaves products out, or has too many");
        assert!(fault.contains("a sum of 8 products is made in"), "{fault}");
    }
}

#[test]
fn operands_are_lists_of_axes_where_a_device_takes_them() {
    let turned = data([4, 6, 8]).permute(&[1, 0, 2]).reshape([6, 32]);
    let planned = |max_list_elems: usize| {
        let plan = plan_with(&[&turned.matmul(&data([32, 5]))], &Limits { max_list_elems, ..limits() });
        plan.launches.iter().map(|launch| launch.kernel.text(&launch.args)).collect::<Vec<_>>()
    };
    assert_eq!(planned(192), ["matmul [] 6×32×5, in0 by [6/8] × [4/48, 8/1]: out0 = a·b"]);
    // The source has more elements than the device reads in place.
    assert_eq!(planned(191).len(), 2);
    let windows = data([1, 2, 5, 4]).unfold(2, 3, 1).unfold(3, 2, 2).permute(&[0, 1, 4, 5, 2, 3]).reshape([12, 6]);
    let plan = plan_with(&[&data([3, 12]).matmul(&windows)], &Limits { max_list_elems: 1000, ..limits() });
    let text = plan.launches[0].kernel.text(&plan.launches[0].args);
    assert_eq!(text, "matmul [] 3×12×6, in1 by [2/20, 3/4, 2/1] × [6/2]: out0 = a·b");
    // A list that says more than its operand has is found.
    let mut plan = plan;
    plan.launches[0].args.matmul.as_mut().expect("a product").b.rows =
        AxisList::of([(2, 20), (3, 4), (3, 1)].into_iter());
    let fault = verify::verify(&plan, &limits()).expect_err("it has other sizes");
    assert!(fault.contains("a list of 18 where the product has 12"), "{fault}");
}

#[test]
fn matmul_takes_in_what_follows() {
    let (x, w, b, r) = (data([8, 16]), data([16, 32]), data([32]), data([8, 32]));
    let y = x.matmul(&w).add(&b).relu().mul(0.5).add(&r);
    let plan = plan_with(&[&y], &limits());
    assert_eq!(plan.launches.len(), 1, "{plan}");
    assert_eq!(plan.launches[0].kernel.form(), "matmul");
}

#[test]
fn a_batch_times_one_matrix_is_one_product() {
    let plan = plan_with(&[&data([5, 8, 16]).matmul(&data([16, 32])).add(&data([32]))], &limits());
    let args = plan.launches[0].args.matmul.as_ref().expect("a matmul");
    assert_eq!((args.batch.len(), args.m), (0, 40), "{plan}");
}

#[test]
fn parts_of_a_concatenation_are_computed_in_place() {
    let (a, b) = (data([2, 3]), data([4, 3]));
    let y = Tensor::cat(&[&a.exp(), &b.matmul(&data([3, 3]))], 0);
    let plan = plan_with(&[&y], &limits());
    assert_eq!(plan.launches.len(), 2, "{plan}");
    assert!(plan.slots.iter().all(|s| s.kind != SlotKind::Temp), "{plan}");
}

#[test]
fn a_stencil_of_the_inside_is_padded_in_the_same_kernel() {
    let x = data([64, 48]);
    let part = |i: usize, j: usize| x.narrow(0, i, 62).narrow(1, j, 46);
    let around = part(0, 1).add(part(2, 1)).add(part(1, 0)).add(part(1, 2));
    let inside = part(1, 1).add(around.sub(part(1, 1).mul(4.0)).mul(0.1));
    let plan = plan_with(&[&inside.pad(&[(1, 1), (1, 1)], 0.0)], &limits());
    assert_eq!(plan.launches.len(), 1, "{plan}");
    // Much fill is not worth what is made in vain under it, and what may fail is not made there at all.
    let plan = plan_with(&[&inside.pad(&[(30, 30), (1, 1)], 0.0)], &limits());
    assert_eq!(plan.launches.len(), 2, "{plan}");
    let rows = x.exp().add(x.embedding(&index(64)).narrow(1, 0, 48)).pad(&[(1, 1), (1, 1)], 0.0);
    assert_eq!(plan_with(&[&rows], &limits()).launches.len(), 2);
}

#[test]
fn an_element_and_whether_it_is_there_are_one_access() {
    // Also for a batch of one, along whose axis any step will do.
    for n_images in [1, 2] {
        let plan = plan_with(&[&data([n_images, 3, 5, 6]).pad(&[(0, 0), (0, 0), (1, 1), (1, 1)], 0.0)], &limits());
        assert_eq!(plan.launches[0].args.accesses.len(), 2, "one to read by, one to write by: {plan}");
    }
}

#[test]
fn rows_are_written_by_the_kernel_that_makes_them() {
    let row = data([1, 3]);
    // Memory of the evaluation's own: one kernel makes it, one makes the rows and writes them over it.
    let y = data([4, 3]).exp().write_rows(0, 2, &row.sin());
    let plan = plan_with(&[&y], &limits());
    assert_eq!(ops(&plan), [vec!["exp"], vec!["sin"]], "{plan}");
    assert!(plan.slots.iter().all(|s| s.kind != SlotKind::Temp), "{plan}");
    assert!(plan.to_string().contains("map [3]: out0[c0..] = sin(in0)"), "{plan}");
    // Another's memory is copied first.
    let x = data([4, 3]);
    let (y, z) = (x.write_rows(0, 2, &row.sin()), x.write_rows(0, 1, &row));
    let plan = plan_with(&[&y, &z, &x.mul(2.0)], &limits());
    assert_eq!(ops(&plan).concat().iter().filter(|op| **op == "copy").count(), 2, "{plan}");
}

#[test]
fn the_verifier_finds_rows_that_are_written_wrongly() {
    let x = data([4, 3]);
    let y = x.exp().write_rows(0, 2, &data([1, 3]).sin()).write_rows(1, 0, &data([4, 1])).cos();
    let good = plan_with(&[&y], &limits());
    assert_eq!(verify::verify(&good, &limits()), Ok(()));
    assert_eq!(good.launches.iter().filter(|l| !l.bases.is_empty()).count(), 2, "{good}");
    let breaks: [(&str, fn(&mut Plan)); 7] = [
        ("what they are written into is not there yet", |p| p.launches.swap(0, 1)),
        ("the second write comes first", |p| p.launches.swap(1, 2)),
        ("they are written into nothing", |p| p.launches[1].bases.clear()),
        ("they are written into something else", |p| p.launches[1].bases[0].1 = p.launches[1].read_values[0]),
        ("a position is beyond the end", |p| p.launches[1].args.offsets[0].bound += 1),
        ("a position is no constant", |p| p.launches[1].args.consts.clear()),
        ("what is written into is read meanwhile", |p| {
            (p.launches[1].reads[0], p.launches[1].read_values[0]) =
                (p.launches[1].writes[0], p.launches[1].bases[0].1);
        }),
    ];
    for (what, break_it) in breaks {
        let mut plan = good.clone();
        break_it(&mut plan);
        assert!(verify::verify(&plan, &limits()).is_err(), "not found: {what}\n{plan}");
    }
}

#[test]
fn results_that_share_their_inputs_share_a_kernel() {
    // An optimiser's update: two moments and the weight, all in one pass.
    let (w, g, m, v) = (data([64]), data([64]), data([64]), data([64]));
    let m2 = m.mul(0.9).add(g.mul(0.1));
    let v2 = v.mul(0.99).add(g.square().mul(0.01));
    let w2 = &w - &m2 / (v2.sqrt() + 1e-8) * 0.001;
    let plan = plan_with(&[&w2, &m2, &v2], &limits());
    assert_eq!(plan.launches.len(), 1, "{plan}");
    assert_eq!(plan.launches[0].writes.len(), 3);
}

#[test]
fn forty_outputs_fit_any_number_of_bindings() {
    let chain =
        |x: Tensor| -> Vec<Tensor> { std::iter::successors(Some(x), |x| Some(x.sin())).skip(1).take(40).collect() };
    let (x, a, b) = (data([8, 64]), data([8, 16]), data([16, 64]));
    let sums: Vec<Tensor> = chain(x.add(1.0)).iter().map(|y| y.sum(1)).collect();
    for outputs in [chain(x), chain(a.matmul(&b)), sums] {
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        for max_bindings in [4, 8, 16] {
            let plan = plan_with(&outputs, &Limits { max_bindings, ..limits() });
            let n_launches = plan.launches.len();
            assert!((40 / max_bindings..=40).contains(&n_launches), "{plan}");
        }
        assert_eq!(plan_with(&outputs, &Limits { max_bindings: 64, ..limits() }).launches.len(), 1);
    }
}

#[test]
fn forty_inputs_fit_any_number_of_bindings() {
    let inputs: Vec<Tensor> = (0..40).map(|_| data([8])).collect();
    let sum = inputs[1..].iter().fold(inputs[0].clone(), |sum, x| sum + x);
    for max_bindings in [4, 8, 16] {
        let plan = plan_with(&[&sum], &Limits { max_bindings, ..limits() });
        assert!(plan.launches.len() <= 40 / (max_bindings - 3) + 1, "{plan}");
    }
}

#[test]
fn without_fusion_every_op_is_a_kernel() {
    let (a, b) = (data([4, 8]), data([4, 8]));
    let y = (&a + &b).exp().sum(keep(-1)) * &a;
    assert_eq!(plan_with(&[&y], &Limits { fuse: false, ..limits() }).launches.len(), 4);
}

#[test]
fn a_long_chain_is_cut_and_runs_in_place() {
    let a = data([8]);
    let y = (0..10_000).fold(a.clone(), |y, i| if i % 2 == 0 { y * 1.5 } else { y + &a });
    let plan = plan_with(&[&y], &limits());
    assert!((30..100).contains(&plan.launches.len()), "{}", plan.launches.len());
    assert!(plan.slots.iter().all(|s| s.kind != SlotKind::Temp));
}

#[test]
fn a_hundred_matmuls_need_two_temporaries() {
    let w = data([8, 8]);
    let y = (0..100).fold(w.clone(), |y, _| y.matmul(&w));
    let plan = plan_with(&[&y], &limits());
    assert_eq!(plan.slots.iter().filter(|s| s.kind == SlotKind::Temp).count(), 2);
}

/// A stream to which every layer adds a product.
fn residual_stream(n_layers: usize) -> Tensor {
    let w = data([8, 8]);
    (0..n_layers).fold(data([8, 8]), |h, _| h.softmax(-1).matmul(&w).add(&h))
}

#[test]
fn a_product_is_added_in_place() {
    let plan = plan_with(&[&residual_stream(10)], &limits());
    // What is multiplied; the stream stays where its first value was.
    assert_eq!(plan.slots.iter().filter(|s| s.kind == SlotKind::Temp).count(), 1, "{plan}");
    assert_eq!(plan.launches.iter().filter(|l| l.reads.contains(&l.writes[0])).count(), 10, "{plan}");
}

#[test]
fn a_product_does_not_overwrite_its_operands() {
    let w = data([8, 8]);
    let y = (0..10).fold(data([8, 8]), |h, _| h.matmul(&w).add(&h));
    let plan = plan_with(&[&y], &limits());
    assert!(plan.launches.iter().all(|l| !l.reads.contains(&l.writes[0])), "{plan}");
    let mut plan = plan_with(&[&residual_stream(3)], &limits());
    let launch = plan.launches.iter_mut().rfind(|l| l.reads.contains(&l.writes[0])).expect("a sum in place");
    let added = launch.reads.iter().position(|r| *r == launch.writes[0]).expect("just found");
    (launch.reads[0], launch.read_values[0]) = (launch.reads[added], launch.read_values[added]);
    let fault = verify::verify(&plan, &limits()).expect_err("an operand is overwritten");
    assert!(fault.contains("lies over an operand"), "{fault}");
}

#[test]
fn the_same_graph_gives_the_same_text() {
    let build = || {
        let (a, b) = (data([4, 6]), data([6, 4]));
        a.matmul(&b).softmax(-1).sum(0) + b.mean(..)
    };
    assert_eq!(plan_with(&[&build()], &limits()).to_string(), plan_with(&[&build()], &limits()).to_string());
}

#[test]
fn the_verifier_finds_what_is_wrong() {
    let (a, b) = (data([8, 8]), data([8, 8]));
    let y = a.matmul(&b).matmul(&a).softmax(0).matmul(&b).add(1.0);
    let good = plan_with(&[&y], &limits());
    assert_eq!(verify::verify(&good, &limits()), Ok(()));
    let breaks: [(&str, fn(&mut Plan)); 8] = [
        ("a launch is missing", |p| drop(p.launches.remove(1))),
        ("launches are swapped", |p| p.launches.swap(0, 1)),
        ("a launch runs twice", |p| p.launches.insert(1, p.launches[0].clone())),
        ("an input is written over", |p| p.launches[0].writes[0] = p.launches[0].reads[0]),
        ("a slot is too small", |p| p.slots[p.launches[0].writes[0].0 as usize].size_bytes = 4),
        ("the wrong slot is read", |p| p.launches[1].reads[0] = p.launches[0].reads[0]),
        ("an output is lost", |p| p.outputs[0] = p.launches[0].writes[0]),
        ("a load reaches outside", |p| {
            let args = &mut p.launches[2].args;
            args.accesses.iter_mut().for_each(|m| *m = m.with_last(crate::view::View { offset: 1000, ..m.views()[0] }));
        }),
    ];
    for (what, break_it) in breaks {
        let mut plan = good.clone();
        break_it(&mut plan);
        assert!(verify::verify(&plan, &limits()).is_err(), "not found: {what}\n{plan}");
    }
}

#[test]
fn planning_many_nodes_is_linear() {
    // A diamond of depth 60 has 2^60 paths.
    let mut x = data([8]);
    for _ in 0..60 {
        x = x.sin() + x.cos();
    }
    let plan = plan_with(&[&x], &limits());
    let n_insts: usize =
        plan.launches.iter().map(|l| if let Kernel::Loop(b) = &l.kernel { b.insts.len() } else { 0 }).sum();
    assert!(n_insts < 300, "{n_insts}");
}

#[test]
fn a_number_is_a_parameter() {
    let a = data([8]);
    let text = |s: f64| plan_with(&[&(&a * s + 3.0)], &limits()).to_string();
    assert_eq!(text(5.0), text(6.0));
    let kernel = |n: usize| plan_with(&[&(data([n, 4]) * 2.0).softmax(-1)], &limits()).launches[0].kernel.clone();
    assert_eq!(kernel(5), kernel(7));
    let _ = DType::F32;
}

#[test]
fn reductions_over_other_axes_stay_apart_even_if_a_map_goes_with_both() {
    let (x, y, z) = (data([7, 4]), data([7, 4]), data([7, 4]));
    let t = x.exp().mul(&y);
    let column = t.square().sum(0);
    let all = z.prod(..);
    let mask = y.eq(&z);
    let joined = all.select(&mask, &t);
    let stacked = Tensor::stack(&[&x, &mask, &z], 0);
    // The verifier would find a kernel that reduced over both.
    plan_with(&[&column, &stacked, &joined.narrow(1, 0, 3)], &limits());
}

#[test]
fn a_gather_reads_past_what_its_own_group_stores() {
    let x = data([3, 5]);
    let flipped = x.flip(-1);
    let idx = Tensor::from_slice(&[1u32, 0, 2], [3], &Device::cpu());
    // The gather goes through the flip to x; then sorting wants the flip stored; then one kernel takes in both.
    let picked = flipped.index_select(0, &idx);
    let sorted = flipped.argsort(0, false);
    let first = Tensor::cat(&[&picked, &sorted.to_dtype(DType::F32)], 1);
    let second = x.gt(0).select(&picked.exp(), &flipped);
    plan_with(&[&first, &second], &limits());
}

/// The names of the ops of each launch.
fn ops(plan: &Plan) -> Vec<Vec<&str>> {
    plan.launches.iter().map(|l| l.ops.iter().map(|op| &**op).collect()).collect()
}

fn index(n: usize) -> Tensor {
    Tensor::from_vec(vec![1i32; n], [n], &Device::cpu())
}

/// Where the launches are that look up, and those that commit.
fn checks_and_commits(plan: &Plan) -> (Vec<usize>, Vec<usize>) {
    let at = |op: &str| (0..plan.launches.len()).filter(|i| ops(plan)[*i].contains(&op)).collect::<Vec<usize>>();
    ([at("embedding"), at("gather"), at("scatter_add"), at("touchy")].concat(), at("unless_failed"))
}

#[test]
fn where_nothing_can_fail_a_commit_leaves_no_trace() {
    let (old, g) = (data([8]), data([8]));
    let new = old.sub(g.exp().mul(0.1));
    let plan = plan_with(&[&new.unless_failed(&old)], &limits());
    assert_eq!(plan.to_string(), plan_with(&[&new], &limits()).to_string());
    assert!(plan.commits && plan.settled == [false]);
}

#[test]
fn lookups_come_before_commits_and_not_in_their_kernels() {
    let (table, other) = (data([10, 4]), data([3, 4]));
    let rows = table.embedding(&index(3));
    // Wanted first, and cheap to make in one kernel with the lookup.
    let (a, b) = (other.add(1.0).unless_failed(&other), other.mul(&rows).unless_failed(&other));
    for wanted in [[&a, &b, &rows], [&rows, &b, &a], [&b, &rows, &a]] {
        let plan = plan_with(&wanted, &limits());
        let (checks, commits) = checks_and_commits(&plan);
        assert_eq!(checks, [0], "{plan}");
        assert!(!commits.is_empty() && commits.iter().all(|c| *c > 0), "{plan}");
        let settled: Vec<bool> = wanted.iter().map(|t| !std::ptr::eq(*t, &rows)).collect();
        assert_eq!(plan.settled, settled);
    }
}

#[test]
fn a_gradient_scattered_where_it_was_looked_up_holds_up_no_commit() {
    let (table, w, idx) = (data([10, 4]), data([4, 4]), index(3));
    let rows = table.embedding(&idx);
    let loss = rows.matmul(&w).square().sum(..);
    let grads = loss.grad(&[&w, &table]);
    let new = [(&w, &grads[0]), (&table, &grads[1])].map(|(old, g)| old.sub(g.mul(0.1)).unless_failed(old));
    let plan = plan_with(&[&loss, &new[0], &new[1]], &limits());
    let (checks, commits) = checks_and_commits(&plan);
    // The lookup, the scatter of the table's gradient; the update of the product's weights is before the scatter.
    assert_eq!((checks.len(), checks[0]), (2, 0), "{plan}");
    assert!(commits[0] < checks[1] && checks[1] < commits[1], "{plan}");
    // The product that makes the gradient commits the update.
    assert!(matches!(plan.launches[commits[0]].kernel, Kernel::Matmul(_)), "{plan}");
    // With another index, all of the backward pass must be gone first.
    let more = Tensor::zeros([10, 4], DType::F32, &Device::cpu()).scatter_add(
        0,
        &Tensor::zeros([2, 4], DType::I32, &Device::cpu()),
        &w.narrow(0, 0, 2),
    );
    let plan = plan_with(&[&new[0], &more], &limits());
    let (checks, commits) = checks_and_commits(&plan);
    assert!(checks.iter().all(|c| *c < commits[0]), "{plan}");
}

#[test]
fn what_is_committed_is_written_over_what_was_there() {
    let (old, rows) = (data([3, 4]), data([10, 4]).embedding(&index(3)));
    let g = rows.exp();
    let new = old.sub(g.mul(0.1)).unless_failed(&old);
    drop(old);
    let plan = plan_with(&[&new, &rows], &limits());
    let last = plan.launches.last().expect("some");
    assert!(last.reads.contains(&last.writes[0]), "{plan}");
    assert!(matches!(plan.slots[plan.outputs[0].0 as usize].kind, SlotKind::Input { donated: true, .. }), "{plan}");
}

#[test]
fn parts_of_one_kernel_update_a_tensor_in_place() {
    let small = Limits { max_binding_bytes: 1 << 10, max_windows: 6, max_elems: 1 << 31, ..limits() };
    let is_in_place = |plan: &Plan| {
        assert!(plan.launches.len() > 1, "{plan}");
        let is_input = |slot: SlotId| matches!(plan.slots[slot.0 as usize].kind, SlotKind::Input { donated: true, .. });
        let writes = plan.launches.iter().flat_map(|launch| &launch.writes);
        is_input(plan.outputs[0]) && writes.into_iter().all(|slot| *slot == plan.outputs[0])
    };
    let x = data([640]);
    let y = x.mul(2.0).add(1.0);
    drop(x);
    let plan = plan_with(&[&y], &small);
    assert!(is_in_place(&plan), "{plan}");
    // A part that overwrites what another has written already is found.
    let mut twice = plan.clone();
    twice.launches[1].args = twice.launches[0].args.clone();
    assert!(verify::verify(&twice, &small).is_err());
    // Rows of a second tensor make it go by strides.
    let (x, row) = (data([20, 64]), data([64]));
    let y = x.add(&row);
    drop(x);
    let plan = plan_with(&[&y], &small);
    assert!(is_in_place(&plan), "{plan}");
    // What other parts need later must not be overwritten.
    let x = data([640]);
    let y = x.add(x.flip(0));
    drop(x);
    let plan = plan_with(&[&y], &small);
    assert!(!is_in_place(&plan), "{plan}");
}

#[test]
fn custom_ops_hold_up_commits_only_where_they_can_fail() {
    let cpu: std::sync::Arc<dyn Fn(&[f32]) -> f32 + Send + Sync> = std::sync::Arc::new(|x: &[f32]| x[0]);
    let op = crate::CustomOp { name: "touchy".into(), wgsl: "$0".into(), cpu, grad: None };
    let old = data([8]);
    let new = Tensor::map_custom(&op, &[&old.exp()]).unless_failed(&old);
    assert_eq!(ops(&plan_with(&[&new], &limits())), [vec!["exp", "touchy"], vec!["unless_failed"]]);
    let plan = plan_with(&[&new], &Limits { custom_may_fail: false, ..limits() });
    assert_eq!(ops(&plan), [["exp", "touchy"]]);
    // A lookup elsewhere makes it a commit again, which the custom op may share a kernel with.
    let rows = data([10, 4]).embedding(&index(3));
    let plan = plan_with(&[&new, &rows], &Limits { custom_may_fail: false, ..limits() });
    assert_eq!(ops(&plan), [vec!["embedding"], vec!["exp", "touchy", "unless_failed"]]);
}

#[test]
fn a_check_that_needs_what_a_commit_is_made_of_comes_first_all_the_same() {
    let (x, old, table) = (data([8]), data([8]), data([10, 4]));
    let t = x.sin().add(x.cos());
    let kept = t.unless_failed(&old);
    let rows = table.embedding(&t.to_dtype(DType::I32));
    for wanted in [[&kept, &rows], [&rows, &kept]] {
        let plan = plan_with(&wanted, &limits());
        let (checks, commits) = checks_and_commits(&plan);
        assert!(checks.iter().all(|c| commits.iter().all(|k| c < k)), "{plan}");
    }
}

#[test]
fn a_lookup_in_what_was_committed_comes_after_it() {
    let (table, rows) = (data([10, 4]), data([6, 4]).embedding(&index(2)));
    let kept = table.add(1.0).unless_failed(&table);
    let late = kept.embedding(&index(3));
    let plan = plan_with(&[&rows, &kept, &late], &limits());
    let (checks, commits) = checks_and_commits(&plan);
    assert!(checks[0] < commits[0] && commits[0] < checks[1], "{plan}");
    assert_eq!(plan.settled, [false, true, false]);
}

#[test]
fn the_verifier_finds_commits_that_come_too_early() {
    let (old, table) = (data([3, 4]), data([10, 4]));
    let rows = table.embedding(&index(3));
    let kept = old.mul(rows.exp()).unless_failed(&old);
    let nodes: Vec<&NodeRef> = [&rows, &kept].iter().map(|t| t.node().expect("a good tensor")).collect();
    let lock = nodes[0].device.clone();
    let _lock = lock.cache().lock();
    let graph = simplify::simplify(capture(&nodes, &[]).graph(), &limits());
    let good = compile(graph.clone(), &Target { limits: limits(), ..Target::baseline() });
    assert_eq!(verify::verify_commits(&good, &graph, &limits()), Ok(()));
    let breaks: [(&str, fn(&mut Plan)); 3] = [
        ("a commit before a check", |p| p.launches.reverse()),
        ("a check that nobody was told of", |p| p.launches[0].may_fail.clear()),
        ("both in one kernel", |p| {
            let inst = crate::kernel::Inst {
                op: crate::kernel::InstOp::Failed,
                dtype: DType::Bool,
                scope: crate::kernel::Scope::Uniform,
            };
            if let Kernel::Loop(body) = &mut p.launches[0].kernel {
                std::sync::Arc::make_mut(body).insts.push(inst);
            }
        }),
    ];
    for (what, break_it) in breaks {
        let mut plan = good.clone();
        break_it(&mut plan);
        assert!(verify::verify_commits(&plan, &graph, &limits()).is_err(), "not found: {what}\n{plan}");
    }
}
