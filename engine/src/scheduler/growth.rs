//! How much of a group is computed in a step.

use super::prefix::{Prefixes, Start};
use crate::group::SequenceGroup;
use crate::kv::{BlockPool, blocks_needed, blocks_to_relocate};

/// What one sequence gets.
pub struct Growth {
    /// Index into the group's running sequences.
    pub seq: usize,
    /// For a sequence that held no blocks, what it starts from.
    pub start: Option<Start>,
    /// New tokens; none if the start is all it lacked.
    pub tokens: usize,
}

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// New tokens.
    pub tokens: usize,
    /// Rows of logits, beyond one for each sequence that the running groups have or will have.
    pub rows: usize,
    /// Where tokens may be drafted, the sequences that are still to get their token in this step.
    pub undecoded: Option<usize>,
}

/// What each sequence of a group gets that does not decode: as much as is missing and `left` allows in all. Several
/// sequences stop one token short, so that they decode together.
fn plan(group: &SequenceGroup, mut left: Budget, prefixes: &Prefixes) -> Vec<Growth> {
    let seqs = &group.running;
    let short = usize::from(seqs.len() > 1);
    let wanted = group.wanted();
    // The first row is the one that the sequence has.
    let end = if wanted.is_empty() { usize::MAX } else { wanted.start + 1 + left.rows };
    let mut plan = Vec::new();
    for (seq, s) in seqs.iter().enumerate() {
        let start = if s.table.is_empty() {
            let Some(start) = Start::find(group, seq, prefixes) else { continue };
            Some(start)
        } else {
            None
        };
        let present = start.as_ref().map_or(s.table.len(), |start| start.hit.tokens());
        let tokens = (s.tokens.len().min(end) - present - short).min(left.tokens);
        left.tokens -= tokens;
        if tokens > 0 || start.is_some() {
            plan.push(Growth { seq, start, tokens });
        }
    }
    plan
}

/// As [`plan`], with no more tokens than there are blocks for. None if there are none for any.
///
/// It is all or nothing where a sequence keeps its blocks: it needs them all in the end. Where a window slides on, it gets
/// through in smaller steps.
pub fn plan_within(
    group: &SequenceGroup,
    mut left: Budget,
    prefixes: &Prefixes,
    pool: &BlockPool,
) -> Option<Vec<Growth>> {
    loop {
        let plan = plan(group, left, prefixes);
        if blocks_to_grow(group, &plan, pool) <= pool.num_free() {
            return Some(plan);
        }
        left.tokens = plan.iter().map(|growth| growth.tokens).sum::<usize>() / 2;
        if left.tokens == 0 || pool.window().is_none() || group.keeps_all() {
            return None;
        }
    }
}

/// Free blocks that a plan for `group` takes: for new tokens, and for what comes back from the swap space.
fn blocks_to_grow(group: &SequenceGroup, plan: &[Growth], pool: &BlockPool) -> usize {
    let of = plan.iter().map(|g| {
        let table = g.start.as_ref().map_or(&group.running[g.seq].table, |start| start.hit.longest());
        (table, g.tokens)
    });
    let back = plan.iter().filter_map(|g| g.start.as_ref()).flat_map(|start| &start.hit.rest);
    blocks_needed(pool, of) + blocks_to_relocate(back, pool)
}
