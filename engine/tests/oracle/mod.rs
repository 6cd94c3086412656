//! An oracle that replaces a model. Like keys and values, what it stores for a token depends on the token and on
//! everything stored for the tokens before it, which it reads through the block table. Logits are drawn from a hash of
//! the context. So any error in the paged memory changes all later results.

#![allow(dead_code)] // not every test uses all of it

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use engine::SchedulerOptions;
use engine::tools::batch::Batch;
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::kv::{BlockCopy, BlockMoves, BlockTable, Space};
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{SampleRow, SamplingParams, sample_row};
use engine::{Error, Result};

/// The number of tokens in the oracle's vocabulary.
pub const VOCAB: u32 = 12;
/// The end-of-sequence token.
pub const EOS: u32 = 0;

/// The oracle's stand-in for a token's key and value.
pub type Kept = u64;

/// The slots of the cache and of the swap space.
#[derive(Debug, Default)]
pub struct Memory {
    cache: Vec<Option<Kept>>,
    swap: Vec<Option<Kept>>,
}

/// A runner that computes the oracle's values and logits.
pub struct Oracle {
    block_size: usize,
    max_num_seqs: usize,
    window: Option<usize>,
    memory: Arc<Mutex<Memory>>,
}

impl Oracle {
    /// An oracle with the memory that `config` describes.
    pub fn new(config: &EngineConfig) -> Box<Self> {
        let memory = Memory::new(config);
        let EngineConfig { block_size, window, scheduler: SchedulerOptions { max_num_seqs, .. }, .. } = *config;
        Box::new(Oracle { block_size, max_num_seqs, window, memory: Arc::new(Mutex::new(memory)) })
    }

    /// The oracle's memory, for inspection.
    pub fn memory(&self) -> Arc<Mutex<Memory>> {
        self.memory.clone()
    }
}

/// A hash of everything stored for a context, in order.
struct Reader(Kept);

impl Reader {
    fn new() -> Self {
        Reader(0x9E37_79B9_7F4A_7C15)
    }

    /// The value to store for `token` after the context.
    fn keep(&self, token: u32) -> Kept {
        let mixed = (self.0 ^ u64::from(token)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    /// Adds the value stored for a token to the context.
    fn read(&mut self, kept: Kept) {
        self.0 = (self.0.rotate_left(23) ^ kept).wrapping_mul(0x94D0_49BB_1331_11EB);
    }
}

/// The values stored for `tokens` if a sequence has contiguous memory of its own.
pub fn contiguous(tokens: &[u32], window: Option<usize>) -> Vec<Kept> {
    let mut all: Vec<Kept> = Vec::new();
    let mut reader = Reader::new();
    for (p, &token) in tokens.iter().enumerate() {
        if window.is_some() {
            reader = Reader::new();
            all[first_seen(p, window)..].iter().for_each(|kept| reader.read(*kept));
        }
        let kept = reader.keep(token);
        reader.read(kept);
        all.push(kept);
    }
    all
}

/// The first position that position `p` attends to.
pub fn first_seen(p: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (p + 1).saturating_sub(window))
}

impl Memory {
    /// A memory with the slots that `config` describes, all unwritten.
    pub fn new(config: &EngineConfig) -> Self {
        let slots = |blocks: usize| vec![None; blocks * config.block_size];
        Memory { cache: slots(config.num_blocks), swap: slots(config.swap_blocks) }
    }

    /// The contents of a slot of the cache.
    pub fn slot(&mut self, slot: usize) -> &mut Option<Kept> {
        &mut self.cache[slot]
    }

    /// The contents of a table's slots in logical order, without blocks that it has given back.
    pub fn read(&self, table: &BlockTable, swapped: bool) -> Vec<Option<Kept>> {
        let slots = if swapped { &self.swap } else { &self.cache };
        let num_freed = table.blocks().len() - table.live_blocks().len();
        (num_freed * table.pool().block_size()..table.len()).map(|p| slots[table.slot(p) as usize]).collect()
    }

    /// The contents of a block of the cache or of the swap space.
    pub fn block(&self, space: Space, block: u32, block_size: usize) -> &[Option<Kept>] {
        let slots = match space {
            Space::Cache => &self.cache,
            Space::Swap => &self.swap,
        };
        &slots[block as usize * block_size..][..block_size]
    }

    /// Erases the memory.
    pub fn lose(&mut self) {
        self.cache.iter_mut().chain(&mut self.swap).for_each(|slot| *slot = None);
    }

