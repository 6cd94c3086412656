//! Devices that access each other's memory.

use crate::code::{Code, check};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Error, Result};
use cust::context::ContextHandle;
use cust::device::Device;
use cust::error::CudaError;
use cust::sys::{self, CUresult};
use emulator::driver::{DeviceOptions, configure, configured};
use std::sync::{Mutex, PoisonError};

impl Driver {
    /// Returns the number of devices.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn num_devices(&self) -> Result<u32> {
        let count = cust::init(cust::CudaFlags::empty()).and_then(|()| Device::num_devices());
        count.map_err(failed)
    }

    /// Makes the emulator have at least `count` devices, all like the first. A machine's devices are not affected.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn emulate_devices(&self, count: u32) -> Result<()> {
        // If two threads ask for different numbers, both get the greater one.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_emulator() || self.num_devices()? >= count {
            return Ok(());
        }
        configure(DeviceOptions { devices: count as usize, ..configured() });
        Ok(())
    }
}

fn failed(error: CudaError) -> Error {
    Error::Cuda { action: "query of the device count".to_owned(), code: error.into(), detail: None }
}

impl Context {
    /// Whether kernels on this device can access the memory of another, once [enabled](Self::enable_peer_access).
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn can_access_peer(&self, peer: &Context) -> Result<bool> {
        let mut can = 0;
        let (own, other) = (self.device().as_raw(), peer.device().as_raw());
        // SAFETY: the pointer is valid for the result.
        self.call("query of peer access", || check(unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) }))?;
        Ok(can != 0)
    }

    /// Lets kernels and copies of this context access all device memory of another, at the same addresses. Access goes
    /// one way only. Enabling it again has no effect.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the devices do not support it or the driver call fails.
    pub fn enable_peer_access(&self, peer: &Context) -> Result<()> {
        self.call("enabling of peer access", || {
            // SAFETY: the context is alive.
            match unsafe { sys::cuCtxEnablePeerAccess(peer.raw().get_inner(), 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok::<(), Code>(()),
                code => check(code),
            }
        })
    }
}
