//! What kernels take of a multiprocessor, as NVIDIA's assembler found it: on record, for machines without it.

use kernels::gemm::plan::GpuLimits;

/// The record: a line for each target and kernel.
const RECORD: &str = include_str!("../../../kernels/prebuilt/resources.tsv");

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

impl Resources {
    /// Blocks of so many threads and bytes of dynamic shared memory that a multiprocessor of a GPU holds at once.
    ///
    /// Each of its quarters has 16,384 registers, of which a warp takes a multiple of 256. Of its shared memory a block
    /// takes 1 KiB beside its own, and can have all but 1 KiB.
    pub const fn blocks(self, threads: u32, dynamic: u32, gpu: GpuLimits) -> u32 {
        let of_warp = (32 * self.registers).next_multiple_of(256);
        let by_registers = 4 * (16_384 / of_warp) / threads.div_ceil(32);
        let by_shared = (gpu.shared_bytes + 1024) / (self.shared + dynamic + 1024);
        if by_registers < by_shared { by_registers } else { by_shared }
    }
}

/// What `kernel` takes when it is compiled for `target`, such as `sm_80`; none if that is not on record.
pub fn resources(target: &str, kernel: &str) -> Option<Resources> {
    RECORD.lines().find_map(|line| {
        let mut fields = line.split('\t');
        if fields.next() != Some(target) || fields.next() != Some(kernel) {
            return None;
        }
        let mut number = || fields.next()?.parse().ok();
        Some(Resources { registers: number()?, shared: number()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_shared_memory_bound_the_blocks_of_a_multiprocessor() {
        let blocks = |registers, threads| Resources { registers, shared: 0 }.blocks(threads, 0, GpuLimits::H200);
        assert_eq!([blocks(128, 128), blocks(167, 128), blocks(168, 128)], [4, 3, 3]);
        assert_eq!([blocks(129, 128), blocks(255, 64), blocks(32, 1024)], [3, 4, 2]);
        // A quarter has room for three warps of these, however many blocks they belong to.
        assert_eq!(blocks(168, 32), 12);
        let sharing = |dynamic| Resources { registers: 32, shared: 128 }.blocks(32, dynamic, GpuLimits::H200);
        assert_eq!([sharing((227 << 10) - 128), sharing((113 << 10) - 128), sharing(113 << 10)], [1, 2, 1]);
    }

    #[test]
    fn every_kernel_is_on_record() {
        for kernel in kernels::registry::shipped() {
            for target in ["sm_80", "sm_90a"].into_iter().filter(|target| kernel.is_for(target)) {
                let found = resources(target, kernel.name);
                assert!(found.is_some_and(|found| found.registers > 0), "{} for {target}", kernel.name);
            }
        }
        assert_eq!(resources("sm_70", "copy_blocks"), None);
    }
}
