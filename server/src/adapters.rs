//! The adapters that requests can name in place of the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::{AdapterHandle, AdapterRegistry, Options};

use crate::error::{ApiError, cut};
use crate::options::AdapterOptions;

/// Maximum bytes of an adapter's name.
const MAX_NAME: usize = 256;

/// The adapters of the served model. They exist once the model is loaded, and outlive its reloads.
#[derive(Debug)]
pub struct Adapters {
    /// The names and paths of the adapters that are loaded with the model.
    named: Vec<(String, PathBuf)>,
    options: AdapterOptions,
    registry: OnceLock<AdapterRegistry>,
    /// When each adapter was loaded, in seconds since 1970.
    loaded: Mutex<BTreeMap<String, u64>>,
}

impl Adapters {
    /// No adapters yet. `named` are loaded with the model.
    pub fn new(named: Vec<(String, PathBuf)>, options: AdapterOptions) -> Self {
        Adapters { named, options, registry: OnceLock::new(), loaded: Mutex::default() }
    }

    /// The options for the next load of the model. Adapters are read from their files only once: when the model is loaded
    /// again, they stay as they are.
    pub fn options_of(&self, engine: &Options) -> Options {
        let lora_modules = if self.registry.get().is_some() { Vec::new() } else { self.named.clone() };
        Options { lora_modules, ..engine.clone() }
    }

    /// Keeps the registry of a model that was loaded for the first time.
    pub fn attach(&self, registry: &AdapterRegistry) {
        if self.registry.set(registry.clone()).is_ok() {
            self.named.iter().for_each(|(name, _)| self.note(name));
        }
    }

    /// The adapter of a name.
    pub fn get(&self, name: &str) -> Option<AdapterHandle> {
        self.registry.get()?.get(name)
    }

    /// The names of all adapters, each with the time at which it was loaded, in seconds since 1970.
    pub fn list(&self) -> Vec<(String, u64)> {
        let (all, loaded) = (self.registry.get().map(AdapterRegistry::list).unwrap_or_default(), self.times());
        all.iter()
            .map(|adapter| (adapter.name().to_owned(), loaded.get(adapter.name()).copied().unwrap_or(0)))
            .collect()
    }

    /// Loads an adapter at the request of a client. `base` is the name of the model. Reads files, so it may take seconds.
    ///
    /// # Errors
    /// 404 if clients may not load adapters, and 400 if this one cannot be loaded.
    pub fn load(&self, name: &str, path: &Path, base: &str) -> Result<(), ApiError> {
        let registry = self.open()?;
        if name.is_empty() || name.len() > MAX_NAME || name == base {
            let why = format!("lora_name must have 1 to {MAX_NAME} bytes and differ from the model's name");
            return Err(ApiError::field("lora_name", why));
        }
        let path = self.allowed(path)?;
        registry.load(name, path).map_err(|error| ApiError::field("lora_path", error.to_string()))?;
        self.note(name);
        Ok(())
    }

    /// Removes an adapter at the request of a client. Requests that use it keep it.
    ///
    /// # Errors
    /// 404 if clients may not unload adapters, or there is none of this name.
    pub fn unload(&self, name: &str) -> Result<(), ApiError> {
        if !self.open()?.unload(name) {
            let why = format!("there is no adapter {:?}", cut(name));
            return Err(ApiError { param: Some("lora_name".into()), ..ApiError::not_found(why) });
        }
        self.times().remove(name);
        Ok(())
    }

    /// The registry, if clients may change it.
    fn open(&self) -> Result<&AdapterRegistry, ApiError> {
        if !self.options.runtime {
            return Err(ApiError::not_found("this server was started without --enable-runtime-lora"));
        }
        self.registry.get().ok_or_else(|| ApiError::unavailable("the model is being loaded"))
    }

    /// Returns the real path of an adapter that lies in an allowed folder. A client learns nothing about other paths, not
    /// even whether they exist.
    fn allowed(&self, path: &Path) -> Result<PathBuf, ApiError> {
        let real = path.canonicalize().ok();
        real.filter(|real| self.folders().iter().any(|folder| real.starts_with(folder))).ok_or_else(|| {
            let why =
                "lora_path must exist below --lora-dir or below the folder of an adapter that was named at the start";
            ApiError::field("lora_path", why)
        })
    }

    /// The folders below which clients may name adapters.
    fn folders(&self) -> Vec<PathBuf> {
        let folder = |path: &Path| {
            let real = path.canonicalize().ok()?;
            if real.is_dir() { Some(real) } else { real.parent().map(Path::to_owned) }
        };
        match &self.options.dir {
            Some(dir) => folder(dir).into_iter().collect(),
            None => self.named.iter().filter_map(|(_, path)| folder(path)).collect(),
        }
    }

    /// Notes that an adapter was loaded now.
    fn note(&self, name: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        self.times().insert(name.to_owned(), now);
    }

    fn times(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        // Every change is a single operation, so a poisoned lock can be ignored.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
