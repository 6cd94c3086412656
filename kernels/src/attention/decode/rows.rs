//! The rows of a stream: pairs of a query token and a query head, and what each of them sees.
//!
//! The heads of a token are next to each other, and tokens follow each other: row `r` is head `r % group` of token
//! `r / group`. A stream that has only some of a group's heads has one token, so that this holds for it as well.

use cuda_std::warp::lane_id;

use super::plan::{PlanEntry, TILE, divide};
use super::stream::KvStream;

/// Which rows a stream has.
#[derive(Clone, Copy)]
pub struct StreamRows {
    /// The first token's index in queries and results.
    pub token: u32,
    /// How many tokens there are.
    pub tokens: u32,
    /// The first head.
    pub head: u32,
    /// Query heads that share the KV head.
    pub group: u32,
    /// How many rows there are.
    pub count: u32,
}

impl StreamRows {
    /// The rows of a stream, `most` at a time of the heads of a group, which has `head_tiles` streams.
    ///
    /// # Safety
    /// `query_starts` has an entry for the stream's sequence, and another behind it.
    #[inline(always)]
    pub unsafe fn of(stream: KvStream, query_starts: *const u32, head_tiles: u32, group: u32, most: u32) -> StreamRows {
        // SAFETY: both entries are there, by this function's contract.
        let (token, end) = unsafe {
            let starts = query_starts.add(stream.sequence as usize);
            (*starts, *starts.add(1))
        };
        let (kv_head, tokens) = (divide(stream.index, head_tiles), end - token);
        let before = (stream.index - kv_head * head_tiles) * most;
        let count = (tokens * group - before).min(most);
        StreamRows { token, tokens, head: kv_head * group + before, group, count }
    }

    /// Where a row's first element is in an array of heads of `D` elements whose tokens are `stride` elements apart.
    #[inline(always)]
    pub const fn element<const D: u32>(self, row: u32, stride: u32) -> usize {
        let token = divide(row, self.group);
        let head = self.head + row - token * self.group;
        (self.token + token) as usize * stride as usize + (head * D) as usize
    }

    /// What the rows of `stream` see: each the last `window` tokens up to its own.
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

/// What the rows of a stream see. Tiles have their numbers of the plan, and tokens are numbered on from tile 0 of it: so no
/// position is computed for a tile that is seen whole.
#[derive(Clone, Copy)]
pub struct RowSight {
    /// The first tile of which all rows see every token.
    first: u32,
    /// How many such tiles there are.
    whole: u32,
    /// The tokens of the lane's rows of scores: rows `r` and `8 + r` with `r = lane / 4`.
    own: [u32; 2],
    /// How many tokens a row sees at most.
    window: u32,
}

impl RowSight {
    /// Whether all rows see every token of a tile.
    #[inline(always)]
    pub const fn is_whole(&self, tile: u32) -> bool {
        tile.wrapping_sub(self.first) < self.whole
    }

    /// Whether the lane's row `8 n + r` sees token `offset` of a tile.
    #[inline(always)]
    pub const fn sees(&self, n: usize, tile: u32, offset: u32) -> bool {
        // To a token behind the row's own the distance is negative: a very large number.
        self.own[n].wrapping_sub(tile.wrapping_mul(TILE) + offset) < self.window
    }
}
