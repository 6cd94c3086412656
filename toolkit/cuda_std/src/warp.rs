//! Operations that the threads of a warp execute together: shuffles, votes, reductions.
//!
//! Every function here that takes a `mask` is a collective: all lanes in the mask execute the same call together. The
//! functions are LLVM's convergent intrinsics, which the compiler does not move into divergent code.

/// Threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// The mask of all lanes.
pub const FULL_MASK: u32 = u32::MAX;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.laneid"]
    fn lane_register() -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, xor: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    fn match_any(mask: u32, value: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    fn redux_min(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_max(value: u32, mask: u32) -> u32;
}

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
}

/// Returns the thread's lane in its warp.
#[inline(always)]
pub fn lane_id() -> u32 {
    // SAFETY: reads a special register and accesses no memory.
    device!(() => unsafe { lane_register() })
}

/// Returns the warp's index in its block, for one-dimensional blocks.
#[inline(always)]
pub fn warp_id() -> u32 {
    crate::thread::thread_idx_x() / WARP_SIZE
}

/// Waits for the lanes in `mask` and orders their memory accesses.
///
/// # Safety
/// All lanes in `mask` call this together.
#[inline(always)]
pub unsafe fn sync_warp(mask: u32) {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together.
    device!((mask) => unsafe { bar_warp_sync(mask) })
}

/// A 32-bit value that shuffles can exchange.
#[diagnostic::on_unimplemented(message = "shuffles carry `u32`, `i32` and `f32`, not `{Self}`")]
pub trait WarpValue: Copy {
    /// Returns the value's bits.
    fn to_bits(self) -> u32;
    /// Creates the value from its bits.
    fn from_bits(bits: u32) -> Self;
}

macro_rules! warp_values {
    ($($ty:ty: $value:ident => $to:expr, $bits:ident => $from:expr;)*) => {$(
        impl WarpValue for $ty {
            #[inline(always)]
            fn to_bits(self) -> u32 {
                let $value = self;
                $to
            }
            #[inline(always)]
            fn from_bits($bits: u32) -> Self {
                $from
            }
        }
    )*};
}

warp_values! {
    u32: v => v, b => b;
    i32: v => v as u32, b => b as i32;
    f32: v => f32::to_bits(v), b => f32::from_bits(b);
}

/// Returns the value of lane `lane` of the thread's group. Groups are `width` lanes (a power of two, at most 32).
///
/// # Safety
/// All lanes in `mask` call this together, and the lane that is read is one of them.
#[inline(always)]
pub unsafe fn warp_shuffle_idx<T: WarpValue>(mask: u32, value: T, lane: u32, width: u32) -> T {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together and that the mask includes
    // the lane that is read.
    device!((mask, value, lane, width) => unsafe {
        T::from_bits(shfl_idx(mask, value.to_bits(), lane, clamp(width, 31)))
    })
}

/// Returns the value of the lane `delta` below, or the thread's own value if its group has no such lane.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_up<T: WarpValue>(mask: u32, value: T, delta: u32, width: u32) -> T {
    // SAFETY: as in `warp_shuffle_idx`.
    device!((mask, value, delta, width) => unsafe {
        T::from_bits(shfl_up(mask, value.to_bits(), delta, clamp(width, 0)))
    })
}

/// Returns the value of the lane `delta` above, or the thread's own value if its group has no such lane.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_down<T: WarpValue>(mask: u32, value: T, delta: u32, width: u32) -> T {
    // SAFETY: as in `warp_shuffle_idx`.
    device!((mask, value, delta, width) => unsafe {
        T::from_bits(shfl_down(mask, value.to_bits(), delta, clamp(width, 31)))
    })
}

/// Returns the value of the lane whose number is the thread's own XOR `xor`, within its group.
///
/// # Safety
/// As for [`warp_shuffle_idx`].
#[inline(always)]
pub unsafe fn warp_shuffle_xor<T: WarpValue>(mask: u32, value: T, xor: u32, width: u32) -> T {
    // SAFETY: as in `warp_shuffle_idx`.
    device!((mask, value, xor, width) => unsafe {
        T::from_bits(shfl_bfly(mask, value.to_bits(), xor, clamp(width, 31)))
    })
}

/// Returns the third operand of `shfl.sync`: the bits of the lane's number that select its group, and the group's
/// limit.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
const fn clamp(width: u32, last: u32) -> u32 {
    (WARP_SIZE - width) << 8 | last
}

/// Returns whether the predicate is true in all lanes of `mask`.
///
/// # Safety
/// All lanes in `mask` call this together.
#[inline(always)]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together.
    device!((mask, predicate) => unsafe { vote_all(mask, predicate) })
}

/// Returns whether the predicate is true in any lane of `mask`.
///
/// # Safety
/// As for [`warp_vote_all`].
#[inline(always)]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together.
    device!((mask, predicate) => unsafe { vote_any(mask, predicate) })
}

/// Returns a bit mask of the lanes of `mask` in which the predicate is true.
///
/// # Safety
/// As for [`warp_vote_all`].
#[inline(always)]
pub unsafe fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together.
    device!((mask, predicate) => unsafe { vote_ballot(mask, predicate) })
}

