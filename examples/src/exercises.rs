//! Exercises: take away a barrier, a wait or a fence, and read the fault.
//!
//! Threads of a block, copies beside the threads, and blocks of a launch run in no order, except for what a kernel asks
//! for. What is left out is seldom seen on a GPU: the order that was not asked for comes about by chance, until it does
//! not. The emulator keeps account of what is ordered by what, and reports the first access that rests on chance.
//!
//! Run them: `cargo run --example exercises`: three kernels, which are right. Then one after the other
//!
//! ```text
//! cargo run --example exercises -- --without barrier
//! cargo run --example exercises -- --without wait
//! cargo run --example exercises -- --without fence
//! ```
//!
//! Each takes the instruction out of the PTX before it is loaded, and prints the fault. Before you read the answers:
//! what did the two accesses of the fault do, which threads made them, and what could have happened on a GPU?
//!
//! # Answers
//!
//! **The barrier** (`bar.sync`). A thread of `differences` writes element `i` and reads element `i - 1`, which another
//! thread writes: for the first lane of a warp, a thread of another warp. Warps of a block take turns as it suits the
//! hardware. Without the barrier a warp may read before the other one has written, and gets whatever was there. The
//! fault is a `SharedRace`, and names the line that reads. The emulator stops at the first such access, which is one
//! within a warp: even the lanes of a warp promise no order unless they are asked (`sync_warp`). The value that was
//! read is the right one, and it is a fault all the same, as nothing but chance made it so.
//!
//! **The wait** (`cp.async.wait_group`). The copies of `reverse_copied` are under way until their thread has waited for
//! them. The barrier alone says that all threads have *asked* for their copies. The fault is an `AsyncRegion`: an
//! access to memory that a copy still writes. The order matters, too: first each thread waits for its own, then the
//! barrier tells the others.
//!
//! **The fence** (`membar.gl`). Each block of `sum_by_last` stores its part of the sum, and counts itself. The block
//! that counts last adds the parts. That a thread stores first and counts afterwards does not mean that others see it
//! in this order: stores to different addresses may overtake each other on their way. The fence before the count holds
//! the later ones back, and the one after it does the same for loads. The fault is a `GlobalRace`. A barrier would not
//! do: blocks have none in common.
//!
//! Try next: in lesson 2, one of the barriers in the loop of `sum_halves` is not needed in the last round. Why? And
//! would a wait *behind* the barrier do in `reverse_copied`?

use cuda_std::ptx::cp_async;
use cuda_std::{atomic, prelude::*, shared};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{KernelCall, LaunchShape},
    examples::{Lesson, LessonFailed, PTX, Result, entry, teach},
};

/// Threads of a block, and elements that it has.
#[cfg(not(target_arch = "nvptx64"))]
const THREADS: u32 = 256;

/// Subtracts from each element the one before it in the block; the first stays as it is.
///
/// # Safety
/// Blocks have 256 threads, and `x` and `y` have an element for each thread.
#[kernel(max_threads = 256)]
pub unsafe fn differences(x: *const u32, y: *mut u32) {
    let tile = shared_array![u32; 256];
    let (i, at) = (thread::thread_idx_x() as usize, thread::index_1d() as usize);
    // SAFETY: `i` is below 256. Each thread writes its own elements, and reads another's behind the barrier.
    unsafe {
        let own = *x.add(at);
        *tile.add(i) = own;
        thread::sync_threads();
        *y.add(at) = if i == 0 { own } else { own - *tile.add(i - 1) };
    }
}

/// Reverses the elements of each block, which are copied to shared memory beside the threads.
///
/// # Safety
/// As for [`differences`]; `x` is aligned to 16 bytes.
#[kernel(max_threads = 256)]
pub unsafe fn reverse_copied(x: *const u32, y: *mut u32) {
    let tile = shared_array![u32; 256];
    let (i, at) = (thread::thread_idx_x() as usize, thread::index_1d() as usize);
    // SAFETY: a quarter of the threads copy four elements each, which are aligned. All are read behind wait and barrier.
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

/// Sums `n` numbers: each warp those of its lanes, and the warp that is done last all of these.
///
/// # Safety
/// Blocks have a warp each, `x` has an element for each thread, `parts` an element for each block; `count` is zero before
/// the launch, and `sum` is one number.
#[kernel(max_threads = 32)]
pub unsafe fn sum_by_last(x: *const u32, parts: *mut u32, count: *mut u32, sum: *mut u32) {
    // SAFETY: one lane of each block stores that block's part. It is read by the lane that counts last: the fences
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

/// What can be taken away: its name, the kernel, and the instruction.
#[cfg(not(target_arch = "nvptx64"))]
const EXERCISES: [(&str, &str, &str); 3] = [
    ("barrier", "differences", "bar.sync"),
    ("wait", "reverse_copied", "cp.async.wait_group"),
    ("fence", "sum_by_last", "membar.gl"),
];

/// The lessons' PTX, without an instruction of one kernel, and how often it stood there.
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

/// The lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    let chosen = lesson.without.clone();
    let known = EXERCISES.map(|(name, ..)| name);
    if let Some(name) = chosen.as_deref().filter(|name| !known.contains(name)) {
        return Err(format!("there is no `{name}` to take away: {}", known.join(", ")).into());
    }
    for (name, kernel, instruction) in EXERCISES {
        match chosen.as_deref() {
            None => exercise(lesson, kernel)?,
            Some(chosen) if chosen == name => {
                let (ptx, count) = without(kernel, instruction)?;
                lesson
                    .say(format!("`{kernel}` without its {name}: `{instruction}` is taken out, in {count} place(s)."));
                lesson.load(&ptx)?;
                match exercise(lesson, kernel) {
                    Err(fault) => lesson.say(format!("The emulator says: {fault}")),
                    Ok(()) => lesson.say("Nobody noticed this time: a GPU reports no race."),
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Runs one of the kernels, and checks what it computed.
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
    // SAFETY: there is an element for each thread, a part for each block, and the blocks have the size that the kernel asks
    // for. Where an instruction was taken out, the kernel reads what is not ordered, but nothing outside of the buffers.
    unsafe { lesson.launch(kernel, LaunchShape::covering(2 * THREADS, threads), call) }?;
    let blocks = numbers.chunks(THREADS as usize);
    let truth: Vec<u32> = match kernel {
        "differences" => numbers.iter().map(|&x| if x.is_multiple_of(THREADS) { x } else { 1 }).collect(),
        "reverse_copied" => blocks.flat_map(|block| block.iter().rev().copied()).collect(),
        _ => vec![numbers.iter().sum()],
    };
    if lesson.gpu.download(result)? != truth {
        return Err("the kernel computed something else than the host".into());
    }
    lesson.say("    and it computed what the host did");
    Ok(())
}
