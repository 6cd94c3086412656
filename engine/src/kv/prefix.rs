//! Which full blocks hold keys and values of which tokens (4.4 of the paper, shared prefix).
//!
//! What a block holds depends on its own tokens and on all before them, and within one engine on nothing else: positions
//! count from the first token, and model, element types and windows are the same for all. So a full block is known by
//! its tokens and the [`PrefixId`] of the block before it, which in turn stands for that block's tokens and its
//! predecessor. A hash over the two finds candidates; the tokens and the predecessor themselves decide.
//!
//! Others follow what is known by [`PrefixId::hash`], which says the same in every process and never decides anything here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fnv::FnvHasher;

/// Names a sequence of tokens that ends with a full block. The same name always means the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixId {
    number: u64,
    hash: u64,
}

impl PrefixId {
    /// The 64-bit FNV-1a hash of all the tokens, four bytes each, the lowest first. It follows from the hash of the block
    /// before and a block's own tokens, and is the same in every process.
    pub fn hash(self) -> u64 {
        self.hash
    }
}

/// The tokens from the start of a sequence to the end of a full block.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    id: PrefixId,
    /// All but the last block of it.
    parent: Option<PrefixId>,
    /// The last block's tokens.
    tokens: Box<[u32]>,
    hash: u64,
}

impl Prefix {
    /// Its name.
    pub fn id(&self) -> PrefixId {
        self.id
    }

    /// The name of all but its last block; none if it has only one.
    pub fn parent(&self) -> Option<PrefixId> {
        self.parent
    }

    /// The tokens of its last block.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// From prefixes to the blocks that hold the last of their tokens, and back.
#[derive(Debug)]
pub struct PrefixIndex {
    by_hash: HashMap<u64, u32>,
    of_block: Vec<Option<Arc<Prefix>>>,
    next_id: u64,
    hash: fn(Option<PrefixId>, &[u32]) -> u64,
}

impl PrefixIndex {
    /// An empty index of `num_blocks` blocks.
    pub fn new(num_blocks: usize) -> Self {
        PrefixIndex::with_hash(num_blocks, chained_hash)
    }

    fn with_hash(num_blocks: usize, hash: fn(Option<PrefixId>, &[u32]) -> u64) -> Self {
        PrefixIndex { by_hash: HashMap::new(), of_block: vec![None; num_blocks], next_id: 0, hash }
    }

    /// The block with the last of `parent`'s tokens followed by `tokens`.
    pub fn find(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<u32> {
        self.find_hashed((self.hash)(parent, tokens), parent, tokens)
    }

    /// The block that holds `prefix`.
    pub fn find_prefix(&self, prefix: &Prefix) -> Option<u32> {
        self.find_hashed(prefix.hash, prefix.parent, &prefix.tokens)
    }

    /// What is known of a block.
    pub fn prefix(&self, block: u32) -> Option<&Arc<Prefix>> {
        self.of_block[block as usize].as_ref()
    }

    /// Makes a block known that was not, and names its prefix. If another block holds the same, that one stays the known
    /// one. None if the hash is taken by other tokens; the block cannot be known then.
    pub fn insert(&mut self, block: u32, parent: Option<PrefixId>, tokens: &[u32]) -> Option<PrefixId> {
        let hash = (self.hash)(parent, tokens);
        if let Some(known) = self.find_hashed(hash, parent, tokens) {
            return self.prefix(known).map(|p| p.id);
        }
        let id = PrefixId { number: self.next_id, hash: stable_hash(parent, tokens) };
        self.next_id += 1;
        self.insert_prefix(block, Arc::new(Prefix { id, parent, tokens: tokens.into(), hash })).then_some(id)
    }

    /// Makes a block known that was not, under a name it had in another index. False if the hash is taken.
    pub fn insert_prefix(&mut self, block: u32, prefix: Arc<Prefix>) -> bool {
        match self.by_hash.entry(prefix.hash) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(block);
                self.of_block[block as usize] = Some(prefix);
                true
            }
        }
    }

