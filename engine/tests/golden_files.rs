//! Configurations, weights and tokenizers of the reference models.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MODELS, assert_tokenizer, ids, json, model};
use engine::ModelFiles;
use engine::tools::config::{HeadNorm, ModelFamily, RopeScaling};
use engine::tools::detokenizer::Detokenizer;
use engine::tools::tensor::{DType, Elements};
use engine::tools::tokenizer::{Tokenizer, TokenizerFiles};
use proptest::prelude::*;

fn files(name: &str) -> ModelFiles {
    ModelFiles::directory(model(name)).unwrap()
}

#[test]
fn configurations_match_the_fixtures() {
    for name in MODELS {
        let (golden, config) = (json(name, "golden.json"), files(name).config().unwrap());
        let generation = files(name).generation_config().unwrap();
        assert_eq!(config.architecture, golden["architecture"].as_str().unwrap(), "{name}");
        assert_eq!(config.vocab_size as u64, golden["vocab_size"].as_u64().unwrap(), "{name}");
        assert_eq!(generation.eos_token_ids_or(&config), ids(&golden["eos_token_ids"]), "{name}");
        let dtype = config.torch_dtype.map_or("float32", |dtype| match dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
        });
        assert_eq!(dtype, golden["saved_dtype"].as_str().unwrap(), "{name}");
        match &config.family {
            ModelFamily::Opt(opt) => assert_eq!(opt.final_norm, name != "opt-350m-like"),
            ModelFamily::Gpt2(gpt2) => assert_eq!(gpt2.n_inner, 384),
            ModelFamily::Decoder(llama) => {
                assert_eq!(llama.layers[1].window, (name == "mistral").then_some(24), "{name}");
                assert_eq!(
                    (llama.head_norm == HeadNorm::Head, llama.qkv_bias),
                    (name == "qwen3", name == "qwen2"),
                    "{name}"
                );
                let scaled = matches!(llama.ropes[0].scaling, RopeScaling::Llama3 { .. });
                assert_eq!(scaled, name.starts_with("llama3"), "{name}");
            }
        }
    }
}

#[test]
fn weights_have_canonical_names_and_the_stored_type() {
    for name in MODELS {
        let (files, golden) = (files(name), json(name, "golden.json"));
        let config = files.config().unwrap();
        let mut weights = files.weights(None).unwrap();
        weights.strip_prefix(config.family.weight_prefixes());
        let stored = match golden["saved_dtype"].as_str().unwrap() {
            "float32" => DType::F32,
            "float16" => DType::F16,
            _ => DType::Bf16,
        };
        assert_eq!(weights.dtype(), stored, "{name}");
        let (embedding, width) = match &config.family {
            ModelFamily::Opt(opt) => ("embed_tokens.weight", opt.word_embed_proj_dim),
            ModelFamily::Gpt2(_) => ("wte.weight", config.hidden),
            ModelFamily::Decoder(_) => ("embed_tokens.weight", config.hidden),
        };
        assert!(weights.contains(embedding), "{name}: {:?}", weights.names().collect::<Vec<_>>());
        let tensor = weights.take(embedding, &[config.vocab_size, width]).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (stored, &[config.vocab_size, width][..]), "{name}");
        assert!(!weights.contains(embedding));
        let layer = match &config.family {
            ModelFamily::Gpt2(_) => "h.1.ln_1.weight",
            ModelFamily::Opt(_) => "layers.1.self_attn_layer_norm.weight",
            ModelFamily::Decoder(_) => "layers.1.input_layernorm.weight",
        };
        assert!(weights.take_optional("no.such.tensor", &[1]).unwrap().is_none());
        let wrong = weights.take(layer, &[config.hidden + 1]).err().unwrap().to_string();
        assert!(wrong.contains(layer) && wrong.contains(&format!("[{}]", config.hidden)), "{wrong}");
        let missing = weights.take("no.such.tensor", &[1]).err().unwrap().to_string();
        assert!(missing.contains("no.such.tensor") && missing.contains("missing"), "{missing}");
    }
}

#[test]
fn weights_are_rounded_but_never_widened() {
    let embedding = |name: &str, dtype| {
        let files = files(name);
        let config = files.config().unwrap();
        let mut weights = files.weights(dtype).unwrap();
        weights.strip_prefix(config.family.weight_prefixes());
        weights.take("embed_tokens.weight", &[config.vocab_size, config.hidden]).unwrap()
    };
    assert_eq!(embedding("opt-bin", Some(DType::F32)).dtype(), DType::F16);
    assert_eq!(embedding("opt-bin", Some(DType::Bf16)).dtype(), DType::Bf16);
    assert_eq!(embedding("opt-pre", Some(DType::F32)).dtype(), DType::F32);
    let (exact, rounded) = (embedding("opt-pre", None), embedding("opt-pre", Some(DType::F16)));
    let (Elements::F32(exact), Elements::F16(rounded)) = (exact.elements(), rounded.elements()) else {
        panic!("unexpected types");
    };
    assert!(exact.iter().zip(rounded).all(|(x, y)| half::f16::from_f32(*x) == *y));
}

