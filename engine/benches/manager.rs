//! The cost of the scheduler and of managing blocks in a step where every sequence decodes, without a model, on one
//! core. Items are sequences.
//!
//!     cargo bench -p engine --bench manager

use divan::Bencher;
use divan::counter::ItemsCount;
use engine::tools::group::SequenceGroup;
use engine::tools::kv::BlockPool;
use engine::tools::sampling::{Sampled, SamplingParams};
use engine::tools::scheduler::{Scheduler, SchedulerOptions};

const BLOCK_SIZE: usize = 16;
const PROMPT: usize = 512;
const STEPS: usize = 320;
const SEQUENCES: [usize; 5] = [16, 64, 256, 1024, 4096];

fn main() {
    divan::main();
}

#[divan::bench(args = SEQUENCES, sample_count = STEPS as u32, sample_size = 1)]
fn step_with_prefix_caching(bencher: Bencher<'_, '_>, n: usize) {
    step(bencher, n, true);
}

#[divan::bench(args = SEQUENCES, sample_count = STEPS as u32, sample_size = 1)]
fn step_without(bencher: Bencher<'_, '_>, n: usize) {
    step(bencher, n, false);
}

/// Measures the step that admits `n` new requests at once and schedules their prompts.
#[divan::bench(args = SEQUENCES, sample_count = 8, sample_size = 1)]
fn admission(bencher: Bencher<'_, '_>, n: usize) {
    let inputs = bencher.counter(ItemsCount::new(n)).with_inputs(|| scheduler(n, true));
    inputs.bench_local_refs(|scheduler| {
        let step = scheduler.schedule(false);
        assert_eq!(step.admitted.len(), n, "every request should be admitted");
    });
}

fn step(bencher: Bencher<'_, '_>, n: usize, prefix_caching: bool) {
    let mut scheduler = scheduler(n, prefix_caching);
    let mut tokens = Vec::new();
    let mut step = || {
        let step = scheduler.schedule(false);
        for &at in &step.sampled {
            let sampled = [Sampled { token: tokens.len() as u32, logprob: 0.0, top: Vec::new() }];
            scheduler.running_mut()[at].advance(&sampled, &mut tokens);
        }
        let finished = scheduler.take_finished();
        assert!(tokens.len() == n && finished.is_empty(), "every sequence should run in every step");
        tokens.clear();
    };
    // The first step computes the prompts.
    step();
    bencher.counter(ItemsCount::new(n)).bench_local(step);
}

/// Returns a scheduler with `n` new requests. They fit the cache for the whole benchmark.
fn scheduler(n: usize, prefix_caching: bool) -> Scheduler {
    let pool = BlockPool::new(n * ((PROMPT + STEPS) / BLOCK_SIZE + 2), BLOCK_SIZE);
    let options = SchedulerOptions {
        max_num_seqs: n,
        max_batch_tokens: n * PROMPT,
        prefix_caching,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(pool.clone(), BlockPool::new(0, BLOCK_SIZE), 0, options);
    for id in 0..n as u64 {
        let params = SamplingParams { max_tokens: 2 * STEPS, ..SamplingParams::default() };
        // All prompts differ from the first token on.
        let prompt = (0..PROMPT as u32).map(|i| id as u32 + i).collect();
        scheduler.add(SequenceGroup::new(id, prompt, params, id, 2 * STEPS, &[], &pool));
    }
    scheduler
}
