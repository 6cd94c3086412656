//! Lesson 6: a minimal engine. A batch, block tables, one attention kernel, and text.
//!
//! This lesson generates text with Quire's built-in model, a small OPT that tells stories. It has all the parts that
//! make an engine, in their simplest form:
//!
//! - The keys and values of all sequences are stored in one array of *blocks* of four tokens, a *paged KV cache*. A
//!   sequence has a *table* of its blocks. When its last block is full, it takes another from the list of free blocks.
//!   A finished sequence returns its blocks.
//! - Every step puts together a new *batch* of at most two sequences, each with its next token. When a request ends, a
//!   waiting one takes its slot, even while the other request is still running.
//! - A prompt goes through the same steps as generated text, one token each. Only the model's guess after the last
//!   prompt token is used. (Quire processes a whole prompt at once, which is faster; see
//!   `kernels/src/attention/prefill`.)
//! - Sampling is greedy: the host picks the most likely token.
//!
//! Each kernel does one thing for all rows of the batch: `embed`, `normalize`, `linear` (weights times rows), `keep`
//! (stores new keys and values in the cache), `attend_blocks`. Weights are `f16`, and everything else is `f32`.
//!
//! Run it: `cargo run --example minimal_engine`
//!
//! Look at: the tables in the printed steps, and how the third request gets the blocks of the first. Then compare the
//! bytes that a step requests with one row and with two. Both rows use the same weights, but the weights are loaded
//! again for each row. The number of distinct sectors hardly changes. A better `linear` could load the weights once,
//! which is why batches pay off.
//!
//! Try next: let a warp of `linear` load its weights once for all rows of the batch, and count again.

use cuda_std::half::{F16x2, Half2};
use cuda_std::{float::GpuFloat, prelude::*, vector::HalfVector, warp::WARP_SIZE};
#[cfg(not(target_arch = "nvptx64"))]
use {
    engine::{ModelFiles, tools::tokenizer::Tokenizer},
    examples::{Lesson, LessonFailed, Result, teach},
    story_model::{BATCH, BLOCKS, StoryModel, StoryStep},
};

/// The model: its weights, and the kernel launches of a step.
#[cfg(not(target_arch = "nvptx64"))]
#[path = "story_model.rs"]
mod story_model;

/// Elements of a token's vector, and of a head, in the bundled model. The hidden layer of the MLP is four times as
/// wide.
const HIDDEN: u32 = 192;
const HEAD: u32 = 64;
/// Tokens per block.
const BLOCK: u32 = 4;
/// The row of position 0 in OPT's table of positions.
const FIRST_POSITION: u32 = 2;

/// Writes one row per token: the sum of its vector and its position's vector.
///
/// # Safety
/// A block has 192 threads, one for each element, and the grid has a block for each row. Tokens and positions are
/// within their tables.
#[kernel(max_threads = 192)]
pub unsafe fn embed(x: *mut f32, tokens: *const u32, positions: *const u32, table: *const u16, places: *const u16) {
    let (row, i) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: the tables have these rows.
    unsafe {
        let at = |table: *const u16, row: u32| F16x2(u32::from(*table.add((row * HIDDEN + i) as usize))).to_f32()[0];
        let token = at(table, *tokens.add(row as usize));
        let place = at(places, *positions.add(row as usize) + FIRST_POSITION);
        *x.add((row * HIDDEN + i) as usize) = token + place;
    }
}

/// Layer normalisation. Each block is one warp and normalises one row.
///
/// # Safety
/// A block is one warp, and the grid has one block for each row. `scale` and `bias` are 192 `f16` each.
#[kernel(max_threads = 32)]
pub unsafe fn normalize(to: *mut f32, x: *const f32, scale: *const u16, bias: *const u16) {
    let (start, lane) = ((thread::block_idx_x() * HIDDEN) as usize, warp::lane_id());
    // SAFETY: all accesses are within this warp's row. All lanes make the same number of rounds and reduce together.
    unsafe {
        let (mut sum, mut i) = (0.0, lane);
        while i < HIDDEN {
            sum += *x.add(start + i as usize);
            i += WARP_SIZE;
        }
        let mean = warp::warp_sum(sum) / HIDDEN as f32;
        let (mut squares, mut i) = (0.0, lane);
        while i < HIDDEN {
            let off = *x.add(start + i as usize) - mean;
            squares += off * off;
            i += WARP_SIZE;
        }
        let variance = warp::warp_sum(squares) / HIDDEN as f32;
        let by = (variance + 1e-5).rsqrt_fast();
        let wide = |from: *const u16, i: u32| F16x2(u32::from(*from.add(i as usize))).to_f32()[0];
        let mut i = lane;
        while i < HIDDEN {
            *to.add(start + i as usize) = (*x.add(start + i as usize) - mean) * by * wide(scale, i) + wide(bias, i);
            i += WARP_SIZE;
        }
    }
}

