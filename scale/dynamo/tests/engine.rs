//! The engine under Dynamo's interface, with the model in the repository.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    BackendError, ErrorType, FinishReason, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput, OutputOptions,
    PreprocessedRequest, SamplingOptions, StopConditions,
};
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Device, Llm, Options, Prompt};
use futures_util::StreamExt;
use quire_dynamo::engine::QuireEngine;

/// The beginning of a story.
const PROMPT: &str = "One day, a little fox";
/// Tokens generated.
const LENGTH: u32 = 24;

fn options() -> Options {
    Options { device: Device::Cpu, kv_memory: Some(64 << 20), ..Options::default() }
}

fn worker() -> QuireEngine {
    let files = ModelFiles::directory(concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/model")).unwrap();
    QuireEngine::new(files, options(), "story".into()).unwrap()
}

/// Returns the engine's output without Dynamo.
fn alone(params: SamplingParams) -> Completion {
    let mut llm = Llm::load(&ModelFiles::bundled(), &options()).unwrap();
    llm.generate(&[Prompt::Text(PROMPT.into())], &params).unwrap().remove(0)
}

fn greedy() -> SamplingParams {
    SamplingParams { max_tokens: LENGTH as usize, ..SamplingParams::default() }
}

fn request(tokens: &[u32]) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("story".into())
        .token_ids(tokens.to_vec())
        .stop_conditions(StopConditions { max_tokens: Some(LENGTH), ..StopConditions::default() })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

/// Collects the whole answer to a request.
async fn answer(worker: &QuireEngine, request: PreprocessedRequest) -> Vec<LLMEngineOutput> {
    let context = GenerateContext::new(mock_context(), None);
    let stream = worker.generate(request, context).await.unwrap();
    stream.map(|output| output.unwrap()).collect().await
}

fn tokens(outputs: &[LLMEngineOutput]) -> Vec<u32> {
    outputs.iter().flat_map(|output| output.token_ids.clone()).collect()
}

#[tokio::test]
async fn dynamos_conformance_tests_pass() {
    run_conformance(worker).await.unwrap();
}

#[tokio::test]
async fn tokens_equal_those_of_the_engine_alone() {
    let worker = worker();
    let config = worker.start(0).await.unwrap();
    let llm = config.llm.unwrap();
    assert_eq!((config.served_model_name.as_deref(), llm.kv_cache_block_size), (Some("story"), Some(16)));
    assert!(llm.context_length.unwrap() > 0 && llm.total_kv_blocks.unwrap() > 0);

    let want = alone(SamplingParams { logprobs: Some(2), ..greedy() });
    let mut asked = request(&want.prompt_tokens);
    asked.output_options.logprobs = Some(2);
    let got = answer(&worker, asked).await;
    let output = &want.outputs[0];
    assert_eq!(tokens(&got), output.tokens);
    assert_eq!(got.len(), output.tokens.len(), "tokens arrive one by one");
    let logprobs: Vec<f64> = got.iter().flat_map(|output| output.log_probs.clone().unwrap()).collect();
    let want_logprobs: Vec<f64> = output.logprobs.iter().flatten().map(|at| f64::from(at.logprob)).collect();
    assert_eq!(logprobs, want_logprobs);
    assert_eq!(got[0].top_logprobs.as_ref().unwrap()[0].len(), 2);
    let end = got.last().unwrap();
    assert_eq!(end.finish_reason, Some(FinishReason::Length));
    let usage = end.completion_usage.as_ref().unwrap();
    assert_eq!((usage.prompt_tokens as usize, usage.completion_tokens), (want.prompt_tokens.len(), LENGTH));

    // The second request finds its own full blocks in the cache.
    let long: Vec<u32> = want.prompt_tokens.iter().chain(&output.tokens).copied().collect();
    answer(&worker, request(&long)).await;
    let again = answer(&worker, request(&long)).await;
    let details = again.last().unwrap().completion_usage.as_ref().unwrap().prompt_tokens_details.as_ref().unwrap();
    assert_eq!(details.cached_tokens, Some((long.len() - 1) as u32 / 16 * 16));
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn beams_and_stop_strings_equal_those_of_the_engine_alone() {
    let worker = worker();
    worker.start(0).await.unwrap();
    let beam = Some(Beam { width: 3, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let want = alone(SamplingParams { beam, ..greedy() });
    let mut asked = request(&want.prompt_tokens);
    asked.sampling_options.use_beam_search = Some(true);
    asked.sampling_options.best_of = Some(3);
    assert_eq!(tokens(&answer(&worker, asked).await), want.outputs[0].tokens);

    let stop = vec![" the".to_owned()];
    let want = alone(SamplingParams { stop: stop.clone(), ..greedy() });
    let mut asked = request(&want.prompt_tokens);
    asked.stop_conditions.stop = Some(stop);
    let got = answer(&worker, asked).await;
    assert_eq!(tokens(&got), want.outputs[0].tokens);
    assert_eq!(got.last().unwrap().finish_reason, Some(FinishReason::Stop));
    assert!(tokens(&got).len() < LENGTH as usize);
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn refusals_name_the_field() {
    let worker = worker();
    worker.start(0).await.unwrap();
    let invalid = ErrorType::Backend(BackendError::InvalidArgument);
    let mut several = request(&[4, 5]);
    several.sampling_options.n = Some(2);
    let context = || GenerateContext::new(mock_context(), None);
    let refused = worker.generate(several, context()).await.err().unwrap();
    assert_eq!((refused.error_type(), refused.public_message().unwrap().starts_with("n must be 1")), (invalid, true));

    // Errors that only the engine can detect arrive as the single item of the stream.
    for (tokens, max_tokens, word) in [(vec![1_000_000], Some(1), "1000000"), (vec![4; 500], Some(5000), "context")] {
        let mut wrong = request(&tokens);
        wrong.stop_conditions.max_tokens = max_tokens;
        let items: Vec<_> = worker.generate(wrong, context()).await.unwrap().collect().await;
        let [Err(refused)] = &items[..] else { panic!("{word}: not refused") };
        assert_eq!(refused.error_type(), invalid);
        assert!(refused.public_message().unwrap().contains(word), "{refused}");
    }
    // Without a limit, the engine generates as many tokens as fit.
    let mut unbounded = request(&[4; 500]);
    unbounded.stop_conditions = StopConditions { ignore_eos: Some(true), ..StopConditions::default() };
    assert_eq!(answer(&worker, unbounded).await.last().unwrap().finish_reason, Some(FinishReason::Length));
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn events_have_an_address_while_the_engine_runs() {
    let worker = worker();
    assert!(worker.kv_event_sources().await.unwrap().is_empty());
    worker.start(0).await.unwrap();
    let sources = worker.kv_event_sources().await.unwrap();
    let [KvEventSource::Zmq { endpoint, topic, dp_rank: 0, .. }] = &sources[..] else { panic!("unexpected sources") };
    assert!(endpoint.starts_with("tcp://127.0.0.1:") && topic.is_empty());
    worker.cleanup().await.unwrap();
    assert!(worker.kv_event_sources().await.unwrap().is_empty());
    let ended = worker.generate(request(&[4]), GenerateContext::new(mock_context(), None)).await.err().unwrap();
    assert_eq!(ended.error_type(), ErrorType::Backend(BackendError::EngineShutdown));
}
