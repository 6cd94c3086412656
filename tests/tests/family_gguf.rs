//! GGUF files of the families with windows, shared caches, unusual blocks, experts and states. `tools/family_gguf.py` writes them as
//! llama.cpp's converter does, and `engine::quantize` writes them again.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::DType;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::tools::config::{ModelConfig, ModelFamily};
use engine::tools::load::gguf::{self, FileType};
use engine::tools::quantised::QuantType;
use engine::tools::tokenizer::Tokenizer;
use engine::{Device, Llm, Options, Prompt};
use tests::families::{FAMILIES, committed_dir, family_golden, q8_drift};
use tests::scores::{dequantised, difference, scores, texts};
use tests::{complete, golden, golden_dir};

/// The families with a file. The file of Phi 3 with a window would differ from the other only in the window.
fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().filter(|family| *family != "phi3-window")
}

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf/families").join(format!("{family}.gguf"))
}

fn load(files: &ModelFiles) -> Llm {
    let options = Options { device: Device::Cpu, dtype: Some(DType::F32), threads: Some(1), ..Options::default() };
    Llm::load(files, &options).unwrap()
}

/// Returns the configuration of a committed model as a GGUF file has it, which does not name the type of weights.
fn config(family: &str) -> ModelConfig {
    let mut config = ModelFiles::directory(committed_dir(family)).unwrap().config().unwrap();
    config.torch_dtype = None;
    // Files leave out layers for drafts.
    config.draft_layers = 0;
    // Files of Qwen3.5 have value heads in another order.
    if let (true, ModelFamily::Decoder(decoder)) = (family.starts_with("qwen3.5"), &mut config.family) {
        decoder.layers.iter_mut().filter_map(|layer| layer.recurrent.as_mut()).for_each(|layer| layer.tiled = true);
    }
    config
}

#[test]
fn configurations_equal_the_directories() {
    for family in families() {
        assert_eq!(ModelFiles::gguf(fixture(family)).unwrap().config().unwrap(), config(family), "{family}");
    }
}

fn assert_same_tokens(family: &str) {
    let mut llm = load(&ModelFiles::gguf(fixture(family)).unwrap());
    let golden = family_golden(&committed_dir(family));
    let params = SamplingParams { max_tokens: 24, ignore_eos: true, ..SamplingParams::default() };
    let requests = golden.prompts.iter().map(|p| (Prompt::Tokens(p.ids.clone()), params.clone()));
    for (done, prompt) in complete(&mut llm, requests).iter().zip(&golden.prompts) {
        assert_eq!(done.outputs[0].tokens, prompt.greedy.ids, "{family}, {}", prompt.name);
    }
}

/// Quantises a model, and compares the written file with the original's configuration and scores.
fn assert_read_back(family: &str) {
    let directory = tempfile::tempdir().unwrap();
    let files = ModelFiles::directory(committed_dir(family)).unwrap();
    let path = directory.path().join("model.gguf");
    engine::quantize(&files, QuantType::Q8_0, &path, |_, _| {}).unwrap();
    let written = ModelFiles::gguf(&path).unwrap();
    assert_eq!(written.config().unwrap(), config(family), "{family}");
    let texts = texts(family);
    let (mean, most) = difference(&scores(&mut load(&written), &texts), &scores(&mut load(&files), &texts));
    println!("{family}: {mean} {most}");
    let bound = q8_drift(&family_golden(&committed_dir(family)));
    assert!(mean > 0.0 && mean < bound, "{family}: {mean} {most}, not {bound}");
}

