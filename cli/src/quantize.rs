//! `quire quantize`: writes a model with quantised weights to one file.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::tools::quantised::QuantType;

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
    /// type of projections and embeddings: q8_0, or q4_0 with the output matrix in q8_0
    #[argh(option, arg_name = "type", from_str_fn(quant_type))]
    to: QuantType,
    /// file to write
    #[argh(option, short = 'o', arg_name = "file")]
    out: PathBuf,
}

fn quant_type(s: &str) -> Result<QuantType, String> {
    match s.to_ascii_lowercase().as_str() {
        "q8_0" => Ok(QuantType::Q8_0),
        "q4_0" => Ok(QuantType::Q4_0),
        _ => Err(format!("{s:?} is neither q8_0 nor q4_0")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_parsed() {
        assert_eq!(quant_type("Q4_0"), Ok(QuantType::Q4_0));
        assert!(quant_type("q4_k").is_err_and(|wrong| wrong.contains("q4_k")));
    }
}
