//! Made-up images in the files of MNIST, for tests of `lazuli train` and for `cargo xtask soak mpi`.

use std::path::Path;

/// Writes files of so many images to train with and to test with.
pub fn write(folder: &Path, n_train: u32, n_test: u32) -> std::io::Result<()> {
    for (stem, n) in [("train", n_train), ("t10k", n_test)] {
        let sizes = |sizes: &[u32]| sizes.iter().flat_map(|size| size.to_be_bytes()).collect::<Vec<u8>>();
        let pixels: Vec<u8> = (0..n * 784).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let images = [&[0, 0, 8, 3][..], &sizes(&[n, 28, 28]), &pixels].concat();
        let labels: Vec<u8> = (0..n).map(|i| (i % 10) as u8).collect();
        let labels = [&[0, 0, 8, 1][..], &sizes(&[n]), &labels].concat();
        std::fs::write(folder.join(format!("{stem}-images-idx3-ubyte")), images)?;
        std::fs::write(folder.join(format!("{stem}-labels-idx1-ubyte")), labels)?;
    }
    Ok(())
}
