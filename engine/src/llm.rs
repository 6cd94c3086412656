//! Text in, text out: an engine together with its model's tokenizer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, KvLayout};
use crate::config::{GenerationConfig, ModelConfig};
use crate::detokenizer::{Detokenizer, StopMatcher};
use crate::engine::{Engine, EngineConfig, Finished};
use crate::error::{Error, Result};
use crate::group::RequestId;
use crate::kv::blocks_for;
use crate::load::ModelFiles;
use crate::model;
use crate::runner::ModelRunner;
use crate::sampling::SamplingParams;
use crate::sequence::{FinishReason, TokenLogprob};
use crate::stats::Stats;
use crate::tensor::DType;
use crate::tokenizer::Tokenizer;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where to run.
    pub device: Device,
    /// Type of the weights; `None` keeps them as stored, and `F32` too, since widening as they are used is exact.
    pub dtype: Option<DType>,
    /// Type of the KV cache; `None` is f32, the type the CPU computes in, so that 16-bit weights lose nothing more.
    pub kv_dtype: Option<DType>,
    /// Tokens in a KV block.
    pub block_size: usize,
    /// Bytes for the KV cache; `None` is 4 GiB, or less where the limits below can never use as much.
    pub kv_memory: Option<usize>,
    /// Most sequences running at a time.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_batch_tokens: usize,
    /// CPU threads; `None` is one a core.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            device: Device::Auto,
            dtype: None,
            kv_dtype: None,
            block_size: 16,
            kv_memory: None,
            max_num_seqs: 256,
            max_batch_tokens: 2048,
            threads: None,
        }
    }
}

const DEFAULT_KV_MEMORY: usize = 4 << 30;
const MAX_BLOCK_SIZE: usize = 1024;
const MAX_THREADS: usize = 1024;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; the tokenizer adds the model's special tokens.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<u32>),
}

/// One continuation of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// The text, without special tokens and stop strings.
    pub text: String,
    /// The tokens, a closing end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Sum of the tokens' logprobs.
    pub cumulative_logprob: f64,
    /// The beam search's score.
    pub score: Option<f64>,
    /// One entry a token, if the request asked for logprobs.
    pub logprobs: Option<Vec<TokenLogprob>>,
}

/// An answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The request.
    pub id: RequestId,
    /// The prompt as text.
    pub prompt: String,
    /// The prompt as tokens.
    pub prompt_tokens: Vec<u32>,
    /// The continuations, best first where the request asked for a choice.
    pub outputs: Vec<Continuation>,
    /// From the request's arrival to its first token.
    pub time_to_first_token: Duration,
    /// From the request's arrival to its end.
    pub time: Duration,
}

/// What happens to requests in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token of an output that can be streamed. Outputs that compete for being returned, and beams, cannot.
    Token {
        /// The request.
        id: RequestId,
        /// Which of its outputs.
        index: usize,
        /// The token.
        token: u32,
        /// The text that is settled by it; empty while a character or a stop string may be incomplete. What is still
        /// held back when the output ends is in its [`Continuation::text`] only.
        text: String,
    },
    /// A request is complete.
    Done(Completion),
}

/// A model that answers requests.
pub struct Llm {
    engine: Engine,
    tokenizer: Tokenizer,
    config: ModelConfig,
    defaults: GenerationConfig,
    layout: KvLayout,
    requests: BTreeMap<RequestId, Request>,
}

/// The text side of a request.
struct Request {
    prompt: String,
    prompt_tokens: Vec<u32>,
    stop: Vec<String>,
    streams: bool,
    texts: BTreeMap<usize, Text>,
}

/// The text of an output as it grows.
struct Text {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
    stopped: bool,
}

impl Text {
    fn new(stops: &[String]) -> Self {
        let stops = StopMatcher::new(stops.to_vec());
        Text { detokenizer: Detokenizer::new(), stops, text: String::new(), stopped: false }
    }

