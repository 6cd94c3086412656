//! What the scheduler and the bookkeeping of blocks cost in a step in which every sequence decodes: no model, one core.
//! The median step by the clock, and the mean over all steps of the time that the thread had the core, where the system
//! tells: on a busy machine that is the one to go by for steps of milliseconds.
//!
//!     cargo bench -p engine --bench manager

use std::time::Instant;

use engine::group::SequenceGroup;
use engine::kv::BlockPool;
use engine::sampling::{Sampled, SamplingParams};
use engine::scheduler::{Limits, Preemption, Scheduler};

const BLOCK_SIZE: usize = 16;
const PROMPT: usize = 512;
const STEPS: usize = 320;

/// Microseconds of the median step by the clock, and of the mean step by core time, with `n` sequences.
fn step_times(n: usize, prefix_caching: bool) -> (f64, f64) {
    let pool = BlockPool::new(n * ((PROMPT + STEPS) / BLOCK_SIZE + 2), BLOCK_SIZE);
    let limits = Limits {
        max_num_seqs: n,
        max_batch_tokens: n * PROMPT,
        watermark_blocks: 0,
        preemption: Preemption::Auto,
        prefix_caching,
    };
    let mut scheduler = Scheduler::new(pool.clone(), BlockPool::new(0, BLOCK_SIZE), limits);
    for id in 0..n as u64 {
        let params = SamplingParams { max_tokens: 2 * STEPS, ..SamplingParams::default() };
        // All prompts differ from their first token on.
        let prompt = (0..PROMPT as u32).map(|i| id as u32 + i).collect();
        scheduler.add(SequenceGroup::new(id, prompt, params, id, 2 * STEPS, &[], &pool));
    }
    // The first step computes the prompts.
    step(&mut scheduler, n, 0);
    let start = Instant::now();
    let before = core_micros(start);
    let mut times: Vec<f64> = (0..STEPS as u32).map(|token| step(&mut scheduler, n, token)).collect();
    let mean = (core_micros(start) - before) / STEPS as f64;
    times.sort_by(f64::total_cmp);
    (times[STEPS / 2], mean)
}

/// Microseconds for which this thread has had a core, or since `start`.
fn core_micros(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanos.map_or(start.elapsed().as_secs_f64() * 1e6, |nanos| nanos / 1e3)
}

fn step(scheduler: &mut Scheduler, n: usize, token: u32) -> f64 {
    let sampled = [Sampled { token, logprob: 0.0, top: Vec::new() }];
    let begun = Instant::now();
    let step = scheduler.schedule(false);
    for &at in &step.sampled {
        scheduler.running_mut()[at].advance(&sampled);
    }
    let finished = scheduler.take_finished();
    let time = begun.elapsed().as_secs_f64() * 1e6;
    assert!(step.sampled.len() == n && finished.is_empty(), "every sequence is to run in every step");
    time
}

fn main() {
    println!("sequences  caching  median us  mean us  us a sequence");
    for prefix_caching in [true, false] {
        for n in [16, 64, 256, 1024, 4096] {
            let (median, mean) = step_times(n, prefix_caching);
            let caching = if prefix_caching { "on" } else { "off" };
            println!("{n:>9}  {caching:>7}  {median:>9.1}  {mean:>7.1}  {:>13.3}", mean / n as f64);
        }
    }
}
