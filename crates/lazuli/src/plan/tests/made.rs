//! Tests of made operands: which operands products make, which are stored, and which faults the verifier finds.

use std::sync::Arc;

use super::super::{Plan, compile, verify};
use super::{data, limits, plan_with};
use crate::graph::{NodeRef, capture};
use crate::kernel::{InstOp, Kernel};
use crate::target::{Limits, Target};
use crate::{DType, Tensor};

const MAX: usize = 1 << 10;

fn takes_made() -> Limits {
    Limits { max_made_elems: MAX, ..limits() }
}

/// The launches of a plan for a device that takes made operands.
fn lines(outputs: &[&Tensor]) -> Vec<String> {
    plan_with(outputs, &takes_made()).launches.iter().map(|launch| launch.text()).collect()
}

#[test]
fn a_map_that_one_product_reads_is_made_by_it() {
    let (a, b, w) = (data([1, 64]), data([1, 64]), data([64, 8]));
    let x = a.exp().mul(&b);
    assert_eq!(lines(&[&x.matmul(&w)]), ["matmul [] 1×64×8, a = {mul(exp(in0), in2)}: out0 = a·b"]);
    let column = x.reshape([64, 1]);
    assert_eq!(lines(&[&w.t().matmul(&column)]), ["matmul [] 8×64×1, b = {mul(exp(in1), in2)}: out0 = a·b"]);
    // Both operands are made, and an epilogue follows; an input that both maps read is bound once.
    let y = a.exp().mul(&b).matmul(&a.sub(&b).reshape([64, 1])).add(&b.narrow(1, 0, 1));
    assert_eq!(lines(&[&y]), ["matmul [] 1×64×1, a = {mul(exp(in0), in2)}, b = {sub(in0, in2)}: out0 = add(a·b, in2)"]);
    // Devices that do not take made operands store the map's result.
    assert_eq!(plan_with(&[&x.matmul(&w)], &limits()).launches.len(), 2);
}

#[test]
fn the_gate_of_a_gated_layer_is_made_by_the_product_behind_it() {
    let (gate, up, down) = (data([16, 32]), data([16, 32]), data([32, 16]));
    let lines = |n_rows: usize| -> Vec<String> {
        let x = data([n_rows, 16]);
        let y = x.matmul(&gate).tanh().mul(&x.matmul(&up)).matmul(&down).add(&x);
        // With such small sizes the planner would otherwise make the whole layer one chained product.
        let plan = plan_with(&[&y], &Limits { max_chained_depth: 0, ..takes_made() });
        plan.launches.iter().map(|launch| launch.text()).collect()
    };
    let expect = [
        "matmul [] 1×16×32: out0 = tanh(a·b) | matmul [] 1×16×32: out0 = a·b",
        "matmul [] 1×32×16, a = {mul(in0, in2)}: out0 = add(a·b, in3)",
    ];
    assert_eq!(lines(1), expect);
    // A map of several rows is stored in any case: it is the epilogue of one product, which waits for the other.
    let expect = [
        "matmul [] 2×16×32: out0 = a·b",
        "matmul [] 2×16×32: out0 = mul(tanh(a·b), in2)",
        "matmul [] 2×32×16: out0 = add(a·b, in2)",
    ];
    assert_eq!(lines(2), expect);
}

#[test]
fn operands_that_others_read_or_that_a_store_rounds_are_stored() {
    let (a, b, w) = (data([1, 64]), data([1, 64]), data([64, 8]));
    let x = a.mul(&b);
    let is_made = |outputs: &[&Tensor]| lines(outputs).iter().any(|line| line.contains("a = {"));
    assert!(is_made(&[&x.matmul(&w)]));
    assert!(!is_made(&[&x.matmul(&w), &x]), "it is wanted");
    assert!(!is_made(&[&x.matmul(&w), &x.matmul(&data([64, 4]))]), "two products read it");
    assert!(!is_made(&[&x.matmul(&w), &x.sum(-1)]), "a sum reads it");
    let half = |x: &Tensor| x.to_dtype(DType::F16);
    let small = half(&a).mul(half(&b));
    assert!(!is_made(&[&small.matmul(&half(&w))]), "a store rounds it");
    let rows = data([2, 64]).mul(data([2, 64]));
    assert!(!is_made(&[&rows.matmul(&w)]), "it has several rows");
    let long = data([1, MAX + 1]).mul(data([1, MAX + 1]));
    assert!(!is_made(&[&long.matmul(&data([MAX + 1, 2]))]), "it is long");
    let idx = Tensor::from_slice(&[1u32, 0], [2], &crate::Device::cpu());
    let looked_up = data([3, 32]).mul(2.0).index_select(0, &idx).exp().reshape([1, 64]);
    assert!(!is_made(&[&looked_up.matmul(&w)]), "it may fail");
}

