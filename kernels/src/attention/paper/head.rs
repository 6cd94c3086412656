//! Maps a thread block's position in the grid to its query, tokens, keys and values.

use super::span::TokenRange;
use crate::layout::VECTOR;
use cuda_std::vector::Vector;

/// The arguments that v1 and v2 share: see [the shapes](super#shapes-and-layouts).
#[derive(Clone, Copy)]
pub struct AttentionArgs {
    /// `[sequences][heads][D]`
    pub query: *const u16,
    /// `[blocks][kv_heads][D / 8][B]` vectors.
    pub keys: *const Vector,
    /// `[blocks][kv_heads][D][B / 8]` vectors.
    pub values: *const Vector,
    /// `[sequences][table_stride]`
    pub tables: *const u32,
    /// `[sequences]`
    pub lengths: *const u32,
    /// Elements between the queries of consecutive sequences.
    pub query_stride: u32,
    /// Entries between consecutive block tables.
    pub table_stride: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Tokens that a token sees, itself included. 0 means all.
    pub window: u32,
}

/// One query head of one sequence: `D` elements, with keys and values in blocks of `B` tokens.
pub struct Head<const D: u32, const B: u32> {
    /// The query: `D` elements.
    pub query: *const u16,
    /// The tokens to attend to.
    pub span: TokenRange,
    /// The sequence's block table.
    table: *const u32,
    /// The head's keys and values in block 0.
    keys: *const Vector,
    values: *const Vector,
    /// Vectors between consecutive blocks, for keys and for values.
    block_stride: u32,
}

impl<const D: u32, const B: u32> Head<D, B> {
    /// Creates head `head` of `heads` of sequence `sequence`, with all the tokens that it sees.
    ///
    /// # Safety
    /// The inputs have the shapes that [`AttentionArgs`] describes, and include this head and sequence.
    #[inline(always)]
    pub unsafe fn new(inputs: &AttentionArgs, sequence: u32, head: u32, heads: u32) -> Self {
        let page = D / VECTOR * B;
        // SAFETY: by this function's contract, the inputs have this sequence and head, so all offsets are within the
        // arrays. `heads` is not 0, since it counts at least this head.
        unsafe {
            core::hint::assert_unchecked(heads != 0);
            // With grouped queries, `heads / kv_heads` neighbouring query heads share a head of keys and values.
            let kv_head = head * inputs.kv_heads / heads;
            let query = sequence as usize * inputs.query_stride as usize + (head * D) as usize;
            Head {
                query: inputs.query.add(query),
                span: TokenRange::visible(*inputs.lengths.add(sequence as usize), inputs.window),
                table: inputs.tables.add(sequence as usize * inputs.table_stride as usize),
                keys: inputs.keys.add((kv_head * page) as usize),
                values: inputs.values.add((kv_head * page) as usize),
                block_stride: inputs.kv_heads * page,
            }
        }
    }

    /// Returns the head's keys in the sequence's block number `block`: `[D / 8][B]` vectors.
    ///
    /// # Safety
    /// `block` is less than the number of the sequence's blocks.
    #[inline(always)]
    pub unsafe fn keys(&self, block: u32) -> *const Vector {
        // SAFETY: by this function's contract, the sequence has this block, and its table names a block of the cache.
        unsafe { self.keys.add(self.physical(block)) }
    }

    /// Returns the head's values in the sequence's block number `block`: `[D][B / 8]` vectors.
    ///
    /// # Safety
    /// `block` is less than the number of the sequence's blocks.
    #[inline(always)]
    pub unsafe fn values(&self, block: u32) -> *const Vector {
        // SAFETY: by this function's contract, the sequence has this block, and its table names a block of the cache.
        unsafe { self.values.add(self.physical(block)) }
    }

    /// Looks up the sequence's block number `block` in the block table, and returns its offset in the cache, in
    /// vectors. This lookup is all the paging in PagedAttention.
    ///
    /// # Safety
    /// `block` is less than the number of the sequence's blocks.
    #[inline(always)]
    unsafe fn physical(&self, block: u32) -> usize {
        // SAFETY: by this function's contract, the sequence has this block, and its table has an entry for each. All
        // lanes of a warp read the same entry: one sector.
        let physical = unsafe { *self.table.add(block as usize) };
        physical as usize * self.block_stride as usize
    }
}
