//! Experts: gated units. A router chooses a few of them for each token.
//!
//! | file | kernel | computes |
//! | --- | --- | --- |
//! | [`route`] | [`route`](route::route()) | the experts of each token, and their factors |
//! | [`group`] | [`group_by_expert`](group::group_by_expert()) | the tokens of each expert, in tiles |
//! | [`product`] | [`grouped_product`](product::grouped_product()) | a projection of all experts, in one launch |
//! | [`hopper`] | [`grouped_hopper`](hopper::grouped_hopper()) | the same for many tokens on Hopper |
//! | [`coded`] | [`grouped_quantised`](coded::grouped_quantised()) | the same with quantised weights |
//! | [`combine`] | [`combine_experts`](combine::combine_experts()) | the weighted sum of a token's results |
//!
//! A *slot* is a pair of a token and one of its experts: slot `token * top_k + i` belongs to the token's expert number
//! `i`, in order of the experts' numbers. The slots that are sorted by expert, and by token within an expert, are the
//! *sorted rows*. The first product reads rows of tokens and writes sorted rows. The second product reads sorted rows
//! and writes rows of slots. So neither copies activations to another order.
//!
//! A worker may have only some of the experts. It then ignores the slots of other experts.
//!
//! All launches have shapes that depend only on the number of tokens. CUDA graphs can therefore record them. A token's
//! result does not depend on other tokens: all sums have a fixed order, whichever tile a token is in. But on Hopper a
//! step with many tokens uses another kernel, whose sums may be rounded differently.
//!
//! [`plan`] has the shapes of launches.

pub mod coded;
pub mod combine;
pub mod group;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod hopper;
#[cfg(not(target_arch = "nvptx64"))]
pub mod plan;
pub mod product;
pub mod route;
#[cfg(not(target_arch = "nvptx64"))]
mod router;
