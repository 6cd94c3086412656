//! Models from the Hugging Face hub, stored in its usual cache.
//!
//! A model that is complete in the cache is used without a network request.

pub(super) mod gguf;

use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::index::{Format, shard_names};
use super::settings::HubSettings;
use super::text::read_small;
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// How long the hub may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Files to fetch if the model has them. Of the tokenizer's files, only one of the two forms below is fetched.
const DESCRIPTIONS: [&str; 3] = ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"];
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_PARTS: [&str; 3] = ["vocab.json", "merges.txt", "added_tokens.json"];

/// Returns the directory with the files of the model `id`. Fetches them unless the cache is complete.
pub(super) fn fetch(id: &str, progress: bool, settings: &HubSettings) -> Result<PathBuf> {
    match look_up(id, settings, missing_part) {
        Ok(directory) => Ok(directory),
        Err(missing) => Download::new(id, progress, settings, missing)?.run(),
    }
}

/// Returns the directory with the configuration of the model `id`. Fetches only the configuration, unless it is cached.
pub(super) fn fetch_config(id: &str, settings: &HubSettings) -> Result<PathBuf> {
    match look_up(id, settings, missing_config) {
        Ok(directory) => Ok(directory),
        Err(missing) => Download::new(id, false, settings, missing)?.config(),
    }
}

/// Returns the cached directory of a model. The error says why the cache is not enough: there is no such directory, or
/// a part is missing according to `missing`.
fn look_up(id: &str, settings: &HubSettings, missing: fn(&Path) -> Option<String>) -> Result<PathBuf, String> {
    let cache = settings.cache_dir.display();
    let Some(directory) = cached_snapshot(&Cache::new(settings.cache_dir.clone()), id) else {
        return Err(format!("it is not in the cache in {cache}"));
    };
    match missing(&directory) {
        None => Ok(directory),
        Some(part) => Err(format!("the cache in {cache} lacks its {part}")),
    }
}

/// Returns the cached snapshot of the main branch.
fn cached_snapshot(cache: &Cache, id: &str) -> Option<PathBuf> {
    let repo = Repo::model(id.to_owned());
    let reference = cache.path().join(repo.folder_name()).join("refs").join(repo.revision());
    let commit = fs::read_to_string(reference).ok()?;
    let commit = plain_name(commit.trim())?;
    let directory = cache.repo(repo).pointer_path(commit);
    directory.is_dir().then_some(directory)
}

/// Returns `name` if it is a single path component, which cannot lead out of a directory.
fn plain_name(name: &str) -> Option<&str> {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)).then_some(name)
}

/// Returns the first part that a snapshot lacks, or `None` if the model can be loaded.
fn missing_part(directory: &Path) -> Option<String> {
    let has = |file: &str| directory.join(file).exists();
    if let Some(part) = missing_config(directory) {
        return Some(part);
    }
    let tokenizer = has(TOKENIZER) || has("tokenizer.model") || (has("vocab.json") && has("merges.txt"));
    if !tokenizer {
        return Some("tokenizer".into());
    }
    for format in Format::ALL {
        if has(format.single()) {
            return None;
        }
        let index = directory.join(format.index());
        // A damaged index counts as present. Loading the weights reports the damage.
        if let Ok(Some(text)) = read_small(&index) {
            return shard_names(&index, &text).ok()?.into_iter().find(|shard| !has(shard));
        }
    }
    Some("weights".into())
}

/// Returns the name of the configuration if the snapshot lacks it.
fn missing_config(directory: &Path) -> Option<String> {
    (!directory.join("config.json").exists()).then(|| "config.json".into())
}

/// A download of one model into the cache.
struct Download<'a> {
    id: &'a str,
    endpoint: &'a str,
    has_token: bool,
    /// The reason why the cache is not enough, for error messages.
    missing: String,
    cache: Cache,
    api: Api,
    commit: String,
    files: Vec<String>,
}

impl<'a> Download<'a> {
    fn new(id: &'a str, progress: bool, settings: &'a HubSettings, missing: String) -> Result<Self> {
        if settings.offline {
            return Err(Error::Hub(format!(
                "{id} cannot be loaded: {missing}, and HF_HUB_OFFLINE forbids fetching it"
            )));
        }
        let cache = Cache::new(settings.cache_dir.clone());
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(settings.endpoint.clone())
            .with_token(settings.token.clone())
            .with_progress(progress)
            .build()
            .map_err(|error| Error::Hub(format!("{id} cannot be fetched: {error}")))?;
        let mut this = Download {
            id,
            endpoint: &settings.endpoint,
            has_token: settings.token.is_some(),
            missing,
            cache,
            api,
            commit: String::new(),
            files: Vec::new(),
        };
        probe(&settings.endpoint).map_err(|reason| this.unreachable(&reason))?;
        let info = this.api.model(id.to_owned()).info().map_err(|error| this.failure(error))?;
        let Some(commit) = plain_name(&info.sha) else {
            return Err(Error::Hub(format!("{id} cannot be fetched: {} does not name its commit", this.endpoint)));
        };
        this.commit = commit.to_owned();
        this.files = info.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok(this)
    }

