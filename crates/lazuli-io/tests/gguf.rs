//! GGUF files: what another implementation wrote (see fixtures/gguf/make.py), what this one writes, and what is refused.

use std::path::PathBuf;

use lazuli::{BlockFormat, DType, Device, Error, Tensor};
use lazuli_io::*;

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/gguf", name].iter().collect()
}

fn check_metadata(metadata: &GgufMetadata) {
    let expect: [(&str, GgufValue); 17] = [
        ("test.u8", 200u8.into()),
        ("test.i8", (-100i8).into()),
        ("test.u16", 60_000u16.into()),
        ("test.i16", (-30_000i16).into()),
        ("test.u32", 4_000_000_000u32.into()),
        ("test.i32", (-2_000_000_000i32).into()),
        ("test.f32", 1.5f32.into()),
        ("test.u64", (2u64.pow(63) + 1).into()),
        ("test.i64", (-2i64.pow(62) - 1).into()),
        ("test.f64", 0.1f64.into()),
        ("test.bool", true.into()),
        ("test.string", "grüße, 世界 🙂".into()),
        ("test.strings", vec!["a".to_string(), String::new(), "ç".into()].into()),
        ("test.ints", vec![3, -1, 2].into()),
        ("test.floats", vec![0.25f32, -2.0].into()),
        ("test.bools", vec![true, false].into()),
        ("test.nested", GgufArray::Array(vec![GgufArray::I32(vec![1, 2]), GgufArray::I32(vec![3])]).into()),
    ];
    let found: Vec<(&str, GgufValue)> =
        metadata.iter().filter(|(key, _)| key.starts_with("test.")).map(|(key, value)| (key, value.clone())).collect();
    assert_eq!(found, expect);
    for (key, value) in &expect {
        assert_eq!(metadata.value(key), Some(value));
    }
}

#[test]
fn every_type_of_metadata_is_read() {
    for name in ["types.gguf", "v2.gguf", "split-00001-of-00003.gguf"] {
        check_metadata(Gguf::open(fixture(name)).unwrap().metadata());
    }
}

#[test]
fn tensors_have_the_values_that_another_library_wrote() {
    let cpu = Device::cpu();
    let file = Gguf::open(fixture("types.gguf")).unwrap();
    assert_eq!((file.version(), file.n_parts(), file.tensors().len()), (3, 1, 18));
    for (name, expect) in load_npz(fixture("types.npz"), &cpu).unwrap() {
        let entry = file.find(&name).unwrap();
        assert_eq!(entry.format.name.to_lowercase(), name);
        assert_eq!(entry.shape, expect.shape().unwrap().to_vec(), "{name}");
        assert_eq!(file.bytes(&name).unwrap().len(), entry.n_bytes);
        let found = file.tensor(&name, &cpu);
        if entry.format.block_len > 1 && BlockFormat::named(entry.format.name).is_err() {
            assert!(matches!(&found, Err(Error::Unsupported(_))), "{found:?}");
            continue;
        }
        let found = found.unwrap();
        let wanted = match name.as_str() {
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            _ => expect.dtype().unwrap(),
        };
        assert_eq!((found.dtype().unwrap(), found.shape().unwrap()), (wanted, expect.shape().unwrap()), "{name}");
        assert_eq!(found.to_vec::<f64>().unwrap(), expect.to_vec::<f64>().unwrap(), "{name}");
        // Its pages were let go, and come back.
        assert_eq!(file.tensor(&name, &cpu).unwrap().to_vec::<f64>().unwrap(), expect.to_vec::<f64>().unwrap());
    }
}

