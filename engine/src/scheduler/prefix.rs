//! What a sequence without blocks can share instead of computing it.

use crate::group::SequenceGroup;
use crate::kv::{BlockPool, BlockTable, blocks_for, blocks_to_relocate};
use crate::sequence::Sequence;

/// The prefixes that sequences can share with others.
#[derive(Debug)]
pub struct Prefixes {
    pool: BlockPool,
    /// Where cached blocks are looked for that were evicted.
    swap: Option<BlockPool>,
    /// Whether full blocks become known.
    caching: bool,
    /// Most tokens that are computed at a time.
    chunk: usize,
    /// Computed and never given back.
    pinned: Vec<Sequence>,
}

impl Prefixes {
    /// Prefixes in the blocks of `pool`, for sequences of which at most `chunk` tokens are computed at a time. With `caching`,
    /// full blocks become known. With `swap`, those that are evicted from the pool are found there.
    pub fn new(pool: &BlockPool, swap: Option<&BlockPool>, caching: bool, chunk: usize) -> Self {
        Prefixes { pool: pool.clone(), swap: swap.cloned(), caching, chunk, pinned: Vec::new() }
    }

    /// Keeps what has been computed of a sequence. Its full blocks are known even without caching.
    pub fn pin(&mut self, mut seq: Sequence) {
        seq.table.register(&seq.tokens);
        self.pinned.push(seq);
    }

    /// The block tables of the pinned prefixes.
    pub fn pinned_tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.pinned.iter().map(|p| &p.table)
    }

    /// Tokens of a prompt that a pinned prefix has.
    pub fn pinned_len(&self, prompt: &[u32]) -> usize {
        self.pinned.iter().map(|p| common(&p.tokens, prompt)).max().unwrap_or(0)
    }

    /// The most there is for the first of `tokens`, at least one token being left over. It may end within a block of a pinned
    /// prefix, which is copied when the table is appended to, as the prefix holds it too.
    pub fn find(&self, tokens: &[u32]) -> PrefixHit {
        let known = self.find_known(tokens);
        let most = tokens.len().saturating_sub(1);
        let pinned = self.pinned.iter().map(|p| (common(&p.tokens, tokens).min(most), &p.table));
        match pinned.max_by_key(|(len, _)| *len) {
            Some((len, table)) if len > known.tokens() => PrefixHit::from(table.fork_prefix(len)),
            _ => known,
        }
    }

    /// What is known by the first of `tokens`, in the cache and in the swap space by turns.
    fn find_known(&self, tokens: &[u32]) -> PrefixHit {
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

    /// What [`Self::find`] finds for a sequence of a group, but for what a window has left behind.
    fn find_for(&self, group: &SequenceGroup, at: usize) -> PrefixHit {
        let mut hit = self.find(group.may_be_known(at));
        if !group.keeps_all() {
            let len = hit.tokens();
            hit.table.slide_to(len);
            hit.rest.iter_mut().for_each(|table| table.slide_to(len));
        }
        hit
    }

    /// Makes the full blocks of a sequence known.
    pub fn register(&self, seq: &mut Sequence) {
        if self.caching {
            let settled = seq.tokens.len() - seq.drafted;
            seq.table.register_as_in(&seq.tokens[..settled], self.swap.as_ref());
        }
    }

    /// Free blocks it takes to compute all tokens of a group that holds none.
    pub fn blocks_to_restore(&self, group: &SequenceGroup) -> usize {
        let block_size = self.pool.block_size();
        let seqs = &group.running;
        let free = self.pool.num_free();
        // The hit holds its blocks here, so that cached ones count as taken. A block that is begun will be copied, and what lies
        // in the swap space needs a block.
        let known = (!seqs.is_empty()).then(|| self.find_for(group, 0));
        let own = |i: usize| {
            let all = blocks_for(seqs[i].tokens.len(), block_size);
            let most = group.at_most(all, &self.pool, self.chunk);
            let shared = match i {
                0 => known
                    .as_ref()
                    .map_or(0, |hit| hit.tokens() / block_size - blocks_to_relocate(&hit.rest, &self.pool)),
                // What it could share may have been given back.
                _ if most < all => 0,
                _ => longest_common(seqs, i, block_size).map_or(0, |(_, n)| n / block_size),
            };
            most.min(all - shared)
        };
        (0..seqs.len()).map(own).sum::<usize>() + (free - self.pool.num_free())
    }
}

/// What is known of the beginning of a text.
#[derive(Debug)]
pub struct PrefixHit {
    /// The first blocks, as far as they lie in the cache.
    pub table: BlockTable,
    /// Those that follow: by turns some that lie in the swap space and some in the cache, each time a table that goes on where the
    /// one before ends, see [`BlockTable::prefix_hit_beyond`].
    pub rest: Vec<BlockTable>,
}

impl From<BlockTable> for PrefixHit {
    fn from(table: BlockTable) -> Self {
        PrefixHit { table, rest: Vec::new() }
    }
}

impl PrefixHit {
    /// Tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.longest().len()
    }

    /// The table for all of these tokens.
    pub fn longest(&self) -> &BlockTable {
        self.rest.last().unwrap_or(&self.table)
    }
}

/// What a sequence starts from.
pub struct Start {
    /// Its first blocks.
    pub hit: PrefixHit,
    /// Tokens that were looked for among the prefixes.
    pub looked_up: usize,
    /// Tokens of the hit that the prefixes had; others are shared within the group.
    pub hits: usize,
}

impl Start {
    /// Looks for what sequence `at` of a group, which holds no blocks, can share: with an earlier one of the group, as it
    /// did before a preemption, or with any other. None while the blocks it is to share are not computed yet.
    pub fn find(group: &SequenceGroup, at: usize, prefixes: &Prefixes) -> Option<Self> {
        let (seqs, tokens) = (&group.running, group.may_be_known(at));
        let (known, looked_up) = (prefixes.find_for(group, at), tokens.len());
        match longest_common(seqs, at, prefixes.pool.block_size()) {
            Some((earlier, shared)) if shared > known.tokens() && seqs[earlier].table.has_window_of(shared) => {
                let table = &seqs[earlier].table;
                (table.len() >= shared).then(|| Start { hit: table.fork_prefix(shared).into(), looked_up, hits: 0 })
            }
            _ => Some(Start { looked_up, hits: known.tokens(), hit: known }),
        }
    }
}

/// The earlier sequence of the group that begins as sequence `at` does for longest, and the tokens of the whole blocks
/// in which they agree. At least one token is left over to be computed.
fn longest_common(seqs: &[Sequence], at: usize, block_size: usize) -> Option<(usize, usize)> {
    let tokens = &seqs[at].tokens;
    let blocks = |n: usize| n.min(tokens.len() - 1) / block_size * block_size;
    let best = (0..at)
        .map(|earlier| (earlier, blocks(common(&seqs[earlier].tokens, tokens))))
        .max_by_key(|&(earlier, n)| (n, std::cmp::Reverse(earlier)));
    best.filter(|&(_, n)| n > 0)
}

/// Tokens with which both begin.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_shares_with_the_one_it_agrees_with_longest() {
        let pool = BlockPool::new(1, 2);
        let seqs = [[1, 2, 9, 9, 9], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5]].map(|t| Sequence::new(t.to_vec(), &pool, false));
        assert_eq!(longest_common(&seqs, 2, 2), Some((1, 4)));
        assert_eq!(longest_common(&seqs, 1, 2), Some((0, 2)));
        assert_eq!(longest_common(&seqs, 0, 2), None);
    }
}
