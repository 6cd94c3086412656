//! The cost of structured output in a decode step of the bundled model on the CPU.
//!
//!     cargo bench -p engine --bench constrained_steps
//!
//! Two engines step alternately. One has free sequences, the other as many sequences that write documents of a JSON
//! schema. Other activity on the machine therefore affects both alike.

use std::time::{Duration, Instant};

use engine::ModelFiles;
use engine::SamplingParams;
use engine::tools::constraint::{Constraint, Grammar};
use engine::{Device, Llm, Options, Prompt};
use serde_json::json;

/// Sequences per step.
const SEQUENCES: usize = 32;
/// Steps per sequence, from its first token to its last.
const STEPS: usize = 200;
/// How often the sequences are restarted.
const ROUNDS: usize = 15;

fn main() {
    let (mut free, mut constrained) = (load(), load());
    let text = json!({"type": "string", "maxLength": 400});
    let schema = json!({
        "type": "object",
        "properties": {"title": text, "chapters": {
            // Enough that no document ends while steps are measured.
            "type": "array", "minItems": 100, "items": {
                "type": "object", "properties": {"text": text, "long": {"type": "boolean"}},
                "required": ["text", "long"], "additionalProperties": false}}},
        "required": ["title", "chapters"],
        "additionalProperties": false,
    });
    let constraint = expect_ok(constrained.compile(&Grammar::JsonSchema(schema)));
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        begin(&mut free, round, None);
        begin(&mut constrained, round, Some(&constraint));
        for step in 1..STEPS {
            let mut engines = [(0, &mut free), (1, &mut constrained)];
            if step % 2 == 1 {
                engines.reverse();
            }
            for (at, llm) in engines {
                let start = Instant::now();
                expect_ok(llm.step());
                times[at].push(start.elapsed());
            }
        }
        for llm in [&free, &constrained] {
            assert!(llm.engine().scheduler().running().is_empty(), "a sequence did not end in time");
        }
    }
    let [free, constrained] = times.map(Times::new);
    println!("{SEQUENCES} sequences of the bundled model, {ROUNDS} times {STEPS} steps, milliseconds per step:");
    println!("              median    mean    10th percentile");
    for (name, times) in [("free", &free), ("constrained", &constrained)] {
        println!("{name:12} {:7.3} {:7.3} {:7.3}", times.median, times.mean, times.tenth);
    }
    let more = |a: f64, b: f64| 100.0 * (a / b - 1.0);
    let (median, mean) = (more(constrained.median, free.median), more(constrained.mean, free.mean));
    println!("more, %      {median:7.2} {mean:7.2} {:7.2}", more(constrained.tenth, free.tenth));
}

/// Statistics of step times in milliseconds.
struct Times {
    median: f64,
    mean: f64,
    /// The 10th percentile: one step in ten is faster.
    tenth: f64,
}

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let sum: Duration = times.iter().sum();
        let (median, tenth) = (ms(times[times.len() / 2]), ms(times[times.len() / 10]));
        Times { median, mean: ms(sum) / times.len() as f64, tenth }
    }
}

fn load() -> Llm {
    expect_ok(Llm::load(&ModelFiles::bundled(), &Options { device: Device::Cpu, ..Options::default() }))
}

/// Adds sequences and computes their prompts.
fn begin(llm: &mut Llm, round: usize, constraint: Option<&Constraint>) {
    for sequence in 0..SEQUENCES {
        let params = SamplingParams {
            max_tokens: STEPS,
            temperature: 1.0,
            seed: Some((round * SEQUENCES + sequence) as u64),
            ignore_eos: true,
            constraint: constraint.cloned(),
            ..SamplingParams::default()
        };
        expect_ok(llm.add(&Prompt::Text("Once upon a time".into()), params));
    }
    expect_ok(llm.step());
    assert_eq!(llm.engine().scheduler().running().len(), SEQUENCES);
}

fn expect_ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