/// Computes one output per warp: a row of weights times a row of the batch, plus the bias. `mode` selects what happens
/// to the result: 0 stores it, 1 stores it if it is positive and zero otherwise (ReLU), and 2 adds it to the previous
/// contents.
///
/// # Safety
/// Blocks have four warps, and the grid is `[outputs / 4, rows]`. `weights` is `[outputs][inputs / 2]` pairs. `bias` is
/// null or has `outputs` elements. `x` is `[rows][inputs]`, and `y` is `[rows][outputs]`. `inputs` is a multiple of 64,
/// and `x` is aligned to eight bytes.
#[kernel(max_threads = 128)]
pub unsafe fn linear(y: *mut f32, x: *const f32, weights: *const u32, bias: *const u16, inputs: u32, mode: u32) {
    let output = thread::index_1d() / WARP_SIZE;
    let (row, outputs) = (thread::block_idx_y(), thread::grid_dim_x() * 4);
    // SAFETY: output and row are within the grid, and pairs are below half of `inputs`. All lanes make the same rounds.
    unsafe {
        let (x, weights) = (x.add((row * inputs) as usize), weights.add((output * inputs / 2) as usize));
        let mut sum = 0.0;
        let mut pair = warp::lane_id();
        while pair < inputs / 2 {
            // Loads two elements of the row at once, eight bytes.
            let [x0, x1] = (*x.add(2 * pair as usize).cast::<HalfVector>()).to_f32();
            let [w0, w1] = F16x2(*weights.add(pair as usize)).to_f32();
            sum += w0 * x0 + w1 * x1;
            pair += WARP_SIZE;
        }
        let mut sum = warp::warp_sum(sum);
        if warp::lane_id() == 0 {
            if !bias.is_null() {
                sum += F16x2(u32::from(*bias.add(output as usize))).to_f32()[0];
            }
            let y = y.add((row * outputs + output) as usize);
            *y = match mode {
                0 => sum,
                1 => sum.max(0.0),
                _ => *y + sum,
            };
        }
    }
}

/// Returns the offset of a token's keys or values in the cache, in elements.
///
/// # Safety
/// The table has a block for the position.
#[inline(always)]
unsafe fn slot(table: *const u32, position: u32) -> usize {
    // SAFETY: required of the caller.
    let block = unsafe { *table.add((position / BLOCK) as usize) };
    (block * BLOCK + position % BLOCK) as usize * HIDDEN as usize
}

/// Stores each row's keys and values in the cache, in its sequence's blocks.
///
/// # Safety
/// A block has 192 threads, and the grid has one block for each row. `tables` has `stride` entries for each row, and no
/// two sequences share a block.
#[kernel(max_threads = 192)]
pub unsafe fn keep(
    cache_k: *mut f32,
    cache_v: *mut f32,
    k: *const f32,
    v: *const f32,
    tables: *const u32,
    stride: u32,
    positions: *const u32,
) {
    let (row, i) = (thread::block_idx_x(), thread::thread_idx_x() as usize);
    // SAFETY: no two sequences share a block, and no two threads share an element.
    unsafe {
        let to = slot(tables.add((row * stride) as usize), *positions.add(row as usize)) + i;
        let from = (row * HIDDEN) as usize + i;
        *cache_k.add(to) = *k.add(from);
        *cache_v.add(to) = *v.add(from);
    }
}

/// Attention of each row and head over its sequence's cache, as in lesson 5. One warp computes one head of one row.
///
/// # Safety
/// A block is one warp, and the grid is `[heads, rows]`. Otherwise as for [`keep`]. The cache contains all positions up
/// to the row's own.
#[kernel(max_threads = 32)]
pub unsafe fn attend_blocks(
    y: *mut f32,
    q: *const f32,
    cache_k: *const f32,
    cache_v: *const f32,
    tables: *const u32,
    stride: u32,
    positions: *const u32,
) {
    let (head, row) = (thread::block_idx_x(), thread::block_idx_y());
    let own = (head * HEAD + warp::lane_id()) as usize;
    let half = WARP_SIZE as usize;
    // SAFETY: each lane has two elements of the head. The table has a block for every position, and all lanes loop over
    // the same positions.
    unsafe {
        let (q, y) = (q.add((row * HIDDEN) as usize + own), y.add((row * HIDDEN) as usize + own));
        let (table, last) = (tables.add((row * stride) as usize), *positions.add(row as usize));
        let scale = 1.0 / GpuFloat::sqrt(HEAD as f32) * core::f32::consts::LOG2_E;
        let (q0, q1) = (*q * scale, *q.add(half) * scale);
        let (mut most, mut sum, mut mean) = (f32::MIN, 0.0, [0.0; 2]);
        for position in 0..=last {
            let at = slot(table, position) + own;
            let score = warp::warp_sum(q0 * *cache_k.add(at) + q1 * *cache_k.add(at + half));
            let greater = most.max(score);
            let (old, weight) = ((most - greater).exp2_fast(), (score - greater).exp2_fast());
            sum = sum * old + weight;
            mean = [mean[0] * old + weight * *cache_v.add(at), mean[1] * old + weight * *cache_v.add(at + half)];
            most = greater;
        }
        *y = mean[0] / sum;
        *y.add(half) = mean[1] / sum;
    }
}

