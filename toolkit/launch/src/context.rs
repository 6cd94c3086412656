//! A context on a device.

use crate::code::{self, Code};
use crate::driver::Driver;
use crate::error::{Error, Result};
use cust::context::legacy::{self, ContextFlags, ContextStack, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::sys::{self, CUdevice_attribute};
use std::fmt;
use std::sync::Arc;

/// A context on a device. Clones are handles to the same context.
///
/// It may be used from any thread. Each operation makes its context current to the calling thread and leaves it
/// current.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    own: legacy::Context,
    driver: &'static Driver,
    device: Device,
    name: String,
    limits: DeviceLimits,
}

// SAFETY: a driver context is not tied to a thread, and any thread may call the driver functions.
unsafe impl Send for Inner {}
// SAFETY: as above, and the fields never change.
unsafe impl Sync for Inner {}

impl Inner {
    fn new(driver: &'static Driver, ordinal: u32) -> std::result::Result<Self, Code> {
        let device = Device::get_device(ordinal)?;
        let own = legacy::Context::create_and_push(ContextFlags::SCHED_AUTO, device)?;
        // Current contexts are replaced and never stacked.
        ContextStack::pop()?;
        CurrentContext::set_current(&own)?;
        Ok(Self { own, driver, device, name: device.name()?, limits: DeviceLimits::query(device)? })
    }
}

/// The capabilities and limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The compute capability, major and minor.
    pub capability: (u32, u32),
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The most blocks of a grid, in x, y and z.
    pub grid: [u32; 3],
    /// The most threads of a block, in x, y and z.
    pub block: [u32; 3],
    /// The most bytes of shared memory of a block without opting in.
    pub shared: usize,
    /// The most bytes of shared memory of a block whose kernel opts in.
    pub shared_opt_in: usize,
}

impl DeviceLimits {
    fn query(device: Device) -> std::result::Result<Self, Code> {
        let mut opt_in = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the pointer is valid for the result.
        code::check(unsafe { sys::cuDeviceGetAttribute(&mut opt_in, attribute, device.as_raw()) })?;
        let get = |attribute| device.get_attribute(attribute).map(|value| value.max(0) as u32);
        Ok(Self {
            capability: (get(DeviceAttribute::ComputeCapabilityMajor)?, get(DeviceAttribute::ComputeCapabilityMinor)?),
            multiprocessors: get(DeviceAttribute::MultiprocessorCount)?,
            grid: [
                get(DeviceAttribute::MaxGridDimX)?,
                get(DeviceAttribute::MaxGridDimY)?,
                get(DeviceAttribute::MaxGridDimZ)?,
            ],
            block: [
                get(DeviceAttribute::MaxBlockDimX)?,
                get(DeviceAttribute::MaxBlockDimY)?,
                get(DeviceAttribute::MaxBlockDimZ)?,
            ],
            shared: get(DeviceAttribute::MaxSharedMemoryPerBlock)? as usize,
            shared_opt_in: opt_in.max(0) as usize,
        })
    }
}

impl Context {
    /// Creates a context on a device. Devices are counted from 0.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] if the driver has no such device, and [`Error::Cuda`] if a driver call fails.
    pub fn new(driver: &'static Driver, ordinal: u32) -> Result<Self> {
        let failed = |code: Code| Error::Cuda { action: format!("use of device {ordinal}"), code, detail: None };
        cust::init(cust::CudaFlags::empty()).map_err(|error| failed(error.into()))?;
        let count = Device::num_devices().map_err(|error| failed(error.into()))?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let inner = Inner::new(driver, ordinal).map_err(failed)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether kernels run in the emulator.
    pub fn is_emulator(&self) -> bool {
        self.0.driver.is_emulator()
    }

    /// The driver that the context belongs to.
    pub fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    /// The device, for queries that [`DeviceLimits`] does not cover.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// The capabilities and limits of the device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Returns the free and the total bytes of device memory.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.call("query of the device's memory", cust::memory::mem_get_info)
    }

    /// Waits for all work in the context.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if this call or earlier work failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the function has no preconditions.
        self.call("work on the device", || code::check(unsafe { sys::cuCtxSynchronize() }))
    }

    /// Makes the context current to the calling thread, so that functions of `cust` use it.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn make_current(&self) -> Result<()> {
        self.set_current().map_err(|code| self.error("use of the context", code))
    }

    fn set_current(&self) -> std::result::Result<(), Code> {
        CurrentContext::set_current(&self.0.own).map_err(Code::from)
    }

    /// The underlying driver context.
    pub(crate) fn raw(&self) -> &legacy::Context {
        &self.0.own
    }

    /// Runs a driver call in this context.
    pub(crate) fn call<T, E: Into<Code>>(
        &self,
        action: &str,
        call: impl FnOnce() -> std::result::Result<T, E>,
    ) -> Result<T> {
        let called = self.set_current().and_then(|()| call().map_err(E::into));
        called.map_err(|code| self.error(action, code))
    }

    /// Builds a driver error, including the emulator's fault text if there is one.
    pub(crate) fn error(&self, action: &str, code: Code) -> Error {
        let detail = self.is_emulator().then(emulator::driver::take_fault).flatten();
        Error::Cuda { action: action.to_owned(), code, detail: detail.map(|fault| fault.to_string()) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({}, {})", self.0.driver.name(), self.0.name)
    }
}
