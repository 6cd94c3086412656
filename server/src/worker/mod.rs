//! The engine on a thread of its own. Requests go in and outputs come back over channels.
//!
//! An [`Llm`] belongs to the thread alone. Between two steps the thread takes commands in, and cancels jobs whose
//! [`Job`] was dropped: their blocks are free before the next step. Outputs go to each job's own bounded channel; a job
//! whose channel is full is cancelled too, so that a client that does not read can neither fill memory nor hold up
//! others.
//!
//! A step that fails fails the requests that took part in it. The engine is then loaded anew, since neither its
//! bookkeeping nor its device can be trusted, and the requests that still waited are queued again. Until it is loaded
//! [`Worker::status`] is `Loading` and no requests are taken; if it cannot be loaded, `Broken` for good.

mod jobs;
mod snapshot;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use engine::error::Refusal;
use engine::group::RequestId;
use engine::llm::{Llm, Prompt, RequestEvent};
use engine::sampling::SamplingParams;
use tokio::sync::{mpsc, oneshot, watch};

pub use snapshot::Snapshot;

use crate::events::EventSource;
use crate::metrics::Metrics;
use crate::options::RequestLimits;

/// Steps whose outputs may lie unread in a job's channel.
const UNREAD_STEPS: usize = 1024;

/// What a client's request asks of the engine.
#[derive(Debug)]
pub struct Work {
    /// One request to the engine each. All are queued, or none.
    pub prompts: Vec<Prompt>,
    /// How all of them are to be continued.
    pub params: SamplingParams,
    /// The field that the prompts are in.
    pub field: &'static str,
    /// The field that says how many tokens outputs may have. If none does they may be as long as there is room for.
    pub asked: Option<&'static str>,
    /// Whether tokens are wanted as they come; otherwise only [`RequestEvent::Done`] is reported.
    pub stream: bool,
}

/// A message to a job: the events of a step, each with the index of its prompt; or the reason why no more will come.
pub type JobUpdate = Result<Vec<(usize, RequestEvent)>, Failure>;

/// Why a job got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It makes no sense, or could never run.
    Refused(Refusal),
    /// One of its prompts leaves less room than its outputs are to have.
    NoRoom {
        /// The field that asks for it.
        param: &'static str,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that were asked for.
        asked: Option<usize>,
        /// Most tokens that prompt and output can have together.
        most: usize,
    },
    /// As many requests are waiting as may.
    QueueFull,
    /// A step failed.
    Engine,
    /// The server was told to stop, and the time for that is over.
    Stopped,
    /// Its messages were not read, or the thread is gone.
    Dropped,
}

/// Where the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// A model is being loaded.
    Loading,
    /// Requests are taken.
    Ready,
    /// The model could not be loaded; the reason.
    Broken(String),
    /// The thread has ended, as it was told to.
    Stopped,
}

enum Command {
    Submit(Box<Work>, mpsc::Sender<JobUpdate>),
    Snapshot(oneshot::Sender<Snapshot>),
    Cancel(RequestId, oneshot::Sender<bool>),
    Stop,
}

/// A handle on the engine's thread.
#[derive(Debug)]
pub struct Worker {
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<Status>,
    /// See [`Worker::context_len`].
    context: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// A submitted [`Work`]. Dropping it cancels what is left of it.
#[derive(Debug)]
pub struct Job {
    messages: mpsc::Receiver<JobUpdate>,
}

impl Worker {
    /// Starts the thread, which loads the model with `load` at once, and again after a step has failed. Requests beyond
    /// what `limits` says of the queue are refused. What the KV cache comes to hold goes to `events`, if there is such a
    /// source, which follows every engine that `load` returns.
    ///
    /// # Errors
    /// If the system gives no thread.
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

    /// Queues `work`. The job's first message says whether it was accepted.
    pub fn submit(&self, work: Work) -> Job {
        let (sender, messages) = mpsc::channel(UNREAD_STEPS);
        // If the thread is gone the sender is dropped here, and the job ends at once.
        let _ = self.commands.send(Command::Submit(Box::new(work), sender));
        Job { messages }
    }

    /// The state of queues and memory; nothing if the thread has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (sender, snapshot) = oneshot::channel();
        self.commands.send(Command::Snapshot(sender)).ok()?;
        snapshot.await.ok()
    }

    /// Cancels a request of the engine. Its job gets what there is of it, with the reason `abort`, and what else belongs to
    /// the job goes on. Says whether there was such a request; nothing if the thread has ended.
    pub async fn cancel(&self, id: RequestId) -> Option<bool> {
        let (sender, known) = oneshot::channel();
        self.commands.send(Command::Cancel(id, sender)).ok()?;
        known.await.ok()
    }

    /// Ends the thread after its present step. What is in progress fails with [`Failure::Stopped`].
    pub fn stop(&self) {
        // If the thread is gone already, all is done.
        let _ = self.commands.send(Command::Stop);
    }

    /// Most tokens of a sequence that the model and the KV cache have room for; no bound before the model is loaded.
    pub fn context_len(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    /// Where the engine is; can be waited on.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}

impl Drop for Worker {
    /// Stops the thread and waits for its end.
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Job {
    /// The next message.
    pub async fn next(&mut self) -> JobUpdate {
        self.messages.recv().await.unwrap_or(Err(Failure::Dropped))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use engine::llm::{Options, SchedulerOptions};
    use engine::load::ModelFiles;

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
