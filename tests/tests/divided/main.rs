//! Models of every family with random weights, divided among two and four workers, compared with the same models on one
//! worker. They run on the CPU in f32, and on the GPU's kernels in the emulator in f16. Requests are chunked, swapped
//! out, recomputed, or served from cached prefixes.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod ranks;

use std::sync::Once;

use engine::DType;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Continuation, Device, Llm, Options, Preemption, Prompt, SchedulerOptions};
use tests::complete;
use tests::models::{LAYERS, MODELS, make};
use workbench::number::ProblemRng;

/// Allowed difference of a logprob from one worker's. In f32, a sum of four parts rounds differently from a single sum.
const F32: f32 = 1e-4;
/// The same in f16. Here each worker's addend to the residual stream is rounded too.
const F16: f32 = 0.02;

/// Lengths of the prompts: a single token, and several blocks.
const PROMPTS: [usize; 2] = [1, 40];

/// A way of running the same requests.
#[derive(Clone, Copy, Debug)]
struct Way {
    block_size: usize,
    /// Maximum tokens per step.
    chunk: usize,
    /// Tokens in the pool.
    pool: usize,
    preemption: Preemption,
    prefix_caching: bool,
    cuda_graphs: bool,
}

/// One batch in a pool with room for everything.
const ROOMY: Way = Way {
    block_size: 16,
    chunk: 2048,
    pool: 2048,
    preemption: Preemption::Auto,
    prefix_caching: false,
    cuda_graphs: true,
};

const CHUNKS: Way = Way { block_size: 8, chunk: 13, cuda_graphs: false, ..ROOMY };
const SWAPPED: Way = Way { pool: 72, preemption: Preemption::Swap, ..CHUNKS };
const RECOMPUTED: Way = Way { pool: 72, preemption: Preemption::Recompute, cuda_graphs: true, ..CHUNKS };
/// All requests run twice, and the second time their prefixes are cached.
const CACHED: Way = Way { prefix_caching: true, ..ROOMY };

/// Configures a small emulator. Grids as large as the device then have few blocks.
fn configure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        emulator::driver::configure(emulator::driver::DeviceOptions { multiprocessors: 4, ..Default::default() });
    });
}

fn one_on_the_cpu() -> Options {
    Options { device: Device::Cpu, dtype: Some(DType::F32), threads: Some(1), ..Options::default() }
}

fn one_on_the_emulator() -> Options {
    Options { device: Device::Emulator, dtype: Some(DType::F16), ..Options::default() }
}

/// Loads a model on `workers` workers. Each worker has the keys and values of its heads, and the pool has as many
/// blocks as its memory holds of these parts.
fn load(files: &ModelFiles, way: Way, workers: usize, options: Options) -> Llm {
    let config = files.config().unwrap();
    let is_cpu = options.device == Device::Cpu;
    let whole = 2 * LAYERS * config.kv_width() * way.block_size * if is_cpu { 4 } else { 2 };
    let of_worker = whole * config.kv_heads.div_ceil(workers) / config.kv_heads;
    let blocks = way.pool / way.block_size;
    let scheduler = SchedulerOptions {
        max_num_seqs: 32,
        max_batch_tokens: way.chunk,
        preemption: way.preemption,
        prefix_caching: way.prefix_caching,
        ..SchedulerOptions::default()
    };
    let options = Options {
        tensor_parallel_size: workers,
        block_size: way.block_size,
        // Workers on the CPU share the machine's memory. Each GPU has its own.
        kv_memory: Some(blocks * of_worker * if is_cpu { workers } else { 1 }),
        cuda_graphs: way.cuda_graphs,
        scheduler,
        ..options
    };
    let llm = Llm::load(files, &options).unwrap();
    assert_eq!(llm.kv_layout().block_bytes(), workers * of_worker, "{workers} workers");
    assert_eq!(llm.engine().scheduler().usage().num_blocks, blocks, "{workers} workers");
    llm
}

