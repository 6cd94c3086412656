//! The metrics as Prometheus and other tools read them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{PROMPT, TestServer};
use serde_json::json;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics for this `Accept` header, and their content type.
async fn metrics(server: &TestServer, accept: &str) -> (String, String) {
    let response = server.client.get(server.url("/metrics")).header("accept", accept).send().await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["vary"]), (200, &"accept".parse().unwrap()));
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    (kind, response.text().await.unwrap())
}

/// A metric with its type and the names, labels and values of its samples.
#[derive(Debug, Default)]
struct Metric {
    kind: String,
    samples: Vec<(String, String, f64)>,
}

/// Parses a text in either format: each metric's help, type and samples. `suffixes` returns the suffixes that sample
/// names may have for a type of metric.
fn read(text: &str, suffixes: impl Fn(&str) -> &'static [&'static str]) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut name = String::new();
    let mut helped = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (of, words) = help.split_once(' ').unwrap();
            assert!(!words.trim().is_empty() && helped.insert(of.to_owned()), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (of, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind) && helped.contains(of), "{line}");
            name = of.to_owned();
            let metric = Metric { kind: kind.into(), samples: Vec::new() };
            assert!(metrics.insert(name.clone(), metric).is_none(), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let (sample, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert!(labels.ends_with('}'), "{line}");
            let metric = metrics.get_mut(&name).unwrap();
            let suffix = sample.strip_prefix(name.as_str()).unwrap_or_else(|| panic!("{line} is not of {name}"));
            assert!(suffixes(&metric.kind).contains(&suffix), "{line}");
            metric.samples.push((suffix.into(), labels.into(), value.parse().unwrap()));
        }
    }
    assert_eq!(helped.len(), metrics.len());
    metrics
}

/// Applies the rules of `promtool check metrics` that vLLM's naming style can satisfy.
fn lint(metrics: &BTreeMap<String, Metric>) {
    for (name, metric) in metrics {
        let characters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(name.chars().all(characters), "{name}");
        assert_eq!(metric.kind == "counter", name.ends_with("_total"), "{name}");
        if metric.kind != "histogram" {
            for reserved in ["_count", "_sum", "_bucket"] {
                assert!(!name.ends_with(reserved), "{name}");
            }
            assert!(!metric.samples.iter().any(|(_, labels, _)| labels.contains("le=\"")), "{name}");
        } else {
            let buckets = metric.samples.iter().filter(|(suffix, ..)| suffix == "_bucket");
            let counts: Vec<f64> = buckets.clone().map(|(_, _, count)| *count).collect();
            assert!(counts.is_sorted(), "{name}");
            assert!(buckets.clone().next_back().unwrap().1.contains("le=\"+Inf\""), "{name}");
            let count = metric.samples.iter().find(|(suffix, ..)| suffix == "_count").unwrap().2;
            assert_eq!(counts.last(), Some(&count), "{name}");
        }
    }
}

#[tokio::test]
async fn metrics_have_the_requested_format() {
    let server = TestServer::start().await;
    server.post("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 5})).await;
    for accept in ["*/*", "text/plain", "text/html, */*;q=0.1", "application/openmetrics-text;q=0.4, text/plain"] {
        let (kind, text) = metrics(&server, accept).await;
        assert_eq!(kind, PROMETHEUS, "{accept}");
        assert!(text.ends_with('\n') && !text.contains("# EOF"), "{text}");
        let read = read(&text, |kind| if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] });
        lint(&read);
        assert_eq!(read["vllm:generation_tokens_total"].samples[0].2, 5.0);
        assert_eq!(read["vllm:kv_cache_usage_perc"].kind, "gauge");
    }
    for accept in ["application/openmetrics-text", "application/openmetrics-text;version=1.0.0, text/plain;q=0.5"] {
        let (kind, text) = metrics(&server, accept).await;
        assert_eq!(kind, OPEN_METRICS, "{accept}");
        let read = read(text.strip_suffix("# EOF\n").unwrap(), |kind| match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" => &["_total"],
            _ => &[""],
        });
        assert!(read.keys().all(|name| !name.ends_with("_total")));
        assert_eq!(read["vllm:generation_tokens"].samples[0].2, 5.0);
    }
}

/// Each engine request counts once, by its finish reason. Outputs and HTTP requests do not count separately.
#[tokio::test]
async fn successes_are_requests() {
    let server = TestServer::start().await;
    let successes = async || {
        let (_, text) = metrics(&server, "text/plain").await;
        let read = read(&text, |kind| if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] });
        let of = |reason: &str| {
            let reason = format!("finished_reason=\"{reason}\"");
            let samples = &read["vllm:request_success_total"].samples;
            samples.iter().find(|(_, labels, _)| labels.contains(&reason)).unwrap().2
        };
        [of("stop"), of("length"), of("abort")]
    };
    assert_eq!(successes().await, [0.0; 3]);
    let several = json!({"prompt": PROMPT, "max_tokens": 3, "n": 4, "temperature": 1});
    server.post("/v1/completions", &several).await;
    assert_eq!(successes().await, [0.0, 1.0, 0.0]);
    let beams = json!({"prompt": PROMPT, "max_tokens": 3, "n": 3, "best_of": 4, "use_beam_search": true});
    server.post("/v1/completions", &beams).await;
    assert_eq!(successes().await, [0.0, 2.0, 0.0]);
    let prompts = json!({"prompt": [PROMPT, "One day", "A fox"], "max_tokens": 3, "n": 2, "temperature": 1});
    server.post("/v1/completions", &prompts).await;
    assert_eq!(successes().await, [0.0, 5.0, 0.0]);
    let stops = json!({"prompt": PROMPT, "max_tokens": 100, "stop": ["young"], "temperature": 0});
    server.post("/v1/completions", &stops).await;
    assert_eq!(successes().await, [1.0, 5.0, 0.0]);
}

/// Checks the labels and values that routers read in addition to the queue lengths.
#[tokio::test]
async fn routers_find_the_shape_of_the_cache() {
    let server = TestServer::start().await;
    let (_, text) = metrics(&server, "text/plain").await;
    let read = read(&text, |kind| if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] });
    let info = &read["vllm:cache_config_info"];
    assert_eq!((info.kind.as_str(), info.samples.len()), ("gauge", 1));
    let (_, labels, value) = &info.samples[0];
    let blocks = server.metric("quire:kv_blocks").await;
    for label in ["block_size=\"16\"".to_owned(), format!("num_gpu_blocks=\"{blocks}\"")] {
        assert!(labels.contains(&label), "{label} is not in {labels}");
    }
    assert_eq!(*value, 1.0);
    assert_eq!(
        (read["vllm:num_requests_swapped"].kind.as_str(), read["vllm:num_requests_swapped"].samples[0].2),
        ("gauge", 0.0)
    );
}
