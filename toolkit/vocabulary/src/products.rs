//! Kernels of `wgmma`'s forms: products of warp groups.
//!
//! Each copies `bytes` bytes of `image` to shared memory as they are: A, and from 16 KiB on B. `registers` is A for those that
//! take it from there. Then it multiplies, and adds the same product again: `out[j][thread]` are sums of eight columns.

use cuda_std::prelude::*;
use cuda_std::ptx::fence;
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::ptx::wgmma::{self, MatrixLayout};
use cuda_std::ptx::wgmma_chain;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;

/// Where B begins in the image.
pub const SECOND: u32 = 16 << 10;

/// 8 x 8 matrices of 128 bytes, those along K next to each other: 16 elements of it take 256 bytes.
const PLAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 256);

/// MN-major rows of 64 elements, 16 of them along K.
const MN_MAJOR: MatrixLayout = MatrixLayout::new(TilePattern::Bytes128, 2048, 1024);

/// 8 x 8 matrices of 128 bytes, 16 of them along K next to each other: 16 elements of it take 256 bytes.
const CHAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 2048);

/// The same with eight.
const SHORT_CHAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 1024);

/// The same, of an MN-major factor of so many rows or columns: those along M or N are next to each other.
const fn mn_major_chain(columns: u32) -> MatrixLayout {
    MatrixLayout::new(TilePattern::Plain, columns / 8 * 128, 128)
}

/// Fills shared memory, and returns where the image begins: at a multiple of 1024.
///
/// # Safety
/// All threads of the block call this; shared memory has 1024 bytes more than the image, whose size is a multiple of 16.
#[inline(always)]
unsafe fn fill(image: *const Vector, bytes: u32) -> u32 {
    let memory: *mut u8 = dynamic_shared_mem();
    let tile: *mut Vector = memory.wrapping_add((shared_offset(memory).wrapping_neg() % 1024) as usize).cast();
    let mut at = thread::thread_idx_x();
    while at < bytes / 16 {
        // SAFETY: `at` is within the image.
        unsafe { *tile.add(at as usize) = *image.add(at as usize) };
        at += thread::block_dim_x();
    }
    fence::proxy_async_shared();
    thread::sync_threads();
    shared_offset(tile)
}

