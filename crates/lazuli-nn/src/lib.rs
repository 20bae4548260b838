//! Layers, losses, optimisers and data loading, written with tensors alone. A training step (forward, loss, gradients,
//! clipping, update) is recorded and then run as one plan that updates parameters in place.
//!
//! ```
//! use lazuli::{Device, Tensor};
//! use lazuli_nn::{Adam, Layer, Linear, Optimizer, Relu, Sequential, loss};
//!
//! let cpu = Device::cpu();
//! let mut model = Sequential::new().push(Linear::new(2, 8, 1, &cpu)).push(Relu).push(Linear::new(8, 1, 2, &cpu));
//! let mut optimizer = Optimizer::new(Adam::default(), 0.05);
//! let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [4, 2], &cpu);
//! let y = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0], [4, 1], &cpu);
//! let first = loss::mse(&model.forward(&x), &y).item::<f32>()?;
//! for _ in 0..50 {
//!     let loss = loss::mse(&model.forward(&x), &y);
//!     optimizer.step(&mut model, loss)?;
//! }
//! assert!(loss::mse(&model.forward(&x), &y).item::<f32>()? < 0.5 * first);
//! # Ok::<(), lazuli::Error>(())
//! ```

mod fault;

// What models are made of.
mod module;
pub mod init;
mod linear;
mod norm;
mod dropout;
mod conv;
mod pool;
mod attention;
mod projection;
mod rotary;
mod kv_cache;
mod grouped_attention;
mod gated;
mod recurrent;
mod sequential;

// How they learn.
pub mod loss;
pub mod metrics;
mod rules;
mod optimizer;
pub mod schedule;
pub mod data;

pub use attention::MultiHeadAttention;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Window};
pub use dropout::Dropout;
pub use gated::{Gate, GatedMlp};
pub use grouped_attention::{GroupedQueryAttention, QkvProjection};
pub use kv_cache::KvCache;
pub use linear::{Embedding, Linear};
pub use module::{Buffer, Counter, Item, Layer, Mode, Module, buffers, load, named, parameters, set_mode};
pub use norm::{BatchNorm, LayerNorm, RmsNorm};
pub use optimizer::{Clip, Optimizer};
pub use pool::{AvgPool2d, MaxPool2d};
pub use projection::{Adapter, Projection};
pub use recurrent::{Gru, Lstm, Rnn};
pub use rotary::{Rotary, RotaryPairs, RotaryScaling};
pub use rules::{Adam, AdamW, Lion, RmsProp, Rule, Sgd, Update};
pub use sequential::{Flatten, Gelu, Relu, Sequential, Tanh};
