//! Writing, copying and swapping the pages of the KV cache.
//!
//! All four kernels move 16-byte vectors without interpreting their elements, so that they serve every 16-bit type, and
//! those that move pages caches of 8 bits as well, whose scales are part of a page. These are written by
//! [`rope_and_cache`](crate::rope::rope_and_cache()).
//! Pages are laid out as [`layout`](crate::layout) says; layers are `layer_stride` vectors apart.
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
//! Each byte is read once and written once: a cache write moves 8 x heads x head_size bytes a token, a copy or swap
//! twice the page. Nothing is computed; the time is that of the memory.
//!
//! # Ladder
//!
//! Cache write: 1. one thread an element, as vLLM's: 2-byte accesses, and V scattered. 2. one thread a vector, threads
//! along the heads: reads are contiguous, but a write is 16 bytes in every 256, half of each 32-byte sector. 3. (here)
//! a warp takes 8 tokens x 4 vectors: it reads 64 contiguous bytes a token and writes 128 contiguous bytes a vector,
//! if the tokens' slots are neighbours, as they are in a prompt. Where they aren't, in a decode step, each write is
//! half a sector: 16 bytes a token is what the layout gives.
//!
//! Copies: 1. one thread a vector. 2. (here) four vectors a thread, all loaded before the first is stored, so that
//! a multiprocessor has 128 KiB in flight.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::layout::{KeyOrValue, KvFormat, Pages};
use cuda_std::ptx::memory::{load_streaming, store_streaming};

/// Threads per block of all kernels here.
pub const THREADS: u32 = 256;

/// Tokens that a block of [`reshape_and_cache()`] writes; a warp's lanes lie along them first.
pub const WRITE_TOKENS: u32 = 8;

/// Vectors of K, and as many of V, that a block of [`reshape_and_cache()`] writes for each of its tokens.
pub const WRITE_VECTORS: u32 = THREADS / WRITE_TOKENS;

/// Vectors that a thread of the copying kernels moves.
pub const COPY_UNROLL: u32 = 4;

/// Vectors that a block of the copying kernels moves.
pub const COPY_VECTORS: u32 = THREADS * COPY_UNROLL;

/// The launch of [`reshape_and_cache()`].
pub const fn write_shape(pages: Pages, tokens: u32) -> LaunchShape {
    let grid = [tokens.div_ceil(WRITE_TOKENS), pages.token_vectors().div_ceil(WRITE_VECTORS), 1];
    LaunchShape::new(grid, THREADS)
}

/// The launch of [`copy_blocks()`], [`swap_blocks_out()`] and [`swap_blocks_in()`]: `count` is the number of pairs or
/// blocks. What is copied are pages of so many vectors, whatever their layout.
pub const fn copy_shape(page_vectors: u32, count: u32, layers: u32) -> LaunchShape {
    LaunchShape::new([count, page_vectors.div_ceil(COPY_VECTORS), layers], THREADS)
}

/// Writes the keys and values of a step's new tokens to their slots in one layer's cache.
///
/// - `key`, `value`: `[tokens][heads][head_size]`, rows `key_stride` and `value_stride` vectors apart, so that they may
///   be parts of a fused QKV output.
/// - `cache`: the layer's pages.
/// - `slots`: for each token `block * block_size + offset`; negative for padding, which is skipped.
///
/// # Safety
/// The arrays have these shapes, pointers to vectors are 16-byte aligned, slots are within the cache and no two are the
/// same, and the launch is of [`write_shape`].
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
    let pages = Pages { heads, head_size, block_size, format: KvFormat::Plain };
    let thread = thread::thread_idx_x();
    let token = thread::block_idx_x() * WRITE_TOKENS + thread % WRITE_TOKENS;
    let vector = thread::block_idx_y() * WRITE_VECTORS + thread / WRITE_TOKENS;
    if token >= tokens || vector >= pages.token_vectors() {
        return;
    }
    // SAFETY: `token` and `vector` were just checked against the shapes; slots are within the cache and distinct, by
    // this kernel's contract.
    unsafe {
        let slot = *slots.add(token as usize);
        if slot < 0 {
            return;
        }
        // Both loads are in flight before the divisions that say where the data goes.
        let k = load_streaming(key.add(token as usize * key_stride as usize + vector as usize));
        let v = load_streaming(value.add(token as usize * value_stride as usize + vector as usize));
        let (block, offset) = divide(slot as u32, block_size);
        let (head, chunk) = divide(vector, pages.chunks());
        *cache.add(pages.vector(block, head, KeyOrValue::Key, chunk, offset)) = k;
        *cache.add(pages.vector(block, head, KeyOrValue::Value, chunk, offset)) = v;
    }
}

