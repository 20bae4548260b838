//! Contractions against sums one element at a time.

use super::*;
use crate::cpu::gemm;
use crate::kernel::{AxisList, AxisParts, MatmulArgs, OperandArgs, Panels};
use crate::ops::*;

/// Which way an operand lies.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    Rows,
    Columns,
    /// With gaps between rows and between columns.
    Apart,
}

fn operand(batch: &[usize], rows: usize, cols: usize, lies: Lies, shared: bool) -> (OperandArgs, usize) {
    let mut batch_strides = vec![0; batch.len()];
    let mut step = (rows * cols) as isize * if lies == Lies::Apart { 6 } else { 1 };
    if !shared {
        for axis in (0..batch.len()).rev() {
            batch_strides[axis] = step;
            step *= batch[axis] as isize;
        }
    }
    let (row_stride, col_stride) = match lies {
        Lies::Rows => (cols as isize, 1),
        Lies::Columns => (1, rows as isize),
        Lies::Apart => (3 * cols as isize, 2),
    };
    let batch = batch.iter().copied().zip(batch_strides);
    (OperandArgs::plain(batch, (rows, row_stride), (cols, col_stride)), step as usize)
}

/// The same with the right operand, one for all, in panels.
fn in_panels(batch: &[usize], shape: [usize; 3], dtype: DType, a: Lies, width: usize) -> (Case, Reg) {
    let [_, k, n] = shape;
    let (mut case, acc) = product(batch, shape, dtype, [a, Lies::Rows], true);
    case.inputs.pop();
    case.body.inputs.pop();
    case.numbers(dtype, n.next_multiple_of(width) * k, 2);
    let args = case.args.matmul.as_mut().unwrap();
    args.b.rows = AxisList::single(k, width as isize);
    args.panels = Some(Panels { width, stride: (k * width) as isize });
    (case, acc)
}

/// A product of `[batch…, m, k]` and `[batch…, k, n]`, its sums in the returned register.
fn product(batch: &[usize], [m, k, n]: [usize; 3], dtype: DType, lies: [Lies; 2], b_shared: bool) -> (Case, Reg) {
    let outer: Vec<usize> = batch.iter().copied().chain([m, n]).collect();
    let mut case = Case::new(&outer, &[], Order::InnerFast);
    case.matmul = true;
    let (a, a_len) = operand(batch, m, k, lies[0], false);
    let (b, b_len) = operand(batch, k, n, lies[1], b_shared);
    case.numbers(dtype, a_len, 1);
    case.numbers(dtype, b_len, 2);
    case.args.matmul = Some(Box::new(MatmulArgs {
        batch: batch.into(),
        m,
        k,
        n,
        a,
        b,
        panels: None,
        k_parts: AxisParts::whole(k),
        made: [None, None],
    }));
    let acc = case.push(InstOp::Acc(0), if dtype == DType::U8 { DType::U32 } else { dtype }, Scope::Outer);
    (case, acc)
}

/// Adds bias per column, a residual, and a clamp at zero.
fn epilogue(case: &mut Case, acc: Reg, dtype: DType) -> Reg {
    let space = case.space();
    let n = space[space.rank() - 1];
    let bias = case.numbers(dtype, n, 7);
    let residual = case.numbers(dtype, space.n_elems(), 8);
    let view = View::broadcast(&Shape::from([n]), &space);
    let (bias, residual) =
        (case.load(bias, view, Scope::Outer), case.load(residual, View::contiguous(space), Scope::Outer));
    let zero = case.constant(dtype, 0.0);
    let y = case.binary(&ADD, acc, bias);
    let y = case.binary(&MAXIMUM, y, zero);
    case.binary(&ADD, y, residual)
}

