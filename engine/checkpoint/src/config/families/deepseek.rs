//! DeepSeek V2 and V3: attention over latent vectors, and experts in groups. The first layers are dense.

use super::{Defaults, Family, rope_sizes, set_experts};
use crate::config::decoder::{DecoderConfig, Latent};
use crate::config::experts::{ExpertGroups, Experts, RouterScores, Routing, SharedExpert};
use crate::config::fields::Fields;
use crate::config::rope::{self, RopeDefaults, RopeScaling, RopeSizes};
use crate::error::{Error, Result};

pub const DEEPSEEK_V2: Family = Family {
    class: "DeepseekV2ForCausalLM",
    names: &["DeepseekV2Model", "deepseek_v2"],
    multimodal: &[],
    defaults: Defaults::LLAMA,
    select: |fields, decoder| {
        set_latent(fields, decoder)?;
        let top_k = fields.usize_or("num_experts_per_tok", 6)?;
        let groups = match fields.string("topk_method")?.unwrap_or("greedy") {
            "greedy" => None,
            "group_limited_greedy" => groups(fields, [1, 1], 1)?,
            other => return Err(Error::Unsupported(format!("topk_method {other:.40} is not implemented"))),
        };
        let scale = fields.positive_or("routed_scaling_factor", 1.0)? as f32;
        let routing = Routing { renormalised: false, scale, groups, ..Routing::softmax(top_k) };
        set_blocks(fields, decoder, routing, Sizes { count: 64, inner: 1407, shared: 2, dense: 0 })
    },
};

pub const DEEPSEEK_V3: Family = Family {
    class: "DeepseekV3ForCausalLM",
    names: &["DeepseekV3Model", "deepseek_v3"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 129280,
        hidden: 7168,
        inner: 18432,
        layers: 61,
        heads: 128,
        positions: 4096,
        bos: Some(0),
        eos: &[1],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        set_latent(fields, decoder)?;
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            renormalised: fields.bool_or("norm_topk_prob", true)?,
            scale: fields.positive_or("routed_scaling_factor", 2.5)? as f32,
            groups: groups(fields, [8, 4], 2)?,
            correction: true,
            ..Routing::softmax(fields.usize_or("num_experts_per_tok", 8)?)
        };
        set_blocks(fields, decoder, routing, Sizes { count: 256, inner: 2048, shared: 1, dense: 3 })
    },
};

/// The sizes that a class has if the members are absent.
struct Sizes {
    count: usize,
    inner: usize,
    shared: usize,
    dense: usize,
}

/// Reads the groups of experts. `best` is the number of experts that a group is ranked by.
fn groups(fields: &Fields<'_>, [count, top_k]: [usize; 2], best: usize) -> Result<Option<ExpertGroups>> {
    let (count, top_k) = (fields.usize_or("n_group", count)?, fields.usize_or("topk_group", top_k)?);
    Ok(Some(ExpertGroups { count, top_k, best }))
}

/// Reads the experts, and how many of the first layers are dense.
fn set_blocks(fields: &Fields<'_>, decoder: &mut DecoderConfig, routing: Routing, defaults: Sizes) -> Result<()> {
    decoder.mlp_bias = false;
    let count = fields.usize_or("n_routed_experts", defaults.count)?;
    let inner = fields.usize_or("moe_intermediate_size", defaults.inner)?;
    let shared = fields.usize_or("n_shared_experts", defaults.shared)?;
    let shared = (shared > 0).then_some(SharedExpert { inner: inner.saturating_mul(shared), gated: false });
    let dense = fields.usize_or("first_k_dense_replace", defaults.dense)?;
    set_experts(decoder, Experts { shared, ..Experts::plain(count, inner, routing) }, |layer| layer >= dense);
    Ok(())
}

/// Reads the sizes of latent vectors and heads, and the rotation.
fn set_latent(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    let query_rank = if fields.has("q_lora_rank") { fields.usize("q_lora_rank")? } else { Some(1536) };
    let latent = Latent {
        query_rank,
        rank: fields.usize_or("kv_lora_rank", 512)?,
        rotated: fields.usize_or("qk_rope_head_dim", 64)?,
        unrotated: fields.usize_or("qk_nope_head_dim", 128)?,
        value: fields.usize_or("v_head_dim", 128)?,
    };
    latent.check()?;
    for layer in &mut decoder.layers {
        layer.kv_heads = 1;
        layer.head_dim = latent.rank + latent.rotated;
    }
    let RopeSizes { max_positions, .. } = rope_sizes(fields, decoder, 2048)?;
    let sizes = RopeSizes { head_dim: latent.rotated, max_positions };
    let rope = rope::read(fields, sizes, RopeDefaults::PLAIN)?;
    let mut scale = ((latent.rotated + latent.unrotated) as f64).powf(-0.5);
    if let RopeScaling::Yarn { factor, .. } = rope.scaling {
        let parameters = fields.object("rope_parameters")?.or(fields.object("rope_scaling")?);
        let all = parameters.map_or(Ok(0.0), |own| own.float("mscale_all_dim").map(|all| all.unwrap_or(0.0)))?;
        // YaRN's factor on scores, which counts for the part of heads that is not rotated too.
        let magnitude = if factor <= 1.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 };
        scale *= magnitude * magnitude;
    }
    decoder.set_scale(scale);
    let is_adjacent = fields.bool_or("rope_interleave", true)?;
    decoder.ropes = vec![if is_adjacent { rope.adjacent() } else { rope }];
    decoder.latent = Some(latent);
    Ok(())
}
