//! The kernels of the paged cache.

use emulator::CostReport;
use kernels::cache::{copy_blocks, copy_shape, reshape_and_cache, swap_blocks_in, swap_blocks_out, write_shape};
use kernels::layout::{KeyOrValue, KvFormat, Pages};

use crate::frame::gpu::{Gpu, TARGETS};

/// Returns elements that differ from each other and from those of other seeds.
fn elements(seed: u32, n: usize) -> Vec<u16> {
    (0..n as u32).map(|i| (i.wrapping_mul(0x9E37_79B9) ^ seed.wrapping_mul(0x85EB_CA6B)) as u16).collect()
}

/// Writes tokens to `slots` of a cache of four blocks, and compares the whole cache.
fn write_tokens(gpu: &mut Gpu, pages: Pages, slots: &[i32], padding: u32) -> CostReport {
    let row = pages.heads * pages.head_size;
    // Rows of a fused QKV output: keys and values are parts of longer rows.
    let stride = row + padding;
    let size = slots.len() * stride as usize;
    let (key, value, old) = (elements(1, size), elements(2, size), elements(3, 4 * page(pages)));
    let mut want = old.clone();
    for (t, &slot) in slots.iter().enumerate().filter(|(_, s)| **s >= 0) {
        let (block, offset) = (slot as u32 / pages.block_size, slot as u32 % pages.block_size);
        for head in 0..pages.heads {
            for e in 0..pages.head_size {
                let from = t * stride as usize + (head * pages.head_size + e) as usize;
                want[pages.element(block, head, KeyOrValue::Key, e, offset)] = key[from];
                want[pages.element(block, head, KeyOrValue::Value, e, offset)] = value[from];
            }
        }
    }
    let cache = gpu.upload("cache", &old);
    let call = reshape_and_cache {
        key: gpu.upload("key", &key).ptr(),
        value: gpu.upload("value", &value).ptr(),
        cache: cache.mut_ptr(),
        slots: gpu.upload("slots", slots).ptr(),
        tokens: slots.len() as u32,
        key_stride: stride / 8,
        value_stride: stride / 8,
        heads: pages.heads,
        head_size: pages.head_size,
        block_size: pages.block_size,
    };
    // SAFETY: the arrays have these shapes, and slots are within the cache and distinct.
    let report = unsafe { gpu.launch(write_shape(pages, slots.len() as u32), call) };
    assert!(gpu.download(cache) == want, "{pages:?}, slots {slots:?}");
    report
}

/// Elements in a page.
fn page(pages: Pages) -> usize {
    pages.page_vectors() as usize * 8
}

#[test]
fn any_token_goes_to_any_slot_and_padding_is_skipped() {
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (heads, head_size, block_size, padding) in
        [(1, 32, 8, 0), (3, 64, 16, 64), (2, 80, 16, 8), (5, 96, 32, 0), (4, 128, 16, 0), (1, 256, 32, 24)]
    {
        let pages = Pages { heads, head_size, block_size, format: KvFormat::Plain, padding: 0 };
        for (tokens, seed) in [(1, 0), (7, 1), (8, 2), (29, 3)] {
            // 29 has no divisor in common with the number of slots, so no two tokens share a slot.
            let slots: Vec<i32> =
                (0..tokens).map(|t| if t % 5 == 3 { -1 } else { (t * 29 + 5) % (4 * block_size as i32) }).collect();
            for gpu in &mut gpus {
                gpu.seed(seed);
                write_tokens(gpu, pages, &slots, padding);
            }
        }
    }
}

#[test]
fn a_prompt_is_written_with_no_more_sectors_than_needed() {
    let slots: Vec<i32> = (0..64).collect();
    for (target, _) in TARGETS {
        let pages = Pages { heads: 4, head_size: 128, block_size: 16, format: KvFormat::Plain, padding: 0 };
        let report = write_tokens(&mut Gpu::new(target), pages, &slots, 0);
        assert!(report.total.sector_ratio() <= 1.05, "{}", report.total.sector_ratio());
    }
}

/// A cache of several layers.
struct Cache {
    pages: Pages,
    layers: u32,
    blocks: u32,
}

impl Cache {
    fn layer_vectors(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.pages.page_vectors())
    }

    fn size(&self) -> usize {
        (self.layers * self.blocks) as usize * page(self.pages)
    }

    fn at(&self, layer: u32, block: u32) -> std::ops::Range<usize> {
        let start = (layer * self.blocks + block) as usize * page(self.pages);
        start..start + page(self.pages)
    }
}

