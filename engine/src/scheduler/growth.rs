//! Plans how many tokens of a group are computed in a step.

use std::collections::HashSet;

use super::prefix::{Lookup, Prefixes, Start};
use crate::group::SequenceGroup;
use crate::kv::{BlockPool, Counts, blocks_needed};

/// The tokens that one sequence gets.
pub struct Growth {
    /// Index into the group's running sequences.
    pub seq: usize,
    /// The prefix to start from, if the sequence has no blocks yet.
    pub start: Option<Start>,
    /// New tokens. 0 if the prefix was all it lacked.
    pub tokens: usize,
}

/// The remaining budget of a step.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// New tokens.
    pub tokens: usize,
    /// Rows of logits, beyond one for each sequence that the running groups have or will have.
    pub rows: usize,
    /// The number of sequences that have not got their token in this step yet. `None` if the step may not draft tokens.
    pub undecoded: Option<usize>,
}

/// Plans the tokens of each sequence of a group that does not decode: all pending tokens, as far as `left` allows.
/// Groups of several sequences stop one token short, so that all sequences decode together.
fn plan(group: &SequenceGroup, mut left: Budget, prefixes: &Prefixes, lookup: Lookup) -> Vec<Growth> {
    let seqs = &group.running;
    let short = usize::from(seqs.len() > 1);
    let wanted = group.wanted();
    // The first row is the sequence's own.
    let end = if wanted.is_empty() { usize::MAX } else { wanted.start + 1 + left.rows };
    let mut plan = Vec::new();
    for (seq, s) in seqs.iter().enumerate() {
        let start = if s.table.is_empty() {
            let Some(start) = Start::find(group, seq, prefixes, lookup) else { continue };
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

/// As [`plan`], with no more tokens than there are blocks for, which are claimed. Returns `None` if there are blocks for
/// no token.
///
/// A sequence that keeps all its blocks gets all planned tokens or none, since it needs all the blocks in the end. With
/// a sliding window, it can progress in smaller steps.
pub fn plan_within(
    group: &SequenceGroup,
    mut left: Budget,
    prefixes: &Prefixes,
    pool: &BlockPool,
    lookup: Lookup,
) -> Option<Vec<Growth>> {
    loop {
        let plan = plan(group, left, prefixes, lookup);
        if pool.claim(blocks_to_grow(group, &plan, pool)) {
            return Some(plan);
        }
        left.tokens = plan.iter().map(|growth| growth.tokens).sum::<usize>() / 2;
        if left.tokens == 0 || !pool.has_windows() || group.keeps_all_blocks() {
            return None;
        }
    }
}

/// The numbers of free blocks that a plan for `group` takes, for new tokens and for blocks restored from the swap space.
fn blocks_to_grow(group: &SequenceGroup, plan: &[Growth], pool: &BlockPool) -> Counts {
    let tables = plan.iter().map(|g| {
        let table = g.start.as_ref().map_or(&group.running[g.seq].table, |start| start.hit.table());
        (table, g.tokens)
    });
    let mut counts = blocks_needed(pool, tables);
    // Several sequences may find the same blocks in the swap space.
    let mut seen = HashSet::new();
    let swapped = plan.iter().filter_map(|g| g.start.as_ref()).flat_map(|start| start.hit.swapped());
    for swapped in swapped.filter(|swapped| seen.insert((swapped.group, swapped.block))) {
        counts.add(swapped.group, 1);
    }
    counts
}