#[test]
fn tokenizers_agree_with_the_golden_cases() {
    for name in MODELS {
        let (files, golden) = (files(name), json(name, "golden.json"));
        let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
        assert_tokenizer(name, &tokenizer, &golden);
        for prompt in golden["prompts"].as_array().unwrap() {
            let greedy = &prompt["greedy"];
            let text = greedy["text"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&ids(&greedy["ids"]), true).unwrap(), text, "{name}");
            assert_eq!(pieces(&tokenizer, &ids(&greedy["ids"]), true).concat(), text, "{name}");
        }
    }
}

#[test]
fn the_bundled_model_is_whole_and_gets_one_bos() {
    let files = ModelFiles::resolve(None, false).unwrap();
    let config = files.config().unwrap();
    let tokenizer = Tokenizer::of_model(&files, &config).unwrap();
    let ids = tokenizer.encode("Once upon a time").unwrap();
    assert_eq!(ids[0], 2);
    assert_eq!(ids[1..], tokenizer.encode_plain("Once upon a time").unwrap());
    assert!(!ids[1..].contains(&2));
    let mut weights = files.weights(None).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    assert_eq!(weights.dtype(), DType::F16);
    let tensor = weights.take("embed_tokens.weight", &[config.vocab_size, config.hidden]).unwrap();
    assert!(tensor.elements().to_f32().iter().all(|x| x.is_finite()));
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(tokenizer, *id).unwrap()).collect();
    pieces.push(detokenizer.finish(tokenizer).unwrap());
    pieces
}

#[test]
fn pieces_join_to_the_text_of_random_tokens() {
    for name in MODELS {
        let files = files(name);
        let config = files.config().unwrap();
        let tokenizer = Tokenizer::of_model(&files, &config).unwrap();
        let top = config.vocab_size as u32 + 3;
        let any = prop_oneof![
            proptest::collection::vec(0..top, 0..80),
            // The first tokens are bytes or single letters of the byte-level alphabet, so their sequences are mostly
            // invalid UTF-8.
            proptest::collection::vec(0..260u32.min(top), 0..80),
        ];
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(ids in any)| {
            for skip_special in [true, false] {
                let whole = tokenizer.decode(&ids, skip_special).unwrap();
                prop_assert_eq!(pieces(&tokenizer, &ids, skip_special).concat(), whole, "{}: {:?}", name, ids);
            }
        });
    }
}

#[test]
fn text_is_not_held_back_without_need() {
    for name in MODELS {
        let files = files(name);
        let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
        let ids = tokenizer.encode_plain("Once upon a time there was a small dog.").unwrap();
        let pieces = pieces(&tokenizer, &ids, true);
        assert!(pieces.iter().skip(1).rev().skip(1).all(|piece| !piece.is_empty()), "{name}: {pieces:?}");
        // Emoji take several tokens. No piece has half of one.
        let ids = tokenizer.encode_plain("x🙂y👩‍👩‍👧z").unwrap();
        let pieces = self::pieces(&tokenizer, &ids, true);
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{name}: {pieces:?}");
    }
}

#[test]
fn garbage_costs_no_more_per_token_as_it_grows() {
    let files = files("gpt2");
    let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
    let lead = tokenizer.token_id("Ã").unwrap();
    let ids = vec![lead; 20_000];
    let pieces = pieces(&tokenizer, &ids, true);
    assert_eq!(pieces.concat(), tokenizer.decode(&ids, true).unwrap());
    assert!(pieces.last().unwrap().chars().count() <= 20);
}

#[test]
fn pieces_join_with_other_decoders() {
    let text = std::fs::read(model("llama2").join("tokenizer.json")).unwrap();
    let config = files("llama2").config().unwrap();
    for decoder in [
        serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false}),
        serde_json::json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
    ] {
        let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        json["decoder"] = decoder;
        let json = json.to_string();
        let parts = TokenizerFiles { tokenizer_json: Some(json.as_bytes()), ..TokenizerFiles::default() };
        let tokenizer = Tokenizer::from_files(&parts, &config).unwrap();
        let settings = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(settings, |(ids in proptest::collection::vec(0..512u32, 0..60))| {
            let whole = tokenizer.decode(&ids, true).unwrap();
            prop_assert_eq!(pieces(&tokenizer, &ids, true).concat(), whole, "{:?}", ids);
        });
    }
}

#[test]
fn long_texts_of_one_kind_are_encoded_whole() {
    for name in ["gpt2", "llama2", "llama3", "qwen2"] {
        let files = files(name);
        let tokenizer = Tokenizer::of_model(&files, &files.config().unwrap()).unwrap();
        for unit in [" ", "a", "\n", "\u{301}", "7", "-"] {
            let text = unit.repeat(50_000);
            let ids = tokenizer.encode_plain(&text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}: {unit:?}");
        }
    }
}
