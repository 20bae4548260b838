//! Files made to do harm: for each reader a table of what it is given and what it says. An error must come before memory
//! is taken for what a file only claims.

use std::io::{Cursor, Write};

use lazuli::{Device, Error, Tensor};
use lazuli_io::{from_npy, load_npz, load_npz_up_to, save_npz, to_npy};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// An npy file of version 1 with this header and so many bytes of elements.
fn npy(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

#[track_caller]
fn npy_refused(bytes: &[u8], expect: &str) {
    let error = from_npy(bytes, &Device::cpu()).expect_err(expect);
    assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{error}");
}

#[test]
fn npy_files_are_refused_with_a_reason() {
    let good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8);
    assert!(from_npy(&good, &Device::cpu()).is_ok());
    for (bytes, expect) in [
        (&good[..0], "not an npy file"),
        (&good[..7], "the file ends inside its header"),
        (&good[..20], "the file ends inside its header"),
        (&good[..good.len() - 1], "the header claims F32 [2], the file has 7 bytes of elements"),
        (&[&good[..], &[0]].concat(), "the header claims F32 [2], the file has 9 bytes of elements"),
        (&[b"\x93NUMPY\x07", &good[7..]].concat(), "version 7 of the format is not known"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "the file ends inside its header"),
        (b"\x93NUMPY\x01\x00\x02\x00\xff\xff", "the header is not UTF-8"),
    ] {
        npy_refused(bytes, expect);
    }

    let order = "'fortran_order': False";
    for (header, expect) in [
        // A key twice: whoever takes the first and whoever takes the last see different tensors.
        (format!("{{'descr': '<f4', {order}, 'shape': (2,), 'shape': (2,), }}"), "the key \"shape\" comes twice"),
        (format!("{{'descr': '<f4', 'descr': '<i4', {order}, 'shape': (2,), }}"), "the key \"descr\" comes twice"),
        (format!("{{'descr': '<f4', {order}, {order}, 'shape': (2,)}}"), "the key \"fortran_order\" comes twice"),
        // Keys inside values are none.
        (format!("{{'descr': ''shape': (2,)', {order}}}"), "neither `,` nor `}` follows the value of \"descr\""),
        (format!("{{'descr': \"'shape': (2,)\", {order}, }}"), "elements of type \"'shape': (2,)\" are not supported"),
        (format!("{{'descr': '<f4', {order}, 'shape': (2,), 'more': 1, }}"), "unknown key \"more\""),
        (format!("{{'descr': '<f4', {order}, }}"), "the header has no shape"),
        ("{'descr': '<f4', 'shape': (2,), }".to_string(), "the header has no fortran_order"),
        (format!("{{{order}, 'shape': (2,), }}"), "the header has no descr"),
        (format!("{{'descr': '<f4', {order}, 'shape': (2,), }} + evil()"), "goes on after its dictionary"),
        (format!("{{'descr': '<f4', {order}, 'shape': (2,)"), "neither `,` nor `}` follows"),
        (format!("'descr': '<f4', {order}, 'shape': (2,)"), "the header is not a dictionary"),
        ("{".to_string(), "a key of the header is not a string"),
        ("{'descr'".to_string(), "`:` does not follow \"descr\""),
        (format!("{{'descr': '\\x3cf4', {order}, 'shape': (2,), }}"), "descr is not a string"),
        (format!("{{'descr': [('a', '<f4')], {order}, 'shape': (2,), }}"), "records are not supported"),
        (format!("{{'descr': '>f4', {order}, 'shape': (2,), }}"), "elements of type \">f4\" are not supported"),
        (format!("{{'descr': '|O', {order}, 'shape': (2,), }}"), "elements of type \"|O\" are not supported"),
        (format!("{{'descr': '<f4', {order}, 'shape': [2], }}"), "shape is not a tuple"),
        (format!("{{'descr': '<f4', {order}, 'shape': (2, x), }}"), "\"x\" is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (+2,), }}"), "\"+2\" is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (-2,), }}"), "\"-2\" is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (,2), }}"), "\"\" is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (,), }}"), "\"\" is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (99999999999999999999,), }}"), "is not a size"),
        (format!("{{'descr': '<f4', {order}, 'shape': (4294967296, 4294967296), }}"), "8 bytes of elements"),
        (format!("{{'descr': '<f4', {order}, 'shape': (0, 4611686018427387904), }}"), "8 bytes of elements"),
        (format!("{{'descr': '<f4', {order}, 'shape': ({}), }}", "1,".repeat(9)), "more than 8 axes"),
        ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }".to_string(), "neither True nor False"),
    ] {
        npy_refused(&npy(&header, 8), expect);
    }
}

