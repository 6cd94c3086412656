//! What a context does with streams: it creates them, and waits for their work.

use super::context::{DriverContext, StreamSettings};
use super::queue::{StreamId, StreamOrder, Until};
use super::result_code::{Result, ResultCode};

impl DriverContext {
    pub fn create_stream(&mut self, order: StreamOrder, priority: i32) -> Result<StreamId> {
        self.healthy()?;
        let id = self.id();
        self.streams.insert(id, StreamSettings { order, priority });
        Ok(id)
    }

    /// Forgets a stream; its work will be done all the same.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<()> {
        self.streams.remove(&stream).map(|_| ()).ok_or(ResultCode::InvalidHandle)?;
        self.captures.iter_mut().filter(|capture| capture.has(stream)).for_each(|capture| capture.invalid = true);
        Ok(())
    }

    /// Does all work of a stream.
    pub fn synchronize_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        self.run(Until::Stream(stream))
    }

    /// Whether a stream's work is done. Asking lets time pass: it is done afterwards.
    pub fn query_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        let pending = self.queue.is_pending(Until::Stream(stream));
        self.run(Until::Stream(stream))?;
        if pending { Err(ResultCode::NotReady) } else { Ok(()) }
    }

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

    /// Does all work.
    pub fn synchronize(&mut self) -> Result<()> {
        self.check_waiting()?;
        self.run(Until::Everything)
    }

    /// Does all work, since memory is to go that it may use; what fails in it is for later calls to tell. Fails only where
    /// a capture forbids it.
    pub fn finish(&mut self) -> Result<()> {
        if self.failed.is_none() {
            self.check_waiting()?;
            let _ = self.run(Until::Everything);
        }
        Ok(())
    }
}
