//! The tokens that a thread block attends to, computed by the same code on host and device.

use super::PARTITION;

/// Positions `first .. end` of a sequence, and the cache blocks that contain them.
///
/// ```text
/// blocks of 8     |0 . . . . . . 7|8 . . . . . .15|16. . . . . .23|24 . .
/// length 19, window 6                        [13 . . . . .19)
/// first_block 1                   |<------- blocks 1 .. 3 ------->|
/// slot                            |0 1 2 3 4 5 6 7 8 9 ...
/// ```
///
/// Kernels read whole blocks, so a span's first and last block may hold tokens that the query must not see. Those
/// tokens are masked. Each position has a [slot](TokenRange::slot), counted from the start of the first block, which
/// holds its logit and later its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first visible position.
    pub first: u32,
    /// The position after the last visible one.
    pub end: u32,
}

impl TokenRange {
    /// Returns the tokens that the newest of `length` tokens sees: the last `window`, itself included, or all if
    /// `window` is 0.
    #[inline(always)]
    pub const fn visible(length: u32, window: u32) -> TokenRange {
        let first = if window == 0 { 0 } else { length.saturating_sub(window) };
        TokenRange { first, end: length }
    }

    /// Returns partition number `index` of these tokens. It covers [`PARTITION`] slots. Partitions are counted from the
    /// start of the first block, so none cuts a block in two. The result is empty if the partition does not exist.
    #[inline(always)]
    pub const fn partition(self, index: u32, block_size: u32) -> TokenRange {
        let start = self.first_block(block_size) * block_size + index * PARTITION;
        let first = if start > self.first { start } else { self.first };
        let end = if start + PARTITION < self.end { start + PARTITION } else { self.end };
        TokenRange { first, end }
    }

    /// Returns the number of partitions that are not empty.
    #[inline(always)]
    pub const fn partitions(self, block_size: u32) -> u32 {
        (self.end - self.first_block(block_size) * block_size).div_ceil(PARTITION)
    }

    /// Returns whether the span has no tokens.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// Returns whether the span contains a position.
    #[inline(always)]
    pub const fn sees(self, position: u32) -> bool {
        self.first <= position && position < self.end
    }

    /// Returns whether the span contains all positions of a block.
    #[inline(always)]
    pub const fn sees_all_of(self, block: u32, block_size: u32) -> bool {
        self.first <= block * block_size && (block + 1) * block_size <= self.end
    }

    /// Returns the block of the first position, an index into the block table.
    #[inline(always)]
    pub const fn first_block(self, block_size: u32) -> u32 {
        self.first / block_size
    }

    /// Returns the block after the last position's block.
    #[inline(always)]
    pub const fn end_block(self, block_size: u32) -> u32 {
        self.end.div_ceil(block_size)
    }

    /// Returns the number of positions in all blocks that are read.
    #[inline(always)]
    pub const fn slots(self, block_size: u32) -> u32 {
        (self.end_block(block_size) - self.first_block(block_size)) * block_size
    }

    /// Returns the slot of a position's logit and later its weight.
    #[inline(always)]
    pub const fn slot(self, position: u32, block_size: u32) -> u32 {
        position - self.first_block(block_size) * block_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_at_the_newest_token() {
        assert_eq!(TokenRange::visible(19, 0), TokenRange { first: 0, end: 19 });
        assert_eq!(TokenRange::visible(19, 6), TokenRange { first: 13, end: 19 });
        assert_eq!(TokenRange::visible(19, 19), TokenRange { first: 0, end: 19 });
        assert_eq!(TokenRange::visible(3, 6), TokenRange { first: 0, end: 3 });
        assert!(TokenRange::visible(0, 0).is_empty() && TokenRange::visible(0, 6).is_empty());
    }

    #[test]
    fn blocks_and_slots_match_the_figure() {
        let span = TokenRange::visible(19, 6);
        assert_eq!((span.first_block(8), span.end_block(8), span.slots(8)), (1, 3, 16));
        assert_eq!((span.slot(13, 8), span.slot(18, 8)), (5, 10));
        assert!(!span.sees(12) && span.sees(13) && span.sees(18) && !span.sees(19));
        assert!(!span.sees_all_of(1, 8) && !span.sees_all_of(2, 8) && TokenRange::visible(19, 11).sees_all_of(1, 8));
    }

    #[test]
    fn partitions_contain_every_token_once_and_cut_no_block() {
        for block_size in [8, 16, 32] {
            for (length, window) in [(0, 0), (1, 0), (512, 0), (513, 0), (2000, 0), (2000, 700), (1030, 512), (520, 16)]
            {
                let span = TokenRange::visible(length, window);
                let count = span.partitions(block_size);
                let mut next = span.first;
                for index in 0..count {
                    let part = span.partition(index, block_size);
                    assert!(!part.is_empty() && part.slots(block_size) <= PARTITION);
                    assert_eq!(part.first, next);
                    assert!(index == 0 || part.first.is_multiple_of(block_size));
                    next = part.end;
                }
                assert_eq!(next, span.end, "{length} tokens, window {window}, blocks of {block_size}");
                assert!(span.partition(count, block_size).is_empty());
            }
        }
    }
}
