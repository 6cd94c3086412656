//! The norm that follows a product, computed by the product's own blocks. This saves decode steps a launch, 2 to 3 us.
//!
//! A row is complete when the blocks of all tiles have stored their part. Each block then counts its arrival. The
//! blocks of the last tiles, as many as there are rows, wait until all blocks have arrived, and then normalise one row
//! each.
//!
//! The cost of the rows is thus spread over as many blocks as in a separate launch. A block reads its row from L2,
//! where it was just stored (10 KiB with 5,120 elements). It reads weight and bias while it waits. A single block would
//! have to read 64 times as much, 640 KiB at 64 bytes a clock, and to compute as much more. That takes longer than the
//! saved launch.
//!
//! No block waits for a block that cannot run. The plan ensures that fewer blocks wait than the GPU has
//! multiprocessors, and all other blocks end without waiting.
//!
//! The results equal those of [`layer_norm()`](super::layer_norm()) and [`rms_norm()`](super::rms_norm()) to the bit. A
//! block here has fewer threads than theirs, so each warp does the work of several of their warps in turn, and the sums
//! are added in their order.

use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::shared::shared_offset;
use cuda_std::unroll::{eight, unroll};
use cuda_std::vector::Vector;
use cuda_std::warp::WARP_SIZE;
use cuda_std::{atomic, flag};

use super::{HELD, MOST_WARPS, SumNorm, threads_of};
use crate::element::Element;
use crate::vector::{narrow, sum_of_eight, widen};

/// Maximum number of elements in a row. Three rows fit in the 48 KiB of shared memory that every block of these kernels
/// has.
pub const MAX_WIDTH: u32 = 8192;

/// Total that the arrivals of a launch add to the count. It flips the count's top bit and leaves the others at zero.
const TURN: u32 = 1 << 31;

/// The norm that follows a product. The fields are arguments of the kernels.
#[derive(Clone, Copy)]
pub(crate) struct FollowingNorm {
    /// The number of a [`SumNorm`].
    pub norm: u32,
    /// `[width]`, or null for no factors.
    pub weight: *const Vector,
    /// `[width]`, or null for no bias.
    pub bias: *const Vector,
    /// `[rows][width]`
    pub out: *mut Vector,
    /// Added to the variance.
    pub eps: f32,
    /// Counts the blocks that have stored. All bits but the top one are zero before and after a launch.
    pub arrivals: *mut u32,
}

impl FollowingNorm {
    /// Returns whether a norm follows the product.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.norm != SumNorm::None as u32
    }

    /// Normalises the rows of `x`, of `width` elements, once the blocks of all tiles have called this. The grid's x
    /// dimension counts tiles. One block of each tile calls this, after it has stored its outputs.
    ///
    /// # Safety
    /// All `THREADS` threads call this together, and `thread` is the caller's number. `sync` is a barrier of exactly
    /// these threads of the block. `x` and `out` are `[rows][width]`. Rows are whole vectors, at most [`MAX_WIDTH`]
    /// elements, and all arrays are 16-byte aligned. `memory` is shared memory for three rows. It is used for nothing
    /// else after the next barrier, and no copy to it is in flight. Launches with the same `arrivals` do not overlap.
    #[inline(always)]
    pub unsafe fn apply<T: Element, const THREADS: u32>(
        &self,
        x: *const Vector,
        (rows, width): (u32, u32),
        thread: u32,
        memory: *mut Vector,
        sync: impl Fn(),
    ) {
        let (tile, tiles) = (thread::block_idx_x(), thread::grid_dim_x());
        let sharing = if rows < tiles { rows } else { tiles };
        // All threads have stored before the arrival is counted, and no thread uses the memory any more.
        sync();
        let mut before = 0;
        if thread == 0 {
            // SAFETY: the count is accessed only by this operation and as a flag.
            before = unsafe { atomic::add_u32_acq_rel(self.arrivals, if tile == 0 { TURN - (tiles - 1) } else { 1 }) };
        }
        // The blocks of the last tiles begin last and thus wait least.
        let first = tiles - sharing;
        if tile < first {
            return;
        }
        let vectors = width / 8;
        let team = Team::<THREADS> { thread, threads: threads_of(vectors), vectors };
        let [row, weight, bias] = [0, 1, 2].map(|i| memory.wrapping_add((i * vectors) as usize));
        // SAFETY: the rows in shared and in global memory have `vectors` vectors, by this function's contract. Each
        // thread reads only vectors that it has copied itself. All threads are here for the barriers.
        unsafe {
            if !self.weight.is_null() {
                team.copy(weight, self.weight);
            }
            if !self.bias.is_null() {
                team.copy(bias, self.bias);
            }
            if thread == 0 {
                // The last arrival flips the count's top bit, and makes everything that was stored visible.
                while (flag::load_acquire(self.arrivals) ^ before) & TURN == 0 {}
            }
            sync();
            let (mut at, mut slot) = (tile - first, 0);
            while at < rows {
                let from = (at * vectors) as usize;
                team.copy(row, x.add(from));
                cp_async::commit();
                cp_async::wait::<0>();
                let count = width as f32;
                let mut mean = 0.0;
                if self.norm == SumNorm::Layer as u32 {
                    mean = team.sum::<T>(row, slot, &sync, |v| v) / count;
                    slot ^= 1;
                }
                let variance = team.sum::<T>(row, slot, &sync, |v| (v - mean) * (v - mean)) / count;
                slot ^= 1;
                let scale = (variance + self.eps).rsqrt_fast();
                team.each(|i| {
                    let mut values = widen::<T>(*row.add(i)).map(|v| (v - mean) * scale);
                    if !self.weight.is_null() {
                        let factors = widen::<T>(*weight.add(i));
                        values = eight(|e| values[e] * factors[e]);
                    }
                    if !self.bias.is_null() {
                        let biases = widen::<T>(*bias.add(i));
                        values = eight(|e| values[e] + biases[e]);
                    }
                    *self.out.add(from + i) = narrow::<T>(values);
                });
                at += sharing;
            }
        }
    }
}

