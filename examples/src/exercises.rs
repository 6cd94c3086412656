//! Exercises: remove a barrier, a wait or a fence, and read the fault.
//!
//! Threads of a block, asynchronous copies and blocks of a launch run in no particular order unless a kernel asks for
//! one. A kernel that forgets to ask seldom fails on a GPU: the right order comes about by chance, until one day it
//! does not. The emulator tracks which accesses are ordered, and reports the first access whose result depends on
//! chance.
//!
//! Run them: `cargo run --example exercises` runs three correct kernels. Then try one after the other:
//!
//! ```text
//! cargo run --example exercises -- --without barrier
//! cargo run --example exercises -- --without wait
//! cargo run --example exercises -- --without fence
//! ```
//!
//! Each command removes the instruction from the PTX before it is loaded, and prints the fault. Before you read the
//! answers: what did the two accesses of the fault do, which threads made them, and what could have happened on a GPU?
//!
//! # Answers
//!
//! **The barrier** (`bar.sync`). A thread of `differences` writes element `i` and reads element `i - 1`, which another
//! thread writes. For the first lane of a warp, that thread is in another warp. The hardware may run the warps of a
//! block in any order. Without the barrier, a warp may read before the other one has written, and gets old contents.
//! The fault is a `SharedRace`, and names the line that reads. The emulator stops at the first unordered access, and
//! that one is within a warp: even the lanes of a warp run in no guaranteed order without `sync_warp`. The value that
//! was read happens to be right. It is a fault all the same, because only chance made it right.
//!
//! **The wait** (`cp.async.wait_group`). The copies of `reverse_copied` are in flight until their thread has waited for
//! them. The barrier alone only guarantees that all threads have *issued* their copies. The fault is an `AsyncRegion`:
//! an access to memory that a copy is still writing. The order matters, too: each thread first waits for its own
//! copies, and then the barrier makes them visible to the others.
//!
//! **The fence** (`membar.gl`). Each block of `sum_by_last` stores its part of the sum and increments a counter. The
//! block that increments it last adds the parts. Other threads need not see a thread's store before its increment,
//! because stores to different addresses may overtake each other. The fence before the increment prevents that, and the
//! fence after it does the same for loads. The fault is a `GlobalRace`. A barrier would not help, because it only
//! synchronises the threads of one block.
//!
//! Try next: in lesson 2, one of the barriers in the loop of `sum_halves` is not needed in the last round. Why? And
//! would a wait *after* the barrier work in `reverse_copied`?

use cuda_std::ptx::cp_async;
use cuda_std::{atomic, prelude::*, shared};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{KernelCall, LaunchShape},
    examples::{Lesson, LessonFailed, PTX, Result, entry, teach},
};

/// Threads and elements per block.
#[cfg(not(target_arch = "nvptx64"))]
const THREADS: u32 = 256;

/// Subtracts from each element its predecessor in the block. The first element keeps its value.
///
/// # Safety
/// Blocks have 256 threads, and `x` and `y` have an element for each thread.
#[kernel(max_threads = 256)]
pub unsafe fn differences(x: *const u32, y: *mut u32) {
    let tile = shared_array![u32; 256];
    let (i, at) = (thread::thread_idx_x() as usize, thread::index_1d() as usize);
    // SAFETY: `i` is below 256. Each thread writes its own elements, and reads its neighbour's after the barrier.
    unsafe {
        let own = *x.add(at);
        *tile.add(i) = own;
        thread::sync_threads();
        *y.add(at) = if i == 0 { own } else { own - *tile.add(i - 1) };
    }
}

/// Reverses the elements of each block, using asynchronous copies to shared memory.
///
/// # Safety
/// As for [`differences`], and `x` is aligned to 16 bytes.
#[kernel(max_threads = 256)]
pub unsafe fn reverse_copied(x: *const u32, y: *mut u32) {
    let tile = shared_array![u32; 256];
    let (i, at) = (thread::thread_idx_x() as usize, thread::index_1d() as usize);
    // SAFETY: a quarter of the threads copy four aligned elements each. All elements are read after the wait and the
    // barrier.
    unsafe {
        if i < 64 {
            let from = x.add(at - i + 4 * i);
            cp_async::copy_cg(shared::shared_offset(tile.add(4 * i)), from.cast());
        }
        cp_async::commit();
        cp_async::wait::<0>();
        thread::sync_threads();
        *y.add(at) = *tile.add(255 - i);
    }
}

