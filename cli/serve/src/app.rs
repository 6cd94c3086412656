//! What all endpoints share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use engine::chat::ChatTemplate;
use engine::config::GenerationConfig;
use engine::load::ModelFiles;
use engine::tokenizer::Tokenizer;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::ApiError;
use crate::history::History;
use crate::metrics::Metrics;
use crate::options::{Limits, ServeOptions};
use crate::overview::Overview;
use crate::text::Turns;
use crate::worker::{Status, Worker};

/// Whoever asks for the engine's state within this time of another sees the same.
const SNAPSHOT_AGE: Duration = Duration::from_millis(50);

/// What all endpoints share.
#[derive(Debug)]
pub struct App {
    /// The engine.
    pub worker: Worker,
    /// The model's name in requests and answers.
    pub model: String,
    /// When the server was started, in seconds since 1970.
    pub created: u64,
    /// Most positions a sequence may have.
    pub max_len: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Most sequences that run at a time.
    pub max_num_seqs: usize,
    /// The model's own sampling defaults.
    pub defaults: GenerationConfig,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template, if it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// What requests must send.
    pub api_key: Option<String>,
    /// Bounds.
    pub limits: Limits,
    /// Counters.
    pub metrics: Metrics,
    /// What they were.
    pub history: History,
    /// For requests with long texts.
    pub turns: Turns,
    in_progress: Arc<Semaphore>,
    stopping: AtomicBool,
    /// The last snapshot that was taken, as JSON.
    snapshot: Mutex<Option<(Instant, Bytes)>>,
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
        engine: &engine::llm::Options,
        options: &ServeOptions,
        worker: Worker,
        metrics: Metrics,
    ) -> engine::Result<Self> {
        let config = files.config()?;
        let template = ChatTemplate::of_model(files, options.chat_template.as_deref())?.map(Arc::new);
        if let Some(Err(reason)) = template.as_ref().map(|template| template.check()) {
            tracing::warn!(%reason, "the chat template refuses a plain question: chats will be refused likewise");
        }
        Ok(App {
            worker,
            model: served_name(files, options),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            max_len: config.max_positions,
            vocab_size: config.vocab_size,
            max_num_seqs: engine.max_num_seqs,
            defaults: files.generation_config()?,
            tokenizer: Arc::new(files.tokenizer(&config)?),
            template,
            api_key: options.api_key.clone(),
            limits: options.limits,
            metrics,
            history: History::new(),
            turns: Turns::new(),
            in_progress: Arc::new(Semaphore::new(options.limits.max_requests)),
            stopping: AtomicBool::new(false),
            snapshot: Mutex::new(None),
        })
    }

    /// Lets a request for text in.
    ///
    /// # Errors
    /// 503 if the server stops or has no engine at present, 429 if it has enough to do.
    pub fn admit(self: &Arc<Self>) -> Result<Admission, ApiError> {
        self.ready()?;
        let permit = self.in_progress.clone().try_acquire_owned().map_err(|_| {
            self.metrics.refused.inc();
            ApiError::too_many_requests()
        })?;
        self.metrics.requests.inc();
        let deadline = Instant::now() + self.limits.request_timeout;
        Ok(Admission { app: self.clone(), _permit: permit, deadline })
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

    /// The state of server and engine as JSON, see [`Overview`]. The engine is asked a few times a second at most, so
    /// that looking on slows nobody down.
    ///
    /// # Errors
    /// 503 if there is no engine.
    pub async fn snapshot(&self) -> Result<Bytes, ApiError> {
        let mut last = self.snapshot.lock().await;
        if let Some((taken, json)) = &*last
            && taken.elapsed() < SNAPSHOT_AGE
        {
            return Ok(json.clone());
        }
        if *self.worker.status().borrow() == Status::Loading {
            return Err(ApiError::unavailable("the model is being loaded"));
        }
        let none = || ApiError::unavailable("there is no engine at present");
        let state = self.worker.snapshot().await.ok_or_else(none)?;
        let json = Bytes::from(
            serde_json::to_vec(&Overview::new(self, &state)).map_err(|e| ApiError::internal(e.to_string()))?,
        );
        *last = Some((Instant::now(), json.clone()));
        Ok(json)
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
        let all = u32::try_from(self.limits.max_requests).unwrap_or(u32::MAX);
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