    /// Makes the block moves of a step.
    pub fn move_blocks(&mut self, block_size: usize, BlockMoves { swap_out, swap_in, copies }: &BlockMoves) {
        write(&mut self.swap, read(&self.cache, block_size, swap_out));
        write(&mut self.cache, read(&self.swap, block_size, swap_in));
        let sources: HashSet<u32> = copies.iter().map(|c| c.src).collect();
        assert!(copies.iter().all(|c| !sources.contains(&c.dst)), "a block is both source and destination of copies");
        let copied = read(&self.cache, block_size, copies);
        write(&mut self.cache, copied);
    }
}

/// Reads the source blocks of `moves`. Returns each with the first slot of its destination.
fn read(from: &[Option<Kept>], block_size: usize, moves: &[BlockCopy]) -> Vec<(usize, Vec<Option<Kept>>)> {
    let targets: HashSet<u32> = moves.iter().map(|c| c.dst).collect();
    assert_eq!(targets.len(), moves.len(), "a block is moved to twice");
    let block = |id: u32| id as usize * block_size..(id as usize + 1) * block_size;
    moves.iter().map(|c| (block(c.dst).start, from[block(c.src)].to_vec())).collect()
}

fn write(to: &mut [Option<Kept>], blocks: Vec<(usize, Vec<Option<Kept>>)>) {
    blocks.into_iter().for_each(|(start, block)| to[start..start + block.len()].copy_from_slice(&block));
}

impl Runner for Oracle {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed> {
        assert!(rows.len() <= self.max_num_seqs, "{} rows of logits are too many", rows.len());
        let mut memory = self.memory.lock().unwrap();
        memory.move_blocks(self.block_size, &batch.moves);
        assert_eq!(batch.slots.iter().collect::<HashSet<_>>().len(), batch.slots.len(), "a slot is written twice");
        let mut last_rows = BTreeMap::new();
        for span in &batch.spans {
            let slot = |p: usize| {
                let block = batch.blocks[span.table + p / self.block_size] as usize;
                block * self.block_size + p % self.block_size
            };
            let begin = span.context - span.len;
            let read = |cache: &[Option<Kept>], p: usize| {
                let mut reader = Reader::new();
                let seen = first_seen(p, self.window)..p;
                seen.for_each(|p| reader.read(cache[slot(p)].expect("read of an unwritten slot")));
                reader
            };
            let mut reader = read(&memory.cache, begin);
            for (row, p) in (span.start..).zip(begin..span.context) {
                if self.window.is_some() {
                    reader = read(&memory.cache, p);
                }
                assert_eq!((batch.positions[row] as usize, batch.slots[row] as usize), (p, slot(p)));
                let kept = reader.keep(batch.tokens[row]);
                memory.cache[slot(p)] = Some(kept);
                reader.read(kept);
                last_rows.insert(row, kept);
            }
        }
        assert_eq!(rows.len(), batch.logit_rows.len());
        let mut sampled = Vec::new();
        for (row, at) in rows.iter().zip(&batch.logit_rows) {
            let context = [row.prompt, row.output].concat();
            let kept = contiguous(&context, self.window).pop();
            assert_eq!(last_rows.get(&(*at as usize)).copied(), kept, "a sequence read values of another context");
            sampled.push(sample_row(&logits(&context), row, &mut Vec::new())?);
        }
        let hidden = batch.hidden_rows.iter().map(|row| hidden(last_rows[&(*row as usize)])).collect();
        Ok(Computed { sampled, hidden })
    }
}

/// The hidden state of a token with this stored value.
pub fn hidden(kept: Kept) -> Vec<f32> {
    (0..3).map(|i| (kept >> (20 * i) & 0xFFFF) as f32 - 32_000.0).collect()
}

/// The logits of the token after `context`.
pub fn logits(context: &[u32]) -> Vec<f32> {
    let hash = |t: u32| {
        let mut h = DefaultHasher::new();
        (context, t).hash(&mut h);
        (h.finish() % 10_000) as f32 / 2_500.0
    };
    (0..VOCAB).map(hash).collect()
}

/// Scheduler options of the tests: owners are ignored.
pub fn scheduler_options() -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens: 512, max_request_share: 1.0, ..SchedulerOptions::default() }
}

/// The configuration of an engine for the oracle's vocabulary.
pub fn config(num_blocks: usize, block_size: usize) -> EngineConfig {
    EngineConfig {
        num_blocks,
        block_size,
        swap_blocks: num_blocks,
        window: None,
        max_len: 1000,
        vocab_size: VOCAB as usize,
        eos: vec![EOS],
        scheduler: scheduler_options(),
    }
}

/// An engine whose model is the oracle.
pub fn engine(config: EngineConfig) -> Engine {
    let oracle = Oracle::new(&config);
    Engine::new(config, oracle)
}

/// Steps until no work is left, and checks the integrity after each step. Returns the finished requests, ordered by id.
pub fn finish(engine: &mut Engine) -> Vec<Finished> {
    let mut done = Vec::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished);
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
    done.sort_by_key(|done| done.id);
    done
}

/// Greedy decoding of exactly `max_tokens` tokens.
pub fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, ..Default::default() }
}

/// A device that fails once, when told to, and loses its memory.
pub struct Fails {
    oracle: Box<Oracle>,
    now: Arc<AtomicBool>,
}

impl Fails {
    /// An oracle that fails in the first step after `now` is set.
    pub fn when(now: Arc<AtomicBool>, config: &EngineConfig) -> Box<Self> {
        Box::new(Fails { oracle: Oracle::new(config), now })
    }
}

impl Runner for Fails {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed> {
        if self.now.swap(false, Relaxed) {
            self.oracle.memory().lock().unwrap().lose();
            return Err(Error::Memory("lost".into()));
        }
        self.oracle.run(batch, rows)
    }
}
