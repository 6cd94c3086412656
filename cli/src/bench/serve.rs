//! `quire bench serve`: sends requests to a server with OpenAI's API and measures its answers.

use std::time::Duration;

use anyhow::{Result, bail};
use argh::{ArgsInfo, FromArgs};
use engine::SamplingParams;
use loadgen::arrivals::Process;
use loadgen::endpoint::{Endpoint, EndpointOptions, RequestPrompt};
use loadgen::load::{Load, serve};
use loadgen::plot;
use loadgen::random::WorkloadRng;
use loadgen::report::{Axis, Point, Report};
use loadgen::summary::Summary;
use loadgen::trace::SHAREGPT;
use loadgen::workload::Workload;

use super::measured;
use super::options::{self, Rates, Sweep};
use crate::command::{Command, Positionals, Words};
use crate::values::{count, seed};
use crate::words::UsageError;

/// The command.
pub const COMMAND: Command = Command {
    name: "bench serve",
    positionals: Positionals::None,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["quire bench serve --url http://localhost:8000 --rate 1,2,4 --svg sweep.svg"],
    run,
};

/// Requests per measurement if no option sets their number or duration.
const REQUESTS: usize = 100;
/// Tokens of the longest request if neither the server nor an option sets a limit. OPT has this many positions.
const MAX_LEN: usize = 2048;

/// Send requests to a server with OpenAI's API, at given rates or from a number of clients, and measure the answers.
/// Answers are streamed completions.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// URL of the server (http://127.0.0.1:8000)
    #[argh(option, arg_name = "url", default = "String::from(\"http://127.0.0.1:8000\")")]
    url: String,
    /// model to ask for (the first one that the server lists)
    #[argh(option, short = 'm', arg_name = "model")]
    model: Option<String>,
    /// API key to send (QUIRE_API_KEY, else none)
    #[argh(option, arg_name = "key")]
    api_key: Option<String>,
    /// requests per second, one or several numbers such as 1,2,4
    #[argh(option, arg_name = "n", from_str_fn(options::rates))]
    rate: Option<Rates>,
    /// arrival process: poisson or fixed (poisson)
    #[argh(option, arg_name = "how", from_str_fn(process), default = "Process::Poisson")]
    arrivals: Process,
    /// instead of a rate: clients that send one request after another, one or several numbers
    #[argh(option, arg_name = "n", from_str_fn(options::sweep))]
    concurrency: Option<Sweep>,
    /// sharegpt, alpaca, prompt and output tokens such as 128,64, or a file of JSON lines (sharegpt)
    #[argh(option, arg_name = "lengths", from_str_fn(options::lengths), default = "Workload::Like(SHAREGPT)")]
    lengths: Workload,
    /// maximum tokens of prompt and output together (the server's limit, else 2048)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    max_len: Option<usize>,
    /// requests per rate (100, or as many as --duration allows)
    #[argh(option, arg_name = "n", from_str_fn(options::requests))]
    requests: Option<usize>,
    /// stop sending requests after this many seconds
    #[argh(option, arg_name = "s", from_str_fn(options::seconds))]
    duration: Option<Duration>,
    /// time limit for an answer in seconds (600)
    #[argh(option, arg_name = "s", from_str_fn(options::seconds), default = "Duration::from_secs(600)")]
    timeout: Duration,
    /// send words instead of token ids, for servers that accept no ids (lengths become approximate)
    #[argh(switch)]
    words: bool,
    /// let outputs end early, for servers without ignore_eos
    #[argh(switch)]
    stop_at_eos: bool,
    /// outputs per request, sampled at temperature 1 if there are several (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    n: usize,
    /// beams per request, returning the n best
    #[argh(option, arg_name = "n", from_str_fn(count))]
    beam_width: Option<usize>,
    /// random seed of lengths, prompts and arrivals (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
    /// also write the figures to this file as JSON
    #[argh(option, arg_name = "file")]
    json: Option<String>,
    /// also plot the figures to this file
    #[argh(option, arg_name = "file")]
    svg: Option<String>,
}

fn process(s: &str) -> Result<Process, String> {
    match s {
        "poisson" => Ok(Process::Poisson),
        "fixed" => Ok(Process::Fixed),
        _ => Err(format!("{s:?} is neither poisson nor fixed")),
    }
}

