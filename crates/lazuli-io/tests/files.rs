//! What is saved is loaded; what is broken is refused; what is interrupted leaves the old file.

use std::process::{Command, Stdio};
use std::time::Duration;

use lazuli::{DType, Device, Error, Tensor};
use lazuli_io::*;
use proptest::prelude::*;

fn some() -> Vec<(String, Tensor)> {
    let cpu = Device::cpu();
    let x = Tensor::arange(0.0, 6.0, 1.0, &cpu).reshape([2, 3]);
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool];
    let mut out: Vec<(String, Tensor)> = dtypes.iter().map(|d| (format!("x.{d} \"π\""), x.t().to_dtype(*d))).collect();
    out.push(("scalar".into(), Tensor::scalar(1.5, &cpu)));
    out.push(("empty".into(), Tensor::zeros([0, 3], DType::F32, &cpu)));
    out
}

#[track_caller]
fn same(a: &[(String, Tensor)], b: &[(String, Tensor)]) {
    assert_eq!(a.len(), b.len());
    for ((name, x), (other, y)) in a.iter().zip(b) {
        assert_eq!((name, x.shape().unwrap(), x.dtype().unwrap()), (other, y.shape().unwrap(), y.dtype().unwrap()));
        assert_eq!(x.to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap(), "{name}");
    }
}

#[test]
fn every_dtype_comes_back() {
    let (folder, cpu) = (tempfile::tempdir().unwrap(), Device::cpu());
    let path = folder.path().join("a.safetensors");
    save(&path, &some()).unwrap();
    // Nothing else is left in the folder.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    same(&some(), &load(&path, &cpu).unwrap());

    let plain: Vec<_> = some().into_iter().filter(|(n, _)| !n.contains("bf16")).collect();
    let path = folder.path().join("a.npz");
    save_npz(&path, &plain).unwrap();
    same(&plain, &load_npz(&path, &cpu).unwrap());
    for (name, x) in plain {
        let back = from_npy(&to_npy(&x).unwrap(), &cpu).unwrap();
        same(&[(name.clone(), x)], &[(name, back)]);
    }
}

#[test]
fn elements_may_lie_anywhere() {
    // A header of any length puts the elements at any address; they are the same wherever they lie.
    let saved = to_safetensors(&some()).unwrap();
    let n_head = u64::from_le_bytes(saved[..8].try_into().unwrap()) as usize;
    for n_spaces in 0..9 {
        let mut bytes = ((n_head + n_spaces) as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&saved[8..8 + n_head]);
        bytes.extend(std::iter::repeat_n(b' ', n_spaces));
        bytes.extend_from_slice(&saved[8 + n_head..]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let loaded = load(&path, &Device::cpu()).unwrap();
        // Nothing is read from the file any more.
        std::fs::write(&path, vec![0xff; bytes.len()]).unwrap();
        std::fs::remove_file(&path).unwrap();
        same(&some(), &loaded);
    }
}

#[test]
fn files_that_are_none_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let error = load(&empty, &Device::cpu()).unwrap_err();
    assert!(matches!(error, Error::Parse(_)) && error.to_string().contains("0 bytes, too few"), "{error}");
    assert!(matches!(load(folder.path(), &Device::cpu()).unwrap_err(), Error::Io(_)));
}

