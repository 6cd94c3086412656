//! Collectives of a tensor-parallel model: sums of activations, and logits gathered from all parts of the vocabulary.
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`all_reduce()`] | `x += sum over ranks of part`, `out = norm(x)`, in one exchange or in two | `x`, `part`, `out` `[rows][width]` of 16 bits |
//! | [`gather_logits()`] | on rank 0: the ranks' columns side by side | `part [rows][stride]`, `out [rows][vocab]` in `f32` |
//!
//! Every rank launches the same kernel with the same sizes, each in its own stream. Ranks exchange data through
//! *mailboxes*. A mailbox is memory of one rank that all other ranks read. It is in device memory if there is peer
//! access, and in page-locked host memory otherwise. Kernels only see one address per rank. Block `b` of a rank
//! exchanges data only with block `b` of every other rank:
//!
//! 1. It copies its chunk of the input to its slot in its own mailbox.
//! 2. It writes the number of the exchange, the *epoch*, to its flag in every rank's mailbox, with release semantics at
//!    system scope. It then waits until the flags of all ranks in its own mailbox have reached this epoch. It reads
//!    them with acquire semantics, so it sees the data that the others copied.
//! 3. It reads the slots of all ranks.
//!
//! Each rank adds the parts in `f32`, in the order of the ranks. The residual stream is added last, and the result is
//! rounded once. So all ranks get the same bits. The norm is the same as in [`norm`](crate::norm). The block that
//! stored a row also normalises it, and gets the same bits as a separate launch of the norm. Both the residual and the
//! norm are optional.
//!
//! Slots must not be overwritten while other ranks still read them. A second barrier after step 3 would ensure that,
//! but two alternating slots per block do so without one. A block writes the slot of epoch `e` again in epoch `e + 2`.
//! Before that, it waits for the epoch `e + 1` flags of all ranks, and each rank writes its flag only after it has read
//! all data of epoch `e`.
//!
//! Epochs are in device memory, one per block, and continue from one launch to the next. They are not kernel arguments,
//! so a CUDA graph with these kernels can be launched repeatedly. All collectives of a group share mailboxes and
//! epochs.
//!
//! Every block waits for other blocks, so all of them must be resident at the same time. A launch has at most
//! [`MAX_BLOCKS`] blocks, and no more than the smallest device has multiprocessors. If the data does not fit the slots,
//! the same launch processes it in several chunks.
//!
//! A waiting block polls the abort word, in page-locked host memory, from time to time. Once the host has set it, all
//! kernels of the group return at once, and their output is unusable.
//!
//! # Floor
//!
//! For `n` bytes, a rank must receive at least `2 n (N - 1) / N` over its links: the other ranks' parts of its own Nth
//! of the sum, and the finished sums of the other Nths. One exchange receives `n (N - 1)`, which equals the minimum for
//! two ranks. Two exchanges reach the minimum for any number of ranks.
//!
//! # Ladder
//!
//! 1. A ring: `2 (N - 1)` consecutive exchanges, each of an Nth. It moves the fewest bytes and waits the longest.
//! 2. One exchange for small data, where only latency matters, and two for large data ([`shots`] has vLLM's limits).
//! 3. (here) The residual stream and the following norm in the same launch. Rows are read from L2 once more, and a
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

/// Maximum number of ranks in a group.
pub const MAX_RANKS: u32 = 8;
/// Maximum number of blocks per launch.
pub const MAX_BLOCKS: u32 = 36;
/// Maximum number of threads per block.
pub const MAX_THREADS: u32 = 512;
/// Maximum number of 16-byte vectors that a block exchanges at a time.
pub const CAPACITY: u32 = 2048;

/// Vectors that a mailbox's flags take: one word per rank and block.
const FLAG_VECTORS: u32 = MAX_RANKS * MAX_BLOCKS / 4;

/// Bytes of a mailbox: its flags, which must be zero before the first exchange, then two slots per block.
pub const MAILBOX_BYTES: usize = 16 * (FLAG_VECTORS + 2 * MAX_BLOCKS * CAPACITY) as usize;

/// The launch of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeShape {
    /// Grid and block dimensions.
    pub launch: LaunchShape,
    /// Vectors that a block exchanges at a time.
    pub chunk: u32,
}

impl ExchangeShape {
    /// Returns the launch for `vectors` vectors on devices that can run `blocks` blocks at the same time.
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

    /// Returns the launch for an all-reduce of `elements` 16-bit elements, which must be whole vectors.
    pub const fn of_sum(elements: u32, blocks: u32) -> Self {
        Self::of(elements / VECTOR, blocks)
    }

    /// Returns the launch for an all-reduce of `rows` rows, each normalised afterwards.
    pub const fn of_rows(rows: u32, norm: NormShape, blocks: u32) -> Self {
        const { assert!(MAX_WIDTH / VECTOR <= CAPACITY, "a chunk must have room for a row") };
        let blocks = at_least_one(if blocks < MAX_BLOCKS { blocks } else { MAX_BLOCKS });
        let (even, most) = (at_least_one(rows).div_ceil(blocks), CAPACITY / norm.vectors);
        let each = if even < most { even } else { most };
        let needed = at_least_one(rows).div_ceil(each);
        let launch = LaunchShape::linear(if needed < blocks { needed } else { blocks }, norm.threads);
        Self { launch, chunk: each * norm.vectors }
    }

    /// Returns the launch to gather `rows` rows of logits over a vocabulary of `vocab` tokens, divided among `ranks`
    /// ranks.
    pub const fn of_logits(rows: u32, vocab: u32, ranks: u32, blocks: u32) -> Self {
        Self::of(rows * (vocab.div_ceil(at_least_one(ranks)).div_ceil(4)), blocks)
    }
}

const fn at_least_one(n: u32) -> u32 {
    if n == 0 { 1 } else { n }
}

/// Returns the number of exchanges in an all-reduce of `bytes` bytes.
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
    fn every_block_has_data_and_chunks_fit_their_slots() {
        for vectors in (1..200).chain([511, 512, 513, 18_432, 18_433, 73_728, 73_729, 4 << 20]) {
            for blocks in [1, 3, 16, 36, 132] {
                let ExchangeShape { launch, chunk } = ExchangeShape::of(vectors, blocks);
                let grid = launch.grid[0];
                assert!(grid >= 1 && grid <= blocks.min(MAX_BLOCKS) && chunk <= CAPACITY, "{vectors}, {blocks}");
                assert!((grid - 1) * chunk < vectors, "the last of {grid} blocks has no chunk of {vectors} vectors");
                let threads = launch.threads[0];
                assert!(threads.is_multiple_of(32) && (32..=MAX_THREADS).contains(&threads));
            }
        }
    }

    #[test]
    fn chunks_are_whole_rows_when_a_norm_follows() {
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
    fn small_sums_take_one_exchange() {
        assert_eq!([shots(2, 1 << 30), shots(4, 512 << 10), shots(8, 256 << 10)], [1; 3]);
        assert_eq!([shots(4, (512 << 10) + 16), shots(8, 512 << 10)], [2; 2]);
    }
}
