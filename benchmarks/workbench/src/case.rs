//! A kernel with a problem.

use kernels::floor::Floor;
use launch::Result;

use crate::gpu::Gpu;

/// How large problems are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// For the emulator: as small as shows all that a kernel does.
    Small,
    /// For a GPU: as large as in an engine.
    Full,
}

/// Puts a problem on a device.
pub type Prepare = dyn Fn(&mut Gpu) -> Result<Prepared>;
/// Launches kernels.
pub type Launch = dyn Fn(&mut Gpu) -> Result<()>;
/// Compares results with a reference.
pub type Check = dyn Fn(&Gpu) -> Result<f64>;

/// A kernel, or the few that do a job together, with a problem to run on.
pub struct Case {
    /// The kernel: a name of the registry, or of the family that it is an instance of.
    pub kernel: &'static str,
    /// The problem in short, such as `f16, 8 heads of 128, 4096 tokens`.
    pub shape: String,
    /// What it takes at the least.
    pub floor: Floor,
    /// Puts the problem on a device.
    pub prepare: Box<Prepare>,
}

/// A problem on a device.
pub struct Prepared {
    /// Launches the kernels. Can be done again and again.
    pub launch: Box<Launch>,
    /// How far the results are from the reference, as a part of what is allowed: above 1 is wrong.
    pub error: Box<Check>,
}
