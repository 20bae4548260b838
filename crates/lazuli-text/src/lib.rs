//! Language models on any device: tokenizers, chat templates, sampling, and families of models from GGUF files or
//! safetensors. A model is opened and talked to; what a reply needs is planned once, and each further token plans, compiles and
//! allocates nothing.
//!
//! ```no_run
//! use lazuli::Device;
//! use lazuli_text::{LanguageModel, Sampling};
//! # fn main() -> Result<(), lazuli::Error> {
//! let model = LanguageModel::open("SmolLM2-135M-Instruct.Q4_1.gguf", &Device::best())?;
//! let mut chat = model.chat();
//! for piece in chat.say("What is the capital of France?", &Sampling::default()) {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```

mod fault;

// Text.
mod tokenizer;
mod template;
mod sampling;
mod text_stream;

// Models.
mod family;
mod config;
mod weights;
mod decoder;

// Talking to them.
mod session;
mod reply;
mod chat;
mod model;

pub use chat::{Chat, FullContext, Reply};
pub use config::ModelConfig;
pub use decoder::Decoder;
pub use family::{FAMILIES, Family};
pub use model::LanguageModel;
pub use reply::Completion;
pub use sampling::{Sampler, Sampling};
pub use session::Session;
pub use template::{ChatTemplate, Message, Role};
pub use tokenizer::{TokenKind, Tokenizer};
