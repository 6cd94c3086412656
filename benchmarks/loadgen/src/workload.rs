//! Lengths of prompts and outputs.

use std::fmt;
use std::fs;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use serde::Deserialize;

use crate::random::WorkloadRng;
use crate::trace::{ALPACA, LengthDistribution, SHAREGPT};

/// Most tokens of a prompt or an output.
const MOST: usize = 1 << 20;

/// Tokens of a request, as in a JSON-lines trace. Some traces call them `input_length` and `output_length`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of the prompt.
    #[serde(rename = "prompt_tokens", alias = "input_length")]
    pub prompt: usize,
    /// Tokens to generate.
    #[serde(rename = "output_tokens", alias = "output_length")]
    pub output: usize,
}

/// The source of lengths.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Drawn from a distribution like a data set's.
    Like(LengthDistribution),
    /// The same for every request.
    Fixed(Lengths),
    /// Read from a file, and repeated in order.
    Listed {
        /// The file.
        file: String,
        /// The requests of the file, at least one.
        requests: Vec<Lengths>,
    },
}

impl Lengths {
    fn check(self) -> Result<Self> {
        let within = |n| (1..=MOST).contains(&n);
        ensure!(within(self.prompt) && within(self.output), "lengths must be from 1 to {MOST} tokens");
        Ok(self)
    }

    /// Shortens the request to `max_len` tokens in total (at least 2): first the output, down to one token, then the
    /// prompt.
    fn fit(self, max_len: usize) -> Self {
        let prompt = self.prompt.min(max_len - 1);
        Lengths { prompt, output: self.output.min(max_len - prompt) }
    }
}

impl Workload {
    /// Parses a trace: one JSON object per line, with `prompt_tokens` and `output_tokens`. Empty lines are skipped.
    fn listed(file: &str, text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let request = |(i, line): (usize, &str)| {
            let lengths = serde_json::from_str::<Lengths>(line).map_err(Error::from).and_then(Lengths::check);
            lengths.with_context(|| format!("line {} of {file}", i + 1))
        };
        let requests = lines.map(request).collect::<Result<Vec<_>>>()?;
        ensure!(!requests.is_empty(), "{file} has no requests");
        Ok(Workload::Listed { file: file.into(), requests })
    }

    /// Returns the tokens of its longest request, prompt and output together. If lengths are drawn, they have no limit,
    /// and this returns `None`.
    pub fn longest(&self) -> Option<usize> {
        let total = |lengths: &Lengths| lengths.prompt + lengths.output;
        match self {
            Workload::Like(_) => None,
            Workload::Fixed(lengths) => Some(total(lengths)),
            Workload::Listed { requests, .. } => requests.iter().map(total).max(),
        }
    }

    /// Describes the requests after they are shortened to `max_len` tokens in total.
    pub fn cut_to(&self, max_len: usize) -> String {
        match self {
            Workload::Fixed(lengths) => Workload::Fixed(lengths.fit(max_len.max(2))).to_string(),
            _ if self.longest().is_some_and(|longest| longest <= max_len) => self.to_string(),
            _ => format!("{self}, at most {max_len} tokens each"),
        }
    }

    /// Returns an endless sequence of requests of at most `max_len` tokens in total (at least 2). The seed determines
    /// them.
    pub fn requests(&self, seed: u64, max_len: usize) -> impl Iterator<Item = Lengths> + '_ {
        let mut random = WorkloadRng::new(seed);
        (0..).map(move |i: usize| {
            let lengths = match self {
                Workload::Like(trace) => {
                    let (prompt, output) = trace.draw(&mut random);
                    Lengths { prompt, output }
                }
                Workload::Fixed(lengths) => *lengths,
                Workload::Listed { requests, .. } => requests[i % requests.len()],
            };
            lengths.fit(max_len.max(2))
        })
    }
}