#[test]
fn version_2_is_read() {
    let (file, cpu) = (Gguf::open(fixture("v2.gguf")).unwrap(), Device::cpu());
    assert_eq!(file.version(), 2);
    assert_eq!(file.tensor("a", &cpu).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(file.tensor("a", &cpu).unwrap().shape().unwrap(), [2, 3]);
    assert_eq!(file.tensor("b", &cpu).unwrap().to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn big_endian_files_are_refused_in_words() {
    let error = Gguf::open(fixture("big.gguf")).map(drop).unwrap_err().to_string();
    assert!(error.contains("big.gguf: the file is big-endian (version 3 with its bytes swapped)"), "{error}");
}

#[test]
fn a_split_file_is_opened_by_its_first_part() {
    let cpu = Device::cpu();
    let file = Gguf::open(fixture("split-00001-of-00003.gguf")).unwrap();
    assert_eq!((file.n_parts(), file.tensors().len()), (3, 5));
    for i in 0..5 {
        assert_eq!(file.tensor(&format!("t{i}"), &cpu).unwrap().to_vec::<f32>().unwrap(), [i as f32; 4]);
    }
    let refused = |path: PathBuf, expect: &str| {
        let error = Gguf::open(path).map(drop).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    refused(fixture("split-00002-of-00003.gguf"), "it is part 2 of 3: open the first one, ");
    let folder = tempfile::tempdir().unwrap();
    let part = |i: usize| format!("split-0000{i}-of-00003.gguf");
    let copy = |from: usize, to: String| {
        let path = folder.path().join(to);
        std::fs::copy(fixture(&part(from)), &path).unwrap();
        path
    };
    refused(copy(1, "first.gguf".into()), "its name does not end in -00001-of-00003.gguf");
    let first = copy(1, part(1));
    refused(first.clone(), "split-00002-of-00003.gguf: ");
    copy(3, part(2));
    copy(3, part(3));
    refused(first.clone(), "split-00002-of-00003.gguf: it says that it is part 3 of 3, not 2 of 3");
    let mut other = GgufWriter::new();
    other.set("split.no", 1u16);
    other.set("split.count", 3u16);
    other.save(folder.path().join(part(2))).unwrap();
    refused(first.clone(), "the 3 parts have 3 tensors together, the first one says 5");
    for name in ["t9", "t4"] {
        other.push(name, &Tensor::scalar(1.0, &cpu)).unwrap();
    }
    other.save(folder.path().join(part(2))).unwrap();
    refused(first, "`t4` comes twice among the tensors");
    let bytes = std::fs::read(fixture(&part(1))).unwrap();
    let error = Gguf::from_bytes(bytes).map(drop).unwrap_err().to_string();
    assert!(error.contains("the bytes are part 1 of 3: open the first file by its path"), "{error}");
}

#[test]
fn what_is_written_is_read_again() {
    let cpu = Device::cpu();
    for alignment in [None, Some(8u32), Some(1), Some(4096)] {
        let mut writer = GgufWriter::new();
        if let Some(alignment) = alignment {
            writer.set("general.alignment", alignment);
        }
        let read = Gguf::open(fixture("types.gguf")).unwrap();
        for (key, value) in read.metadata().iter().filter(|(key, _)| key.starts_with("test.")) {
            writer.set(key, value.clone());
        }
        let x = Tensor::rand([3, 5], 1, &cpu);
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
            writer.push(dtype.to_string(), &x.mul(100.0).to_dtype(dtype)).unwrap();
        }
        writer.push("nothing", &Tensor::zeros([3, 0], DType::F32, &cpu)).unwrap();
        writer.push("number", &Tensor::scalar(2.5, &cpu)).unwrap();
        let blocks = read.find("q5_k").unwrap();
        writer.push_bytes("q5_k", blocks.format, &blocks.shape, read.bytes("q5_k").unwrap().to_vec()).unwrap();
        let file = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
        check_metadata(file.metadata());
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
            let (found, expect) = (file.tensor(&dtype.to_string(), &cpu).unwrap(), x.mul(100.0).to_dtype(dtype));
            assert_eq!(found.dtype().unwrap(), dtype);
            assert_eq!(found.to_vec::<f64>().unwrap(), expect.to_vec::<f64>().unwrap());
        }
        assert_eq!(file.tensor("nothing", &cpu).unwrap().shape().unwrap(), [3, 0]);
        assert_eq!(file.tensor("number", &cpu).unwrap().item::<f32>().unwrap(), 2.5);
        assert_eq!(file.bytes("q5_k").unwrap(), read.bytes("q5_k").unwrap());
    }
}

#[test]
fn blocks_of_a_file_are_tensors() {
    let cpu = Device::cpu();
    for format in BlockFormat::all() {
        let shape = [3, 2 * format.block_len()];
        let blocks: Vec<u8> = (0..6 * format.block_bytes()).map(|i| (i * 7 % 61) as u8).collect();
        let mut writer = GgufWriter::new();
        writer.push_bytes("w", GgufFormat::named(format.name()).unwrap(), &shape, blocks.clone()).unwrap();
        let w = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap().tensor("w", &cpu).unwrap();
        assert_eq!((w.shape().unwrap(), w.dtype().unwrap()), (&shape[..], DType::F32));
        assert_eq!(w.to_vec::<f32>().unwrap(), format.widen(&blocks).unwrap(), "{format}");
    }
    let mut writer = GgufWriter::new();
    writer.push_bytes("w", GgufFormat::named("IQ4_NL").unwrap(), &[32], vec![0; 18]).unwrap();
    let error = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap().tensor("w", &cpu).unwrap_err().to_string();
    assert!(error.contains("`w`: blocks of type IQ4_NL are not supported"), "{error}");
}

#[test]
fn values_of_metadata_are_typed() {
    let file = Gguf::open(fixture("types.gguf")).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.get::<u64>("test.u8").unwrap(), 200);
    assert_eq!(metadata.get::<usize>("test.u32").unwrap(), 4_000_000_000);
    assert_eq!(metadata.get::<i64>("test.i8").unwrap(), -100);
    assert_eq!(metadata.get::<f32>("test.f64").unwrap(), 0.1);
    assert_eq!(metadata.get::<&[String]>("test.strings").unwrap().len(), 3);
    assert_eq!(metadata.get::<&[i32]>("test.ints").unwrap(), [3, -1, 2]);
    assert_eq!(metadata.get::<Vec<i64>>("test.ints").unwrap(), [3, -1, 2]);
    assert_eq!(metadata.get::<&[bool]>("test.bools").unwrap(), [true, false]);
    assert_eq!(metadata.find::<u32>("test.none").unwrap(), None);
    for (error, expect) in [
        (metadata.get::<u32>("test.none").err(), "the file has no metadata `test.none`"),
        (metadata.get::<u32>("test.string").err(), "metadata `test.string` is a string, not a u32"),
        (metadata.get::<u32>("test.i8").err(), "metadata `test.i8` is the i8 -100, not a u32"),
        (metadata.get::<u32>("test.f32").err(), "metadata `test.f32` is the f32 1.5, not a u32"),
        (metadata.get::<&str>("test.bool").err(), "metadata `test.bool` is the bool true, not a string"),
        (metadata.get::<&[f32]>("test.ints").err(), "`test.ints` is an array of 3 × i32, not an array of f32"),
        (metadata.get::<Vec<u32>>("test.ints").err(), "not an array of integers that fit u32"),
        (metadata.get::<f32>("test.nested").err(), "`test.nested` is an array of 2 × array, not a f32"),
    ] {
        let error = error.unwrap();
        assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{error}");
    }
}

#[test]
fn what_ggml_could_not_read_is_not_written() {
    let cpu = Device::cpu();
    let x = Tensor::ones([2, 2], DType::F32, &cpu);
    let mut writer = GgufWriter::new();
    writer.push("w", &x).unwrap();
    let q8_0 = GgufFormat::named("Q8_0").unwrap();
    for (error, expect) in [
        (writer.push("w", &x), "`w`: there is a tensor of that name already"),
        (writer.push("long".repeat(16), &x), "the name has 64 bytes, ggml takes at most 63"),
        (writer.push("v", &x.reshape([1, 1, 1, 2, 2])), "[1, 1, 1, 2, 2] has 5 axes, ggml takes at most 4"),
        (writer.push("v", &x.to_dtype(DType::U8)), "`v`: GGUF has no type for u8; cast it to f32, f16, bf16 or i32"),
        (writer.push_bytes("v", q8_0, &[2, 33], vec![]), "rows of [2, 33] are not whole blocks of 32 elements"),
        (writer.push_bytes("v", q8_0, &[2, 32], vec![0; 67]), "Q8_0 [2, 32] has 68 bytes, not 67"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
    writer.set("general.alignment", 32u64);
    let error = writer.to_bytes().unwrap_err().to_string();
    assert!(error.contains("metadata `general.alignment` is the u64 32, not a u32"), "{error}");
}

/// A header by hand: counts, then what follows them.
fn file(version: u32, n_tensors: u64, n_entries: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&n_tensors.to_le_bytes());
    out.extend_from_slice(&n_entries.to_le_bytes());
    rest.iter().for_each(|bytes| out.extend_from_slice(bytes));
    out
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// An entry of metadata.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

/// An array's head.
fn array(kind: u32, n: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &n.to_le_bytes()].concat()
}

/// What is said of a tensor, its axes as files have them.
fn tensor(name: &str, axes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let axes: Vec<u8> =
        (axes.len() as u32).to_le_bytes().into_iter().chain(axes.iter().flat_map(|n| n.to_le_bytes())).collect();
    [&text(name.as_bytes())[..], &axes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

#[test]
fn hostile_files_are_refused_with_a_reason() {
    let data = [0u8; 256];
    let nested: Vec<u8> = (0..100_000).flat_map(|_| array(9, 1)).collect();
    for (bytes, expect) in [
        (b"".to_vec(), "the file ends inside its first word"),
        (b"GGML".to_vec(), "not a GGUF file"),
        (b"GGUF".to_vec(), "the file ends inside the version"),
        (file(1, 0, 0, &[]), "version 1 of the format is not supported, only 2 and 3 are"),
        (file(0, 0, 0, &[]), "version 0 of the format is not supported"),
        (file(4, 0, 0, &[]), "version 4 of the format is not supported"),
        (file(3 << 24, 0, 0, &[]), "the file is big-endian"),
        // Counts.
        (file(3, u64::MAX, 0, &[&data]), "claims 18446744073709551615 tensors and has 264 bytes left"),
        (file(3, 0, u64::MAX, &[&data]), "claims 18446744073709551615 entries of metadata and has 256 bytes left"),
        (file(3, 1 << 40, 0, &[]), "claims 1099511627776 tensors"),
        // Metadata.
        (file(3, 0, 1, &[&u64::MAX.to_le_bytes(), &data]), "a key of metadata claims 18446744073709551615 bytes"),
        (file(3, 0, 1, &[&text(b"\xff\xfe"), &data]), "a key of metadata is not UTF-8"),
        (file(3, 0, 1, &[&entry("k", 13, &data)]), "`k`: its type 13 is not known"),
        (file(3, 0, 1, &[&entry("k", 7, &[2])]), "`k`: a bool is the byte 2, neither 0 nor 1"),
        (file(3, 0, 1, &[&entry("key", 10, &[2])]), "`key`: the file ends inside a number"),
        (
            file(3, 0, 1, &[&entry("k", 8, &(1u64 << 62).to_le_bytes())]),
            "`k`: a string claims 4611686018427387904 bytes",
        ),
        (file(3, 0, 1, &[&entry("k", 8, &text(b"\xc3\x28"))]), "`k`: a string is not UTF-8"),
        (file(3, 0, 1, &[&entry("k", 9, &array(4, 1 << 60))]), "claims 1152921504606846976 elements of type u32"),
        (file(3, 0, 1, &[&entry("k", 9, &array(4, u64::MAX / 4 + 2))]), "elements of type u32 and has 0 bytes left"),
        (file(3, 0, 1, &[&entry("k", 9, &array(8, 1 << 60))]), "claims 1152921504606846976 strings"),
        (file(3, 0, 1, &[&entry("k", 9, &array(9, 1 << 60))]), "claims 1152921504606846976 arrays"),
        (file(3, 0, 1, &[&entry("k", 9, &array(7, 1 << 60))]), "claims 1152921504606846976 bools"),
        (file(3, 0, 1, &[&entry("k", 9, &array(99, 0))]), "`k`: its type 99 is not known"),
        (file(3, 0, 1, &[&entry("k", 9, &nested)]), "`k`: arrays lie more than 8 deep in arrays"),
        (file(3, 0, 2, &[&entry("k", 0, &[1]), &entry("k", 0, &[2])]), "`k` comes twice among the keys of metadata"),
        (
            file(3, 0, 1, &[&entry("general.alignment", 4, &[0; 4])]),
            "`general.alignment` is 0, which is no power of two",
        ),
        (file(3, 0, 1, &[&entry("general.alignment", 4, &[24, 0, 0, 0])]), "is 24, which is no power of two"),
        (file(3, 0, 1, &[&entry("general.alignment", 6, &[0; 4])]), "is the f32 0, not a u32"),
        // Tensors.
        (file(3, 1, 0, &[&u64::MAX.to_le_bytes(), &data]), "the name of a tensor claims 18446744073709551615 bytes"),
        (file(3, 1, 0, &[&text(b"\xff"), &data]), "the name of a tensor is not UTF-8"),
        (file(3, 1, 0, &[&tensor("t", &[1; 9], 0, 0), &data]), "`t`: it has 9 axes, at most 8 are supported"),
        (file(3, 1, 0, &[&tensor("t", &[1, 2], 4, 0), &data]), "`t`: its elements are of type 4, which is not known"),
        (file(3, 1, 0, &[&tensor("t", &[1 << 33, 1 << 33], 0, 0), &data]), "of F32 has more bytes than there can be"),
        (file(3, 1, 0, &[&tensor("t", &[0, 1 << 63, 2], 0, 0), &data]), "of F32 has more bytes than there can be"),
        (
            file(3, 1, 0, &[&tensor("t", &[33], 2, 0), &data]),
            "rows of [33] are not whole blocks of 32 elements, which Q4_0 has",
        ),
        (
            file(3, 1, 0, &[&tensor("t", &[1 << 40], 0, 0), &data]),
            "`t`: its 4398046511104 bytes at offset 0 of the elements are not",
        ),
        (file(3, 1, 0, &[&tensor("t", &[1], 0, 512), &data]), "`t`: its 4 bytes at offset 512 of the elements are not"),
        (
            file(3, 1, 0, &[&tensor("t", &[1], 0, u64::MAX - 31), &data]),
            "at offset 18446744073709551584 of the elements",
        ),
        (file(3, 1, 0, &[&tensor("t", &[1], 0, 4), &data]), "`t`: its offset 4 is no multiple of the alignment 32"),
        (file(3, 1, 0, &[&tensor("t", &[1], 0, 0)]), "are not in the file"),
        (
            file(3, 2, 0, &[&tensor("t", &[16], 0, 0), &tensor("u", &[1], 0, 32), &data]),
            "`u`: its bytes overlap those of `t`",
        ),
        (file(3, 2, 0, &[&tensor("t", &[1], 0, 0), &tensor("u", &[1], 0, 0), &data]), "overlap"),
        (
            file(3, 2, 0, &[&tensor("t", &[1], 0, 0), &tensor("t", &[1], 0, 32), &data]),
            "`t` comes twice among the tensors",
        ),
        (file(3, 0, 2, &[&entry("split.no", 2, &[3, 0]), &entry("split.count", 2, &[2, 0])]), "it is part 3 of 2"),
    ] {
        let error = Gguf::from_bytes(bytes).map(drop).expect_err(expect);
        assert!(matches!(error, Error::Parse(_)) && error.to_string().contains(expect), "{error}\nnot: {expect}");
    }
}
