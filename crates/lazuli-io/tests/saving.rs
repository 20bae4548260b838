//! What `save` leaves of the file that was there before: its place, its permissions, and links to it. On Unix, where there
//! are such things.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use lazuli::{Device, Error, Tensor};
use lazuli_io::{load, save, save_npy, save_npz, write_atomically};

fn one(x: f32) -> Vec<(String, Tensor)> {
    vec![("x".into(), Tensor::scalar(x, &Device::cpu()))]
}

#[track_caller]
fn holds(path: &Path, expect: f32) {
    assert_eq!(load(path, &Device::cpu()).unwrap()[0].1.item::<f32>().unwrap(), expect);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// What is in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn refused(path: &Path, expect: &str) {
    let error = save(path, &one(2.0)).unwrap_err();
    assert!(matches!(error, Error::Io(_)) && error.to_string().contains(expect), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    for wanted in [0o600, 0o640, 0o644, 0o660, 0o666, 0o755] {
        save(&path, &one(1.0)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(wanted)).unwrap();
        save(&path, &one(2.0)).unwrap();
        assert_eq!(mode(&path), wanted, "{wanted:o}");
        holds(&path, 2.0);
        // The other ways to save go the same way.
        save_npy(&path, &Tensor::scalar(1.0, &Device::cpu())).unwrap();
        assert_eq!(mode(&path), wanted, "npy {wanted:o}");
        save_npz(&path, &one(1.0)).unwrap();
        assert_eq!(mode(&path), wanted, "npz {wanted:o}");
    }
    // A program that runs as its owner is not made of what somebody saves.
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
    save(&path, &one(2.0)).unwrap();
    assert_eq!(mode(&path), 0o755);
    assert_eq!(names(folder.path()), ["a"]);
}

/// The default depends on the process: a child is started with several.
#[test]
fn a_new_file_gets_the_default_permissions() {
    const CHILD: &str = "LAZULI_IO_SAVES_NEW";
    if let Some(path) = std::env::var_os(CHILD) {
        return write_atomically(path, b"new").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    for (mask, expect) in [("000", 0o666), ("022", 0o644), ("077", 0o600)] {
        let path = folder.path().join(mask);
        let words = format!("umask {mask} && exec \"$0\" --exact a_new_file_gets_the_default_permissions");
        let run = Command::new("sh").args(["-c", &words]).arg(&program).env(CHILD, &path).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        assert_eq!(mode(&path), expect, "umask {mask}");
    }
}

#[test]
fn symbolic_links_stay_and_lead_to_what_was_saved() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = elsewhere.path().join("real");
    save(&file, &one(1.0)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let (link, second) = (folder.path().join("link"), folder.path().join("second"));
    symlink(&file, &link).unwrap();
    // A link to a link, and not by a whole path.
    symlink("link", &second).unwrap();
    for (i, path) in [&link, &second].into_iter().enumerate() {
        let x = 2.0 + i as f32;
        save(path, &one(x)).unwrap();
        holds(&file, x);
        holds(path, x);
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::symlink_metadata(&second).unwrap().is_symlink());
    assert_eq!(fs::read_link(&second).unwrap(), Path::new("link"));
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    assert_eq!(mode(&file), 0o600);
    assert_eq!(
        (names(folder.path()), names(elsewhere.path())),
        (vec!["link".into(), "second".into()], vec!["real".into()])
    );
}

#[test]
fn what_cannot_be_replaced_is_an_error_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("folder", at("to-folder")).unwrap();
    symlink("loop", at("loop")).unwrap();
    save(at("fixed"), &one(1.0)).unwrap();
    fs::set_permissions(at("fixed"), Permissions::from_mode(0o444)).unwrap();
    symlink("fixed", at("to-fixed")).unwrap();
    let before = names(folder.path());

    refused(&at("dangling"), "it is a symbolic link to nowhere, which is not there");
    refused(&at("folder"), "it is a folder, not a file");
    refused(&at("to-folder"), "it is a folder, not a file");
    refused(&at("loop"), "symbolic link");
    refused(&at("fixed"), "it is read-only");
    refused(&at("to-fixed"), "it is read-only");
    refused(&at("missing/a"), "No such file");
    refused(&at("fixed/a"), "Not a directory");
    refused(&at("folder/.."), "it is a folder, not a file");
    assert!(save("", &one(1.0)).unwrap_err().to_string().contains("the path names no file"));

    holds(&at("fixed"), 1.0);
    assert_eq!(mode(&at("fixed")), 0o444);
    assert_eq!(names(folder.path()), before);
    assert_eq!(fs::read_dir(at("folder")).unwrap().count(), 0);
}

#[test]
fn long_names_and_leftovers_are_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("ü".repeat(127));
    save(&long, &one(1.0)).unwrap();
    save(&long, &one(2.0)).unwrap();
    holds(&long, 2.0);
    // What a killed process of the same number left behind is neither used nor followed.
    let victim = folder.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    for count in 0..200 {
        symlink(&victim, folder.path().join(format!(".a.{}.{count}.tmp", std::process::id()))).unwrap();
    }
    save(folder.path().join("a"), &one(3.0)).unwrap();
    holds(&folder.path().join("a"), 3.0);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_pipe_is_written_to_and_stays_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write_atomically(&pipe, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
    assert_eq!(names(folder.path()), ["pipe"]);
}
