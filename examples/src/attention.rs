//! Lesson 5: attention in decode as a ladder, from contiguous keys to this engine's own kernel.
//!
//! In decode each sequence has one new token. Attention compares its *query* with the *keys* of all tokens before it,
//! one dot product each. Softmax turns these into weights, and the result is the weighted sum of the tokens' *values*.
//! A model has several heads that do this in parallel. Here four query heads share one head of keys and values, as in
//! most models today.
//!
//! 1. *Contiguous.* The keys of a sequence are contiguous in memory. One warp handles one head of one sequence and
//!    loops over the tokens with the online softmax of lesson 3. A server that stores keys this way must reserve memory
//!    for the longest sequence that may arrive.
//! 2. *Paged.* Keys are stored in blocks of 16 tokens anywhere in memory, and a *block table* lists the blocks of a
//!    sequence in order. The loop is the same, with one more load and a division. This is PagedAttention, and all that
//!    paging costs a kernel.
//! 3. *v1*, the first kernel of the paper's authors (vLLM). A block of four warps handles one head of one sequence.
//!    Groups of threads compute dot products of whole tokens at once, which takes fewer shuffles. The weights are kept
//!    in shared memory.
//! 4. *v2* splits long sequences into parts of 512 tokens for different blocks, and a second kernel combines the parts.
//!    It costs a little more, but keeps a GPU busy that has only a few long sequences to work on.
//! 5. *This engine's.* A plan divides all tokens into equal shares for as many blocks as the GPU can run at once.
//!    Tensor cores compute all query heads of a key/value head together, and copies run ahead of them. Each key is read
//!    once instead of once for each query head.
//!
//! Rungs 3 to 5 run the PTX of the crate `kernels`. The first two kernels are below.
//!
//! Run it: `cargo run --example attention`
//!
//! Look at: the instructions of rung 2, an eighth more than those of rung 1, and its additional bytes, since every lane
//! reads the block table. Rung 3 needs less than half the instructions of rung 2. Compare the sectors as well: rungs 1
//! to 4 read keys and values once for each of the four query heads, and rung 5 reads them once for all. Tensor cores
//! reduce the instructions to a quarter.
//!
//! Try next: one sequence of 2000 tokens. How many blocks work on it in each rung? (`first_rungs` sets the grid of the
//! first two, and `kernels/src/attention` that of the others.)

use cuda_std::half::{F16x2, Half2};
use cuda_std::{float::GpuFloat, prelude::*};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{DevicePtr, LaunchShape},
    cuda_std::vector::Vector,
    emulator::CostReport,
    examples::{Lesson, LessonFailed, Result, teach},
    kernels::attention::decode::{DecodeLaunch, PLAN_THREADS, paged_attention, plan_paged_attention, plan_vectors},
    kernels::layout::{KeyOrValue, KvFormat},
    workbench::number::Type,
    workbench::paged::{PagedProblem, PagedShape},
    workbench::{Buffer, Gpu, paper},
};

/// Elements per head: two for each lane.
#[cfg(not(target_arch = "nvptx64"))]
const HEAD_SIZE: u32 = 64;
/// Tokens per block.
const BLOCK_SIZE: u32 = 16;
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Computes attention over `length` tokens with the online softmax, for both kernels of this file. `row` returns the
/// offset of a token's keys and values, in pairs of elements.
///
/// # Safety
/// All lanes of the warp call this together, with the same `length`. `query` and `output` are this warp's 32 pairs.
/// `keys` and `values` have 32 pairs at every offset that `row` returns.
/// pairs of `keys` and `values` are at each row.
#[inline(always)]
unsafe fn attend(
    output: *mut u32,
    query: *const u32,
    (keys, values): (*const u32, *const u32),
    (length, scale): (u32, f32),
    row: impl Fn(u32) -> usize,
) {
    let lane = warp::lane_id() as usize;
    // SAFETY: required of the caller.
    unsafe {
        let pair = |from: *const u32| F16x2(*from.add(lane)).to_f32();
        let query = pair(query);
        let (mut most, mut sum, mut mean) = (f32::MIN, 0.0, [0.0; 2]);
        for token in 0..length {
            let row = row(token);
            let (key, value) = (pair(keys.add(row)), pair(values.add(row)));
            let score = warp::warp_sum(query[0] * key[0] + query[1] * key[1]) * scale * LOG2_E;
            let greater = most.max(score);
            let (keep, weight) = ((most - greater).exp2_fast(), (score - greater).exp2_fast());
            sum = sum * keep + weight;
            mean = [mean[0] * keep + weight * value[0], mean[1] * keep + weight * value[1]];
            most = greater;
        }
        let by = sum.rcp_fast();
        *output.add(lane) = F16x2::from_f32([mean[0] * by, mean[1] * by]).to_bits();
    }
}

