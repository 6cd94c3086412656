//! The state that all endpoints share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use engine::tools::answer::{ThoughtFormat, ToolFormat};
use engine::tools::chat::ChatTemplate;
use engine::tools::config::{GenerationConfig, ModelConfig};
use engine::tools::constraint::GrammarCompiler;
use engine::tools::tokenizer::Tokenizer;
use engine::{AdapterHandle, ModelFiles, Options};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::adapters::Adapters;
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::history::History;
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::refused::RefusedRequests;
use crate::text::Texts;
use crate::worker::{Status, Worker};

/// The state that all endpoints share.
#[derive(Debug)]
pub struct App {
    /// The engine.
    pub worker: Worker,
    /// The model's name in requests and answers.
    pub model: String,
    /// The model's adapters.
    pub adapters: Arc<Adapters>,
    /// When the server was started, in seconds since 1970.
    pub created: u64,
    /// The model's configuration.
    pub config: ModelConfig,
    /// The engine's options.
    pub engine_options: Options,
    /// The server's options.
    pub options: ServeOptions,
    /// The model's own sampling defaults.
    pub defaults: GenerationConfig,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template, if it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// The format in which the model writes tool calls, if known.
    pub tool_format: Option<ToolFormat>,
    /// How the model writes reasoning before its answer, if it does.
    pub thoughts: Option<ThoughtFormat>,
    /// Counters.
    pub metrics: Metrics,
    /// The latest refused requests.
    pub refused: RefusedRequests,
    /// Samples of the last ten minutes.
    pub history: History,
    /// Converts texts to tokens and back.
    pub texts: Texts,
    /// Compiles the grammars of requests into constraints.
    pub grammars: Grammars,
    in_progress: Arc<Semaphore>,
    stopping: AtomicBool,
    /// The last [`crate::overview`] as JSON, and when it was made.
    pub overview: Mutex<Option<(Instant, Bytes)>>,
}

/// A permit for one request in progress. Dropping it frees the slot.
#[derive(Debug)]
pub struct Admission {
    app: Arc<App>,
    _permit: OwnedSemaphorePermit,
    /// When the request must be answered.
    pub deadline: Instant,
}

impl App {
    /// Creates the application around `worker`, which runs the model in `files` with `adapters`.
    ///
    /// # Errors
    /// If one of the model's files is missing or damaged.
    pub fn new(
        files: &ModelFiles,
        engine: &Options,
        options: &ServeOptions,
        (worker, adapters): (Worker, Arc<Adapters>),
        metrics: Metrics,
    ) -> engine::Result<Self> {
        let config = files.config()?;
        let template = ChatTemplate::of_model(files, options.chat_template.as_deref())?.map(Arc::new);
        if let Some(Err(reason)) = template.as_ref().map(|template| template.check()) {
            tracing::warn!(%reason, "the chat template fails on a plain question, so chats will fail too");
        }
        let tokenizer = Arc::new(Tokenizer::of_model(files, &config)?);
        let texts = Texts::new(tokenizer.clone(), config.vocab_size);
        let mentions = |text: &str| template.as_ref().is_some_and(|template| template.mentions(text));
        let tool_format = options.tool_call_parser.or_else(|| ToolFormat::of_template(mentions));
        let thoughts = ThoughtFormat::of_template(mentions);
        let defaults = files.generation_config()?;
        let eos = defaults.eos_token_ids_or(&config);
        let grammars = Grammars::new(GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &eos), options);
        Ok(App {
            worker,
            model: served_name(files, options),
            adapters,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            config,
            engine_options: engine.clone(),
            options: options.clone(),
            defaults,
            tokenizer,
            template,
            tool_format,
            thoughts,
            metrics,
            refused: RefusedRequests::default(),
            history: History::new(),
            texts,
            grammars,
            in_progress: Arc::new(Semaphore::new(options.limits.max_requests)),
            stopping: AtomicBool::new(false),
            overview: Mutex::new(None),
        })
    }

    /// Admits a request.
    ///
    /// # Errors
    /// 503 if the server is stopping or has no engine at present. 429 if too many requests are in progress.
    pub fn admit(self: &Arc<Self>) -> Result<Admission, ApiError> {
        self.ready()?;
        let permit = self.in_progress.clone().try_acquire_owned().map_err(|_| {
            self.metrics.refused.inc();
            ApiError::too_many_requests()
        })?;
        self.metrics.requests.inc();
        let deadline = Instant::now() + self.options.limits.request_timeout;
        Ok(Admission { app: self.clone(), _permit: permit, deadline })
    }

    /// Returns the most tokens that a prompt and its output may have together. The bound is the model's number of
    /// positions or, once the model is loaded, the KV cache's capacity for one sequence, if that is smaller.
    pub fn context_len(&self) -> usize {
        self.config.max_positions.min(self.worker.context_len())
    }

    /// Waits until the model is loaded for the first time.
    ///
    /// # Errors
    /// If the model cannot be loaded.
    pub async fn loaded(&self) -> anyhow::Result<()> {
        match &*self.worker.status().wait_for(|status| *status != Status::Loading).await? {
            Status::Broken(why) => anyhow::bail!("{why}"),
            _ => Ok(()),
        }
    }

    /// Checks that the server accepts requests.
    ///
    /// # Errors
    /// 503 with the reason why it does not.
    pub fn ready(&self) -> Result<(), ApiError> {
        if self.is_stopping() {
            return Err(ApiError::unavailable("the server is stopping"));
        }
        match &*self.worker.status().borrow() {
            Status::Ready => Ok(()),
            Status::Loading => Err(ApiError::unavailable("the model is being loaded")),
            Status::Broken(why) => Err(ApiError::unavailable(format!("the model cannot be loaded: {why}"))),
            Status::Stopped => Err(ApiError::unavailable("the server is stopping")),
        }
    }

    /// Refuses new requests from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether [`App::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Waits until no admitted request is in progress.
    pub async fn idle(&self) {
        let all = u32::try_from(self.options.limits.max_requests).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.in_progress.acquire_many(all).await;
    }

    /// The adapter that a request names in place of the model. `None` for the model alone.
    ///
    /// # Errors
    /// 404 if there is neither a model nor an adapter of this name.
    pub fn adapter(&self, model: Option<&str>) -> Result<Option<AdapterHandle>, ApiError> {
        let Some(name) = model.filter(|name| *name != self.model) else { return Ok(None) };
        self.adapters.get(name).map(Some).ok_or_else(|| ApiError::model_not_found(name, &self.model))
    }

    /// Refuses a request that names neither the model nor an adapter.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        self.adapter(model).map(drop)
    }
}

impl Admission {
    /// Counts the error that ends a stream whose response has already begun.
    pub fn broke_off(&self, error: &ApiError) {
        self.app.metrics.error(error.status);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.app.metrics.requests.dec();
    }
}

/// Returns the name under which the model is served.
pub fn served_name(files: &ModelFiles, options: &ServeOptions) -> String {
    options.served_name.clone().unwrap_or_else(|| files.name().to_owned())
}
