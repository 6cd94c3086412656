//! Files of other programs lack some settings. The tests expect the values of the published models.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::super::config::{Shapes, config};
use super::super::metadata::{Metadata, Value};

/// Builds the `config.json` of a file with these settings and these lists of factors. The tensors are an embedding of
/// 100 rows, and those that `tensors` names.
fn config_of(
    architecture: &str,
    settings: &[(&str, f64)],
    factors: &[(&str, &[f32])],
    tensors: &[&str],
) -> crate::error::Result<Json> {
    let mut values = HashMap::from([("general.architecture".to_owned(), Value::Text(architecture.into()))]);
    let common = [("context_length", 1024.0), ("attention.layer_norm_rms_epsilon", 1e-6)];
    for (key, number) in common.iter().chain(settings) {
        let value = if number.fract() == 0.0 { Value::Integer(*number as i64) } else { Value::Float(*number) };
        values.insert(format!("{architecture}.{key}"), value);
    }
    let shape = |name: &str| {
        let has = name == "token_embd.weight" || tensors.contains(&name);
        has.then(|| vec![100, 8])
    };
    let factors = |name: &str| Ok(factors.iter().find(|(own, _)| *own == name).map(|(_, list)| list.to_vec()));
    config(&Metadata(values), &Shapes { shape: &shape, factors: &factors })
}

/// Settings of a model with this number of layers, hidden size, heads, key-value heads and head size.
fn sizes([layers, hidden, heads, kv_heads, head_dim]: [u32; 5]) -> Vec<(&'static str, f64)> {
    vec![
        ("block_count", layers.into()),
        ("embedding_length", hidden.into()),
        ("feed_forward_length", f64::from(2 * hidden)),
        ("attention.head_count", heads.into()),
        ("attention.head_count_kv", kv_heads.into()),
        ("attention.key_length", head_dim.into()),
        ("attention.value_length", head_dim.into()),
    ]
}

/// Returns the layers without a window.
fn full_layers(config: &Json) -> Vec<usize> {
    let types = config["layer_types"].as_array().unwrap();
    (0..types.len()).filter(|layer| types[*layer] == "full_attention").collect()
}

#[test]
fn gemma_2_has_the_scales_and_windows_of_its_published_models() {
    for (shape, scalar) in [([26, 2304, 8, 4, 256], 256.0), ([46, 4608, 32, 16, 128], 144.0)] {
        let config = config_of("gemma2", &sizes(shape), &[], &[]).unwrap();
        assert_eq!(config["query_pre_attn_scalar"], scalar);
        assert_eq!(full_layers(&config)[..3], [1, 3, 5]);
        assert_eq!((&config["sliding_window"], &config["rope_theta"]), (&json!(4096), &json!(10000.0)));
        assert_eq!(
            (&config["attn_logit_softcapping"], &config["final_logit_softcapping"]),
            (&json!(50.0), &json!(30.0))
        );
    }
}

#[test]
fn gemma_3_has_the_scales_and_windows_of_its_published_models() {
    for (shape, scalar) in [([26, 1152, 4, 1, 256], 256.0), ([62, 5376, 32, 16, 128], 168.0)] {
        let settings = [sizes(shape), vec![("attention.sliding_window", 512.0), ("rope.freq_base", 1e6)]].concat();
        let config = config_of("gemma3", &settings, &[], &[]).unwrap();
        assert_eq!(config["query_pre_attn_scalar"], scalar);
        assert_eq!(full_layers(&config)[..3], [5, 11, 17]);
        assert_eq!(config["rope_parameters"]["sliding_attention"]["rope_theta"], 10000.0);
        assert_eq!(config["rope_parameters"]["full_attention"]["rope_theta"], 1e6);
        assert_eq!(config["final_logit_softcapping"], Json::Null);
    }
}

#[test]
fn a_scale_in_the_file_is_used() {
    let settings = [sizes([2, 64, 4, 2, 32]), vec![("attention.scale", f64::from(24f32.powf(-0.5)))]].concat();
    assert_eq!(config_of("gemma2", &settings, &[], &[]).unwrap()["query_pre_attn_scalar"], 24.0);
}

