//! Errors know the line: whatever fails names the line on which the user called it, also where closures, rules of gradients,
//! other threads or a device lie between. One row for each public function that can fail.

use std::sync::Arc;

use lazuli::ops::einsum;
use lazuli::{Batch, CustomOp, DType, Device, Tensor, Weights, checkpoint};
use lazuli_check::fails_here as row;

use crate::device::device;
use crate::shared;

fn f(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &device())
}

fn ints(values: &[i32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device())
}

fn custom(grad: bool) -> CustomOp {
    let back = Arc::new(|_: &[Tensor], _: &Tensor, _: &Tensor| -> Vec<Tensor> { panic!("on the way back") });
    let grad = grad.then_some(back as _);
    CustomOp { name: "mine".into(), wgsl: "$0".into(), cpu: Arc::new(|_| panic!("on the way forth")), grad }
}

/// Waits for a future where there is no runtime.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => std::thread::yield_now(),
        }
    }
}

#[test]
#[rustfmt::skip]
fn what_records_names_the_line_of_the_call() {
    let _device = shared();
    let (x, d, mut wrong) = (f(&[2, 3]), device(), Vec::new());
    row!(wrong, Tensor::from_slice(&[1.0f32], [2], &d));
    row!(wrong, Tensor::from_slice(&[1i64 << 40], [1], &d));
    row!(wrong, Tensor::from_vec(vec![1.0f32], [2], &d));
    row!(wrong, Tensor::zeros([usize::MAX], DType::F32, &d));
    row!(wrong, Tensor::rand([1; 9], 1, &d));
    row!(wrong, Tensor::eye(usize::MAX, DType::F32, &d));
    row!(wrong, Tensor::arange(0, 1, 0, &d));
    row!(wrong, Tensor::linspace(0.0, 1.0, usize::MAX, &d));
    row!(wrong, Tensor::scalar(1i64 << 40, &d));
    row!(wrong, x.reshape([7]));
    row!(wrong, x.permute(&[0]));
    row!(wrong, x.transpose(0, 5));
    row!(wrong, x.flip(5));
    row!(wrong, x.squeeze(0));
    row!(wrong, x.unsqueeze(9));
    row!(wrong, x.broadcast_to([5]));
    row!(wrong, x.pad(&[(usize::MAX, 1)], 0.0));
    row!(wrong, x.narrow(0, 5, 5));
    row!(wrong, f(&[3]).tril());
    row!(wrong, f(&[3]).triu_k(1));
    row!(wrong, f(&[3]).diagonal());
    row!(wrong, x.slice(&[(0, 1, 0)]));
    row!(wrong, x.select_index(0, 9));
    row!(wrong, x.split(0, &[9]));
    row!(wrong, x.chunk(0, 0));
    row!(wrong, x.unfold(0, 9, 1));
    row!(wrong, x.repeat([usize::MAX]));
    row!(wrong, Tensor::cat(&[&x, &f(&[2])], 0));
    row!(wrong, Tensor::stack(&[&x, &f(&[2])], 0));
    row!(wrong, x.gather(0, &x));
    row!(wrong, x.index_select(0, &x));
    row!(wrong, f(&[3]).embedding(&ints(&[0])));
    row!(wrong, x.scatter_add(9, &ints(&[0]), &x));
    row!(wrong, x.one_hot(3));
    row!(wrong, x.sum(9));
    row!(wrong, x.mean(9));
    row!(wrong, x.var(9, 1));
    row!(wrong, x.std(9, 1));
    row!(wrong, x.norm(9));
    row!(wrong, x.logsumexp(9));
    row!(wrong, x.any(9));
    row!(wrong, f(&[0]).max(..));
    row!(wrong, f(&[0]).argmin(..));
    row!(wrong, x.softmax(9));
    row!(wrong, x.log_softmax(9));
    row!(wrong, x.layer_norm(9, None, None, 1e-5));
    row!(wrong, x.rms_norm(9, None, 1e-5));
    row!(wrong, x.cumsum(9));
    row!(wrong, x.sort(9, true));
    row!(wrong, x.argsort(9, true));
    row!(wrong, x.topk(9, 0).0);
    row!(wrong, x.matmul(&x));
    row!(wrong, x.dot(&f(&[7])));
    row!(wrong, einsum("ij,jk", &[&x]));
    row!(wrong, x.add(&f(&[7])));
    row!(wrong, &x - &f(&[7]));
    row!(wrong, x.bit_and(&x));
    row!(wrong, x.bit_not());
    row!(wrong, ints(&[1]).add(1i64 << 40));
    row!(wrong, x.gt(&f(&[7])));
    row!(wrong, x.select(&f(&[7]), 0.0));
    row!(wrong, x.atan2(&f(&[7])));
    row!(wrong, x.clamp(&f(&[7]), 1.0));
    row!(wrong, Tensor::map_custom(&custom(false), &[]));
    row!(wrong, Tensor::map_custom(&custom(false), &[&x, &f(&[7])]));
    row!(wrong, checkpoint(&[&x], |x| x[0].sum(9)));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[rustfmt::skip]
fn gradients_name_the_line_of_the_call() {
    let _device = shared();
    let (x, mut wrong) = (f(&[2, 3]).tracked(), Vec::new());
    let loss = x.sum(..);
    row!(wrong, x.grad(&[&x]));
    row!(wrong, ints(&[1]).sum(..).grad(&[&x]));
    row!(wrong, loss.grad(&[&ints(&[1])]));
    row!(wrong, x.vjp(&[&x], &f(&[7])));
    row!(wrong, ints(&[1]).vjp(&[&x], &x));
    row!(wrong, x.jvp(&[&x], &[]));
    row!(wrong, x.jvp(&[&x], &[&f(&[7])]));
    row!(wrong, x.with_gradient_of(&f(&[7])));
    row!(wrong, Tensor::map_custom(&custom(true), &[&x]).sum(..).grad(&[&x]));
    row!(wrong, Tensor::map_custom(&custom(false), &[&x]).sum(..).grad(&[&x]));
    // Gradients are recorded by rules, and so is what an evaluation of them finds.
    let table = f(&[4, 2]).tracked();
    let line = line!() + 1;
    let picked = table.gather(0, &ints(&[9, 1]).reshape([1, 2]));
    let error = picked.square().sum(..).grad(&[&table])[0].to_vec::<f32>().unwrap_err();
    let at = error.fault().at.unwrap();
    assert!(at.file().ends_with("engine/lines.rs") && (line..line + 2).contains(&at.line()), "{error}");
    let released = f(&[2, 3]).compute().unwrap();
    let loss = released.exp().sum(..).compute().unwrap();
    row!(wrong, loss.grad(&[&released]));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[rustfmt::skip]
fn what_leaves_names_the_line_of_the_call() {
    let _device = shared();
    let (x, d, mut wrong) = (f(&[2, 3]), device(), Vec::new());
    row!(wrong, x.to_vec::<i32>());
    row!(wrong, x.item::<f32>());
    row!(wrong, x.dims::<3>());
    row!(wrong, wait(x.to_vec_async::<i32>()));
    row!(wrong, wait(x.item_async::<f32>()));
    row!(wrong, Device::open("no such device"));
    row!(wrong, Tensor::ones([1 << 42], DType::F32, &d).to_vec::<f32>());
    row!(wrong, Tensor::ones([1 << 42], DType::F32, &d).compute());
    row!(wrong, lazuli::compute(&[&Tensor::ones([1 << 42], DType::F32, &d)]));
    row!(wrong, wait(Tensor::ones([1 << 42], DType::F32, &d).compute_async()));
    row!(wrong, f(&[2]).gather(0, &ints(&[9])).to_vec::<f32>());
    row!(wrong, f(&[2]).scatter_add(0, &ints(&[9]), &f(&[1])).to_vec::<f32>());
    if d == Device::cpu() {
        row!(wrong, Tensor::map_custom(&custom(false), &[&f(&[2])]).to_vec::<f32>());
        row!(wrong, wait(Tensor::map_custom(&custom(false), &[&f(&[2])]).to_vec_async::<f32>()));
    }
    let other = (0..Device::all().len()).filter_map(|i| Device::open(&i.to_string()).ok()).find(|other| *other != d);
    if let Some(other) = other {
        let there = Tensor::ones([2, 3], DType::F32, &other);
        row!(wrong, x.add(&there));
        row!(wrong, lazuli::explain(&[&x, &there]));
        row!(wrong, Tensor::cat(&[&x, &there], 0));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[rustfmt::skip]
fn weights_and_batches_name_the_line_of_the_call() {
    let _device = shared();
    let (d, mut wrong) = (device(), Vec::new());
    let (mut weights, mut batch) = (Weights::new(&d), Batch::new(&d));
    row!(wrong, weights.upload("w", &[1.0], 2, 2));
    row!(wrong, weights.upload_as("w", &[1.0], 1, 1, DType::I32));
    row!(wrong, weights.import("w", &f(&[2])));
    row!(wrong, weights.import("w", &ints(&[1]).reshape([1, 1])));
    row!(wrong, weights.matmul("w", &[], &mut [], 0));
    row!(wrong, wait(weights.matmul_async("w", &[], &mut [], 0)));
    row!(wrong, weights.tensor("w"));
    let (a, b) = (batch.upload(&[1.0, 2.0]), batch.upload(&[1.0]));
    let foreign = Batch::new(&d).upload(&[1.0]);
    row!(wrong, { let y = batch.add(a, b); batch.tensor(y) });
    row!(wrong, { let y = batch.dot(a, b); batch.tensor(y) });
    row!(wrong, { let y = batch.matmul(a, b, 3, 3, 3); batch.tensor(y) });
    row!(wrong, { let y = batch.relu(foreign); batch.tensor(y) });
    row!(wrong, batch.read_blocking(foreign));
    row!(wrong, wait(batch.read(foreign)));
    row!(wrong, { let mut batch = Batch::new(&d); batch.tanh(foreign); batch.execute_blocking() });
    row!(wrong, { let mut batch = Batch::new(&d); batch.tanh(foreign); wait(batch.execute()) });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[cfg(feature = "gpu")]
#[test]
#[rustfmt::skip]
fn sharing_a_device_names_the_line_of_the_call() {
    use lazuli::gpu;
    let _device = shared();
    let (cpu, mut wrong) = (Device::cpu(), Vec::new());
    row!(wrong, gpu::handles(&cpu));
    row!(wrong, gpu::buffer(&Tensor::ones([2], DType::F32, &cpu)));
    row!(wrong, gpu::tune(&cpu, std::time::Duration::ZERO, |_| true));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The environment is read once, by a process of its own; this is what it runs.
#[test]
fn a_device_that_the_environment_names_wrongly_is_told_with_the_line_of_the_call() {
    const NAME: &str = "lines::a_device_that_the_environment_names_wrongly_is_told_with_the_line_of_the_call";
    let best = || Device::best();
    let line = line!() - 1;
    if std::env::var("LAZULI_LINES_CHILD").is_ok() {
        Tensor::ones([2], DType::F32, &best()).add(1.0).compute().unwrap();
        return;
    }
    let told = |named: &str| {
        let mut this = std::process::Command::new(std::env::current_exe().unwrap());
        this.args(["--exact", NAME, "--nocapture"]).env("LAZULI_LINES_CHILD", "1");
        let out = this.env("LAZULI_DEVICE", named).env("LAZULI_LOG", "time").output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).to_string();
        assert!(out.status.success(), "{text}");
        text
    };
    let unknown = told("abacus");
    assert!(unknown.contains("LAZULI_DEVICE: open: no device is called \"abacus\""), "{unknown}");
    assert!(unknown.contains(&format!("engine/lines.rs:{line}:")), "{unknown}");
    // Nothing is the same as not to name one.
    for none in ["", "  "] {
        let text = told(none);
        assert!(!text.contains("LAZULI_DEVICE"), "{text}");
        assert!(text.contains(" 1 kernel on ") && !text.contains("1 kernels"), "{text}");
    }
}
