//! Encodes batches of events in vLLM's MessagePack format: `[time, [event, ...], rank]`.

use engine::tools::kv::{CacheChange, Space};
use serde::ser::{Serialize, SerializeMap, SerializeTuple, Serializer};

/// The encoding of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventFormat {
    /// A map with the kind under the key `type`.
    #[default]
    Map,
    /// An array that begins with the kind, as in earlier versions of vLLM.
    Array,
}

/// Returns vLLM's name for a pool's kind of memory, by which routers rank. The KV cache is called `GPU` on the CPU too.
fn medium(space: Space) -> &'static str {
    match space {
        Space::Cache => "GPU",
        Space::Swap => "CPU",
    }
}

/// The engine's index among data-parallel replicas behind one address.
const RANK: u32 = 0;
/// The value of fields that Quire does not use: LoRA adapters, and extra keys that tell blocks with equal tokens apart.
const NONE: Option<u64> = None;

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks with consecutive tokens were stored.
    Stored {
        /// The pool that stores them.
        space: Space,
        /// The hash of each block, in order.
        hashes: Vec<u64>,
        /// The hash of the block before the first, if any.
        parent: Option<u64>,
        /// The tokens of all blocks.
        tokens: Vec<u32>,
        /// Tokens per block.
        block_size: usize,
    },
    /// A pool no longer stores the blocks with these hashes.
    Removed {
        /// The pool.
        space: Space,
        /// The hashes of the blocks.
        hashes: Vec<u64>,
    },
    /// The whole cache was cleared.
    Cleared,
}

/// Converts changes into events. Consecutive blocks in the same pool share one event.
pub fn events(changes: Vec<CacheChange>) -> Vec<KvEvent> {
    let mut events: Vec<KvEvent> = Vec::new();
    for change in changes {
        match (events.last_mut(), change) {
            (Some(KvEvent::Stored { space, hashes, tokens, .. }), CacheChange::Stored(to, prefix))
                if *space == to && prefix.parent().map(|parent| parent.hash()) == hashes.last().copied() =>
            {
                hashes.push(prefix.id().hash());
                tokens.extend(prefix.tokens());
            }
            (_, CacheChange::Stored(space, prefix)) => events.push(KvEvent::Stored {
                space,
                hashes: vec![prefix.id().hash()],
                parent: prefix.parent().map(|parent| parent.hash()),
                tokens: prefix.tokens().to_vec(),
                block_size: prefix.tokens().len(),
            }),
            (Some(KvEvent::Removed { space, hashes }), CacheChange::Removed(from, hash)) if *space == from => {
                hashes.push(hash);
            }
            (_, CacheChange::Removed(space, hash)) => events.push(KvEvent::Removed { space, hashes: vec![hash] }),
        }
    }
    events
}

/// Encodes a batch.
///
/// # Errors
/// None in practice, because MessagePack can represent every event.
pub fn encode(time: f64, events: &[KvEvent], format: EventFormat) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let events: Vec<Formatted<'_>> = events.iter().map(|event| Formatted { event, format }).collect();
    rmp_serde::to_vec(&(time, events, RANK))
}

/// An event with its encoding.
struct Formatted<'a> {
    event: &'a KvEvent,
    format: EventFormat,
}

impl Serialize for Formatted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.format {
            EventFormat::Map => as_map(self.event, serializer),
            EventFormat::Array => as_array(self.event, serializer),
        }
    }
}

fn as_map<S: Serializer>(event: &KvEvent, serializer: S) -> Result<S::Ok, S::Error> {
    match event {
        KvEvent::Stored { space, hashes, parent, tokens, block_size } => {
            let mut map = serializer.serialize_map(Some(9))?;
            map.serialize_entry("type", "BlockStored")?;
            map.serialize_entry("block_hashes", hashes)?;
            map.serialize_entry("parent_block_hash", parent)?;
            map.serialize_entry("token_ids", tokens)?;
            map.serialize_entry("block_size", block_size)?;
            map.serialize_entry("lora_id", &NONE)?;
            map.serialize_entry("medium", medium(*space))?;
            map.serialize_entry("lora_name", &NONE)?;
            map.serialize_entry("extra_keys", &vec![NONE; hashes.len()])?;
            map.end()
        }
        KvEvent::Removed { space, hashes } => {
            let mut map = serializer.serialize_map(Some(3))?;
            map.serialize_entry("type", "BlockRemoved")?;
            map.serialize_entry("block_hashes", hashes)?;
            map.serialize_entry("medium", medium(*space))?;
            map.end()
        }
        KvEvent::Cleared => {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry("type", "AllBlocksCleared")?;
            map.end()
        }
    }
}