/// Rows of these experts have no groups of 256 elements, so mixtures fall back to types with smaller groups. In 16 bits,
/// a written file scores exactly like its elements.
#[test]
fn experts_are_written_in_every_type() {
    let directory = tempfile::tempdir().unwrap();
    for (family, kind, of_experts, others) in [
        ("mixtral", "q4_k_m", &["q5_0", "q8_0"][..], &["q5_0", "q8_0"][..]),
        ("qwen2-moe", "q6_k", &["q8_0"], &["q8_0"]),
        ("qwen3-moe", "q4_0", &["q4_0"], &["q4_0", "q8_0"]),
        ("gpt-oss", "mxfp4", &["mxfp4"], &["q8_0"]),
        ("gemma4-moe", "q4_k_m", &["q5_0", "q8_0"], &["q4_k", "q5_0", "q8_0"]),
        ("granitemoe", "mxfp4", &["mxfp4"], &["q8_0"]),
    ] {
        let path = directory.path().join(format!("{family}-{kind}.gguf"));
        let files = ModelFiles::directory(committed_dir(family)).unwrap();
        engine::quantize(&files, kind.parse::<FileType>().unwrap(), &path, |_, _| {}).unwrap();
        let tensors = gguf::describe(&fs::read(&path).unwrap()).unwrap();
        let kinds = |is_expert: bool| -> BTreeSet<String> {
            let own = tensors.iter().filter(|tensor| tensor.name.contains("_exps.") == is_expert);
            own.map(|tensor| tensor.dtype.to_string()).filter(|kind| !["f32", "bf16"].contains(&&**kind)).collect()
        };
        let named = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!([kinds(true), kinds(false)], [named(of_experts), named(others)], "{family} {kind}");
        let written = ModelFiles::gguf(&path).unwrap();
        let (texts, exact) = (texts(family), tempfile::tempdir().unwrap());
        let in_bf16 = |files: &ModelFiles| {
            let options = Options { device: Device::Cpu, dtype: Some(DType::Bf16), ..Options::default() };
            scores(&mut Llm::load(files, &options).unwrap(), &texts)
        };
        assert!(in_bf16(&written) == in_bf16(&dequantised(&written, exact.path())), "{family} {kind}");
        let (drift, worst) = difference(&scores(&mut load(&written), &texts), &scores(&mut load(&files), &texts));
        println!("{family} {kind}: {drift} {worst}");
        assert!(drift > 0.0 && drift < 8.0, "{family} {kind}: {drift} {worst}");
    }
}

macro_rules! family_tests {
    ($($name:ident: $family:literal,)*) => {
        $(mod $name {
            #[test]
            fn has_the_same_tokens() {
                if super::families().any(|family| family == $family) {
                    super::assert_same_tokens($family);
                }
            }

            #[test]
            fn is_written_and_read_back() {
                super::assert_read_back($family);
            }
        })*
    };
}

tests::each_family!(family_tests);

/// Copies a committed model with another shape of the tensor `name`.
fn with_shape(family: &str, name: &str, shape: [usize; 2]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in fs::read_dir(committed_dir(family)).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
    }
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    header[name]["shape"] = shape.as_slice().into();
    let header = header.to_string().into_bytes();
    fs::write(path, [(header.len() as u64).to_le_bytes().as_slice(), &header, data].concat()).unwrap();
    directory
}

#[test]
fn tensors_of_wrong_shapes_are_not_written() {
    for (family, part, shape, reason) in [
        ("deepseek2", "self_attn.kv_b_proj", [32, 256], "self_attn.kv_b_proj.weight has the shape [32, 256], which"),
        ("qwen3-next", "linear_attn.in_proj_qkvz", [64, 320], "in_proj_qkvz.weight has the shape [64, 320], which"),
        ("mixtral", "self_attn.k_proj", [1, 2048], "self_attn.k_proj.weight has the shape [1, 2048], which"),
        ("mixtral", "block_sparse_moe.experts.1.w2", [32, 128], "experts.1.down_proj.weight should have the shape"),
    ] {
        let directory = with_shape(family, &format!("model.layers.0.{part}.weight"), shape);
        let files = ModelFiles::directory(directory.path()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("model.gguf");
        for before in [None, Some("another model")] {
            before.iter().for_each(|before| fs::write(&out, before).unwrap());
            let error = engine::quantize(&files, QuantType::Q8_0, &out, |_, _| {}).unwrap_err().to_string();
            assert!(error.contains(reason), "{family}, {part}: {error}");
            // No partial file is left, and an existing one is as before.
            assert_eq!(fs::read_to_string(&out).ok().as_deref(), before);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), usize::from(before.is_some()));
        }
    }
}

/// A file of another program has a list of tokens, and scores or merges. Gemma's tokenizers do not begin texts with a
/// space.
#[test]
fn tokenizers_of_gemma_split_texts_like_the_original() {
    let mut original: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden_dir("llama2").join("tokenizer.json")).unwrap()).unwrap();
    original["normalizer"] = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer_config.json"] {
        std::fs::copy(golden_dir("llama2").join(file), directory.path().join(file)).unwrap();
    }
    std::fs::write(directory.path().join("tokenizer.json"), original.to_string()).unwrap();
    let files = ModelFiles::directory(directory.path()).unwrap();
    let want = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
    for family in ["gemma2", "gemma3", "gemma4", "gemma4-e"] {
        let files = ModelFiles::gguf(fixture(family)).unwrap();
        let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
        for text in golden("llama2").prompts.into_iter().map(|p| p.text).chain(["  two spaces\n\n\u{1F600}".into()]) {
            assert_eq!(tokenizer.encode(&text).unwrap(), want.encode(&text).unwrap(), "{family}: {text:?}");
        }
    }
}
