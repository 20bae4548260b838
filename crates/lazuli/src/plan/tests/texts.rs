//! The values that planning passes from stage to stage, as text: graph, groups, kernels and plan of a dozen graphs, one snapshot
//! each; and that what proves groups and kernels finds what is wrong with them.

use super::*;
use crate::graph::Graph;
use crate::plan::groups::{Form, Groups, StoredPart};
use crate::plan::lower::Lowered;
use crate::{Attention, Conv};

/// Everything fuses, windows are read in place, and sums are cut early.
fn target() -> Target {
    let limits = Limits { max_reduce: 1 << 10, max_piece: 1 << 9, max_list_elems: 1 << 20, ..limits() };
    Target { limits, ..Target::baseline() }
}

fn draft(stages: &[&[&Tensor]]) -> PlanDraft {
    let nodes: Vec<&NodeRef> =
        stages.iter().flat_map(|stage| stage.iter()).map(|t| t.node().expect("a good tensor")).collect();
    let mut n_outputs = 0;
    let ends = stages.iter().map(|stage| {
        n_outputs += stage.len();
        n_outputs
    });
    let ends: Vec<usize> = if stages.len() > 1 { ends.collect() } else { Vec::new() };
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    PlanDraft::new(capture(&nodes, &ends).graph(), &target().limits)
}

#[track_caller]
fn check_texts(name: &str, stages: &[&[&Tensor]]) {
    let (draft, target) = (draft(stages), target());
    let (plan, template) = draft.planned(&target);
    let kernels = draft.cut(draft.lowered(&template, &target.limits), &target);
    let text = format!("{}\n\n{}\n\n{kernels}\n\n{plan}", draft.graph, template.groups);
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
}

#[test]
fn stages_of_planning_are_told() {
    let (a, b) = (data([4, 8]), data([8]));
    let sum = a.add(&b).mul(2.0);
    check_texts("maps", &[&[&sum.tanh(), &sum.t().add(1.0)]]);
    check_texts("softmax", &[&[&a.softmax(-1)]]);
    check_texts("long_sum", &[&[&data([5000]).square().mean(..)]]);
    let (x, w, bias) = (data([6, 8]), data([8, 4]), data([4]));
    check_texts("product_with_epilogue", &[&[&x.matmul(&w).add(&bias).relu()]]);
    check_texts("grouped_products", &[&[&x.matmul(&w), &x.matmul(&data([8, 4]))]]);
    let conv = Conv { padding: 1.into(), ..Conv::default() };
    check_texts("convolution", &[&[&data([1, 2, 6, 6]).conv(&data([3, 2, 3, 3]), Some(&data([3])), conv).relu()]]);
    let options = Attention { causal: true, ..Attention::default() };
    check_texts("attention", &[&[&data([2, 5, 8]).attention(&data([2, 7, 8]), &data([2, 7, 8]), options)]]);
    let counts = data([3]).scatter_add(0, &index(10), &data([10]).exp());
    check_texts("scatter", &[&[&counts.cumsum(0)]]);
    let joined = Tensor::cat(&[&a.exp(), &data([2, 8])], 0);
    check_texts("joined_and_rows_written", &[&[&joined.write_rows(0, 1, &data([1, 8]).sin()).sum(0)]]);
}

#[test]
fn stages_of_staged_and_committing_graphs_are_told() {
    let (x, w) = (data([6, 8]), data([8, 4]));
    let hidden = x.matmul(&w).tanh();
    let loss = hidden.square().sum(..);
    check_texts("staged", &[&[&loss], &[&loss.grad(&[&w])[0]]]);
    let old = data([3, 8]);
    let rows = old.mul(3.0).index_select(0, &index(3));
    check_texts("committed", &[&[&old.add(rows.sum(..)).unless_failed(&old), &rows]]);
    let weights = Tensor::ones([8, 4], DType::F16, &Device::cpu()).compute().expect("enough memory");
    check_texts("half_floats", &[&[&x.matmul(&weights.to_dtype(DType::F32)).layer_norm(-1, None, None, 1e-5)]]);
}

/// A graph with something of every kind, its groups, and what is asked of them.
fn proven() -> (PlanDraft, Groups) {
    let (x, w) = (data([6, 8]), data([8, 8]));
    let hidden = x.matmul(&w).softmax(-1);
    let picked = hidden.index_select(0, &index(6));
    let joined = Tensor::cat(&[&picked.exp(), &hidden.cumsum(0)], 0);
    let wanted = joined.write_rows(0, 1, &x.narrow(0, 0, 1)).sum(0);
    let draft = draft(&[&[&wanted, &hidden.matmul(&w)]]);
    let groups = draft.fused(&target().limits, fuse::Commits::Join).groups;
    (draft, groups)
}

