//! [`grouped_product`](super::product::grouped_product()) with quantised weights, which share the tiles of
//! [`gemm_quantised`](crate::gemm::quantised::gemm_quantised()).
//!
//! The weights of all experts are one packed matrix. Each expert has the same number of fragments of 16 rows.

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;

use super::product::{GatherCopy, Group, GroupOutput};
use crate::element::{Bf16, F16};
use crate::gemm::epilogue::Staged;
use crate::gemm::operand::DEPTH;
use crate::gemm::quantised::codes::FromCodes;
use crate::gemm::quantised::layout::FRAGMENT_ROWS;
use crate::gemm::quantised::{CodedRows, rows, stage_bytes, stages};
use crate::gemm::split::tiles as tiles_of;
use crate::gemm::tiles::{WARPS, WarpSums, stage, stream};

/// Multiplies sorted rows of activations with the weights of their experts.
///
/// [`gemm_quantised()`](crate::gemm::quantised::gemm_quantised()) explains the arguments of the weight, and
/// [`grouped_product()`](super::product::grouped_product()) the others.
///
/// # Safety
/// As for [`grouped_product()`](super::product::grouped_product()).
#[kernel(
    dependent,
    max_threads = 128,
    instances(min_blocks = 2, T = [F16, Bf16], FORM = [0, 1, 3], TOKENS = [16]),
    instances(T = [F16, Bf16], FORM = [0, 1, 3], TOKENS = [64])
)]
pub unsafe fn grouped_quantised<T: FromCodes, const FORM: u32, const TOKENS: u32>(
    x: *const u16,
    codes: *const Vector,
    scales: *const Vector,
    bias: *const u16,
    out: *mut u16,
    order: *const u32,
    tiles: *const Vector,
    x_stride: u32,
    out_stride: u32,
    n: u32,
    all_rows: u32,
    k: u32,
    group_shift: u32,
    factor: f32,
    uses: u32,
    slope: f32,
    cubic: f32,
    limit: f32,
    shift: f32,
) {
    let rows = rows(TOKENS);
    // SAFETY: the launch has a block for each tile of the list and each tile of rows.
    let (group, row_tile) = unsafe { Group::of_block(tiles, order, tiles_of(n, rows)) };
    if group.count == 0 {
        return;
    }
    let ring: *mut u8 = dynamic_shared_mem();
    let ring_offset = shared_offset(ring);
    let steps = tiles_of(k, DEPTH);
    let of_expert = group.expert * (all_rows / FRAGMENT_ROWS);
    let of_warp = (row_tile * WARPS + warp::warp_id()) * CodedRows::<FORM, TOKENS>::PER_WARP;
    let (first, end) = (of_expert + of_warp, of_expert + tiles_of(n, FRAGMENT_ROWS));
    let weight = CodedRows::<FORM, TOKENS> { codes, scales, first, end, steps, group_shift };
    // SAFETY: the list has the group's rows, by this kernel's contract.
    let x_source = unsafe { GatherCopy::<TOKENS>::new(x, x_stride, k, group, uses, thread::thread_idx_x()) };
    let copy = |place: u32, step: u32| {
        let place = ring_offset + place;
        // SAFETY: all warps have read this slot, or it was never written. The operands have their shapes by this
        // kernel's contract.
        unsafe {
            weight.copy(place, step);
            x_source.copy(place + CodedRows::<FORM, TOKENS>::X_START, step * DEPTH);
        }
    };
    let mut sums: WarpSums = [[0.0; 4]; 16];
    // SAFETY: all threads of the block are here, and the tile's copies have been waited for. The ring has `stages`
    // slots, and room for the sums. The output is the group's, by this kernel's contract.
    unsafe {
        let multiply = |now: u32| weight.multiply::<T>(&mut sums, ring, now);
        stream((stages(TOKENS), stage_bytes(FORM, TOKENS)), (0, steps), copy, multiply);
        thread::sync_threads();
        let put = |staged: Staged, token: u32, fragment: u32, sums: [f32; 4]| {
            CodedRows::<FORM, TOKENS>::put(staged, token, fragment, sums, factor);
        };
        let staged = stage::<TOKENS>(ring, rows, &sums, put);
        let bias = if bias.is_null() { bias } else { bias.add(group.expert as usize * all_rows as usize) };
        let output = GroupOutput { out, stride: out_stride, bias, n, uses, slope, cubic, limit, shift };
        output.store::<T>(staged, group, row_tile * rows);
    }
}
