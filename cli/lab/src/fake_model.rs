//! A fake model for benchmarks. It computes nothing. A sequence's last tokens seed a random distribution of its next
//! token. The model influences the sharing of blocks only by the beams that survive.

use engine::tools::batch::Batch;
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{SampleRow, Sampled};
use loadgen::random::WorkloadRng;

/// Vocabulary size of the fake model.
pub const VOCAB: usize = 50_000;

/// Tokens with a nonzero probability in a context.
const LIKELY: usize = 32;
/// Standard deviation of their logits. The most likely token gets about half of the probability, as in real text.
const SPREAD: f64 = 2.5;

/// A runner that chooses random tokens. See the module.
pub struct FakeModel;

impl Runner for FakeModel {
    fn run(&mut self, _batch: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        Ok(rows.iter().map(sample).collect())
    }
}

fn sample(row: &SampleRow<'_>) -> Sampled {
    // The last four tokens represent the whole context.
    let context = row.prompt.iter().chain(row.output).rev().take(4);
    let seed = context.fold(row.output.len() as u64, |seed, &token| WorkloadRng::new(seed ^ u64::from(token)).bits());
    let mut random = WorkloadRng::new(seed);
    let mut likely: Vec<(u32, f64)> =
        (0..LIKELY.max(row.top)).map(|_| (random.below(VOCAB) as u32, SPREAD * random.normal())).collect();
    likely.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum: f64 = likely.iter().map(|(_, logit)| logit.exp()).sum();
    let top: Vec<(u32, f32)> = likely.iter().map(|&(token, logit)| (token, (logit - sum.ln()) as f32)).collect();
    let mut left = WorkloadRng::new(seed ^ row.seed).uniform();
    let chosen = top.iter().find(|(_, logprob)| {
        left -= f64::from(*logprob).exp();
        left <= 0.0
    });
    let (token, logprob) = *chosen.unwrap_or(&top[0]);
    Sampled { token, logprob, top: top[..row.top].to_vec() }
}
