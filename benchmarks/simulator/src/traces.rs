//! Traces: requests of the lengths of the paper's data sets that arrive as a Poisson process (6.1).

use loadgen::random::WorkloadRng;
use loadgen::trace::{ALPACA, LengthDistribution, SHAREGPT};

use crate::request::{Method, TraceRequest};

/// Tokens to which a chatbot's prompt is cut, and that it generates at most (6.5).
const CHAT: usize = 1024;
/// Turns of a conversation that came before a request, on average. Assumed: the paper only says that most prompts have 1,024
/// tokens, as they have then.
const TURNS: f64 = 4.0;
/// Tokens of a sentence to translate and of its translation, on average: those of WMT16's English to German, assumed to be the
/// usual 25 words or so, of 1.3 tokens each. The paper does not give them.
const SENTENCE: f64 = 33.0;
/// Standard deviation of the logarithm of a sentence's length, and of the ratio to its translation's. Assumed.
const SENTENCE_SPREAD: f64 = 0.5;
const TRANSLATION_SPREAD: f64 = 0.2;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceWorkload {
    /// Lengths like those of a data set.
    Like(LengthDistribution),
    /// The next turn of a conversation like ShareGPT's, with what was said before.
    Chat,
    /// A sentence to translate, behind so many tokens of instruction and examples that all requests have in common.
    Translation(usize),
    /// Log-normal lengths: median, and the standard deviation of the logarithm, of prompts and of outputs.
    LogNormal([(f64, f64); 2]),
    /// The lengths of a file, prompt and output, over and over.
    Listed(Vec<(usize, usize)>),
}

/// Conversations.
pub const SHAREGPT_LIKE: TraceWorkload = TraceWorkload::Like(SHAREGPT);
/// Instructions.
pub const ALPACA_LIKE: TraceWorkload = TraceWorkload::Like(ALPACA);

/// Lengths of the paper's data sets as they are published, where somebody has them: they take the place of what is like them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedLengths<'a> {
    /// Of ShareGPT.
    pub sharegpt: Option<&'a TraceWorkload>,
    /// Of Alpaca.
    pub alpaca: Option<&'a TraceWorkload>,
}

impl<'a> PublishedLengths<'a> {
    /// What is to be drawn for a workload: the published lengths if it is like theirs and they are known.
    pub fn of<'b>(&self, workload: &'b TraceWorkload) -> &'b TraceWorkload
    where
        'a: 'b,
    {
        match workload {
            TraceWorkload::Like(lengths) if *lengths == SHAREGPT => self.sharegpt.unwrap_or(workload),
            TraceWorkload::Like(lengths) if *lengths == ALPACA => self.alpaca.unwrap_or(workload),
            _ => workload,
        }
    }
}

/// A workload, and when and how it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// How long prompts and outputs are.
    pub workload: TraceWorkload,
    /// How tokens are chosen.
    pub method: Method,
    /// How long requests arrive.
    pub seconds: f64,
    /// Most tokens of a sequence.
    pub max_len: usize,
    /// Of lengths and arrivals.
    pub seed: u64,
}

impl TraceWorkload {
    /// Prompt, its part that is common to all, and output of a request.
    fn draw(&self, at: usize, random: &mut WorkloadRng) -> (usize, usize, usize) {
        match self {
            TraceWorkload::Like(lengths) => {
                let (prompt, output) = lengths.draw(random);
                (prompt, 0, output)
            }
            TraceWorkload::Chat => {
                let (mut prompt, output) = SHAREGPT.draw(random);
                // Geometric: after each turn another one follows with the same probability.
                while prompt < CHAT && random.uniform() < TURNS / (TURNS + 1.0) {
                    let (asked, answered) = SHAREGPT.draw(random);
                    prompt += asked + answered;
                }
                (prompt.min(CHAT), 0, output.min(CHAT))
            }
            TraceWorkload::Translation(prefix) => {
                let mut spread = |by: f64| (by * random.normal() - by * by / 2.0).exp();
                let sentence = SENTENCE * spread(SENTENCE_SPREAD);
                let output = sentence * spread(TRANSLATION_SPREAD);
                (prefix + sentence.round().max(1.0) as usize, *prefix, output.round().max(1.0) as usize)
            }
            TraceWorkload::LogNormal(of) => {
                let mut length = |(median, spread): (f64, f64)| {
                    let length = median * (spread * random.normal()).exp();
                    (length.round() as usize).max(1)
                };
                (length(of[0]), 0, length(of[1]))
            }
            TraceWorkload::Listed(lengths) => {
                let (prompt, output) = lengths[at % lengths.len()];
                (prompt, 0, output)
            }
        }
    }

    /// Lengths of so many requests, prompt and output.
    pub fn lengths(&self, n: usize, seed: u64) -> Vec<(usize, usize)> {
        let mut random = WorkloadRng::new(seed);
        (0..n).map(|at| self.draw(at, &mut random)).map(|(prompt, _, output)| (prompt, output)).collect()
    }
}

impl Trace {
    /// The requests at a mean of `rate` a second. At another rate the same requests come, closer to each other or further
    /// apart.
    pub fn requests(&self, rate: f64) -> Vec<TraceRequest> {
        let (mut lengths, mut gaps) = (WorkloadRng::new(self.seed), WorkloadRng::new(!self.seed));
        let mut arrival = 0.0;
        let mut requests = Vec::new();
        while arrival < self.seconds {
            let (prompt, prefix, output) = self.workload.draw(requests.len(), &mut lengths);
            let prompt = prompt.min(self.max_len - 1);
            let output = output.min(self.max_len - prompt);
            requests.push(TraceRequest { arrival, prompt, prefix, output, method: self.method });
            arrival += gaps.exponential() / rate;
        }
        requests
    }
}
