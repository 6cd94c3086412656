//! `--trace-kv`: writes KV block events, one JSON object per line.
//!
//! The first line gives the sizes: `{"event":"pools","block_size":16,"cache":100,"swap":100}`. Every other line belongs
//! to one of the two pools (`space`) and has the fields of its [`BlockEvent`]. Lines between two `step` lines of a pool
//! happened during one step. The `step` line has the pool's gauges while that step runs.
//!
//! If the model has several groups of layers, the first line lists them, and counts pages instead of blocks. Lines about
//! blocks then have the index of their `group`. Blocks of the groups differ in size, so `step` lines count memory in units:
//! a page has `units_per_page` of them, and a block has a page's units divided by `blocks_per_page`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use engine::Llm;
use engine::tools::kv::{BlockEvent, CacheGroup, EventLog, SharedLog, Space};
use serde_json::{Value, json};

/// A trace file that is being written.
pub struct KvTrace {
    path: String,
    file: Arc<Mutex<TraceFile>>,
}

struct TraceFile {
    out: BufWriter<File>,
    steps: usize,
    /// The number of groups of layers.
    groups: usize,
    /// The first write error.
    failed: Option<io::Error>,
}

impl KvTrace {
    /// Creates the file and starts to log the KV block events of `llm`.
    pub fn begin(path: &str, llm: &mut Llm) -> Result<Self> {
        let out = BufWriter::new(File::create(path).with_context(|| format!("cannot create {path}"))?);
        let config = llm.engine().config();
        let groups = config.groups.len();
        let file = Arc::new(Mutex::new(TraceFile { out, steps: 0, groups, failed: None }));
        let mut pools = json!({
            "event": "pools",
            "block_size": config.block_size,
            "cache": config.num_blocks,
            "swap": config.swap_blocks,
        });
        if groups > 1 {
            let group = |group: &CacheGroup| json!({"window": group.window, "blocks_per_page": group.blocks_per_page});
            pools["groups"] = config.groups.iter().map(group).collect();
            pools["units_per_page"] = json!(units_per_page(&config.groups));
        }
        file.lock().unwrap_or_else(PoisonError::into_inner).line(&pools);
        let log: SharedLog = file.clone();
        llm.set_kv_log(log);
        Ok(KvTrace { path: path.into(), file })
    }

    /// Writes the buffered lines, and returns the first error of any write.
    pub fn finish(self) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.out.flush();
        file.failed.take().map_or(written, Err).with_context(|| format!("cannot write {}", self.path))
    }
}

/// The units in a page: the least common multiple of the groups' blocks in a page.
fn units_per_page(groups: &[CacheGroup]) -> usize {
    let is_common = |units: &usize| groups.iter().all(|group| units.is_multiple_of(group.blocks_per_page));
    (1..).find(is_common).unwrap_or(1)
}

impl TraceFile {
    fn line(&mut self, value: &Value) {
        if let Err(error) = writeln!(self.out, "{value}") {
            self.failed.get_or_insert(error);
        }
    }
}

impl EventLog for TraceFile {
    fn record(&mut self, space: Space, group: usize, event: BlockEvent) {
        let is_of_block = !matches!(event, BlockEvent::Step(_));
        let mut line = match event {
            BlockEvent::Allocate(block) => json!({"event": "allocate", "block": block}),
            BlockEvent::Share(block) => json!({"event": "share", "block": block}),
            BlockEvent::Fill { block, slots } => json!({"event": "fill", "block": block, "slots": slots}),
            BlockEvent::Register { block, .. } => json!({"event": "register", "block": block}),
            BlockEvent::Free(block) => json!({"event": "free", "block": block}),
            BlockEvent::Evict(block) => json!({"event": "evict", "block": block}),
            BlockEvent::Copy { src, dst } => json!({"event": "copy", "src": src, "dst": dst}),
            BlockEvent::Swap { src, dst } => json!({"event": "swap", "src": src, "dst": dst}),
            BlockEvent::Step(usage) => {
                self.steps += usize::from(space == Space::Cache);
                json!({
                    "event": "step",
                    "step": self.steps,
                    "used": usage.used_blocks,
                    "shared": usage.shared_blocks,
                    "cached": usage.cached_blocks,
                    "filled_slots": usage.filled_slots,
                })
            }
        };
        line["space"] = json!(match space {
            Space::Cache => "cache",
            Space::Swap => "swap",
        });
        if is_of_block && self.groups > 1 {
            line["group"] = json!(group);
        }
        self.line(&line);
    }
}
