//! Converts a row's sampling parameters to the form that CPU and GPU both compute with.

use kernels::sampling::{Adjustment, Penalties, Request};

use super::SampleRow;

impl SampleRow<'_> {
    /// The request. The device positions of adjustments, mask and likeliest tokens are left unset.
    pub fn request(&self) -> Request {
        let p = self.params;
        // Counts beyond `u16` exceed the limit and are refused later.
        let top = u16::try_from(self.top).unwrap_or(u16::MAX);
        if self.given.is_some() {
            return Request { top, ..Request::GREEDY };
        }
        let penalties = Penalties {
            repetition: p.repetition_penalty,
            presence: p.presence_penalty,
            frequency: p.frequency_penalty,
        };
        Request {
            seed: self.seed,
            position: self.output.len() as u32,
            // A top-k beyond `u32` includes the whole vocabulary, so it is off.
            top_k: u32::try_from(p.top_k).unwrap_or(0),
            penalties,
            top,
            masked_top: u16::from(self.masks_top()),
            ..Request::GREEDY
        }
        .with_temperature(p.temperature)
        .with_top_p(p.top_p)
        .with_min_p(p.min_p)
    }

    /// Whether the likeliest tokens are restricted to those that the mask allows. A beam search continues with these
    /// tokens only.
    pub fn masks_top(&self) -> bool {
        self.mask.is_some() && self.params.beam.is_some()
    }

    /// Whether the mask allows a token.
    pub fn allows(&self, token: usize) -> bool {
        self.mask.is_none_or(|mask| mask[token / 32] >> (token % 32) & 1 == 1)
    }

    /// The tokens whose logits are adjusted, in order of their ids: tokens with a bias and, if penalties are on, the
    /// tokens of prompt and output with their counts in the output. A given token gets a bias that no other token can
    /// beat. A barred token gets negative infinity.
    pub fn adjustments(&self) -> Vec<Adjustment> {
        let p = self.params;
        let adjustment = |token, count, bias| Adjustment { token, count, bias, raw: 0.0 };
        if let Some(token) = self.given {
            return vec![adjustment(token, -1, f32::MAX)];
        }
        let penalised = p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        let (prompt, output) = if penalised { (self.prompt, self.output) } else { (&[][..], &[][..]) };
        let prompt = prompt.iter().map(|&token| (token, 0));
        let mut seen: Vec<(u32, i32)> = prompt.chain(output.iter().map(|&token| (token, 1))).collect();
        seen.sort_unstable();
        let same = seen.chunk_by(|a, b| a.0 == b.0);
        let mut all: Vec<Adjustment> =
            same.map(|uses| adjustment(uses[0].0, uses.iter().map(|u| u.1).sum(), 0.0)).collect();
        let barred = self.barred.iter().map(|&token| (token, f32::NEG_INFINITY));
        for (token, bias) in p.logit_bias.iter().copied().chain(barred) {
            match all.binary_search_by_key(&token, |a| a.token) {
                Ok(at) => all[at].bias = bias,
                Err(at) => all.insert(at, adjustment(token, -1, bias)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::SamplingParams;
    use super::*;

    #[test]
    fn each_seen_token_has_one_count() {
        let mut params = SamplingParams::default();
        let adjustments = |params: &SamplingParams| {
            let row = SampleRow { prompt: &[7, 3, 7], output: &[3, 9, 3], ..SampleRow::new(params, 0) };
            row.adjustments().iter().map(|a| (a.token, a.count)).collect::<Vec<_>>()
        };
        assert_eq!(adjustments(&params), []);
        params.presence_penalty = 0.5;
        assert_eq!(adjustments(&params), [(3, 2), (7, 0), (9, 1)]);
    }

    #[test]
    fn a_bias_joins_the_count_of_its_token() {
        let mut params = SamplingParams { logit_bias: vec![(8, 2.0), (3, -1.0)], ..SamplingParams::default() };
        let adjustments = |params: &SamplingParams| {
            let row = SampleRow { prompt: &[7], output: &[3], barred: &[8, 2, 8], ..SampleRow::new(params, 0) };
            row.adjustments().iter().map(|a| (a.token, a.count, a.bias)).collect::<Vec<_>>()
        };
        let never = f32::NEG_INFINITY;
        assert_eq!(adjustments(&params), [(2, -1, never), (3, -1, -1.0), (8, -1, never)], "nothing is penalised");
        params.frequency_penalty = 0.5;
        assert_eq!(adjustments(&params), [(2, -1, never), (3, 1, -1.0), (7, 0, 0.0), (8, -1, never)]);
    }
}
