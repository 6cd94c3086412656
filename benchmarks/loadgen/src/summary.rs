//! Statistics of a run, computed from records alone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::record::{Answer, Record};

/// Mean and percentiles (nearest rank).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Statistics of a run. Times are in seconds and cover the answered requests. A distribution is `None` if it has no
/// values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Requests, including failed ones.
    pub requests: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Reasons of failures, each with its number of requests.
    pub failures: BTreeMap<String, usize>,
    /// Answers whose tokens the client counted, since the server did not report them.
    pub uncounted: usize,
    /// Prompt tokens of answered requests.
    pub prompt_tokens: usize,
    /// Output tokens of answered requests.
    pub output_tokens: usize,
    /// Seconds from the first arrival to the last end.
    pub seconds: f64,
    /// Answered requests per second.
    pub requests_per_second: f64,
    /// Output tokens per second.
    pub output_tokens_per_second: f64,
    /// Output and prompt tokens per second.
    pub tokens_per_second: f64,
    /// Time from arrival to the first text (TTFT).
    pub time_to_first_token: Option<Distribution>,
    /// Time from the first text to the end, per token after the first (TPOT).
    pub time_per_output_token: Option<Distribution>,
    /// Time from arrival to end.
    pub latency: Option<Distribution>,
    /// Time from arrival to end, per token of the output. The paper's metric is the mean (6.1).
    pub normalized_latency: Option<Distribution>,
}

impl Distribution {
    /// Computes the distribution of values in any order. Without values, returns `None`.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (last, n) = (values.last().copied()?, values.len());
        let rank = |percent: usize| values.get((n * percent).div_ceil(100) - 1).copied().unwrap_or(last);
        Some(Distribution { mean: values.iter().sum::<f64>() / n as f64, p50: rank(50), p90: rank(90), p99: rank(99) })
    }
}

impl Summary {
    /// Computes the statistics of records in any order.
    pub fn of(records: &[Record]) -> Self {
        let (mut answered, mut failures) = (Vec::new(), BTreeMap::new());
        for record in records {
            match &record.outcome {
                Ok(answer) => answered.push((record, answer)),
                Err(why) => *failures.entry(why.clone()).or_default() += 1,
            }
        }
        let seconds_between = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let begin = records.iter().map(|r| r.arrival).min().unwrap_or_default();
        let end = records.iter().map(|r| r.end).max().unwrap_or_default();
        let seconds = seconds_between(begin, end);
        let rate = |n: usize| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let sum = |tokens: fn(&Answer) -> usize| answered.iter().map(|(_, answer)| tokens(answer)).sum::<usize>();
        let (prompt_tokens, output_tokens) = (sum(|a| a.prompt_tokens), sum(|a| a.output_tokens));

        let each = |time: &dyn Fn(&Record, &Answer) -> Option<f64>| {
            Distribution::of(answered.iter().filter_map(|(record, answer)| time(record, answer)))
        };
        Summary {
            requests: records.len(),
            failed: records.len() - answered.len(),
            failures,
            uncounted: answered.iter().filter(|(_, answer)| !answer.counted).count(),
            prompt_tokens,
            output_tokens,
            seconds,
            requests_per_second: rate(answered.len()),
            output_tokens_per_second: rate(output_tokens),
            tokens_per_second: rate(prompt_tokens + output_tokens),
            time_to_first_token: each(&|record, answer| Some(seconds_between(record.arrival, answer.first?))),
            time_per_output_token: each(&|record, answer| {
                let others = answer.output_tokens.checked_sub(1).filter(|n| *n > 0)?;
                Some(seconds_between(answer.first?, record.end) / others as f64)
            }),
            latency: each(&|record, _| Some(seconds_between(record.arrival, record.end))),
            normalized_latency: each(&|record, answer| {
                let tokens = Some(answer.output_tokens).filter(|n| *n > 0)?;
                Some(seconds_between(record.arrival, record.end) / tokens as f64)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn answered(arrival: u64, first: u64, end: u64, output_tokens: usize) -> Record {
        let answer = Answer { first: Some(ms(first)), prompt_tokens: 10, output_tokens, counted: true };
        Record { arrival: ms(arrival), end: ms(end), outcome: Ok(answer) }
    }

    fn failed(arrival: u64, end: u64, why: &str) -> Record {
        Record { arrival: ms(arrival), end: ms(end), outcome: Err(why.into()) }
    }

    /// Compares to the microsecond.
    fn same(got: Option<Distribution>, [mean, p50, p90, p99]: [f64; 4]) {
        let got = got.unwrap();
        for (got, expected) in [(got.mean, mean), (got.p50, p50), (got.p90, p90), (got.p99, p99)] {
            assert!((got - expected).abs() < 1e-6, "{got} is not {expected}");
        }
    }

    #[test]
    fn statistics_follow_from_the_times() {
        let records = [
            answered(1000, 1200, 2200, 11), // 200 ms to the first token, 100 ms for each of ten more
            answered(1500, 1600, 1700, 2),  // 100 ms and 100 ms
            answered(2000, 2600, 5000, 5),  // 600 ms and four times 600 ms
            failed(2500, 2600, "status 500"),
            failed(2500, 2700, "status 500"),
            failed(2500, 2800, "gone"),
        ];
        let s = Summary::of(&records);
        assert_eq!((s.requests, s.failed, s.uncounted), (6, 3, 0));
        assert_eq!(s.failures, BTreeMap::from([("gone".into(), 1), ("status 500".into(), 2)]));
        assert_eq!((s.prompt_tokens, s.output_tokens, s.seconds), (30, 18, 4.0));
        assert_eq!((s.requests_per_second, s.output_tokens_per_second, s.tokens_per_second), (0.75, 4.5, 12.0));
        same(s.time_to_first_token, [0.3, 0.2, 0.6, 0.6]);
        same(s.time_per_output_token, [0.8 / 3.0, 0.1, 0.6, 0.6]);
        same(s.latency, [4.4 / 3.0, 1.2, 3.0, 3.0]);
        same(s.normalized_latency, [(1.2 / 11.0 + 0.1 + 0.6) / 3.0, 1.2 / 11.0, 0.6, 0.6]);
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        same(Distribution::of((1..=200).rev().map(f64::from)), [100.5, 100.0, 180.0, 198.0]);
        same(Distribution::of([7.0]), [7.0; 4]);
        assert_eq!(Distribution::of([]), None);
    }

    #[test]
    fn undefined_statistics_are_none() {
        // A single token has no next token, and an answer without text has no first one.
        let silent = Answer { first: None, prompt_tokens: 1, output_tokens: 0, counted: false };
        let records = [answered(0, 5, 5, 1), Record { arrival: ms(0), end: ms(10), outcome: Ok(silent) }];
        let s = Summary::of(&records);
        assert_eq!((s.time_per_output_token, s.uncounted), (None, 1));
        same(s.time_to_first_token, [0.005; 4]);
        same(s.normalized_latency, [0.005; 4]);
        same(s.latency, [0.0075, 0.005, 0.01, 0.01]);

        let nothing = Summary::of(&[failed(3, 3, "no")]);
        assert_eq!((nothing.latency, nothing.normalized_latency, nothing.requests_per_second), (None, None, 0.0));
        assert_eq!(Summary::of(&[]).requests, 0);
    }
}
