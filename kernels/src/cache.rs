//! Writing, copying and swapping the pages of the KV cache.
//!
//! All four kernels move 16-byte vectors without interpreting their elements, so they serve every 16-bit type. The
//! three kernels that move whole pages also serve 8-bit caches, whose scales are part of the page. New tokens reach an
//! 8-bit cache through [`rope_and_cache`](crate::rope::rope_and_cache()).
//!
//! [`layout`](crate::layout) describes the pages. Layers are `layer_stride` vectors apart.
//!
//! | kernel | computes | launch |
//! | --- | --- | --- |
//! | [`reshape_and_cache()`] | `cache[slots[t]] = (key[t], value[t])` for every token t | [`write_shape`] |
//! | [`copy_blocks()`] | `cache[l][dst] = cache[l][src]` for every pair and layer l | [`copy_shape`] |
//! | [`swap_blocks_out()`] | `staging[i][l] = cache[l][blocks[i]]` | [`copy_shape`] |
//! | [`swap_blocks_in()`] | `cache[l][blocks[i]] = staging[i][l]` | [`copy_shape`] |
//!
//! # Floor
//!
//! Each byte is read once and written once. A cache write moves 8 x heads x head_size bytes per token; a copy or swap
//! moves twice the page size. The kernels compute nothing, so memory bandwidth sets the time.
//!
//! # Ladder
//!
//! Cache write:
//!
//! 1. One thread per element, as in vLLM: 2-byte accesses, and V is scattered.
//! 2. One thread per vector, with threads along the heads. Reads are contiguous, but a write covers 16 bytes in every
//!    256, half of each 32-byte sector.
//! 3. (here) A warp takes 8 tokens x 4 vectors. It reads 64 contiguous bytes per token. If the tokens' slots are
//!    neighbours, as in a prompt, it writes 128 contiguous bytes per vector. In a decode step they are not, and each
//!    write is half a sector: the layout has only 16 contiguous bytes per token.
//!
//! Copies:
//!
//! 1. One thread per vector.
//! 2. (here) Four vectors per thread, all loaded before the first store, so a multiprocessor has 128 KiB in flight.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::layout::{KeyOrValue, KvFormat, Pages};
use cuda_std::ptx::memory::{load_streaming, store_streaming};

/// Threads per block of all kernels in this file.
pub const THREADS: u32 = 256;

/// Tokens per block of [`reshape_and_cache()`]. Consecutive lanes of a warp take consecutive tokens.
pub const WRITE_TOKENS: u32 = 8;

/// Vectors of K per token that a block of [`reshape_and_cache()`] writes, and the same number of V.
pub const WRITE_VECTORS: u32 = THREADS / WRITE_TOKENS;

/// Vectors per thread of the copy kernels.
pub const COPY_UNROLL: u32 = 4;

/// Vectors per block of the copy kernels.
pub const COPY_VECTORS: u32 = THREADS * COPY_UNROLL;

/// Returns the launch of [`reshape_and_cache()`].
pub const fn write_shape(pages: Pages, tokens: u32) -> LaunchShape {
    let grid = [tokens.div_ceil(WRITE_TOKENS), pages.token_vectors().div_ceil(WRITE_VECTORS), 1];
    LaunchShape::new(grid, THREADS)
}

/// Returns the launch of [`copy_blocks()`], [`swap_blocks_out()`] and [`swap_blocks_in()`].
///
/// `count` is the number of pairs or blocks. Pages have `page_vectors` vectors in any layout.
pub const fn copy_shape(page_vectors: u32, count: u32, layers: u32) -> LaunchShape {
    LaunchShape::new([count, page_vectors.div_ceil(COPY_VECTORS), layers], THREADS)
}

