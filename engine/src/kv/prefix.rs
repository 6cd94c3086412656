//! The prefix index: which full block holds the keys and values of which tokens (4.4 of the paper, shared prefix).
//!
//! The contents of a block depend only on its own tokens and all tokens before them. Positions count from the first
//! token, and the model, element types and windows are the same for all sequences of an engine. So the index identifies
//! a full block by its tokens and the [`PrefixId`] of the block before it, which in turn identifies that block's tokens
//! and predecessor. A hash over the two finds a candidate, and comparing the tokens and the predecessor confirms it.
//!
//! [`PrefixId::hash`] is for other processes, such as a router. It is the same everywhere, and the index never relies
//! on it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fnv::FnvHasher;

/// Identifies a sequence of tokens that ends with a full block. Equal ids always mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixId {
    number: u64,
    hash: u64,
}

impl PrefixId {
    /// The 64-bit FNV-1a hash of all the tokens, each as four little-endian bytes. It can be computed from the previous
    /// block's hash and the block's own tokens, and is the same in every process.
    pub fn hash(self) -> u64 {
        self.hash
    }
}

/// The tokens from the start of a sequence to the end of a full block.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    id: PrefixId,
    /// The prefix without its last block.
    parent: Option<PrefixId>,
    /// The last block's tokens.
    tokens: Box<[u32]>,
    hash: u64,
}

impl Prefix {
    /// The prefix's id.
    pub fn id(&self) -> PrefixId {
        self.id
    }

    /// The id of the prefix without its last block. `None` if it has only one block.
    pub fn parent(&self) -> Option<PrefixId> {
        self.parent
    }

    /// The tokens of the last block.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Maps prefixes to the blocks that hold their last tokens, and blocks to prefixes.
#[derive(Debug)]
pub struct PrefixIndex {
    by_hash: HashMap<u64, u32>,
    by_block: Vec<Option<Arc<Prefix>>>,
    next_id: u64,
    hash: fn(Option<PrefixId>, &[u32]) -> u64,
}

impl PrefixIndex {
    /// An empty index of `num_blocks` blocks.
    pub fn new(num_blocks: usize) -> Self {
        PrefixIndex::with_hash(num_blocks, chained_hash)
    }

    fn with_hash(num_blocks: usize, hash: fn(Option<PrefixId>, &[u32]) -> u64) -> Self {
        PrefixIndex { by_hash: HashMap::new(), by_block: vec![None; num_blocks], next_id: 0, hash }
    }

    /// Returns the block that holds `tokens`, preceded by the tokens of `parent`.
    pub fn find(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<u32> {
        self.find_hashed((self.hash)(parent, tokens), parent, tokens)
    }

    /// Returns the block that holds the last tokens of `prefix`.
    pub fn find_prefix(&self, prefix: &Prefix) -> Option<u32> {
        self.find_hashed(prefix.hash, prefix.parent, &prefix.tokens)
    }

    /// The prefix that a block is registered under.
    pub fn prefix(&self, block: u32) -> Option<&Arc<Prefix>> {
        self.by_block[block as usize].as_ref()
    }

    /// Registers an unregistered block and returns the id of its prefix. If another block holds the same tokens, that
    /// one stays in the index. Returns `None` if other tokens have the same hash, and leaves the block unregistered.
    pub fn insert(&mut self, block: u32, parent: Option<PrefixId>, tokens: &[u32]) -> Option<PrefixId> {
        let hash = (self.hash)(parent, tokens);
        if let Some(registered) = self.find_hashed(hash, parent, tokens) {
            return self.prefix(registered).map(|p| p.id);
        }
        let id = PrefixId { number: self.next_id, hash: stable_hash(parent, tokens) };
        self.next_id += 1;
        self.insert_prefix(block, Arc::new(Prefix { id, parent, tokens: tokens.into(), hash })).then_some(id)
    }

    /// Registers an unregistered block under a prefix of another index. Returns false if its hash is taken.
    pub fn insert_prefix(&mut self, block: u32, prefix: Arc<Prefix>) -> bool {
        match self.by_hash.entry(prefix.hash) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(block);
                self.by_block[block as usize] = Some(prefix);
                true
            }
        }
    }

    /// Removes a block from the index and returns its prefix.
    pub fn remove(&mut self, block: u32) -> Option<Arc<Prefix>> {
        let prefix = self.by_block[block as usize].take()?;
        self.by_hash.remove(&prefix.hash);
        Some(prefix)
    }

    /// The registered blocks, in ascending order, with their prefixes.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Arc<Prefix>)> {
        (0..).zip(&self.by_block).filter_map(|(block, prefix)| Some((block, prefix.as_ref()?)))
    }

    /// The number of registered blocks.
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
    // FNV-1a is incremental: the parent's hash is the state to continue from.
    let mut hasher = parent.map_or_else(FnvHasher::default, |parent| FnvHasher::with_key(parent.hash));
    tokens.iter().for_each(|token| hasher.write(&token.to_le_bytes()));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_prefix_never_changes() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(0, None, &[1, 2]).unwrap();
        let second = index.insert(1, Some(first), &[3, 70_000]).unwrap();
        assert_eq!((first.hash(), second.hash()), (0xC9C2_8939_C996_68C6, 0x6FC6_47C3_95FD_5A83));
        let whole = PrefixIndex::new(1).insert(0, None, &[1, 2, 3, 70_000]).unwrap();
        assert_eq!(whole.hash(), second.hash(), "the hash depends on the tokens and not on the block size");
        // A prefix that is removed and registered again gets a new id and the same hash.
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
        assert_eq!(index.insert(2, None, &[1, 2]), Some(first), "already registered: same id, same block");
        assert_eq!((index.find(None, &[1, 2]), index.len()), (Some(0), 2));
        assert_eq!([0, 0, 2].map(|block| index.remove(block).map(|prefix| prefix.id())), [Some(first), None, None]);
        assert_eq!((index.find(None, &[1, 2]), index.len()), (None, 1));
    }

    #[test]
    fn equal_hashes_do_not_imply_equal_tokens() {
        let mut index = PrefixIndex::with_hash(4, |_, _| 7);
        let first = index.insert(0, None, &[1, 2]).unwrap();
        assert_eq!((index.find(None, &[1, 3]), index.find(Some(first), &[1, 2])), (None, None));
        assert_eq!(index.insert(1, Some(first), &[1, 2]), None);
        assert_eq!((index.find(None, &[1, 2]), index.len()), (Some(0), 1));
    }

    #[test]
    fn a_prefix_keeps_its_id_in_another_index() {
        let (mut first, mut second) = (PrefixIndex::new(2), PrefixIndex::new(2));
        let id = first.insert(0, None, &[1, 2]).unwrap();
        let prefix = first.prefix(0).unwrap().clone();
        assert_eq!(second.find_prefix(&prefix), None);
        assert!(second.insert_prefix(1, prefix.clone()) && !second.insert_prefix(0, prefix.clone()));
        assert_eq!((second.find(None, &[1, 2]), second.find_prefix(&prefix)), (Some(1), Some(1)));
        assert_eq!(second.prefix(1).map(|p| p.id()), Some(id));
    }
}
