//! Writing, copying and swapping pages.

use cuda_std::launch::KernelCall;
use cuda_std::vector::Vector;
use kernels::cache::{copy_blocks, copy_shape, reshape_and_cache, swap_blocks_in, swap_blocks_out, write_shape};
use kernels::layout::{KeyOrValue, KvFormat, Pages};

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::ProblemRng;

const BLOCK_SIZE: u32 = 16;

pub fn cases(scale: Scale) -> Vec<Case> {
    let pages =
        |heads, head_size| Pages { heads, head_size, block_size: BLOCK_SIZE, format: KvFormat::Plain, padding: 0 };
    match scale {
        Scale::Small => vec![
            write(pages(4, 64), 64, false),
            write(pages(4, 64), 24, true),
            copy(pages(4, 64), 3, 2),
            swap(pages(4, 64), 3, 2, Swap::Out),
            swap(pages(4, 64), 3, 2, Swap::In),
        ],
        // Layers of OPT-13B, with 64 MB or more of pages.
        Scale::Full => vec![
            write(pages(40, 128), 4096, false),
            write(pages(40, 128), 256, true),
            copy(pages(40, 128), 16, 40),
            swap(pages(40, 128), 16, 40, Swap::Out),
            swap(pages(40, 128), 16, 40, Swap::In),
        ],
    }
}

/// Returns random vectors: every bit of their words is random.
fn vectors(seed: u64, n: u64) -> Vec<Vector> {
    let mut random = ProblemRng(seed);
    let mut word = || random.word() as u32;
    (0..n).map(|_| Vector([word(), word(), word(), word()])).collect()
}

fn words(vectors: &[Vector]) -> Vec<[u32; 4]> {
    vectors.iter().map(|v| v.0).collect()
}

/// `reshape_and_cache` for a prompt, whose slots are contiguous, or for a decode step, whose slots are scattered.
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
            let call = reshape_and_cache {
                key: gpu.upload("key", &words(&keys))?.ptr(),
                value: gpu.upload("value", &words(&values))?.ptr(),
                cache: cache.mut_ptr(),
                slots: gpu.upload("slots", &slots)?.ptr(),
                tokens,
                key_stride: row,
                value_stride: row,
                heads: pages.heads,
                head_size: pages.head_size,
                block_size: pages.block_size,
            };
            for (t, &slot) in slots.iter().enumerate() {
                let (block, offset) = (slot as u32 / pages.block_size, slot as u32 % pages.block_size);
                for vector in 0..row {
                    let (head, chunk, from) = (vector / pages.chunks(), vector % pages.chunks(), t * row as usize);
                    truth[pages.vector(block, head, KeyOrValue::Key, chunk, offset)] = keys[from + vector as usize];
                    truth[pages.vector(block, head, KeyOrValue::Value, chunk, offset)] = values[from + vector as usize];
                }
            }
            Ok(Prepared {
                // SAFETY: the arrays have these shapes, and each slot is within the cache and occurs once.
                launch: Box::new(move |gpu| unsafe { gpu.launch(write_shape(pages, tokens), call) }),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(cache)?, &words(&truth)))),
            })
        }),
    }
}

/// `copy_blocks` from `count` blocks to as many others.
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
            // Sources are in reverse order, so the order of pages differs from the order of copies.
            let pairs: Vec<[u32; 2]> = (0..count).map(|i| [2 * count - 1 - i, i]).collect();
            for (at, [from, to]) in
                (0..u64::from(layers)).flat_map(|l| pairs.iter().map(move |pair| (l * layer, *pair)))
            {
                let [from, to] = [from, to].map(|block| (at + u64::from(block) * page) as usize);
                truth.copy_within(from..from + page as usize, to);
            }
            let call = copy_blocks {
                cache: cache.mut_ptr(),
                pairs: gpu.upload("pairs", &pairs)?.ptr(),
                page_vectors: pages.page_vectors(),
                layer_stride: layer,
            };
            Ok(Prepared {
                // SAFETY: each block is within the cache and in one pair.
                launch: Box::new(move |gpu| unsafe {
                    gpu.launch(copy_shape(pages.page_vectors(), count, layers), call)
                }),
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
            let blocks = gpu.upload("blocks", &blocks)?.ptr();
            let (shape, page_vectors, layer_stride) =
                (copy_shape(pages.page_vectors(), count, layers), pages.page_vectors(), layer);
            let call: KernelCall = match swap {
                Swap::Out => {
                    let (cache, staging) = (cache.ptr(), staging.mut_ptr());
                    swap_blocks_out { cache, staging, blocks, page_vectors, layer_stride }.into()
                }
                Swap::In => {
                    let (cache, staging) = (cache.mut_ptr(), staging.ptr());
                    swap_blocks_in { cache, staging, blocks, page_vectors, layer_stride }.into()
                }
            };
            Ok(Prepared {
                // SAFETY: each block is within the cache and occurs once, and the staging buffer has room for all.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape, call) }),
                error: Box::new(move |gpu| {
                    let right = exact(&gpu.download(cache)?, &words(&cached));
                    Ok(right.max(exact(&gpu.download(staging)?, &words(&staged))))
                }),
            })
        }),
    }
}
