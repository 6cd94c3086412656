//! Sampling options that a user may leave unset, and the model's defaults for them.

use super::SamplingParams;
use crate::config::GenerationConfig;

/// Sampling options of a user. Those that are `None` get the model's default from `generation_config.json`.
///
/// The file's defaults count only for requests that sample. Temperature 0 or beam search asks for the raw logits, so no
/// penalty or filter of the file applies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl SamplingOptions {
    /// Sets the fields of `params`. The caller has already set `params.beam`.
    pub fn apply(self, defaults: &GenerationConfig, params: &mut SamplingParams) {
        let samples = defaults.do_sample == Some(true) && params.beam.is_none() && self.temperature != Some(0.0);
        let none = GenerationConfig::default();
        let defaults = if samples { defaults } else { &none };
        // Hugging Face's default temperature is 1. Quire's default is greedy, unless the file asks to sample.
        let temperature = if samples { defaults.temperature.unwrap_or(1.0) } else { 0.0 };
        params.temperature = self.temperature.unwrap_or(temperature);
        params.top_k = self.top_k.or(defaults.top_k).unwrap_or(0);
        params.top_p = self.top_p.or(defaults.top_p).unwrap_or(1.0);
        params.min_p = self.min_p.or(defaults.min_p).unwrap_or(0.0);
        params.repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Beam, EarlyStopping};
    use super::*;

    fn defaults() -> GenerationConfig {
        GenerationConfig {
            do_sample: Some(true),
            temperature: Some(0.7),
            top_k: Some(20),
            repetition_penalty: Some(1.1),
            ..Default::default()
        }
    }

    fn resolve(options: SamplingOptions, defaults: &GenerationConfig, params: SamplingParams) -> SamplingParams {
        let mut params = params;
        options.apply(defaults, &mut params);
        params
    }

    #[test]
    fn the_models_defaults_fill_unset_options() {
        let p = resolve(SamplingOptions::default(), &defaults(), SamplingParams::default());
        assert_eq!((p.temperature, p.top_k, p.top_p, p.repetition_penalty), (0.7, 20, 1.0, 1.1));
        let options = SamplingOptions { temperature: Some(1.5), top_k: Some(0), ..Default::default() };
        let p = resolve(options, &defaults(), SamplingParams::default());
        assert_eq!((p.temperature, p.top_k, p.repetition_penalty), (1.5, 0, 1.1));
    }

    #[test]
    fn greedy_and_beams_use_raw_logits() {
        let greedy = SamplingOptions { temperature: Some(0.0), ..Default::default() };
        assert_eq!(resolve(greedy, &defaults(), SamplingParams::default()), SamplingParams::default());
        let beam = Some(Beam { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        let params = SamplingParams { beam, ..Default::default() };
        assert_eq!(resolve(SamplingOptions::default(), &defaults(), params.clone()), params);
        let p = resolve(
            SamplingOptions { repetition_penalty: Some(1.3), ..greedy },
            &defaults(),
            SamplingParams::default(),
        );
        assert_eq!(p.repetition_penalty, 1.3);
    }

    #[test]
    fn without_do_sample_the_default_is_greedy() {
        let silent = GenerationConfig { temperature: Some(0.7), ..Default::default() };
        assert_eq!(resolve(SamplingOptions::default(), &silent, SamplingParams::default()).temperature, 0.0);
    }
}
