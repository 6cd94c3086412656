//! Writing, copying and swapping pages.

use cuda_std::launch::Entry;
use kernels::cache::{
    THREADS, block_grid, copy_blocks, reshape_and_cache, swap_blocks_in, swap_blocks_out, write_grid,
};
use kernels::layout::{Pages, Part, Vector};

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::Random;

const BLOCK_SIZE: u32 = 16;

pub fn cases(scale: Scale) -> Vec<Case> {
    let pages = |heads, head_size| Pages { heads, head_size, block_size: BLOCK_SIZE };
    match scale {
        Scale::Small => vec![
            write(pages(4, 64), 64, false),
            write(pages(4, 64), 24, true),
            copy(pages(4, 64), 3, 2),
            swap(pages(4, 64), 3, 2, Swap::Out),
            swap(pages(4, 64), 3, 2, Swap::In),
        ],
        // The layers of OPT-13B, and 64 MB and more of pages.
        Scale::Full => vec![
            write(pages(40, 128), 4096, false),
            write(pages(40, 128), 256, true),
            copy(pages(40, 128), 16, 40),
            swap(pages(40, 128), 16, 40, Swap::Out),
            swap(pages(40, 128), 16, 40, Swap::In),
        ],
    }
}

/// Random elements, four to a vector's word each.
fn vectors(seed: u64, n: u64) -> Vec<Vector> {
    let mut random = Random(seed);
    let mut word = || random.word() as u32;
    (0..n).map(|_| Vector([word(), word(), word(), word()])).collect()
}

fn words(vectors: &[Vector]) -> Vec<[u32; 4]> {
    vectors.iter().map(|v| v.0).collect()
}

/// `reshape_and_cache` of a prompt, whose slots are neighbours, or of a step of decoding, whose slots lie anywhere.
fn write(pages: Pages, tokens: u32, decode: bool) -> Case {
    let row = pages.token_vectors();
    let bytes = 2 * 2 * 16 * u64::from(tokens) * u64::from(row) + 4 * u64::from(tokens);
    let kind = if decode { "decode" } else { "prompt" };
    Case {
        kernel: "reshape_and_cache",
        shape: format!("{} heads of {}, {tokens} tokens, {kind}", pages.heads, pages.head_size),
        floor: Floor { bytes, flops: 0 },
        prepare: Box::new(move |gpu| {
            let per_token = if decode { pages.block_size } else { 1 };
            let blocks = (tokens * per_token).div_ceil(pages.block_size);
            let slots: Vec<i32> =
                (0..tokens).map(|t| (t * per_token + if decode { t % per_token } else { 0 }) as i32).collect();
            let rows = u64::from(tokens) * u64::from(row);
            let (keys, values) = (vectors(1, rows), vectors(2, rows));
            let mut truth = vectors(3, u64::from(blocks) * u64::from(pages.page_vectors()));
            let cache = gpu.upload("cache", &words(&truth))?;
            let key = gpu.upload("key", &words(&keys))?.ptr::<Vector>();
            let value = gpu.upload("value", &words(&values))?.ptr::<Vector>();
            let (cached, list) = (cache.mut_ptr::<Vector>(), gpu.upload("slots", &slots)?.ptr::<i32>());
            for (t, &slot) in slots.iter().enumerate() {
                let (block, offset) = (slot as u32 / pages.block_size, slot as u32 % pages.block_size);
                for vector in 0..row {
                    let (head, chunk, from) = (vector / pages.chunks(), vector % pages.chunks(), t * row as usize);
                    truth[pages.vector(block, head, Part::Key, chunk, offset)] = keys[from + vector as usize];
                    truth[pages.vector(block, head, Part::Value, chunk, offset)] = values[from + vector as usize];
                }
            }
            let args = (key, value, cached, list, tokens, row, row, pages.heads, pages.head_size, pages.block_size);
            Ok(Prepared {
                launch: Box::new(move |gpu| {
                    gpu.launch(Entry::of::<reshape_and_cache>(), write_grid(pages, tokens), THREADS, 0, args)
                }),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(cache)?, &words(&truth)))),
            })
        }),
    }
}

