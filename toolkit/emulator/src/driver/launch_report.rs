//! A launch, and what it cost.

use crate::report::CostReport;

/// A launch, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchReport {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: usize,
    /// Whether it was launched with the attribute by which it may begin before the one ahead of it is over.
    pub dependent: bool,
    /// What it cost.
    pub report: CostReport,
}
