//! What the GPUs of a divided model exchange: sums of activations, and the logits of all parts of the vocabulary.
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`all_reduce()`] | `x += sum over ranks of part`, `out = norm(x)`, in one exchange or in two | `x`, `part`, `out` `[rows][width]` of 16 bits |
//! | [`gather_logits()`] | on rank 0: the ranks' columns side by side | `part [rows][stride]`, `out [rows][vocab]` in `f32` |
//!
//! Every rank launches the same kernel with the same sizes, each in its own stream. Ranks exchange data through
//! *mailboxes*: memory of each rank that all others read, on its device where there is peer access and in page-locked
//! host memory elsewhere; kernels only see N addresses. Block `b` of a rank exchanges with blocks `b` of the others alone:
//!
//! 1. It copies its chunk of the input to its slot of its own mailbox.
//! 2. It writes the number of the exchange, the *epoch*, to its flag in the mailbox of each rank, by a release at the
//!    scope of the system, and waits until the flags of all ranks in its own mailbox have come to this epoch. It
//!    acquires these, so that it sees what the others copied.
//! 3. It reads the slots of all ranks.
//!
//! Sums are made in `f32`, in the order of the ranks; what they are added to, the residual stream, comes last, and the result
//! is rounded once. So all ranks have the same bits. The norm that follows is that of [`norm`](crate::norm), row by row, by
//! the block that has just stored the row: its bits are those of the norm in a launch of its own. Both are left out where
//! there is nothing to add to, or no norm follows.
//!
//! A second barrier after step 3 would keep slots from being overwritten while others still read them. There is none,
//! since a block has two slots and takes them in turn: the slot of epoch `e` is written again in epoch `e + 2`, and to get
//! there a block has waited for the flags of epoch `e + 1` of all ranks, which these wrote after they had read everything of
//! epoch `e`.
//!
//! Epochs lie in device memory, one for each block, and go on where the launch before ended. They are no arguments, so that
//! a CUDA graph with these kernels can be launched again and again. All collectives of a group share mailboxes and epochs.
//!
//! All blocks wait for others, so all must be resident at the same time: there are at most [`MAX_BLOCKS`], and no more
//! than the smallest device has multiprocessors. What does not fit the slots is done in several chunks in the same launch.
//!
//! Whoever waits looks at the abort word from time to time, which lies in page-locked host memory. Once the host has set it
//! all kernels of the group return at once, and what they leave is worth nothing.
//!
//! # Floor
//!
//! Of `n` bytes a rank must receive at least `2 n (N - 1) / N` over its links: what others add to its Nth of the sum, and
//! the sums of theirs. One exchange takes `n (N - 1)`, which is as much for two ranks; two exchanges take the least.
//!
//! # Ladder
//!
//! 1. A ring: `2 (N - 1)` exchanges one after the other, each of an Nth. Least bytes, most waiting.
//! 2. One exchange where the data is small and waiting is all that counts, two where it is large
//!    ([`shots`] has vLLM's limits).
//! 3. (here) With the residual stream and the norm that follows in the same launch: rows are read from L2 once more, and a
//!    launch is saved.
//! 4. Next would be the sum in the switch (NVLink SHARP). No figure is measured yet.

mod exchange;
mod gather;
mod sum;

use cuda_std::launch::LaunchShape;

use crate::layout::VECTOR;
use crate::norm::{MAX_WIDTH, NormShape};

pub use gather::gather_logits;
pub use sum::all_reduce;

/// Ranks of a group, at most.
pub const MAX_RANKS: u32 = 8;
/// Blocks of a launch, at most.
pub const MAX_BLOCKS: u32 = 36;
/// Threads of a block, at most.
pub const MAX_THREADS: u32 = 512;
/// Vectors of 16 bytes that a block exchanges at a time, at most.
pub const CAPACITY: u32 = 2048;

/// Flags of a mailbox, in vectors: a word for each rank and block.
const FLAG_VECTORS: u32 = MAX_RANKS * MAX_BLOCKS / 4;

/// Bytes of a mailbox: its flags, which are zero before the first exchange, then two slots for each block.
pub const MAILBOX_BYTES: usize = 16 * (FLAG_VECTORS + 2 * MAX_BLOCKS * CAPACITY) as usize;

/// How a collective is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeShape {
    /// Blocks and threads.
    pub launch: LaunchShape,
    /// Vectors that a block exchanges at a time.
    pub chunk: u32,
}

