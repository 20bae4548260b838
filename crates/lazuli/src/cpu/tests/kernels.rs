//! Maps and reductions, one promise each.

use std::sync::Arc;

use super::*;
use crate::graph::{CustomOp, CustomRef};
use crate::ops::*;

/// Strides over axes, from nothing else.
fn strided(dims: &[usize], strides: &[isize], offset: isize) -> View {
    View::from_axes(dims.iter().copied().zip(strides.iter().copied()), offset)
}

fn linear(dims: &[usize]) -> View {
    View::contiguous(dims.into())
}

#[test]
fn a_map_of_any_length_is_its_elements() {
    for n in [0, 1, 7, 255, 256, 300, 1000, 8192, 8193, 100_000] {
        let mut case = Case::new(&[n], &[], Order::InnerFast);
        let (a, b) = (case.numbers(DType::F32, n, 1), case.numbers(DType::F32, n, 2));
        let (x, y) = (case.load(a, linear(&[n]), Scope::Outer), case.load(b, linear(&[n]), Scope::Outer));
        let c = case.constant(DType::F32, 3.0);
        let sum = case.binary(&ADD, x, y);
        let scaled = case.binary(&MUL, sum, c);
        let less = case.binary(&SUB, scaled, x);
        let from = case.binary(&SUB, c, less);
        case.store_all(from);
        case.store_all(sum);
        case.check();
    }
}

#[test]
fn a_scalar_and_a_fill_are_maps() {
    let mut case = Case::new(&[], &[], Order::InnerFast);
    let a = case.numbers(DType::F32, 1, 4);
    let x = case.load(a, linear(&[]), Scope::Uniform);
    let y = case.binary(&ADD, x, x);
    case.store_all(y);
    case.check();

    let mut case = Case::new(&[10_000], &[], Order::InnerFast);
    let c = case.constant(DType::F16, 1.5);
    case.store_all(c);
    case.check();
}

#[test]
fn rows_columns_and_transposes_are_read_where_they_are() {
    for (m, n) in [(3, 5), (17, 300), (300, 17), (70, 1000), (1, 400), (400, 1), (129, 259)] {
        let mut case = Case::new(&[m, n], &[], Order::InnerFast);
        let input = case.numbers(DType::F32, m * n, 5);
        let vectors = case.numbers(DType::F32, m.max(n), 6);
        let (sm, sn) = (m as isize, n as isize);
        let x = case.load(input, linear(&[m, n]), Scope::Outer);
        let t = case.load(input, strided(&[m, n], &[1, sm], 0), Scope::Outer);
        let row = case.load(vectors, strided(&[m, n], &[0, 1], 0), Scope::Outer);
        let column = case.load(vectors, strided(&[m, n], &[1, 0], 0), Scope::Outer);
        let flipped = case.load(input, strided(&[m, n], &[sn, -1], sn - 1), Scope::Outer);
        let mut sum = x;
        for other in [t, row, column, flipped] {
            sum = case.binary(&ADD, sum, other);
        }
        let product = case.binary(&MUL, row, column);
        let out = case.binary(&SUB, sum, product);
        case.store_all(out);
        case.store(sum, strided(&[m, n], &[1, sm], 0), m * n);
        case.check();
    }
}

#[test]
fn padding_reads_nothing_outside() {
    for (m, n) in [(3, 5), (20, 300), (300, 20)] {
        let shape = Shape::from([m, n]);
        let pad = View::pad(&shape, &[(2, 1), (3, 4)]);
        let seen = pad.shape;
        let mut case = Case::new(&seen, &[], Order::InnerFast);
        let input = case.numbers(DType::F32, m * n, 5);
        let x = case.load(input, pad, Scope::Outer);
        let access = case.access(pad);
        let valid = case.push(InstOp::Valid { access }, DType::Bool, Scope::Outer);
        let fill = case.constant(DType::F32, 7.0);
        let y = case.select(valid, x, fill);
        case.store_all(y);
        case.store_all(valid);
        case.check();
    }
}

