//! `quire serve`: a server with the APIs of OpenAI and Anthropic.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::Pooling;
use engine::tools::answer::ToolFormat;
use server::{AdapterOptions, EventFormat, KvEventsOptions, RequestLimits, ServeOptions, Server};
use tracing_subscriber::EnvFilter;

use crate::chat::template_file;
use crate::command::{Command, Positionals, Words};
use crate::progress;
use crate::signals::stop_signal;
use crate::values::{count, memory, seconds};

/// The command that starts the server.
pub const COMMAND: Command = Command {
    name: "serve",
    positionals: Positionals::Model,
    info: ServeArgs::get_args_info,
    groups: SERVE_GROUPS,
    runs_engine: true,
    examples: &["quire serve", "quire serve ./my-llama --port 8000", "quire serve --host 0.0.0.0 --api-key secret"],
    run,
};

/// Headings of the help page and the options under each.
const SERVE_GROUPS: &[(&str, &[&str])] = &[
    (
        "Server",
        &[
            "--host",
            "--port",
            "--allowed-host",
            "--cors",
            "--api-key",
            "--served-model-name",
            "--chat-template",
            "--tool-call-parser",
            "--pooling",
            "--log-json",
        ],
    ),
    ("Adapters", &["--enable-runtime-lora", "--lora-dir"]),
    (
        "KV events",
        &["--kv-events", "--kv-events-topic", "--kv-events-replay", "--kv-events-buffer", "--kv-events-format"],
    ),
    (
        "Limits",
        &[
            "--max-queue",
            "--max-queue-seqs",
            "--max-request-seqs",
            "--max-requests",
            "--max-connections",
            "--max-body",
            "--request-timeout",
            "--grammar-timeout",
            "--grammar-memory",
            "--read-timeout",
            "--keep-alive",
            "--write-timeout",
            "--stop-timeout",
        ],
    ),
];

/// Serve a language model with the APIs of OpenAI and Anthropic.
#[derive(ArgsInfo, FromArgs, Debug)]
pub struct ServeArgs {
    /// address or host name to listen on (127.0.0.1)
    #[argh(option, arg_name = "address")]
    pub host: Option<String>,
    /// port to listen on, 0 for any free port (8000)
    #[argh(option, arg_name = "n", from_str_fn(port))]
    pub port: Option<u16>,
    /// host name that requests may address, * for any (this machine's) (repeatable)
    #[argh(option, arg_name = "name")]
    pub allowed_host: Vec<String>,
    /// origin whose web pages may use the server, * for any (repeatable)
    #[argh(option, arg_name = "origin")]
    pub cors: Vec<String>,
    /// API key that clients must send (QUIRE_API_KEY, else none)
    #[argh(option, arg_name = "key")]
    pub api_key: Option<String>,
    /// model name that clients see (the model's own)
    #[argh(option, arg_name = "name")]
    pub served_model_name: Option<String>,
    /// file with a chat template to use instead of the model's
    #[argh(option, arg_name = "file")]
    pub chat_template: Option<String>,
    /// format of tool calls: hermes, llama3_json or mistral (the chat template's)
    #[argh(option, arg_name = "form")]
    pub tool_call_parser: Option<ToolFormat>,
    /// pooling of embeddings: last (the last token) or mean (last)
    #[argh(option, arg_name = "way")]
    pub pooling: Option<Pooling>,

    /// let clients load and unload adapters
    #[argh(switch)]
    pub enable_runtime_lora: bool,
    /// folder of adapters that clients may load (those of --lora-modules)
    #[argh(option, arg_name = "dir")]
    pub lora_dir: Option<PathBuf>,