/// `copy_blocks` of `count` blocks to as many others.
fn copy(pages: Pages, count: u32, layers: u32) -> Case {
    let page = u64::from(pages.page_vectors());
    Case {
        kernel: "copy_blocks",
        shape: format!("{count} pages of {} KiB, {layers} layers", page * 16 / 1024),
        floor: Floor { bytes: 2 * 16 * page * u64::from(count) * u64::from(layers), flops: 0 },
        prepare: Box::new(move |gpu| {
            let layer = 2 * u64::from(count) * page;
            let mut truth = vectors(1, layer * u64::from(layers));
            let cache = gpu.upload("cache", &words(&truth))?;
            // Sources from the end, so that pages don't lie in the order of their copies.
            let pairs: Vec<[u32; 2]> = (0..count).map(|i| [2 * count - 1 - i, i]).collect();
            for (at, [from, to]) in
                (0..u64::from(layers)).flat_map(|l| pairs.iter().map(move |pair| (l * layer, *pair)))
            {
                let [from, to] = [from, to].map(|block| (at + u64::from(block) * page) as usize);
                truth.copy_within(from..from + page as usize, to);
            }
            let args = (cache.mut_ptr(), gpu.upload("pairs", &pairs)?.ptr(), pages.page_vectors(), layer);
            let grid = block_grid(pages, count, layers);
            Ok(Prepared {
                launch: Box::new(move |gpu| gpu.launch(Entry::of::<copy_blocks>(), grid, THREADS, 0, args)),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(cache)?, &words(&truth)))),
            })
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Swap {
    Out,
    In,
}

/// `swap_blocks_out` or `swap_blocks_in` of `count` blocks.
fn swap(pages: Pages, count: u32, layers: u32, swap: Swap) -> Case {
    let page = u64::from(pages.page_vectors());
    Case {
        kernel: if swap == Swap::Out { "swap_blocks_out" } else { "swap_blocks_in" },
        shape: format!("{count} pages of {} KiB, {layers} layers", page * 16 / 1024),
        floor: Floor { bytes: 2 * 16 * page * u64::from(count) * u64::from(layers), flops: 0 },
        prepare: Box::new(move |gpu| {
            let layer = 2 * u64::from(count) * page;
            let (mut cached, mut staged) =
                (vectors(1, layer * u64::from(layers)), vectors(2, u64::from(count) * u64::from(layers) * page));
            let cache = gpu.upload("cache", &words(&cached))?;
            let staging = gpu.upload("staging", &words(&staged))?;
            // Every other block, from the end.
            let blocks: Vec<u32> = (0..count).map(|i| 2 * (count - 1 - i)).collect();
            for (at, (l, &block)) in blocks.iter().flat_map(|b| (0..u64::from(layers)).map(move |l| (l, b))).enumerate()
            {
                let page = page as usize;
                let (outer, inner) = ((l * layer) as usize + block as usize * page, at * page);
                let (outer, inner) = (&mut cached[outer..outer + page], &mut staged[inner..inner + page]);
                if swap == Swap::Out { inner.copy_from_slice(outer) } else { outer.copy_from_slice(inner) }
            }
            let list = gpu.upload("blocks", &blocks)?.ptr::<u32>();
            let (grid, vectors) = (block_grid(pages, count, layers), pages.page_vectors());
            Ok(Prepared {
                launch: Box::new(move |gpu| match swap {
                    Swap::Out => {
                        let args = (cache.ptr(), staging.mut_ptr(), list, vectors, layer);
                        gpu.launch(Entry::of::<swap_blocks_out>(), grid, THREADS, 0, args)
                    }
                    Swap::In => {
                        let args = (cache.mut_ptr(), staging.ptr(), list, vectors, layer);
                        gpu.launch(Entry::of::<swap_blocks_in>(), grid, THREADS, 0, args)
                    }
                }),
                error: Box::new(move |gpu| {
                    let right = exact(&gpu.download(cache)?, &words(&cached));
                    Ok(right.max(exact(&gpu.download(staging)?, &words(&staged))))
                }),
            })
        }),
    }
}
