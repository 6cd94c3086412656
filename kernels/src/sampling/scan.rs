//! A block's passes over a row of logits, and its reductions over threads.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use cuda_std::unroll::unroll;
use cuda_std::warp::warp_sum;

/// Threads per block.
pub const THREADS: u32 = 512;

const WARPS: u32 = THREADS / WARP_SIZE;

/// Maximum number of values that are summed at a time.
const SUMS: usize = 4;

/// A row of raw logits, or of scores: logits relative to the greatest one, divided by the temperature.
#[derive(Clone, Copy)]
pub struct LogitRow {
    /// The row, aligned to 16 bytes.
    pub logits: *const f32,
    /// Length of the row.
    pub vocab: u32,
    /// Subtracted from each logit.
    pub greatest: f32,
    /// Factor of each difference.
    pub inverse_temperature: f32,
}

impl LogitRow {
    /// Returns the row of unchanged logits.
    #[inline(always)]
    pub fn raw(logits: *const f32, vocab: u32) -> LogitRow {
        LogitRow { logits, vocab, greatest: 0.0, inverse_temperature: 1.0 }
    }

    #[inline(always)]
    fn score(&self, logit: f32) -> f32 {
        (logit - self.greatest) * self.inverse_temperature
    }

    /// Calls `visit` with the first token of each group of four, the scores of the four, and the number of tokens from
    /// the first one to the end of the row. At the end of the row that number may be less than four.
    ///
    /// # Safety
    /// The row is valid, and no thread writes to it meanwhile.
    #[inline(always)]
    pub unsafe fn each_quad(&self, mut visit: impl FnMut(u32, [f32; 4], u32)) {
        let mut first = 4 * thread::thread_idx_x();
        // SAFETY: the row is valid, by this function's contract, and `first` is a multiple of 4.
        let mut next = unsafe { self.load(first) };
        while first < self.vocab {
            let logits = next;
            // The next load is in flight while this one's logits are visited.
            // SAFETY: the row is valid, by this function's contract, and `first` is a multiple of 4.
            next = unsafe { self.load(first + 4 * THREADS) };
            visit(first, logits.0.map(|bits| self.score(f32::from_bits(bits))), self.vocab - first);
            first += 4 * THREADS;
        }
    }

    /// Loads the logits of `first` and the next three tokens, as far as they are in the row.
    ///
    /// # Safety
    /// As for [`Self::each_quad`], and `first` is a multiple of 4.
    #[inline(always)]
    unsafe fn load(&self, first: u32) -> Vector {
        let mut quad = Vector::default();
        // SAFETY: indices are checked against the row's length. A group of four is aligned, since `first` is a multiple
        // of 4.
        unsafe {
            if first + 4 <= self.vocab {
                quad = *self.logits.add(first as usize).cast();
            } else {
                unroll::<3>(|i| {
                    if first + (i as u32) < self.vocab {
                        quad.0[i] = (*self.logits.add(first as usize + i)).to_bits();
                    }
                });
            }
        }
        quad
    }

    /// Calls `visit` with each of this thread's tokens and its score.
    ///
    /// # Safety
    /// As for [`Self::each_quad`].
    #[inline(always)]
    pub unsafe fn each(&self, mut visit: impl FnMut(u32, f32)) {
        // SAFETY: the row is valid and no thread writes to it, by this function's contract.
        unsafe {
            self.each_quad(|first, scores, count| {
                unroll::<4>(|i| {
                    if (i as u32) < count {
                        visit(first + i as u32, scores[i]);
                    }
                });
            });
        }
    }
}

/// The shared memory of the block's reductions. Each use takes the half that the previous use did not. One barrier a
/// use therefore suffices: a half is written again only after the barrier of the use in between.
pub struct Team {
    half: u32,
}

impl Team {
    /// Creates the block's team. Every thread of the block does this.
    #[inline(always)]
    pub fn new() -> Team {
        Team { half: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> *mut u64 {
        let memory = shared_array![u64; 2 * SUMS * (THREADS / WARP_SIZE) as usize];
        self.half ^= 1;
        // SAFETY: the array has room for two halves of `SUMS * WARPS` numbers.
        unsafe { memory.add((self.half * SUMS as u32 * WARPS) as usize) }
    }

    /// Returns the sums over the block of numbers below 2^59, in every thread.
    ///
    /// # Safety
    /// All threads of the block call this together, with at most [`SUMS`] numbers.
    #[inline(always)]
    pub unsafe fn sum<const N: usize>(&mut self, own: [u64; N]) -> [u64; N] {
        let memory = self.next();
        let (lane, warp_id) = (warp::lane_id(), warp::warp_id());
        // SAFETY: all lanes are here. A warp writes only its own elements, and reads the others' after the barrier.
        unsafe {
            unroll::<N>(|i| {
                let sum = warp_sum(own[i]);
                if lane == 0 {
                    *memory.add(i * WARPS as usize + warp_id as usize) = sum;
                }
            });
            thread::sync_threads();
            let mut sums = [0; N];
            unroll::<N>(|i| {
                sums[i] = warp_sum(if lane < WARPS { *memory.add(i * WARPS as usize + lane as usize) } else { 0 });
            });
            sums
        }
    }

    /// Returns the greatest number of the block, in every thread.
    ///
    /// # Safety
    /// All threads of the block call this together.
    #[inline(always)]
    pub unsafe fn max(&mut self, own: u64) -> u64 {
        let memory = self.next();
        let (lane, warp_id) = (warp::lane_id(), warp::warp_id());
        // SAFETY: all lanes are here. Each warp writes its own element, and reads the others' after the barrier.
        unsafe {
            let most = warp_max_u64(own);
            if lane == 0 {
                *memory.add(warp_id as usize) = most;
            }
            thread::sync_threads();
            warp_max_u64(if lane < WARPS { *memory.add(lane as usize) } else { 0 })
        }
    }

    /// Returns the sum over the threads with lower numbers.
    ///
    /// # Safety
    /// All threads of the block call this together, and the block's sum is below 2^59.
    #[inline(always)]
    pub unsafe fn sum_below(&mut self, own: u64) -> u64 {
        let memory = self.next();
        let (lane, warp_id) = (warp::lane_id(), warp::warp_id());
        // SAFETY: all lanes are here. Each warp writes its own element, and reads the others' after the barrier.
        unsafe {
            let mut upto = own;
            let mut delta = 1;
            while delta < WARP_SIZE {
                let low = warp::warp_shuffle_up(FULL_MASK, upto as u32, delta, WARP_SIZE);
                let high = warp::warp_shuffle_up(FULL_MASK, (upto >> 32) as u32, delta, WARP_SIZE);
                if lane >= delta {
                    upto += u64::from(high) << 32 | u64::from(low);
                }
                delta *= 2;
            }
            if lane == WARP_SIZE - 1 {
                *memory.add(warp_id as usize) = upto;
            }
            thread::sync_threads();
            upto - own + warp_sum(if lane < warp_id { *memory.add(lane as usize) } else { 0 })
        }
    }
}

/// Returns the greatest number of the warp, in every lane.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub(crate) unsafe fn warp_max_u64(value: u64) -> u64 {
    // SAFETY: all lanes of the warp are here together, by this function's contract.
    unsafe {
        let high = warp::warp_max((value >> 32) as u32);
        let low = if (value >> 32) as u32 == high { value as u32 } else { 0 };
        u64::from(high) << 32 | u64::from(warp::warp_max(low))
    }
}