#[test]
fn the_projection_of_keys_gives_the_values_if_there_is_no_other() {
    let settings = [
        sizes([2, 64, 4, 2, 64]),
        vec![("attention.key_length_swa", 32.0), ("attention.sliding_window_pattern", 2.0)],
        vec![("attention.sliding_window", 8.0), ("rope.freq_base", 1e6)],
    ]
    .concat();
    let list = [1.0, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30];
    let config = config_of("gemma4", &settings, &[("rope_freqs.weight", &list)], &[]).unwrap();
    assert_eq!((&config["head_dim"], &config["global_head_dim"]), (&json!(32), &json!(64)));
    assert_eq!(config["rope_parameters"]["full_attention"]["partial_rotary_factor"], 0.25);
    assert_eq!(config["attention_k_eq_v"], true);
    let config = config_of("gemma4", &settings, &[], &["blk.1.attn_v.weight"]).unwrap();
    assert_eq!(config["attention_k_eq_v"], false);
    let other = [2.0f32; 8];
    let error = config_of("gemma4", &settings, &[("rope_freqs.weight", &other)], &[]).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight"), "{error}");
}

#[test]
fn olmo_3_is_olmo_2_with_windows() {
    let olmo2 = config_of("olmo2", &sizes([8, 64, 2, 2, 32]), &[], &[]).unwrap();
    assert_eq!((&olmo2["architectures"][0], &olmo2["layer_types"]), (&json!("Olmo2ForCausalLM"), &Json::Null));
    let settings =
        [sizes([8, 64, 2, 2, 32]), vec![("attention.sliding_window", 16.0), ("rope.freq_base", 5e5)]].concat();
    let olmo3 = config_of("olmo2", &settings, &[], &[]).unwrap();
    assert_eq!((&olmo3["architectures"][0], full_layers(&olmo3)), (&json!("Olmo3ForCausalLM"), vec![3, 7]));
    assert_eq!(olmo3["rope_parameters"]["sliding_attention"]["rope_theta"], 5e5);
}

#[test]
fn every_fourth_layer_of_smollm3_does_not_rotate() {
    let config = config_of("smollm3", &sizes([5, 64, 2, 1, 32]), &[], &[]).unwrap();
    assert_eq!(config["no_rope_layers"], json!([1, 1, 1, 0, 1]));
}

