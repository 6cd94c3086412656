//! The rows of a stream: pairs of a query token and a query head, and the tokens that each row sees.
//!
//! The heads of a token are consecutive rows, followed by the next token's. Row `r` is head `r % group` of token
//! `r / group`. A stream with only part of a group's heads has one token, so this is true for it as well.

use cuda_std::warp::lane_id;

use super::plan::{PlanEntry, TILE, divide};
use super::stream::KvStream;

/// The rows of a stream.
#[derive(Clone, Copy)]
pub struct StreamRows {
    /// The first token's index in queries and results.
    pub token: u32,
    /// The number of tokens.
    pub tokens: u32,
    /// The first head.
    pub head: u32,
    /// Query heads that share the KV head.
    pub group: u32,
    /// The number of rows.
    pub count: u32,
}

impl StreamRows {
    /// Returns the rows of a stream. A group has `head_tiles` streams, and each takes up to `most` rows.
    ///
    /// # Safety
    /// `query_starts` has an entry for the stream's sequence and one after it.
    #[inline(always)]
    pub unsafe fn new(
        stream: KvStream,
        query_starts: *const u32,
        head_tiles: u32,
        group: u32,
        most: u32,
    ) -> StreamRows {
        // SAFETY: both entries exist, by this function's contract.
        let (token, end) = unsafe {
            let starts = query_starts.add(stream.sequence as usize);
            (*starts, *starts.add(1))
        };
        let (kv_head, tokens) = (divide(stream.index, head_tiles), end - token);
        let before = (stream.index - kv_head * head_tiles) * most;
        let count = (tokens * group - before).min(most);
        StreamRows { token, tokens, head: kv_head * group + before, group, count }
    }

    /// Returns the query head of a row.
    #[inline(always)]
    pub const fn query_head(self, row: u32) -> u32 {
        self.head + row - divide(row, self.group) * self.group
    }

    /// Returns the index of a row's first element in an array of heads of `D` elements, with `stride` elements between
    /// tokens.
    #[inline(always)]
    pub const fn element<const D: u32>(self, row: u32, stride: u32) -> usize {
        let token = divide(row, self.group);
        let head = self.head + row - token * self.group;
        (self.token + token) as usize * stride as usize + (head * D) as usize
    }

    /// Returns the tokens that the rows of `stream` see: for each row, the last `window` tokens up to its own.
    #[inline(always)]
    pub fn sight(self, stream: KvStream, window: u32) -> RowSight {
        let PlanEntry { first, length, .. } = stream.span;
        let end = length - (self.tokens - 1);
        let [from, to] = [length.saturating_sub(window).div_ceil(TILE), end / TILE];
        let shift = stream.begin.wrapping_sub(first / TILE);
        let number = |row: u32| shift.wrapping_mul(TILE).wrapping_add(end - 1 + divide(row, self.group));
        RowSight {
            first: shift.wrapping_add(from),
            whole: to.saturating_sub(from),
            own: [number(lane_id() / 4), number(8 + lane_id() / 4)],
            window,
        }
    }
}

/// The tokens that the rows of a stream see.
///
/// Tiles have their plan numbers. Tokens are numbered to match: tile n has tokens `16 n` to `16 n + 15`. So no position
/// needs to be computed for a tile that all rows see entirely.
#[derive(Clone, Copy)]
pub struct RowSight {
    /// The first tile that all rows see entirely.
    first: u32,
    /// The number of consecutive tiles that all rows see entirely.
    whole: u32,
    /// The own tokens of the lane's rows of scores: rows `r` and `8 + r` with `r = lane / 4`.
    own: [u32; 2],
    /// Maximum number of tokens that a row sees.
    window: u32,
}

impl RowSight {
    /// Returns whether all rows see every token of a tile.
    #[inline(always)]
    pub const fn is_whole(&self, tile: u32) -> bool {
        tile.wrapping_sub(self.first) < self.whole
    }

    /// Returns whether the lane's row `8 n + r` sees token `offset` of a tile.
    #[inline(always)]
    pub const fn sees(&self, n: usize, tile: u32, offset: u32) -> bool {
        // For a token after the row's own, the distance wraps around to a very large number.
        self.own[n].wrapping_sub(tile.wrapping_mul(TILE) + offset) < self.window
    }
}