/// Stores sums.
///
/// # Safety
/// `out` has room for them.
#[inline(always)]
unsafe fn store<const BLOCKS: usize>(sums: &[[f32; 4]; BLOCKS], out: *mut [f32; 4]) {
    // Written out: an array stays in registers only if no loop is left over it.
    macro_rules! all {
        ($($j:literal)*) => {$(
            if $j < BLOCKS {
                // SAFETY: the caller's.
                unsafe { *out.add($j * 128 + thread::thread_idx_x() as usize) = sums[$j % BLOCKS] };
            }
        )*};
    }
    all!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// Two blocks' sums, added.
#[inline(always)]
fn added(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}

/// The A of a chain that this thread has: four registers of each product, of all threads one after the other.
///
/// # Safety
/// There are those of 128 threads.
#[inline(always)]
unsafe fn chain_registers(registers: *const [u32; 4]) -> [[u32; 4]; 8] {
    // SAFETY: the caller's.
    [0, 1, 2, 3, 4, 5, 6, 7].map(|step| unsafe { *registers.add(step * 128 + thread::thread_idx_x() as usize) })
}

kernels! {
    PRODUCTS (arch = "sm_90a", max_threads = 128)

    /// `m64n8k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_8_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n8k64_f16_first(a, b);
        wgmma::m64n8k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n16k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_16_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n16k64_f16_first(a, b);
        wgmma::m64n16k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n24k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_24_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n24k64_f16_first(a, b);
        wgmma::m64n24k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n32k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_32_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n32k64_f16_first(a, b);
        wgmma::m64n32k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n64k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_64_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n64k64_f16_first(a, b);
        wgmma::m64n64k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n128k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_128_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n128k64_f16_first(a, b);
        wgmma::m64n128k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n192k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_192_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n192k64_f16_first(a, b);
        wgmma::m64n192k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n256k64` of `f16`: K-major rows of 128 bytes.
    v_wgmma_256_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n256k64_f16_first(a, b);
        wgmma::m64n256k64_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n64k16` of `f16`: K-major, without a pattern.
    v_wgmma_plain_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_f16::<0, 0>(&mut sums, PLAIN.at(at), PLAIN.at(at + SECOND), false);
        wgmma::m64n64k16_f16::<0, 0>(&mut sums, PLAIN.at(at), PLAIN.at(at + SECOND), true);
        store(&sums, out);
    }

    /// `m64n64k16` of `f16`: both MN-major, rows of 128 bytes.
    v_wgmma_mn_major_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_f16::<1, 1>(&mut sums, MN_MAJOR.at(at), MN_MAJOR.at(at + SECOND), false);
        wgmma::m64n64k16_f16::<1, 1>(&mut sums, MN_MAJOR.at(at), MN_MAJOR.at(at + SECOND), true);
        store(&sums, out);
    }

    /// `m64n64k16` of `f16`: A in registers, four of each thread; B K-major, without a pattern.
    v_wgmma_registers_f16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = *registers.add(thread::thread_idx_x() as usize);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_f16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), false);
        wgmma::m64n64k16_f16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), true);
        store(&sums, out);
    }

    /// `m64n8k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_8_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n8k64_bf16_first(a, b);
        wgmma::m64n8k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n16k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_16_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n16k64_bf16_first(a, b);
        wgmma::m64n16k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n24k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_24_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n24k64_bf16_first(a, b);
        wgmma::m64n24k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n32k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_32_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n32k64_bf16_first(a, b);
        wgmma::m64n32k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n64k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_64_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n64k64_bf16_first(a, b);
        wgmma::m64n64k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n128k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_128_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n128k64_bf16_first(a, b);
        wgmma::m64n128k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n192k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_192_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n192k64_bf16_first(a, b);
        wgmma::m64n192k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n256k64` of `bf16`: K-major rows of 128 bytes.
    v_wgmma_256_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(wgmma::row_descriptor);
        let mut sums = wgmma::m64n256k64_bf16_first(a, b);
        wgmma::m64n256k64_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// `m64n64k16` of `bf16`: K-major, without a pattern.
    v_wgmma_plain_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_bf16::<0, 0>(&mut sums, PLAIN.at(at), PLAIN.at(at + SECOND), false);
        wgmma::m64n64k16_bf16::<0, 0>(&mut sums, PLAIN.at(at), PLAIN.at(at + SECOND), true);
        store(&sums, out);
    }

    /// `m64n64k16` of `bf16`: both MN-major, rows of 128 bytes.
    v_wgmma_mn_major_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_bf16::<1, 1>(&mut sums, MN_MAJOR.at(at), MN_MAJOR.at(at + SECOND), false);
        wgmma::m64n64k16_bf16::<1, 1>(&mut sums, MN_MAJOR.at(at), MN_MAJOR.at(at + SECOND), true);
        store(&sums, out);
    }

    /// `m64n64k16` of `bf16`: A in registers, four of each thread; B K-major, without a pattern.
    v_wgmma_registers_bf16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = *registers.add(thread::thread_idx_x() as usize);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_bf16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), false);
        wgmma::m64n64k16_bf16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), true);
        store(&sums, out);
    }

    /// Four products of `f16` in a chain, 128 columns: both K-major, without a pattern; and the same again.
    v_wgmma_short_chain_128_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| {
            let [first, second, third, fourth, ..] = SHORT_CHAIN.along(at, 256);
            [first, second, third, fourth]
        });
        let (sums, again) = (wgmma_chain::m64n128k64_f16_first(a, b), wgmma_chain::m64n128k64_f16_first(a, b));
        store(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|j: usize| added(sums[j], again[j])), out);
    }

    /// Eight products of `f16` in a chain, 128 columns: both K-major, without a pattern.
    v_wgmma_chain_128_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| CHAIN.along(at, 256));
        let mut sums = wgmma_chain::m64n128k128_f16_first(a, b);
        wgmma_chain::m64n128k128_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// Eight products of `f16` in a chain, 64 columns: A in registers, B MN-major, without a pattern.
    v_wgmma_chain_64_registers_f16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(64).along(at + SECOND, 2 * 64 / 8 * 128);
        let mut sums = [[0.0; 4]; 64 / 8];
        wgmma_chain::m64n64k128_f16_registers(&mut sums, a, b);
        wgmma_chain::m64n64k128_f16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// Eight products of `f16` in a chain, 128 columns: A in registers, B MN-major, without a pattern.
    v_wgmma_chain_128_registers_f16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(128).along(at + SECOND, 2 * 128 / 8 * 128);
        let mut sums = [[0.0; 4]; 128 / 8];
        wgmma_chain::m64n128k128_f16_registers(&mut sums, a, b);
        wgmma_chain::m64n128k128_f16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// Four products of `bf16` in a chain, 128 columns: both K-major, without a pattern; and the same again.
    v_wgmma_short_chain_128_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| {
            let [first, second, third, fourth, ..] = SHORT_CHAIN.along(at, 256);
            [first, second, third, fourth]
        });
        let (sums, again) = (wgmma_chain::m64n128k64_bf16_first(a, b), wgmma_chain::m64n128k64_bf16_first(a, b));
        store(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|j: usize| added(sums[j], again[j])), out);
    }

    /// Eight products of `bf16` in a chain, 128 columns: both K-major, without a pattern.
    v_wgmma_chain_128_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| CHAIN.along(at, 256));
        let mut sums = wgmma_chain::m64n128k128_bf16_first(a, b);
        wgmma_chain::m64n128k128_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// Eight products of `bf16` in a chain, 64 columns: A in registers, B MN-major, without a pattern.
    v_wgmma_chain_64_registers_bf16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(64).along(at + SECOND, 2 * 64 / 8 * 128);
        let mut sums = [[0.0; 4]; 64 / 8];
        wgmma_chain::m64n64k128_bf16_registers(&mut sums, a, b);
        wgmma_chain::m64n64k128_bf16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// Eight products of `bf16` in a chain, 128 columns: A in registers, B MN-major, without a pattern.
    v_wgmma_chain_128_registers_bf16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(128).along(at + SECOND, 2 * 128 / 8 * 128);
        let mut sums = [[0.0; 4]; 128 / 8];
        wgmma_chain::m64n128k128_bf16_registers(&mut sums, a, b);
        wgmma_chain::m64n128k128_bf16_registers(&mut sums, a, b);
        store(&sums, out);
    }
}
