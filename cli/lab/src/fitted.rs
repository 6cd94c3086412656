//! Step times on this machine: measured one by one, then fitted by a linear function.

use anyhow::{Context, Result, ensure};
use engine::SamplingParams;
use engine::{Llm, Prompt};

use crate::cpu_clock;
use simulator::cost::{StepCost, StepLoad};

/// Numbers of requests, prompt lengths and output length of the measured steps, and how often each is repeated. The
/// fastest repetition counts, since other programs can only add time.
const BATCHES: [usize; 8] = [1, 2, 4, 8, 12, 20, 32, 48];
const PROMPTS: [usize; 3] = [8, 60, 200];
const OUTPUT: usize = 8;
const REPETITIONS: usize = 3;

/// The terms of a step's time: a constant, decodes, their context, new prompt tokens, and new prompt tokens times
/// context.
const FEATURES: usize = 5;

/// Seconds for each of the features. The total is at least 1 us.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedCost {
    weights: [f64; FEATURES],
    /// Mean relative error over the measured steps.
    pub error: f64,
}

fn features(step: &StepLoad) -> [f64; FEATURES] {
    let new: usize = step.prompts.iter().map(|(new, _)| new).sum();
    let pairs: usize = step.prompts.iter().map(|(new, seen)| new * seen).sum();
    [1.0, step.decodes as f64, step.decode_context as f64, new as f64, pairs as f64]
}

impl FittedCost {
    /// Measures steps of `llm`, and fits a function to them.
    ///
    /// # Errors
    /// If a step fails.
    pub fn measure(llm: &mut Llm) -> Result<Self> {
        let mut steps: Vec<(StepLoad, f64)> = Vec::new();
        let most = llm.engine().config().scheduler.max_batch_tokens;
        for batch in BATCHES {
            // Only prompts that fit one step together.
            for prompt in PROMPTS.into_iter().filter(|prompt| batch * prompt <= most) {
                let mut fastest = measure(llm, batch, prompt)?;
                for _ in 1..REPETITIONS {
                    let again = measure(llm, batch, prompt)?;
                    fastest.iter_mut().zip(again).for_each(|(step, again)| step.1 = step.1.min(again.1));
                }
                steps.extend(fastest);
            }
        }
        FittedCost::fit(&steps)
    }

    /// Fits the function with the least squares of relative errors over these steps.
    ///
    /// # Errors
    /// If the steps do not determine one.
    pub fn fit(steps: &[(StepLoad, f64)]) -> Result<Self> {
        let mut matrix = [[0.0; FEATURES + 1]; FEATURES];
        for (load, seconds) in steps {
            let own = features(load).map(|feature| feature / seconds);
            for row in 0..FEATURES {
                for column in 0..FEATURES {
                    matrix[row][column] += own[row] * own[column];
                }
                matrix[row][FEATURES] += own[row];
            }
        }
        let weights = solve(matrix).context("the measured steps do not determine a linear function")?;
        let mut fitted = FittedCost { weights, error: 0.0 };
        let error = |(load, seconds): &(StepLoad, f64)| (fitted.seconds(load) / seconds - 1.0).abs();
        fitted.error = steps.iter().map(error).sum::<f64>() / steps.len().max(1) as f64;
        Ok(fitted)
    }
}

/// Runs `batch` requests with prompts of `prompt` tokens, and returns their steps with the seconds of each.
fn measure(llm: &mut Llm, batch: usize, prompt: usize) -> Result<Vec<(StepLoad, f64)>> {
    let params = SamplingParams { max_tokens: OUTPUT, ignore_eos: true, ..SamplingParams::default() };
    for at in 0..batch {
        // Prompts differ from their first token on, so the prefix cache finds no match.
        let tokens = (0..prompt).map(|i| (at * 31 + i * 7 + 3) as u32 % 2000 + 10).collect();
        llm.add(&Prompt::Tokens(tokens), params.clone())?;
    }
    let mut steps = Vec::new();
    while llm.has_work() {
        let before = llm.stats();
        let begun = cpu_clock::now();
        llm.step()?;
        let seconds = (cpu_clock::now() - begun).as_secs_f64();
        let tokens = llm.stats().computed_tokens - before.computed_tokens;
        let generated = steps.len();
        let load = if generated == 0 {
            ensure!(tokens == batch * prompt, "a step computed {tokens} tokens of {}", batch * prompt);
            StepLoad { prompts: vec![(prompt, prompt); batch], logits: batch, ..StepLoad::default() }
        } else {
            let decode_context = (batch * (prompt + generated)) as u64;
            StepLoad { decodes: tokens, decode_context, logits: tokens, ..StepLoad::default() }
        };
        if tokens > 0 {
            steps.push((load, seconds));
        }
    }
    Ok(steps)
}

/// Solves linear equations whose right-hand side is the last column.
fn solve(mut matrix: [[f64; FEATURES + 1]; FEATURES]) -> Option<[f64; FEATURES]> {
    for at in 0..FEATURES {
        let pivot = (at..FEATURES).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        matrix.swap(at, pivot);
        let own = matrix[at];
        if own[at] == 0.0 {
            return None;
        }
        for (row, other) in matrix.iter_mut().enumerate() {
            let factor = other[at] / own[at];
            if row != at {
                other.iter_mut().zip(own).for_each(|(entry, own)| *entry -= factor * own);
            }
        }
    }
    let mut solution = [0.0; FEATURES];
    solution.iter_mut().enumerate().for_each(|(at, value)| *value = matrix[at][FEATURES] / matrix[at][at]);
    Some(solution)
}

impl StepCost for FittedCost {
    fn seconds(&self, step: &StepLoad) -> f64 {
        if step.decodes == 0 && step.prompts.is_empty() {
            return 0.0;
        }
        let terms = features(step).into_iter().zip(self.weights).map(|(feature, weight)| feature * weight);
        terms.sum::<f64>().max(1e-6)
    }

    fn copy_seconds(&self, _tokens: usize) -> f64 {
        // Storage stays paged, so the only copies are the engine's own.
        0.0
    }

    fn swap_seconds(&self, _tokens: usize, _copies: usize) -> f64 {
        0.0
    }

    fn layers(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn a_linear_function_is_recovered() {
        let truth = FittedCost { weights: [1e-3, 2e-5, 3e-8, 4e-5, 5e-9], error: 0.0 };
        let mut steps = Vec::new();
        for n in 1..20usize {
            for seen in [10, 100, 300] {
                let decodes = StepLoad { decodes: n, decode_context: (n * seen) as u64, ..StepLoad::default() };
                let prompts = StepLoad { prompts: vec![(seen, seen); n], ..StepLoad::default() };
                steps.extend([decodes, prompts].map(|load| (load.clone(), truth.seconds(&load))));
            }
        }
        let fitted = FittedCost::fit(&steps).unwrap();
        assert!(fitted.error < 1e-6, "{fitted:?}");
        assert!(FittedCost::fit(&[]).is_err());
    }
}
