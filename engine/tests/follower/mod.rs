//! A router that knows of the cache what the changes tell it.

use std::collections::BTreeMap;

use engine::engine::Engine;
use engine::kv::{CacheChange, Prefix};

/// What can be found in the cache, from the changes alone: for each hash that of the block before, and the tokens.
#[derive(Debug, Default)]
pub struct Follower {
    known: BTreeMap<u64, (Option<u64>, Vec<u32>)>,
}

impl Follower {
    /// Takes changes in. Nothing is stored that is there, nor removed that is not.
    pub fn follow(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Stored(prefix) => {
                    let (hash, block) = entry(&prefix);
                    assert!(self.known.insert(hash, block).is_none(), "{hash:x} is stored twice");
                }
                CacheChange::Removed(hash) => assert!(self.known.remove(&hash).is_some(), "{hash:x} is not stored"),
            }
        }
    }

    /// Hashes that can be found.
    #[allow(dead_code)] // not every test needs it
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Compares with what the engine's pool knows, and hashes with the tokens that they stand for.
    pub fn check(&self, engine: &Engine) -> Result<(), String> {
        let known: BTreeMap<_, _> = engine.scheduler().known_prefixes().iter().map(|prefix| entry(prefix)).collect();
        if known != self.known {
            return Err(format!("the pool knows {known:?}, and the router {:?}", self.known));
        }
        let wrong = self.known.iter().find(|(hash, (parent, tokens))| fnv1a(*parent, tokens) != **hash);
        wrong.map_or(Ok(()), |(hash, block)| Err(format!("{hash:x} is not the hash of {block:?}")))
    }
}

fn entry(prefix: &Prefix) -> (u64, (Option<u64>, Vec<u32>)) {
    (prefix.id().hash(), (prefix.parent().map(|parent| parent.hash()), prefix.tokens().to_vec()))
}

/// FNV-1a over tokens of four bytes, going on from the hash of those before.
fn fnv1a(parent: Option<u64>, tokens: &[u32]) -> u64 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    bytes.fold(parent.unwrap_or(0xCBF2_9CE4_8422_2325), |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
