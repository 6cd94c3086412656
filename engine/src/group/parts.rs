//! A request in parts: outputs that do not depend on each other need not run at the same time.
//!
//! Each part is a group of its own, of the same request. An output's seed and the index under which its tokens are
//! reported are the same in whichever part it is, so that it gets the same tokens; parts that have ended are joined before
//! outputs are ranked. Beams cannot be divided, since they compete at every step.

use std::time::Instant;

use super::SequenceGroup;
use crate::embedding::PooledStates;
use crate::kv::{BlockPool, blocks_for};
use crate::sequence::Sequence;

/// What groups are ordered by: the first to be admitted comes first; of what was never admitted, the first to arrive; of
/// the parts of a request, that with the lowest outputs.
pub type Rank = (u64, u64, usize);

impl SequenceGroup {
    /// Its place in the order of groups. No two that are in progress have the same.
    pub fn rank(&self) -> Rank {
        (self.ticket.unwrap_or(u64::MAX), self.id, self.outputs.start)
    }

    /// Whether nothing of the group was ever scheduled.
    pub fn is_new(&self) -> bool {
        self.ticket.is_none()
    }

    /// Whether the request's first output is or was in this part.
    pub fn is_first_part(&self) -> bool {
        self.outputs.start == 0
    }

    /// Whether [`Self::split`] can divide the group. A prompt that is to be scored is computed once, before anything that
    /// follows it is reported; so its group is divided only afterwards.
    pub fn can_split(&self) -> bool {
        let scores = self.at_prompt() && self.prompt_logprobs.is_some();
        self.params.beam.is_none() && self.width() > 1 && !scores
    }

    /// Whether dividing the group gives blocks back: whether it has several sequences, and not only a prompt for them.
    pub fn is_divisible(&self) -> bool {
        self.running.len() > 1 && self.can_split()
    }

    /// Whether its outputs were forked from the prompt, and some have written nothing yet: they share the prompt's last
    /// block, which all but one will copy.
    pub fn is_just_forked(&self) -> bool {
        !self.at_prompt() && self.running.iter().any(|seq| seq.table.len() <= seq.prompt_len)
    }

    /// Divides the group: it keeps its first `keep` outputs, and the others are returned as another part. Where the
    /// prompt is not computed the other part will compute it over blocks of `pool`, and is new.
    pub fn split(&mut self, keep: usize, pool: &BlockPool) -> SequenceGroup {
        debug_assert!(self.can_split() && (1..self.width()).contains(&keep));
        let (running, middle, ticket) = if self.at_prompt() {
            let middle = self.outputs.start + keep;
            let prompt = self.running[0].tokens.clone();
            let seq = Sequence { index: middle, ..Sequence::new(prompt, pool, self.params.logprobs.is_some()) };
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
            outputs,
            max_output: self.max_output,
            ends: self.ends.clone(),
            barred: self.barred.clone(),
            seed: self.seed,
            arrival: self.arrival,
            first_token: self.first_token,
            ticket,
            beyond_share: false,
        }
    }

    /// Takes in another part of the same request.
    pub fn join(&mut self, other: SequenceGroup) {
        // Later parts find what the first has computed.
        if other.is_first_part() {
            self.cached_tokens = other.cached_tokens;
        }
        self.running.extend(other.running);
        self.finished.extend(other.finished);
        self.outputs = self.outputs.start.min(other.outputs.start)..self.outputs.end.max(other.outputs.end);
        self.prompt_logprobs = self.prompt_logprobs.take().or(other.prompt_logprobs);
        self.first_token = earlier(self.first_token, other.first_token);
    }

    /// Blocks that all its tokens take, whether they are computed or not, if its sequences share the prompt's full blocks
    /// and no others.
    pub fn num_blocks(&self) -> usize {
        self.own_blocks().sum()
    }

    /// How many of its outputs, from the first on, take no more than so many rows and blocks. All or none if it cannot be
    /// divided.
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

    /// No more than `blocks`, nor than a sequence holds at once of whose tokens at most `chunk` are computed at a time.
    pub fn at_most(&self, blocks: usize, pool: &BlockPool, chunk: usize) -> usize {
        if self.keeps_all_blocks() { blocks } else { blocks.min(pool.blocks_at_once(usize::MAX, chunk)) }
    }

    /// Whether the group keeps blocks that a window has left behind. Beams do: they cannot be divided, so that all must fit
    /// together; and they do so, however they come back from a preemption, if they share all that they have in common.
    pub fn keeps_all_blocks(&self) -> bool {
        self.params.beam.is_some()
    }

    /// Blocks that the tokens of each sequence take beside those of the sequences before it.
    fn own_blocks(&self) -> impl Iterator<Item = usize> {
        let own = |(i, seq): (usize, &Sequence)| {
            let size = seq.table.pool().block_size();
            let shared = if i == 0 { 0 } else { seq.prompt_len / size };
            self.at_most(blocks_for(seq.tokens.len(), size) - shared, seq.table.pool(), 1)
        };
        self.running.iter().enumerate().map(own)
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}
