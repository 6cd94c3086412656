//! The jobs in progress and their engine requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::Event;
use engine::RequestId;
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
    /// The requests that are not complete.
    requests: Vec<RequestId>,
}

/// The job and prompt of an engine request, and its times.
#[derive(Clone, Copy, Debug)]
struct Place {
    job: u64,
    prompt: usize,
    /// When the request arrived.
    arrival: Instant,
    /// How long it waited for its first step, if it had one.
    queued: Option<Duration>,
    /// When its latest tokens were generated.
    last_token: Option<Instant>,
}

impl Jobs {
    /// Adds a job. `requests` are the engine requests of its prompts, in order.
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

    /// Records that the step that began at `begun` was the first of `requests`.
    pub fn scheduled(&mut self, begun: Instant, requests: &[RequestId]) {
        for id in requests {
            if let Some(place) = self.requests.get_mut(id) {
                place.queued = Some(begun.saturating_duration_since(place.arrival));
            }
        }
    }

    /// Returns how long a request waited for its first step. `None` if it had none or its job was removed.
    pub fn queue_time(&self, id: RequestId) -> Option<Duration> {
        self.requests.get(&id)?.queued
    }

    /// Sends a step's events to their jobs. Removes the jobs whose channel is full and returns their requests.
    pub fn deliver(&mut self, events: Vec<Event>) -> Vec<RequestId> {
        let mut messages: BTreeMap<u64, Vec<(usize, Event)>> = BTreeMap::new();
        for event in events {
            let id = event.request();
            let Some(place) = self.requests.get(&id).copied() else { continue };
            let Some(job) = self.jobs.get_mut(&place.job) else { continue };
            if matches!(event, Event::Done(_)) {
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
                // A job dropped just now is found before the next step.
                Ok(()) | Err(TrySendError::Closed(_)) if job.requests.is_empty() => {
                    self.jobs.remove(&id);
                }
                _ => {}
            }
        }
        unread
    }

    /// Fails every job that owns one of `requests`. Returns the other requests of these jobs.
    pub fn fail(&mut self, requests: &[RequestId], why: &Failure) -> Vec<RequestId> {
        let mut others = Vec::new();
        for id in requests {
            if let Some(place) = self.requests.get(id).copied() {
                if let Some(job) = self.jobs.get(&place.job) {
                    // If the channel is full, the job sees it close without an answer.
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

    /// Returns all requests in progress.
    pub fn requests(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// Returns the time since a request arrived, or zero if its job was removed.
    pub fn age(&self, id: RequestId) -> Duration {
        self.requests.get(&id).map_or(Duration::ZERO, |place| place.arrival.elapsed())
    }

    /// Changes the ids of requests that were queued again in a new engine. Each pair has the old and the new id.
    pub fn rename(&mut self, names: &[(RequestId, RequestId)]) {
        // Removes all old ids before it adds new ones, because the two sets may overlap.
        let places: Vec<Option<Place>> = names.iter().map(|(from, _)| self.requests.remove(from)).collect();
        for job in self.jobs.values_mut() {
            for id in &mut job.requests {
                *id = names.iter().find(|name| name.0 == *id).map_or(*id, |name| name.1);
            }
        }
        self.requests.extend(names.iter().zip(places).filter_map(|(name, place)| Some((name.1, place?))));
    }

    /// Records that a request got tokens at `now`. Returns when it last did.
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
    fn requeued_requests_still_wait() {
        let mut jobs = Jobs::default();
        let (messages, _reader) = mpsc::channel(1);
        jobs.insert(messages, true, vec![3, 4]);
        jobs.rename(&[(4, 0), (3, 1)]);
        jobs.scheduled(Instant::now(), &[0]);
        assert!(jobs.queue_time(0).is_some() && jobs.queue_time(1).is_none());
    }
}