/// Parses a command-line argument: `sharegpt`, `alpaca`, two numbers such as `128,64`, or the path of a trace.
impl FromStr for Workload {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "sharegpt" => return Ok(Workload::Like(SHAREGPT)),
            "alpaca" => return Ok(Workload::Like(ALPACA)),
            _ => {}
        }
        if let Some((prompt, output)) = s.split_once(',')
            && let (Ok(prompt), Ok(output)) = (prompt.trim().parse(), output.trim().parse())
        {
            return Ok(Workload::Fixed(Lengths { prompt, output }.check()?));
        }
        let text = fs::read_to_string(s)
            .with_context(|| format!("{s} is neither sharegpt, alpaca, two numbers such as 128,64, nor a trace"))?;
        Workload::listed(s, &text)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Like(trace) => write!(f, "{}-like lengths", trace.name),
            Workload::Fixed(Lengths { prompt, output }) => write!(f, "prompts of {prompt} tokens, outputs of {output}"),
            Workload::Listed { file, requests } => write!(f, "{} requests of {file}", requests.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<Workload> {
        Workload::listed("trace.jsonl", text)
    }

    #[test]
    fn a_trace_is_repeated() {
        let text =
            "{\"prompt_tokens\": 3, \"output_tokens\": 4}\n\n{\"input_length\": 5, \"output_length\": 6, \"at\": 1}\n";
        let requests: Vec<_> = listed(text).unwrap().requests(1, 100).take(3).map(|l| (l.prompt, l.output)).collect();
        assert_eq!(requests, [(3, 4), (5, 6), (3, 4)]);
        assert_eq!(listed(text).unwrap().longest(), Some(11));
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        let good = "{\"prompt_tokens\": 3, \"output_tokens\": 4}";
        for (line, naming) in [
            ("{\"prompt_tokens\": 3}", "output_tokens"),
            ("{\"prompt_tokens\": 3, \"output_tokens\": -4}", "-4"),
            ("{\"prompt_tokens\": 0, \"output_tokens\": 4}", "from 1 to"),
            ("{\"prompt_tokens\": 1, \"output_tokens\": 99999999999}", "from 1 to"),
            ("3, 4", "line 2"),
        ] {
            let message = format!("{:#}", listed(&format!("{good}\n{line}\n")).unwrap_err());
            assert!(message.contains("line 2 of trace.jsonl") && message.contains(naming), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        assert!(listed("\n\n").unwrap_err().to_string().contains("no requests"));
    }

    #[test]
    fn lengths_are_named_numbered_or_in_a_file() {
        assert_eq!("sharegpt".parse::<Workload>().unwrap(), Workload::Like(SHAREGPT));
        assert_eq!("12, 3".parse::<Workload>().unwrap(), Workload::Fixed(Lengths { prompt: 12, output: 3 }));
        for bad in ["0,3", "no/such/file", "12"] {
            assert!(bad.parse::<Workload>().is_err(), "{bad}");
        }
    }

    #[test]
    fn requests_fit_the_model_and_are_determined_by_the_seed() {
        let cut: Vec<_> = Workload::Like(SHAREGPT).requests(7, 64).take(200).collect();
        assert!(cut.iter().all(|l| l.prompt >= 1 && l.output >= 1 && l.prompt + l.output <= 64));
        assert!(cut.iter().eq(Workload::Like(SHAREGPT).requests(7, 64).take(200).collect::<Vec<_>>().iter()));
        assert!(cut != Workload::Like(SHAREGPT).requests(8, 64).take(200).collect::<Vec<_>>());
        let long = Workload::Fixed(Lengths { prompt: 90, output: 90 });
        assert_eq!((long.longest(), Workload::Like(SHAREGPT).longest()), (Some(180), None));
        assert_eq!(long.requests(1, 100).next(), Some(Lengths { prompt: 90, output: 10 }));
        assert_eq!(long.requests(1, 50).next(), Some(Lengths { prompt: 49, output: 1 }));
    }
}
