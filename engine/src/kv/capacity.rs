//! What a cache of some pages holds.

use super::counts::Counts;
use super::groups::{CacheGroup, blocks_for};

/// The numbers of blocks that a sequence of `tokens` tokens needs at a time, if at most `chunk` tokens are computed per
/// step. Without a window these are all its blocks. With one, they are the blocks of the chunk and of the window of the
/// chunk's first token.
pub fn blocks_at_once(groups: &[CacheGroup], block_size: usize, tokens: usize, chunk: usize) -> Counts {
    let all = blocks_for(tokens, block_size);
    Counts::by(groups.len(), |group| match groups[group].window {
        // A sequence needs only its latest state, and overwrites it.
        _ if groups[group].is_state() => all.min(1),
        // The window may begin anywhere in a block.
        Some(window) => all.min(blocks_for(window.max(1) - 1 + chunk.max(1) - 1, block_size) + 1),
        None => all,
    })
}

/// The pages that the given numbers of blocks take if no other blocks share them.
pub fn pages_for(groups: &[CacheGroup], counts: &Counts) -> usize {
    groups.iter().enumerate().map(|(at, group)| counts.of(at).div_ceil(group.blocks_per_page)).sum()
}

/// The largest number from 1 to `most` that `fits`, if all smaller ones fit too. 1 if none does.
pub fn longest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(window: Option<usize>, blocks_per_page: usize) -> CacheGroup {
        CacheGroup { window, is_latent: false, blocks_per_page, id_step: 1, state_stride: None }
    }

    #[test]
    fn a_window_bounds_the_blocks_of_its_group_only() {
        let groups = [group(Some(6), 1), group(None, 3)];
        let counts = |tokens, chunk| {
            let counts = blocks_at_once(&groups, 4, tokens, chunk);
            ([counts.of(0), counts.of(1)], pages_for(&groups, &counts))
        };
        assert_eq!(counts(6, 1), ([2, 2], 3));
        assert_eq!(counts(100, 1), ([3, 25], 12));
        assert_eq!(counts(100, 8), ([4, 25], 13));
    }

    #[test]
    fn the_longest_is_the_last_that_fits() {
        for limit in 1..20 {
            assert_eq!(longest(13, |n| n <= limit), limit.min(13));
        }
        assert_eq!((longest(0, |_| true), longest(9, |_| false)), (1, 1));
    }
}
