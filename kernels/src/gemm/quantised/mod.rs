//! Quantised weights, any number of tokens: codes of 4 and 8 bits become 16-bit numbers in registers.
//!
//! The weight is `mma`'s first operand, as in [`decode`](super::decode). Its codes are stored in the order of the
//! lanes' loads (see [`layout`]): one vector is a lane's fragments of 64 columns, or of 32 columns with 8-bit codes.
//!
//! Codes, scales and a tile of the activations come through a ring in shared memory. Each lane reads back only the
//! codes that it has copied itself. Codes and integer offsets are exact in 16 bits. The sums of a group are computed
//! first, then multiplied by the group's scale in `f32` and added to the total. No element is rounded.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, a weight of [`layout::PackedShape`], `out [m][n]`, any `m` and `n`, `k` a multiple of 8 |
//! | grid | x: tiles of [`rows`] weight rows by `TOKENS` tokens, with all tiles of the same rows next to each other. y: splits of `k`. [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 32 to 80 KiB |
//! | floor | the bytes of codes and scales |
//!
//! # What limits it
//!
//! With 8 tokens a warp takes 163 PTX instructions for 16 x 64 codes of 4 bits, or 140 once `and` and `or` are fused.
//! These codes and their scales are at least 544 bytes. At four instructions a clock, an SM therefore keeps up with 15
//! bytes a clock. An H100 streams 15, an A100 13, an H200 21. With 64 tokens the tensor cores are the limit.
//!
//! With many tokens, each tile of 64 reads the weight again from L2. With 4-bit codes that is less than a tile of 128
//! reads with 16-bit weights.
//!
//! # Ladder
//!
//! 1. Codes become numbers, minus the offset, times the scale, rounded. This takes a multiplication for each pair, and
//!    in `bf16` the scale has only 8 bits.
//! 2. (here) The scale multiplies the sums: four multiply-adds for 16 x 8 x 32, whatever the type.
//!
//! Next: scale groups of 64 and 128 less often, and use `wgmma` for many tokens on Hopper.

pub mod codes;
pub mod layout;
#[cfg(not(target_arch = "nvptx64"))]
pub mod plan;

use cuda_std::half::{F16x2, Half2};
use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::vector::{HalfVector, Vector};

use super::epilogue::{ProductOutput, Staged};
use super::operand::{DEPTH, ROW_BYTES, TileCopy, load, place_steps};
use super::split::{share, tiles};
use super::tiles::{WARPS, WarpSums, add_up, store, stream};
use crate::element::{Bf16, F16};
use codes::FromCodes;
use layout::{CodeForm, FRAGMENT_ROWS};

pub use super::tiles::THREADS;

/// Numbers of tokens that have a kernel.
pub const TOKENS: [u32; 4] = [8, 16, 32, 64];

const INT4: u32 = CodeForm::Int4 as u32;
const INT8: u32 = CodeForm::Int8 as u32;
const FP8: u32 = CodeForm::Fp8 as u32;
const FP4: u32 = CodeForm::Fp4 as u32;

/// Bytes of one vector from each lane of a warp.
const LANES_BYTES: u32 = 16 * warp::WARP_SIZE;

/// Bytes of a fragment's scales in a tile, which has room for four groups.
const SCALES_BYTES: u32 = 4 * FRAGMENT_ROWS * 4;

/// Rows of the weight that a block computes.
pub const fn rows(tokens: u32) -> u32 {
    WARPS * FRAGMENT_ROWS * if tokens <= 16 { 1 } else { 2 }
}

/// Tiles in the ring.
pub const fn stages(tokens: u32) -> u32 {
    if tokens <= 16 { 8 } else { 4 }
}

/// Vectors of each fragment that a lane has in a step.
const fn vectors(form: u32) -> u32 {
    if form == INT4 || form == FP4 { 1 } else { 2 }
}

/// Bytes of a ring slot: codes, scales, activations.
pub(crate) const fn stage_bytes(form: u32, tokens: u32) -> u32 {
    rows(tokens) / FRAGMENT_ROWS * (vectors(form) * LANES_BYTES + SCALES_BYTES) + tokens * ROW_BYTES
}

/// Dynamic shared memory, in bytes: the ring, which the sums reuse at the end.
pub const fn shared_bytes(form: CodeForm, tokens: u32) -> u32 {
    stages(tokens) * stage_bytes(form as u32, tokens)
}

