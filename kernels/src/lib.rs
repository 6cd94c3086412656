//! The device side of Quire: kernels written in Rust, and the definitions that host and device share.
//!
//! The crate is compiled twice. For the GPU, functions marked `#[kernel]` become the entries of the PTX that the engine
//! embeds. For the host, they are type-checked, and generate the descriptors and argument types that launches are made
//! from. Both sides use [`layout`] and the launch shapes next to each kernel.
//!
//! | file | kernels |
//! | --- | --- |
//! | [`attention`] | `plan_paged_attention`, `paged_attention`, `paged_attention_capped`, `paged_prefill`, `paged_prefill_capped`, `paged_prefill_hopper`, `paged_latent_attention`, `paged_attention_v1`, `paged_attention_v2`, `paged_attention_v2_reduce`, `paper_rope_and_cache` |
//! | [`cache`] | `reshape_and_cache`, `copy_blocks`, `swap_blocks_out`, `swap_blocks_in` |
//! | [`communicator`] | `all_reduce`, `gather_logits` |
//! | [`embedding`] | `gather_rows`, `embed`, `embed_part`, `add_positions` |
//! | [`experts`] | `route`, `group_by_expert`, `grouped_product`, `grouped_hopper`, `grouped_quantised`, `combine_experts` |
//! | [`gemm`] | `gemm`, `gemm_decode`, `gemv`, `gemm_hopper`, `gemm_hopper_decode`, `gemm_quantised` |
//! | [`latent`] | `join_latents`, `multiply_heads` |
//! | [`norm`] | `layer_norm`, `rms_norm`, `rms_norm_part`, `rms_norm_gated`, `row_squares`, `rms_norm_divided` |
//! | [`recurrent`] | `causal_convolution`, `recur_heads`, `prepare_chunks`, `pass_chunks` |
//! | [`rope`] | `rope_and_cache`, `general_rope_and_cache` |
//! | [`sampling`] | `sample` |
//! | [`scaling`] | `scale_rows`, `scale_logits`, `add_rows`, `multiply_columns` |
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch),
    allow(internal_features, improper_ctypes)
)]

pub mod attention;
pub mod cache;
pub mod communicator;
pub mod embedding;
pub mod experts;
pub mod gemm;
pub mod latent;
pub mod norm;
pub mod recurrent;
pub mod rope;
pub mod sampling;
pub mod scaling;

pub mod arithmetic;
pub mod eight_bit;
pub mod element;
pub mod floor;
mod head_part;
pub mod kv_element;
mod kv_write;
pub mod layout;
pub mod vector;

#[cfg(not(target_arch = "nvptx64"))]
pub mod registry;
