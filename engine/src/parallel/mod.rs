//! Tensor parallelism (4.6 of the paper): a model divided among workers, which run the same program on their parts of it.
//!
//! | file | |
//! | --- | --- |
//! | `shard` | which heads, rows and columns are a worker's, as in Megatron-LM (Shoeybi et al., 2019) |
//! | `ranks` | how workers of one process sum up and gather: through shared memory |
//! | `workers` | a step on all workers: the same batch to each, and the sampled tokens back from the first |
//!
//! There is one scheduler and one block manager. Physical blocks have the same numbers for all workers, each of which has
//! its heads' part of every block, so that a step's batch, block tables and moves included, is the same for all. Beside
//! it workers need nothing from the scheduler.

mod ranks;
mod shard;
#[cfg(test)]
mod tests;
mod workers;

pub use ranks::{RankGroup, WorkerRank};
pub use shard::Shard;
pub use workers::{ParallelRunner, WorkerGroup};
