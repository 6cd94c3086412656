//! A model's files, from a directory, a GGUF file, the hub through its cache, or the program itself.

pub mod adapter;
mod bundled;
pub mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod index;
mod names;
#[cfg(any(test, not(feature = "hub")))]
mod no_hub;
mod packed;
mod pickle;
pub mod safetensors;
mod settings;
mod spelling;
mod stored;
mod text;
mod weights;

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

pub use names::SHORT_NAMES;
pub use packed::mxfp4_matrix;
pub use settings::HubSettings;
pub use stored::{StoredType, TensorInfo};
pub use weights::Weights;

use self::gguf::Gguf;
#[cfg(not(feature = "hub"))]
use self::no_hub as hub;
use self::text::read_small;
use crate::config::{GenerationConfig, ModelConfig, Quantization};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// The files of one model.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    source: Source,
    name: String,
}

#[derive(Clone, Debug)]
enum Source {
    Directory(PathBuf),
    Gguf(Arc<Gguf>),
    Bundled,
}

impl ModelFiles {
    /// Opens the model in the Hugging Face directory `path`.
    pub fn directory(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = fs::metadata(path).map_err(|error| Error::io(path, error))?;
        if !metadata.is_dir() {
            return Err(Error::io(path, std::io::Error::new(ErrorKind::NotADirectory, "it is not a directory")));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        Ok(ModelFiles { source: Source::Directory(path.to_path_buf()), name })
    }

    /// Opens the model in the GGUF file `path`, and in the files next to it that contain its other parts.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn gguf(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        Ok(ModelFiles { source: Source::Gguf(Arc::new(Gguf::open(path)?)), name })
    }

    /// Returns the small story model that is part of the program.
    pub fn bundled() -> Self {
        ModelFiles { source: Source::Bundled, name: bundled::NAME.to_owned() }
    }

    /// Finds the model that `name` refers to. `None` is the bundled model. A name can be a directory, a hub id such as
    /// `facebook/opt-13b`, or one of [`SHORT_NAMES`]. It can also be a GGUF file, or one on the hub:
    /// `owner/name/file.gguf`, `owner/name:file.gguf`, or `owner/name:Q4_K_M` for the file of that type. Hub models are
    /// fetched unless they are cached. `progress` shows the progress of that.
    pub fn resolve(name: Option<&str>, progress: bool) -> Result<Self> {
        Self::resolve_with(name, progress, &HubSettings::from_env())
    }

    /// Like [`ModelFiles::resolve`], with the given settings instead of those from the environment.
    pub fn resolve_with(name: Option<&str>, progress: bool, settings: &HubSettings) -> Result<Self> {
        let file = |id: &str, file: &str| hub::gguf::fetch(id, file, progress, settings);
        Self::find(name, |id| hub::fetch(id, progress, settings), file)
    }

    /// Like [`ModelFiles::resolve`], but fetches only the configuration of a hub model.
    pub fn resolve_config(name: Option<&str>) -> Result<Self> {
        Self::resolve_config_with(name, &HubSettings::from_env())
    }

    /// Like [`ModelFiles::resolve_config`], with the given settings instead of those from the environment.
    pub fn resolve_config_with(name: Option<&str>, settings: &HubSettings) -> Result<Self> {
        let file = |id: &str, file: &str| hub::gguf::fetch(id, file, false, settings);
        Self::find(name, |id| hub::fetch_config(id, settings), file)
    }

    /// Finds the model that `name` refers to. `fetch` returns the directory of a hub model, and `fetch_file` returns a
    /// GGUF file of one.
    fn find(
        name: Option<&str>,
        fetch: impl FnOnce(&str) -> Result<PathBuf>,
        fetch_file: impl FnOnce(&str, &str) -> Result<PathBuf>,
    ) -> Result<Self> {
        let Some(name) = name.filter(|name| *name != bundled::NAME) else { return Ok(Self::bundled()) };
        if name.is_empty() {
            return Err(Error::Option("the model's name is empty".into()));
        }
        let path = Path::new(name);
        // If the first component of the path exists, `name` is a path and not a file on the hub.
        let near = path.components().next().is_some_and(|first| Path::new(first.as_os_str()).exists());
        if let Some((id, file)) = names::hub_file(name).filter(|_| !near) {
            return Ok(ModelFiles { name: name.to_owned(), ..Self::gguf(fetch_file(id, file)?)? });
        }
        if path.is_dir() {
            return Self::directory(name);
        }
        if names::is_gguf(name) {
            return Self::gguf(name);
        }
        if path.exists() || names::looks_like_path(name) {
            return Self::directory(name);
        }
        let id = names::hub_id(name)?;
        Ok(ModelFiles { source: Source::Directory(fetch(&id)?), name: id })
    }

