//! The operations that a device must implement. Every model is written once in terms of these operations on device
//! tensors.
//!
//! The same forward pass serves prefill, chunked prefill and decode. A [`Batch`] is a list of sequences with the number
//! of new tokens of each, and attention reads keys and values through the block tables.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;

use crate::adapter::{Origin, Site};
use crate::batch::Batch;
pub use crate::config::{Activation, Clamp, Latent, Recurrent, Routing, SharedExpert};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::kv::KvLayout;
use crate::load::adapter::LowRank;
use crate::parallel::Shard;
use crate::sampling::{SampleRow, Sampled};
use crate::tensor::HostTensor;

/// The parameters of an attention call besides its tensors.
#[derive(Debug)]
pub struct Attention<'a, W> {
    /// The layer whose keys and values are read.
    pub layer: usize,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(w)` a position sees the last `w` positions, including itself. With `None` it sees all earlier ones.
    pub window: Option<usize>,
    /// With `Some(c)` a scaled dot product `s` becomes `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// `[heads]`: a score without a value that takes part in each head's softmax.
    pub sinks: Option<&'a W>,
}

impl<W> Attention<'_, W> {
    /// Attention to all earlier positions.
    pub const fn plain(layer: usize, scale: f32) -> Self {
        Attention { layer, scale, window: None, softcap: None, sinks: None }
    }
}

// A derived implementation would require `W: Copy`.
impl<W> Clone for Attention<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Attention<'_, W> {}

/// A projection as it was loaded: `weight [N, K]` and, optionally, `bias [N]`.
pub struct HostLinear {
    /// `[N, K]`
    pub weight: HostTensor,
    /// `[N]`
    pub bias: Option<HostTensor>,
    /// The projection of the model's files that this is a part of. `None` if adapters cannot change it.
    pub origin: Option<Origin>,
}

impl HostLinear {
    /// A projection that adapters cannot change.
    pub fn fixed(weight: HostTensor, bias: Option<HostTensor>) -> Self {
        HostLinear { weight, bias, origin: None }
    }

    /// Returns the part that computes some of the outputs: rows of the weight, and their biases.
    pub fn outputs(self, range: Range<usize>) -> Self {
        HostLinear {
            weight: self.weight.into_rows(range.clone()),
            bias: self.bias.map(|bias| bias.into_rows(range.clone())),
            origin: self.origin.map(|origin| origin.gathered(range)),
        }
    }

    /// Copies the part that computes some of the outputs. Used to split fused projections.
    pub fn part(&self, range: Range<usize>) -> Self {
        HostLinear {
            weight: self.weight.rows(range.clone()),
            bias: self.bias.as_ref().map(|bias| bias.rows(range.clone())),
            origin: self.origin.as_ref().map(|origin| origin.gathered(range)),
        }
    }

    /// Copies the rows of some of the outputs, in the given order.
    pub fn gathered(&self, rows: impl IntoIterator<Item = usize>) -> Self {
        let rows: Vec<usize> = rows.into_iter().collect();
        let all = || rows.iter().copied();
        HostLinear {
            weight: self.weight.gathered(all()),
            bias: self.bias.as_ref().map(|bias| bias.gathered(all())),
            origin: self.origin.as_ref().map(|origin| origin.gathered(all())),
        }
    }

    /// Returns a copy with reordered outputs. Output `i` of the result is output `order(i)`.
    pub fn reordered(&self, order: impl Fn(usize) -> usize) -> Self {
        self.gathered((0..self.weight.shape()[0]).map(order))
    }

    /// Returns the part that uses some of the inputs: columns of the weight. The first part has the bias, so that it is
    /// added once.
    ///
    /// # Errors
    /// See [`HostTensor::into_cols`].
    pub fn inputs(self, range: Range<usize>) -> Result<Self> {
        let bias = self.bias.filter(|_| range.start == 0);
        let origin = self.origin.map(|origin| origin.inputs(&range));
        Ok(HostLinear { weight: self.weight.into_cols(range)?, bias, origin })
    }
}

/// The projections to query, key and value as they were loaded.
pub struct HostQkv {
    /// `[heads * D, H]`
    pub query: HostLinear,
    /// `[kv_heads * D, H]`. `None` for a layer that only reads another layer's keys and values.
    pub key: Option<HostLinear>,
    /// `[kv_heads * D, H]`. `None` if the key's projection also gives the values.
    pub value: Option<HostLinear>,
}

/// The projections of an expert as they were loaded.
pub struct HostExpert {
    /// The gate and up projections, `[I, H]` each.
    pub gate_up: [HostLinear; 2],
    /// `[H, I]`
    pub down: HostLinear,
}

