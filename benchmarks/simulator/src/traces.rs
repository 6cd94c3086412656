//! Traces: requests with the lengths of the paper's data sets, arriving as a Poisson process (6.1).

use loadgen::random::WorkloadRng;
use loadgen::trace::{ALPACA, LengthDistribution, SHAREGPT};

use crate::request::{Method, TraceRequest};

/// Maximum tokens of a chatbot's prompt, which is cut to them, and of its output (6.5).
const CHAT: usize = 1024;
/// Mean number of conversation turns before a request. Assumed: the paper only says that most prompts have 1,024
/// tokens, and with this mean they do.
const TURNS: f64 = 4.0;
/// Mean tokens of a sentence to translate and of its translation. The paper does not give them. Assumed for WMT16's
/// English to German: the usual 25 words or so, at 1.3 tokens each.
const SENTENCE: f64 = 33.0;
/// Standard deviations of the logarithm of a sentence's length, and of the logarithm of its translation's relative
/// length. Assumed.
const SENTENCE_SPREAD: f64 = 0.5;
const TRANSLATION_SPREAD: f64 = 0.2;

/// The lengths of requests.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceWorkload {
    /// Lengths distributed like a data set's.
    Like(LengthDistribution),
    /// The next turn of a conversation like ShareGPT's, after all turns before it.
    Chat,
    /// A sentence to translate, after this many tokens of instruction and examples that all requests share.
    Translation(usize),
    /// Log-normal lengths of prompts and of outputs: the median, and the standard deviation of the logarithm.
    LogNormal([(f64, f64); 2]),
    /// Pairs of prompt and output length from a file, repeated in order.
    Listed(Vec<(usize, usize)>),
}

/// Lengths like those in ShareGPT's conversations.
pub const SHAREGPT_LIKE: TraceWorkload = TraceWorkload::Like(SHAREGPT);
/// Lengths like those in Alpaca's instructions.
pub const ALPACA_LIKE: TraceWorkload = TraceWorkload::Like(ALPACA);

/// Published lengths of the paper's data sets, if the user has them. They replace the distributions fitted to the data
/// sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedLengths<'a> {
    /// ShareGPT's lengths.
    pub sharegpt: Option<&'a TraceWorkload>,
    /// Alpaca's lengths.
    pub alpaca: Option<&'a TraceWorkload>,
}

impl<'a> PublishedLengths<'a> {
    /// Returns the published lengths that replace `workload`, or `workload` itself.
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

/// A workload with arrivals and a sampling method.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The requests' lengths.
    pub workload: TraceWorkload,
    /// How tokens are chosen.
    pub method: Method,
    /// Seconds during which requests arrive.
    pub seconds: f64,
    /// Maximum tokens per sequence.
    pub max_len: usize,
    /// Seed of lengths and arrivals.
    pub seed: u64,
}

impl TraceWorkload {
    /// Draws the lengths of a request: its prompt, the shared prefix of the prompt, and its output.
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

    /// Draws the lengths of `n` requests, each a prompt and an output.
    pub fn lengths(&self, n: usize, seed: u64) -> Vec<(usize, usize)> {
        let mut random = WorkloadRng::new(seed);
        (0..n).map(|at| self.draw(at, &mut random)).map(|(prompt, _, output)| (prompt, output)).collect()
    }
}

impl Trace {
    /// Draws the requests at a mean of `rate` per second. Another rate gives the same requests at proportionally scaled
    /// times.
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
