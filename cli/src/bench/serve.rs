//! `quire bench serve`: sends requests to a server with OpenAI's API, and measures its answers.

use std::time::Duration;

use anyhow::{Result, bail};
use argh::{ArgsInfo, FromArgs};
use engine::sampling::SamplingParams;
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

/// Requests, if no option says how many or for how long.
const REQUESTS: usize = 100;
/// Tokens of the longest request, if neither the server nor an option says so: OPT's positions.
const MAX_LEN: usize = 2048;

/// Send requests to a server with OpenAI's API, at rates of arrival or from a number of clients, and measure how it does.
/// Answers are streamed completions.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// where the server is (http://127.0.0.1:8000)
    #[argh(option, arg_name = "url", default = "String::from(\"http://127.0.0.1:8000\")")]
    url: String,
    /// model to ask for (the first that the server lists)
    #[argh(option, short = 'm', arg_name = "model")]
    model: Option<String>,
    /// key to send (QUIRE_API_KEY, else none)
    #[argh(option, arg_name = "key")]
    api_key: Option<String>,
    /// requests that arrive in a second, one or several numbers such as 1,2,4
    #[argh(option, arg_name = "n", from_str_fn(options::rates))]
    rate: Option<Rates>,
    /// how they arrive: poisson or fixed (poisson)
    #[argh(option, arg_name = "how", from_str_fn(process), default = "Process::Poisson")]
    arrivals: Process,
    /// in place of a rate: clients that ask again when they are answered, one or several numbers
    #[argh(option, arg_name = "n", from_str_fn(options::sweep))]
    concurrency: Option<Sweep>,
    /// sharegpt, alpaca, tokens of prompt and output such as 128,64, or a file of JSON lines (sharegpt)
    #[argh(option, arg_name = "lengths", from_str_fn(options::lengths), default = "Workload::Like(SHAREGPT)")]
    lengths: Workload,
    /// most tokens of prompt and output together (what the server lists, else 2048)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    max_len: Option<usize>,
    /// requests at each rate (100, or what comes within --duration)
    #[argh(option, arg_name = "n", from_str_fn(options::requests))]
    requests: Option<usize>,
    /// seconds after which no more requests are sent
    #[argh(option, arg_name = "s", from_str_fn(options::seconds))]
    duration: Option<Duration>,
    /// seconds that an answer may take (600)
    #[argh(option, arg_name = "s", from_str_fn(options::seconds), default = "Duration::from_secs(600)")]
    timeout: Duration,
    /// prompts of words in place of token ids, for servers that take no ids; lengths are then about right
    #[argh(switch)]
    words: bool,
    /// let outputs end early, for servers that do not know ignore_eos
    #[argh(switch)]
    stop_at_eos: bool,
    /// outputs of each request, sampled at temperature 1 if there are several (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    n: usize,
    /// beams of each request, of which the n best are returned
    #[argh(option, arg_name = "n", from_str_fn(count))]
    beam_width: Option<usize>,
    /// seed of lengths, prompts and arrivals (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
    /// file that gets the figures as well
    #[argh(option, arg_name = "file")]
    json: Option<String>,
    /// file that gets them as a plot
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

/// The fewest requests that measure a rate. With fewer, the first and the last ones weigh too much.
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
    options::say_if_cut(&args.lengths, args.max_len(&endpoint));
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
    /// What varies, and the load at each point.
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

    /// Tokens of the longest request.
    fn max_len(&self, endpoint: &Endpoint) -> usize {
        self.max_len.or(endpoint.max_len()).unwrap_or(MAX_LEN)
    }

    /// Lengths and arrivals are the same at each point of a sweep. Prompts are not: a server may remember them.
    async fn measure(&self, endpoint: &Endpoint, load: Load, random: &mut WorkloadRng) -> Summary {
        let default = if self.duration.is_some() { options::MAX_REQUESTS } else { REQUESTS };
        let lengths = self.lengths.requests(self.seed, self.max_len(endpoint)).take(self.requests.unwrap_or(default));
        let prompt = if self.words { RequestPrompt::words } else { RequestPrompt::ids };
        let requests = lengths.map(|lengths| (prompt(lengths.prompt, random), lengths));
        Summary::of(&serve(endpoint, load, self.duration.unwrap_or(Duration::MAX), requests).await)
    }
}
