//! Quire's engine behind Dynamo's engine interface.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dynamo_backend_common::{
    BackendError, DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput,
    LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use engine::ModelFiles;
use engine::tools::config::GenerationConfig;
use engine::{Llm, Options};
use futures_util::stream::BoxStream;
use server::events::Publisher;
use server::exposition::Exposition;
use server::metrics::Metrics;
use server::worker::{Status, Worker};
use server::{KvEventsOptions, RequestLimits};

use crate::failure::{backend, failed, refused};
use crate::load::{RANK, publish};
use crate::output::outputs;
use crate::request::work;

/// Quire's engine, which Dynamo can start, query and stop.
#[derive(Debug)]
pub struct QuireEngine {
    files: ModelFiles,
    options: Options,
    served_name: String,
    defaults: GenerationConfig,
    metrics: Metrics,
    /// The running engine. `None` before the start and after the end.
    running: Mutex<Option<Running>>,
}

/// The parts of a running engine.
#[derive(Debug)]
struct Running {
    worker: Worker,
    publisher: Publisher,
}

impl QuireEngine {
    /// Creates an engine for the model of `files`. Requests name the model `served_name`.
    ///
    /// # Errors
    /// If the model's `generation_config.json` cannot be read.
    pub fn new(files: ModelFiles, options: Options, served_name: String) -> engine::Result<Self> {
        let (defaults, metrics) = (files.generation_config()?, Metrics::new(&served_name));
        Ok(QuireEngine { files, options, served_name, defaults, metrics, running: Mutex::default() })
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the engine's thread, and waits until it has loaded the model.
    async fn load(&self) -> anyhow::Result<(Running, LlmRegistration)> {
        // Dynamo's part of this process receives the events and tells the router. They go no further.
        let (publisher, events) = Publisher::bind(&KvEventsOptions::at("tcp://127.0.0.1:0"), &self.metrics).await?;
        let (files, options, source) = (self.files.clone(), self.options.clone(), events.clone());
        let load = move || {
            let mut llm = Llm::load(&files, &options)?;
            source.follow(&mut llm);
            llm.device().notes.iter().for_each(|note| tracing::warn!("{note}"));
            Ok(llm)
        };
        let worker = Worker::start(load, RequestLimits::default(), self.metrics.clone(), Some(events))?;
        if let Status::Broken(why) = &*worker.status().wait_for(|status| *status != Status::Loading).await? {
            anyhow::bail!("the model cannot be loaded: {why}");
        }
        let Some(state) = worker.snapshot().await else { anyhow::bail!("the engine's thread has ended") };
        let scheduler = state.engine.scheduler;
        let registration = LlmRegistration {
            context_length: u32::try_from(worker.context_len().min(state.engine.max_len)).ok(),
            kv_cache_block_size: u32::try_from(state.block_size).ok(),
            total_kv_blocks: Some(state.num_blocks as u64),
            max_num_seqs: Some(scheduler.max_num_seqs as u64),
            max_num_batched_tokens: Some(scheduler.max_batch_tokens as u64),
            ..LlmRegistration::default()
        };
        Ok((Running { worker, publisher }, registration))
    }
}

#[async_trait]
impl LLMEngine for QuireEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (running, registration) =
            self.load().await.map_err(|error| backend(BackendError::EngineShutdown, format!("{error:#}")))?;
        *self.running() = Some(running);
        Ok(EngineConfig {
            model: self.files.name().to_owned(),
            served_model_name: Some(self.served_name.clone()),
            llm: Some(registration),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let prompt_tokens = request.token_ids.len();
        let work = work(&request, &self.defaults).map_err(|refusal| refused(&refusal))?;
        let running = self.running();
        let Some(Running { worker, .. }) = &*running else {
            return Err(backend(BackendError::EngineShutdown, "the engine is not running"));
        };
        let status = worker.status();
        Ok(outputs(worker.submit(work), ctx, prompt_tokens, move |failure| failed(&failure, &status.borrow())))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let running = self.running().take();
        // Wait for the engine's thread to end.
        let end = tokio::task::spawn_blocking(|| drop(running));
        end.await.map_err(|error| backend(BackendError::Unknown, format!("the engine did not stop cleanly: {error}")))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let running = self.running();
        let zmq = |running: &Running| KvEventSource::Zmq {
            endpoint: running.publisher.address.clone(),
            topic: String::new(),
            dp_rank: RANK,
            image_token_id: None,
        };
        Ok(running.iter().map(zmq).collect())
    }

    async fn setup_metrics(&self, ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let metrics = self.metrics.clone();
        // The metrics of `quire serve`, in addition to Dynamo's metrics of every worker.
        ctx.metrics.add_expfmt_callback(Arc::new(move || Ok(Exposition::Prometheus.of(metrics.text()?))));
        let load = self.metrics.load();
        Ok(MetricsBindings {
            dp_ranks: vec![RANK],
            on_publisher_ready: Some(Box::new(move |publisher| {
                tokio::spawn(publish(load, publisher));
                Ok(())
            })),
        })
    }
}
