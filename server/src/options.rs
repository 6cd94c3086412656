//! How a server is set up.

use std::path::PathBuf;
use std::time::Duration;

use engine::answer::ToolFormat;
use engine::embedding::Pooling;
use engine::llm::Prompt;
use serde::{Serialize, Serializer};

use crate::events::EventFormat;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address to listen at, or a name: then all its addresses.
    pub host: String,
    /// Port to listen at; 0 takes a free one.
    pub port: u16,
    /// Names, beside this machine's own, that a request's `Host` may have; `*` stands for all. Where there are none,
    /// only a server that listens to this machine alone checks the name.
    pub allowed_hosts: Vec<String>,
    /// Origins, such as `https://example.org`, whose pages may use the server; `*` stands for all.
    pub cors: Vec<String>,
    /// What requests must send as `Authorization: Bearer`; without one all are served.
    pub api_key: Option<String>,
    /// The model's name in requests and answers; the model's own if `None`.
    pub served_name: Option<String>,
    /// A chat template in place of the model's.
    pub chat_template: Option<String>,
    /// How the model writes calls of tools; if it is not said, as the chat template shows it.
    pub tool_call_parser: Option<ToolFormat>,
    /// How hidden states become embeddings.
    pub pooling: Pooling,
    /// Texts that are computed when the model has been loaded, and kept for all prompts that begin with them.
    pub shared_prefixes: Vec<Prompt>,
    /// Where KV events are published; nowhere if `None`.
    pub kv_events: Option<KvEventsOptions>,
    /// Called each time that a model is loaded, with how many of its bytes are loaded, and of how many.
    pub progress: fn() -> Progress,
    /// A program that compiles heavy grammars on trial, before the server does. Started with [`engine::constraint::trial::ARGUMENT`],
    /// it must call [`engine::constraint::trial::run`]. Without one, only the checks before compiling bound the time and memory.
    pub grammar_trials: Option<PathBuf>,
    /// Bounds.
    pub limits: RequestLimits,
}

/// Where KV events are published, and how. They carry the tokens of prompts and outputs.
#[derive(Clone, Debug)]
pub struct KvEventsOptions {
    /// The publisher's ZeroMQ endpoint, such as `tcp://*:5557`; port 0 takes a free one.
    pub endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// The endpoint at which batches that were missed can be asked for, if at all.
    pub replay: Option<String>,
    /// Batches that are kept for that.
    pub buffer: usize,
    /// How events are written.
    pub format: EventFormat,
}

impl KvEventsOptions {
    /// As vLLM publishes them, at `endpoint`.
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

/// Called with how many bytes of a model are loaded, and of how many.
pub type Progress = Box<dyn FnMut(usize, usize)>;

/// Bounds on what clients can ask of the server. Serialised, it is what `GET /debug/state` shows of them, with times in
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RequestLimits {
    /// Bytes in a request's body; more are refused with 413.
    pub max_body_bytes: usize,
    /// Open connections; more are closed at once.
    pub max_connections: usize,
    /// Requests that wait in the engine; more are refused with 503.
    pub max_queue: usize,
    /// Sequences that wait in the engine; requests that would make them more are refused with 503.
    pub max_queue_seqs: usize,
    /// Sequences of one request, prompts times outputs; more are refused with 400.
    pub max_request_seqs: usize,
    /// Requests for text in progress; more are refused with 429.
    pub max_requests: usize,
    /// Time from a request's arrival to the end of its answer; then 504, or an error at the end of the stream.
    #[serde(serialize_with = "seconds")]
    pub request_timeout: Duration,
    /// Time to compile a grammar. Slower ones are refused with 400.
    #[serde(serialize_with = "seconds")]
    pub grammar_timeout: Duration,
    /// Bytes of memory to compile a grammar. Larger ones are refused with 400.
    pub grammar_memory: usize,
    /// Time that requests in progress get once the server is told to stop.
    #[serde(serialize_with = "seconds")]
    pub stop_timeout: Duration,
    /// Time for a request's head to arrive, and for its body.
    #[serde(skip)]
    pub read_timeout: Duration,
    /// Time for which a connection is kept for a next request.
    #[serde(skip)]
    pub keep_alive: Duration,
    /// Time for which a client may leave its answer unread; then its connection is closed.
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
