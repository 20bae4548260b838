//! A transformer that learns a text letter by letter and then writes its own. The text is this project's licence, or any
//! file: `cargo run --release --example 12_char_transformer -- book.txt 2000`.

use lazuli::{Device, Result, Tensor};
use lazuli_nn::{
    AdamW, Clip, Embedding, Layer, LayerNorm, Linear, MultiHeadAttention, Optimizer, loss, module, schedule,
};

const WIDTH: usize = 48;
const LENGTH: usize = 32;
const BATCH: usize = 12;

/// Attention, then two layers on each place, both added to what was there.
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}
module!(Block { norm1, attention, norm2, up, down });

impl Layer for Block {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x.add(self.attention.forward(&self.norm1.forward(x)));
        x.add(self.down.forward(&self.up.forward(&self.norm2.forward(&x)).gelu()))
    }
}

struct Model {
    letters: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}
module!(Model { letters, places, blocks, norm, head });

impl Model {
    fn new(n_letters: usize, device: &Device) -> Model {
        let linear = |n_in, n_out, seed| Linear::new(n_in, n_out, seed, device);
        let block = |i: u64| Block {
            norm1: LayerNorm::new(WIDTH, device),
            attention: MultiHeadAttention::new(WIDTH, 4, 100 + i, device).causal(),
            norm2: LayerNorm::new(WIDTH, device),
            up: linear(WIDTH, 4 * WIDTH, 200 + i),
            down: linear(4 * WIDTH, WIDTH, 300 + i),
        };
        Model {
            letters: Embedding::new(n_letters, WIDTH, 1, device),
            places: Embedding::new(LENGTH, WIDTH, 2, device),
            blocks: (0..2).map(block).collect(),
            norm: LayerNorm::new(WIDTH, device),
            head: linear(WIDTH, n_letters, 3),
        }
    }
}

impl Layer for Model {
    fn forward(&self, x: &Tensor) -> Tensor {
        let start = self.letters.forward(x).add(&self.places.weight);
        let end = self.blocks.iter().fold(start, |x, block| block.forward(&x));
        self.head.forward(&self.norm.forward(&end))
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let text = words.next().and_then(|path| std::fs::read_to_string(path).ok());
    let text: Vec<char> = text.as_deref().unwrap_or(include_str!("../LICENSE-APACHE")).chars().collect();
    let n_steps: u64 = words.next().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut letters: Vec<char> = text.clone();
    letters.sort_unstable();
    letters.dedup();
    let codes: Vec<i32> = text.iter().map(|c| letters.binary_search(c).unwrap_or(0) as i32).collect();

    let device = Device::best();
    let mut model = Model::new(letters.len(), &device);
    let mut optimizer = Optimizer::new(AdamW::default(), 0.0).clipped(Clip::Norm(1.0));
    let mut losses = Vec::new();
    for step in 0..n_steps {
        optimizer.lr = schedule::warm_up_cosine(step, 4e-3, n_steps / 10, n_steps, 1e-4);
        let starts = (0..BATCH).map(|i| (step as usize * 7919 + i * 104_729) % (codes.len() - LENGTH - 1));
        let pieces: Vec<i32> = starts.flat_map(|s| &codes[s..s + LENGTH + 1]).copied().collect();
        let pieces = Tensor::from_vec(pieces, [BATCH, LENGTH + 1], &device);
        let loss = loss::cross_entropy(&model.forward(&pieces.narrow(1, 0, LENGTH)), &pieces.narrow(1, 1, LENGTH));
        losses.push(optimizer.step(&mut model, loss)?.item::<f32>()?);
        if step % 20 == 0 {
            println!("step {step:>4}: loss {:.3}", losses[step as usize]);
        }
    }
    let mut written = codes[..LENGTH].to_vec();
    for _ in 0..60 {
        let seen = Tensor::from_slice(&written[written.len() - LENGTH..], [1, LENGTH], &device);
        written.push(model.forward(&seen).select_index(1, -1).argmax(-1).item()?);
    }
    println!("{}", written.iter().map(|c| letters[*c as usize]).collect::<String>());
    assert!(losses.last() < losses.first());
    Ok(())
}
