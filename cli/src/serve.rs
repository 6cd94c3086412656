//! `quire serve`: an OpenAI-compatible server.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use argh::{ArgsInfo, FromArgs};
use engine::load::ModelFiles;
use serve::{Limits, ServeOptions, Server, stop_signal};
use tracing_subscriber::EnvFilter;

use crate::args::{Args, count, memory};
use crate::{help, one_line, request};

/// Serve a language model to OpenAI's clients.
#[derive(ArgsInfo, FromArgs, Debug)]
#[argh(help_triggers("-h", "--help", "help"))]
pub struct ServeArgs {
    /// address to listen at (127.0.0.1)
    #[argh(option, arg_name = "address")]
    pub host: Option<String>,
    /// port to listen at, 0 for a free one (8000)
    #[argh(option, arg_name = "n")]
    pub port: Option<u16>,
    /// key that clients must send (QUIRE_API_KEY, else none)
    #[argh(option, arg_name = "key")]
    pub api_key: Option<String>,
    /// the model's name for clients (its own)
    #[argh(option, arg_name = "name")]
    pub served_model_name: Option<String>,
    /// file with a chat template in place of the model's
    #[argh(option, arg_name = "file")]
    pub chat_template: Option<String>,

    /// most requests waiting in the engine (1024)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_queue: Option<usize>,
    /// most requests in progress (1024)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_requests: Option<usize>,
    /// most open connections (4096)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_connections: Option<usize>,
    /// largest body of a request (4MiB)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub max_body: Option<usize>,
    /// time for a whole request (600)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub request_timeout: Option<Duration>,
    /// time for a request to arrive (10)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub read_timeout: Option<Duration>,
    /// time a client may leave its answer unread (30)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub write_timeout: Option<Duration>,
    /// time for running requests at the end (30)
    #[argh(option, arg_name = "seconds", from_str_fn(seconds))]
    pub stop_timeout: Option<Duration>,
    /// logs as JSON, an object a line
    #[argh(switch)]
    pub log_json: bool,
}

/// Serves until the process is told to end.
pub fn run(words: &[&str]) -> Result<()> {
    if words.iter().any(|w| ["-h", "--help", "help"].contains(w)) {
        return Ok(io::stdout().write_all(help::serve_page().as_bytes())?);
    }
    let (engine, own) = split(words);
    let own = ServeArgs::from_args(&["quire", "serve"], &own).map_err(|exit| usage(&exit.output))?;
    let engine = Args::from_args(&["quire", "serve"], &engine).map_err(|exit| usage(&exit.output))?;
    start_logs(own.log_json);
    let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
    let options = ServeOptions { shared_prefixes: request::shared_prefixes(&engine)?, ..options(own)? };
    let engine = request::options(&engine);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let server = Server::bind(&files, &engine, &options).await?;
        writeln!(io::stdout(), "listening on http://{}", server.address()?)?;
        server.run(stop).await
    })
}

/// Words for the engine, which have the same names as in `quire` itself, and words for the server.
fn split<'a>(words: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    help::split(words, help::is_shared_with_serve, help::takes_value)
}

fn options(args: ServeArgs) -> Result<ServeOptions> {
    let d = Limits::default();
    let template = |file: String| {
        std::fs::read_to_string(&file).with_context(|| format!("cannot read the chat template in {file}"))
    };
    let api_key = args.api_key.or_else(|| std::env::var("QUIRE_API_KEY").ok());
    if api_key.as_ref().is_some_and(String::is_empty) {
        bail!("the API key is empty");
    }
    let limits = Limits {
        max_queue: args.max_queue.unwrap_or(d.max_queue),
        max_body_bytes: args.max_body.unwrap_or(d.max_body_bytes),
        max_requests: args.max_requests.unwrap_or(d.max_requests),
        max_connections: args.max_connections.unwrap_or(d.max_connections),
        request_timeout: args.request_timeout.unwrap_or(d.request_timeout),
        read_timeout: args.read_timeout.unwrap_or(d.read_timeout),
        write_timeout: args.write_timeout.unwrap_or(d.write_timeout),
        stop_timeout: args.stop_timeout.unwrap_or(d.stop_timeout),
    };
    let d = ServeOptions::default();
    Ok(ServeOptions {
        host: args.host.unwrap_or(d.host),
        port: args.port.unwrap_or(d.port),
        api_key,
        served_name: args.served_model_name,
        chat_template: args.chat_template.map(template).transpose()?,
        limits,
        ..d
    })
}

/// Logs go to standard error; `RUST_LOG` says how much.
fn start_logs(json: bool) {
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    if json { logs.json().init() } else { logs.init() }
}

fn usage(message: &str) -> anyhow::Error {
    anyhow::anyhow!("{} (quire serve --help shows all options)", one_line(message))
}

fn seconds(s: &str) -> Result<Duration, String> {
    let seconds: f64 = s.parse().map_err(|_| format!("{s:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{s:?} is not a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_to_the_engine_or_the_server() {
        let (engine, own) =
            split(&["--port", "0", "--model", "gpt2", "--log-json", "--block-size", "8", "--api-key", "--model"]);
        assert_eq!(engine, ["--model", "gpt2", "--block-size", "8"]);
        assert_eq!(own, ["--port", "0", "--log-json", "--api-key", "--model"]);
    }

    #[test]
    fn times_are_in_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("soon").is_err() && seconds("inf").is_err());
    }
}
