//! Event operations of a context.

use super::context::DriverContext;
use super::event::{EventState, Recorded};
use super::queue::{StreamId, StreamOrder, Until};
use super::result_code::{Result, ResultCode};
use super::session::Session;
use super::work::Work;

impl DriverContext {
    pub fn create_event(&mut self, timed: bool) -> Result<u32> {
        self.healthy()?;
        let id = self.id();
        self.events.insert(id, EventState { timed, recorded: Recorded::Never, at: None });
        Ok(id)
    }

    pub fn destroy_event(&mut self, event: u32) -> Result<()> {
        self.events.remove(&event).map(|_| ()).ok_or(ResultCode::InvalidHandle)
    }

    pub fn record_event(&mut self, event: u32, stream: StreamId) -> Result<()> {
        self.healthy()?;
        let order = self.order(stream)?;
        self.check_default(stream)?;
        if !self.events.contains_key(&event) {
            return Err(ResultCode::InvalidHandle);
        }
        let recorded = match self.capture_of(stream) {
            Some(capture) if capture.invalid => return Err(ResultCode::CaptureInvalidated),
            Some(capture) => Recorded::Captured(capture.id, capture.clock(stream)),
            None => Recorded::Queued(self.queue.push(stream, order, None, Work::Record { event })),
        };
        self.events.entry(event).and_modify(|event| (event.recorded, event.at) = (recorded, None));
        Ok(())
    }

    pub fn wait_event(&mut self, stream: StreamId, event: u32) -> Result<()> {
        self.healthy()?;
        let order = self.order(stream)?;
        self.check_default(stream)?;
        let event = self.events.get(&event).ok_or(ResultCode::InvalidHandle)?;
        match &event.recorded {
            Recorded::Never => Ok(()),
            Recorded::Queued(seq) => {
                let seq = *seq;
                if let Some(capture) = self.capture_of(stream) {
                    capture.invalid = true;
                    return Err(ResultCode::CaptureIsolation);
                }
                self.queue.push(stream, order, Some(seq), Work::Wait);
                Ok(())
            }
            Recorded::Captured(id, clock) => {
                let (id, clock) = (*id, clock.clone());
                if order == StreamOrder::Default {
                    return Err(ResultCode::CaptureImplicit);
                }
                if self.capture_of(stream).is_some_and(|capture| capture.id != id) {
                    return Err(ResultCode::CaptureIsolation);
                }
                let capture =
                    self.captures.iter_mut().find(|capture| capture.id == id).ok_or(ResultCode::CapturedEvent)?;
                capture.join(stream, &clock);
                Ok(())
            }
        }
    }

    /// The milliseconds from one event to another.
    pub fn elapsed(&self, start: u32, end: u32) -> Result<f32> {
        self.healthy()?;
        let at = |event| {
            let event: &EventState = self.events.get(event).ok_or(ResultCode::InvalidHandle)?;
            match event.recorded {
                Recorded::Queued(_) if event.timed => event.at.ok_or(ResultCode::NotReady),
                _ => Err(ResultCode::InvalidHandle),
            }
        };
        let (start, end) = (at(&start)?, at(&end)?);
        let millis = |span: std::time::Duration| span.as_secs_f32() * 1e3;
        Ok(if end >= start { millis(end - start) } else { -millis(start - end) })
    }
}

impl Session<'_> {
    pub fn synchronize_event(&mut self, event: u32) -> Result<()> {
        self.healthy()?;
        match self.events.get(&event).ok_or(ResultCode::InvalidHandle)?.recorded {
            Recorded::Never => Ok(()),
            Recorded::Queued(seq) => self.run(Until::Work(seq)),
            Recorded::Captured(..) => Err(ResultCode::CapturedEvent),
        }
    }

    /// Whether an event has been reached. If it has not, this executes the stream's work up to the event, so the next
    /// query succeeds.
    pub fn query_event(&mut self, event: u32) -> Result<()> {
        let pending = match self.events.get(&event).ok_or(ResultCode::InvalidHandle)?.recorded {
            Recorded::Queued(seq) => self.is_pending(Until::Work(seq)),
            _ => false,
        };
        self.synchronize_event(event)?;
        if pending { Err(ResultCode::NotReady) } else { Ok(()) }
    }
}
