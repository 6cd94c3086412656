//! Builds the batch that a backend computes for a step.

use std::ops::Range;

use crate::batch::{Batch, Span};
use crate::kv::{AdapterLease, NO_BLOCK, blocks_for};
use crate::sampling::SampleRow;
use crate::scheduler::{Scheduler, Step};
use crate::sequence::Sequence;

/// Returns the step's tokens in the backend's form, and the sampling parameters of each row of logits.
pub(crate) fn batch<'a>(scheduler: &'a Scheduler, step: &Step, groups: usize) -> (Batch, Vec<SampleRow<'a>>) {
    let (moves, adapter_changes) = (step.moves.clone(), step.adapters.clone());
    let mut batch = Batch { moves, adapter_changes, ..Batch::new(groups) };
    let mut rows = Vec::new();
    for (at, chunks, is_sampled) in step.groups() {
        let first = batch.spans.len();
        let group = &scheduler.running()[at];
        for chunk in chunks {
            let seq = &group.running[chunk.seq];
            push_span(&mut batch, seq, chunk.range.clone());
            batch.adapter_slots.push(group.lease.as_ref().map(AdapterLease::slot));
            let row = |p: usize| (batch.tokens.len() - (chunk.range.end - p)) as u32;
            let wanted = chunk.wanted.clone().map(row);
            if group.params.pooling.is_some() {
                batch.hidden_rows.extend(wanted);
            } else {
                batch.logit_rows.extend(wanted);
                rows.extend(group.score_rows(chunk.wanted.clone()));
            }
        }
        if is_sampled {
            // Every sequence of a sampled group has a chunk in this step, in order. A sample uses the row of the last
            // token before it.
            for (seq, row) in group.sample_rows() {
                let (span, tokens) = (batch.spans[first + seq], row.prompt.len() + row.output.len());
                batch.logit_rows.push((span.start + span.len - 1 - (span.context - tokens)) as u32);
                rows.push(row);
            }
        }
    }
    if batch.adapter_slots.iter().all(Option::is_none) {
        batch.adapter_slots.clear();
    }
    (batch, rows)
}

/// Adds tokens `range` of a sequence to a batch. The sequence's table must have slots for them.
pub(crate) fn push_span(batch: &mut Batch, seq: &Sequence, range: Range<usize>) {
    let (start, table) = (batch.tokens.len(), batch.table_len());
    batch.spans.push(Span { start, len: range.len(), context: range.end, table });
    batch.tokens.extend(&seq.tokens[range.clone()]);
    let (pool, size) = (seq.table.pool(), seq.table.pool().block_size());
    // In tables of angles, the rows of long sequences follow the rows of the positions up to the boundary.
    let first = pool.boundary().filter(|_| seq.table.is_long()).unwrap_or(0);
    batch.positions.extend(range.clone().map(|p| (first + p) as u32));
    for (at, (to, group)) in batch.groups.iter_mut().zip(pool.groups()).enumerate() {
        let lane = seq.table.lane(at);
        let blocks = &lane.blocks()[..blocks_for(range.end, size)];
        // Blocks that do not exist have no numbers. In a group of states, backends look for them.
        let id = |block: u32| if block == NO_BLOCK { NO_BLOCK } else { block * group.id_step as u32 };
        if group.is_state() {
            let first = to.blocks.len();
            to.blocks.extend(blocks.iter().map(|&block| id(block)));
            if let Some(source) = lane.state_before(range.start, size) {
                to.blocks[first + (range.start - 1) / size] = id(source);
            }
            continue;
        }
        if group.id_step == 1 {
            to.slots.extend(range.clone().map(|p| seq.table.slot(at, p)));
            to.blocks.extend_from_slice(blocks);
            continue;
        }
        to.slots.extend(range.clone().map(|p| id(blocks[p / size]) * size as u32 + (p % size) as u32));
        to.blocks.extend(blocks.iter().map(|&block| id(block)));
    }
}
