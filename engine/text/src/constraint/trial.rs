//! Trial compilations, in a process that may be killed.
//!
//! The checks before a compilation cannot foresee the work on every grammar. A server therefore compiles heavy grammars twice: first
//! in a child process with a bound on its memory, which it kills at the deadline, then by itself. The child is the program that
//! called [`crate::constraint::GrammarCompiler::trial`], started again. It must call [`run`].

use std::io::{Read, Write};
use std::process::ExitCode;

use checkpoint::Error;
use llguidance::Matcher;
use serde::{Deserialize, Serialize};

use super::bounds::on_large_stack;
use super::compiler::{LIMITS, factory, parser};
use super::grammar::Grammar;
use super::reason::sentence;

/// A program started with this argument must call [`run`].
pub const ARGUMENT: &str = "--try-grammar";

/// The standard input of a trial.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Trial {
    pub grammar: Grammar,
    pub vocab_size: usize,
    /// The vocabulary's special tokens. Other tokens make no difference to the parser.
    pub special: Vec<(usize, String)>,
    /// Bytes that the compilation may take.
    pub memory: u64,
    /// Seconds of a processor that it may take. Whoever started the trial may be gone.
    pub seconds: u64,
}

/// Compiles the grammar on standard input. The exit status is 0 if that succeeds and 1 if the grammar is refused: then the reason is
/// on standard output. Any other end means that the grammar exceeds the bounds.
pub fn run() -> ExitCode {
    match on_large_stack(compile).unwrap_or_else(Err) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // If the reason cannot be written, the status still says that the grammar is refused.
            let _ = std::io::stdout().write_all(why.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).map_err(|error| error.to_string())?;
    let mut reader = serde_json::Deserializer::from_slice(&input);
    reader.disable_recursion_limit();
    let trial = Trial::deserialize(&mut reader).map_err(|error| error.to_string())?;
    drop(input);
    let factory = factory(trial.words(), trial.vocab_size, &LIMITS)?;
    limit(trial.memory, trial.seconds).map_err(|error| format!("the compilation cannot be bounded: {error}"))?;
    let parser = parser(&factory, &trial.grammar).map_err(|error| match error {
        Error::Request(refusal) => refusal.why,
        other => other.to_string(),
    })?;
    let mut matcher = Matcher::new(Ok(parser));
    matcher.compute_mask_or_eos().map_err(|error| sentence(&error.to_string()))?;
    // A constraint has two lexers.
    drop(matcher.deep_clone());
    Ok(())
}

impl Trial {
    /// The special tokens in their places, and a token for each byte behind the vocabulary and its end.
    fn words(&self) -> Vec<Vec<u8>> {
        let mut words = vec![Vec::new(); self.vocab_size];
        for (id, name) in &self.special {
            if let Some(word) = words.get_mut(*id) {
                *word = super::compiler::marked(name);
            }
        }
        words.push(super::compiler::marked(super::compiler::END));
        words.extend((0..=254).map(|byte| vec![byte]));
        words
    }
}

/// Bounds the memory and the processor time of this process, from now on.
#[cfg(target_os = "linux")]
fn limit(memory: u64, seconds: u64) -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let data =
        status.lines().find_map(|line| line.strip_prefix("VmData:")?.split_whitespace().next()?.parse::<u64>().ok());
    let data = data.ok_or_else(|| std::io::Error::other("/proc/self/status has no VmData"))? * 1024;
    let bounds = [
        // Private memory, with what this process has already, its stacks among it.
        (libc::RLIMIT_DATA, data.saturating_add(memory)),
        (libc::RLIMIT_CPU, seconds),
        (libc::RLIMIT_CORE, 0),
    ];
    for (resource, most) in bounds {
        let mut bound = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `getrlimit` writes to `bound`, which lives until it returns.
        if unsafe { libc::getrlimit(resource, &mut bound) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // A lower bound of the system stays.
        let most = most.min(bound.rlim_max);
        bound = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: `setrlimit` reads `bound`, which lives until it returns.
        if unsafe { libc::setrlimit(resource, &bound) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // The server's own work comes first. It is no harm if the priority cannot be lowered.
    // SAFETY: `nice` takes a number and touches no memory of ours.
    unsafe { libc::nice(10) };
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit(_: u64, _: u64) -> std::io::Result<()> {
    Err(std::io::Error::other("this system has no limits for a process"))
}
