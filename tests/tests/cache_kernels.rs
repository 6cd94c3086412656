//! The kernels of the paged cache, executed by the emulator from the PTX that is shipped, against plain host code.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, Device, LaunchOptions, Module, Report};
use kernels::cache::{THREADS, block_grid, write_grid};
use kernels::layout::{Pages, Part};

const TARGETS: [&str; 2] =
    [include_str!("../../kernels/prebuilt/sm_80.ptx"), include_str!("../../kernels/prebuilt/sm_90a.ptx")];

/// Element `i` of a buffer, told apart from every other.
fn pattern(seed: u32, i: usize) -> u16 {
    ((i as u32).wrapping_mul(0x9E37_79B9) ^ seed.wrapping_mul(0x85EB_CA6B)) as u16
}

fn elements(seed: u32, n: usize) -> Vec<u16> {
    (0..n).map(|i| pattern(seed, i)).collect()
}

fn bytes<T: bytemuck::NoUninit>(v: &[T]) -> &[u8] {
    bytemuck::cast_slice(v)
}

fn launch(device: &mut Device, ptx: &str, entry: &str, grid: (u32, u32, u32), args: &[Arg], seed: u64) -> Report {
    let module = Module::parse(ptx).unwrap();
    let options = LaunchOptions { seed, ..LaunchOptions::default() };
    let grid = [grid.0, grid.1, grid.2];
    device.launch_with(&options, &module, entry, grid, [THREADS, 1, 1], 0, args).unwrap_or_else(|f| panic!("{f}"))
}

fn read(device: &Device, at: u64, n: usize) -> Vec<u16> {
    device.read(at, 2 * n).unwrap().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

/// Writes tokens to `slots` of a cache of `blocks` blocks and compares all of it.
fn assert_cache_write(pages: Pages, blocks: u32, slots: &[i32], padding: u32, seed: u64) -> Vec<Report> {
    let row = (pages.heads * pages.head_size) as usize;
    // Rows of a fused QKV output: keys and values are parts of longer rows.
    let stride = row + padding as usize;
    let (key, value) = (elements(1, slots.len() * stride), elements(2, slots.len() * stride));
    let size = (blocks * pages.page_vectors() * 8) as usize;
    let mut want = elements(3, size);
    for (t, &slot) in slots.iter().enumerate().filter(|(_, s)| **s >= 0) {
        let (block, offset) = (slot as u32 / pages.block_size, slot as u32 % pages.block_size);
        for head in 0..pages.heads {
            for e in 0..pages.head_size {
                let from = t * stride + (head * pages.head_size + e) as usize;
                want[pages.element(block, head, Part::Key, e, offset)] = key[from];
                want[pages.element(block, head, Part::Value, e, offset)] = value[from];
            }
        }
    }
    let run = |ptx| {
        let mut device = Device::new();
        let cache = device.alloc_from("cache", bytes(&elements(3, size)));
        let args = [
            Arg::Ptr(device.alloc_from("key", bytes(&key))),
            Arg::Ptr(device.alloc_from("value", bytes(&value))),
            Arg::Ptr(cache),
            Arg::Ptr(device.alloc_from("slots", bytes(slots))),
            Arg::U32(slots.len() as u32),
            Arg::U32(stride as u32 / 8),
            Arg::U32(stride as u32 / 8),
            Arg::U32(pages.heads),
            Arg::U32(pages.head_size),
            Arg::U32(pages.block_size),
        ];
        let report = launch(&mut device, ptx, "reshape_and_cache", write_grid(pages, slots.len() as u32), &args, seed);
        assert!(read(&device, cache, size) == want, "{pages:?}, slots {slots:?}");
        report
    };
    TARGETS.map(run).into()
}

#[test]
fn any_token_goes_to_any_slot_and_padding_is_skipped() {
    for (heads, head_size, block_size, padding) in
        [(1, 32, 8, 0), (3, 64, 16, 64), (2, 80, 16, 8), (5, 96, 32, 0), (4, 128, 16, 0), (1, 256, 32, 24)]
    {
        let pages = Pages { heads, head_size, block_size };
        for (tokens, seed) in [(1, 0), (7, 1), (8, 2), (37, 3)] {
            let slots: Vec<i32> =
                (0..tokens).map(|t| if t % 5 == 3 { -1 } else { (t * 29 + 5) % (4 * block_size as i32) }).collect();
            let mut unique = slots.clone();
            unique.retain(|s| *s >= 0);
            unique.sort_unstable();
            unique.dedup();
            if unique.len() == slots.iter().filter(|s| **s >= 0).count() {
                assert_cache_write(pages, 4, &slots, padding, seed);
            }
        }
    }
}

#[test]
fn a_prompt_is_written_with_no_more_sectors_than_needed() {
    let pages = Pages { heads: 4, head_size: 128, block_size: 16 };
    let slots: Vec<i32> = (0..64).collect();
    for report in assert_cache_write(pages, 4, &slots, 0, 1) {
        assert!(report.total.sector_ratio() <= 1.05, "{}", report.total.sector_ratio());
    }
}

/// A cache of some layers with its shape.
struct Cache {
    pages: Pages,
    layers: u32,
    blocks: u32,
}

impl Cache {
    fn layer_vectors(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.pages.page_vectors())
    }

    fn page(&self) -> usize {
        self.pages.page_vectors() as usize * 8
    }

    fn size(&self) -> usize {
        self.layers as usize * self.blocks as usize * self.page()
    }

    fn at(&self, layer: u32, block: u32) -> std::ops::Range<usize> {
        let start = (layer * self.blocks + block) as usize * self.page();
        start..start + self.page()
    }
}