const SHAPES: [[usize; 3]; 18] = [
    [1, 1, 1],
    [3, 5, 7],
    [1, 300, 500],
    [500, 300, 1],
    [1, 700, 1],
    [64, 64, 64],
    [130, 70, 300],
    [300, 0, 20],
    [2, 1000, 3],
    [257, 33, 10],
    [8, 512, 512],
    [600, 40, 600],
    [2, 300, 400],
    [19, 257, 390],
    [65, 520, 433],
    [9, 1100, 250],
    [26, 1030, 70],
    [203, 515, 341],
];

#[test]
fn sums_alone_and_with_what_follows() {
    for shape in SHAPES {
        for lies in [
            [Lies::Rows, Lies::Rows],
            [Lies::Columns, Lies::Rows],
            [Lies::Rows, Lies::Columns],
            [Lies::Columns, Lies::Columns],
            [Lies::Apart, Lies::Apart],
        ] {
            let (mut case, acc) = product(&[], shape, DType::F32, lies, false);
            case.store_all(acc);
            case.check();
            let (mut case, acc) = product(&[], shape, DType::F32, lies, false);
            let y = epilogue(&mut case, acc, DType::F32);
            case.store_all(y);
            case.check();
        }
    }
}

/// As many parts of k as a plan may ask for: each way to make sums in parts, and ways that leave sums whole otherwise.
#[test]
fn sums_in_parts_of_k() {
    for shape @ [m, k, n] in SHAPES.into_iter().filter(|[m, k, n]| m * k * n <= 1 << 20) {
        for (lies, n_parts) in
            [([Lies::Rows, Lies::Rows], 3), ([Lies::Rows, Lies::Columns], 16), ([Lies::Columns, Lies::Apart], 2)]
        {
            let (mut case, acc) = product(&[2], shape, DType::F32, lies, m > n);
            let args = case.args.matmul.as_mut().unwrap();
            args.k_parts = AxisParts::of_count(k, n_parts);
            let y = epilogue(&mut case, acc, DType::F32);
            case.store_all(y);
            case.check();
        }
    }
}

#[test]
fn what_follows_may_take_sums_as_they_come_by_rows_or_across() {
    for shape @ [m, _, n] in SHAPES {
        let (mut case, acc) = product(&[], shape, DType::F32, [Lies::Rows; 2], false);
        let y = case.binary(&MUL, acc, acc);
        case.store_all(y);
        case.check();
        let (mut case, acc) = product(&[], shape, DType::F32, [Lies::Rows; 2], false);
        let turned = case.numbers(DType::F32, m * n, 7);
        let turned = case.load(turned, View::permute(&Shape::from([n, m]), &[1, 0]), Scope::Outer);
        let y = case.binary(&ADD, acc, turned);
        case.store_all(y);
        case.check();
        let (mut case, acc) = product(&[], shape, DType::F32, [Lies::Rows; 2], false);
        let per_row = case.numbers(DType::F32, m, 7);
        let per_row = case.load(per_row, View::broadcast(&Shape::from([m, 1]), &case.space()), Scope::Outer);
        let y = case.binary(&MUL, acc, per_row);
        case.store_all(y);
        case.store_all(acc);
        case.check();
    }
}

#[test]
fn few_rows_are_right_at_every_edge() {
    for m in [1, 2, 3, 4, 5, 8, 9, 16] {
        for (k, n) in [(0, 5), (2, 64), (15, 17), (129, 63), (257, 129), (1030, 300), (70, 2100)] {
            for b in [Lies::Rows, Lies::Columns] {
                let (mut case, acc) = product(&[], [m, k, n], DType::F32, [Lies::Rows, b], false);
                case.store_all(acc);
                case.check();
            }
        }
    }
}

