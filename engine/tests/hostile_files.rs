//! Damaged, contradictory and malicious model files. Each gives an error of one sentence, never a panic, and never
//! makes the loader allocate much more than the file's size.

#![allow(clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{MODELS, model};
use engine::tools::config::{GenerationConfig, ModelConfig};
use engine::tools::load::{ModelFiles, Weights, safetensors};
use engine::tools::tokenizer::{Tokenizer, TokenizerFiles};

/// The system allocator, which records the largest single request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
/// Far more than the fixtures need, and far less than a false header can ask for.
const BOUND: usize = 256 << 20;

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the system allocator has the same contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the system allocator has the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the system allocator has the same contract.
        unsafe { System.realloc(memory, layout, size) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the system allocator has the same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn assert_no_huge_allocation() {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < BOUND, "an allocation of {largest} bytes");
}

/// xorshift64*: the same mutations on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    /// Makes one to four small changes within the first `reach` bytes.
    fn mutate(&mut self, bytes: &mut Vec<u8>, reach: usize) {
        const NUMBERS: [&str; 9] =
            ["0", "-1", "null", "1e308", "18446744073709551615", "4294967296", "[]", "\"x\"", "9007199254740993"];
        for _ in 0..=self.below(4) {
            let reach = reach.min(bytes.len());
            if reach == 0 {
                return;
            }
            let at = self.below(reach);
            match self.below(7) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.below(256) as u8,
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..(at + self.below(9)).min(bytes.len()))),
                4 => {
                    let from = self.below(reach);
                    let chunk = bytes[from..(from + self.below(24)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, chunk);
                }
                5 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                _ => {
                    // Replaces a number in the JSON text.
                    if let Some(start) = bytes[at..reach].iter().position(u8::is_ascii_digit).map(|n| at + n) {
                        let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(0);
                        bytes.splice(start..start + end, NUMBERS[self.below(NUMBERS.len())].bytes());
                    }
                }
            }
        }
    }
}

#[test]
fn mutated_configurations() {
    let mut random = Random(1);
    for name in MODELS {
        let config = fs::read(model(name).join("config.json")).unwrap();
        let generation = fs::read(model(name).join("generation_config.json")).unwrap();
        for _ in 0..1000 {
            let mut text = config.clone();
            random.mutate(&mut text, usize::MAX);
            if let Err(error) = ModelConfig::from_json(&text) {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
            let mut text = generation.clone();
            random.mutate(&mut text, usize::MAX);
            let _ = GenerationConfig::from_json(&text);
        }
    }
    assert_no_huge_allocation();
}

#[test]
fn mutated_safetensors() {
    let mut random = Random(2);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    for name in ["gpt2", "llama3"] {
        let file = fs::read(model(name).join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        for round in 0..2000 {
            let mut bytes = file.clone();
            random.mutate(&mut bytes, header);
            for tensor in safetensors::describe(&bytes).unwrap_or_default() {
                assert!(tensor.offset + tensor.len <= bytes.len());
            }
            // Files are slower than memory, so only some rounds write one.
            if round % 50 == 0 {
                fs::write(&path, &bytes).unwrap();
                take_all(Weights::from_safetensors(&path, None));
            }
        }
    }
    assert_no_huge_allocation();
}

/// Takes every tensor.
fn take_all(weights: engine::Result<Weights>) {
    let mut weights = match weights {
        Ok(weights) => weights,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    let names: Vec<(String, Vec<usize>)> =
        weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
    for (name, shape) in names {
        if let Ok(tensor) = weights.take(&name, &shape) {
            tensor.elements().to_f32();
        }
    }
}

/// Reads the entries of an archive.
fn unzip(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    (0..archive.len())
        .map(|index| {
            let mut entry = archive.by_index(index).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.name().unwrap().into_owned(), bytes)
        })
        .collect()
}

/// Writes an archive with uncompressed entries, as PyTorch does.
fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in entries {
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn mutated_pickles() {
    let mut random = Random(3);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pytorch_model.bin");
    let shard = model("opt-bin").join("pytorch_model-00003-of-00003.bin");
    let (whole, entries) = (fs::read(&shard).unwrap(), unzip(&shard));
    let pickle = entries.iter().position(|(name, _)| name.ends_with("data.pkl")).unwrap();
    fs::write(&path, zip(&entries)).unwrap();
    assert!(Weights::from_pickle(&path, None).unwrap().names().count() > 3);
    for round in 0..1500 {
        // Usually mutates the pickle in an intact archive, and sometimes the archive itself.
        let bytes = if round % 5 == 0 {
            let mut bytes = whole.clone();
            random.mutate(&mut bytes, usize::MAX);
            bytes
        } else {
            let mut entries = entries.clone();
            random.mutate(&mut entries[pickle].1, usize::MAX);
            zip(&entries)
        };
        fs::write(&path, bytes).unwrap();
        take_all(Weights::from_pickle(&path, None));
    }
    assert_no_huge_allocation();
}

#[test]
fn mutated_tokenizers() {
    let mut random = Random(4);
    for name in ["gpt2", "llama2", "llama3", "opt-pre", "qwen2"] {
        let text = fs::read(model(name).join("tokenizer.json")).unwrap();
        let config = ModelFiles::directory(model(name)).unwrap().config().unwrap();
        let vocabulary = text.windows(7).position(|window| window == b"\"vocab\"").unwrap();
        for round in 0..300 {
            let mut text = text.clone();
            // The settings before the vocabulary are a small part of the file and have the most effect.
            random.mutate(&mut text, if round % 3 == 0 { usize::MAX } else { vocabulary });
            let files = TokenizerFiles { tokenizer_json: Some(&text), ..TokenizerFiles::default() };
            if let Ok(tokenizer) = Tokenizer::from_files(&files, &config) {
                let ids = tokenizer.encode("Some text, ünïcode 🙂 and </s> 12345.").unwrap_or_default();
                let _ = tokenizer.decode(&ids, true);
                let _ = tokenizer.decode(&[0, 1, 2, 511, u32::MAX], false);
            }
        }
    }
    for parts in 0..300 {
        let directory = model("opt-bin");
        let config = ModelFiles::directory(&directory).unwrap().config().unwrap();
        let mut texts = ["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"]
            .map(|file| fs::read(directory.join(file)).unwrap());
        random.mutate(&mut texts[parts % 4], usize::MAX);
        let files = TokenizerFiles {
            vocab: Some(&texts[0]),
            merges: Some(&texts[1]),
            tokenizer_config: Some(&texts[2]),
            special_tokens_map: Some(&texts[3]),
            ..TokenizerFiles::default()
        };
        if let Ok(tokenizer) = Tokenizer::from_files(&files, &config) {
            let _ = tokenizer.encode("Some text </s>").map(|ids| tokenizer.decode(&ids, true));
        }
    }
    assert_no_huge_allocation();
}
