//! How a kernel is run, and what is checked as it runs.

use std::sync::LazyLock;

/// The cores of this machine that the process may use.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// How to run a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The order of blocks, and of the warps of a block. 0 is the natural order; any other number stands for a random one.
    pub seed: u64,
    /// Whether reads of memory that nothing wrote are faults.
    pub check_initialised: bool,
    /// Whether copies to the host of memory that nothing wrote are faults as well, in a context of the driver. Without
    /// `check_initialised` they are not.
    pub check_copies: bool,
    /// Whether what a thread reads of shared memory that nothing wrote is poison, in the place of a fault at once: it may be
    /// selected away, and is a fault where it is used, in an address, a condition or a store to global memory. For kernels
    /// that read more than they need.
    pub poison: bool,
    /// Whether races on shared memory are faults.
    pub check_races: bool,
    /// Whether reads and writes of global memory that another warp or block wrote in the same launch, with nothing to order
    /// them, are faults.
    pub check_global_races: bool,
    /// Blocks of a cluster, in each dimension. A kernel may declare the same itself.
    pub cluster: Option<[u32; 3]>,
    /// Whether the launch may begin before the one ahead of it is over, as those may that have the driver's attribute for
    /// programmatic stream serialisation. Until one of its threads has executed `griddepcontrol.wait`, or comes after one that has, it
    /// is a fault if it reads what launches ahead wrote, or writes what they accessed. Sectors of 32 bytes count as a whole.
    pub dependent: bool,
    /// Whether threads of a dependent launch may access global memory before they wait which no launch ahead has to do with. If
    /// not, any such access is a fault: for tests that have no launch ahead.
    pub early_accesses: bool,
    /// Names of buffers that no launch writes, such as weights. Without `early_accesses` threads may still read these before they wait.
    pub early_reads: &'static [&'static str],
    /// The most warp instructions of a launch. A launch with more ends with a fault, since its loop may be endless.
    /// An atomic or volatile access counts as 64 instructions, since it takes as long. The default is 2^28, a few seconds of an
    /// endless loop.
    pub instruction_limit: u64,
    /// The most cores on which blocks run that do not communicate, in the natural order. Memory, reports and faults are the
    /// same whatever their number; from the start it is that of the machine.
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
