//! Dividing a request into parts: independent outputs need not run at the same time.
//!
//! Each part is a group of its own with the same request id. An output keeps its seed and index in whichever part it
//! is, so it gets the same tokens. Parts that have ended are joined before outputs are ranked. Beams cannot be divided,
//! since they compete at every step.

use std::time::Instant;

use super::{OwnerId, SequenceGroup};
use crate::embedding::PooledStates;
use crate::kv::{BlockPool, Counts, blocks_for};
use crate::sequence::Sequence;

/// The order of groups: first by admission, then by arrival for groups that were never admitted, then by the first
/// output of each part of a request.
pub type Rank = (u64, u64, usize);

/// The order of groups of all priorities: first by level, then by rank.
pub type Order = (i64, Rank);

/// Identifies a line of requests: those of one owner and one priority, which are served first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineId {
    /// The owner of the requests.
    pub owner: OwnerId,
    /// Their priority.
    pub priority: i64,
}

impl SequenceGroup {
    /// The group's rank. No two groups in progress have the same.
    pub fn rank(&self) -> Rank {
        (self.ticket.unwrap_or(u64::MAX), self.id, self.outputs.start)
    }

    /// The line in which the group waits when it does.
    pub fn line(&self) -> LineId {
        LineId { owner: self.owner, priority: self.params.priority }
    }

    /// Its place among groups of all priorities, with the level that it had when it was last admitted.
    pub fn order(&self) -> Order {
        (self.level, self.rank())
    }

    /// Whether the group was never admitted.
    pub fn is_new(&self) -> bool {
        self.ticket.is_none()
    }

    /// Whether this part has or had the request's first output.
    pub fn is_first_part(&self) -> bool {
        self.outputs.start == 0
    }

    /// Whether [`Self::split`] can divide the group. If the request wants prompt logprobs, its group is divided only
    /// after the prompt. The prompt is scored once, before any token after it is reported.
    pub fn can_split(&self) -> bool {
        let scores = self.at_prompt() && self.prompt_logprobs.is_some();
        self.params.beam.is_none() && self.width() > 1 && !scores
    }

    /// Whether dividing the group frees blocks: it has several sequences, not only a prompt.
    pub fn is_divisible(&self) -> bool {
        self.running.len() > 1 && self.can_split()
    }

    /// Whether the outputs were just forked and some have written no token yet. They share the prompt's last block,
    /// which all but one will copy.
    pub fn is_just_forked(&self) -> bool {
        !self.at_prompt() && self.running.iter().any(|seq| seq.table.len() <= seq.prompt_len)
    }

    /// Divides the group. It keeps its first `keep` outputs, and the others are returned as a new part. If the prompt
    /// is not computed yet, the new part computes it again over blocks of `pool`, and counts as new.
    pub fn split(&mut self, keep: usize, pool: &BlockPool) -> SequenceGroup {
        debug_assert!(self.can_split() && (1..self.width()).contains(&keep));
        let (running, middle, ticket) = if self.at_prompt() {
            let middle = self.outputs.start + keep;
            let prompt = self.running[0].tokens.clone();
            let kept_states = self.running[0].kept_states.clone();
            let seq = Sequence::new(prompt, pool, self.params.logprobs.is_some());
            let seq = Sequence { index: middle, kept_states, ..seq };
            let seq = seq.constrained(self.params.constraint.as_ref());
            (vec![seq], middle, None)
        } else {
            let running = self.running.split_off(keep);
            let middle = running[0].index;
            (running, middle, self.ticket)
        };
        let outputs = middle..self.outputs.end;
        self.outputs.end = middle;
        SequenceGroup {
            id: self.id,
            owner: self.owner,
            params: self.params.clone(),
            running,
            finished: Vec::new(),
            prompt_logprobs: None,
            pooled: PooledStates::default(),
            cached_tokens: None,
            lease: if ticket.is_some() { self.lease.clone() } else { None },
            outputs,
            max_output: self.max_output,
            ends: self.ends.clone(),
            barred: self.barred.clone(),
            seed: self.seed,
            arrival: self.arrival,
            first_token: self.first_token,
            ticket,
            beyond_share: false,
            level: if ticket.is_none() { self.params.priority } else { self.level },
        }
    }

    /// Joins another part of the same request to this one.
    pub fn join(&mut self, other: SequenceGroup) {
        // Later parts hit blocks that the first part computed, so only the first part's count is kept.
        if other.is_first_part() {
            self.cached_tokens = other.cached_tokens;
        }
        self.running.extend(other.running);
        self.finished.extend(other.finished);
        self.outputs = self.outputs.start.min(other.outputs.start)..self.outputs.end.max(other.outputs.end);
        self.prompt_logprobs = self.prompt_logprobs.take().or(other.prompt_logprobs);
        self.first_token = earlier(self.first_token, other.first_token);
    }

    /// The memory that all its tokens take, computed or not, if its sequences share only the prompt's full blocks. In the
    /// units of [`PoolUsage`](crate::kv::PoolUsage).
    pub fn num_blocks(&self) -> usize {
        self.own_blocks().sum()
    }

    /// How many of its outputs, counted from the first, fit into the given rows and blocks. All or none if the group
    /// cannot be divided.
    pub fn outputs_within(&self, rows: usize, blocks: usize) -> usize {
        if self.can_split() && !self.at_prompt() {
            let sums = self.own_blocks().scan(0, |sum, own| {
                *sum += own;
                Some(*sum)
            });
            return sums.take(rows).take_while(|sum| *sum <= blocks).count();
        }
        match self.width() {
            _ if self.num_blocks() > blocks => 0,
            width if width <= rows || self.can_split() => width.min(rows),
            _ => 0,
        }
    }

    /// For each group of layers, the smaller of `blocks` and the blocks that a sequence needs at a time if at most
    /// `chunk` of its tokens are computed per step.
    pub fn at_most(&self, blocks: usize, pool: &BlockPool, chunk: usize) -> Counts {
        let groups = pool.groups().len();
        if !pool.has_windows() {
            return Counts::each(groups, blocks);
        }
        let most = pool.blocks_at_once(usize::MAX, chunk);
        Counts::by(groups, |group| match self.keeps_all_blocks() && !pool.groups()[group].is_state() {
            true => blocks,
            false => blocks.min(most.of(group)),
        })
    }

    /// Whether the group keeps keys and values that the window has left behind. Beams keep them. They cannot be divided, so all
    /// must fit together, and they fit again after any preemption only if they share their whole common prefix.
    pub fn keeps_all_blocks(&self) -> bool {
        self.params.beam.is_some()
    }

    /// The memory that each sequence adds to the sequences before it.
    fn own_blocks(&self) -> impl Iterator<Item = usize> {
        let own = |(i, seq): (usize, &Sequence)| {
            let size = seq.table.pool().block_size();
            let shared = if i == 0 { 0 } else { seq.prompt_len / size };
            let pool = seq.table.pool();
            pool.units(&self.at_most(blocks_for(seq.tokens.len(), size) - shared, pool, 1))
        };
        self.running.iter().enumerate().map(own)
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}
