//! Many tokens: the tensor cores are the limit.
//!
//! A block computes a tile of 128 tokens by `COLUMNS` (128 or 256) rows of the weight. A warp computes 64 x 64 of it in
//! 128 registers a lane. `cp.async` brings tiles of both operands through a ring of [`STAGES`] slots in shared memory,
//! two tiles ahead.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`, any `m` and `n` below 2^23, `k` a multiple of 8 |
//! | grid | x: tiles of the product. y: splits of `k`. `COLUMNS` threads |
//! | shared memory | [`shared_bytes`]: 96 KiB (two blocks an SM on an H200), 144 KiB (one) |
//! | floor | `2 m n k` flops and `2 (m k + n k + m n)` bytes |
//!
//! # What limits it
//!
//! A warp's step of 64 x 64 x 16 is 65,536 multiply-adds and reads 4 KiB of shared memory. The copies write 1.5 KiB (2
//! KiB with 128 columns) for it. On Hopper `mma.sync` does some 1,300 multiply-adds a clock and SM, 63 % of `wgmma`. A
//! step therefore takes 50 clocks. Shared memory, at 128 bytes a clock, is busy for 44 (48) of them. Larger warp tiles
//! do not fit in registers. The prediction for an H200 is 55 to 60 % of `wgmma`'s rate, 430 to 480 TFLOP/s.
//!
//! # Ladder
//!
//! 1. One thread for each output, operands from global memory: bound by the first-level cache.
//! 2. Tiles in shared memory, `mma` on fragments that `ldmatrix` loads: waits for every tile.
//! 3. A ring filled by `cp.async`: tiles arrive while others are multiplied. One barrier a tile says both that the next
//!    tile has arrived and that all warps have read this one.
//! 4. (here) Fragments are loaded ahead of the `mma`s. The weight's fragments have two sets of registers. Each fragment
//!    of the activations is loaded as soon as its eight `mma`s are issued, which saves a second set. Copies are spread
//!    over a tile's steps.
//!
//! The next step is `wgmma` with TMA, which takes operands from shared memory without `ldmatrix`. Only Hopper has it,
//! see [`hopper`](super::hopper).

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::{HalfVector, Vector};

use super::epilogue::{ADD, ProductOutput, Staged};
use super::fragment::{Identity, finish};
use super::operand::{DEPTH, ROW_BYTES, STEPS, TileCopy, TilePart, load, place_a, place_b};
use super::packed::{PackedTile, is_packed};
use super::split::{Meeting, share, tiles};
use crate::element::{Bf16, Element, F16};
use cuda_std::ptx::cp_async;

/// Tokens of a tile.
pub const ROWS: u32 = 128;

/// Tiles in the ring.
pub const STAGES: u32 = 3;

/// Rows of tiles that blocks process together, column by column. Blocks that run at once then share few rows of both
/// operands, which stay in L2.
pub const GROUP: u32 = 8;

/// Dynamic shared memory, in bytes: the ring, which the sums reuse at the end.
pub const fn shared_bytes(columns: u32) -> u32 {
    STAGES * (ROWS + columns) * ROW_BYTES
}

// The outputs take 16 bits each, which leaves room for the previous output that they are added to.
const _: () = assert!(PackedTile::<ROWS, 128>::BYTES + ROWS * 128 * 2 <= shared_bytes(128));
const _: () = assert!(PackedTile::<ROWS, 256>::BYTES + ROWS * 256 * 2 <= shared_bytes(256));