/// Attention over contiguous keys and values.
///
/// # Safety
/// A block is one warp, and the grid is `[heads, sequences]`. `query` and `output` are `[sequence][head][32]` pairs of
/// `f16`. `keys` and `values` are `[token][kv_head][32]`. Sequence `s` has `lengths[s]` tokens, the first of which is
/// token `starts[s]`.
#[kernel(max_threads = 32)]
pub unsafe fn attend_contiguous(
    output: *mut u32,
    query: *const u32,
    keys: *const u32,
    values: *const u32,
    starts: *const u32,
    lengths: *const u32,
    kv_heads: u32,
    scale: f32,
) {
    let (head, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    let (own, kv_head) = ((sequence * heads + head) as usize * 32, head * kv_heads / heads);
    // SAFETY: sequence and head are within the grid, and tokens are below the sequence's length.
    unsafe {
        let (start, length) = (*starts.add(sequence as usize), *lengths.add(sequence as usize));
        let row = |token| ((start + token) * kv_heads + kv_head) as usize * 32;
        attend(output.add(own), query.add(own), (keys, values), (length, scale), row);
    }
}

/// Attention over keys and values in blocks (paged).
///
/// # Safety
/// As for [`attend_contiguous`], but `keys` and `values` are `[block][16][kv_head][32]`. The block table of sequence
/// `s` starts at `tables[starts[s]]`.
#[kernel(max_threads = 32)]
pub unsafe fn attend_paged(
    output: *mut u32,
    query: *const u32,
    keys: *const u32,
    values: *const u32,
    tables: *const u32,
    starts: *const u32,
    lengths: *const u32,
    kv_heads: u32,
    scale: f32,
) {
    let (head, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    let (own, kv_head) = ((sequence * heads + head) as usize * 32, head * kv_heads / heads);
    // SAFETY: sequence and head are within the grid, tokens are below the sequence's length, and its table covers them.
    unsafe {
        let (table, length) = (tables.add(*starts.add(sequence as usize) as usize), *lengths.add(sequence as usize));
        let row = |token: u32| {
            let block = *table.add((token / BLOCK_SIZE) as usize);
            ((block * BLOCK_SIZE + token % BLOCK_SIZE) * kv_heads + kv_head) as usize * 32
        };
        attend(output.add(own), query.add(own), (keys, values), (length, scale), row);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(|lesson| run(lesson).map(|_| ()))
}

/// The PTX of the crate `kernels`, which contains rungs 3 to 5.
#[cfg(not(target_arch = "nvptx64"))]
const ENGINE_PTX: &str = include_str!("../../kernels/prebuilt/sm_80.ptx");

/// Runs the lesson and returns the cost of each rung.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<Vec<CostReport>> {
    let (head_size, block_size, format) = (HEAD_SIZE, BLOCK_SIZE, KvFormat::Plain);
    let shape = PagedShape { ty: Type::F16, heads: 8, kv_heads: 2, head_size, block_size, window: 0, format };
    let problem = PagedProblem::decode(shape, &[700, 300, 90], 0, 1);
    let mut reports = first_rungs(lesson, &problem)?;
    lesson.load(ENGINE_PTX)?;
    for (title, version) in ["3. v1", "4. v2, both kernels"].into_iter().zip(paper::versions(&problem, 700)) {
        let attention = paper::PlacedAttention::upload(&mut lesson.gpu, &problem, version)?;
        reports.push(lesson.measure(title, |gpu| attention.launch(gpu))?);
        check(&lesson.gpu, attention.output, &problem)?;
    }
    let (output, launch) = engine_rung(&mut lesson.gpu, &problem)?;
    reports.push(lesson.measure("5. this engine's, with its plan", launch)?);
    check(&lesson.gpu, output, &problem)?;
    lesson.say(
        "attention of 8 heads over 700, 300 and 90 tokens: all five results equal the host's within f16 precision",
    );
    Ok(reports)
}

/// Returns an error if `output` differs from the host's result by more than the type's tolerance.
#[cfg(not(target_arch = "nvptx64"))]
fn check(gpu: &Gpu, output: Buffer<u16>, problem: &PagedProblem) -> Result<()> {
    let off = problem.error(&gpu.download(output)?);
    if off > problem.shape.ty.tolerance() { Err(format!("a result is off by {off:e}").into()) } else { Ok(()) }
}

/// Runs the lesson's own kernels, rungs 1 and 2.
#[cfg(not(target_arch = "nvptx64"))]
fn first_rungs(lesson: &mut Lesson, problem: &PagedProblem) -> Result<Vec<CostReport>> {
    let PagedShape { heads, kv_heads, .. } = problem.shape;
    let (pages, cache) = (problem.shape.pages(), problem.pages());
    // One token's keys or values from a block, in the order of these kernels: all heads, one after the other.
    let token = |block: u32, offset: u32, part: KeyOrValue| -> Vec<u16> {
        let at = |i: u32| pages.element(block, i / HEAD_SIZE, part, i % HEAD_SIZE, offset);
        (0..kv_heads * HEAD_SIZE).map(|i| cache[at(i)]).collect()
    };
    let paged = |part| -> Vec<u16> {
        (0..problem.blocks * BLOCK_SIZE).flat_map(|slot| token(slot / BLOCK_SIZE, slot % BLOCK_SIZE, part)).collect()
    };
    let contiguous = |part| -> Vec<u16> {
        let mut all = Vec::new();
        for (table, length) in problem.tables.iter().zip(problem.contexts()) {
            all.extend((0..length).flat_map(|t| token(table[(t / BLOCK_SIZE) as usize], t % BLOCK_SIZE, part)));
        }
        all
    };
    let shape = LaunchShape::new([heads, problem.spans.len() as u32, 1], 32);
    let contexts = problem.contexts();
    let first: Vec<u32> = contexts.iter().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
    let (tables, table_starts) = problem.flat_tables();
    let gpu = &mut lesson.gpu;
    let query = gpu.upload("query", &problem.query)?.ptr();
    let lengths = gpu.upload("lengths", &contexts)?.ptr();
    let starts = gpu.upload("starts", &first)?.ptr();
    let keys = gpu.upload("keys", &contiguous(KeyOrValue::Key))?.ptr();
    let values = gpu.upload("values", &contiguous(KeyOrValue::Value))?.ptr();
    let scale = problem.shape.scale();
    let result = gpu.alloc("output", problem.query.len())?;
    let output = result.mut_ptr();
    let call = attend_contiguous { output, query, keys, values, starts, lengths, kv_heads, scale };
    // SAFETY: blocks are warps, the grid is heads by sequences, and all arrays have the layout that the kernel
    // requires.
    let mut reports = vec![unsafe { lesson.launch("1. contiguous", shape, call) }?];
    check(&lesson.gpu, result, problem)?;

    let gpu = &mut lesson.gpu;
    let keys = gpu.upload("keys in blocks", &paged(KeyOrValue::Key))?.ptr();
    let values = gpu.upload("values in blocks", &paged(KeyOrValue::Value))?.ptr();
    let (tables, starts) = (gpu.upload("tables", &tables)?.ptr(), gpu.upload("starts", &table_starts)?.ptr());
    let result = gpu.alloc("output", problem.query.len())?;
    let output = result.mut_ptr();
    let call = attend_paged { output, query, keys, values, tables, starts, lengths, kv_heads, scale };
    // SAFETY: as above, and the tables contain only blocks of the cache.
    reports.push(unsafe { lesson.launch("2. paged", shape, call) }?);
    check(&lesson.gpu, result, problem)?;
    Ok(reports)
}

/// A function that launches kernels.
#[cfg(not(target_arch = "nvptx64"))]
type Launches = Box<dyn FnOnce(&mut Gpu) -> launch::Result<()>>;

/// Prepares this engine's kernels for the problem. Returns their output buffer and a function that launches them.
#[cfg(not(target_arch = "nvptx64"))]
fn engine_rung(gpu: &mut Gpu, problem: &PagedProblem) -> Result<(Buffer<u16>, Launches)> {
    let (shape, slots, sequences) = (paper::shape(problem), 8, problem.spans.len() as u32);
    let decode = DecodeLaunch::new(shape, slots);
    let (tables, starts) = problem.flat_tables();
    let output = gpu.alloc("output", problem.query.len())?;
    let plan = gpu.alloc::<Vector>("plan", plan_vectors(slots, sequences) as usize)?;
    let lengths = gpu.upload("lengths", &problem.contexts())?.ptr();
    let query_starts = gpu.upload("query starts", &(0..=sequences).collect::<Vec<u32>>())?.ptr();
    let cut = plan_paged_attention {
        lengths,
        query_starts,
        plan: plan.mut_ptr(),
        sequences,
        window: 0,
        streams: decode.streams(),
        slots,
    };
    let args = paged_attention {
        output: output.mut_ptr(),
        query: gpu.upload("query", &problem.query)?.ptr(),
        cache: gpu.upload("cache", &problem.pages())?.ptr(),
        tables: gpu.upload("tables", &tables)?.ptr(),
        table_starts: gpu.upload("table starts", &starts)?.ptr(),
        query_starts,
        plan: plan.ptr(),
        partials: gpu.alloc::<Vector>("partials", decode.partial_vectors() as usize)?.mut_ptr(),
        arrivals: gpu.upload("arrivals", &vec![0u32; decode.arrivals() as usize])?.mut_ptr(),
        sinks: DevicePtr::NULL,
        query_stride: problem.shape.heads * problem.shape.head_size,
        kv_heads: problem.shape.kv_heads,
        group: problem.shape.heads / problem.shape.kv_heads,
        block_size: BLOCK_SIZE,
        padding: 0,
        rows: decode.rows(),
        window: 0,
        scale: problem.shape.scale(),
    };
    let call = decode.call(problem.shape.ty.element(), args);
    let launches = move |gpu: &mut Gpu| {
        // SAFETY: every sequence has a length, and plan and workspace have the sizes that the kernels require.
        unsafe {
            gpu.launch(LaunchShape::linear(1, PLAN_THREADS), cut)?;
            gpu.launch(decode.shape(), call)
        }
    };
    Ok((output, Box::new(launches)))
}
