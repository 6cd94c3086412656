//! Kernels for every GPU.
//!
//! A kernel with two inputs computes `out[i] = f(a[i], b[i])` with one thread per element. Collectives are launched
//! with one warp.

use cuda_std::half::{Bf16x2, F16x2, Half2};
use cuda_std::prelude::*;
use cuda_std::ptx::{cp_async, ldmatrix, memory, mma};
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, flag};

kernels! {
    KERNELS (max_threads = 1024)
    /// The seven functions of `GpuFloat`, in `out[7 * i ..]`.
    v_float(a: *const f32, b: *const f32, out: *mut f32) {
        let i = thread::index_1d() as usize;
        let (x, y, out) = (*a.add(i), *b.add(i), out.add(7 * i));
        let results = [
            x.exp2_fast(), x.log2_fast(), x.rsqrt_fast(), x.rcp_fast(), x.tanh_fast(), GpuFloat::sqrt(x),
            GpuFloat::mul_add(x, y, 1.0),
        ];
        for (k, result) in results.into_iter().enumerate() {
            *out.add(k) = result;
        }
    }

    /// `a * b + a` of pairs of `f16`: once in `f16`, and once widened to `f32`, computed and narrowed.
    v_f16(a: *const u32, b: *const u32, out: *mut u32) {
        half2(F16x2::from_bits, a, b, out)
    }

    /// [`v_f16()`] for `bf16`.
    v_bf16(a: *const u32, b: *const u32, out: *mut u32) {
        half2(Bf16x2::from_bits, a, b, out)
    }

    /// Shuffles within groups of 8 lanes, in `out[4 * i ..]`: from lane 3, from 2 lanes below, from 2 lanes above, and
    /// across bit 2.
    v_shuffle(a: *const u32, out: *mut u32) {
        let i = thread::thread_idx_x() as usize;
        let (x, out) = (*a.add(i), out.add(4 * i));
        *out = warp::warp_shuffle_idx(FULL_MASK, x, 3, 8);
        *out.add(1) = warp::warp_shuffle_up(FULL_MASK, x, 2, 8);
        *out.add(2) = warp::warp_shuffle_down(FULL_MASK, x, 2, 8);
        *out.add(3) = warp::warp_shuffle_xor(FULL_MASK, x, 4, 8);
    }

    /// Votes on `a[i] > b[i]`, and the mask of lanes with the same `a`, in `out[4 * i ..]`.
    v_vote(a: *const u32, b: *const u32, out: *mut u32) {
        let i = thread::thread_idx_x() as usize;
        let (x, out) = (*a.add(i), out.add(4 * i));
        let greater = x > *b.add(i);
        *out = u32::from(warp::warp_vote_all(FULL_MASK, greater));
        *out.add(1) = u32::from(warp::warp_vote_any(FULL_MASK, greater));
        *out.add(2) = warp::warp_vote_ballot(FULL_MASK, greater);
        *out.add(3) = warp::warp_match_any(FULL_MASK, x);
    }

    /// Sum, minimum and maximum over the warp with one instruction each, in `out[3 * i ..]`.
    v_reduce(a: *const u32, out: *mut u32) {
        let i = warp::lane_id() as usize;
        let (x, out) = (*a.add(i), out.add(3 * i));
        *out = warp::warp_sum(x);
        *out.add(1) = warp::warp_min(x);
        *out.add(2) = warp::warp_max(x);
    }

    /// Sum and maximum over the warp with shuffles, in `out[2 * i ..]`.
    v_reduce_f32(a: *const f32, out: *mut f32) {
        let i = thread::thread_idx_x() as usize;
        let (x, out) = (*a.add(i), out.add(2 * i));
        *out = warp::warp_sum(x);
        *out.add(1) = warp::warp_max(x);
    }

    /// Reverses 256 elements through static shared memory, in one block of 256 threads.
    v_shared(a: *const u32, out: *mut u32) {
        let tile = shared_array![u32; 256];
        let i = thread::thread_idx_x() as usize;
        *tile.add(i) = *a.add(i);
        thread::sync_threads();
        *out.add(i) = *tile.add(255 - i);
    }

    /// Passes the first warp's data to the second through dynamic shared memory and a named barrier, in a block of 64
    /// threads. The first warp arrives without waiting, and only the second warp writes output.
    v_named_barrier(a: *const u32, out: *mut u32) {
        let tile: *mut u32 = dynamic_shared_mem();
        let i = thread::thread_idx_x() as usize;
        if warp::warp_id() == 0 {
            *tile.add(i) = *a.add(i);
            thread::block_fence();
            thread::arrive_named(1, 64);
        } else {
            thread::sync_named(1, 64);
            *out.add(i) = *tile.add(i - 32);
        }
        warp::sync_warp(FULL_MASK);
    }

    /// Runs every atomic operation, each on its own word of `words[8]`, `sum` and `wide`.
    v_atomic(a: *const u32, words: *mut u32, sum: *mut f32, wide: *mut u64) {
        let x = *a.add(thread::index_1d() as usize);
        atomic::add_u32(words, x);
        atomic::min_u32(words.add(1), x);
        atomic::max_u32(words.add(2), x);
        atomic::and_u32(words.add(3), x);
        atomic::or_u32(words.add(4), x);
        atomic::exchange_u32(words.add(5), x);
        atomic::compare_exchange_u32(words.add(6), 0, x);
        thread::device_fence();
        atomic::add_u32_acq_rel(words.add(7), 1);
        atomic::add_f32(sum, x as f32);
        atomic::add_u64(wide, u64::from(x) << 20);
        thread::system_fence();
    }

    /// Passes `a[0]` from the first block to the second with a flag in `flags[0]`. The second block writes it to
    /// `out[0]`, and `flags[1]` to `out[1]`.
    v_flag(a: *const u32, flags: *mut u32, handed: *mut u32, out: *mut u32) {
        if thread::block_idx_x() == 0 {
            *handed = *a;
            flag::store_release(flags, 1);
        } else {
            while flag::load_acquire(flags) == 0 {}
            *out = *handed;
            *out.add(1) = flag::load_relaxed(flags.add(1));
        }
    }

    /// Copies with each hinted load and store, to `out[4 * i ..]`.
    v_memory(a: *const Vector, out: *mut Vector) {
        let i = thread::index_1d() as usize;
        let (a, out) = (a.add(i), out.add(4 * i));
        memory::store_streaming(out, memory::load_streaming(a));
        memory::store_l2(out.add(1), memory::load_l2(a));
        *out.add(2) = memory::load_constant(a);
        *out.add(3) = *a;
    }

    /// Reads `8 * gridDim.x * 256` vectors with streaming loads in blocks of 256 threads, and writes the exclusive or
    /// per thread. This is the fastest way to read memory, and other kernels are measured against it.
    v_read_stream(a: *const Vector, out: *mut u32) {
        let i = thread::index_1d() as usize;
        let mut vectors = [Vector::default(); 8];
        for (k, vector) in vectors.iter_mut().enumerate() {
            *vector = memory::load_streaming(a.add(k * (thread::grid_dim_x() * 256) as usize + i));
        }
        *out.add(i) = vectors.iter().flat_map(|v| v.0).fold(0, |x, y| x ^ y);
    }

    /// Copies through shared memory with `cp.async`, three times: twice the whole vector, and once its first `bytes`
    /// bytes, to `out[3 * i ..]`.
    v_cp_async(a: *const Vector, out: *mut Vector, bytes: u32) {
        let tile: *mut Vector = dynamic_shared_mem();
        let i = thread::thread_idx_x() as usize;
        let (from, to) = (a.add(i).cast::<u8>(), tile.add(3 * i));
        cp_async::copy_cg(shared_offset(to), from);
        cp_async::commit();
        cp_async::copy_ca(shared_offset(to.add(1)), from);
        cp_async::copy_cg_zero_fill(shared_offset(to.add(2)), from, bytes);
        cp_async::commit();
        cp_async::wait::<1>();
        *out.add(3 * i) = *to;
        cp_async::wait::<0>();
        *out.add(3 * i + 1) = *to.add(1);
        *out.add(3 * i + 2) = *to.add(2);
    }

    /// Every form of `ldmatrix` over 32 rows of 16 bytes, in `out[14 * i ..]`.
    v_ldmatrix(a: *const Vector, out: *mut u32) {
        let tile = shared_array![Vector; 32];
        let i = thread::thread_idx_x() as usize;
        *tile.add(i) = *a.add(i);
        thread::sync_threads();
        let row = tile.add(i).cast_const().cast::<u8>();
        let out = out.add(14 * i);
        *out = ldmatrix::load_x1(row);
        out.add(1).cast::<[u32; 2]>().write_unaligned(ldmatrix::load_x2(row));
        out.add(3).cast::<[u32; 4]>().write_unaligned(ldmatrix::load_x4(row));
        *out.add(7) = ldmatrix::load_x1_trans(row);
        out.add(8).cast::<[u32; 2]>().write_unaligned(ldmatrix::load_x2_trans(row));
        out.add(10).cast::<[u32; 4]>().write_unaligned(ldmatrix::load_x4_trans(row));
    }

    /// `ldmatrix` with shared memory offsets, plain and transposed, over 32 rows of 16 bytes, in `out[8 * i ..]`.
    v_ldmatrix_at(a: *const Vector, out: *mut u32) {
        let tile = shared_array![Vector; 32];
        let i = thread::thread_idx_x() as usize;
        *tile.add(i) = *a.add(i);
        thread::sync_threads();
        let row = shared_offset(tile.add(i));
        let out = out.add(8 * i).cast::<[u32; 4]>();
        *out = ldmatrix::load_x4_at(row);
        *out.add(1) = ldmatrix::load_x4_trans_at(row);
    }

    /// `c + a b` of `f16` fragments. Each lane has four registers of `a`, two of `b`, and four of `c` and `out`.
    v_mma_f16(a: *const [u32; 4], b: *const [u32; 2], c: *const [f32; 4], out: *mut [f32; 4]) {
        let i = thread::thread_idx_x() as usize;
        *out.add(i) = mma::m16n8k16_f16(*a.add(i), *b.add(i), *c.add(i));
    }

    /// [`v_mma_f16()`] for `bf16`.
    v_mma_bf16(a: *const [u32; 4], b: *const [u32; 2], c: *const [f32; 4], out: *mut [f32; 4]) {
        let i = thread::thread_idx_x() as usize;
        *out.add(i) = mma::m16n8k16_bf16(*a.add(i), *b.add(i), *c.add(i));
    }
}

/// The body of `v_f16` and `v_bf16`.
///
/// # Safety
/// The contract of these kernels.
#[inline(always)]
unsafe fn half2<T: Half2>(pair: impl Fn(u32) -> T, a: *const u32, b: *const u32, out: *mut u32) {
    let i = thread::index_1d() as usize;
    // SAFETY: this function's contract.
    unsafe {
        let (x, y) = (pair(*a.add(i)), pair(*b.add(i)));
        *out.add(2 * i) = x.mul_add(y, x).to_bits();
        let ([x0, x1], [y0, y1]) = (x.to_f32(), y.to_f32());
        *out.add(2 * i + 1) = T::from_f32([x0 * y0 + x0, x1 * y1 + x1]).to_bits();
    }
}