    /// publish KV cache events with their tokens at this address, such as tcp://*:5557
    #[argh(option, arg_name = "url")]
    pub kv_events: Option<String>,
    /// topic of KV events (empty)
    #[argh(option, arg_name = "topic")]
    pub kv_events_topic: Option<String>,
    /// address where clients can request missed events (none)
    #[argh(option, arg_name = "url")]
    pub kv_events_replay: Option<String>,
    /// event batches kept for --kv-events-replay (10000)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub kv_events_buffer: Option<usize>,
    /// encoding of events: map or array (map)
    #[argh(option, arg_name = "form", from_str_fn(event_format))]
    pub kv_events_format: Option<EventFormat>,

    /// maximum prompts waiting in the engine (4096)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_queue: Option<usize>,
    /// maximum sequences waiting in the engine (8192)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_queue_seqs: Option<usize>,
    /// maximum sequences per request: prompts times outputs (1024)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_request_seqs: Option<usize>,
    /// maximum requests in progress (1024)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_requests: Option<usize>,
    /// maximum open connections (4096)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_connections: Option<usize>,
    /// maximum size of a request body (4MiB)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub max_body: Option<usize>,
    /// time limit for a whole request (600)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub request_timeout: Option<Duration>,
    /// time limit for compiling a grammar or schema (5)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub grammar_timeout: Option<Duration>,
    /// memory limit for compiling a grammar or schema (256MiB)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub grammar_memory: Option<usize>,
    /// time limit for a request to arrive (10)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub read_timeout: Option<Duration>,
    /// how long an idle connection stays open (75)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub keep_alive: Option<Duration>,
    /// how long a client may leave its answer unread (30)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub write_timeout: Option<Duration>,
    /// how long running requests may continue after a stop signal (30)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub stop_timeout: Option<Duration>,
    /// write logs as JSON lines
    #[argh(switch)]
    pub log_json: bool,
}

/// Serves until the process is told to stop.
fn run(words: &Words) -> Result<()> {
    let (own, engine) = (words.own::<ServeArgs>()?, words.engine()?);
    let engine_options = engine.options()?;
    start_logs(own.log_json);
    let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
    let options = ServeOptions { shared_prefixes: engine.shared_prefixes()?, ..options(own)? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let server = Server::bind(&files, &engine_options, &options).await?;
        for address in server.addresses()? {
            writeln!(io::stdout(), "listening on http://{address}")?;
        }
        if let (Some(events), replay) = server.kv_events() {
            writeln!(io::stdout(), "KV events at {events}")?;
            replay.map_or(Ok(()), |replay| writeln!(io::stdout(), "replay of KV events at {replay}"))?;
        }
        server.run(stop).await
    })
}

fn options(args: ServeArgs) -> Result<ServeOptions> {
    let d = RequestLimits::default();
    let kv_events = kv_events(&args)?;
    let api_key = args.api_key.or_else(|| std::env::var("QUIRE_API_KEY").ok());
    if api_key.as_ref().is_some_and(String::is_empty) {
        bail!("the API key is empty");
    }
    let adapters = AdapterOptions { runtime: args.enable_runtime_lora, dir: args.lora_dir };
    match &adapters.dir {
        Some(_) if !adapters.runtime => bail!("--lora-dir needs --enable-runtime-lora"),
        Some(dir) if !dir.is_dir() => bail!("--lora-dir {} is not a folder", dir.display()),
        _ => {}
    }
    let limits = RequestLimits {
        max_queue: args.max_queue.unwrap_or(d.max_queue),
        max_queue_seqs: args.max_queue_seqs.unwrap_or(d.max_queue_seqs),
        max_request_seqs: args.max_request_seqs.unwrap_or(d.max_request_seqs),
        max_body_bytes: args.max_body.unwrap_or(d.max_body_bytes),
        max_requests: args.max_requests.unwrap_or(d.max_requests),
        max_connections: args.max_connections.unwrap_or(d.max_connections),
        request_timeout: args.request_timeout.unwrap_or(d.request_timeout),
        grammar_timeout: args.grammar_timeout.unwrap_or(d.grammar_timeout),
        grammar_memory: args.grammar_memory.unwrap_or(d.grammar_memory),
        read_timeout: args.read_timeout.unwrap_or(d.read_timeout),
        keep_alive: args.keep_alive.unwrap_or(d.keep_alive),
        write_timeout: args.write_timeout.unwrap_or(d.write_timeout),
        stop_timeout: args.stop_timeout.unwrap_or(d.stop_timeout),
    };
    let d = ServeOptions::default();
    Ok(ServeOptions {
        host: args.host.unwrap_or(d.host),
        port: args.port.unwrap_or(d.port),
        allowed_hosts: args.allowed_host,
        cors: args.cors,
        api_key,
        served_name: args.served_model_name,
        tool_call_parser: args.tool_call_parser,
        pooling: args.pooling.unwrap_or(d.pooling),
        chat_template: args.chat_template.as_deref().map(template_file).transpose()?,
        adapters,
        kv_events,
        progress: || Box::new(progress::loading()),
        // The running program, even if its file was replaced. Only Linux can limit a child process.
        grammar_trials: cfg!(target_os = "linux").then(|| "/proc/self/exe".into()),
        limits,
        ..d
    })
}

