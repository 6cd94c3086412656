//! A snapshot of the KV memory and the queues, for `GET /debug/state`.
//!
//! ```json
//! {
//!   "time": 12.5,                       // seconds since the model was loaded: identifies a snapshot
//!   "block_size": 16, "num_blocks": 8192, // with several groups of layers, all numbers of blocks count pages
//!   "engine": {"device": "CPU", "notes": [], "dtype": "f32", "kv_dtype": "f32", "max_len": 512, "max_num_seqs": 256,
//!              "max_batch_tokens": 2048, "max_request_share": 0.5, "swap_blocks": 8192,
//!              "block_bytes": 147456,   // the engine's device and limits
//!              "groups": [{"layers": 6, "heads": 6, "head_dim": 48, "window": null, "blocks_per_page": 1}]},
//!   "refs": [[0, 7], [2, 1], [0, 4], [1, 1], [0, 8179]],  // reference counts of all blocks, from block 0:
//!                                       // [count, number of consecutive blocks]; the tables name the owners
//!   "cached": [[7, 1]],                 // blocks kept only for the prefix cache: [first, number of blocks]
//!   "swap_used": 0,                     // swap blocks that requests use
//!   "swap_cached": 0,                   // swap blocks kept only for the prefix cache
//!   "running": [                        // oldest first
//!     {"id": 3, "prompt_tokens": 9,
//!      "max_tokens": 400,               // maximum tokens of an output
//!      "age": 0.8,                      // seconds since it arrived
//!      "begun": true,                   // false if it waits and has no generated token yet
//!      "swapped": false,                // whether its tables list blocks of the swap space
//!      "sequences": [
//!        {"index": 0,                   // index of the output or beam. Some may wait while others run
//!         "tokens": 14,                 // prompt and output so far
//!         "computed": 13,               // tokens whose keys and values are in the cache
//!         "table": [7, 12]}             // physical blocks, in logical order
//!      ]}
//!   ],
//!   "waiting": [ .. ],                  // same form, includes preempted requests
//!   "totals": {"steps": 900, "computed_tokens": 4000, "generated_tokens": 3500, "preemptions": 0, "copied_blocks": 2,
//!              "offloaded_blocks": 0, "restored_blocks": 0}
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use engine::SamplingParams;
use engine::tools::group::{RequestId, SequenceGroup};
use engine::tools::kv::KvGroup;
use engine::{DeviceInfo, Llm, SchedulerOptions};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The KV memory and the queues at one moment. The module's documentation shows the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Seconds since the model was loaded.
    pub time: f64,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// The engine's device and limits.
    pub engine: EngineFacts,
    /// Reference counts of all blocks in order, run-length encoded: a count, and the number of consecutive blocks that
    /// have it.
    pub refs: Vec<(u32, usize)>,
    /// Unreferenced blocks kept for the prefix cache, as ranges: the first block, and the number of blocks.
    pub cached: Vec<(usize, usize)>,
    /// Blocks of the swap space that requests use.
    pub swap_used: usize,
    /// Blocks of the swap space kept only for the prefix cache.
    pub swap_cached: usize,
    /// The running requests.
    pub running: Vec<RequestState>,
    /// The waiting requests.
    pub waiting: Vec<RequestState>,
    /// Counters since the model was loaded.
    pub totals: Totals,
}

/// An engine's device and limits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineFacts {
    /// The device's name.
    pub device: String,
    /// Limitations that a user should know, one sentence each.
    pub notes: Vec<String>,
    /// The data type of the weights.
    pub dtype: String,
    /// The data type of keys and values.
    pub kv_dtype: String,
    /// Maximum positions of a sequence.
    pub max_len: usize,
    /// The scheduler's options. Only its limits are serialised.
    #[serde(flatten, serialize_with = "bounds")]
    pub scheduler: SchedulerOptions,
    /// Blocks in the swap space.
    pub swap_blocks: usize,
    /// Bytes per block. With several groups of layers, bytes per page.
    pub block_bytes: usize,
    /// The groups of layers that have blocks of their own.
    pub groups: Vec<GroupFacts>,
}

