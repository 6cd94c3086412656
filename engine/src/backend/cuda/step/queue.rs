//! The queue of work for the device. In a rehearsal, launches are only recorded as notes.

use crate::backend::cuda::gpu;
use std::cell::RefCell;

use cuda_std::launch::{KernelCall, LaunchShape};
use kernels::floor::Floor;
use kernels::gemm::plan::GpuLimits;

use crate::backend::cuda::device::CudaDevice;
use crate::error::{Error, Result};

/// A launch that was noted in a rehearsal instead of executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedLaunch {
    /// The kernel.
    pub kernel: &'static str,
    /// The shape of the launch.
    pub shape: LaunchShape,
    /// Its minimum cost.
    pub cost: LaunchCost,
}

/// The minimum cost of a launch, with the bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCost {
    /// All bytes and operations.
    pub floor: Floor,
    /// Bytes of projections' weights.
    pub weights: u64,
    /// Bytes of keys and values that attention reads.
    pub kv_cache: u64,
    /// Bytes that a worker receives from other workers.
    pub peers: u64,
}

/// The cost of a launch that reads neither projections' weights nor the cache.
impl From<Floor> for LaunchCost {
    fn from(floor: Floor) -> Self {
        LaunchCost { floor, ..LaunchCost::default() }
    }
}

/// The queue of a step's work for the device. Queueing reports no errors. After the first error no more work is queued,
/// and [`LaunchQueue::check`] returns that error.
pub struct LaunchQueue {
    /// `None` without a GPU. Then everything is a rehearsal.
    device: Option<CudaDevice>,
    limits: GpuLimits,
    /// With `Some`, launches are noted instead of executed.
    notes: RefCell<Option<Vec<NotedLaunch>>>,
    failed: RefCell<Option<Error>>,
}

impl LaunchQueue {
    /// Creates a queue for a GPU. `hopper_from` and `hopper_decode_from` override the numbers of tokens from which
    /// Hopper's prefill and decode kernels for products are used, on GPUs that have them.
    pub fn new(device: CudaDevice, hopper_from: Option<u32>, hopper_decode_from: Option<u32>) -> Self {
        let device_limits = device.context.limits();
        let own =
            GpuLimits::new(device_limits.multiprocessors, device_limits.shared_opt_in as u32, device_limits.capability);
        let limits = GpuLimits {
            hopper_from: own.hopper_from.map(|best| hopper_from.unwrap_or(best)),
            hopper_decode_from: hopper_decode_from.unwrap_or(own.hopper_decode_from),
            ..own
        };
        LaunchQueue { device: Some(device), limits, notes: RefCell::default(), failed: RefCell::default() }
    }

    /// Creates a queue without a GPU, for rehearsals.
    pub fn without_device(limits: GpuLimits) -> Self {
        LaunchQueue { device: None, limits, notes: RefCell::default(), failed: RefCell::default() }
    }

    /// The limits that kernels are planned for.
    pub fn limits(&self) -> GpuLimits {
        self.limits
    }

    /// The GPU, if there is one.
    pub fn device(&self) -> Option<&CudaDevice> {
        self.device.as_ref()
    }

    /// Whether work is executed rather than noted.
    pub fn is_live(&self) -> bool {
        self.device.is_some() && self.notes.borrow().is_none()
    }

    /// Queues a launch. `cost` returns its minimum cost.
    ///
    /// # Safety
    /// The kernel's contract must hold until it has run.
    pub unsafe fn launch<C: Into<LaunchCost>>(
        &self,
        shape: LaunchShape,
        call: impl Into<KernelCall>,
        cost: impl FnOnce() -> C,
    ) {
        let call = call.into();
        if let Some(notes) = &mut *self.notes.borrow_mut() {
            notes.push(NotedLaunch { kernel: call.descriptor().name, shape, cost: cost().into() });
            return;
        }
        self.run(|device| {
            // SAFETY: the caller ensures that the kernel's contract holds until it has run.
            unsafe { device.launch(shape, call) }
        });
    }

    /// Notes an exchange between workers, in a rehearsal without connected GPUs.
    pub fn note_exchange(&self, name: &'static str, cost: LaunchCost) {
        if let Some(notes) = &mut *self.notes.borrow_mut() {
            notes.push(NotedLaunch { kernel: name, shape: LaunchShape::linear(0, 0), cost });
        }
    }

    /// Queues an operation other than a launch. Does nothing in a rehearsal or after a failure.
    pub fn run(&self, work: impl FnOnce(&CudaDevice) -> launch::Result<()>) {
        let Some(device) = self.device.as_ref().filter(|_| self.is_live() && self.failed.borrow().is_none()) else {
            return;
        };
        if let Err(error) = work(device) {
            self.fail(gpu(error));
        }
    }

    /// Records an error. Only the first one is kept.
    pub fn fail(&self, error: Error) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    /// Removes and returns the first error, if any.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<()> {
        self.failed.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Runs `work` without the device and returns the launches that it would have made.
    ///
    /// # Errors
    /// An error that would have occurred before the launches.
    pub fn rehearse(&self, work: impl FnOnce()) -> Result<Vec<NotedLaunch>> {
        self.notes.replace(Some(Vec::new()));
        work();
        let launches = self.notes.take().unwrap_or_default();
        self.check().map(|()| launches)
    }
}
