//! An oracle that replaces a model. Like keys and values, what it stores for a token depends on the token and on
//! everything stored for the tokens before it, which it reads through the block table. Logits are drawn from a hash of
//! the context. So any error in the paged memory changes all later results.

#![allow(dead_code)] // not every test uses all of it

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use engine::SchedulerOptions;
use engine::tools::adapter::{AdapterChange, AdapterHandle};
use engine::tools::batch::{Batch, Span};
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::kv::{BlockCopy, BlockMoves, BlockTable, CacheGroup, NO_BLOCK, Place, Space};
use engine::tools::load::adapter::{Adapter, AdapterDigest};
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{SampleRow, SamplingParams, sample_row};
use engine::{Error, Result};

/// The number of tokens in the oracle's vocabulary.
pub const VOCAB: u32 = 12;
/// The end-of-sequence token.
pub const EOS: u32 = 0;

/// The oracle's stand-in for a token's key and value.
pub type Kept = u64;

/// The memory of the cache and of the swap space. As on a device, pages pass from one group of layers to another, so a
/// block that is written by mistake changes what other groups read.
#[derive(Debug)]
pub struct Memory {
    cache: Vec<Option<Kept>>,
    swap: Vec<Option<Kept>>,
    block_size: usize,
    groups: Vec<CacheGroup>,
    /// For each group, the number of cells that a slot takes.
    cells: Vec<usize>,
}

/// A runner that computes the oracle's values and logits.
pub struct Oracle {
    block_size: usize,
    max_num_seqs: usize,
    groups: Vec<CacheGroup>,
    boundary: Option<usize>,
    memory: Arc<Mutex<Memory>>,
    max_loras: usize,
    adapters: Adapters,
}

impl Oracle {
    /// An oracle with the memory that `config` describes.
    pub fn new(config: &EngineConfig) -> Box<Self> {
        let memory = Memory::new(config);
        let EngineConfig { block_size, ref groups, scheduler, .. } = *config;
        let SchedulerOptions { max_num_seqs, max_loras, .. } = scheduler;
        let (groups, boundary) = (groups.clone(), config.boundary);
        let (memory, adapters) = (Arc::new(Mutex::new(memory)), Adapters::default());
        Box::new(Oracle { block_size, max_num_seqs, groups, boundary, memory, max_loras, adapters })
    }

    /// The oracle's memory, for inspection.
    pub fn memory(&self) -> Arc<Mutex<Memory>> {
        self.memory.clone()
    }
}

/// A hash of everything stored for a context, in order.
#[derive(Clone, Copy)]
struct Reader(Kept);

impl Reader {
    fn new() -> Self {
        Reader(0x9E37_79B9_7F4A_7C15)
    }

