//! What a context does with streams: it creates them, and waits for their work.

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

    /// Forgets a stream. Its work will still be done.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<()> {
        self.streams.remove(&stream).map(|_| ()).ok_or(ResultCode::InvalidHandle)?;
        self.captures.iter_mut().filter(|capture| capture.has(stream)).for_each(|capture| capture.invalid = true);
        Ok(())
    }

    /// Checks that a stream can be waited for.
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
    /// Does all work of a stream.
    pub fn synchronize_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        self.run(Until::Stream(stream))
    }

    /// Whether a stream's work is done. If it is not, it is done before this returns, so that the next answer is yes.
    pub fn query_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        let pending = self.is_pending(Until::Stream(stream));
        self.run(Until::Stream(stream))?;
        if pending { Err(ResultCode::NotReady) } else { Ok(()) }
    }

    /// Does all work.
    pub fn synchronize(&mut self) -> Result<()> {
        self.check_waiting()?;
        self.run(Until::Everything)
    }

    /// Does all work before memory is freed that it may use. Fails only if a capture forbids it; what fails in the work is
    /// reported by later calls.
    pub fn finish(&mut self) -> Result<()> {
        if self.failed.is_none() {
            self.check_waiting()?;
            let _ = self.run(Until::Everything);
        }
        Ok(())
    }
}
