//! Warm-up: decode steps computed before any request, so that one-time preparations do not delay the first one.

use std::collections::BTreeSet;

use crate::batch::{Batch, GroupTables, Span};
use crate::kv::CacheGroup;
use crate::sampling::{SampleRow, SamplingParams};

/// Sampling parameters for the rows of a warm-up step.
pub(crate) fn rows(params: &SamplingParams, sequences: usize) -> Vec<SampleRow<'_>> {
    vec![SampleRow::new(params, 0); sequences]
}

/// Decode steps of the given numbers of sequences, at most one per page, largest first. The block table of the largest
/// step is as long as the cache has blocks, so input buffers get their final size. The steps write to the first slots
/// of pages, which must all be free.
pub(crate) fn steps(
    sizes: impl IntoIterator<Item = usize>,
    num_blocks: usize,
    block_size: usize,
    groups: &[CacheGroup],
) -> Vec<Batch> {
    let sizes: BTreeSet<usize> = sizes.into_iter().map(|size| size.min(num_blocks)).filter(|&size| size > 0).collect();
    let mut steps: Vec<Batch> = sizes.into_iter().rev().map(|size| step(size, block_size, groups)).collect();
    if let Some(largest) = steps.first_mut() {
        largest.groups.iter_mut().for_each(|group| group.blocks.resize(num_blocks, 0));
    }
    steps
}

/// A step that computes the first token of each sequence.
fn step(sequences: usize, block_size: usize, groups: &[CacheGroup]) -> Batch {
    let tables = |group: &CacheGroup| {
        let id = |page: usize| page * group.blocks_per_page * group.id_step;
        let slots = if group.is_state() { 0 } else { sequences };
        GroupTables {
            blocks: (0..sequences).map(|page| id(page) as u32).collect(),
            slots: (0..slots).map(|page| (id(page) * block_size) as u32).collect(),
        }
    };
    Batch {
        tokens: vec![0; sequences],
        positions: vec![0; sequences],
        spans: (0..sequences).map(|i| Span { start: i, len: 1, context: 1, table: i }).collect(),
        groups: groups.iter().map(tables).collect(),
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
        let steps = steps([1, 2, 4, 8], 6, 16, &[CacheGroup::only(None)]);
        assert_eq!(sizes(&steps), [6, 4, 2, 1]);
        assert_eq!((steps[0].groups[0].blocks.len(), steps[1].groups[0].blocks.as_slice()), (6, &[0, 1, 2, 3][..]));
        assert_eq!(steps[1].groups[0].slots, [0, 16, 32, 48]);
        assert!(super::steps([1, 2], 0, 16, &[CacheGroup::only(None)]).is_empty());
    }
}
