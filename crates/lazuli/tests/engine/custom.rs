//! The user's own ops, and leaving without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use lazuli::{CustomOp, Device, Error, Tensor};

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
                assert!(fault.message.contains("panicked"), "{}", fault.message);
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The least an executor can be.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn leaving_needs_no_async_runtime() {
    let _device = shared();
    block_on(async {
        let x = data(100);
        assert_eq!(x.add(1.0).to_vec_async::<f32>().await.unwrap()[99], 50.5);
        assert_eq!(x.sum(..).item_async::<f32>().await.unwrap(), 2475.0);
        let y = x.mul(2.0).compute_async().await.unwrap();
        assert_eq!(y.explain().unwrap().kernels.len(), 0);
        let (a, b) = (x.exp(), x.max(..));
        lazuli::compute_async(&[&a, &b]).await.unwrap();
        assert_eq!(b.item_async::<f32>().await.unwrap(), 49.5);
        let error = x.add(&data(3)).to_vec_async::<f32>().await.unwrap_err();
        assert!(matches!(error, Error::Shape(_)), "{error}");
        let error = x.item_async::<f32>().await.unwrap_err();
        assert!(matches!(error, Error::Shape(_)), "{error}");
    });
}

#[test]
fn futures_can_be_sent_to_other_threads() {
    let _device = shared();
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    let x = data(10);
    let sum = std::thread::spawn(move || block_on(is_send(async move { x.sum(..).item_async::<f32>().await }))).join();
    assert_eq!(sum.unwrap().unwrap(), 22.5);
}
