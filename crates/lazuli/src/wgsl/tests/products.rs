//! Products of many sizes and layouts have valid texts, and few of them.

use super::*;

fn product(m: usize, k: usize, n: usize, layout: (bool, bool), dtype: DType) -> Tensor {
    let matrix = |rows: usize, cols: usize, transposed: bool| match transposed {
        true => data([cols, rows], dtype).t(),
        false => data([rows, cols], dtype),
    };
    matrix(m, k, layout.0).matmul(&matrix(k, n, layout.1))
}

#[test]
fn every_tile_in_every_layout() {
    for layout in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n) in [(1, 64, 64), (1, 7, 5), (2, 2048, 12), (3, 5, 7), (8, 64, 1024), (17, 63, 65), (256, 16, 512)]
        {
            check(&[&product(m, k, n, layout, DType::F32)]);
        }
        check(&[&product(24, 32, 20, layout, DType::F16)]);
        check(&[&product(24, 33, 21, layout, DType::I32)]);
    }
}

/// Forced or not: whatever the table has can be printed for any product that it fits.
#[test]
fn every_variant_in_every_layout() {
    for layout in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n, dtype) in [(65, 67, 135, DType::F32), (64, 64, 64, DType::BF16), (33, 1030, 36, DType::I32)] {
            let y = product(m, k, n, layout, dtype).to_dtype(DType::F32) * 0.5 + data([n], DType::F32);
            for variant in VARIANTS {
                let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
                let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
                let plan = plan_on(&[&y], &target);
                for pass in passes(&plan, &target) {
                    validate(&pass.text);
                    check_bindings(&pass, &plan, &target);
                }
            }
        }
    }
}

/// Windows of images, and gradients that sum over images and places: lists of axes on either side, along k and across.
#[test]
fn every_variant_reads_lists_of_axes() {
    let options = crate::Conv { stride: [1, 2].into(), padding: 1.into(), ..crate::Conv::default() };
    for (groups, w) in [(1, 34), (2, 13)] {
        let x = data([3, 8, 18, w], DType::F32).tracked();
        let weight = data([12, 8 / groups, 3, 3], DType::F32).tracked();
        let options = crate::Conv { groups, ..options };
        let y = x.conv(&weight, Some(&data([12], DType::F32)), options).relu();
        let last = data([3, 18, w, 8], DType::F32).permute(&[0, 3, 1, 2]).conv(&weight, None, options);
        let mut outputs =
            x.conv(&weight, None, options).vjp(&[&x, &weight], &data(y.shape().expect("fits"), DType::F32));
        outputs.extend([y, last]);
        for y in outputs {
            check(&[&y]);
            let plan = plan(&[&y]);
            let is_list = |m: &crate::kernel::MatmulArgs| m.a.steps().is_none() || m.b.steps().is_none();
            assert!(plan.launches.iter().any(|launch| launch.args.matmul.as_deref().is_some_and(is_list)), "{plan}");
            for variant in VARIANTS {
                let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
                let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
                let plan = plan_on(&[&y], &target);
                for pass in passes(&plan, &target) {
                    validate(&pass.text);
                    check_bindings(&pass, &plan, &target);
                }
            }
        }
    }
}

