//! The cost of a launch.

use std::collections::BTreeMap;

/// The class of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Integer arithmetic, logic and moves.
    Integer,
    /// f32 and f64 arithmetic.
    Float,
    /// f16 and bf16 arithmetic.
    Half,
    /// Conversions.
    Convert,
    /// Comparisons and selections.
    Compare,
    /// Loads from global, shared or local memory.
    Load,
    /// Stores to global, shared or local memory.
    Store,
    /// Loads of parameters.
    Parameter,
    /// Atomics and reductions in memory.
    Atomic,
    /// Branches, calls and exits.
    Control,
    /// Block barriers.
    Barrier,
    /// Exchanges between the lanes of a warp.
    Collective,
    /// Tensor-core products and the loads of their fragments.
    Tensor,
    /// Asynchronous copies.
    Async,
    /// Fences and hints.
    Other,
}

/// Counts for an instruction, a source line or a whole launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions, each counted once per warp.
    pub instructions: u64,
    /// Instructions, each counted once per active lane.
    pub lanes: u64,
    /// Bytes of global memory that lanes requested.
    pub global_bytes: u64,
    /// 32-byte sectors of global memory that the requests touched.
    pub sectors: u64,
    /// The fewest sectors that could hold the requested bytes.
    pub ideal_sectors: u64,
    /// Touched sectors in the memory of other devices.
    pub peer_sectors: u64,
    /// Passes over shared memory, bank conflicts included.
    pub wavefronts: u64,
    /// Passes without bank conflicts.
    pub ideal_wavefronts: u64,
    /// Branches at which lanes of a warp could diverge.
    pub branches: u64,
    /// Branches at which lanes diverged.
    pub divergent: u64,
    /// Tensor-core multiplications and additions.
    pub tensor_flops: u64,
}

impl Counts {
    /// Adds the counts of another.
    pub fn add(&mut self, other: &Counts) {
        self.instructions += other.instructions;
        self.lanes += other.lanes;
        self.global_bytes += other.global_bytes;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.peer_sectors += other.peer_sectors;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.branches += other.branches;
        self.divergent += other.divergent;
        self.tensor_flops += other.tensor_flops;
    }

    /// Sectors divided by the ideal, or 1 if no bytes were requested.
    pub fn sector_ratio(&self) -> f64 {
        if self.ideal_sectors == 0 { 1.0 } else { self.sectors as f64 / self.ideal_sectors as f64 }
    }

    /// Wavefronts beyond the ideal.
    pub fn bank_conflicts(&self) -> u64 {
        self.wavefronts.saturating_sub(self.ideal_wavefronts)
    }
}

/// Counts for one line of the Rust source if the PTX has `.loc`, or else of the PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineCounts {
    /// The Rust file, or empty for a line of the PTX.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The cost of the line's instructions.
    pub counts: Counts,
}

/// The cost of a launch. The counts depend only on the kernel and its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostReport {
    /// Counts of the whole launch.
    pub total: Counts,
    /// Warp instructions by class.
    pub classes: BTreeMap<Class, u64>,
    /// Counts by source line, in order of file and line.
    pub lines: Vec<LineCounts>,
    /// Barriers that a whole block (or the named part of it) passed.
    pub barriers: u64,
    /// Distinct 32-byte sectors of global memory that were touched. DRAM must move at least these.
    pub distinct_sectors: u64,
}
