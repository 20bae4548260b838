//! Matrix products, and a small network built of them: bias and activation happen inside the product's kernel. Run it
//! with `cargo run --release --example 07_matmul_mlp_forward`.

use lazuli::{Device, Result, Tensor, einsum};

/// A dense layer: weights `[n_in, n_out]` and a bias `[n_out]`.
struct Dense {
    weight: Tensor,
    bias: Tensor,
}

impl Dense {
    fn new(n_in: usize, n_out: usize, seed: u64, device: &Device) -> Result<Dense> {
        // Normal numbers scaled so that activations keep their size from layer to layer.
        let scale = (2.0 / n_in as f32).sqrt();
        let weight = Tensor::randn([n_in, n_out], seed, device).mul(scale).compute()?;
        let bias = Tensor::randn([n_out], seed + 1, device).mul(0.01).compute()?;
        Ok(Dense { weight, bias })
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.matmul(&self.weight).add(&self.bias)
    }
}

fn main() -> Result<()> {
    let cpu = Device::cpu();

    // Batches broadcast, vectors are rows or columns as needed, transposes are free: all as in NumPy.
    let a = Tensor::rand([8, 3, 4], 1, &cpu);
    let b = Tensor::rand([4, 5], 2, &cpu);
    assert_eq!(a.matmul(&b).shape()?, [8, 3, 5]);
    assert_eq!(b.t().matmul(&a.transpose(1, 2)).shape()?, [8, 5, 3]);
    assert_eq!(einsum("bij,jk->bki", &[&a, &b]).shape()?, [8, 5, 3]);
    let v = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &cpu);
    assert_eq!(v.dot(&v).item::<f32>()?, 14.0);

    // 784 → 512 → 512 → 10, for a batch of 64 made-up images.
    let layers = [Dense::new(784, 512, 10, &cpu)?, Dense::new(512, 512, 20, &cpu)?, Dense::new(512, 10, 30, &cpu)?];
    let images = Tensor::rand([64, 784], 40, &cpu).compute()?;
    let hidden = layers[0].forward(&images).relu();
    let hidden = layers[1].forward(&hidden).relu();
    let logits = layers[2].forward(&hidden);
    let probabilities = logits.softmax(-1);

    let plan = probabilities.explain()?;
    println!("{plan}");
    // One kernel a layer, bias and activation included, and one for the softmax.
    assert_eq!(plan.kernels.len(), 4);
    assert!(plan.kernels[..3].iter().all(|kernel| kernel.form == "matmul"));

    // The answer and how sure the network is of it, in one evaluation.
    let (class, confidence) = (probabilities.argmax(-1), probabilities.max(-1));
    lazuli::compute(&[&class, &confidence])?;
    let (class, confidence) = (class.to_vec::<i32>()?, confidence.to_vec::<f32>()?);
    println!("image 0 is a {} (made up, but {:.0} % sure)", class[0], confidence[0] * 100.0);
    assert!(class.iter().all(|c| (0..10).contains(c)));
    assert!(confidence.iter().all(|p| (0.1..=1.0).contains(p)));
    Ok(())
}
