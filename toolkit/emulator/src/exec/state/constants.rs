//! The constants of a launch.

use super::clock::Others;
use crate::exec::launch_config::LaunchConfig;
use crate::launch_options::LaunchOptions;
use crate::program::Program;
use std::sync::Arc;

/// The constants of a launch.
pub(crate) struct LaunchConstants<'a> {
    /// The kernel.
    pub program: &'a Program,
    /// How the kernel runs, and what is checked.
    pub options: &'a LaunchOptions,
    /// The size of the grid and of its blocks.
    pub config: LaunchConfig,
    /// The bytes of the kernel's parameters.
    pub parameters: &'a [u8],
    /// The addresses of the module's variables.
    pub variables: &'a [u64],
    /// The number of the device.
    pub device: usize,
    /// The number of its first block, counted over all launches that run at the same time.
    pub first_block: u32,
    /// Accesses that come before all its threads, by launches that had ended on this device when it started.
    pub before: Option<&'a Arc<Others>>,
}

impl LaunchConstants<'_> {
    /// Returns the number of warps in a block.
    pub fn warps(&self) -> usize {
        self.config.threads().div_ceil(32)
    }

    /// Returns the number of warps in a view: the warps of a cluster, and one for the asynchronous proxy.
    pub fn clocks(&self) -> usize {
        self.warps() * self.config.cluster_size() + 1
    }

    /// Returns whether any check depends on the order of accesses.
    pub fn checks_order(&self) -> bool {
        self.options.check_races || self.options.check_global_races
    }
}
