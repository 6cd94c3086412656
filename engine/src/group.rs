//! A sequence group: all sequences of one request, scheduled, preempted and restored together (4.5 of the paper). A
//! request whose sequences are independent and cannot run together is divided into several groups, its parts.

mod beams;
mod parts;
mod prompt;

use std::ops::Range;
use std::time::Instant;

pub use self::parts::{LineId, Order, Rank};
use crate::constraint::{Matcher, Reading};
use crate::embedding::PooledStates;
use crate::kv::{AdapterLease, BlockPool, BlockTable};
use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::sequence::{FinishReason, Output, PromptLogprobs, Sequence, TokenLogprob};

/// Identifies a request within an engine.
pub type RequestId = u64;

/// Identifies the owner of requests within an engine. The resources of one owner are limited while others wait.
pub type OwnerId = u64;

/// A token that was generated in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct NewToken {
    /// The id of the request.
    pub request: RequestId,
    /// The index of the output.
    pub index: usize,
    /// The token.
    pub token: u32,
    /// Its logprob, if the request asked for logprobs.
    pub logprob: Option<TokenLogprob>,
    /// Sum of the logprobs of the output's tokens up to this one.
    pub sum: f64,
    /// Whether this token ends its output, as an end-of-sequence token does.
    pub ends: bool,
    /// The number of prompt tokens that were a prefix hit when the request first started.
    pub cached_tokens: usize,
}

/// A request in progress, or a part of one.
#[derive(Debug)]
pub struct SequenceGroup {
    /// The id of the request.
    pub id: RequestId,
    /// The owner of the request.
    pub owner: OwnerId,
    /// The request's sampling parameters.
    pub params: SamplingParams,
    /// Unfinished sequences: one until the prompt is computed, then one per output or beam.
    pub running: Vec<Sequence>,
    /// Finished outputs.
    pub finished: Vec<Output>,
    /// The logprobs of the prompt's tokens computed so far, if the request asked for them. They belong to the first
    /// part of a request.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The pooled hidden states of the prompt computed so far, if the request asked for an embedding.
    pub(crate) pooled: PooledStates,
    /// The number of prompt tokens that were a prefix hit when the group first started. `None` before it starts.
    pub cached_tokens: Option<usize>,
    /// The lease of its adapter while it runs.
    pub(crate) lease: Option<AdapterLease>,
    /// The outputs to fork from the prompt: all of the request's, unless it is divided.
    outputs: Range<usize>,
    /// Most tokens an output may have.
    max_output: usize,
    /// Tokens that end a sequence.
    ends: Vec<u32>,
    /// Tokens that cannot be chosen while an output has fewer than `params.min_tokens` tokens.
    barred: Vec<u32>,
    /// The request's seed. Each output's seed is derived from it.
    seed: u64,
    /// When the request arrived.
    pub arrival: Instant,
    /// When the group got its first token.
    pub first_token: Option<Instant>,
    /// The number of its first admission. Groups admitted later have higher numbers.
    pub(crate) ticket: Option<u64>,
    /// Whether the scheduler found the group to be beyond its owner's share of rows and blocks.
    pub(crate) beyond_share: bool,
    /// The urgency, where lower numbers are more urgent: the request's priority, less the levels that it had gained by
    /// waiting when it was last admitted.
    pub(crate) level: i64,
}

impl SequenceGroup {
    /// A group whose prompt is to be computed, with an owner of its own. An output has at most `max_output` tokens, and
    /// at most `params.max_tokens`.
    pub fn new(
        id: RequestId,
        prompt: Vec<u32>,
        params: SamplingParams,
        seed: u64,
        max_output: usize,
        eos: &[u32],
        pool: &BlockPool,
    ) -> Self {
        let first = Sequence::new(prompt, pool, params.logprobs.is_some());
        let first = first.keeping_states(&params.turn_ends, eos, pool);
        SequenceGroup {
            id,
            owner: id,
            running: vec![first.constrained(params.constraint.as_ref())],
            finished: Vec::new(),
            prompt_logprobs: params.prompt_logprobs.map(|_| vec![None]),
            pooled: PooledStates::default(),
            cached_tokens: None,
            lease: None,
            outputs: 0..params.best_of,
            max_output: max_output.min(params.max_tokens),
            ends: [if params.ignore_eos { &[] } else { eos }, &params.stop_token_ids].concat(),
            barred: [eos, &params.stop_token_ids].concat(),
            seed,
            arrival: Instant::now(),
            first_token: None,
            ticket: None,
            beyond_share: false,
            level: params.priority,
            params,
        }
    }