    /// Forgets a block, and returns what was known of it.
    pub fn remove(&mut self, block: u32) -> Option<Arc<Prefix>> {
        let prefix = self.of_block[block as usize].take()?;
        self.by_hash.remove(&prefix.hash);
        Some(prefix)
    }

    /// What is known, block by block.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Arc<Prefix>)> {
        (0..).zip(&self.of_block).filter_map(|(block, prefix)| Some((block, prefix.as_ref()?)))
    }

    /// Blocks that are known.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    fn find_hashed(&self, hash: u64, parent: Option<PrefixId>, tokens: &[u32]) -> Option<u32> {
        let block = *self.by_hash.get(&hash)?;
        self.prefix(block).filter(|p| p.parent == parent && *p.tokens == *tokens).map(|_| block)
    }
}

fn chained_hash(parent: Option<PrefixId>, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, tokens).hash(&mut hasher);
    hasher.finish()
}

/// See [`PrefixId::hash`].
fn stable_hash(parent: Option<PrefixId>, tokens: &[u32]) -> u64 {
    // The hash of the tokens before is the state in which it goes on.
    let mut hasher = parent.map_or_else(FnvHasher::default, |parent| FnvHasher::with_key(parent.hash));
    tokens.iter().for_each(|token| hasher.write(&token.to_le_bytes()));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_prefix_is_the_same_for_ever() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(0, None, &[1, 2]).unwrap();
        let second = index.insert(1, Some(first), &[3, 70_000]).unwrap();
        assert_eq!((first.hash(), second.hash()), (0xC9C2_8939_C996_68C6, 0x6FC6_47C3_95FD_5A83));
        let whole = PrefixIndex::new(1).insert(0, None, &[1, 2, 3, 70_000]).unwrap();
        assert_eq!(whole.hash(), second.hash(), "it goes by the tokens, and not by how they lie in blocks");
        // What is forgotten and becomes known again has another name and the same hash.
        assert!(index.remove(0).is_some());
        let again = index.insert(2, None, &[1, 2]).unwrap();
        assert_eq!(again.hash(), first.hash());
        assert_ne!(again, first);
    }

    #[test]
    fn a_block_is_found_by_all_tokens_up_to_its_end() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(0, None, &[1, 2]).unwrap();
        let second = index.insert(1, Some(first), &[3, 4]).unwrap();
        assert_eq!((index.find(None, &[1, 2]), index.find(Some(first), &[3, 4])), (Some(0), Some(1)));
        assert_eq!((index.find(None, &[3, 4]), index.find(Some(second), &[3, 4])), (None, None));
        assert_eq!(index.insert(2, None, &[1, 2]), Some(first), "known already: the same name, the same block");
        assert_eq!((index.find(None, &[1, 2]), index.len()), (Some(0), 2));
        assert_eq!([0, 0, 2].map(|block| index.remove(block).map(|prefix| prefix.id())), [Some(first), None, None]);
        assert_eq!((index.find(None, &[1, 2]), index.len()), (None, 1));
    }

    #[test]
    fn equal_hashes_do_not_make_equal_tokens() {
        let mut index = PrefixIndex::with_hash(4, |_, _| 7);
        let first = index.insert(0, None, &[1, 2]).unwrap();
        assert_eq!((index.find(None, &[1, 3]), index.find(Some(first), &[1, 2])), (None, None));
        assert_eq!(index.insert(1, Some(first), &[1, 2]), None);
        assert_eq!((index.find(None, &[1, 2]), index.len()), (Some(0), 1));
    }

    #[test]
    fn a_name_goes_along_to_another_index() {
        let (mut here, mut there) = (PrefixIndex::new(2), PrefixIndex::new(2));
        let id = here.insert(0, None, &[1, 2]).unwrap();
        let prefix = here.prefix(0).unwrap().clone();
        assert_eq!(there.find_prefix(&prefix), None);
        assert!(there.insert_prefix(1, prefix.clone()) && !there.insert_prefix(0, prefix.clone()));
        assert_eq!((there.find(None, &[1, 2]), there.find_prefix(&prefix)), (Some(1), Some(1)));
        assert_eq!(there.prefix(1).map(|p| p.id()), Some(id));
    }
}
