//! Tensor parallelism (4.6 of the paper): a model is divided among workers that run the same program on different
//! parts.
//!
//! | file | contents |
//! | --- | --- |
//! | `shard` | a worker's heads, rows and columns, as in Megatron-LM (Shoeybi et al., 2019) |
//! | `ranks` | sums and gathers between workers of one process, through shared memory |
//! | `workers` | a step on all workers: each gets the same batch, and the first returns the sampled tokens |
//!
//! There is one scheduler and one block manager. Physical blocks have the same numbers on all workers. Each worker
//! stores its heads' part of every block. So a step's batch, including block tables and moves, is the same for all, and
//! workers need no other data from the scheduler.

mod ranks;
mod shard;
#[cfg(test)]
mod tests;
mod workers;

pub use ranks::{RankGroup, WorkerRank};
pub use shard::Shard;
pub use workers::{ParallelRunner, WorkerGroup};
