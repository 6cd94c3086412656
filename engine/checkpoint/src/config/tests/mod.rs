//! Tests of defaults, of old and new key names, and of refusals.

mod experts;
mod families;

use super::*;

fn read(json: &str) -> Result<ModelConfig> {
    ModelConfig::from_json(json.as_bytes())
}

fn llama(config: &ModelConfig) -> &DecoderConfig {
    match &config.family {
        ModelFamily::Decoder(decoder) => decoder,
        other => panic!("not a decoder: {other:?}"),
    }
}

fn window(config: &ModelConfig, layer: usize) -> Option<usize> {
    llama(config).layers[layer].window
}

#[test]
fn defaults_match_the_classes() {
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
    assert_eq!((llama(&plain).eps, llama(&plain).ropes[0].theta), (1e-6, 10000.0));
    let mistral = read(r#"{"model_type": "mistral"}"#).unwrap();
    assert_eq!((mistral.kv_heads, llama(&mistral).layers[0].inner), (8, 14336));
    assert_eq!((window(&mistral, 0), window(&mistral, 31)), (Some(4096), Some(4096)));
    let qwen2 = read(r#"{"model_type": "qwen2"}"#).unwrap();
    assert!(llama(&qwen2).qkv_bias && !llama(&qwen2).o_bias && window(&qwen2, 31).is_none());
    let qwen3 = read(r#"{"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16}"#);
    assert!(qwen3.unwrap_err().to_string().contains("num_key_value_heads"));
    let qwen3 = read(r#"{"model_type": "qwen3", "num_attention_heads": 64}"#).unwrap();
    assert!(qwen3.head_dim == 128 && llama(&qwen3).head_norm == HeadNorm::Head && !llama(&qwen3).qkv_bias);
}

#[test]
fn windows_may_differ_between_layers() {
    let base = r#""model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 8, "use_sliding_window": true"#;
    let windows = |more: &str| {
        let config = read(&format!("{{{base}{more}}}")).unwrap();
        let windows = [0, 1, 2].map(|layer| window(&config, layer));
        assert_eq!(config.window(), None, "some layer sees all");
        windows
    };
    assert_eq!(windows(r#", "max_window_layers": 1"#), [None, Some(8), Some(8)]);
    assert_eq!(windows(""), [None; 3]);
    let types = r#", "max_window_layers": 0, "layer_types": ["sliding_attention", "full_attention", "full_attention"]"#;
    assert_eq!(windows(types), [Some(8), None, None]);
    let null = read(r#"{"model_type": "mistral", "sliding_window": null}"#).unwrap();
    assert_eq!((window(&null, 0), null.window()), (None, None));
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
    let scaling = |json: &str| {
        read(&format!(r#"{{"model_type": "llama", {json}}}"#)).map(|config| llama(&config).ropes[0].clone())
    };
    let linear = scaling(r#""rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}"#).unwrap();
    assert_eq!(
        linear,
        Rope { theta: 5e5, scaling: RopeScaling::Linear { factor: 2.0 }, rotated: 128, adjacent: false }
    );
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
    assert_eq!(default, Rope { theta: 3.0, scaling: RopeScaling::None, rotated: 128, adjacent: false });
    for (json, word) in [
        (r#""rope_scaling": {"type": "dynamic", "factor": 4}"#, "dynamic"),
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
fn unsupported_configurations_are_refused_by_name() {
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
        (r#"{"model_type": "opt", "quantization_config": {"quant_method": "hqq"}}"#, "hqq"),
        (r#"{"model_type": "opt", "quantization_config": {"quant_method": "gptq", "bits": 8}}"#, "8 bits"),
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

fn quantization(json: &str) -> Result<Option<Quantization>> {
    read(&format!(r#"{{"model_type": "llama", "quantization_config": {json}}}"#)).map(|config| config.quantization)
}

/// Returns a compressed-tensors configuration with one group.
fn compressed(format: &str, weights: &str, activations: &str) -> String {
    format!(
        r#"{{"quant_method": "compressed-tensors", "format": "{format}", "ignore": ["lm_head", "re:.*gate"],
        "config_groups": {{"group_0": {{"weights": {{{weights}}}, "input_activations": {activations}}}}}}}"#
    )
}

const INT4_WEIGHTS: &str = r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": 128"#;
const FP8_WEIGHTS: &str = r#""num_bits": 8, "type": "float", "strategy": "channel""#;
const INT8_WEIGHTS: &str = r#""num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true"#;

#[test]
fn quantised_checkpoints_are_read_in_all_common_forms() {
    assert_eq!(read(r#"{"model_type": "llama", "quantization_config": null}"#).unwrap().quantization, None);
    let (of_128, of_64) = (GroupSize::Of(128), GroupSize::Of(64));
    for (json, format) in [
        (r#"{"quant_method": "awq"}"#.to_owned(), QuantFormat::Awq { group: of_128 }),
        (
            r#"{"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM", "zero_point": true}"#.into(),
            QuantFormat::Awq { group: of_64 },
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": true, "is_marlin_format": false}"#.into(),
            QuantFormat::Gptq { group: GroupSize::Row, less_one: true, sorted: false },
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2", "dynamic": {},
            "pack_dtype": "int32"}"#
                .into(),
            QuantFormat::Gptq { group: of_64, less_one: false, sorted: false },
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": true, "dynamic": {"-:.*lm_head": {}}}"#.into(),
            QuantFormat::Gptq { group: GroupSize::Various, less_one: true, sorted: true },
        ),
        (
            compressed("pack-quantized", INT4_WEIGHTS, "null"),
            QuantFormat::CompressedTensors { int4: Some(of_128), zeros: Some(false), sorted: false, int8: None, fp8: None },
        ),
        (
            compressed("int-quantized", INT8_WEIGHTS, r#"{"num_bits": 8, "type": "int", "dynamic": true}"#),
            QuantFormat::CompressedTensors {
                int4: None,
                zeros: None,
                sorted: false,
                int8: Some(GroupSize::Row),
                fp8: None,
            },
        ),
        (
            compressed("float-quantized", FP8_WEIGHTS, r#"{"num_bits": 8, "type": "float", "dynamic": true}"#),
            QuantFormat::CompressedTensors { int4: None, zeros: None, sorted: false, int8: None, fp8: Some(Fp8Scales::Outputs) },
        ),
        (
            r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}"#.into(),
            QuantFormat::Fp8(Fp8Scales::Blocks([128, 128])),
        ),
        (r#"{"quant_method": "fp8", "activation_scheme": "static"}"#.into(), QuantFormat::Fp8(Fp8Scales::Outputs)),
        (r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}"#.into(), QuantFormat::Mxfp4),
    ] {
        assert_eq!(quantization(&json).unwrap().unwrap().format, format, "{json}");
    }
    let older = INT4_WEIGHTS.replace("\"strategy\": \"group\", \"group_size\": 128", "\"strategy\": \"channel\"");
    let older = compressed("pack-quantized", &older, "null");
    let older = read(&format!(r#"{{"model_type": "llama", "compression_config": {older}}}"#)).unwrap().quantization;
    let row = QuantFormat::CompressedTensors {
        int4: Some(GroupSize::Row),
        zeros: Some(false),
        sorted: false,
        int8: None,
        fp8: None,
    };
    assert_eq!(older.map(|quantization| quantization.format), Some(row));
}

#[test]
fn modules_are_ignored_by_whole_parts_of_their_names() {
    for list in ["modules_to_not_convert", "ignored_layers", "ignore"] {
        let json = format!(r#"{{"quant_method": "fp8", "{list}": ["lm_head", "layers.1", "mlp.gate"]}}"#);
        let quantization = quantization(&json).unwrap().unwrap();
        for (module, ignored) in [
            ("lm_head", true),
            ("model.layers.1.mlp.up_proj", true),
            ("model.layers.10.mlp.up_proj", false),
            ("model.layers.0.mlp.gate_proj", false),
            ("model.layers.0.mlp.gate", true),
        ] {
            assert_eq!(quantization.ignores(module), ignored, "{module}");
        }
    }
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let group = |weights: &str| compressed("pack-quantized", weights, "null");
    for (json, word) in [
        (r#"{"quant_method": "bitsandbytes"}"#.to_owned(), "bitsandbytes"),
        ("{}".into(), "unnamed"),
        (r#"{"quant_method": "awq", "bits": 8}"#.into(), "8 bits"),
        (r#"{"quant_method": "awq", "version": "gemv"}"#.into(), "gemv"),
        (r#"{"quant_method": "awq", "zero_point": false}"#.into(), "zero points"),
        (r#"{"quant_method": "gptq", "bits": 3}"#.into(), "3 bits"),
        (r#"{"quant_method": "gptq", "checkpoint_format": "marlin"}"#.into(), "marlin"),
        (r#"{"quant_method": "gptq", "is_marlin_format": true}"#.into(), "marlin"),
        (r#"{"quant_method": "gptq", "pack_dtype": "int64"}"#.into(), "int64"),
        (r#"{"quant_method": "gptq", "adapter": {"rank": 8}}"#.into(), "adapter"),
        (r#"{"quant_method": "gptq", "group_size": 0}"#.into(), "group_size"),
        (r#"{"quant_method": "gptq", "group_size": -2}"#.into(), "group_size"),
        (r#"{"quant_method": "gptq", "group_size": 1e300}"#.into(), "group_size"),
        (r#"{"quant_method": "fp8", "fmt": "e5m2"}"#.into(), "e5m2"),
        (r#"{"quant_method": "fp8", "weight_block_size": [128]}"#.into(), "weight_block_size"),
        (r#"{"quant_method": "fp8", "weight_block_size": [0, 128]}"#.into(), "weight_block_size"),
        (group(&INT4_WEIGHTS.replace('4', "3")), "3 bits"),
        (group(&INT4_WEIGHTS.replace("int", "float")), "float of 4 bits"),
        (group(&INT4_WEIGHTS.replace("\"group\"", "\"block\"")), "block"),
        (group(r#""num_bits": 4, "type": "int", "strategy": "group""#), "group_size"),
        (compressed("pack-quantized", INT4_WEIGHTS, r#"{"num_bits": 8, "type": "int"}"#), "activations in 8"),
        (compressed("marlin-24", INT4_WEIGHTS, "null"), "marlin-24"),
        (compressed("nvfp4-pack-quantized", r#""num_bits": 4, "type": "float""#, "null"), "nvfp4"),
        (compressed("int-quantized", &INT8_WEIGHTS.replace("true", "false"), "null"), "zero points"),
        (compressed("int-quantized", INT8_WEIGHTS, r#"{"num_bits": 4, "type": "int"}"#), "activations in 4"),
        (compressed("float-quantized", FP8_WEIGHTS, r#"{"num_bits": 8, "type": "int"}"#), "activations as int"),
        (compressed("float-quantized", &FP8_WEIGHTS.replace("channel", "group"), "null"), "each group"),
        (r#"{"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}"#.into(), "W4A16"),
        (r#"{"quant_method": "compressed-tensors"}"#.into(), "config_groups"),
        (
            r#"{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}"#.into(),
            "sparse-24",
        ),
        (r#"{"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}"#.into(), "transforms"),
    ] {
        let error = quantization(&json).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{json}: {error}");
    }
}
