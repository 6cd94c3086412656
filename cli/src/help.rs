//! The help page. Names and descriptions are those of [`Args`]; this file only arranges them.

use argh::{ArgsInfo, FlagInfo, FlagInfoKind};

use crate::args::Args;

/// The options that say which model runs and how, without `--model`. Each has a value.
const ENGINE: &[&str] = &[
    "--device",
    "--dtype",
    "--kv-dtype",
    "--block-size",
    "--kv-memory",
    "--swap-space",
    "--preemption",
    "--prefix-caching",
    "--gpu-memory-utilization",
    "--cuda-graphs",
    "--max-num-seqs",
    "--max-batch-tokens",
    "--delay-factor",
    "--threads",
];

/// Headings, and the options below each.
const GROUPS: [(&str, &[&str]); 6] = [
    ("What to continue", &["--model", "--prompt", "--prompts", "--prompt-ids", "--shared-prefix"]),
    ("How far", &["--max-tokens", "--stop", "--ignore-eos"]),
    (
        "Sampling",
        &[
            "--temperature",
            "--top-k",
            "--top-p",
            "--min-p",
            "--repetition-penalty",
            "--presence-penalty",
            "--frequency-penalty",
            "--seed",
        ],
    ),
    ("Several outputs", &["--n", "--best-of", "--beam-width", "--length-penalty", "--early-stopping"]),
    ("What to print", &["--json", "--logprobs", "--stats", "--trace-kv", "--verbose", "--version", "--help"]),
    ("Engine", ENGINE),
];

const EXAMPLES: &str = "\
Examples
  quire --prompt \"Once upon a time\"
  quire --prompt \"One day, a fox\" --temperature 0.8 --seed 7 --n 3
  quire --model facebook/opt-125m --prompts questions.txt --json --max-tokens 64
  quire --model ./my-llama --prompt \"The answer is\" --beam-width 4 --n 2
";

/// The page that `--help` prints.
pub fn page() -> String {
    let info = Args::get_args_info();
    let mut page = format!(
        "{}\n\nUsage: quire [options]\n       quire kernels [--help]\n       quire bench [--help]\n",
        info.description
    );
    for (heading, names) in GROUPS {
        page.push_str(&format!("\n{heading}\n"));
        for name in names {
            if let Some(flag) = info.flags.iter().find(|f| f.long == *name) {
                page.push_str(&line(flag));
            }
        }
    }
    page.push('\n');
    page.push_str(EXAMPLES);
    page
}

/// Whether `word` is an option that says which model runs, or how.
pub fn is_engine_option(word: &str) -> bool {
    word == "--model" || ENGINE.contains(&word)
}

fn line(flag: &FlagInfo<'_>) -> String {
    let value = match flag.kind {
        FlagInfoKind::Option { arg_name } => format!(" <{arg_name}>"),
        FlagInfoKind::Switch => String::new(),
    };
    format!("  {:<28} {}\n", format!("{}{value}", flag.long), flag.description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_on_the_page_once() {
        let info = Args::get_args_info();
        for flag in info.flags {
            let times = GROUPS.iter().flat_map(|g| g.1).filter(|name| **name == flag.long).count();
            assert_eq!(times, 1, "{}", flag.long);
        }
        let listed: usize = GROUPS.iter().map(|g| g.1.len()).sum();
        assert_eq!(listed, info.flags.len());
    }
}
