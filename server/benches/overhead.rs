//! Measures the server's overhead over the bare engine on the bundled model: on the time to a first token, and on the
//! time of 64 concurrent streams.
//!
//!     cargo bench -p server --bench overhead
//!
//! The engine answers the same requests by itself and behind the server, in turns. The benchmark prints the medians
//! over all turns. It measures two cases. In one, the engine leaves a core to the server, as it would on a GPU. In the
//! other, the engine uses every core, so the server's work takes time from the engine. The client's work does too,
//! since it runs on the same machine. The client is a separate process with one thread that reads the answers and does
//! not parse them. The core time of engine and server excludes the client and hardly depends on the machine's other
//! load. On a busy machine, go by that figure.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Event, Llm, Options, Prompt};
use server::{ServeOptions, Server};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinSet;

const PROMPT: &str = "Once upon a time, in a small village";
const STREAMS: usize = 64;
const TOKENS: usize = 250;
/// Tokens generated per round.
const TOTAL: f64 = (STREAMS * TOKENS) as f64;
/// Sequential requests that measure the time to a first token.
const SINGLE: usize = 500;
/// Rounds of 64 streams.
const ROUNDS: usize = 7;
/// The end of a chunked answer.
const END: &[u8] = b"data: [DONE]\n\n\r\n0\r\n\r\n";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, address] = &arguments[..]
        && role == "client"
    {
        return runtime::Builder::new_current_thread().enable_all().build()?.block_on(client(address.parse()?));
    }
    let cores = std::thread::available_parallelism()?.get();
    for threads in [cores.saturating_sub(1).max(1), cores] {
        measure(threads, cores)?;
    }
    Ok(())
}

/// Compares an engine with `threads` threads with the same engine behind the server.
fn measure(threads: usize, cores: usize) -> Result<()> {
    let options = Options { threads: Some(threads), ..Options::default() };
    let mut llm = Llm::load(&ModelFiles::bundled(), &options)?;
    let (runtime, address) = serve(&options)?;
    println!("an engine with {threads} threads on {cores} cores");

    let mut connection = std::net::TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    let (mut alone, mut served) = (Vec::new(), Vec::new());
    for _ in 0..SINGLE {
        alone.push(first_token_alone(&mut llm)?);
        served.push(first_token_served(&mut connection)?);
    }
    let (alone, served) = (1e3 * median(alone), 1e3 * median(served));
    println!("  first token: engine {alone:.3} ms, server {served:.3} ms, added {:.3} ms", served - alone);

    let mut client = Client::start(address)?;
    let (mut alone, mut served, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut core_alone, mut core_served, mut core_client) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let core = process_core_seconds()?;
        let by_itself = seconds_alone(&mut llm)?;
        core_alone.push(1e6 * (process_core_seconds()? - core) / TOTAL);
        let core = process_core_seconds()?;
        let (seconds, client_core) = client.round()?;
        core_served.push(1e6 * (process_core_seconds()? - core) / TOTAL);
        core_client.push(1e6 * client_core / TOTAL);
        losses.push(100.0 * (1.0 - by_itself / seconds));
        alone.push(TOTAL / by_itself);
        served.push(TOTAL / seconds);
    }
    let (alone, served, loss) = (median(alone), median(served), median(losses));
    println!(
        "  {STREAMS} streams: engine {alone:.0} tokens/s, server {served:.0} tokens/s, {loss:.1} % less per round"
    );
    let (alone, served, of_client) = (median(core_alone), median(core_served), median(core_client));
    let added = 100.0 * (served / alone - 1.0);
    println!(
        "  core time per token: engine {alone:.1} us, server {served:.1} us ({added:.1} % more), client {of_client:.1} us"
    );
    runtime.shutdown_background();
    Ok(())
}

/// Starts a server on its own threads.
fn serve(engine: &Options) -> Result<(Runtime, SocketAddr)> {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = runtime.block_on(async {
        let options = ServeOptions { port: 0, ..ServeOptions::default() };
        let server = Server::bind(&ModelFiles::bundled(), engine, &options).await?;
        server.loaded().await?;
        let address = server.addresses()?[0];
        tokio::spawn(server.run(std::future::pending()));
        anyhow::Ok(address)
    })?;
    Ok((runtime, address))
}

fn params(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() }
}

