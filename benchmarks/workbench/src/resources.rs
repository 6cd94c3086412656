//! What kernels take of a multiprocessor, as NVIDIA's assembler found it: on record, for machines without it.

use kernels::gemm::plan::GpuLimits;

/// The record: a line for each target and kernel.
const RECORD: &str = include_str!("../../../kernels/prebuilt/resources.tsv");
/// The record of loops: a line for each that has products.
const LOOPS: &str = include_str!("../../../kernels/prebuilt/loops.tsv");

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// How full a multiprocessor is with a kernel's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks that it holds at once.
    pub blocks: u32,
    /// Their warps.
    pub warps: u32,
    /// What there is no more of for another block: `registers`, `shared memory` or `warps`.
    pub by: &'static str,
}

impl Resources {
    /// What a multiprocessor of a GPU holds at once of blocks of so many threads and bytes of dynamic shared memory.
    ///
    /// Each of its quarters has 16,384 registers, of which a warp takes a multiple of 256. Of its shared memory a block
    /// takes 1 KiB beside its own, and can have all but 1 KiB. There are places for 64 warps and 32 blocks; GPUs with as little
    /// shared memory as an L40S or an RTX 4090 have 48 and 24.
    pub fn occupancy(self, threads: u32, dynamic: u32, gpu: GpuLimits) -> Occupancy {
        let of_block = threads.div_ceil(32);
        let of_warp = (32 * self.registers).next_multiple_of(256);
        let (places, most) = if gpu.shared_bytes > 128 << 10 { (64, 32) } else { (48, 24) };
        let limits = [
            (4 * (16_384 / of_warp) / of_block, "registers"),
            ((gpu.shared_bytes + 1024) / (self.shared + dynamic + 1024), "shared memory"),
            (most.min(places / of_block), "warps"),
        ];
        let (blocks, by) = limits.into_iter().min_by_key(|limit| limit.0).unwrap_or_default();
        Occupancy { blocks, warps: blocks * of_block, by }
    }
}

/// The loop of a kernel in which most is done on the tensor cores, in instructions of the machine (SASS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductLoop {
    /// Its instructions.
    pub instructions: u32,
    /// How many of them are the tensor cores'.
    pub products: u32,
    /// What these are called, such as `HMMA`.
    pub name: &'static str,
}

/// What `kernel` takes when it is compiled for `target`, such as `sm_80`; none if that is not on record.
pub fn resources(target: &str, kernel: &str) -> Option<Resources> {
    let [registers, shared] = recorded(RECORD, target, kernel)?;
    Some(Resources { registers: registers.parse().ok()?, shared: shared.parse().ok()? })
}

/// The loop of `kernel` with products, compiled for `target`; none if it has none.
pub fn product_loop(target: &str, kernel: &str) -> Option<ProductLoop> {
    let [instructions, products, name] = recorded(LOOPS, target, kernel)?;
    Some(ProductLoop { instructions: instructions.parse().ok()?, products: products.parse().ok()?, name })
}

/// What a record says of a kernel.
fn recorded<const N: usize>(record: &'static str, target: &str, kernel: &str) -> Option<[&'static str; N]> {
    record.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let is_its = fields.next() == Some(target) && fields.next() == Some(kernel);
        is_its.then(|| fields.collect::<Vec<_>>().try_into().ok())?
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    /// An L40S.
    const ADA: GpuLimits = GpuLimits::new(142, 99 << 10, (8, 9));

    #[test]
    fn registers_shared_memory_and_warps_bound_the_blocks_of_a_multiprocessor() {
        let of = |registers, threads| Resources { registers, shared: 0 }.occupancy(threads, 0, GpuLimits::H200);
        let blocks = |registers, threads| of(registers, threads).blocks;
        assert_eq!([blocks(128, 128), blocks(167, 128), blocks(168, 128)], [4, 3, 3]);
        assert_eq!([blocks(129, 128), blocks(255, 64), blocks(32, 1024)], [3, 4, 2]);
        // A quarter has room for three warps of these, however many blocks they belong to.
        assert_eq!(of(168, 32), Occupancy { blocks: 12, warps: 12, by: "registers" });
        let sharing = |dynamic| Resources { registers: 32, shared: 128 }.occupancy(32, dynamic, GpuLimits::H200);
        assert_eq!(sharing((227 << 10) - 128), Occupancy { blocks: 1, warps: 1, by: "shared memory" });
        assert_eq!([sharing((113 << 10) - 128).blocks, sharing(113 << 10).blocks], [2, 1]);
        // 32 registers leave room for 64 warps, in 32 blocks at most.
        assert_eq!(of(16, 256), Occupancy { blocks: 8, warps: 64, by: "warps" });
        assert_eq!(of(16, 32), Occupancy { blocks: 32, warps: 32, by: "warps" });
        let few = Resources { registers: 16, shared: 0 };
        assert_eq!(few.occupancy(256, 0, ADA), Occupancy { blocks: 6, warps: 48, by: "warps" });
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
        let with_products = product_loop("sm_80", "gemm_f16_128").unwrap();
        assert!(with_products.name == "HMMA" && with_products.instructions > with_products.products);
        assert_eq!(product_loop("sm_80", "copy_blocks"), None);
    }
}
