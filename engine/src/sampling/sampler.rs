//! Samples one token from one row of logits. This plain, deterministic code is the reference for every backend.
//!
//! Random choice uses the Gumbel-max trick: the token with the greatest `logit / temperature + gumbel` is a sample of
//! the softmax. The noise of a token depends only on the seed, the position and the token's id. So a choice does not
//! depend on the rest of the batch or on an order of summation, and is the same after a preemption.
//!
//! Arithmetic and noise are the GPU's own code, which gives the same bits on both. So CPU and GPU give the same tokens
//! and logprobs.

use kernels::sampling::noise::{MAX_GUMBEL, Noise};
use kernels::sampling::{Adjustment, Request};

use super::SamplingParams;
use super::likeliest::{likeliest, nucleus};
use super::scan::argmax;
use super::softmax::{InTurn, Softmax};
use crate::error::{Error, Result};

/// The sequence and sampling parameters of a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow<'a> {
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// The seed of this sequence.
    pub seed: u64,
    /// The prompt's tokens.
    pub prompt: &'a [u32],
    /// The tokens generated so far.
    pub output: &'a [u32],
    /// Tokens that cannot be chosen, unless no other token can.
    pub barred: &'a [u32],
    /// How many of the likeliest tokens to return. There may be fewer, see [`SampleRow::masks_top`].
    pub top: usize,
    /// A token that is already known: it is reported, and no token is chosen. If it is impossible, another may be
    /// reported instead.
    pub given: Option<u32>,
    /// A bit per token that can be chosen, the first token in the lowest bit of the first word. `None` allows all
    /// tokens. If all allowed tokens are impossible, an impossible one is reported.
    pub mask: Option<&'a [u32]>,
}

impl<'a> SampleRow<'a> {
    /// A row with these parameters, without preceding text, mask or extra reported tokens.
    pub fn new(params: &'a SamplingParams, seed: u64) -> Self {
        SampleRow { params, seed, prompt: &[], output: &[], barred: &[], top: 0, given: None, mask: None }
    }
}

/// The result of sampling a row of logits. Logprobs are the log-softmax of the raw logits (natural logarithm).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token: u32,
    /// Its logprob.
    pub logprob: f32,
    /// The likeliest tokens with their logprobs, best first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

impl Softmax {
    /// Chooses a token from `logits [vocab]`, the row of this softmax. `scratch` is overwritten.
    pub fn sample(self, logits: &[f32], row: &SampleRow<'_>, scratch: &mut Vec<f32>) -> Sampled {
        let logprob = |token: u32| self.logprob(logits[token as usize]);
        let top = if row.masks_top() {
            rule_out(logits, row, scratch);
            let mut top = likeliest(scratch, row.top);
            top.retain(|&t| scratch[t as usize] > f32::NEG_INFINITY);
            top
        } else {
            likeliest(logits, row.top)
        };
        let top = top.into_iter().map(|t| (t, logprob(t))).collect();
        let token = choose(logits, row, scratch);
        let logprob = if row.allows(token as usize) { logprob(token) } else { f32::NEG_INFINITY };
        Sampled { token, logprob, top }
    }
}

/// Chooses a token from `logits [vocab]`. `scratch` is overwritten.
///
/// # Errors
/// [`Error::NotANumber`] if a logit is NaN or positive infinity, or if all are negative infinity.
pub fn sample_row(logits: &[f32], row: &SampleRow<'_>, scratch: &mut Vec<f32>) -> Result<Sampled> {
    let softmax = Softmax::of_rows(logits, logits.len().max(1), &InTurn).pop().flatten();
    Ok(softmax.ok_or(Error::NotANumber)?.sample(logits, row, scratch))
}