fn verified(draft: &PlanDraft, groups: &Groups) -> std::result::Result<(), String> {
    let chained = draft.chained.of(&draft.graph, &target().limits);
    verify::verify_groups(&draft.graph, groups, chained, &draft.checks)
}

/// The first group of a form, by its number.
fn group_of_form(groups: &Groups, is_it: fn(&Form) -> bool) -> usize {
    groups.groups.iter().position(|group| is_it(&group.form)).expect("there is one of each form")
}

fn node_of(graph: &Graph, name: &str) -> NodeIdx {
    graph.nodes.iter().position(|node| node.op.name() == name).expect("it is in the graph") as NodeIdx
}

#[test]
fn the_verifier_finds_what_is_wrong_with_groups() {
    let (draft, good) = proven();
    assert_eq!(verified(&draft, &good), Ok(()));
    let routine = |groups: &Groups| group_of_form(groups, |form| matches!(form, Form::Routine(_)));
    let reduce = |groups: &Groups| group_of_form(groups, |form| matches!(form, Form::Reduce { .. }));
    type Break<'a> = (&'a str, Box<dyn Fn(&mut Groups) + 'a>);
    let breaks: Vec<Break> = vec![
        (
            "is stored by group",
            Box::new(|g| {
                let stored = g.groups[reduce(g)].stores[0];
                let at = routine(g);
                g.groups[at].stores.push(stored);
            }),
        ),
        (
            "stores nothing",
            Box::new(|g| {
                let at = reduce(g);
                g.groups[at].stores.clear()
            }),
        ),
        (
            "which has no memory",
            Box::new(|g| {
                let value = g.groups[reduce(g)].stores[0].value;
                g.stored[value as usize] = false;
            }),
        ),
        ("is stored by no group", Box::new(|g| g.stored[node_of(&draft.graph, "exp") as usize] = true)),
        (
            "is no member",
            Box::new(|g| {
                let value = g.groups[reduce(g)].stores[0].value;
                g.group_of[value as usize] = None;
            }),
        ),
        // All levels as one: nobody finds anything in memory.
        ("again", Box::new(|g| g.groups.iter_mut().for_each(|group| group.level = 0))),
        (
            "is no memory",
            Box::new(|g| {
                let at = routine(g);
                g.groups[at].level = 0;
            }),
        ),
        (
            "of node",
            Box::new(|g| {
                let at = g.groups.iter().position(|group| group.stores.iter().any(|s| s.part_of.is_some()));
                g.groups[at.expect("a part")].stores[0].part_of.as_mut().expect("a part").part = 7;
            }),
        ),
        (
            "are stored",
            Box::new(|g| {
                // The kernel that stores the first part of the concatenation stores the value by itself instead.
                let cat = node_of(&draft.graph, "cat");
                for group in &mut g.groups {
                    group.stores.retain(|s| s.part_of != Some(StoredPart { whole: cat, part: 0 }));
                    if group.stores.is_empty() {
                        group.stores.push(super::super::groups::StoredNode { value: group.domain, part_of: None });
                        g.stored[group.domain as usize] = true;
                    }
                }
            }),
        ),
        (
            "is not of the size",
            Box::new(|g| {
                let product = g.groups.iter_mut().find(|group| matches!(group.form, Form::Matmul(_)));
                product.expect("a product").domain = draft.graph.outputs[0];
            }),
        ),
    ];
    for (fault, break_it) in breaks {
        let mut groups = good.clone();
        break_it(&mut groups);
        let found = verified(&draft, &groups).expect_err(fault);
        assert!(found.contains(fault), "{fault}: {found}\n{groups}");
    }
}

#[test]
fn the_verifier_finds_groups_that_wait_for_each_other() {
    // Two parts of one value, of which one kernel makes the first and reads all.
    let (x, y) = (data([2, 4]), data([2, 4]));
    let joined = Tensor::cat(&[&x.exp(), &y.sin()], 0);
    let draft = draft(&[&[&joined.sum(0)]]);
    let good = draft.fused(&target().limits, fuse::Commits::Join).groups;
    assert_eq!(verified(&draft, &good), Ok(()));
    let mut groups = good.clone();
    let sum = group_of_form(&groups, |form| matches!(form, Form::Reduce { .. }));
    let part = groups.groups[1 - sum.min(1)].stores.remove(0);
    groups.groups[sum].stores.push(part);
    assert!(verified(&draft, &groups).is_err(), "{groups}");
}

