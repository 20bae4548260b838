//! Tensors of more elements than 32 bits count. Nothing of their size is made: plans and passes are only numbers.

use super::*;
use crate::target::MAX_ELEMS;

/// Elements of what is huge: more than 2³³.
const N: usize = 9000 << 20;

/// So many bytes, in memory that the last kernel of a plan reads.
fn huge() -> Tensor {
    Tensor::zeros([9000, 1 << 20], DType::U8, &Device::cpu()).sort(0, false)
}

/// The passes of all kernels of a plan but those that make what `huge` is.
fn made_passes(plan: &Plan, target: &GpuTarget) -> Vec<Pass> {
    let is_made = |launch: &&Launch| !matches!(&launch.kernel, Kernel::Routine(routine) if routine.row.name == "sort");
    plan.launches.iter().filter(is_made).flat_map(|launch| program(launch, &plan.slots, target).passes).collect()
}

/// A number of a pass by its name.
fn number(pass: &Pass, name: &str) -> u32 {
    let fields = pass.text.split("struct Params {").nth(1).and_then(|t| t.split('}').next()).unwrap_or_default();
    let idx = fields.lines().filter(|l| l.contains(": u32")).position(|l| l.trim().starts_with(&format!("{name}:")));
    pass.params[idx.unwrap_or_else(|| panic!("no {name} in {}", pass.text)) - pass.consts.len()]
}

/// What one kernel sees of one piece of memory can be told apart by 32 bits.
#[track_caller]
fn check_near(tensor: &Tensor) {
    for max_binding_bytes in [128 << 20, 2 << 30] {
        let target = GpuTarget { max_binding_bytes, ..target(Threads::Independent) };
        let plan = plan_on(&[tensor], &target);
        let passes = made_passes(&plan, &target);
        // Few of them: each goes through about as much as fits.
        assert!(passes.len() < 1000, "{}", passes.len());
        for pass in &passes {
            for bind in &pass.binds {
                let same = || pass.binds.iter().filter(|b| b.place == bind.place);
                let first = same().map(|b| b.start).min().unwrap_or(0);
                let end = same().map(|b| b.start + b.len).max().unwrap_or(0);
                // The bytes of an element, if it is one of so many.
                let size = match bind.place {
                    PassMemory::Slot(slot) => (plan.slots[slot.0 as usize].size_bytes / N).max(1),
                    _ => 4,
                };
                assert!(end - first <= size << 32, "{bind:?} of {}..{}", first, end);
            }
        }
    }
}

#[test]
fn elements_beyond_32_bits_are_counted_from_their_window() {
    for row in [4095, 4096, 5000, 8999] {
        let plan = plan(&[&huge().narrow(0, row, 1).narrow(1, 8, 16).add(1)]);
        let passes = made_passes(&plan, &target(Threads::Independent));
        let pass = passes.last().expect("one at least");
        let within = number(pass, "a0_offset").wrapping_sub(number(pass, "in0_first"));
        assert_eq!(pass.binds[0].start + within as usize, (row << 20) + 8, "{}", pass.text);
        assert!((within as usize) < pass.binds[0].len);
    }
}

#[test]
fn no_kernel_sees_more_than_32_bits_count() {
    let x = huge();
    check_near(&x.add(1));
    check_near(&x.t().add(1));
    check_near(&(x.narrow(0, 0, 1) + x.narrow(0, 8999, 1)));
    check_near(&x.slice(crate::s![..;3000, ..;65536]).add(1));
    check_near(&x.to_dtype(DType::I32).sum(0));
    check_near(&x.max(1));
    check_near(&x.index_select(0, &data([5], DType::I32)));
    check_near(&x.to_dtype(DType::F32).narrow(0, 0, 4).matmul(&x.to_dtype(DType::F32).t()));
    check_near(&x.flip(0).pad(&[(1, 1), (0, 0)], 7));
    check_near(&x.cumsum(0));
    check_near(&x.reshape([N]).cumsum(0));
    check_near(&x.scatter_add(0, &data([3, 10], DType::I32), &data([3, 10], DType::U8)));
}

#[test]
fn numbers_between_views_are_small() {
    let flat = huge().t().reshape([N]);
    for view in [
        flat.narrow(0, (1 << 31) - 50, 20_000),
        flat.narrow(0, (1 << 33) + 5, 20_000),
        flat.slice(crate::s![3..;1 << 20]),
        flat.pad(&[(5, 0)], 1).narrow(0, 1 << 32, 1 << 20),
    ] {
        let plan = plan(&[&view.add(1)]);
        let maps = plan.launches.iter().flat_map(|launch| &launch.args.accesses).filter(|map| map.views().len() > 1);
        let small = maps.inspect(|map| {
            let (_, between) = map.views().split_last().expect("never empty");
            assert!(between.iter().all(|view| view.shape.n_elems() <= MAX_ELEMS), "{map}");
        });
        assert!(small.count() > 0, "{plan}");
    }
}