#[test]
fn a_reshaped_transpose_is_a_chain_of_views() {
    let shape = Shape::from([6, 50, 4]);
    let turned = View::permute(&shape, &[2, 0, 1]);
    let flat = View::contiguous([30, 40].into());
    let map = IndexMap::from(flat).of(&turned);
    assert!(map.strided().is_none());
    let mut case = Case::new(&[30, 40], &[], Order::InnerFast);
    let input = case.numbers(DType::I32, 1200, 3);
    let x = case.load(input, map.clone(), Scope::Outer);
    let access = case.access(map);
    let at = case.push(InstOp::Index { access }, DType::U32, Scope::Outer);
    case.store_all(x);
    case.store_all(at);
    case.check();
}

#[test]
fn narrow_types_are_lanes_inside() {
    for dtype in DType::ALL {
        for to in DType::ALL {
            let mut case = Case::new(&[3, 700], &[], Order::InnerFast);
            let input = case.numbers(dtype, 2100, 2);
            let vector = case.numbers(dtype, 700, 3);
            let x = case.load(input, linear(&[3, 700]), Scope::Outer);
            let y = case.load(vector, strided(&[3, 700], &[0, 1], 0), Scope::Outer);
            let z = case.load(vector, strided(&[3, 700], &[1, 0], 0), Scope::Outer);
            let [x, y, z] = [x, y, z].map(|r| case.cast(r, to));
            let flag = case.binary(&EQ, x, y);
            let out = case.select(flag, z, x);
            case.store_all(out);
            case.store_all(flag);
            case.store(x, strided(&[3, 700], &[1, 3], 0), 2100);
            case.check();
        }
    }
}

#[test]
fn results_may_take_the_memory_of_inputs() {
    for n in [5, 3000, 70_000] {
        let mut case = Case::new(&[n], &[], Order::InnerFast);
        let (a, b) = (case.numbers(DType::F32, n, 1), case.numbers(DType::F32, n, 2));
        let (x, y) = (case.load(a, linear(&[n]), Scope::Outer), case.load(b, linear(&[n]), Scope::Outer));
        let (sum, difference) = (case.binary(&ADD, x, y), case.binary(&SUB, x, y));
        case.store_all(sum);
        case.store_all(difference);
        // Swapped memory: each result is needed in full before the other's input is overwritten.
        case.outputs[0].1 = Some(1);
        case.outputs[1].1 = Some(0);
        case.check();
    }
}

#[test]
fn a_softmax_may_take_the_memory_of_its_input() {
    for (m, n) in [(7, 10), (5, 1000), (3, 40_000)] {
        let mut case = softmax(m, n, Order::InnerFast);
        case.outputs[0].1 = Some(0);
        case.check();
    }
}

#[test]
fn an_index_picks_and_one_out_of_range_is_reported() {
    let (n, rows, width) = (5000, 40, 3);
    let mut case = Case::new(&[n, width], &[], Order::InnerFast);
    let table = case.numbers(DType::F16, rows * width, 3);
    let mut index: Vec<u32> = (0..n as u32).map(|i| i * 31 % rows as u32).collect();
    let indices = case.input(DType::I32, &index);
    let index_reg = case.load(indices, strided(&[n, width], &[1, 0], 0), Scope::Outer);
    let args = GatherArgs { stride: width as isize, bound: rows, check: 4 };
    let y = case.gather(table, strided(&[n, width], &[0, 1], 0), index_reg, args);
    case.store_all(y);
    case.check();

    (index[4000], index[1234], index[4321]) = (rows as u32, -3i32 as u32, 1_000_000);
    case.inputs[1].clear();
    case.inputs[1].extend(index.iter().flat_map(|i| i.to_le_bytes()));
    let expect = reference::run(&case);
    for cpu in cpus() {
        let (outputs, failed) = case.run(cpu).unwrap();
        assert_eq!(failed, Some(FailedCheck { check: 4, index: -3, bound: rows }));
        case.compare(&outputs, &expect);
    }
}

