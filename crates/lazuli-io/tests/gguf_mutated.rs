//! GGUF files with changes that an enemy or a bad disk may make. Each is opened or refused: none panics, and none makes the
//! reader take more memory than the file has bytes, whatever its header claims. `LAZULI_SOAK_FILES` says how many there are.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli::{Device, Tensor};
use lazuli_check::testing::Rolls;
use lazuli_io::{Gguf, GgufArray, GgufFormat, GgufValue, GgufWriter};

/// The largest piece of memory that was asked for.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watched;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A small file with everything that models have.
fn original() -> Vec<u8> {
    let cpu = Device::cpu();
    let mut file = GgufWriter::new();
    file.set("general.architecture", "llama");
    file.set("general.name", "A model of eight words");
    file.set("general.alignment", 32u32);
    file.set("llama.block_count", 1u32);
    file.set("llama.rope.freq_base", 10_000.0f32);
    file.set("tokenizer.ggml.add_bos_token", false);
    let words = ["<s>", "</s>", "a", "b", "ab", "ba", "Ġ", "世"];
    file.set("tokenizer.ggml.tokens", words.map(String::from).to_vec());
    file.set("tokenizer.ggml.scores", vec![0.0f32; 8]);
    file.set("tokenizer.ggml.token_type", vec![3i32, 3, 1, 1, 1, 1, 1, 6]);
    file.set("test.nested", GgufArray::Array(vec![GgufArray::U64(vec![1, 2]), GgufArray::U64(vec![3])]));
    file.push("token_embd.weight", &Tensor::rand([8, 32], 1, &cpu)).unwrap();
    file.push("blk.0.attn_norm.weight", &Tensor::ones([32], lazuli::DType::F16, &cpu)).unwrap();
    for (name, kind, n) in [("q", "Q4_0", 32), ("k", "Q8_0", 32), ("v", "Q6_K", 256)] {
        let format = GgufFormat::named(kind).unwrap();
        let bytes = (0..format.n_bytes(&[2, n]).unwrap()).map(|i| (i * 37) as u8).collect();
        file.push_bytes(format!("blk.0.attn_{name}.weight"), format, &[2, n], bytes).unwrap();
    }
    file.to_bytes().unwrap()
}

/// Files that other programs have written: models of seven architectures with their tokenizers.
fn written_by_others() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lazuli-text/tests/fixtures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    // In an order that does not depend on the disk.
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Numbers at which readers go wrong.
const NUMBERS: [u64; 14] =
    [0, 1, 2, 7, 8, 9, 31, 256, u32::MAX as u64, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX - 31, u64::MAX];

/// One to four changes: a byte, a number, a piece taken out, repeated or moved, the end cut off.
fn mutated(original: &[u8], random: &mut Rolls) -> Vec<u8> {
    let mut bytes = original.to_vec();
    // Most changes go where numbers and names are, in the header; most of those where a large one has no words of a tokenizer.
    let header = [900, 900, 9_000][random.below(3)].min(bytes.len());
    for _ in 0..1 + random.below(4) {
        let end = if random.below(8) > 0 { header.min(bytes.len()) } else { bytes.len() };
        let at = random.below(end);
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => {
                let n = [4, 8][random.below(2)].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&NUMBERS[random.below(NUMBERS.len())].to_le_bytes()[..n]);
            }
            3 => {
                let n = random.below(40).min(bytes.len() - at);
                bytes.drain(at..at + n);
            }
            4 => {
                let n = random.below(60).min(bytes.len() - at);
                let piece = bytes[at..at + n].to_vec();
                let to = random.below(end);
                bytes.splice(to..to, piece);
            }
            _ if random.below(4) == 0 => bytes.truncate(at),
            _ => {}
        }
    }
    bytes
}

#[test]
fn mutated_files_are_opened_or_refused() {
    let n_files = match std::env::var("LAZULI_SOAK_FILES") {
        Ok(n) => n.parse().expect("LAZULI_SOAK_FILES is a number"),
        Err(_) => 20_000,
    };
    let (cpu, mut random) = (Device::cpu(), Rolls::new(17));
    // Half of the originals are small files, in which most changed bytes are part of a header or a tensor.
    let (small, large) = (original(), written_by_others());
    assert_eq!((Gguf::from_bytes(small.clone()).unwrap().tensors().len(), large.len()), (5, 14));
    let (mut n_opened, mut n_refused, mut n_loaded) = (0, 0, 0);
    for i in 0..n_files {
        let original = if i % 2 == 0 { &small } else { &large[i / 2 % large.len()] };
        let bytes = mutated(original, &mut random);
        let n_bytes = bytes.len();
        LARGEST.store(0, Ordering::Relaxed);
        let file = Gguf::from_bytes(bytes);
        let largest = LARGEST.load(Ordering::Relaxed);
        // Vectors grow by doubling, and a word of eight bytes or more becomes a `String` of 24.
        assert!(largest <= 8 * n_bytes + 1024, "file {i}: {largest} bytes at once for a file of {n_bytes}");
        let Ok(file) = file else {
            n_refused += 1;
            continue;
        };
        n_opened += 1;
        let mut n_held = 0;
        for tensor in file.tensors() {
            n_held += file.bytes(&tensor.name).unwrap().len();
            // Most files differ only in names and words: one tensor of each is enough.
            if n_opened % 8 == 0
                && let Ok(loaded) = file.tensor(&tensor.name, &cpu)
            {
                assert_eq!(loaded.shape().unwrap().to_vec(), tensor.shape, "file {i}");
                n_loaded += 1;
            }
        }
        assert!(n_held <= n_bytes, "file {i}: {n_held} bytes of tensors in {n_bytes}");
        let found = |(key, value): (&str, &GgufValue)| {
            file.metadata().value(key).is_some_and(|found| std::ptr::eq(found, value))
        };
        assert!(file.metadata().iter().all(found), "file {i}");
    }
    println!("{n_opened} files opened, {n_refused} refused, {n_loaded} tensors loaded");
    // The changes are neither all harmless nor all deadly.
    assert!(n_opened > n_files / 20 && n_refused > n_files / 4 && n_loaded > 0, "{n_opened} {n_refused} {n_loaded}");
}
