//! The jobs that wait for the engine's requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::group::RequestId;
use engine::llm::RequestEvent;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Failure, JobUpdate};

/// All jobs in progress.
#[derive(Debug, Default)]
pub struct Jobs {
    next: u64,
    jobs: BTreeMap<u64, Entry>,
    requests: BTreeMap<RequestId, Place>,
}

#[derive(Debug)]
struct Entry {
    messages: mpsc::Sender<JobUpdate>,
    stream: bool,
    /// Those that are not complete.
    requests: Vec<RequestId>,
}

/// The job that a request of the engine belongs to, and its times.
#[derive(Clone, Copy, Debug)]
struct Place {
    job: u64,
    prompt: usize,
    /// When it arrived.
    arrival: Instant,
    /// How long it then waited for its first step, if it had one.
    queued: Option<Duration>,
    /// When its latest tokens came.
    last_token: Option<Instant>,
}

impl Jobs {
    /// Takes in a job whose prompts are these requests of the engine.
    pub fn insert(&mut self, messages: mpsc::Sender<JobUpdate>, stream: bool, requests: Vec<RequestId>) {
        let job = self.next;
        self.next += 1;
        let arrival = Instant::now();
        for (prompt, &id) in requests.iter().enumerate() {
            self.requests.insert(id, Place { job, prompt, arrival, queued: None, last_token: None });
        }
        self.jobs.insert(job, Entry { messages, stream, requests });
    }

    /// Removes the jobs that were dropped, and returns their requests.
    pub fn take_abandoned(&mut self) -> Vec<RequestId> {
        let gone: Vec<u64> = self.jobs.iter().filter(|(_, job)| job.messages.is_closed()).map(|(id, _)| *id).collect();
        gone.into_iter().flat_map(|job| self.remove(job)).collect()
    }

    /// Notes that the step begun at `begun` was the first of `requests`.
    pub fn scheduled(&mut self, begun: Instant, requests: &[RequestId]) {
        for id in requests {
            if let Some(place) = self.requests.get_mut(id) {
                place.queued = Some(begun.saturating_duration_since(place.arrival));
            }
        }
    }

    /// How long a request waited for its first step; nothing if it had none, or its job was removed.
    pub fn queue_time(&self, id: RequestId) -> Option<Duration> {
        self.requests.get(&id)?.queued
    }

    /// Hands a step's events out. Returns the requests of jobs that do not read theirs; they are removed.
    pub fn deliver(&mut self, events: Vec<RequestEvent>) -> Vec<RequestId> {
        let mut messages: BTreeMap<u64, Vec<(usize, RequestEvent)>> = BTreeMap::new();
        for event in events {
            let id = event.request();
            let Some(place) = self.requests.get(&id).copied() else { continue };
            let Some(job) = self.jobs.get_mut(&place.job) else { continue };
            if matches!(event, RequestEvent::Done(_)) {
                job.requests.retain(|r| *r != id);
                self.requests.remove(&id);
            } else if !job.stream {
                continue;
            }
            messages.entry(place.job).or_default().push((place.prompt, event));
        }
        let mut unread = Vec::new();
        for (id, events) in messages {
            let Some(job) = self.jobs.get(&id) else { continue };
            match job.messages.try_send(Ok(events)) {
                Err(TrySendError::Full(_)) => unread.extend(self.remove(id)),
                // A job that has just been dropped is found before the next step.
                Ok(()) | Err(TrySendError::Closed(_)) if job.requests.is_empty() => {
                    self.jobs.remove(&id);
                }
                _ => {}
            }
        }
        unread
    }

    /// Fails the jobs that any of `requests` belongs to. Returns the other requests of these jobs.
    pub fn fail(&mut self, requests: &[RequestId], why: &Failure) -> Vec<RequestId> {
        let mut others = Vec::new();
        for id in requests {
            if let Some(place) = self.requests.get(id).copied() {
                if let Some(job) = self.jobs.get(&place.job) {
                    // If its channel is full the job sees an end without an answer.
                    let _ = job.messages.try_send(Err(why.clone()));
                }
                others.extend(self.remove(place.job).into_iter().filter(|r| !requests.contains(r)));
            }
        }
        others
    }

    /// Fails all jobs.
    pub fn fail_all(&mut self, why: &Failure) {
        self.fail(&self.requests(), why);
    }

    /// All requests in progress.
    pub fn requests(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// Time since a request arrived; zero if its job was removed.
    pub fn age(&self, id: RequestId) -> Duration {
        self.requests.get(&id).map_or(Duration::ZERO, |place| place.arrival.elapsed())
    }

    /// Gives requests other names, from the first to the second of each pair: they were queued in another engine.
    pub fn rename(&mut self, names: &[(RequestId, RequestId)]) {
        // All old names go before any new one comes, since they may be the same.
        let places: Vec<Option<Place>> = names.iter().map(|(from, _)| self.requests.remove(from)).collect();
        for job in self.jobs.values_mut() {
            for id in &mut job.requests {
                *id = names.iter().find(|name| name.0 == *id).map_or(*id, |name| name.1);
            }
        }
        self.requests.extend(names.iter().zip(places).filter_map(|(name, place)| Some((name.1, place?))));
    }

    /// Notes that a request got tokens at `now`, and returns when it last did.
    pub fn touch(&mut self, id: RequestId, now: Instant) -> Option<Instant> {
        self.requests.get_mut(&id)?.last_token.replace(now)
    }

    fn remove(&mut self, job: u64) -> Vec<RequestId> {
        let requests = self.jobs.remove(&job).map(|job| job.requests).unwrap_or_default();
        for id in &requests {
            self.requests.remove(id);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_time_ends_with_the_first_step() {
        let mut jobs = Jobs::default();
        let (messages, _reader) = mpsc::channel(1);
        jobs.insert(messages, true, vec![3, 4]);
        assert_eq!(jobs.queue_time(3), None);
        let begun = Instant::now();
        jobs.scheduled(begun, &[3]);
        let first = jobs.queue_time(3);
        assert!(first.is_some() && jobs.queue_time(4).is_none());
        let second = Duration::from_secs(5);
        jobs.scheduled(begun + second, &[4]);
        assert_eq!(jobs.queue_time(3), first);
        assert!(jobs.queue_time(4).is_some_and(|queued| queued >= second));
    }

    #[test]
    fn what_was_queued_again_still_waits() {
        let mut jobs = Jobs::default();
        let (messages, _reader) = mpsc::channel(1);
        jobs.insert(messages, true, vec![3, 4]);
        jobs.rename(&[(4, 0), (3, 1)]);
        jobs.scheduled(Instant::now(), &[0]);
        assert!(jobs.queue_time(0).is_some() && jobs.queue_time(1).is_none());
    }
}