    /// The number of sequences that the group has, or will have once its prompt is computed.
    pub fn width(&self) -> usize {
        match self.params.beam {
            // Beams that end make room for others, so a search keeps its width.
            Some(beam) => beam.width,
            None if self.at_prompt() => self.outputs.len(),
            None => self.running.len(),
        }
    }

    /// Most tokens an output may have.
    pub(crate) fn max_output(&self) -> usize {
        self.max_output
    }

    /// The number of drafted tokens in its sequences, which the scheduled step verifies.
    pub fn num_drafted(&self) -> usize {
        self.running.iter().map(|seq| seq.drafted).sum()
    }

    /// Whether tokens may be drafted for its sequences. Each must have a generated token. Beams are excluded because
    /// they compete at each token. So are requests that sample more outputs than they return, because a stop string in
    /// the middle of a step would make their ranks unknown. Constrained requests are excluded because the grammar tells
    /// the allowed tokens only one step ahead.
    pub(crate) fn may_be_drafted(&self) -> bool {
        let SamplingParams { beam, best_of, n, constraint, .. } = &self.params;
        !self.at_prompt() && beam.is_none() && best_of == n && constraint.is_none()
    }

    /// Whether no token has been generated yet.
    fn at_prompt(&self) -> bool {
        self.first_token.is_none()
    }

