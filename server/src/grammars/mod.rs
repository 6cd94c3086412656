//! Grammars of requests to constraints.
//!
//! A grammar that a running request has is there already. A light grammar compiles in some milliseconds, a few at a time. A heavy
//! one waits in a queue of its own, and is first tried in a child process with bounds on its time and memory.

mod trial;
mod verdicts;

use std::sync::Arc;

use engine::constraint::{Constraint, Grammar, GrammarCompiler, PreparedGrammar, Stop};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;

use self::trial::Trials;
use self::verdicts::Verdicts;
use crate::error::ApiError;
use crate::options::ServeOptions;

/// Light grammars that are compiled at a time.
const LIGHT_TURNS: usize = 2;
/// Heavy grammars that are compiled at a time. A fifth one waits for one deadline at most.
const HEAVY_TURNS: usize = 4;

/// Compiles the grammars of requests.
#[derive(Clone, Debug)]
pub struct Grammars {
    compiler: GrammarCompiler,
    light: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    /// `None` without a program to run them.
    trials: Option<Trials>,
    verdicts: Arc<Verdicts>,
}

/// The reason for a missing constraint.
#[derive(Debug)]
enum Failure {
    /// The grammar is at fault.
    Refused(String),
    /// The server is.
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
    /// Compiles by `compiler`, within the limits of `options`.
    pub fn new(compiler: GrammarCompiler, options: &ServeOptions) -> Self {
        let turns = |turns| Arc::new(Semaphore::new(turns));
        let trials = options.grammar_trials.clone().map(|program| Trials::new(program, &options.limits));
        Grammars { compiler, light: turns(LIGHT_TURNS), heavy: turns(HEAVY_TURNS), trials, verdicts: Arc::default() }
    }

    /// The constraint for a grammar that is from `field`. The compilation ends if the caller drops this.
    ///
    /// # Errors
    /// 400 about the field, with the place of what is wrong.
    pub async fn compile(&self, field: &str, grammar: Grammar) -> Result<Constraint, ApiError> {
        if let Some(constraint) = self.compiler.cached(&grammar) {
            return Ok(constraint);
        }
        self.compiled(grammar).await.map_err(|failure| match failure {
            Failure::Refused(why) => ApiError::field(field, format!("{field}: {why}")),
            Failure::Internal(why) => ApiError::internal(why),
        })
    }

    async fn compiled(&self, grammar: Grammar) -> Result<Constraint, Failure> {
        let key = self.verdicts.key(&grammar);
        self.known(key)?;
        let guard = StopOnDrop(Stop::default());
        let (compiler, stop) = (self.compiler.clone(), guard.0.clone());
        let compile = move || {
            let prepared = compiler.prepare(&grammar)?;
            if !prepared.is_light() {
                return Ok(Err(prepared));
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
        // Another request may have tried it meanwhile.
        let is_known = self.known(key)?;
        if let Some(trials) = self.trials.as_ref().filter(|_| !is_known) {
            let tried = trials.run(&self.compiler, &prepared).await;
            match &tried {
                Ok(()) => self.verdicts.accept(key),
                Err(Failure::Refused(why)) => self.verdicts.refuse(key, why),
                Err(Failure::Internal(_)) => {}
            }
            tried?;
        }
        let compiler = self.compiler.clone();
        in_turn(turn, move || compiler.build(&prepared, &stop)).await
    }

    /// Whether a trial of this grammar succeeded.
    fn known(&self, key: u128) -> Result<bool, Failure> {
        self.verdicts.get(key).transpose().map(|accepted| accepted.is_some()).map_err(Failure::Refused)
    }
}

async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    turns.clone().acquire_owned().await.map_err(|closed| Failure::Internal(closed.to_string()))
}

/// Runs `work` on a thread that may block. `work` keeps its turn until it ends, even if the caller drops this.
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
