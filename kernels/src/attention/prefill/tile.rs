//! The query rows of a block, and the keys that they see.

use cuda_std::thread;

use super::Batch;
use super::shape::tile_rows;

/// The query rows of a block: up to [`tile_rows`] rows of one sequence and KV head.
///
/// A row is one query head of one token. The heads that share the KV head are consecutive rows, followed by the next
/// token's. Row `r` of a sequence belongs to its new token `r / group`, for any group size.
#[derive(Clone, Copy)]
pub struct Tile {
    /// The sequence.
    pub sequence: u32,
    /// The tile's first row, counted within the sequence.
    pub first: u32,
    /// The number of rows in the sequence.
    pub rows: u32,
    /// The index of the sequence's first new token among the tokens of the batch.
    pub start: u32,
    /// The number of tokens before the sequence's first new one.
    cached: u32,
    /// Query heads that share a KV head.
    pub group: u32,
}

impl Tile {
    /// Returns the tile of this block. It may have no rows.
    ///
    /// Sequence `s` has the tiles from `rows before it / tile_rows + s` on. That is enough for its rows and at most one
    /// too many. The extra block has no work. This numbering depends only on `query_starts`.
    ///
    /// # Safety
    /// The batch is as for [`paged_prefill()`](super::paged_prefill()).
    #[inline(always)]
    pub unsafe fn of_block<const D: u32>(batch: &Batch) -> Tile {
        // The last tiles of a prompt see the most keys. They run first, so that a launch ends with short tiles.
        let index = thread::grid_dim_y() - 1 - thread::block_idx_y();
        let Batch { query_starts, contexts, sequences, group, .. } = *batch;
        // SAFETY: indices into `query_starts` are at most `sequences`, its last index. `sequence` is below `sequences`.
        unsafe {
            let origin = *query_starts;
            let first_tile = |s: u32| (*query_starts.add(s as usize) - origin) * group / tile_rows(D) + s;
            let (mut sequence, mut behind) = (0, sequences);
            while behind - sequence > 1 {
                let middle = (sequence + behind) / 2;
                if first_tile(middle) <= index {
                    sequence = middle;
                } else {
                    behind = middle;
                }
            }
            let start = *query_starts.add(sequence as usize);
            let tokens = *query_starts.add(sequence as usize + 1) - start;
            let (first, rows) = ((index - first_tile(sequence)) * tile_rows(D), tokens * group);
            let cached = *contexts.add(sequence as usize) - tokens;
            Tile { sequence, first, rows, start, cached, group }
        }
    }

    /// Returns a row's new token, counted within the sequence, and its query head, counted within the group.
    #[inline(always)]
    pub fn token(&self, row: u32) -> (u32, u32) {
        // SAFETY: by the kernel's contract, a group has at least one head. Without this assumption the compiler would
        // include a panic for division by zero.
        unsafe { core::hint::assert_unchecked(self.group != 0) };
        (row / self.group, row % self.group)
    }

    /// Returns the position of a row's token, which is also the last key that the row sees.
    #[inline(always)]
    pub fn position(&self, row: u32) -> u32 {
        self.cached + self.token(row).0
    }

    /// Returns the keys that the `count` rows from `first` on see, or `None` if none of these rows is in the sequence.
    #[inline(always)]
    pub fn sight(&self, first: u32, count: u32, window: u32) -> Option<Sight> {
        if first >= self.rows {
            return None;
        }
        let last = self.rows.min(first + count) - 1;
        Some(Sight { first: self.position(first), last: self.position(last), window })
    }
}

/// The range of keys that consecutive rows see.
#[derive(Clone, Copy)]
pub struct Sight {
    /// The first row's position.
    first: u32,
    /// The last row's position, which is the last key that any row sees.
    pub last: u32,
    /// The number of keys up to its own position that each row sees.
    window: u32,
}

impl Sight {
    /// Returns the first key that any row sees.
    #[inline(always)]
    pub fn first_key(self) -> u32 {
        (self.first + 1).saturating_sub(self.window)
    }

    /// Returns whether any row sees any of the `count` keys from `key` on.
    #[inline(always)]
    pub fn any(self, key: u32, count: u32) -> bool {
        key <= self.last && key + count > self.first_key()
    }

    /// Returns whether every row sees all of the `count` keys from `key` on.
    #[inline(always)]
    pub fn all(self, key: u32, count: u32) -> bool {
        key + count <= self.first + 1 && self.last < key + self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sight_matches_what_each_row_sees() {
        let tile = Tile { sequence: 0, first: 0, rows: 30, start: 0, cached: 5, group: 3 };
        for (first, rows, window) in [(0, 30, 1000), (7, 4, 1000), (7, 4, 3), (28, 16, 1), (0, 16, 4), (3, 9, 7)] {
            let sight = tile.sight(first, rows, window).unwrap_or_else(|| panic!("some rows are in the sequence"));
            for (key, count) in (0..20).flat_map(|key| (1..9).map(move |count| (key, count))) {
                let sees = |row: u32, key: u32| {
                    let position = 5 + row / 3;
                    key <= position && position < key + window
                };
                let all = |row| (key..key + count).all(|key| sees(row, key));
                let any = |row| (key..key + count).any(|key| sees(row, key));
                let mut inside = first..30.min(first + rows);
                assert_eq!(sight.all(key, count), inside.clone().all(all), "{first} {rows} {window} {key} {count}");
                assert_eq!(sight.any(key, count), inside.any(any), "{first} {rows} {window} {key} {count}");
            }
        }
        assert!(tile.sight(30, 16, 1000).is_none());
    }
}
