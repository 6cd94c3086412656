//! Kernels that panic, that compute in `f64`, that call themselves, and that add up a warp.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

use cuda_std::prelude::*;

/// # Safety
/// `x` has an element for each thread.
#[kernel(max_threads = 32)]
pub unsafe fn panics(x: *mut u32, how: u32) {
    let i = thread::thread_idx_x();
    // SAFETY: the element is this thread's.
    let x = unsafe { &mut *x.add(i as usize) };
    let few = [1, 2, 3, *x];
    let known = if i < 9 { Some(*x) } else { None };
    match how {
        0 => *x = known.unwrap(), // unwrap
        1 => *x = few[i as usize], // index
        2 => *x = 100 / *x, // division
        _ => assert!(i < 5, "five"), // assert
    }
}

/// # Safety
/// `x` has an element for each thread.
#[kernel(max_threads = 32)]
pub unsafe fn doubles(x: *mut f64, by: f64) {
    // SAFETY: the element is this thread's.
    let x = unsafe { &mut *x.add(thread::thread_idx_x() as usize) };
    *x = (*x * by + 1.0 / *x - by).abs();
}

fn nested(n: u64) -> u64 {
    if n < 2 { 1 } else { nested(n - 1).wrapping_mul(n) ^ nested(n / 2) }
}

/// # Safety
/// `x` has an element for each thread.
#[kernel(max_threads = 32)]
pub unsafe fn recursive(x: *mut u64) {
    // SAFETY: the element is this thread's.
    let x = unsafe { &mut *x.add(thread::thread_idx_x() as usize) };
    *x = nested(*x);
}

/// Sums of every type, and extremes.
///
/// # Safety
/// `x` has an element for each of 32 threads, and `sums` has eight.
#[kernel(max_threads = 32)]
pub unsafe fn sums(x: *const u32, sums: *mut u64) {
    // SAFETY: the element is this thread's, the whole warp is here, and one thread writes.
    unsafe {
        let x = *x.add(thread::thread_idx_x() as usize);
        let found = [
            u64::from(warp::warp_sum(x)),
            warp::warp_sum(x as i32) as u64,
            warp::warp_sum(u64::from(x) << 32),
            warp::warp_sum(-i64::from(x)) as u64,
            warp::warp_sum(x as f32) as u64,
            u64::from(warp::warp_min(x)),
            u64::from(warp::warp_max(x)),
            warp::warp_max(x as f32) as u64,
        ];
        if warp::lane_id() == 0 {
            *sums.cast::<[u64; 8]>() = found;
        }
    }
}
