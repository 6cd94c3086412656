//! Rotation of heads, with the cache write.
//!
//! Tried by hand on the source: if padding (slot -1) is written too, `any_shape_goes_to_any_slot` fails, out of bounds.

use kernels::layout::{KvFormat, Pages};
use kernels::rope::{HeadOptions, Pairing};
use workbench::cases::rope::{Layout, RopeProblem};
use workbench::number::Type;

use crate::frame::gpu::{Gpu, TARGETS};

/// The layouts of the cache. Each has its own kernel.
const LAYOUTS: [Layout; 2] = [Layout::Quire, Layout::Paper];

/// Returns slots in four blocks, out of order, with every fifth one padding.
fn scattered(tokens: i32, block_size: u32) -> Vec<i32> {
    // 29 has no divisor in common with the number of slots, so no two tokens share a slot.
    (0..tokens).map(|t| if t % 5 == 3 { -1 } else { (t * 29 + 5) % (4 * block_size as i32) }).collect()
}

#[test]
fn any_shape_goes_to_any_slot() {
    let shapes = [
        (32, 8, 4, 1, 1),
        (64, 16, 3, 3, 7),
        (80, 16, 2, 2, 8),
        (96, 32, 5, 1, 9),
        (128, 16, 8, 2, 17),
        (256, 8, 2, 1, 3),
    ];
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (i, (head_size, block_size, heads, kv_heads, tokens)) in shapes.into_iter().enumerate() {
        for (j, layout) in (0..4).flat_map(|j| LAYOUTS.map(|layout| (j, layout))) {
            let rope = RopeProblem {
                ty: Type::ALL[(i + j) % 2],
                heads,
                pages: Pages { heads: kv_heads, head_size, block_size, format: KvFormat::Plain, padding: 0 },
                layout,
                slots: scattered(tokens, block_size),
                norm: j & 1 != 0,
                rotate: j & 2 != 0,
                general: None,
                in_place: (i + j) % 3 == 0,
                seed: j as u64,
            };
            let gpu = &mut gpus[(i + j / 2) % 2];
            gpu.seed((i + j) as u64);
            gpu.run(&rope.case());
        }
    }
}

/// The host computes the same codes and scales, to the bit, from the keys and values that the kernel writes in 16 bits.
/// See [`RopeProblem::case`].
#[test]
fn codes_and_scales_match_the_host() {
    let shapes = [
        (32, 8, 2, 1, 3),
        (32, 32, 1, 3, 17),
        (64, 16, 3, 3, 9),
        (64, 8, 0, 2, 8),
        (128, 16, 4, 2, 11),
        (128, 32, 2, 1, 1),
        (80, 16, 3, 2, 9),
        (80, 8, 1, 1, 20),
        (96, 16, 2, 2, 10),
        (256, 32, 2, 1, 9),
    ];
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (i, (head_size, block_size, heads, kv_heads, tokens)) in shapes.into_iter().enumerate() {
        for (j, format) in (0..4).flat_map(|j| [KvFormat::Int8, KvFormat::Fp8].map(|format| (j, format))) {
            let rope = RopeProblem {
                ty: Type::ALL[(i + j) % 2],
                heads,
                pages: Pages { heads: kv_heads, head_size, block_size, format, padding: 3 },
                layout: Layout::Quire,
                slots: scattered(tokens, block_size),
                norm: j & 1 != 0,
                rotate: j & 2 != 0,
                general: None,
                in_place: (i + j) % 3 == 0,
                seed: j as u64,
            };
            let gpu = &mut gpus[(i + j / 2) % 2];
            gpu.seed((i + j) as u64);
            gpu.run(&rope.case());
        }
    }
}

#[test]
fn a_prompt_is_moved_with_no_more_sectors_than_needed() {
    const TOKENS: u64 = 48;
    for (head_size, format) in [64, 128].into_iter().flat_map(|size| KvFormat::ALL.map(|format| (size, format))) {
        for (rotate, (target, _)) in [false, true].into_iter().flat_map(|rotate| TARGETS.map(|target| (rotate, target)))
        {
            let pages = Pages { heads: 2, head_size, block_size: 16, format, padding: 0 };
            let slots: Vec<i32> = (0..TOKENS as i32).collect();
            let layout = Layout::Quire;
            let rope = RopeProblem {
                ty: Type::Bf16,
                heads: 4,
                pages,
                layout,
                slots,
                norm: false,
                rotate,
                general: None,
                in_place: false,
                seed: 1,
            };
            let case = rope.case();
            let mut gpu = Gpu::new(target);
            let report = gpu.run(&case);
            if gpu.is_emulator() {
                // Six heads read angles, each sector twice. Positions and slots take a sector for each warp.
                let angles = if rotate { (2 * 6 - 1) * TOKENS * u64::from(head_size) * 4 } else { 0 };
                let indices = TOKENS / 8 * 32 * (6 + 4);
                // A warp's eight scales are half a sector.
                let scales = if format.is_coded() { TOKENS / 8 * 2 * 2 * 16 } else { 0 };
                let most = case.floor.bytes + angles + indices + scales;
                assert!(report.total.sectors * 32 <= most, "{} of {most}", report.total.sectors * 32);
                assert!(rotate || report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
            }
        }
    }
}

/// Every kind of rotation, with and without norms, in place and not, for heads up to 512 elements in every format.
#[test]
fn heads_may_be_long_or_rotated_in_part() {
    let shapes = [
        (512, 512, Pairing::Halves),
        (512, 128, Pairing::Halves),
        (128, 64, Pairing::Interleaved),
        (96, 96, Pairing::Interleaved),
        (80, 32, Pairing::Halves),
        (64, 16, Pairing::Halves),
        (32, 16, Pairing::Interleaved),
        (32, 24, Pairing::Interleaved),
        (256, 192, Pairing::Halves),
    ];
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (i, (head_size, rotated, pairing)) in shapes.into_iter().enumerate() {
        for (j, format) in (0..4).flat_map(|j| KvFormat::ALL.map(|format| (j, format))) {
            let general = HeadOptions { rotated, pairing, value_norm: (i + j) % 2 == 0 };
            let rope = RopeProblem {
                ty: Type::ALL[(i + j) % 2],
                heads: 3,
                pages: Pages { heads: 2, head_size, block_size: [8, 16, 32][i % 3], format, padding: i as u32 % 2 },
                layout: Layout::Quire,
                slots: scattered(9 + i as i32, [8, 16, 32][i % 3]),
                norm: j & 1 != 0,
                rotate: j & 2 != 0,
                general: Some(general),
                in_place: (i + j) % 3 == 0,
                seed: j as u64,
            };
            let gpu = &mut gpus[(i + j / 2) % 2];
            gpu.seed((i + j) as u64);
            gpu.run(&rope.case());
        }
    }
}