/// A group of layers with equal heads and equal windows, or with states of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupFacts {
    /// Its number of layers.
    pub layers: usize,
    /// Key/value heads per layer. 0 for states.
    pub heads: usize,
    /// Elements per head. 0 for states.
    pub head_dim: usize,
    /// The number of tokens that the window covers. `None` for all, and for states.
    pub window: Option<usize>,
    /// Bytes of a sequence's states in all its layers. `None` for keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<usize>,
    /// Its blocks in a page.
    pub blocks_per_page: usize,
}

impl From<&KvGroup> for GroupFacts {
    fn from(group: &KvGroup) -> Self {
        GroupFacts {
            layers: group.layers.len(),
            heads: group.heads,
            head_dim: group.head_dim,
            window: group.window.filter(|_| group.state.is_none()),
            state_bytes: group.state_bytes(),
            blocks_per_page: group.blocks_per_page,
        }
    }
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestState {
    /// The engine's id of the request.
    pub id: RequestId,
    /// Length of its prompt.
    pub prompt_tokens: usize,
    /// Maximum tokens of an output.
    pub max_tokens: usize,
    /// Seconds since it arrived.
    pub age: f64,
    /// Whether it runs, or has generated tokens before it was preempted.
    pub begun: bool,
    /// Whether the tables of its sequences list blocks of the swap space.
    pub swapped: bool,
    /// Its unfinished sequences.
    pub sequences: Vec<SequenceState>,
}

/// The state of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SequenceState {
    /// Its index among the request's sequences.
    pub index: usize,
    /// Tokens of prompt and output.
    pub tokens: usize,
    /// Tokens whose keys and values are in the cache.
    pub computed: usize,
    /// Physical blocks in logical order.
    pub table: Vec<u32>,
}

/// Counters since the model was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Steps of the engine.
    pub steps: usize,
    /// Tokens run through the model.
    pub computed_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Preempted requests.
    pub preemptions: usize,
    /// Blocks copied on write.
    pub copied_blocks: usize,
    /// Cached blocks moved to the swap space when they were evicted.
    pub offloaded_blocks: usize,
    /// Blocks restored from the swap space for a prefix.
    pub restored_blocks: usize,
}

impl Snapshot {
    /// Takes a snapshot of `llm`, which was loaded at `loaded`.
    pub(super) fn of(llm: &Llm, loaded: Instant) -> Self {
        let (engine, stats) = (llm.engine(), llm.stats());
        let now = Instant::now();
        let (running, waiting) = requests(llm, now);
        let (swap_used, swap_cached) = engine.scheduler().swap_pages();
        Snapshot {
            time: (now - loaded).as_secs_f64(),
            block_size: engine.config().block_size,
            num_blocks: engine.config().num_blocks,
            engine: facts(llm),
            refs: runs(&engine.scheduler().page_references()),
            cached: rows(&engine.scheduler().cached_pages()),
            swap_used,
            swap_cached,
            running,
            waiting,
            totals: Totals {
                steps: stats.steps,
                computed_tokens: stats.computed_tokens,
                generated_tokens: stats.sampled_tokens,
                preemptions: stats.preemptions,
                copied_blocks: stats.copied_blocks,
                offloaded_blocks: stats.offloaded_blocks,
                restored_blocks: stats.restored_blocks,
            },
        }
    }
}

/// Serialises the limits of a step, and the maximum share of it that one HTTP request may get.
fn bounds<S: Serializer>(options: &SchedulerOptions, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(3))?;
    map.serialize_entry("max_num_seqs", &options.max_num_seqs)?;
    map.serialize_entry("max_batch_tokens", &options.max_batch_tokens)?;
    map.serialize_entry("max_request_share", &options.max_request_share)?;
    map.end()
}