#[test]
fn panels_of_every_width_are_right_at_every_edge() {
    let widths = gemm::panel_widths();
    for width in (widths.unit..=widths.best).step_by(widths.unit) {
        for m in [1, 2, 5, 6, 7, 13, 33, 140] {
            for (k, n) in [(1, width + 1), (129, 3 * width - 1), (1030, 300)] {
                for a in [Lies::Rows, Lies::Columns] {
                    let (mut case, acc) = in_panels(&[], [m, k, n], DType::F32, a, width);
                    case.store_all(acc);
                    case.check();
                }
            }
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let (mut case, acc) = in_panels(&[], [m, 1030, width + 3], dtype, Lies::Rows, width);
                case.store_all(acc);
                case.check();
                let (mut case, acc) = in_panels(&[2], [m, 70, 2 * width + 3], dtype, Lies::Rows, width);
                let y = epilogue(&mut case, acc, DType::F32);
                case.store_all(y);
                case.check();
            }
        }
    }
}

#[test]
fn lesser_instruction_sets_are_right_too() {
    for isa in ["baseline", "avx2"] {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let tests = ["panels_of_every_width", "few_results_of_many", "few_rows_are_right"];
        again.args(tests).args(["channels_by_themselves", "windows_by_winograd"]);
        let output = again.env("LAZULI_ISA", isa).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("running 7 tests"), "{isa}: {text}");
    }
}

#[test]
fn few_results_of_many_products_are_right() {
    for [m, k, n] in [[1, 9000, 130], [5, 5000, 7], [64, 4100, 20], [150, 2100, 33]] {
        for lies in [[Lies::Rows, Lies::Rows], [Lies::Columns, Lies::Rows], [Lies::Rows, Lies::Columns]] {
            let (mut case, acc) = product(&[], [m, k, n], DType::F32, lies, false);
            let y = epilogue(&mut case, acc, DType::F32);
            case.store_all(y);
            case.check();
        }
        let (mut case, acc) = in_panels(&[], [m, k, n], DType::F32, Lies::Rows, gemm::panel_widths().best);
        case.store_all(acc);
        case.check();
    }
}

#[test]
fn a_residual_may_be_overwritten_by_the_result() {
    for shape in SHAPES {
        let (mut case, acc) = product(&[], shape, DType::F32, [Lies::Rows; 2], false);
        let y = epilogue(&mut case, acc, DType::F32);
        case.store_all(y);
        case.outputs[0].1 = Some(3);
        case.check();
    }
}

#[test]
fn batches_share_or_have_their_own_operands() {
    for shape in [[5, 6, 7], [1, 40, 30], [40, 30, 1], [70, 64, 270]] {
        for shared in [false, true] {
            let (mut case, acc) = product(&[2, 9], shape, DType::F32, [Lies::Rows, Lies::Columns], shared);
            let y = epilogue(&mut case, acc, DType::F32);
            case.store_all(y);
            case.store_all(acc);
            case.check();
        }
    }
}

#[test]
fn narrow_floats_and_integers_are_exact() {
    for dtype in [DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8] {
        for shape in [[3, 5, 7], [1, 100, 40], [70, 33, 300], [40, 30, 1], [2, 600, 150], [300, 530, 150]] {
            for b in [Lies::Rows, Lies::Columns, Lies::Apart] {
                let (mut case, acc) = product(&[2], shape, dtype, [Lies::Rows, b], false);
                let y = case.cast(acc, dtype);
                case.store_all(y);
                case.check();
                let (mut case, acc) = product(&[], shape, dtype, [Lies::Rows, b], false);
                case.store_all(acc);
                case.check();
            }
        }
    }
}