/// A block's threads that do the work of the larger block of the norm's own kernel.
#[derive(Clone, Copy)]
struct Team<const THREADS: u32> {
    /// This thread's number among `THREADS`.
    thread: u32,
    /// Threads of the norm's own kernel, whose work these threads do: whole warps.
    threads: u32,
    /// Vectors in a row.
    vectors: u32,
}

impl<const THREADS: u32> Team<THREADS> {
    /// Calls `body` with the number of each warp of the larger block whose work this warp does.
    #[inline(always)]
    fn each_warp(self, mut body: impl FnMut(u32)) {
        let mut warp = self.thread / WARP_SIZE;
        while warp < self.threads / WARP_SIZE {
            body(warp);
            warp += THREADS / WARP_SIZE;
        }
    }

    /// Calls `body` with each vector that this lane handles as a lane of `warp` in the larger block.
    #[inline(always)]
    fn each_of(self, warp: u32, mut body: impl FnMut(usize)) {
        let own = warp * WARP_SIZE + self.thread % WARP_SIZE;
        unroll::<HELD>(|i| {
            let at = own + i as u32 * self.threads;
            if at < self.vectors {
                body(at as usize);
            }
        });
    }

    /// Calls `body` with each vector of a row that this thread handles.
    #[inline(always)]
    fn each(self, mut body: impl FnMut(usize)) {
        self.each_warp(|warp| self.each_of(warp, &mut body));
    }

    /// Starts copies of this thread's vectors of a row to shared memory.
    ///
    /// # Safety
    /// Both rows have `vectors` vectors, and the row in shared memory is not accessed before the copies have been
    /// waited for.
    #[inline(always)]
    unsafe fn copy(self, to: *mut Vector, from: *const Vector) {
        let to = shared_offset(to);
        // SAFETY: the vectors are within both rows, by this function's contract.
        self.each(|at| unsafe { cp_async::copy_cg(to + 16 * at as u32, from.add(at).cast()) });
    }

    /// Returns the sum of `f` over a row's elements, in every thread, added in the same order as in the norm's own
    /// kernel.
    ///
    /// # Safety
    /// All threads call this together, alternating between slots 0 and 1, and `sync` is a barrier of these threads. The
    /// row has `vectors` vectors, and this thread may read its own.
    #[inline(always)]
    unsafe fn sum<T: Element>(self, row: *const Vector, slot: u32, sync: &impl Fn(), f: impl Fn(f32) -> f32) -> f32 {
        let room = shared_array![f32; 2 * MOST_WARPS as usize];
        let (lane, add) = (self.thread % WARP_SIZE, |a: f32, b: f32| a + b);
        // SAFETY: a slot has room for all warps of a row. A slot is read after one barrier and written again only after
        // the next. All lanes of each warp are here, since a warp does the work of whole warps.
        unsafe {
            let room = room.add((slot * MOST_WARPS) as usize);
            self.each_warp(|warp| {
                let mut own = 0.0;
                self.each_of(warp, |at| own += sum_of_eight(widen::<T>(*row.add(at)).map(&f)));
                let sum = warp::warp_all_reduce(own, add);
                if lane == 0 {
                    *room.add(warp as usize) = sum;
                }
            });
            sync();
            let warps = self.threads / WARP_SIZE;
            warp::warp_all_reduce(if lane < warps { *room.add(lane as usize) } else { 0.0 }, add)
        }
    }
}
