//! Plans for the weights of real models.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
extern crate std;

use super::*;
use crate::element::ElementType;
use crate::floor::Floor;
use crate::gemm::activation::Activation;
use crate::gemm::epilogue::Epilogue;
use std::string::ToString;

/// Rows and row lengths of the weights of OPT-13B and LLaMA-3-8B.
const WEIGHTS: [(u32, u32); 10] = [
    (15360, 5120),
    (5120, 5120),
    (20480, 5120),
    (5120, 20480),
    (50272, 5120),
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (128_256, 4096),
];

const A100: GpuLimits = GpuLimits::new(108, 163 << 10, (8, 0));
const A10: GpuLimits = GpuLimits::new(72, 99 << 10, (8, 6));

fn product(m: u32, n: u32, k: u32) -> Product {
    Product { m, n, k, epilogue: Epilogue::Half(None) }
}

#[test]
fn the_number_of_tokens_selects_the_kernel() {
    let kernel = |m| GemmPlan::new(product(m, 4096, 4096), GpuLimits::H200).unwrap().kernel;
    assert_eq!([1, 2, 3, 4].map(kernel), [1, 2, 4, 4].map(GemmKernel::Gemv));
    assert_eq!([5, 8, 9, 16, 17, 33, 64].map(kernel), [8, 8, 16, 16, 32, 64, 64].map(GemmKernel::HopperDecode));
    assert!(matches!(kernel(65), GemmKernel::Hopper(_)));
    assert_eq!(kernel(4096), GemmKernel::HopperPairs(256));
    let older = |m| GemmPlan::new(product(m, 4096, 4096), A100).unwrap().kernel;
    assert_eq!([5, 8, 9, 16, 17, 33, 64].map(older), [8, 8, 16, 16, 32, 64, 64].map(GemmKernel::Decode));
    assert!(matches!(older(65), GemmKernel::Prefill(_)));
    assert_eq!(older(4096), GemmKernel::Prefill(256));
    // Later GPUs run the code for Ampere.
    assert_eq!(GpuLimits::new(148, 227 << 10, (10, 0)).hopper_from, None);
    let decode = GpuLimits { hopper_decode_from: 1, ..GpuLimits::H200 };
    let decode = |m| GemmPlan::new(product(m, 64, 64), decode).unwrap().kernel;
    assert_eq!([1, 8, 9, 64].map(decode), [8, 8, 16, 64].map(GemmKernel::HopperDecode));
    assert!(matches!(decode(65), GemmKernel::Hopper(_)));
    let all = GpuLimits { hopper_from: Some(1), ..GpuLimits::H200 };
    assert!(matches!(GemmPlan::new(product(1, 64, 64), all).unwrap().kernel, GemmKernel::Hopper(_)));
}

#[test]
fn decode_has_blocks_for_every_sm_and_few_parts_of_sums() {
    for (n, k) in WEIGHTS {
        for (m, gpu) in [8, 16, 32, 64].into_iter().flat_map(|m| [(m, GpuLimits::H200), (m, WITHOUT_HOPPER)]) {
            let plan = GemmPlan::new(product(m, n, k), gpu).unwrap();
            let [x, y, _] = plan.shape().grid;
            assert_eq!((y, plan.counters()), (plan.splits, if plan.splits == 1 { 0 } else { x }));
            assert!(plan.splits == 1 || x * y <= 2 * 132, "{plan:?}: all run at once");
            assert!(x * y >= 120, "{plan:?}: most SMs have a block");
            assert!(k.div_ceil(operand::DEPTH) / plan.splits >= 4, "{plan:?}");
            assert!(plan.workspace_bytes() <= u64::from(n + 127) * u64::from(k) * 2 / 8, "{plan:?}");
        }
    }
}

/// An H200 that is used as if it were an older GPU.
const WITHOUT_HOPPER: GpuLimits = GpuLimits { hopper_from: None, ..GpuLimits::H200 };

#[test]
fn prefill_splits_where_tiles_are_few() {
    for gpu in [GpuLimits::H200, WITHOUT_HOPPER] {
        let plan = |m, n, k| GemmPlan::new(product(m, n, k), gpu).unwrap();
        assert!(plan(128, 4096, 4096).splits > 1);
        assert_eq!(plan(4096, 4096, 4096).splits, 1);
        for (n, k) in WEIGHTS {
            for m in [65, 128, 256, 1024, 4096] {
                let plan = plan(m, n, k);
                let [x, y, _] = plan.shape().grid;
                assert!(x * y >= 96, "{plan:?}: most SMs have a block");
                assert!(k.div_ceil(operand::DEPTH) / plan.splits >= 4, "{plan:?}");
                if let GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) = plan.kernel {
                    assert!(x <= 132, "{plan:?}: all run at once");
                }
            }
        }
    }
}

