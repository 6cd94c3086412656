//! `paged_prefill_hopper`: errors that only this kernel can make, and its cost compared with `paged_prefill`. The tests
//! of the parent module also run it on the heads that it supports.

use kernels::attention::prefill::hopper::shape::KEYS;
use kernels::attention::prefill::{hopper, shape};
use kernels::layout::KvFormat;
use workbench::number::Type;
use workbench::paged::{PagedProblem, PagedShape};

use super::{attend, check_hopper, checked, shape as heads, span};
use crate::frame::gpu::Gpu;

const HEAD_SIZES: [u32; 2] = [64, 128];

#[test]
fn it_supports_16_bit_caches_and_two_head_sizes() {
    for (head_size, format) in
        [(32, KvFormat::Plain), (64, KvFormat::Plain), (64, KvFormat::Int8), (128, KvFormat::Fp8)]
    {
        let serves = hopper::shape::serves(checked(PagedShape { format, ..heads(1, 1, head_size, 16, 0) }));
        assert_eq!(serves, head_size == 64 && format == KvFormat::Plain, "{head_size}, {format:?}");
    }
}

#[test]
fn chunks_begin_anywhere_and_end_anywhere() {
    let chunks = [(0, 1), (1, 127), (7, 129), (8, 1), (127, 2), (128, 128), (129, 200), (383, 65), (384, 3), (500, 17)];
    for (i, (cached, new)) in chunks.into_iter().enumerate() {
        let (block_size, window) = ([8, 16, 32][i % 3], [0, 1, 130, 257][i % 4]);
        let shape = heads(1, [1, 3][i % 2], HEAD_SIZES[i / 2 % 2], block_size, window);
        let spans = [span(new, cached + new), span(3, 3 + i as u32)];
        check_hopper(&PagedProblem::new(PagedShape { ty: Type::ALL[i % 2], ..shape }, &spans, 0, i as u64), 0);
    }
}

/// In the last tile, values past the last token are zeroed in the tile's own slot of the ring, whichever slot that is.
#[test]
fn the_last_tile_is_in_any_place_of_the_ring() {
    for tiles in 1..=7 {
        for missing in [1, 9, 31, 120] {
            check_hopper(&PagedProblem::new(heads(1, 1, 64, 32, 0), &[span(5, tiles * KEYS - missing)], 0, 3), 0);
        }
    }
}

#[test]
fn each_byte_is_moved_once() {
    for head_size in HEAD_SIZES {
        let tokens = 32;
        let shape = heads(1, 4, head_size, 16, 0);
        let total = check_hopper(&PagedProblem::new(shape, &[span(tokens, 1000)], 0, 7), 0).total;
        let (floor, moved) = (shape::floor(checked(shape), tokens, 1000, 0), 32 * total.sectors);
        println!("head size {head_size}: {} instructions, {moved} bytes of {floor:?}", total.instructions);
        assert!(moved as f64 <= 1.02 * floor.bytes as f64, "{moved} of {floor:?}, head size {head_size}");
        assert_eq!(
            (total.bank_conflicts(), total.sector_ratio() <= 1.02),
            (0, true),
            "{total:?}, head size {head_size}"
        );
    }
}

/// Warp instructions for a prompt, and for a chunk at the end of a long context, compared with the kernel for all GPUs.
#[test]
fn prompts_take_fewer_instructions() {
    for (head_size, span) in
        HEAD_SIZES.into_iter().flat_map(|size| [span(1024, 1024), span(128, 4096)].map(|span| (size, span)))
    {
        let problem = PagedProblem::new(heads(1, 1, head_size, 16, 0), &[span], 0, 1);
        let [other, own] = [false, true].map(|on_hopper| {
            let (output, report) = attend(&mut Gpu::new("sm_90a"), &problem, 0, on_hopper).unwrap();
            assert!(problem.sampled_error(&output) <= Type::F16.tolerance());
            report.total.instructions
        });
        println!("head size {head_size}, {span:?}: {own} instructions, {other} in the kernel for all GPUs");
        assert!(10 * own < 8 * other, "{own} and {other}");
    }
}
