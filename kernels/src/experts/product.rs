//! A projection of all experts, each with its own tokens, in one launch.
//!
//! A block computes [`rows`] rows of an expert's weight with up to `TOKENS` of its tokens. The weight is `mma`'s first
//! operand, as in [`gemm_decode`](crate::gemm::decode::gemm_decode()), whose tiles this kernel shares. Rows of
//! activations are gathered from anywhere.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [_][k]`, `weight [E][rows][k]`, `bias [E][rows]`, `out [_][n]`, or `[_][n / 2]` if gated |
//! | grid | x: tiles of the experts by tiles of rows, with all rows of a tile next to each other. [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 60 to 96 KiB |
//! | floor | the weights of the experts that have tokens, and `2 slots n k` flops |
//!
//! # What limits it
//!
//! With up to 16 tokens for each expert, memory: a weight is read once. There are no splits of `k`, since experts already
//! give many blocks: 192 with one token of Qwen3-30B-A3B. With more tokens, each tile of 64 reads the weight again, from
//! L2, since the blocks of an expert are next to each other. A tile of 64 tokens by 128 rows reads 24 KiB of shared
//! memory for 64 columns, half of what `mma.sync` could use.
//!
//! Each sum adds up `k` in steps of 16 in order, in both sizes of tiles. So a token's result does not depend on its tile.
//!
//! For many tokens Hopper has [another kernel](super::hopper). Next: tiles of 128 tokens elsewhere.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::vector::{HalfVector, Vector};

use crate::element::{Bf16, Element, F16};
use crate::gemm::decode;
use crate::gemm::epilogue::{GATED_ROWS, Staged, widen4};
use crate::gemm::operand::{DEPTH, ROW_BYTES, TileCopy, place_a, place_steps};
use crate::gemm::split::{add, tiles as tiles_of};
use crate::gemm::tiles::{WARPS, WarpSums, multiply_tile, stage, stream};

pub use crate::gemm::decode::{rows, shared_bytes};
pub use crate::gemm::tiles::THREADS;

/// Tokens of tiles that have a kernel.
pub const TOKENS: [u32; 2] = [16, 64];

/// Rows of an expert's weight are padded to a multiple of this.
pub const ROW_MULTIPLE: u32 = 16;

/// Multiplies sorted rows of activations with the weights of their experts.
///
/// `order` and `tiles` come from [`group_by_expert`](super::group::group_by_expert()). With `uses` experts for each
/// token, row `order[i] / uses` of `x` gives row `i` of `out`. With `uses` 0, row `i` of `x` gives row `order[i]` of
/// `out`. `n` counts the rows of a weight that are used, and `all_rows` those in memory. With `slope` 0 the rows are
/// outputs. Otherwise they are gates and ups, see `GroupOutput` for `slope`, `cubic`, `limit` and `shift`.
///
/// # Safety
/// The arrays have the shapes that [`super::plan::GroupedProduct`] states, and the launch comes from it.
#[kernel(dependent, max_threads = 128, min_blocks = 2, instances(T = [F16, Bf16], TOKENS = [16, 64]))]
pub unsafe fn grouped_product<T: Element, const TOKENS: u32>(
    x: *const u16,
    weight: *const u16,
    bias: *const u16,
    out: *mut u16,
    order: *const u32,
    tiles: *const Vector,
    x_stride: u32,
    out_stride: u32,
    n: u32,
    all_rows: u32,
    k: u32,
    uses: u32,
    slope: f32,
    cubic: f32,
    limit: f32,
    shift: f32,
) {
    let (rows, stages) = (rows(TOKENS), decode::stages(TOKENS));
    // SAFETY: the launch has a block for each tile of the list and each tile of rows.
    let (group, row) = unsafe { Group::of_block(tiles, order, tiles_of(n, rows)) };
    if group.count == 0 {
        return;
    }
    let row = row * rows;

    let ring: *mut u8 = dynamic_shared_mem();
    let ring_offset = shared_offset(ring);
    let stage_bytes = (rows + TOKENS) * ROW_BYTES;
    let own = weight.wrapping_add(group.expert as usize * all_rows as usize * k as usize);
    let weight_source = TileCopy::<THREADS>::new(own, k, n, k, row);
    // SAFETY: the list has the group's rows, by this kernel's contract.
    let x_source = unsafe { GatherCopy::<TOKENS>::new(x, x_stride, k, group, uses, thread::thread_idx_x()) };
    let copy = |place: u32, tile: u32| {
        let place = ring_offset + place;
        // SAFETY: all warps have read this slot, or it was never written. The operands have their shapes by this
        // kernel's contract.
        unsafe {
            weight_source.of(tile * DEPTH).copy(place, 0..TileCopy::<THREADS>::copies(rows));
            x_source.copy(place + rows * ROW_BYTES, tile * DEPTH);
        }
    };
    let warp_row = warp::warp_id() * (rows / WARPS);
    let (weight_place, x_place) = (place_a(warp_row), rows * ROW_BYTES + place_steps());
    let mut sums: WarpSums = [[0.0; 4]; 16];
    // SAFETY: all threads of the block are here, and the tile's copies have been waited for. The ring has `stages`
    // slots, and room for the sums. The output is the group's, by this kernel's contract.
    unsafe {
        let multiply = |now: u32| {
            multiply_tile::<T, TOKENS>(&mut sums, ring_offset + now, (rows, weight_place), x_place);
        };
        stream((stages, stage_bytes), (0, tiles_of(k, DEPTH)), copy, multiply);
        thread::sync_threads();
        let put = |staged: Staged, token: u32, fragment: u32, sums: [f32; 4]| {
            staged.put_of_weight(token, warp_row + fragment * 16, sums);
        };
        let staged = stage::<TOKENS>(ring, rows, &sums, put);
        let bias = if bias.is_null() { bias } else { bias.add(group.expert as usize * all_rows as usize) };
        let output = GroupOutput { out, stride: out_stride, bias, n, uses, slope, cubic, limit, shift };
        output.store::<T>(staged, group, row);
    }
}

