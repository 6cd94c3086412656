//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, compatible with vLLM.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;

use crate::app::App;
use crate::body::Body;
use crate::error::ApiError;

/// An adapter to load.
#[derive(Debug, Deserialize)]
pub struct LoadAdapter {
    /// Its name in requests.
    lora_name: String,
    /// Its PEFT directory or GGUF file.
    lora_path: PathBuf,
    /// Whether it may replace an adapter of the same name. It always may.
    #[serde(rename = "load_inplace")]
    _load_inplace: Option<bool>,
}

/// An adapter to unload.
#[derive(Debug, Deserialize)]
pub struct UnloadAdapter {
    /// Its name in requests.
    lora_name: String,
    /// Its number in vLLM, which has no meaning here.
    #[serde(rename = "lora_int_id")]
    _lora_int_id: Option<i64>,
}

/// Loads an adapter, or another one in place of the one with its name. Requests in progress keep theirs.
pub async fn load(State(app): State<Arc<App>>, Body(ask): Body<LoadAdapter>) -> Result<String, ApiError> {
    app.ready()?;
    let LoadAdapter { lora_name, lora_path, .. } = ask;
    let name = lora_name.clone();
    let load = move || app.adapters.load(&name, &lora_path, &app.model);
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.map_err(|error| ApiError::internal(error.to_string()))??;
    tracing::info!(adapter = lora_name, "adapter loaded");
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Unloads an adapter. Requests in progress keep it.
pub async fn unload(State(app): State<Arc<App>>, Body(ask): Body<UnloadAdapter>) -> Result<String, ApiError> {
    let UnloadAdapter { lora_name, .. } = ask;
    app.adapters.unload(&lora_name)?;
    tracing::info!(adapter = lora_name, "adapter unloaded");
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}
