//! Text in, text out: an engine together with its model's tokenizer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backend::KvLayout;
use crate::config::{GenerationConfig, ModelConfig};
use crate::engine::{Engine, EngineConfig, Finished};
use crate::error::Result;
use crate::group::RequestId;
use crate::kv::SharedLog;
use crate::load::ModelFiles;
pub use crate::options::{Device, Options, Preemption};
use crate::output_text::OutputText;
use crate::place::{DeviceInfo, Placed, place};
use crate::sampling::SamplingParams;
use crate::sequence::{FinishReason, TokenLogprob};
use crate::stats::Stats;
use crate::tokenizer::Tokenizer;

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
    device: DeviceInfo,
    requests: BTreeMap<RequestId, Request>,
}

/// The text side of a request.
struct Request {
    prompt: String,
    prompt_tokens: Vec<u32>,
    stop: Vec<String>,
    streams: bool,
    texts: BTreeMap<usize, OutputText>,
}

impl Llm {
    /// Loads a model.
    pub fn load(files: &ModelFiles, options: &Options) -> Result<Self> {
        Self::load_with(files, options, |_, _| {})
    }

    /// As [`Llm::load`]; `progress` hears of the bytes of weights that were read, and of all there are.
    pub fn load_with(
        files: &ModelFiles,
        options: &Options,
        progress: impl FnMut(usize, usize) + 'static,
    ) -> Result<Self> {
        options.validate()?;
        let config = files.config()?;
        let defaults = files.generation_config()?;
        let tokenizer = files.tokenizer(&config)?;
        let mut weights = files.weights(options.dtype)?;
        weights.strip_prefix(config.family.weight_prefixes());
        weights.on_progress(progress);
        let Placed { runner, layout, num_blocks, swap_blocks, device } = place(&config, weights, options)?;
        let engine_config = EngineConfig {
            num_blocks,
            block_size: options.block_size,
            swap_blocks,
            preemption: options.preemption,
            prefix_caching: options.prefix_caching,
            max_len: config.max_positions,
            vocab_size: config.vocab_size,
            eos: defaults.eos_token_ids_or(&config),
            max_num_seqs: options.max_num_seqs,
            max_batch_tokens: options.max_batch_tokens,
            delay_factor: options.delay_factor,
        };
        let engine = Engine::new(engine_config, runner);
        Ok(Llm { engine, tokenizer, config, defaults, layout, device, requests: BTreeMap::new() })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If it makes no sense or could never run; nothing is queued then.
    pub fn add(&mut self, prompt: &Prompt, params: SamplingParams) -> Result<RequestId> {
        let tokens = self.tokens(prompt)?;
        let stop = params.stop.clone();
        let streams = params.beam.is_none() && params.best_of == params.n;
        let id = self.engine.add(tokens.clone(), params)?;
        // Decoded only now, when the engine has found the tokens to be in the vocabulary.
        let text = match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(tokens) => self.tokenizer.decode(tokens, true)?,
        };
        let request = Request { prompt: text, prompt_tokens: tokens, stop, streams, texts: BTreeMap::new() };
        self.requests.insert(id, request);
        Ok(id)
    }

    /// Computes a prefix and keeps it; prompts that begin with it share its blocks and its computation.
    ///
    /// # Errors
    /// See [`Engine::pin_prefix`].
    pub fn pin_prefix(&mut self, prefix: &Prompt) -> Result<()> {
        let tokens = self.tokens(prefix)?;
        self.engine.pin_prefix(tokens)
    }

    /// One iteration over everything that runs.
    ///
    /// # Errors
    /// When the device failed: requests in progress are lost, see [`Engine::step`].
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let step = self.engine.step().inspect_err(|_| {
            self.requests.retain(|id, _| self.engine.scheduler().contains(*id));
        })?;
        let mut events = Vec::new();
        for new in step.tokens {
            let Some(request) = self.requests.get_mut(&new.request) else { continue };
            let output = request.texts.entry(new.index).or_insert_with(|| OutputText::new(&request.stop));
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

    /// The prompt of a request in progress, as text and as tokens.
    pub fn prompt(&self, id: RequestId) -> Option<(&str, &[u32])> {
        self.requests.get(&id).map(|r| (r.prompt.as_str(), r.prompt_tokens.as_slice()))
    }

    /// Cancels a request; the next step reports it with what it had.
    pub fn abort(&mut self, id: RequestId) {
        self.engine.abort(id);
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    /// Reports from now on what happens to KV blocks.
    pub fn set_kv_log(&mut self, log: SharedLog) {
        self.engine.set_log(log);
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

    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Text(text) => self.tokenizer.encode(text),
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// Where the model runs.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
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
