//! What an iteration does.

use std::ops::Range;

use crate::group::RequestId;
use crate::kv::BlockMoves;

/// New tokens of one sequence in a step: tokens `range` of running group `group`, sequence `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the running groups.
    pub group: usize,
    /// Index into the group's running sequences.
    pub seq: usize,
    /// Which of the sequence's tokens are computed.
    pub range: Range<usize>,
    /// Those of them, all of the prompt, of which something is wanted, see
    /// [`SequenceGroup::wanted`](crate::group::SequenceGroup::wanted).
    pub wanted: Range<usize>,
}

/// What the next iteration does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens, group by group in order of arrival.
    pub chunks: Vec<Chunk>,
    /// Running groups (ascending indices) that are computed to their end in this step and get new tokens.
    pub sampled: Vec<usize>,
    /// Blocks to move before anything is written.
    pub moves: BlockMoves,
    /// Those of the blocks moved out that were cached, and make room for others.
    pub offloaded_blocks: usize,
    /// Those of the blocks moved in that a prefix look-up has found.
    pub restored_blocks: usize,
    /// Requests that were admitted for the first time.
    pub admitted: Vec<RequestId>,
    /// Groups that were preempted to make room.
    pub preempted: usize,
    /// Those of them that were swapped out; the others will be recomputed.
    pub swapped_out: usize,
    /// Groups that came back from the swap space.
    pub swapped_in: usize,
    /// Tokens of sequences that began to be computed, and those of them whose blocks were there already.
    pub looked_up_tokens: usize,
    /// See `looked_up_tokens`.
    pub hit_tokens: usize,
    /// Those of the latter whose blocks were in the swap space.
    pub swap_hit_tokens: usize,
    /// The only running group needs more blocks than there are, and cannot be divided. It must be ended.
    pub exhausted: bool,
}

impl Step {
    /// New tokens in the step.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|c| c.range.len()).sum()
    }

    /// The groups that are computed, in order of arrival: the index among the running ones, the new tokens, and whether
    /// it gets new tokens from the rows of its last ones. Rows of logits, and their results, are in this order: for
    /// each group those of its tokens that are scored, then those that are sampled.
    pub fn groups(&self) -> impl Iterator<Item = (usize, &[Chunk], bool)> {
        let chunks = self.chunks.chunk_by(|a, b| a.group == b.group);
        chunks.map(|chunks| (chunks[0].group, chunks, self.sampled.binary_search(&chunks[0].group).is_ok()))
    }

    /// Whether the step neither moves nor computes anything.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.moves == BlockMoves::default()
    }
}
