//! The properties of the emulated devices.

use std::time::Duration;

/// The properties and capacity of the emulated GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Compute capability, major and minor. Shared memory sizes are those of an A100 (8, 0) or an H100 (9, 0).
    pub capability: (u32, u32),
    /// Number of multiprocessors. The default is small, so a grid that is a multiple of it stays small.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory: usize,
    /// Number of identical devices.
    pub devices: usize,
    /// Whether devices can access each other's memory. If not, they only share page-locked host memory.
    pub peer_access: bool,
    /// How long launches on several devices may only wait for each other, while host threads could still queue work,
    /// before the wait is a fault.
    pub patience: Duration,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            capability: (9, 0),
            multiprocessors: 16,
            memory: 4 << 30,
            devices: 1,
            peer_access: true,
            patience: Duration::from_secs(60),
        }
    }
}

/// Bytes of shared memory per block without opting in for more.
pub(super) const SHARED_PER_BLOCK: usize = 48 << 10;
/// Bytes of shared memory per block that the system reserves.
pub(super) const SHARED_RESERVED: usize = 1 << 10;
/// The most resident threads per multiprocessor.
pub(super) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// The most resident blocks per multiprocessor.
pub(super) const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// The most threads per block.
pub(super) const THREADS_PER_BLOCK: u32 = 1024;
/// Registers per multiprocessor.
pub(super) const REGISTERS: u32 = 65_536;

/// One more than the last attribute number of a device.
const ATTRIBUTES: u32 = 151;

impl DeviceOptions {
    /// Bytes of shared memory per multiprocessor: 228 KiB from compute capability 9.0 (H100), else 164 KiB (A100).
    pub(super) fn shared_per_multiprocessor(&self) -> usize {
        if self.capability >= (9, 0) { 228 << 10 } else { 164 << 10 }
    }

    /// The most bytes of shared memory of a block that opts in.
    pub(super) fn shared_opt_in(&self) -> usize {
        self.shared_per_multiprocessor() - SHARED_RESERVED
    }

    /// Whether PTX for this target runs on the device. A target with an `a` suffix runs on exactly one capability.
    pub(super) fn runs(&self, target: &str) -> bool {
        let Some(target) = target.strip_prefix("sm_") else { return false };
        let (digits, exact) = target.strip_suffix('a').map_or((target, false), |digits| (digits, true));
        let Ok(number) = digits.parse::<u32>() else { return false };
        let own = self.capability.0 * 10 + self.capability.1;
        if exact { number == own } else { number <= own }
    }

    /// Returns the device attribute with CUDA's number, or `None` if there is no such attribute.
    pub(super) fn attribute(&self, number: u32) -> Option<i32> {
        let value = match number {
            1 => THREADS_PER_BLOCK,
            2 | 3 => 1024,                // block, x and y
            4 => 64,                      // block, z
            5 => i32::MAX as u32,         // grid, x
            6 | 7 => 65_535,              // grid, y and z
            8 => SHARED_PER_BLOCK as u32, // shared memory per block
            9 => 65_536,                  // constant memory
            10 => 32,                     // warp size
            12 | 82 => REGISTERS,         // per block, per multiprocessor
            13 => 1_000_000,              // clock, kHz
            16 => self.multiprocessors,
            17 | 18 | 20 => 0, // time limit, integrated, compute mode
            19 => 1,           // mapped host memory
            31 | 78 => 1,      // concurrent kernels, stream priorities
            32 | 35 => 0,      // ECC, TCC
            34 | 50 => 0,      // PCI device and domain id
            36 => 1_000_000,   // memory clock, kHz
            37 => 5120,        // memory bus width, bits
            38 => 50 << 20,    // L2 cache size
            39 => THREADS_PER_MULTIPROCESSOR,
            40 => 2, // copy engines
            41 => 1, // unified addressing
            75 => self.capability.0,
            76 => self.capability.1,
            81 => self.shared_per_multiprocessor() as u32,
            83 | 89 => 1,       // managed memory, concurrent managed access
            95 | 99 | 115 => 1, // cooperative launches, host memory registration, memory pools
            97 => self.shared_opt_in() as u32,
            106 => BLOCKS_PER_MULTIPROCESSOR,
            111 => SHARED_RESERVED as u32,
            120 => (self.capability >= (9, 0)).into(), // clusters
            _ if number < ATTRIBUTES => 0,             // texture limits and features the emulator lacks
            _ => return None,
        };
        Some(value as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_runs_code_for_its_own_and_older_targets() {
        let device = |capability| DeviceOptions { capability, ..DeviceOptions::default() };
        let (ampere, hopper, next) = (device((8, 0)), device((9, 0)), device((10, 0)));
        assert!(ampere.runs("sm_80") && hopper.runs("sm_80") && hopper.runs("sm_90a"));
        assert!(!ampere.runs("sm_90") && !ampere.runs("sm_90a") && !next.runs("sm_90a") && next.runs("sm_90"));
        assert!(!hopper.runs("sm_") && !hopper.runs("compute_80"));
    }
}
