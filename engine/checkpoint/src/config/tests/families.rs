//! Tests of the families' configurations.

use super::*;

fn decoder(json: &str) -> DecoderConfig {
    llama(&read(json).unwrap_or_else(|error| panic!("{json}: {error}"))).clone()
}

fn refusal(json: &str) -> String {
    let error = read(json).unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 300, "{error}");
    error
}

fn windows(decoder: &DecoderConfig) -> Vec<Option<usize>> {
    decoder.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn classes_and_model_types_name_the_same_family() {
    for (class, model_type) in [
        ("Gemma2ForCausalLM", "gemma2"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Gemma4ForCausalLM", "gemma4_text"),
        ("Olmo2ForCausalLM", "olmo2"),
        ("Olmo3ForCausalLM", "olmo3"),
        ("Cohere2ForCausalLM", "cohere2"),
        ("SmolLM3ForCausalLM", "smollm3"),
        ("Phi3ForCausalLM", "phi3"),
        ("Glm4ForCausalLM", "glm4"),
        ("GraniteForCausalLM", "granite"),
        ("GraniteMoeForCausalLM", "granitemoe"),
        ("MixtralForCausalLM", "mixtral"),
        ("Qwen2MoeForCausalLM", "qwen2_moe"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("GptOssForCausalLM", "gpt_oss"),
        ("DeepseekV2ForCausalLM", "deepseek_v2"),
        ("DeepseekV3ForCausalLM", "deepseek_v3"),
        ("Qwen3NextForCausalLM", "qwen3_next"),
        ("Qwen3_5ForCausalLM", "qwen3_5_text"),
        ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
        ("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
        ("Lfm2ForCausalLM", "lfm2"),
    ] {
        let [of_class, of_type] =
            [format!("\"architectures\": [\"{class}\"]"), format!("\"model_type\": \"{model_type}\"")]
                .map(|name| read(&format!("{{{name}, \"num_hidden_layers\": 6}}")).unwrap());
        assert_eq!((of_class.architecture.as_str(), of_type.architecture.as_str()), (class, model_type));
        assert_eq!(of_class.family, of_type.family, "{class}");
    }
}

#[test]
fn windows_follow_each_family_s_pattern() {
    let six = |kind: &str| windows(&decoder(&format!("{{\"model_type\": \"{kind}\", \"num_hidden_layers\": 6}}")));
    let (big, small) = (Some(4096), Some(512));
    assert_eq!(six("gemma2"), [big, None, big, None, big, None]);
    assert_eq!(six("gemma3_text"), [big, big, big, big, big, None]);
    assert_eq!(six("gemma4_text"), [small, small, small, small, small, None]);
    assert_eq!(six("cohere2"), [big, big, big, None, big, big]);
    assert_eq!(six("olmo3"), [big, big, big, None, big, big]);
    assert_eq!(six("phi3"), [None; 6]);
    let cohere = decoder(r#"{"model_type": "cohere2", "num_hidden_layers": 4}"#);
    assert_eq!(cohere.layers.iter().map(|layer| layer.rope).collect::<Vec<_>>(), [Some(0), Some(0), Some(0), None]);
    let smollm = decoder(r#"{"model_type": "smollm3", "num_hidden_layers": 5}"#);
    let rotates: Vec<bool> = smollm.layers.iter().map(|layer| layer.rope.is_some()).collect();
    assert_eq!(rotates, [true, true, true, false, true]);
}

#[test]
fn layers_with_states_follow_each_family_s_pattern() {
    let states = |json: &str| -> Vec<usize> {
        let layers = decoder(json).layers;
        layers.iter().map(|layer| layer.recurrent.map_or(0, |layer| layer.state())).collect()
    };
    // 16 key heads and 32 heads of 128, and a convolution of 4.
    let delta = 32 * 128 * 128 + 3 * (2 * 16 + 32) * 128;
    let qwen = r#"{"model_type": "qwen3_5_text", "num_hidden_layers": 5}"#;
    assert_eq!(states(qwen), [delta, delta, delta, 0, delta]);
    let qwen = r#"{"model_type": "qwen3_next", "num_hidden_layers": 2, "full_attention_interval": 2}"#;
    assert_eq!(states(qwen), [delta, 0]);
    assert!(decoder(qwen).attention_gate && decoder(qwen).layers[1].rope.is_some());
    assert_eq!(decoder(qwen).ropes[0].rotated, 64);
    let granite = r#"{"model_type": "granitemoehybrid", "num_hidden_layers": 3, "layer_types": ["mamba", "attention",
        "linear_attention"], "num_local_experts": 0, "mamba_d_state": 128, "position_embedding_type": "rope",
        "time_step_limit": [0.0, {"__float__": "Infinity"}]}"#;
    let mamba = 8192 * 128 + 3 * (8192 + 2 * 128);
    assert_eq!(states(granite), [mamba, 0, mamba]);
    let layer = decoder(granite).layers[1].clone();
    assert_eq!((layer.inner, layer.rope, layer.experts), (1024, Some(0), None));
    let lfm = r#"{"model_type": "lfm2", "num_hidden_layers": 3, "hidden_size": 64, "full_attn_idxs": [1], "block_ff_dim": 1000}"#;
    assert_eq!(states(lfm), [2 * 64, 0, 2 * 64]);
    assert_eq!(decoder(lfm).layers[0].inner, 768, "two thirds of 1000, rounded up to a multiple of 256");
}

#[test]
fn states_divide_like_heads() {
    // The worker's key heads and heads. `None` if they cannot be divided.
    let part = |layer: Recurrent, of: usize| layer.part(of).ok().map(|part| (part.key_heads, part.heads));
    let layer = decoder(r#"{"model_type": "qwen3_5_text", "num_hidden_layers": 1}"#).layers[0].recurrent.unwrap();
    let sizes = |tiled: bool, of: usize| part(Recurrent { tiled, ..layer }, of);
    assert_eq!([2, 4, 16].map(|of| sizes(false, of)), [Some((8, 16)), Some((4, 8)), Some((1, 2))]);
    assert_eq!([2, 4].map(|of| sizes(true, of)), [Some((16, 16)), Some((8, 8))]);
    assert_eq!([3, 64].map(|of| sizes(false, of)), [None, None]);
    let mamba = decoder(r#"{"model_type": "granitemoehybrid", "num_hidden_layers": 1}"#).layers[0].recurrent.unwrap();
    assert_eq!(part(mamba, 4), Some((1, 32)), "all workers have the only group");
}

#[test]
fn later_layers_share_the_cache_of_the_last_earlier_layer_of_their_type() {
    let base = r#""model_type": "gemma4_text", "num_hidden_layers": 8, "use_double_wide_mlp": true, "layer_types":
        ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "sliding_attention", "sliding_attention", "full_attention"]"#;
    let config = read(&format!("{{{base}, \"num_kv_shared_layers\": 3, \"global_head_dim\": 64}}")).unwrap();
    let layers = config.kv_layers();
    assert_eq!(layers.iter().map(|layer| layer.source).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 4, 4, 3]);
    assert_eq!((layers[3].head_dim, layers[4].head_dim), (64, 256));
    let wide: Vec<usize> = llama(&config).layers.iter().map(|layer| layer.inner / 9216).collect();
    assert_eq!(wide, [1, 1, 1, 1, 1, 2, 2, 2]);
    for shared in [7, 8, 9] {
        let error = refusal(&format!("{{{base}, \"num_kv_shared_layers\": {shared}}}"));
        assert!(error.contains("layer"), "{error}");
    }
}

#[test]
fn both_spellings_of_rotations_are_read() {
    let yarn = r#"{"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 64}"#;
    let old = decoder(&format!(r#"{{"model_type": "olmo3", "rope_theta": 5e5, "rope_scaling": {yarn}}}"#));
    let new = format!(r#"{{"full_attention": {yarn}, "sliding_attention": {{"rope_type": "default"}}}}"#);
    let new = decoder(&format!(r#"{{"model_type": "olmo3", "rope_parameters": {new}}}"#));
    assert_eq!(old.ropes, new.ropes);
    let RopeScaling::Yarn { factor, attention_factor, .. } = new.ropes[0].scaling else { panic!("{:?}", new.ropes) };
    assert_eq!((factor, attention_factor), (8.0, f64::from((0.1 * 8f64.ln() + 1.0) as f32)));
    assert_eq!(new.ropes[1].scaling, RopeScaling::None);

    let factors = r#""short_factor": [1, 1, 1], "long_factor": [2, 2, 2]"#;
    let sizes = r#""model_type": "phi3", "hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 512"#;
    let old = format!(
        r#""partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
        "rope_scaling": {{"type": "su", {factors}}}"#
    );
    let new = format!(
        r#""rope_parameters": {{"rope_type": "longrope", "factor": 8, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64, {factors}}}"#
    );
    let [old, new] = [old, new].map(|rope| decoder(&format!("{{{sizes}, {rope}}}")).ropes);
    assert_eq!(old, new);
    assert_eq!((new[0].rotated, new[0].regime_boundary()), (6, Some(64)));
    let error = refusal(&format!("{{{sizes}, \"rope_scaling\": {{\"type\": \"longrope\", {factors}}}}}"));
    assert!(error.contains("3 factors") && error.contains("8 elements"), "{error}");
}

#[test]
fn a_multimodal_configuration_gives_its_text_part() {
    let text = r#"{"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "eos_token_id": 9}"#;
    let whole = format!(
        r#"{{"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {text}, "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16", "vision_config": {{"hidden_size": 7}}}}"#
    );
    let (whole, text) = (read(&whole).unwrap(), read(text).unwrap());
    assert_eq!((whole.family, whole.hidden), (text.family, 64));
    assert_eq!((whole.text_only, text.text_only), (true, false));
    assert_eq!((whole.eos_token_ids.as_slice(), whole.torch_dtype), (&[1, 106][..], Some(DType::Bf16)));
    assert!(refusal(r#"{"model_type": "gemma3"}"#).contains("text_config"));
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    assert_refused(&[
        (
            r#"{"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": true}"#,
            "use_bidirectional_attention",
        ),
        (r#"{"model_type": "gemma4_text", "use_bidirectional_attention": "all"}"#, "use_bidirectional_attention"),
        (r#"{"model_type": "gemma4_text", "enable_moe_block": true}"#, "enable_moe_block"),
        (r#"{"model_type": "gemma2", "sliding_window": 0}"#, "sliding_window"),
        (r#"{"model_type": "olmo3", "sliding_window": null}"#, "sliding_window"),
        (r#"{"model_type": "cohere2", "layer_types": ["full_attention"]}"#, "layer_types"),
        (r#"{"model_type": "smollm3", "no_rope_layers": [1, 0]}"#, "no_rope_layers"),
        (r#"{"model_type": "glm4", "partial_rotary_factor": 1.5}"#, "rotated"),
        (r#"{"model_type": "gemma2", "attn_logit_softcapping": -1}"#, "attn_logit_softcapping"),
        (r#"{"model_type": "granite", "logits_scaling": 0}"#, "logits_scaling"),
        (r#"{"model_type": "granitemoehybrid", "time_step_limit": [0.0, 0.1]}"#, "time_step_limit"),
        (r#"{"model_type": "granitemoehybrid", "mamba_n_heads": 96}"#, "96 heads"),
        (r#"{"model_type": "qwen3_5_text", "linear_num_value_heads": 24}"#, "24"),
        (r#"{"model_type": "qwen3_5_text", "linear_key_head_dim": 24}"#, "multiple of 16"),
        (r#"{"model_type": "qwen3_next", "layer_types": ["sliding_attention"]}"#, "layer_types"),
        (r#"{"model_type": "lfm2", "full_attn_idxs": [], "conv_L_cache": 1}"#, "kernel size"),
    ]);
    let vision = r#"{"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}"#;
    assert!(read(vision).is_ok(), "text is read from left to right");
}
