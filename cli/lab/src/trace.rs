//! `lab trace`: turns a published data set into a trace of request lengths.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::tools::tokenizer::Tokenizer;
use loadgen::dataset::{Dataset, TextPair};

use cli::command::{Command, Positionals, Words};
use cli::values::count;

/// The command.
pub const COMMAND: Command = Command {
    name: "trace",
    positionals: Positionals::None,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["lab trace --sharegpt sharegpt.json --tokenizer opt-125m -o trace.jsonl"],
    run,
};

/// Turn a published data set of the paper's into a trace of request lengths. bench serve, bench throughput and plan
/// read such traces. The means are compared with the paper's.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// file of ShareGPT's conversations
    #[argh(option, arg_name = "file")]
    sharegpt: Option<String>,
    /// file of Alpaca's instructions
    #[argh(option, arg_name = "file")]
    alpaca: Option<String>,
    /// model whose tokens are counted: a directory, hub id or short name
    #[argh(option, arg_name = "model")]
    tokenizer: String,
    /// maximum tokens per request; longer requests are left out (2048)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "2048")]
    max_len: usize,
    /// file to write the trace to (standard output)
    #[argh(option, short = 'o', arg_name = "file")]
    out: Option<String>,
}

/// Returns the name of a data set, and the mean tokens of its prompts and outputs in figure 11 of the paper.
fn paper(dataset: Dataset) -> (&'static str, [f64; 2]) {
    match dataset {
        Dataset::ShareGpt => ("ShareGPT", [161.31, 337.99]),
        Dataset::Alpaca => ("Alpaca", [19.31, 58.45]),
    }
}

/// Counts tokens, writes the trace, and compares its means with the paper's on standard error.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let (dataset, file) = match (&args.sharegpt, &args.alpaca) {
        (Some(file), None) => (Dataset::ShareGpt, file),
        (None, Some(file)) => (Dataset::Alpaca, file),
        _ => return Err(words.wrong("give either --sharegpt or --alpaca").into()),
    };
    let files = ModelFiles::resolve(Some(&args.tokenizer), true)?;
    let tokenizer = Tokenizer::of_model(&files, &files.config()?)?;
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let pairs = dataset.pairs(&text).with_context(|| file.clone())?;
    let mut out: Box<dyn Write> = match &args.out {
        Some(out) => Box::new(BufWriter::new(File::create(out).with_context(|| format!("cannot write {out}"))?)),
        None => Box::new(io::stdout().lock()),
    };
    let (mut sums, mut kept) = ([0usize; 2], 0usize);
    for TextPair { prompt, output } in &pairs {
        let lengths = [tokenizer.encode_plain(prompt)?.len(), tokenizer.encode_plain(output)?.len()];
        if lengths.contains(&0) || lengths.iter().sum::<usize>() > args.max_len {
            continue;
        }
        writeln!(out, "{{\"prompt_tokens\": {}, \"output_tokens\": {}}}", lengths[0], lengths[1])?;
        sums.iter_mut().zip(lengths).for_each(|(sum, length)| *sum += length);
        kept += 1;
    }
    out.flush()?;
    let (name, means) = paper(dataset);
    let mean = |at: usize| sums[at] as f64 / kept.max(1) as f64;
    eprintln!(
        "{kept} of {} requests: on average {:.2} prompt tokens and {:.2} output tokens; the paper has {} and {} for {name}",
        pairs.len(),
        mean(0),
        mean(1),
        means[0],
        means[1]
    );
    Ok(())
}