/// Returns the HTTP request for the prompt with `params(max_tokens)`.
fn request(max_tokens: usize) -> Vec<u8> {
    let body = format!(
        r#"{{"prompt": "{PROMPT}", "max_tokens": {max_tokens}, "temperature": 0, "ignore_eos": true, "stream": true}}"#
    );
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn first_token_alone(llm: &mut Llm) -> Result<f64> {
    let start = Instant::now();
    llm.add(&Prompt::Text(PROMPT.into()), params(2))?;
    let mut first = None;
    while llm.has_work() {
        if llm.step()?.iter().any(|event| matches!(event, Event::Token { .. })) {
            first.get_or_insert(start.elapsed());
        }
    }
    Ok(first.context("no token")?.as_secs_f64())
}

fn first_token_served(connection: &mut std::net::TcpStream) -> Result<f64> {
    let start = Instant::now();
    connection.write_all(&request(2))?;
    let (mut answer, mut part, mut first) = (Vec::new(), [0; 4096], None);
    while !answer.ends_with(END) {
        let n = connection.read(&mut part)?;
        if n == 0 {
            bail!("the server closed the connection");
        }
        answer.extend_from_slice(&part[..n]);
        if first.is_none() && answer.windows(6).any(|at| at == b"data: ") {
            first = Some(start.elapsed());
        }
    }
    Ok(first.context("no token")?.as_secs_f64())
}

fn seconds_alone(llm: &mut Llm) -> Result<f64> {
    let start = Instant::now();
    llm.generate(&vec![Prompt::Text(PROMPT.into()); STREAMS], &params(TOKENS))?;
    Ok(start.elapsed().as_secs_f64())
}

/// The client process, as its parent sees it.
struct Client {
    process: Child,
    orders: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Client {
    fn start(server: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["client", &server.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let orders = process.stdin.take().context("no pipe to the client")?;
        let results = BufReader::new(process.stdout.take().context("no pipe from the client")?);
        Ok(Client { process, orders, results })
    }

    /// Reads all streams to their ends. Returns the elapsed seconds and the client's core time.
    fn round(&mut self) -> Result<(f64, f64)> {
        writeln!(self.orders)?;
        let mut line = String::new();
        self.results.read_line(&mut line)?;
        let (seconds, core) = line.trim().split_once(' ').context("the client has ended")?;
        Ok((seconds.parse()?, core.parse()?))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the client. For each line of its input, it runs all streams at once.
async fn client(server: SocketAddr) -> Result<()> {
    for order in std::io::stdin().lines() {
        order?;
        let mut connections = Vec::new();
        for _ in 0..STREAMS {
            connections.push(TcpStream::connect(server).await?);
        }
        let (start, core) = (Instant::now(), core_seconds("/proc/self/schedstat")?);
        let streams: JoinSet<Result<()>> = connections.into_iter().map(stream).collect();
        streams.join_all().await.into_iter().collect::<Result<()>>()?;
        println!("{} {}", start.elapsed().as_secs_f64(), core_seconds("/proc/self/schedstat")? - core);
    }
    Ok(())
}

/// Sends a request and reads to the end of its answer.
async fn stream(connection: TcpStream) -> Result<()> {
    let request = request(TOKENS);
    connection.writable().await?;
    if connection.try_write(&request)? < request.len() {
        bail!("a request does not fit a new connection's buffer");
    }
    let (mut part, mut last) = ([0; 4096], Vec::new());
    while !last.ends_with(END) {
        connection.readable().await?;
        match connection.try_read(&mut part) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(n) => {
                last.extend_from_slice(&part[..n]);
                last.drain(..last.len().saturating_sub(END.len()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns the core time used so far by all threads of this process, which runs engine and server.
fn process_core_seconds() -> Result<f64> {
    let threads = std::fs::read_dir("/proc/self/task")?;
    threads.map(|thread| core_seconds(thread?.path().join("schedstat"))).sum()
}

/// Returns the core time that a thread has used so far. The kernel reports it in nanoseconds in the thread's
/// `schedstat`.
fn core_seconds(schedstat: impl AsRef<std::path::Path>) -> Result<f64> {
    let text = std::fs::read_to_string(schedstat)?;
    let nanoseconds: u64 = text.split(' ').next().context("an empty schedstat")?.parse()?;
    Ok(nanoseconds as f64 * 1e-9)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
