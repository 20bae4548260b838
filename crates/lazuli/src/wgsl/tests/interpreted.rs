//! Every form of kernel, run by an interpreter instead of a driver and compared with what the CPU makes of the same
//! expression and, where it is floats, with the f64 oracle of the graph: on devices of several kinds, and on one whose limits
//! are so tiny that all that is cut is cut.

use half::{bf16, f16};

use super::simulator::{self, Piece};
use super::*;
use crate::autograd::tests::oracle;
use crate::blocks::BlockFormat;
use crate::graph::Op;
use crate::keep;
use crate::plan::SlotKind;
use crate::target::variants::{Cols, L1X4, L8X4, L8X4B, L8X4Q};

/// Devices by name. The last one takes few elements of anything.
fn devices() -> [(&'static str, GpuTarget); 4] {
    let software = GpuTarget { subgroup: Some(8), ..target(Threads::Independent) };
    let minimum =
        GpuTarget { max_bindings: 8, large_shaders: false, max_iterations: 4096, ..target(Threads::Cooperative) };
    let tiny = GpuTarget {
        max_binding_bytes: 1 << 10,
        max_invocations: 32,
        max_iterations: 150,
        large_shaders: false,
        ..target(Threads::Cooperative)
    };
    [("software", software), ("hardware", target(Threads::Cooperative)), ("minimum", minimum), ("tiny", tiny)]
}

/// Limits under which a few hundred elements are many.
fn small_limits() -> Limits {
    Limits { max_reduce: 256, max_piece: 64, max_column: 32, min_rows: 8, ..limits() }
}

/// Runs the plans of an expression on every device and compares what comes out.
#[track_caller]
fn check_run(outputs: &[&Tensor]) {
    check_run_on(outputs, &devices());
}

#[track_caller]
fn check_run_on(outputs: &[&Tensor], devices: &[(&str, GpuTarget)]) {
    let exact = outputs.iter().map(|output| exact(output)).collect();
    check_run_with(outputs, devices, exact);
}

/// What the f64 oracle makes of a tensor of floats, rounded to what it is stored as; None for integers, which it does not wrap, and for what depends on a hash,
/// which is made of integers that do.
fn exact(output: &Tensor) -> Option<Vec<f64>> {
    let node = output.node().expect("a good tensor");
    let lock = node.device.cache().lock();
    let captured = capture(&[node], &[]);
    let is_hash = |node: &NodeRef| {
        let computes = node.with_expr(|expr| matches!(expr.op, Op::Binary(_) | Op::Unary(_))).unwrap_or(false);
        computes && matches!(node.dtype, DType::U32 | DType::U8)
    };
    let is_exact = node.dtype.is_float() && !captured.nodes.iter().any(is_hash);
    captured.recycle();
    drop(lock);
    let stored = |x: f64| match node.dtype {
        DType::F16 => f16::from_f64(x).to_f64(),
        DType::BF16 => bf16::from_f64(x).to_f64(),
        _ => x as f32 as f64,
    };
    is_exact.then(|| oracle::with_leaves(&[], |_, _| ()).value(output).into_iter().map(stored).collect())
}

/// The same beside what is known of each output.
#[track_caller]
fn check_run_with(outputs: &[&Tensor], devices: &[(&str, GpuTarget)], exact: Vec<Option<Vec<f64>>>) {
    let nodes: Vec<&NodeRef> = outputs.iter().map(|t| t.node().expect("a good tensor")).collect();
    let cpu = nodes[0].device.clone();
    let (graph, constants, inputs) = {
        let _lock = cpu.cache().lock();
        let captured = capture(&nodes, &[]);
        let graph = captured.graph();
        let inputs: Vec<Vec<u8>> = captured.leaves.iter().map(|leaf| bytes(&captured.nodes[*leaf as usize])).collect();
        (graph, captured.constants().to_vec(), inputs)
    };
    let mut runs: Vec<(&str, Vec<Vec<u8>>)> = Vec::new();
    for (name, target) in devices {
        for limits in [limits(), small_limits()] {
            let planned = Target { limits: limits.within(target), machine: Machine::Gpu(target.clone()) };
            let plan = compile(graph.clone(), &planned);
            runs.push((*name, interpret(&plan, &constants, &inputs, target)));
        }
    }
    for (idx, output) in outputs.iter().enumerate() {
        let output = output.compute().expect("computed on the CPU");
        let node = output.node().expect("a good tensor");
        let on_cpu = numbers(node.dtype, &bytes(node));
        let wanted = [("on the CPU", Some(&on_cpu)), ("exactly", exact[idx].as_ref())];
        let each = runs.iter().flat_map(|run| wanted.map(|(by, want)| (run, by, want)));
        for ((name, results), by, want) in each {
            let Some(want) = want else { continue };
            let got = numbers(node.dtype, &results[idx]);
            let tolerance = match node.dtype {
                DType::F32 => 1e-5,
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                _ => 0.0,
            };
            for (i, (want, got)) in want.iter().zip(&got).enumerate() {
                let is_same = want == got || (want.is_nan() && got.is_nan());
                let is_near = (want - got).abs() <= tolerance * want.abs().max(1.0);
                assert!(is_same || is_near, "{name}: output {idx}, element {i}: {got}, {by} {want}");
            }
        }
    }
}

/// The bytes of a tensor in memory.
fn bytes(node: &NodeRef) -> Vec<u8> {
    let mut bytes = vec![0; node.shape.n_elems() * node.dtype.size()];
    let buffer = node.buffer().expect("in memory");
    node.device.backend().download(&buffer, &mut bytes).expect("on the CPU");
    bytes
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let four = |b: &[u8]| [b[0], b[1], b[2], b[3]];
    let number = |b: &[u8]| match dtype {
        DType::F32 => f32::from_le_bytes(four(b)) as f64,
        DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::I32 => i32::from_le_bytes(four(b)) as f64,
        DType::U32 => u32::from_le_bytes(four(b)) as f64,
        DType::U8 | DType::Bool => b[0] as f64,
    };
    bytes.chunks(dtype.size()).map(number).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |b: &[u8]| b.iter().rev().fold(0, |word, b| word << 8 | *b as u32);
    bytes.chunks(4).map(word).collect()
}

/// What the outputs of a plan hold when all its passes have run.
fn interpret(plan: &Plan, constants: &[u32], inputs: &[Vec<u8>], target: &GpuTarget) -> Vec<Vec<u8>> {
    let slot = |slot: &Slot| match slot.kind {
        SlotKind::Input { idx, .. } => {
            let mut words = words(&inputs[idx as usize]);
            words.resize(slot.size_bytes.div_ceil(4).max(1), 0);
            Piece::of(words)
        }
        SlotKind::Output | SlotKind::Temp => Piece::unknown(slot.size_bytes.div_ceil(4).max(1)),
    };
    let mut pieces: Vec<Piece> = plan.slots.iter().map(slot).collect();
    let status = pieces.len();
    let words_of_checks = plan.checks.iter().flat_map(|_| [0, u32::MAX]);
    pieces.push(Piece::of([0, 0].into_iter().chain(words_of_checks).collect()));
    for launch in &plan.launches {
        let program = program(launch, &plan.slots, target);
        pieces.truncate(status + 1);
        pieces.extend(program.scratch.iter().map(|n_bytes| Piece::unknown(n_bytes / 4)));
        for pass in &program.passes {
            verify(pass, target).unwrap_or_else(|fault| panic!("{fault}\n{}", pass.text));
            let bound = |bind: &Bind| {
                let piece = match bind.place {
                    PassMemory::Slot(slot) => slot.0 as usize,
                    PassMemory::Scratch(idx) => status + 1 + idx as usize,
                    PassMemory::Status => return (status, 0, pieces[status].words.len()),
                };
                (piece, bind.start / 4, bind.len / 4)
            };
            let bindings: Vec<(usize, usize, usize)> = pass.binds.iter().map(bound).collect();
            let subgroup = target.subgroup.or(target.subgroup_sizes.map(|[_, most]| most));
            simulator::run(pass, constants, &bindings, &mut pieces, subgroup.unwrap_or(1));
        }
    }
    assert_eq!(pieces[status].words[0], 0, "a check has failed");
    let output = |slot: &SlotId| {
        let piece = &pieces[slot.0 as usize];
        piece.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    plan.outputs.iter().map(output).collect()
}

/// Numbers of a normal distribution.
fn random(shape: &[usize], seed: u64) -> Tensor {
    Tensor::randn(shape, seed, &Device::cpu()).compute().expect("enough memory")
}

fn random_of(shape: &[usize], dtype: DType) -> Tensor {
    let x = if dtype.is_float() { random(shape, 5) } else { random(shape, 6).mul(50.0).abs() };
    x.to_dtype(dtype).compute().expect("enough memory")
}

/// Indices below `bound`.
fn indices(shape: &[usize], bound: usize) -> Tensor {
    random(shape, 7).mul(1000.0).abs().to_dtype(DType::I32).rem(bound as i32).compute().expect("enough memory")
}

#[test]
fn maps_compute_what_the_cpu_computes() {
    let (a, b) = (random(&[12, 20], 1), random(&[12, 20], 2));
    check_run(&[&a.add(&b).mul(5.0).exp()]);
    check_run(&[&random(&[3], 1).add(1.0)]);
    check_run(&[&random_of(&[99], DType::U8).add(1)]);
    check_run(&[&(random(&[16, 12], 1) + random(&[12, 16], 2).t())]);
    check_run(&[&(&a + random(&[20], 3)).sin()]);
    check_run(&[&random(&[7, 9], 1).flip(1).add(1.0)]);
    check_run(&[&a.pad(&[(1, 2), (3, 4)], 1).add(1.0)]);
    check_run(&[&random(&[3, 8, 4], 1).permute(&[2, 0, 1]).reshape([12, 8]).add(1.0)]);
    check_run(&[&Tensor::cat(&[&a, &b.exp()], 0).mul(2.0)]);
    check_run(&[&a.index_select(0, &indices(&[6], 12)).add(1.0)]);
    check_run(&[&random_of(&[16, 7], DType::U8).index_select(0, &indices(&[6], 16))]);
    check_run(&[&random_of(&[9, 20], DType::F16).mul(2.0), &random_of(&[99], DType::BF16).exp()]);
    check_run(&[&a.gt(&b).select(a.to_dtype(DType::I32), 7)]);
    check_run(&[&Tensor::arange(0, 100, 1, &Device::cpu()).mul(3)]);
    // Of what was added little is left: the oracle does not round.
    check_run_with(&[&a.add(1e8).sub(1e8).mul(&b).add(&a)], &devices(), vec![None]);
    check_run(&[&a.add(&b), &a.sub(&b)]);
}

#[test]
fn every_row_computes_what_the_cpu_computes() {
    let table = crate::ops::table();
    for dtype in [DType::F32, DType::I32, DType::U8] {
        let (a, b) = (random_of(&[40], dtype), random_of(&[40], dtype).flip(0));
        let taken = |x: &Tensor, taken: DType| x.to_dtype(taken).compute().expect("enough memory");
        for row in &table.unary {
            if let Some(dtype) = row.takes.cast(dtype).filter(|d| row.cpu.get(d.lane()).is_some()) {
                check_run_on(&[&record(Op::Unary(row), &[&taken(&a, dtype)], row.gives.dtype(dtype))], &devices()[..1]);
            }
        }
        for row in &table.binary {
            if let Some(dtype) = row.takes.cast(dtype).filter(|d| row.cpu.get(d.lane()).is_some()) {
                let inputs = [&taken(&a, dtype), &taken(&b, dtype)];
                check_run_on(&[&record(Op::Binary(row), &inputs, row.gives.dtype(dtype))], &devices()[..1]);
            }
        }
    }
}

/// An op on tensors of one shape.
fn record(op: Op, inputs: &[&Tensor], gives: DType) -> Tensor {
    let nodes: Vec<&NodeRef> = inputs.iter().map(|x| x.node().expect("a good tensor")).collect();
    Tensor::record(op, &nodes, nodes[0].shape, gives, std::panic::Location::caller())
}

#[test]
fn reductions_compute_what_the_cpu_computes() {
    for n in [3, 16, 203, 600] {
        let x = random(&[5, n], 1);
        check_run(&[&x.sum(-1)]);
        check_run(&[&x.max(-1), &x.argmax(-1)]);
        check_run(&[&x.softmax(-1)]);
        check_run(&[&x.logsumexp(-1)]);
        check_run(&[&x.layer_norm(-1, Some(&random_of(&[n], DType::F16)), Some(&random(&[n], 3)), 1e-5)]);
    }
    for (rows, cols) in [(50, 64), (70, 10), (40, 33)] {
        let x = random(&[rows, cols], 1);
        check_run(&[&x.sum(0)]);
        check_run(&[&x.softmax(0)]);
        check_run(&[&x.var(0, 1)]);
    }
    check_run(&[&random(&[3, 50, 7], 1).max(1)]);
    check_run(&[&random(&[3000], 1).square().sum(..).sqrt()]);
    check_run(&[&random(&[12, 20], 1).pad(&[(1, 1), (2, 3)], 1).sum(-1)]);
    check_run(&[&random(&[30, 50], 1).index_select(0, &indices(&[6], 30)).sum(-1)]);
    check_run(&[&random(&[4, 6, 5, 7], 1).permute(&[0, 2, 1, 3]).sum([1, 3])]);
    check_run(&[&random_of(&[20, 130], DType::U8).sum(-1), &random_of(&[20, 130], DType::U8).max(0)]);
    check_run(&[&random_of(&[64, 128], DType::F16).to_dtype(DType::F32).sum(0)]);
}

#[test]
fn rows_at_positions_compute_what_the_cpu_computes() {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        // Larger than all windows of a tiny device, and with rows that are no multiple of four.
        let (x, y) = (random_of(&[200, 30], dtype), random_of(&[3, 256, 12], dtype));
        for position in [0, 7, 197] {
            check_run(&[&x.write_rows(0, position, &random_of(&[3, 30], dtype))]);
            check_run(&[&x.rows_at(0, position, 3).add(&random_of(&[3, 30], dtype))]);
            check_run(&[&y.write_rows(1, position, &random_of(&[3, 1, 12], dtype))]);
            check_run(&[&y.rows_at(1, position, 2).sum(0)]);
        }
        check_run(&[&x.write_rows(1, 5, &random_of(&[200, 2], dtype)), &x.rows_at(1, 3, 4).max(1)]);
    }
    let products = random(&[2, 12], 1).matmul(&random(&[12, 40], 2));
    check_run(&[&random(&[64, 40], 3).write_rows(0, 33, &products)]);
    check_run(&[&random(&[64, 40], 3).write_rows(0, 33, &random(&[2, 40, 300], 2).sum(-1))]);
    check_run(&[&random(&[64, 40], 3).rows_at(0, 9, 20).pad(&[(1, 1), (2, 0)], 1)]);
}

#[test]
fn matmuls_compute_what_the_cpu_computes() {
    let product = |m: usize, k: usize, n: usize| random(&[m, k], 1).matmul(&random(&[k, n], 2));
    for (m, k, n) in [(8, 16, 12), (1, 40, 36), (17, 13, 21), (2, 700, 4), (3, 5, 2), (33, 20, 40)] {
        check_run(&[&product(m, k, n)]);
    }
    check_run(&[&random(&[12, 16], 1).matmul(&random(&[20, 16], 2).t())]);
    check_run(&[&random(&[16, 12], 1).t().matmul(&random(&[16, 20], 2))]);
    check_run(&[&random(&[3, 2, 8, 16], 1).matmul(&random(&[2, 16, 12], 2))]);
    check_run(&[&random_of(&[5, 6], DType::I32).matmul(&random_of(&[6, 7], DType::I32))]);
    let bias = product(12, 16, 20) + random(&[20], 3);
    check_run(&[&bias]);
    check_run(&[&(0..12).fold(bias.clone(), |x, i| x.mul(0.5 + i as f64).tanh())]);
}

#[test]
fn blocks_are_widened_as_the_cpu_widens_them() {
    for format in BlockFormat::all() {
        let dims = [19, format.block_len()];
        let w = blocks(format, dims);
        check_run(&[&w.add(1.0), &w.narrow(0, 2, 5).t().mul(2.0)]);
        check_run(&[&w.index_select(0, &Tensor::from_slice(&[17u32, 3], [2], &Device::cpu()))]);
        // Fours of columns are read in vectors, those left over and transposed weights as maps read them.
        check_run(&[&random(&[2, dims[1]], 1).matmul(&w.t())]);
        check_run(&[&random(&[3, dims[0]], 1).matmul(&w).relu()]);
    }
}

/// Weights of random codes, with scales that are not all the same.
fn blocks(format: &'static BlockFormat, dims: [usize; 2]) -> Tensor {
    let n_bytes = dims[0] * dims[1] / format.block_len() * format.block_bytes();
    let mut bytes: Vec<u8> = (0..n_bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (i, block) in bytes.chunks_mut(format.block_bytes()).enumerate() {
        for at in [Some(format.scale_at()), format.offset_at()].into_iter().flatten() {
            // Integers of sub-blocks multiply it.
            let unit = if format.block_len() == 32 { 1e-3 } else { 1e-5 };
            let scale = f16::from_f32(unit * (1 + (i + at) % 7) as f32);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Tensor::from_blocks(format, &bytes, dims, &Device::cpu())
}

/// In vectors or not: a part that starts within a block, or at a row that is no multiple of four, is read otherwise.
#[test]
fn every_variant_reads_every_block_format() {
    for format in BlockFormat::all() {
        let w = blocks(format, [44, 256]);
        let x = random(&[17, 256], 1);
        let parts = [
            x.matmul(&w.t()),
            random(&[9, 256], 2).matmul(&w.narrow(0, 4, 37).t()),
            x.narrow(1, 0, 128).matmul(&w.narrow(1, 128, 128).t()),
            x.narrow(0, 0, 5).narrow(1, 0, 64).matmul(&w.narrow(0, 3, 20).narrow(1, 16, 64).t()),
            random(&[2, 3, 256], 3).matmul(&w.narrow(0, 0, 40).reshape([2, 20, 256]).transpose(1, 2)),
        ];
        let is_odd = |variant: &&Variant| variant.cols == Cols::One;
        for (i, variant) in VARIANTS.into_iter().filter(|variant| !is_odd(variant)).enumerate() {
            let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
            let style = if i % 2 == 0 { Threads::Cooperative } else { Threads::Independent };
            let target = GpuTarget { tuned, subgroup: Some(8), ..target(style) };
            // Formats differ in how they are widened, parts in how they are read: one of each is enough.
            let y = &parts[i % parts.len()];
            check_run_on(&[y], &[(&format!("{format}, {}, part {}", variant.name, i % parts.len()), target)]);
        }
    }
}

/// Half floats in all four layouts, of which vectors hold eight.
#[test]
fn every_variant_reads_half_floats() {
    for (m, k, n) in [(17, 64, 40), (9, 70, 36)] {
        // Others read them as they read floats.
        for variant in VARIANTS.into_iter().filter(|v| v.name.contains("deep") || v.name.contains("lanes")) {
            let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
            let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
            let half =
                |shape: &[usize], seed: u64| random(shape, seed).to_dtype(DType::F16).compute().expect("computed");
            let [a, b] = [half(&[m, k], 1), half(&[k, n], 2)];
            let [at, bt] = [half(&[k, m], 1).t(), half(&[n, k], 2).t()];
            for y in [a.matmul(&b), a.matmul(&bt), at.matmul(&b), at.matmul(&bt)] {
                check_run_on(&[&y], &[(variant.name, target.clone())]);
            }
        }
    }
}

#[test]
fn every_variant_of_a_matmul_computes_what_the_cpu_computes() {
    // Steps that no tile of a workgroup leaves over, some that all do, and less than any.
    for (m, k, n) in [(33, 64, 36), (33, 70, 36), (20, 9, 17)] {
        for variant in VARIANTS.into_iter().filter(|variant| k != 64 || variant.name.contains("deep")) {
            let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
            let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
            for y in
                [random(&[m, k], 1).matmul(&random(&[k, n], 2)), random(&[k, m], 1).t().matmul(&random(&[n, k], 2).t())]
            {
                check_run_on(&[&y], &[(variant.name, target.clone())]);
            }
        }
    }
}

/// Windows of images and their gradients: lists of axes along k and across.
#[test]
fn every_tile_of_windows_computes_what_the_cpu_computes() {
    let options = crate::Conv { stride: [1, 2].into(), padding: 1.into(), ..crate::Conv::default() };
    let (x, weight) = (random(&[2, 4, 5, 8], 1).tracked(), random(&[8, 4, 3, 3], 2).tracked());
    let y = x.conv(&weight, None, options);
    let mut outputs = y.vjp(&[&x, &weight], &random(y.shape().expect("fits"), 3));
    outputs.push(y);
    for variant in VARIANTS.into_iter().filter(|variant| variant.name.contains("deep")) {
        let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
        let target = GpuTarget { tuned, ..target(Threads::Cooperative) };
        for y in &outputs {
            check_run_on(&[y], &[(variant.name, target.clone())]);
        }
    }
}

#[test]
fn windows_compute_what_the_cpu_computes_on_every_device() {
    let options = crate::Conv { stride: [2, 1].into(), padding: 1.into(), ..crate::Conv::default() };
    check_run(&[&random(&[2, 3, 6, 7], 1).conv(&random(&[5, 3, 3, 2], 2), Some(&random(&[5], 3)), options).relu()]);
}

#[test]
fn commits_compute_what_the_cpu_computes() {
    let (old, table) = (random(&[6, 9], 1), random(&[20, 9], 2));
    let rows = table.index_select(0, &indices(&[6], 20));
    check_run(&[&rows.mul(2.0), &old.add(&rows).unless_failed(&old)]);
    let sums = old.matmul(&random(&[9, 9], 3)).unless_failed(&old);
    check_run(&[&sums, &rows.sum(-1)]);
}

#[test]
fn custom_ops_compute_what_the_cpu_computes() {
    let cpu = |x: &[f32]| x[0] * x[0] + x[1];
    let op = crate::CustomOp { name: "bent".into(), wgsl: "($0 * $0 + $1)".into(), cpu: Arc::new(cpu), grad: None };
    let bent = Tensor::map_custom(&op, &[&random(&[7, 12], 1).add(1.0), &random(&[12], 2)]);
    check_run(&[&bent.mul(0.5), &bent.sum(-1)]);
}

/// Plain, masked, biased, capped, with heads that share keys, of many shapes; and the gradients, whose scores are turned and
/// made of two products.
#[test]
fn grouped_products_compute_what_the_cpu_computes() {
    let grouped = |k: usize, n: usize| {
        let (x, w) = (random(&[19, k], 1), random(&[n, k], 3));
        let first = x.matmul(&random(&[k, n], 2)).add(&random(&[n], 4));
        [first, x.matmul(&w.t()).mul(0.5), x.matmul(&random(&[k, n + 4], 5)).relu()]
    };
    let check = |outputs: [Tensor; 3], devices: &[(&str, GpuTarget)]| check_run_on(&outputs.each_ref(), devices);
    // With columns that fours leave over each product is dispatched by itself.
    for (k, n) in [(16, 12), (21, 13)] {
        check(grouped(k, n), &devices());
    }
    for variant in VARIANTS {
        let tuned = Arc::new(Tuned { forced: Some(variant), ..Tuned::default() });
        let target = GpuTarget { tuned, subgroup: Some(8), ..target(Threads::Cooperative) };
        check(grouped(24, 16), &[(variant.name, target)]);
    }
}

#[test]
fn attention_computes_what_the_cpu_computes() {
    use crate::Attention;
    // One block of scores takes more iterations than others of a device that makes so few.
    let devices =
        devices().map(|(name, target)| (name, GpuTarget { max_iterations: target.max_iterations.max(1500), ..target }));
    for (l, s, d, p) in [(5, 12, 8, 8), (9, 21, 3, 5), (1, 40, 4, 12), (3, 2, 1, 1)] {
        let (q, k, v) = (random(&[2, l, d], 1), random(&[2, s, d], 2), random(&[2, s, p], 3));
        let of = |options: Attention| q.attention(&k, &v, options);
        let plain = Attention::default();
        check_run_on(&[&of(plain)], &devices);
        check_run_on(&[&of(Attention { causal: true, soft_cap: Some(2.0), scale: Some(0.4), ..plain })], &devices);
        check_run_on(&[&of(Attention { causal: true, window: Some(3), ..plain })], &devices);
        let (mask, bias) = (random(&[l, s], 4).gt(0.2).compute().unwrap(), random(&[2, l, s], 5));
        check_run_on(&[&of(Attention { mask: Some(&mask), bias: Some(&bias), ..plain })], &devices);
        check_run_on(&[&of(Attention { dropout: 0.3, seed: 3, ..plain })], &devices);
        let y = of(Attention { causal: true, soft_cap: Some(2.0), ..plain });
        let grads = y.square().sum(..).grad(&[&q, &k, &v]);
        check_run_on(&[&grads[0], &grads[1], &grads[2]], &devices);
    }
    let (q, k) = (random(&[6, 7, 8], 1), random(&[2, 9, 8], 2));
    check_run_on(&[&q.attention(&k, &k, Attention::default())], &devices);
    let halves = [q, k].map(|x| x.to_dtype(DType::F16).compute().unwrap());
    check_run_on(
        &[&halves[0].attention(&halves[1], &halves[1], Attention { causal: true, ..Attention::default() })],
        &devices,
    );
}

/// As many rows as a workgroup takes at most, and values behind a mask that are not finite: no row but the last sees them.
#[test]
fn attention_of_many_rows_hides_values_that_are_not_finite() {
    let (q, k) = (random(&[65, 8], 1), random(&[65, 8], 2));
    let last = Tensor::from_vec(vec![f32::NAN, f32::INFINITY, 1.0, f32::NEG_INFINITY], [1, 4], &Device::cpu());
    let options = crate::Attention { causal: true, ..crate::Attention::default() };
    let hardware = [("hardware", target(Threads::Cooperative))];
    for v in [random(&[65, 4], 3), Tensor::cat(&[&random(&[64, 4], 3), &last], 0).compute().unwrap()] {
        // As a product the oracle makes NaN of 0 · NaN.
        check_run_with(&[&q.attention(&k, &v, options)], &hardware, vec![None]);
    }
}

#[test]
fn routines_compute_what_the_cpu_computes() {
    let x = random(&[3, 300, 2], 1);
    check_run(&[&x.cumsum(1)]);
    check_run(&[&random_of(&[500], DType::F16).cumsum(0)]);
    check_run(&[&x.sort(1, false)]);
    check_run(&[&random_of(&[2, 150], DType::I32).argsort(1, true)]);
    check_run(&[&random(&[30], 1).scatter_add(0, &indices(&[200], 30), &random(&[200], 2))]);
    let (to, from) = (random_of(&[4, 9], DType::U8), random_of(&[4, 150], DType::U8));
    check_run(&[&to.scatter_add(1, &indices(&[4, 150], 9), &from)]);
}

#[test]
fn reductions_by_subgroups_of_any_size_compute_what_the_cpu_computes() {
    // The interpreter's subgroups are the largest that a device may have.
    let hardware = [[4, 128], [32, 64], [64, 64]].map(|sizes| (Threads::Cooperative, sizes));
    let software = [[4, 4], [8, 8]].map(|sizes| (Threads::Independent, sizes));
    let devices: Vec<(&str, GpuTarget)> = (hardware.into_iter().chain(software))
        .map(|(style, sizes)| ("subgroups", GpuTarget { subgroup_sizes: Some(sizes), ..target(style) }))
        .collect();
    // A row a subgroup, several rows a workgroup, a row by all of it; whole fours and others.
    for shape in [[130, 132], [40, 70], [9, 4100], [3, 1026]] {
        let x = random(&shape, 1);
        check_run_on(&[&x.softmax(-1)], &devices);
        check_run_on(&[&x.square().sum(-1), &x.max(-1), &x.square().mean(keep(-1)).add(&x)], &devices);
    }
    check_run_on(&[&random(&[3000, 5], 1).square().sum(0), &random(&[5000], 2).square().sum(..)], &devices);
    check_run_on(&[&random(&[5, 1500], 3).argmax(-1), &random_of(&[3, 1200], DType::U8).max(-1)], &devices);
}

/// A device whose subgroups have these sizes, and which makes every product that it fits by this variant, if there is one.
fn with_subgroups(sizes: [usize; 2], forced: Option<&'static Variant>) -> GpuTarget {
    let tuned = Arc::new(Tuned { forced, ..Tuned::default() });
    GpuTarget { subgroup_sizes: Some(sizes), tuned, ..target(Threads::Cooperative) }
}

/// Subgroups that hold all invocations of a tile, some of them, and none beside another; whole fours and others; half floats
/// and blocks, which are read otherwise.
#[test]
fn products_of_few_rows_by_subgroups_of_any_size_compute_what_the_cpu_computes() {
    let (a, b) = (random(&[9, 262], 1), random(&[262, 36], 2));
    let half = |x: &Tensor| x.to_dtype(DType::F16).compute().expect("computed");
    let q8 = blocks(BlockFormat::named("Q8_0").expect("it is known"), [44, 256]);
    let products =
        [a.matmul(&b), half(&a).matmul(&half(&random(&[36, 262], 3)).t()), random(&[5, 256], 4).matmul(&q8.t())];
    for (i, variant) in VARIANTS.into_iter().filter(|variant| variant.name.contains("lanes")).enumerate() {
        for (j, sizes) in [[4, 32], [8, 8], [16, 16], [32, 64], [64, 64], [128, 128]].into_iter().enumerate() {
            let y = &products[(i + j) % products.len()];
            check_run_on(
                &[y],
                &[(&format!("{}, subgroups of {sizes:?}", variant.name), with_subgroups(sizes, Some(variant)))],
            );
        }
    }
    let grouped = [a.matmul(&b), a.matmul(&random(&[262, 36], 5)).relu()];
    check_run_on(&grouped.each_ref(), &[("grouped", with_subgroups([32, 64], Some(&L8X4B)))]);
}

#[test]
fn attention_by_subgroups_of_any_size_computes_what_the_cpu_computes() {
    let devices = [[2, 4], [4, 32], [8, 8], [32, 64]].map(|sizes| ("subgroups", with_subgroups(sizes, None)));
    // Eight invocations share a row, and where there are few rows, 32 do.
    for (l, s, d, p) in [(65, 70, 8, 8), (9, 21, 3, 5), (1, 140, 4, 12)] {
        let (q, k, v) = (random(&[2, l, d], 1), random(&[2, s, d], 2), random(&[2, s, p], 3));
        check_run_on(&[&q.attention(&k, &v, crate::Attention::default())], &devices);
    }
}

/// What a device makes of a tensor.
fn made_on(output: &Tensor, target: &GpuTarget) -> Vec<Vec<u8>> {
    let nodes = [output.node().expect("a good tensor")];
    let plan = plan_on(&[output], target);
    let cpu = nodes[0].device.clone();
    let _lock = cpu.cache().lock();
    let captured = capture(&nodes, &[]);
    let inputs: Vec<Vec<u8>> = captured.leaves.iter().map(|leaf| bytes(&captured.nodes[*leaf as usize])).collect();
    interpret(&plan, captured.constants(), &inputs, target)
}

#[test]
fn how_large_subgroups_turn_out_to_be_changes_no_bit() {
    let x = random(&[130, 1024], 1);
    let made = |output: &Tensor, sizes: [usize; 2]| made_on(output, &with_subgroups(sizes, None));
    let softmax = x.softmax(-1);
    assert_eq!(made(&softmax, [32, 32]), made(&softmax, [32, 64]));
    let (row, w, stored) = (random(&[3, 1024], 2), random(&[1024, 64], 3), random(&[64, 1024], 4));
    for product in [row.matmul(&w), row.matmul(&stored.t())] {
        assert_eq!(made(&product, [32, 32]), made(&product, [32, 64]));
    }
    let [q, k, v] = [5, 6, 7].map(|seed| random(&[1, 40, 16], seed));
    let attention = q.attention(&k, &v, crate::Attention::default());
    assert_eq!(made(&attention, [4, 4]), made(&attention, [4, 32]));
}

/// A fold that fits the smallest subgroup needs no barrier; others need one, and attention two for each kind of fold.
#[test]
fn what_one_subgroup_folds_meets_no_barrier() {
    let n_barriers = |output: &Tensor, target: &GpuTarget| -> usize {
        let all = passes(&plan_on(&[output], target), target);
        all.iter().map(|pass| pass.text.matches("workgroupBarrier").count()).sum()
    };
    let products = |variant: &'static Variant, sizes: Option<[usize; 2]>| {
        let target = GpuTarget { subgroup_sizes: sizes, ..with_subgroups([64, 64], Some(variant)) };
        n_barriers(&data([8, 512], DType::F32).matmul(&data([64, 512], DType::F32).t()), &target)
    };
    for variant in [&L1X4, &L8X4] {
        let sizes = [None, Some([8, 32]), Some([32, 64]), Some([64, 64])];
        assert_eq!(sizes.map(|sizes| products(variant, sizes)), [7, 1, 1, 0], "{}", variant.name);
    }
    // Sixteen invocations share a tile, each beside fifteen others.
    assert_eq!([None, Some([8, 32]), Some([32, 64])].map(|sizes| products(&L8X4B, sizes)), [11, 11, 1]);
    assert_eq!([None, Some([2, 2]), Some([32, 64])].map(|sizes| products(&L8X4Q, sizes)), [15, 15, 1]);
    let softmax = data([130, 1024], DType::F32).softmax(-1);
    assert_eq!(n_barriers(&softmax, &with_subgroups([32, 64], None)), 0);
    let q = data([1, 64, 16], DType::F32);
    let attention = q.attention(&q, &q, crate::Attention::default());
    let by = |sizes: [usize; 2]| n_barriers(&attention, &with_subgroups(sizes, None));
    let without = n_barriers(&attention, &target(Threads::Cooperative));
    assert_eq!([without - by([4, 4]), without - by([8, 8]), without - by([32, 64])], [0, 4, 4]);
}

/// What hardware brings with one load: vectors of 16 bytes that lie side by side, or in the same 64 bytes, for as many
/// invocations as is said. Of a tile of a workgroup, a few steps of each column are brought at a time.
#[test]
fn neighbours_read_neighbouring_vectors_of_a_weight() {
    let large = GpuTarget { full_groups: 500, max_invocations: 256, ..target(Threads::Cooperative) };
    let half = |shape: [usize; 2]| data(shape, DType::F16);
    let stored = |name: &str, [n, k]: [usize; 2]| {
        let format = BlockFormat::named(name).expect("it is known");
        let bytes = vec![0; n * k / format.block_len() * format.block_bytes()];
        Tensor::from_blocks(format, &bytes, [n, k], &Device::cpu()).t()
    };
    for m in [1, 8, 64] {
        for size in [1536, 4096].into_iter().filter(|size| m == 1 || *size == 1536) {
            let x = data([m, size], DType::F32);
            let dims = [size, size];
            let mut cases = vec![
                ("f32 [k, n]", x.matmul(&data(dims, DType::F32)), [16, 8]),
                ("f32 [n, k]", x.matmul(&data(dims, DType::F32).t()), [64, 4]),
                ("f16 [k, n]", half([m, size]).matmul(&half(dims)), [16, 8]),
                ("f16 [n, k]", half([m, size]).matmul(&half(dims).t()), [64, 2]),
            ];
            // As many as vectors of codes that a tile of 16 rows has; of a workgroup's tile, of its 16 steps.
            let of_blocks = [("Q8_0", [32, 16]), ("Q4_1", [16, 8]), ("Q6_K", [128, 8]), ("Q2_K", [64, 4])];
            cases.extend(of_blocks.map(|(name, side_by_side)| (name, x.matmul(&stored(name, dims)), side_by_side)));
            for (what, y, [of_few, of_tile]) in cases {
                let plan = plan_on(&[&y], &large);
                let launch = &plan.launches[0];
                let program = program(launch, &plan.slots, &large);
                let pass = &program.passes[0];
                let workgroup: usize = pass
                    .text
                    .split("@workgroup_size(")
                    .nth(1)
                    .and_then(|text| text.split(')').next())
                    .and_then(|n| n.parse().ok())
                    .expect("a number");
                let n_invocations = workgroup * pass.n_groups;
                assert!(pass.n_groups >= 500 || n_invocations >= 16_384, "{m}×{size}², {what}: {n_invocations}");
                if size == 4096 {
                    // Sizes are no part of the text, and this matrix would take a gigabyte here.
                    continue;
                }
                let mut pieces: Vec<Piece> = pass.binds.iter().map(|bind| Piece::of(vec![0; bind.len / 4])).collect();
                let bindings: Vec<(usize, usize, usize)> =
                    pass.binds.iter().enumerate().map(|(i, bind)| (i, 0, bind.len / 4)).collect();
                let constants = vec![0; pass.consts.iter().map(|c| *c as usize + 1).max().unwrap_or(0)];
                let reads = simulator::run_groups(pass, &constants, &bindings, &mut pieces, 1, 0..1);
                let weight = || reads.iter().filter(|read| read.name == "in1");
                assert!(weight().next().is_some(), "{m}×{size}², {what}: no weight is read");
                let side_by_side = if m <= 8 { of_few } else { of_tile };
                for read in weight() {
                    assert_eq!(read.n_words, 4, "{m}×{size}², {what}: a load of {} words", read.n_words);
                    let is_far = |pair: &&[u32]| pair[0].abs_diff(pair[1]) > 16;
                    let n_far = read.at.windows(2).filter(is_far).count();
                    assert!(
                        n_far <= read.at.len() / side_by_side,
                        "{m}×{size}², {what}: {} invocations read {} pieces",
                        read.at.len(),
                        n_far + 1
                    );
                }
            }
        }
    }
}
