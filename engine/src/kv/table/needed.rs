//! Counting the blocks that reservations take.

use super::{BlockTable, Lane, NO_BLOCK};
use crate::kv::counts::Counts;
use crate::kv::groups::blocks_for;
use crate::kv::pool::{BlockPool, Blocks};

/// The numbers of free blocks that it takes to reserve the given numbers of tokens in all tables, one after the other:
/// new blocks, and copies of shared last blocks. The last table that writes to a shared block needs no copy.
pub fn blocks_needed<'a>(pool: &BlockPool, plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> Counts {
    let (blocks, mut counts, mut shared) = (pool.blocks(), Counts::default(), Vec::new());
    for (table, tokens) in plan {
        add_needed(&blocks, table, tokens, &mut counts, &mut shared);
    }
    counts
}

/// A shared block, with the number of references left to tables that have not written to it.
pub struct Shared {
    group: usize,
    block: u32,
    refs: usize,
}

/// Adds the blocks that it takes to reserve `tokens` tokens in a table. `shared` lists the shared blocks that earlier
/// tables write to.
pub fn add_needed(blocks: &Blocks, table: &BlockTable, tokens: usize, counts: &mut Counts, shared: &mut Vec<Shared>) {
    let end = blocks_for(table.len + tokens, blocks.block_size());
    for (group, lane) in table.lanes.iter().enumerate() {
        let last = table.writable_block(group, tokens);
        let new = match table.pool.groups()[group].is_state() {
            true => states_needed(blocks, group, lane, last, end),
            false => end - lane.blocks.len(),
        };
        counts.add(group, new);
        let Some(block) = last.filter(|&block| blocks.num_refs(group, block) > 1) else { continue };
        let at = shared.iter().position(|s| (s.group, s.block) == (group, block)).unwrap_or_else(|| {
            shared.push(Shared { group, block, refs: blocks.num_refs(group, block) });
            shared.len() - 1
        });
        if shared[at].refs > 1 {
            shared[at].refs -= 1;
            counts.add(group, 1);
        }
    }
}

/// The number of blocks that a lane of states takes to get `end` entries, apart from a copy of a shared `partial` block.
/// The running state moves on to the last entry, unless it is shared. A state in the swap space may be shared.
fn states_needed(blocks: &Blocks, group: usize, lane: &Lane, partial: Option<u32>, end: usize) -> usize {
    let is_own = |block: u32| partial.is_some() || blocks.num_refs(group, block) <= 1;
    let moves_on = lane.blocks.last().is_some_and(|&block| block != NO_BLOCK && is_own(block));
    usize::from(end > lane.blocks.len() && !moves_on)
}
