//! The help page. Names and descriptions are those of [`Args`]; this file only arranges them.

use argh::{ArgsInfo, FlagInfo, FlagInfoKind};

use crate::args::Args;
use crate::serve::ServeArgs;

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

/// The same for `quire serve`, without the engine's.
const SERVE_GROUPS: [(&str, &[&str]); 2] = [
    ("Server", &["--host", "--port", "--api-key", "--served-model-name", "--chat-template", "--log-json", "--help"]),
    (
        "Limits",
        &[
            "--max-queue",
            "--max-requests",
            "--max-connections",
            "--max-body",
            "--request-timeout",
            "--read-timeout",
            "--write-timeout",
            "--stop-timeout",
        ],
    ),
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
    let commands = ["[options]", "serve [--help]", "kernels [--help]", "bench [--help]"];
    let usage = commands.map(|command| format!("       quire {command}\n")).concat();
    let mut page = format!("{}\n\nUsage: {}", info.description, usage.trim_start());
    for (heading, names) in GROUPS {
        page.push_str(&group(heading, names, info.flags));
    }
    page.push('\n');
    page.push_str(EXAMPLES);
    page
}

/// The page that `quire serve --help` prints.
pub fn serve_page() -> String {
    let (own, engine) = (ServeArgs::get_args_info(), Args::get_args_info());
    let mut page = format!("{}\n\nUsage: quire serve [options]\n", own.description);
    for (heading, names) in SERVE_GROUPS {
        page.push_str(&group(heading, names, own.flags));
    }
    page.push_str(&group("Engine", &[&["--model"], ENGINE, &[SHARED_PREFIX]].concat(), engine.flags));
    page
}

/// Whether `word` is an option that says which model runs, or how.
pub fn is_engine_option(word: &str) -> bool {
    word == "--model" || ENGINE.contains(&word)
}

/// The option of `quire` itself that `quire serve` has beside the engine's.
const SHARED_PREFIX: &str = "--shared-prefix";

/// Whether `word` is an option of `quire serve` that `quire` has, too.
pub fn is_shared_with_serve(word: &str) -> bool {
    is_engine_option(word) || word == SHARED_PREFIX
}

/// Whether `word` is an option of `quire serve` that a value follows.
pub fn takes_value(word: &str) -> bool {
    let flags = if is_shared_with_serve(word) { Args::get_args_info().flags } else { ServeArgs::get_args_info().flags };
    flags.iter().any(|f| f.long == word && matches!(f.kind, FlagInfoKind::Option { .. }))
}

/// Parts a command's words: options that are the engine's, by `is_engine`, and the rest. A word of which `takes_value`
/// says so keeps the one after it.
pub fn split<'a>(
    words: &[&'a str],
    is_engine: impl Fn(&str) -> bool,
    takes_value: impl Fn(&str) -> bool,
) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut engine, mut own) = (Vec::new(), Vec::new());
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let to = if is_engine(word) { &mut engine } else { &mut own };
        to.push(word);
        if takes_value(word) {
            to.extend(rest.next());
        }
    }
    (engine, own)
}

fn group(heading: &str, names: &[&str], flags: &[FlagInfo<'_>]) -> String {
    let flags = names.iter().filter_map(|name| flags.iter().find(|f| f.long == *name));
    format!("\n{heading}\n{}", flags.map(line).collect::<String>())
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
        let info = ServeArgs::get_args_info();
        let mut listed: Vec<&str> = SERVE_GROUPS.iter().flat_map(|g| g.1).copied().collect();
        let mut flags: Vec<&str> = info.flags.iter().map(|f| f.long).collect();
        listed.sort_unstable();
        flags.sort_unstable();
        assert_eq!(listed, flags);
    }
}
