//! Devices that use each other's memory.

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
    /// The number of devices.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn num_devices(&self) -> Result<u32> {
        let count = cust::init(cust::CudaFlags::empty()).and_then(|()| Device::num_devices());
        count.map_err(failed)
    }

    /// Sees to it that the emulator has at least so many devices, all like the first. A machine has those that it has.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn emulate_devices(&self, count: u32) -> Result<()> {
        // Two threads that want different numbers get the greater.
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
    Error::Cuda { action: "count of the devices".to_owned(), code: error.into(), detail: None }
}

impl Context {
    /// Whether kernels on this device can use the memory of another, once [that is enabled](Self::enable_peer_access).
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn can_access_peer(&self, peer: &Context) -> Result<bool> {
        let mut can = 0;
        let (own, other) = (self.device().as_raw(), peer.device().as_raw());
        // SAFETY: there is a place for the answer.
        self.call("query of peer access", || check(unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) }))?;
        Ok(can != 0)
    }

    /// Lets kernels and copies of this context use all device memory of another, under the same addresses. It is one way, and
    /// may be enabled again.
    ///
    /// # Errors
    /// [`Error::Cuda`], if the devices cannot, too.
    pub fn enable_peer_access(&self, peer: &Context) -> Result<()> {
        self.call("enabling of peer access", || {
            // SAFETY: the context lives.
            match unsafe { sys::cuCtxEnablePeerAccess(peer.raw().get_inner(), 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok::<(), Code>(()),
                code => check(code),
            }
        })
    }
}
