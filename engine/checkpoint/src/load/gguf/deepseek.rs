//! The configurations of DeepSeek V2 and V3, which share an architecture in GGUF files.

use serde_json::Value;

use super::config::{Reader, Shapes};
use super::decoder::Decoder;
use super::families::decimal;
use super::writer::refused;
use crate::config::{Experts, Latent, RopeScaling};
use crate::error::{Error, Result};

/// The numbers of `expert_gating_func`.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;

/// Groups of experts and groups that a token uses, of published models whose files may lack them: their scores'
/// function, and their number of experts.
const GROUPS: [(u64, u64, [u64; 2]); 2] = [(SOFTMAX, 160, [8, 3]), (SIGMOID, 256, [8, 4])];

impl Reader<'_> {
    pub fn deepseek2(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        // The first files do not name the function.
        let scores = self.integer("expert_gating_func")?.filter(|scores| *scores > 0).unwrap_or(SOFTMAX);
        match scores {
            SOFTMAX => self.decoder("DeepseekV2ForCausalLM", "deepseek_v2")?,
            SIGMOID => self.decoder("DeepseekV3ForCausalLM", "deepseek_v3")?,
            other => return Err(Error::Unsupported(format!("{} {other}", self.name("expert_gating_func")))),
        };
        if self.integer("nextn_predict_layers")?.is_some_and(|count| count > 0) {
            return Err(Error::Unsupported("layers that predict several tokens are not implemented".into()));
        }
        // Attention over latent vectors has one key-value head, but the configuration counts heads before that.
        self.copy("num_key_value_heads", "attention.head_count")?;
        self.latent_sizes()?;
        self.latent_rotation()?;
        if self.expert_count()?.is_none() {
            let layers = self.layers()?;
            self.put("first_k_dense_replace", layers);
            return Ok(());
        }
        self.put("first_k_dense_replace", self.integer("leading_dense_block_count")?.unwrap_or(0));
        let inner = self.experts("n_routed_experts", "num_experts_per_tok")?;
        self.put("moe_intermediate_size", inner);
        self.put("n_shared_experts", self.integer("expert_shared_count")?.unwrap_or(0));
        let scale = self.metadata.float(&self.name("expert_weights_scale"))?.filter(|scale| *scale != 0.0);
        self.put("routed_scaling_factor", decimal(scale.unwrap_or(1.0)));
        self.routing(scores, shapes)
    }

    /// Copies the sizes of latent vectors and of heads.
    fn latent_sizes(&mut self) -> Result<()> {
        let rotated = self.copy("qk_rope_head_dim", "rope.dimension_count")?;
        self.copy("kv_lora_rank", "attention.kv_lora_rank")?;
        let query_rank = self.integer("attention.q_lora_rank")?.filter(|rank| *rank > 0);
        self.put("q_lora_rank", query_rank);
        // In the first files, these are the sizes of heads before the projections are absorbed.
        let size = |name: &str| -> Result<u64> {
            let size = match self.integer(&format!("{name}_mla"))? {
                Some(size) => Some(size),
                None => self.integer(name)?,
            };
            size.ok_or_else(|| self.missing(name))
        };
        let (key, value) = (size("attention.key_length")?, size("attention.value_length")?);
        let Some(unrotated) = key.checked_sub(rotated) else {
            return Err(Error::Config(format!("{rotated} of {key} elements of a head are rotated")));
        };
        self.put("qk_nope_head_dim", unrotated);
        self.put("v_head_dim", value);
        self.put("head_dim", rotated);
        Ok(())
    }

    /// Copies the rotation. A factor on scores belongs to YaRN.
    fn latent_rotation(&mut self) -> Result<()> {
        let mut rotation = self.scaled_rotation()?;
        let all = self.metadata.float(&self.name("rope.scaling.yarn_log_multiplier"))?.filter(|all| *all != 0.0);
        if let Some(all) = all {
            // The file has a tenth of the number. It lacks `mscale`, which is equal in published models.
            let all = Value::from(decimal(10.0 * decimal(all)));
            (rotation["mscale"], rotation["mscale_all_dim"]) = (all.clone(), all);
        }
        self.put("rope_parameters", rotation);
        Ok(())
    }

    /// Copies how tokens choose experts.
    fn routing(&mut self, scores: u64, shapes: &Shapes<'_>) -> Result<()> {
        let count = self.integer("expert_count")?.unwrap_or(0);
        let known = GROUPS.iter().find(|known| (known.0, known.1) == (scores, count)).map_or([1, 1], |known| known.2);
        let groups = self.integer("expert_group_count")?.filter(|groups| *groups > 0).unwrap_or(known[0]);
        let used = self.integer("expert_group_used_count")?.filter(|used| *used > 0).unwrap_or(known[1]);
        self.put("n_group", groups);
        self.put("topk_group", used);
        self.put("topk_method", if groups > 1 { "group_limited_greedy" } else { "greedy" });
        let renormalised = self.metadata.bool(&self.name("expert_weights_norm"))?.unwrap_or(false);
        self.put("norm_topk_prob", renormalised);
        let layer = self.integer("leading_dense_block_count")?.unwrap_or(0);
        let is_corrected = shapes.has(&format!("blk.{layer}.exp_probs_b.bias"));
        if scores == SOFTMAX && (renormalised || is_corrected) {
            return Err(Error::Unsupported(
                "experts whose softmax scores are renormalised or corrected in a deepseek2 file".into(),
            ));
        }
        Ok(())
    }
}

