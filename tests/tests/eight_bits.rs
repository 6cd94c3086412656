//! KV caches in 8 bits: their loss of accuracy on every golden model, and outputs that do not depend on scheduling.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::KvDtype;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Continuation, Device, Llm, Options, Preemption, Prompt, SchedulerOptions};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tests::scores::{difference, perplexity, scores, stories};
use tests::{MODELS, complete, golden, golden_dir};

const DTYPES: [KvDtype; 2] = [KvDtype::Int8, KvDtype::Fp8];

/// For each cache type: the lowest percentage of greedy tokens that equal Hugging Face's, and the largest difference of
/// their logprobs.
type Bounds = [(f32, f32); 2];

fn load(model: &str, options: &Options) -> Llm {
    let files = ModelFiles::directory(golden_dir(model)).unwrap();
    Llm::load(&files, &Options { device: Device::Cpu, threads: Some(2), ..options.clone() }).unwrap()
}

fn options(kv_dtype: KvDtype) -> Options {
    Options { dtype: Some(DType::F32), kv_dtype: Some(kv_dtype), ..Options::default() }
}

fn params() -> SamplingParams {
    SamplingParams { max_tokens: 40, ignore_eos: true, logprobs: Some(1), ..SamplingParams::default() }
}

/// Compares greedy tokens and their logprobs with Hugging Face's, whose keys and values are in f32. Tokens count up to
/// the first difference.
fn assert_drift(model: &str, bounds: Bounds) {
    let golden = golden(model);
    for (dtype, (share, most)) in DTYPES.into_iter().zip(bounds) {
        let mut llm = load(model, &options(dtype));
        let (mut equal, mut all, mut drift) = (0, 0, 0f32);
        for p in &golden.prompts {
            let done = llm.generate(&[Prompt::Tokens(p.ids.clone())], &params()).unwrap();
            let output = &done[0].outputs[0];
            let same = output.tokens.iter().zip(&p.greedy.ids).take_while(|(a, b)| a == b).count();
            let logprobs = output.logprobs.as_ref().unwrap().iter().zip(&p.greedy.top5).take(same);
            drift = logprobs.map(|(got, want)| (got.logprob - want.logprobs[0]).abs()).fold(drift, f32::max);
            equal += same;
            all += p.greedy.ids.len();
        }
        println!("| {model} | {dtype} | {equal} of {all} | {drift:.4} |");
        let percent = 100.0 * equal as f32 / all as f32;
        assert!(percent >= share, "{model}, {dtype}: {percent} % of the tokens are equal, not {share}");
        assert!(drift <= most, "{model}, {dtype}: logprobs differ by {drift}, more than {most}");
    }
}

/// Asserts that requests give the same tokens and the same bits of logprobs, however they are batched, cut, preempted
/// and restored.
fn assert_same_bits(model: &str) {
    let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let methods = [
        params(),
        SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(7), ..params() },
        SamplingParams { n: 4, best_of: 4, beam, max_tokens: 20, ..params() },
    ];
    let prompts = golden(model).prompts;
    let requests: Vec<_> =
        prompts.iter().flat_map(|p| methods.iter().map(|m| (Prompt::Tokens(p.ids.clone()), m.clone()))).collect();
    let number = MODELS.iter().position(|other| *other == model).unwrap();
    for (kind, dtype) in DTYPES.into_iter().enumerate() {
        let alone = options(dtype);
        let mut llm = load(model, &alone);
        let want: Vec<Vec<Continuation>> =
            requests.iter().map(|request| complete(&mut llm, [request.clone()]).remove(0).outputs).collect();
        let block = llm.kv_layout().block_bytes();
        let scheduler = |max_batch_tokens, preemption, draft_tokens| SchedulerOptions {
            max_batch_tokens,
            preemption,
            draft_tokens,
            prefix_caching: draft_tokens > 0,
            ..alone.scheduler
        };
        // A prompt of 100 tokens takes 13 blocks of 8, and each of three outputs takes six.
        let tight = |preemption| Options {
            scheduler: scheduler(40, preemption, 0),
            kv_memory: Some(40 * block / 2),
            block_size: 8,
            ..alone.clone()
        };
        let setups = [
            ("together", alone.clone()),
            ("chunks of 7", Options { scheduler: scheduler(7, Preemption::Auto, 0), ..alone.clone() }),
            ("swapped", tight(Preemption::Swap)),
            ("recomputed", tight(Preemption::Recompute)),
            (
                "drafts, cached blocks",
                Options { scheduler: scheduler(64, Preemption::Auto, 4), block_size: 32, ..alone.clone() },
            ),
        ];
        // The two types take turns at the first four setups, and the next model swaps them.
        let of_type = |i: usize| i == 4 || (i + kind + number).is_multiple_of(2);
        for (_, (name, options)) in setups.into_iter().enumerate().filter(|(i, _)| of_type(*i)) {
            let mut llm = load(model, &options);
            let done = complete(&mut llm, requests.iter().cloned());
            for ((done, want), (_, params)) in done.iter().zip(&want).zip(&requests) {
                assert!(done.outputs == *want, "{model}, {dtype}, {name}: {params:?}");
            }
            // A sliding window frees blocks, which may leave enough room without preemption.
            let tight = options.kv_memory.is_some() && llm.config().window().is_none();
            assert!(!tight || llm.stats().preemptions > 0, "{model}, {dtype}, {name}: no request was preempted");
            assert!(
                !tight || name != "swapped" || llm.stats().swapped_out > 0,
                "{model}, {dtype}: no request was swapped out"
            );
            assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
        }
    }
}

