//! The names of tensors in GGUF files, and the corresponding names in models.

use super::tables::{
    DEEPSEEK2, EXPERTS, GEMMA, GLM4, GPT_OSS, GPT2, GRANITE_HYBRID, LFM2, LLAMA, Names, OLMO2, OPT, PHI3, QWEN_NEXT,
    STATES,
};
use crate::config::{HeadNorm, ModelConfig, ModelFamily};

/// A supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// LLaMA and Mistral, whose files use the same name.
    Llama,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Gemma4,
    /// OLMo 2 and OLMo 3, whose files use the same name.
    Olmo2,
    Cohere2,
    SmolLm3,
    Phi3,
    Glm4,
    Granite,
    GraniteMoe,
    GraniteHybrid,
    Qwen2Moe,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Lfm2,
    GptOss,
    /// DeepSeek V2 and V3, whose files use the same name.
    DeepSeek2,
    Gpt2,
    /// OPT, only in files that `quire quantize` has written. Other programs do not support it.
    Opt,
}

/// Parts of tensors' names that have no kind such as `weight` in models, and their kind in files.
const WITHOUT_KIND: [(&str, &str); 3] =
    [("layer_scalar", "weight"), ("self_attn.sinks", "weight"), ("mlp.gate.e_score_correction_bias", "bias")];