fn choose(logits: &[f32], row: &SampleRow<'_>, scratch: &mut Vec<f32>) -> u32 {
    let request = row.request();
    let adjustments = row.adjustments();
    if request.inverse_temperature == 0.0 && adjustments.is_empty() && row.mask.is_none() {
        return argmax(logits);
    }
    rule_out(logits, row, scratch);
    for Adjustment { token, count, bias, .. } in adjustments {
        let logit = &mut scratch[token as usize];
        *logit = request.penalties.adjust(*logit, count, bias);
    }
    let best = argmax(scratch);
    if request.inverse_temperature == 0.0 || scratch[best as usize] == f32::NEG_INFINITY {
        return best;
    }
    // Subtracting the greatest logit avoids overflow at a temperature near 0. The others become impossible.
    let greatest = scratch[best as usize];
    for x in scratch.iter_mut() {
        *x = (*x - greatest) * request.inverse_temperature;
    }
    sample(scratch, best, &request)
}

/// Copies the logits to `scratch`, with negative infinity for tokens that the mask rules out.
fn rule_out(logits: &[f32], row: &SampleRow<'_>, scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(logits);
    if row.mask.is_some() {
        let ruled_out = scratch.iter_mut().enumerate().filter(|(token, _)| !row.allows(*token));
        ruled_out.for_each(|(_, x)| *x = f32::NEG_INFINITY);
    }
}

/// Samples from the softmax of `scaled`, restricted by top-k, then top-p, then min-p. `best` has the greatest logit.
fn sample(scaled: &[f32], best: u32, request: &Request) -> u32 {
    let noise = Noise::new(request.seed, request.position.into());
    let allowed = |t: &u32| scaled[*t as usize] >= request.floor;
    if request.top_k == 0 && request.top_p == 0 {
        return gumbel_max(scaled, (0..scaled.len() as u32).filter(allowed), best, &noise);
    }
    let k = if request.top_k == 0 { scaled.len() } else { scaled.len().min(request.top_k as usize) };
    gumbel_max(scaled, nucleus(scaled, k, request.top_p).into_iter().filter(allowed), best, &noise)
}

/// The token among `tokens` with the greatest sum of logit and noise. `best` has the greatest logit of all and is
/// allowed.
fn gumbel_max(scaled: &[f32], tokens: impl Iterator<Item = u32>, best: u32, noise: &Noise) -> u32 {
    let value = |t: u32| scaled[t as usize] + noise.gumbel(t);
    let (mut winner, mut greatest) = (best, value(best));
    for t in tokens {
        // Most tokens could not win even with the greatest possible noise.
        if scaled[t as usize] + MAX_GUMBEL <= greatest {
            continue;
        }
        let v = value(t);
        if v > greatest || (v == greatest && t < winner) {
            (winner, greatest) = (t, v);
        }
    }
    winner
}

#[cfg(test)]
mod tests {
    use super::super::{Beam, EarlyStopping, MAX_TEMPERATURE};
    use super::*;

    /// The frequency of each token in 20,000 draws.
    fn frequencies(logits: &[f32], params: &SamplingParams) -> Vec<f32> {
        let mut count = vec![0.0; logits.len()];
        for seed in 0..20_000 {
            count[sample_row(logits, &SampleRow::new(params, seed), &mut Vec::new()).unwrap().token as usize] +=
                1.0 / 20_000.0;
        }
        count
    }

