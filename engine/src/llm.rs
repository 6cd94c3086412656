//! Text in, text out: an engine with its model's tokenizer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::adapter::{AdapterRegistry, BaseModel};
use crate::completion::{Completion, Continuation, Event, Prompt, StopReason};
use crate::config::{GenerationConfig, ModelConfig};
use crate::constraint::{Constraint, Grammar, GrammarCompiler};
use crate::detokenizer::Detokenizer;
use crate::device_info::DeviceInfo;
use crate::device_setup::{LoadedModel, load_model};
use crate::engine::{Engine, EngineConfig, Finished};
use crate::error::Result;
use crate::group::{NewToken, OwnerId, RequestId};
use crate::kv::{KvLayout, SharedLog};
use crate::load::ModelFiles;
use crate::options::Options;
use crate::output_text::OutputText;
use crate::sampling::SamplingParams;
use crate::sequence::{FinishReason, PromptLogprobs};
use crate::stats::Stats;
use crate::tokenizer::Tokenizer;

/// A model that answers requests.
///
/// ```
/// use engine::{Llm, ModelFiles, Options, Prompt, SamplingParams};
///
/// let mut llm = Llm::load(&ModelFiles::bundled(), &Options::default())?;
/// let params = SamplingParams { max_tokens: 5, temperature: 0.0, ..SamplingParams::default() };
/// let answers = llm.generate(&[Prompt::Text("Once upon a time".into())], &params)?;
/// assert!(answers[0].outputs[0].text.starts_with(", there"));
/// # Ok::<(), engine::Error>(())
/// ```
pub struct Llm {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    grammars: GrammarCompiler,
    config: ModelConfig,
    defaults: GenerationConfig,
    layout: KvLayout,
    device: DeviceInfo,
    adapters: AdapterRegistry,
    requests: BTreeMap<RequestId, Request>,
}

/// A request's prompt, stop conditions and output texts.
struct Request {
    prompt: String,
    prompt_tokens: Vec<u32>,
    echo: bool,
    streams: bool,
    /// The request's stop strings.
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    /// Whether end-of-sequence tokens end no output.
    ignore_eos: bool,
    /// The initial state of each output's text.
    begin: OutputText,
    texts: BTreeMap<usize, OutputText>,
}

impl Llm {
    /// Loads a model.
    pub fn load(files: &ModelFiles, options: &Options) -> Result<Self> {
        Self::load_with(files, options, |_, _| {})
    }

