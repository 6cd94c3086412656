//! A stand-in for a model: it computes nothing, and gives each sequence a distribution of next tokens made up from its
//! context. How blocks are shared depends on a model only through which beams survive.

use engine::batch::Batch;
use engine::runner::{Computed, Runner};
use engine::sampling::{SampleRow, Sampled};
use loadgen::random::WorkloadRng;

/// Tokens of the stand-in's language.
pub const VOCAB: usize = 50_000;

/// Tokens that have any probability in a context.
const LIKELY: usize = 32;
/// Standard deviation of their logits: the likeliest gets some half of the probability, as in text.
const SPREAD: f64 = 2.5;

/// See the module.
pub struct StandIn;

impl Runner for StandIn {
    fn run(&mut self, _batch: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        Ok(rows.iter().map(sample).collect())
    }
}

fn sample(row: &SampleRow<'_>) -> Sampled {
    // The last tokens stand for the whole context.
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