/// Multiplies activations with a quantised weight: `out = epilogue(x weight^T)`. See [`super`] for the arguments.
///
/// `codes` and `scales` belong to the weight and have the order that [`layout`] describes. A group has `1 <<
/// group_shift` columns. `factor` multiplies the whole weight, and for FP8 includes [`FromCodes::FP8_FACTOR`].
///
/// # Safety
/// The arrays have the shapes that the arguments state, rows of `x` are 16-byte aligned, and the launch is one of a
/// [`QuantisedPlan`](plan::QuantisedPlan).
// Without `min_blocks` ptxas keeps to 128 registers, and some instances with 32 tokens need a few more.
#[kernel(
    dependent,
    max_threads = 128,
    instances(min_blocks = 2, T = [F16, Bf16], FORM = [0, 1, 2], TOKENS = [8, 16, 32]),
    instances(T = [F16, Bf16], FORM = [0, 1, 2], TOKENS = [64])
)]
pub unsafe fn gemm_quantised<T: FromCodes, const FORM: u32, const TOKENS: u32>(
    x: *const u16,
    codes: *const Vector,
    scales: *const Vector,
    bias: *const u16,
    out: *mut u8,
    workspace: *mut Vector,
    counters: *mut u32,
    x_stride: u32,
    out_stride: u32,
    m: u32,
    n: u32,
    k: u32,
    group_shift: u32,
    factor: f32,
    epilogue: u32,
) {
    let (rows, stages) = (rows(TOKENS), stages(TOKENS));
    let token_tiles = tiles(m, TOKENS);
    // SAFETY: a block exists only if there are tokens.
    unsafe { core::hint::assert_unchecked(token_tiles != 0) };
    let (row_tile, token_tile) = (thread::block_idx_x() / token_tiles, thread::block_idx_x() % token_tiles);
    let steps = tiles(k, DEPTH);
    let (first, last) = share(steps);

    let ring: *mut u8 = dynamic_shared_mem();
    let ring_offset = shared_offset(ring);
    let first_fragment = (row_tile * WARPS + warp::warp_id()) * (rows / FRAGMENT_ROWS / WARPS);
    let end = tiles(n, FRAGMENT_ROWS);
    let weight = CodedRows::<FORM, TOKENS> { codes, scales, first: first_fragment, end, steps, group_shift };
    let x_source = TileCopy::<THREADS>::new(x, x_stride, m, k, token_tile * TOKENS);
    let x_copies = TileCopy::<THREADS>::copies(TOKENS);
    let copy = |place: u32, step: u32| {
        let place = ring_offset + place;
        // SAFETY: all warps have read this slot, or it was never written. The operands have their shapes by this
        // kernel's contract.
        unsafe {
            weight.copy(place, step);
            let (x, place) = (x_source.of(step * DEPTH), place + CodedRows::<FORM, TOKENS>::X_START);
            if x_copies > 0 {
                x.copy(place, 0..x_copies);
            } else if thread::thread_idx_x() < TOKENS * 8 {
                x.copy(place, 0..1);
            }
        }
    };
    let mut sums: WarpSums = [[0.0; 4]; 16];
    // SAFETY: all threads of the block are here. The ring has `stages` slots, and room for the sums. A tile's copies
    // have been waited for when it is multiplied.
    unsafe {
        let multiply = |now: u32| weight.multiply::<T>(&mut sums, ring, now);
        stream((stages, stage_bytes(FORM, TOKENS)), (first, last), copy, multiply);
        if !add_up::<TOKENS>(&mut sums, workspace, counters) {
            return;
        }
        let put = |staged: Staged, token: u32, fragment: u32, sums: [f32; 4]| {
            CodedRows::<FORM, TOKENS>::put(staged, token, fragment, sums, factor);
        };
        let output = ProductOutput { out, stride: out_stride, bias, m, n, epilogue };
        store::<T, TOKENS>(ring, rows, &sums, put, output, [token_tile * TOKENS, row_tile * rows]);
    }
}

/// A warp's part of a quantised weight: one fragment of 16 rows, or two with more than 16 tokens, and where a slot of
/// the ring has it.
#[derive(Clone, Copy)]
pub(crate) struct CodedRows<const FORM: u32, const TOKENS: u32> {
    pub codes: *const Vector,
    pub scales: *const Vector,
    /// The warp's first fragment.
    pub first: u32,
    /// The fragment after the last one. Further ones become zeros.
    pub end: u32,
    /// Steps of a fragment.
    pub steps: u32,
    /// Base-2 logarithm of the columns of a group.
    pub group_shift: u32,
}