/// Up to `TOKENS` rows of an expert.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub expert: u32,
    /// The first row in sorted order.
    first: u32,
    pub count: u32,
    order: *const u32,
}

impl Group {
    /// Returns the block's group, and its tile of weight rows.
    ///
    /// # Safety
    /// `tiles` has a tile for every `row_tiles` blocks.
    #[inline(always)]
    pub unsafe fn of_block(tiles: *const Vector, order: *const u32, row_tiles: u32) -> (Self, u32) {
        // SAFETY: the contract is the same.
        unsafe { Self::of_tile(tiles, order, row_tiles, thread::block_idx_x()) }
    }

    /// Returns the group of tile `tile` of the product, and its tile of weight rows.
    ///
    /// # Safety
    /// `tiles` has a tile for every `row_tiles` tiles of the product.
    #[inline(always)]
    pub unsafe fn of_tile(tiles: *const Vector, order: *const u32, row_tiles: u32, tile: u32) -> (Self, u32) {
        // SAFETY: a tile exists only if there are rows. The list has it, by this function's contract.
        unsafe {
            core::hint::assert_unchecked(row_tiles != 0);
            let Vector([expert, first, count, _]) = *tiles.add((tile / row_tiles) as usize);
            (Group { expert, first, count, order }, tile % row_tiles)
        }
    }

    /// Returns up to `most` rows from row `start` on.
    #[inline(always)]
    pub fn part(self, start: u32, most: u32) -> Self {
        let left = self.count.saturating_sub(start);
        Group { first: self.first + start, count: if left < most { left } else { most }, ..self }
    }

    /// Returns the slot of row `row` of the group.
    ///
    /// # Safety
    /// The row is below the group's `count`.
    #[inline(always)]
    unsafe fn slot(&self, row: u32) -> u32 {
        // SAFETY: the list has all rows of the group, by this function's contract.
        unsafe { *self.order.add((self.first + row) as usize) }
    }
}

/// One thread's part in copying tiles of gathered rows: the same vector of every `THREADS / 8`th row.
#[derive(Clone, Copy)]
pub(super) struct GatherCopy<const TOKENS: u32> {
    /// The thread's vector in each of its rows, at the beginning of the summed index.
    from: [*const u8; 8],
    /// The number of rows that exist.
    rows: u32,
    /// The thread's first element along the summed index.
    column: u32,
    /// Length of the summed index.
    k: u32,
    /// Byte offset of the thread's first vector in a tile.
    to: u32,
}

impl<const TOKENS: u32> GatherCopy<TOKENS> {
    /// Distance between the rows that a thread copies.
    const STRIDE: u32 = THREADS / 8;

    /// Prepares copies of the rows of a group for thread `thread` of [`THREADS`]. See
    /// [`grouped_product()`] for `uses`.
    ///
    /// # Safety
    /// The group's rows are in `x`, whose rows are `stride` elements apart, each aligned to 16 bytes.
    #[inline(always)]
    pub unsafe fn new(x: *const u16, stride: u32, k: u32, group: Group, uses: u32, thread: u32) -> Self {
        let (row, vector) = (thread / 8, thread % 8);
        let mut copy = GatherCopy {
            from: [x.cast(); 8],
            rows: group.count.saturating_sub(row).div_ceil(Self::STRIDE),
            column: vector * 8,
            k,
            to: row * ROW_BYTES + ((vector ^ (row % 8)) * 16),
        };
        unroll!(i in [0 1 2 3 4 5 6 7] {
            if i * Self::STRIDE < TOKENS && i < copy.rows {
                let row = row + i * Self::STRIDE;
                #[allow(clippy::manual_checked_ops)] // `checked_div` would read a slot that does not exist
                // SAFETY: the row is below `count`. Division is only by numbers other than 0.
                let from = unsafe { if uses == 0 { group.first + row } else { group.slot(row) / uses } };
                copy.from[i as usize] = x.wrapping_add(from as usize * stride as usize + (vector * 8) as usize).cast();
            }
        });
        copy
    }

