//! `quire quantize`: writes a model with quantised weights to one file.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::tools::load::gguf::FileType;

use crate::command::{Command, Positionals, Words};
use crate::progress;

/// The command.
pub const COMMAND: Command = Command {
    name: "quantize",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["quire quantize ./my-llama --to q8_0 --out my-llama.gguf", "quire my-llama.gguf -p \"The answer is\""],
    run,
};

/// Quantise a model's weights and write a GGUF file with its tokenizer and chat template. llama.cpp reads such files
/// too, except for OPT, which no other program supports.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// model: a directory, GGUF file, hub id or short name (the built-in story model)
    #[argh(option, short = 'm', arg_name = "model")]
    model: Option<String>,
    /// type of projections and embeddings: q8_0, q6_k, q4_k_m (q4_k, with important matrices in q6_k), q4_0, or mxfp4
    #[argh(option, arg_name = "type")]
    to: FileType,
    /// file to write
    #[argh(option, short = 'o', arg_name = "file")]
    out: PathBuf,
}

/// Writes the file and prints its size.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let files = ModelFiles::resolve(args.model.as_deref(), true)?;
    engine::quantize(&files, args.to, &args.out, progress::loading())?;
    let size = std::fs::metadata(&args.out).with_context(|| format!("cannot read {}", args.out.display()))?.len();
    let mib = size as f64 / (1 << 20) as f64;
    Ok(writeln!(io::stdout(), "wrote {} in {} to {} ({mib:.1} MiB)", files.name(), args.to, args.out.display())?)
}
