//! Beam searches of the bundled model whose outputs must match a regular expression.

use engine::Grammar;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Llm, Prompt};
use serde::Deserialize;

use crate::{BeamSequence, complete};

/// A search and its result in Hugging Face transformers, written by `tools/constrained_beams.py`.
#[derive(Debug, Deserialize)]
pub struct ConstrainedSearch {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The regular expression that outputs must match.
    pub regex: String,
    /// All requested beams, best first.
    pub beams: Vec<BeamSequence>,
}

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<ConstrainedSearch>,
}

/// Runs all recorded searches in one batch, and returns each with the completion of `llm`.
///
/// # Panics
/// If a search is refused, or a step fails.
pub fn constrained_searches(llm: &mut Llm) -> Vec<(ConstrainedSearch, Completion)> {
    let fixture: serde_json::Result<Fixture> =
        serde_json::from_str(include_str!("../fixtures/opt-story-3m/constrained_beams.json"));
    let cases = fixture.unwrap_or_else(|error| panic!("{error}")).cases;
    let request = |case: &ConstrainedSearch| {
        let constraint = llm.compile(&Grammar::Regex(case.regex.clone())).unwrap_or_else(|error| panic!("{error}"));
        let width = case.beams.len();
        let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        let params = SamplingParams { n: width, best_of: width, max_tokens: 20, beam, ..SamplingParams::default() };
        (Prompt::Tokens(case.prompt_ids.clone()), SamplingParams { constraint: Some(constraint), ..params })
    };
    let requests: Vec<_> = cases.iter().map(request).collect();
    let done = complete(llm, requests);
    cases.into_iter().zip(done).collect()
}