/// A request: its tokens so far, the number of tokens in the cache, the total number of tokens it wants, and its block
/// table.
#[cfg(not(target_arch = "nvptx64"))]
struct StoryRequest {
    tokens: Vec<u32>,
    cached: u32,
    want: usize,
    table: Vec<u32>,
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(|lesson| run(lesson).map(|_| ()))
}

/// The prompts, and the number of tokens to generate for each.
#[cfg(not(target_arch = "nvptx64"))]
pub const PROMPTS: [(&str, usize); 3] = [("Once upon a time", 6), ("The cat", 12), ("One day", 8)];

/// Runs the lesson. Returns the tokens of each request, including the prompt.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<Vec<Vec<u32>>> {
    let files = ModelFiles::bundled();
    let tokenizer = Tokenizer::of_model(&files, &files.config()?)?;
    let model = StoryModel::load(&mut lesson.gpu, &files)?;
    let mut free: Vec<u32> = (0..BLOCKS).rev().collect();
    let mut waiting = std::collections::VecDeque::new();
    for (number, (prompt, more)) in PROMPTS.into_iter().enumerate() {
        let tokens = tokenizer.encode(prompt)?;
        waiting.push_back((number, StoryRequest { want: tokens.len() + more, tokens, cached: 0, table: Vec::new() }));
    }
    let mut running: Vec<(usize, StoryRequest)> = Vec::new();
    let mut done = vec![Vec::new(); PROMPTS.len()];
    let mut step_number = 0;
    while !(running.is_empty() && waiting.is_empty()) {
        // The batch: all running requests, and as many waiting ones as fit.
        let room = BATCH as usize - running.len();
        running.extend(waiting.drain(..room.min(waiting.len())));
        for (_, story) in &mut running {
            if story.cached.is_multiple_of(BLOCK) {
                story.table.push(free.pop().ok_or("no block is free")?);
            }
        }
        let tables: Vec<_> = running.iter().map(|(n, story)| format!("{} {:?}", n + 1, story.table)).collect();
        step_number += 1;
        let rows = step(lesson, &model, &running, &format!("step {step_number}, tables of {}", tables.join(", ")))?;
        for ((_, story), logits) in running.iter_mut().zip(rows.chunks(model.vocabulary as usize)) {
            story.cached += 1;
            if story.cached as usize == story.tokens.len() {
                let best = (0..model.vocabulary).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]));
                story.tokens.extend(best);
            }
        }
        // Finished requests return their blocks.
        for (number, story) in running.extract_if(.., |(_, story)| story.tokens.len() == story.want) {
            free.extend(story.table);
            lesson.say(format!("request {} is done: {}", number + 1, tokenizer.decode(&story.tokens, true)?));
            done[number] = story.tokens;
        }
    }
    Ok(done)
}

/// Runs one step of the batch. Returns a row of logits for each sequence.
#[cfg(not(target_arch = "nvptx64"))]
fn step(lesson: &mut Lesson, model: &StoryModel, running: &[(usize, StoryRequest)], title: &str) -> Result<Vec<f32>> {
    let stride = running.iter().map(|(_, story)| story.table.len()).max().unwrap_or(0);
    let tokens: Vec<u32> = running.iter().map(|(_, story)| story.tokens[story.cached as usize]).collect();
    let positions: Vec<u32> = running.iter().map(|(_, story)| story.cached).collect();
    let padded = |(_, story): &(usize, StoryRequest)| {
        story.table.iter().copied().chain(std::iter::repeat(u32::MAX)).take(stride).collect::<Vec<_>>()
    };
    let tables: Vec<u32> = running.iter().flat_map(padded).collect();
    let step = StoryStep {
        tokens: lesson.gpu.upload("tokens", &tokens)?.ptr(),
        positions: lesson.gpu.upload("positions", &positions)?.ptr(),
        tables: lesson.gpu.upload("tables", &tables)?.ptr(),
        stride: stride as u32,
        rows: running.len() as u32,
    };
    lesson.measure(title, |gpu| model.forward(gpu, step))?;
    Ok(lesson.gpu.download(model.logits)?)
}
