//! Lanes of states: a block holds the states of recurrent layers after its last token, or after the sequence's last one.
//!
//! A step reads the state before its first token and writes the states in the blocks it reserves. The last one is the
//! running state. The others have blocks only where a later prompt is likely to begin:
//!
//! ```text
//!   all tokens   [x][x][x][x][x][x][x][x][x][x]
//!   states       [ ][ ][x][ ][ ][ ][ ][x][ ][x]      a branch, the end of the prompt, and the running state
//! ```
//!
//! States are kept only in spare blocks. Without one, the next state overwrites the running one.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{BlockTable, Lane, NO_BLOCK, OutOfBlocks};
use crate::kv::BlockCopy;
use crate::kv::log::BlockEvent;
use crate::kv::pool::{Blocks, Value};
use crate::kv::prefix::PrefixId;

/// The blocks whose states are kept, if there is memory.
#[derive(Clone, Copy)]
pub struct Checkpoints<'a> {
    /// The numbers of blocks after which the request asks for a state, ascending. `None` if no later prompt
    /// could find a state.
    pub asked: Option<&'a [u32]>,
    /// The number of first blocks that an earlier text has too.
    pub branch: usize,
    /// The number of blocks from one kept state to the next.
    pub stride: usize,
}

impl Checkpoints<'_> {
    /// Whether the state after the block with this index is kept.
    pub fn keeps(&self, index: usize) -> bool {
        let (Some(asked), end) = (self.asked, index + 1) else { return false };
        end == self.branch || end.is_multiple_of(self.stride) || asked.binary_search(&(end as u32)).is_ok()
    }

    /// The value of the state after a block that is given back. Only a branch is known to be useful. A state in a prompt is
    /// soon replaced by one in its answer, which gets its value when the answer ends.
    pub fn value(&self, index: usize) -> Value {
        if index + 1 == self.branch { Value::High } else { Value::Low }
    }
}

/// Extends a lane of states of one group to `end` entries. `is_partial` says whether the running state is in the middle
/// of its block. The caller has counted the blocks that are needed.
pub fn reserve(
    (blocks, group): (&mut Blocks, usize),
    lane: &mut Lane,
    (is_partial, end): (bool, usize),
    kept: Checkpoints<'_>,
    copies: &mut Vec<BlockCopy>,
) -> Result<(), OutOfBlocks> {
    let begin = lane.blocks.len();
    if let Some(last) = lane.blocks.last_mut().filter(|_| is_partial) {
        *last = own(blocks, group, *last, copies)?;
    }
    if begin == end {
        return Ok(());
    }
    let running = lane.blocks.last().copied();
    lane.source = running.unwrap_or(NO_BLOCK);
    lane.blocks.resize(end, NO_BLOCK);
    lane.blocks[end - 1] = match running.filter(|&block| blocks.num_refs(group, block) == 1) {
        None => blocks.allocate(group).ok_or(OutOfBlocks)?,
        Some(block) => {
            let is_valuable = kept.keeps(begin - 1) || blocks.was_found(group, block);
            let is_useful = is_valuable || (kept.asked.is_some() && !is_partial);
            let spare = is_useful.then(|| blocks.allocate_spare(group, is_valuable)).flatten();
            spare.unwrap_or_else(|| {
                blocks.renew(group, block);
                lane.blocks[begin - 1] = NO_BLOCK;
                block
            })
        }
    };
    for at in (begin..end - 1).filter(|&at| kept.keeps(at)) {
        lane.blocks[at] = blocks.allocate_spare(group, true).unwrap_or(NO_BLOCK);
    }
    Ok(())
}

/// Returns `block` if only the caller references it, and a copy of it otherwise.
pub fn own(blocks: &mut Blocks, group: usize, block: u32, copies: &mut Vec<BlockCopy>) -> Result<u32, OutOfBlocks> {
    if blocks.num_refs(group, block) == 1 {
        return Ok(block);
    }
    let dst = blocks.allocate(group).ok_or(OutOfBlocks)?;
    copies.push(BlockCopy { group: group as u32, src: block, dst });
    blocks.record(group, BlockEvent::Copy { src: block, dst });
    blocks.release(group, block);
    Ok(dst)
}

