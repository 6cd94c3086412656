//! A step on all workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::backend::Backend;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::runner::{Computed, ModelRunner, Runner};
use crate::sampling::SampleRow;

/// What workers share by which they wait for each other.
pub trait WorkerGroup: Send + Sync {
    /// Releases all who wait, for good: a worker has failed. What they compute from then on is worth nothing.
    fn fail(&self);

    /// Whether a worker has failed.
    fn has_failed(&self) -> bool;
}

/// A model divided among workers. The first runs in the caller's thread and samples; each other has a thread of its own.
/// Between steps no worker computes anything.
pub struct ParallelRunner<B: Backend> {
    /// Gone before the first is: they may still compute if that has panicked.
    others: Vec<Worker>,
    first: ModelRunner<B>,
    group: Arc<dyn WorkerGroup>,
    /// The worker that has failed: there are no more steps.
    lost: Option<usize>,
}

/// A worker other than the first.
struct Worker {
    /// None once there are no more steps.
    steps: Option<Sender<WorkerStep>>,
    /// How its part of a step ended.
    done: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread ends before its worker is gone, so that the device's memory is free again.
impl Drop for Worker {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panics are caught
        }
    }
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
    pub fn new(first: ModelRunner<B>, others: Vec<ModelRunner<B>>, group: Arc<dyn WorkerGroup>) -> Result<Self> {
        let of = others.len() + 1;
        let others = others.into_iter().enumerate().map(|(i, runner)| start((i + 1, of), runner, Arc::clone(&group)));
        Ok(ParallelRunner { first, others: others.collect::<Result<_>>()?, group, lost: None })
    }
}

/// Starts the thread of a worker, which ends when nobody can send it a step any more, or when a step fails.
fn start<B: Backend>(
    (rank, of): (usize, usize),
    mut runner: ModelRunner<B>,
    group: Arc<dyn WorkerGroup>,
) -> Result<Worker> {
    let (steps, todo) = channel::<WorkerStep>();
    let (report, done) = channel();
    let work = move || {
        for WorkerStep { batch, logits } in todo {
            let step = || {
                drop(runner.compute(batch, &[], logits));
                runner.backend.finish()
            };
            // What a panic leaves half done is not used again: the group has failed then, and the thread ends.
            let end = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| Err(failed(rank, of)));
            let ok = end.is_ok();
            if !ok {
                group.fail();
            }
            if report.send(end).is_err() || !ok {
                break;
            }
        }
    };
    let thread = thread::Builder::new()
        .name(format!("quire-worker-{rank}"))
        .spawn(work)
        .map_err(|error| Error::Device(format!("worker {rank} cannot be started: {error}")))?;
    Ok(Worker { steps: Some(steps), done, thread: Some(thread) })
}

fn failed(rank: usize, of: usize) -> Error {
    Error::Device(format!("worker {rank} of {of} has failed"))
}

/// Fails the group unless the step gets to its end: nobody must wait for a first worker that panics.
struct StepGuard<'a>(Option<&'a dyn WorkerGroup>);

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            group.fail();
        }
    }
}

impl<B: Backend> Runner for ParallelRunner<B> {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed> {
        let of = self.others.len() + 1;
        if let Some(rank) = self.lost {
            return Err(failed(rank, of));
        }
        for (i, worker) in self.others.iter().enumerate() {
            let step = WorkerStep { batch: batch.clone(), logits: !rows.is_empty() };
            if worker.steps.as_ref().is_none_or(|steps| steps.send(step).is_err()) {
                self.group.fail();
                return Err(failed(i + 1, of));
            }
        }
        if self.group.has_failed() {
            return Err(failed(0, of));
        }
        let mut guard = StepGuard(Some(&*self.group));
        let computed = self.first.run(batch, rows);
        let finished = self.first.backend.finish();
        guard.0 = None;
        let others_failed = self.group.has_failed();
        let computed = match (computed, finished) {
            // Its logits are no numbers, but the device is as it was.
            (Err(Error::NotANumber), Ok(())) => Err(Error::NotANumber),
            (Err(error), _) | (Ok(_), Err(error)) => {
                self.group.fail();
                Err(error)
            }
            (Ok(computed), Ok(())) => Ok(computed),
        };
        // If one has failed, what the others have computed is worth nothing, and their errors come of it.
        let ends = self.others.iter().enumerate();
        let ends = ends.map(|(i, worker)| worker.done.recv().unwrap_or_else(|_| Err(failed(i + 1, of))));
        let ends: Vec<Result<()>> = ends.collect();
        if self.group.has_failed() {
            let other = ends.iter().position(Result::is_err).filter(|_| others_failed || computed.is_ok());
            self.lost = Some(other.map_or(0, |i| i + 1));
        }
        let others: Result<()> = ends.into_iter().collect();
        if computed.is_ok() || others_failed { others.and(computed) } else { computed }
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        self.first.decode_sizes(most)
    }
}