fn caches() -> [Cache; 3] {
    let cache = |heads, head_size, block_size, layers, blocks| Cache {
        pages: Pages { heads, head_size, block_size },
        layers,
        blocks,
    };
    [cache(2, 64, 16, 3, 7), cache(1, 80, 8, 1, 5), cache(3, 128, 32, 2, 6)]
}

#[test]
fn blocks_are_copied_in_all_layers() {
    for (c, seed) in caches().iter().zip(0..) {
        let pairs: [[u32; 2]; 3] = [[0, 3], [4, 1], [0, 2]];
        let mut want = elements(5, c.size());
        for [source, target] in pairs {
            (0..c.layers).for_each(|l| want.copy_within(c.at(l, source), c.at(l, target).start));
        }
        for ptx in TARGETS {
            let mut device = Device::new();
            let cache = device.alloc_from("cache", bytes(&elements(5, c.size())));
            let args = [
                Arg::Ptr(cache),
                Arg::Ptr(device.alloc_from("pairs", bytes(&pairs))),
                Arg::U32(c.pages.page_vectors()),
                Arg::U64(c.layer_vectors()),
            ];
            let grid = block_grid(c.pages, 3, c.layers);
            let report = launch(&mut device, ptx, "copy_blocks", grid, &args, seed);
            assert!(read(&device, cache, c.size()) == want, "{:?}", c.pages);
            assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
        }
    }
}

#[test]
fn blocks_are_swapped_out_and_in() {
    for (c, seed) in caches().iter().zip(0..) {
        let blocks: [u32; 3] = [4, 0, 2];
        let host = elements(6, c.size());
        let pages = blocks.iter().flat_map(|&b| (0..c.layers).map(move |l| (l, b)));
        let staged: Vec<u16> = pages.flat_map(|(l, b)| host[c.at(l, b)].to_vec()).collect();
        for ptx in TARGETS {
            let mut device = Device::new();
            let cache = device.alloc_from("cache", bytes(&host));
            let staging = device.alloc_from("staging", bytes(&vec![0u16; staged.len()]));
            let list = device.alloc_from("blocks", bytes(&blocks));
            let args = [
                Arg::Ptr(cache),
                Arg::Ptr(staging),
                Arg::Ptr(list),
                Arg::U32(c.pages.page_vectors()),
                Arg::U64(c.layer_vectors()),
            ];
            let grid = block_grid(c.pages, 3, c.layers);
            let out = launch(&mut device, ptx, "swap_blocks_out", grid, &args, seed);
            assert!(read(&device, staging, staged.len()) == staged, "{:?}", c.pages);
            device.write(cache, bytes(&vec![0u16; c.size()])).unwrap();
            let back = launch(&mut device, ptx, "swap_blocks_in", grid, &args, seed);
            let mut want = vec![0; c.size()];
            for (l, b) in (0..c.layers).flat_map(|l| blocks.map(|b| (l, b))) {
                want[c.at(l, b)].copy_from_slice(&host[c.at(l, b)]);
            }
            assert!(read(&device, cache, c.size()) == want, "{:?}", c.pages);
            for report in [out, back] {
                assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
            }
        }
    }
}

#[test]
fn every_shipped_kernel_is_executed_here() {
    let tested = ["reshape_and_cache", "copy_blocks", "swap_blocks_out", "swap_blocks_in"];
    assert_eq!(kernels::registry::shipped().map(|k| k.name).collect::<Vec<_>>(), tested);
}

#[test]
fn a_slot_outside_of_the_cache_is_a_fault_that_names_the_line() {
    let pages = Pages { heads: 1, head_size: 32, block_size: 8 };
    let mut device = Device::new();
    let rows = elements(1, 32);
    let args = [
        Arg::Ptr(device.alloc_from("key", bytes(&rows))),
        Arg::Ptr(device.alloc_from("value", bytes(&rows))),
        Arg::Ptr(device.alloc_from("cache", bytes(&elements(3, (pages.page_vectors() * 8) as usize)))),
        Arg::Ptr(device.alloc_from("slots", bytes(&[8i32]))),
        Arg::U32(1),
        Arg::U32(4),
        Arg::U32(4),
        Arg::U32(1),
        Arg::U32(32),
        Arg::U32(8),
    ];
    let module = Module::parse(TARGETS[0]).unwrap();
    let fault =
        device.launch(&module, "reshape_and_cache", [1, 1, 1], [THREADS, 1, 1], 0, &args).unwrap_err().to_string();
    assert!(fault.contains("reshape_and_cache") && fault.contains("cache.rs"), "{fault}");
}
