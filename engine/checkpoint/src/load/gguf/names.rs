//! The names of tensors in GGUF files, and the corresponding names in models.

use crate::config::{HeadNorm, ModelFamily};

/// A supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// LLaMA and Mistral, whose files use the same name.
    Llama,
    Qwen2,
    Qwen3,
    Gpt2,
    /// OPT, only in files that `quire quantize` has written. Other programs do not support it.
    Opt,
}

/// Pairs of names, the file's first. Names in layers omit `blk.N.` and the model's own prefix.
struct Names {
    outside: &'static [(&'static str, &'static str)],
    layers: &'static str,
    inside: &'static [(&'static str, &'static str)],
}

const LLAMA: Names = Names {
    outside: &[("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")],
    layers: "layers",
    inside: &[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ],
};

const GPT2: Names = Names {
    outside: &[("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f"), ("output", "lm_head")],
    layers: "h",
    inside: &[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ],
};

const OPT: Names = Names {
    outside: &[
        ("token_embd", "embed_tokens"),
        ("position_embd", "embed_positions"),
        ("project_in", "project_in"),
        ("project_out", "project_out"),
        ("output_norm", "final_layer_norm"),
        ("output", "lm_head"),
    ],
    layers: "layers",
    inside: &[
        ("attn_norm", "self_attn_layer_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.out_proj"),
        ("ffn_norm", "final_layer_norm"),
        ("ffn_up", "fc1"),
        ("ffn_down", "fc2"),
    ],
};

impl Architecture {
    pub const ALL: [Architecture; 5] =
        [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3, Architecture::Gpt2, Architecture::Opt];

    /// The architecture's name in files.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gpt2 => "gpt2",
            Architecture::Opt => "opt",
        }
    }

    /// Returns the architecture of a model's GGUF file.
    pub fn for_family(family: &ModelFamily) -> Self {
        match family {
            ModelFamily::Opt(_) => Architecture::Opt,
            ModelFamily::Gpt2(_) => Architecture::Gpt2,
            ModelFamily::Decoder(llama) if llama.head_norm == HeadNorm::Head => Architecture::Qwen3,
            ModelFamily::Decoder(llama) if llama.qkv_bias && !llama.o_bias => Architecture::Qwen2,
            ModelFamily::Decoder(_) => Architecture::Llama,
        }
    }

    /// Whether files interleave the rows of the query and key projections for the rotation. The two rows of a pair are
    /// then adjacent instead of half a head apart.
    pub fn interleaves(self, tensor: &str) -> bool {
        self == Architecture::Llama && (tensor.contains(".attn_q.") || tensor.contains(".attn_k."))
    }

    fn names(self) -> &'static Names {
        match self {
            Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => &LLAMA,
            Architecture::Gpt2 => &GPT2,
            Architecture::Opt => &OPT,
        }
    }

    /// Returns the model's name for the file's tensor `name`, or `None` if the model has no such tensor.
    pub fn model_name(self, name: &str) -> Option<String> {
        let names = self.names();
        let (part, kind) = name.rsplit_once('.')?;
        match part.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => {
                let (_, own) = names.inside.iter().find(|(theirs, _)| *theirs == part)?;
                Some(format!("{}.{layer}.{own}.{kind}", names.layers))
            }
            None => {
                let (_, own) = names.outside.iter().find(|(theirs, _)| *theirs == part)?;
                Some(format!("{own}.{kind}"))
            }
        }
    }

    /// Returns the file's name for the model's tensor `name`, or `None` if files have no such tensor.
    pub fn file_name(self, name: &str) -> Option<String> {
        let names = self.names();
        let (part, kind) = name.rsplit_once('.')?;
        match part.strip_prefix(names.layers).and_then(|rest| rest.strip_prefix('.')?.split_once('.')) {
            Some((layer, part)) => {
                let (theirs, _) = names.inside.iter().find(|(_, own)| *own == part)?;
                Some(format!("blk.{layer}.{theirs}.{kind}"))
            }
            None => {
                let (theirs, _) = names.outside.iter().find(|(_, own)| *own == part)?;
                Some(format!("{theirs}.{kind}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn names_convert_both_ways() {
        for architecture in Architecture::ALL {
            let names = architecture.names();
            let outside = names.outside.iter().map(|(theirs, _)| format!("{theirs}.weight"));
            for name in outside.chain(names.inside.iter().map(|(theirs, _)| format!("blk.12.{theirs}.bias"))) {
                let own = architecture.model_name(&name).unwrap();
                assert_eq!(architecture.file_name(&own), Some(name));
            }
            assert_eq!(architecture.model_name("rope_freqs.weight"), None);
        }
        assert_eq!(Architecture::Gpt2.model_name("blk.3.attn_qkv.weight").as_deref(), Some("h.3.attn.c_attn.weight"));
    }
}
