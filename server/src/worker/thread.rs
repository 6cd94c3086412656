//! The thread's loop: handles commands, runs a step and delivers its events.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use engine::SamplingParams;
use engine::Stats;
use engine::tools::error::Refusal;
use engine::tools::group::{OwnerId, RequestId, SequenceGroup};
use engine::{Event, Llm, Prompt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};

use super::jobs::Jobs;
use super::snapshot::Snapshot;
use super::{Command, Failure, JobUpdate, Status, Work};
use crate::events::EventSource;
use crate::metrics::Metrics;
use crate::options::RequestLimits;

/// Runs until it is told to stop or all handles are dropped.
pub fn run(
    load: &dyn Fn() -> engine::Result<Llm>,
    mut commands: UnboundedReceiver<Command>,
    status: &watch::Sender<Status>,
    limits: RequestLimits,
    metrics: Metrics,
    context: &AtomicUsize,
    events: Option<EventSource>,
) {
    let mut jobs = Jobs::default();
    let mut waiting = Vec::new();
    loop {
        let start = Instant::now();
        match load() {
            Ok(llm) => {
                tracing::info!(seconds = start.elapsed().as_secs_f64(), "model loaded");
                metrics.describe(&llm);
                context.store(llm.engine().context_len(&[], &SamplingParams::default()), Ordering::Relaxed);
                let mut engine = EngineThread::new(llm, jobs, limits, metrics.clone(), events.clone());
                engine.report_changes();
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
                        events.iter().for_each(EventSource::cleared);
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

/// Answers every command as a failure until told to stop, because there is no engine.
fn refuse_all(commands: &mut UnboundedReceiver<Command>) {
    while let Some(command) = commands.blocking_recv() {
        match command {
            Command::Submit(_, messages) => drop(messages.try_send(Err(Failure::Engine))),
            Command::Snapshot(_) | Command::Cancel(..) => {}
            Command::Stop => return,
        }
    }
}

/// The reason why [`EngineThread::serve`] ended.
enum End {
    Stopped,
    Failed,
}

/// A request to queue again in a new engine.
struct Waiting {
    id: RequestId,
    owner: OwnerId,
    prompt: Prompt,
    params: SamplingParams,
}

struct EngineThread {
    llm: Llm,
    jobs: Jobs,
    limits: RequestLimits,
    metrics: Metrics,
    events: Option<EventSource>,
    /// When the model was loaded.
    loaded: Instant,
    /// The engine's counters at the last update of the metrics.
    observed: Stats,
}

impl EngineThread {
    fn new(llm: Llm, jobs: Jobs, limits: RequestLimits, metrics: Metrics, events: Option<EventSource>) -> Self {
        let (loaded, observed) = (Instant::now(), Stats::default());
        EngineThread { llm, jobs, limits, metrics, events, loaded, observed }
    }

    /// Publishes the changes of the cache, whose contents are computed by now.
    fn report_changes(&self) {
        self.events.iter().for_each(EventSource::step);
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
                    // The client may have disconnected.
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
            // A panic counts as a failed step. The engine is dropped, so its inconsistent state does no harm.
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

    fn submit(&mut self, work: Work, messages: mpsc::Sender<JobUpdate>) {
        let queued = self.check(&work).and_then(|()| self.queue(&work));
        match queued {
            Ok(ids) => {
                self.metrics.accepted(&work.params, ids.len());
                self.jobs.insert(messages, work.stream, ids);
            }
            Err(why) => {
                if why == Failure::QueueFull {
                    self.metrics.refused.inc();
                }
                // A dropped job needs no reason.
                let _ = messages.try_send(Err(why));
            }
        }
    }

    /// Checks that the limits leave space for a job.
    fn check(&self, work: &Work) -> Result<(), Failure> {
        let RequestLimits { max_queue, max_queue_seqs, max_request_seqs, .. } = self.limits;
        let (prompts, width) = (work.prompts.len(), work.params.width());
        let (seqs, most) = (prompts.saturating_mul(width), max_request_seqs.min(max_queue_seqs));
        if seqs > most {
            let field = match width {
                1 => work.field,
                _ if width == work.params.n => "n",
                _ => "best_of",
            };
            let why = format!(
                "{prompts} prompts with {width} outputs each are {seqs} sequences, but a request may have {most} at most"
            );
            return Err(Failure::Refused(Refusal { field: Some(field), why }));
        }
        let scheduler = self.llm.engine().scheduler();
        let waiting: usize = scheduler.waiting().map(SequenceGroup::width).sum();
        if scheduler.num_waiting() + prompts > max_queue || waiting + seqs > max_queue_seqs {
            return Err(Failure::QueueFull);
        }
        Ok(())
    }

    /// Queues all prompts of a job, or none.
    fn queue(&mut self, work: &Work) -> Result<Vec<RequestId>, Failure> {
        let owner = self.llm.new_owner();
        let mut ids = Vec::with_capacity(work.prompts.len());
        for prompt in &work.prompts {
            let added = self.fit(prompt, work).and_then(|params| {
                let is_n = params.beam.is_some_and(|beam| beam.width == params.n);
                self.llm.add_for(owner, prompt, params).map_err(|error| match error {
                    // The beam width comes from `best_of`, or from `n` if the request has no `best_of`.
                    engine::Error::Request(Refusal { field: Some("beam_width"), why }) if is_n => {
                        Failure::Refused(Refusal { field: Some("n"), why })
                    }
                    engine::Error::Request(Refusal { field: Some("prompt"), why }) => {
                        Failure::Refused(Refusal { field: Some(work.field), why })
                    }
                    engine::Error::Request(refusal) => Failure::Refused(refusal),
                    other => Failure::Refused(Refusal { field: None, why: other.to_string() }),
                })
            });
            match added {
                Ok(id) => ids.push(id),
                Err(why) => {
                    self.abort(ids);
                    return Err(why);
                }
            }
        }
        Ok(ids)
    }

    /// Returns the sampling parameters of a prompt. If the request sets no maximum length, the output may fill the
    /// context.
    fn fit(&self, prompt: &Prompt, work: &Work) -> Result<SamplingParams, Failure> {
        let mut params = work.params.clone();
        let Prompt::Encoded { tokens, .. } = prompt else { return Ok(params) };
        let (prompt, most) = (tokens.len(), self.llm.engine().context_len(tokens, &params));
        let room = most.saturating_sub(prompt);
        if params.max_tokens > room {
            let (param, asked) = match work.asked {
                _ if room == 0 => (work.field, None),
                Some(param) => (param, Some(params.max_tokens)),
                None => {
                    params.max_tokens = room;
                    return Ok(params);
                }
            };
            return Err(Failure::NoRoom { param, prompt, asked, most });
        }
        Ok(params)
    }

    /// Cancels requests. Only jobs that still exist receive the last events.
    fn abort(&mut self, requests: Vec<RequestId>) {
        for id in requests {
            self.llm.abort(id);
            self.metrics.aborted.inc();
        }
    }

    /// Delivers and counts the events of the step that began at `begun`.
    fn deliver(&mut self, events: Vec<Event>, begun: Instant) {
        self.report_changes();
        let now = Instant::now();
        self.jobs.scheduled(begun, self.llm.engine().admitted());
        let mut last = None;
        for event in &events {
            match event {
                // The events of a request are adjacent within a step, so all its tokens of the step count once.
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

    /// Cleans up after a failed step. Fails the requests that took part in it or had begun to answer. Returns the other
    /// requests with their jobs, and drops the engine.
    fn salvage(mut self) -> (Jobs, Vec<Waiting>) {
        let waiting = |g: &SequenceGroup| {
            let (text, tokens) = self.llm.prompt(g.id)?;
            let prompt = Prompt::Encoded { text: text.to_owned(), tokens: tokens.to_vec() };
            Some(Waiting { id: g.id, owner: g.owner, prompt, params: g.params.clone() })
        };
        let untouched = self.llm.engine().scheduler().untouched();
        let mut waiting: Vec<Waiting> = untouched.into_iter().filter_map(waiting).collect();
        let mut lost = self.jobs.requests();
        lost.retain(|id| waiting.iter().all(|w| w.id != *id));
        for &id in &lost {
            self.metrics.finished.lost(id, self.jobs.age(id));
        }
        let others = self.jobs.fail(&lost, &Failure::Engine);
        waiting.retain(|w| !others.contains(&w.id));
        (self.jobs, waiting)
    }

    /// Queues the waiting requests of an earlier engine again.
    fn resume(&mut self, waiting: Vec<Waiting>) {
        let (mut names, mut lost) = (Vec::with_capacity(waiting.len()), Vec::new());
        let mut owners = BTreeMap::new();
        for Waiting { id, owner, prompt, params } in waiting {
            let owner = *owners.entry(owner).or_insert_with(|| self.llm.new_owner());
            match self.llm.add_for(owner, &prompt, params) {
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
