//! Results with an adapter equal those of merged weights.

use engine::tools::quantised::QuantType;
use engine::{Llm, ModelFiles, Options, Prompt, SamplingParams};
use tests::adapters::RandomAdapter;
use tests::scores::difference;
use tests::{MODELS, complete, models};

use super::{files, greedy, options, prompt};

/// The largest difference of a token's logprob. Both compute in f32, with sums in another order.
const BOUND: f32 = 5e-4;
/// The smallest mean change of logprobs by the adapters of these tests, so that a missing adapter is noticed.
const EFFECT: f32 = 0.1;

/// Models with other projections than the golden ones.
const FAMILIES: [&str; 9] =
    ["cohere2", "deepseek2", "gemma4-e", "glm4", "granite4-dense", "lfm2", "phi3", "qwen3-next", "qwen3.5"];

/// The logprobs of texts with an adapter.
fn scores(llm: &mut Llm, params: &SamplingParams, texts: &[Vec<u32>]) -> Vec<f32> {
    let params = SamplingParams { max_tokens: 1, prompt_logprobs: Some(0), ..params.clone() };
    let done = complete(llm, texts.iter().map(|text| (Prompt::Tokens(text.clone()), params.clone())));
    done.into_iter().flat_map(|done| done.prompt_logprobs.unwrap().into_iter().flatten()).map(|p| p.logprob).collect()
}

/// Compares a model with an adapter to the merged model.
fn compare(files: &ModelFiles, options: &Options) {
    let (own, merged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let adapter = RandomAdapter::new(files, 5, 6);
    adapter.write(own.path());
    let merged = adapter.merged(files, merged.path());
    let mut llm = Llm::load(files, options).unwrap();
    let handle = llm.adapters().load("random", own.path()).unwrap();
    let texts = texts();
    let with = scores(&mut llm, &greedy(Some(&handle)), &texts);
    let base = scores(&mut llm, &greedy(None), &texts);
    let mut merged = Llm::load(&merged, options).unwrap();
    let wanted = scores(&mut merged, &greedy(None), &texts);
    let ((_, most), (effect, _)) = (difference(&with, &wanted), difference(&with, &base));
    assert!(most < BOUND, "{}: logprobs differ by up to {most} from those of merged weights", files.name());
    assert!(effect > EFFECT, "{}: the adapter changes logprobs by {effect} only", files.name());
    for seed in 0..3 {
        let ask = |llm: &mut Llm, params| llm.generate(&[prompt(seed, 9 + seed)], &params).unwrap();
        let (got, want) = (ask(&mut llm, greedy(Some(&handle))), ask(&mut merged, greedy(None)));
        assert_eq!(got[0].outputs[0].tokens, want[0].outputs[0].tokens, "{}", files.name());
    }
}

/// Texts of 120 random tokens.
fn texts() -> Vec<Vec<u32>> {
    let text = |seed| match prompt(seed, 40) {
        Prompt::Tokens(tokens) => tokens,
        _ => unreachable!("prompts are tokens"),
    };
    (0..3).map(text).collect()
}

#[test]
fn golden_models_match_their_merged_weights() {
    for model in MODELS {
        compare(&files(model), &options());
    }
}

#[test]
fn other_families_match_their_merged_weights() {
    for family in FAMILIES {
        compare(&files(family), &options());
    }
}

#[test]
fn two_workers_match_merged_weights() {
    let options = Options { tensor_parallel_size: 2, ..options() };
    for model in ["opt", "gpt2", "llama-grouped", "qwen3"] {
        let directory = tempfile::tempdir().unwrap();
        compare(&models::make(model, directory.path()), &options);
    }
    for family in ["phi3", "qwen3-next", "granite4-dense", "deepseek2"] {
        compare(&files(family), &options);
    }
}

#[test]
fn a_quantised_model_matches_its_decoded_and_merged_weights() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("q4_0.gguf");
    engine::quantize(&files("llama3"), QuantType::Q4_0, &path, |_, _| {}).unwrap();
    let quantised = ModelFiles::gguf(&path).unwrap();
    let adapter = RandomAdapter::new(&quantised, 5, 6);
    let paths = ["adapter", "decoded"].map(|name| directory.path().join(name));
    adapter.write(&paths[0]);
    std::fs::create_dir(&paths[1]).unwrap();
    let decoded = adapter.only(&[]).merged(&quantised, &paths[1]);
    let [(with, base), (exact_with, exact_base)] = [&quantised, &decoded].map(|files| {
        let mut llm = Llm::load(files, &options()).unwrap();
        let handle = llm.adapters().load("random", &paths[0]).unwrap();
        (scores(&mut llm, &greedy(Some(&handle)), &texts()), scores(&mut llm, &greedy(None), &texts()))
    });
    // A quantised model also rounds activations. That changes results about as much as without the adapter.
    let ((error, _), (rounding, _)) = (difference(&with, &exact_with), difference(&base, &exact_base));
    let (effect, _) = difference(&exact_with, &exact_base);
    assert!(error < 3.0 * rounding && 5.0 * error < effect, "{error} with {rounding} by rounding, effect {effect}");
}
