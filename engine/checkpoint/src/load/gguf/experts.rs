//! The configurations of the families with experts.

use serde_json::json;

use super::config::{Reader, Shapes};
use crate::error::{Error, Result};

impl Reader<'_> {
    /// The number of experts of a layer. `None` if the model is dense.
    pub fn expert_count(&self) -> Result<Option<u64>> {
        Ok(self.integer("expert_count")?.filter(|count| *count > 0))
    }

    /// Copies the number of experts and the number that a token uses to the members `count` and `top_k`. Returns the size
    /// of an expert.
    pub fn experts(&mut self, count: &str, top_k: &str) -> Result<u64> {
        self.copy(count, "expert_count")?;
        let used = self.copy(top_k, "expert_used_count")?;
        match self.integer("expert_feed_forward_length")? {
            Some(size) => Ok(size),
            // Files of the first models with experts have only one size. llama.cpp divides it by the number of experts.
            None => Ok(self.copy("intermediate_size", "feed_forward_length")?.checked_div(used).unwrap_or(0)),
        }
    }

    pub fn mixtral(&mut self) -> Result<()> {
        let inner = self.copy("intermediate_size", "feed_forward_length")?;
        self.experts("num_local_experts", "num_experts_per_tok")?;
        let inner = self.integer("expert_feed_forward_length")?.unwrap_or(inner);
        self.put("intermediate_size", inner);
        Ok(())
    }

    pub fn qwen2_moe(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.qwen_moe("Qwen2MoeForCausalLM", "qwen2_moe", false, shapes)?;
        let shared = match self.integer("expert_shared_feed_forward_length")? {
            Some(size) => size,
            None => self.integer("feed_forward_length")?.unwrap_or(0),
        };
        self.put("shared_expert_intermediate_size", shared);
        Ok(())
    }

    pub fn qwen3_moe(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.qwen_moe("Qwen3MoeForCausalLM", "qwen3_moe", true, shapes)
    }

    /// Copies the settings that Qwen2 and Qwen3 with experts have in common. `renormalised` is whether scores are divided
    /// by their sum if the file does not say.
    fn qwen_moe(&mut self, class: &str, model_type: &str, renormalised: bool, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder(class, model_type)?;
        self.sole_head_dim(head_dim)?;
        let inner = self.experts("num_experts", "num_experts_per_tok")?;
        self.put("moe_intermediate_size", inner);
        let renormalised = self.metadata.bool(&self.name("expert_weights_norm"))?.unwrap_or(renormalised);
        self.put("norm_topk_prob", renormalised);
        let is_dense = |layer: &usize| !shapes.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
        let dense: Vec<usize> = (0..self.layers()?).filter(is_dense).collect();
        self.put("mlp_only_layers", json!(dense));
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub fn gpt_oss(&mut self) -> Result<()> {
        let head_dim = self.decoder("GptOssForCausalLM", "gpt_oss")?;
        self.sole_head_dim(head_dim)?;
        let inner = self.experts("num_local_experts", "num_experts_per_tok")?;
        self.put("intermediate_size", inner);
        self.windows(2, None)?;
        let mut rotation = self.scaled_rotation()?;
        // All published models interpolate between fractions of pairs. Files cannot say so.
        rotation["truncate"] = json!(false);
        self.put("rope_parameters", rotation);
        Ok(())
    }

    pub fn granite_moe(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.granite(shapes)?;
        self.class("GraniteMoeForCausalLM", "granitemoe");
        if self.integer("expert_shared_feed_forward_length")?.is_some_and(|size| size > 0) {
            return Err(Error::Unsupported("a Granite model with a shared expert is not implemented".into()));
        }
        self.mixtral()
    }

    /// Copies the settings of experts next to a dense feed-forward layer.
    pub fn experts_beside(&mut self) -> Result<()> {
        if self.expert_count()?.is_some() {
            let inner = self.experts("num_experts", "top_k_experts")?;
            self.put("enable_moe_block", true);
            self.put("moe_intermediate_size", inner);
        }
        Ok(())
    }
}
