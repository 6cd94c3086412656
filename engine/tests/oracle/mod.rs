//! An oracle in place of a model: it keeps the token and the position in each cache slot where a model keeps keys and
//! values, checks that every sequence reads back exactly its own tokens through its block table, and draws logits from a
//! hash of them. So a request's tokens come out as when it runs alone only if memory never lies.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use engine::Result;
use engine::backend::Batch;
use engine::runner::Runner;
use engine::sampling::{SampleRow, Sampled, sample_row};

/// Tokens of the oracle's language.
pub const VOCAB: u32 = 12;
/// The one that ends a sequence.
pub const EOS: u32 = 0;

/// See the module.
pub struct Oracle {
    block_size: usize,
    /// Token and position in each slot.
    slots: Vec<Option<(u32, u32)>>,
}

impl Oracle {
    /// With memory for `num_blocks` blocks.
    pub fn new(num_blocks: usize, block_size: usize) -> Box<Self> {
        Box::new(Oracle { block_size, slots: vec![None; num_blocks * block_size] })
    }
}

impl Runner for Oracle {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        let copies = &batch.moves.copies;
        let sources: HashSet<u32> = copies.iter().map(|c| c.src).collect();
        let targets: HashSet<u32> = copies.iter().map(|c| c.dst).collect();
        assert_eq!(targets.len(), copies.len(), "a block is copied to twice");
        assert!(sources.is_disjoint(&targets), "a block is copied from and to");
        for c in copies {
            let src = c.src as usize * self.block_size;
            self.slots.copy_within(src..src + self.block_size, c.dst as usize * self.block_size);
        }
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
