//! The input of a step: the new tokens of all its sequences, flattened.

use crate::adapter::AdapterChange;
use crate::kv::BlockMoves;

/// The tokens of one step, flattened over all scheduled sequences. `T` is the number of new tokens in the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// `[T]` token ids.
    pub tokens: Vec<u32>,
    /// `[T]` position of each token in its sequence, or its row in the table of angles if sequences of different lengths
    /// have different angles.
    pub positions: Vec<u32>,
    /// The sequences, in the order of their tokens.
    pub spans: Vec<Span>,
    /// The block tables and slots for each group of layers.
    pub groups: Vec<GroupTables>,
    /// Rows (indices into `tokens`) whose logits are needed, ascending.
    pub logit_rows: Vec<u32>,
    /// Rows whose final hidden states are needed.
    pub hidden_rows: Vec<u32>,
    /// Blocks to move before anything is computed.
    pub moves: BlockMoves,
    /// Changes to the device's adapters, to make in order before anything is computed.
    pub adapter_changes: Vec<AdapterChange>,
    /// The slot of each sequence's adapter. Empty if no sequence has one.
    pub adapter_slots: Vec<Option<u32>>,
}

/// Where a group of layers reads and writes. Blocks have the ids of [`KvLayout::id_step`](crate::kv::KvLayout::id_step).
///
/// In a group of states, a sequence's new tokens read the state in the block of the token before the first, or begin
/// with zeros. They store the state after the last token of each of their blocks that exists, and after the very last
/// token. Entries of other blocks are [`NO_BLOCK`](crate::kv::NO_BLOCK). If the new tokens begin within a block, its entry
/// may equal the last entry. Only the last state is then stored there. No sequence reads or writes a state that another
/// sequence of the step writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupTables {
    /// Block tables of all sequences, concatenated. Entries of blocks that a window has left behind are unspecified.
    pub blocks: Vec<u32>,
    /// `[T]` slot that each token's key and value are written to: `block * block_size + offset`.
    /// Empty for a group of states.
    pub slots: Vec<u32>,
}

/// The part of a [`Batch`] that belongs to one sequence. Its new tokens are the last `len` of its `context` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row of the sequence in `tokens`.
    pub start: usize,
    /// Number of new tokens.
    pub len: usize,
    /// Number of tokens in the cache after this step, including the new ones.
    pub context: usize,
    /// First entry of the sequence's block table in each group's `blocks`. The table has `ceil(context / block_size)`
    /// entries in every group.
    pub table: usize,
}

impl Batch {
    /// An empty batch for a cache with `groups` groups of layers.
    pub fn new(groups: usize) -> Self {
        Batch { groups: vec![GroupTables::default(); groups], ..Batch::default() }
    }

    /// The number of entries in each group's block tables so far.
    pub fn table_len(&self) -> usize {
        self.groups.first().map_or(0, |group| group.blocks.len())
    }
}
