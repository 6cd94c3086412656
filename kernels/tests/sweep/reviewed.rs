//! Places that can be taken away without anything to notice, and why.

use std::collections::BTreeMap;

use emulator::PtxPlace;

/// Places of a family of kernels that nothing notices the absence of.
#[derive(Clone, Copy, Debug)]
pub struct Reviewed {
    /// The kernels, without their types and sizes.
    pub family: &'static str,
    /// The instruction, without its operands.
    pub opcode: &'static str,
    /// The source file that the PTX names before it.
    pub file: &'static str,
    /// How many there are in one kernel, at most.
    pub most: usize,
    /// Why nothing notices.
    pub why: &'static str,
}

/// The list.
pub const REVIEWED: [Reviewed; 5] = [
    Reviewed {
        family: "gemm_hopper",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "it makes new mbarriers known to tensor copies and to other blocks of a cluster; the emulator knows them at once",
    },
    Reviewed {
        family: "gemm_hopper",
        opcode: "wgmma.fence.sync.aligned",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "of products that are added: as registers are dealt out now, nothing touches the sums since the products before",
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
        family: "paged_prefill_hopper",
        opcode: "fence.mbarrier_init.release.cluster",
        file: "gemm/hopper/ring.rs",
        most: 1,
        why: "as for gemm_hopper",
    },
];

impl Reviewed {
    /// Whether the entry is about a place of this kind.
    pub fn covers(&self, site: &PtxPlace<'_>) -> bool {
        let family = ["_f16", "_bf16"].iter().filter_map(|ty| site.kernel.find(ty)).min();
        self.family == &site.kernel[..family.unwrap_or(site.kernel.len())]
            && self.opcode == site.opcode()
            && self.file == site.file()
    }

    /// The places that no entry is about, or more of them in a kernel than its entry allows.
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