/// The same memory holds nearly twice as many blocks as in 16 bits.
#[test]
fn the_pool_has_nearly_twice_the_blocks() {
    for model in MODELS {
        let blocks = |kv_dtype| {
            let options = Options { kv_memory: Some(1 << 20), kv_dtype: Some(kv_dtype), ..Options::default() };
            let llm = load(model, &options);
            (llm.engine().config().num_blocks as f64, llm.config().head_dim)
        };
        let (sixteen, head_dim) = blocks(KvDtype::Float(DType::F16));
        for dtype in DTYPES {
            // Each head takes two more bytes for its scale. The division into blocks may leave a remainder.
            let want = (2 * head_dim) as f64 / (head_dim + 2) as f64;
            let ratio = blocks(dtype).0 / sixteen;
            assert!((ratio - want).abs() < 0.02 * want, "{model}, {dtype}, heads of {head_dim}: {ratio}, not {want}");
        }
    }
}

macro_rules! eight_bit_tests {
    ($($name:ident: $model:literal,)*) => {
        $(mod $name {
            #[test]
            fn outputs_do_not_depend_on_scheduling() {
                super::assert_same_bits($model);
            }
        })*
    };
}

tests::each_model!(eight_bit_tests);

#[test]
fn drift_from_hugging_face_is_as_recorded() {
    // Four fifths of the measured tokens, and 1.5 times the measured drift. A different order of summation changes both
    // a little.
    let bounds: [(&str, Bounds); MODELS.len()] = [
        ("gpt2", [(66.0, 0.2), (38.0, 0.6)]),
        ("llama2", [(60.0, 0.4), (14.0, 0.8)]),
        ("llama3", [(64.0, 0.3), (25.0, 0.8)]),
        ("llama3-tied", [(64.0, 0.3), (23.0, 0.5)]),
        ("mistral", [(55.0, 0.4), (8.0, 0.8)]),
        ("opt-350m-like", [(52.0, 0.4), (23.0, 0.7)]),
        ("opt-bin", [(62.0, 0.4), (30.0, 0.8)]),
        ("opt-pre", [(52.0, 0.3), (31.0, 0.8)]),
        ("qwen2", [(56.0, 0.3), (9.0, 0.5)]),
        ("qwen3", [(73.0, 0.3), (26.0, 0.7)]),
    ];
    assert_eq!(bounds.map(|bound| bound.0), MODELS);
    for (model, bounds) in bounds {
        assert_drift(model, bounds);
    }
}

/// The bundled model is trained. This scores its own greedy stories.
#[test]
fn the_bundled_models_stories_stay_as_likely() {
    let score = |kv_dtype| {
        let options = Options { device: Device::Cpu, kv_dtype: Some(kv_dtype), ..Options::default() };
        scores(&mut Llm::load(&ModelFiles::bundled(), &options).unwrap(), &stories())
    };
    let exact = score(KvDtype::Float(DType::F32));
    println!("| f32 | {:.4} | | |", perplexity(&exact));
    for (dtype, most) in [(KvDtype::Float(DType::F16), 0.01), (KvDtype::Int8, 0.05), (KvDtype::Fp8, 0.2)] {
        let scores = score(dtype);
        let (root_mean_square, greatest) = difference(&scores, &exact);
        println!("| {dtype} | {:.4} | {root_mean_square:.4} | {greatest:.3} |", perplexity(&scores));
        assert!(root_mean_square > 0.0 && root_mean_square < most, "{dtype}: {root_mean_square}");
    }
}

/// Each token in the cache has its own scale. A checkpoint's cache scales therefore change no output, and a note says
/// so.
#[test]
fn a_checkpoints_cache_scales_are_unused_and_noted() {
    let directory = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden_dir("llama3")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
    }
    let weights = directory.path().join("model.safetensors");
    let stored = std::fs::read(&weights).unwrap();
    let scale = 0.02f32.to_le_bytes();
    let own = ["k", "v"].map(|part| {
        let view = TensorView::new(Dtype::F32, vec![1], &scale).unwrap();
        (format!("model.layers.0.self_attn.{part}_scale"), view)
    });
    let all = SafeTensors::deserialize(&stored).unwrap().tensors().into_iter().chain(own);
    std::fs::write(&weights, safetensors::serialize(all, None).unwrap()).unwrap();

    let prompt = [Prompt::Tokens(golden("llama3").prompts[0].ids.clone())];
    let noted = |kv_dtype| {
        let options = Options { device: Device::Cpu, threads: Some(2), ..options(kv_dtype) };
        let mut with = Llm::load(&ModelFiles::directory(directory.path()).unwrap(), &options).unwrap();
        let mut without = load("llama3", &options);
        let [got, want] =
            [&mut with, &mut without].map(|llm| llm.generate(&prompt, &params()).unwrap().remove(0).outputs);
        assert_eq!(got, want);
        with.device().notes.iter().any(|note| note.contains("k_scale"))
    };
    assert!(noted(KvDtype::Int8) && noted(KvDtype::Fp8) && !noted(KvDtype::Float(DType::F16)));
}
