//! Loading a model onto a device: chooses the device, loads the weights and uses the remaining memory for the KV cache.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod host_memory;

use crate::config::ModelConfig;
use crate::device_info::DeviceInfo;
use crate::error::{Error, Result};
use crate::kv::{KvDtype, KvLayout, MAX_GROUPS};
use crate::load::Weights;
#[cfg(feature = "cuda")]
use crate::options::Device;
use crate::options::Options;
use crate::parallel::Shard;
use crate::runner::Runner;

/// A model on its device, ready to run.
pub(crate) struct LoadedModel {
    /// Executes its steps.
    pub runner: Box<dyn Runner>,
    /// The shape of its KV cache.
    pub layout: KvLayout,
    /// Number of pages in the KV cache. With one group of layers, a page is a block.
    pub num_blocks: usize,
    /// Number of pages in the swap space.
    pub swap_blocks: usize,
    /// A description of the device.
    pub device: DeviceInfo,
}

/// Loads a model onto the device that the options select. `open` opens its weights, once for each worker.
///
/// # Errors
/// [`crate::Error::Device`], [`crate::Error::Unsupported`], [`crate::Error::Option`] or [`crate::Error::Memory`] if the
/// model cannot run there, and errors of `open`.
pub(crate) fn load_model(
    config: &ModelConfig,
    mut open: impl FnMut() -> Result<Weights>,
    options: &Options,
) -> Result<LoadedModel> {
    let weights = open()?;
    #[cfg(feature = "cuda")]
    let note = match gpu::open(config, &weights, options) {
        Ok(Some(gpus)) => return gpus.load_model(config, weights, open, options),
        Ok(None) => None,
        Err(error) if options.device == Device::Auto => Some(format!("runs on the CPU because {error}")),
        Err(error) => return Err(error),
    };
    #[cfg(not(feature = "cuda"))]
    let note = None;
    cpu::load_model(config, weights, open, options, note)
}

/// The layout of one worker's cache for a model.
///
/// # Errors
/// [`crate::Error::Unsupported`] if there are too many groups of layers.
fn kv_layout(config: &ModelConfig, shard: Shard, options: &Options, dtype: KvDtype) -> Result<KvLayout> {
    let layout = KvLayout::new(&shard.memory_layers(config), options.block_size, dtype);
    match layout.groups.len() {
        count if count > MAX_GROUPS => Err(Error::Unsupported(format!(
            "the layers have {count} different kinds of KV caches, but at most {MAX_GROUPS} are supported"
        ))),
        _ if layout.is_wasteful() => Err(Error::Unsupported(
            "the layers' KV caches have sizes without a common multiple, so they cannot share memory".into(),
        )),
        _ => Ok(layout),
    }
}

/// Returns notes about parts of a model that are not loaded.
fn unloaded(config: &ModelConfig) -> impl Iterator<Item = String> {
    let text = || format!("{} reads more than text; only its text model is loaded", config.architecture);
    let drafts = || "the layers that predict further tokens (mtp) are not loaded".into();
    config.text_only.then(text).into_iter().chain((config.draft_layers > 0).then(drafts))
}

/// Returns a note if the options ask for drafts that the model's recurrent layers cannot verify.
fn no_drafts(layout: &KvLayout, options: &Options) -> Option<String> {
    let has_states = layout.groups.iter().any(|group| group.state.is_some());
    (has_states && options.scheduler.draft_tokens > 0).then(|| {
        "no tokens are drafted, because the states of recurrent layers cannot return to an earlier token".into()
    })
}
