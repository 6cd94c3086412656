#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::load::ModelFiles;
use crate::load::gguf::adapter::save_for_tests;

const MODULE: &str = "base_model.model.model.layers.0.self_attn.q_proj";

fn llama() -> ModelConfig {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/golden/llama2"));
    ModelFiles::directory(path).unwrap().config().unwrap()
}

/// A tensor of a file: its name, shape and elements.
type Given = (String, Vec<usize>, Vec<f32>);

fn tensor(name: &str, shape: [usize; 2]) -> Given {
    (name.into(), shape.to_vec(), (0..shape[0] * shape[1]).map(|i| i as f32 * 0.25 - 1.0).collect())
}

fn pair(module: &str, outputs: usize, rank: usize, inputs: usize) -> Vec<Given> {
    vec![
        tensor(&format!("{module}.lora_A.weight"), [rank, inputs]),
        tensor(&format!("{module}.lora_B.weight"), [outputs, rank]),
    ]
}

fn write_peft(directory: &Path, config: &Value, tensors: &[Given]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let view = ::safetensors::tensor::TensorView::new(::safetensors::Dtype::F32, shape.clone(), bytes);
        (name.clone(), view.unwrap())
    });
    fs::write(directory.join("adapter_model.safetensors"), ::safetensors::serialize(views, None).unwrap()).unwrap();
    fs::write(directory.join("adapter_config.json"), config.to_string()).unwrap();
}

fn config(more: Value) -> Value {
    let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none",
                            "modules_to_save": null, "use_dora": false, "fan_in_fan_out": false});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn read(config: &Value, tensors: &[Given]) -> Result<Adapter> {
    let directory = tempfile::tempdir().unwrap();
    write_peft(directory.path(), config, tensors);
    Adapter::open(directory.path(), "base", &llama())
}

fn scale(more: Value) -> f32 {
    read(&config(more), &pair(MODULE, 8, 2, 4)).unwrap().products["layers.0.self_attn.q_proj"].scale
}

#[test]
fn a_directory_gives_the_products_of_its_projections() {
    let adapter = read(&config(json!({})), &pair(MODULE, 8, 2, 4)).unwrap();
    let (module, LowRank { a, b, scale }) = adapter.products.iter().next().unwrap();
    assert_eq!((&**module, a.shape(), b.shape(), *scale), ("layers.0.self_attn.q_proj", &[2, 4][..], &[8, 2][..], 3.0));
    assert_eq!((a.elements().to_f32()[..3].to_vec(), adapter.rank()), (vec![-1.0, -0.75, -0.5], 2));
}

#[test]
fn an_adapter_does_not_depend_on_its_files() {
    let directory = tempfile::tempdir().unwrap();
    write_peft(directory.path(), &config(json!({})), &pair(MODULE, 8, 2, 4));
    let adapter = Adapter::open(directory.path(), "base", &llama()).unwrap();
    let path = directory.path().join("adapter_model.safetensors");
    // Overwrites the file in place, which would change its mapped pages.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    std::io::Write::write_all(&mut &file, &vec![0; len]).unwrap();
    let a = &adapter.products["layers.0.self_attn.q_proj"].a;
    assert_eq!(a.elements().to_f32()[..3], [-1.0, -0.75, -0.5]);
}

#[test]
fn the_factor_follows_alpha_rank_and_stabilisation() {
    assert_eq!(scale(json!({})), 3.0);
    assert_eq!(scale(json!({"use_rslora": true})), (6.0 / 2f64.sqrt()) as f32);
    assert_eq!(scale(json!({"alpha_pattern": {"q_proj": 1}})), 0.5);
    assert_eq!(scale(json!({"alpha_pattern": {"layers.0.self_attn.q_proj": 4}})), 2.0);
    assert_eq!(scale(json!({"alpha_pattern": {"v_proj": 4, "0.q_proj": 1}})), 3.0);
    // The rank of the matrices counts, which `rank_pattern` describes.
    assert_eq!(scale(json!({"r": 64, "rank_pattern": {"q_proj": 2}})), 3.0);
}

