//! Compiles the grammars of requests into constraints.
//!
//! A grammar that a running request already uses is shared. A light grammar compiles in a few milliseconds, and a few
//! of them compile at a time. Heavy grammars wait in a separate queue. Each is first tried in a child process with
//! bounds on its time and memory.

mod trial;
mod verdicts;

use std::sync::Arc;

use engine::tools::constraint::{Constraint, Grammar, GrammarCompiler, PreparedGrammar, Stop};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;

use self::trial::Trials;
use self::verdicts::Verdicts;
use crate::error::ApiError;
use crate::options::ServeOptions;

/// Maximum light grammars that compile at a time.
const LIGHT_TURNS: usize = 2;
/// Maximum heavy grammars that compile at a time. A fifth one waits for at most one deadline.
const HEAVY_TURNS: usize = 4;

/// Maximum conditions of one grammar that are logged because outputs are not checked for them.
const MAX_LOGGED: usize = 20;

/// Compiles the grammars of requests.
#[derive(Clone, Debug)]
pub struct Grammars {
    compiler: GrammarCompiler,
    light: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    /// `None` if no program for trials is configured.
    trials: Option<Trials>,
    verdicts: Arc<Verdicts>,
}

/// The reason why a grammar has no constraint.
#[derive(Debug)]
enum Failure {
    /// The grammar is at fault.
    Refused(String),
    /// The server is at fault.
    Internal(String),
}

/// Stops a compilation when the request is dropped.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Grammars {
    /// Compiles with `compiler`, within the limits of `options`.
    pub fn new(compiler: GrammarCompiler, options: &ServeOptions) -> Self {
        let turns = |turns| Arc::new(Semaphore::new(turns));
        let trials = options.grammar_trials.clone().map(|program| Trials::new(program, &options.limits));
        Grammars { compiler, light: turns(LIGHT_TURNS), heavy: turns(HEAVY_TURNS), trials, verdicts: Arc::default() }
    }

    /// Returns the constraint for a grammar from `field`. Dropping the future stops the compilation.
    ///
    /// # Errors
    /// 400 about the field, with the position of the problem.
    pub async fn compile(&self, field: &str, grammar: Grammar) -> Result<Constraint, ApiError> {
        let compiled = match self.compiler.cached(&grammar) {
            Some(constraint) => Ok(constraint),
            None => self.compiled(grammar).await,
        };
        let constraint = compiled.map_err(|failure| match failure {
            Failure::Refused(why) => ApiError::field(field, format!("{field}: {why}")),
            Failure::Internal(why) => ApiError::internal(why),
        })?;
        for place in constraint.unchecked().iter().take(MAX_LOGGED) {
            tracing::warn!(field, %place, "a part of the schema is not enforced");
        }
        Ok(constraint)
    }

    async fn compiled(&self, grammar: Grammar) -> Result<Constraint, Failure> {
        let key = self.verdicts.key(&grammar);
        self.check_verdict(key)?;
        let guard = StopOnDrop(Stop::default());
        let (compiler, stop) = (self.compiler.clone(), guard.0.clone());
        let compile = move || {
            let prepared = compiler.prepare(&grammar)?;
            if !prepared.is_light() {
                return Ok(Err(prepared));
            }
            // Another request may have compiled it in the meantime.
            if let Some(constraint) = compiler.cached_prepared(&prepared) {
                return Ok(Ok(constraint));
            }
            compiler.build(&prepared, &stop).map(Ok)
        };
        match in_turn(turn(&self.light).await?, compile).await? {
            Ok(constraint) => Ok(constraint),
            Err(prepared) => self.heavy(key, Arc::new(prepared), guard.0.clone()).await,
        }
    }

    async fn heavy(&self, key: u128, prepared: Arc<PreparedGrammar>, stop: Stop) -> Result<Constraint, Failure> {
        let turn = turn(&self.heavy).await?;
        // Another request may have compiled it in the meantime.
        if let Some(constraint) = self.compiler.cached_prepared(&prepared) {
            return Ok(constraint);
        }
        // Another request may have tried it in the meantime.
        let was_accepted = self.check_verdict(key)?;
        if let Some(trials) = self.trials.as_ref().filter(|_| !was_accepted) {
            let tried = trials.run(&self.compiler, &prepared).await;
            match &tried {
                Ok(()) => self.verdicts.accept(key),
                Err(Failure::Refused(why)) => self.verdicts.refuse(key, why),
                Err(Failure::Internal(_)) => {}
            }
            tried?;
        }
        let compiler = self.compiler.clone();
        let compile = move || match compiler.cached_prepared(&prepared) {
            Some(constraint) => Ok(constraint),
            None => compiler.build(&prepared, &stop),
        };
        in_turn(turn, compile).await
    }

    /// Whether an earlier trial of this grammar succeeded. Fails if it was refused.
    fn check_verdict(&self, key: u128) -> Result<bool, Failure> {
        self.verdicts.get(key).transpose().map(|accepted| accepted.is_some()).map_err(Failure::Refused)
    }
}

async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    turns.clone().acquire_owned().await.map_err(|closed| Failure::Internal(closed.to_string()))
}

/// Runs `work` on a thread that may block. `work` keeps its permit until it ends, even if the caller drops the future.
async fn in_turn<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    work: impl FnOnce() -> engine::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let work = move || {
        let done = work();
        drop(turn);
        done
    };
    let done = task::spawn_blocking(work).await.map_err(|error| Failure::Internal(error.to_string()))?;
    done.map_err(Failure::from)
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Request(refusal) => Failure::Refused(refusal.to_string()),
            other => Failure::Internal(other.to_string()),
        }
    }
}
