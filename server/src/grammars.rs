//! Grammars of requests to constraints: a few at a time, since that takes a processor for a while.

use std::sync::Arc;

use engine::constraint::{Constraint, Grammar, GrammarCompiler};
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Grammars that are compiled at a time.
const TURNS: usize = 2;

/// Compiles the grammars of requests, which take turns.
#[derive(Clone, Debug)]
pub struct Grammars {
    compiler: GrammarCompiler,
    turns: Arc<Semaphore>,
}

impl Grammars {
    /// Compiles by `compiler`.
    pub fn new(compiler: GrammarCompiler) -> Self {
        Grammars { compiler, turns: Arc::new(Semaphore::new(TURNS)) }
    }

    /// The constraint for a grammar that is from `field`.
    ///
    /// # Errors
    /// 400 about the field, with the place of what is wrong.
    pub async fn compile(&self, field: &str, grammar: Grammar) -> Result<Constraint, ApiError> {
        // The semaphore is never closed. The turn lasts as long as the work, though the client may go meanwhile.
        let turn = self.turns.clone().acquire_owned().await;
        let compiler = self.compiler.clone();
        let compile = move || {
            let _turn = turn;
            compiler.compile(&grammar)
        };
        let compiled = tokio::task::spawn_blocking(compile).await;
        compiled.map_err(|error| ApiError::internal(error.to_string()))?.map_err(|error| match error {
            engine::Error::Request(refusal) => ApiError::field(field, format!("{field}: {refusal}")),
            other => ApiError::internal(other.to_string()),
        })
    }
}
