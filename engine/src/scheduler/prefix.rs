//! Prefix sharing: which blocks a sequence without any can share instead of computing them.

use crate::group::SequenceGroup;
use crate::kv::{BlockPool, BlockTable, blocks_for, blocks_to_relocate};
use crate::sequence::Sequence;

/// The prefixes that sequences can share.
#[derive(Debug)]
pub struct Prefixes {
    pool: BlockPool,
    /// The swap space, where lookups find evicted blocks.
    swap: Option<BlockPool>,
    /// Whether full blocks are registered in the prefix index.
    caching: bool,
    /// Most tokens that are computed per step.
    chunk: usize,
    /// Sequences whose blocks are never given back.
    pinned: Vec<Sequence>,
}

impl Prefixes {
    /// Prefixes in the blocks of `pool`, for sequences that compute at most `chunk` tokens per step. With `caching`,
    /// full blocks are registered. With `swap`, lookups also find blocks that were evicted to it.
    pub fn new(pool: &BlockPool, swap: Option<&BlockPool>, caching: bool, chunk: usize) -> Self {
        Prefixes { pool: pool.clone(), swap: swap.cloned(), caching, chunk, pinned: Vec::new() }
    }

    /// Pins the computed blocks of a sequence. Its full blocks are registered even without caching.
    pub fn pin(&mut self, mut seq: Sequence) {
        seq.table.register(&seq.tokens);
        self.pinned.push(seq);
    }

    /// The block tables of the pinned prefixes.
    pub fn pinned_tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.pinned.iter().map(|p| &p.table)
    }

    /// The number of a prompt's first tokens that a pinned prefix has.
    pub fn pinned_len(&self, prompt: &[u32]) -> usize {
        self.pinned.iter().map(|p| common(&p.tokens, prompt)).max().unwrap_or(0)
    }

    /// Finds the longest prefix of `tokens` among registered and pinned blocks. At least one token is left over. A hit
    /// on a pinned prefix may end within a block. Appending to the table then copies that block, because the pinned
    /// table shares it.
    pub fn find(&self, tokens: &[u32]) -> PrefixHit {
        let registered = self.find_registered(tokens);
        let most = tokens.len().saturating_sub(1);
        let pinned = self.pinned.iter().map(|p| (common(&p.tokens, tokens).min(most), &p.table));
        match pinned.max_by_key(|(len, _)| *len) {
            Some((len, table)) if len > registered.tokens() => PrefixHit::from(table.fork_prefix(len)),
            _ => registered,
        }
    }

    /// Finds the longest registered prefix of `tokens`, alternating between the cache and the swap space.
    fn find_registered(&self, tokens: &[u32]) -> PrefixHit {
        if !self.caching {
            return PrefixHit::from(BlockTable::new(&self.pool));
        }
        let mut hit = PrefixHit::from(BlockTable::prefix_hit(&self.pool, tokens));
        for pool in self.swap.iter().flat_map(|swap| [swap, &self.pool]).cycle() {
            let next = hit.longest().prefix_hit_beyond(pool, tokens);
            if next.is_empty() {
                break;
            }
            hit.rest.push(next);
        }
        hit
    }

    /// As [`Self::find`], for a sequence of a group, without the blocks that the window has left behind.
    fn find_for(&self, group: &SequenceGroup, at: usize) -> PrefixHit {
        let mut hit = self.find(group.lookup_tokens(at));
        if !group.keeps_all_blocks() {
            let len = hit.tokens();
            hit.table.slide_to(len);
            hit.rest.iter_mut().for_each(|table| table.slide_to(len));
        }
        hit
    }

    /// Registers the full blocks of a sequence. Drafted tokens are left out.
    pub fn register(&self, seq: &mut Sequence) {
        if self.caching {
            let settled = seq.tokens.len() - seq.drafted;
            seq.table.register_as_in(&seq.tokens[..settled], self.swap.as_ref());
        }
    }

    /// The number of free blocks it takes to compute all tokens of a group that has no blocks.
    pub fn blocks_to_restore(&self, group: &SequenceGroup) -> usize {
        let block_size = self.pool.block_size();
        let seqs = &group.running;
        let free = self.pool.num_free();
        // The hit takes references, so cached blocks it uses count as taken below. A pinned block that is shared in
        // part will be copied. A block in the swap space moves to a block of the cache.
        let hit = (!seqs.is_empty()).then(|| self.find_for(group, 0));
        let own = |i: usize| {
            let all = blocks_for(seqs[i].tokens.len(), block_size);
            let most = group.at_most(all, &self.pool, self.chunk);
            let shared = match i {
                0 => {
                    hit.as_ref().map_or(0, |hit| hit.tokens() / block_size - blocks_to_relocate(&hit.rest, &self.pool))
                }
                // The window may have left the shared blocks behind.
                _ if most < all => 0,
                _ => longest_common(seqs, i, block_size).map_or(0, |(_, n)| n / block_size),
            };
            most.min(all - shared)
        };
        (0..seqs.len()).map(own).sum::<usize>() + (free - self.pool.num_free())
    }
}

