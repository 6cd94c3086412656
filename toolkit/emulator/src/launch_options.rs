//! How a kernel is run, and what is checked as it runs.

/// How to run a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The order of blocks, and of the warps of a block. 0 is the natural order; any other number stands for a random one.
    pub seed: u64,
    /// Whether reads of memory that nothing wrote are faults.
    pub check_initialised: bool,
    /// Whether races on shared memory are faults.
    pub check_races: bool,
    /// Whether reads and writes of global memory that another warp or block wrote in the same launch, with nothing to order
    /// them, are faults.
    pub check_global_races: bool,
    /// The most warp instructions of a launch. One with more is taken to be endless.
    pub instruction_limit: u64,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            check_initialised: true,
            check_races: true,
            check_global_races: true,
            instruction_limit: 1 << 34,
        }
    }
}