/// Copies whole pages within the cache, in all layers: what copy-on-write asks for.
///
/// `pairs` is `[count][2]`: the block to read, and the block to write.
///
/// # Safety
/// Blocks are within the cache, the two of a pair differ, none that is written is in another pair, and the launch is of
/// [`copy_shape`].
#[kernel(max_threads = 256)]
pub unsafe fn copy_blocks(cache: *mut Vector, pairs: *const u32, page_vectors: u32, layer_stride: u64) {
    let pair = thread::block_idx_x() as usize * 2;
    // SAFETY: the grid's x has a block for each pair; both pages are within the cache and differ, by this kernel's
    // contract.
    unsafe {
        let layer = cache.add(thread::block_idx_z() as usize * layer_stride as usize);
        let source = layer.add(*pairs.add(pair) as usize * page_vectors as usize);
        let target = layer.add(*pairs.add(pair + 1) as usize * page_vectors as usize);
        copy_tile(source, target, page_vectors);
    }
}

/// Gathers whole pages into a staging buffer, `[count][layers][page]`, from which the host takes them.
///
/// # Safety
/// `blocks` are `count` blocks of the cache, the buffer is large enough, and the launch is of [`copy_shape`].
#[kernel(max_threads = 256)]
pub unsafe fn swap_blocks_out(
    cache: *const Vector,
    staging: *mut Vector,
    blocks: *const u32,
    page_vectors: u32,
    layer_stride: u64,
) {
    // SAFETY: the grid's x has a block for each of `blocks`; they are within the cache and the buffer has room for
    // them, by this kernel's contract.
    unsafe {
        let source = cache.add(cached(blocks, page_vectors, layer_stride));
        copy_tile(source, staging.add(staged(page_vectors)), page_vectors);
    }
}

/// Scatters pages from a staging buffer, `[count][layers][page]`, back into the cache.
///
/// # Safety
/// As for [`swap_blocks_out()`], and no block is there twice.
#[kernel(max_threads = 256)]
pub unsafe fn swap_blocks_in(
    cache: *mut Vector,
    staging: *const Vector,
    blocks: *const u32,
    page_vectors: u32,
    layer_stride: u64,
) {
    // SAFETY: the grid's x has a block for each of `blocks`; they are within the cache and distinct, by this kernel's
    // contract.
    unsafe {
        let target = cache.add(cached(blocks, page_vectors, layer_stride));
        copy_tile(staging.add(staged(page_vectors)), target, page_vectors);
    }
}

/// Where the page of this block of threads begins in the cache.
///
/// # Safety
/// `blocks` has an entry for each x of the grid.
#[inline(always)]
unsafe fn cached(blocks: *const u32, page_vectors: u32, layer_stride: u64) -> usize {
    // SAFETY: `blocks` has an entry for each x of the grid, by this function's contract.
    let block = unsafe { *blocks.add(thread::block_idx_x() as usize) };
    thread::block_idx_z() as usize * layer_stride as usize + block as usize * page_vectors as usize
}

/// Where the page of this block of threads begins in the staging buffer.
#[inline(always)]
fn staged(page_vectors: u32) -> usize {
    let page = thread::block_idx_x() as usize * thread::grid_dim_z() as usize + thread::block_idx_z() as usize;
    page * page_vectors as usize
}

/// Copies this block's tile of a page.
///
/// # Safety
/// Both pages have `count` vectors, and do not overlap.
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
            // The page's last tile, where it is not a whole one.
            let mut at = first;
            while at < count {
                store_streaming(target.add(at as usize), load_streaming(source.add(at as usize)));
                at += THREADS;
            }
        }
    }
}

/// Quotient and remainder. No kernel divides by zero, by its contract; without this promise the compiler would include
/// a panic.
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

    const PAGES: Pages = Pages { heads: 8, head_size: 128, block_size: 16, format: KvFormat::Plain };

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
            write_shape(Pages { heads: 1, head_size: 80, block_size: 16, format: KvFormat::Plain }, 9).grid,
            [2, 1, 1]
        );
        assert_eq!(copy_shape(PAGES.page_vectors(), 3, 32).grid, [3, 4, 32]);
        assert_eq!(copy_shape(320, 3, 2).grid, [3, 1, 2]);
    }
}
