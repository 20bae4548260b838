//! Tensors in files: safetensors and GGUF for models, npy and npz for the rest of the world. Files are read with suspicion (what a
//! header claims is checked against what is there before anything is made of it) and written atomically.
//!
//! ```
//! use lazuli::{Device, Tensor};
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("model.safetensors");
//! let cpu = Device::cpu();
//! let saved = vec![("w".to_string(), Tensor::arange(0.0, 4.0, 1.0, &cpu).reshape([2, 2]))];
//! lazuli_io::save(&path, &saved)?;
//! let loaded = lazuli_io::load(&path, &cpu)?;
//! assert_eq!(loaded[0].0, "w");
//! assert_eq!(loaded[0].1.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fault;
mod atomic;
mod mapped;
mod elements;
mod json;
mod safetensors;
mod npy;
mod npz;
mod gguf;

pub use atomic::write_atomically;
pub use gguf::{FromGguf, Gguf, GgufArray, GgufFormat, GgufMetadata, GgufTensor, GgufValue, GgufWriter};
pub use npy::{from_npy, load_npy, save_npy, to_npy};
pub use npz::{load_npz, load_npz_up_to, save_npz};
pub use safetensors::{from_safetensors, load, save, to_safetensors};
