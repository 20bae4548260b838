//! `cargo xtask docs`: pages written from the rows, so that they cannot say something else than the engine does.

mod numerics;
mod numpy;
mod ops;
mod page;

use crate::workspace;

/// The pages and what writes them.
const PAGES: &[(&str, fn() -> Result<String, String>)] =
    &[("docs/ops.md", ops::page), ("docs/numerics.md", numerics::page)];

/// Writes every page.
pub fn write() -> Result<(), String> {
    for (path, page) in PAGES {
        workspace::write(path, &page()?)?;
        println!("docs: wrote {path}");
    }
    Ok(())
}

/// An error if a page is not what would be written now.
pub fn check() -> Result<(), String> {
    for (path, page) in PAGES {
        let (there, wanted) = (workspace::read(path).unwrap_or_default(), page()?);
        if there != wanted {
            let line = there.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count() + 1;
            return Err(format!("{path} is not up to date from line {line} on; run `cargo xtask docs`"));
        }
        println!("docs: {path} is up to date");
    }
    Ok(())
}
