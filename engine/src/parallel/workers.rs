//! A step on all workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::RankGroup;
use crate::backend::Backend;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::runner::{ModelRunner, Runner};
use crate::sampling::{SampleRow, Sampled};

/// A model divided among workers. The first runs in the caller's thread and samples; each other has a thread of its own.
pub struct ParallelRunner<B: Backend> {
    first: ModelRunner<B>,
    others: Vec<Worker>,
    group: Arc<RankGroup>,
}

/// A worker other than the first.
struct Worker {
    steps: Sender<WorkerStep>,
    /// Whether it did its part of a step.
    done: Receiver<bool>,
}

/// What a worker is told of a step.
struct WorkerStep {
    batch: Batch,
    /// Whether logits are wanted.
    logits: bool,
}

impl<B: Backend> ParallelRunner<B> {
    /// A runner of these workers, which are of `group`, in the order of their ranks.
    ///
    /// # Errors
    /// [`Error::Device`] if a thread cannot be started.
    pub fn new(first: ModelRunner<B>, others: Vec<ModelRunner<B>>, group: Arc<RankGroup>) -> Result<Self> {
        let others = others.into_iter().enumerate().map(|(i, runner)| start(i + 1, runner, Arc::clone(&group)));
        Ok(ParallelRunner { first, others: others.collect::<Result<_>>()?, group })
    }
}

/// Starts the thread of a worker, which ends when nobody can send it a step any more, or when a step fails.
fn start<B: Backend>(rank: usize, mut runner: ModelRunner<B>, group: Arc<RankGroup>) -> Result<Worker> {
    let (steps, todo) = channel::<WorkerStep>();
    let (report, done) = channel();
    let work = move || {
        for WorkerStep { batch, logits } in todo {
            // What a panic leaves half done is not used again: the group has failed then, and the thread ends.
            let ok = catch_unwind(AssertUnwindSafe(|| drop(runner.compute(batch, &[], logits)))).is_ok();
            if !ok {
                group.fail();
            }
            if report.send(ok).is_err() || !ok {
                break;
            }
        }
    };
    thread::Builder::new()
        .name(format!("quire-worker-{rank}"))
        .spawn(work)
        .map_err(|error| Error::Device(format!("worker {rank} cannot be started: {error}")))?;
    Ok(Worker { steps, done })
}

/// Fails the group unless the step gets to its end: nobody must wait for a first worker that panics.
struct StepGuard<'a>(Option<&'a RankGroup>);

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            group.fail();
        }
    }
}

impl<B: Backend> Runner for ParallelRunner<B> {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        let failed = |rank: usize| Error::Device(format!("worker {rank} of {} has failed", self.others.len() + 1));
        for (i, worker) in self.others.iter().enumerate() {
            let step = WorkerStep { batch: batch.clone(), logits: !rows.is_empty() };
            if worker.steps.send(step).is_err() {
                self.group.fail();
                return Err(failed(i + 1));
            }
        }
        let mut guard = StepGuard(Some(&self.group));
        let sampled = self.first.run(batch, rows);
        guard.0 = None;
        for (i, worker) in self.others.iter().enumerate() {
            if !worker.done.recv().unwrap_or(false) {
                self.group.fail();
                return Err(failed(i + 1));
            }
        }
        sampled
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        self.first.decode_sizes(most)
    }
}
