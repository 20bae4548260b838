//! An elementwise op of your own, which fuses like any other. Run it with
//! `cargo run --release --example 08_custom_op`.

use std::sync::Arc;

use lazuli::{CustomOp, Device, Error, Result, Tensor};

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let (x, y) = (Tensor::rand([1000], 1, &cpu).compute()?, Tensor::rand([1000], 2, &cpu).compute()?);

    // What can be written with other ops needs no op of its own: a function will do, and it fuses.
    let mish = |x: &Tensor| x.mul(&x.softplus().tanh());
    assert_eq!(mish(&x).explain()?.kernels.len(), 1);

    // What cannot is a function of floats. `wgsl` is the same function for GPUs; the CPU does not look at it.
    let gamma = CustomOp {
        name: "srgb".into(),
        wgsl: "select(1.055 * pow($0, 1.0 / 2.4) - 0.055, 12.92 * $0, $0 <= 0.0031308)".into(),
        cpu: Arc::new(|x| if x[0] <= 0.0031308 { 12.92 * x[0] } else { 1.055 * x[0].powf(1.0 / 2.4) - 0.055 }),
        grad: None,
    };
    let encode = |x: &Tensor| Tensor::map_custom(&gamma, &[x]);

    // Between other ops it shares their kernel: nothing is stored before or after it.
    let z = encode(&x.mul(0.5).add(0.25)).mul(255.0).round();
    let plan = z.explain()?;
    println!("{plan}");
    assert_eq!(plan.kernels.len(), 1);
    assert!(plan.kernels[0].ops.contains(&"srgb".to_string()));
    assert!(z.to_vec::<f32>()?.iter().all(|v| (0.0..=255.0).contains(v)));

    // With several inputs, which broadcast like those of any op.
    let hypot = CustomOp {
        name: "hypot".into(),
        wgsl: "length(vec2($0, $1))".into(),
        cpu: Arc::new(|x| x[0].hypot(x[1])),
        grad: None,
    };
    let lengths = Tensor::map_custom(&hypot, &[&x.unsqueeze(1), &y]);
    assert_eq!(lengths.shape()?, [1000, 1000]);

    // Used again, the same op finds its plan again.
    let made = |f: &dyn Fn() -> Tensor| -> Result<u64> {
        let before = cpu.stats().plans_compiled;
        f().compute()?;
        Ok(cpu.stats().plans_compiled - before)
    };
    encode(&y).compute()?;
    assert_eq!(made(&|| encode(&y))?, 0);

    // If it panics, that is an error of its own kind, and the engine goes on.
    let broken = CustomOp { name: "broken".into(), cpu: Arc::new(|_| panic!("a bug in user code")), ..hypot };
    std::panic::set_hook(Box::new(|_| {}));
    let error = Tensor::map_custom(&broken, &[&x]).to_vec::<f32>().unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Custom(_)));
    assert_eq!(x.sub(&x).sum(..).item::<f32>()?, 0.0);
    Ok(())
}
