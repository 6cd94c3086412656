//! An oracle in place of a model: it keeps the token and the position in each cache slot where a model keeps keys and
//! values, checks that every sequence reads back exactly its own tokens through its block table, and draws logits from a
//! hash of them. So a request's tokens come out as when it runs alone only if memory never lies.

#![allow(dead_code)] // not every test needs all of it

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use engine::Result;
use engine::backend::{Batch, BlockCopy, BlockMoves};
use engine::engine::EngineConfig;
use engine::runner::Runner;
use engine::sampling::{SampleRow, Sampled, sample_row};
use engine::scheduler::Preemption;

/// Tokens of the oracle's language.
pub const VOCAB: u32 = 12;
/// The one that ends a sequence.
pub const EOS: u32 = 0;

/// Token and position in a slot.
type Slot = Option<(u32, u32)>;

/// See the module.
pub struct Oracle {
    block_size: usize,
    slots: Vec<Slot>,
    swap: Vec<Slot>,
}

impl Oracle {
    /// With memory for what `config` says.
    pub fn new(config: &EngineConfig) -> Box<Self> {
        let slots = |blocks: usize| vec![None; blocks * config.block_size];
        let (slots, swap) = (slots(config.num_blocks), slots(config.swap_blocks));
        Box::new(Oracle { block_size: config.block_size, slots, swap })
    }

    /// What the `moves` read, and the slot from which on it is to be written.
    fn transfer(from: &[Slot], block_size: usize, moves: &[BlockCopy]) -> Vec<(usize, Vec<Slot>)> {
        let targets: HashSet<u32> = moves.iter().map(|c| c.dst).collect();
        assert_eq!(targets.len(), moves.len(), "a block is moved to twice");
        let block = |id: u32| id as usize * block_size..(id as usize + 1) * block_size;
        moves.iter().map(|c| (block(c.dst).start, from[block(c.src)].to_vec())).collect()
    }

    fn write(to: &mut [Slot], blocks: Vec<(usize, Vec<Slot>)>) {
        blocks.into_iter().for_each(|(start, block)| to[start..start + block.len()].copy_from_slice(&block));
    }
}

/// An engine over the oracle that keeps to the oracle's language.
pub fn config(num_blocks: usize, block_size: usize) -> EngineConfig {
    EngineConfig {
        num_blocks,
        block_size,
        swap_blocks: num_blocks,
        preemption: Preemption::Auto,
        prefix_caching: true,
        max_len: 1000,
        vocab_size: VOCAB as usize,
        eos: vec![EOS],
        max_num_seqs: 256,
        max_batch_tokens: 512,
    }
}

impl Runner for Oracle {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        let BlockMoves { swap_out, swap_in, copies } = &batch.moves;
        let size = self.block_size;
        Self::write(&mut self.swap, Self::transfer(&self.slots, size, swap_out));
        Self::write(&mut self.slots, Self::transfer(&self.swap, size, swap_in));
        let sources: HashSet<u32> = copies.iter().map(|c| c.src).collect();
        assert!(copies.iter().all(|c| !sources.contains(&c.dst)), "a block is copied from and to");
        let copied = Self::transfer(&self.slots, size, copies);
        Self::write(&mut self.slots, copied);
        assert_eq!(batch.slots.iter().collect::<HashSet<_>>().len(), batch.slots.len(), "a slot is written twice");
        for i in 0..batch.tokens.len() {
            self.slots[batch.slots[i] as usize] = Some((batch.tokens[i], batch.positions[i]));
        }
        let read = |table: usize, position: usize| {
            let block = batch.blocks[table + position / self.block_size] as usize;
            self.slots[block * self.block_size + position % self.block_size]
        };
        let mut contexts = BTreeMap::new();
        for span in &batch.spans {
            let context: Vec<u32> = (0..span.context)
                .map(|p| {
                    let (token, position) = read(span.table, p).expect("a slot is read that nobody wrote");
                    assert_eq!(position as usize, p, "a slot holds another position");
                    token
                })
                .collect();
            contexts.insert(span.start + span.len - 1, context);
        }
        let mut sampled = Vec::new();
        for (row, at) in rows.iter().zip(&batch.logit_rows) {
            let context = &contexts[&(*at as usize)];
            assert_eq!(*context, [row.prompt, row.output].concat(), "a sequence reads another's tokens");
            sampled.push(sample_row(&logits(context), row, &mut Vec::new())?);
        }
        Ok(sampled)
    }
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