impl ExchangeShape {
    /// For so many vectors, on devices that have room for `blocks` blocks at a time.
    pub const fn of(vectors: u32, blocks: u32) -> Self {
        let blocks = at_least_one(if blocks < MAX_BLOCKS { blocks } else { MAX_BLOCKS });
        let vectors = at_least_one(vectors);
        let even = vectors.div_ceil(blocks);
        let chunk = if even < MAX_THREADS {
            MAX_THREADS
        } else if even < CAPACITY {
            even
        } else {
            CAPACITY
        };
        let needed = vectors.div_ceil(chunk);
        let threads = if vectors < MAX_THREADS { vectors.next_multiple_of(32) } else { MAX_THREADS };
        Self { launch: LaunchShape::linear(if needed < blocks { needed } else { blocks }, threads), chunk }
    }

    /// For an all-reduce of so many elements of 16 bits, which must be whole vectors.
    pub const fn of_sum(elements: u32, blocks: u32) -> Self {
        Self::of(elements / VECTOR, blocks)
    }

    /// For an all-reduce of so many rows, which are normalised.
    pub const fn of_rows(rows: u32, norm: NormShape, blocks: u32) -> Self {
        const { assert!(MAX_WIDTH / VECTOR <= CAPACITY, "a chunk has room for a row") };
        let blocks = at_least_one(if blocks < MAX_BLOCKS { blocks } else { MAX_BLOCKS });
        let (even, most) = (at_least_one(rows).div_ceil(blocks), CAPACITY / norm.vectors);
        let each = if even < most { even } else { most };
        let needed = at_least_one(rows).div_ceil(each);
        let launch = LaunchShape::linear(if needed < blocks { needed } else { blocks }, norm.threads);
        Self { launch, chunk: each * norm.vectors }
    }

    /// For the gathering of `rows` rows of logits of a vocabulary of `vocab` tokens, divided among `ranks` ranks.
    pub const fn of_logits(rows: u32, vocab: u32, ranks: u32, blocks: u32) -> Self {
        Self::of(rows * (vocab.div_ceil(at_least_one(ranks)).div_ceil(4)), blocks)
    }
}

const fn at_least_one(n: u32) -> u32 {
    if n == 0 { 1 } else { n }
}

/// In how many exchanges so many bytes are summed up.
pub const fn shots(ranks: u32, bytes: u64) -> u32 {
    let most_at_once = match ranks {
        0..=2 => u64::MAX,
        3..=4 => 512 << 10,
        _ => 256 << 10,
    };
    if bytes <= most_at_once { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_something_to_exchange_and_all_fit() {
        for vectors in (1..200).chain([511, 512, 513, 18_432, 18_433, 73_728, 73_729, 4 << 20]) {
            for blocks in [1, 3, 16, 36, 132] {
                let ExchangeShape { launch, chunk } = ExchangeShape::of(vectors, blocks);
                let grid = launch.grid[0];
                assert!(grid >= 1 && grid <= blocks.min(MAX_BLOCKS) && chunk <= CAPACITY, "{vectors}, {blocks}");
                assert!((grid - 1) * chunk < vectors, "the last of {grid} blocks has a chunk of {vectors} vectors");
                let threads = launch.threads[0];
                assert!(threads.is_multiple_of(32) && (32..=MAX_THREADS).contains(&threads));
            }
        }
    }

    #[test]
    fn chunks_are_of_whole_rows_where_a_norm_follows() {
        for (width, rows, blocks, want) in [
            (16_384, 1, 36, (1, 512, 2048)),
            (16_384, 100, 36, (36, 512, 2048)),
            (512, 3, 36, (3, 64, 64)),
            (512, 100, 16, (15, 64, 7 * 64)),
            (512, 10_000, 16, (16, 64, 2048)),
            (1536, 1000, 2, (2, 192, 10 * 192)),
        ] {
            let Ok(norm) = NormShape::of(width) else { panic!("{width}") };
            let ExchangeShape { launch, chunk } = ExchangeShape::of_rows(rows, norm, blocks);
            assert_eq!((launch.grid[0], launch.threads[0], chunk), want, "{width}, {rows}");
        }
    }

    #[test]
    fn what_is_small_is_exchanged_at_once() {
        assert_eq!([shots(2, 1 << 30), shots(4, 512 << 10), shots(8, 256 << 10)], [1; 3]);
        assert_eq!([shots(4, (512 << 10) + 16), shots(8, 512 << 10)], [2; 2]);
    }
}
