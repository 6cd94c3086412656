//! The transformer block of OPT and GPT-2: multi-head attention, then two matrices with an activation function between
//! them. Each part has a layer norm and is added to the residual stream.

use super::layers::{Linear, Residual, ResidualLinear};
use crate::adapter::Site;
use crate::backend::{Activation, Attention, Backend, Norm, QkNormRope};

/// The weights of one block.
pub struct Block<B: Backend> {
    pub attention_norm: Norm<B::Weight>,
    pub qkv: B::QkvWeight,
    pub qkv_sites: [Option<Site>; 3],
    pub out: ResidualLinear<B>,
    pub ffn_norm: Norm<B::Weight>,
    pub up: Linear<B>,
    pub down: ResidualLinear<B>,
    pub activation: Activation,
    pub scale: f32,
}

impl<B: Backend> Block<B> {
    /// Computes a block that normalises before attention and feed-forward.
    pub fn norm_first(&self, b: &B, cache: &mut B::KvCache, layer: usize, x: &mut Residual<B>, inputs: &B::Inputs) {
        let attended = self.attend(b, cache, layer, &x.norm(b, &self.attention_norm), inputs);
        self.out.add_to(b, x, attended, inputs);
        let up = self.up.apply_act(b, &x.norm(b, &self.ffn_norm), self.activation, inputs);
        self.down.add_to(b, x, up, inputs);
    }

    /// Computes a block that normalises after the residual sums.
    pub fn norm_last(&self, b: &B, cache: &mut B::KvCache, layer: usize, x: &mut Residual<B>, inputs: &B::Inputs) {
        let attended = self.attend(b, cache, layer, x.sum(b), inputs);
        self.out.add_to(b, x, attended, inputs);
        *x = Residual::new(x.norm(b, &self.attention_norm));
        let up = self.up.apply_act(b, x.sum(b), self.activation, inputs);
        self.down.add_to(b, x, up, inputs);
        *x = Residual::new(x.norm(b, &self.ffn_norm));
    }

    fn attend(&self, b: &B, cache: &mut B::KvCache, layer: usize, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        let mut qkv = b.qkv(x, &self.qkv);
        if b.is_adapted(&self.qkv_sites, inputs) {
            b.add_adapted_qkv(&mut qkv, x, self.qkv_sites, inputs);
        }
        b.norm_rope_and_write_kv(&mut qkv, QkNormRope::default(), cache, layer, inputs);
        b.attention(&qkv, cache, Attention::plain(layer, self.scale), inputs)
    }
}