/// A zip of these entries.
fn zip(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents) in entries {
        archive.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        archive.write_all(contents).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A zip taken apart: what comes before its directory, and the records of the directory.
struct Parts {
    entries: Vec<u8>,
    records: Vec<Vec<u8>>,
}

impl Parts {
    fn of(archive: &[u8]) -> Parts {
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let half = |bytes: &[u8], at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
        let end = &archive[archive.len() - 22..];
        let (start, mut rest) = (number(end, 16), &archive[number(end, 16)..archive.len() - 22]);
        let mut records = Vec::new();
        while !rest.is_empty() {
            let n = 46 + half(rest, 28) + half(rest, 30) + half(rest, 32);
            records.push(rest[..n].to_vec());
            rest = &rest[n..];
        }
        Parts { entries: archive[..start].to_vec(), records }
    }

    fn together(&self) -> Vec<u8> {
        let mut out = self.entries.clone();
        let directory = self.records.concat();
        out.extend_from_slice(&directory);
        out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        out.extend_from_slice(&(self.records.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.records.len() as u16).to_le_bytes());
        out.extend_from_slice(&(directory.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out
    }
}

/// The same record under another name of the same length.
fn renamed(record: &[u8], name: &str) -> Vec<u8> {
    let mut record = record.to_vec();
    record[46..46 + name.len()].copy_from_slice(name.as_bytes());
    record
}

fn load(bytes: &[u8]) -> lazuli::Result<Vec<(String, Tensor)>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    std::fs::write(&path, bytes).unwrap();
    load_npz(&path, &Device::cpu())
}

#[track_caller]
fn npz_refused(bytes: &[u8], expect: &str) {
    let error = load(bytes).map(|tensors| tensors.len()).expect_err(expect);
    assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{error}");
}

const STORED: CompressionMethod = CompressionMethod::Stored;
const DEFLATED: CompressionMethod = CompressionMethod::Deflated;

fn two() -> Vec<u8> {
    to_npy(&Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu())).unwrap()
}

#[test]
fn entries_that_share_bytes_are_refused() {
    // 4 MiB of zeros once, under a thousand names: less than 100 KB that would become 4 GB.
    let zeros = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4194304,), }", 4 << 20);
    let mut parts = Parts::of(&zip(&[("0000.npy", &zeros)], DEFLATED));
    parts.records = (0..1000).map(|i| renamed(&parts.records[0], &format!("{i:04}.npy"))).collect();
    let bomb = parts.together();
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    npz_refused(&bomb, "entries overlap");

    // One entry inside another, whose contents end where the inner one's do.
    let inner = zip(&[("b.npy", &two())], STORED);
    let inner = Parts::of(&inner);
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", inner.entries.len());
    let mut outer = npy(&header, 0);
    outer.extend_from_slice(&inner.entries);
    let mut parts = Parts::of(&zip(&[("a.npy", &outer)], STORED));
    let mut record = inner.records[0].clone();
    let at = (parts.entries.len() - inner.entries.len()) as u32;
    record[42..46].copy_from_slice(&at.to_le_bytes());
    assert!(load(&parts.together()).is_ok());
    parts.records.push(record);
    npz_refused(&parts.together(), "entries overlap");
}