fn as_array<S: Serializer>(event: &KvEvent, serializer: S) -> Result<S::Ok, S::Error> {
    match event {
        KvEvent::Stored { space, hashes, parent, tokens, block_size } => {
            let mut array = serializer.serialize_tuple(9)?;
            array.serialize_element("BlockStored")?;
            array.serialize_element(hashes)?;
            array.serialize_element(parent)?;
            array.serialize_element(tokens)?;
            array.serialize_element(block_size)?;
            array.serialize_element(&NONE)?;
            array.serialize_element(medium(*space))?;
            array.serialize_element(&NONE)?;
            array.serialize_element(&vec![NONE; hashes.len()])?;
            array.end()
        }
        KvEvent::Removed { space, hashes } => ("BlockRemoved", hashes, medium(*space)).serialize(serializer),
        KvEvent::Cleared => ("AllBlocksCleared",).serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::sync::{Arc, Mutex};

    use engine::tools::kv::{BlockPool, BlockTable, CacheChanges, Space};
    use serde_json::{Value, json};

    use super::*;

    fn stored() -> KvEvent {
        let tokens = vec![1, 2, 3, 70_000];
        KvEvent::Stored { space: Space::Cache, hashes: vec![u64::MAX, 5], parent: None, tokens, block_size: 2 }
    }

    fn decoded(events: &[KvEvent], format: EventFormat) -> Value {
        rmp_serde::from_slice(&encode(1.5, events, format).unwrap()).unwrap()
    }

    #[test]
    fn events_are_maps_or_arrays() {
        let events = [stored(), KvEvent::Removed { space: Space::Swap, hashes: vec![7, 8] }, KvEvent::Cleared];
        let map = json!([1.5, [
            {"type": "BlockStored", "block_hashes": [u64::MAX, 5], "parent_block_hash": null,
             "token_ids": [1, 2, 3, 70_000], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null,
             "extra_keys": [null, null]},
            {"type": "BlockRemoved", "block_hashes": [7, 8], "medium": "CPU"},
            {"type": "AllBlocksCleared"},
        ], 0]);
        assert_eq!(decoded(&events, EventFormat::Map), map);
        let array = json!([
            1.5,
            [
                ["BlockStored", [u64::MAX, 5], null, [1, 2, 3, 70_000], 2, null, "GPU", null, [null, null]],
                ["BlockRemoved", [7, 8], "CPU"],
                ["AllBlocksCleared"],
            ],
            0
        ]);
        assert_eq!(decoded(&events, EventFormat::Array), array);
    }

    /// msgspec writes the shortest form of every integer, and eight bytes for the time.
    #[test]
    fn the_bytes_equal_vllms() {
        let removed = [KvEvent::Removed { space: Space::Cache, hashes: vec![7, 0x0102_0304_0506_0708] }];
        let mut want = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x91, 0x83];
        want.extend(b"\xa4type\xacBlockRemoved\xacblock_hashes\x92\x07\xcf\x01\x02\x03\x04\x05\x06\x07\x08");
        want.extend(b"\xa6medium\xa3GPU\x00");
        assert_eq!(encode(1.5, &removed, EventFormat::Map).unwrap(), want);
        let mut want = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x91];
        want.extend(b"\x91\xb0AllBlocksCleared\x00");
        assert_eq!(encode(1.5, &[KvEvent::Cleared], EventFormat::Array).unwrap(), want);
    }

    #[test]
    fn blocks_that_follow_each_other_are_stored_together() {
        let (pool, changes) = (BlockPool::new(5, 2), Arc::new(Mutex::new(CacheChanges::default())));
        pool.set_log(changes.clone(), Space::Cache);
        let known = |tokens: &[u32]| {
            let mut table = BlockTable::prefix_hit(&pool, tokens);
            table.reserve(tokens.len() - table.len(), &mut Vec::new()).unwrap();
            table.register(tokens);
            table
        };
        let first = known(&[1, 2, 3, 4]);
        let second = known(&[1, 2, 5, 6]);
        let both = events(changes.lock().unwrap().take());
        let hash = |at: usize, of: &KvEvent| match of {
            KvEvent::Stored { hashes, .. } => hashes[at],
            _ => panic!("{of:?} stores nothing"),
        };
        let space = Space::Cache;
        let (h1, h2, h3) = (hash(0, &both[0]), hash(1, &both[0]), hash(0, &both[1]));
        assert_eq!(
            both,
            [
                KvEvent::Stored { space, hashes: vec![h1, h2], parent: None, tokens: vec![1, 2, 3, 4], block_size: 2 },
                KvEvent::Stored { space, hashes: vec![h3], parent: Some(h1), tokens: vec![5, 6], block_size: 2 },
            ]
        );
        drop((first, second));
        pool.reset_prefix_cache();
        let [KvEvent::Removed { hashes, .. }] = &events(changes.lock().unwrap().take())[..] else {
            panic!("not removed")
        };
        let mut hashes = hashes.clone();
        hashes.sort_unstable();
        let mut all = [h1, h2, h3];
        all.sort_unstable();
        assert_eq!(hashes, all);
    }
}
