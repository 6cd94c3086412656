//! Places that can be removed unnoticed, and why.

use std::collections::BTreeMap;

use emulator::PtxPlace;

/// Places in a family of kernels that can be removed unnoticed.
#[derive(Clone, Copy, Debug)]
pub struct Reviewed {
    /// The kernels, without their types and sizes.
    pub family: &'static str,
    /// The instruction, without its operands.
    pub opcode: &'static str,
    /// The source file that the PTX names before it.
    pub file: &'static str,
    /// Maximum number of such places in one kernel.
    pub most: usize,
    /// Why the removal goes unnoticed.
    pub why: &'static str,
}

/// The reviewed places.
pub const REVIEWED: [Reviewed; 10] = [
    Reviewed {
        family: "gemm_hopper",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "it makes new mbarriers visible to tensor copies and to other blocks of a cluster, but the emulator sees them at once",
    },
    Reviewed {
        family: "gemm_hopper",
        opcode: "wgmma.fence.sync.aligned",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "for products that add to sums: with the present register allocation nothing touches the sums after the previous products",
    },
    Reviewed {
        family: "gemm_hopper_decode",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
    Reviewed {
        family: "gemm_hopper_decode",
        opcode: "wgmma.fence.sync.aligned",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
    Reviewed {
        family: "grouped_hopper",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
    Reviewed {
        family: "grouped_hopper",
        opcode: "wgmma.fence.sync.aligned",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
    Reviewed {
        family: "paged_prefill_hopper",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
    Reviewed {
        family: "prepare_chunks",
        opcode: "bar.warp.sync",
        file: "recurrent/chunked/inverse.rs",
        most: 3,
        why: "they keep the compiler from loading all rows at once, for which there are no registers",
    },
    Reviewed {
        family: "pass_chunks",
        opcode: "bar.warp.sync",
        file: "recurrent/chunked/warp_columns.rs",
        most: 1,
        why: "after a piece's results: the next piece has other rows, and all threads wait before the next tile's values arrive",
    },
    Reviewed {
        family: "pass_chunks",
        opcode: "bar.warp.sync",
        file: "recurrent/chunked/pass.rs",
        most: 1,
        why: "as for warp_columns.rs, which the compiler inlined",
    },
];

impl Reviewed {
    /// Returns whether the entry covers this place.
    pub fn covers(&self, site: &PtxPlace<'_>) -> bool {
        let family = ["_f16", "_bf16"].iter().filter_map(|ty| site.kernel.find(ty)).min();
        self.family == &site.kernel[..family.unwrap_or(site.kernel.len())]
            && self.opcode == site.opcode()
            && self.file == site.file()
    }

    /// Returns the places that no entry covers, and those in excess of an entry's `most` in a kernel.
    pub fn rest<'a>(unnoticed: &[&'a PtxPlace<'a>]) -> Vec<&'a PtxPlace<'a>> {
        let mut seen: BTreeMap<(&str, usize), usize> = BTreeMap::new();
        let is_new = |site: &&&'a PtxPlace<'a>| {
            let Some(entry) = REVIEWED.iter().position(|entry| entry.covers(site)) else { return true };
            let count = seen.entry((site.kernel, entry)).or_default();
            *count += 1;
            *count > REVIEWED[entry].most
        };
        unnoticed.iter().filter(is_new).copied().collect()
    }
}