/// Fewer requests than this do not measure a rate: the first and last ones weigh too much.
const ENOUGH: usize = 50;

/// Runs the command.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let (axis, sweep) = args.sweep()?;
    let params = options::decoding(args.n, None, args.beam_width);
    params.validate()?;
    let options = EndpointOptions {
        url: args.url.clone(),
        model: args.model.clone(),
        api_key: args.api_key.clone().or_else(|| std::env::var("QUIRE_API_KEY").ok()),
        timeout: args.timeout,
        ignore_eos: !args.stop_at_eos,
        fields: options::fields(&params),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let endpoint = runtime.block_on(Endpoint::connect(options))?;
    options::note_if_shortened(&args.lengths, args.max_len(&endpoint));
    let report = Report {
        bench: "serve",
        model: endpoint.model().to_owned(),
        load: args.describe(args.max_len(&endpoint), &params),
        axis,
        points: sweep
            .into_iter()
            .scan(WorkloadRng::new(args.seed), |random, (at, load)| {
                let summary = runtime.block_on(args.measure(&endpoint, load, random));
                let answered = summary.requests - summary.failed;
                eprintln!("{axis} {at}: {answered} of {} answered in {:.1} s", summary.requests, summary.seconds);
                Some(Point { at, summary })
            })
            .collect(),
    };
    measured::show(&report, args.json.as_deref())?;
    if let Some(few) = report.points.iter().map(|point| point.summary.requests).filter(|n| *n < ENOUGH).min() {
        eprintln!("note: {few} requests are too few to measure a rate; give --requests {ENOUGH} or more");
    }
    if let Some(file) = &args.svg {
        measured::write_file(file, &plot::svg(&report))?;
    }
    match report.points.iter().all(|point| point.summary.requests == point.summary.failed) {
        true => bail!("no request was answered"),
        false => Ok(()),
    }
}

impl Args {
    /// Returns the axis of the sweep, and the load at each point.
    fn sweep(&self) -> Result<(Axis, Vec<(f64, Load)>)> {
        let (process, seed) = (self.arrivals, self.seed);
        match (&self.rate, &self.concurrency) {
            (Some(Rates(rates)), None) => {
                Ok((Axis::Rate, rates.iter().map(|&rate| (rate, Load::Open { process, rate, seed })).collect()))
            }
            (None, Some(Sweep(numbers))) => {
                let closed = |&concurrency| (concurrency as f64, Load::Closed { concurrency });
                Ok((Axis::Concurrency, numbers.iter().map(closed).collect()))
            }
            _ => Err(UsageError::new("give either --rate or --concurrency".into()).into()),
        }
    }

    fn describe(&self, max_len: usize, params: &SamplingParams) -> String {
        let arrivals = match (&self.rate, self.arrivals) {
            (None, _) => "closed loop",
            (_, Process::Poisson) => "Poisson arrivals",
            (_, Process::Fixed) => "arrivals at a fixed rate",
        };
        format!("{}{}, {arrivals}, seed {}", self.lengths.cut_to(max_len), options::described(params), self.seed)
    }

    /// Returns the tokens of the longest request.
    fn max_len(&self, endpoint: &Endpoint) -> usize {
        self.max_len.or(endpoint.max_len()).unwrap_or(MAX_LEN)
    }

    /// Measures one point of a sweep. Lengths and arrivals are the same at each point. Prompts differ, because a server
    /// may cache them.
    async fn measure(&self, endpoint: &Endpoint, load: Load, random: &mut WorkloadRng) -> Summary {
        let default = if self.duration.is_some() { options::MAX_REQUESTS } else { REQUESTS };
        let lengths = self.lengths.requests(self.seed, self.max_len(endpoint)).take(self.requests.unwrap_or(default));
        let prompt = if self.words { RequestPrompt::words } else { RequestPrompt::ids };
        let requests = lengths.map(|lengths| (prompt(lengths.prompt, random), lengths));
        Summary::of(&serve(endpoint, load, self.duration.unwrap_or(Duration::MAX), requests).await)
    }
}
