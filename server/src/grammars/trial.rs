//! Trial compilations in child processes.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engine::tools::constraint::trial::ARGUMENT;
use engine::tools::constraint::{GrammarCompiler, PreparedGrammar};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::{task, time};

use super::Failure;
use crate::options::RequestLimits;

/// Runs trials.
#[derive(Clone, Debug)]
pub(super) struct Trials {
    program: PathBuf,
    timeout: Duration,
    memory: usize,
}

impl Trials {
    pub fn new(program: PathBuf, limits: &RequestLimits) -> Self {
        Trials { program, timeout: limits.grammar_timeout, memory: limits.grammar_memory }
    }

    /// Compiles a grammar in a child process. The child is killed at the deadline, or if the caller drops the future.
    pub async fn run(&self, compiler: &GrammarCompiler, prepared: &Arc<PreparedGrammar>) -> Result<(), Failure> {
        // The child also limits its own CPU time, in case the server ends first.
        let seconds = self.timeout.as_secs().saturating_add(2);
        let (compiler, prepared, memory) = (compiler.clone(), prepared.clone(), self.memory as u64);
        let input = task::spawn_blocking(move || compiler.trial(&prepared, memory, seconds)).await;
        let input = input.map_err(|error| Failure::Internal(error.to_string()))??;
        let mut command = Command::new(&self.program);
        command.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let failed = |error| Failure::Internal(format!("cannot start a process to compile a grammar: {error}"));
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let ended = async {
            if let Some(mut stdin) = stdin {
                // A child that exits before it has read everything reports the reason by its status.
                let _ = stdin.write_all(&input).await;
            }
            child.wait_with_output().await
        };
        match time::timeout(self.timeout, ended).await {
            Ok(output) => {
                let output = output.map_err(failed)?;
                self.verdict(output.status, &output.stdout)
            }
            Err(_) => Err(self.too_slow()),
        }
    }

    fn verdict(&self, status: ExitStatus, reason: &[u8]) -> Result<(), Failure> {
        match status.code() {
            Some(0) => Ok(()),
            Some(1) => Err(Failure::Refused(String::from_utf8_lossy(reason).into_owned())),
            _ if is_out_of_time(status) => Err(self.too_slow()),
            _ => {
                let most = self.memory >> 20;
                let why = format!(
                    "the grammar takes more than {most} MiB of memory to compile, which is this server's limit"
                );
                Err(Failure::Refused(why))
            }
        }
    }

    fn too_slow(&self) -> Failure {
        let most = self.timeout.as_secs_f64();
        Failure::Refused(format!("the grammar takes more than {most} s to compile, which is this server's limit"))
    }
}

/// Whether the system killed the child because it ran too long.
#[cfg(unix)]
fn is_out_of_time(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // SIGKILL and SIGXCPU.
    matches!(status.signal(), Some(9 | 24))
}

#[cfg(not(unix))]
fn is_out_of_time(_: ExitStatus) -> bool {
    false
}
