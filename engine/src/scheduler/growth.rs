//! How much of a group is computed in a step.

use super::prefix::{Prefixes, Start};
use crate::group::SequenceGroup;
use crate::kv::{BlockPool, blocks_needed};

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
}

/// What each sequence of a group gets that does not decode: as much as is missing and `left` allows in all. Several
/// sequences stop one token short, so that they decode together.
pub fn plan(group: &SequenceGroup, mut left: Budget, prefixes: &Prefixes) -> Vec<Growth> {
    let seqs = &group.running;
    let short = usize::from(seqs.len() > 1);
    let unscored = group.unscored();
    // The first row is the one that the sequence has.
    let end = if unscored.is_empty() { usize::MAX } else { unscored.start + 1 + left.rows };
    let mut plan = Vec::new();
    for (seq, s) in seqs.iter().enumerate() {
        let start = if s.table.is_empty() {
            let Some(start) = Start::find(group, seq, prefixes) else { continue };
            Some(start)
        } else {
            None
        };
        let present = start.as_ref().map_or(s.table.len(), |start| start.table.len());
        let tokens = (s.tokens.len().min(end) - present - short).min(left.tokens);
        left.tokens -= tokens;
        if tokens > 0 || start.is_some() {
            plan.push(Growth { seq, start, tokens });
        }
    }
    plan
}

/// Free blocks that a plan for `group` takes.
pub fn blocks_to_grow(group: &SequenceGroup, plan: &[Growth], pool: &BlockPool) -> usize {
    let of = plan.iter().map(|g| {
        let table = g.start.as_ref().map_or(&group.running[g.seq].table, |start| &start.table);
        (table, g.tokens)
    });
    blocks_needed(pool, of)
}
