//! Resources that kernels use on a multiprocessor, as NVIDIA's assembler reports them. They are recorded for machines
//! without the assembler.

use kernels::gemm::plan::GpuLimits;

/// The recorded resources, one line for each target and kernel.
const RECORD: &str = include_str!("../../prebuilt/resources.tsv");
/// The recorded loops, one line for each kernel with matrix products.
const LOOPS: &str = include_str!("../../prebuilt/loops.tsv");

/// The resources of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

/// How many blocks of a kernel fit a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks that it holds at once.
    pub blocks: u32,
    /// Warps of these blocks.
    pub warps: u32,
    /// The resource that prevents another block: `registers`, `shared memory` or `warps`.
    pub by: &'static str,
}

impl Resources {
    /// Computes how many blocks of `threads` threads and `dynamic` bytes of dynamic shared memory fit a multiprocessor.
    ///
    /// Each quarter of a multiprocessor has 16,384 registers, which warps take in multiples of 256. A block takes 1 KiB
    /// of shared memory in addition to its own, and can use all but 1 KiB. A multiprocessor holds up to 64 warps and 32
    /// blocks, or 48 and 24 if it has as little shared memory as an L40S or an RTX 4090.
    pub fn occupancy(self, threads: u32, dynamic: u32, gpu: GpuLimits) -> Occupancy {
        let block_warps = threads.div_ceil(32);
        let warp_registers = (32 * self.registers).next_multiple_of(256);
        let (max_warps, max_blocks) = if gpu.shared_bytes > 128 << 10 { (64, 32) } else { (48, 24) };
        let limits = [
            (4 * (16_384 / warp_registers) / block_warps, "registers"),
            ((gpu.shared_bytes + 1024) / (self.shared + dynamic + 1024), "shared memory"),
            (max_blocks.min(max_warps / block_warps), "warps"),
        ];
        let (blocks, by) = limits.into_iter().min_by_key(|limit| limit.0).unwrap_or_default();
        Occupancy { blocks, warps: blocks * block_warps, by }
    }
}

/// The loop of a kernel with most of its tensor-core work, counted in machine instructions (SASS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductLoop {
    /// Instructions in the loop.
    pub instructions: u32,
    /// Tensor-core instructions among them.
    pub products: u32,
    /// Mnemonic of the tensor-core instructions, such as `HMMA`.
    pub name: &'static str,
}

/// Returns the resources of `kernel` when it is compiled for `target`, such as `sm_80`. If there is no record of them,
/// returns `None`.
pub fn resources(target: &str, kernel: &str) -> Option<Resources> {
    let [registers, shared] = recorded(RECORD, target, kernel)?;
    Some(Resources { registers: registers.parse().ok()?, shared: shared.parse().ok()? })
}

/// Returns the loop of `kernel` with matrix products, compiled for `target`. If there is no record of one, returns
/// `None`.
pub fn product_loop(target: &str, kernel: &str) -> Option<ProductLoop> {
    let [instructions, products, name] = recorded(LOOPS, target, kernel)?;
    Some(ProductLoop { instructions: instructions.parse().ok()?, products: products.parse().ok()?, name })
}

/// Returns the fields that a record has for a kernel.
fn recorded<const N: usize>(record: &'static str, target: &str, kernel: &str) -> Option<[&'static str; N]> {
    record.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let is_match = fields.next() == Some(target) && fields.next() == Some(kernel);
        is_match.then(|| fields.collect::<Vec<_>>().try_into().ok())?
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    /// An L40S.
    const ADA: GpuLimits = GpuLimits::new(142, 99 << 10, (8, 9));

    #[test]
    fn registers_shared_memory_and_warps_limit_occupancy() {
        let occupancy = |registers, threads| Resources { registers, shared: 0 }.occupancy(threads, 0, GpuLimits::H200);
        let blocks = |registers, threads| occupancy(registers, threads).blocks;
        assert_eq!([blocks(128, 128), blocks(167, 128), blocks(168, 128)], [4, 3, 3]);
        assert_eq!([blocks(129, 128), blocks(255, 64), blocks(32, 1024)], [3, 4, 2]);
        // Each quarter has registers for three of these warps, however many blocks they belong to.
        assert_eq!(occupancy(168, 32), Occupancy { blocks: 12, warps: 12, by: "registers" });
        let sharing = |dynamic| Resources { registers: 32, shared: 128 }.occupancy(32, dynamic, GpuLimits::H200);
        assert_eq!(sharing((227 << 10) - 128), Occupancy { blocks: 1, warps: 1, by: "shared memory" });
        assert_eq!([sharing((113 << 10) - 128).blocks, sharing(113 << 10).blocks], [2, 1]);
        // With 32 registers per thread or fewer, registers allow 64 warps. The limit of 32 blocks remains.
        assert_eq!(occupancy(16, 256), Occupancy { blocks: 8, warps: 64, by: "warps" });
        assert_eq!(occupancy(16, 32), Occupancy { blocks: 32, warps: 32, by: "warps" });
        let few = Resources { registers: 16, shared: 0 };
        assert_eq!(few.occupancy(256, 0, ADA), Occupancy { blocks: 6, warps: 48, by: "warps" });
    }

    #[test]
    fn every_kernel_has_a_record() {
        for kernel in kernels::registry::shipped() {
            for target in ["sm_80", "sm_90a"].into_iter().filter(|target| kernel.is_for(target)) {
                let found = resources(target, kernel.name);
                assert!(found.is_some_and(|found| found.registers > 0), "{} for {target}", kernel.name);
            }
        }
        assert_eq!(resources("sm_70", "copy_blocks"), None);
        let with_products = product_loop("sm_80", "gemm_f16_128").unwrap();
        assert!(with_products.name == "HMMA" && with_products.instructions > with_products.products);
        assert_eq!(product_loop("sm_80", "copy_blocks"), None);
    }
}
