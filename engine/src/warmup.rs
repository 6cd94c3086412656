//! Decode steps that are computed before any request comes: what is prepared when a step is first computed is there then.

use std::collections::BTreeSet;

use crate::batch::{Batch, Span};
use crate::sampling::{SampleRow, SamplingParams};

/// What the rows of a warm-up's logits are sampled by.
pub fn rows(params: &SamplingParams, sequences: usize) -> Vec<SampleRow<'_>> {
    vec![SampleRow::new(params, 0); sequences]
}

/// Decode steps of so many sequences each, no more than there are blocks: the largest first, whose block tables are as
/// long as the cache has blocks, so that what is kept for inputs has its size from then on. They write to the first
/// slots of blocks, none of which is held yet.
pub fn steps(sizes: impl IntoIterator<Item = usize>, num_blocks: usize, block_size: usize) -> Vec<Batch> {
    let sizes: BTreeSet<usize> = sizes.into_iter().map(|size| size.min(num_blocks)).filter(|&size| size > 0).collect();
    let mut steps: Vec<Batch> = sizes.into_iter().rev().map(|size| step(size, block_size)).collect();
    if let Some(largest) = steps.first_mut() {
        largest.blocks.resize(num_blocks, 0);
    }
    steps
}

/// A first token of each of some sequences.
fn step(sequences: usize, block_size: usize) -> Batch {
    Batch {
        tokens: vec![0; sequences],
        positions: vec![0; sequences],
        slots: (0..sequences).map(|i| (i * block_size) as u32).collect(),
        spans: (0..sequences).map(|i| Span { start: i, len: 1, context: 1, table: i }).collect(),
        blocks: (0..sequences as u32).collect(),
        logit_rows: (0..sequences as u32).collect(),
        ..Batch::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_has_a_block_and_the_largest_step_is_first() {
        let sizes = |steps: &[Batch]| steps.iter().map(|step| step.spans.len()).collect::<Vec<_>>();
        let steps = steps([1, 2, 4, 8], 6, 16);
        assert_eq!(sizes(&steps), [6, 4, 2, 1]);
        assert_eq!((steps[0].blocks.len(), steps[1].blocks.as_slice()), (6, &[0, 1, 2, 3][..]));
        assert_eq!(steps[1].slots, [0, 16, 32, 48]);
        assert!(super::steps([1, 2], 0, 16).is_empty());
    }
}
