//! OPT (Zhang et al., 2022): learned positions, multi-head attention and a ReLU feed-forward block. Only OPT-350m
//! normalises after each residual sum and embeds tokens in fewer dimensions.

use std::sync::Arc;

use super::Model;
use super::block::Block;
use super::layers::{Embedding, Linear, Loader, Residual};
use crate::adapter::Sites;
use crate::backend::{Backend, HostQkv, Norm};
use crate::config::{ModelConfig, OptConfig};
use crate::error::Result;
use crate::load::Weights;

/// OPT's weights on a backend.
pub struct Opt<B: Backend> {
    tokens: Embedding<B>,
    positions: B::Weight,
    project_in: Option<Linear<B>>,
    blocks: Vec<Block<B>>,
    final_norm: Option<Norm<B::Weight>>,
    project_out: Option<Linear<B>>,
    output: B::Weight,
    sites: Arc<Sites>,
    norm_first: bool,
}

impl<B: Backend> Opt<B> {
    pub fn load(backend: &B, config: &ModelConfig, opt: &OptConfig, weights: &mut Weights) -> Result<Self> {
        let mut l = Loader::new(backend, weights);
        let (hidden, embed, eps) = (config.hidden, opt.word_embed_proj_dim, OptConfig::LAYER_NORM_EPS);
        let (bias, affine) = (opt.enable_bias, opt.layer_norm_elementwise_affine);
        let tokens = l.embedding("embed_tokens.weight", config.vocab_size, embed)?;
        let positions = [config.max_positions + OptConfig::POSITION_OFFSET, hidden];
        let mut blocks = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            let name = |part: &str| format!("layers.{i}.{part}");
            let qkv = HostQkv {
                query: l.heads(&name("self_attn.q_proj"), config.heads, config.head_dim, hidden, bias)?,
                key: Some(l.heads(&name("self_attn.k_proj"), config.heads, config.head_dim, hidden, bias)?),
                value: Some(l.heads(&name("self_attn.v_proj"), config.heads, config.head_dim, hidden, bias)?),
            };
            let up = l.share(&name("fc1"), opt.ffn_dim, hidden, bias)?;
            blocks.push(Block {
                attention_norm: l.layer_norm(&name("self_attn_layer_norm"), hidden, affine, eps)?,
                qkv_sites: l.qkv_sites(&qkv),
                qkv: backend.qkv_weight(qkv)?,
                out: l.residual(&name("self_attn.o_proj"), hidden, hidden, bias)?,
                ffn_norm: l.layer_norm(&name("final_layer_norm"), hidden, affine, eps)?,
                up: Linear::new(&mut l, up)?,
                down: l.residual(&name("fc2"), hidden, opt.ffn_dim, bias)?,
                activation: opt.activation,
                scale: (config.head_dim as f32).powf(-0.5),
            });
        }
        let projects = embed != hidden;
        Ok(Opt {
            positions: l.weight("embed_positions.weight", &positions)?,
            project_in: if projects { Some(l.linear("project_in", hidden, embed, false)?) } else { None },
            blocks,
            final_norm: match opt.final_norm {
                true => Some(l.layer_norm("final_layer_norm", hidden, affine, eps)?),
                false => None,
            },
            project_out: if projects { Some(l.fixed_linear("project_out", embed, hidden)?) } else { None },
            output: l.output(config.tie_word_embeddings, &tokens, config.vocab_size, embed)?,
            tokens,
            sites: Arc::new(l.sites),
            norm_first: opt.do_layer_norm_before,
        })
    }
}

impl<B: Backend> Model<B> for Opt<B> {
    fn sites(&self) -> &Arc<Sites> {
        &self.sites
    }

    fn forward(&self, b: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor {
        let mut x = match &self.project_in {
            None => self.tokens.apply(b, Some((&self.positions, OptConfig::POSITION_OFFSET)), inputs),
            Some(project) => {
                let mut x = project.apply(b, self.tokens.apply(b, None, inputs).sum(b), inputs);
                b.add_positions(&mut x, &self.positions, OptConfig::POSITION_OFFSET, inputs);
                Residual::new(x)
            }
        };
        for (i, block) in self.blocks.iter().enumerate() {
            if self.norm_first {
                block.norm_first(b, cache, i, &mut x, inputs);
            } else {
                block.norm_last(b, cache, i, &mut x, inputs);
            }
        }
        x.into_sum(b)
    }

    fn final_hidden(&self, b: &B, mut rows: B::Tensor) -> B::Tensor {
        if let Some(norm) = &self.final_norm {
            rows = b.norm(&rows, norm);
        }
        match &self.project_out {
            Some(project) => b.linear(&rows, &project.weight, project.bias.as_ref(), None),
            None => rows,
        }
    }

    fn logits(&self, b: &B, rows: B::Tensor) -> B::Tensor {
        b.logits(&self.final_hidden(b, rows), &self.output)
    }
}
