//! The load generator against servers that behave well or badly.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod mock;

use std::time::Duration;

use loadgen::arrivals::Process;
use loadgen::endpoint::{Endpoint, EndpointOptions, RequestPrompt};
use loadgen::load::{Load, serve};
use loadgen::random::WorkloadRng;
use loadgen::record::Record;
use loadgen::summary::Summary;
use loadgen::workload::Lengths;
use mock::Mock;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const TEXT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n";
const USAGE: &[u8] =
    b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12}}\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

const LENGTHS: Lengths = Lengths { prompt: 6, output: 5 };

fn requests(n: usize) -> impl Iterator<Item = (RequestPrompt, Lengths)> {
    let mut random = WorkloadRng::new(1);
    (0..n).map(move |_| (RequestPrompt::ids(LENGTHS.prompt, &mut random), LENGTHS))
}

async fn closed(endpoint: &Endpoint, concurrency: usize, n: usize) -> Vec<Record> {
    serve(endpoint, Load::Closed { concurrency }, Duration::MAX, requests(n)).await
}

fn open(rate: f64) -> Load {
    Load::Open { process: Process::Fixed, rate, seed: 1 }
}

/// The client sends one request after another, and the server answers each differently.
#[tokio::test]
async fn every_answer_and_every_failure_is_recorded() {
    let server = Mock::start(1, |number| match number {
        0 => vec![OK, TEXT, TEXT, USAGE, DONE],
        1 => vec![OK, b"data: {\"choices\":[{\"text\"", b":\"\"}]}\r", b"\n\r\n", TEXT, TEXT, TEXT, DONE],
        2 => vec![OK, USAGE, DONE],
        3 => vec![OK, TEXT],
        4 => vec![OK, TEXT, b"data: {\"error\":{\"message\":\"the step\\nfailed\"}}\n\n"],
        5 => vec![OK, b"data: {\"choices\":7}\n\n"],
        6 => vec![b"HTTP/1.1 500 Bad\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"no ", b"memory\"}}"],
        7 => vec![b"HTTP/1.1 404 None\r\nconnection: close\r\n\r\n<h1>nothing\nhere</h1>"],
        8 => vec![b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n99\r\ndata: "],
        9 => vec![b"what do you want\r\n\r\n"],
        _ => vec![],
    })
    .await;
    let records = closed(&server.endpoint().await, 1, 11).await;
    let answers: Vec<_> = records[..3].iter().map(|record| record.outcome.clone().unwrap()).collect();
    let counts = answers.iter().map(|a| (a.prompt_tokens, a.output_tokens, a.counted, a.first.is_some()));
    let expected = [(7, 5, true, true), (LENGTHS.prompt, 3, false, true), (7, 5, true, false)];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    for (record, answer) in records.iter().zip(&answers) {
        assert!(answer.first.is_none_or(|first| record.arrival <= first && first <= record.end));
    }

    let failures: Vec<_> = records[3..].iter().map(|record| record.outcome.clone().unwrap_err()).collect();
    for (failure, naming) in failures.iter().zip([
        "ended before [DONE]",
        "the step failed",
        "a chunk is not a completion",
        "status 500: no memory",
        "status 404: <h1>nothing here</h1>",
        "error",
        "error",
        "error",
    ]) {
        assert!(failure.contains(naming) && failure.lines().count() == 1, "{failure:?} does not say {naming:?}");
        assert!(!failure.contains("http://"), "an address makes failures of one kind differ: {failure}");
    }
    let summary = Summary::of(&records);
    assert_eq!((summary.requests, summary.failed, summary.uncounted), (11, 8, 1));
}

#[tokio::test]
async fn arrivals_do_not_wait_for_answers() {
    // The server answers no request before all have arrived.
    let server = Mock::start(20, |_| vec![OK, TEXT, USAGE, DONE]).await;
    let records = serve(&server.endpoint().await, open(1000.0), Duration::MAX, requests(20)).await;
    let arrivals: Vec<_> = records.iter().map(|record| record.arrival.as_millis()).collect();
    assert_eq!(arrivals, (0..20).collect::<Vec<_>>());
    assert!(records.iter().all(|record| record.outcome.is_ok()));
}

#[tokio::test]
async fn a_closed_loop_has_as_many_requests_in_progress_as_clients() {
    let server = Mock::start(3, |_| vec![OK, TEXT, USAGE, DONE]).await;
    let records = closed(&server.endpoint().await, 3, 12).await;
    assert!(records.len() == 12 && records.iter().all(|record| record.outcome.is_ok()));
    assert_eq!(server.seen.lock().unwrap().most, 3);
}

#[tokio::test]
async fn no_request_begins_after_the_duration() {
    let server = Mock::start(1, |_| vec![OK, TEXT, USAGE, DONE]).await;
    let endpoint = server.endpoint().await;
    let records = serve(&endpoint, open(1000.0), Duration::from_micros(4500), requests(100)).await;
    assert_eq!(records.len(), 5);
    assert!(serve(&endpoint, Load::Closed { concurrency: 2 }, Duration::ZERO, requests(9)).await.is_empty());
}

#[tokio::test]
async fn a_silent_server_fails_the_request_when_its_time_is_over() {
    let server = Mock::start(2, |_| vec![]).await;
    let options = EndpointOptions { timeout: Duration::from_millis(300), ..server.options() };
    let records = closed(&Endpoint::connect(options).await.unwrap(), 1, 1).await;
    assert_eq!(records[0].outcome, Err("no answer within 0.3 s".into()));
}

#[tokio::test]
async fn requests_have_the_expected_fields() {
    let server = Mock::start(1, |_| vec![OK, TEXT, USAGE, DONE]).await;
    let options = EndpointOptions { api_key: Some("Secret".into()), ..server.options() };
    let endpoint = Endpoint::connect(options.clone()).await.unwrap();
    assert_eq!((endpoint.model(), endpoint.max_len()), ("first", Some(300)));
    closed(&endpoint, 1, 2).await;
    let fields = [("n".to_owned(), 3.into()), ("temperature".to_owned(), 1.into())].into_iter().collect();
    let plain = EndpointOptions { model: Some("mine".into()), ignore_eos: false, fields, ..options };
    let endpoint = Endpoint::connect(plain).await.unwrap();
    assert_eq!(endpoint.max_len(), None);
    let words = std::iter::once((RequestPrompt::words(6, &mut WorkloadRng::new(1)), LENGTHS));
    serve(&endpoint, Load::Closed { concurrency: 1 }, Duration::MAX, words).await;

    let seen = server.seen.lock().unwrap();
    assert!(seen.heads.len() == 4 && seen.heads.iter().all(|head| head.contains("authorization: bearer secret\r\n")));
    let [first, second, third] = &seen.bodies[..] else { panic!("{:?}", seen.bodies) };
    assert_eq!((&first["model"], &first["max_tokens"]), (&"first".into(), &5.into()));
    assert_eq!((&first["stream"], &first["ignore_eos"]), (&true.into(), &true.into()));
    assert_eq!(first["stream_options"]["include_usage"], true);
    let ids = first["prompt"].as_array().unwrap();
    assert!(ids.len() == 6 && ids.iter().all(|id| (100..1000).contains(&id.as_u64().unwrap())));
    assert_ne!(first["prompt"], second["prompt"]);
    assert_eq!((&third["model"], third.get("ignore_eos")), (&"mine".into(), None));
    assert_eq!((&first["temperature"], first.get("n")), (&0.into(), None));
    assert_eq!((&third["temperature"], &third["n"]), (&1.into(), &3.into()));
    assert_eq!(third["prompt"].as_str().unwrap().split(' ').count(), 6);
}

#[tokio::test]
async fn a_server_without_models_is_refused_in_a_sentence() {
    let server = Mock::start(1, |_| vec![]).await;
    let nowhere = EndpointOptions { url: "http://127.0.0.1:1".into(), ..server.options() };
    let no_url = EndpointOptions { url: "nonsense".into(), ..server.options() };
    for (options, naming) in [(nowhere, "http://127.0.0.1:1"), (no_url, "nonsense")] {
        let message = format!("{:#}", Endpoint::connect(options).await.err().unwrap());
        assert!(message.contains(naming) && message.lines().count() == 1, "{message}");
    }
}
