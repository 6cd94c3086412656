//! Models from the hub, which a local server imitates, and from the hub's cache.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::model;
use engine::tools::load::{HubSettings, ModelFiles};
use engine::tools::tokenizer::Tokenizer;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model, `someone/tiny`. It offers the files of a directory and some files that must not be fetched.
struct Hub {
    endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn new(directory: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client may hang up early.
                let _ = answer(stream, &directory, &log);
            }
        });
        Hub { endpoint, asked }
    }

    fn files_asked_for(&self) -> BTreeSet<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter_map(|path| Some(path.split_once(COMMIT)?.1.trim_start_matches('/').to_owned())).collect()
    }
}

fn answer(stream: TcpStream, directory: &Path, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut request, mut range) = (String::new(), None);
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = bytes.trim().split_once('-').unwrap_or_default();
            range = Some((from.parse().unwrap_or(0usize), to.parse::<usize>().ok()));
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(path.clone());
    let mut stream = stream;
    if path == "/api/models/someone/tiny/revision/main" {
        let mut names: Vec<String> =
            fs::read_dir(directory)?.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.extend(["tf_model.h5", "flax_model.msgpack", "README.md", "onnx/model.onnx"].map(str::to_owned));
        let names: Vec<_> = names.iter().map(|name| format!(r#"{{"rfilename": "{name}"}}"#)).collect();
        let body = format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, names.join(", "));
        return write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    }
    let file = path.strip_prefix(&format!("/someone/tiny/resolve/{COMMIT}/")).map(|file| directory.join(file));
    let Some(body) = file.and_then(|file| fs::read(file).ok()) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let (from, to) = range.unwrap_or((0, None));
    let end = to.map_or(body.len(), |to| (to + 1).min(body.len()));
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\nETag: \"{}\"\r\n\
         X-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        end - from,
        end - 1,
        body.len(),
        path.rsplit('/').next().unwrap_or_default(),
    )?;
    stream.write_all(&body[from..end])
}

fn settings(cache: &Path, endpoint: &str) -> HubSettings {
    HubSettings { cache_dir: cache.to_path_buf(), endpoint: endpoint.to_owned(), token: None, offline: false }
}

/// The address of a port that is not in use.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn resolve(settings: &HubSettings) -> engine::Result<ModelFiles> {
    ModelFiles::resolve_with(Some("someone/tiny"), false, settings)
}

#[test]
fn a_model_is_fetched_once_and_only_the_files_it_needs() {
    for (fixture, weights) in
        [("llama2", "model-00002-of-00003.safetensors"), ("opt-bin", "pytorch_model.bin.index.json")]
    {
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub::new(model(fixture));
        let files = resolve(&settings(cache.path(), &hub.endpoint)).unwrap();
        assert_eq!(files.name(), "someone/tiny");
        files.weights(None).unwrap();
        Tokenizer::of_model(&files, &files.config().unwrap()).unwrap().encode("a").unwrap();
        let asked = hub.files_asked_for();
        assert!(asked.contains("config.json") && asked.contains(weights), "{asked:?}");
        for unwanted in ["tf_model.h5", "flax_model.msgpack", "README.md", "onnx/model.onnx", "golden.json"] {
            assert!(!asked.contains(unwanted), "{asked:?}");
        }
        let before = hub.asked.lock().unwrap().len();
        resolve(&settings(cache.path(), &hub.endpoint)).unwrap().weights(None).unwrap();
        assert_eq!(hub.asked.lock().unwrap().len(), before, "the cached model needs no network");
        let offline = HubSettings { offline: true, ..settings(cache.path(), &nowhere()) };
        resolve(&offline).unwrap().weights(None).unwrap();
        let refs: Vec<_> = fs::read_dir(cache.path().join("models--someone--tiny/refs")).unwrap().collect();
        assert_eq!(refs.len(), 1);
    }
}

#[test]
fn a_models_configuration_can_be_fetched_alone() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(model("llama2"));
    let config = |settings| ModelFiles::resolve_config_with(Some("someone/tiny"), settings)?.config();
    let online = settings(cache.path(), &hub.endpoint);
    let fetched = config(&online).unwrap();
    assert_eq!(fetched, ModelFiles::directory(model("llama2")).unwrap().config().unwrap());
    assert_eq!(hub.files_asked_for(), BTreeSet::from(["config.json".to_owned()]));

    // A cached configuration does not make the model available offline.
    let offline = HubSettings { offline: true, ..settings(cache.path(), &nowhere()) };
    assert!(resolve(&offline).is_err());
    resolve(&online).unwrap();
    config(&offline).unwrap();
}

