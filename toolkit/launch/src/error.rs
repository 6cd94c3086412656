//! The errors of this crate.

use std::fmt;

use crate::code::Code;

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// An error in loading or running a kernel, or in another device operation. `Debug` prints the same sentence as `Display`, for
/// `unwrap` in tests.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine has no NVIDIA driver.
    #[error("no NVIDIA driver: libcuda.so.1 could not be loaded: {0}")]
    NoDriver(#[source] libloading::Error),
    /// This process already uses another driver.
    #[error("this process already uses the driver `{0}`, and cannot use another")]
    DriverChosen(&'static str),
    /// There is no driver with this name.
    #[error("no driver is called `{0}`: there are `cuda` and `emulator`")]
    UnknownDriver(String),
    /// There is no device with this number.
    #[error("there is no device {ordinal}: the driver has {count}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The driver refused a call, or earlier work failed.
    #[error("{action}: {code}{}", .detail.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Cuda {
        /// The operation that failed.
        action: String,
        /// The driver's result code.
        #[source]
        code: Code,
        /// The text of the emulator's fault or the compiler's log, if there is one.
        detail: Option<String>,
    },
    /// The driver lacks a function because it is too old.
    #[error("the NVIDIA driver is too old: it lacks `{0}`, which drivers for CUDA 12 have")]
    OldDriver(&'static str),
    /// The PTX text is malformed.
    #[error("line {line} of the PTX: {reason}")]
    Ptx {
        /// The line number, from 1.
        line: usize,
        /// The problem in this line.
        reason: &'static str,
    },
    /// The PTX does not contain this kernel.
    #[error("the PTX has no kernel `{0}`")]
    MissingEntry(&'static str),
    /// The kernel in the PTX has other parameters than its declaration on the host.
    #[error("`{entry}` takes parameters of {found:?} bytes in the PTX and of {expected:?} on the host")]
    Signature {
        /// The name of the kernel.
        entry: &'static str,
        /// Sizes of the parameters on the host, in bytes.
        expected: Vec<usize>,
        /// Sizes of the parameters in the PTX, in bytes.
        found: Vec<usize>,
    },
    /// The module was loaded without this kernel.
    #[error("`{0}` is not among the kernels that the module was loaded with: pass its `DESCRIPTOR` to `Module::load`")]
    NotLoaded(&'static str),
    /// The grid is empty or too large.
    #[error("`{entry}` cannot have a grid of {grid:?} blocks: from 1 to {limit:?}")]
    Grid {
        /// The name of the kernel.
        entry: &'static str,
        /// The requested grid, in x, y and z.
        grid: [u32; 3],
        /// The largest grid of the device.
        limit: [u32; 3],
    },
    /// The block is empty or too large.
    #[error("`{entry}` cannot have blocks of {block:?} threads: from 1 to {limit:?}, and {threads} in all")]
    Block {
        /// The name of the kernel.
        entry: &'static str,
        /// The requested block, in x, y and z.
        block: [u32; 3],
        /// The largest block of the device.
        limit: [u32; 3],
        /// The most threads per block for this kernel.
        threads: u32,
    },
    /// The launch asks for more shared memory than a block can have.
    #[error("`{entry}` cannot have {asked} bytes of dynamic shared memory: {limit} at most")]
    SharedMemory {
        /// The name of the kernel.
        entry: &'static str,
        /// The requested bytes.
        asked: usize,
        /// The most bytes that the kernel can have.
        limit: usize,
    },
    /// The source and target of a copy have different lengths.
    #[error("{from} elements cannot be copied to {to}")]
    Length {
        /// The number of elements of the source.
        from: usize,
        /// The number of elements of the target.
        to: usize,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
