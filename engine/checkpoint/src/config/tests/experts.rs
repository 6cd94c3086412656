//! Tests of the families with experts, and of contradictions in their settings.

use super::*;

fn decoder(json: &str) -> DecoderConfig {
    llama(&read(json).unwrap_or_else(|error| panic!("{json}: {error}"))).clone()
}

fn experts(json: &str) -> Experts {
    decoder(json).layers[0].experts.unwrap_or_else(|| panic!("{json}: it has no experts"))
}

#[test]
fn absent_members_have_the_defaults_of_the_class() {
    let sizes = |kind: &str| {
        let experts = experts(&format!("{{\"model_type\": \"{kind}\", \"num_hidden_layers\": 2}}"));
        (experts.count, experts.inner, experts.routing.top_k, experts.routing.renormalised)
    };
    assert_eq!(sizes("mixtral"), (8, 14336, 2, true));
    assert_eq!(sizes("qwen2_moe"), (60, 1408, 4, false));
    assert_eq!(sizes("qwen3_moe"), (128, 768, 8, false));
    assert_eq!(sizes("gpt_oss"), (128, 2880, 4, true));
    assert_eq!(sizes("granitemoe"), (8, 11008, 2, true));
    let shared = experts(r#"{"model_type": "qwen2_moe", "num_hidden_layers": 1}"#).shared;
    assert_eq!(shared, Some(SharedExpert { inner: 5632, gated: true }));
    let oss = decoder(r#"{"model_type": "gpt_oss", "num_hidden_layers": 2, "swiglu_limit": 5.5}"#);
    assert_eq!(oss.layers[1].experts.and_then(|experts| experts.clamp), Some(Clamp { alpha: 1.702, limit: 5.5 }));
    assert!(oss.sinks && oss.qkv_bias && oss.o_bias);
    assert_eq!(oss.layers.iter().map(|layer| layer.window).collect::<Vec<_>>(), [Some(128), None]);
}

#[test]
fn some_layers_are_dense() {
    let json = r#"{"model_type": "qwen3_moe", "num_hidden_layers": 6, "intermediate_size": 64, "mlp_only_layers": [3],
        "decoder_sparse_step": 2}"#;
    let layers = decoder(json).layers;
    let has_experts: Vec<bool> = layers.iter().map(|layer| layer.experts.is_some()).collect();
    assert_eq!(has_experts, [false, true, false, false, false, true]);
    assert_eq!(layers.iter().map(|layer| layer.inner).collect::<Vec<_>>(), [64, 0, 64, 64, 64, 0]);
}

#[test]
fn experts_may_be_next_to_a_dense_layer() {
    let json = r#"{"model_type": "gemma4_text", "num_hidden_layers": 6, "enable_moe_block": true, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704}"#;
    for layer in decoder(json).layers {
        let experts = layer.experts.unwrap();
        assert_eq!((experts.count, experts.inner, layer.inner), (128, 704, 9216));
        assert!(layer.is_dense() && experts.beside.is_some() && experts.routing.norm && experts.routing.expert_scale);
    }
}

/// Changes a setting of valid experts and returns the sentence that refuses them.
fn refusal(change: impl Fn(&mut Experts)) -> String {
    let groups = Some(ExpertGroups { count: 2, top_k: 1, best: 2 });
    let mut experts = Experts::plain(8, 16, Routing { groups, ..Routing::softmax(3) });
    assert_eq!(experts.check().map_err(|error| error.to_string()), Ok(()));
    change(&mut experts);
    let error = experts.check().unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 200, "{error}");
    error
}

#[test]
fn contradictions_are_refused_in_one_sentence() {
    let groups = |change: fn(&mut ExpertGroups)| refusal(|experts| change(experts.routing.groups.as_mut().unwrap()));
    for (error, words) in [
        (refusal(|experts| experts.routing.top_k = 9), ["9", "8"]),
        (refusal(|experts| experts.routing.top_k = 0), ["0", "8"]),
        (refusal(|experts| experts.count = 0), ["the number of experts", "zero"]),
        (refusal(|experts| experts.inner = 0), ["the size of an expert", "zero"]),
        (refusal(|experts| experts.shared = Some(SharedExpert { inner: 0, gated: false })), ["shared expert", "zero"]),
        (refusal(|experts| experts.routing.scale = f32::INFINITY), ["factor", "inf"]),
        (groups(|groups| groups.count = 3), ["8 experts", "3 groups"]),
        (groups(|groups| groups.count = 0), ["8 experts", "0 groups"]),
        (groups(|groups| groups.top_k = 3), ["3 of 2", "groups"]),
        (groups(|groups| groups.top_k = 0), ["0 of 2", "groups"]),
        (groups(|groups| groups.best = 5), ["5", "4"]),
        (refusal(|experts| experts.routing.top_k = 5), ["5 experts", "4 experts"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