/// Returns the options of KV events. `None` if they are not published.
fn kv_events(args: &ServeArgs) -> Result<Option<KvEventsOptions>> {
    let Some(endpoint) = &args.kv_events else {
        let is_set = args.kv_events_topic.is_some()
            || args.kv_events_replay.is_some()
            || args.kv_events_buffer.is_some()
            || args.kv_events_format.is_some();
        return if is_set { bail!("the options for KV events need --kv-events") } else { Ok(None) };
    };
    let d = KvEventsOptions::at(endpoint);
    Ok(Some(KvEventsOptions {
        topic: args.kv_events_topic.clone().unwrap_or(d.topic),
        replay: args.kv_events_replay.clone(),
        buffer: args.kv_events_buffer.unwrap_or(d.buffer),
        format: args.kv_events_format.unwrap_or(d.format),
        endpoint: d.endpoint,
    }))
}

/// Starts logging to standard error. `RUST_LOG` sets the level.
fn start_logs(json: bool) {
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    if json { logs.json().init() } else { logs.init() }
}

fn port(s: &str) -> Result<u16, String> {
    s.parse().map_err(|_| format!("{s:?} is not a port, a number from 0 to 65535"))
}

fn event_format(s: &str) -> Result<EventFormat, String> {
    match s {
        "map" => Ok(EventFormat::Map),
        "array" => Ok(EventFormat::Array),
        _ => Err(format!("{s:?} is neither map nor array")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::commands::QUIRE;

    #[test]
    fn words_go_to_the_engine_or_the_server() {
        let words = ["--port", "0", "--model", "gpt2", "--log-json", "--block-size", "8", "--api-key", "--model"];
        let words = Words::sort(&QUIRE, &COMMAND, &words.map(str::to_owned)).unwrap();
        let (own, engine) = (words.own::<ServeArgs>().unwrap(), words.engine().unwrap());
        assert_eq!((engine.model.as_deref(), engine.block_size), (Some("gpt2"), 8));
        assert_eq!((own.port, own.log_json, own.api_key.as_deref()), (Some(0), true, Some("--model")));
    }
    #[test]
    fn options_of_kv_events_need_their_endpoint() {
        let events = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
            kv_events(&Words::sort(&QUIRE, &COMMAND, &words).unwrap().own::<ServeArgs>().unwrap())
        };
        assert!(events(&[]).unwrap().is_none());
        assert!(events(&["--kv-events-topic", "kv@1@m"]).is_err() && events(&["--kv-events-buffer", "5"]).is_err());
        let all = ["--kv-events", "tcp://*:5557", "--kv-events-format", "array", "--kv-events-topic", "kv@1@m"];
        let got = events(&all).unwrap().unwrap();
        assert_eq!((got.endpoint.as_str(), got.topic.as_str()), ("tcp://*:5557", "kv@1@m"));
        assert_eq!((got.format, got.buffer, got.replay), (EventFormat::Array, 10_000, None));
    }
}
