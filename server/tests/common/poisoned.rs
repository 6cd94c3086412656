//! A model with a token that it cannot compute. A step with this token fails.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A token whose embedding is NaN.
pub const POISON: usize = 100;

/// Copies a golden model and sets one row of its input embeddings to NaN. Its output embeddings are separate.
pub fn poisoned() -> tempfile::TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden/llama3");
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let path = copy.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&file[8..header]).unwrap();
    let embedding = &tensors["model.embed_tokens.weight"];
    let at = |i: usize| embedding["data_offsets"][i].as_u64().unwrap() as usize;
    let row = (at(1) - at(0)) / embedding["shape"][0].as_u64().unwrap() as usize;
    let start = header + at(0) + POISON * row;
    // All bits set is NaN in every floating-point type.
    file[start..start + row].fill(0xff);
    fs::write(&path, file).unwrap();
    copy
}