    /// Takes a token in and returns the text that it settles. Nothing follows a stop string.
    fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String> {
        let piece = self.detokenizer.push(tokenizer, token)?;
        let mut text = self.screen(&piece);
        if self.detokenizer.holds_back() && !self.stopped && !self.stops.is_empty() {
            // With a stop string in what is held back the output ends here, and so no more can change it.
            let rest = self.detokenizer.clone().finish(tokenizer)?;
            if self.stops.clone().push(&rest).stop.is_some() {
                text.push_str(&self.screen(&rest));
            }
        }
        Ok(text)
    }

    /// All of the text, with what was held back in case more would come.
    fn finish(mut self, tokenizer: &Tokenizer) -> Result<String> {
        let rest = self.detokenizer.finish(tokenizer)?;
        self.screen(&rest);
        if !self.stopped {
            self.text.push_str(&self.stops.finish());
        }
        Ok(self.text)
    }

    fn screen(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        let screened = self.stops.push(piece);
        self.stopped = screened.stop.is_some();
        self.text.push_str(&screened.text);
        screened.text
    }
}

impl Llm {
    /// Loads a model.
    pub fn load(files: &ModelFiles, options: &Options) -> Result<Self> {
        let config = files.config()?;
        let defaults = files.generation_config()?;
        let tokenizer = files.tokenizer(&config)?;
        let mut weights = files.weights(options.dtype)?;
        weights.strip_prefix(config.family.weight_prefixes());
        let layout = KvLayout {
            layers: config.layers,
            heads: config.kv_heads,
            head_dim: config.head_dim,
            block_size: options.block_size,
            dtype: options.kv_dtype.unwrap_or(DType::F32),
        };
        let num_blocks = num_blocks(options, &layout, config.max_positions)?;
        let engine_config = EngineConfig {
            num_blocks,
            block_size: options.block_size,
            max_len: config.max_positions,
            vocab_size: config.vocab_size,
            eos: defaults.eos_token_ids_or(&config),
            max_num_seqs: options.max_num_seqs,
            max_batch_tokens: options.max_batch_tokens,
        };
        let longest = config.max_positions.min(num_blocks * options.block_size);
        let (Device::Auto | Device::Cpu) = options.device;
        let backend = CpuBackend::new(options.threads)?;
        let cache = backend.kv_cache(layout, num_blocks)?;
        let model = model::load(&backend, &config, &mut weights, longest)?;
        let engine = Engine::new(engine_config, Box::new(ModelRunner::new(backend, model, cache)));
        Ok(Llm { engine, tokenizer, config, defaults, layout, requests: BTreeMap::new() })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If it makes no sense or could never run; nothing is queued then.
    pub fn add(&mut self, prompt: &Prompt, params: SamplingParams) -> Result<RequestId> {
        let (text, tokens) = match prompt {
            Prompt::Text(text) => (Some(text.clone()), self.tokenizer.encode(text)?),
            Prompt::Tokens(tokens) => (None, tokens.clone()),
        };
        let stop = params.stop.clone();
        let streams = params.beam.is_none() && params.best_of == params.n;
        let id = self.engine.add(tokens.clone(), params)?;
        // Decoded only now, when the engine has found the tokens to be in the vocabulary.
        let text = text.map_or_else(|| self.tokenizer.decode(&tokens, true), Ok)?;
        let request = Request { prompt: text, prompt_tokens: tokens, stop, streams, texts: BTreeMap::new() };
        self.requests.insert(id, request);
        Ok(id)
    }

    /// One iteration over everything that runs.
    ///
    /// # Errors
    /// When the device failed; the model cannot be used any more.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let step = self.engine.step()?;
        let mut events = Vec::new();
        for new in step.tokens {
            let Some(request) = self.requests.get_mut(&new.request) else { continue };
            let output = request.texts.entry(new.index).or_insert_with(|| Text::new(&request.stop));
            let text = output.push(&self.tokenizer, new.token)?;
            if output.stopped {
                self.engine.stop_output(new.request, new.index);
            }
            if request.streams {
                events.push(Event::Token { id: new.request, index: new.index, token: new.token, text });
            }
        }
        for finished in step.finished {
            if let Some(request) = self.requests.remove(&finished.id) {
                events.push(Event::Done(self.complete(finished, request)?));
            }
        }
        Ok(events)
    }