impl Architecture {
    pub const ALL: [Architecture; 24] = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Gemma2,
        Architecture::Gemma3,
        Architecture::Gemma4,
        Architecture::Olmo2,
        Architecture::Cohere2,
        Architecture::SmolLm3,
        Architecture::Phi3,
        Architecture::Glm4,
        Architecture::Granite,
        Architecture::GraniteMoe,
        Architecture::GraniteHybrid,
        Architecture::Qwen2Moe,
        Architecture::Qwen3Moe,
        Architecture::Qwen3Next,
        Architecture::Qwen35,
        Architecture::Qwen35Moe,
        Architecture::Lfm2,
        Architecture::GptOss,
        Architecture::DeepSeek2,
        Architecture::Gpt2,
        Architecture::Opt,
    ];

    /// The architecture's name in files.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma2 => "gemma2",
            Architecture::Gemma3 => "gemma3",
            Architecture::Gemma4 => "gemma4",
            Architecture::Olmo2 => "olmo2",
            Architecture::Cohere2 => "cohere2",
            Architecture::SmolLm3 => "smollm3",
            Architecture::Phi3 => "phi3",
            Architecture::Glm4 => "glm4",
            Architecture::Granite => "granite",
            Architecture::GraniteMoe => "granitemoe",
            Architecture::GraniteHybrid => "granitehybrid",
            Architecture::Qwen2Moe => "qwen2moe",
            Architecture::Qwen3Moe => "qwen3moe",
            Architecture::Qwen3Next => "qwen3next",
            Architecture::Qwen35 => "qwen35",
            Architecture::Qwen35Moe => "qwen35moe",
            Architecture::Lfm2 => "lfm2",
            Architecture::GptOss => "gpt-oss",
            Architecture::DeepSeek2 => "deepseek2",
            Architecture::Gpt2 => "gpt2",
            Architecture::Opt => "opt",
        }
    }

    /// Returns the architecture of a model's GGUF file.
    pub fn of_model(config: &ModelConfig) -> Self {
        match (config.class(), &config.family) {
            (Some("Gemma2ForCausalLM"), _) => Architecture::Gemma2,
            (Some("Gemma3ForCausalLM"), _) => Architecture::Gemma3,
            (Some("Gemma4ForCausalLM"), _) => Architecture::Gemma4,
            (Some("Olmo2ForCausalLM" | "Olmo3ForCausalLM"), _) => Architecture::Olmo2,
            (Some("Cohere2ForCausalLM"), _) => Architecture::Cohere2,
            (Some("SmolLM3ForCausalLM"), _) => Architecture::SmolLm3,
            (Some("Phi3ForCausalLM"), _) => Architecture::Phi3,
            (Some("Glm4ForCausalLM"), _) => Architecture::Glm4,
            (Some("GraniteForCausalLM"), _) => Architecture::Granite,
            (Some("GraniteMoeForCausalLM"), _) => Architecture::GraniteMoe,
            (Some("GraniteMoeHybridForCausalLM"), _) => Architecture::GraniteHybrid,
            (Some("Qwen3NextForCausalLM"), _) => Architecture::Qwen3Next,
            (Some("Qwen3_5ForCausalLM"), _) => Architecture::Qwen35,
            (Some("Qwen3_5MoeForCausalLM"), _) => Architecture::Qwen35Moe,
            (Some("Lfm2ForCausalLM"), _) => Architecture::Lfm2,
            (Some("Qwen2MoeForCausalLM"), _) => Architecture::Qwen2Moe,
            (Some("Qwen3MoeForCausalLM"), _) => Architecture::Qwen3Moe,
            (Some("GptOssForCausalLM"), _) => Architecture::GptOss,
            (Some("DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM"), _) => Architecture::DeepSeek2,
            (_, ModelFamily::Opt(_)) => Architecture::Opt,
            (_, ModelFamily::Gpt2(_)) => Architecture::Gpt2,
            (_, ModelFamily::Decoder(decoder)) => match decoder.head_norm {
                HeadNorm::Head => Architecture::Qwen3,
                _ if decoder.qkv_bias && !decoder.o_bias => Architecture::Qwen2,
                _ => Architecture::Llama,
            },
        }
    }

    /// Whether a model of the architecture may have experts.
    pub fn may_have_experts(self) -> bool {
        use Architecture::{
            DeepSeek2, Gemma4, GptOss, GraniteHybrid, GraniteMoe, Llama, Qwen2Moe, Qwen3Moe, Qwen3Next, Qwen35Moe,
        };
        matches!(
            self,
            DeepSeek2
                | Llama
                | Qwen2Moe
                | Qwen3Moe
                | Qwen3Next
                | Qwen35Moe
                | GptOss
                | Gemma4
                | GraniteMoe
                | GraniteHybrid
        )
    }

    /// Whether files interleave the rows of the query and key projections for the rotation. The two rows of a pair are
    /// then adjacent instead of half a head apart.
    pub fn interleaves(self, tensor: &str) -> bool {
        use Architecture::{Granite, GraniteHybrid, GraniteMoe, Llama, SmolLm3};
        matches!(self, Llama | SmolLm3 | Granite | GraniteMoe | GraniteHybrid)
            && (tensor.contains(".attn_q.") || tensor.contains(".attn_k."))
    }

    /// Whether files add one to the weights of norms. The model adds it when it normalises.
    pub fn adds_one(self, tensor: &str) -> bool {
        use Architecture::{Gemma2, Gemma3, Qwen3Next, Qwen35, Qwen35Moe};
        matches!(self, Gemma2 | Gemma3 | Qwen3Next | Qwen35 | Qwen35Moe)
            && tensor.ends_with("norm.weight")
            && !tensor.ends_with("ssm_norm.weight")
    }

    fn names(self) -> &'static Names {
        match self {
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Cohere2
            | Architecture::SmolLm3
            | Architecture::Granite
            | Architecture::GraniteMoe
            | Architecture::Qwen2Moe
            | Architecture::Qwen3Moe => &LLAMA,
            Architecture::GptOss => &GPT_OSS,
            Architecture::DeepSeek2 => &DEEPSEEK2,
            Architecture::GraniteHybrid => &GRANITE_HYBRID,
            Architecture::Qwen3Next | Architecture::Qwen35 | Architecture::Qwen35Moe => &QWEN_NEXT,
            Architecture::Lfm2 => &LFM2,
            Architecture::Gemma2 | Architecture::Gemma3 | Architecture::Gemma4 => &GEMMA,
            Architecture::Olmo2 => &OLMO2,
            Architecture::Phi3 => &PHI3,
            Architecture::Glm4 => &GLM4,
            Architecture::Gpt2 => &GPT2,
            Architecture::Opt => &OPT,
        }
    }

    /// The model's name for the part of a layer that keeps a state.
    fn states(self) -> Option<&'static str> {
        match self {
            Architecture::GraniteHybrid => Some("mamba"),
            Architecture::Qwen3Next | Architecture::Qwen35 | Architecture::Qwen35Moe => Some("linear_attn"),
            _ => None,
        }
    }

    /// Returns the model's name for the file's tensor `name`, or `None` if the model has no such tensor.
    pub fn model_name(self, name: &str) -> Option<String> {
        let names = self.names();
        if let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
            && let Some((_, own)) = STATES.iter().find(|(theirs, _)| *theirs == part)
        {
            return Some(format!("{}.{layer}.{}.{own}", names.layers, self.states()?));
        }
        let (part, kind) = name.rsplit_once('.')?;
        match part.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => {
                let (_, own) =
                    names.inside.iter().copied().flatten().chain(EXPERTS).find(|(theirs, _)| *theirs == part)?;
                Some(match *own {
                    own if WITHOUT_KIND.iter().any(|(part, _)| *part == own) => {
                        format!("{}.{layer}.{own}", names.layers)
                    }
                    _ => format!("{}.{layer}.{own}.{kind}", names.layers),
                })
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
        if let Some(states) = self.states()
            && let Some((layer, part)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
            && let Some(part) = part.strip_prefix(states).and_then(|part| part.strip_prefix('.'))
            && let Some((theirs, _)) = STATES.iter().find(|(_, own)| *own == part)
        {
            return Some(format!("blk.{layer}.{theirs}"));
        }
        let (part, kind) = match WITHOUT_KIND.iter().find(|(part, _)| name.ends_with(part)) {
            Some((_, kind)) => (name, *kind),
            None => name.rsplit_once('.')?,
        };
        match part.strip_prefix(names.layers).and_then(|rest| rest.strip_prefix('.')?.split_once('.')) {
            Some((layer, part)) => {
                let (theirs, _) =
                    names.inside.iter().copied().flatten().chain(EXPERTS).find(|(_, own)| *own == part)?;
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
            let kind = |theirs: &str| if theirs == "exp_probs_b" { "bias" } else { "weight" };
            let inside = names.inside.iter().copied().flatten().chain(EXPERTS);
            let inside = inside.map(|(theirs, _)| format!("blk.12.{theirs}.{}", kind(theirs)));
            for name in outside.chain(inside) {
                let own = architecture.model_name(&name).unwrap();
                assert_eq!(architecture.file_name(&own), Some(name));
            }
            assert_eq!(architecture.model_name("rope_freqs.weight"), None);
        }
        let scale = Architecture::Gemma4.model_name("blk.3.layer_output_scale.weight");
        assert_eq!(scale.as_deref(), Some("layers.3.layer_scalar"));
        assert_eq!(Architecture::Gpt2.model_name("blk.3.attn_qkv.weight").as_deref(), Some("h.3.attn.c_attn.weight"));
    }
}
