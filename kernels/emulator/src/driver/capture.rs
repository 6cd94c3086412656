//! Streams whose work is recorded instead of done.

use super::code::{Code, Result};
use super::queue::StreamId;
use super::work::Work;
use std::collections::HashMap;
use std::thread::ThreadId;

/// How much of each stream's work something comes after.
pub(super) type Clock = HashMap<StreamId, usize>;

/// What else is forbidden while a capture goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureMode {
    /// No thread may do what could wait for the capture.
    Global,
    /// This thread may not.
    ThreadLocal,
    /// Nothing is.
    Relaxed,
}

/// A capture that goes on.
#[derive(Debug)]
pub(super) struct Capture {
    pub id: u32,
    pub origin: StreamId,
    mode: CaptureMode,
    thread: ThreadId,
    /// For each stream that takes part, what its next work comes after.
    clocks: HashMap<StreamId, Clock>,
    nodes: Vec<Work>,
    /// Whether something forbidden has spoilt it.
    pub invalid: bool,
}

impl Capture {
    pub fn begin(id: u32, origin: StreamId, mode: CaptureMode) -> Self {
        let thread = std::thread::current().id();
        let clocks = HashMap::from([(origin, Clock::new())]);
        Self { id, origin, mode, thread, clocks, nodes: Vec::new(), invalid: false }
    }

    /// Whether a stream takes part.
    pub fn has(&self, stream: StreamId) -> bool {
        self.clocks.contains_key(&stream)
    }

    /// Whether what could wait for the capture is forbidden to the calling thread.
    pub fn forbids_waiting(&self) -> bool {
        match self.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => self.thread == std::thread::current().id(),
            CaptureMode::Relaxed => false,
        }
    }

    /// Records work of a stream that takes part.
    pub fn add(&mut self, stream: StreamId, work: Work) -> Result<()> {
        if self.invalid {
            return Err(Code::CaptureInvalidated);
        }
        *self.clocks.entry(stream).or_default().entry(stream).or_default() += 1;
        self.nodes.push(work);
        Ok(())
    }

    /// What an event that is recorded in a stream now comes after.
    pub fn clock(&self, stream: StreamId) -> Clock {
        self.clocks.get(&stream).cloned().unwrap_or_default()
    }

    /// Lets a stream go on after a clock; it takes part from now on.
    pub fn join(&mut self, stream: StreamId, after: &Clock) {
        let clock = self.clocks.entry(stream).or_default();
        for (&other, &count) in after {
            let known = clock.entry(other).or_default();
            *known = count.max(*known);
        }
    }

    /// The recorded work in the order in which it was asked for.
    pub fn end(self) -> Result<Vec<Work>> {
        if self.thread != std::thread::current().id() && self.mode != CaptureMode::Relaxed {
            return Err(Code::CaptureWrongThread);
        }
        if self.invalid {
            return Err(Code::CaptureInvalidated);
        }
        let done = self.clock(self.origin);
        let joined = |(stream, clock): (&StreamId, &Clock)| clock.get(stream) <= done.get(stream);
        if self.clocks.iter().all(joined) { Ok(self.nodes) } else { Err(Code::CaptureUnjoined) }
    }
}
