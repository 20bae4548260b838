//! Speech to tokens: Moonshine's encoder hears, its decoder writes with the keys and values of what it wrote before. It needs
//! `cargo xtask data moonshine`; `lazuli transcribe` spells the tokens out.

use std::error::Error;

use lazuli::{DType, Device, Tensor};
use lazuli_onnx::Model;

fn main() -> Result<(), Box<dyn Error>> {
    let wav = std::fs::read("data/moonshine/beckett.wav");
    let wav = wav.map_err(|e| format!("beckett.wav: {e}; `cargo xtask data moonshine` fetches what this needs"))?;
    let device = Device::best();
    let load = |name: &str| Model::load(format!("data/moonshine/{name}.onnx"), &device);
    let (encoder, decoder) = (load("encoder_model")?, load("decoder_model_merged")?);
    // 16-bit samples after a header of 44 bytes.
    let sample = |pair: &[u8]| i16::from_le_bytes([pair[0], pair[1]]) as f32 / 32768.0;
    let samples: Vec<f32> = wav[44..].chunks_exact(2).map(sample).collect();
    let sound = Tensor::from_slice(&samples, [1, samples.len()], &device);
    let heard = encoder.run(&[("input_values", &sound)])?.tensor("last_hidden_state")?.compute()?;

    let keys = decoder.inputs().iter().map(|input| input.name.clone()).filter(|name| name.starts_with("past"));
    let mut past: Vec<_> = keys.map(|key| (key, Tensor::zeros([1, 8, 0, 36], DType::F32, &device))).collect();
    let mut tokens = vec![1];
    while tokens.last() != Some(&2) && tokens.len() < 60 {
        let is_first = tokens.len() == 1;
        let last = Tensor::from_slice(&tokens[tokens.len() - 1..], [1, 1], &device);
        let cached = Tensor::from_slice(&[!is_first], [1], &device);
        let mut inputs = vec![("input_ids", &last), ("encoder_hidden_states", &heard), ("use_cache_branch", &cached)];
        inputs.extend(past.iter().map(|(key, tensor)| (key.as_str(), tensor)));
        let given = decoder.run(&inputs)?;
        let mut wanted = vec![given.tensor("logits")?.argmax(-1)];
        for (key, tensor) in past.iter_mut().filter(|(key, _)| is_first || key.contains(".decoder.")) {
            *tensor = given.tensor(&key.replace("past_key_values", "present"))?;
            wanted.push(tensor.clone());
        }
        lazuli::compute(&wanted.iter().collect::<Vec<_>>())?;
        tokens.extend(wanted[0].to_vec::<i32>()?);
    }
    println!("{} s of sound, {} tokens: {tokens:?}", samples.len() / 16_000, tokens.len());
    assert_eq!(tokens.len(), 19);
    Ok(())
}