#[test]
fn columns_first_are_read_as_numpy_reads_them() {
    let mut bytes = to_npy(&Tensor::from_slice(&[0, 3, 1, 4, 2, 5], [2, 3], &Device::cpu())).unwrap();
    let at = bytes.windows(5).position(|w| w == b"False").unwrap();
    bytes[at..at + 5].copy_from_slice(b"True ");
    let x = from_npy(&bytes, &Device::cpu()).unwrap();
    assert_eq!(x.to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
}

fn file(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

#[track_caller]
fn refused(bytes: &[u8], expect: &str) {
    let error = from_safetensors(bytes, &Device::cpu()).unwrap_err();
    assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{error}");
}

#[test]
fn hostile_files_are_refused() {
    let entry = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}")
    };
    let one = |e: String| format!("{{{e}}}");
    let good = file(&one(entry("a", "F32", "[2]", 0, 8)), 8);
    assert!(from_safetensors(&good, &Device::cpu()).is_ok());
    refused(&good[..5], "too few for a header");
    refused(&good[..20], "the header claims");
    refused(&good[..good.len() - 1], "lies at bytes 0 to 8 of 7");
    refused(&file(&one(entry("a", "F32", "[2]", 0, 8)), 9), "tensors fill 8 bytes, the file has 9");
    refused(&u64::MAX.to_le_bytes(), "the header claims 18446744073709551615 bytes");
    refused(&file(&one(entry("a", "F32", "[3]", 0, 8)), 8), "is F32 [3], but 8 bytes are given");
    refused(&file(&one(entry("a", "F8_E4M3", "[8]", 0, 8)), 8), "has the dtype \"F8_E4M3\"; known are BOOL, U8");
    refused(&file(&one(entry("a", "F32", "[4611686018427387904,4611686018427387904]", 0, 8)), 8), "bytes are given");
    refused(&file(&one(entry("a", "F32", "[0,18446744073709551615]", 0, 0)), 0), "bytes are given");
    refused(&file(&one(entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4)), 4), "9 axes");
    refused(&file(&one(entry("a", "F32", "[2]", 8, 0)), 8), "lies at bytes 8 to 0");
    let two = |b: String| format!("{{{},{b}}}", entry("a", "F32", "[2]", 0, 8));
    refused(&file(&two(entry("b", "F32", "[2]", 4, 12)), 12), "overlaps");
    refused(&file(&two(entry("b", "F32", "[2]", 12, 20)), 20), "hole");
    refused(&file(&two(entry("a", "F32", "[2]", 8, 16)), 16), "the key \"a\" comes twice");
    refused(&file("[]", 0), "not an object");
    // Nothing may stand before the header; room after it is filled with spaces.
    refused(&file(&format!(" {}", one(entry("a", "F32", "[2]", 0, 8))), 8), "does not begin with `{`");
    assert!(from_safetensors(&file(&format!("{}  ", one(entry("a", "F32", "[2]", 0, 8))), 8), &Device::cpu()).is_ok());
    refused(&file("", 0), "does not begin with `{`");
    refused(&file("{} {}", 0), "is not the end");
    // Names are characters, whole ones.
    for half in ["\\ud834", "\\ud834x", "\\ud834\\u0041", "\\ud834\\ud834", "\\udd1e", "\\udd1e\\ud834"] {
        refused(&file(&one(entry(half, "F32", "[2]", 0, 8)), 8), "is half a character");
    }
    let metadata = |value: &str| file(&format!("{{\"__metadata__\":{value}}}"), 0);
    assert!(from_safetensors(&metadata("{\"format\":\"pt\"}"), &Device::cpu()).is_ok());
    for value in ["1", "[]", "\"pt\"", "{\"format\":1}", "{\"format\":{}}"] {
        refused(&metadata(value), "the __metadata__ are not texts by name");
    }
    refused(&metadata("{},\"__metadata__\":{}"), "the key \"__metadata__\" comes twice");
    let digits = format!("[1{}]", ",1".repeat(100_000));
    refused(&file(&one(entry("a", "F32", &digits, 0, 8)), 8), "more than 64 items");
    refused(&file(&one(entry("a", "F32", "[02]", 0, 8)), 8), "begins with 0");
    refused(&file(&one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"I32\"}".into()), 8), "the key \"dtype\" comes twice");
    refused(&file("{\"a\":1}", 0), "`a` is not an object");
    let large = file(&one(entry("a", "I64", "[1]", 0, 8)), 0);
    refused(&[&large[..], &i64::MAX.to_le_bytes()].concat(), "`a`:");
}

