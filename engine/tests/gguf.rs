//! GGUF files written by Python's `gguf` package, checked against the models they were made from and against the
//! package's own decoding of quantised groups.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{assert_tokenizer, json, model};
use engine::tools::chat::ChatTemplate;
use engine::tools::config::{ModelFamily, RopeScaling};
use engine::tools::load::{ModelFiles, StoredType, gguf};
use engine::tools::quantised::{QuantType, encode};
use engine::tools::tokenizer::Tokenizer;

/// The models with GGUF files, and the first file of each.
const FILES: [(&str, &str); 4] = [
    ("gpt2", "gpt2.gguf"),
    ("llama2", "llama2.gguf"),
    ("llama3", "llama3-00001-of-00002.gguf"),
    ("qwen2", "qwen2.gguf"),
];

fn fixture(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gguf")).join(file)
}

fn files(file: &str) -> ModelFiles {
    ModelFiles::resolve(fixture(file).to_str(), false).unwrap()
}

#[test]
fn configurations_match_the_directories() {
    for (name, file) in FILES {
        let files = files(file);
        let config = files.config().unwrap();
        let mut want = ModelFiles::directory(model(name)).unwrap().config().unwrap();
        want.torch_dtype = None;
        if let (ModelFamily::Decoder(llama), ModelFamily::Decoder(got)) = (&mut want.family, &config.family)
            && let RopeScaling::Factors { factors } = &got.ropes[0].scaling
        {
            assert!(matches!(llama.ropes[0].scaling, RopeScaling::Llama3 { .. }));
            assert_eq!((factors[0], factors[factors.len() - 1]), (1.0, 8.0));
            llama.ropes[0].scaling = got.ropes[0].scaling.clone();
        }
        assert_eq!(config, want, "{name}");
        assert_eq!(files.generation_config().unwrap().eos_token_ids, want.eos_token_ids, "{name}");
        assert_eq!((files.name(), files.path()), (file, Some(&*fixture(file))));
    }
}

#[test]
fn tokenizers_agree_with_the_golden_cases() {
    for (name, file) in FILES {
        let (files, golden) = (files(file), json(name, "golden.json"));
        let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
        assert_tokenizer(name, &tokenizer, &golden);
    }
}

#[test]
fn chat_templates_match_the_directories() {
    for (name, file) in FILES {
        let has = |files: &ModelFiles| ChatTemplate::of_model(files, None).unwrap().is_some();
        assert_eq!(has(&files(file)), has(&ModelFiles::directory(model(name)).unwrap()), "{name}");
    }
}

/// Returns a function that looks up a tensor of `groups.gguf`: its type and its bytes.
fn groups() -> impl Fn(&str) -> (StoredType, Vec<u8>) {
    let file = fs::read(fixture("groups.gguf")).unwrap();
    let tensors = gguf::describe(&file).unwrap();
    move |name| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        (tensor.dtype.clone(), file[tensor.offset..tensor.offset + tensor.len].to_vec())
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn quantised_elements_decode_exactly_as_the_reference() {
    let tensor = groups();
    for kind in QuantType::GGUF {
        let (stored, bytes) = tensor(&kind.to_string());
        assert_eq!(stored, StoredType::Quantised(kind));
        let want = f32s(&tensor(&format!("{kind}.elements")).1);
        let mut elements = vec![f32::NAN; want.len()];
        kind.decode(&bytes, &mut elements);
        assert!(elements.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{kind}");
    }
}

#[test]
fn elements_are_rounded_exactly_as_by_the_reference() {
    let tensor = groups();
    let x = f32s(&tensor("x").1);
    for kind in [QuantType::Q8_0, QuantType::Q4_0, QuantType::Q5_0] {
        let mut bytes = Vec::new();
        encode(kind, &x, &mut bytes).unwrap();
        assert!(bytes == tensor(&format!("x.{kind}")).1, "{kind}");
    }
}

/// The package chooses one exponent by the largest element. The search may find a better one.
#[test]
fn mxfp4_is_at_least_as_close_as_the_reference() {
    let tensor = groups();
    let x = f32s(&tensor("x").1);
    let mut bytes = Vec::new();
    encode(QuantType::MXFP4, &x, &mut bytes).unwrap();
    let theirs = tensor("x.mxfp4").1;
    let errors = [&bytes, &theirs].map(|bytes| {
        let mut elements = vec![f32::NAN; x.len()];
        QuantType::MXFP4.decode(bytes, &mut elements);
        let of_group = |(a, b): (&[f32], &[f32])| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        x.chunks(32).zip(elements.chunks(32)).map(of_group).collect::<Vec<_>>()
    });
    let [ours, theirs] = errors;
    assert!(ours.iter().zip(&theirs).all(|(a, b)| a <= b) && ours.iter().sum::<f32>() < theirs.iter().sum());
}

#[test]
fn a_file_with_a_missing_part_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| match ModelFiles::gguf(directory.path().join(name)) {
        Ok(_) => String::new(),
        Err(error) => format!("{error:?}"),
    };
    let [first, second] = ["llama3-00001-of-00002.gguf", "llama3-00002-of-00002.gguf"];
    fs::copy(fixture(first), directory.path().join(first)).unwrap();
    assert!(open(first).contains(second), "the error names the missing part");
    fs::copy(fixture(second), directory.path().join(second)).unwrap();
    assert_eq!(open(first), "");
    assert!(open(second).contains("-00001"), "{}", open(second));
    fs::copy(fixture("qwen2.gguf"), directory.path().join(second)).unwrap();
    assert!(open(first).contains("not part 2 of 2"), "{}", open(first));
    fs::copy(fixture(first), directory.path().join("renamed.gguf")).unwrap();
    assert!(open("renamed.gguf").contains("its name does not say so"), "{}", open("renamed.gguf"));
}

#[test]
fn unsupported_architectures_are_refused_by_name() {
    let refused = ModelFiles::gguf(fixture("groups.gguf")).unwrap().config().err().unwrap().to_string();
    assert!(refused.contains("\"none\"") && refused.contains("llama, qwen2, qwen3, gemma2"), "{refused}");
}
