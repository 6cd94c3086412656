//! GPT-2 (Radford et al., 2019): learned positions, multi-head attention and a GELU feed-forward block. Checkpoints
//! store projections transposed, and query, key and value fused.

use std::sync::Arc;

use super::Model;
use super::block::Block;
use super::layers::{Embedding, Loader};
use crate::adapter::Sites;
use crate::backend::{Backend, HostQkv, Norm};
use crate::config::{Gpt2Config, ModelConfig};
use crate::error::Result;
use crate::load::Weights;

/// GPT-2's weights on a backend.
pub struct Gpt2<B: Backend> {
    tokens: Embedding<B>,
    positions: B::Weight,
    blocks: Vec<Block<B>>,
    final_norm: Norm<B::Weight>,
    output: B::Weight,
    sites: Arc<Sites>,
}

impl<B: Backend> Gpt2<B> {
    pub fn load(backend: &B, config: &ModelConfig, gpt2: &Gpt2Config, weights: &mut Weights) -> Result<Self> {
        let mut l = Loader::new(backend, weights);
        let (hidden, inner, eps) = (config.hidden, gpt2.n_inner, gpt2.layer_norm_epsilon);
        let tokens = l.embedding("wte.weight", config.vocab_size, hidden)?;
        let shard = backend.shard();
        // The number of heads is a multiple of the number of workers, so no head is divided.
        let heads = shard.even(hidden);
        let mut blocks = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            let name = |part: &str| format!("h.{i}.{part}");
            let qkv = l.conv1d(&name("attn.c_attn"), 3 * hidden, hidden)?;
            let part = |i| qkv.part(i * hidden + heads.start..i * hidden + heads.end);
            let qkv = HostQkv { query: part(0), key: Some(part(1)), value: Some(part(2)) };
            blocks.push(Block {
                attention_norm: l.layer_norm(&name("ln_1"), hidden, true, eps)?,
                qkv_sites: l.qkv_sites(&qkv),
                qkv: backend.qkv_weight(qkv)?,
                out: l.conv1d_residual(&name("attn.c_proj"), hidden, hidden)?,
                ffn_norm: l.layer_norm(&name("ln_2"), hidden, true, eps)?,
                up: l.conv1d_share(&name("mlp.c_fc"), inner, hidden)?,
                down: l.conv1d_residual(&name("mlp.c_proj"), hidden, inner)?,
                activation: gpt2.activation,
                scale: (config.head_dim as f32).powf(-0.5),
            });
        }
        Ok(Gpt2 {
            positions: l.weight("wpe.weight", &[config.max_positions, hidden])?,
            blocks,
            final_norm: l.layer_norm("ln_f", hidden, true, eps)?,
            output: l.output(config.tie_word_embeddings, &tokens, config.vocab_size, hidden)?,
            tokens,
            sites: Arc::new(l.sites),
        })
    }
}

impl<B: Backend> Model<B> for Gpt2<B> {
    fn sites(&self) -> &Arc<Sites> {
        &self.sites
    }

    fn forward(&self, b: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor {
        let mut x = self.tokens.apply(b, Some((&self.positions, 0)), inputs);
        for (i, block) in self.blocks.iter().enumerate() {
            block.norm_first(b, cache, i, &mut x, inputs);
        }
        x.into_sum(b)
    }

    fn final_hidden(&self, b: &B, rows: B::Tensor) -> B::Tensor {
        b.norm(&rows, &self.final_norm)
    }

    fn logits(&self, b: &B, rows: B::Tensor) -> B::Tensor {
        b.logits(&self.final_hidden(b, rows), &self.output)
    }
}
