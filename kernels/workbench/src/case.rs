//! A kernel together with a problem to run it on.

use kernels::floor::Floor;
use launch::Result;

use crate::gpu::Gpu;

/// The size of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// For the emulator: as small as possible while exercising everything that a kernel does.
    Small,
    /// For a GPU: as large as in an engine.
    Full,
}

/// Uploads a problem to a device.
pub type Prepare = dyn Fn(&mut Gpu) -> Result<Prepared>;
/// Launches kernels.
pub type Launch = dyn Fn(&mut Gpu) -> Result<()>;
/// Compares results with a reference and returns the error.
pub type Check = dyn Fn(&Gpu) -> Result<f64>;

/// A kernel, or a few that do a job together, with a problem to run them on.
pub struct Case {
    /// The kernel: its name in the registry, or the name of its family of instances.
    pub kernel: &'static str,
    /// The problem in short, such as `f16, 8 heads of 128, 4096 tokens`.
    pub shape: String,
    /// The least that any kernel must move and compute.
    pub floor: Floor,
    /// Uploads the problem to a device.
    pub prepare: Box<Prepare>,
}

/// A problem on a device.
pub struct Prepared {
    /// Launches the kernels. It can be called repeatedly.
    pub launch: Box<Launch>,
    /// Returns the error relative to the allowed error. Above 1, the results are wrong.
    pub error: Box<Check>,
}

/// Returns the error of results that must be exact: zero or infinity.
pub(crate) fn exact<T: PartialEq>(results: &[T], truth: &[T]) -> f64 {
    if results == truth { 0.0 } else { f64::INFINITY }
}
