//! The plan of one iteration.

use std::ops::Range;

use crate::adapter::AdapterChange;
use crate::group::RequestId;
use crate::kv::BlockMoves;

/// New tokens of one sequence in a step: tokens `range` of running group `group`, sequence `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the running groups.
    pub group: usize,
    /// Index into the group's running sequences.
    pub seq: usize,
    /// The positions of the tokens to compute.
    pub range: Range<usize>,
    /// The positions in `range` whose logits or hidden states the request wants. All are in the prompt, see
    /// [`SequenceGroup::wanted`](crate::group::SequenceGroup::wanted).
    pub wanted: Range<usize>,
}

/// The plan of the next iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens, group by group in order of first admission.
    pub chunks: Vec<Chunk>,
    /// Indices of the running groups that sample new tokens in this step, in ascending order. All their pending tokens
    /// are computed.
    pub sampled: Vec<usize>,
    /// Blocks to move before the step writes any tokens.
    pub moves: BlockMoves,
    /// Changes to the device's adapters, in order.
    pub adapters: Vec<AdapterChange>,
    /// The swapped-out blocks that were evicted from the prefix cache.
    pub offloaded_blocks: usize,
    /// The swapped-in blocks that a prefix lookup found.
    pub restored_blocks: usize,
    /// Requests that were admitted for the first time.
    pub admitted: Vec<RequestId>,
    /// The number of preempted groups.
    pub preempted: usize,
    /// The preempted groups that were swapped out. The others will be recomputed.
    pub swapped_out: usize,
    /// Groups that came back from the swap space.
    pub swapped_in: usize,
    /// Tokens looked up in the prefix index, for sequences that start in this step.
    pub looked_up_tokens: usize,
    /// The tokens among `looked_up_tokens` that were found.
    pub hit_tokens: usize,
    /// The tokens among `hit_tokens` whose blocks were in the swap space.
    pub swap_hit_tokens: usize,
    /// The only running group needs more blocks than there are and cannot be divided. It must be ended.
    pub exhausted: bool,
}

impl Step {
    /// The number of new tokens in the step.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|c| c.range.len()).sum()
    }

    /// The groups that the step computes, in order of first admission: the index of the running group, its chunks, and whether
    /// it samples new tokens. Rows of logits and their results have the same order. For each group, the rows of scored
    /// prompt tokens come first, then the sampled rows.
    pub fn groups(&self) -> impl Iterator<Item = (usize, &[Chunk], bool)> {
        let chunks = self.chunks.chunk_by(|a, b| a.group == b.group);
        chunks.map(|chunks| (chunks[0].group, chunks, self.sampled.binary_search(&chunks[0].group).is_ok()))
    }

    /// Whether the step neither moves, loads nor computes anything.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.moves == BlockMoves::default() && self.adapters.is_empty()
    }
}
