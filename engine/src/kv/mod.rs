//! Bookkeeping of the paged KV cache (4.1 to 4.3 of the paper): which physical block holds which tokens of which
//! sequence, and which sequences share it. This module holds no tensors. It lists the blocks that must move as
//! [`BlockCopy`]s, and the backend copies their contents.
//!
//! ```text
//!  sequence A  table [7, 2, 9]      block 7: 3 references, full        A, B and C share their prompt
//!  sequence B  table [7, 2, 4]      block 2: 2 references, full        A and B share one block more
//!  sequence C  table [7, 5]         blocks 9, 4, 5: 1 reference each   written by one sequence alone
//! ```
//!
//! Decoding methods need three operations: [`BlockTable::fork`], [`BlockTable::reserve`] (append), and dropping the
//! table (free). A block returns to the pool when the last table that references it is dropped. Three more operations
//! build on these:
//!
//! - Swapping: [`relocate`] moves tables to blocks of a second pool, the swap space in host memory, and back.
//! - Sliding windows: [`BlockTable::slide`] gives back the blocks that the attention window has left behind.
//! - Prefix caching: [`BlockTable::register`] indexes full blocks by their tokens, and [`prefix_hit`] finds
//!   them, even after the last table that referenced them is dropped. When the cache needs their memory, the
//!   [`SwapTier`] moves them to the swap space.

pub(crate) mod capacity;
mod changes;
mod compaction;
mod counts;
mod free_list;
mod groups;
mod hit;
mod layout;
mod log;
mod moves;
mod pool;
mod prefix;
mod relocation;
mod table;
mod tier;
mod usage;

pub use changes::{CacheChange, CacheChanges};
pub use checkpoint::tensor::KvDtype;
pub use compaction::compact;
pub use counts::{Counts, MAX_GROUPS};
pub use groups::{CacheGroup, blocks_for};
pub use hit::{PrefixHit, SwappedBlock, prefix_hit};
pub use layout::{KvGroup, KvLayout, LayerPlace};
pub use log::{BlockEvent, EventLog, Place, SharedLog, Space};
pub use moves::{BlockCopy, BlockMoves};
pub use pool::{AdapterLease, BlockPool};
pub use prefix::{AdapterTag, Prefix, PrefixId, Root};
pub use relocation::relocate;
pub use table::{BlockTable, Lane, NO_BLOCK, OutOfBlocks, blocks_needed, distinct_blocks, state_ends};
pub use tier::SwapTier;
pub use usage::PoolUsage;
