//! An oracle in place of a model. As keys and values do, what it keeps for a token depends on the token and on all that
//! was kept for those before it, read through the block table; logits are drawn from a hash of the context. So every
//! lie of the memory shows in all that follows it.

#![allow(dead_code)] // not every test needs all of it

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use engine::batch::Batch;
use engine::engine::{Engine, EngineConfig, Finished};
use engine::kv::{BlockCopy, BlockMoves, BlockTable, Space};
use engine::runner::{Computed, Runner};
use engine::sampling::{SampleRow, SamplingParams, sample_row};
use engine::scheduler::SchedulerOptions;
use engine::{Error, Result};

/// Tokens of the oracle's language.
pub const VOCAB: u32 = 12;
/// The one that ends a sequence.
pub const EOS: u32 = 0;

/// What is kept for a token.
pub type Kept = u64;

/// The slots of the cache and of the swap space.
#[derive(Debug, Default)]
pub struct Memory {
    cache: Vec<Option<Kept>>,
    swap: Vec<Option<Kept>>,
}

/// See the module.
pub struct Oracle {
    block_size: usize,
    max_num_seqs: usize,
    window: Option<usize>,
    memory: Arc<Mutex<Memory>>,
}

impl Oracle {
    /// With memory for what `config` says.
    pub fn new(config: &EngineConfig) -> Box<Self> {
        let memory = Memory::new(config);
        let EngineConfig { block_size, window, scheduler: SchedulerOptions { max_num_seqs, .. }, .. } = *config;
        Box::new(Oracle { block_size, max_num_seqs, window, memory: Arc::new(Mutex::new(memory)) })
    }

    /// Its memory, for looking at.
    pub fn memory(&self) -> Arc<Mutex<Memory>> {
        self.memory.clone()
    }
}

/// All that was kept for a context, one after the other.
struct Reader(Kept);

impl Reader {
    fn new() -> Self {
        Reader(0x9E37_79B9_7F4A_7C15)
    }

    /// What is to be kept for a `token` after the context.
    fn keep(&self, token: u32) -> Kept {
        let mixed = (self.0 ^ u64::from(token)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    /// Adds what was kept for a token to the context.
    fn read(&mut self, kept: Kept) {
        self.0 = (self.0.rotate_left(23) ^ kept).wrapping_mul(0x94D0_49BB_1331_11EB);
    }
}

/// What is kept for `tokens` when a sequence has memory of its own, contiguous.
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

/// The first position that position `p` sees.
pub fn first_seen(p: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (p + 1).saturating_sub(window))
}

impl Memory {
    /// With the slots that `config` says, none of them written.
    pub fn new(config: &EngineConfig) -> Self {
        let slots = |blocks: usize| vec![None; blocks * config.block_size];
        Memory { cache: slots(config.num_blocks), swap: slots(config.swap_blocks) }
    }

    /// What a slot of the cache holds.
    pub fn slot(&mut self, slot: usize) -> &mut Option<Kept> {
        &mut self.cache[slot]
    }

    /// What a table's slots hold, in logical order, but for blocks that it has given back.
    pub fn read(&self, table: &BlockTable, swapped: bool) -> Vec<Option<Kept>> {
        let slots = if swapped { &self.swap } else { &self.cache };
        let gone = table.blocks().len() - table.held().len();
        (gone * table.pool().block_size()..table.len()).map(|p| slots[table.slot(p) as usize]).collect()
    }

    /// What a block of the cache or of the swap space holds.
    pub fn block(&self, space: Space, block: u32, block_size: usize) -> &[Option<Kept>] {
        let slots = match space {
            Space::Cache => &self.cache,
            Space::Swap => &self.swap,
        };
        &slots[block as usize * block_size..][..block_size]
    }

    /// Forgets all that was kept.
    pub fn lose(&mut self) {
        self.cache.iter_mut().chain(&mut self.swap).for_each(|slot| *slot = None);
    }

    /// Moves blocks as a step says.
    pub fn move_blocks(&mut self, block_size: usize, BlockMoves { swap_out, swap_in, copies }: &BlockMoves) {
        write(&mut self.swap, read(&self.cache, block_size, swap_out));
        write(&mut self.cache, read(&self.swap, block_size, swap_in));
        let sources: HashSet<u32> = copies.iter().map(|c| c.src).collect();
        assert!(copies.iter().all(|c| !sources.contains(&c.dst)), "a block is copied from and to");
        let copied = read(&self.cache, block_size, copies);
        write(&mut self.cache, copied);
    }
}

/// What the `moves` read, and the slot from which on it is to be written.
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
        assert!(rows.len() <= self.max_num_seqs, "there is no room for {} rows of logits", rows.len());
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
                seen.for_each(|p| reader.read(cache[slot(p)].expect("a slot is read that nobody wrote")));
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
            assert_eq!(last_rows.get(&(*at as usize)).copied(), kept, "a sequence reads what is not its own");
            sampled.push(sample_row(&logits(&context), row, &mut Vec::new())?);
        }
        let hidden = batch.hidden_rows.iter().map(|row| hidden(last_rows[&(*row as usize)])).collect();
        Ok(Computed { sampled, hidden })
    }
}

/// The hidden state of a token for which this was kept.
pub fn hidden(kept: Kept) -> Vec<f32> {
    (0..3).map(|i| (kept >> (20 * i) & 0xFFFF) as f32 - 32_000.0).collect()
}

/// What follows `context`.
pub fn logits(context: &[u32]) -> Vec<f32> {
    let hash = |t: u32| {
        let mut h = DefaultHasher::new();
        (context, t).hash(&mut h);
        (h.finish() % 10_000) as f32 / 2_500.0
    };
    (0..VOCAB).map(hash).collect()
}

/// How requests are scheduled unless a test says otherwise: without owners.
pub fn scheduler_options() -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens: 512, max_request_share: 1.0, ..SchedulerOptions::default() }
}

/// An engine over the oracle that keeps to the oracle's language.
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

/// Steps until nothing is left to do, with the integrity checked after each. Returns what is finished, in the order of the
/// requests.
pub fn finish(engine: &mut Engine) -> Vec<Finished> {
    let mut done = Vec::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished);
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
    done.sort_by_key(|done| done.id);
    done
}

/// So many of the likeliest tokens, whatever they are.
pub fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, ..Default::default() }
}

/// A device that fails once, when it is told to, and loses its memory.
pub struct Fails {
    oracle: Box<Oracle>,
    now: Arc<AtomicBool>,
}

impl Fails {
    /// An oracle that fails in the step after `now` was set.
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
