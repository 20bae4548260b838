//! What a plan does, told before anything runs: kernels, memory, traffic, and the least that would do. Run it with
//! `cargo run --release --example 03_explain`.

use lazuli::{Device, Result, Tensor};

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let x = Tensor::rand([1000, 1000], 1, &cpu).compute()?;
    let w = Tensor::rand([1000, 1000], 2, &cpu).compute()?;

    // A chain of maps is one kernel. It reads its input once, writes its output once, and needs no memory in between:
    // that is the least anybody could do, and the plan says so.
    let chain = x.add(1.0).mul(2.0).tanh().sub(&x).exp();
    let plan = chain.explain()?;
    println!("a chain\n{plan}");
    assert_eq!(plan.kernels.len(), 1);
    assert_eq!(plan.peak_temp_bytes, 0);
    assert_eq!(plan.bytes_moved, plan.bytes_moved_lower_bound);
    assert_eq!(plan.kernels[0].form, "map");

    // Softmax reads each row, reduces it twice, and writes it: one kernel too.
    let plan = x.softmax(-1).explain()?;
    println!("softmax\n{plan}");
    assert_eq!(plan.kernels.len(), 1);
    assert_eq!(plan.kernels[0].form, "reduce");

    // What follows a matmul element by element happens while its result is still at hand.
    let layer = x.matmul(&w).add(&x).relu();
    let plan = layer.explain()?;
    println!("a layer\n{plan}");
    assert_eq!(plan.kernels.len(), 1);
    assert_eq!(plan.kernels[0].form, "matmul");

    // Where two kernels are needed, the plan says why.
    let plan = layer.softmax(0).explain()?;
    println!("a layer and a softmax down its columns\n{plan}");
    for boundary in &plan.boundaries {
        println!("kernel {} waits for {} because: {}", boundary.after, boundary.before, boundary.why);
    }
    assert!(plan.kernels.len() > 1);
    assert!(!plan.boundaries.is_empty());
    assert!(plan.peak_temp_bytes >= plan.peak_temp_lower_bound);

    // The same for programs and for Graphviz. Plans are deterministic: tests may compare the text.
    assert!(plan.to_json().starts_with("{\"dispatches\":"));
    assert!(plan.to_dot().starts_with("digraph plan {"));
    assert_eq!(plan, layer.softmax(0).explain()?);

    // Explaining ran none of it; and what has been computed costs nothing more.
    let done = chain.compute()?;
    assert_eq!(done.explain()?.kernels.len(), 0);
    Ok(())
}