/// Multiplies activations with a weight: `out = epilogue(x weight^T)`. See [`super`] for the arguments.
///
/// # Safety
/// The arrays have the shapes that the arguments state, rows of `x` and `weight` are 16-byte aligned, and the launch is
/// one of a [`GemmPlan`](super::plan::GemmPlan).
#[kernel(dependent, max_threads = 256, instances(T = [F16, Bf16], COLUMNS = [128, 256]))]
pub unsafe fn gemm<T: Element, const COLUMNS: u32>(
    x: *const u16,
    weight: *const u16,
    bias: *const u16,
    out: *mut u8,
    workspace: *mut Vector,
    counters: *mut u32,
    x_stride: u32,
    out_stride: u32,
    m: u32,
    n: u32,
    k: u32,
    epilogue: u32,
) {
    let (tile_m, tile_n) = place(thread::block_idx_x(), tiles(m, ROWS), tiles(n, COLUMNS));
    let (row, column) = (tile_m * ROWS, tile_n * COLUMNS);
    // Kept in one register until after the main loop.
    let corner = hidden(tile_m << 16 | tile_n);
    let (first, last) = share(tiles(k, DEPTH));
    // A tile is identified by where it begins along `k`, which saves a register.
    let (first, end) = (first * DEPTH, last * DEPTH);

    let ring: *mut u8 = dynamic_shared_mem();
    let ring_offset = shared_offset(ring);
    let stage_bytes = (ROWS + COLUMNS) * ROW_BYTES;
    let x_source = TileCopy::<COLUMNS>::new(x, x_stride, m, k, row);
    let weight_source = TileCopy::<COLUMNS>::new(weight, k, n, k, column);
    let parts = |start: u32| (x_source.of(start), weight_source.of(start));
    // Copies the part of a tile that belongs to a step. Positions in the ring are in bytes.
    let copy = |place: u32, (x, weight): (TilePart<COLUMNS>, TilePart<COLUMNS>), step: u32| {
        let place = ring_offset + place;
        let x_copies = TileCopy::<COLUMNS>::copies(ROWS) / STEPS;
        let weight_copies = TileCopy::<COLUMNS>::copies(COLUMNS) / STEPS;
        // SAFETY: all warps have read this slot, or it was never written. The operands have their shapes by this
        // kernel's contract.
        unsafe {
            x.copy(place, step * x_copies..(step + 1) * x_copies);
            weight.copy(place + ROWS * ROW_BYTES, step * weight_copies..(step + 1) * weight_copies);
        }
    };
    let (warp_row, warp_column) = warp_place(warp::warp_id());
    let (x_place, weight_place) = (place_a(warp_row), ROWS * ROW_BYTES + place_b(warp_column));
    // SAFETY: all lanes of a warp call this together, and only for slots whose copies have been waited for.
    let load_x = |place: u32, step: u32, i: u32| unsafe { load(ring_offset + place, x_place, step, i) };
    let load_weight = |place: u32, step: u32| {
        // SAFETY: as for `load_x`.
        let one = |i: u32| unsafe { load(ring_offset + place, weight_place, step, i) };
        [one(0), one(1), one(2), one(3)]
    };

    for stage in 0..STAGES - 1 {
        let start = first + stage * DEPTH;
        if start < end {
            let parts = parts(start);
            unroll!(step in [0 1 2 3] { copy(stage * stage_bytes, parts, step) });
        }
        // Commit even without copies, since waits count groups.
        cp_async::commit();
    }
    cp_async::wait::<{ STAGES - 2 }>();
    thread::sync_threads();
    let mut a = [load_x(0, 0, 0), load_x(0, 0, 1), load_x(0, 0, 2), load_x(0, 0, 3)];
    let mut b_ahead = load_weight(0, 0);
    let mut sums = [[0.0; 4]; 32];
    let (mut now, mut free) = (0, (STAGES - 1) * stage_bytes);
    let mut start = first;
    while start < end {
        let mut following = if now == (STAGES - 1) * stage_bytes { 0 } else { now + stage_bytes };
        // Hidden, since the compiler would peel the loop's last round, and lacks the registers for that.
        let next = hidden(start + DEPTH);
        if next == end {
            // The last step's loads are unused. They read a tile that has arrived.
            following = now;
        }
        let ahead = next + (STAGES - 2) * DEPTH;
        let parts = parts(ahead);
        unroll!(step in [0 1 2 3] {
            let b = b_ahead;
            if ahead < end {
                copy(free, parts, step);
            }
            if step == STEPS - 1 && next != end {
                // The next tile has arrived, and all warps have loaded this one. The next round refills its slot.
                cp_async::commit();
                cp_async::wait::<{ STAGES - 2 }>();
                thread::sync_threads();
            }
            let (place, ahead) = if step == STEPS - 1 { (following, 0) } else { (now, step + 1) };
            b_ahead = load_weight(place, ahead);
            unroll!(i in [0 1 2 3] {
                unroll!(j in [0 1 2 3] {
                    let at = i * 8 + j * 2;
                    // SAFETY: no branch here diverges, so all lanes of the warp are here together.
                    unsafe {
                        sums[at] = T::mma(a[i], [b[j][0], b[j][1]], sums[at]);
                        sums[at + 1] = T::mma(a[i], [b[j][2], b[j][3]], sums[at + 1]);
                    }
                });
                a[i] = load_x(place, ahead, i as u32);
            });
        });
        (free, now) = (now, following);
        start = next;
    }

    // SAFETY: all threads of the block are here. After the barrier no thread reads the ring's tiles, and the ring has
    // room for the sums.
    unsafe {
        let flag = || shared_array![u32; 1];
        if !Meeting::of_block(workspace, counters).add_up::<COLUMNS, 32>(&mut sums, flag, thread::sync_threads) {
            return;
        }
        thread::sync_threads();
        let output = ProductOutput { out, stride: out_stride, bias, m, n, epilogue };
        // Recomputed, since the compiler would otherwise keep the old values across the main loop, and lacks the
        // registers.
        let (row, column) = ((corner >> 16) * ROWS, (corner & 0xffff) * COLUMNS);
        let thread = hidden(thread::thread_idx_x());
        let (warp_row, warp_column) = warp_place(thread / warp::WARP_SIZE);
        if is_packed(&output) {
            let tile = PackedTile::<ROWS, COLUMNS> { at: ring.cast() };
            if epilogue & ADD != 0 {
                // Copies the previous output as activations are copied, to shared memory after the tile.
                let before = TileCopy::<COLUMNS>::of_thread(thread, out.cast(), out_stride, m, n, row);
                let place = |part: u32| shared_bytes(COLUMNS) - (COLUMNS / DEPTH - part) * ROWS * ROW_BYTES;
                for part in 0..COLUMNS / DEPTH {
                    let copies = 0..TileCopy::<COLUMNS>::copies(ROWS);
                    before.of(column + part * DEPTH).copy(ring_offset + place(part), copies);
                }
                cp_async::commit();
                cp_async::wait::<0>();
                thread::sync_threads();
                let (identity, place) = (Identity::new::<T>(), place(warp_column / DEPTH));
                unroll!(i in [0 1 2 3] {
                    unroll!(step in [0 1 2 3] {
                        identity.add::<T>(load_x(place, step, i), &mut sums, (i * 8 + step * 2) as usize);
                    });
                });
            }
            finish::<T, 64, 64>(&mut sums, column + warp_column, output);
            let (place, first) = ([warp_row, warp_column], [row, column]);
            if output.is_gated() {
                tile.store::<T, 4>(&sums, place, output, thread, first);
            } else {
                tile.store::<T, 8>(&sums, place, output, thread, first);
            }
            return;
        }
        let staged = Staged { sums: ring.cast(), rows: ROWS, columns: COLUMNS, pitch: COLUMNS + 8, is_permuted: false };
        let lane = hidden(warp::lane_id());
        unroll!(i in [0 1 2 3] {
            unroll!(j in [0 1 2 3 4 5 6 7] {
                let [a, b, c, d] = sums[i * 8 + j];
                let at = staged.at(warp_row + i as u32 * 16 + lane / 4, warp_column + j as u32 * 8 + lane % 4 * 2);
                *at.cast() = HalfVector::from_f32([a, b]);
                *at.add(8 * staged.pitch as usize).cast() = HalfVector::from_f32([c, d]);
            });
        });
        thread::sync_threads();
        // A thread stores four columns of each of its rows, and neighbouring threads fill whole sectors.
        output.store::<T, COLUMNS, 8>(staged, thread, row, column);
    }
}