/// A product that makes its left operand of two values, broken by `fault`: what the verifier says.
fn fault_of(fault: impl Fn(&mut Plan)) -> String {
    let mut plan = plan_with(&[&data([1, 32]).mul(data([1, 32])).matmul(&data([32, 32]))], &takes_made());
    assert_eq!(verify::verify(&plan, &takes_made()), Ok(()));
    fault(&mut plan);
    verify::verify(&plan, &takes_made()).expect_err("a fault")
}

#[test]
fn faults_of_made_operands_are_found() {
    fn made(plan: &mut Plan) -> &mut crate::kernel::Body {
        let Kernel::Matmul(body) = &mut plan.launches[0].kernel else { unreachable!("a product") };
        Arc::make_mut(Arc::make_mut(body).made[0].as_mut().expect("it is made"))
    }
    let numbers = |plan: &mut Plan| plan.launches[0].args.matmul.as_mut().expect("a product").clone();
    let past_its_end = fault_of(|plan| {
        let mut matmul = numbers(plan);
        matmul.made[0].as_mut().expect("numbers").accesses[0].last_mut().offset += 1;
        plan.launches[0].args.matmul = Some(matmul);
    });
    assert!(past_its_end.contains("reaches elements"), "{past_its_end}");
    let beyond = fault_of(|plan| {
        let mut matmul = numbers(plan);
        matmul.a.offset += 1;
        plan.launches[0].args.matmul = Some(matmul);
    });
    assert!(beyond.contains("operand 0 reaches elements"), "{beyond}");
    let late = fault_of(|plan| made(plan).insts.reverse());
    assert!(late.contains("does not come before it"), "{late}");
    // An input of a made operand may not be overwritten: threads that multiply might read it again.
    let over = fault_of(|plan| {
        let value = plan.launches[0].reads.iter().position(|slot| *slot != plan.launches[0].reads[1]).expect("a");
        let slot = plan.launches[0].reads[value];
        plan.slots[slot.0 as usize].kind = super::super::SlotKind::Input { idx: value as u32, donated: true };
        plan.launches[0].writes[0] = slot;
        let size = plan.slots[slot.0 as usize].size_bytes;
        assert_eq!(size, 128);
    });
    assert!(over.contains("lies over"), "{over}");
    let plan = plan_with(&[&data([1, 32]).mul(data([1, 32])).matmul(&data([32, 32]))], &takes_made());
    let fault = verify::verify(&plan, &limits()).expect_err("this device has none");
    assert!(fault.contains("makes an operand of 32 elements"), "{fault}");
}

#[test]
fn the_verifier_finds_maps_that_make_no_operand() {
    let y = data([1, 32]).mul(data([1, 32])).matmul(&data([32, 32]));
    let nodes: Vec<&NodeRef> = [&y].iter().map(|t| t.node().expect("a good tensor")).collect();
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    let target = Target { limits: takes_made(), ..Target::baseline() };
    let graph = capture(&nodes, &[]).graph();
    assert_eq!(compile(graph.clone(), &target).launches.len(), 1);
    let draft = super::super::PlanDraft::new(graph, &target.limits);
    let template = draft.fused(&target.limits, super::super::fuse::Commits::Join);
    let good = draft.lowered(&template, &target.limits);
    assert_eq!(verify::verify_kernels(&good), Ok(()));
    let breaks: [(&str, fn(&mut crate::kernel::Body, &mut crate::kernel::MatmulArgs)); 4] = [
        ("without numbers", |_, args| args.made[0] = None),
        ("stores every element in order", |_, args| {
            let made = args.made[0].as_mut().expect("numbers");
            let last = made.accesses.len() - 1;
            made.accesses[last].last_mut().offset = 1;
            made.accesses.iter_mut().for_each(|map| map.last_mut().offset = 1);
        }),
        ("other inputs", |body, _| {
            Arc::make_mut(body.made[0].as_mut().expect("a map")).inputs[1] = DType::U8.into();
        }),
        ("there is no input", |body, _| {
            let made = Arc::make_mut(body.made[0].as_mut().expect("a map"));
            made.insts.iter_mut().for_each(|inst| {
                if let InstOp::Load { input, .. } = &mut inst.op {
                    *input = 9;
                }
            });
        }),
    ];
    for (expect, fault) in breaks {
        let mut broken = good.clone();
        let step = &mut broken.steps[0];
        let Kernel::Matmul(body) = &mut step.kernel else { unreachable!("a product") };
        fault(Arc::make_mut(body), step.args.matmul.as_mut().expect("its numbers"));
        let found = verify::verify_kernels(&broken).expect_err(expect);
        assert!(found.contains(expect), "{expect}: {found}");
    }
    let mut groups = template.groups;
    groups.groups[0].made = [None, None];
    let found = verify::verify_groups(&draft.graph, &groups, &[], &draft.checks).expect_err("it is not in memory");
    assert!(found.contains("is no memory"), "{found}");
}