#[test]
fn what_is_not_a_number_goes_through() {
    let (mut case, acc) = product(&[], [40, 50, 60], DType::F32, [Lies::Rows; 2], false);
    case.store_all(acc);
    case.inputs[0][50 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    case.inputs[0][100 * 4..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let (outputs, _) = case.run(&cpus()[1]).unwrap();
    let out: Vec<f32> = reference::read_all(&outputs[0], DType::F32).into_iter().map(f32::from_bits).collect();
    assert!(out[60..120].iter().all(|x| x.is_nan()));
    assert!(out[120..180].iter().all(|x| !x.is_finite()));
    assert!(out[..60].iter().chain(&out[180..]).all(|x| x.is_finite()));
}

#[test]
fn rounding_does_not_depend_on_threads() {
    for shape in [[1, 4000, 700], [700, 4000, 1], [300, 700, 400], [64, 9000, 64], [1000, 300, 10]] {
        let (mut case, acc) = product(&[], shape, DType::F32, [Lies::Rows; 2], false);
        case.store_all(acc);
        for input in 0..2 {
            for (i, lane) in case.inputs[input].chunks_mut(4).enumerate() {
                lane.copy_from_slice(&((i as f32 * 0.37).sin()).to_le_bytes());
            }
        }
        let all: Vec<_> = cpus().iter().map(|cpu| case.run(cpu).unwrap().0).collect();
        assert!(all.iter().all(|o| *o == all[0]), "{shape:?}");
        let expect = reference::run(&case);
        let read =
            |bytes: &[u8]| reference::read_all(bytes, DType::F32).into_iter().map(f32::from_bits).collect::<Vec<_>>();
        for (got, expect) in read(&all[0][0]).into_iter().zip(read(&expect[0])) {
            assert!((got - expect).abs() <= 1e-6 * shape[1] as f32, "{got} for {expect} in {shape:?}");
        }
    }
}

/// Windows of `images` images of `channels × h × w`, `kh × kw` each, `step` apart: rows over `(c, kh, kw)`, columns over
/// `(oh, ow)`, or the other way round. Gives also how many rows, columns and elements there are.
fn windows(images: usize, [c, h, w, kh, kw, step]: [usize; 6], turned: bool) -> (OperandArgs, [usize; 3]) {
    let (oh, ow) = ((h - kh) / step + 1, (w - kw) / step + 1);
    let list = |axes: [(usize, usize); 3]| AxisList::of(axes.into_iter().map(|(size, by)| (size, by as isize)));
    let within = (list([(c, h * w), (kh, w), (kw, 1)]), c * kh * kw);
    let places = (list([(1, 0), (oh, w * step), (ow, step)]), oh * ow);
    let batch = vec![AxisList::single(images, (c * h * w) as isize)];
    let (rows, cols) = if turned { (places, within) } else { (within, places) };
    let sizes = [rows.1, cols.1, images * c * h * w];
    (OperandArgs { batch, rows: rows.0, cols: cols.0, offset: 0 }, sizes)
}

#[test]
fn operands_are_read_by_lists_of_axes() {
    let shapes =
        [[1, 5, 5, 3, 3, 1], [3, 9, 8, 3, 2, 1], [2, 12, 11, 3, 3, 2], [33, 10, 9, 4, 4, 1], [4, 20, 22, 2, 5, 3]];
    for shape in shapes {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
            for m in [1, 4, 40] {
                // Weights times windows, as a convolution is computed.
                let (b, [k, n, n_elems]) = windows(2, shape, false);
                let mut case = Case::new(&[2, m, n], &[], Order::InnerFast);
                case.matmul = true;
                let a = OperandArgs::plain([(2, 0)].into_iter(), (m, k as isize), (k, 1));
                case.numbers(dtype, m * k, 1);
                case.numbers(dtype, n_elems, 2);
                case.args.matmul = Some(Box::new(MatmulArgs {
                    batch: vec![2],
                    m,
                    k,
                    n,
                    a,
                    b,
                    panels: None,
                    k_parts: AxisParts::whole(k),
                    made: [None, None],
                }));
                let acc = if dtype.is_float() { DType::F32 } else { dtype };
                let acc = case.push(InstOp::Acc(0), acc, Scope::Outer);
                case.store_all(acc);
                case.check();
                // Windows as rows times windows as columns: both by lists, rows in either order.
                let (a, [rows, k, _]) = windows(2, shape, true);
                let (b, [k_b, n, _]) = windows(2, shape, false);
                assert_eq!(k, k_b);
                let mut case = Case::new(&[2, rows, n], &[], Order::InnerFast);
                case.matmul = true;
                case.numbers(dtype, n_elems, 1);
                case.numbers(dtype, n_elems, 2);
                case.args.matmul = Some(Box::new(MatmulArgs {
                    batch: vec![2],
                    m: rows,
                    k,
                    n,
                    a,
                    b,
                    panels: None,
                    k_parts: AxisParts::whole(k),
                    made: [None, None],
                }));
                let acc = if dtype.is_float() { DType::F32 } else { dtype };
                let acc = case.push(InstOp::Acc(0), acc, Scope::Outer);
                case.store_all(acc);
                case.check();
            }
        }
    }
}

/// Small integers are exact sums of two bf16, so that AMX gives the same bits as f32.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn products_by_amx_are_right_however_operands_lie() {
    let Some(cpus) = cpus_with_amx() else { return };
    let is_by_amx = |case: &Case| case.schedule(&cpus[0]).contains("AMX");
    for shape @ [_, k, _] in [[17, 5, 7], [33, 70, 90], [130, 33, 70], [40, 515, 33], [300, 40, 20]] {
        for lies in [
            [Lies::Rows, Lies::Rows],
            [Lies::Columns, Lies::Rows],
            [Lies::Rows, Lies::Columns],
            [Lies::Apart, Lies::Apart],
        ] {
            let (mut case, acc) = product(&[], shape, DType::F32, lies, false);
            let y = epilogue(&mut case, acc, DType::F32);
            case.store_all(y);
            assert!(is_by_amx(&case), "{shape:?}");
            case.check_on(cpus);
        }
        for dtype in [DType::F16, DType::BF16] {
            let (mut case, acc) = product(&[1], shape, dtype, [Lies::Rows, Lies::Columns], false);
            case.args.matmul.as_mut().unwrap().k_parts = AxisParts::of_count(k, 2);
            let y = case.cast(acc, DType::F32);
            case.store_all(y);
            assert!(is_by_amx(&case), "{shape:?}");
            case.check_on(cpus);
        }
    }
}

