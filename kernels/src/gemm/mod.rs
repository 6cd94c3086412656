//! Projections: `out = epilogue(x weight^T)`, with 16-bit activations, 16-bit or quantised weights, and sums in `f32`.
//!
//! | file | kernel | tokens | limit |
//! | --- | --- | --- | --- |
//! | [`gemv`] | [`gemv`](gemv::gemv()) | 1 to 4 | memory |
//! | [`decode`] | [`gemm_decode`](decode::gemm_decode()) | 5 to 64 | memory |
//! | [`prefill`] | [`gemm`](prefill::gemm()) | more | tensor cores |
//! | [`hopper`] | [`gemm_hopper`](hopper::gemm_hopper()) | more, on Hopper | tensor cores |
//! | [`hopper::decode`] | [`gemm_hopper_decode`](hopper::decode::gemm_hopper_decode()) | 5 to 64, on Hopper | memory |
//! | [`quantised`] | [`gemm_quantised`](quantised::gemm_quantised()) | any, weights of 4 and 8 bits | memory, then tensor cores |
//!
//! The kernels share tiles in shared memory ([`operand`]) and partial sums of several blocks ([`split`]). [`epilogue`],
//! [`activation`] and [`fragment`] transform sums before they are stored. [`plan`] chooses the kernel and its launch
//! for 16-bit weights, and [`quantised::plan`] for quantised weights.
//!
//! Arguments of the kernels for 16-bit weights. Hopper's kernels take tensor maps in place of `x`, `weight` and `x_stride`:
//!
//! | | |
//! | --- | --- |
//! | `x` | `[m][k]`, rows `x_stride` elements apart, each 16-byte aligned |
//! | `weight` | `[n][k]`, rows without gaps, 16-byte aligned |
//! | `bias` | `[n]`, 8-byte aligned, or null if the product has no bias |
//! | `out` | `[m][n]`, or `[m][n / 2]` if gated, rows `out_stride` elements apart, 16-byte aligned as a whole |
//! | `workspace`, `counters` | for partial sums, see [`plan::GemmPlan`], unused without splits |
//! | `x_stride`, `out_stride`, `m`, `n`, `k` | see above, `k` is a multiple of 8 |
//! | `epilogue` | [`epilogue::Epilogue::bits`] |
//! | `norm`, `norm_weight`, `norm_bias`, `normed`, `eps`, `arrivals` | only in the kernels for up to 64 tokens: the norm that [follows](crate::norm#after-a-product), see [`plan::NormOperands`]. With a norm, `out` is `[m][n]` without gaps |

pub mod activation;
pub mod decode;
pub mod epilogue;
pub mod fragment;
pub mod gemv;
// Other targets lack Hopper's instructions.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod hopper;
pub mod operand;
mod packed;
#[cfg(not(target_arch = "nvptx64"))]
pub mod plan;
pub mod prefill;
pub mod quantised;
pub mod split;
pub(crate) mod tiles;