#[test]
fn defaults_go_by_device_and_shape() {
    let told_by = |m: usize, k: usize, n: usize, right_transposed: bool, target: &GpuTarget| {
        let plan = plan_on(&[&product(m, k, n, (false, right_transposed), DType::F32)], target);
        let launch = &plan.launches[0];
        let parts = launch.args.matmul.as_ref().expect("a product").k_parts;
        let parts = if parts.is_whole() { String::new() } else { format!("{parts}, ") };
        parts + &GpuSchedule::new(launch, &plan.slots, target).variant().expect("products have variants")
    };
    let reported =
        |m: usize, k: usize, n: usize, transposed: bool, style: Threads| told_by(m, k, n, transposed, &target(style));
    let on_cpu = ": default for drivers that run on the CPU";
    for (m, k, n, transposed, expect) in [
        (1024, 64, 1024, false, "16x8"),
        (256, 256, 256, false, "16x8"),
        (8, 64, 1536, false, "8x8"),
        (1, 64, 1536, false, "1x16"),
        (1, 64, 1536, true, "1x4"),
        (3, 5, 2, false, "4x1"),
    ] {
        assert_eq!(reported(m, k, n, transposed, Threads::Independent), format!("{expect}{on_cpu}"));
    }
    let with_subgroups = GpuTarget { subgroup: Some(8), ..target(Threads::Independent) };
    for (m, n, expect, where_256_bytes_suit) in [
        (1024, 1024, "32x8 by subgroup", "32x8 by subgroup"),
        (64, 1536, "32x4 by subgroup", "32x8 by subgroup"),
        (17, 1536, "32x4 by subgroup", "32x8 by subgroup"),
        (16, 1536, "16x8 by subgroup", "16x8 by subgroup"),
        (8, 1536, "8x16 by subgroup", "8x8 by subgroup"),
        (2, 1536, "8x16 by subgroup", "8x8 by subgroup"),
        (8, 64, "8x8 by subgroup", "8x8 by subgroup"),
        (64, 24, "32x4 by subgroup", "32x4 by subgroup"),
        (1, 2048, "1x16", "1x8"),
        (1024, 16, "8x8", "8x8"),
    ] {
        let suited = GpuTarget { b_row_bytes: Some(256), ..with_subgroups.clone() };
        assert_eq!(told_by(m, 512, n, false, &with_subgroups), format!("{expect}{on_cpu}"));
        assert_eq!(told_by(m, 512, n, false, &suited), format!("{where_256_bytes_suit}{on_cpu}"));
    }
    for (m, k, n, transposed, expect) in [
        // Tiles of 8×8 keep too many sums for blocks of a long k; smaller ones where there would be few.
        (2048, 512, 1024, false, "8x8 of 128x64, 8 deep"),
        (1024, 1024, 1024, false, "8x4 of 128x64, 16 deep"),
        (2048, 2048, 2048, true, "8x4 of 128x64, 16 deep"),
        (64, 64, 512, false, "4x4 of 32x32, 16 deep"),
        // A large device wants k in parts, so that all of it is busy.
        (64, 1536, 1536, false, "10 parts of 160, 8x4 of 64x64, 16 deep"),
        (8, 1536, 1536, false, "3 parts of 512, 8x4 by 16 lanes"),
        (1, 1536, 1536, false, "3 parts of 512, 1x4 by 16 lanes"),
        (8, 1536, 1536, true, "8x4 by 64 lanes"),
        (1, 1536, 1536, true, "1x4 by 64 lanes"),
        (3, 512, 512, true, "4x4 by 64 lanes"),
        (1, 128, 512, false, "1x4"),
    ] {
        let large = GpuTarget { full_groups: 500, ..target(Threads::Cooperative) };
        assert_eq!(told_by(m, k, n, transposed, &large), format!("{expect}: default for hardware"));
    }
    // What starts 64 workgroups is enough for a small one.
    let small = GpuTarget { full_groups: 64, ..target(Threads::Cooperative) };
    for (m, k, n) in [(1024, 4096, 1024), (64, 1536, 1536), (512, 4096, 256)] {
        let told = told_by(m, k, n, false, &small);
        assert!(!told.contains("parts"), "{m}×{k}×{n}: {told}");
    }
    assert!(reported(1, 70_000, 8, false, Threads::Independent).starts_with("32 parts of 2192, 1x4: "));
}

#[test]
fn what_tuning_found_is_used_where_it_fits() {
    let reported = |name: &str, n: usize| {
        let plan = plan(&[&product(8, 64, n, (false, true), DType::F32)]);
        let matmul = plan.launches[0].args.matmul.as_ref().expect("a product");
        let class = Class::of(matmul, [DType::F32.into(); 2]).expect("it is tuned");
        let mut tuned = Tuned::default();
        tuned.by_class.insert(class, (named(name).expect("it is in the table"), "2026-11-16".to_string()));
        let target = GpuTarget { tuned: Arc::new(tuned), ..target(Threads::Independent) };
        GpuSchedule::new(&plan.launches[0], &plan.slots, &target).variant().expect("products have variants")
    };
    assert_eq!(reported("2x4", 64), "2x4: tuned 2026-11-16");
    assert_eq!(reported("4x4 of 32x32, 16 deep", 64), "4x4 of 32x32, 16 deep: tuned 2026-11-16");
    // Fours of columns need four columns.
    assert_eq!(reported("2x4", 3), "4x1: default for drivers that run on the CPU");
}

#[test]
fn a_product_and_what_follows_it_in_any_tile() {
    for (m, k, n) in [(1, 64, 64), (5, 5, 6), (4, 4096, 8), (256, 16, 512)] {
        let x = product(m, k, n, (false, false), DType::F32);
        let y = (x + data([n], DType::F32)).gelu() * 0.5 + data([m, n], DType::F32);
        check(&[&y]);
    }
}

#[test]
fn few_results_of_long_sums_are_shared_out() {
    let plan = plan(&[&product(8, 70_000, 8, (false, false), DType::F32)]);
    let program = program(&plan.launches[0], &plan.slots, &target(Threads::Independent));
    assert_eq!(program.passes.len(), 2);
    // Eight invocations in a group; both of two cores have several.
    assert!(program.passes[0].n_groups >= 8);
}

/// A loop around the loop over k makes llvmpipe read memory a tenth slower. Parts of k need none, where their sums are few.
#[test]
fn a_subgroup_takes_blocks_of_k_only_where_results_are_many_and_k_is_long() {
    let with_subgroups = GpuTarget { subgroup: Some(8), ..target(Threads::Independent) };
    for (m, k, n_passes, has_blocks) in
        [(32, 2048, 1, false), (128, 2046, 1, false), (128, 2052, 2, false), (1024, 2052, 1, true)]
    {
        let plan = plan_on(&[&product(m, k, 512, (false, false), DType::F32)], &with_subgroups);
        let passes = passes(&plan, &with_subgroups);
        assert!(passes[0].text.contains("subgroupBroadcast"));
        assert_eq!((passes.len(), passes[0].text.contains("var block")), (n_passes, has_blocks), "m = {m}, k = {k}");
    }
}
