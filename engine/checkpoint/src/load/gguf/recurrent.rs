//! The configurations of the families whose layers keep a state.

use serde_json::json;

use super::config::{Reader, Shapes};
use super::names::Architecture;
use crate::error::{Error, Result};

/// A tensor that each layer with a state has.
const OF_STATES: [&str; 2] = ["ssm_conv1d.weight", "shortconv.conv.weight"];

impl Reader<'_> {
    pub fn qwen_next(&mut self, architecture: Architecture, shapes: &Shapes<'_>) -> Result<()> {
        let (class, model_type) = match architecture {
            Architecture::Qwen35 => ("Qwen3_5ForCausalLM", "qwen3_5_text"),
            Architecture::Qwen35Moe => ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
            _ => ("Qwen3NextForCausalLM", "qwen3_next"),
        };
        self.class(class, model_type);
        let head_dim = self.shape()?;
        self.rms_norm()?;
        self.copy("num_key_value_heads", "attention.head_count_kv")?;
        if self.expert_count()?.is_some() {
            let inner = self.experts("num_experts", "num_experts_per_tok")?;
            self.put("moe_intermediate_size", inner);
            self.copy("shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
            let renormalised = self.metadata.bool(&self.name("expert_weights_norm"))?.unwrap_or(true);
            self.put("norm_topk_prob", renormalised);
        } else {
            self.copy("intermediate_size", "feed_forward_length")?;
        }
        self.copy("linear_conv_kernel_dim", "ssm.conv_kernel")?;
        self.copy("linear_key_head_dim", "ssm.state_size")?;
        let key_heads = self.copy("linear_num_key_heads", "ssm.group_count")?;
        let heads = self.copy("linear_num_value_heads", "ssm.time_step_rank")?;
        let inner = self.integer("ssm.inner_size")?.ok_or_else(|| self.missing("ssm.inner_size"))?;
        self.put("linear_value_head_dim", inner.checked_div(heads).unwrap_or(0));
        self.put("linear_value_heads_tiled", architecture != Architecture::Qwen3Next && key_heads != heads);
        self.layers_with_states(shapes)?;
        self.partial_rotation(head_dim)?;
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub fn granite_hybrid(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.granite_factors("GraniteMoeHybridForCausalLM", "granitemoehybrid", shapes)?;
        let has_rotation = self.metadata.bool(&self.name("rope.scaling.finetuned"))?.unwrap_or(true);
        self.put("position_embedding_type", if has_rotation { "rope" } else { "nope" });
        if self.expert_count()?.is_some() {
            self.mixtral()?;
            self.copy("shared_intermediate_size", "expert_shared_feed_forward_length")?;
        } else {
            self.put("num_local_experts", 0);
            if let Some([inner, _]) = (shapes.shape)("blk.0.ffn_up.weight").as_deref() {
                self.put("shared_intermediate_size", *inner);
            }
        }
        self.copy("mamba_d_conv", "ssm.conv_kernel")?;
        self.copy("mamba_d_state", "ssm.state_size")?;
        self.copy("mamba_n_groups", "ssm.group_count")?;
        self.copy("mamba_n_heads", "ssm.time_step_rank")?;
        let hidden = self.integer("embedding_length")?.unwrap_or(0);
        let inner = self.integer("ssm.inner_size")?.ok_or_else(|| self.missing("ssm.inner_size"))?;
        if hidden == 0 || !inner.is_multiple_of(hidden) {
            return Err(Error::Unsupported(format!(
                "{} is not a multiple of the hidden size",
                self.name("ssm.inner_size")
            )));
        }
        self.put("mamba_expand", inner / hidden);
        let first = self.layers_with_states(shapes)?;
        self.put("mamba_conv_bias", shapes.has(&format!("blk.{first}.ssm_conv1d.bias")));
        self.put("mamba_proj_bias", shapes.has(&format!("blk.{first}.ssm_in.bias")));
        Ok(())
    }

    pub fn lfm2(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder("Lfm2ForCausalLM", "lfm2")?;
        self.sole_head_dim(head_dim)?;
        let eps = self.float("attention.layer_norm_rms_epsilon")?;
        self.put("norm_eps", eps);
        self.put("block_auto_adjust_ff_dim", false);
        self.copy("conv_L_cache", "shortconv.l_cache")?;
        let first = self.layers_with_states(shapes)?;
        self.put("conv_bias", shapes.has(&format!("blk.{first}.shortconv.conv.bias")));
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    /// Copies which layers keep a state, without layers that only predict further tokens. Returns the first layer with a
    /// state.
    fn layers_with_states(&mut self, shapes: &Shapes<'_>) -> Result<usize> {
        let further = self.integer("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.layers()?.saturating_sub(usize::try_from(further).unwrap_or(usize::MAX));
        let keeps = |layer: &usize| OF_STATES.iter().any(|part| shapes.has(&format!("blk.{layer}.{part}")));
        let kind = |layer: usize| if keeps(&layer) { "linear_attention" } else { "full_attention" };
        self.put("num_hidden_layers", layers);
        self.put("layer_types", json!((0..layers).map(kind).collect::<Vec<_>>()));
        Ok((0..layers).find(keeps).unwrap_or(0))
    }
}