/// The experts of a layer as they were loaded, besides their projections.
pub struct HostExperts {
    /// The number of experts that tokens are routed to.
    pub count: usize,
    /// The numbers of this worker's experts among them.
    pub own: Range<usize>,
    /// How tokens choose experts.
    pub routing: Routing,
    /// `[E]`: numbers that are added to scores for the choice only.
    pub correction: Option<HostTensor>,
    /// `[E]`: factors on the scores of the chosen experts.
    pub scale: Option<HostTensor>,
    /// The activation function of gates.
    pub activation: Activation,
    /// With `Some`, gates are clamped, and `activation` is not used.
    pub clamp: Option<Clamp>,
    /// With `Some`, the last expert is shared. If it has a gate, the last logit belongs to the gate.
    pub shared: Option<SharedExpert>,
}

/// A worker's part of a layer that keeps a state, as it was loaded, besides its projections.
pub struct HostRecurrent {
    /// The worker's sizes.
    pub layer: Recurrent,
    /// `[channels, kernel]`
    pub kernel: HostTensor,
    /// `[channels]`
    pub bias: Option<Vec<f32>>,
    /// `[heads]`: the factor on a head's step that gives the logarithm of its decay.
    pub decay: Vec<f32>,
    /// `[heads]`: added to steps.
    pub step_bias: Vec<f32>,
    /// `[heads]`: the factor on a value that is added to the head's result.
    pub skip: Option<Vec<f32>>,
    /// The norm of results: `[value_dim]` in a delta net, `[heads * value_dim]` in Mamba-2.
    pub norm: Option<HostTensor>,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// An elementwise change of a matrix `x`.
pub enum Change<'a, T> {
    /// Multiplies by a factor.
    Scale(f32),
    /// Replaces `x` by `c * tanh(x / c)`.
    Softcap(f32),
    /// Adds a matrix of the same shape.
    Add(&'a T),
    /// Multiplies by columns of another matrix.
    Multiply {
        /// The other matrix.
        by: &'a T,
        /// The first of its columns that is used.
        first: usize,
        /// Whether the factors are logistic functions of its elements.
        sigmoid: bool,
    },
}

/// A normalisation of rows.
pub enum Norm<W> {
    /// Layer normalisation. Without `weight` and `bias` there is no affine transformation.
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

/// The processing of heads before attention.
pub struct QkNormRope<'a, W> {
    /// The norms of query and key heads.
    pub norms: Option<QkNorms<'a, W>>,
    /// With `Some(eps)` each value head is divided by its root mean square. `eps` is added to the mean of squares.
    pub value_eps: Option<f32>,
    /// The rotation of query and key heads.
    pub rope: Option<Rotation<'a, W>>,
}

// A derived implementation would require `W: Default`.
impl<W> Default for QkNormRope<'_, W> {
    fn default() -> Self {
        QkNormRope { norms: None, value_eps: None, rope: None }
    }
}

/// Root-mean-square norms of query and key heads.
pub struct QkNorms<'a, W> {
    /// `[D]`, or `[heads * D]` if whole rows are normalised.
    pub query: &'a W,
    /// `[D]`, or `[kv_heads * D]` if whole rows are normalised. `None` if there are no keys.
    pub key: Option<&'a W>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whether all heads of a token are normalised together, including the heads of other workers.
    pub rows: bool,
}

/// A rotation of heads.
pub struct Rotation<'a, W> {
    /// `[positions, N]`. Row `p` contains the `N/2` cosines of position `p`, then the `N/2` sines. They rotate the first
    /// `N` elements of each head.
    pub angles: &'a W,
    /// Whether elements `2i` and `2i + 1` are a pair. Otherwise elements `i` and `i + N/2` are.
    pub adjacent: bool,
}

