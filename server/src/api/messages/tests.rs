//! Streams of messages on a paused clock, which advances when the stream waits.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::time::Duration;

use axum::body::BodyDataStream;
use engine::tools::answer::{AnswerReader, ThoughtFormat};
use engine::{Completion, Continuation, Event, FinishReason, Llm, ModelFiles, Options};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::advance;

use super::*;
use crate::adapters::Adapters;
use crate::api::answer_form::AnswerForm;
use crate::api::stream::{IDLE, Streaming, response};
use crate::metrics::Metrics;
use crate::options::{RequestLimits, ServeOptions};
use crate::worker::{Failure, Job, JobUpdate, Worker};

/// Tokens of the prompt, and how many of them were cached.
const PROMPT: (usize, usize) = (7, 4);

async fn app(limits: RequestLimits) -> Arc<App> {
    let (files, engine) = (ModelFiles::bundled(), Options::default());
    let (options, metrics) = (ServeOptions { limits, ..ServeOptions::default() }, Metrics::new("test"));
    let load = {
        let (files, engine) = (files.clone(), engine.clone());
        move || Llm::load(&files, &engine)
    };
    let worker = Worker::start(load, limits, metrics.clone(), None).unwrap();
    let adapters = Arc::new(Adapters::new(Vec::new(), options.adapters.clone()));
    let app = Arc::new(App::new(&files, &engine, &options, (worker, adapters), metrics).unwrap());
    app.loaded().await.unwrap();
    app
}

/// Returns a streamed message that omits thoughts, and the sender of its job.
fn streaming(app: &Arc<App>) -> (mpsc::Sender<JobUpdate>, Streaming<Answer>) {
    let reader = AnswerReader::new(None, Vec::new(), Some(ThoughtFormat::Think));
    let content = MessageContent::new(AnswerForm::new(reader, true), true);
    let heading = Heading { id: "msg_1".into(), created: 0, model: app.model.clone() };
    let answer = Answer { app: app.clone(), heading, content, most: 100, end: "stop", stop: None };
    let (sender, receiver) = mpsc::channel(16);
    let reports = Reports { usage: true, usage_in_chunks: true, ..Reports::default() };
    (sender, Streaming::new(app.admit().unwrap(), Job::of(receiver), answer, 1, vec![PROMPT.0], reports))
}

fn token(text: &str) -> JobUpdate {
    let (index, token, logprob, cached_tokens) = (0, 5, None, PROMPT.1);
    Ok(vec![(0, Event::Token { id: 0, index, token, text: text.into(), logprob, cached_tokens })])
}

fn done(text: &str) -> JobUpdate {
    let output = Continuation {
        text: text.into(),
        tokens: vec![5; 3],
        finish_reason: FinishReason::Stop,
        stop_reason: None,
        cumulative_logprob: 0.0,
        score: None,
        logprobs: None,
    };
    let completion = Completion {
        id: 0,
        prompt: String::new(),
        prompt_tokens: vec![5; PROMPT.0],
        cached_tokens: PROMPT.1,
        prompt_logprobs: None,
        embedding: None,
        outputs: vec![output],
        time_to_first_token: Duration::ZERO,
        time: Duration::ZERO,
    };
    Ok(vec![(0, Event::Done(completion))])
}

/// Returns the events that are sent together next. Empty at the end of the stream.
async fn next(body: &mut BodyDataStream) -> Vec<Value> {
    let Some(bytes) = body.next().await else { return Vec::new() };
    let text = String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_long_prefill_is_kept_alive() {
    let app = app(RequestLimits::default()).await;
    let (sender, streaming) = streaming(&app);
    let mut body = response(streaming).await.unwrap().into_body().into_data_stream();
    let begun = next(&mut body).await;
    assert_eq!(kinds(&begun), ["message_start", "ping"]);
    // The cached tokens are not known yet.
    assert_eq!(begun[0]["message"]["usage"]["input_tokens"], PROMPT.0);
    for _ in 0..2 {
        assert_eq!(kinds(&next(&mut body).await), ["ping"]);
    }
    sender.send(token("Yes.")).await.unwrap();
    assert_eq!(kinds(&next(&mut body).await), ["content_block_start", "content_block_delta"]);
    sender.send(done("Yes.")).await.unwrap();
    let end = next(&mut body).await;
    assert_eq!(kinds(&end), ["content_block_stop", "message_delta", "message_stop"]);
    let usage = &end[1]["usage"];
    assert_eq!(usage["input_tokens"], PROMPT.0 - PROMPT.1);
    assert_eq!((&usage["cache_read_input_tokens"], &usage["output_tokens"]), (&json!(PROMPT.1), &json!(3)));
    assert!(next(&mut body).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn omitted_thoughts_are_kept_alive() {
    let app = app(RequestLimits::default()).await;
    let (sender, streaming) = streaming(&app);
    sender.send(token("<think>Hm")).await.unwrap();
    let mut body = response(streaming).await.unwrap().into_body().into_data_stream();
    assert_eq!(kinds(&next(&mut body).await), ["message_start", "ping", "content_block_start"]);
    // Tokens without an event do not delay the ping.
    for _ in 0..3 {
        for _ in 0..2 {
            assert!(next(&mut body).now_or_never().is_none());
            sender.send(token(" hm")).await.unwrap();
            advance(IDLE * 2 / 5).await;
        }
        assert!(next(&mut body).now_or_never().is_none());
        advance(IDLE / 5).await;
        assert_eq!(next(&mut body).now_or_never().map(|events| kinds(&events).join(" ")), Some("ping".into()));
    }
    sender.send(token("</think>Yes.")).await.unwrap();
    let more = next(&mut body).await;
    let shown = ["content_block_delta", "content_block_stop", "content_block_start", "content_block_delta"];
    assert_eq!(kinds(&more), shown);
    assert_eq!(more[0]["delta"]["type"], "signature_delta");
}

#[tokio::test(start_paused = true)]
async fn errors_have_a_status_until_the_stream_begins() {
    let limits = RequestLimits { request_timeout: IDLE * 5 / 2, ..RequestLimits::default() };
    let app = app(limits).await;
    let (sender, early) = streaming(&app);
    sender.send(Err(Failure::QueueFull)).await.unwrap();
    assert_eq!(response(early).await.unwrap_err().status, 503);
    let (_sender, late) = streaming(&app);
    let mut body = response(late).await.unwrap().into_body().into_data_stream();
    assert_eq!(kinds(&next(&mut body).await), ["message_start", "ping"]);
    assert_eq!(kinds(&next(&mut body).await), ["ping"]);
    let last = next(&mut body).await;
    assert_eq!((kinds(&last), &last[0]["error"]["type"]), (vec!["error"], &json!("timeout_error")));
    assert!(next(&mut body).await.is_empty());
}
