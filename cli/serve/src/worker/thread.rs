//! The thread's loop: commands, then a step, then what it brought.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use engine::error::Refusal;
use engine::group::{RequestId, SequenceGroup};
use engine::llm::{Event, Llm, Prompt};
use engine::sampling::SamplingParams;
use engine::stats::Stats;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};

use super::jobs::Jobs;
use super::snapshot::Snapshot;
use super::{Command, Failure, Message, Status, Work};
use crate::metrics::Metrics;

/// Runs until it is told to stop, or all handles are gone.
pub fn run(
    load: &dyn Fn() -> engine::Result<Llm>,
    mut commands: UnboundedReceiver<Command>,
    status: &watch::Sender<Status>,
    max_queue: usize,
    metrics: Metrics,
) {
    let mut jobs = Jobs::default();
    let mut waiting = Vec::new();
    loop {
        let start = Instant::now();
        match load() {
            Ok(llm) => {
                tracing::info!(seconds = start.elapsed().as_secs_f64(), "model loaded");
                metrics.describe(&llm);
                let mut engine = EngineThread::new(llm, jobs, max_queue, metrics.clone());
                engine.resume(waiting);
                status.send_replace(Status::Ready);
                match engine.serve(&mut commands) {
                    End::Stopped => {
                        status.send_replace(Status::Stopped);
                        return;
                    }
                    End::Failed => {
                        status.send_replace(Status::Loading);
                        metrics.engine_failures.inc();
                        (jobs, waiting) = engine.salvage();
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "the model cannot be loaded");
                jobs.fail_all(&Failure::Engine);
                status.send_replace(Status::Broken(error.to_string()));
                refuse_all(&mut commands);
                return;
            }
        }
    }
}

/// Without an engine: answers every command as a failure, until told to stop.
fn refuse_all(commands: &mut UnboundedReceiver<Command>) {
    while let Some(command) = commands.blocking_recv() {
        match command {
            Command::Submit(_, messages) => drop(messages.try_send(Err(Failure::Engine))),
            Command::Snapshot(_) | Command::Cancel(..) => {}
            Command::Stop => return,
        }
    }
}

/// Why [`EngineThread::serve`] ended.
enum End {
    Stopped,
    Failed,
}

/// A request that is to be queued again.
struct Waiting {
    id: RequestId,
    prompt: Prompt,
    params: SamplingParams,
}

struct EngineThread {
    llm: Llm,
    jobs: Jobs,
    max_queue: usize,
    metrics: Metrics,
    /// When it was loaded.
    loaded: Instant,
    /// The engine's counters when the metrics took them in.
    observed: Stats,
}

impl EngineThread {
    fn new(llm: Llm, jobs: Jobs, max_queue: usize, metrics: Metrics) -> Self {
        let (loaded, observed) = (Instant::now(), Stats::default());
        EngineThread { llm, jobs, max_queue, metrics, loaded, observed }
    }

    fn serve(&mut self, commands: &mut UnboundedReceiver<Command>) -> End {
        loop {
            loop {
                let command = if self.llm.has_work() {
                    match commands.try_recv() {
                        Ok(command) => command,
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => Command::Stop,
                    }
                } else {
                    self.metrics.observe(&self.llm, &mut self.observed);
                    commands.blocking_recv().unwrap_or(Command::Stop)
                };
                match command {
                    Command::Submit(work, messages) => self.submit(*work, messages),
                    // Whoever asked may have gone.
                    Command::Snapshot(reply) => drop(reply.send(Snapshot::of(&self.llm, self.loaded))),
                    Command::Cancel(id, reply) => {
                        let known = self.llm.engine().scheduler().contains(id);
                        if known {
                            self.abort(vec![id]);
                        }
                        let _ = reply.send(known);
                    }
                    Command::Stop => {
                        self.jobs.fail_all(&Failure::Stopped);
                        return End::Stopped;
                    }
                }
            }
            let abandoned = self.jobs.take_abandoned();
            self.abort(abandoned);
            let begun = Instant::now();
            // A panic is a failed step too: what it left behind is thrown away with the engine.
            match catch_unwind(AssertUnwindSafe(|| self.llm.step())) {
                Ok(Ok(events)) => self.deliver(events, begun),
                Ok(Err(error)) => {
                    tracing::error!(%error, "a step failed");
                    return End::Failed;
                }
                Err(_) => {
                    tracing::error!("a step panicked");
                    return End::Failed;
                }
            }
        }
    }

    fn submit(&mut self, work: Work, messages: mpsc::Sender<Message>) {
        if self.llm.engine().scheduler().waiting().len() + work.prompts.len() > self.max_queue {
            self.metrics.refused.inc();
            // Here and below: a job that is gone needs no reason.
            let _ = messages.try_send(Err(Failure::QueueFull));
            return;
        }
        let mut ids = Vec::with_capacity(work.prompts.len());
        for prompt in &work.prompts {
            match self.llm.add(prompt, work.params.clone()) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    self.abort(ids);
                    let refusal = match error {
                        engine::Error::Request(refusal) => refusal,
                        other => Refusal { field: None, why: other.to_string() },
                    };
                    let _ = messages.try_send(Err(Failure::Refused(refusal)));
                    return;
                }
            }
        }
        self.metrics.accepted(&work.params, ids.len());
        self.jobs.insert(messages, work.stream, ids);
    }

    /// Cancels requests. What the engine still says about them reaches nobody, unless their jobs are still there.
    fn abort(&mut self, requests: Vec<RequestId>) {
        for id in requests {
            self.llm.abort(id);
            self.metrics.aborted.inc();
        }
    }

    /// Hands out what the step brought that was begun at `begun`, and counts it.
    fn deliver(&mut self, events: Vec<Event>, begun: Instant) {
        let now = Instant::now();
        let scheduler = self.llm.engine().scheduler();
        self.jobs.scheduled(begun, |id| scheduler.waiting().any(|group| group.id == id));
        let mut last = None;
        for event in &events {
            match event {
                // A request's tokens of one step come one after the other, and count once.
                Event::Token { id, .. } if last != Some(*id) => {
                    last = Some(*id);
                    self.metrics.token(self.jobs.touch(*id, now).map(|before| now - before));
                }
                Event::Prompt { .. } | Event::Token { .. } => {}
                Event::Done(completion) => {
                    self.metrics.done(completion, self.jobs.queue_time(completion.id));
                }
            }
        }
        self.metrics.observe(&self.llm, &mut self.observed);
        let unread = self.jobs.deliver(events);
        self.abort(unread);
    }

    /// After a failed step: fails what took part in it or has begun to answer, and returns the other requests with the
    /// jobs that wait for them. Drops the engine.
    fn salvage(mut self) -> (Jobs, Vec<Waiting>) {
        let waiting = |g: &SequenceGroup| {
            let (text, tokens) = self.llm.prompt(g.id)?;
            let prompt = Prompt::Encoded { text: text.to_owned(), tokens: tokens.to_vec() };
            Some(Waiting { id: g.id, prompt, params: g.params.clone() })
        };
        let untouched = self.llm.engine().scheduler().waiting().filter(|g| g.first_token.is_none());
        let mut waiting: Vec<Waiting> = untouched.filter_map(waiting).collect();
        let mut lost = self.jobs.requests();
        lost.retain(|id| waiting.iter().all(|w| w.id != *id));
        for &id in &lost {
            self.metrics.finished.lost(id, self.jobs.age(id));
        }
        let others = self.jobs.fail(&lost, &Failure::Engine);
        waiting.retain(|w| !others.contains(&w.id));
        (self.jobs, waiting)
    }

    /// Queues again what an earlier engine left.
    fn resume(&mut self, waiting: Vec<Waiting>) {
        let mut names = Vec::with_capacity(waiting.len());
        let mut lost = Vec::new();
        for Waiting { id, prompt, params } in waiting {
            match self.llm.add(&prompt, params) {
                Ok(new) => names.push((id, new)),
                Err(_) => lost.push(id),
            }
        }
        let others = self.jobs.fail(&lost, &Failure::Engine);
        let others = names.iter().filter(|n| others.contains(&n.0)).map(|n| n.1).collect();
        self.jobs.rename(&names);
        self.abort(others);
    }
}
