//! The prefix index: which full block holds the keys and values of which tokens (4.4 of the paper, shared prefix).
//!
//! The contents of a block depend only on its own tokens and all tokens before them. Positions count from the first
//! token, and the model, element types and windows are the same for all sequences of an engine. So the index identifies
//! a full block by its tokens and the [`PrefixId`] of the block before it, which in turn identifies that block's tokens
//! and predecessor. Some models encode positions differently in long sequences. There, the first block of a long sequence
//! has a predecessor of its own. A request may also have a salt, which belongs to the first block: sequences share blocks
//! only if they have the same salt, or none. A hash of tokens, predecessor and salt finds a candidate, and comparing all
//! three confirms it. A request's adapter changes the contents of all its blocks, so it belongs to the text of each.
//!
//! [`PrefixId::hash`] is for other processes, such as a router. It is the same everywhere, and the index never relies
//! on it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fnv::FnvHasher;

use crate::load::adapter::AdapterDigest;

/// Identifies a sequence of tokens that ends with a full block. Equal ids always mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixId {
    number: u64,
    hash: u64,
}

impl PrefixId {
    /// Comes before the first block of a sequence that is long, see [`BlockPool::is_long`]. Its contents differ from those
    /// of a block with the same tokens in a short sequence.
    ///
    /// [`BlockPool::is_long`]: crate::kv::BlockPool::is_long
    pub(super) const LONG: PrefixId = PrefixId { number: u64::MAX, hash: 0x6C6F_6E67 };

    /// The 64-bit FNV-1a hash of all the tokens, each as four little-endian bytes. It can be computed from the previous
    /// block's hash and the block's own tokens, and is the same in every process.
    ///
    /// If a model encodes positions differently in long sequences, their hashes start from a state of their own. So do the
    /// hashes of sequences with a salt or an adapter.
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
    /// The sequence's salt, if the prefix has only one block.
    salt: Option<Arc<str>>,
    /// The adapter of the sequences that share the prefix.
    adapter: Option<Arc<AdapterTag>>,
    hash: u64,
}

/// An adapter as the prefix index knows it. Tags are equal if the adapters have the same contents, whatever their names.
#[derive(Debug, Eq)]
pub struct AdapterTag {
    /// Identifies the contents.
    pub digest: AdapterDigest,
    /// The name that the adapter was loaded under.
    pub name: Arc<str>,
}

impl PartialEq for AdapterTag {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for AdapterTag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Prefix {
    /// The prefix's id.
    pub fn id(&self) -> PrefixId {
        self.id
    }

    /// The id of the prefix without its last block. `None` if it has only one block.
    pub fn parent(&self) -> Option<PrefixId> {
        self.parent.filter(|parent| *parent != PrefixId::LONG)
    }

    /// The salt of the sequences that share the prefix, if it has only one block.
    pub fn salt(&self) -> Option<&Arc<str>> {
        self.salt.as_ref()
    }

    /// The adapter of the sequences that share the prefix. Its name is that of the first of them.
    pub fn adapter(&self) -> Option<&Arc<AdapterTag>> {
        self.adapter.as_ref()
    }

    /// The tokens of the last block.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// What sequences must have in common before their first token to share blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Whether they are long, see [`BlockPool::is_long`](crate::kv::BlockPool::is_long).
    pub is_long: bool,
    /// Their salt.
    pub salt: Option<Arc<str>>,
    /// Their adapter.
    pub adapter: Option<Arc<AdapterTag>>,
}

impl Root {
    /// The text of a block that holds `tokens`, preceded by the tokens of `parent`, or by none if it is the first.
    pub(super) fn text<'a>(&'a self, parent: Option<PrefixId>, tokens: &'a [u32]) -> Text<'a> {
        let adapter = self.adapter.as_ref();
        match parent {
            Some(parent) => Text::with(Some(parent), None, adapter, tokens),
            None => Text::with(self.is_long.then_some(PrefixId::LONG), self.salt.as_ref(), adapter, tokens),
        }
    }
}

/// The tokens of a block and the prefix before them, hashed for lookups in any index.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    parent: Option<PrefixId>,
    tokens: &'a [u32],
    salt: Option<&'a Arc<str>>,
    adapter: Option<&'a Arc<AdapterTag>>,
    hash: u64,
}

impl<'a> Text<'a> {
    /// The text of a block that holds `tokens`, preceded by the tokens of `parent`.
    #[cfg(test)]
    pub fn new(parent: Option<PrefixId>, tokens: &'a [u32]) -> Self {
        Self::first(parent, None, tokens)
    }

