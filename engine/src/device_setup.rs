//! Loading a model onto a device: chooses the device, loads the weights and uses the remaining memory for the KV cache.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;

use crate::config::ModelConfig;
use crate::device_info::DeviceInfo;
use crate::error::Result;
use crate::kv::{KvDtype, KvLayout};
use crate::load::Weights;
#[cfg(feature = "cuda")]
use crate::options::Device;
use crate::options::Options;
use crate::runner::Runner;

/// A model on its device, ready to run.
pub(crate) struct LoadedModel {
    /// Executes its steps.
    pub runner: Box<dyn Runner>,
    /// The shape of its KV cache.
    pub layout: KvLayout,
    /// Number of blocks in the KV cache.
    pub num_blocks: usize,
    /// Number of blocks in the swap space.
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

fn kv_layout(config: &ModelConfig, options: &Options, dtype: KvDtype) -> KvLayout {
    KvLayout {
        layers: config.layers,
        heads: config.kv_heads,
        head_dim: config.head_dim,
        block_size: options.block_size,
        dtype,
    }
}