impl BlockTable {
    /// Registers the states at the ends of the first blocks, after a step has computed them. `tokens` are the sequence's
    /// tokens. Keys and values are registered before that, because a step writes all of them before it reads any.
    pub fn settle(&mut self, tokens: &[u32]) {
        if !self.pool.has_states() {
            return;
        }
        let (size, mut blocks) = (self.pool.block_size(), self.pool.blocks());
        let full = self.prefixes.len().min(self.len / size);
        for (group, lane) in self.lanes.iter().enumerate().filter(|(at, _)| self.pool.groups()[*at].is_state()) {
            for at in lane.num_freed.min(full)..full {
                let block = lane.blocks[at];
                if block != NO_BLOCK && blocks.prefix(group, block).is_none() {
                    blocks.register_known(group, block, &self.text_of(at, tokens));
                }
            }
        }
    }

    /// The longest prefix of at most `tokens` tokens after which the table's blocks let another sequence resume.
    pub fn resumable(&self, tokens: usize) -> usize {
        let size = self.pool.block_size();
        let whole = |tokens: usize| (tokens - 1) / size * size;
        let shorter = std::iter::successors(Some(tokens), |&tokens| (tokens > 0).then(|| whole(tokens)));
        shorter.into_iter().find(|&tokens| self.has_window_of(tokens)).unwrap_or(0)
    }
}

/// Gives back the blocks of a lane before index `end`. The last one that was given back keeps its entry.
pub fn slide(
    (blocks, group): (&mut Blocks, usize),
    lane: &mut Lane,
    end: usize,
    kept: Checkpoints<'_>,
    prefixes: &[PrefixId],
) {
    for index in lane.num_freed..end {
        lane.num_freed = index + 1;
        let block = lane.blocks[index];
        if block == NO_BLOCK {
            continue;
        }
        if let Some((at, last)) = last_present(&lane.blocks[..index]) {
            if !kept.keeps(at) {
                // Both come from decoding. A prompt that begins with the whole text resumes from the later one.
                blocks.revalue(group, last, prefixes.get(at).copied(), None);
            }
            lane.blocks[at] = NO_BLOCK;
        }
        blocks.release_behind(group, block, kept.value(index));
    }
}

/// Makes the last state that was given back as valuable as keys and values, because the sequence ends: a later prompt is
/// likely to begin with the whole text.
pub fn end(blocks: &mut Blocks, group: usize, lane: &Lane, prefixes: &[PrefixId]) {
    let is_better = |block| blocks.num_refs(group, block) > 1 || blocks.prefix(group, block).is_some();
    if !lane.present().any(is_better)
        && let Some((at, block)) = last_present(&lane.blocks[..lane.num_freed])
    {
        blocks.revalue(group, block, prefixes.get(at).copied(), Some(Value::High));
    }
}

fn last_present(blocks: &[u32]) -> Option<(usize, u32)> {
    let at = blocks.iter().rposition(|block| *block != NO_BLOCK)?;
    Some((at, blocks[at]))
}

/// The numbers of blocks after which a prompt's states are kept: where a repetition of the prompt resumes, where the
/// request asks for them, and at some ends of its `messages`. These are the first, because many prompts begin with the
/// same message, and the last two.
pub fn state_ends(messages: &[usize], asked: &[usize], prompt: usize, block_size: usize) -> Arc<[u32]> {
    let some = messages.iter().take(1).chain(messages.iter().rev().take(2));
    // A lookup leaves at least one token over.
    let all = some.chain(asked).copied().chain([prompt.saturating_sub(1)]);
    let blocks: BTreeSet<u32> = all.map(|end| (end / block_size) as u32).filter(|end| *end > 0).collect();
    blocks.into_iter().collect()
}
