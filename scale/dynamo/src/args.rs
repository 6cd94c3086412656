//! The options of the command.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};
use engine::ModelFiles;
use engine::{Device, Options, SchedulerOptions};

use crate::engine::QuireEngine;

/// Serves a model as a worker of NVIDIA Dynamo.
#[derive(Debug, Parser)]
#[command(name = "quire-dynamo", version)]
pub struct Args {
    /// Dynamo's own options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Directory, hub id or short name of the model; the frontend reads its tokenizer from there
    #[arg(long, short)]
    pub model: String,
    /// The model's name in requests (default: its directory's name, or its hub id)
    #[arg(long)]
    pub served_model_name: Option<String>,
    /// Device: auto (a GPU if there is one), cpu, cuda, cuda:1 or emulator
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// GPUs or CPU workers that the model is divided among
    #[arg(long, default_value_t = 1)]
    pub tensor_parallel_size: usize,
    /// Tokens per KV block
    #[arg(long, default_value_t = 16)]
    pub block_size: usize,
    /// Bytes for the KV cache (default: on the CPU at most 4 GiB, on a GPU the remaining memory)
    #[arg(long)]
    pub kv_memory: Option<usize>,
    /// Share of a GPU's memory that may be used
    #[arg(long, default_value_t = 0.9)]
    pub gpu_memory_utilization: f32,
    /// Maximum number of running sequences
    #[arg(long, default_value_t = 256)]
    pub max_num_seqs: usize,
    /// Maximum tokens per step; longer prompts run in chunks
    #[arg(long, default_value_t = 2048)]
    pub max_batch_tokens: usize,
    /// Compute decode steps at start; on a GPU this records all graphs except those for drafts
    #[arg(long)]
    pub warmup: bool,
    /// CPU threads (default: one per core)
    #[arg(long)]
    pub threads: Option<usize>,
}

impl Args {
    /// Creates the engine that the options describe, without starting it, and Dynamo's configuration for the worker.
    ///
    /// # Errors
    /// If an option is out of range, or the model cannot be found.
    pub fn engine(self) -> Result<(QuireEngine, WorkerConfig)> {
        let CommonArgs { disaggregation_mode, route_to_encoder, .. } = self.common;
        ensure!(
            disaggregation_mode == DisaggregationMode::Aggregated && !route_to_encoder,
            "this worker computes whole requests: --disaggregation-mode must be agg, without --route-to-encoder"
        );
        let options = Options {
            device: self.device,
            tensor_parallel_size: self.tensor_parallel_size,
            block_size: self.block_size,
            kv_memory: self.kv_memory,
            gpu_memory_utilization: self.gpu_memory_utilization,
            scheduler: SchedulerOptions {
                max_num_seqs: self.max_num_seqs,
                max_batch_tokens: self.max_batch_tokens,
                ..SchedulerOptions::default()
            },
            warmup: self.warmup,
            threads: self.threads,
            ..Options::default()
        };
        options.validate()?;
        let files = ModelFiles::resolve(Some(&self.model), true)?;
        let path = files.path().context("--model must name a directory or a hub model")?;
        let path = path.to_str().context("the path of the model is not valid UTF-8")?.to_owned();
        let served_name = self.served_model_name.unwrap_or_else(|| files.name().to_owned());
        let common = self.common;
        let config = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            endpoint_types: common.endpoint_types,
            model_name: path,
            served_model_name: Some(served_name.clone()),
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            enable_rl: common.enable_rl,
            runtime: common.runtime,
            metrics_labels: vec![("model".into(), served_name.clone())],
            ..WorkerConfig::default()
        };
        Ok((QuireEngine::new(files, options, served_name)?, config))
    }
}
