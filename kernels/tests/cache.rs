//! The kernels of the paged cache on the device under test.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use cuda_std::launch::Entry;
use frame::gpu::{Gpu, TARGETS};
use kernels::cache::{THREADS, block_grid, copy_blocks};
use kernels::layout::{Pages, Vector};

#[test]
fn blocks_are_copied() {
    let pages = Pages { heads: 2, head_size: 64, block_size: 16 };
    let page = pages.page_vectors() as usize;
    for (target, _) in TARGETS {
        let mut gpu = Gpu::new(target);
        let vectors: Vec<[u32; 4]> = (0..3 * page as u32).map(|i| [i, !i, i, i]).collect();
        let (cache, pairs) = (gpu.upload("cache", &vectors), gpu.upload("pairs", &[[0u32, 2]]));
        let args = (cache.mut_ptr::<Vector>(), pairs.ptr(), pages.page_vectors(), 3 * u64::from(pages.page_vectors()));
        gpu.launch(Entry::of::<copy_blocks>(), block_grid(pages, 1, 1), THREADS, 0, args);
        let after = gpu.download(cache);
        assert_eq!(after[2 * page..], vectors[..page]);
        assert_eq!(after[..2 * page], vectors[..2 * page]);
    }
}