/// Weights times windows of 3 × 3, which Winograd's way is for, with what follows, and the sizes of `(c, h, w)`, `m` and images.
fn winograd([images, c, h, w, m]: [usize; 5], follow: bool) -> Case {
    let (b, [k, n, n_elems]) = windows(images, [c, h, w, 3, 3, 1], false);
    let mut case = Case::new(&[images, m, n], &[], Order::InnerFast);
    case.matmul = true;
    let a = OperandArgs::plain([(images, 0)].into_iter(), (m, k as isize), (k, 1));
    case.numbers(DType::F32, m * k, 1);
    case.numbers(DType::F32, n_elems, 2);
    let direct = gemm::ImplicitGemm { isa: isa(), m, k, n, n_images: images };
    assert!(direct.fits() && gemm::Winograd::new(direct, &b).is_some(), "{images} images of {c} × {h} × {w}, {m}");
    case.args.matmul = Some(Box::new(MatmulArgs {
        batch: vec![images],
        m,
        k,
        n,
        a,
        b,
        panels: None,
        k_parts: AxisParts::whole(k),
        made: [None, None],
    }));
    let acc = case.push(InstOp::Acc(0), DType::F32, Scope::Outer);
    let y = if follow { epilogue(&mut case, acc, DType::F32) } else { acc };
    case.store_all(y);
    case
}

/// One or several rows of tiles a block, blocks of unequal height, odd sizes, rows narrower than a vector and wider, panels that are not
/// full, more channels than a block of a product is deep.
const WINOGRAD: [[usize; 5]; 9] = [
    [1, 16, 18, 18, 16],
    [2, 17, 13, 12, 40],
    [3, 33, 9, 11, 70],
    [1, 64, 20, 37, 64],
    [1, 24, 16, 75, 33],
    [4, 16, 9, 9, 130],
    [1, 520, 16, 15, 20],
    [5, 40, 8, 10, 65],
    [1, 19, 4, 150, 48],
];

