//! What can go wrong.

use std::fmt;

use crate::code::Code;

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong on the way to a kernel, or in it. `Debug` prints the same sentence as `Display`, for `unwrap` in tests.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine has no NVIDIA driver.
    #[error("no NVIDIA driver: libcuda.so.1 could not be loaded: {0}")]
    NoDriver(#[source] libloading::Error),
    /// A process uses one driver, and this one uses another.
    #[error("this process already uses the driver `{0}`, and uses only one")]
    DriverChosen(&'static str),
    /// There is no such driver.
    #[error("no driver is called `{0}`: there are `cuda` and `emulator`")]
    UnknownDriver(String),
    /// There is no such device.
    #[error("there is no device {ordinal}: the driver has {count}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver refused a call, or work that was asked for earlier failed.
    #[error("{action}: {code}{}", .detail.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Cuda {
        /// What was tried.
        action: String,
        /// The driver's answer.
        #[source]
        code: Code,
        /// All that is known: the text of the emulator's fault, or the compiler's words.
        detail: Option<String>,
    },
    /// The driver does not have a function of CUDA's.
    #[error("the NVIDIA driver is too old: it has no `{0}`, which one for CUDA 12 has")]
    OldDriver(&'static str),
    /// A text is not what PTX should be.
    #[error("line {line} of the PTX: {reason}")]
    Ptx {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The PTX has no such kernel.
    #[error("the PTX has no kernel `{0}`")]
    MissingEntry(&'static str),
    /// The kernel in the PTX was compiled from another signature.
    #[error("`{entry}` takes parameters of {found:?} bytes in the PTX and of {expected:?} on the host")]
    Signature {
        /// The kernel.
        entry: &'static str,
        /// Sizes of the parameters that the host would pass.
        expected: Vec<usize>,
        /// Sizes of the parameters in the PTX.
        found: Vec<usize>,
    },
    /// The kernel was not among those that the module was loaded for.
    #[error("`{0}` is not among the kernels that the module was loaded for: give `Module::load` its `DESCRIPTOR`, too")]
    NotLoaded(&'static str),
    /// A grid is empty or too large.
    #[error("`{entry}` cannot have a grid of {grid:?} blocks: from 1 to {limit:?}")]
    Grid {
        /// The kernel.
        entry: &'static str,
        /// The grid asked for: x, y, z.
        grid: [u32; 3],
        /// The largest grid.
        limit: [u32; 3],
    },
    /// A block is empty or too large.
    #[error("`{entry}` cannot have blocks of {block:?} threads: from 1 to {limit:?}, and {threads} in all")]
    Block {
        /// The kernel.
        entry: &'static str,
        /// The block asked for: x, y, z.
        block: [u32; 3],
        /// The largest block of the device.
        limit: [u32; 3],
        /// The most threads of a block of this kernel.
        threads: u32,
    },
    /// A block cannot have so much shared memory.
    #[error("`{entry}` cannot have {asked} bytes of dynamic shared memory: {limit} at most")]
    SharedMemory {
        /// The kernel.
        entry: &'static str,
        /// Bytes asked for.
        asked: usize,
        /// The most bytes it can have.
        limit: usize,
    },
    /// Both sides of a copy must have the same length.
    #[error("{from} elements cannot be copied to {to}")]
    Length {
        /// Elements of the source.
        from: usize,
        /// Elements of the target.
        to: usize,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
