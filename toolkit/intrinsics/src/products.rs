//! Kernels for each form of `wgmma`, the warp group product.
//!
//! Each kernel copies `bytes` bytes of `image` to shared memory unchanged. A is at the start and B at 16 KiB. Kernels
//! that take A from registers read it from `registers`. Each kernel multiplies and then adds the same product again.
//! `out[j][thread]` holds sums of the columns `8 * j` to `8 * j + 7`.

use cuda_std::prelude::*;
use cuda_std::ptx::fence;
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::ptx::wgmma::{self, MatrixLayout};
use cuda_std::ptx::wgmma_chain;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;

/// The offset of B in the image, in bytes.
pub const SECOND: u32 = 16 << 10;

/// 8 x 8 matrices of 128 bytes. Matrices along K are next to each other, and 16 elements along K take 256 bytes.
const PLAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 256);

/// MN-major rows of 64 elements, with 16 rows along K.
const MN_MAJOR: MatrixLayout = MatrixLayout::new(TilePattern::Bytes128, 2048, 1024);

/// 8 x 8 matrices of 128 bytes. The 16 matrices along K are next to each other, and 16 elements along K take 256 bytes.
const CHAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 2048);

/// [`CHAIN`] with 8 matrices along K.
const SHORT_CHAIN: MatrixLayout = MatrixLayout::new(TilePattern::Plain, 128, 1024);

/// The layout of an MN-major factor with `columns` rows or columns. Matrices along M or N are next to each other.
const fn mn_major_chain(columns: u32) -> MatrixLayout {
    MatrixLayout::new(TilePattern::Plain, columns / 8 * 128, 128)
}

/// Copies the image to shared memory and returns its offset there, a multiple of 1024.
///
/// # Safety
/// All threads of the block must call this. Shared memory must have 1024 bytes more than the image, whose size must be
/// a multiple of 16.
#[inline(always)]
unsafe fn fill(image: *const Vector, bytes: u32) -> u32 {
    let memory: *mut u8 = dynamic_shared_mem();
    let tile: *mut Vector = memory.wrapping_add((shared_offset(memory).wrapping_neg() % 1024) as usize).cast();
    let mut at = thread::thread_idx_x();
    while at < bytes / 16 {
        // SAFETY: `at` is less than the number of vectors in the image.
        unsafe { *tile.add(at as usize) = *image.add(at as usize) };
        at += thread::block_dim_x();
    }
    fence::proxy_async_shared();
    thread::sync_threads();
    shared_offset(tile)
}

/// Stores the sums of this thread.
///
/// # Safety
/// `out` must have room for the sums of 128 threads.
#[inline(always)]
unsafe fn store<const BLOCKS: usize>(sums: &[[f32; 4]; BLOCKS], out: *mut [f32; 4]) {
    // Unrolled by hand: an array stays in registers only if no loop over it remains.
    macro_rules! all {
        ($($j:literal)*) => {$(
            if $j < BLOCKS {
                // SAFETY: this function's contract.
                unsafe { *out.add($j * 128 + thread::thread_idx_x() as usize) = sums[$j % BLOCKS] };
            }
        )*};
    }
    all!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// Adds the sums of two products.
#[inline(always)]
fn added(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}

/// Loads this thread's registers of A for a chain of eight products: four registers per product.
///
/// # Safety
/// `registers` must have an element for each product and each of 128 threads.
#[inline(always)]
unsafe fn chain_registers(registers: *const [u32; 4]) -> [[u32; 4]; 8] {
    // SAFETY: this function's contract.
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

    /// `m64n64k16` of `f16`: K-major, not swizzled.
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

    /// `m64n64k16` of `f16`: A in four registers per thread, B K-major and not swizzled.
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

    /// `m64n64k16` of `bf16`: K-major, not swizzled.
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

    /// `m64n64k16` of `bf16`: A in four registers per thread, B K-major and not swizzled.
    v_wgmma_registers_bf16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = *registers.add(thread::thread_idx_x() as usize);
        let mut sums = [[0.0; 4]; 8];
        wgmma::m64n64k16_bf16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), false);
        wgmma::m64n64k16_bf16_registers::<0>(&mut sums, a, PLAIN.at(at + SECOND), true);
        store(&sums, out);
    }

    /// A chain of four `f16` products with 128 columns, both K-major and not swizzled. Computed twice and added.
    v_wgmma_short_chain_128_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| {
            let [first, second, third, fourth, ..] = SHORT_CHAIN.along(at, 256);
            [first, second, third, fourth]
        });
        let (sums, again) = (wgmma_chain::m64n128k64_f16_first(a, b), wgmma_chain::m64n128k64_f16_first(a, b));
        store(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|j: usize| added(sums[j], again[j])), out);
    }

    /// A chain of eight `f16` products with 128 columns, both K-major and not swizzled.
    v_wgmma_chain_128_f16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| CHAIN.along(at, 256));
        let mut sums = wgmma_chain::m64n128k128_f16_first(a, b);
        wgmma_chain::m64n128k128_f16(&mut sums, a, b);
        store(&sums, out);
    }

    /// A chain of eight `f16` products with 64 columns: A in registers, B MN-major and not swizzled.
    v_wgmma_chain_64_registers_f16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(64).along(at + SECOND, 2 * 64 / 8 * 128);
        let mut sums = [[0.0; 4]; 64 / 8];
        wgmma_chain::m64n64k128_f16_registers(&mut sums, a, b);
        wgmma_chain::m64n64k128_f16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// A chain of eight `f16` products with 128 columns: A in registers, B MN-major and not swizzled.
    v_wgmma_chain_128_registers_f16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(128).along(at + SECOND, 2 * 128 / 8 * 128);
        let mut sums = [[0.0; 4]; 128 / 8];
        wgmma_chain::m64n128k128_f16_registers(&mut sums, a, b);
        wgmma_chain::m64n128k128_f16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// A chain of four `bf16` products with 128 columns, both K-major and not swizzled. Computed twice and added.
    v_wgmma_short_chain_128_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| {
            let [first, second, third, fourth, ..] = SHORT_CHAIN.along(at, 256);
            [first, second, third, fourth]
        });
        let (sums, again) = (wgmma_chain::m64n128k64_bf16_first(a, b), wgmma_chain::m64n128k64_bf16_first(a, b));
        store(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|j: usize| added(sums[j], again[j])), out);
    }

    /// A chain of eight `bf16` products with 128 columns, both K-major and not swizzled.
    v_wgmma_chain_128_bf16(image: *const Vector, bytes: u32, out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let [a, b] = [at, at + SECOND].map(|at| CHAIN.along(at, 256));
        let mut sums = wgmma_chain::m64n128k128_bf16_first(a, b);
        wgmma_chain::m64n128k128_bf16(&mut sums, a, b);
        store(&sums, out);
    }

    /// A chain of eight `bf16` products with 64 columns: A in registers, B MN-major and not swizzled.
    v_wgmma_chain_64_registers_bf16(image: *const Vector, bytes: u32, registers: *const [u32; 4], out: *mut [f32; 4]) {
        let at = fill(image, bytes);
        let a = chain_registers(registers);
        let b = mn_major_chain(64).along(at + SECOND, 2 * 64 / 8 * 128);
        let mut sums = [[0.0; 4]; 64 / 8];
        wgmma_chain::m64n64k128_bf16_registers(&mut sums, a, b);
        wgmma_chain::m64n64k128_bf16_registers(&mut sums, a, b);
        store(&sums, out);
    }

    /// A chain of eight `bf16` products with 128 columns: A in registers, B MN-major and not swizzled.
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
