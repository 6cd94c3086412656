//! Options of a launch: how the kernel runs, and what is checked.

use std::sync::LazyLock;

/// The number of CPU cores that the process may use.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Options of a launch. The default checks everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The order of blocks, and of the warps in a block. 0 is the natural order. Any other number seeds a random order.
    pub seed: u64,
    /// Whether reads of unwritten memory are faults.
    pub check_initialised: bool,
    /// Whether copies of unwritten memory to the host are also faults, in a context of the driver. This needs
    /// `check_initialised`.
    pub check_copies: bool,
    /// Whether reads of unwritten shared memory give poison instead of an immediate fault.
    ///
    /// Poison may be selected away. Its use in an address, a condition or a store to global memory is a fault. This is
    /// for kernels that read more than they need.
    pub poison: bool,
    /// Whether races on shared memory are faults.
    pub check_races: bool,
    /// Whether unordered reads and writes of global memory that another warp or block wrote in the same launch are
    /// faults.
    pub check_global_races: bool,
    /// Blocks of a cluster, in each dimension. A kernel may declare the shape itself.
    pub cluster: Option<[u32; 3]>,
    /// Whether the launch may begin before the previous one has ended, like launches with the driver's attribute for
    /// programmatic stream serialisation.
    ///
    /// A thread is ordered after the earlier launches once it has executed `griddepcontrol.wait`, or comes after a
    /// thread that has. Before that, it must not read data that these launches wrote, or write data that they accessed.
    /// Either is a fault. Accesses are tracked per 32-byte sector.
    pub dependent: bool,
    /// Whether threads of a dependent launch may access global memory before they wait, if no earlier launch uses that
    /// memory.
    ///
    /// If false, any access before the wait is a fault. This is for tests that have no earlier launch.
    pub early_accesses: bool,
    /// Names of buffers that no launch writes, such as weights. Threads may read these before they wait even without
    /// `early_accesses`.
    pub early_reads: &'static [&'static str],
    /// The most warp instructions of a launch. A launch with more ends with a fault, because its loop may be endless.
    /// Each atomic, volatile, relaxed, acquire or release access counts as 64 more instructions, which take about as
    /// long. The default is 2^28, a few seconds of an endless loop.
    pub instruction_limit: u64,
    /// The most CPU cores that run blocks in parallel. This needs the natural order and blocks that do not communicate.
    ///
    /// Memory, reports and faults do not depend on it. The default is the number of cores of the machine.
    pub cores: usize,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            check_initialised: true,
            check_copies: true,
            poison: false,
            check_races: true,
            check_global_races: true,
            cluster: None,
            dependent: false,
            early_accesses: true,
            early_reads: &[],
            instruction_limit: 1 << 28,
            cores: *CORES,
        }
    }
}
