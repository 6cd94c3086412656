//! The state of a launch: its warps, its blocks, and everything that they share.

pub(crate) mod async_reads;
pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod block_env;
pub(crate) mod bulk;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod constants;
pub(crate) mod copy;
pub(crate) mod fences;
pub(crate) mod lane_access;
pub(crate) mod lane_mask;
pub(crate) mod mbarrier;
pub(crate) mod meter;
pub(crate) mod poison;
pub(crate) mod product;
pub(crate) mod shadow;
mod shadow_cell;
mod shadow_fault;
pub(crate) mod shared;
pub(crate) mod warp;
