//! What GPUs exchange.

use workbench::Scale;
use workbench::cases;

use crate::frame::gpu::Gpu;

pub fn every_kernel(gpu: &mut Gpu) {
    for case in cases::all(Scale::Small) {
        if ["all_reduce", "all_reduce_two_shot", "gather_logits"].contains(&case.kernel) {
            gpu.run(&case);
        }
    }
}
