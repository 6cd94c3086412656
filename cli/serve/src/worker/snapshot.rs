//! What `GET /debug/state` shows: the KV memory and the queues at one moment.
//!
//! ```json
//! {
//!   "time": 12.5,                       // seconds since the model was loaded; tells snapshots apart
//!   "block_size": 16, "num_blocks": 8192,
//!   "blocks": [                         // those in use, ascending; all others are free
//!     {"id": 7, "refs": 2,              // reference count
//!      "owners": [[3, 0], [3, 1]],      // [request, sequence], as below; a sequence holds a block once
//!      "cached": false}                 // kept for a prefix, whether somebody uses it or not
//!   ],
//!   "running": [
//!     {"id": 3, "prompt_tokens": 9,     // oldest first
//!      "age": 0.8,                      // seconds since it came
//!      "sequences": [
//!        {"index": 0,                   // which output; for beams, which beam
//!         "tokens": 14,                 // prompt and output so far
//!         "computed": 13,               // those whose keys and values are in the cache
//!         "table": [7, 12]}             // physical blocks, in logical order
//!      ]}
//!   ],
//!   "waiting": [ .. ],                  // likewise; preempted requests are here
//!   "rates": {"steps": 210.0, "computed_tokens": 830.0, "generated_tokens": 800.0, "requests": 3.2}, // a second
//!   "totals": {"steps": 900, "computed_tokens": 4000, "generated_tokens": 3500, "preemptions": 0, "copied_blocks": 2}
//! }
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use engine::group::{RequestId, SequenceGroup};
use engine::llm::Llm;
use serde::Serialize;

use super::rates::{PerSecond, Rates};

/// The KV memory and the queues at one moment; see the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Seconds since the model was loaded.
    pub time: f64,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// The blocks in use.
    pub blocks: Vec<BlockState>,
    /// The requests that run.
    pub running: Vec<RequestState>,
    /// The requests that wait.
    pub waiting: Vec<RequestState>,
    /// What was done lately.
    pub rates: PerSecond,
    /// What was done since the model was loaded.
    pub totals: Totals,
}

/// A physical block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockState {
    /// Its number.
    pub id: u32,
    /// Its reference count.
    pub refs: usize,
    /// Requests and the indices of their sequences that hold it.
    pub owners: Vec<(RequestId, usize)>,
    /// Whether it is kept for a prefix.
    pub cached: bool,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestState {
    /// The engine's name for it.
    pub id: RequestId,
    /// Length of its prompt.
    pub prompt_tokens: usize,
    /// Seconds since it came.
    pub age: f64,
    /// Its sequences that still grow.
    pub sequences: Vec<SequenceState>,
}

/// A sequence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SequenceState {
    /// Which of the request's sequences.
    pub index: usize,
    /// Tokens of prompt and output.
    pub tokens: usize,
    /// Tokens that are in the cache.
    pub computed: usize,
    /// Physical blocks in logical order.
    pub table: Vec<u32>,
}

/// Counters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Steps of the engine.
    pub steps: usize,
    /// Tokens run through the model.
    pub computed_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Requests preempted.
    pub preemptions: usize,
    /// Blocks copied on write.
    pub copied_blocks: usize,
}

impl Snapshot {
    /// The present state of `llm`.
    pub(super) fn of(llm: &Llm, rates: &Rates) -> Self {
        let (engine, stats) = (llm.engine(), llm.stats());
        let mut blocks: BTreeMap<u32, BlockState> = BTreeMap::new();
        for group in engine.scheduler().running() {
            for (index, seq) in group.running.iter().enumerate() {
                for block in seq.table.blocks() {
                    let new =
                        || BlockState { id: block.id(), refs: block.num_refs(), owners: Vec::new(), cached: false };
                    blocks.entry(block.id()).or_insert_with(new).owners.push((group.id, index));
                }
            }
        }
        let now = Instant::now();
        Snapshot {
            time: rates.age(now).as_secs_f64(),
            block_size: engine.config().block_size,
            num_blocks: engine.config().num_blocks,
            blocks: blocks.into_values().collect(),
            running: engine.scheduler().running().iter().map(|g| request(g, now)).collect(),
            waiting: engine.scheduler().waiting().map(|g| request(g, now)).collect(),
            rates: rates.per_second(now),
            totals: Totals {
                steps: stats.steps,
                computed_tokens: stats.computed_tokens,
                generated_tokens: stats.sampled_tokens,
                preemptions: stats.preemptions,
                copied_blocks: stats.copied_blocks,
            },
        }
    }
}

fn request(group: &SequenceGroup, now: Instant) -> RequestState {
    let sequence = |(index, seq): (usize, &engine::sequence::Sequence)| SequenceState {
        index,
        tokens: seq.tokens.len(),
        computed: seq.table.len(),
        table: seq.table.blocks().iter().map(|b| b.id()).collect(),
    };
    RequestState {
        id: group.id,
        prompt_tokens: group.running.first().map_or(0, |seq| seq.prompt_len),
        age: (now - group.arrival).as_secs_f64(),
        sequences: group.running.iter().enumerate().map(sequence).collect(),
    }
}
