//! The user's own ops: what they compute, and what becomes of it when they panic or evaluate.

use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazuli::{CustomOp, Device, Error, Tensor};
use lazuli_check::testing::block_on;

use crate::device::device;
use crate::shared;

fn op(name: &str, wgsl: &str, cpu: impl Fn(&[f32]) -> f32 + Send + Sync + 'static) -> CustomOp {
    CustomOp { name: name.into(), wgsl: wgsl.into(), cpu: Arc::new(cpu), grad: None }
}

fn data(n: usize) -> Tensor {
    Tensor::from_vec((0..n).map(|i| i as f32 * 0.5).collect(), [n], &device())
}

#[test]
fn a_custom_op_fuses_with_its_neighbours() {
    let _device = shared();
    let length = op("length", "($0 * $0 + $1 * $1)", |x| x[0] * x[0] + x[1] * x[1]);
    let x = data(3000);
    let out = Tensor::map_custom(&length, &[&x.add(1.0), &x.mul(2.0)]).neg();
    let plan = out.explain().unwrap();
    assert_eq!((plan.kernels.len(), plan.peak_temp_bytes), (1, 0), "{plan}");
    assert!(plan.kernels[0].ops.contains(&"length".to_string()), "{plan}");
    let expect = |v: f32| -((v + 1.0) * (v + 1.0) + (v * 2.0) * (v * 2.0));
    assert!(out.to_vec::<f32>().unwrap().into_iter().enumerate().all(|(i, got)| got == expect(i as f32 * 0.5)));
}

#[test]
fn a_custom_op_broadcasts_and_takes_any_number_of_inputs() {
    let _device = shared();
    let weighted = op("weighted", "$0 + 10.0 * $1 + 100.0 * $2 + 1000.0 * $3", |x| {
        x[0] + 10.0 * x[1] + 100.0 * x[2] + 1000.0 * x[3]
    });
    let cpu = device();
    let column = Tensor::from_slice(&[1i32, 2], [2, 1], &cpu);
    let row = Tensor::from_slice(&[3.0f32, 4.0, 5.0], [3], &cpu);
    let out = Tensor::map_custom(&weighted, &[&column, &row, &column, &row]);
    assert_eq!(out.to_vec::<f32>().unwrap(), [3131.0, 4141.0, 5151.0, 3232.0, 4242.0, 5252.0]);
}

