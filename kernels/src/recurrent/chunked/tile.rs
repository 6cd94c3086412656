//! The rows of a tile, and its pieces.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_vote_ballot};

use super::ROWS;
use crate::recurrent::NO_BLOCK;
use crate::recurrent::spans::Span;

/// A tile of a sequence.
#[derive(Clone, Copy)]
pub struct Tile {
    pub span: Span,
    /// The sequence's row that is the tile's first. Wraps around if the sequence's rows begin later.
    first: u32,
    /// The tile's number in the workspace.
    pub slot: u32,
}

impl Tile {
    /// Returns the number of tiles of a sequence with rows.
    #[inline(always)]
    pub fn count(span: &Span) -> u32 {
        (span.start + span.len - 1) / ROWS - span.start / ROWS + 1
    }

    /// Returns tile `index` of a sequence.
    #[inline(always)]
    pub fn of(span: Span, from: u32, index: u32) -> Tile {
        let first = ((span.start / ROWS + index) * ROWS).wrapping_sub(span.start);
        Tile { span, first, slot: tiles_before(span.first_row, from) + index }
    }

    /// Returns the number of the sequence's row with this place in the tile, if there is one.
    #[inline(always)]
    pub fn row(&self, place: u32) -> Option<u32> {
        let row = self.first.wrapping_add(place);
        if row < self.span.len { Some(row) } else { None }
    }

    /// Returns the number of the sequence's rows before this place.
    #[inline(always)]
    pub fn rows_before(&self, place: u32) -> u32 {
        let rows = self.first.wrapping_add(place);
        if rows < self.span.len { rows } else { self.span.len }
    }

    /// Returns the block that the state after a row is stored in, or [`NO_BLOCK`]. The row is the last of its piece.
    ///
    /// # Safety
    /// The block table is as [`Span`] requires.
    #[inline(always)]
    pub unsafe fn stored(&self, last: u32) -> u32 {
        let rows = self.rows_before(last + 1);
        let index = self.span.index(rows - 1);
        // SAFETY: the row's block is one of the sequence's.
        if rows == self.span.end(index) { unsafe { self.span.stored(index, rows) } } else { NO_BLOCK }
    }

    /// Returns a bit for each row: whether it is the last of a piece. That is a row whose state is stored, unless it is the
    /// sequence's last one, and the tile's last row.
    ///
    /// # Safety
    /// All lanes of the warp call this together. The block table is as [`Span`] requires.
    #[inline(always)]
    pub unsafe fn last_rows(&self) -> u64 {
        let is_last = |place: u32| {
            let Some(row) = self.row(place) else { return false };
            let (rows, index) = (row + 1, self.span.index(row));
            // SAFETY: the row's block is one of the sequence's.
            rows < self.span.len && rows == self.span.end(index) && unsafe { self.span.stored(index, rows) } != NO_BLOCK
        };
        let lane = warp::lane_id();
        let (low, high) = (is_last(lane), is_last(WARP_SIZE + lane));
        // SAFETY: all lanes of the warp are here.
        let (low, high) = unsafe { (warp_vote_ballot(FULL_MASK, low), warp_vote_ballot(FULL_MASK, high)) };
        1 << (ROWS - 1) | u64::from(high) << WARP_SIZE | u64::from(low)
    }
}

/// Returns the most tiles of sequences of at least `from` rows that have `rows` rows together. A sequence of `n` rows has at
/// most `n / ROWS + 2`.
#[inline(always)]
pub const fn tiles_before(rows: u32, from: u32) -> u32 {
    // SAFETY: a sequence has rows.
    unsafe { core::hint::assert_unchecked(from != 0) };
    rows / ROWS + 2 * (rows / from)
}

/// Returns the first row of the piece that has a row.
#[inline(always)]
pub fn first_row(last_rows: u64, row: u32) -> u32 {
    ROWS - (last_rows & ((1 << row) - 1)).leading_zeros()
}

/// Returns the last row of the piece that has a row.
#[inline(always)]
pub fn last_row(last_rows: u64, row: u32) -> u32 {
    row + (last_rows >> row).trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::{ROWS, first_row, last_row, tiles_before};

    #[test]
    fn pieces_follow_each_other() {
        let last_rows = 1 << 63 | 1 << 15 | 1 << 4;
        let pieces = [0, 4, 5, 15, 16, 63].map(|row| (first_row(last_rows, row), last_row(last_rows, row)));
        assert_eq!(pieces, [(0, 4), (0, 4), (5, 15), (5, 15), (16, 63), (16, 63)]);
    }

    #[test]
    fn sequences_have_room_for_their_tiles() {
        for (from, len) in [1, 2, 64, 128].into_iter().flat_map(|from| (from..300).map(move |len| (from, len))) {
            let most = (0..ROWS).map(|start| (start + len - 1) / ROWS + 1).max().unwrap();
            for rows in 0..200 {
                assert!(tiles_before(rows, from) + most <= tiles_before(rows + len, from), "{rows}, {len}");
            }
        }
    }
}