fn facts(llm: &Llm) -> EngineFacts {
    let (device, layout, config) = (llm.device(), llm.kv_layout(), llm.engine().config());
    EngineFacts {
        device: device.name.clone(),
        notes: device.notes.clone(),
        dtype: weights_type(device),
        kv_dtype: layout.dtype.to_string(),
        max_len: llm.engine().context_len(&[], &SamplingParams::default()),
        scheduler: config.scheduler,
        swap_blocks: config.swap_blocks,
        block_bytes: layout.page_bytes(),
        groups: layout.groups.iter().map(GroupFacts::from).collect(),
    }
}

/// Returns the types of the weights that dominate a step's reads: the quantised types, or else the model's data type.
fn weights_type(device: &DeviceInfo) -> String {
    match device.quantised.as_slice() {
        [] => device.dtype.to_string(),
        kinds => kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the running and the waiting requests. A request may consist of several groups, and runs if one of them does.
/// Waiting groups of a running request hold no blocks, so their tables are empty.
fn requests(llm: &Llm, now: Instant) -> (Vec<RequestState>, Vec<RequestState>) {
    let scheduler = llm.engine().scheduler();
    let swapped: BTreeSet<RequestId> = scheduler.swapped().collect();
    let untouched: BTreeSet<RequestId> = scheduler.untouched().into_iter().map(|group| group.id).collect();
    let mut all: Vec<RequestState> = Vec::new();
    let mut places: BTreeMap<RequestId, usize> = BTreeMap::new();
    let mut num_running = 0;
    let groups = scheduler.running().iter().map(|group| (group, true));
    for (group, runs) in groups.chain(scheduler.waiting().map(|group| (group, false))) {
        let at = *places.entry(group.id).or_insert_with(|| {
            let begun = !untouched.contains(&group.id);
            all.push(request(group, begun, !runs && swapped.contains(&group.id), now));
            all.len() - 1
        });
        num_running += usize::from(runs && at == num_running);
        let holds = runs || at >= num_running;
        all[at].sequences.extend(sequences(group, holds));
    }
    let waiting = all.split_off(num_running);
    (all, waiting)
}

/// Returns a request without its sequences.
fn request(group: &SequenceGroup, begun: bool, swapped: bool, now: Instant) -> RequestState {
    RequestState {
        id: group.id,
        prompt_tokens: group.running.first().map_or(0, |seq| seq.prompt_len),
        max_tokens: group.params.max_tokens,
        age: (now - group.arrival).as_secs_f64(),
        begun,
        swapped,
        sequences: Vec::new(),
    }
}

fn sequences(group: &SequenceGroup, holds: bool) -> impl Iterator<Item = SequenceState> {
    group.running.iter().enumerate().map(move |(i, seq)| SequenceState {
        index: if group.params.beam.is_some() { i } else { seq.index },
        tokens: seq.tokens.len(),
        computed: if holds { seq.table.len() } else { 0 },
        table: if holds { seq.table.pages() } else { Vec::new() },
    })
}

/// Run-length encodes `values`: each value, and the number of its consecutive repetitions. The counts of many blocks
/// would be long if written one by one.
fn runs(values: &[u32]) -> Vec<(u32, usize)> {
    values.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// Returns the ranges of consecutive numbers: the first of each, and its length.
fn rows(numbers: &[u32]) -> Vec<(usize, usize)> {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|row| (row[0] as usize, row.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::{rows, runs};

    #[test]
    fn rows_are_of_consecutive_numbers() {
        assert_eq!(rows(&[2, 3, 4, 7, 9, 10]), [(2, 3), (7, 1), (9, 2)]);
        assert!(rows(&[]).is_empty());
    }

    #[test]
    fn runs_are_of_equal_neighbours() {
        assert_eq!(runs(&[0, 0, 2, 1, 1, 1, 0]), [(0, 2), (2, 1), (1, 3), (0, 1)]);
        assert_eq!(runs(&[0; 40_000]), [(0, 40_000)]);
        assert!(runs(&[]).is_empty());
    }
}
