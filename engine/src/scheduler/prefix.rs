//! Prefix sharing: which blocks a sequence without any can share instead of computing them.

use crate::group::SequenceGroup;
use crate::kv::{BlockPool, BlockTable, Counts, PrefixHit, Root, blocks_for, prefix_hit};
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
        seq.table.settle(&seq.tokens);
        self.pinned.push(seq);
    }

    /// The block tables of the pinned prefixes.
    pub fn pinned_tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.pinned.iter().map(|p| &p.table)
    }

    /// The block tables of the pinned prefixes.
    pub fn pinned_tables_mut(&mut self) -> impl Iterator<Item = &mut BlockTable> {
        self.pinned.iter_mut().map(|p| &mut p.table)
    }

    /// The number of a prompt's first tokens that a pinned prefix has. With recurrent layers, the last of them has a state.
    pub fn pinned_len(&self, prompt: &[u32]) -> usize {
        let is_long = self.pool.is_long(prompt.len());
        let most = if self.pool.has_states() { prompt.len().saturating_sub(1) } else { usize::MAX };
        let pinned = self.pinned.iter().filter(|p| p.table.is_long() == is_long);
        pinned.map(|p| p.table.resumable(common(&p.tokens, prompt).min(most))).max().unwrap_or(0)
    }

    /// Finds the longest prefix of `tokens` among pinned blocks and registered blocks of the cache, with all its blocks.
    pub fn find_in_cache(&self, tokens: &[u32]) -> BlockTable {
        let registered = match self.caching {
            true => prefix_hit(&self.pool, tokens, true),
            false => {
                BlockTable::with_root(&self.pool, Root { is_long: self.pool.is_long(tokens.len()), ..Root::default() })
            }
        };
        self.or_pinned(registered.into(), tokens).into_table()
    }

    /// Returns a fork of the pinned prefix that shares the most with `tokens`, if that is more than `hit`. With recurrent
    /// layers, it ends with a state of the pinned prefix.
    fn or_pinned(&self, hit: PrefixHit, tokens: &[u32]) -> PrefixHit {
        let most = tokens.len().saturating_sub(1);
        let pinned = self.pinned.iter().filter(|p| p.table.is_long() == hit.table().is_long());
        let pinned = pinned.map(|p| (p.table.resumable(common(&p.tokens, tokens).min(most)), &p.table));
        match pinned.max_by_key(|(len, _)| *len) {
            Some((len, table)) if len > hit.tokens() => PrefixHit::from(table.fork_prefix(len)),
            _ => hit,
        }
    }

    /// Finds the longest prefix of a group's sequence, without the blocks that the window has left behind. At least one
    /// token is left over. A hit on a pinned prefix may end within a block. Appending to the table then copies that
    /// block, because the pinned table shares it.
    fn find_for(&self, group: &SequenceGroup, at: usize, lookup: Lookup) -> PrefixHit {
        let (tokens, whole, len) = (group.lookup_tokens(at), group.keeps_all_blocks(), group.running[at].tokens.len());
        let adapter = group.params.adapter.as_ref().map(|adapter| adapter.tag().clone());
        let root = Root { is_long: self.pool.is_long(len), salt: group.params.cache_salt.clone(), adapter };
        let is_plain = root.salt.is_none() && root.adapter.is_none();
        let registered = match lookup {
            Lookup::All if self.caching => PrefixHit::find(&self.pool, self.swap.as_ref(), tokens, root, whole),
            _ => BlockTable::with_root(&self.pool, root).into(),
        };
        // Pinned prefixes have no adapter, and blocks after one would be registered without the salt.
        let mut hit = if is_plain { self.or_pinned(registered, tokens) } else { registered };
        if !whole {
            hit.slide();
        }
        if self.caching {
            hit.keep_states(group.running[at].kept_states.as_ref());
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

    /// Whether all tokens of a group that has no blocks can be computed, so that `spare_pages` pages are left.
    pub fn fits(&self, group: &SequenceGroup, spare_pages: usize) -> bool {
        let hit = self.find_first(group);
        self.pool.fits(&self.blocks_beyond(group, hit.as_ref()), spare_pages)
    }

    /// The numbers of free blocks it takes to compute all tokens of a group that has no blocks.
    pub fn blocks_to_restore(&self, group: &SequenceGroup) -> Counts {
        let hit = self.find_first(group);
        // Cached blocks that the hit uses count as taken. No other table has them.
        let taken = hit.as_ref().map_or(Counts::default(), |hit| hit.table().sole_counts());
        self.blocks_beyond(group, hit.as_ref()).plus(taken)
    }

    /// As [`Self::blocks_to_restore`], without the blocks that a lookup found, which are also returned.
    pub fn blocks_beside_hit(&self, group: &SequenceGroup) -> (Counts, Option<PrefixHit>) {
        let hit = self.find_first(group);
        (self.blocks_beyond(group, hit.as_ref()), hit)
    }

    fn find_first(&self, group: &SequenceGroup) -> Option<PrefixHit> {
        (!group.running.is_empty()).then(|| self.find_for(group, 0, Lookup::All))
    }

    /// The numbers of blocks it takes to compute all tokens of a group whose first sequence has `hit`. A pinned block that
    /// is shared in part will be copied. A block in the swap space moves to a block of the cache.
    fn blocks_beyond(&self, group: &SequenceGroup, hit: Option<&PrefixHit>) -> Counts {
        let (size, seqs) = (self.pool.block_size(), &group.running);
        let mut counts = Counts::default();
        for (i, seq) in seqs.iter().enumerate() {
            let all = blocks_for(seq.tokens.len(), size);
            let most = group.at_most(all, &self.pool, self.chunk);
            let shared = match i {
                0 => hit.map_or(0, |hit| hit.tokens() / size),
                _ => longest_common(seqs, i, &self.pool).map_or(0, |(_, n)| n / size),
            };
            for at in 0..self.pool.groups().len() {
                let swapped =
                    || hit.map_or(0, |hit| hit.swapped().iter().filter(|swapped| swapped.group == at).count());
                let shared = match i {
                    0 => shared - swapped(),
                    // The window may have left the shared blocks behind.
                    _ if most.of(at) < all => 0,
                    _ => shared,
                };
                counts.add(at, most.of(at).min(all - shared));
            }
        }
        counts
    }
}

/// Where a lookup may find blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Among registered and pinned blocks.
    All,
    /// Among pinned blocks only. Registered ones may be scattered over many pages, so that too few are left.
    Pinned,
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
    /// are not computed yet. A beam shares an earlier beam's blocks even if the index has more, since that could be other
    /// blocks with the same contents, and all beams must fit together.
    pub fn find(group: &SequenceGroup, at: usize, prefixes: &Prefixes, lookup: Lookup) -> Option<Self> {
        let (seqs, tokens) = (&group.running, group.lookup_tokens(at));
        let (hit, looked_up) = (prefixes.find_for(group, at, lookup), tokens.len());
        match longest_common(seqs, at, &prefixes.pool) {
            Some((earlier, shared))
                if (shared > hit.tokens() || group.params.beam.is_some())
                    && seqs[earlier].table.has_window_of(shared) =>
            {
                let table = &seqs[earlier].table;
                (table.len() >= shared).then(|| Start { hit: table.fork_prefix(shared).into(), looked_up, hits: 0 })
            }
            _ => Some(Start { looked_up, hits: hit.tokens(), hit }),
        }
    }
}

/// Finds the earlier sequence of the group that has the longest common prefix with sequence `at`. Returns its index and
/// the number of tokens in the whole blocks they share. At least one token is left over to be computed. A long and a
/// short sequence share no block.
fn longest_common(seqs: &[Sequence], at: usize, pool: &BlockPool) -> Option<(usize, usize)> {
    let (tokens, block_size) = (&seqs[at].tokens, pool.block_size());
    let is_alike = |earlier: &usize| pool.is_long(seqs[*earlier].tokens.len()) == pool.is_long(tokens.len());
    // A table has no slot for the last token of its sequence.
    let blocks = |n: usize, earlier: usize| {
        n.min(tokens.len() - 1).min(seqs[earlier].tokens.len() - 1) / block_size * block_size
    };
    let best = (0..at)
        .filter(is_alike)
        .map(|earlier| (earlier, blocks(common(&seqs[earlier].tokens, tokens), earlier)))
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
        assert_eq!(longest_common(&seqs, 2, &pool), Some((1, 4)));
        assert_eq!(longest_common(&seqs, 1, &pool), Some((0, 2)));
        assert_eq!(longest_common(&seqs, 0, &pool), None);
    }
}
