//! The names of tensors that checkpoints spell in several ways. Models use one.

/// Parts of names in layers, and the parts that models use instead. They are replaced in this order.
const PARTS: &[(&str, &str)] = &[
    (".block_sparse_moe.", ".mlp."),
    (".router.layer.", ".gate."),
    (".router.proj.", ".mlp.gate."),
    (".router.scale", ".mlp.gate.scale"),
    (".router.per_expert_scale", ".mlp.experts.down_proj.scale"),
    (".mlp.router.", ".mlp.gate."),
    (".mlp.input_linear.weight", ".mlp.experts.gate_up_proj"),
    (".mlp.output_linear.weight", ".mlp.experts.down_proj"),
    (".mlp.shared_experts.", ".mlp.shared_expert."),
    (".shared_mlp.input_linear.", ".mlp.shared_expert.gate_up_proj."),
    (".shared_mlp.output_linear.", ".mlp.shared_expert.down_proj."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".self_attn.q_layernorm.", ".self_attn.q_norm."),
    (".self_attn.k_layernorm.", ".self_attn.k_norm."),
];

/// Ends of the names of an expert's tensors.
const ENDS: &[(&str, &str)] = &[
    (".w1.weight", ".gate_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
    (".gate_up_proj", ".gate_up_proj.weight"),
    (".gate_up_proj_bias", ".gate_up_proj.bias"),
    (".down_proj", ".down_proj.weight"),
    (".down_proj_bias", ".down_proj.bias"),
];

/// Returns the name that models use for a tensor, if it differs from `name`.
pub(super) fn usual(name: &str) -> Option<String> {
    if name == "embedding_norm.weight" {
        return Some("norm.weight".into());
    }
    let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
    let mut part = format!(".{part}");
    for (from, to) in PARTS {
        part = part.replace(from, to);
    }
    // In some checkpoints experts are not inside the feed-forward layer.
    if part.starts_with(".experts.") {
        part.insert_str(0, ".mlp");
    }
    if part.contains(".experts.")
        && let Some((stem, to)) = ENDS.iter().find_map(|(end, to)| Some((part.strip_suffix(end)?, to)))
    {
        part = format!("{stem}{to}");
    }
    let usual = format!("layers.{layer}{part}");
    (usual != name).then_some(usual)
}

/// Returns the model's name for the module that a checkpoint calls `name`, without the prefixes of the checkpoint's class.
pub(super) fn module(name: &str, prefixes: &[&str]) -> String {
    let mut name = name;
    for prefix in prefixes {
        name = name.strip_prefix(prefix).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    let weight = format!("{name}.weight");
    let weight = usual(&weight).unwrap_or(weight);
    weight.strip_suffix(".weight").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_has_the_same_names() {
        for (name, want) in [
            ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
            ("block_sparse_moe.experts.3.w1.weight", "mlp.experts.3.gate_proj.weight"),
            ("block_sparse_moe.experts.3.w2.weight", "mlp.experts.3.down_proj.weight"),
            ("block_sparse_moe.experts.13.w3.weight", "mlp.experts.13.up_proj.weight"),
            ("block_sparse_moe.router.layer.weight", "mlp.gate.weight"),
            ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj.weight"),
            ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj.weight"),
            ("mlp.router.weight", "mlp.gate.weight"),
            ("mlp.router.bias", "mlp.gate.bias"),
            ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj.weight"),
            ("mlp.experts.gate_up_proj_bias", "mlp.experts.gate_up_proj.bias"),
            ("mlp.experts.down_proj_bias", "mlp.experts.down_proj.bias"),
            ("router.proj.weight", "mlp.gate.weight"),
            ("router.scale", "mlp.gate.scale"),
            ("router.per_expert_scale", "mlp.experts.down_proj.scale"),
            ("experts.gate_up_proj", "mlp.experts.gate_up_proj.weight"),
            ("experts.down_proj", "mlp.experts.down_proj.weight"),
            ("mlp.shared_experts.up_proj.weight", "mlp.shared_expert.up_proj.weight"),
            ("shared_mlp.input_linear.weight", "mlp.shared_expert.gate_up_proj.weight"),
            ("shared_mlp.output_linear.weight", "mlp.shared_expert.down_proj.weight"),
            ("feed_forward.w2.weight", "mlp.down_proj.weight"),
            ("self_attn.q_layernorm.weight", "self_attn.q_norm.weight"),
        ] {
            assert_eq!(usual(&format!("layers.12.{name}")).as_deref(), Some(&*format!("layers.12.{want}")), "{name}");
            assert_eq!(usual(&format!("layers.12.{want}")), None, "{want}");
        }
        for name in
            ["layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight", "norm.weight", "h.3.mlp.w1.weight"]
        {
            assert_eq!(usual(name), None, "{name}");
        }
    }

    #[test]
    fn modules_lose_the_prefixes_of_their_class() {
        let prefixes = ["model.language_model.", "language_model.", "model."];
        for (name, want) in [
            ("model.layers.3.self_attn.q_proj", "layers.3.self_attn.q_proj"),
            ("model.language_model.layers.3.mlp.up_proj", "layers.3.mlp.up_proj"),
            ("model.layers.3.feed_forward.w2", "layers.3.mlp.down_proj"),
            ("lm_head", "lm_head"),
        ] {
            assert_eq!(module(name, &prefixes), want);
        }
    }
}
