//! What stays the same during a launch.

use super::clock::Others;
use crate::exec::launch_config::LaunchConfig;
use crate::launch_options::LaunchOptions;
use crate::program::Program;
use std::sync::Arc;

/// What stays the same during a launch.
pub(crate) struct LaunchConstants<'a> {
    /// The kernel.
    pub program: &'a Program,
    /// How it is run and what is checked.
    pub options: &'a LaunchOptions,
    /// The size of the grid and of its blocks.
    pub config: LaunchConfig,
    /// The bytes of the kernel's parameters.
    pub parameters: &'a [u8],
    /// The addresses of the module's variables.
    pub variables: &'a [u64],
    /// The number of the device.
    pub device: usize,
    /// The number of its first block among those of all launches that run at the same time.
    pub first_block: u32,
    /// What comes before all of its threads: accesses of launches that were over on this device when it started.
    pub before: Option<&'a Arc<Others>>,
}

impl LaunchConstants<'_> {
    /// The warps of a block.
    pub fn warps(&self) -> usize {
        self.config.threads().div_ceil(32)
    }

    /// The warps that a view knows of: those of a cluster, and one more for the asynchronous proxy.
    pub fn clocks(&self) -> usize {
        self.warps() * self.config.cluster_size() + 1
    }

    /// Whether it matters which accesses come before which others.
    pub fn checks_order(&self) -> bool {
        self.options.check_races || self.options.check_global_races
    }
}
