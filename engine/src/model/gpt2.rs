//! GPT-2 (Radford et al., 2019): learned positions, multi-head attention, GELU feed-forward, projections stored
//! transposed and query, key and value fused.

use super::Model;
use super::block::Block;
use super::layers::{LayerNorm, Loader};
use crate::backend::Backend;
use crate::config::{Gpt2Config, ModelConfig};
use crate::error::{Error, Result};
use crate::load::Weights;

/// GPT-2's weights on a backend.
pub struct Gpt2<B: Backend> {
    tokens: B::Weight,
    positions: B::Weight,
    blocks: Vec<Block<B>>,
    final_norm: LayerNorm<B>,
    output: B::Weight,
}

impl<B: Backend> Gpt2<B> {
    pub fn load(backend: &B, config: &ModelConfig, gpt2: &Gpt2Config, weights: &mut Weights) -> Result<Self> {
        let mut l = Loader { backend, weights };
        let (hidden, inner, eps) = (config.hidden, gpt2.n_inner, gpt2.layer_norm_epsilon);
        let tokens = l.weight("wte.weight", &[config.vocab_size, hidden])?;
        let mut blocks = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            let name = |part: &str| format!("h.{i}.{part}");
            let [query, key, value] = exactly(l.conv1d(&name("attn.c_attn"), 3 * hidden, hidden, 3)?)?;
            let [out] = exactly(l.conv1d(&name("attn.c_proj"), hidden, hidden, 1)?)?;
            let [up] = exactly(l.conv1d(&name("mlp.c_fc"), inner, hidden, 1)?)?;
            let [down] = exactly(l.conv1d(&name("mlp.c_proj"), hidden, inner, 1)?)?;
            blocks.push(Block {
                attention_norm: l.layer_norm(&name("ln_1"), hidden, true, eps)?,
                query,
                key,
                value,
                out,
                ffn_norm: l.layer_norm(&name("ln_2"), hidden, true, eps)?,
                up,
                down,
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
        })
    }
}

fn exactly<T, const N: usize>(parts: Vec<T>) -> Result<[T; N]> {
    parts.try_into().map_err(|_| Error::Config("a projection has the wrong number of parts".into()))
}

impl<B: Backend> Model<B> for Gpt2<B> {
    fn forward(&self, b: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor {
        let mut x = b.embed_tokens(&self.tokens, inputs);
        b.add_positions(&mut x, &self.positions, 0, inputs);
        for (i, block) in self.blocks.iter().enumerate() {
            block.norm_first(b, cache, i, &mut x, inputs);
        }
        x
    }

    fn logits(&self, b: &B, hidden: &B::Tensor) -> B::Tensor {
        b.linear(&self.final_norm.apply(b, hidden), &self.output, None, None)
    }
}