    fn assert_near(got: &[f32], want: &[f32]) {
        // Four standard deviations of a frequency near one half.
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.015), "{got:?} is not {want:?}");
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let params = SamplingParams::default();
        let s = sample_row(&[1.0, 3.0, 3.0, 2.0], &SampleRow { top: 3, ..SampleRow::new(&params, 0) }, &mut Vec::new())
            .unwrap();
        assert_eq!(s.token, 1);
        assert_eq!(s.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(s.logprob, s.top[0].1);
    }

    #[test]
    fn sampling_follows_the_softmax() {
        let logits = [0.0, 2f32.ln(), 5f32.ln(), f32::NEG_INFINITY];
        assert_near(
            &frequencies(&logits, &SamplingParams { temperature: 1.0, ..Default::default() }),
            &[0.125, 0.25, 0.625, 0.0],
        );
        assert_near(
            &frequencies(&logits, &SamplingParams { temperature: 0.5, ..Default::default() }),
            &[1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0, 0.0],
        );
    }

    #[test]
    fn a_temperature_near_zero_is_nearly_greedy() {
        let logits = [5.0, 9.0, 8.0, f32::NEG_INFINITY];
        for temperature in [1e-3, 1e-40] {
            let params = SamplingParams { temperature, ..Default::default() };
            assert_eq!(sample_row(&logits, &SampleRow::new(&params, 3), &mut Vec::new()).unwrap().token, 1);
        }
    }

    #[test]
    fn filters_keep_the_right_tokens() {
        // Probabilities 0.4, 0.3, 0.2, 0.1.
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        assert_near(
            &frequencies(&logits, &SamplingParams { top_k: 2, ..base.clone() }),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        assert_near(
            &frequencies(&logits, &SamplingParams { top_p: 0.69, ..base.clone() }),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        assert_near(
            &frequencies(&logits, &SamplingParams { top_p: 0.71, ..base.clone() }),
            &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0],
        );
        assert_near(
            &frequencies(&logits, &SamplingParams { min_p: 0.6, ..base.clone() }),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        // top-p applies to the tokens that top-k left: 0.4 / 0.7 reaches 0.5.
        assert_near(&frequencies(&logits, &SamplingParams { top_k: 2, top_p: 0.5, ..base }), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn penalties_change_the_choice() {
        let logits = [2.0, 1.9, -1.0];
        let choose = |params: &SamplingParams, prompt: &[u32], output: &[u32]| {
            sample_row(&logits, &SampleRow { prompt, output, ..SampleRow::new(params, 0) }, &mut Vec::new())
                .unwrap()
                .token
        };
        let repetition = SamplingParams { repetition_penalty: 1.2, ..Default::default() };
        assert_eq!(choose(&repetition, &[0], &[]), 1);
        let presence = SamplingParams { presence_penalty: 0.2, ..Default::default() };
        assert_eq!(choose(&presence, &[0], &[]), 0);
        assert_eq!(choose(&presence, &[], &[0]), 1);
        let frequency = SamplingParams { frequency_penalty: 0.06, ..Default::default() };
        assert_eq!(choose(&frequency, &[], &[0]), 0);
        assert_eq!(choose(&frequency, &[], &[0, 0]), 1);
    }

    #[test]
    fn a_bias_changes_the_choice_but_no_logprob() {
        let logits = [2.0, 1.9, -1.0];
        let choose =
            |params: &SamplingParams| sample_row(&logits, &SampleRow::new(params, 0), &mut Vec::new()).unwrap();
        let plain = choose(&SamplingParams::default());
        let banned = choose(&SamplingParams { logit_bias: vec![(0, -100.0)], ..Default::default() });
        assert_eq!((plain.token, banned.token), (0, 1));
        let forced = choose(&SamplingParams { logit_bias: vec![(2, 100.0)], temperature: 1.0, ..Default::default() });
        assert_eq!(forced.token, 2);
        assert!((plain.logprob - forced.logprob - 3.0).abs() < 1e-5, "logprobs are those of the raw logits");
    }

    #[test]
    fn a_barred_token_is_never_chosen_and_keeps_its_logprob() {
        let logits = [9.0, 1.0, 0.5, 8.0, f32::NEG_INFINITY];
        let barred = &[0, 3];
        for temperature in [0.0, 0.5, 1.0, 100.0, MAX_TEMPERATURE] {
            for (top_k, top_p) in [(0, 1.0), (4, 1.0), (0, 0.99), (4, 0.5)] {
                let logit_bias = vec![(0, 100.0)];
                let params = SamplingParams { temperature, top_k, top_p, logit_bias, ..Default::default() };
                for seed in 0..500 {
                    let row = SampleRow { barred, top: 1, ..SampleRow::new(&params, seed) };
                    let s = sample_row(&logits, &row, &mut Vec::new()).unwrap();
                    assert!([1, 2].contains(&s.token), "{} at {temperature}", s.token);
                    assert_eq!(s.top[0].0, 0);
                }
            }
        }
    }

    #[test]
    fn a_mask_keeps_the_relative_probabilities_of_allowed_tokens() {
        let logits = [5f32.ln(), 0.0, 2f32.ln(), 9.0, 8.0];
        let mask = [0b00110];
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        let filtered = SamplingParams { top_k: 3, top_p: 0.99, logit_bias: vec![(3, 100.0)], ..base.clone() };
        for params in [base, filtered] {
            let mut count = [0.0; 5];
            for seed in 0..20_000 {
                let row = SampleRow { mask: Some(&mask), ..SampleRow::new(&params, seed) };
                count[sample_row(&logits, &row, &mut Vec::new()).unwrap().token as usize] += 1.0 / 20_000.0;
            }
            assert_near(&count, &[0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn a_mask_restricts_a_beam_without_changing_logprobs() {
        let beam = Some(Beam { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        let params = SamplingParams { beam, ..Default::default() };
        let logits = [5.0, 0.0, 2.0, f32::NEG_INFINITY, 4.0];
        let row = SampleRow { top: 4, ..SampleRow::new(&params, 0) };
        let sample = |mask| sample_row(&logits, &SampleRow { mask, ..row }, &mut Vec::new()).unwrap().top;
        let free = sample(None);
        assert_eq!(free.iter().map(|top| top.0).collect::<Vec<_>>(), [0, 4, 2, 1]);
        assert_eq!(sample(Some(&[0b01110])), [free[2], free[3]], "token 3 is impossible");
        assert_eq!(sample(Some(&[0b11111])), free);
        assert_eq!(sample(Some(&[0])), []);
    }

    #[test]
    fn a_mask_without_possible_tokens_gives_an_impossible_token() {
        for temperature in [0.0, 1.0] {
            let params = SamplingParams { temperature, ..Default::default() };
            for (mask, logits) in [([0b000], [1.0, 2.0, 3.0]), ([0b100], [1.0, 2.0, f32::NEG_INFINITY])] {
                let row = SampleRow { mask: Some(&mask), top: 1, ..SampleRow::new(&params, 1) };
                let s = sample_row(&logits, &row, &mut Vec::new()).unwrap();
                assert_eq!((s.token, s.logprob), (0, f32::NEG_INFINITY));
            }
        }
    }

    #[test]
    fn a_given_token_is_reported_however_unlikely() {
        let params = SamplingParams {
            temperature: 1.0,
            repetition_penalty: 2.0,
            logit_bias: vec![(0, 100.0)],
            ..Default::default()
        };
        let logits = [2.0, 3.0, -1e30, -3.0];
        let sum: f32 = logits.iter().map(|x: &f32| x.exp()).sum();
        for (token, logit) in (0..).zip(logits) {
            let row = SampleRow { prompt: &[3], top: 2, given: Some(token), ..SampleRow::new(&params, 0) };
            let s = sample_row(&logits, &row, &mut Vec::new()).unwrap();
            assert_eq!((s.token, s.top[0].0, s.top[1].0), (token, 1, 0));
            assert!((s.logprob - (logit - sum.ln())).abs() < 1e-5, "{}", s.logprob);
        }
    }

    #[test]
    fn a_choice_depends_on_seed_and_position_only() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
        let params = SamplingParams { temperature: 1.0, ..Default::default() };
        let at = |seed, output: &[u32]| {
            sample_row(&logits, &SampleRow { output, ..SampleRow::new(&params, seed) }, &mut Vec::new()).unwrap().token
        };
        assert_eq!(at(7, &[1, 2]), at(7, &[3, 4]));
        assert_ne!((at(7, &[]), at(7, &[1])), (at(8, &[]), at(8, &[1])));
    }

    #[test]
    fn logits_that_are_not_numbers_are_refused() {
        let params = SamplingParams::default();
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(sample_row(&[0.0, bad, 1.0], &SampleRow::new(&params, 0), &mut Vec::new()).is_err());
        }
        assert!(sample_row(&[0.0, f32::NEG_INFINITY], &SampleRow::new(&params, 0), &mut Vec::new()).is_ok());
    }
}
