//! Damaged, contradictory and malicious GGUF files. Each gives an error of one sentence, never a panic, and takes at
//! most a small multiple of its size in memory.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use engine::tools::load::{ModelFiles, gguf};
use engine::tools::tokenizer::Tokenizer;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;
/// Runs one test at a time, so that each measures only its own memory.
static TURN: Mutex<()> = Mutex::new(());

fn fixture(file: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gguf")).join(file)).unwrap()
}

/// A string as a metadata value: its type, then its length and bytes.
fn text(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

fn u32_value(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

/// A tensor's entry in the header.
struct Tensor {
    name: &'static str,
    /// The innermost dimension comes first.
    extents: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn tensor(name: &'static str, extents: &[u64], kind: u32, offset: u64) -> Tensor {
    Tensor { name, extents: extents.to_vec(), kind, offset }
}

/// A file with these metadata entries and tensors, and `data` bytes of tensor data.
fn file(entries: &[(&str, Vec<u8>)], tensors: &[Tensor], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (name, value) in entries {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(value);
    }
    for tensor in tensors {
        bytes.extend((tensor.name.len() as u64).to_le_bytes());
        bytes.extend(tensor.name.as_bytes());
        bytes.extend((tensor.extents.len() as u32).to_le_bytes());
        tensor.extents.iter().for_each(|extent| bytes.extend(extent.to_le_bytes()));
        bytes.extend(tensor.kind.to_le_bytes());
        bytes.extend(tensor.offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

/// The error for a file. Empty if the file is valid. Checks that it takes at most about twenty times the file's size in
/// memory.
fn refusal(bytes: &[u8]) -> String {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let described = gguf::describe(bytes);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= 20 * bytes.len() + (4 << 10), "{taken} bytes for a file of {}", bytes.len());
    match described {
        Ok(tensors) => {
            let mut end = 0;
            for tensor in tensors {
                assert!(tensor.offset >= end && tensor.offset + tensor.len <= bytes.len());
                end = tensor.offset + tensor.len;
            }
            String::new()
        }
        Err(reason) => {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
            reason
        }
    }
}

#[test]
fn false_headers_are_refused() {
    let _turn = TURN.lock();
    let good = file(&[("a", text("b"))], &[tensor("x", &[32, 2], 8, 0)], 68);
    assert_eq!(refusal(&good), "");
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let array = |kind: u32, count: u64| {
        [9u32.to_le_bytes(), kind.to_le_bytes()].concat().into_iter().chain(count.to_le_bytes()).collect()
    };
    let one = |tensor: Tensor| file(&[], &[tensor], 64);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "not a GGUF file"),
        (b"GGML\x03\0\0\0".to_vec(), "not a GGUF file"),
        (with(4, &1u32.to_le_bytes()), "version 1"),
        (with(4, &3u32.to_be_bytes()), "big-endian"),
        (with(8, &u64::MAX.to_le_bytes()), "tensors"),
        (with(16, &4_000_000_000u64.to_le_bytes()), "4000000000 entries of metadata"),
        (with(24, &u64::MAX.to_le_bytes()), "bytes of a string"),
        (with(32, b"\xff"), "UTF-8"),
        (with(33, &99u32.to_le_bytes()), "type 99"),
        (file(&[("a", text("b")), ("a", text("c"))], &[], 0), "twice"),
        (file(&[("a", array(4, 1 << 40))], &[], 0), "elements of an array"),
        (file(&[("a", array(8, 1 << 40))], &[], 0), "elements of an array"),
        (file(&[("a", array(9, 1))], &[], 64), "array of arrays"),
        (file(&[("a", array(77, 0))], &[], 64), "type 77"),
        (file(&[("a", vec![7, 0, 0, 0, 9])], &[], 0), "neither true nor false"),
        (file(&[("general.alignment", u32_value(0))], &[], 0), "general.alignment"),
        (file(&[("general.alignment", u32_value(12))], &[], 0), "general.alignment"),
        (one(tensor("x", &[32], 8, 64)), "outside the file"),
        (one(tensor("x", &[32], 8, u64::MAX - 31)), "outside the file"),
        (one(tensor("x", &[32], 8, 8)), "not aligned"),
        (one(tensor("x", &[33], 8, 0)), "q8_0"),
        (one(tensor("x", &[48], 39, 0)), "mxfp4"),
        (one(tensor("x", &[128], 10, 0)), "q2_k"),
        (one(tensor("x", &[64, 2], 23, 0)), "iq4_xs"),
        (one(tensor("x", &[256], 11, 0)), "outside the file"),
        (one(tensor("x", &[32], 4, 0)), "type 4"),
        (one(tensor("x", &[1, 1, 1, 1, 1], 0, 0)), "5 dimensions"),
        (one(tensor("x", &[1 << 40, 1 << 40], 0, 0)), "too large"),
        (one(tensor("x", &[0, u64::MAX, 2], 0, 0)), "too large"),
        (file(&[], &[tensor("x", &[32], 8, 0), tensor("x", &[32], 8, 64)], 128), "twice"),
        (file(&[], &[tensor("x", &[32], 8, 0), tensor("y", &[32], 8, 32)], 128), "overlap"),
    ];
    for (bytes, reason) in &cases {
        let refusal = refusal(bytes);
        assert!(refusal.contains(reason), "{reason}: {refusal:?}");
    }
    for len in 0..good.len() {
        assert_ne!(refusal(&good[..len]), "", "cut off after {len} bytes");
    }
}

#[test]
fn mutated_files_are_refused_or_valid() {
    let _turn = TURN.lock();
    let files = ["llama2.gguf", "families/gemma4-e.gguf", "groups.gguf"].map(fixture);
    let header = 24usize << 10;
    proptest!(|(which in 0..3usize, at in 0usize..header, bits in 1..=255u8, wide in any::<bool>(), cut in any::<Option<u16>>())| {
        let mut bytes = files[which].clone();
        let at = usize::min(at, bytes.len() - 8);
        if wide {
            bytes[at..at + 8].fill(bits);
        } else {
            bytes[at] ^= bits;
        }
        if let Some(cut) = cut {
            bytes.truncate(usize::from(cut));
        }
        refusal(&bytes);
    });
}

/// Damages metadata and loads everything that is made from it.
#[test]
fn mutated_metadata_is_refused_or_read() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("model.gguf");
    let originals = ["llama2.gguf", "families/gemma4-e.gguf", "families/phi3.gguf"].map(fixture);
    let mut read = 0;
    for round in 0..900usize {
        let mut bytes = originals[round % 3].clone();
        // Half of the changes are among the settings, which come first.
        let span = if round % 2 == 0 { 1_500 } else { 20_000 };
        let at = 24 + round.wrapping_mul(2_654_435_761) % span;
        bytes[at] = bytes[at].wrapping_add(1 + (round % 7) as u8);
        fs::write(&path, &bytes).unwrap();
        let Ok(files) = ModelFiles::gguf(&path) else { continue };
        let _ = files.generation_config();
        let Ok(config) = files.config() else { continue };
        if let Ok(tokenizer) = Tokenizer::of_model(&files, &config) {
            let _ = tokenizer.encode("Some text, ünïcode 🙂 and </s> 12345.").map(|ids| tokenizer.decode(&ids, true));
            read += 1;
        }
        if let Ok(mut weights) = files.weights(None) {
            let names: Vec<(String, Vec<usize>)> =
                weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
            for (name, shape) in names {
                let _ = weights.take(&name, &shape).map(|tensor| tensor.into_elements().elements().to_f32());
            }
        }
    }
    assert!(read > 100, "only {read} files were read");
}

/// A list of integers as a metadata value.
fn list(values: &[u32]) -> Vec<u8> {
    let head = [9u32.to_le_bytes(), 4u32.to_le_bytes()].concat();
    let values = values.iter().flat_map(|value| value.to_le_bytes());
    head.into_iter().chain((values.clone().count() as u64 / 4).to_le_bytes()).chain(values).collect()
}

#[test]
fn settings_of_layers_that_contradict_each_other_are_refused() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let eps = [6u32.to_le_bytes(), 1e-6f32.to_le_bytes()].concat();
    let common = [
        ("general.architecture", text("gemma4")),
        ("gemma4.embedding_length", u32_value(32)),
        ("gemma4.context_length", u32_value(64)),
        ("gemma4.attention.head_count", u32_value(2)),
        ("gemma4.attention.key_length", u32_value(16)),
        ("gemma4.attention.layer_norm_rms_epsilon", eps),
    ];
    let good = [
        ("gemma4.block_count", u32_value(2)),
        ("gemma4.attention.head_count_kv", list(&[2, 1])),
        ("gemma4.feed_forward_length", list(&[32, 64])),
        ("gemma4.attention.shared_kv_layers", u32_value(1)),
        ("gemma4.attention.sliding_window", u32_value(8)),
        ("gemma4.attention.sliding_window_pattern", list(&[1, 0])),
    ];
    let refused = |change: (&'static str, Vec<u8>)| {
        let mut entries = [&common[..], &good[..]].concat();
        let at = entries.iter().position(|(name, _)| *name == change.0).unwrap();
        entries[at] = change;
        fs::write(&path, file(&entries, &[tensor("token_embd.weight", &[32, 4], 0, 0)], 512)).unwrap();
        let error = ModelFiles::gguf(&path).unwrap().config().err();
        error.unwrap_or_else(|| panic!("{:?} is accepted", entries[at])).to_string()
    };
    let cases = [
        ("gemma4.block_count", u32_value(0), "the number of layers is 0"),
        ("gemma4.block_count", u32_value(u32::MAX), "the number of layers is 4294967295"),
        ("gemma4.block_count", u32_value(3), "each of the 3 layers"),
        ("gemma4.attention.head_count_kv", list(&[2]), "each of the 2 layers"),
        ("gemma4.feed_forward_length", list(&[32, 96]), "neither equal nor doubled"),
        ("gemma4.feed_forward_length", list(&[]), "each of the 2 layers"),
        ("gemma4.attention.sliding_window_pattern", list(&[1, 0, 1]), "each of the 2 layers"),
        ("gemma4.attention.sliding_window", text("wide"), "whole number"),
    ];
    for (name, value, reason) in cases {
        let refusal = refused((name, value));
        assert!(refusal.contains(reason) && !refusal.contains('\n'), "{name}: {refusal}");
    }
}

/// Any bytes are groups of each type. Scales may be NaN or infinite, and then so are elements.
#[test]
fn random_groups_of_every_type_are_read() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let entries = [("general.architecture", text("llama"))];
    for number in [2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39] {
        let tensors = [tensor("output_norm.weight", &[32], 0, 0), tensor("output.weight", &[512, 3], number, 128)];
        let mut bytes = file(&entries, &tensors, 128 + 3 * 512 * 2);
        let start = bytes.len() - 3 * 512 * 2;
        bytes[start..].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * i * 31 % 257) as u8);
        fs::write(&path, &bytes).unwrap();
        let mut weights = ModelFiles::gguf(&path).unwrap().weights(None).unwrap();
        let matrix = weights.take("lm_head.weight", &[3, 512]).unwrap();
        assert!(matrix.quantised().is_some());
        assert_eq!(matrix.into_elements().elements().to_f32().len(), 3 * 512, "{number}");
    }
}

#[test]
fn unsupported_types_are_refused_by_name() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let entries = [("general.architecture", text("llama"))];
    let tensors = [tensor("output_norm.weight", &[32], 0, 0), tensor("output.weight", &[256, 1], 18, 128)];
    fs::write(&path, file(&entries, &tensors, 256)).unwrap();
    let mut weights = ModelFiles::gguf(&path).unwrap().weights(None).unwrap();
    assert!(weights.take("norm.weight", &[32]).is_ok());
    let refused = weights.take("lm_head.weight", &[1, 256]).err().unwrap().to_string();
    assert!(refused.contains("lm_head.weight") && refused.contains("iq3_xxs"), "{refused}");
}