/// Returns the position of a warp's 64 x 64 sums in the block's tile.
#[inline(always)]
fn warp_place(warp: u32) -> (u32, u32) {
    (warp % 2 * 64, warp / 2 * 64)
}

/// Returns the row and column of a block's tile. Blocks proceed column by column within groups of [`GROUP`] tile rows.
#[inline(always)]
pub(super) fn place(block: u32, rows: u32, columns: u32) -> (u32, u32) {
    let group = GROUP * columns;
    // SAFETY: a block exists only if there are tiles.
    unsafe { core::hint::assert_unchecked(group != 0) };
    let first = block / group * GROUP;
    let height = if rows - first < GROUP { rows - first } else { GROUP };
    // SAFETY: a group has at least one row.
    unsafe { core::hint::assert_unchecked(height != 0) };
    (first + block % group % height, block % group / height)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_tile_has_a_block() {
        for (rows, columns) in [(1, 1), (3, 5), (8, 4), (9, 4), (21, 2)] {
            let places: BTreeSet<_> = (0..rows * columns).map(|block| place(block, rows, columns)).collect();
            assert_eq!(places.len() as u32, rows * columns);
            assert!(places.iter().all(|&(row, column)| row < rows && column < columns));
        }
    }

    #[test]
    fn sums_fit_in_the_ring() {
        for columns in [128, 256] {
            assert!(ROWS * (columns + 8) * 4 <= shared_bytes(columns));
        }
    }
}
