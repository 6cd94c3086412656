//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use engine::Pooling;
use engine::Prompt;
use engine::tools::answer::ToolFormat;
use serde::{Serialize, Serializer};

use crate::events::EventFormat;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address to listen on, or a name, which stands for all its addresses.
    pub host: String,
    /// Port to listen on. 0 selects a free port.
    pub port: u16,
    /// Names that a request's `Host` may have in addition to this machine's own. `*` allows all names. If the list is
    /// empty, only a server that listens on loopback addresses alone checks the name.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the server, such as `https://example.org`. `*` allows all origins.
    pub cors: Vec<String>,
    /// The key that requests must send as `Authorization: Bearer` or `x-api-key`. If `None`, requests need no key.
    pub api_key: Option<String>,
    /// The model's name in requests and answers. Defaults to the model's own name.
    pub served_name: Option<String>,
    /// A chat template in place of the model's.
    pub chat_template: Option<String>,
    /// The format of the model's tool calls. If `None`, the server detects it from the chat template.
    pub tool_call_parser: Option<ToolFormat>,
    /// How an embedding is made from hidden states.
    pub pooling: Pooling,
    /// Prefixes that are computed as soon as the model is loaded, and stay cached for all prompts that begin with them.
    pub shared_prefixes: Vec<Prompt>,
    /// How clients may change the model's adapters.
    pub adapters: AdapterOptions,
    /// Where and how KV events are published. If `None`, they are not.
    pub kv_events: Option<KvEventsOptions>,
    /// Called at the start of each load of the model. Returns the callback that reports the load's progress.
    pub progress: fn() -> Progress,
    /// A program that tries to compile a heavy grammar before the server compiles it. When it is started with
    /// [`engine::tools::constraint::trial::ARGUMENT`], it must call [`engine::tools::constraint::trial::run`]. Without such a
    /// program, only the checks before compilation bound its time and memory.
    pub grammar_trials: Option<PathBuf>,
    /// Limits on requests and connections.
    pub limits: RequestLimits,
}

/// How clients may change the adapters of a model.
#[derive(Clone, Debug, Default)]
pub struct AdapterOptions {
    /// Whether they may load and unload adapters.
    pub runtime: bool,
    /// The folder below which they may name adapters. If `None`, the folders of the adapters that are named at the start.
    pub dir: Option<PathBuf>,
}

/// Where and how KV events are published. The events contain the tokens of prompts and outputs.
#[derive(Clone, Debug)]
pub struct KvEventsOptions {
    /// The publisher's ZeroMQ endpoint, such as `tcp://*:5557`. Port 0 selects a free port.
    pub endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// The endpoint at which subscribers can request missed batches, if any.
    pub replay: Option<String>,
    /// Number of batches kept for replay.
    pub buffer: usize,
    /// The encoding of events.
    pub format: EventFormat,
}

impl KvEventsOptions {
    /// Returns vLLM's default options for `endpoint`.
    pub fn at(endpoint: impl Into<String>) -> Self {
        KvEventsOptions {
            endpoint: endpoint.into(),
            topic: String::new(),
            replay: None,
            buffer: 10_000,
            format: EventFormat::Map,
        }
    }
}

/// A callback that receives the loaded bytes of a model and its total bytes.
pub type Progress = Box<dyn FnMut(usize, usize)>;

/// Limits on what clients can ask of the server. Serialised, they are the limits in `GET /debug/state`, with times in
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RequestLimits {
    /// Maximum bytes of a request's body. Larger bodies are refused with 413.
    pub max_body_bytes: usize,
    /// Maximum open connections. Further connections are closed at once.
    pub max_connections: usize,
    /// Maximum requests that wait in the engine. Further requests are refused with 503.
    pub max_queue: usize,
    /// Maximum sequences that wait in the engine. Requests that would exceed it are refused with 503.
    pub max_queue_seqs: usize,
    /// Maximum sequences of one request: its prompts times its outputs. Larger requests are refused with 400.
    pub max_request_seqs: usize,
    /// Maximum admitted requests in progress. Further requests are refused with 429.
    pub max_requests: usize,
    /// Maximum time from a request's arrival to the end of its answer. After that it gets 504, or an error at the end
    /// of its stream.
    #[serde(serialize_with = "seconds")]
    pub request_timeout: Duration,
    /// Maximum time to compile a grammar. Slower ones are refused with 400.
    #[serde(serialize_with = "seconds")]
    pub grammar_timeout: Duration,
    /// Maximum bytes of memory to compile a grammar. Larger ones are refused with 400.
    pub grammar_memory: usize,
    /// Time for requests in progress to finish after the server is told to stop.
    #[serde(serialize_with = "seconds")]
    pub stop_timeout: Duration,
    /// Maximum time for a request's head to arrive, and again for its body.
    #[serde(skip)]
    pub read_timeout: Duration,
    /// Time to keep an idle connection open for the next request.
    #[serde(skip)]
    pub keep_alive: Duration,
    /// Maximum time for which a client may leave its answer unread before the server closes the connection.
    #[serde(skip)]
    pub write_timeout: Duration,
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            host: "127.0.0.1".into(),
            port: 8000,
            allowed_hosts: Vec::new(),
            cors: Vec::new(),
            api_key: None,
            served_name: None,
            chat_template: None,
            tool_call_parser: None,
            pooling: Pooling::default(),
            shared_prefixes: Vec::new(),
            adapters: AdapterOptions::default(),
            kv_events: None,
            progress: || Box::new(|_, _| ()),
            grammar_trials: None,
            limits: RequestLimits::default(),
        }
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits {
            max_queue: 4096,
            max_queue_seqs: 8192,
            max_request_seqs: 1024,
            max_body_bytes: 4 << 20,
            max_requests: 1024,
            max_connections: 4096,
            request_timeout: Duration::from_secs(600),
            grammar_timeout: Duration::from_secs(5),
            grammar_memory: 256 << 20,
            read_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(30),
        }
    }
}