    /// The value to store for `token` in a group after the context of all groups.
    fn keep(all: &[Reader], token: u32, group: usize) -> Kept {
        let context = all.iter().fold(group as u64, |hash, reader| hash.rotate_left(17) ^ reader.0);
        let mixed = (context ^ u64::from(token)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    /// Adds the value stored for a token to the context.
    fn read(&mut self, kept: Kept) {
        self.0 = (self.0.rotate_left(23) ^ kept).wrapping_mul(0x94D0_49BB_1331_11EB);
    }
}

/// The mark of a sequence's tokens. The values of long and of short sequences differ, and so do those with different
/// adapters.
pub fn mark(is_long: bool, adapter: Option<&AdapterDigest>) -> u32 {
    (if is_long { 1 << 20 } else { 0 }) ^ adapter.map_or(0, |digest| u32::from(digest.0[0]) << 21)
}

/// Tokens as the oracle stores them, with their sequence's mark.
pub fn marked(tokens: &[u32], mark: u32) -> Vec<u32> {
    tokens.iter().map(|token| token ^ mark).collect()
}

/// An adapter without products, which the oracle tells from others by its number, at least 1.
pub fn adapter(number: u8, pages: usize) -> AdapterHandle {
    let digest = AdapterDigest([number; 32]);
    AdapterHandle::new(&format!("adapter-{number}"), Adapter { products: BTreeMap::new(), digest }, pages)
}

/// The adapters that are loaded, by slot.
#[derive(Debug, Default)]
struct Adapters(BTreeMap<u32, AdapterHandle>);

impl Adapters {
    /// Makes the changes of a step, and checks that its adapters are loaded and not too many.
    fn change(&mut self, batch: &Batch, max_loras: usize) {
        for change in &batch.adapter_changes {
            match change {
                AdapterChange::Load { slot, adapter } => {
                    assert!(!self.0.values().any(|other| other == adapter), "an adapter is loaded twice");
                    assert_eq!(self.0.insert(*slot, adapter.clone()), None, "a slot is loaded that is not empty");
                }
                AdapterChange::Drop { slot } => {
                    assert!(self.0.remove(slot).is_some(), "an empty slot is dropped");
                }
            }
        }
        let used: HashSet<u32> = batch.adapter_slots.iter().flatten().copied().collect();
        assert!(used.len() <= max_loras, "a step has {} adapters", used.len());
        assert!(used.iter().all(|slot| self.0.contains_key(slot)), "an adapter is not loaded");
        assert!(batch.adapter_slots.is_empty() || batch.adapter_slots.len() == batch.spans.len());
    }

    /// The adapter of a sequence.
    fn of_span(&self, batch: &Batch, span: usize) -> Option<&AdapterDigest> {
        let slot = (*batch.adapter_slots.get(span)?)?;
        self.0.get(&slot).map(AdapterHandle::digest)
    }
}

/// The values stored for `tokens` in each group if a sequence has contiguous memory of its own. In a group of states they
/// are the states after each token.
pub fn contiguous(tokens: &[u32], groups: &[CacheGroup]) -> Vec<Vec<Kept>> {
    let mut all: Vec<Vec<Kept>> = vec![Vec::new(); groups.len()];
    let mut readers = vec![Reader::new(); groups.len()];
    for (p, &token) in tokens.iter().enumerate() {
        for (group, reader) in readers.iter_mut().enumerate().filter(|(group, _)| has_window(&groups[*group])) {
            *reader = Reader::new();
            all[group][first_seen(p, groups[group].window)..].iter().for_each(|kept| reader.read(*kept));
        }
        let kept: Vec<Kept> = (0..groups.len()).map(|group| Reader::keep(&readers, token, group)).collect();
        for (group, kept) in kept.into_iter().enumerate() {
            readers[group].read(kept);
            all[group].push(if groups[group].is_state() { readers[group].0 } else { kept });
        }
    }
    all
}

/// Whether a group keeps keys and values of a window.
fn has_window(group: &CacheGroup) -> bool {
    group.window.is_some() && !group.is_state()
}

/// The first position that position `p` attends to.
pub fn first_seen(p: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (p + 1).saturating_sub(window))
}

impl Memory {
    /// A memory with the pages that `config` describes, all unwritten.
    pub fn new(config: &EngineConfig) -> Self {
        let in_page = |group: &CacheGroup| group.blocks_per_page;
        let units = (1..).find(|units| config.groups.iter().all(|group| units % in_page(group) == 0)).unwrap();
        let cells = |pages: usize| vec![None; pages * units * config.block_size];
        Memory {
            cache: cells(config.num_blocks),
            swap: cells(config.swap_blocks),
            block_size: config.block_size,
            cells: config.groups.iter().map(|group| units / in_page(group)).collect(),
            groups: config.groups.clone(),
        }
    }

    /// The slot of a group that a batch addresses with `slot`, whose blocks are counted in steps.
    fn addressed(&self, group: usize, slot: usize) -> usize {
        let (block, step) = (slot / self.block_size, self.groups[group].id_step);
        assert_eq!(block % step, 0, "the batch has a block number that is no multiple of the group's step");
        block / step * self.block_size + slot % self.block_size
    }

    /// Reads a slot of the cache that a batch addresses.
    pub fn get(&self, group: usize, slot: usize) -> Option<Kept> {
        self.read_slot(Space::Cache, group, self.addressed(group, slot))
    }

    /// Writes a slot of the cache that a batch addresses.
    pub fn set(&mut self, group: usize, slot: usize, kept: Kept) {
        let (slot, cells) = (self.addressed(group, slot), self.cells[group]);
        self.cache[slot * cells..][..cells].fill(Some(kept));
    }

    /// The state in a block of the cache that a batch addresses.
    pub fn state(&self, group: usize, block: u32) -> Option<Kept> {
        self.get(group, block as usize * self.block_size)
    }

    /// Writes a state to a block of the cache that a batch addresses.
    pub fn set_state(&mut self, group: usize, block: u32, state: Kept) {
        let slots = block as usize * self.block_size..(block as usize + 1) * self.block_size;
        slots.for_each(|slot| self.set(group, slot, state));
    }