fn caches() -> [Cache; 3] {
    let cache = |heads, head_size, block_size, layers, blocks| Cache {
        pages: Pages { heads, head_size, block_size, format: KvFormat::Plain, padding: 0 },
        layers,
        blocks,
    };
    [cache(2, 64, 16, 3, 7), cache(1, 80, 8, 1, 5), cache(3, 128, 32, 2, 6)]
}

/// Copies blocks within a cache, then swaps some out and in again, and compares everything.
fn copy_and_swap(gpu: &mut Gpu, c: &Cache) -> [CostReport; 3] {
    let shape = copy_shape(c.pages.page_vectors(), 3, c.layers);
    let (page_vectors, layer_stride) = (c.pages.page_vectors(), c.layer_vectors());
    let mut host = elements(5, c.size());
    let cache = gpu.upload("cache", &host);
    let pairs: [[u32; 2]; 3] = [[0, 3], [4, 1], [0, 2]];
    let list = gpu.upload("pairs", &pairs);
    let call = copy_blocks { cache: cache.mut_ptr(), pairs: list.ptr(), page_vectors, layer_stride };
    // SAFETY: the pairs are of blocks of the cache, and no block is in two of them.
    let copied = unsafe { gpu.launch(shape, call) };
    for [source, target] in pairs {
        (0..c.layers).for_each(|l| host.copy_within(c.at(l, source), c.at(l, target).start));
    }
    assert!(gpu.download(cache) == host, "{:?}", c.pages);

    let blocks: [u32; 3] = [4, 0, 2];
    let pages = || blocks.iter().flat_map(|&b| (0..c.layers).map(move |l| c.at(l, b)));
    let staged: Vec<u16> = pages().flat_map(|at| host[at].to_vec()).collect();
    let staging = gpu.alloc::<u16>("staging", staged.len());
    let blocks = gpu.upload("blocks", &blocks).ptr();
    let (from, to) = (cache.ptr(), staging.mut_ptr());
    let call = swap_blocks_out { cache: from, staging: to, blocks, page_vectors, layer_stride };
    // SAFETY: the blocks are in the cache, and the staging buffer has room for them.
    let out = unsafe { gpu.launch(shape, call) };
    assert!(gpu.download(staging) == staged, "{:?}", c.pages);

    gpu.write(cache, &vec![0u16; c.size()]);
    let (to, from) = (cache.mut_ptr(), staging.ptr());
    let call = swap_blocks_in { cache: to, staging: from, blocks, page_vectors, layer_stride };
    // SAFETY: the blocks are in the cache and distinct, and the staging buffer holds as many.
    let back = unsafe { gpu.launch(shape, call) };
    let mut want = vec![0; c.size()];
    pages().for_each(|at| want[at.clone()].copy_from_slice(&host[at]));
    assert!(gpu.download(cache) == want, "{:?}", c.pages);
    [copied, out, back]
}

#[test]
fn blocks_are_copied_and_swapped_in_all_layers() {
    for (c, seed) in caches().iter().zip(0..) {
        for (target, _) in TARGETS {
            let mut gpu = Gpu::new(target);
            gpu.seed(seed);
            for report in copy_and_swap(&mut gpu, c) {
                assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
            }
        }
    }
}

#[test]
fn a_slot_outside_of_the_cache_is_a_fault_that_names_the_line() {
    let pages = Pages { heads: 1, head_size: 32, block_size: 8, format: KvFormat::Plain, padding: 0 };
    let mut gpu = Gpu::new("sm_80");
    let rows = elements(1, 32);
    let cache = elements(3, page(pages));
    let call = reshape_and_cache {
        key: gpu.upload("key", &rows).ptr(),
        value: gpu.upload("value", &rows).ptr(),
        cache: gpu.upload("cache", &cache).mut_ptr(),
        slots: gpu.upload("slots", &[8i32]).ptr(),
        tokens: 1,
        key_stride: 4,
        value_stride: 4,
        heads: pages.heads,
        head_size: pages.head_size,
        block_size: pages.block_size,
    };
    // SAFETY: the slot is past the cache's end on purpose, and the write is within the device's memory.
    let fault = unsafe { gpu.try_launch(write_shape(pages, 1), call) }.unwrap_err().to_string();
    assert!(fault.contains("reshape_and_cache") && fault.contains("cache.rs"), "{fault}");
}
