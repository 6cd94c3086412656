//! LLaMA (Touvron et al., 2023) and similar models: rotary positions, grouped-query attention, RMS norms, and a gated
//! feed-forward block. Mistral adds a sliding window, Qwen2 biases on query, key and value, and Qwen3 norms on each
//! query and key head.

use super::Model;
use super::layers::{Embedding, Loader, ResidualLinear};
use super::rope;
use crate::backend::{Activation, Attention, Backend, Norm, QkNormRope};
use crate::config::{LlamaConfig, ModelConfig};
use crate::error::Result;
use crate::load::Weights;

/// The weights on a backend.
pub struct Llama<B: Backend> {
    tokens: Embedding<B>,
    /// `[positions, head_dim]`: cosines, then sines.
    rope: B::Weight,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B::Weight>,
    output: B::Weight,
    activation: Activation,
    eps: f32,
    scale: f32,
}

struct Layer<B: Backend> {
    attention_norm: Norm<B::Weight>,
    qkv: B::QkvWeight,
    /// The norms for query heads and for key heads.
    head_norms: Option<(B::Weight, B::Weight)>,
    out: ResidualLinear<B>,
    ffn_norm: Norm<B::Weight>,
    gate_up: B::GatedWeight,
    down: ResidualLinear<B>,
    window: Option<usize>,
}

impl<B: Backend> Llama<B> {
    pub fn load(
        backend: &B,
        config: &ModelConfig,
        llama: &LlamaConfig,
        weights: &mut Weights,
        max_len: usize,
    ) -> Result<Self> {
        let mut l = Loader { backend, weights };
        let (hidden, inner, dim) = (config.hidden, llama.intermediate_size, config.head_dim);
        let eps = llama.rms_norm_eps;
        let tokens = l.embedding("embed_tokens.weight", config.vocab_size, hidden)?;
        let mut layers = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            let name = |part: &str| format!("layers.{i}.{part}");
            let head_norms = if llama.qk_norm {
                let query = l.weight(&name("self_attn.q_norm.weight"), &[dim])?;
                Some((query, l.weight(&name("self_attn.k_norm.weight"), &[dim])?))
            } else {
                None
            };
            layers.push(Layer {
                attention_norm: l.rms_norm(&name("input_layernorm"), hidden, eps)?,
                qkv: backend.qkv_weight([
                    l.heads(&name("self_attn.q_proj"), config.heads, dim, hidden, llama.qkv_bias)?,
                    l.heads(&name("self_attn.k_proj"), config.kv_heads, dim, hidden, llama.qkv_bias)?,
                    l.heads(&name("self_attn.v_proj"), config.kv_heads, dim, hidden, llama.qkv_bias)?,
                ])?,
                head_norms,
                out: l.residual(&name("self_attn.o_proj"), hidden, config.q_width(), llama.o_bias)?,
                ffn_norm: l.rms_norm(&name("post_attention_layernorm"), hidden, eps)?,
                gate_up: backend.gated_weight([
                    l.share(&name("mlp.gate_proj"), inner, hidden, llama.mlp_bias)?,
                    l.share(&name("mlp.up_proj"), inner, hidden, llama.mlp_bias)?,
                ])?,
                down: l.residual(&name("mlp.down_proj"), hidden, inner, llama.mlp_bias)?,
                window: llama.window(i),
            });
        }
        Ok(Llama {
            rope: backend.weight(rope::table(&llama.rope, dim, max_len))?,
            layers,
            final_norm: l.rms_norm("norm", hidden, eps)?,
            output: l.output(config.tie_word_embeddings, &tokens, config.vocab_size, hidden)?,
            tokens,
            activation: llama.activation,
            eps,
            scale: (dim as f32).powf(-0.5),
        })
    }
}

impl<B: Backend> Model<B> for Llama<B> {
    fn forward(&self, b: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor {
        let mut x = self.tokens.apply(b, None, inputs);
        for (i, layer) in self.layers.iter().enumerate() {
            let h = x.norm(b, &layer.attention_norm);
            let mut qkv = b.qkv(&h, &layer.qkv);
            let norms = layer.head_norms.as_ref().map(|(query, key)| (query, key, self.eps));
            b.norm_rope_and_write_kv(&mut qkv, QkNormRope { norms, rope: Some(&self.rope) }, cache, i, inputs);
            let params = Attention { layer: i, scale: self.scale, window: layer.window };
            let attended = b.attention(&qkv, cache, params, inputs);
            layer.out.add_to(b, &mut x, attended);

            let h = x.norm(b, &layer.ffn_norm);
            let inner = b.gated(&h, &layer.gate_up, self.activation);
            layer.down.add_to(b, &mut x, inner);
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
