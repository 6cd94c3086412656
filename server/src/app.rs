//! What all endpoints share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use engine::answer::ToolFormat;
use engine::chat::ChatTemplate;
use engine::config::{GenerationConfig, ModelConfig};
use engine::constraint::GrammarCompiler;
use engine::llm::Options;
use engine::load::ModelFiles;
use engine::tokenizer::Tokenizer;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::history::History;
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::refused::RefusedRequests;
use crate::text::Texts;
use crate::worker::{Status, Worker};

/// What all endpoints share.
#[derive(Debug)]
pub struct App {
    /// The engine.
    pub worker: Worker,
    /// The model's name in requests and answers.
    pub model: String,
    /// When the server was started, in seconds since 1970.
    pub created: u64,
    /// What the model is.
    pub config: ModelConfig,
    /// How its engine is set up.
    pub engine_options: Options,
    /// How the server is.
    pub options: ServeOptions,
    /// The model's own sampling defaults.
    pub defaults: GenerationConfig,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template, if it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// How the model writes calls of tools, if that is known.
    pub tool_format: Option<ToolFormat>,
    /// Whether the model thinks before it speaks, between `<think>` and `</think>`.
    pub thinks: bool,
    /// Counters.
    pub metrics: Metrics,
    /// The requests that were refused lately.
    pub refused: RefusedRequests,
    /// The samples of the last ten minutes.
    pub history: History,
    /// Texts to tokens and back.
    pub texts: Texts,
    /// Grammars of requests to constraints.
    pub grammars: Grammars,
    in_progress: Arc<Semaphore>,
    stopping: AtomicBool,
    /// The last [`crate::overview`] as JSON, and when it was made.
    pub overview: Mutex<Option<(Instant, Bytes)>>,
}

/// The right to run a request for text; given back when dropped.
#[derive(Debug)]
pub struct Admission {
    app: Arc<App>,
    _permit: OwnedSemaphorePermit,
    /// When the request must be answered.
    pub deadline: Instant,
}

impl App {
    /// The application around `worker`, which runs the model of `files`.
    ///
    /// # Errors
    /// If one of the model's files is missing or damaged.
    pub fn new(
        files: &ModelFiles,
        engine: &Options,
        options: &ServeOptions,
        worker: Worker,
        metrics: Metrics,
    ) -> engine::Result<Self> {
        let config = files.config()?;
        let template = ChatTemplate::of_model(files, options.chat_template.as_deref())?.map(Arc::new);
        if let Some(Err(reason)) = template.as_ref().map(|template| template.check()) {
            tracing::warn!(%reason, "the chat template refuses a plain question: chats will be refused likewise");
        }
        let tokenizer = Arc::new(Tokenizer::of_model(&files, &config)?);
        let texts = Texts::new(tokenizer.clone(), config.vocab_size);
        let mentions = |text: &str| template.as_ref().is_some_and(|template| template.mentions(text));
        let tool_format = options.tool_call_parser.or_else(|| ToolFormat::of_template(mentions));
        let thinks = mentions("</think>");
        let defaults = files.generation_config()?;
        let eos = defaults.eos_token_ids_or(&config);
        let grammars = Grammars::new(GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &eos), options);
        Ok(App {
            worker,
            model: served_name(files, options),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            config,
            engine_options: engine.clone(),
            options: options.clone(),
            defaults,
            tokenizer,
            template,
            tool_format,
            thinks,
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

    /// Admits a request for text.
    ///
    /// # Errors
    /// 503 if the server stops or has no engine at present, 429 if too many requests are in progress.
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

    /// Most tokens of a prompt and its output: the model has no more positions, or the KV cache no more room for one
    /// sequence, which is known once the model is loaded.
    pub fn context_len(&self) -> usize {
        self.config.max_positions.min(self.worker.context_len())
    }

    /// Waits until the model is loaded for the first time.
    ///
    /// # Errors
    /// If it cannot be.
    pub async fn loaded(&self) -> anyhow::Result<()> {
        match &*self.worker.status().wait_for(|status| *status != Status::Loading).await? {
            Status::Broken(why) => anyhow::bail!("{why}"),
            _ => Ok(()),
        }
    }

    /// Whether requests are taken.
    ///
    /// # Errors
    /// 503, which says why they are not.
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

    /// Waits until no request for text is in progress.
    pub async fn idle(&self) {
        let all = u32::try_from(self.options.limits.max_requests).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.in_progress.acquire_many(all).await;
    }

    /// Refuses a request that names a model other than the one served.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(model) if model != self.model => Err(ApiError::model_not_found(model, &self.model)),
            _ => Ok(()),
        }
    }
}

impl Admission {
    /// Counts the error that ends a stream whose response has begun.
    pub fn broke_off(&self, error: &ApiError) {
        self.app.metrics.error(error.status);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.app.metrics.requests.dec();
    }
}

/// The name under which the model is served.
pub fn served_name(files: &ModelFiles, options: &ServeOptions) -> String {
    options.served_name.clone().unwrap_or_else(|| files.name().to_owned())
}
