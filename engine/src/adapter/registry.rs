//! The adapters that a model's requests can name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AdapterHandle, Sites};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::load::adapter::Adapter;

/// The adapters of a model, by name. Clones share them, so any thread can load and unload adapters while the model runs.
/// A loaded adapter is in host memory. It is copied to the device when a request needs it.
#[derive(Clone)]
pub struct AdapterRegistry(Arc<Shared>);

struct Shared {
    base: BaseModel,
    adapters: Mutex<BTreeMap<String, AdapterHandle>>,
}

/// The properties of a loaded model that adapters must fit.
pub(crate) struct BaseModel {
    /// The model's name, a part of the identity of adapters.
    pub name: String,
    /// Its configuration.
    pub config: ModelConfig,
    /// The matrices of a worker's part. `None` if the device cannot compute with adapters.
    pub sites: Option<Arc<Sites>>,
    /// The number of workers.
    pub workers: usize,
    /// Bytes of a page of the KV cache, on all workers.
    pub page_bytes: usize,
    /// Pages of the KV cache.
    pub num_pages: usize,
    /// The highest rank that adapters may have.
    pub max_rank: usize,
}

impl AdapterRegistry {
    pub(crate) fn new(base: BaseModel) -> Self {
        AdapterRegistry(Arc::new(Shared { base, adapters: Mutex::default() }))
    }

    /// Reads the adapter in the PEFT directory or GGUF file `path`, and gives it a name. Replaces an adapter of the same
    /// name, which its requests keep. This may take seconds, in which other threads can use the registry.
    ///
    /// # Errors
    /// If the adapter cannot be read, does not fit the model, or asks for something that is not implemented. Nothing is
    /// changed then.
    pub fn load(&self, name: &str, path: impl AsRef<Path>) -> Result<AdapterHandle> {
        let handle = self.0.base.open(name, path.as_ref())?;
        self.adapters().insert(name.to_owned(), handle.clone());
        Ok(handle)
    }

    /// Removes a name. Requests keep the adapter until they end. Returns whether there was an adapter of that name.
    pub fn unload(&self, name: &str) -> bool {
        self.adapters().remove(name).is_some()
    }

    /// The adapter of a name.
    pub fn get(&self, name: &str) -> Option<AdapterHandle> {
        self.adapters().get(name).cloned()
    }

    /// All adapters, in the order of their names.
    pub fn list(&self) -> Vec<AdapterHandle> {
        self.adapters().values().cloned().collect()
    }

    fn adapters(&self) -> MutexGuard<'_, BTreeMap<String, AdapterHandle>> {
        // Every change is a single operation, so a poisoned lock can be ignored.
        self.0.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AdapterRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl BaseModel {
    /// Reads an adapter and checks that it fits.
    fn open(&self, name: &str, path: &Path) -> Result<AdapterHandle> {
        let refuse = |reason: String| Err(Error::adapter(path, reason));
        let Some(sites) = &self.sites else {
            return refuse("adapters need --device cpu for now".into());
        };
        if name.is_empty() {
            return refuse("its name is empty".into());
        }
        let adapter = Adapter::open(path, &self.name, &self.config)?;
        sites.check(&adapter).map_err(|reason| Error::adapter(path, reason))?;
        if adapter.rank() > self.max_rank {
            let (rank, most) = (adapter.rank(), self.max_rank);
            return refuse(format!("its rank is {rank}, but at most {most} is allowed (--max-lora-rank)"));
        }
        let pages = (self.workers * sites.bytes(&adapter)).div_ceil(self.page_bytes).max(1);
        if pages >= self.num_pages {
            let mib = |pages: usize| (pages * self.page_bytes) >> 20;
            return refuse(format!(
                "it takes {} MiB of the KV cache's memory, which has {} (--kv-memory)",
                mib(pages),
                mib(self.num_pages)
            ));
        }
        Ok(AdapterHandle::new(name, adapter, pages))
    }
}