    fn run(self) -> Result<PathBuf> {
        let id = self.id;
        // Fetch the small files first, so that an unsupported model is refused before its weights are fetched.
        let config = self.config()?.join("config.json");
        ModelConfig::from_json(&read_small(&config)?.unwrap_or_default())?;
        let tokenizer = if self.offers(TOKENIZER) {
            &[TOKENIZER][..]
        } else if TOKENIZER_PARTS[..2].iter().all(|file| self.offers(file)) {
            &TOKENIZER_PARTS
        } else {
            return Err(Error::Hub(format!("{id} has neither tokenizer.json nor vocab.json with merges.txt")));
        };
        for file in DESCRIPTIONS.iter().chain(tokenizer).filter(|file| self.offers(file)) {
            self.get(file)?;
        }
        self.weights()?;
        // The cache's main branch moves only when the model is complete.
        let main = self.cache.repo(Repo::model(id.to_owned()));
        main.create_ref(&self.commit).map_err(|error| Error::io(self.cache.path(), error))?;
        let directory = main.pointer_path(&self.commit);
        match missing_part(&directory) {
            None => Ok(directory),
            Some(part) => Err(Error::Hub(format!("{id} was fetched, but its {part} did not arrive"))),
        }
    }

    /// Fetches the configuration and returns the directory of the snapshot.
    fn config(&self) -> Result<PathBuf> {
        if !self.offers("config.json") {
            return Err(Error::Hub(format!("{} has no config.json, so it is not a model that can be loaded", self.id)));
        }
        self.get("config.json")?;
        Ok(self.cache.repo(Repo::model(self.id.to_owned())).pointer_path(&self.commit))
    }

    fn weights(&self) -> Result<()> {
        for format in Format::ALL {
            if self.offers(format.single()) {
                return self.get(format.single()).map(drop);
            }
            if self.offers(format.index()) {
                let index = self.get(format.index())?;
                for shard in shard_names(&index, &read_small(&index)?.unwrap_or_default())? {
                    self.get(&shard)?;
                }
                return Ok(());
            }
        }
        Err(Error::Hub(format!("{} has weights neither as safetensors nor as PyTorch .bin files", self.id)))
    }

    fn offers(&self, file: &str) -> bool {
        self.files.iter().any(|offered| offered == file)
    }

    /// Returns the path of a file of this commit. Fetches the file unless it is cached.
    fn get(&self, file: &str) -> Result<PathBuf> {
        let directory = self.cache.repo(Repo::model(self.id.to_owned())).pointer_path(&self.commit);
        let path = directory.join(file);
        if path.exists() {
            return Ok(path);
        }
        // Fetched by commit, so that all files belong together even if the main branch moves meanwhile.
        let repo = Repo::with_revision(self.id.to_owned(), RepoType::Model, self.commit.clone());
        // The client panics on some answers that a hub would not give.
        let path = catch_unwind(AssertUnwindSafe(|| self.api.repo(repo).download(file)))
            .map_err(|_| {
                Error::Hub(format!("{} cannot be fetched: {} does not answer like a hub", self.id, self.endpoint))
            })?
            .map_err(|error| self.failure(error))?;
        // The client leaves a reference named after the commit. Nothing uses it.
        let references = self.cache.path().join(Repo::model(self.id.to_owned()).folder_name()).join("refs");
        let _ = fs::remove_file(references.join(&self.commit));
        Ok(path)
    }

    fn failure(&self, error: ApiError) -> Error {
        let (id, endpoint) = (self.id, self.endpoint);
        Error::Hub(match error {
            ApiError::RequestError(error) => match *error {
                ureq::Error::StatusCode(401 | 403) if self.has_token => {
                    format!("{id} cannot be fetched: the token has no access to it (its page may ask for consent)")
                }
                // Without a token, the hub gives the same answer for a model that does not exist and for a private one.
                ureq::Error::StatusCode(401 | 403) => {
                    format!("{id} cannot be fetched: it does not exist, or needs an access token in HF_TOKEN")
                }
                ureq::Error::StatusCode(404) => format!("{id} cannot be fetched: {endpoint} does not have it"),
                ureq::Error::StatusCode(status) => {
                    format!("{id} cannot be fetched: {endpoint} answers with status {status}")
                }
                ureq::Error::Json(_) | ureq::Error::Http(_) | ureq::Error::Protocol(_) => {
                    format!("{id} cannot be fetched: {endpoint} does not answer like a hub")
                }
                error => return self.unreachable(&error.to_string()),
            },
            ApiError::LockAcquisition(_) => format!("{id} cannot be fetched: another process is fetching it"),
            error => format!("{id} cannot be fetched: {error}"),
        })
    }

    fn unreachable(&self, reason: &str) -> Error {
        let (id, missing, endpoint) = (self.id, &self.missing, self.endpoint);
        Error::Hub(format!("{id} cannot be loaded: {missing}, and {endpoint} cannot be reached ({reason})"))
    }
}

/// Connects to the hub once, because the client has no timeout for connecting.
fn probe(endpoint: &str) -> std::result::Result<(), String> {
    // Behind a proxy, only the client can tell whether the hub is reachable.
    let proxied = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    if proxied.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    let uri: ureq::http::Uri = endpoint.parse().map_err(|_| "its address is not valid".to_owned())?;
    let host = uri.host().ok_or("its address names no host")?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
    let mut last = "its name has no address".to_owned();
    for address in (host.trim_matches(['[', ']']), port).to_socket_addrs().map_err(|error| error.to_string())? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}
