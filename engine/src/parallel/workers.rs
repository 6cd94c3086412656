//! A step on all workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::adapter::Sites;
use crate::backend::Backend;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::runner::{Computed, ModelRunner, Runner};
use crate::sampling::SampleRow;

/// The synchronisation that workers share.
pub trait WorkerGroup: Send + Sync {
    /// Marks the group as failed and releases all waiting workers permanently. Results computed afterwards are invalid.
    fn fail(&self);

    /// Whether a worker has failed.
    fn has_failed(&self) -> bool;
}

/// A model divided among workers. The first runs in the caller's thread and samples. Each other worker has its own
/// thread. Between steps all workers are idle.
pub struct ParallelRunner<B: Backend> {
    /// Dropped before `first`, because these threads may still be computing after a panic of the first worker.
    others: Vec<Worker>,
    first: ModelRunner<B>,
    group: Arc<dyn WorkerGroup>,
    /// The worker that has failed. Afterwards no more steps can run.
    lost: Option<usize>,
}

/// A worker other than the first.
struct Worker {
    /// `None` once there are no more steps.
    steps: Option<Sender<WorkerStep>>,
    /// The result of each step.
    done: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Waits for the thread, so that the device's memory is free afterwards.
impl Drop for Worker {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panics are caught
        }
    }
}

/// A step, as sent to a worker.
struct WorkerStep {
    batch: Batch,
    /// Whether to compute logits.
    logits: bool,
}

impl<B: Backend> ParallelRunner<B> {
    /// Creates a runner from the workers of `group`, in the order of their ranks.
    ///
    /// # Errors
    /// [`Error::Device`] if a thread cannot be started.
    pub fn new(first: ModelRunner<B>, others: Vec<ModelRunner<B>>, group: Arc<dyn WorkerGroup>) -> Result<Self> {
        let of = others.len() + 1;
        let others = others.into_iter().enumerate().map(|(i, runner)| start((i + 1, of), runner, Arc::clone(&group)));
        Ok(ParallelRunner { first, others: others.collect::<Result<_>>()?, group, lost: None })
    }
}

/// Starts the thread of a worker. It ends when the channel is closed or a step fails.
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
                drop(runner.compute(batch, &[], logits)?);
                runner.backend.finish()
            };
            // State left by a panic is not used again, because the group fails and the thread ends.
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

/// Fails the group on drop unless the step has ended, so that no worker waits for a first worker that has panicked.
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
            // The logits are NaN, but the device still works.
            (Err(Error::NotANumber), Ok(())) => Err(Error::NotANumber),
            (Err(error), _) | (Ok(_), Err(error)) => {
                self.group.fail();
                Err(error)
            }
            (Ok(computed), Ok(())) => Ok(computed),
        };
        // If one worker has failed, the others' results are invalid, and their errors are consequences.
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

    fn sites(&self) -> Option<Arc<Sites>> {
        self.first.sites()
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        self.first.decode_sizes(most)
    }
}