/// `exp(x − max x) / Σ exp(x − max x)` along the last axis, but with a power of two for e, so that sums are exact.
fn softmax(m: usize, n: usize, order: Order) -> Case {
    let mut case = Case::new(&[m], &[n], order);
    let lanes: Vec<u32> = (0..m * n).map(|i| ((i * 7919 % 31 % 4) as f32).to_bits()).collect();
    let x = case.input(DType::F32, &lanes);
    let space = match order {
        Order::InnerFast => linear(&[m, n]),
        Order::OuterFast => strided(&[m, n], &[1, m as isize], 0),
    };
    let x = case.load(x, space, Scope::Inner);
    let max = case.reduce(&MAX, x);
    let shifted = case.binary(&SUB, x, max);
    let e = case.unary(&EXP2, shifted);
    let sum = case.reduce(&SUM, e);
    let y = case.binary(&DIV, e, sum);
    case.store(y, space, m * n);
    case.store_outer(sum);
    case
}

#[test]
fn stages_follow_each_other_for_rows_of_any_length() {
    for n in [1, 3, 10, 31, 64, 100, 255, 256, 1000, 5000, 20_000] {
        for m in [1, 2, 33, 700] {
            if m * n <= 200_000 {
                softmax(m, n, Order::InnerFast).check();
                softmax(m, n, Order::OuterFast).check();
            }
        }
    }
    // Too long to keep: values are computed again.
    softmax(2, 150_000, Order::InnerFast).check();
}

#[test]
fn long_columns_are_shared_out_in_pieces() {
    for (n, m) in [(40_000, 5), (3000, 256), (700, 4096), (3001, 100)] {
        let mut case = Case::new(&[m], &[n], Order::OuterFast);
        let (x, bias) = (case.numbers(DType::I32, m * n, 1), case.numbers(DType::I32, m, 2));
        let x = case.load(x, strided(&[m, n], &[1, m as isize], 0), Scope::Inner);
        let bias = case.load(bias, linear(&[m]), Scope::Outer);
        let y = case.binary(&ADD, x, bias);
        let (sum, max) = (case.reduce(&SUM, y), case.reduce(&MAX, x));
        let both = case.binary(&SUB, sum, max);
        let both = case.binary(&MUL, both, bias);
        case.store_outer(both);
        case.store_outer(max);
        case.check();
    }
}

#[test]
fn several_reductions_of_what_is_the_same_along_a_row_stay_apart() {
    let mut case = Case::new(&[3], &[5], Order::InnerFast);
    let (x, y) = (case.numbers(DType::F32, 3, 1), case.numbers(DType::F32, 3, 2));
    let x = case.load(x, strided(&[3, 5], &[1, 0], 0), Scope::Inner);
    let y = case.load(y, strided(&[3, 5], &[1, 0], 0), Scope::Inner);
    let (a, b) = (case.binary(&ADD, x, y), case.binary(&SUB, x, y));
    let (sum, max) = (case.reduce(&SUM, a), case.reduce(&MAX, b));
    case.store_outer(sum);
    case.store_outer(max);
    case.check();
}

#[test]
fn an_empty_reduction_is_its_identity() {
    for order in [Order::InnerFast, Order::OuterFast] {
        let mut case = Case::new(&[300], &[0], order);
        let x = case.numbers(DType::F32, 0, 1);
        let x = case.load(x, linear(&[300, 0]), Scope::Inner);
        let (sum, product) = (case.reduce(&SUM, x), case.reduce(&PROD, x));
        case.store_outer(sum);
        case.store_outer(product);
        case.check();
    }
    Case::new(&[0], &[5], Order::InnerFast).check();
}

#[test]
fn pieces_of_a_long_axis_may_end_early() {
    for (order, dims) in [
        (Order::InnerFast, [4usize, 1, 1000]),
        (Order::InnerFast, [3, 5, 300]),
        (Order::OuterFast, [5, 40, 64]),
        (Order::OuterFast, [3, 300, 100]),
    ] {
        let [pieces, width, piece] = dims;
        let limit = pieces * piece - piece / 3;
        let mut case = Case::new(&[pieces, width], &[piece], order);
        case.body.ragged = true;
        case.args.limit = limit;
        let x = case.numbers(DType::I32, limit * width, 1);
        let (along, across) = match order {
            Order::InnerFast => (1, limit as isize),
            Order::OuterFast => (width as isize, 1),
        };
        let view = strided(&[pieces, width, piece], &[piece as isize * along, across, along], 0);
        let x = case.load(x, view, Scope::Inner);
        let squared = case.binary(&MUL, x, x);
        let (sum, max) = (case.reduce(&SUM, squared), case.reduce(&MAX, x));
        case.store_outer(sum);
        case.store_outer(max);
        case.check();
    }
}