#[test]
fn the_verifier_finds_what_is_wrong_with_kernels() {
    let (x, w) = (data([6, 8]), data([8, 4]));
    let y = x.exp().matmul(&w).softmax(-1);
    let draft = draft(&[&[&y.index_select(0, &index(5)).to_dtype(DType::F16), &y]]);
    let good = draft.lowered(&draft.fused(&target().limits, fuse::Commits::Join), &target().limits);
    assert_eq!(verify::verify_kernels(&good), Ok(()));
    fn body<'a>(lowered: &'a mut Lowered, form: &str) -> &'a mut crate::kernel::Body {
        let step = lowered.steps.iter_mut().find(|step| step.kernel.form() == form).expect("one of each form");
        match &mut step.kernel {
            Kernel::Loop(body) | Kernel::Matmul(body) => Arc::make_mut(body),
            other => unreachable!("{} has several bodies", other.form()),
        }
    }
    let breaks: [(&str, fn(&mut Lowered)); 14] = [
        ("does not come before it", |l| body(l, "reduce").insts.reverse()),
        ("nothing makes it", |l| {
            l.steps.remove(0);
        }),
        ("which is an input", |l| {
            let input = l.values.iter().position(|v| v.input.is_some() && v.n_elems == 48).expect("x") as u32;
            l.steps[0].writes[0] = input;
            l.steps[0].reads.clear();
            body(l, "map").inputs.clear();
            body(l, "map").insts.retain(|i| !matches!(i.op, crate::kernel::InstOp::Load { .. }));
            body(l, "map").insts.iter_mut().for_each(|i| i.op = crate::kernel::InstOp::Failed);
            body(l, "map").stores[0].value = 0;
        }),
        ("and read as", |l| {
            let value = l.steps.last().expect("a kernel").reads[0];
            l.values[value as usize].dtype = DType::U8;
        }),
        ("and written as", |l| body(l, "map").outputs[0] = DType::I32),
        ("bindings and values differ", |l| {
            l.steps[0].reads.pop();
        }),
        ("has another rank", |l| l.steps[0].args.outer.push(1)),
        ("accesses and their numbers", |l| drop(l.steps[0].args.accesses.pop())),
        ("another shape than the index space", |l| l.steps[0].args.outer[0] += 1),
        ("nothing is stored to output", |l| body(l, "map").stores.clear()),
        ("and reads what is", |l| {
            body(l, "reduce").insts.iter_mut().for_each(|i| i.scope = i.scope.min(crate::kernel::Scope::Outer));
            let first = &mut body(l, "reduce").insts[0];
            first.scope = crate::kernel::Scope::Inner;
        }),
        ("there is no input", |l| {
            body(l, "matmul").insts.push(crate::kernel::Inst {
                op: crate::kernel::InstOp::Load { input: 9, access: 0 },
                dtype: DType::F32,
                scope: crate::kernel::Scope::Outer,
            })
        }),
        ("makes no sum", |l| body(l, "map").insts[0].op = crate::kernel::InstOp::Acc(0)),
        ("are stored", |l| {
            let written = l.steps[0].writes[0];
            l.values[written as usize].n_elems += 1;
        }),
    ];
    for (fault, break_it) in breaks {
        let mut lowered = good.clone();
        break_it(&mut lowered);
        let found = verify::verify_kernels(&lowered).expect_err(fault);
        assert!(found.contains(fault), "{fault}: {found}\n{lowered}");
    }
    // Each waits for the other.
    let mut lowered = good.clone();
    let (first, last) = (lowered.steps[0].writes[0], lowered.steps.len() - 1);
    let made_last = lowered.steps[last].writes[0];
    let n_elems = lowered.values[made_last as usize].n_elems;
    assert!(n_elems > 0 && first != made_last);
    lowered.steps[0].reads[0] = made_last;
    let step = &mut lowered.steps[0];
    let Kernel::Loop(map) = &mut step.kernel else { unreachable!("the exponential is a map") };
    let dtype = lowered.values[made_last as usize].dtype;
    Arc::make_mut(map).inputs[0] = dtype.into();
    Arc::make_mut(map).insts[0].dtype = dtype;
    let found = verify::verify_kernels(&lowered).expect_err("a circle");
    assert!(found.contains("waits for itself"), "{found}\n{lowered}");
}