    /// The model's name, for display.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory that contains the files, or the GGUF file. `None` for the bundled model.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Directory(path) => Some(path),
            Source::Gguf(gguf) => Some(gguf.path()),
            Source::Bundled => None,
        }
    }

    /// Reads the model's configuration from `config.json`.
    pub fn config(&self) -> Result<ModelConfig> {
        match self.read("config.json")? {
            Some(text) => ModelConfig::from_json(&text),
            None => Err(Error::Config(format!("{} has no config.json", self.place()))),
        }
    }

    /// Reads the suggested sampling settings. All are absent if the model has no `generation_config.json`.
    pub fn generation_config(&self) -> Result<GenerationConfig> {
        match self.read("generation_config.json")? {
            Some(text) => GenerationConfig::from_json(&text),
            None => Ok(GenerationConfig::default()),
        }
    }

    /// Opens the weights. If `dtype` is a 16-bit type, tensors of other types are rounded to it. If it is f32 or
    /// `None`, tensors keep their stored types. Widening is exact, so a device that computes in f32 can widen while
    /// reading.
    ///
    /// # Errors
    /// If files cannot be read, are damaged, or use an unsupported quantisation.
    pub fn weights(&self, dtype: Option<DType>) -> Result<Weights> {
        match &self.source {
            Source::Directory(path) => {
                let config = self.read("config.json")?;
                let quantization = config.map(|text| Quantization::from_json(&text)).transpose()?.flatten();
                index::open(path, dtype, quantization.as_ref())
            }
            Source::Gguf(gguf) => gguf.weights(dtype),
            Source::Bundled => bundled::weights(dtype),
        }
    }

    /// Returns the text of the model's chat template, or `None` if it has none.
    ///
    /// # Errors
    /// If the model's files cannot be read.
    pub fn chat_template(&self) -> Result<Option<String>> {
        if let Some(text) = self.read("chat_template.jinja")? {
            return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
        }
        Ok(self.json_fields("tokenizer_config.json")?.get("chat_template").and_then(default_template))
    }

    /// Returns the members of one of the model's JSON files. The result is empty if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is not a JSON object.
    pub fn json_fields(&self, file: &str) -> Result<Map<String, Value>> {
        match self.read(file)? {
            Some(text) => serde_json::from_slice(&text).map_err(|error| Error::Tokenizer(format!("{file}: {error}"))),
            None => Ok(Map::new()),
        }
    }

    /// The path of the model's directory or file, for messages.
    pub fn place(&self) -> String {
        match &self.source {
            Source::Directory(path) => path.display().to_string(),
            Source::Gguf(gguf) => gguf.path().display().to_string(),
            Source::Bundled => self.name.clone(),
        }
    }

    /// Whether the model has a file of this name.
    pub fn has(&self, file: &str) -> bool {
        match &self.source {
            Source::Directory(path) => path.join(file).is_file(),
            Source::Gguf(_) => false,
            Source::Bundled => bundled::file(file).is_some(),
        }
    }

    /// Returns the contents of one of the model's text files, or `None` if the file does not exist. For a GGUF model
    /// the contents are generated from its metadata.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read or is larger than any valid one. For a GGUF model, an error about its
    /// metadata.
    pub fn read(&self, file: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match &self.source {
            Source::Directory(path) => Ok(read_small(&path.join(file))?.map(Cow::Owned)),
            Source::Gguf(gguf) => Ok(gguf.text(file)?.map(Cow::Owned)),
            Source::Bundled => Ok(bundled::file(file).map(Cow::Borrowed)),
        }
    }
}

/// Returns the template itself. If there are several, returns the one named "default".
fn default_template(value: &Value) -> Option<String> {
    match value {
        Value::String(template) => Some(template.clone()),
        several => {
            let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
            Some(several.as_array()?.iter().find(named)?.get("template")?.as_str()?.to_owned())
        }
    }
}
