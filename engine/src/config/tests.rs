//! Defaults, both generations of key names, and refusals.

use super::*;

fn read(json: &str) -> Result<ModelConfig> {
    ModelConfig::from_json(json.as_bytes())
}

fn llama(config: &ModelConfig) -> &LlamaConfig {
    match &config.family {
        ModelFamily::Llama(llama) => llama,
        other => panic!("not a LLaMA: {other:?}"),
    }
}

#[test]
fn the_defaults_are_those_of_the_classes() {
    let opt = read(r#"{"model_type": "opt"}"#).unwrap();
    assert_eq!((opt.layers, opt.heads, opt.hidden, opt.vocab_size, opt.max_positions), (12, 12, 768, 50272, 2048));
    assert_eq!((opt.eos_token_ids.as_slice(), opt.bos_token_id, opt.tie_word_embeddings), (&[2][..], Some(2), true));
    let none = read(r#"{"model_type": "opt", "eos_token_id": null, "bos_token_id": null}"#).unwrap();
    assert_eq!((none.eos_token_ids.len(), none.bos_token_id), (0, None));
    let gpt2 = read(r#"{"architectures": ["GPT2LMHeadModel"], "n_inner": null}"#).unwrap();
    assert_eq!((gpt2.head_dim, gpt2.eos_token_ids.as_slice()), (64, &[50256][..]));
    assert!(matches!(&gpt2.family, ModelFamily::Gpt2(g) if g.n_inner == 3072 && g.activation == Activation::GeluTanh));
    let plain = read(r#"{"model_type": "llama", "architectures": []}"#).unwrap();
    assert_eq!((plain.kv_heads, plain.head_dim, plain.max_positions), (32, 128, 2048));
    assert_eq!((llama(&plain).rms_norm_eps, llama(&plain).rope.theta), (1e-6, 10000.0));
    let mistral = read(r#"{"model_type": "mistral"}"#).unwrap();
    assert_eq!((mistral.kv_heads, llama(&mistral).intermediate_size), (8, 14336));
    assert_eq!((llama(&mistral).window(0), llama(&mistral).window(31)), (Some(4096), Some(4096)));
    let qwen2 = read(r#"{"model_type": "qwen2"}"#).unwrap();
    assert!(llama(&qwen2).qkv_bias && !llama(&qwen2).o_bias && llama(&qwen2).window(31).is_none());
    let qwen3 = read(r#"{"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16}"#);
    assert!(qwen3.unwrap_err().to_string().contains("num_key_value_heads"));
    let qwen3 = read(r#"{"model_type": "qwen3", "num_attention_heads": 64}"#).unwrap();
    assert!(qwen3.head_dim == 128 && llama(&qwen3).qk_norm && !llama(&qwen3).qkv_bias);
}

#[test]
fn windows_follow_the_layers() {
    let base = r#""model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 8, "use_sliding_window": true"#;
    let windows = |more: &str| {
        let config = read(&format!("{{{base}{more}}}")).unwrap();
        let windows = [0, 1, 2].map(|layer| llama(&config).window(layer));
        assert_eq!(config.window(), None, "some layer sees all");
        windows
    };
    assert_eq!(windows(r#", "max_window_layers": 1"#), [None, Some(8), Some(8)]);
    assert_eq!(windows(""), [None; 3]);
    let types = r#", "max_window_layers": 0, "layer_types": ["sliding_attention", "full_attention", "full_attention"]"#;
    assert_eq!(windows(types), [Some(8), None, None]);
    let null = read(r#"{"model_type": "mistral", "sliding_window": null}"#).unwrap();
    assert_eq!((llama(&null).window(0), null.window()), (None, None));
    let all = read(r#"{"model_type": "mistral", "sliding_window": 24}"#).unwrap();
    assert_eq!(all.window(), Some(24));
    for (more, word) in [
        (r#", "layer_types": ["full_attention"]"#, "layer_types"),
        (r#", "layer_types": ["chunked_attention", "full_attention", "full_attention"]"#, "chunked_attention"),
        (r#", "sliding_window": 0"#, "sliding_window"),
    ] {
        let error = read(&format!("{{{base}{more}}}")).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn rope_is_read_in_both_forms() {
    let scaling =
        |json: &str| read(&format!(r#"{{"model_type": "llama", {json}}}"#)).map(|config| llama(&config).rope.clone());
    let linear = scaling(r#""rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}"#).unwrap();
    assert_eq!(linear, Rope { theta: 5e5, scaling: RopeScaling::Linear { factor: 2.0 } });
    let modern = r#"{"rope_type": "llama3", "rope_theta": 9, "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 64}"#;
    let llama3 = scaling(&format!(r#""rope_theta": 7, "rope_parameters": {modern}"#)).unwrap();
    assert_eq!(llama3.theta, 9.0);
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    assert_eq!(llama3.scaling, expected);
    let default = scaling(r#""rope_parameters": {"rope_type": "default", "rope_theta": 3}"#).unwrap();
    assert_eq!(default, Rope { theta: 3.0, scaling: RopeScaling::None });
    for (json, word) in [
        (r#""rope_scaling": {"type": "yarn", "factor": 4}"#, "yarn"),
        (r#""rope_scaling": {"rope_type": "linear"}"#, "factor"),
        (r#""rope_scaling": {"rope_type": "linear", "factor": 0.5}"#, "factor"),
        (r#""rope_theta": 0"#, "rope_theta"),
        (r#""rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}"#, "low_freq_factor"),
        (r#""partial_rotary_factor": 0.5"#, "partial_rotary_factor"),
        (r#""rope_parameters": {"full_attention": {}}"#, "type of layer"),
    ] {
        let error = scaling(json).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    for (json, word) in [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "model_type"),
        (r#"{"architectures": ["BloomForCausalLM"]}"#, "BloomForCausalLM"),
        (r#"{"architectures": ["BloomForCausalLM"], "model_type": "opt"}"#, "LlamaForCausalLM"),
        (r#"{"model_type": "opt", "num_attention_heads": 0}"#, "attention heads"),
        (r#"{"model_type": "opt", "num_attention_heads": 7}"#, "multiple"),
        (r#"{"model_type": "opt", "num_hidden_layers": 0}"#, "layers"),
        (r#"{"model_type": "opt", "num_hidden_layers": -1}"#, "num_hidden_layers"),
        (r#"{"model_type": "opt", "num_hidden_layers": 1e30}"#, "num_hidden_layers"),
        (r#"{"model_type": "opt", "vocab_size": 0}"#, "vocab_size"),
        (r#"{"model_type": "opt", "vocab_size": 18446744073709551615}"#, "vocab_size"),
        (r#"{"model_type": "opt", "ffn_dim": 0}"#, "ffn_dim"),
        (r#"{"model_type": "opt", "max_position_embeddings": 0}"#, "positions"),
        (r#"{"model_type": "opt", "activation_function": "quick_gelu"}"#, "quick_gelu"),
        (r#"{"model_type": "opt", "eos_token_id": "x"}"#, "eos_token_id"),
        (r#"{"model_type": "opt", "quantization_config": {"quant_method": "gptq"}}"#, "gptq"),
        (r#"{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}"#, "scale_attn_by_inverse_layer_idx"),
        (r#"{"model_type": "gpt2", "scale_attn_weights": false}"#, "scale_attn_weights"),
        (r#"{"model_type": "gpt2", "n_embd": 4611686018427387904}"#, "n_embd"),
        (r#"{"model_type": "llama", "num_key_value_heads": 5}"#, "num_key_value_heads"),
        (r#"{"model_type": "llama", "num_key_value_heads": 0}"#, "key-value heads"),
        (r#"{"model_type": "llama", "head_dim": 33}"#, "odd"),
        (r#"{"model_type": "llama", "head_dim": 0}"#, "head size"),
        (r#"{"model_type": "llama", "intermediate_size": 0}"#, "intermediate_size"),
        (r#"{"model_type": "llama", "rms_norm_eps": -1}"#, "rms_norm_eps"),
    ] {
        let error = read(json).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{json}: {error}");
    }
}

#[test]
fn generation_settings_are_read_and_checked() {
    let text = br#"{"eos_token_id": [5, 6], "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "repetition_penalty": 1.1, "max_new_tokens": 7}"#;
    let config = GenerationConfig::from_json(text).unwrap();
    assert_eq!((config.top_k, config.top_p, config.min_p), (Some(20), Some(0.95), None));
    assert_eq!((config.do_sample, config.temperature, config.max_new_tokens), (Some(true), Some(0.6), Some(7)));
    let model = read(r#"{"model_type": "opt"}"#).unwrap();
    assert_eq!(config.eos_token_ids_or(&model), [5, 6]);
    assert_eq!(GenerationConfig::default().eos_token_ids_or(&model), [2]);
    for bad in ["1", r#"{"top_p": 2}"#, r#"{"temperature": -1}"#, r#"{"repetition_penalty": 0}"#, r#"{"top_k": -1}"#] {
        assert!(GenerationConfig::from_json(bad.as_bytes()).is_err(), "{bad}");
    }
}
