//! The texts that contain code, as doctests: `cargo test -p lazuli-docs --doc` runs every example in them.

/// One module per text, with the text as its documentation.
macro_rules! texts {
    ($($name:ident $path:literal;)*) => {$(
        #[doc = include_str!($path)]
        pub mod $name {}
    )*};
}

texts! {
    readme "../README.md";
    contributing "../CONTRIBUTING.md";
    tensors "guide/1-tensors.md";
    shapes "guide/2-shapes-and-views.md";
    explain "guide/3-explain-and-memory.md";
    errors "guide/4-errors.md";
    numerics "guide/5-numerics-and-devices.md";
    training "guide/6-training.md";
    language_models "guide/8-language-models.md";
}