/// Sums one number per thread. Each warp sums the numbers of its lanes, and the last warp to finish adds these sums.
///
/// # Safety
/// Blocks are one warp each. `x` has an element for each thread, and `parts` has an element for each block. `count` is
/// zero before the launch, and `sum` points to one number.
#[kernel(max_threads = 32)]
pub unsafe fn sum_by_last(x: *const u32, parts: *mut u32, count: *mut u32, sum: *mut u32) {
    // SAFETY: one lane of each block stores that block's part. The lane that counts last reads the parts. The fences
    // order the stores before the counts, and the counts before the loads.
    unsafe {
        let part = warp::warp_sum(*x.add(thread::index_1d() as usize));
        if warp::lane_id() == 0 {
            *parts.add(thread::block_idx_x() as usize) = part;
            thread::device_fence();
            let before = atomic::add_u32(count, 1);
            thread::device_fence();
            if before + 1 == thread::grid_dim_x() {
                let mut all = 0;
                for block in 0..thread::grid_dim_x() {
                    all += *parts.add(block as usize);
                }
                *sum = all;
            }
        }
    }
}

/// Each exercise's name, its kernel, and the instruction to remove.
#[cfg(not(target_arch = "nvptx64"))]
const EXERCISES: [(&str, &str, &str); 3] = [
    ("barrier", "differences", "bar.sync"),
    ("wait", "reverse_copied", "cp.async.wait_group"),
    ("fence", "sum_by_last", "membar.gl"),
];

/// Returns the lessons' PTX with every `instruction` of one kernel removed, and the number of removed instructions.
#[cfg(not(target_arch = "nvptx64"))]
fn without(kernel: &str, instruction: &str) -> Result<(String, usize)> {
    let whole = entry(PTX, kernel).ok_or("there is no such kernel")?;
    let is_it = |line: &&str| line.trim_start().starts_with(instruction);
    let count = whole.lines().filter(is_it).count();
    let rest: Vec<&str> = whole.lines().map(|line| if is_it(&line) { "" } else { line }).collect();
    Ok((PTX.replace(whole, &rest.join("\n")), count))
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(run)
}

/// Runs the lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    let chosen = lesson.without.clone();
    let names = EXERCISES.map(|(name, ..)| name);
    if let Some(name) = chosen.as_deref().filter(|name| !names.contains(name)) {
        return Err(format!("there is no exercise `{name}`; choose one of: {}", names.join(", ")).into());
    }
    for (name, kernel, instruction) in EXERCISES {
        match chosen.as_deref() {
            None => exercise(lesson, kernel)?,
            Some(chosen) if chosen == name => {
                let (ptx, count) = without(kernel, instruction)?;
                lesson.say(format!("`{kernel}` without its {name}: removed `{instruction}` in {count} place(s)."));
                lesson.load(&ptx)?;
                match exercise(lesson, kernel) {
                    Err(fault) => lesson.say(format!("The emulator says: {fault}")),
                    Ok(()) => lesson.say("No fault this time: a GPU does not report races."),
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Runs one of the kernels and checks its result.
#[cfg(not(target_arch = "nvptx64"))]
fn exercise(lesson: &mut Lesson, kernel: &str) -> Result<()> {
    let numbers: Vec<u32> = (0..2 * THREADS).collect();
    let x = lesson.gpu.upload("x", &numbers)?.ptr();
    let sums = kernel == "sum_by_last";
    let size = if sums { 1 } else { numbers.len() };
    let result = lesson.gpu.alloc::<u32>("result", size)?;
    let y = result.mut_ptr();
    let call: KernelCall = match kernel {
        "differences" => differences { x, y }.into(),
        "reverse_copied" => reverse_copied { x, y }.into(),
        _ => {
            let parts = lesson.gpu.alloc::<u32>("parts", numbers.len() / 32)?.mut_ptr();
            let count = lesson.gpu.upload("count", &[0u32])?.mut_ptr();
            sum_by_last { x, parts, count, sum: y }.into()
        }
    };
    let threads = if sums { 32 } else { THREADS };
    // SAFETY: the buffers have an element for each thread and a part for each block, and the blocks have the size that
    // the kernel requires. Without its instruction a kernel has races, but it still accesses only the buffers.
    unsafe { lesson.launch(kernel, LaunchShape::covering(2 * THREADS, threads), call) }?;
    let blocks = numbers.chunks(THREADS as usize);
    let truth: Vec<u32> = match kernel {
        "differences" => numbers.iter().map(|&x| if x.is_multiple_of(THREADS) { x } else { 1 }).collect(),
        "reverse_copied" => blocks.flat_map(|block| block.iter().rev().copied()).collect(),
        _ => vec![numbers.iter().sum()],
    };
    if lesson.gpu.download(result)? != truth {
        return Err("the kernel's result differs from the host's".into());
    }
    lesson.say("    and the result equals the host's");
    Ok(())
}