/// The result of a prefix lookup.
#[derive(Debug)]
pub struct PrefixHit {
    /// The first blocks, up to the first that is not in the cache.
    pub table: BlockTable,
    /// The following blocks, alternating between the swap space and the cache. Each table continues where the one
    /// before ends, see [`BlockTable::prefix_hit_beyond`].
    pub rest: Vec<BlockTable>,
}

impl From<BlockTable> for PrefixHit {
    fn from(table: BlockTable) -> Self {
        PrefixHit { table, rest: Vec::new() }
    }
}

impl PrefixHit {
    /// The number of tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.longest().len()
    }

    /// The table whose length covers all of these tokens.
    pub fn longest(&self) -> &BlockTable {
        self.rest.last().unwrap_or(&self.table)
    }
}

/// The prefix that a sequence starts from.
pub struct Start {
    /// The blocks to start with.
    pub hit: PrefixHit,
    /// The number of tokens looked up in the prefix index.
    pub looked_up: usize,
    /// The number of tokens that the lookup found. Tokens shared within the group do not count.
    pub hits: usize,
}

impl Start {
    /// Finds the blocks that sequence `at` of a group, which has none, can share. They belong to an earlier sequence of
    /// the group, as before a preemption, or come from the prefix index. Returns `None` while the blocks it is to share
    /// are not computed yet.
    pub fn find(group: &SequenceGroup, at: usize, prefixes: &Prefixes) -> Option<Self> {
        let (seqs, tokens) = (&group.running, group.lookup_tokens(at));
        let (hit, looked_up) = (prefixes.find_for(group, at), tokens.len());
        match longest_common(seqs, at, prefixes.pool.block_size()) {
            Some((earlier, shared)) if shared > hit.tokens() && seqs[earlier].table.has_window_of(shared) => {
                let table = &seqs[earlier].table;
                (table.len() >= shared).then(|| Start { hit: table.fork_prefix(shared).into(), looked_up, hits: 0 })
            }
            _ => Some(Start { looked_up, hits: hit.tokens(), hit }),
        }
    }
}

/// Finds the earlier sequence of the group that has the longest common prefix with sequence `at`. Returns its index and
/// the number of tokens in the whole blocks they share. At least one token is left over to be computed.
fn longest_common(seqs: &[Sequence], at: usize, block_size: usize) -> Option<(usize, usize)> {
    let tokens = &seqs[at].tokens;
    let blocks = |n: usize| n.min(tokens.len() - 1) / block_size * block_size;
    let best = (0..at)
        .map(|earlier| (earlier, blocks(common(&seqs[earlier].tokens, tokens))))
        .max_by_key(|&(earlier, n)| (n, std::cmp::Reverse(earlier)));
    best.filter(|&(_, n)| n > 0)
}

/// The length of the common prefix.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_shares_the_longest_common_prefix() {
        let pool = BlockPool::new(1, 2);
        let seqs = [[1, 2, 9, 9, 9], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5]].map(|t| Sequence::new(t.to_vec(), &pool, false));
        assert_eq!(longest_common(&seqs, 2, 2), Some((1, 4)));
        assert_eq!(longest_common(&seqs, 1, 2), Some((0, 2)));
        assert_eq!(longest_common(&seqs, 0, 2), None);
    }
}
