//! Work for the device: launched, or only noted.

use crate::backend::cuda::gpu;
use std::cell::RefCell;

use cuda_std::launch::{KernelCall, LaunchShape};
use kernels::floor::Floor;
use kernels::gemm::plan::GpuLimits;

use crate::backend::cuda::device::CudaDevice;
use crate::error::{Error, Result};

/// A launch that was noted instead of made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedLaunch {
    /// The kernel.
    pub kernel: &'static str,
    /// The shape of the launch.
    pub shape: LaunchShape,
    /// The least that it costs.
    pub cost: LaunchCost,
}

/// What a launch costs at the least, and what the bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCost {
    /// All bytes and operations.
    pub floor: Floor,
    /// Bytes of weights of projections.
    pub weights: u64,
    /// Bytes of keys and values that attention reads.
    pub kv_cache: u64,
    /// Bytes that a worker takes from other workers.
    pub peers: u64,
}

/// A launch that reads neither weights of projections nor the cache.
impl From<Floor> for LaunchCost {
    fn from(floor: Floor) -> Self {
        LaunchCost { floor, ..LaunchCost::default() }
    }
}

/// The queue of a step's work for the device. Queueing cannot fail: the first error is kept, no work is done after it,
/// and [`LaunchQueue::check`] returns it.
pub struct LaunchQueue {
    /// None where there is no GPU, and only the launches matter.
    device: Option<CudaDevice>,
    limits: GpuLimits,
    /// With `Some`, launches are noted instead of made.
    notes: RefCell<Option<Vec<NotedLaunch>>>,
    failed: RefCell<Option<Error>>,
}

impl LaunchQueue {
    /// Work for a GPU. `hopper_from` says from how many tokens on Hopper's kernel multiplies, where there is one, and
    /// `hopper_decode_from` the same of that for some tokens.
    pub fn new(device: CudaDevice, hopper_from: Option<u32>, hopper_decode_from: Option<u32>) -> Self {
        let of = device.context.limits();
        let own = GpuLimits::new(of.multiprocessors, of.shared_opt_in as u32, of.capability);
        let limits = GpuLimits {
            hopper_from: own.hopper_from.map(|best| hopper_from.unwrap_or(best)),
            hopper_decode_from: hopper_decode_from.unwrap_or(own.hopper_decode_from),
            ..own
        };
        LaunchQueue { device: Some(device), limits, notes: RefCell::default(), failed: RefCell::default() }
    }

    /// Work for a GPU that is not there: everything is a rehearsal.
    pub fn without_device(limits: GpuLimits) -> Self {
        LaunchQueue { device: None, limits, notes: RefCell::default(), failed: RefCell::default() }
    }

    /// What kernels are planned for.
    pub fn limits(&self) -> GpuLimits {
        self.limits
    }

    /// The GPU, if there is one.
    pub fn device(&self) -> Option<&CudaDevice> {
        self.device.as_ref()
    }

    /// Whether work is done, not noted.
    pub fn is_live(&self) -> bool {
        self.device.is_some() && self.notes.borrow().is_none()
    }

    /// Queues a launch; `cost` is what it costs at the least.
    ///
    /// # Safety
    /// The kernel's contract holds, until it has run.
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
            // SAFETY: the kernel's contract holds until it has run, as this function's `# Safety` demands.
            unsafe { device.launch(shape, call) }
        });
    }

    /// Notes what workers exchange in a rehearsal for GPUs that are not there, and that nothing connects.
    pub fn note_exchange(&self, name: &'static str, cost: LaunchCost) {
        if let Some(notes) = &mut *self.notes.borrow_mut() {
            notes.push(NotedLaunch { kernel: name, shape: LaunchShape::linear(0, 0), cost });
        }
    }

    /// Queues something else than a launch, unless this is a rehearsal or something has failed.
    pub fn run(&self, work: impl FnOnce(&CudaDevice) -> launch::Result<()>) {
        let Some(device) = self.device.as_ref().filter(|_| self.is_live() && self.failed.borrow().is_none()) else {
            return;
        };
        if let Err(error) = work(device) {
            self.fail(gpu(error));
        }
    }

    /// Notes that something went wrong.
    pub fn fail(&self, error: Error) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    /// Takes out the first error, if there was one.
    ///
    /// # Errors
    /// That, once.
    pub fn check(&self) -> Result<()> {
        self.failed.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Does `work` without the device, and returns the launches it would have made.
    ///
    /// # Errors
    /// What would have gone wrong before anything was launched.
    pub fn rehearse(&self, work: impl FnOnce()) -> Result<Vec<NotedLaunch>> {
        self.notes.replace(Some(Vec::new()));
        work();
        let launches = self.notes.take().unwrap_or_default();
        self.check().map(|()| launches)
    }
}