    /// The states in the blocks of a table's lane, each with the number of tokens before it.
    pub fn states(&self, table: &BlockTable, group: usize, swapped: bool) -> Vec<(usize, Option<Kept>)> {
        let space = if swapped { Space::Swap } else { Space::Cache };
        let lane = table.lane(group);
        let first = lane.blocks().len() - lane.live_blocks().len();
        let present = (first..).zip(lane.live_blocks()).filter(|(_, block)| **block != NO_BLOCK);
        let end = |at: usize| table.len().min((at + 1) * self.block_size);
        present.map(|(at, &block)| (end(at), self.block(Place { space, group }, block)[0])).collect()
    }

    fn read_slot(&self, space: Space, group: usize, slot: usize) -> Option<Kept> {
        let memory = match space {
            Space::Cache => &self.cache,
            Space::Swap => &self.swap,
        };
        let cells = &memory[slot * self.cells[group]..][..self.cells[group]];
        // If other groups have written to a part of the slot, it holds no value.
        cells[0].filter(|_| cells.iter().all(|cell| *cell == cells[0]))
    }

    /// The contents of the slots of a table's lane in logical order, without blocks that it has given back.
    pub fn read(&self, table: &BlockTable, group: usize, swapped: bool) -> Vec<Option<Kept>> {
        let space = if swapped { Space::Swap } else { Space::Cache };
        let lane = table.lane(group);
        let num_freed = lane.blocks().len() - lane.live_blocks().len();
        let positions = num_freed * self.block_size..table.len().max(num_freed * self.block_size);
        positions.map(|p| self.read_slot(space, group, table.slot(group, p) as usize)).collect()
    }

    /// The contents of a block of the cache or of the swap space.
    pub fn block(&self, place: Place, block: u32) -> Vec<Option<Kept>> {
        let slots = block as usize * self.block_size..(block as usize + 1) * self.block_size;
        slots.map(|slot| self.read_slot(place.space, place.group, slot)).collect()
    }

    /// Erases the memory.
    pub fn lose(&mut self) {
        self.cache.iter_mut().chain(&mut self.swap).for_each(|slot| *slot = None);
    }

    /// Makes the block moves of a step.
    pub fn move_blocks(&mut self, BlockMoves { swap_out, swap_in, copies }: &BlockMoves) {
        let out = self.taken(&self.cache, swap_out);
        write(&mut self.swap, out);
        let back = self.taken(&self.swap, swap_in);
        write(&mut self.cache, back);
        let sources: HashSet<(u32, u32)> = copies.iter().map(|c| (c.group, c.src)).collect();
        let is_source = |c: &BlockCopy| sources.contains(&(c.group, c.dst));
        assert!(!copies.iter().any(is_source), "a block is both source and destination of copies");
        let copied = self.taken(&self.cache, copies);
        write(&mut self.cache, copied);
    }

