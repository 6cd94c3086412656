//! A router that follows a cache through its changes alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::tools::engine::Engine;
use engine::tools::kv::{CacheChange, Place, Prefix, Space};

/// The prefixes in the cache and in the swap space, built from the changes alone. Maps each prefix's hash to its
/// parent's hash and the last block's tokens.
#[derive(Debug, Default)]
pub struct Follower {
    prefixes: BTreeMap<(Place, u64), Block>,
}

impl Follower {
    /// Applies changes. Panics if a stored prefix exists already or a removed one does not exist.
    pub fn follow(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Stored(place, prefix) => {
                    let (key, block) = entry(place, &prefix);
                    assert!(self.prefixes.insert(key, block).is_none(), "{key:x?} is stored twice");
                }
                CacheChange::Removed(place, hash) => {
                    assert!(self.prefixes.remove(&(place, hash)).is_some(), "{hash:x} is not stored in {place:?}");
                }
            }
        }
    }

    /// The number of prefixes.
    #[allow(dead_code)] // not every test uses it
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Compares with the engine's pools, and checks each hash against its tokens.
    pub fn check(&self, engine: &Engine) -> Result<(), String> {
        let registered_in =
            |place| engine.scheduler().registered_blocks(place).into_iter().map(move |(_, p)| entry(place, &p));
        let spaces = [Space::Cache, Space::Swap];
        let groups = 0..engine.config().groups.len();
        let places = spaces.into_iter().flat_map(|space| groups.clone().map(move |group| Place { space, group }));
        let registered: BTreeMap<_, _> = places.flat_map(registered_in).collect();
        if registered != self.prefixes {
            return Err(format!("the pools have {registered:?}, but the router has {:?}", self.prefixes));
        }
        // The hash of a salted block does not depend on its tokens alone.
        let mut plain = self.prefixes.iter().filter(|(_, (.., salt))| salt.is_none());
        let wrong = plain.find(|((_, hash), (parent, tokens, _))| fnv1a(*parent, tokens) != *hash);
        wrong.map_or(Ok(()), |(key, block)| Err(format!("{key:x?} is not the hash of {block:?}")))
    }
}

type Entry = ((Place, u64), Block);

/// The parent's hash of a block, its tokens, and its salt or its adapter's name if it is the first block of a prompt that has one.
type Block = (Option<u64>, Vec<u32>, Option<Arc<str>>);

fn entry(place: Place, prefix: &Prefix) -> Entry {
    // The digest of an adapter changes hashes as a salt does.
    let adapter = prefix.adapter().filter(|_| prefix.parent().is_none());
    let salt = prefix.salt().or(adapter.map(|adapter| &adapter.name)).cloned();
    ((place, prefix.id().hash()), (prefix.parent().map(|parent| parent.hash()), prefix.tokens().to_vec(), salt))
}

/// FNV-1a over four-byte tokens, continued from the parent's hash.
fn fnv1a(parent: Option<u64>, tokens: &[u32]) -> u64 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    bytes.fold(parent.unwrap_or(0xCBF2_9CE4_8422_2325), |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