    /// As [`Llm::load`]. Calls `progress` with the bytes of weights read so far and the total.
    pub fn load_with(
        files: &ModelFiles,
        options: &Options,
        progress: impl FnMut(usize, usize) + 'static,
    ) -> Result<Self> {
        options.validate()?;
        let config = files.config()?;
        let defaults = files.generation_config()?;
        let tokenizer = Arc::new(Tokenizer::of_model(files, &config)?);
        let mut progress = Some(progress);
        let open = || {
            let mut weights = files.weights(options.dtype)?;
            weights.strip_prefix(config.family.weight_prefixes());
            // All workers read their parts of all tensors. Only the first worker's progress is reported.
            if let Some(progress) = progress.take() {
                weights.on_progress(progress);
            }
            if !options.mmap {
                weights.copy_to_memory();
            }
            Ok(weights)
        };
        let LoadedModel { mut runner, layout, num_blocks, swap_blocks, device } = load_model(&config, open, options)?;
        if options.warmup {
            let groups = layout.cache_groups();
            runner.warm_up(options.scheduler.max_num_seqs, num_blocks, options.block_size, &groups)?;
        }
        let engine_config = EngineConfig {
            num_blocks,
            block_size: layout.block_size,
            swap_blocks,
            groups: layout.cache_groups(),
            max_len: config.max_positions,
            boundary: config.regime_boundary(),
            vocab_size: config.vocab_size,
            eos: defaults.eos_token_ids_or(&config),
            scheduler: options.scheduler,
        };
        let adapters = AdapterRegistry::new(BaseModel {
            name: files.name().to_owned(),
            config: config.clone(),
            sites: runner.sites(),
            workers: options.tensor_parallel_size,
            page_bytes: layout.page_bytes(),
            num_pages: num_blocks,
            max_rank: options.max_lora_rank,
        });
        for (name, path) in &options.lora_modules {
            adapters.load(name, path)?;
        }
        let engine = Engine::new(engine_config, runner);
        let grammars = GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &engine.config().eos);
        Ok(Llm { engine, tokenizer, grammars, config, defaults, layout, device, adapters, requests: BTreeMap::new() })
    }

    /// Queues a request with an owner of its own.
    ///
    /// # Errors
    /// If it is invalid or could never run. Nothing is queued then.
    pub fn add(&mut self, prompt: &Prompt, params: SamplingParams) -> Result<RequestId> {
        let owner = self.new_owner();
        self.add_for(owner, prompt, params)
    }

    /// Creates an owner, for requests whose sequences and blocks are counted together, see
    /// [`max_request_share`](crate::SchedulerOptions::max_request_share).
    pub fn new_owner(&mut self) -> OwnerId {
        self.engine.new_owner()
    }

    /// As [`Llm::add`], for an owner that may have other requests.
    ///
    /// # Errors
    /// See [`Llm::add`].
    pub fn add_for(&mut self, owner: OwnerId, prompt: &Prompt, params: SamplingParams) -> Result<RequestId> {
        let tokens = self.tokens(prompt)?;
        let echo = params.echo;
        let streams = params.beam.is_none() && params.best_of == params.n;
        let id = self.engine.add_for(owner, tokens.clone(), params.clone())?;
        // Decode only after the engine has checked that the tokens are in the vocabulary.
        let mut detokenizer = Detokenizer::new(params.skip_special_tokens);
        let text = match prompt {
            _ if echo => tokens.iter().map(|&token| detokenizer.push(&self.tokenizer, token)).collect::<Result<_>>()?,
            Prompt::Text(text) | Prompt::Encoded { text, .. } => text.clone(),
            Prompt::Tokens(tokens) => self.tokenizer.decode(tokens, true)?,
        };
        let begin = OutputText::new(detokenizer, &params);
        let (prompt, prompt_tokens, texts) = (text, tokens, BTreeMap::new());
        let (stops, mut stop_tokens) = (params.stop, params.stop_token_ids);
        // An end-of-sequence token is not reported as a stop token of the request.
        let ignore_eos = params.ignore_eos;
        stop_tokens.retain(|token| ignore_eos || !self.engine.config().eos.contains(token));
        let request = Request { prompt, prompt_tokens, echo, streams, stops, stop_tokens, ignore_eos, begin, texts };
        self.requests.insert(id, request);
        Ok(id)
    }

    /// Compiles `grammar` to a constraint for [`SamplingParams::constraint`].
    ///
    /// # Errors
    /// See [`GrammarCompiler::compile`].
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        self.grammars.compile(grammar)
    }

    /// Computes a prefix and pins it. Prompts that begin with it share its blocks and skip its computation.
    ///
    /// # Errors
    /// See [`Engine::pin_prefix`].
    pub fn pin_prefix(&mut self, prefix: &Prompt) -> Result<()> {
        let tokens = self.tokens(prefix)?;
        self.engine.pin_prefix(tokens)
    }

    /// Runs one iteration over all running groups.
    ///
    /// # Errors
    /// If the device failed. The running requests are lost, see [`Engine::step`].
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let step = self.engine.step().inspect_err(|_| {
            self.requests.retain(|id, _| self.engine.scheduler().contains(*id));
        })?;
        let mut events = Vec::new();
        let mut prompts: BTreeMap<RequestId, PromptLogprobs> = step.prompts.into_iter().collect();
        for new in step.tokens {
            let Some(request) = self.requests.get_mut(&new.request) else { continue };
            if request.texts.is_empty() && request.streams && request.echo {
                events.push(Event::Prompt {
                    id: new.request,
                    text: request.prompt.clone(),
                    tokens: request.prompt_tokens.clone(),
                    logprobs: prompts.remove(&new.request),
                });
            }
            let output = request.texts.entry(new.index).or_insert_with(|| request.begin.clone());
            if output.stop.is_some() {
                // A drafted token after the end: computed in one step with the token that completed the stop string.
                continue;
            }
            let text = output.push(&self.tokenizer, new.token, new.ends)?;
            output.sum = new.sum;
            if output.stop.is_some() {
                self.engine.stop_output(new.request, new.index);
            }
            if request.streams {
                let NewToken { request: id, index, token, logprob, cached_tokens, .. } = new;
                events.push(Event::Token { id, index, token, text, logprob, cached_tokens });
            }
        }
        for finished in step.finished {
            if let Some(request) = self.requests.remove(&finished.id) {
                events.push(Event::Done(self.complete(finished, request)?));
            }
        }
        Ok(events)
    }

    /// Completes all `prompts` and returns the completions in the same order.
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

    /// Cancels a request. The next step reports it with the tokens generated so far.
    pub fn abort(&mut self, id: RequestId) {
        self.engine.abort(id);
    }

    /// Whether any request is queued or running.
    pub fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    /// Sends all later block events to `log`.
    pub fn set_kv_log(&mut self, log: SharedLog) {
        self.engine.set_log(log);
    }

    /// Counters since the model was loaded.
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

    /// The engine, for inspecting its state.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The adapters that requests can use with [`SamplingParams::adapter`]. Clones of the registry share them.
    pub fn adapters(&self) -> &AdapterRegistry {
        &self.adapters
    }

    /// The shape of the KV cache.
    pub fn kv_layout(&self) -> &KvLayout {
        &self.layout
    }

    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Text(text) => self.tokenizer.encode(text),
            Prompt::Tokens(tokens) | Prompt::Encoded { tokens, .. } => Ok(tokens.clone()),
        }
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn complete(&self, finished: Finished, mut request: Request) -> Result<Completion> {
        let mut outputs = Vec::with_capacity(finished.outputs.len());
        for mut output in finished.outputs {
            let mut text = match request.texts.remove(&output.index) {
                Some(text) => {
                    if text.stop.is_some() {
                        output.truncate(text.tokens, text.sum);
                    }
                    text
                }
                // Its tokens were not reported: it is a beam, or has no tokens.
                None => {
                    let mut text = request.begin.clone();
                    // A grammar may end a beam with a token that is part of its text.
                    let ends = |token: u32| !request.ignore_eos && self.engine.config().eos.contains(&token);
                    for &token in &output.tokens {
                        text.push(&self.tokenizer, token, ends(token))?;
                    }
                    text
                }
            };
            let whole = text.finish(&self.tokenizer)?;
            let stop_reason = match (text.stop, output.tokens.last()) {
                (Some(stop), _) => Some(StopReason::Text(request.stops[stop].clone())),
                (None, Some(token)) if request.stop_tokens.contains(token) => Some(StopReason::Token(*token)),
                _ => None,
            };
            if stop_reason.is_some() {
                // The token that completed a stop string may also have been the last allowed one.
                output.finish_reason = FinishReason::Stop;
            }
            outputs.push(Continuation {
                text: whole,
                tokens: output.tokens,
                finish_reason: output.finish_reason,
                stop_reason,
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
            cached_tokens: finished.cached_tokens,
            prompt_logprobs: finished.prompt_logprobs,
            embedding: finished.embedding.map(|mut embedding| {
                // A GPU pads rows with zeros.
                embedding.truncate(self.config.output_width());
                embedding
            }),
            outputs,
            time_to_first_token: finished.first_token.unwrap_or(now) - finished.arrival,
            time: now - finished.arrival,
        })
    }
}