impl<const FORM: u32, const TOKENS: u32> CodedRows<FORM, TOKENS> {
    const PER_WARP: u32 = rows(TOKENS) / FRAGMENT_ROWS / WARPS;
    const VECTORS: u32 = vectors(FORM);
    /// Offset of the scales in a slot, and of the activations.
    const SCALES_START: u32 = rows(TOKENS) / FRAGMENT_ROWS * vectors(FORM) * LANES_BYTES;
    pub const X_START: u32 = Self::SCALES_START + rows(TOKENS) / FRAGMENT_ROWS * SCALES_BYTES;

    /// Returns the offset of the lane's codes in a slot.
    #[inline(always)]
    fn codes_at() -> u32 {
        warp::warp_id() * Self::PER_WARP * Self::VECTORS * LANES_BYTES + warp::lane_id() * 16
    }

    /// Returns the offset of the warp's scales in a slot.
    #[inline(always)]
    fn scales_at() -> u32 {
        Self::SCALES_START + warp::warp_id() * Self::PER_WARP * SCALES_BYTES
    }

    /// Starts the copies of a step to the slot at `place` in shared memory.
    ///
    /// # Safety
    /// No thread still reads the slot. The weight has the step, and the fragments before the end.
    #[inline(always)]
    pub unsafe fn copy(&self, place: u32, step: u32) {
        let lane = warp::lane_id();
        let groups = (self.steps * DEPTH + (1 << self.group_shift) - 1) >> self.group_shift;
        // Groups that a step has scales of: all of its own groups, or the one group that contains the step.
        let of_step = if self.group_shift < 6 { DEPTH >> self.group_shift } else { 1 };
        unroll!(f in [0 1] {
            if f < Self::PER_WARP {
                let fragment = self.first + f;
                // Fragments past the end become zeros.
                let bytes = if fragment < self.end { 16 } else { 0 };
                let vector = (fragment as usize * self.steps as usize + step as usize)
                    * (Self::VECTORS * warp::WARP_SIZE) as usize;
                let from = self.codes.wrapping_add(vector + lane as usize);
                let to = place + Self::codes_at() + f * Self::VECTORS * LANES_BYTES;
                // SAFETY: the slot is free, by this function's contract. The fragment and the step are within the
                // weight, or the copy reads nothing.
                unsafe {
                    cp_async::copy_cg_zero_fill(to, from.cast(), bytes);
                    if Self::VECTORS == 2 {
                        let from = from.wrapping_add(warp::WARP_SIZE as usize);
                        cp_async::copy_cg_zero_fill(to + LANES_BYTES, from.cast(), bytes);
                    }
                    // Four lanes copy the 16 words of a group.
                    if lane < 4 * of_step {
                        let group = (step * DEPTH) >> self.group_shift;
                        let vector = (fragment as usize * groups as usize + group as usize) * 4 + lane as usize;
                        let to = place + Self::scales_at() + f * SCALES_BYTES + lane * 16;
                        cp_async::copy_cg_zero_fill(to, self.scales.wrapping_add(vector).cast(), bytes);
                    }
                }
            }
        });
    }

    /// Adds the products of the slot at offset `now` in the ring.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the slot's copies have been waited for.
    #[inline(always)]
    pub unsafe fn multiply<T: FromCodes>(&self, sums: &mut WarpSums, ring: *mut u8, now: u32) {
        let (ring_offset, x_place) = (shared_offset(ring), Self::X_START + place_steps());
        let at = ring.wrapping_add(now as usize);
        // SAFETY: all lanes of a warp are here together, and the tile's copies have been waited for.
        unsafe {
            // Load all words at once, since the compiler would load half vectors where they are used, with bank
            // conflicts.
            let words = |f: u32| {
                let from = at.add((Self::codes_at() + f * Self::VECTORS * LANES_BYTES) as usize);
                let Vector([a, b, c, d]) = *from.cast::<Vector>();
                if Self::VECTORS == 1 {
                    return [[a, b, 0, 0], [c, d, 0, 0]];
                }
                let Vector([e, f, g, h]) = *from.add(LANES_BYTES as usize).cast::<Vector>();
                [[a, b, c, d], [e, f, g, h]]
            };
            let upper = words(0);
            let lower = if Self::PER_WARP == 2 { words(1) } else { upper };
            unroll!(pair in [0 1] {
                let scales = at.add(Self::scales_at() as usize);
                let a = factors::<T, FORM>(upper[pair as usize], scales, pair, self.group_shift);
                let mut further = a;
                if Self::PER_WARP == 2 {
                    let scales = scales.add(SCALES_BYTES as usize);
                    further = factors::<T, FORM>(lower[pair as usize], scales, pair, self.group_shift);
                }
                unroll!(j in [0 1 2 3 4 5 6 7] {
                    if j * 8 < TOKENS {
                        let b = load(ring_offset + now, x_place + j * 8 * ROW_BYTES, 2 * pair, 0);
                        let j = j as usize;
                        a.multiply::<T, FORM>(&mut sums[j], b);
                        if Self::PER_WARP == 2 {
                            further.multiply::<T, FORM>(&mut sums[(j + (TOKENS / 8) as usize) % 16], b);
                        }
                    }
                });
            });
        }
    }