/// Writes the keys and values of a step's new tokens to their slots in one layer's cache.
///
/// - `key`, `value`: `[tokens][heads][head_size]`. Rows are `key_stride` and `value_stride` vectors apart, so both may
///   point into a fused QKV output.
/// - `cache`: the layer's pages.
/// - `slots`: `block * block_size + offset` for each token. A negative slot marks padding, which is skipped.
///
/// # Safety
/// The arrays have these shapes. Vector pointers are 16-byte aligned. Slots are within the cache and distinct. The
/// launch is the one [`write_shape`] returns.
#[kernel(max_threads = 256)]
pub unsafe fn reshape_and_cache(
    key: *const Vector,
    value: *const Vector,
    cache: *mut Vector,
    slots: *const i32,
    tokens: u32,
    key_stride: u32,
    value_stride: u32,
    heads: u32,
    head_size: u32,
    block_size: u32,
) {
    let pages = Pages { heads, head_size, block_size, format: KvFormat::Plain, padding: 0 };
    let thread = thread::thread_idx_x();
    let token = thread::block_idx_x() * WRITE_TOKENS + thread % WRITE_TOKENS;
    let vector = thread::block_idx_y() * WRITE_VECTORS + thread / WRITE_TOKENS;
    if token >= tokens || vector >= pages.token_vectors() {
        return;
    }
    // SAFETY: `token` and `vector` were just checked against the shapes. By this kernel's contract, slots are within
    // the cache and distinct.
    unsafe {
        let slot = *slots.add(token as usize);
        if slot < 0 {
            return;
        }
        // Issue both loads before the divisions that compute the destination.
        let k = load_streaming(key.add(token as usize * key_stride as usize + vector as usize));
        let v = load_streaming(value.add(token as usize * value_stride as usize + vector as usize));
        let (block, offset) = divide(slot as u32, block_size);
        let (head, chunk) = divide(vector, pages.chunks());
        *cache.add(pages.vector(block, head, KeyOrValue::Key, chunk, offset)) = k;
        *cache.add(pages.vector(block, head, KeyOrValue::Value, chunk, offset)) = v;
    }
}

/// Copies whole pages within the cache, in all layers, for copy-on-write.
///
/// `pairs` is `[count][2]`: source block and destination block.
///
/// # Safety
/// Blocks are within the cache, and the two blocks of a pair differ. A destination block appears in no other pair. The
/// launch is the one [`copy_shape`] returns.
#[kernel(max_threads = 256)]
pub unsafe fn copy_blocks(cache: *mut Vector, pairs: *const u32, page_vectors: u32, layer_stride: u64) {
    let pair = thread::block_idx_x() as usize * 2;
    // SAFETY: the grid's x dimension has one block per pair. By this kernel's contract, both pages are within the cache
    // and differ.
    unsafe {
        let layer = cache.add(thread::block_idx_z() as usize * layer_stride as usize);
        let source = layer.add(*pairs.add(pair) as usize * page_vectors as usize);
        let target = layer.add(*pairs.add(pair + 1) as usize * page_vectors as usize);
        copy_tile(source, target, page_vectors);
    }
}

/// Gathers whole pages into a staging buffer, `[count][layers][page]`, for the host to read.
///
/// # Safety
/// `blocks` lists `count` blocks of the cache. The buffer has room for their pages in all layers. The launch is the one
/// [`copy_shape`] returns.
#[kernel(max_threads = 256)]
pub unsafe fn swap_blocks_out(
    cache: *const Vector,
    staging: *mut Vector,
    blocks: *const u32,
    page_vectors: u32,
    layer_stride: u64,
) {
    // SAFETY: the grid's x dimension has one block per entry of `blocks`. By this kernel's contract, those blocks are
    // within the cache and the buffer has room for them.
    unsafe {
        let source = cache.add(cache_offset(blocks, page_vectors, layer_stride));
        copy_tile(source, staging.add(staging_offset(page_vectors)), page_vectors);
    }
}

