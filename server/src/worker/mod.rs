//! Runs the engine on its own thread. Requests and outputs pass through channels.
//!
//! The thread owns the [`Llm`]. Between two steps it handles commands and cancels every job whose [`Job`] was dropped,
//! so that the job's blocks are free before the next step. Each job has its own bounded channel for outputs. A job
//! whose channel is full is cancelled too. A client that does not read can therefore neither fill memory nor delay
//! others.
//!
//! If a step fails, all requests that took part in it fail. The engine is then reloaded, because neither its
//! bookkeeping nor its device can be trusted. Requests that were still waiting are queued again. During the reload,
//! [`Worker::status`] is `Loading` and the worker accepts no requests. If the reload fails, the status stays `Broken`.

mod jobs;
mod snapshot;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use engine::RequestId;
use engine::SamplingParams;
use engine::tools::error::Refusal;
use engine::{Event, Llm, Prompt};
use tokio::sync::{mpsc, oneshot, watch};

pub use snapshot::Snapshot;

use crate::events::EventSource;
use crate::metrics::Metrics;
use crate::options::RequestLimits;

/// Maximum steps whose outputs may wait unread in a job's channel.
const UNREAD_STEPS: usize = 1024;

/// The engine's work for one client request.
#[derive(Debug)]
pub struct Work {
    /// The prompts, each of which becomes one engine request. Either all are queued or none.
    pub prompts: Vec<Prompt>,
    /// The sampling parameters of all prompts.
    pub params: SamplingParams,
    /// The request field that contains the prompts, for error messages.
    pub field: &'static str,
    /// The request field that sets the maximum output length. If `None`, outputs may fill the context.
    pub asked: Option<&'static str>,
    /// Whether to report tokens as they are generated. If not, only [`Event::Done`] is reported.
    pub stream: bool,
}

/// A message to a job: the events of a step, each with the index of its prompt, or the reason why the job ended.
pub type JobUpdate = Result<Vec<(usize, Event)>, Failure>;

/// The reason why a job has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is invalid or could never run.
    Refused(Refusal),
    /// A prompt and its requested output do not fit in the context.
    NoRoom {
        /// The request field at fault.
        param: &'static str,
        /// Tokens in the prompt.
        prompt: usize,
        /// Requested output tokens, if given.
        asked: Option<usize>,
        /// Maximum tokens of prompt and output together.
        most: usize,
    },
    /// The queue of waiting requests is full.
    QueueFull,
    /// A step failed.
    Engine,
    /// The server was told to stop, and the time to finish has passed.
    Stopped,
    /// The job did not read its messages in time, or the thread has ended.
    Dropped,
}

/// The state of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The model is being loaded.
    Loading,
    /// The engine accepts requests.
    Ready,
    /// The model could not be loaded, for this reason.
    Broken(String),
    /// The thread has ended as requested.
    Stopped,
}

enum Command {
    Submit(Box<Work>, mpsc::Sender<JobUpdate>),
    Snapshot(oneshot::Sender<Snapshot>),
    Cancel(RequestId, oneshot::Sender<bool>),
    Stop,
}