#[test]
fn names_that_come_twice_are_refused() {
    let archive = zip(&[("a.npy", &two()), ("b.npy", &two())], STORED);
    assert_eq!(load(&archive).unwrap().len(), 2);
    let mut parts = Parts::of(&archive);
    parts.records[1] = renamed(&parts.records[1], "a.npy");
    npz_refused(&parts.together(), "a name comes twice");
    // Two files, but one name of a tensor.
    npz_refused(&zip(&[("a.npy", &two()), ("a", &two())], STORED), "the name \"a\" comes twice");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["/etc/passwd", "../a", "a/../../b", "..", "C:/a", "a\\b", "..\\a", ""] {
        npz_refused(&zip(&[(&format!("{name}.npy"), &two())], STORED), "is no name of a tensor");
        // What would not be loaded is not saved.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let error = save_npz(&path, &[(name.to_string(), Tensor::scalar(1.0, &Device::cpu()))]).expect_err(name);
        assert!(error.to_string().contains("is no name of a tensor") && !path.exists(), "{error}");
    }
    for name in ["w:0", "a/b", "a..b", "...", "π", "a.npy", " "] {
        assert_eq!(load(&zip(&[(&format!("{name}.npy"), &two())], STORED)).unwrap()[0].0, name);
    }
    let twice = ["a", "a"].map(|name| (name.to_string(), Tensor::scalar(1.0, &Device::cpu())));
    let error = save_npz("a.npz", &twice).expect_err("one name for two tensors");
    assert!(error.to_string().contains("the name \"a\" comes twice"), "{error}");
}

#[test]
fn archives_that_grow_too_much_are_refused_unless_allowed() {
    let n = 257 << 20;
    let zeros = npy(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({n},), }}"), n);
    let archive = zip(&[("a.npy", &zeros)], DEFLATED);
    let expect =
        format!("the archive of {} bytes would unpack to {} bytes, more than 268435456", archive.len(), zeros.len());
    npz_refused(&archive, &expect);
    npz_refused(&archive, "`load_npz_up_to` takes another limit");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    std::fs::write(&path, &archive).unwrap();
    let size = zeros.len() as u64;
    drop(zeros);
    assert!(load_npz_up_to(&path, &Device::cpu(), size - 1).is_err());
    assert_eq!(load_npz_up_to(&path, &Device::cpu(), size).unwrap()[0].1.shape().unwrap(), [n]);
    // What is claimed counts, in all entries together, before anything is unpacked.
    let mut parts = Parts::of(&zip(&[("a.npy", &two()), ("b.npy", &two())], DEFLATED));
    for record in &mut parts.records {
        record[24..28].copy_from_slice(&(200u32 << 20).to_le_bytes());
    }
    npz_refused(&parts.together(), "would unpack to 419430400 bytes");
}

#[test]
fn npz_files_are_refused_with_a_reason() {
    let good = zip(&[("a.npy", &two())], DEFLATED);
    assert!(load(&good).is_ok());
    let changed = |at: usize, bytes: &[u8]| {
        let mut parts = Parts::of(&good);
        parts.records[0][at..at + bytes.len()].copy_from_slice(bytes);
        parts.together()
    };
    let table: [(&str, Vec<u8>, &str); 9] = [
        ("nothing", Vec::new(), "invalid Zip archive"),
        ("no zip", b"hello, this is no archive at all".to_vec(), "invalid Zip archive"),
        ("half of it", good[..good.len() / 2].to_vec(), "invalid Zip archive"),
        (
            "more is claimed than comes out",
            changed(24, &1000u32.to_le_bytes()),
            "`a` claims 1000 bytes and has another",
        ),
        ("less is claimed than comes out", changed(24, &10u32.to_le_bytes()), "`a`: File is larger than its declared"),
        ("another checksum", changed(16, &[1, 2, 3, 4]), "`a`: Invalid checksum"),
        ("a method that is not known", changed(10, &[99, 0]), "method not supported: 99"),
        ("a password is needed", changed(8, &[1, 0]), "Password required"),
        ("not an npy file", zip(&[("a.npy", b"hello")], STORED), "`a`: not an npy file"),
    ];
    for (what, bytes, expect) in table {
        let error = load(&bytes).expect_err(what);
        assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{what}: {error}");
    }
}

#[test]
fn what_numpy_wrote_is_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    // Written by NumPy 2.4.6: savez, savez_compressed, and the latter to a stream, where sizes follow the data.
    for name in ["numpy-savez.npz", "numpy-compressed.npz", "numpy-streamed.npz"] {
        let tensors = load_npz(folder.join(name), &Device::cpu()).unwrap();
        let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["w:0", "layer/b"]);
        assert_eq!(tensors[0].1.shape().unwrap(), [2, 3]);
        assert_eq!(tensors[0].1.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(tensors[1].1.to_vec::<bool>().unwrap(), [true, false]);
    }
}
