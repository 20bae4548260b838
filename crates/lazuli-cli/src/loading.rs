//! What commands for models share: which files a folder must hold, and a sign of life while they are loaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// The files of a model that a command runs, and where people get them.
pub struct ModelFiles {
    /// The command, for its errors.
    pub command: &'static str,
    pub files: &'static [&'static str],
    /// How to get them, as a sentence.
    pub source: &'static str,
}

impl ModelFiles {
    /// The folder that was named, if it holds every file; else what is missing, and how to get it.
    pub fn folder(&self, named: Option<&Path>) -> Result<PathBuf, String> {
        let needs = format!("`{}` needs a folder with {}. {}", self.command, self.files.join(", "), self.source);
        let Some(folder) = named else { return Err(format!("which model? Name its folder with --model DIR: {needs}")) };
        if !folder.is_dir() {
            return Err(format!("{} is no folder: {needs}", folder.display()));
        }
        let missing: Vec<&str> = self.files.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
        match missing[..] {
            [] => Ok(folder.to_path_buf()),
            _ => Err(format!("{} has no {}: {needs}", folder.display(), missing.join(", "))),
        }
    }
}

/// Loads a file while people who watch see that something happens; nothing is shown where nobody does.
pub fn while_loading<T>(path: &Path, load: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    let size = std::fs::metadata(path).map_or(String::new(), |file| format!(" ({})", HumanBytes(file.len())));
    bar.set_message(format!("loading {}{size}", path.display()));
    bar.enable_steady_tick(Duration::from_millis(100));
    let loaded = load();
    bar.finish_and_clear();
    loaded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_way_to_get_it() {
        let files = ModelFiles { command: "sing", files: &["a.onnx", "b.json"], source: "`fetch songs` gets them." };
        let error = files.folder(None).unwrap_err();
        assert!(error.contains("--model DIR") && error.contains("a.onnx, b.json. `fetch songs`"), "{error}");
        let folder = tempfile::tempdir().expect("a folder");
        assert!(files.folder(Some(&folder.path().join("none"))).unwrap_err().contains("none is no folder"));
        std::fs::write(folder.path().join("a.onnx"), "").expect("is written");
        let error = files.folder(Some(folder.path())).unwrap_err();
        assert!(error.contains(" has no b.json: `sing` needs"), "{error}");
        std::fs::write(folder.path().join("b.json"), "").expect("is written");
        assert_eq!(files.folder(Some(folder.path())).as_deref(), Ok(folder.path()));
    }
}