    /// As [`Text::new`], for the first block of a sequence, which may have a salt.
    #[cfg(test)]
    pub fn first(parent: Option<PrefixId>, salt: Option<&'a Arc<str>>, tokens: &'a [u32]) -> Self {
        Self::with(parent, salt, None, tokens)
    }

    fn with(
        parent: Option<PrefixId>,
        salt: Option<&'a Arc<str>>,
        adapter: Option<&'a Arc<AdapterTag>>,
        tokens: &'a [u32],
    ) -> Self {
        Text { parent, tokens, salt, adapter, hash: chained_hash(parent, salt, adapter, tokens) }
    }
}

impl<'a> From<&'a Prefix> for Text<'a> {
    fn from(prefix: &'a Prefix) -> Self {
        let Prefix { parent, tokens, salt, adapter, hash, .. } = prefix;
        Text { parent: *parent, tokens, salt: salt.as_ref(), adapter: adapter.as_ref(), hash: *hash }
    }
}

/// Maps prefixes to the blocks that hold their last tokens, and blocks to prefixes, for each group of layers.
#[derive(Debug)]
pub struct PrefixIndex {
    groups: Vec<GroupIndex>,
    next_id: u64,
}

#[derive(Debug)]
struct GroupIndex {
    by_hash: HashMap<u64, u32>,
    by_block: Vec<Option<Arc<Prefix>>>,
}

impl PrefixIndex {
    /// An empty index of the given numbers of blocks, one for each group.
    pub fn new(num_blocks: impl IntoIterator<Item = usize>) -> Self {
        let group = |blocks| GroupIndex { by_hash: HashMap::new(), by_block: vec![None; blocks] };
        PrefixIndex { groups: num_blocks.into_iter().map(group).collect(), next_id: 0 }
    }

    /// Returns the block of a group that holds `text`.
    pub fn find(&self, group: usize, text: &Text<'_>) -> Option<u32> {
        let block = *self.groups[group].by_hash.get(&text.hash)?;
        let prefix = self.prefix(group, block)?;
        let is_same = prefix.parent == text.parent
            && (prefix.salt.as_ref(), prefix.adapter.as_ref()) == (text.salt, text.adapter)
            && *prefix.tokens == *text.tokens;
        is_same.then_some(block)
    }

    /// The prefix that ends with `text`, if a block of any group holds it.
    pub fn known(&self, text: &Text<'_>) -> Option<&Arc<Prefix>> {
        (0..self.groups.len()).find_map(|group| self.prefix(group, self.find(group, text)?))
    }

    /// The prefix that a block is registered under.
    pub fn prefix(&self, group: usize, block: u32) -> Option<&Arc<Prefix>> {
        self.groups[group].by_block[block as usize].as_ref()
    }

    /// Creates the prefix that ends with `text`, with an id that no other prefix of this index has.
    pub fn create(&mut self, text: &Text<'_>) -> Arc<Prefix> {
        let Text { parent, tokens, salt, adapter, hash } = *text;
        let id = PrefixId { number: self.next_id, hash: stable_hash(parent, salt, adapter, tokens) };
        self.next_id += 1;
        Arc::new(Prefix { id, parent, tokens: tokens.into(), salt: salt.cloned(), adapter: adapter.cloned(), hash })
    }

    /// Registers an unregistered block under a prefix. Returns false, and leaves the block unregistered, if another block
    /// of the group holds the same tokens or other tokens with the same hash.
    pub fn insert(&mut self, group: usize, block: u32, prefix: &Arc<Prefix>) -> bool {
        let GroupIndex { by_hash, by_block } = &mut self.groups[group];
        match by_hash.entry(prefix.hash) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(block);
                by_block[block as usize] = Some(prefix.clone());
                true
            }
        }
    }

    /// Removes a block from the index and returns its prefix.
    pub fn remove(&mut self, group: usize, block: u32) -> Option<Arc<Prefix>> {
        let GroupIndex { by_hash, by_block } = &mut self.groups[group];
        let prefix = by_block[block as usize].take()?;
        by_hash.remove(&prefix.hash);
        Some(prefix)
    }

    /// The registered blocks of a group, in ascending order, with their prefixes.
    pub fn all(&self, group: usize) -> impl Iterator<Item = (u32, &Arc<Prefix>)> {
        (0..).zip(&self.groups[group].by_block).filter_map(|(block, prefix)| Some((block, prefix.as_ref()?)))
    }

    /// The number of registered blocks of a group.
    pub fn len(&self, group: usize) -> usize {
        self.groups[group].by_hash.len()
    }
}

