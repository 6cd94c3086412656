//! Stream operations of a context: creation, destruction and waiting.

use super::context::{DriverContext, StreamSettings};
use super::queue::{StreamId, StreamOrder, Until};
use super::result_code::{Result, ResultCode};
use super::session::Session;

impl DriverContext {
    /// Creates a stream.
    pub fn create_stream(&mut self, order: StreamOrder, priority: i32) -> Result<StreamId> {
        self.healthy()?;
        let id = self.id();
        self.streams.insert(id, StreamSettings { order, priority });
        Ok(id)
    }

    /// Destroys a stream. Its queued work still runs.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<()> {
        self.streams.remove(&stream).map(|_| ()).ok_or(ResultCode::InvalidHandle)?;
        self.captures.iter_mut().filter(|capture| capture.has(stream)).for_each(|capture| capture.invalid = true);
        Ok(())
    }

    /// Fails if a stream cannot be waited for now, because of a capture. That capture becomes invalid.
    fn check_stream(&mut self, stream: StreamId) -> Result<()> {
        self.healthy()?;
        self.order(stream)?;
        self.check_default(stream)?;
        match self.capture_of(stream) {
            Some(capture) => {
                capture.invalid = true;
                Err(ResultCode::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }
}

impl Session<'_> {
    /// Executes all queued work of a stream.
    pub fn synchronize_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        self.run(Until::Stream(stream))
    }

    /// Whether a stream's work is done. If it is not, this executes it before returning, so the next query succeeds.
    pub fn query_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        let pending = self.is_pending(Until::Stream(stream));
        self.run(Until::Stream(stream))?;
        if pending { Err(ResultCode::NotReady) } else { Ok(()) }
    }

    /// Executes all queued work of the context.
    pub fn synchronize(&mut self) -> Result<()> {
        self.check_waiting()?;
        self.run(Until::Everything)
    }

    /// Executes all queued work before memory that it may use is freed. Fails only if a capture forbids waiting. Errors
    /// of the work itself are returned by later calls.
    pub fn finish(&mut self) -> Result<()> {
        if self.failed.is_none() {
            self.check_waiting()?;
            let _ = self.run(Until::Everything);
        }
        Ok(())
    }
}
