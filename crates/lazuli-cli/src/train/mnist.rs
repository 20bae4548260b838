//! Handwritten digits: IDX files, and batches of them as tensors.

use std::path::Path;

use lazuli::{DType, Device, Tensor};
use lazuli_nn::data::Dataset;

/// Which images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Train,
    Test,
}

/// Images of 28 × 28 and what they show.
pub struct Mnist {
    images: Vec<u8>,
    labels: Vec<u8>,
    device: Device,
}

const SIDE: usize = 28;

impl Mnist {
    /// Reads one part from a folder.
    pub fn load(folder: &Path, part: Part, device: &Device) -> Result<Mnist, String> {
        let stem = if part == Part::Train { "train" } else { "t10k" };
        let read = |name: String, item: &[usize]| {
            let path = folder.join(name);
            let bytes = std::fs::read(&path);
            let bytes = bytes.map_err(|e| format!("{}: {e}; `cargo xtask data mnist` fetches it", path.display()))?;
            idx(&bytes, item).map_err(|e| format!("{}: {e}", path.display()))
        };
        let images = read(format!("{stem}-images-idx3-ubyte"), &[SIDE, SIDE])?;
        let labels = read(format!("{stem}-labels-idx1-ubyte"), &[])?;
        if images.len() != labels.len() * SIDE * SIDE || labels.iter().any(|l| *l > 9) {
            return Err(format!("{} bytes of images and {} labels do not go together", images.len(), labels.len()));
        }
        Ok(Mnist { images, labels, device: device.clone() })
    }
}

/// The bytes of an IDX file of u8 whose items have this shape.
fn idx(bytes: &[u8], item: &[usize]) -> Result<Vec<u8>, String> {
    let n_head = 4 + 4 * (1 + item.len());
    let magic = [0, 0, 8, 1 + item.len() as u8];
    let (head, data) = bytes.split_at_checked(n_head).ok_or("the IDX file is too short")?;
    if head[..4] != magic {
        return Err(format!("not an IDX file of bytes that begins with {magic:?}"));
    }
    let sizes: Vec<usize> = head[4..].as_chunks::<4>().0.iter().map(|s| u32::from_be_bytes(*s) as usize).collect();
    let n = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    if sizes[1..] != *item || n != Some(data.len()) {
        return Err(format!("the IDX file claims {sizes:?} and has {} bytes", data.len()));
    }
    Ok(data.to_vec())
}

impl Dataset for Mnist {
    type Batch = (Tensor, Tensor);

    fn n_examples(&self) -> usize {
        self.labels.len()
    }

    fn batch(&self, examples: &[usize]) -> (Tensor, Tensor) {
        let n_pixels = SIDE * SIDE;
        let pixels: Vec<u8> = examples.iter().flat_map(|i| &self.images[i * n_pixels..][..n_pixels]).copied().collect();
        let labels: Vec<i32> = examples.iter().map(|i| self.labels[*i] as i32).collect();
        let n = examples.len();
        let pixels = Tensor::from_vec(pixels, [n, 1, SIDE, SIDE], &self.device);
        // Mean 0 and variance 1 over all images; fuses with whatever reads it.
        let images = pixels.to_dtype(DType::F32).mul(1.0 / 255.0).sub(0.1307).mul(1.0 / 0.3081);
        (images, Tensor::from_vec(labels, [n], &self.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_files_are_refused() {
        let good = [&[0, 0, 8, 1, 0, 0, 0, 2][..], &[7, 9]].concat();
        assert_eq!(idx(&good, &[]), Ok(vec![7, 9]));
        assert!(idx(&good[..9], &[]).is_err());
        assert!(idx(&good[..3], &[]).is_err());
        assert!(idx(&good, &[28, 28]).is_err());
        let huge = [0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255];
        assert!(idx(&huge, &[28, 28]).is_err());
    }
}
