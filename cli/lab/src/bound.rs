//! A lower bound on a launch's time: the time that its busiest GPU resource needs.
//!
//! The bound does not predict the time, because kernels that others timed are too far above their bounds.
//! `tests/published.rs` lists these kernels, and the book's chapter on the emulator says how far they are off.

use std::fmt;

use workbench::LaunchReport;

use simulator::gpu::GpuSpec;

/// Warp schedulers of a multiprocessor. Each issues one instruction per cycle.
const SCHEDULERS: f64 = 4.0;
/// Bytes in a sector of global memory.
const SECTOR: f64 = 32.0;
/// Bytes that a multiprocessor exchanges with the L2 cache per cycle.
const PORT: f64 = 64.0;

/// The GPU resources that a launch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Warp instructions.
    pub instructions: f64,
    /// Bytes of global memory, each counted once.
    pub bytes: f64,
    /// Bytes moved between the multiprocessors and the L2 cache.
    pub moved: f64,
    /// Tensor-core operations.
    pub flops: f64,
    /// Passes over shared memory.
    pub wavefronts: f64,
}

impl Demand {
    /// Takes the emulator's counts of a launch. Its instructions are PTX instructions.
    pub fn counted(launch: &LaunchReport) -> Demand {
        let total = &launch.report.total;
        Demand {
            instructions: total.instructions as f64,
            bytes: launch.report.distinct_sectors as f64 * SECTOR,
            moved: total.sectors as f64 * SECTOR,
            flops: total.tensor_flops as f64,
            wavefronts: total.wavefronts as f64,
        }
    }

    /// Returns how long each resource is busy if the launch occupies the whole GPU.
    pub fn on(self, gpu: &GpuSpec) -> Bound {
        let cycles = f64::from(gpu.limits.multiprocessors) * gpu.clock;
        Bound([
            ("memory", self.bytes / gpu.stream()),
            ("tensor cores", self.flops / gpu.rate),
            ("issue slots", self.instructions / (SCHEDULERS * cycles)),
            ("shared memory", self.wavefronts / cycles),
            ("L2 bandwidth", self.moved / (PORT * cycles)),
        ])
    }
}

/// The least time by each of a GPU's resources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound([(&'static str, f64); 5]);

impl Bound {
    /// Returns the resource that is busy longest, and its seconds.
    pub fn longest(&self) -> (&'static str, f64) {
        self.0.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

/// Names the longest resource, and how busy each other resource is during that time.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (longest, seconds) = self.longest();
        let mut others: Vec<_> = self.0.into_iter().filter(|(name, needs)| *name != longest && *needs > 0.0).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        let others: Vec<_> =
            others.into_iter().map(|(name, needs)| format!("{name} {:.0} %", 100.0 * needs / seconds)).collect();
        write!(f, "{longest}")?;
        if others.is_empty() { Ok(()) } else { write!(f, "; busy meanwhile: {}", others.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simulator::gpu::GPUS;

    #[test]
    fn the_resource_that_is_needed_longest_is_the_bound() {
        let h200 = &GPUS[0];
        let demand = Demand { bytes: 4.5e12, flops: 79e12, ..Demand::default() };
        assert_eq!(demand.on(h200).longest(), ("memory", 1.0));
        assert_eq!(demand.on(h200).to_string(), "memory; busy meanwhile: tensor cores 10 %");
        // Per cycle, each of four schedulers issues a warp instruction, and each multiprocessor makes half a pass over shared
        // memory.
        let instructions = 4.0 * 132.0 * 1.83e9;
        let bound = Demand { instructions, wavefronts: instructions / 8.0, ..Demand::default() }.on(h200);
        assert_eq!(bound.to_string(), "issue slots; busy meanwhile: shared memory 50 %");
        assert_eq!(Demand { moved: 64.0, ..Demand::default() }.on(h200).longest().0, "L2 bandwidth");
    }
}