/// A handle to the engine's thread.
#[derive(Debug)]
pub struct Worker {
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<Status>,
    /// See [`Worker::context_len`].
    context: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// A submitted [`Work`]. Dropping it cancels the rest of the work.
#[derive(Debug)]
pub struct Job {
    messages: mpsc::Receiver<JobUpdate>,
}

impl Worker {
    /// Starts the thread. It loads the model with `load`, and does so again after a failed step. Requests beyond the
    /// queue limits in `limits` are refused. If `events` is given, it follows every engine that `load` returns and
    /// publishes the changes of its cache.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(
        load: impl Fn() -> engine::Result<Llm> + Send + 'static,
        limits: RequestLimits,
        metrics: Metrics,
        events: Option<EventSource>,
    ) -> std::io::Result<Self> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (status, watcher) = watch::channel(Status::Loading);
        let context = Arc::new(AtomicUsize::new(usize::MAX));
        let longest = context.clone();
        let work = move || thread::run(&load, receiver, &status, limits, metrics, &longest, events);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(work)?;
        Ok(Worker { commands, status: watcher, context, thread: Some(thread) })
    }

    /// Queues `work`. If it is refused, the job's first message says why.
    pub fn submit(&self, work: Work) -> Job {
        let (sender, messages) = mpsc::channel(UNREAD_STEPS);
        // If the thread has ended, the sender is dropped here and the job ends at once.
        let _ = self.commands.send(Command::Submit(Box::new(work), sender));
        Job { messages }
    }

    /// Returns the state of queues and memory. `None` if the thread has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (sender, snapshot) = oneshot::channel();
        self.commands.send(Command::Snapshot(sender)).ok()?;
        snapshot.await.ok()
    }

    /// Cancels an engine request. Its job gets the output so far with the finish reason `abort`, and the job's other
    /// requests continue. Returns whether the request existed, or `None` if the thread has ended.
    pub async fn cancel(&self, id: RequestId) -> Option<bool> {
        let (sender, known) = oneshot::channel();
        self.commands.send(Command::Cancel(id, sender)).ok()?;
        known.await.ok()
    }

    /// Ends the thread after its current step. Requests in progress fail with [`Failure::Stopped`].
    pub fn stop(&self) {
        // If the thread has already ended, nothing is left to stop.
        let _ = self.commands.send(Command::Stop);
    }

    /// Returns the maximum tokens of a sequence, limited by the model and the KV cache. Unlimited before the model is
    /// loaded.
    pub fn context_len(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    /// Returns a receiver for the engine's state, which callers can wait on.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}

impl Drop for Worker {
    /// Stops the thread and waits until it has ended.
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Job {
    /// Returns the job with these messages.
    #[cfg(test)]
    pub fn of(messages: mpsc::Receiver<JobUpdate>) -> Self {
        Job { messages }
    }

    /// Waits for the next message.
    pub async fn next(&mut self) -> JobUpdate {
        self.messages.recv().await.unwrap_or(Err(Failure::Dropped))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use engine::ModelFiles;
    use engine::{Options, SchedulerOptions};

    use super::*;

    async fn worker(options: Options) -> (Worker, Metrics) {
        let metrics = Metrics::new("test");
        let load = move || Llm::load(&ModelFiles::bundled(), &options);
        let limits =
            RequestLimits { max_queue: 1000, max_queue_seqs: 1500, max_request_seqs: 1200, ..RequestLimits::default() };
        let worker = Worker::start(load, limits, metrics.clone(), None).unwrap();
        worker.status().wait_for(|status| *status == Status::Ready).await.unwrap();
        (worker, metrics)
    }

    fn work(prompts: usize, max_tokens: usize) -> Work {
        let prompts = vec![Prompt::Text("Once upon a time".into()); prompts];
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        Work { prompts, params, field: "prompt", asked: Some("max_tokens"), stream: true }
    }

    #[tokio::test]
    async fn a_job_that_is_not_read_is_given_up() {
        let (worker, metrics) = worker(Options {
            scheduler: SchedulerOptions { max_num_seqs: 1, ..SchedulerOptions::default() },
            ..Options::default()
        })
        .await;
        let mut job = worker.submit(work(4, 400));
        loop {
            let state = worker.snapshot().await.unwrap();
            if state.running.is_empty() && state.waiting.is_empty() {
                break;
            }
        }
        assert_eq!(metrics.aborted.get(), 2, "of four requests two were answered and one was begun");
        let mut read = 0;
        let end = loop {
            match job.next().await {
                Ok(_) => read += 1,
                Err(end) => break end,
            }
        };
        assert_eq!((read, end), (UNREAD_STEPS, Failure::Dropped));
    }

    #[tokio::test]
    async fn a_job_that_is_dropped_gives_its_blocks_back() {
        let (worker, metrics) = worker(Options::default()).await;
        let free = worker.snapshot().await.unwrap().refs;
        let mut job = worker.submit(work(2, 400));
        job.next().await.unwrap();
        assert_ne!(worker.snapshot().await.unwrap().refs, free);
        drop(job);
        while worker.snapshot().await.unwrap().refs != free {}
        assert_eq!(metrics.aborted.get(), 2);
    }

    #[tokio::test]
    async fn a_job_is_queued_whole_or_not_at_all() {
        let (worker, _) = worker(Options::default()).await;
        let mut mixed = work(2, 10);
        mixed.prompts.push(Prompt::Tokens(vec![1_000_000]));
        assert!(
            matches!(worker.submit(mixed).next().await, Err(Failure::Refused(refusal)) if refusal.why.contains("1000000"))
        );
        assert_eq!(worker.submit(work(1001, 10)).next().await, Err(Failure::QueueFull));
        let too_many = |prompts, width| {
            let mut work = work(prompts, 10);
            (work.params.n, work.params.best_of) = (width, width);
            work
        };
        let refused = worker.submit(too_many(10, 121)).next().await;
        assert!(matches!(refused, Err(Failure::Refused(refusal)) if refusal.why.contains("1210 sequences")));
        let state = worker.snapshot().await.unwrap();
        assert!(state.running.is_empty() && state.waiting.is_empty());
    }
}