    /// The source blocks of `moves`. Each comes with the first cell of its destination.
    fn taken(&self, from: &[Option<Kept>], moves: &[BlockCopy]) -> Vec<(usize, Vec<Option<Kept>>)> {
        let block = |group: u32, id: u32| {
            let cells = self.cells[group as usize] * self.block_size;
            id as usize * cells..(id as usize + 1) * cells
        };
        let mut targets = HashSet::new();
        for cell in moves.iter().flat_map(|c| block(c.group, c.dst)) {
            assert!(targets.insert(cell), "a block is moved to twice");
        }
        moves.iter().map(|c| (block(c.group, c.dst).start, from[block(c.group, c.src)].to_vec())).collect()
    }
}

fn write(to: &mut [Option<Kept>], blocks: Vec<(usize, Vec<Option<Kept>>)>) {
    blocks.into_iter().for_each(|(start, block)| to[start..start + block.len()].copy_from_slice(&block));
}

/// Whether the state after position `p` of a sequence is stored, if its block exists.
pub fn is_stored(p: usize, span: &Span, block_size: usize) -> bool {
    (p + 1).is_multiple_of(block_size) || p + 1 == span.context
}

/// Checks that sequences of a step may be computed in any order: no state that one of them writes is
/// read or written by another.
pub fn check_states(batch: &Batch, groups: &[CacheGroup], block_size: usize) {
    for (tables, _) in batch.groups.iter().zip(groups).filter(|(_, group)| group.is_state()) {
        assert!(tables.slots.is_empty());
        let mut written: HashMap<u32, usize> = HashMap::new();
        for span in &batch.spans {
            let of_span = (span.context - span.len) / block_size..span.context.div_ceil(block_size);
            let blocks = &tables.blocks[span.table..][of_span];
            assert_ne!(blocks.last(), Some(&NO_BLOCK), "the last state has no block");
            for block in blocks.iter().filter(|block| **block != NO_BLOCK) {
                assert_eq!(*written.entry(*block).or_insert(span.start), span.start, "two sequences write a state");
            }
        }
        for span in batch.spans.iter().filter(|span| span.context > span.len) {
            let read = tables.blocks[span.table + (span.context - span.len - 1) / block_size];
            assert!(written.get(&read).is_none_or(|by| *by == span.start), "a sequence reads a state of this step");
        }
    }
}

impl Runner for Oracle {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed> {
        assert!(rows.len() <= self.max_num_seqs, "{} rows of logits are too many", rows.len());
        self.adapters.change(&batch, self.max_loras);
        let mut memory = self.memory.lock().unwrap();
        memory.move_blocks(&batch.moves);
        for group in &batch.groups {
            assert_eq!(group.slots.iter().collect::<HashSet<_>>().len(), group.slots.len(), "a slot is written twice");
        }
        check_states(&batch, &self.groups, self.block_size);
        let (mut last_rows, mut long_rows) = (BTreeMap::new(), HashSet::new());
        for (at, span) in batch.spans.iter().enumerate() {
            let block = |group: usize, p: usize| batch.groups[group].blocks[span.table + p / self.block_size];
            let slot = |group: usize, p: usize| block(group, p) as usize * self.block_size + p % self.block_size;
            let begin = span.context - span.len;
            let first = batch.positions[span.start] as usize - begin;
            assert!(first == 0 || Some(first) == self.boundary);
            assert!(first > 0 || self.boundary.is_none_or(|boundary| span.context <= boundary), "it is long");
            let tokens = marked(&batch.tokens, mark(first > 0, self.adapters.of_span(&batch, at)));
            let read = |memory: &Memory, group: usize, p: usize| {
                let mut reader = Reader::new();
                if self.groups[group].is_state() {
                    let state = |p: usize| memory.state(group, block(group, p)).expect("read of an unwritten state");
                    return p.checked_sub(1).map_or(reader, |p| Reader(state(p)));
                }
                let seen = first_seen(p, self.groups[group].window)..p;
                seen.for_each(|p| reader.read(memory.get(group, slot(group, p)).expect("read of an unwritten slot")));
                reader
            };
            let groups = 0..self.groups.len();
            let mut readers: Vec<Reader> = groups.clone().map(|group| read(&memory, group, begin)).collect();
            for (row, p) in (span.start..).zip(begin..span.context) {
                assert_eq!(batch.positions[row] as usize, first + p);
                long_rows.extend((first > 0).then_some(row));
                for group in groups.clone().filter(|&group| has_window(&self.groups[group])) {
                    readers[group] = read(&memory, group, p);
                }
                let kept: Vec<Kept> = groups.clone().map(|group| Reader::keep(&readers, tokens[row], group)).collect();
                for (group, kept) in kept.into_iter().enumerate() {
                    readers[group].read(kept);
                    let is_state = self.groups[group].is_state();
                    if group == 0 {
                        last_rows.insert(row, if is_state { readers[group].0 } else { kept });
                    }
                    if !is_state {
                        assert_eq!(batch.groups[group].slots[row] as usize, slot(group, p));
                        memory.set(group, slot(group, p), kept);
                    } else if is_stored(p, span, self.block_size) && block(group, p) != NO_BLOCK {
                        memory.set_state(group, block(group, p), readers[group].0);
                    }
                }
            }
        }
        assert_eq!(rows.len(), batch.logit_rows.len());
        let mut sampled = Vec::new();
        for (row, at) in rows.iter().zip(&batch.logit_rows) {
            let context = [row.prompt, row.output].concat();
            let is_long = long_rows.contains(&(*at as usize));
            let adapter = row.params.adapter.as_ref().map(AdapterHandle::digest);
            let kept = contiguous(&marked(&context, mark(is_long, adapter)), &self.groups)[0].last().copied();
            assert_eq!(last_rows.get(&(*at as usize)).copied(), kept, "a sequence read values of another context");
            sampled.push(sample_row(&logits(&marked(&context, mark(false, adapter))), row, &mut Vec::new())?);
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
        groups: vec![CacheGroup::only(None)],
        max_len: 1000,
        boundary: None,
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
