//! KV caches in 8 bits on the GPU. The CPU scores the same texts in f32 arithmetic with the same cache type, and finds
//! every token nearly as likely. Codes and scales are therefore correct, even if blocks were copied, swapped,
//! recomputed or found in the cache.

use engine::KvDtype;
use engine::Preemption;
use tests::models::{HEADS, make};
use tests::scores::{difference, scores, stories};

use super::*;

pub(super) const DTYPES: [KvDtype; 2] = [KvDtype::Int8, KvDtype::Fp8];

/// Allowed difference of a logprob from the CPU's: the maximum, and the root mean square. 16-bit keys and values
/// sometimes get different codes. These models have random weights, so their outputs differ more than without codes.
type Bound = (f32, f32);

/// A way of running requests.
struct EightBitSetup {
    name: &'static str,
    options: Options,
    /// The pool is limited to this many tokens.
    pool_tokens: Option<usize>,
    /// How often the requests are repeated, one round after another.
    rounds: usize,
}

pub(super) fn in_eight_bits(dtype: DType, kv_dtype: KvDtype) -> Options {
    Options { kv_dtype: Some(kv_dtype), ..options(dtype) }
}

fn one_batch(dtype: DType, kv_dtype: KvDtype) -> EightBitSetup {
    EightBitSetup { name: "one batch", options: in_eight_bits(dtype, kv_dtype), pool_tokens: None, rounds: 1 }
}

/// Runs requests of each kind and lets the CPU score their outputs. Returns the engine that ran them.
fn assert_same_scores(model: &str, setup: &EightBitSetup) -> Llm {
    let EightBitSetup { name, ref options, pool_tokens, rounds } = *setup;
    let (most, mean) = bound(options.dtype.unwrap(), options.kv_dtype);
    let mut options = options.clone();
    if let Some(tokens) = pool_tokens {
        let block = load(model, &options, None).kv_layout().block_bytes();
        options.kv_memory = Some(tokens.div_ceil(options.block_size) * block);
    }
    let mut llm = load(model, &options, None);
    let same_type = Options { device: Device::Cpu, kv_dtype: options.kv_dtype, ..Options::default() };
    let mut oracle = load(model, &same_type, None);
    let mut golden = golden(model);
    golden.prompts.truncate(4);
    let mut requests = Vec::new();
    for (i, p) in golden.prompts.iter().enumerate() {
        let prompt = || Prompt::Tokens(p.ids.clone());
        requests.push((prompt(), SamplingParams { max_tokens: 20, ..greedy() }));
        requests.push((prompt(), samples()));
        requests.push((prompt(), p.beam[i % p.beam.len()].params()));
    }
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for ((prompt, params), done) in requests.iter().zip(complete(&mut llm, requests.iter().cloned())) {
            let Prompt::Tokens(prompt) = prompt else { continue };
            for output in done.outputs {
                let text = [prompt.as_slice(), &output.tokens].concat();
                let scores = score(&mut oracle, &text, prompt.len());
                if params.beam.is_some() {
                    let off = (output.cumulative_logprob as f32 - scores.iter().sum::<f32>()).abs();
                    assert!(off <= most * (scores.len() as f32).sqrt(), "{model}, {name}, a beam: {off}");
                    continue;
                }
                got.extend(output.logprobs.unwrap().iter().map(|token| token.logprob));
                want.extend(scores);
            }
        }
    }
    let (root, worst) = difference(&got, &want);
    println!("| {model} | {:?} | {} | {name} | {worst:.4} | {root:.4} |", options.dtype, options.kv_dtype.unwrap());
    assert!(worst <= most && root <= mean, "{model}, {name}: off by {worst}, {root} on average");
    assert!(llm.stats().copied_blocks > 0, "{model}, {name}: no block was copied");
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    llm
}

/// 1.5 times the measured differences. A different order of summation changes them a little.
fn bound(dtype: DType, kv_dtype: Option<KvDtype>) -> Bound {
    match (dtype, kv_dtype) {
        (DType::F16, Some(KvDtype::Fp8)) => (1.05, 0.2),
        (DType::F16, _) => (0.4, 0.08),
        (_, Some(KvDtype::Fp8)) => (1.4, 0.27),
        _ => (0.4, 0.1),
    }
}

/// Models and types that always run. The others take a minute.
const SAMPLE: [(&str, KvDtype); 2] = [("gpt2", KvDtype::Fp8), ("llama3", KvDtype::Int8)];

#[test]
fn a_sample_of_models_in_one_batch() {
    for (model, kv_dtype) in SAMPLE {
        assert_same_scores(model, &one_batch(DType::F16, kv_dtype));
    }
}

#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn all_other_models_in_one_batch() {
    let all = MODELS.into_iter().flat_map(|model| DTYPES.map(|kv_dtype| (model, kv_dtype)));
    for (model, kv_dtype) in all.filter(|pair| !SAMPLE.contains(pair)) {
        assert_same_scores(model, &one_batch(DType::F16, kv_dtype));
    }
}

#[test]
fn with_activations_in_bf16() {
    assert_same_scores("mistral", &one_batch(DType::Bf16, KvDtype::Fp8));
}

#[test]
#[ignore = "takes a few seconds; .ci/run has a step for it"]
fn with_activations_in_bf16_and_integers() {
    assert_same_scores("qwen3", &one_batch(DType::Bf16, KvDtype::Int8));
}