    /// Starts the copies of the tile whose summed index begins at `start`. Elements outside the rows become zero.
    ///
    /// # Safety
    /// The tile is in shared memory, and no thread still reads it.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: u32, start: u32) {
        let rows = if start + self.column < self.k { self.rows } else { 0 };
        unroll!(i in [0 1 2 3 4 5 6 7] {
            if i * Self::STRIDE < TOKENS {
                let to = tile + self.to + i * Self::STRIDE * ROW_BYTES;
                let from = self.from[i as usize].wrapping_add(start as usize * 2);
                // SAFETY: the tile is valid, by this function's contract. The row and the column were just checked.
                unsafe { cp_async::copy_cg_zero_fill(to, from, if i < rows { 16 } else { 0 }) }
            }
        });
    }
}

/// The output of a grouped product, and what happens to sums before they are stored.
///
/// A gate `g` and an up `u` become `g * sigmoid(slope * (g + cubic * g^3)) * (u + shift)`, after `g` was limited to
/// `limit` and `u` to `-limit` to `limit`. One formula for SwiGLU, GeGLU and clamped SwiGLU keeps the kernels small.
#[derive(Clone, Copy)]
pub(super) struct GroupOutput {
    pub out: *mut u16,
    pub stride: u32,
    /// The biases of the group's expert, or null.
    pub bias: *const u16,
    pub n: u32,
    pub uses: u32,
    /// 0 if the product is not gated.
    pub slope: f32,
    pub cubic: f32,
    pub limit: f32,
    pub shift: f32,
}

impl GroupOutput {
    /// Returns whether rows of the weight are gates and ups.
    #[inline(always)]
    pub fn is_gated(&self) -> bool {
        self.slope != 0.0
    }

    /// Returns the row of the output for row `row` of a group.
    ///
    /// # Safety
    /// The row is below the group's `count`.
    #[inline(always)]
    pub unsafe fn row(&self, group: Group, row: u32) -> u32 {
        // SAFETY: the contract is the same.
        if self.uses == 0 { unsafe { group.slot(row) } } else { group.first + row }
    }

    /// Stores a tile of sums. The first one belongs to the group's first row, and to row `column` of the weight.
    ///
    /// # Safety
    /// All threads of the block call this together, and all their writes to the tile are visible. The output is as
    /// declared.
    #[inline(always)]
    pub unsafe fn store<T: Element>(&self, staged: Staged, group: Group, column: u32) {
        let (thread, is_gated) = (thread::thread_idx_x(), self.is_gated());
        // Base-2 logarithm of the four-column groups that the tile has in the output.
        let shift = (staged.columns / 4).trailing_zeros() - u32::from(is_gated);
        let four = thread & ((1 << shift) - 1);
        let (from, to, end) = if is_gated {
            (four / 2 * 16 + four % 2 * 4, column / 2 + four * 4, self.n / 2)
        } else {
            (four * 4, column + four * 4, self.n)
        };
        if to >= end {
            return;
        }
        // SAFETY: rows and columns were checked against the group and the output. They consist of whole fours.
        unsafe {
            let (bias, up_bias) = (self.bias4::<T>(column + from), self.bias4::<T>(column + from + GATED_ROWS));
            let mut at = thread >> shift;
            while at < group.count {
                let load = |column: u32| (*staged.at(at, column).cast::<Vector>()).to_f32();
                let mut values = add(bias, load(from));
                if is_gated {
                    let ups = add(up_bias, load(from + GATED_ROWS));
                    unroll!(i in [0 1 2 3] { values[i] = self.combined(values[i], ups[i]) });
                }
                let row = self.row(group, at);
                let [a, b, c, d] = values;
                let pairs = [T::Pair::from_f32([a, b]).to_bits(), T::Pair::from_f32([c, d]).to_bits()];
                *self.out.add(row as usize * self.stride as usize + to as usize).cast() = HalfVector(pairs);
                at += THREADS >> shift;
            }
        }
    }

    /// Returns the biases of four rows of the weight. Ups have none unless the product is gated.
    ///
    /// # Safety
    /// The first row is a multiple of four below `n`.
    #[inline(always)]
    unsafe fn bias4<T: Element>(&self, row: u32) -> [f32; 4] {
        if self.bias.is_null() || row >= self.n {
            return [0.0; 4];
        }
        // SAFETY: `n` is a multiple of eight, so the four rows are below it, and aligned.
        unsafe { widen4::<T>(*self.bias.add(row as usize).cast()) }
    }

    /// Combines a gate and an up.
    #[inline(always)]
    pub fn combined(&self, gate: f32, up: f32) -> f32 {
        // Not `min` and `clamp`, which would turn some NaN into numbers.
        let gate = if gate > self.limit { self.limit } else { gate };
        let up = if up > self.limit { self.limit } else { up };
        let up = if up < -self.limit { -self.limit } else { up };
        // The square of a large gate may overflow, which must not matter without the cubic term.
        let curved = if self.cubic == 0.0 { 0.0 } else { self.cubic * gate * gate * gate };
        let power = (-self.slope * core::f32::consts::LOG2_E * (gate + curved)).exp2_fast();
        gate * (1.0 + power).rcp_fast() * (up + self.shift)
    }
}
