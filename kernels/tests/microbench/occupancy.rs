//! How many warps of each kernel a multiprocessor holds at once, against what it was made for.

use std::collections::{BTreeMap, BTreeSet};

use cuda_std::launch::LaunchShape;
use kernels::gemm::plan::GpuLimits;
use workbench::{Occupancy, resources};

/// Families by the beginning of their names, and the fewest warps of a multiprocessor: of an A100 for sm_80, of an H200 for
/// sm_90a; 0 where there is none of the family. A kernel's budget is that of the longest beginning.
const BUDGETS: [(&str, [u32; 2]); 24] = [
    ("add_positions", [64, 64]),
    ("all_reduce", [16, 16]),
    ("copy_blocks", [64, 64]),
    ("embed", [64, 64]),
    ("gather", [64, 64]),
    ("gemm", [4, 8]),
    ("gemm_decode", [4, 8]),
    ("gemm_hopper", [0, 12]),
    ("gemm_hopper_decode", [0, 18]),
    ("gemm_quantised", [8, 8]),
    ("gemv", [12, 16]),
    ("layer_norm", [18, 18]),
    ("paged_attention", [4, 6]),
    ("paged_attention_v", [12, 12]),
    ("paged_attention_v2_reduce", [64, 64]),
    ("paged_prefill", [4, 8]),
    ("paged_prefill_hopper", [0, 12]),
    ("paper_rope_and_cache", [16, 16]),
    ("plan_paged_attention", [64, 64]),
    ("reshape_and_cache", [64, 64]),
    ("rms_norm", [30, 27]),
    ("rope_and_cache", [16, 16]),
    ("sample", [16, 16]),
    ("swap_blocks", [64, 64]),
];

/// The fewest warps of each kernel over all of its launches.
#[derive(Default)]
pub struct Held(BTreeMap<&'static str, Occupancy>);

impl Held {
    /// Notes launches of code for a target.
    pub fn note(&mut self, target: &str, launched: &BTreeMap<&'static str, LaunchShape>) {
        for (&name, shape) in launched {
            let gpu = if target == "sm_80" { GpuLimits::new(108, 163 << 10, (8, 0)) } else { GpuLimits::H200 };
            let threads = shape.threads.iter().product();
            let Some(held) = resources(target, name).map(|used| used.occupancy(threads, shape.shared, gpu)) else {
                continue;
            };
            let least = self.0.entry(name).or_insert(held);
            *least = if held.warps < least.warps { held } else { *least };
        }
    }

    /// What is wrong: a kernel with fewer warps than its budget or without one, or a budget of nothing.
    pub fn wrong(&self, target: &str) -> Vec<String> {
        let at = usize::from(target != "sm_80");
        let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
        for (name, held) in &self.0 {
            let budget = BUDGETS.iter().filter(|(beginning, _)| name.starts_with(beginning));
            match budget.max_by_key(|(beginning, _)| beginning.len()) {
                None => wrong.push(format!("{name} for {target} has no budget of warps: {held:?}")),
                Some((beginning, warps)) => {
                    used.insert(*beginning);
                    if held.warps < warps[at] {
                        wrong.push(format!("{name} for {target}: {held:?}, where {} warps were to fit", warps[at]));
                    }
                }
            }
        }
        let unused = BUDGETS.iter().filter(|(beginning, warps)| warps[at] > 0 && !used.contains(beginning));
        wrong.extend(unused.map(|(beginning, _)| format!("the budget of {beginning} for {target} is of no kernel")));
        wrong
    }
}
