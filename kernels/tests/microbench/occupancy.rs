//! The number of warps of each kernel that a multiprocessor holds at once, compared with a budget.

use std::collections::{BTreeMap, BTreeSet};

use cuda_std::launch::LaunchShape;
use kernels::gemm::plan::GpuLimits;
use workbench::{Occupancy, resources};

/// Families by name prefix, and the fewest warps that a multiprocessor must hold: of an A100 for sm_80, of an H200 for
/// sm_90a. 0 means that the target has no kernel of the family. The longest prefix gives a kernel's budget.
const BUDGETS: [(&str, [u32; 2]); 50] = [
    ("add_positions", [64, 64]),
    ("add_rows", [64, 64]),
    ("all_reduce", [16, 16]),
    ("causal_convolution", [20, 20]),
    ("combine_experts", [64, 64]),
    ("copy_blocks", [64, 64]),
    ("embed", [64, 64]),
    ("gather", [64, 64]),
    ("gemm", [4, 8]),
    ("gemm_decode", [4, 8]),
    ("gemm_hopper", [0, 12]),
    ("gemm_hopper_decode", [0, 18]),
    ("gemm_quantised", [8, 8]),
    ("gemv", [12, 16]),
    ("general_rope_and_cache", [16, 16]),
    ("group_by_expert", [64, 64]),
    ("grouped_hopper", [0, 12]),
    ("grouped_product", [4, 8]),
    ("grouped_quantised", [8, 8]),
    ("join_latents", [64, 64]),
    ("layer_norm", [18, 18]),
    ("multiply_columns", [64, 64]),
    ("multiply_heads", [32, 32]),
    ("paged_attention", [4, 6]),
    // Heads of 512 need twice the shared memory of heads of 256.
    ("paged_attention_bf16_512", [2, 2]),
    ("paged_attention_bf16fp8_512", [2, 2]),
    ("paged_attention_bf16int8_512", [2, 2]),
    ("paged_attention_f16_512", [2, 2]),
    ("paged_attention_f16fp8_512", [2, 2]),
    ("paged_attention_f16int8_512", [2, 2]),
    ("paged_attention_v", [12, 12]),
    ("paged_attention_v2_reduce", [64, 64]),
    ("paged_latent_attention", [4, 8]),
    ("paged_prefill", [4, 8]),
    ("paged_prefill_hopper", [0, 12]),
    ("paper_rope_and_cache", [16, 16]),
    ("pass_chunks", [8, 8]),
    ("plan_paged_attention", [64, 64]),
    ("prepare_chunks", [8, 8]),
    ("recur_heads", [16, 16]),
    ("reshape_and_cache", [64, 64]),
    ("rms_norm", [30, 27]),
    ("rms_norm_gated", [18, 18]),
    ("rope_and_cache", [16, 16]),
    ("route", [48, 48]),
    ("row_squares", [32, 32]),
    ("sample", [16, 16]),
    ("scale_logits", [64, 64]),
    ("scale_rows", [64, 64]),
    ("swap_blocks", [64, 64]),
];

/// The fewest warps of each kernel over all of its launches.
#[derive(Default)]
pub struct FewestWarps(BTreeMap<&'static str, Occupancy>);

impl FewestWarps {
    /// Records launches of the code for a target.
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

    /// Returns the errors: a kernel with fewer warps than its budget, a kernel without a budget, or a budget without a
    /// kernel.
    pub fn wrong(&self, target: &str) -> Vec<String> {
        let at = usize::from(target != "sm_80");
        let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
        for (name, held) in &self.0 {
            let budget = BUDGETS.iter().filter(|(prefix, _)| name.starts_with(prefix));
            match budget.max_by_key(|(prefix, _)| prefix.len()) {
                None => wrong.push(format!("{name} for {target} has no budget of warps: {held:?}")),
                Some((prefix, warps)) => {
                    used.insert(*prefix);
                    if held.warps < warps[at] {
                        wrong.push(format!("{name} for {target}: {held:?}, but {} warps must fit", warps[at]));
                    }
                }
            }
        }
        let unused = BUDGETS.iter().filter(|(prefix, warps)| warps[at] > 0 && !used.contains(prefix));
        wrong.extend(unused.map(|(prefix, _)| format!("no kernel for {target} has the budget of {prefix}")));
        wrong
    }
}
