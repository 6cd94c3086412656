//! What sequences of a group have in common, and share again after a recomputation.

use crate::group::SequenceGroup;
use crate::kv::blocks_for;
use crate::sequence::Sequence;

/// The earlier sequence of the group that begins as sequence `at` does for longest, and the tokens of the whole blocks
/// in which they agree. At least one token is left over to be computed.
fn longest_prefix(seqs: &[Sequence], at: usize, block_size: usize) -> Option<(usize, usize)> {
    let tokens = &seqs[at].tokens;
    let common = |s: &Sequence| s.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let blocks = |n: usize| n.min(tokens.len() - 1) / block_size * block_size;
    let best = (0..at)
        .map(|donor| (donor, blocks(common(&seqs[donor]))))
        .max_by_key(|&(donor, n)| (n, std::cmp::Reverse(donor)));
    best.filter(|&(_, n)| n > 0)
}

/// Lets sequence `at`, which holds no blocks, share again what it shared before a preemption. False while the blocks it
/// is to share are not computed yet.
pub fn share_prefix(seqs: &mut [Sequence], at: usize, block_size: usize) -> bool {
    let Some((donor, shared)) = longest_prefix(seqs, at, block_size) else { return true };
    let ready = seqs[donor].table.len() >= shared;
    if ready {
        seqs[at].table = seqs[donor].table.fork_prefix(shared);
    }
    ready
}

/// Blocks it takes to compute all tokens of a group that holds none.
pub fn blocks_to_restore(group: &SequenceGroup, block_size: usize) -> usize {
    let seqs = &group.running;
    let own = |i: usize| {
        let shared = longest_prefix(seqs, i, block_size).map_or(0, |(_, n)| n / block_size);
        blocks_for(seqs[i].tokens.len(), block_size) - shared
    };
    (0..seqs.len()).map(own).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockPool;

    #[test]
    fn a_sequence_shares_with_the_one_it_agrees_with_longest() {
        let pool = BlockPool::new(1, 2);
        let seqs = [[1, 2, 9, 9, 9], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5]].map(|t| Sequence::new(t.to_vec(), &pool, false));
        assert_eq!(longest_prefix(&seqs, 2, 2), Some((1, 4)));
        assert_eq!(longest_prefix(&seqs, 1, 2), Some((0, 2)));
        assert_eq!(longest_prefix(&seqs, 0, 2), None);
    }
}