#[test]
fn windows_by_winograd_are_exact_for_small_integers() {
    for sizes in WINOGRAD {
        winograd(sizes, false).check();
        winograd(sizes, true).check();
    }
}

#[test]
fn windows_by_winograd_keep_what_is_not_finite_where_it_belongs() {
    for sizes @ [_, _, h, w, _] in WINOGRAD {
        for (value, at) in [(f32::NAN, 0), (f32::INFINITY, h * w / 2), (f32::NEG_INFINITY, h * w - 1), (3e38, w + 1)] {
            let mut case = winograd(sizes, false);
            case.inputs[1][at * 4..][..4].copy_from_slice(&value.to_le_bytes());
            let expect = reference::read_all(&reference::run(&case)[0], DType::F32);
            for cpu in cpus() {
                let got = reference::read_all(&case.run(cpu).unwrap().0[0], DType::F32);
                for (i, (got, expect)) in got.iter().zip(&expect).enumerate() {
                    let (got, expect) = (f32::from_bits(*got), f32::from_bits(*expect));
                    // Near the largest number the order of adding shows.
                    let is_close = (got - expect).abs() <= expect.abs() * 1e-5;
                    let is_it = got == expect || got.is_nan() && expect.is_nan() || is_close;
                    assert!(is_it, "{got}, not {expect}, at {i} of {sizes:?} with {value}");
                }
            }
        }
    }
}

#[test]
fn windows_by_winograd_round_as_stated_on_any_number_of_threads() {
    for sizes @ [_, c, h, w, m] in WINOGRAD {
        let mut case = winograd(sizes, false);
        let mut values = [Vec::new(), Vec::new()];
        for input in 0..2 {
            for (i, lane) in case.inputs[input].chunks_mut(4).enumerate() {
                let value = (i as f32 * 0.37 + input as f32).sin();
                lane.copy_from_slice(&value.to_le_bytes());
                values[input].push(value as f64);
            }
        }
        let all: Vec<_> = cpus().iter().map(|cpu| case.run(cpu).unwrap().0).collect();
        assert!(all.iter().all(|o| *o == all[0]), "{sizes:?}");
        let [weights, image] = values;
        let (oh, ow) = (h - 2, w - 2);
        let (mut squares, mut squares_of_sums) = (0.0, 0.0);
        for (i, got) in reference::read_all(&all[0][0], DType::F32).into_iter().enumerate() {
            let (image_idx, o, y, x) = (i / (m * oh * ow), i / (oh * ow) % m, i / ow % oh, i % ow);
            let (mut sum, mut in_order, mut bound) = (0.0f64, 0.0f32, 0.0f64);
            for channel in 0..c {
                let d = |dy: usize, dx: usize| match (dy < h, dx < w) {
                    (true, true) => image[((image_idx * c + channel) * h + dy) * w + dx],
                    _ => 0.0,
                };
                let g = |i: usize| weights[(o * c + channel) * 9 + i];
                for i in 0..9 {
                    let product = g(i) * d(y + i / 3, x + i % 3);
                    sum += product;
                    in_order = (g(i) as f32).mul_add(d(y + i / 3, x + i % 3) as f32, in_order);
                }
                let of_tile: f64 = (0..16).map(|i| d(y / 2 * 2 + i / 4, x / 2 * 2 + i % 4).abs()).sum();
                bound += of_tile * (0..9).map(|i| g(i).abs()).sum::<f64>();
            }
            let error = f32::from_bits(got) as f64 - sum;
            let bound = 9.0 * (c + 12) as f64 * (f32::EPSILON / 2.0) as f64 * bound;
            assert!(error.abs() <= bound, "{error:e} above {bound:e} at {i} of {sizes:?}");
            squares += error * error;
            squares_of_sums += (in_order as f64 - sum).powi(2);
        }
        // On the whole no worse than sums in order.
        let ratio = (squares / squares_of_sums).sqrt();
        assert!(ratio < 2.0, "errors {ratio} times those of sums in order, {sizes:?}");
    }
}

