//! Shared code of the integration tests: the golden models and their outputs in Hugging Face transformers.

pub mod adapters;
pub mod constrained;
pub mod families;
pub mod models;
pub mod scores;

use std::path::{Path, PathBuf};

use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Event, Llm};
use serde::Deserialize;

/// The golden models, named by their directories.
pub const MODELS: [&str; 10] =
    ["gpt2", "llama2", "llama3", "llama3-tied", "mistral", "opt-350m-like", "opt-bin", "opt-pre", "qwen2", "qwen3"];

/// Calls a macro with all golden models, each as `name: "directory",`.
#[macro_export]
macro_rules! each_model {
    ($tests:ident) => {
        $tests! {
            gpt2: "gpt2",
            llama2: "llama2",
            llama3: "llama3",
            llama3_tied: "llama3-tied",
            mistral: "mistral",
            opt_350m_like: "opt-350m-like",
            opt_bin: "opt-bin",
            opt_pre: "opt-pre",
            qwen2: "qwen2",
            qwen3: "qwen3",
        }
    };
}

/// Answers all requests in one batch, and returns the completions in the order of the requests. After every step the
/// scheduler's integrity is checked.
///
/// # Panics
/// If a request is refused, a step fails, or the integrity check fails.
pub fn complete(
    llm: &mut Llm,
    requests: impl IntoIterator<Item = (engine::Prompt, SamplingParams)>,
) -> Vec<Completion> {
    let mut add = |(prompt, params)| llm.add(&prompt, params).unwrap_or_else(|error| panic!("{error:?}"));
    let ids: Vec<_> = requests.into_iter().map(&mut add).collect();
    let mut done = Vec::new();
    while llm.has_work() {
        let events = llm.step().unwrap_or_else(|error| panic!("{error:?}"));
        done.extend(events.into_iter().filter_map(|event| match event {
            Event::Done(completion) => Some(completion),
            Event::Prompt { .. } | Event::Token { .. } => None,
        }));
        assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    }
    done.sort_by_key(|c| ids.iter().position(|id| *id == c.id));
    done
}

/// Returns the directory of a golden model.
pub fn golden_dir(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden").join(model)
}

/// Returns the directory of a golden model or of a committed family.
pub fn model_dir(model: &str) -> PathBuf {
    if families::FAMILIES.contains(&model) { families::committed_dir(model) } else { golden_dir(model) }
}

/// `golden.json` of a model. See `fixtures/golden/README.md`.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// The type the weights are stored in.
    pub saved_dtype: String,
    /// The prompts with their continuations.
    pub prompts: Vec<GoldenPrompt>,
    /// Given texts with the logprobs of their tokens.
    pub teacher_forced: Vec<TeacherForced>,
    /// Results of 16-bit types for the same prompts.
    pub half: Half,
}

/// A prompt.
#[derive(Debug, Deserialize)]
pub struct GoldenPrompt {
    /// A name for messages.
    pub name: String,
    /// The prompt as text.
    pub text: String,
    /// The prompt as tokens.
    pub ids: Vec<u32>,
    /// Greedy continuation.
    pub greedy: Greedy,
    /// Beam searches.
    pub beam: Vec<BeamSearch>,
}

/// A greedy continuation.
#[derive(Debug, Deserialize)]
pub struct Greedy {
    /// Forty tokens, end-of-sequence ignored.
    pub ids: Vec<u32>,
    /// Up to the first end-of-sequence token.
    pub ids_stopped_at_eos: Vec<u32>,
    /// `ids` as text.
    pub text: String,
    /// The likeliest five tokens at each step.
    pub top5: Vec<Top>,
}

/// The likeliest tokens at a step, best first.
#[derive(Debug, Deserialize)]
pub struct Top {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their logprobs.
    pub logprobs: Vec<f32>,
}

/// A beam search.
#[derive(Debug, Deserialize)]
pub struct BeamSearch {
    /// Number of beams. All of them are returned.
    pub num_beams: usize,
    /// Maximum number of generated tokens.
    pub max_new_tokens: usize,
    /// Exponent of the length in scores.
    pub length_penalty: f32,
    /// Whether the search stops as soon as enough beams have ended.
    pub early_stopping: bool,
    /// Whether end-of-sequence tokens end a beam.
    pub ignore_eos: bool,
    /// The beams, best first.
    pub sequences: Vec<BeamSequence>,
}

impl BeamSearch {
    /// Returns the request parameters of the search.
    pub fn params(&self) -> SamplingParams {
        let early_stopping = if self.early_stopping { EarlyStopping::Yes } else { EarlyStopping::No };
        SamplingParams {
            n: self.num_beams,
            best_of: self.num_beams,
            max_tokens: self.max_new_tokens,
            ignore_eos: self.ignore_eos,
            beam: Some(Beam { width: self.num_beams, length_penalty: self.length_penalty, early_stopping }),
            ..SamplingParams::default()
        }
    }
}

/// A beam.
#[derive(Debug, Deserialize)]
pub struct BeamSequence {
    /// Its tokens, including a closing end-of-sequence token.
    pub ids: Vec<u32>,
    /// Its score.
    pub score: f64,
}

/// A text whose tokens are given.
#[derive(Debug, Deserialize)]
pub struct TeacherForced {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The positions with recorded logits, in ascending order.
    pub positions: Vec<usize>,
    /// The logprob of each token after the tokens before it. `None` for the first.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest next token at each position.
    pub argmax: Vec<u32>,
}

/// Hugging Face's 16-bit results compared with its own f32 results.
#[derive(Debug, Deserialize)]
pub struct Half {
    /// In half precision.
    pub float16: HalfType,
    /// In brain floating point.
    pub bfloat16: HalfType,
}

/// The results in one type.
#[derive(Debug, Deserialize)]
pub struct HalfType {
    /// Whether the weights are stored in this type.
    pub native: bool,
    /// Results for each prompt.
    pub prompts: Vec<HalfPrompt>,
}

/// The results for one prompt.
#[derive(Debug, Deserialize)]
pub struct HalfPrompt {
    /// Number of greedy tokens equal to f32 before the first difference.
    pub greedy_prefix_equal: usize,
    /// The largest difference of a token's logprob.
    pub token_logprob_drift_max: f32,
}

/// Reads the golden outputs of a model.
///
/// # Panics
/// If the fixture is missing or malformed.
pub fn golden(model: &str) -> Golden {
    let path = golden_dir(model).join("golden.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
