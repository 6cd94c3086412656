//! Trial compilations, in a child process that can be killed.
//!
//! The checks before a compilation cannot predict the cost of every grammar. A server therefore compiles a heavy
//! grammar twice. The first time is in a child process with limited memory, which the server kills at the deadline. If
//! that succeeds, the server compiles the grammar itself. The child is the program that called
//! [`crate::constraint::GrammarCompiler::trial`], started again with [`ARGUMENT`]. It must then call [`run`].

use std::io::{Read, Write};
use std::process::ExitCode;

use checkpoint::Error;
use llguidance::Matcher;
use serde::{Deserialize, Serialize};

use super::bounds::on_large_stack;
use super::grammar::Grammar;
use super::parser::{END, LIMITS, factory, marked, parser};
use super::reason::sentence;
use super::stop::Stop;

/// A program started with this argument must call [`run`].
pub const ARGUMENT: &str = "--try-grammar";

/// The standard input of a trial.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Trial {
    pub grammar: Grammar,
    pub vocab_size: usize,
    /// The vocabulary's special tokens. The parser does not depend on the other tokens.
    pub special: Vec<(usize, String)>,
    /// Bytes of memory that the compilation may allocate.
    pub memory: u64,
    /// Seconds of CPU time that it may use. The child enforces this itself, because its parent may have exited.
    pub seconds: u64,
}

/// Compiles the grammar on standard input. Exits with 0 if that succeeds. If the grammar is refused, exits with 1 and
/// prints the reason on standard output. Any other exit means that the grammar exceeded a limit.
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
    let (parser, _) = parser(&factory, &trial.grammar, &Stop::default()).map_err(|error| match error {
        Error::Request(refusal) => refusal.why,
        other => other.to_string(),
    })?;
    let mut matcher = Matcher::new(Ok(parser));
    matcher.compute_mask_or_eos().map_err(|error| sentence(&error.to_string()))?;
    // A constraint has two lexers, so the trial allocates the second one, too.
    drop(matcher.deep_clone());
    Ok(())
}

impl Trial {
    /// Builds a vocabulary with the special tokens at their ids. One token per byte follows after the end token.
    fn words(&self) -> Vec<Vec<u8>> {
        let mut words = vec![Vec::new(); self.vocab_size];
        for (id, name) in &self.special {
            if let Some(word) = words.get_mut(*id) {
                *word = marked(name);
            }
        }
        words.push(marked(END));
        words.extend((0..=254).map(|byte| vec![byte]));
        words
    }
}

/// Limits this process's memory and CPU time from now on.
#[cfg(target_os = "linux")]
fn limit(memory: u64, seconds: u64) -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let data =
        status.lines().find_map(|line| line.strip_prefix("VmData:")?.split_whitespace().next()?.parse::<u64>().ok());
    let data = data.ok_or_else(|| std::io::Error::other("/proc/self/status has no VmData"))? * 1024;
    let bounds = [
        // Private memory, including what this process already uses, such as its stacks.
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
        // Keep the system's limit if it is lower.
        let most = most.min(bound.rlim_max);
        bound = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: `setrlimit` reads `bound`, which lives until it returns.
        if unsafe { libc::setrlimit(resource, &bound) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // The child yields to the server's own work. A failure to lower the priority is harmless.
    // SAFETY: `nice` takes a number and touches no memory of ours.
    unsafe { libc::nice(10) };
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit(_: u64, _: u64) -> std::io::Result<()> {
    Err(std::io::Error::other("this system has no limits for a process"))
}