fn chained_hash(
    parent: Option<PrefixId>,
    salt: Option<&Arc<str>>,
    adapter: Option<&Arc<AdapterTag>>,
    tokens: &[u32],
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, salt, adapter, tokens).hash(&mut hasher);
    hasher.finish()
}

/// See [`PrefixId::hash`].
fn stable_hash(
    parent: Option<PrefixId>,
    salt: Option<&Arc<str>>,
    adapter: Option<&Arc<AdapterTag>>,
    tokens: &[u32],
) -> u64 {
    // FNV-1a is incremental: the parent's hash is the state to continue from.
    let mut hasher = parent.map_or_else(FnvHasher::default, |parent| FnvHasher::with_key(parent.hash));
    if let Some(salt) = salt {
        hasher.write(salt.as_bytes());
        // Otherwise a salt whose bytes are those of tokens would have the hash of these tokens.
        hasher = FnvHasher::with_key(splitmix::mix(hasher.finish()));
    }
    // The hashes of later blocks follow from that of the first.
    if let Some(adapter) = adapter.filter(|_| parent.is_none_or(|parent| parent == PrefixId::LONG)) {
        hasher.write(&adapter.digest.0);
        hasher = FnvHasher::with_key(splitmix::mix(hasher.finish()));
    }
    tokens.iter().for_each(|token| hasher.write(&token.to_le_bytes()));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers a block of the first group and returns the id of its prefix.
    fn insert(index: &mut PrefixIndex, block: u32, parent: Option<PrefixId>, tokens: &[u32]) -> PrefixId {
        let text = Text::new(parent, tokens);
        let prefix = index.known(&text).cloned().unwrap_or_else(|| index.create(&text));
        index.insert(0, block, &prefix);
        prefix.id()
    }

    fn find(index: &PrefixIndex, parent: Option<PrefixId>, tokens: &[u32]) -> Option<u32> {
        index.find(0, &Text::new(parent, tokens))
    }

    #[test]
    fn the_hash_of_a_prefix_never_changes() {
        let mut index = PrefixIndex::new([4]);
        let first = insert(&mut index, 0, None, &[1, 2]);
        let second = insert(&mut index, 1, Some(first), &[3, 70_000]);
        assert_eq!((first.hash(), second.hash()), (0xC9C2_8939_C996_68C6, 0x6FC6_47C3_95FD_5A83));
        let whole = insert(&mut PrefixIndex::new([1]), 0, None, &[1, 2, 3, 70_000]);
        assert_eq!(whole.hash(), second.hash(), "the hash depends on the tokens and not on the block size");
        // A prefix that is removed and registered again gets a new id and the same hash.
        assert!(index.remove(0, 0).is_some());
        let again = insert(&mut index, 2, None, &[1, 2]);
        assert_eq!(again.hash(), first.hash());
        assert_ne!(again, first);
    }

    #[test]
    fn a_block_is_found_only_with_its_salt() {
        let mut index = PrefixIndex::new([4]);
        let [one, other]: [Arc<str>; 2] = ["one".into(), "other".into()];
        let text = |salt| Text::first(None, salt, &[1, 2]);
        let mut insert = |block, salt| {
            let prefix = index.create(&text(salt));
            assert!(index.insert(0, block, &prefix));
            prefix
        };
        let (plain, salted) = (insert(0, None), insert(1, Some(&one)));
        assert_eq!([None, Some(&one), Some(&other)].map(|salt| index.find(0, &text(salt))), [Some(0), Some(1), None]);
        assert_eq!(index.find(0, &Text::from(&*salted)), Some(1));
        assert_eq!((plain.salt(), salted.salt()), (None, Some(&one)));
        assert_eq!(plain.id().hash(), stable_hash(None, None, None, &[1, 2]));
        let hashes = [None, Some(&one), Some(&other)].map(|salt| stable_hash(None, salt, None, &[1, 2]));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
        // A salt with the bytes of a token is not that token.
        let token: Arc<str> = "\u{7}\0\0\0".into();
        assert_ne!(stable_hash(None, Some(&token), None, &[1, 2]), stable_hash(None, None, None, &[7, 1, 2]));
    }

    #[test]
    fn a_block_is_found_only_with_the_contents_of_its_adapter() {
        let tag =
            |byte, name: &str| Some(Arc::new(AdapterTag { digest: AdapterDigest([byte; 32]), name: name.into() }));
        let root = |adapter| Root { adapter, ..Root::default() };
        let roots = [root(None), root(tag(1, "a")), root(tag(2, "a")), root(tag(1, "b"))];
        let mut index = PrefixIndex::new([6]);
        let mut ids = Vec::new();
        for (block, root) in (0..).zip(&roots[..3]) {
            let first = index.create(&root.text(None, &[1, 2]));
            let second = index.create(&root.text(Some(first.id()), &[3, 4]));
            assert!(index.insert(0, 2 * block, &first) && index.insert(0, 2 * block + 1, &second));
            ids.push([first.id(), second.id()]);
        }
        let find = |root: &Root| index.find(0, &root.text(None, &[1, 2]));
        assert_eq!(roots.each_ref().map(find), [Some(0), Some(2), Some(4), Some(2)], "names do not count");
        assert_eq!(index.find(0, &roots[3].text(Some(ids[1][0]), &[3, 4])), Some(3));
        assert_eq!(
            ids[0].map(PrefixId::hash),
            [0xC9C2_8939_C996_68C6, stable_hash(Some(ids[0][0]), None, None, &[3, 4])]
        );
        let hashes: std::collections::BTreeSet<u64> = ids.iter().flatten().copied().map(PrefixId::hash).collect();
        assert_eq!(hashes.len(), 6);
        assert_eq!(index.prefix(0, 3).unwrap().adapter().map(|tag| &*tag.name), Some("a"), "each block tells it");
    }

    #[test]
    fn a_block_is_found_by_all_tokens_up_to_its_end() {
        let mut index = PrefixIndex::new([4]);
        let first = insert(&mut index, 0, None, &[1, 2]);
        let second = insert(&mut index, 1, Some(first), &[3, 4]);
        assert_eq!((find(&index, None, &[1, 2]), find(&index, Some(first), &[3, 4])), (Some(0), Some(1)));
        assert_eq!((find(&index, None, &[3, 4]), find(&index, Some(second), &[3, 4])), (None, None));
        assert_eq!(insert(&mut index, 2, None, &[1, 2]), first, "already registered: same id, same block");
        assert_eq!((find(&index, None, &[1, 2]), index.len(0)), (Some(0), 2));
        assert_eq!([0, 0, 2].map(|block| index.remove(0, block).map(|prefix| prefix.id())), [Some(first), None, None]);
        assert_eq!((find(&index, None, &[1, 2]), index.len(0)), (None, 1));
    }

    #[test]
    fn equal_hashes_do_not_imply_equal_tokens() {
        let text = |parent, tokens| Text { parent, tokens, salt: None, adapter: None, hash: 7 };
        let mut index = PrefixIndex::new([4]);
        let first = index.create(&text(None, &[1, 2]));
        assert!(index.insert(0, 0, &first));
        assert_eq!(
            (index.find(0, &text(None, &[1, 3])), index.find(0, &text(Some(first.id()), &[1, 2]))),
            (None, None)
        );
        let other = index.create(&text(Some(first.id()), &[1, 2]));
        assert!(!index.insert(0, 1, &other));
        assert_eq!((index.find(0, &text(None, &[1, 2])), index.len(0)), (Some(0), 1));
    }

    #[test]
    fn a_prefix_keeps_its_id_in_other_groups_and_indices() {
        let (mut first, mut second) = (PrefixIndex::new([2, 3]), PrefixIndex::new([2]));
        let id = insert(&mut first, 0, None, &[1, 2]);
        let prefix = first.prefix(0, 0).unwrap().clone();
        assert_eq!((second.known(&Text::from(&*prefix)), first.find(1, &Text::from(&*prefix))), (None, None));
        assert!(second.insert(0, 1, &prefix) && !second.insert(0, 0, &prefix) && first.insert(1, 2, &prefix));
        assert_eq!((find(&second, None, &[1, 2]), first.find(1, &Text::new(None, &[1, 2]))), (Some(1), Some(2)));
        assert_eq!(second.prefix(0, 1).map(|p| p.id()), Some(id));
        // The other group still knows the prefix if one has lost it.
        first.remove(0, 0);
        assert_eq!(first.known(&Text::new(None, &[1, 2])).map(|p| p.id()), Some(id));
    }
}
