//! A context's device memory, and copies to, from and within it.

use super::context::DriverContext;
use super::host::{mapped_memory, owner_of_mapped};
use super::pools;
use super::queue::{StreamId, Until};
use super::result_code::{Result, ResultCode};
use super::session::Session;
use super::work::{UploadSource, Work};
use crate::host_bytes::HostBytes;
use crate::memory::DeviceAddress;

impl DriverContext {
    /// The total size of all buffers in bytes.
    pub fn allocated(&self) -> usize {
        self.buffers.values().sum()
    }

    fn invalidate_capture(&mut self, stream: StreamId) -> ResultCode {
        if let Some(capture) = self.capture_of(stream) {
            capture.invalid = true;
        }
        ResultCode::CaptureUnsupported
    }
}

impl Session<'_> {
    pub fn allocate(&mut self, bytes: usize) -> Result<DeviceAddress> {
        self.check_waiting()?;
        if bytes == 0 {
            return Err(ResultCode::InvalidValue);
        }
        if bytes > self.device_options.memory - self.allocated() {
            return Err(ResultCode::OutOfMemory);
        }
        let pointer = self.device().alloc(bytes);
        self.buffers.insert(pointer, bytes);
        Ok(pointer)
    }

    /// Frees a buffer after all queued work has run.
    pub fn free(&mut self, pointer: DeviceAddress) -> Result<()> {
        self.finish()?;
        if self.managed.remove(&pointer) {
            self.pinned.free(pointer as usize)?;
            return self.healthy();
        }
        self.buffers.remove(&pointer).ok_or(ResultCode::InvalidValue)?;
        pools::note_freed(pointer);
        self.device().free(pointer).map_err(|_| ResultCode::InvalidValue)?;
        self.healthy()
    }

    /// Allocates a buffer in stream order. The buffer exists at once. If memory is full, runs the stream's queued work
    /// first, which may free some.
    pub fn allocate_in(&mut self, stream: StreamId, bytes: usize) -> Result<DeviceAddress> {
        if self.capture_of(stream).is_some() {
            return Err(self.invalidate_capture(stream));
        }
        match self.allocate(bytes) {
            Err(ResultCode::OutOfMemory) => {
                self.run(Until::Stream(stream))?;
                self.allocate(bytes)
            }
            allocated => allocated,
        }
    }

    /// Frees a buffer when the stream reaches this point.
    pub fn free_in(&mut self, stream: StreamId, pointer: DeviceAddress) -> Result<()> {
        if !self.buffers.contains_key(&pointer) {
            return Err(ResultCode::InvalidValue);
        }
        if self.capture_of(stream).is_some() {
            return Err(self.invalidate_capture(stream));
        }
        self.submit(stream, Work::Free { at: pointer })
    }

    /// Allocates managed memory, which here is host memory that kernels access at the same address.
    pub fn allocate_managed(&mut self, bytes: usize) -> Result<DeviceAddress> {
        self.check_waiting()?;
        let owner = self.id;
        let address = self.pinned.allocate(bytes, Some(owner))? as DeviceAddress;
        self.managed.insert(address);
        Ok(address)
    }

    /// Maps the host memory at an address for copies, if kernels can access it.
    fn map_host(&mut self, at: DeviceAddress) {
        if owner_of_mapped(at as usize).is_some() {
            let state = self.state_mut();
            state.device.memory.map_host(&mapped_memory(|owner| state.contexts.contains_key(&owner)));
        }
    }

    /// Whether an address is device memory or host memory that kernels can access. Copies treat both alike.
    pub fn is_on_device(&mut self, at: DeviceAddress) -> bool {
        self.map_host(at);
        self.device().memory.find(at).is_some()
    }

    /// Checks that a range of bytes is inside one buffer of the context.
    pub fn check_memory(&mut self, call: &str, at: DeviceAddress, bytes: usize) -> Result<()> {
        self.healthy()?;
        self.map_host(at);
        let checked = self.device().check(at, bytes);
        checked.map_err(|error| self.refuse(call, error))
    }

    /// Copies to the device. Page-locked memory is read when the stream reaches the copy, pageable memory now.
    pub fn upload(&mut self, stream: StreamId, to: DeviceAddress, from: HostBytes) -> Result<()> {
        if from.len() == 0 {
            return self.healthy(); // a copy or fill of zero bytes accepts any address
        }
        self.check_memory("copy to the device", to, from.len())?;
        let from = if self.pinned.contains(from) {
            UploadSource::Pinned(from)
        } else if self.capture_of(stream).is_some() {
            return Err(self.invalidate_capture(stream));
        } else {
            UploadSource::Staged(from.read().into())
        };
        self.submit(stream, Work::Upload { to, from })
    }

    /// Copies to the host. Page-locked memory is written when the stream reaches the copy, pageable memory before this
    /// returns.
    pub fn download_to(&mut self, stream: StreamId, to: HostBytes, from: DeviceAddress) -> Result<()> {
        if to.len() == 0 {
            return self.healthy();
        }
        self.check_memory("copy to the host", from, to.len())?;
        let pinned = self.pinned.contains(to);
        if !pinned && self.capture_of(stream).is_some() {
            return Err(self.invalidate_capture(stream));
        }
        self.submit(stream, Work::Download { from, to })?;
        if pinned { Ok(()) } else { self.run(Until::Stream(stream)) }
    }

    pub fn copy(&mut self, stream: StreamId, to: DeviceAddress, from: DeviceAddress, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return self.healthy();
        }
        self.check_memory("copy on the device", to, bytes)?;
        self.check_memory("copy on the device", from, bytes)?;
        self.submit(stream, Work::Copy { to, from, bytes })
    }

    pub fn fill(&mut self, stream: StreamId, at: DeviceAddress, pattern: &[u8], count: usize) -> Result<()> {
        if count == 0 {
            return self.healthy();
        }
        self.check_memory("fill", at, pattern.len().checked_mul(count).ok_or(ResultCode::InvalidValue)?)?;
        if !at.is_multiple_of(pattern.len() as u64) {
            return Err(self.refuse("fill", format!("{at:#x} is not a multiple of {} bytes", pattern.len())));
        }
        self.submit(stream, Work::Fill { at, pattern: pattern.to_vec(), count })
    }
}
