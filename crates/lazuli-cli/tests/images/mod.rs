//! A folder with made-up images.

mod idx;

/// With so many images to train with and to test with.
pub fn images(n_train: u32, n_test: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    idx::write(folder.path(), n_train, n_test).expect("there is room");
    folder
}
