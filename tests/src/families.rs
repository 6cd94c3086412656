//! The tiny models of `fixtures/families`: families with windows, shared caches, unusual blocks, experts and states.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Half, Top};

/// The families, named by their directories.
pub const FAMILIES: [&str; 26] = [
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-e",
    "olmo2",
    "olmo3",
    "cohere2",
    "smollm3",
    "phi3",
    "phi3-window",
    "glm4",
    "granite",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "gpt-oss",
    "gemma4-moe",
    "granitemoe",
    "deepseek2",
    "deepseek3",
    "qwen3.5",
    "qwen3.5-moe",
    "qwen3-next",
    "granite4",
    "granite4-dense",
    "lfm2",
];

/// The environment variable that names another directory of such models, for example with other seeds.
pub const DIRECTORY: &str = "QUIRE_FAMILIES";

/// Calls a macro with all families, each as `name: "directory",`.
#[macro_export]
macro_rules! each_family {
    ($tests:ident) => {
        $tests! {
            gemma2: "gemma2",
            gemma3: "gemma3",
            gemma4: "gemma4",
            gemma4_e: "gemma4-e",
            olmo2: "olmo2",
            olmo3: "olmo3",
            cohere2: "cohere2",
            smollm3: "smollm3",
            phi3: "phi3",
            phi3_window: "phi3-window",
            glm4: "glm4",
            granite: "granite",
            mixtral: "mixtral",
            qwen2_moe: "qwen2-moe",
            qwen3_moe: "qwen3-moe",
            gpt_oss: "gpt-oss",
            gemma4_moe: "gemma4-moe",
            granitemoe: "granitemoe",
            deepseek2: "deepseek2",
            deepseek3: "deepseek3",
            qwen3_5: "qwen3.5",
            qwen3_5_moe: "qwen3.5-moe",
            qwen3_next: "qwen3-next",
            granite4: "granite4",
            granite4_dense: "granite4-dense",
            lfm2: "lfm2",
        }
    };
}

/// Returns the directory of a committed model.
pub fn committed_dir(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/families").join(family)
}

/// Returns the directory of a model, in the directory that the environment names if it names one.
pub fn family_dir(family: &str) -> PathBuf {
    match std::env::var_os(DIRECTORY) {
        Some(directory) => Path::new(&directory).join(family),
        None => committed_dir(family),
    }
}

/// `golden.json` of a model. `tools/families.py` describes it.
#[derive(Debug, Deserialize)]
pub struct FamilyGolden {
    /// The prompts with their continuations.
    pub prompts: Vec<FamilyPrompt>,
    /// The largest difference between the recorded logprobs and the same computation in f64.
    pub drift: Option<f32>,
    /// Results of 16-bit types for the same prompts. Only the committed models have them.
    pub half: Option<Half>,
}

/// A prompt.
#[derive(Debug, Deserialize)]
pub struct FamilyPrompt {
    /// A name for messages.
    pub name: String,
    /// The prompt's tokens.
    pub ids: Vec<u32>,
    /// Greedy continuation.
    pub greedy: FamilyGreedy,
}

/// A greedy continuation, with end-of-sequence tokens ignored.
#[derive(Debug, Deserialize)]
pub struct FamilyGreedy {
    /// The tokens.
    pub ids: Vec<u32>,
    /// The likeliest five tokens at each step.
    pub top5: Vec<Top>,
}

/// Reads the golden outputs in a model's directory.
///
/// # Panics
/// If the file is missing or malformed.
pub fn family_golden(directory: &Path) -> FamilyGolden {
    let path = directory.join("golden.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the allowed difference of a logprob from the recorded one.
///
/// Attention of Gemma 4 has no scale, so its scores are large. Its recorded logprobs differ from the same computation
/// in f64 by up to 5e-3, and a different order of summation has errors of the same size.
pub fn tolerance(family: &str, golden: &FamilyGolden) -> f32 {
    match family.starts_with("gemma4") {
        true => 1e-3 + 2.0 * golden.drift.unwrap_or(5e-3),
        false => 1e-3,
    }
}

/// Returns the root mean square difference of logprobs that a model in Q8_0 may have. Random weights make some models so
/// sensitive that transformers' own results in bf16, which has as many digits, differ by more than one. Activations are
/// rounded here too, so the bound is half as high again.
pub fn q8_drift(golden: &FamilyGolden) -> f32 {
    let prompts = golden.half.iter().flat_map(|half| &half.bfloat16.prompts);
    prompts.map(|prompt| 1.5 * prompt.token_logprob_drift_max).fold(0.5, f32::max)
}