/// Returns a bit mask of the lanes of `mask` that have the same value as this thread.
///
/// # Safety
/// As for [`warp_vote_all`].
#[inline(always)]
pub unsafe fn warp_match_any(mask: u32, value: u32) -> u32 {
    // SAFETY: this function's contract requires that all lanes in `mask` call it together.
    device!((mask, value) => unsafe { match_any(mask, value) })
}

/// Combines the values of the whole warp pairwise and returns the result to every lane. `combine` must be commutative.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub unsafe fn warp_all_reduce<T: WarpValue>(mut value: T, combine: impl Fn(T, T) -> T) -> T {
    let mut xor = WARP_SIZE / 2;
    while xor > 0 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        value = combine(value, unsafe { warp_shuffle_xor(FULL_MASK, value, xor, WARP_SIZE) });
        xor /= 2;
    }
    value
}

/// A number that [`warp_sum`] adds.
#[diagnostic::on_unimplemented(message = "`warp_sum` adds `u32`, `i32`, `u64`, `i64` and `f32`, not `{Self}`")]
pub trait WarpSum: Copy {
    /// Returns the sum over the warp.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    unsafe fn warp_sum(self) -> Self;
}

/// A number that [`warp_min`] and [`warp_max`] compare.
#[diagnostic::on_unimplemented(message = "`warp_min` and `warp_max` compare `u32` and `f32`, not `{Self}`")]
pub trait WarpOrder: Copy {
    /// Returns the least value of the warp.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    unsafe fn warp_min(self) -> Self;

    /// Returns the greatest value of the warp.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    unsafe fn warp_max(self) -> Self;
}

/// Returns the sum over the warp, in every lane. 32-bit integers take one instruction and 64-bit ones three. `f32` takes
/// five shuffles. Integers wrap.
///
/// Other types are refused:
///
/// ```compile_fail,E0277
/// unsafe { cuda_std::warp::warp_sum(1.0f64) };
/// ```
///
/// # Safety
/// As for [`warp_all_reduce`].
#[inline(always)]
pub unsafe fn warp_sum<T: WarpSum>(value: T) -> T {
    // SAFETY: this function's contract requires that all lanes of the warp call it together.
    unsafe { value.warp_sum() }
}

/// Returns the least value of the warp, in every lane. NaNs are ignored.
///
/// # Safety
/// As for [`warp_all_reduce`].
#[inline(always)]
pub unsafe fn warp_min<T: WarpOrder>(value: T) -> T {
    // SAFETY: this function's contract requires that all lanes of the warp call it together.
    unsafe { value.warp_min() }
}

/// Returns the greatest value of the warp, in every lane. NaNs are ignored.
///
/// # Safety
/// As for [`warp_all_reduce`].
#[inline(always)]
pub unsafe fn warp_max<T: WarpOrder>(value: T) -> T {
    // SAFETY: this function's contract requires that all lanes of the warp call it together.
    unsafe { value.warp_max() }
}

impl WarpSum for u32 {
    #[inline(always)]
    unsafe fn warp_sum(self) -> u32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        device!((self) => unsafe { redux_add(self, FULL_MASK) })
    }
}

impl WarpSum for u64 {
    #[inline(always)]
    unsafe fn warp_sum(self) -> u64 {
        // Digits of 27 bits, whose sums over 32 lanes fit 32 bits.
        const DIGIT: u32 = 27;
        let digit = |i: u32| (self >> (i * DIGIT)) as u32 & ((1 << DIGIT) - 1);
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        let sum = |i: u32| u64::from(unsafe { digit(i).warp_sum() });
        sum(0).wrapping_add(sum(1) << DIGIT).wrapping_add(sum(2) << (2 * DIGIT))
    }
}

/// Implements sums of signed numbers. They have the same bits as unsigned sums.
macro_rules! signed_sums {
    ($($signed:ty as $unsigned:ty)*) => {$(
        impl WarpSum for $signed {
            #[inline(always)]
            unsafe fn warp_sum(self) -> $signed {
                // SAFETY: this function's contract requires that all lanes of the warp call it together.
                unsafe { (self as $unsigned).warp_sum() as $signed }
            }
        }
    )*};
}

signed_sums!(i32 as u32 i64 as u64);

impl WarpSum for f32 {
    #[inline(always)]
    unsafe fn warp_sum(self) -> f32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        unsafe { warp_all_reduce(self, |a, b| a + b) }
    }
}

impl WarpOrder for u32 {
    #[inline(always)]
    unsafe fn warp_min(self) -> u32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        device!((self) => unsafe { redux_min(self, FULL_MASK) })
    }

    #[inline(always)]
    unsafe fn warp_max(self) -> u32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        device!((self) => unsafe { redux_max(self, FULL_MASK) })
    }
}

impl WarpOrder for f32 {
    #[inline(always)]
    unsafe fn warp_min(self) -> f32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        unsafe { warp_all_reduce(self, f32::min) }
    }

    #[inline(always)]
    unsafe fn warp_max(self) -> f32 {
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        unsafe { warp_all_reduce(self, f32::max) }
    }
}
