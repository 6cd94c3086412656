//! Stream capture: the work of captured streams is recorded instead of executed.

use super::queue::StreamId;
use super::result_code::{Result, ResultCode};
use super::work::Work;
use std::collections::HashMap;
use std::thread::ThreadId;

/// For each stream, the number of its work items that come before some point.
pub(super) type CaptureClock = HashMap<StreamId, usize>;

/// The calls that an open capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureMode {
    /// No thread may make a call that could wait for captured work.
    Global,
    /// The thread that began the capture may not make such a call.
    ThreadLocal,
    /// All calls are allowed.
    Relaxed,
}

/// An open capture.
#[derive(Debug)]
pub(super) struct Capture {
    pub id: u32,
    pub origin: StreamId,
    mode: CaptureMode,
    thread: ThreadId,
    /// For each stream in the capture, the work that its next item depends on.
    clocks: HashMap<StreamId, CaptureClock>,
    nodes: Vec<Work>,
    /// Whether a forbidden call has invalidated the capture.
    pub invalid: bool,
}

impl Capture {
    pub fn begin(id: u32, origin: StreamId, mode: CaptureMode) -> Self {
        let thread = std::thread::current().id();
        let clocks = HashMap::from([(origin, CaptureClock::new())]);
        Self { id, origin, mode, thread, clocks, nodes: Vec::new(), invalid: false }
    }

    /// Whether a stream takes part in the capture.
    pub fn has(&self, stream: StreamId) -> bool {
        self.clocks.contains_key(&stream)
    }

    /// Whether the calling thread must not make a call that could wait for captured work.
    pub fn forbids_waiting(&self) -> bool {
        match self.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => self.thread == std::thread::current().id(),
            CaptureMode::Relaxed => false,
        }
    }

    /// Records work of a stream that takes part in the capture.
    pub fn add(&mut self, stream: StreamId, work: Work) -> Result<()> {
        if self.invalid {
            return Err(ResultCode::CaptureInvalidated);
        }
        *self.clocks.entry(stream).or_default().entry(stream).or_default() += 1;
        self.nodes.push(work);
        Ok(())
    }

    /// The clock of an event that is recorded in a stream now.
    pub fn clock(&self, stream: StreamId) -> CaptureClock {
        self.clocks.get(&stream).cloned().unwrap_or_default()
    }

    /// Makes a stream wait for the work that a clock covers. The stream takes part in the capture from now on.
    pub fn join(&mut self, stream: StreamId, after: &CaptureClock) {
        let clock = self.clocks.entry(stream).or_default();
        for (&other, &count) in after {
            let latest = clock.entry(other).or_default();
            *latest = count.max(*latest);
        }
    }

    /// Ends the capture and returns the recorded work in submission order.
    pub fn end(self) -> Result<Vec<Work>> {
        if self.thread != std::thread::current().id() && self.mode != CaptureMode::Relaxed {
            return Err(ResultCode::CaptureWrongThread);
        }
        if self.invalid {
            return Err(ResultCode::CaptureInvalidated);
        }
        let done = self.clock(self.origin);
        let joined = |(stream, clock): (&StreamId, &CaptureClock)| clock.get(stream) <= done.get(stream);
        if self.clocks.iter().all(joined) { Ok(self.nodes) } else { Err(ResultCode::CaptureUnjoined) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    fn capture() -> Capture {
        let mut capture = Capture::begin(1, 10, CaptureMode::ThreadLocal);
        capture.add(10, Work::Wait).unwrap();
        let fork = capture.clock(10);
        capture.join(11, &fork);
        capture
    }

    #[test]
    fn a_forked_stream_without_work_needs_no_joining() {
        assert_eq!(capture().end().unwrap().len(), 1);
    }

    #[test]
    fn work_of_a_forked_stream_must_be_joined_after_its_end() {
        let mut early = capture();
        let before = early.clock(11);
        early.add(11, Work::Wait).unwrap();
        early.join(10, &before);
        assert_eq!(early.end().unwrap_err(), ResultCode::CaptureUnjoined);

        let mut joined = capture();
        joined.add(11, Work::Wait).unwrap();
        let after = joined.clock(11);
        joined.join(10, &after);
        assert_eq!(joined.end().unwrap().len(), 2);
    }

    #[test]
    fn a_capture_ends_on_its_own_thread_unless_it_is_relaxed() {
        let elsewhere = |mode| std::thread::spawn(move || Capture::begin(1, 10, mode)).join().unwrap();
        let ours = elsewhere(CaptureMode::ThreadLocal);
        assert!(!ours.forbids_waiting() && elsewhere(CaptureMode::Global).forbids_waiting());
        assert_eq!(ours.end().unwrap_err(), ResultCode::CaptureWrongThread);
        assert!(elsewhere(CaptureMode::Relaxed).end().is_ok());
    }
}
