//! A simulator that reproduces the evaluation of the PagedAttention paper. The engine's own scheduler, block manager
//! and sequence groups run on a virtual clock, for GPUs that need not exist.
//!
//! [`simulation`] makes the steps that the engine would make, and [`cost`] computes how long they take. The paper's
//! baselines are policies of [`admission`], or a loop of their own ([`faster_transformer`]). [`figures`] draws the
//! paper's figures.

pub mod admission;
pub mod beam_record;
pub mod bound;
pub mod buddy;
pub mod chart;
pub mod cost;
pub mod cpu_clock;
pub mod deployment;
pub mod efficiency;
pub mod faster_transformer;
pub mod figure;
pub mod figures;
pub mod fitted;
pub mod gpu;
pub mod jobs;
pub mod lab;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod page;
pub mod plan;
pub mod price;
pub mod real_engine;
pub mod request;
pub mod server;
pub mod simulation;
pub mod sustained;
pub mod system;
pub mod traces;
