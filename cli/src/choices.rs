//! Completions of option values, for shell completion scripts.

use argh::{FlagInfo, FlagInfoKind};
use engine::tools::load::SHORT_NAMES;

use crate::command::Command;

/// How a shell completes an option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// These words. If `or_files`, file names are completed as well.
    Words {
        words: Vec<&'static str>,
        or_files: bool,
    },
    Files,
    Folders,
    /// Nothing is completed, for example for a number.
    Nothing,
}

/// Options with a fixed set of values. Entries for one command precede entries for all commands.
const CHOICES: &[(Option<&str>, &str, &[&str])] = &[
    (Some("plan"), "--kv-dtype", &["int8", "fp8"]),
    (None, "--device", &["auto", "cpu", "cuda", "emulator"]),
    (None, "--dtype", &["auto", "f32", "f16", "bf16"]),
    (None, "--kv-dtype", &["auto", "f32", "f16", "bf16", "int8", "fp8"]),
    (None, "--preemption", &["auto", "swap", "recompute"]),
    (None, "--speculate", &["ngram", "off"]),
    (None, "--attention", &["quire", "v1", "v2"]),
    (None, "--early-stopping", &["true", "false", "never"]),
    (None, "--tool-call-parser", &["hermes", "llama3_json", "mistral"]),
    (None, "--pooling", &["last", "mean"]),
    (None, "--kv-events-format", &["map", "array"]),
    (None, "--arrivals", &["poisson", "fixed"]),
    (None, "--to", &["q8_0", "q6_k", "q4_k_m", "q4_0", "mxfp4"]),
];

/// Returns how to complete the value of a command's option. `None` for a switch.
pub fn completions(command: &Command, flag: &FlagInfo<'_>) -> Option<Offer> {
    let FlagInfoKind::Option { arg_name } = flag.kind else { return None };
    let is_meant =
        |(of, name, _): &&(Option<&str>, &str, &[&str])| *name == flag.long && of.is_none_or(|of| of == command.name);
    if let Some((_, _, words)) = CHOICES.iter().find(is_meant) {
        return Some(Offer::Words { words: words.to_vec(), or_files: false });
    }
    if (command.name, flag.long) == ("plan", "--workload") {
        return Some(Offer::Words { words: vec!["chat", "code", "long-document"], or_files: true });
    }
    Some(match arg_name {
        "on|off" => Offer::Words { words: vec!["on", "off"], or_files: false },
        "model" => Offer::Words { words: models(), or_files: true },
        "lengths" => Offer::Words { words: vec!["sharegpt", "alpaca"], or_files: true },
        #[cfg(feature = "cuda")]
        "gpu" => Offer::Words { words: simulator::gpu::GPUS.iter().map(|gpu| gpu.name).collect(), or_files: false },
        "file" => Offer::Files,
        "folder" => Offer::Folders,
        _ => Offer::Nothing,
    })
}

/// Returns the short names of models.
pub fn models() -> Vec<&'static str> {
    SHORT_NAMES.iter().map(|(short, _)| *short).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use argh::FromArgs;
    use engine::tools::load::gguf::FileType;

    use super::*;
    use crate::args::Args;
    use crate::commands::QUIRE;
    use crate::engine_args::EngineArgs;
    use crate::serve::ServeArgs;

    #[test]
    fn every_choice_belongs_to_an_option() {
        for (of, name, _) in CHOICES {
            let commands = QUIRE.commands.iter().filter(|command| of.is_none_or(|of| of == command.name));
            let is_known = commands.flat_map(|command| command.flags()).any(|flag| flag.long == *name);
            assert!(is_known || cfg!(not(feature = "cuda")), "{of:?} {name}");
        }
    }

    #[test]
    fn every_choice_is_accepted() {
        fn check<T: FromArgs>(command: &Command, own: bool) {
            let flags: Vec<_> =
                if own { command.own_flags().iter().collect() } else { command.engine_flags().collect() };
            for flag in flags {
                let Some(Offer::Words { words, or_files: false }) = completions(command, flag) else { continue };
                for word in words {
                    assert!(T::from_args(&["quire"], &[flag.long, word]).is_ok(), "{} {word}", flag.long);
                }
            }
        }
        check::<Args>(QUIRE.commands[0], true);
        check::<EngineArgs>(QUIRE.commands[0], false);
        check::<ServeArgs>(QUIRE.commands.iter().find(|command| command.name == "serve").unwrap(), true);
        // `quire quantize` has other required options.
        let (_, _, types) = CHOICES.iter().find(|(_, name, _)| *name == "--to").unwrap();
        assert!(types.iter().all(|word| word.parse::<FileType>().is_ok()));
    }
}