/// An archive of two tensors, one of them compressed.
fn npz() -> Vec<u8> {
    use std::io::{Cursor, Write};
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, method) in [("a.npy", zip::CompressionMethod::Stored), ("b.npy", zip::CompressionMethod::Deflated)] {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        archive.start_file(name, options).unwrap();
        archive.write_all(&to_npy(&Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu())).unwrap()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// 20,000 files of the three kinds with some bytes changed and the end cut off: an error or tensors, never a panic, and
    /// never more than the file holds.
    #[test]
    fn broken_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
        kind in 0..4,
    ) {
        let cpu = Device::cpu();
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &cpu);
        let mut bytes = match kind {
            0 => to_npy(&x).unwrap(),
            1 => npz(),
            _ => to_safetensors(&[("a".into(), x.clone()), ("b".into(), x)]).unwrap(),
        };
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match kind {
            0 => drop(from_npy(&bytes, &cpu)),
            1 => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("a.npz");
                std::fs::write(&path, &bytes).unwrap();
                if let Ok(tensors) = load_npz(&path, &cpu) {
                    let held: usize = tensors.iter().map(|(_, t)| t.to_vec::<f64>().map_or(0, |v| v.len())).sum();
                    prop_assert!(held <= bytes.len());
                }
            }
            _ => {
                if let Ok(tensors) = from_safetensors(&bytes, &cpu) {
                    let held: usize = tensors.iter().map(|(_, t)| t.to_vec::<f64>().map_or(0, |v| v.len())).sum();
                    prop_assert!(held <= bytes.len());
                }
            }
        }
    }

    /// 20,000 headers of any text.
    #[test]
    fn any_header_is_read_or_refused(header in "[\\[\\]{}:,\"a-z0-9_\\\\ ]{0,80}", n_data in 0usize..40) {
        drop(from_safetensors(&file(&header, n_data), &Device::cpu()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// 20,000 npy headers: a good one with pieces put in, taken out and repeated.
    #[test]
    fn any_npy_header_is_read_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, 0usize..PIECES.len()), 0..4),
        n_data in 0usize..40,
    ) {
        let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".to_string();
        for (at, n_taken, piece) in edits {
            let at = at.index(header.len() + 1);
            header.replace_range(at..(at + n_taken).min(header.len()), PIECES[piece]);
        }
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + n_data, 0);
        if let Ok(x) = from_npy(&bytes, &Device::cpu()) {
            prop_assert!(x.to_vec::<f64>().unwrap().len() <= n_data, "{}", header);
            for key in ["descr", "fortran_order", "shape"] {
                prop_assert_eq!(header.matches(key).count(), 1, "{}", header);
            }
        }
    }

    /// 20,000 archives with changes in their directory, where sizes, places and names are.
    #[test]
    fn any_npz_directory_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(WORDS)), 1..5),
    ) {
        let mut bytes = npz();
        let start = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        for (at, word) in changes {
            let at = start + at.index(bytes.len() - start - word.len());
            bytes[at..at + word.len()].copy_from_slice(word);
        }
        let path = FOLDER.with(|folder| folder.path().join("a.npz"));
        std::fs::write(&path, &bytes).unwrap();
        let loaded = load_npz(&path, &Device::cpu());
        // A file that is cut and written again is flushed by some file systems; a new one is not.
        std::fs::remove_file(&path).unwrap();
        if let Ok(tensors) = loaded {
            let held: usize = tensors.iter().map(|(_, t)| t.to_vec::<f64>().map_or(0, |v| v.len())).sum();
            let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
            names.sort();
            names.dedup();
            prop_assert!(held <= bytes.len() && names.len() == tensors.len());
        }
    }
}

thread_local! {
    /// One folder for all cases of a test.
    static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// What npy headers are made of, and what they are not.
const PIECES: [&str; 18] = [
    "",
    "{",
    "}",
    "(",
    ")",
    ",",
    ":",
    "'",
    "\"",
    " ",
    "\n",
    "'shape': (1,),",
    "'descr': '<f4',",
    "'fortran_order': True,",
    "0",
    "18446744073709551615",
    "-1",
    "\\",
];

/// Numbers that places and sizes may be taken for, and other names.
const WORDS: &[&[u8]] = &[
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff",
    b"\0\0",
    b"\x01\0\0\0",
    b"\x08\0",
    b"a",
    b"b",
    b"/",
    b"..",
    b"\\",
    b"PK\x05\x06",
];

/// A child saves over and over until it is killed; whenever that is, a whole file is there.
#[test]
fn a_save_that_is_killed_leaves_a_whole_file() {
    const CHILD: &str = "LAZULI_IO_SAVES_TO";
    let tensors = |i: usize| {
        let x = Tensor::full([50_000], i as f32, &Device::cpu());
        vec![("a".to_string(), x.clone()), ("b".to_string(), x)]
    };
    if let Some(path) = std::env::var_os(CHILD) {
        for i in 1.. {
            save(&path, &tensors(i)).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint.safetensors");
    save(&path, &tensors(0)).unwrap();
    let mut n_new = 0;
    for i in 0..100 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_save_that_is_killed_leaves_a_whole_file"]).env(CHILD, &path);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(15 + i * 7 % 40));
        // On Unix this is SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        let loaded = load(&path, &Device::cpu()).unwrap_or_else(|e| panic!("after kill {i}: {e}"));
        let (a, b) = (loaded[0].1.to_vec::<f32>().unwrap(), loaded[1].1.to_vec::<f32>().unwrap());
        assert!(a == b && a.iter().all(|v| *v == a[0]), "after kill {i}");
        n_new += (a[0] > 0.0) as usize;
    }
    assert!(n_new > 0, "no child ever came to save");
}
