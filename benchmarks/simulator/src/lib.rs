//! A simulator that reproduces the evaluation of the PagedAttention paper. The engine's own scheduler, block manager
//! and sequence groups run on a virtual clock, for GPUs that need not exist.
//!
//! [`simulation`] makes the steps that the engine would make, and [`cost`] computes how long they take. The paper's
//! baselines are policies of [`admission`], or a loop of their own ([`faster_transformer`]). The crate `lab` draws the
//! paper's figures, and [`plan`] makes the plan of a deployment.

pub mod admission;
pub mod beam_record;
pub mod buddy;
pub mod cache_plan;
pub mod cost;
pub mod deployment;
pub mod efficiency;
pub mod estimate;
pub mod eviction;
pub mod faster_transformer;
pub mod fit;
pub mod gpu;
pub(crate) mod layer_attention;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod plan;
pub mod price;
pub mod request;
pub mod server;
pub mod simulation;
pub mod sustained;
pub mod system;
pub mod traces;