impl Decoder<'_> {
    /// Writes the sizes of latent vectors and heads, the factor on scores, and how tokens choose experts.
    pub fn latent(&mut self, latent: Latent) -> Result<()> {
        let Latent { query_rank, rank, rotated, unrotated, value } = latent;
        self.choice()?;
        self.u32("attention.head_count_kv", 1);
        self.u32("attention.kv_lora_rank", rank);
        if let Some(query_rank) = query_rank {
            self.u32("attention.q_lora_rank", query_rank);
        }
        self.u32("attention.key_length", rank + rotated);
        self.u32("attention.value_length", rank);
        self.u32("attention.key_length_mla", rotated + unrotated);
        self.u32("attention.value_length_mla", value);
        self.u32("rope.dimension_count", rotated);
        let Some(rope) = self.decoder.ropes.first().filter(|rope| rope.adjacent) else {
            return Err(refused("the elements of rotated pairs are not adjacent"));
        };
        let factor = if let RopeScaling::Yarn { factor, .. } = rope.scaling { factor } else { 1.0 };
        let all = self.score_factor(factor);
        let magnitude = 1.0 + if factor > 1.0 { 0.1 * all * factor.ln() } else { 0.0 };
        let scale = ((rotated + unrotated) as f64).powf(-0.5) * (magnitude * magnitude);
        if self.decoder.layers.iter().any(|layer| layer.scale != scale as f32) {
            return Err(refused("attention has an unusual scale"));
        }
        if all != 0.0 {
            self.f32("rope.scaling.yarn_log_multiplier", (0.1 * all) as f32);
        }
        Ok(())
    }

    /// Writes which layers have experts, and how tokens choose them.
    fn choice(&mut self) -> Result<()> {
        let is_third = self.config.class() == Some("DeepseekV3ForCausalLM");
        self.u32("expert_gating_func", if is_third { SIGMOID } else { SOFTMAX } as usize);
        let layers = &self.decoder.layers;
        let dense = layers.iter().take_while(|layer| layer.experts.is_none()).count();
        if layers[dense..].iter().any(|layer| layer.experts.is_none()) {
            return Err(refused("layers without experts follow layers with experts"));
        }
        self.u32("leading_dense_block_count", dense);
        let Some(Experts { inner, routing, shared, .. }) = self.decoder.experts().copied() else { return Ok(()) };
        self.u32("expert_shared_count", shared.map_or(0, |shared| shared.inner / inner));
        self.f32("expert_weights_scale", routing.scale);
        let name = self.name("expert_weights_norm");
        self.entries.bool(&name, routing.renormalised);
        let [count, used] = routing.groups.map_or([1, 1], |groups| [groups.count, groups.top_k]);
        self.u32("expert_group_count", count);
        self.u32("expert_group_used_count", used);
        Ok(())
    }

    /// The factor on scores that belongs to YaRN, as in `mscale_all_dim`. It has few digits in all models.
    pub fn score_factor(&self, factor: f64) -> f64 {
        let (Some(latent), Some(layer), true) = (self.decoder.latent, self.decoder.layers.first(), factor > 1.0) else {
            return 0.0;
        };
        let squared = f64::from(layer.scale) * ((latent.rotated + latent.unrotated) as f64).sqrt();
        ((squared.sqrt() - 1.0) / (0.1 * factor.ln()) * 1e4).round() / 1e4
    }
}
