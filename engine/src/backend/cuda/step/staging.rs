//! Uploading a step's inputs: they are packed, copied to pinned memory and uploaded in one transfer.

use std::cell::RefCell;

use launch::{DeviceBuffer, Event, PinnedBuffer};

use crate::backend::cuda::device::CudaDevice;
use crate::backend::cuda::step::graph::Recordings;
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::cuda::step::queue::LaunchQueue;

/// Initial size of the buffers in bytes.
const INITIAL_BYTES: usize = 1 << 20;

/// Buffers that all steps use, one after the other.
#[derive(Default)]
pub struct Staging(RefCell<State>);

#[derive(Default)]
struct State {
    packed: Vec<u8>,
    buffers: Option<Buffers>,
}

struct Buffers {
    pinned: PinnedBuffer<u8>,
    memory: DeviceBuffer<u8>,
    /// Recorded when the upload is complete.
    taken: Event,
}

impl Buffers {
    fn new(device: &CudaDevice, bytes: usize) -> launch::Result<Self> {
        let memory = DeviceBuffer::uninit(&device.context, bytes)?.named("inputs");
        let pinned = PinnedBuffer::zeroed(&device.context, bytes)?;
        Ok(Buffers { pinned, memory, taken: Event::new(&device.context)? })
    }
}

impl Staging {
    /// Uploads the bytes that `pack` writes. If they need a larger buffer, recordings are dropped because they read the
    /// old one.
    pub fn upload(
        &self,
        queue: &LaunchQueue,
        recordings: &Recordings,
        pack: impl FnOnce(&mut Vec<u8>) -> StepInputs,
    ) -> StepInputs {
        let State { packed, buffers } = &mut *self.0.borrow_mut();
        let mut inputs = pack(packed);
        queue.run(|device| {
            let bytes = packed.len();
            if buffers.as_ref().is_none_or(|buffers| buffers.memory.len() < bytes) {
                device.stream.synchronize()?;
                recordings.clear();
                *buffers = Some(Buffers::new(device, bytes.next_power_of_two().max(INITIAL_BYTES))?);
            }
            if let Some(Buffers { pinned, memory, taken }) = buffers {
                taken.synchronize()?;
                pinned[..bytes].copy_from_slice(packed);
                // SAFETY: the pinned buffer is not written again before the event, which every later upload waits for.
                unsafe { device.stream.upload_async(&pinned[..bytes], memory.slice(0..bytes)) }?;
                taken.record(&device.stream)?;
                inputs.base = memory.address();
            }
            Ok(())
        });
        inputs
    }
}
