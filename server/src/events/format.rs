//! Encodes batches of events in vLLM's MessagePack format: `[time, [event, ...], rank]`.

use std::sync::Arc;

use engine::tools::kv::{CacheChange, CacheGroup, Place, Space};
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
/// The value of fields that Quire does not use: numbers of adapters, and extra keys that tell blocks with equal tokens apart.
const NONE: Option<u64> = None;

/// The blocks of a pool that belong to a group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPlace {
    /// The pool.
    pub space: Space,
    /// The group, if the cache has several or its only one has latent vectors. Other events do not mention it.
    pub group: Option<EventGroup>,
}

/// A group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventGroup {
    /// Its index.
    pub index: usize,
    /// Its sliding window. `None` if it keeps states.
    pub window: Option<usize>,
    /// Whether it keeps states of recurrent layers.
    pub is_state: bool,
    /// Whether keys contain the values.
    pub is_latent: bool,
}

impl EventGroup {
    fn new(index: usize, group: &CacheGroup) -> Self {
        let window = group.attention_window();
        EventGroup { index, window, is_state: group.is_state(), is_latent: group.is_latent }
    }

    /// Returns vLLM's name for the kind of cache.
    fn kind(self) -> &'static str {
        match self.window {
            _ if self.is_state => "mamba",
            None if self.is_latent => "mla_attention",
            Some(_) => "sliding_window",
            None => "full_attention",
        }
    }
}

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks with consecutive tokens were stored.
    Stored {
        /// The pool and the group that store them.
        place: EventPlace,
        /// The hash of each block, in order.
        hashes: Vec<u64>,
        /// The hash of the block before the first, if any.
        parent: Option<u64>,
        /// The tokens of all blocks.
        tokens: Vec<u32>,
        /// Tokens per block.
        block_size: usize,
        /// The salt of the requests that share the first block, if it begins a prompt.
        salt: Option<Arc<str>>,
        /// The name of the adapter of the requests that share the blocks. Other names of the same adapter share them too.
        adapter: Option<Arc<str>>,
    },
    /// A pool no longer stores the blocks with these hashes.
    Removed {
        /// The pool and the group.
        place: EventPlace,
        /// The hashes of the blocks.
        hashes: Vec<u64>,
    },
    /// The whole cache was cleared.
    Cleared,
}

