//! What a device must be able to do: a small set of operations over device tensors, over which every model is
//! written once.
//!
//! One forward pass serves prefill, chunked prefill and decode alike: a [`Batch`] is a list of sequences with the
//! number of new tokens of each, and attention reads keys and values through the block tables.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;

use crate::batch::Batch;
pub use crate::config::Activation;
use std::ops::Range;

use crate::error::Result;
use crate::kv::KvLayout;
use crate::parallel::Shard;
use crate::sampling::{SampleRow, Sampled};
use crate::tensor::HostTensor;

/// What one attention call needs to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Which layer's part of the cache is read.
    pub layer: usize,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(w)` a position sees the last `w` positions, itself included; with `None` all before it.
    pub window: Option<usize>,
}

/// A projection as it was loaded: `weight [N, K]` and, if there is to be one, `bias [N]`.
pub struct HostLinear {
    /// `[N, K]`
    pub weight: HostTensor,
    /// `[N]`
    pub bias: Option<HostTensor>,
}

impl HostLinear {
    /// The part that gives some of the outputs: rows of the weight, and their biases.
    pub fn outputs(self, range: Range<usize>) -> Self {
        HostLinear { weight: self.weight.into_rows(range.clone()), bias: self.bias.map(|bias| bias.into_rows(range)) }
    }

    /// The part that takes some of the inputs: columns of the weight. The bias is added once: by the part that has it.
    ///
    /// # Errors
    /// See [`HostTensor::into_cols`].
    pub fn inputs(self, range: Range<usize>, has_bias: bool) -> Result<Self> {
        Ok(HostLinear { weight: self.weight.into_cols(range)?, bias: self.bias.filter(|_| has_bias) })
    }
}

/// A normalisation of rows.
pub enum Norm<W> {
    /// Layer normalisation; without `weight` and `bias` the affine part is left out.
    Layer {
        /// `[H]`
        weight: Option<W>,
        /// `[H]`
        bias: Option<W>,
        /// Added to the variance.
        eps: f32,
    },
    /// Root-mean-square normalisation.
    Rms {
        /// `[H]`
        weight: W,
        /// Added to the mean of squares.
        eps: f32,
    },
}

/// What happens to the heads of queries and keys before attention.
pub struct QkNormRope<'a, W> {
    /// Root-mean-square norms of each query head and each key head, `[D]` each, and their epsilon.
    pub norms: Option<(&'a W, &'a W, f32)>,
    /// The angles by which heads are rotated, `[positions, D]`: row `p` holds the `D/2` cosines of position `p`, then the
    /// `D/2` sines. Halves convention: element `i` pairs with `i + D/2`.
    pub rope: Option<&'a W>,
}

/// A device. Operations are queued in order and cannot fail by themselves; what fails on the device is reported by
/// [`Backend::sample`], which waits, and by [`Backend::finish`].
///
/// Shapes: `T` new tokens, `H` hidden size, `D` head size, `R` rows whose logits are wanted.
pub trait Backend: Send + 'static {
    /// An activation: a row-major matrix. Dropping it returns its memory to the backend.
    type Tensor: Send;
    /// A weight as it lies on the device. Cloning shares it.
    type Weight: Clone + Send + Sync;
    /// The pool of KV blocks.
    type KvCache: Send;
    /// The projections to query, key and value.
    type QkvWeight: Send;
    /// The projections to gate and up of a gated unit.
    type GatedWeight: Send;
    /// Queries, keys and values of the new tokens.
    type Qkv: Send;
    /// A [`Batch`] on the device.
    type Inputs;

    /// Takes a weight to the device, keeping its element type.
    fn weight(&self, tensor: HostTensor) -> Result<Self::Weight>;
    /// Makes a weight one that projections are computed with; an embedding that is one remains an embedding, too.
    fn to_projection(&self, weight: Self::Weight, is_embedding: bool) -> Result<Self::Weight> {
        let _ = is_embedding;
        Ok(weight)
    }
    /// Takes a weight to the device that projections are computed with, and nothing else.
    fn projection_weight(&self, tensor: HostTensor) -> Result<Self::Weight> {
        self.to_projection(self.weight(tensor)?, false)
    }
    /// Takes the projections to query, key and value to the device.
    fn qkv_weight(&self, parts: [HostLinear; 3]) -> Result<Self::QkvWeight>;
    /// Takes the projections to gate and up to the device.
    fn gated_weight(&self, parts: [HostLinear; 2]) -> Result<Self::GatedWeight>;
    /// Allocates a pool of `num_blocks` blocks, and room for `swap_blocks` more in the host's memory.
    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<Self::KvCache>;

    /// Takes a step's inputs to the device: its tokens, and how the rows of its logits are to be sampled.
    fn upload(&self, batch: Batch, rows: &[SampleRow<'_>]) -> Self::Inputs;
    /// Moves the step's blocks.
    fn move_blocks(&self, cache: &mut Self::KvCache, inputs: &Self::Inputs);
    /// Computes a step. `compute` only asks for operations of this trait, and for the same ones whenever the number of
    /// tokens is the same, so that a backend may record them and repeat the recording instead, unless hidden states are
    /// wanted.
    fn compute(&self, inputs: &Self::Inputs, compute: impl FnOnce() -> Option<Self::Tensor>) -> Option<Self::Tensor> {
        let _ = inputs;
        compute()
    }

    /// Numbers of sequences whose decode steps are to be computed before any request, where up to `most` run at a time. By
    /// default a single one, which touches all weights.
    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        vec![most.min(1)]
    }

    /// The part of the model that this backend computes. What it computes of a sum, [`Backend::all_reduce`] completes.
    fn shard(&self) -> Shard {
        Shard::WHOLE
    }

    /// Adds the sum of all workers' `part` to `x`, which is the same for all; without a `part`, replaces `x` by the sum of
    /// all workers' `x`. All get the same bits.
    fn all_reduce(&self, x: &mut Self::Tensor, part: Option<Self::Tensor>);

    /// The same, and then the norm of `x`.
    fn all_reduce_norm(
        &self,
        x: &mut Self::Tensor,
        part: Option<Self::Tensor>,
        norm: &Norm<Self::Weight>,
    ) -> Self::Tensor {
        self.all_reduce(x, part);
        self.norm(x, norm)
    }

    /// Waits until everything that was queued is done, as a worker that does not sample does at the end of a step.
    ///
    /// # Errors
    /// What failed on the device.
    fn finish(&self) -> Result<()> {
        Ok(())
    }

    /// The logits of all workers' parts of the vocabulary, `[R, vocab]`, for the first worker; the others' result is not
    /// used.
    fn gather_logits(&self, part: Self::Tensor) -> Self::Tensor {
        part
    }

    /// `[T, H]`: the row of every new token in `table`, which has those of the tokens `vocab`; of another token zeros. If
    /// there is a table of positions, row `positions[t] + offset` of it added.
    fn embed_tokens(
        &self,
        table: &Self::Weight,
        vocab: Range<usize>,
        positions: Option<(&Self::Weight, usize)>,
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// Adds row `positions[t] + offset` of `table` to every row of `x`.
    fn add_positions(&self, x: &mut Self::Tensor, table: &Self::Weight, offset: usize, inputs: &Self::Inputs);
    /// `act(x weight^T + bias)`: `x [M, K]`, `weight [N, K]`, `bias [N]`, result `[M, N]`.
    fn linear(
        &self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        act: Option<Activation>,
    ) -> Self::Tensor;
    /// `residual += x weight^T + bias`.
    fn linear_add(
        &self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
    );
    /// The same, and then the norm of `residual`, if there is one operation for both; else nothing is done.
    fn linear_add_norm(
        &self,
        _residual: &mut Self::Tensor,
        _x: &Self::Tensor,
        _weight: &Self::Weight,
        _bias: Option<&Self::Weight>,
        _norm: &Norm<Self::Weight>,
    ) -> Option<Self::Tensor> {
        None
    }
    /// `act(gate(x)) * up(x)`, elementwise: `[M, N]`.
    fn gated(&self, x: &Self::Tensor, weight: &Self::GatedWeight, act: Activation) -> Self::Tensor;
    /// Queries (`[T, heads * D]`), keys and values (`[T, kv_heads * D]`) of the rows of `x`.
    fn qkv(&self, x: &Self::Tensor, weight: &Self::QkvWeight) -> Self::Qkv;
    /// Each row of `x` normalised.
    fn norm(&self, x: &Self::Tensor, norm: &Norm<Self::Weight>) -> Self::Tensor;
    /// Normalises and rotates the heads of queries and keys as `heads` says, then writes the new tokens' keys and values
    /// to their slots in one layer of the cache.
    fn write_kv(
        &self,
        qkv: &mut Self::Qkv,
        heads: QkNormRope<'_, Self::Weight>,
        cache: &mut Self::KvCache,
        layer: usize,
        inputs: &Self::Inputs,
    );
    /// Causal attention of the new tokens' queries over the cache, read through the block tables. Query head `h` reads
    /// key/value head `h / (heads / kv_heads)`. Result `[T, heads * D]` (4.1, 5.1 of the paper).
    fn attention(
        &self,
        qkv: &Self::Qkv,
        cache: &Self::KvCache,
        params: Attention,
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// `[R, H]`: the rows of `x` whose logits are wanted.
    fn logit_rows(&self, x: &Self::Tensor, inputs: &Self::Inputs) -> Self::Tensor;
    /// The rows of `x` whose final hidden states are wanted.
    fn hidden_rows(&self, x: &Self::Tensor, inputs: &Self::Inputs) -> Self::Tensor;
    /// The elements of `x`, row by row, for which it waits.
    ///
    /// # Errors
    /// What failed on the device.
    fn download(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// `[R, vocab]`, in f32 whatever the type of activations: `x weight^T`, with `weight [vocab, H]`.
    fn logits(&self, x: &Self::Tensor, weight: &Self::Weight) -> Self::Tensor;
    /// Chooses a token for every row of `logits [R, vocab]` and waits for the result. The rows are those that were uploaded.
    fn sample(&self, logits: &Self::Tensor, inputs: &Self::Inputs, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>>;
}