    /// The block tables of the running sequences.
    pub fn tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.running.iter().map(|s| &s.table)
    }

    /// The block tables of the running sequences.
    pub fn tables_mut(&mut self) -> impl Iterator<Item = &mut BlockTable> {
        self.running.iter_mut().map(|s| &mut s.table)
    }

    /// Gives all blocks back. The tokens stay and will be recomputed over blocks of `pool`.
    pub fn release(&mut self, pool: &BlockPool) {
        self.tables_mut().for_each(|table| *table = BlockTable::new(pool));
    }

    /// Whether each sequence has one pending token after others, so its next step is a decode step. A prompt of one token
    /// is looked up first, as other prompts are.
    pub fn is_decoding(&self) -> bool {
        self.running.iter().all(|s| s.pending() == 1 && !s.table.is_empty())
    }

    /// Whether all outputs are finished.
    pub fn is_finished(&self) -> bool {
        self.running.is_empty()
    }

    /// The rows to sample once all pending tokens are computed, each with the index of its sequence. Right after the
    /// prompt, the one sequence is sampled once for each output. A sequence with a draft is sampled before each drafted
    /// token and after the last.
    pub fn sample_rows(&self) -> Vec<(usize, SampleRow<'_>)> {
        if self.max_output == 0 {
            return Vec::new();
        }
        // Both the reported logprobs and the candidates of a beam search are the likeliest tokens.
        let candidates = self.params.beam.map_or(0, |beam| beam.num_candidates(self.ends.len()));
        let top = candidates.max(self.params.logprobs.unwrap_or(0));
        let row = |seq: usize, seed: u64, ahead: usize| {
            let s = &self.running[seq];
            let (prompt, output) = (s.prompt(), &s.output()[..s.output().len() - ahead]);
            let barred = if output.len() < self.params.min_tokens { &self.barred[..] } else { &[] };
            let mask = s.matcher.as_ref().map(Matcher::mask);
            (seq, SampleRow { params: &self.params, seed, prompt, output, barred, top, given: None, mask })
        };
        if self.at_prompt() && self.params.beam.is_none() {
            self.outputs.clone().map(|i| row(0, self.output_seed(i), 0)).collect()
        } else {
            let seqs = self.running.iter().enumerate();
            seqs.flat_map(|(i, s)| (0..=s.drafted).rev().map(move |ahead| (i, s.seed, ahead)))
                .map(|(i, seed, ahead)| row(i, seed, ahead))
                .collect()
        }
    }

    /// The number of rows that [`Self::sample_rows`] returns.
    pub fn num_sample_rows(&self) -> usize {
        match self.params.beam {
            _ if self.max_output == 0 => 0,
            Some(_) => self.running.len(),
            None => self.width() + self.num_drafted(),
        }
    }

    /// Adds the sampled tokens, one for each of [`Self::sample_rows`]: forks, appends and finishes sequences. Appends
    /// the final tokens to `new`. The tokens of a beam search are final only when the search ends.
    pub fn advance(&mut self, sampled: &[Sampled], new: &mut Vec<NewToken>) {
        // Beams that end, and samples that are stopped, give their states back.
        self.running.iter_mut().for_each(|seq| seq.table.settle(&seq.tokens));
        if self.max_output == 0 {
            return self.stop_all(FinishReason::Length);
        }
        if let Some(beam) = self.params.beam {
            self.advance_beams(beam, sampled);
            self.first_token.get_or_insert_with(Instant::now);
            return;
        }
        if self.at_prompt() {
            self.fork_outputs();
        }
        self.first_token.get_or_insert_with(Instant::now);
        let mut rest = sampled;
        for mut seq in std::mem::take(&mut self.running) {
            let draft = seq.take_draft();
            let (own, others) = rest.split_at((1 + draft.len()).min(rest.len()));
            rest = others;
            let mut ended = None;
            // A sample is valid if all drafted tokens before it were right and the output did not end before it.
            for (at, s) in own.iter().enumerate() {
                ended = self.extend(&mut seq, s, new);
                if ended.is_some() || draft.get(at) != Some(&s.token) {
                    break;
                }
            }
            if !draft.is_empty() {
                seq.table.truncate(seq.tokens.len() - 1);
            }
            match ended {
                Some(reason) => self.finished.push(seq.finish(reason, None)),
                None => self.running.push(seq),
            }
        }
    }

    /// Appends a sampled token to a sequence. Returns the finish reason if the sequence ends with it.
    fn extend(&self, seq: &mut Sequence, sampled: &Sampled, new: &mut Vec<NewToken>) -> Option<FinishReason> {
        let token = sampled.token;
        let reading = seq.matcher.as_mut().map_or(Reading::Open, |matcher| matcher.read(token));
        if reading == Reading::Refused {
            // The grammar allows no token that could follow.
            return Some(FinishReason::Length);
        }
        seq.push(token, sampled.logprob, &sampled.top);
        let logprob = seq.logprobs.as_ref().and_then(|all| all.last().cloned());
        let (ends, sum) = (self.ends.contains(&token), seq.cumulative_logprob);
        let (request, index, cached_tokens) = (self.id, seq.index, self.cached_tokens.unwrap_or(0));
        new.push(NewToken { request, index, token, logprob, sum, ends, cached_tokens });
        match seq.output().len() {
            _ if ends || reading == Reading::Complete => Some(FinishReason::Stop),
            len => (len >= self.max_output).then_some(FinishReason::Length),
        }
    }

    /// Ends one output that is in progress, as a stop string does. Does nothing if the output is unknown or finished.
    pub fn stop(&mut self, index: usize, reason: FinishReason) {
        if let Some(at) = self.running.iter().position(|s| s.index == index) {
            let seq = self.running.remove(at);
            self.finished.push(seq.finish(reason, None));
        }
    }

    /// Ends all unfinished outputs. Before the first token, all requested outputs are returned empty.
    pub fn stop_all(&mut self, reason: FinishReason) {
        if self.at_prompt() && !self.running.is_empty() {
            self.fork_outputs();
        }
        let beam = self.params.beam;
        for seq in self.running.drain(..) {
            let score = beam.map(|b| b.score(seq.cumulative_logprob, seq.output().len().max(1)));
            self.finished.push(seq.finish(reason, score));
        }
    }

    /// Returns the requested outputs. Beams, and outputs selected from a larger number, come best first.
    pub fn into_outputs(mut self) -> Vec<Output> {
        let rank = |o: &Output| o.score.unwrap_or(o.cumulative_logprob / o.tokens.len().max(1) as f64);
        if self.params.beam.is_none() {
            // Parts of the request may end in any order.
            self.finished.sort_by_key(|o| o.index);
        }
        if self.params.beam.is_some() || self.params.best_of > self.params.n {
            self.finished.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        }
        self.finished.truncate(self.params.n);
        self.finished
    }

    /// Forks one sequence per output from the prompt. All share the prompt's blocks.
    fn fork_outputs(&mut self) {
        let forks: Vec<Sequence> = self
            .outputs
            .clone()
            .map(|index| Sequence { index, seed: self.output_seed(index), ..self.running[0].clone() })
            .collect();
        self.running = forks;
    }

    /// Derives an output's seed. Seeds are far apart and do not repeat between requests with neighbouring seeds.
    fn output_seed(&self, index: usize) -> u64 {
        splitmix::mix(self.seed ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}