/// Converts changes of a cache with the given groups into events. Consecutive blocks in the same pool and group share
/// one event.
pub fn events(changes: Vec<CacheChange>, groups: &[CacheGroup]) -> Vec<KvEvent> {
    let place = |Place { space, group: index }: Place| {
        let group = groups.get(index).filter(|group| groups.len() > 1 || group.is_latent);
        EventPlace { space, group: group.map(|group| EventGroup::new(index, group)) }
    };
    let mut events: Vec<KvEvent> = Vec::new();
    for change in changes {
        match (events.last_mut(), change) {
            (Some(KvEvent::Stored { place: last, hashes, tokens, .. }), CacheChange::Stored(to, prefix))
                if *last == place(to) && prefix.parent().map(|parent| parent.hash()) == hashes.last().copied() =>
            {
                hashes.push(prefix.id().hash());
                tokens.extend(prefix.tokens());
            }
            (_, CacheChange::Stored(to, prefix)) => events.push(KvEvent::Stored {
                place: place(to),
                hashes: vec![prefix.id().hash()],
                parent: prefix.parent().map(|parent| parent.hash()),
                tokens: prefix.tokens().to_vec(),
                block_size: prefix.tokens().len(),
                salt: prefix.salt().cloned(),
                adapter: prefix.adapter().map(|adapter| adapter.name.clone()),
            }),
            (Some(KvEvent::Removed { place: last, hashes }), CacheChange::Removed(from, hash))
                if *last == place(from) =>
            {
                hashes.push(hash);
            }
            (_, CacheChange::Removed(from, hash)) => {
                events.push(KvEvent::Removed { place: place(from), hashes: vec![hash] });
            }
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

/// Returns the keys of each block besides its tokens. As in vLLM, only the first block of a salted prompt has one.
fn extra_keys(blocks: usize, salt: &Option<Arc<str>>) -> Vec<Option<[&str; 1]>> {
    let mut keys = vec![None; blocks];
    keys.iter_mut().take(1).for_each(|key| *key = salt.as_deref().map(|salt| [salt]));
    keys
}

fn as_map<S: Serializer>(event: &KvEvent, serializer: S) -> Result<S::Ok, S::Error> {
    match event {
        KvEvent::Stored { place: EventPlace { space, group }, hashes, parent, tokens, block_size, salt, adapter } => {
            let window = group.and_then(|group| group.window);
            let more = if group.is_some() { 2 + usize::from(window.is_some()) } else { 0 };
            let mut map = serializer.serialize_map(Some(9 + more))?;
            map.serialize_entry("type", "BlockStored")?;
            map.serialize_entry("block_hashes", hashes)?;
            map.serialize_entry("parent_block_hash", parent)?;
            map.serialize_entry("token_ids", tokens)?;
            map.serialize_entry("block_size", block_size)?;
            map.serialize_entry("lora_id", &NONE)?;
            map.serialize_entry("medium", medium(*space))?;
            map.serialize_entry("lora_name", &adapter.as_deref())?;
            map.serialize_entry("extra_keys", &extra_keys(hashes.len(), salt))?;
            if let Some(group) = group {
                map.serialize_entry("group_idx", &group.index)?;
                map.serialize_entry("kv_cache_spec_kind", group.kind())?;
            }
            if let Some(window) = window {
                map.serialize_entry("kv_cache_spec_sliding_window", &window)?;
            }
            map.end()
        }
        KvEvent::Removed { place: EventPlace { space, group }, hashes } => {
            let mut map = serializer.serialize_map(Some(3 + usize::from(group.is_some())))?;
            map.serialize_entry("type", "BlockRemoved")?;
            map.serialize_entry("block_hashes", hashes)?;
            map.serialize_entry("medium", medium(*space))?;
            if let Some(group) = group {
                map.serialize_entry("group_idx", &group.index)?;
            }
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
        KvEvent::Stored { place: EventPlace { space, group }, hashes, parent, tokens, block_size, salt, adapter } => {
            let mut array = serializer.serialize_tuple(if group.is_some() { 12 } else { 9 })?;
            array.serialize_element("BlockStored")?;
            array.serialize_element(hashes)?;
            array.serialize_element(parent)?;
            array.serialize_element(tokens)?;
            array.serialize_element(block_size)?;
            array.serialize_element(&NONE)?;
            array.serialize_element(medium(*space))?;
            array.serialize_element(&adapter.as_deref())?;
            array.serialize_element(&extra_keys(hashes.len(), salt))?;
            if let Some(group) = group {
                array.serialize_element(&group.index)?;
                array.serialize_element(group.kind())?;
                array.serialize_element(&group.window)?;
            }
            array.end()
        }
        KvEvent::Removed { place: EventPlace { space, group }, hashes } => match group {
            Some(group) => ("BlockRemoved", hashes, medium(*space), group.index).serialize(serializer),
            None => ("BlockRemoved", hashes, medium(*space)).serialize(serializer),
        },
        KvEvent::Cleared => ("AllBlocksCleared",).serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::sync::{Arc, Mutex};

    use engine::tools::kv::{BlockPool, CacheChanges, Space, prefix_hit};
    use serde_json::{Value, json};

    use super::*;

    /// Places of a cache with one group.
    const CACHE: EventPlace = EventPlace { space: Space::Cache, group: None };
    const SWAP: EventPlace = EventPlace { space: Space::Swap, group: None };

    fn stored() -> KvEvent {
        let tokens = vec![1, 2, 3, 70_000];
        KvEvent::Stored {
            place: CACHE,
            hashes: vec![u64::MAX, 5],
            parent: None,
            tokens,
            block_size: 2,
            salt: None,
            adapter: None,
        }
    }

    fn decoded(events: &[KvEvent], format: EventFormat) -> Value {
        rmp_serde::from_slice(&encode(1.5, events, format).unwrap()).unwrap()
    }

    #[test]
    fn events_are_maps_or_arrays() {
        let events = [stored(), KvEvent::Removed { place: SWAP, hashes: vec![7, 8] }, KvEvent::Cleared];
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

    #[test]
    fn a_salted_prompt_tells_its_salt_and_an_adapted_one_its_adapter() {
        let KvEvent::Stored { place, hashes, parent, tokens, block_size, .. } = stored() else { panic!("not stored") };
        let (salt, adapter) = (Some("tenant".into()), Some("tales".into()));
        let salted = [KvEvent::Stored { place, hashes, parent, tokens, block_size, salt, adapter }];
        let (map, array) = (decoded(&salted, EventFormat::Map), decoded(&salted, EventFormat::Array));
        let keys = json!([["tenant"], null]);
        assert_eq!((&map[1][0]["extra_keys"], &map[1][0]["lora_name"]), (&keys, &json!("tales")));
        assert_eq!((&array[1][0][8], &array[1][0][7]), (&keys, &json!("tales")));
    }

    #[test]
    fn events_of_a_cache_with_several_groups_name_the_group() {
        let states = EventGroup::new(2, &CacheGroup::states(7, 1, 1));
        let in_group = |group| EventPlace { space: Space::Cache, group: Some(group) };
        let kv = |index, window| EventGroup::new(index, &CacheGroup::only(window));
        let place = |index, window| in_group(kv(index, window));
        let latent = in_group(EventGroup { is_latent: true, ..kv(0, None) });
        let of = |place| KvEvent::Stored {
            place,
            hashes: vec![5],
            parent: None,
            tokens: vec![1, 2],
            block_size: 2,
            salt: None,
            adapter: None,
        };
        let removed = KvEvent::Removed { place: place(1, None), hashes: vec![5] };
        let events = [of(place(0, Some(128))), of(place(1, None)), removed, of(in_group(states)), of(latent)];
        let maps = decoded(&events, EventFormat::Map);
        let field = |event: usize, name: &str| maps[1][event][name].clone();
        assert_eq!((field(0, "group_idx"), field(0, "kv_cache_spec_kind")), (json!(0), json!("sliding_window")));
        assert_eq!(field(0, "kv_cache_spec_sliding_window"), json!(128));
        assert_eq!((field(1, "group_idx"), field(1, "kv_cache_spec_kind")), (json!(1), json!("full_attention")));
        assert_eq!((field(1, "kv_cache_spec_sliding_window"), field(2, "group_idx")), (Value::Null, json!(1)));
        assert_eq!((field(3, "group_idx"), field(3, "kv_cache_spec_kind")), (json!(2), json!("mamba")));
        assert_eq!(field(3, "kv_cache_spec_sliding_window"), Value::Null);
        assert_eq!((field(4, "group_idx"), field(4, "kv_cache_spec_kind")), (json!(0), json!("mla_attention")));
        let arrays = decoded(&events, EventFormat::Array);
        assert_eq!(arrays[1][0].as_array().unwrap()[9..], [json!(0), json!("sliding_window"), json!(128)]);
        assert_eq!(arrays[1][1].as_array().unwrap()[9..], [json!(1), json!("full_attention"), Value::Null]);
        assert_eq!(arrays[1][2], json!(["BlockRemoved", [5], "GPU", 1]));
    }

    /// msgspec writes the shortest form of every integer, and eight bytes for the time.
    #[test]
    fn the_bytes_equal_vllms() {
        let removed = [KvEvent::Removed { place: CACHE, hashes: vec![7, 0x0102_0304_0506_0708] }];
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
            let mut table = prefix_hit(&pool, tokens, false);
            table.reserve(tokens.len() - table.len(), &mut Vec::new()).unwrap();
            table.register(tokens);
            table
        };
        let first = known(&[1, 2, 3, 4]);
        let second = known(&[1, 2, 5, 6]);
        let both = events(changes.lock().unwrap().take(), pool.groups());
        let hash = |at: usize, of: &KvEvent| match of {
            KvEvent::Stored { hashes, .. } => hashes[at],
            _ => panic!("{of:?} stores nothing"),
        };
        let (h1, h2, h3) = (hash(0, &both[0]), hash(1, &both[0]), hash(0, &both[1]));
        assert_eq!(
            both,
            [
                KvEvent::Stored {
                    place: CACHE,
                    hashes: vec![h1, h2],
                    parent: None,
                    tokens: vec![1, 2, 3, 4],
                    block_size: 2,
                    salt: None,
                    adapter: None,
                },
                KvEvent::Stored {
                    place: CACHE,
                    hashes: vec![h3],
                    parent: Some(h1),
                    tokens: vec![5, 6],
                    block_size: 2,
                    salt: None,
                    adapter: None,
                },
            ]
        );
        drop((first, second));
        pool.reset_prefix_cache();
        let [KvEvent::Removed { hashes, .. }] = &events(changes.lock().unwrap().take(), pool.groups())[..] else {
            panic!("not removed")
        };
        let mut hashes = hashes.clone();
        hashes.sort_unstable();
        let mut all = [h1, h2, h3];
        all.sort_unstable();
        assert_eq!(hashes, all);
    }
}