#[test]
fn what_changes_the_answer_is_refused_by_name() {
    for (more, why) in [
        (json!({"peft_type": "LOHA"}), "its peft_type is LOHA, and only LORA is supported"),
        (json!({"peft_type": null}), "its peft_type is missing, and only LORA is supported"),
        (json!({"modules_to_save": ["lm_head"]}), r#"modules_to_save is ["lm_head"], which is not supported"#),
        (json!({"use_dora": true}), "use_dora is true, which is not supported"),
        (json!({"bias": "all"}), r#"bias is "all", which is not supported"#),
        (json!({"lora_bias": true}), "lora_bias is true, which is not supported"),
        (json!({"init_lora_weights": "pissa_niter_4"}), "init_lora_weights is pissa_niter_4, which also changes"),
        (json!({"alpha_pattern": {"layers.[01].q_proj": 1}}), "alpha_pattern has layers.[01].q_proj, but only names"),
        (json!({"alpha_pattern": {"q_proj": 1, "self_attn.q_proj": 2}}), "alpha_pattern has several entries for"),
        (json!({"lora_alpha": "x"}), "lora_alpha should be a number"),
    ] {
        let error = read(&config(more), &pair(MODULE, 8, 2, 4)).unwrap_err().to_string();
        assert!(error.contains(why) && error.starts_with("cannot use the adapter /"), "{error}");
    }
}

#[test]
fn damaged_weights_are_refused() {
    let (one, other) = (pair(MODULE, 8, 2, 4), pair(MODULE, 8, 3, 4));
    let mut nan = one.clone();
    nan[1].2[5] = f32::NAN;
    let flat = vec![one[0].clone(), (one[1].0.clone(), vec![16], one[1].2.clone())];
    let embedding = vec![tensor("base_model.model.model.embed_tokens.lora_embedding_A", [2, 4])];
    for (tensors, why) in [
        (vec![one[0].clone()], "layers.0.self_attn.q_proj has lora_A, but no lora_B"),
        (vec![one[1].clone()], "layers.0.self_attn.q_proj has lora_B, but no lora_A"),
        (vec![one[0].clone(), other[1].clone()], "has the rank 2, but its lora_B has 3"),
        (nan, "q_proj.lora_B.weight has elements that are not numbers"),
        (flat, "should be a matrix, but has the shape [16]"),
        (embedding, "is neither a lora_A nor a lora_B of a projection"),
        (Vec::new(), "it changes no projection"),
    ] {
        let error = read(&config(json!({})), &tensors).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let open = || Adapter::open(directory.path(), "base", &llama()).unwrap_err().to_string();
    assert!(open().ends_with("it has no adapter_config.json"));
    fs::write(directory.path().join("adapter_config.json"), "[").unwrap();
    assert!(open().contains("adapter_config.json is not a JSON object"));
    fs::write(directory.path().join("adapter_config.json"), config(json!({})).to_string()).unwrap();
    assert!(open().ends_with("it has no adapter_model.safetensors"));
    fs::write(directory.path().join("adapter_model.safetensors"), "damaged").unwrap();
    assert!(open().starts_with("cannot use the adapter "));
}

#[test]
fn the_digest_changes_with_the_contents_and_only_with_them() {
    let digest = |more: Value, tensors: &[Given]| read(&config(more), tensors).unwrap().digest;
    let given = pair(MODULE, 8, 2, 4);
    let same = digest(json!({}), &given);
    assert_eq!(same, digest(json!({"inference_mode": true, "lora_dropout": 0.5}), &given));
    let mut other = given.clone();
    other[1].2[3] += 0.5;
    let elsewhere = pair(&MODULE.replace("q_proj", "v_proj"), 8, 2, 4);
    let others = [
        digest(json!({}), &other),
        digest(json!({}), &elsewhere),
        digest(json!({"lora_alpha": 7}), &given),
        digest(json!({"use_rslora": true}), &given),
        digest(json!({}), &pair(MODULE, 8, 4, 4)),
    ];
    for (i, digest) in others.iter().enumerate() {
        assert!(*digest != same && !others[..i].contains(digest), "{i}");
    }
    let directory = tempfile::tempdir().unwrap();
    write_peft(directory.path(), &config(json!({})), &given);
    assert_ne!(Adapter::open(directory.path(), "another base", &llama()).unwrap().digest, same);
}

#[test]
fn a_gguf_file_gives_the_same_products_as_the_directory() {
    let model = llama();
    let (heads, dim, hidden) = (model.heads, model.head_dim, model.hidden);
    let tensors = pair(MODULE, heads * dim, 2, hidden);
    let wanted = read(&config(json!({})), &tensors).unwrap();
    // As llama.cpp's converter does, put the two rows of each rotated pair next to each other.
    let rows: Vec<&[f32]> = tensors[1].2.chunks(2).collect();
    let pairs = (0..heads * dim).map(|row| row / dim * dim + row % 2 * dim / 2 + row % dim / 2);
    let b = pairs.flat_map(|row| rows[row].to_vec()).collect();
    let file = [
        ("blk.0.attn_q.weight.lora_a".to_owned(), vec![2, hidden], tensors[0].2.clone()),
        ("blk.0.attn_q.weight.lora_b".to_owned(), vec![heads * dim, 2], b),
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("adapter.gguf");
    let save = |texts: &[(&str, &str)], alpha: f32, file: &[Given]| {
        fs::write(&path, save_for_tests(texts, alpha, file)).unwrap();
        Adapter::open(&path, "base", &model)
    };
    let kinds = [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", "llama")];
    let got = save(&kinds, 6.0, &file).unwrap();
    assert_eq!(got.digest, wanted.digest);
    assert_eq!(save(&kinds, 0.0, &file).unwrap().products["layers.0.self_attn.q_proj"].scale, 1.0);
    let [_, _, architecture] = kinds;
    let other = [kinds[0], kinds[1], ("general.architecture", "qwen2")];
    let unknown = [("blk.0.attn_q.weight.lora_c".to_owned(), vec![2, hidden], tensors[0].2.clone())];
    for (kinds, file, why) in [
        (&[architecture][..], &file[..], "its general.type is missing, but should be adapter"),
        (&[kinds[0], architecture], &file, "its adapter.type is missing, but should be lora"),
        (&other, &file, "it is for models of the architecture qwen2, but the model's is llama"),
        (&kinds, &unknown, "is neither a lora_a nor a lora_b of a projection"),
        (&kinds, &file[..1], "has lora_A, but no lora_B"),
    ] {
        let error = save(kinds, 6.0, file).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
