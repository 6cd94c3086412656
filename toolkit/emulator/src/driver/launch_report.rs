//! The cost report of a launch.

use crate::report::CostReport;

/// A launch and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchReport {
    /// The kernel's name.
    pub kernel: String,
    /// The size of the grid in blocks.
    pub grid: [u32; 3],
    /// The size of a block in threads.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub dynamic_shared: usize,
    /// Whether the launch had the attribute that lets it begin before the previous launch ends.
    pub dependent: bool,
    /// The instruction and memory traffic counts.
    pub report: CostReport,
}