#[test]
fn sums_are_accurate_however_long() {
    // A tenth ten million times: one after another the rounding errors alone would reach thousands.
    let (m, n) = (3, 1 << 20);
    let x = 0.1f32.to_bits();
    for order in [Order::InnerFast, Order::OuterFast] {
        let mut case = Case::new(&[m], &[n], order);
        let input = case.input(DType::F32, &vec![x; m * n]);
        let view = match order {
            Order::InnerFast => linear(&[m, n]),
            Order::OuterFast => strided(&[m, n], &[1, m as isize], 0),
        };
        let x = case.load(input, view, Scope::Inner);
        let sum = case.reduce(&SUM, x);
        case.store_outer(sum);
        let (outputs, _) = case.run(&cpus()[1]).unwrap();
        for lane in reference::read_all(&outputs[0], DType::F32) {
            let (got, expect) = (f32::from_bits(lane) as f64, 0.1f32 as f64 * n as f64);
            assert!((got - expect).abs() <= expect * 4.0 * f32::EPSILON as f64, "{got} for {expect} in {order:?}");
        }
    }
}

fn custom(name: &str, cpu: impl Fn(&[f32]) -> f32 + Send + Sync + 'static) -> Case {
    let op = CustomOp { name: name.into(), wgsl: String::new(), cpu: Arc::new(cpu), grad: None };
    let mut case = Case::new(&[40], &[30], Order::InnerFast);
    let x = case.numbers(DType::F32, 1200, 1);
    let x = case.load(x, linear(&[40, 30]), Scope::Inner);
    let max = case.reduce(&MAX, x);
    let y = case.push(InstOp::Custom(CustomRef(Arc::new(op)), vec![x, max]), DType::F32, Scope::Inner);
    case.store_all(y);
    case
}

#[test]
fn a_custom_op_is_called_for_every_element() {
    custom("blend", |x| x[0] * 2.0 - x[1]).check();
}

#[test]
fn a_custom_op_that_panics_is_an_error_and_nothing_else_breaks() {
    let case = custom("grumpy", |x| if x[0] > 5.0 { panic!("too much") } else { x[0] });
    for cpu in cpus() {
        for _ in 0..3 {
            let error = case.run(cpu).unwrap_err();
            assert!(matches!(error, crate::error::Error::Custom(_)));
            assert_eq!(error.fault().op, "grumpy");
        }
        let (outputs, _) = custom("blend", |x| x[0]).run(cpu).unwrap();
        assert_eq!(outputs[0].len(), 4800);
    }
}

#[test]
fn another_size_compiles_nothing_and_reuses_memory() {
    let cpu = Cpu::with(Workers::with(1), CpuTarget::new(isa(), 1));
    // A program lives as long as a plan that uses it.
    let mut plans = Vec::new();
    for n in [1000, 1001, 1002] {
        let mut case = Case::new(&[n], &[], Order::InnerFast);
        let a = case.numbers(DType::F32, n, 1);
        let x = case.load(a, linear(&[n]), Scope::Outer);
        let c = case.constant(DType::F32, n as f64);
        let y = case.binary(&ADD, x, c);
        case.store_all(y);
        plans.push(cpu.prepare(Arc::new(case.plan())).unwrap());
        case.run(&cpu).unwrap();
    }
    let stats = cpu.about().counters.read();
    // One block for the result, one for the thread to work in.
    assert_eq!((stats.pipelines_compiled, stats.submits, stats.dispatches, stats.buffers_created), (1, 3, 3, 2));
    assert!(stats.bytes_programs > 0);
    drop(plans);
    assert_eq!(cpu.about().counters.read().bytes_programs, 0);
    assert_eq!((stats.bytes_live, stats.bytes_uploaded, stats.bytes_downloaded), (0, 12012, 12012));
}