    /// Stores 16 rows of the warp's sums of eight tokens, times `factor`. See [`super::tiles::stage`].
    ///
    /// # Safety
    /// As for [`Staged::put_of_weight`].
    #[inline(always)]
    pub unsafe fn put(staged: Staged, token: u32, fragment: u32, [a, b, c, d]: [f32; 4], factor: f32) {
        let row = (warp::warp_id() * Self::PER_WARP + fragment) * FRAGMENT_ROWS;
        // SAFETY: by this function's contract.
        unsafe { staged.put_of_weight(token, row, [a * factor, b * factor, c * factor, d * factor]) }
    }
}

/// A lane's part of 16 rows by 32 columns of the weight, as two of `mma`'s first operands, and the scales of its two
/// rows.
#[derive(Clone, Copy)]
struct Factors {
    first: [u32; 4],
    second: [u32; 4],
    /// Scales of the first 16 columns, then of the next 16.
    scales: [[f32; 2]; 2],
}

/// Decodes a lane's factors for half `pair` of a step from its codes: two words with 4-bit codes, otherwise four.
///
/// # Safety
/// `scales` points to the fragment's words in a slot, and they have arrived.
#[inline(always)]
unsafe fn factors<T: FromCodes, const FORM: u32>(
    [a, b, c, d]: [u32; 4],
    scales: *const u8,
    pair: u32,
    group_shift: u32,
) -> Factors {
    let words = |half: u32| {
        let group = (32 * pair + 16 * half) >> group_shift;
        // SAFETY: a step has at most four groups, whose words have arrived, by this function's contract.
        let HalfVector(words) = unsafe { *scales.add(((group * 8 + warp::lane_id() / 4) * 8) as usize).cast() };
        words
    };
    let both = words(0);
    // Groups of 32 or more columns have one scale for both halves.
    let next = if FORM == INT8 { words(1) } else { both };
    let scale = |words: [u32; 2]| [F16x2(words[0]).to_f32()[0], F16x2(words[1]).to_f32()[0]];
    let (first, second) = if FORM == INT4 {
        (T::int4(a), T::int4(b))
    } else if FORM == FP4 {
        (T::fp4(a), T::fp4(b))
    } else {
        let join = |low: u32, high: u32| {
            let ([a, b], [c, d]) =
                if FORM == FP8 { (T::fp8(low), T::fp8(high)) } else { (T::int8(low), T::int8(high)) };
            [a, b, c, d]
        };
        (join(a, b), join(c, d))
    };
    let offset = |codes: [u32; 4], words: [u32; 2]| {
        if FORM == FP8 || FORM == FP4 {
            return codes;
        }
        let twice = |word: u32| word & 0xffff_0000 | word >> 16;
        let (upper, lower) = (twice(words[0]), twice(words[1]));
        let [a, b, c, d] = codes;
        [T::plus(a, upper), T::plus(b, lower), T::plus(c, upper), T::plus(d, lower)]
    };
    Factors { first: offset(first, both), second: offset(second, next), scales: [scale(both), scale(next)] }
}

impl Factors {
    /// Adds the products with 8 tokens over 32 elements of `k`.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn multiply<T: FromCodes, const FORM: u32>(&self, sums: &mut [f32; 4], [b0, b1, b2, b3]: [u32; 4]) {
        // SAFETY: all lanes are here, by this function's contract.
        unsafe {
            let first = T::mma(self.first, [b0, b1], [0.0; 4]);
            if FORM == INT8 {
                *sums = scaled(*sums, first, self.scales[0]);
                *sums = scaled(*sums, T::mma(self.second, [b2, b3], [0.0; 4]), self.scales[1]);
            } else {
                *sums = scaled(*sums, T::mma(self.second, [b2, b3], first), self.scales[0]);
            }
        }
    }
}

/// Returns the sums of two rows plus a group's sums times the rows' scales.
#[inline(always)]
fn scaled(sums: [f32; 4], group: [f32; 4], [upper, lower]: [f32; 2]) -> [f32; 4] {
    let add = |i: usize, scale: f32| GpuFloat::mul_add(group[i], scale, sums[i]);
    [add(0, upper), add(1, upper), add(2, lower), add(3, lower)]
}