/// Returns for each prompt a greedy request and a search with three beams.
fn requests() -> Vec<(Prompt, SamplingParams)> {
    let mut random = ProblemRng(99);
    let greedy = SamplingParams { max_tokens: 10, ignore_eos: true, logprobs: Some(2), ..SamplingParams::default() };
    let beam = Some(Beam { width: 3, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let beams = SamplingParams { n: 3, best_of: 3, max_tokens: 6, beam, ..greedy.clone() };
    let prompts = PROMPTS.map(|len| (0..len).map(|_| 4 + random.below(508) as u32).collect());
    let both = |prompt: Vec<u32>| [&greedy, &beams].map(|params| (Prompt::Tokens(prompt.clone()), params.clone()));
    prompts.into_iter().flat_map(both).collect()
}

/// Runs the requests, checks that they ran as `way` demands, and returns the completions.
fn run(llm: &mut Llm, way: Way) -> Vec<Completion> {
    let first = complete(llm, requests());
    let done = if way.prefix_caching { complete(llm, requests()) } else { first };
    let (stats, prompts) = (llm.stats(), PROMPTS.iter().sum::<usize>());
    assert!(stats.copied_blocks > 0, "beams copy shared blocks when they write");
    // A sliding window frees blocks, which may leave enough room without preemption.
    let slides = llm.config().window().is_some();
    match way.preemption {
        Preemption::Swap => assert!(stats.swapped_out > 0 && stats.swapped_in_blocks > 0 || slides),
        Preemption::Recompute => assert!(stats.preemptions > stats.swapped_out && stats.swapped_out == 0 || slides),
        Preemption::Auto => assert_eq!(stats.preemptions, 0),
    }
    assert_eq!(stats.hit_tokens > prompts / 2, way.prefix_caching, "{} cached tokens", stats.hit_tokens);
    assert!(stats.steps > 2 * prompts / way.chunk, "{} steps", stats.steps);
    done
}

/// Compares greedy tokens and logprobs, and returns the number of equal tokens. The first different token must be
/// nearly tied: its margin is at most twice the tolerance of logprobs.
fn same_greedy(at: &str, want: &Continuation, got: &Continuation, tolerance: f32) -> usize {
    let (want_logprobs, got_logprobs) = (want.logprobs.as_ref().unwrap(), got.logprobs.as_ref().unwrap());
    assert_eq!(want.tokens.len(), got.tokens.len(), "{at}");
    for (step, (want, got)) in want_logprobs.iter().zip(got_logprobs).enumerate() {
        if want.token != got.token {
            let margin = want.top[0].1 - want.top[1].1;
            assert!(margin <= 2.0 * tolerance, "{at}, step {step}: a different token, with a margin of {margin}");
            return step;
        }
        let off = (want.logprob - got.logprob).abs();
        assert!(off <= tolerance, "{at}, step {step}: the logprob is off by {off}");
    }
    want.tokens.len()
}

/// Asserts that every answer equals the answer of one worker with room for everything. In f32 all tokens are equal, in
/// f16 all tokens up to a near tie.
fn assert_same(at: &str, want: &[Completion], got: &[Completion], dtype: DType) {
    let tolerance = if dtype == DType::F32 { F32 } else { F16 };
    let (mut same, mut all) = (0, 0);
    for (i, (want, got)) in want.iter().zip(got).enumerate() {
        let at = format!("{at}, request {i}");
        assert_eq!(want.outputs.len(), got.outputs.len(), "{at}");
        let (best, found) = (&want.outputs[0], &got.outputs[0]);
        if want.outputs.len() == 1 {
            same += same_greedy(&at, best, found, tolerance);
            all += best.tokens.len();
        } else {
            // If the best beam is a different one, its score must be as good.
            let off = (best.cumulative_logprob - found.cumulative_logprob).abs();
            assert!(off <= f64::from(tolerance) * best.tokens.len() as f64, "{at}: the best beam is off by {off}");
        }
        if dtype == DType::F32 {
            let tokens = |c: &Completion| c.outputs.iter().map(|o| o.tokens.clone()).collect::<Vec<_>>();
            assert_eq!(tokens(want), tokens(got), "{at}");
        }
    }
    assert!(4 * same >= 3 * all, "{at}: {same} of {all} tokens are compared");
}

/// Runs a model in several ways on the given numbers of workers, and compares it with one worker.
fn assert_model(name: &str, one: &Options, ways: &[(Way, &[usize])]) {
    let directory = tempfile::tempdir().unwrap();
    let files = make(name, directory.path());
    let want = run(&mut load(&files, ROOMY, 1, one.clone()), ROOMY);
    for (way, workers) in ways {
        for &workers in *workers {
            let got = run(&mut load(&files, *way, workers, one.clone()), *way);
            assert_same(&format!("{name} on {workers} workers, {way:?}"), &want, &got, one.dtype.unwrap());
        }
    }
}

#[test]
fn on_the_cpu_in_f32() {
    for (i, name) in MODELS.into_iter().enumerate() {
        // One worker alone is tested with other models. Each way has two workers or four, and the next model swaps them.
        let ways = [ROOMY, CHUNKS, SWAPPED, RECOMPUTED, CACHED].into_iter().enumerate();
        let ways: Vec<(Way, &[usize])> = ways.map(|(j, way)| (way, [&[2][..], &[4]][(i + j) % 2])).collect();
        assert_model(name, &one_on_the_cpu(), &ways);
    }
}

/// Runs each model on two workers in one way and on four in another. Over all models, every way occurs with both
/// numbers of workers.
fn on_the_emulator(models: &[&str], first: usize) {
    configure();
    const WAYS: [Way; 4] = [SWAPPED, CACHED, RECOMPUTED, CHUNKS];
    for (i, name) in models.iter().enumerate() {
        let (two, four) = (WAYS[(first + i) % 4], WAYS[(first + i + 1) % 4]);
        assert_model(name, &one_on_the_emulator(), &[(two, &[2]), (four, &[4])]);
    }
}

// Split into three tests. The first is the sample that always runs, and every way occurs in it.

#[test]
fn on_the_emulator_with_learned_positions() {
    on_the_emulator(&MODELS[..3], 0);
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/run has a step for it"]
fn on_the_emulator_with_biases_and_grouped_heads() {
    on_the_emulator(&MODELS[3..6], 3);
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/run has a step for it"]
fn on_the_emulator_with_norms_on_heads_and_repeated_ones() {
    on_the_emulator(&MODELS[6..], 2);
}