/// A device. Operations are queued in order and report no errors themselves. [`Backend::sample`] and
/// [`Backend::finish`] wait for the device and report its failures.
///
/// Shapes: `T` new tokens, `H` hidden size, `D` head size, `R` rows whose logits are needed.
pub trait Backend: Send + 'static {
    /// An activation: a row-major matrix. Dropping it returns its memory to the backend.
    type Tensor: Send;
    /// A weight on the device. Cloning shares it.
    type Weight: Clone + Send + Sync;
    /// The pool of KV blocks.
    type KvCache: Send;
    /// The projections to query, key and value. A backend may fuse them.
    type QkvWeight: Send;
    /// The gate and up projections of a gated unit. A backend may fuse them.
    type GatedWeight: Send;
    /// The experts of a layer.
    type ExpertsWeight: Send;
    /// The projections between heads and latent vectors.
    type LatentWeight: Send;
    /// The weights of a layer that keeps a state, besides its projections.
    type RecurrentWeight: Send;
    /// Queries, keys and values of the new tokens.
    type Qkv: Send;
    /// The products that an adapter adds to projections.
    type Adapter: Send + Sync;
    /// A [`Batch`] on the device.
    type Inputs;

    /// Whether the device can compute with adapters.
    const HAS_ADAPTERS: bool = false;

    /// Copies a weight to the device and keeps its element type.
    fn weight(&self, tensor: HostTensor) -> Result<Self::Weight>;
    /// Converts a weight for use in projections. If it is also an embedding, it can still be used as one.
    fn to_projection(&self, weight: Self::Weight, is_embedding: bool) -> Result<Self::Weight> {
        let _ = is_embedding;
        Ok(weight)
    }
    /// Copies a weight to the device that is used only in projections.
    fn projection_weight(&self, tensor: HostTensor) -> Result<Self::Weight> {
        self.to_projection(self.weight(tensor)?, false)
    }
    /// Copies the factors of a norm to the device. They may be rounded to the type of activations.
    fn norm_weight(&self, tensor: HostTensor) -> Result<Self::Weight> {
        self.weight(tensor)
    }
    /// Whether the device can rotate the first `rotated` elements of a head only if the elements of a pair are adjacent. The
    /// caller then reorders the elements of query and key heads.
    fn needs_adjacent_pairs(&self, rotated: usize) -> bool {
        let _ = rotated;
        false
    }
    /// Copies the projections to query, key and value to the device.
    fn qkv_weight(&self, parts: HostQkv) -> Result<Self::QkvWeight>;
    /// Copies the gate and up projections to the device.
    fn gated_weight(&self, parts: [HostLinear; 2]) -> Result<Self::GatedWeight>;
    /// Copies the experts of a layer to the device.
    fn experts_weight(
        &self,
        settings: HostExperts,
        experts: &mut dyn Iterator<Item = Result<HostExpert>>,
    ) -> Result<Self::ExpertsWeight>;
    /// Copies the projections between heads and latent vectors to the device. For each head, `queries` has a matrix
    /// `[rank, unrotated]`, and `values` has a matrix `[value, rank]`.
    fn latent_weight(
        &self,
        latent: Latent,
        queries: Vec<HostTensor>,
        values: Vec<HostTensor>,
    ) -> Result<Self::LatentWeight>;
    /// Copies the weights of a layer that keeps a state to the device.
    fn recurrent_weight(&self, weights: HostRecurrent) -> Result<Self::RecurrentWeight>;
    /// Copies an adapter's products to the device, one for each site of the model. `None` if the adapter leaves a site as it
    /// is.
    ///
    /// # Errors
    /// If the device has no memory for them, or cannot compute with adapters.
    fn adapter(&self, products: Vec<Option<LowRank>>) -> Result<Self::Adapter> {
        let _ = products;
        Err(Error::Unsupported("adapters need --device cpu for now".into()))
    }
    /// Allocates a pool of `num_blocks` blocks, and space for `swap_blocks` more in host memory. With several groups
    /// of layers, these are numbers of pages.
    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<Self::KvCache>;

    /// Copies a step's inputs to the device: its tokens, and how to sample the rows of its logits.
    fn upload(&self, batch: Batch, rows: &[SampleRow<'_>]) -> Self::Inputs;
    /// Sets the adapter of each sequence of a step. Only called if a sequence has one.
    fn adapt(&self, inputs: &mut Self::Inputs, spans: &[Option<Arc<Self::Adapter>>]) {
        let _ = (inputs, spans);
    }
    /// Performs the step's swaps and copies of blocks.
    fn move_blocks(&self, cache: &mut Self::KvCache, inputs: &Self::Inputs);
    /// Computes a step. `compute` may only call operations of this trait, and must call the same ones whenever the
    /// number of tokens is the same. A backend can therefore record them once and replay the recording. Steps that need
    /// hidden states are not recorded.
    fn compute(&self, inputs: &Self::Inputs, compute: impl FnOnce() -> Option<Self::Tensor>) -> Option<Self::Tensor> {
        let _ = inputs;
        compute()
    }

    /// Returns numbers of sequences whose decode steps should be computed before the first request, if up to `most`
    /// sequences run at a time. The default is a single sequence, whose step reads all weights.
    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        vec![most.min(1)]
    }

    /// The part of the model that this backend computes. It may compute only a part of a sum, which
    /// [`Backend::all_reduce`] completes.
    fn shard(&self) -> Shard {
        Shard::WHOLE
    }

    /// Adds the sum of all workers' `part` to `x`, which is the same on all workers. Without a `part`, replaces `x` by
    /// the sum of all workers' `x`. All workers get the same bits.
    fn all_reduce(&self, x: &mut Self::Tensor, part: Option<Self::Tensor>);

    /// Like [`Backend::all_reduce`], and returns the norm of the new `x`.
    fn all_reduce_norm(
        &self,
        x: &mut Self::Tensor,
        part: Option<Self::Tensor>,
        norm: &Norm<Self::Weight>,
    ) -> Self::Tensor {
        self.all_reduce(x, part);
        self.norm(x, norm)
    }

    /// Waits until all queued operations are done. Workers that do not sample call this at the end of a step.
    ///
    /// # Errors
    /// If an operation failed on the device.
    fn finish(&self) -> Result<()> {
        Ok(())
    }

    /// Gathers the logits of all workers' parts of the vocabulary as `[R, vocab]` on the first worker. The result on
    /// the other workers is not used.
    fn gather_logits(&self, part: Self::Tensor) -> Self::Tensor {
        part
    }

    /// Returns the embeddings of the new tokens, `[T, H]`. `table` has rows for the tokens in `vocab`, and other tokens
    /// give zeros. If `positions` is set, adds row `positions[t] + offset` of its table.
    fn embed_tokens(
        &self,
        table: &Self::Weight,
        vocab: Range<usize>,
        positions: Option<(&Self::Weight, usize)>,
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// Adds row `positions[t] + offset` of `table` to every row of `x`.
    fn add_positions(&self, x: &mut Self::Tensor, table: &Self::Weight, offset: usize, inputs: &Self::Inputs);
    /// Returns `act(x weight^T + bias)` with `x [M, K]`, `weight [N, K]`, `bias [N]` and result `[M, N]`.
    fn linear(
        &self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        act: Option<Activation>,
    ) -> Self::Tensor;
    /// Computes `residual += x weight^T + bias`.
    fn linear_add(
        &self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
    );
    /// Like [`Backend::linear_add`], and returns the norm of the new `residual`, if the device can do both in one
    /// operation. Otherwise does nothing and returns `None`.
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
    /// Returns `act(gate(x)) * up(x)`, elementwise: `[M, N]`.
    fn gated(&self, x: &Self::Tensor, weight: &Self::GatedWeight, act: Activation) -> Self::Tensor;
    /// Whether an adapter of the step changes one of these sites. If so, the operations below follow on the projection.
    /// Otherwise a step computes exactly the same operations as without adapters.
    fn is_adapted(&self, sites: &[Option<Site>], inputs: &Self::Inputs) -> bool {
        let _ = (sites, inputs);
        false
    }
    /// Adds to `y`, the result of a projection of `x`, the products of each token's adapter for the projection. Does not
    /// change the rows of other tokens.
    fn add_adapted(&self, y: &mut Self::Tensor, x: &Self::Tensor, site: Option<Site>, inputs: &Self::Inputs) {
        let _ = (y, x, site, inputs);
        unreachable!("the device has no adapters");
    }
    /// Like [`Backend::add_adapted`], for the projections to query, key and value.
    fn add_adapted_qkv(&self, qkv: &mut Self::Qkv, x: &Self::Tensor, sites: [Option<Site>; 3], inputs: &Self::Inputs) {
        let _ = (qkv, x, sites, inputs);
        unreachable!("the device has no adapters");
    }
    /// Like [`Backend::linear`], with the products of each token's adapter for the projection.
    fn linear_adapted(
        &self,
        x: &Self::Tensor,
        (weight, bias): (&Self::Weight, Option<&Self::Weight>),
        act: Option<Activation>,
        site: Option<Site>,
        inputs: &Self::Inputs,
    ) -> Self::Tensor {
        let _ = (x, weight, bias, act, site, inputs);
        unreachable!("the device has no adapters");
    }
    /// Like [`Backend::gated`], with the products of each token's adapter for the gate and up projections.
    fn gated_adapted(
        &self,
        x: &Self::Tensor,
        weight: &Self::GatedWeight,
        act: Activation,
        sites: [Option<Site>; 2],
        inputs: &Self::Inputs,
    ) -> Self::Tensor {
        let _ = (x, weight, act, sites, inputs);
        unreachable!("the device has no adapters");
    }
    /// Returns `x weight^T + bias` in f32, also if activations have another type. Small errors in the logits of experts can change
    /// the choice of experts, and errors in the decays of states add up.
    fn linear_f32(&self, x: &Self::Tensor, weight: &Self::Weight, bias: Option<&Self::Weight>) -> Self::Tensor {
        self.linear(x, weight, bias, None)
    }
    /// Routes each row of `x` to experts by its row of `logits [T, E]`, and returns the weighted sum of their results. If
    /// a shared expert has a gate, `logits` has a column for it. A token's result does not depend on other tokens.
    fn experts(
        &self,
        x: &Self::Tensor,
        logits: &Self::Tensor,
        weight: &Self::ExpertsWeight,
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// Returns the queries (`[T, heads * D]`), keys and values (`[T, kv_heads * D]`) of the rows of `x`.
    fn qkv(&self, x: &Self::Tensor, weight: &Self::QkvWeight) -> Self::Qkv;
    /// Returns queries, keys and values for attention over latent vectors. The inputs are the rotated part, then the other.
    /// The other part of a key is the latent vector, which is also the value.
    fn latent_qkv(&self, query: [&Self::Tensor; 2], key: [&Self::Tensor; 2], weight: &Self::LatentWeight) -> Self::Qkv;
    /// Projects the results of attention over latent vectors to values of heads, `[T, heads * value]`.
    fn latent_values(&self, attended: &Self::Tensor, weight: &Self::LatentWeight) -> Self::Tensor;
    /// Convolves `x [T, channels]` with the inputs of each sequence's earlier tokens. If the layer has heads, takes the
    /// tokens through the heads' states, and normalises and gates the results. `heads` has the columns that control decays
    /// and rates of change, and the gates. Stores the new states of layer `cache.1`. The result is `[T, heads * value_dim]`.
    fn recurrent(
        &self,
        x: &Self::Tensor,
        heads: Option<[&Self::Tensor; 2]>,
        weight: &Self::RecurrentWeight,
        cache: (&mut Self::KvCache, usize),
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// Changes each element of `x`.
    fn change(&self, x: &mut Self::Tensor, change: Change<'_, Self::Tensor>);
    /// Normalises each row of `x`. If the norm's weight is shorter than a row, it normalises each part of that length.
    fn norm(&self, x: &Self::Tensor, norm: &Norm<Self::Weight>) -> Self::Tensor;
    /// Adds `y` to `x` and returns the norm of the new `x`.
    fn add_norm(&self, x: &mut Self::Tensor, y: Self::Tensor, norm: &Norm<Self::Weight>) -> Self::Tensor {
        self.change(x, Change::Add(&y));
        self.norm(x, norm)
    }
    /// Normalises and rotates heads in place as `heads` specifies, then writes the new tokens' keys and values, if there
    /// are any, to their slots in one layer of the cache.
    fn norm_rope_and_write_kv(
        &self,
        qkv: &mut Self::Qkv,
        heads: QkNormRope<'_, Self::Weight>,
        cache: &mut Self::KvCache,
        layer: usize,
        inputs: &Self::Inputs,
    );
    /// Computes causal attention of the new tokens' queries over the cache, read through the block tables. Query head
    /// `h` reads key/value head `h / (heads / kv_heads)`. The result is `[T, heads * D]` (4.1, 5.1 of the paper).
    fn attention(
        &self,
        qkv: &Self::Qkv,
        cache: &Self::KvCache,
        params: Attention<'_, Self::Weight>,
        inputs: &Self::Inputs,
    ) -> Self::Tensor;
    /// Returns the rows of `x` whose logits are needed, `[R, H]`.
    fn logit_rows(&self, x: &Self::Tensor, inputs: &Self::Inputs) -> Self::Tensor;
    /// Returns the rows of `x` whose final hidden states are needed.
    fn hidden_rows(&self, x: &Self::Tensor, inputs: &Self::Inputs) -> Self::Tensor;
    /// Waits for the elements of `x` and returns them, row by row.
    ///
    /// # Errors
    /// If an operation failed on the device.
    fn download(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Returns `x weight^T` with `weight [vocab, H]`: `[R, vocab]` in f32, whatever the type of activations.
    fn logits(&self, x: &Self::Tensor, weight: &Self::Weight) -> Self::Tensor;
    /// Chooses a token for every row of `logits [R, vocab]` and waits for the result. `rows` must be the rows passed to
    /// [`Backend::upload`].
    fn sample(&self, logits: &Self::Tensor, inputs: &Self::Inputs, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>>;
}