    /// Answers all `prompts`, in their order.
    pub fn generate(&mut self, prompts: &[Prompt], params: &SamplingParams) -> Result<Vec<Completion>> {
        let ids = prompts.iter().map(|p| self.add(p, params.clone())).collect::<Result<Vec<_>>>()?;
        let mut done = BTreeMap::new();
        while self.has_work() {
            for event in self.step()? {
                if let Event::Done(completion) = event {
                    done.insert(completion.id, completion);
                }
            }
        }
        Ok(ids.iter().filter_map(|id| done.remove(id)).collect())
    }

    /// Cancels a request; the next step reports it with what it had.
    pub fn abort(&mut self, id: RequestId) {
        self.engine.abort(id);
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model's own sampling defaults.
    pub fn defaults(&self) -> &GenerationConfig {
        &self.defaults
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The engine, for looking at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The shape of the KV cache.
    pub fn kv_layout(&self) -> KvLayout {
        self.layout
    }

    fn complete(&self, finished: Finished, mut request: Request) -> Result<Completion> {
        let mut outputs = Vec::with_capacity(finished.outputs.len());
        for mut output in finished.outputs {
            let text = match request.texts.remove(&output.index) {
                Some(text) => {
                    if text.stopped {
                        // The token that completed a stop string may have been the last allowed one as well.
                        output.finish_reason = FinishReason::Stop;
                    }
                    text.finish(&self.tokenizer)?
                }
                None => self.tokenizer.decode(&output.tokens, true)?,
            };
            outputs.push(Continuation {
                text,
                tokens: output.tokens,
                finish_reason: output.finish_reason,
                cumulative_logprob: output.cumulative_logprob,
                score: output.score,
                logprobs: output.logprobs,
            });
        }
        let now = Instant::now();
        Ok(Completion {
            id: finished.id,
            prompt: request.prompt,
            prompt_tokens: request.prompt_tokens,
            outputs,
            time_to_first_token: finished.first_token.unwrap_or(now) - finished.arrival,
            time: now - finished.arrival,
        })
    }
}

/// Blocks that the memory given to the KV cache holds.
fn num_blocks(options: &Options, layout: &KvLayout, max_len: usize) -> Result<usize> {
    let check = |ok: bool, why: &str| if ok { Ok(()) } else { Err(Error::Option(why.into())) };
    check((1..=MAX_BLOCK_SIZE).contains(&options.block_size), "block-size must be between 1 and 1024")?;
    check(options.max_num_seqs >= 1, "max-num-seqs must be at least 1")?;
    check(options.max_batch_tokens >= 1, "max-batch-tokens must be at least 1")?;
    check(options.threads.is_none_or(|n| n <= MAX_THREADS), "threads must be at most 1024")?;
    let block = layout.block_bytes();
    let usable = blocks_for(max_len, options.block_size).saturating_mul(options.max_num_seqs);
    let num_blocks = match options.kv_memory {
        Some(bytes) => bytes / block,
        None => (DEFAULT_KV_MEMORY / block).min(usable),
    };
    if num_blocks == 0 {
        let have = options.kv_memory.unwrap_or(DEFAULT_KV_MEMORY);
        let size = options.block_size;
        return Err(Error::Memory(format!(
            "a KV block of {size} tokens takes {block} bytes, but the KV cache gets {have}"
        )));
    }
    // Slots are numbered in 32 bits.
    Ok(num_blocks.min(u32::MAX as usize / options.block_size))
}