#[test]
fn pairs_have_two_tiles_of_tokens() {
    for (m, (n, k)) in [65, 128, 129, 256, 257, 384, 1024, 4096].into_iter().flat_map(|m| WEIGHTS.map(|w| (m, w))) {
        let plan = GemmPlan::new(product(m, n, k), GpuLimits::H200).unwrap();
        let (shape, is_paired) = (plan.shape(), matches!(plan.kernel, GemmKernel::HopperPairs(_)));
        assert_eq!(shape.cluster, [1 + u32::from(is_paired), 1, 1], "{plan:?}");
        assert!(shape.grid[0].is_multiple_of(shape.cluster[0]), "{plan:?}");
        assert!(!is_paired || m > hopper::ROWS, "{plan:?}");
        // With an even number of tile rows, every block can be in a pair.
        assert!(is_paired || !m.is_multiple_of(2 * hopper::ROWS), "{plan:?}");
    }
    // One row of tiles too many: pairs would take two rounds.
    let plan = GemmPlan::new(product(384, 11 * 1024, 8192), GpuLimits::H200).unwrap();
    assert_eq!(plan.kernel, GemmKernel::Hopper(256));
}

#[test]
fn other_gpus_have_plans() {
    for gpu in [A100, A10] {
        for (n, k) in WEIGHTS {
            for m in [1, 4, 16, 64, 256, 4096] {
                let plan = GemmPlan::new(product(m, n, k), gpu).unwrap();
                assert!(plan.shared_bytes() <= gpu.shared_bytes, "{plan:?}");
            }
        }
    }
}

#[test]
fn every_plan_has_an_entry() {
    for (m, gpu) in (1..200).flat_map(|m| [(m, GpuLimits::H200), (m, WITHOUT_HOPPER)]) {
        let plan = GemmPlan::new(product(m, 512, 512), gpu).unwrap();
        for element in ElementType::ALL {
            let call = plan.call(element, Operands::NULL);
            assert!(call.descriptor().bounds.max_threads >= Some(plan.shape().threads[0]));
            assert_eq!(call.descriptor().labels[0], element.label());
        }
    }
}

#[test]
fn unsupported_shapes_are_refused() {
    let refused = |product| GemmPlan::new(product, GpuLimits::H200).unwrap_err();
    assert_eq!(refused(product(0, 8, 8)), UnsupportedProduct::Empty);
    assert_eq!(refused(product(8, 1 << 23, 8)), UnsupportedProduct::Large(8, 1 << 23));
    assert_eq!(refused(product(1, 8, 12)), UnsupportedProduct::Ragged(12));
    let gated = Product { epilogue: Epilogue::Gated(Activation::Silu), ..product(1, 24, 8) };
    assert_eq!(refused(gated), UnsupportedProduct::Gated(24));
    let small = GpuLimits { shared_bytes: 48 << 10, ..WITHOUT_HOPPER };
    let error = GemmPlan::new(product(128, 128, 128), small).unwrap_err();
    assert_eq!(error.to_string(), "a block needs 98304 bytes of shared memory, more than the GPU has");
}

#[test]
fn floors_count_each_byte_once() {
    let floor = product(2, 3, 8).floor();
    assert_eq!(floor, Floor { bytes: 2 * (16 + 24 + 6), flops: 96 });
    let added = Product { epilogue: Epilogue::Add, ..product(2, 3, 8) };
    assert_eq!(added.floor().bytes, 2 * (16 + 24 + 6 + 6));
    let gated = Product { epilogue: Epilogue::Gated(Activation::Silu), ..product(2, 16, 8) };
    assert_eq!(gated.floor().bytes, 2 * (16 + 128 + 16));
}

#[test]
fn added_products_of_up_to_64_tokens_can_normalise() {
    let can_normalise =
        |m, n, epilogue, gpu| GemmPlan::new(Product { m, n, k: 5120, epilogue }, gpu).unwrap().can_normalise(gpu);
    let a100 = GpuLimits::new(108, 163 << 10, (8, 0));
    for gpu in [GpuLimits::H200, a100] {
        assert!([1, 4, 5, 64].iter().all(|&m| can_normalise(m, 5120, Epilogue::Add, gpu)));
        assert!(!can_normalise(65, 5120, Epilogue::Add, gpu), "too many tokens");
        assert!(!can_normalise(8, 5120, Epilogue::Half(None), gpu), "nothing is added");
        assert!(
            can_normalise(8, 8192, Epilogue::Add, gpu) && !can_normalise(8, 8200, Epilogue::Add, gpu),
            "rows that fit"
        );
        assert!(!can_normalise(8, 5124, Epilogue::Add, gpu), "whole vectors");
    }
    // As many blocks wait as there are rows, and all of them must run at once.
    let small = GpuLimits::new(16, 163 << 10, (8, 0));
    assert!(can_normalise(15, 5120, Epilogue::Add, small) && !can_normalise(16, 5120, Epilogue::Add, small));
    // As many blocks wait as there are tiles, if these are fewer.
    assert!(can_normalise(16, 128, Epilogue::Add, small));
}