#[test]
fn a_model_that_cannot_be_fetched_gives_one_sentence() {
    let cache = tempfile::tempdir().unwrap();
    let message = |settings: &HubSettings| {
        let message = resolve(settings).unwrap_err().to_string();
        assert!(message.contains("someone/tiny") && !message.contains('\n'), "{message}");
        message
    };
    let unreachable = message(&settings(cache.path(), &nowhere()));
    assert!(unreachable.contains("not in the cache") && unreachable.contains("cannot be reached"), "{unreachable}");
    let offline = message(&HubSettings { offline: true, ..settings(cache.path(), &nowhere()) });
    assert!(offline.contains("not in the cache") && offline.contains("HF_HUB_OFFLINE"), "{offline}");
    let portal = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", portal.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in portal.incoming().flatten() {
            let _ = BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>");
        }
    });
    let portal = message(&settings(cache.path(), &address));
    assert!(portal.contains("does not answer like a hub"), "{portal}");
    let hub = Hub::new(model("llama2"));
    let unknown = ModelFiles::resolve_with(Some("someone/else"), false, &settings(cache.path(), &hub.endpoint));
    assert!(unknown.unwrap_err().to_string().contains("does not have it"));
}

#[test]
fn a_partial_cache_says_what_it_lacks() {
    let cache = tempfile::tempdir().unwrap();
    let repo = cache.path().join("models--someone--tiny");
    let snapshot = repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    let lacks = |what: &str| {
        for offline in [true, false] {
            let settings = HubSettings { offline, ..settings(cache.path(), &nowhere()) };
            let message = resolve(&settings).unwrap_err().to_string();
            assert!(message.contains(&format!("lacks its {what}")), "{message}");
        }
    };
    lacks("config.json");
    for (file, next) in [
        ("config.json", "tokenizer"),
        ("tokenizer.json", "weights"),
        ("model.safetensors.index.json", "model-00001-of-00003.safetensors"),
    ] {
        fs::copy(model("llama2").join(file), snapshot.join(file)).unwrap();
        lacks(next);
    }
    for shard in 1..=3 {
        let file = format!("model-0000{shard}-of-00003.safetensors");
        fs::copy(model("llama2").join(&file), snapshot.join(&file)).unwrap();
    }
    let files = resolve(&HubSettings { offline: true, ..settings(cache.path(), &nowhere()) }).unwrap();
    files.weights(None).unwrap();
}

#[test]
fn a_model_that_cannot_be_run_is_refused_before_its_weights_are_fetched() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), r#"{"architectures": ["BloomForCausalLM"]}"#).unwrap();
    fs::write(directory.path().join("model.safetensors"), "never").unwrap();
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(directory.path().to_path_buf());
    let error = resolve(&settings(cache.path(), &hub.endpoint)).unwrap_err().to_string();
    assert!(error.contains("BloomForCausalLM"), "{error}");
    assert!(!hub.files_asked_for().contains("model.safetensors"));
    assert!(!cache.path().join("models--someone--tiny/refs/main").exists());
}

#[test]
fn a_gguf_file_is_fetched_with_its_parts_by_its_name_or_type() {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gguf"));
    let repository = tempfile::tempdir().unwrap();
    for (from, to) in [
        ("llama3-00001-of-00002.gguf", "tiny-BF16-00001-of-00002.gguf"),
        ("llama3-00002-of-00002.gguf", "tiny-BF16-00002-of-00002.gguf"),
        ("qwen2.gguf", "tiny-Q8_0.gguf"),
    ] {
        fs::copy(fixtures.join(from), repository.path().join(to)).unwrap();
    }
    let hub = Hub::new(repository.path().to_path_buf());
    let cache = tempfile::tempdir().unwrap();
    let online = settings(cache.path(), &hub.endpoint);
    let resolve = |name: &str, settings: &HubSettings| ModelFiles::resolve_with(Some(name), false, settings);
    let files = resolve("someone/tiny:bf16", &online).unwrap();
    assert_eq!((files.name(), files.config().unwrap().vocab_size), ("someone/tiny:bf16", 640));
    files.weights(None).unwrap();
    assert!(!hub.files_asked_for().contains("tiny-Q8_0.gguf"));
    let offline = HubSettings { offline: true, ..settings(cache.path(), &nowhere()) };
    for name in ["someone/tiny:BF16", "someone/tiny/tiny-BF16-00001-of-00002.gguf"] {
        resolve(name, &offline).unwrap().weights(None).unwrap();
    }
    let refused = resolve("someone/tiny:tiny-Q8_0.gguf", &offline).unwrap_err().to_string();
    assert!(refused.contains("tiny-Q8_0.gguf") && refused.contains("HF_HUB_OFFLINE"), "{refused}");
    assert_eq!(resolve("someone/tiny/tiny-Q8_0.gguf", &online).unwrap().config().unwrap().vocab_size, 608);
    let unknown = resolve("someone/tiny:Q2_K", &online).unwrap_err().to_string();
    assert!(unknown.contains("Q2_K") && unknown.contains("tiny-Q8_0.gguf"), "{unknown}");
}
