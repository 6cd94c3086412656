//! The norm that follows a product, by the blocks that compute the product: decode steps save a launch, some 2 to 3 us.
//!
//! A row is whole when the blocks of all tiles have stored. Each of them counts itself as arrived when it has; as many as there are
//! rows, those of the last tiles, wait until all have, and then take a row each. So what the rows cost is shared as among the
//! blocks of a launch of its own: a block brings its row from L2, where it was just stored (10 KiB with 5,120 elements), and the
//! weight and the bias, which come while it waits. One block alone would have 64 times as much to read, 640 KiB at 64 bytes a
//! clock, and to compute: longer than the launch that is saved.
//!
//! No block waits for one that cannot run: fewer blocks wait than the GPU has multiprocessors, which the plan sees to, and all
//! others end without waiting.
//!
//! The numbers are those of [`layer_norm()`](super::layer_norm()) and [`rms_norm()`](super::rms_norm()), to the bit: a block has fewer
//! threads than one of theirs, so each of its warps does in turn what several of theirs do, and the sums are added in their order.

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

/// Elements of a row, at most: of three rows in the 48 KiB of shared memory that every block of these kernels has.
pub const MAX_WIDTH: u32 = 8192;

/// What all arrivals of a launch add up to: they change the count's last bit, and leave the others at zero for the next launch.
const TURN: u32 = 1 << 31;

/// The norm that follows a product; the fields are the kernels' arguments.
#[derive(Clone, Copy)]
pub(crate) struct FollowingNorm {
    /// A [`SumNorm`].
    pub norm: u32,
    /// `[width]`, or null: no factors.
    pub weight: *const Vector,
    /// `[width]`, or null: no bias.
    pub bias: *const Vector,
    /// `[rows][width]`
    pub out: *mut Vector,
    /// Added to the variance.
    pub eps: f32,
    /// Counts the blocks that have stored. All bits but the last are zero before a launch, and after it.
    pub arrivals: *mut u32,
}

impl FollowingNorm {
    /// Whether there is one.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.norm != SumNorm::None as u32
    }

    /// Normalises the rows of `x`, of `width` elements, when the blocks of all tiles have called this. The grid's x are tiles; of each
    /// tile one block calls it, with what it had to store stored.
    ///
    /// # Safety
    /// All `THREADS` threads of each block, or of those of its threads for which `sync` is a barrier, call this together, and this is
    /// number `thread`. `x` is `[rows][width]`, as `out` is, rows are of whole vectors, [`MAX_WIDTH`] elements at most; all arrays are
    /// 16-byte aligned. `memory` is shared memory for three rows, used for nothing else behind the next barrier, and no copy to it is
    /// in flight. Launches with the same count do not overlap.
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
        // What the threads stored comes before the count; and nobody uses the memory any more.
        sync();
        let mut before = 0;
        if thread == 0 {
            // SAFETY: the count is accessed in this way, and as a flag, only.
            before = unsafe { atomic::add_u32_acq_rel(self.arrivals, if tile == 0 { TURN - (tiles - 1) } else { 1 }) };
        }
        // The last tiles, whose blocks are the last to begin, and wait the least.
        let first = tiles - sharing;
        if tile < first {
            return;
        }
        let vectors = width / 8;
        let team = Team::<THREADS> { thread, threads: threads_of(vectors), vectors };
        let [row, weight, bias] = [0, 1, 2].map(|i| memory.wrapping_add((i * vectors) as usize));
        // SAFETY: the rows in shared memory and those in global memory have so many vectors, by this function's contract; each thread
        // reads the vectors that it has copied itself; all threads are here for the barriers.
        unsafe {
            if !self.weight.is_null() {
                team.copy(weight, self.weight);
            }
            if !self.bias.is_null() {
                team.copy(bias, self.bias);
            }
            if thread == 0 {
                // The count's last bit changes with the last arrival, from which all that was stored is visible.
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

/// A block's threads in the place of those of the norm's own kernel, of which there are more.
#[derive(Clone, Copy)]
struct Team<const THREADS: u32> {
    /// This thread's number among `THREADS`.
    thread: u32,
    /// The threads that it is in the place of, with those of the other threads: whole warps.
    threads: u32,
    /// Vectors in a row.
    vectors: u32,
}

impl<const THREADS: u32> Team<THREADS> {
    /// Calls `body` with each warp that this warp is in the place of.
    #[inline(always)]
    fn each_warp(self, mut body: impl FnMut(u32)) {
        let mut warp = self.thread / WARP_SIZE;
        while warp < self.threads / WARP_SIZE {
            body(warp);
            warp += THREADS / WARP_SIZE;
        }
    }

    /// Calls `body` with each vector that this lane has in the place of a warp's.
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

    /// Calls `body` with each vector of a row that is this thread's.
    #[inline(always)]
    fn each(self, mut body: impl FnMut(usize)) {
        self.each_warp(|warp| self.each_of(warp, &mut body));
    }

    /// Starts copies of this thread's vectors.
    ///
    /// # Safety
    /// Both rows have so many vectors, that in shared memory is not accessed before the copies were waited for.
    #[inline(always)]
    unsafe fn copy(self, to: *mut Vector, from: *const Vector) {
        let to = shared_offset(to);
        // SAFETY: within both rows, by this function's contract.
        self.each(|at| unsafe { cp_async::copy_cg(to + 16 * at as u32, from.add(at).cast()) });
    }

    /// The sum of `f` over a row's elements, in every thread, added up as the norm's own kernel does.
    ///
    /// # Safety
    /// All threads call this together, with slots 0 and 1 by turns, and `sync` is a barrier of theirs. The row has so many vectors, and
    /// this thread may read its own.
    #[inline(always)]
    unsafe fn sum<T: Element>(self, row: *const Vector, slot: u32, sync: &impl Fn(), f: impl Fn(f32) -> f32) -> f32 {
        let room = shared_array![f32; 2 * MOST_WARPS as usize];
        let (lane, add) = (self.thread % WARP_SIZE, |a: f32, b: f32| a + b);
        // SAFETY: a row has no more warps than a slot has room for; what is in one is read behind the barrier, and written again
        // behind the next; all lanes of each warp are here, as warps are in the place of whole warps.
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