#[test]
fn a_custom_op_that_panics_is_an_error_and_the_engine_goes_on() {
    let _device = shared();
    if device() != Device::cpu() {
        // There the function is WGSL, which cannot panic.
        return;
    }
    let picky = op("picky", "$0", |x| if x[0] > 700.0 { panic!("too large: {}", x[0]) } else { x[0] });
    for n in [10, 3000, 100_000] {
        let x = data(n);
        let (out, line) = (Tensor::map_custom(&picky, &[&x.add(0.0)]).sum(..), line!());
        match out.item::<f32>() {
            Err(Error::Custom(fault)) => {
                assert!(n > 10);
                assert_eq!(fault.op, "picky");
                assert!(fault.message.ends_with("panicked: too large: 700.5"), "{}", fault.message);
                assert!(fault.at.is_some_and(|at| at.file().ends_with("custom.rs") && at.line() == line), "{fault}");
            }
            Ok(sum) => assert_eq!((n, sum), (10, 22.5)),
            Err(other) => panic!("{other}"),
        }
        // Neither the inputs nor the device have suffered.
        assert_eq!(x.add(1.0).to_vec::<f32>().unwrap()[..3], [1.0, 1.5, 2.0]);
        let fine = Tensor::map_custom(&op("fine", "$0", |x| x[0]), &[&x]);
        assert_eq!(fine.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    }
}

#[test]
fn using_a_custom_op_again_plans_nothing() {
    let _device = crate::alone();
    let twice = op("twice", "2.0 * $0", |x| 2.0 * x[0]);
    let run = || Tensor::map_custom(&twice, &[&data(77)]).to_vec::<f32>().unwrap();
    let first = run();
    device().reset_stats();
    assert_eq!(run(), first);
    assert_eq!(device().stats().plans_compiled, 0);
    // Another closure of the same name is another op.
    let thrice = op("twice", "3.0 * $0", |x| 3.0 * x[0]);
    assert_eq!(Tensor::map_custom(&thrice, &[&data(77)]).to_vec::<f32>().unwrap()[2], 3.0);
}

#[test]
fn ops_that_share_a_closure_but_not_their_wgsl_or_name_are_two() {
    let _device = shared();
    // On each device each op gives what its own text says: the CPU has one closure for both.
    let twice = op("twice", "2.0 * $0", |x| 2.0 * x[0]);
    let thrice = CustomOp { wgsl: "3.0 * $0".into(), ..twice.clone() };
    let renamed = CustomOp { name: "doubled".into(), ..twice.clone() };
    let is_cpu = device() == Device::cpu();
    let x = data(5);
    let apply = |op: &CustomOp, by: f32| {
        let got = Tensor::map_custom(op, &[&x]).to_vec::<f32>().unwrap();
        assert_eq!(got, x.mul(by).to_vec::<f32>().unwrap(), "{}", op.name);
    };
    // The second and third would find the plan of the first.
    apply(&twice, 2.0);
    apply(&thrice, if is_cpu { 2.0 } else { 3.0 });
    apply(&renamed, 2.0);
    let plan = Tensor::map_custom(&renamed, &[&x]).explain().unwrap();
    assert!(plan.kernels[0].ops.contains(&"doubled".to_string()), "{plan}");
    // In one graph they would become one node.
    let both = Tensor::map_custom(&twice, &[&x]).sub(Tensor::map_custom(&thrice, &[&x]));
    assert_eq!(both.to_vec::<f32>().unwrap(), x.mul(if is_cpu { 0.0 } else { -1.0 }).to_vec::<f32>().unwrap());
    let same = Tensor::map_custom(&twice, &[&x]).sub(Tensor::map_custom(&renamed, &[&x]));
    let plan = same.explain().unwrap();
    assert!(["twice", "doubled"].iter().all(|name| plan.kernels[0].ops.contains(&name.to_string())), "{plan}");
}

#[test]
fn ops_made_and_dropped_in_turn_are_never_taken_for_one_another() {
    let _device = shared();
    // Each closure is dropped before the next is made, which the allocator then likes to put into the same place. One plan
    // does not need the op at all, and so would not keep it.
    let (x, none) = (data(3), data(0));
    for i in 0..200 {
        let by = (i % 7) as f32;
        let times = op("times", &format!("{by:?} * $0"), move |x| by * x[0]);
        assert_eq!(Tensor::map_custom(&times, &[&none]).to_vec::<f32>().unwrap(), []);
        assert_eq!(Tensor::map_custom(&times, &[&x]).to_vec::<f32>().unwrap(), [0.0, 0.5 * by, by], "{i}");
    }
}

/// Panics when it is dropped, and so does what it panics with.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Bomb);
    }
}

/// Ways to panic, with the text that an error should have of them.
const PANICS: [(fn(), &str); 3] = [
    (|| panic!("plain text"), "plain text"),
    (|| panic!("text with {}", 1 + 1), "text with 2"),
    (|| panic_any(Bomb), "what was thrown is no text"),
];

#[test]
fn whatever_a_custom_op_panics_with_is_in_the_error() {
    let _device = shared();
    let cpu = Device::cpu();
    let x = Tensor::arange(0.0, 50_000.0, 1.0, &cpu).compute().unwrap();
    for (panics, text) in PANICS {
        let panicky = op("panicky", "$0", move |x| if x[0] > 30_000.0 { panics_with(panics) } else { x[0] });
        for n in [1, 2] {
            let (out, line) = (Tensor::map_custom(&panicky, &[&x]).mul(n as f32), line!());
            let read = if n == 1 { out.to_vec::<f32>() } else { block_on(out.to_vec_async::<f32>()) };
            let Err(Error::Custom(fault)) = read else { panic!("{read:?}") };
            assert!(fault.op == "panicky" && fault.message.ends_with(&format!("panicked: {text}")), "{fault}");
            assert!(fault.at.is_some_and(|at| at.file().ends_with("custom.rs") && at.line() == line), "{fault}");
            assert_eq!(x.add(1.0).to_vec::<f32>().unwrap()[1], 2.0);
        }
    }
}

