//! The list of kernels. A test compares it with the entries of the PTX, in both directions.

use cuda_std::launch::{Descriptor, Family, Kernel};

use crate::attention::{decode, paper, prefill};
use crate::experts::{
    coded::grouped_quantised, combine::combine_experts, group, hopper::grouped_hopper, product::grouped_product, route,
};
use crate::gemm::{
    decode::gemm_decode, gemv::gemv, hopper::decode::gemm_hopper_decode, hopper::gemm_hopper, prefill::gemm,
    quantised::gemm_quantised,
};
use crate::recurrent::{
    chunked::{pass::pass_chunks, prepare::prepare_chunks},
    convolution::causal_convolution,
    heads::recur_heads,
};
use crate::{cache, communicator, embedding, latent, norm, rope, sampling, scaling};

/// Returns every kernel that the crate's PTX has for some target.
pub fn shipped() -> impl Iterator<Item = &'static Descriptor> {
    engine().chain(paper())
}

/// Returns the paper's kernels. They form a separate image, which the engine loads only to attend with them.
pub fn paper() -> impl Iterator<Item = &'static Descriptor> {
    instances::<paper::paged_attention_v1>()
        .chain(instances::<paper::paged_attention_v2>())
        .chain(instances::<paper::paged_attention_v2_reduce>())
        .chain(instances::<paper::paper_rope_and_cache>())
}

/// Returns the kernels that the engine runs: all but the paper's.
pub fn engine() -> impl Iterator<Item = &'static Descriptor> {
    let single = [
        &cache::reshape_and_cache::DESCRIPTOR,
        &cache::copy_blocks::DESCRIPTOR,
        &cache::swap_blocks_out::DESCRIPTOR,
        &cache::swap_blocks_in::DESCRIPTOR,
        &communicator::gather_logits::DESCRIPTOR,
        &decode::plan_paged_attention::DESCRIPTOR,
        &embedding::gather_rows::DESCRIPTOR,
        &latent::join_latents::DESCRIPTOR,
        &group::group_by_expert::DESCRIPTOR,
        &route::route::DESCRIPTOR,
        &sampling::sample::DESCRIPTOR,
        &scaling::scale_logits::DESCRIPTOR,
    ];
    single
        .into_iter()
        .chain(instances::<decode::paged_attention>())
        .chain(instances::<decode::paged_attention_capped>())
        .chain(instances::<prefill::paged_prefill>())
        .chain(instances::<prefill::paged_prefill_capped>())
        .chain(instances::<prefill::paged_latent_attention>())
        .chain(instances::<prefill::hopper::paged_prefill_hopper>())
        .chain(instances::<gemm>())
        .chain(instances::<gemm_hopper>())
        .chain(instances::<gemm_hopper_decode>())
        .chain(instances::<gemm_decode>())
        .chain(instances::<gemm_quantised>())
        .chain(instances::<gemv>())
        .chain(instances::<latent::multiply_heads>())
        .chain(instances::<communicator::all_reduce>())
        .chain(instances::<embedding::embed>())
        .chain(instances::<embedding::embed_part>())
        .chain(instances::<embedding::add_positions>())
        .chain(instances::<combine_experts>())
        .chain(instances::<grouped_product>())
        .chain(instances::<grouped_hopper>())
        .chain(instances::<grouped_quantised>())
        .chain(instances::<norm::layer_norm>())
        .chain(instances::<norm::rms_norm>())
        .chain(instances::<norm::rms_norm_part>())
        .chain(instances::<norm::rms_norm_gated>())
        .chain(instances::<norm::row_squares>())
        .chain(instances::<norm::rms_norm_divided>())
        .chain(instances::<causal_convolution>())
        .chain(instances::<recur_heads>())
        .chain(instances::<prepare_chunks>())
        .chain(instances::<pass_chunks>())
        .chain(instances::<scaling::scale_rows>())
        .chain(instances::<scaling::add_rows>())
        .chain(instances::<scaling::multiply_columns>())
        .chain(instances::<rope::rope_and_cache>())
        .chain(instances::<rope::general_rope_and_cache>())
}

/// Returns the kernels of a family.
fn instances<F: Family>() -> impl Iterator<Item = &'static Descriptor> {
    F::INSTANCES.iter().copied()
}