#[test]
fn windows_of_channels_by_themselves_are_right_at_every_width() {
    // Channels, height and width of images, of windows, and the step; each channel of two images has a row of weights.
    let mut shapes: Vec<[usize; 6]> = (1..40).map(|w| [3, 6, w + 2, 3, 3, 1]).collect();
    shapes.extend((1..70).map(|w| [2, 7, w + 4, 5, 5, 2]));
    shapes.extend([[130, 9, 90, 3, 3, 1], [1, 200, 70, 7, 7, 1], [2, 220, 160, 2, 1, 2], [5, 40, 30, 3, 3, 3]]);
    for shape in shapes {
        let [c, h, w, kh, kw, step] = shape;
        let (b, [k, n, _]) = windows(1, [1, h, w, kh, kw, step], false);
        let channels = |by: usize| [AxisList::single(2, (c * by) as isize), AxisList::single(c, by as isize)];
        let b = OperandArgs { batch: channels(h * w).into(), ..b };
        let mut a = OperandArgs::plain([].into_iter(), (1, k as isize), (k, 1));
        a.batch = vec![AxisList::single(2, 0), AxisList::single(c, k as isize)];
        for dtype in [DType::F32, DType::F16] {
            for follows in [false, true] {
                let mut case = Case::new(&[2, c, 1, n], &[], Order::InnerFast);
                case.matmul = true;
                case.numbers(dtype, c * k, 1);
                case.numbers(dtype, 2 * c * h * w, 2);
                let (a, b) = (a.clone(), b.clone());
                case.args.matmul = Some(Box::new(MatmulArgs {
                    batch: vec![2, c],
                    m: 1,
                    k,
                    n,
                    a,
                    b,
                    panels: None,
                    k_parts: AxisParts::whole(k),
                    made: [None, None],
                }));
                let acc = case.push(InstOp::Acc(0), DType::F32, Scope::Outer);
                let y = if follows { epilogue(&mut case, acc, DType::F32) } else { acc };
                case.store_all(y);
                case.check();
            }
        }
    }
}

#[test]
fn windows_may_be_the_transposed_operand() {
    // The gradient of weights: places times windows, summed over places.
    for shape in [[3, 9, 8, 3, 2, 1], [2, 12, 31, 3, 3, 1], [5, 12, 11, 3, 3, 2]] {
        let (b, [k, n, n_elems]) = windows(1, shape, true);
        for m in [1, 7, 50] {
            let mut case = Case::new(&[1, m, n], &[], Order::InnerFast);
            case.matmul = true;
            let a = OperandArgs::plain([(1, 0)].into_iter(), (m, k as isize), (k, 1));
            case.numbers(DType::F32, m * k, 1);
            case.numbers(DType::F32, n_elems, 2);
            case.args.matmul = Some(Box::new(MatmulArgs {
                batch: vec![1],
                m,
                k,
                n,
                a,
                b: b.clone(),
                panels: None,
                k_parts: AxisParts::whole(k),
                made: [None, None],
            }));
            let acc = case.push(InstOp::Acc(0), DType::F32, Scope::Outer);
            case.store_all(acc);
            case.check();
        }
    }
}

#[test]
fn a_target_knows_the_panels_that_micro_kernels_read() {
    assert_eq!(crate::target::PanelWidths::of_isa(crate::ops::isa()), gemm::panel_widths());
    let target = crate::target::CpuTarget::new(crate::ops::isa(), 1);
    assert_eq!([false, true].map(|in_place| target.register_tile(in_place)), gemm::register_tiles());
}