#[test]
fn whatever_the_gradient_of_a_custom_op_panics_with_is_carried() {
    let _device = shared();
    let x = data(10).tracked();
    for (panics, text) in PANICS {
        let mut own = op("panicky", "$0", |x| x[0]);
        own.grad = Some(Arc::new(move |_, _, _| {
            panics();
            Vec::new()
        }));
        let (y, line) = (Tensor::map_custom(&own, &[&x]), line!());
        let gradients = [y.sum(..).grad(&[&x]).swap_remove(0), y.vjp(&[&x], &x).swap_remove(0), y.jvp(&[&x], &[&x])];
        for gradient in gradients {
            let Err(Error::Custom(fault)) = gradient.to_vec::<f32>() else { panic!("{gradient}") };
            assert!(fault.op == "panicky" && fault.message.ends_with(&format!("panicked: {text}")), "{fault}");
            assert!(fault.at.is_some_and(|at| at.file().ends_with("custom.rs") && at.line() == line), "{fault}");
        }
        assert_eq!(y.square().sum(..).item::<f32>().unwrap(), 71.25);
        assert_eq!(x.square().sum(..).grad(&[&x])[0].to_vec::<f32>().unwrap()[3], 3.0);
    }
}

/// Panics.
fn panics_with(panics: fn()) -> f32 {
    panics();
    0.0
}

#[test]
fn the_first_panic_by_position_is_the_one_reported() {
    let _device = shared();
    let x = Tensor::arange(0.0, 200_000.0, 1.0, &Device::cpu()).compute().unwrap();
    for _ in 0..10 {
        let picky = op("picky", "$0", |x| if x[0] >= 777.0 { panic!("no {}", x[0]) } else { x[0] });
        let error = Tensor::map_custom(&picky, &[&x]).compute().unwrap_err();
        assert!(error.to_string().contains("panicked: no 777"), "{error}");
    }
}

#[test]
fn a_custom_op_that_evaluates_on_its_own_device_is_an_error() {
    let _device = shared();
    let cpu = Device::cpu();
    let x = Tensor::arange(0.0, 50_000.0, 1.0, &cpu).compute().unwrap();
    let calls: [(&str, fn(&Tensor) -> Result<(), Error>); 8] = [
        ("to_vec", |x| x.to_vec::<f32>().map(drop)),
        ("item", |x| x.item::<f32>().map(drop)),
        ("compute", |x| x.compute().map(drop)),
        ("explain", |x| x.explain().map(drop)),
        ("prepare", |x| x.prepare()),
        ("to_vec_async", |x| block_on(x.to_vec_async::<f32>()).map(drop)),
        ("compute_async", |x| block_on(lazuli::compute_async(&[x]))),
        ("execute", |x| {
            let mut batch = lazuli::Batch::new(&Device::cpu());
            let x = batch.import_tensor(x);
            batch.scale(x, 2.0);
            block_on(batch.execute())
        }),
    ];
    for (name, call) in calls {
        // What is captured is computed nowhere yet. One element runs on the caller's thread, many on all of them.
        let captured = Tensor::scalar(2.0, &cpu).add(1.0);
        for n in [1, 50_000] {
            let inner = captured.clone();
            let nested = op("nested", "$0", move |x| match call(&inner) {
                Ok(()) => x[0],
                Err(error) => panic!("{error}"),
            });
            let error = Tensor::map_custom(&nested, &[&x.narrow(0, 0, n)]).to_vec::<f32>().unwrap_err();
            let said = error.to_string();
            assert!(
                matches!(error, Error::Custom(_)) && said.contains("cannot evaluate on the device"),
                "{name}: {said}"
            );
            assert!(!said.contains("crates/lazuli/src"), "{name}: {said}");
        }
        assert_eq!(captured.item::<f32>().unwrap(), 3.0);
    }
}

#[test]
fn a_custom_op_may_read_what_is_computed_and_record_more() {
    let _device = shared();
    let cpu = Device::cpu();
    let table = Tensor::from_slice(&[1.0f32, 10.0, 100.0], [3], &cpu);
    let recorded = Arc::new(AtomicBool::new(false));
    let told = recorded.clone();
    let lookup = op("lookup", "$0", move |x| {
        told.store(table.add(1.0).shape().is_ok(), Ordering::Relaxed);
        table.to_vec::<f32>().unwrap()[x[0] as usize] + block_on(table.to_vec_async::<f32>()).unwrap()[0]
    });
    let x = Tensor::from_slice(&[2.0f32, 0.0, 1.0], [3], &cpu);
    assert_eq!(Tensor::map_custom(&lookup, &[&x]).to_vec::<f32>().unwrap(), [101.0, 2.0, 11.0]);
    assert!(recorded.load(Ordering::Relaxed));
}