#[test]
fn phi_3_has_no_window_of_zero_and_two_lists_of_factors() {
    let settings = [
        sizes([2, 64, 2, 2, 32]),
        vec![("rope.dimension_count", 24.0), ("attention.sliding_window", 0.0)],
        vec![("rope.scaling.original_context_length", 128.0)],
    ]
    .concat();
    let (short, long) = ([1.0f32, 1.1], [1.0f32, 4.5]);
    let lists: [(&str, &[f32]); 2] = [("rope_factors_short.weight", &short), ("rope_factors_long.weight", &long)];
    let config = config_of("phi3", &settings, &lists, &[]).unwrap();
    assert_eq!((&config["sliding_window"], &config["partial_rotary_factor"]), (&Json::Null, &json!(0.75)));
    assert_eq!(
        config["rope_scaling"],
        json!({"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.0, 4.5]})
    );
    assert_eq!(config["original_max_position_embeddings"], 128);
}

#[test]
fn granites_factors_are_read_as_decimals() {
    let factors = [("attention.scale", 0.015625), ("embedding_scale", f64::from(12.5f32)), ("logit_scale", 8.0)];
    let residual = [("residual_scale", f64::from(0.22f32))];
    let settings = [sizes([2, 64, 2, 2, 32]), factors.to_vec(), residual.to_vec()].concat();
    let config = config_of("granite", &settings, &[], &["blk.0.attn_q.bias"]).unwrap();
    assert_eq!((&config["residual_multiplier"], &config["attention_multiplier"]), (&json!(0.22), &json!(0.015625)));
    assert_eq!((&config["embedding_multiplier"], &config["logits_scaling"]), (&json!(12.5), &json!(8.0)));
    assert_eq!(config["attention_bias"], true);
}

#[test]
fn layers_that_only_predict_further_tokens_are_left_out() {
    let states = [("conv_kernel", 4.0), ("state_size", 16.0), ("group_count", 2.0), ("time_step_rank", 4.0)];
    let states = states.map(|(key, number)| (format!("ssm.{key}"), number));
    let mut settings = sizes([3, 64, 2, 2, 32]);
    settings.extend([("nextn_predict_layers", 1.0), ("ssm.inner_size", 128.0), ("rope.dimension_count", 8.0)]);
    settings.extend(states.iter().map(|(key, number)| (key.as_str(), *number)));
    let config = config_of("qwen35", &settings, &[], &["blk.0.ssm_conv1d.weight"]).unwrap();
    assert_eq!((&config["num_hidden_layers"], full_layers(&config)), (&json!(2), vec![1]));
    let heads = ["key_head_dim", "value_head_dim"].map(|part| &config[format!("linear_{part}")]);
    assert_eq!((heads, &config["linear_value_heads_tiled"]), ([&json!(16), &json!(32)], &json!(true)));
}

#[test]
fn deepseeks_groups_are_known_if_files_lack_them() {
    let config = |scores: f64, experts: f64, more: &[(&'static str, f64)]| {
        let settings = [
            sizes([4, 64, 8, 1, 576]),
            vec![("attention.kv_lora_rank", 512.0), ("rope.dimension_count", 64.0), ("leading_dense_block_count", 1.0)],
            vec![("attention.key_length_mla", 192.0), ("attention.value_length_mla", 128.0)],
            vec![("expert_gating_func", scores), ("expert_count", experts), ("expert_used_count", 6.0)],
            more.to_vec(),
        ];
        config_of("deepseek2", &settings.concat(), &[], &[])
    };
    let of = |scores: f64, experts: f64| config(scores, experts, &[]).unwrap();
    let groups = |config: &Json| [config["n_group"].as_u64().unwrap(), config["topk_group"].as_u64().unwrap()];
    let (second, lite, third) = (of(1.0, 160.0), of(0.0, 64.0), of(2.0, 256.0));
    assert_eq!([&second, &lite, &third].map(groups), [[8, 3], [1, 1], [8, 4]]);
    assert_eq!([&second["topk_method"], &lite["topk_method"]], [&json!("group_limited_greedy"), &json!("greedy")]);
    assert_eq!(lite["architectures"][0], "DeepseekV2ForCausalLM");
    assert_eq!(third["architectures"][0], "DeepseekV3ForCausalLM");
    let heads = ["qk_nope_head_dim", "v_head_dim", "num_key_value_heads", "q_lora_rank"].map(|name| &third[name]);
    assert_eq!(heads, [&json!(128), &json!(128), &json!(8), &Json::Null]);
    for (scores, setting, reason) in [
        (3.0, ("expert_used_count", 6.0), "expert_gating_func 3"),
        (1.0, ("rope.dimension_count", 193.0), "193 of 192 elements"),
        (2.0, ("nextn_predict_layers", 1.0), "several tokens"),
        (2.0, ("attention.kv_lora_rank", -1.0), "attention.kv_lora_rank"),
    ] {
        let error = config(scores, 64.0, &[setting]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn more_experts_layers_or_rotated_elements_than_possible_are_refused() {
    let cases = [
        ("smollm3", ("block_count", 4e9), "the number of layers"),
        ("glm4", ("rope.dimension_count", 33.0), "33 of 32 elements"),
        ("glm4", ("nextn_predict_layers", 1.0), "several tokens"),
        ("olmo2", ("expert_count", 8.0), "experts in GGUF files"),
        ("gemma4", ("expert_count", 8.0), "expert_used_count"),
        ("olmo2", ("rope.dimension_count", 16.0), "rope.dimension_count"),
    ];
    for (architecture, setting, reason) in cases {
        let settings = [sizes([2, 64, 2, 2, 32]), vec![setting]].concat();
        let error = config_of(architecture, &settings, &[], &[]).unwrap_err().to_string();
        assert!(error.contains(reason), "{architecture}: {error}");
    }
}
