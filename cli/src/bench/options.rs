//! Options that several benchmarks share.

use std::time::Duration;

use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use loadgen::workload::Workload;
use serde_json::{Map, Value};

/// Maximum requests per measurement.
pub const MAX_REQUESTS: usize = 1_000_000;

/// Parses the lengths of requests.
pub fn lengths(s: &str) -> Result<Workload, String> {
    s.parse().map_err(|error| format!("{error:#}"))
}

/// Prints a note to standard error if requests are longer than `max_len` tokens and will be shortened.
pub fn note_if_shortened(lengths: &Workload, max_len: usize) {
    if let Some(longest) = lengths.longest().filter(|longest| *longest > max_len) {
        eprintln!("note: requests of up to {longest} tokens are shortened to {max_len}, outputs first");
    }
}

/// Parses a number of requests.
pub fn requests(s: &str) -> Result<usize, String> {
    let number = s.trim().parse().ok().filter(|n| (1..=MAX_REQUESTS).contains(n));
    number.ok_or_else(|| format!("{s:?} is not a number from 1 to {MAX_REQUESTS}"))
}

/// Numbers of requests, with one measurement for each.
#[derive(Debug)]
pub struct Sweep(pub Vec<usize>);

/// Parses one or several numbers of requests.
pub fn sweep(s: &str) -> Result<Sweep, String> {
    s.split(',').map(requests).collect::<Result<_, _>>().map(Sweep)
}

/// Requests per second, with one measurement for each.
#[derive(Debug)]
pub struct Rates(pub Vec<f64>);

/// Parses one or several rates.
pub fn rates(s: &str) -> Result<Rates, String> {
    let rate = |part: &str| part.trim().parse().ok().filter(|rate| (1e-3..=1e5).contains(rate));
    let rates: Option<_> = s.split(',').map(rate).collect();
    rates.map(Rates).ok_or_else(|| format!("{s:?} is not a rate from 0.001 to 100000, or several such as 1,2.5"))
}

/// Parses a positive time in seconds.
pub fn seconds(s: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = s.parse().ok().filter(|seconds| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("{s:?} is not a number of seconds"))
}

/// Returns sampling parameters: beam search if a width is given, temperature 1 for several outputs, else greedy.
pub fn decoding(n: usize, best_of: Option<usize>, beam_width: Option<usize>) -> SamplingParams {
    let beam = beam_width.map(|width| Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::Never });
    let best_of = best_of.unwrap_or(n);
    let temperature = if beam.is_none() && best_of > 1 { 1.0 } else { 0.0 };
    SamplingParams { n, best_of, beam, temperature, ..SamplingParams::default() }
}

/// Describes the parameters as the end of a sentence. Empty for a single output.
pub fn described(params: &SamplingParams) -> String {
    match params.beam {
        Some(beam) => format!(", {} of {} beams", params.n, beam.width),
        None if params.best_of > 1 => format!(", {} of {} samples", params.n, params.best_of),
        None => String::new(),
    }
}

/// Returns the parameters as fields of a request to OpenAI's API with vLLM's additions. Empty for a single greedy
/// output.
pub fn fields(params: &SamplingParams) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    if let Some(beam) = params.beam {
        set("use_beam_search", true.into());
        set("best_of", beam.width.into());
        set("n", params.n.into());
    } else if params.n > 1 {
        set("n", params.n.into());
        set("temperature", params.temperature.into());
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_output_adds_no_fields() {
        assert!(fields(&decoding(1, None, None)).is_empty() && described(&decoding(1, None, None)).is_empty());
        let samples = decoding(2, Some(3), None);
        assert_eq!((samples.n, samples.best_of, samples.temperature), (2, 3, 1.0));
        let beams = decoding(2, None, Some(4));
        assert!(beams.validate().is_ok() && fields(&beams)["best_of"] == 4 && described(&beams) == ", 2 of 4 beams");
        assert!(decoding(5, None, Some(4)).validate().is_err());
    }
}