/// Scatters pages from a staging buffer, `[count][layers][page]`, back into the cache.
///
/// # Safety
/// As for [`swap_blocks_out()`], and `blocks` has no duplicates.
#[kernel(max_threads = 256)]
pub unsafe fn swap_blocks_in(
    cache: *mut Vector,
    staging: *const Vector,
    blocks: *const u32,
    page_vectors: u32,
    layer_stride: u64,
) {
    // SAFETY: the grid's x dimension has one block per entry of `blocks`. By this kernel's contract, those blocks are
    // within the cache and distinct.
    unsafe {
        let target = cache.add(cache_offset(blocks, page_vectors, layer_stride));
        copy_tile(staging.add(staging_offset(page_vectors)), target, page_vectors);
    }
}

/// Returns the cache offset, in vectors, of the page that this thread block moves.
///
/// # Safety
/// `blocks` has an entry for each x of the grid.
#[inline(always)]
unsafe fn cache_offset(blocks: *const u32, page_vectors: u32, layer_stride: u64) -> usize {
    // SAFETY: `blocks` has an entry for each x of the grid, by this function's contract.
    let block = unsafe { *blocks.add(thread::block_idx_x() as usize) };
    thread::block_idx_z() as usize * layer_stride as usize + block as usize * page_vectors as usize
}

/// Returns the staging-buffer offset, in vectors, of the page that this thread block moves.
#[inline(always)]
fn staging_offset(page_vectors: u32) -> usize {
    let page = thread::block_idx_x() as usize * thread::grid_dim_z() as usize + thread::block_idx_z() as usize;
    page * page_vectors as usize
}

/// Copies this thread block's tile of a page.
///
/// # Safety
/// Both pages have `count` vectors and do not overlap.
#[inline(always)]
unsafe fn copy_tile(source: *const Vector, target: *mut Vector, count: u32) {
    let tile = thread::block_idx_y() * COPY_VECTORS;
    let first = tile + thread::thread_idx_x();
    // SAFETY: every index is below `count`.
    unsafe {
        if tile + COPY_VECTORS <= count {
            let mut vectors = [Vector::default(); COPY_UNROLL as usize];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = load_streaming(source.add(first as usize + i * THREADS as usize));
            }
            for (i, vector) in vectors.into_iter().enumerate() {
                store_streaming(target.add(first as usize + i * THREADS as usize), vector);
            }
        } else {
            // The page's last tile, if it is partial.
            let mut at = first;
            while at < count {
                store_streaming(target.add(at as usize), load_streaming(source.add(at as usize)));
                at += THREADS;
            }
        }
    }
}

/// Returns quotient and remainder. The assumption that `by` is not zero spares the kernels a panic path.
///
/// # Safety
/// `by` is not zero.
#[inline(always)]
unsafe fn divide(number: u32, by: u32) -> (u32, u32) {
    // SAFETY: `by` is not zero, by this function's contract.
    unsafe { core::hint::assert_unchecked(by != 0) };
    (number / by, number % by)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::registry::shipped;

    const PAGES: Pages = Pages { heads: 8, head_size: 128, block_size: 16, format: KvFormat::Plain, padding: 0 };

    #[test]
    fn kernels_are_compiled_for_their_block_size() {
        let cache = ["reshape_and_cache", "copy_blocks", "swap_blocks_out", "swap_blocks_in"];
        for kernel in shipped().filter(|k| cache.contains(&k.name)) {
            assert_eq!(kernel.bounds.max_threads, Some(THREADS), "{}", kernel.name);
        }
    }

    #[test]
    fn grids_cover_everything_once() {
        assert_eq!(write_shape(PAGES, 4096).grid, [512, 4, 1]);
        assert_eq!(write_shape(PAGES, 1).grid, [1, 4, 1]);
        assert_eq!(
            write_shape(Pages { heads: 1, head_size: 80, block_size: 16, format: KvFormat::Plain, padding: 0 }, 9).grid,
            [2, 1, 1]
        );
        assert_eq!(copy_shape(PAGES.page_vectors(), 3, 32).grid, [3, 4, 32]);
        assert_eq!(copy_shape(320, 3, 2).grid, [3, 1, 2]);
    }
}
