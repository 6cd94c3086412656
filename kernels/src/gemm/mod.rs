//! Projections: `out = epilogue(x weight^T)`, with 16-bit activations and weights, and sums in `f32`.
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
//! What they have in common: [`operand`], tiles in shared memory; [`split`], sums of several blocks; [`epilogue`],
//! [`activation`] and [`fragment`], what is applied to the sums before they are stored. [`plan`] chooses the kernel and its
//! launch, and is all that a host needs.
//!
//! All kernels take the same arguments; those of Hopper have `x` and `weight` as tensors:
//!
//! | | |
//! | --- | --- |
//! | `x` | `[m][k]`, rows `x_stride` elements apart, each 16-byte aligned |
//! | `weight` | `[n][k]`, rows one after the other, 16-byte aligned |
//! | `bias` | `[n]`, 8-byte aligned; null if there is none |
//! | `out` | `[m][n]`, or `[m][n / 2]` if gated, rows `out_stride` elements apart; 16-byte aligned as a whole |
//! | `workspace`, `counters` | for parts of sums, see [`plan::GemmPlan`]; not touched without splits |
//! | `x_stride`, `out_stride`, `m`, `n`, `k` | see above; `k` is a multiple of 8 |
//! | `epilogue` | [`epilogue::Epilogue::bits`] |
//! | `norm`, `norm_weight`, `norm_bias`, `normed`, `eps`, `arrivals` | of the kernels for up to 64 tokens: the norm that [follows](crate::norm#after-a-product), see [`plan::NormOperands`]; with it `out` is `[m][n]` without gaps |

pub mod activation;
pub mod decode;
pub mod epilogue;
pub mod fragment;
pub mod gemv;
// Other targets do not have it.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod hopper;
pub mod operand;
mod packed;
#[cfg(not(target_arch = "nvptx64"))]
pub mod plan;
pub mod prefill;
pub mod quantised;
pub mod split;