/// Heads of sizes that no golden model has, in decode steps and in prompts of several tiles.
#[test]
fn heads_of_other_sizes() {
    let all = HEADS.into_iter().enumerate().flat_map(|(i, model)| DTYPES.map(|kv_dtype| (i, model, kv_dtype)));
    for (i, model, kv_dtype) in all {
        let directory = tempfile::tempdir().unwrap();
        let files = make(model, directory.path());
        let load = |options: &Options| Llm::load(&files, options).unwrap();
        let mut oracle = load(&Options { device: Device::Cpu, kv_dtype: Some(kv_dtype), ..Options::default() });
        let prompts: Vec<Vec<u32>> =
            [3, 37, 90].map(|len| (0..len).map(|i| 5 + (i * i * 7 + len) % 500).collect()).into();
        // Each size of heads has both types, each with another type of the cache.
        let is_f16 = (i == 0) == (kv_dtype == KvDtype::Int8);
        for dtype in [if is_f16 { DType::F16 } else { DType::Bf16 }] {
            let mut llm = load(&in_eight_bits(dtype, kv_dtype));
            let requests =
                prompts.iter().map(|ids| (Prompt::Tokens(ids.clone()), SamplingParams { max_tokens: 12, ..greedy() }));
            let (mut squares, mut count) = (0.0, 0);
            for (prompt, done) in prompts.iter().zip(complete(&mut llm, requests)) {
                let text = [prompt.as_slice(), &done.outputs[0].tokens].concat();
                let want = score(&mut oracle, &text, prompt.len());
                for (got, want) in done.outputs[0].logprobs.as_ref().unwrap().iter().zip(want) {
                    squares += (got.logprob - want).powi(2);
                    count += 1;
                }
            }
            let root = (squares / count as f32).sqrt();
            println!("| {model} | {dtype:?} | {kv_dtype} | {root:.4} |");
            assert!(root <= bound(dtype, Some(kv_dtype)).1, "{model}, {dtype:?}, {kv_dtype}: off by {root} on average");
        }
    }
}

/// Runs in chunks, with a pool so small that sequences are preempted in the given way.
fn preempted(model: &str, kv_dtype: KvDtype, preemption: Preemption) -> Llm {
    let options = in_eight_bits(DType::F16, kv_dtype);
    let scheduler = SchedulerOptions { max_batch_tokens: 13, preemption, ..options.scheduler };
    let options = Options { cuda_graphs: false, block_size: 8, scheduler, ..options };
    let setup = EightBitSetup { name: "small pool, chunks of 13", options, pool_tokens: Some(228), rounds: 1 };
    assert_same_scores(model, &setup)
}

#[test]
fn swapped_out_and_in() {
    let llm = preempted("llama3", KvDtype::Int8, Preemption::Swap);
    assert!(llm.stats().swapped_out_blocks > 0 && llm.stats().swapped_in_blocks > 0, "no block was swapped");
}

#[test]
#[ignore = "takes a few seconds; .ci/run has a step for it"]
fn recomputed() {
    let llm = preempted("llama3-tied", KvDtype::Fp8, Preemption::Recompute);
    assert!(llm.stats().preemptions > 0, "no request was preempted");
}

#[test]
fn cached_prefixes_are_reused() {
    let options = in_eight_bits(DType::F16, KvDtype::Int8);
    let scheduler = SchedulerOptions { prefix_caching: true, ..options.scheduler };
    let options = Options { block_size: 32, scheduler, ..options };
    let setup = EightBitSetup { name: "cached blocks", options, pool_tokens: None, rounds: 2 };
    let llm = assert_same_scores("opt-pre", &setup);
    assert!(llm.stats().hit_tokens > 0, "no block was reused");
}

#[test]
fn recorded_steps_give_the_same_outputs_in_eight_bits() {
    let golden = golden("mistral");
    let requests: Vec<_> = golden.prompts.iter().take(4).map(|p| (Prompt::Tokens(p.ids.clone()), samples())).collect();
    let answers = [true, false].map(|cuda_graphs| {
        let options = Options { cuda_graphs, ..in_eight_bits(DType::F16, KvDtype::Fp8) };
        let mut llm = load("mistral", &options, None);
        complete(&mut llm, requests.clone()).into_iter().map(|c| c.outputs).collect::<Vec<_>>()
    });
    assert_eq!(answers[0], answers[1]);
}

/// The bundled model is trained. It finds its own greedy stories as likely as on the CPU in f32, within the loss of the
/// same caches there (`tests/tests/eight_bits.rs`).
#[test]
fn the_bundled_models_stories_stay_as_likely() {
    let stories = &stories()[..4];
    let bundled = |options: &Options| scores(&mut Llm::load(&ModelFiles::bundled(), options).unwrap(), stories);
    let exact = bundled(&Options { device: Device::Cpu, ..Options::default() });
    for (kv_dtype, most) in [(KvDtype::Int8, 0.005), (KvDtype::Fp8, 0.017)] {
        let (root_mean_square, greatest) = difference(&bundled(&in_eight_bits(DType::F16, kv_dtype)), &exact);
        println!("| bundled | f16 | {kv_dtype} | {root_mean_square:.4} | {greatest:.3} |");
        assert!(root_mean_square > 0.0 && root_mean_square < most, "{kv_dtype}: {root_mean_square}");
    }
}

/// With heads of 64, the same memory holds at least 1.9 times the blocks of 16 bits.
#[test]
fn the_pool_has_nearly_twice_the_blocks() {
    let blocks = |options: &Options| load("opt-350m-like", options, None).engine().config().num_blocks as f64;
    let sixteen = blocks(&options(DType::F16));
    for kv_dtype in DTYPES {
        let ratio = blocks(&in_eight_bits(DType::F16, kv_dtype)) / sixteen;
        assert!((1.9..2.0).contains(&ratio), "{kv_dtype}: {ratio} times the blocks");
    }
}
