//! Every golden model gives exactly the outputs of Hugging Face transformers, however it is batched, paged and
//! preempted.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::FinishReason;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Completion, Device, Llm, Options, Prompt, SchedulerOptions};
use tests::scores::{difference, scores, texts};
use tests::{Golden, MODELS, complete, golden, golden_dir};

/// A way of running the same requests.
struct Setup {
    name: &'static str,
    options: Options,
    /// Whether all requests run at once, or one after another.
    batched: bool,
    /// The pool is limited to this many tokens, rounded up to blocks. Requests must then be preempted.
    pool_tokens: Option<usize>,
}

fn setups() -> Vec<Setup> {
    let f32 = || Options { dtype: Some(DType::F32), threads: Some(2), ..Options::default() };
    let setup = |name, options, batched, pool_tokens| Setup { name, options, batched, pool_tokens };
    vec![
        setup("one by one", f32(), false, None),
        setup("batched", f32(), true, None),
        setup("blocks of 8", Options { block_size: 8, ..f32() }, true, None),
        setup("blocks of 32", Options { block_size: 32, ..f32() }, true, None),
        setup(
            "chunks of 7",
            Options { scheduler: SchedulerOptions { max_batch_tokens: 7, ..f32().scheduler }, ..f32() },
            true,
            None,
        ),
        setup("drafts, one by one", drafting(f32(), 5), false, None),
        setup("drafts in a small pool, blocks of 8", drafting(Options { block_size: 8, ..f32() }, 3), true, Some(228)),
        // The longest prompt with four beams: 100 + 4 * 20 tokens, and a block of slack for each beam.
        setup("small pool", f32(), true, Some(100 + 4 * 20 + 5 * 16)),
        setup(
            "small pool, blocks of 8, chunks of 7",
            // With a prefix cache, requests would share blocks and fit without preemption.
            Options {
                block_size: 8,
                scheduler: SchedulerOptions { max_batch_tokens: 7, prefix_caching: false, ..f32().scheduler },
                ..f32()
            },
            true,
            Some(228),
        ),
    ]
}

/// Returns the options with drafts of up to `draft_tokens` tokens.
fn drafting(options: Options, draft_tokens: usize) -> Options {
    Options { scheduler: SchedulerOptions { draft_tokens, ..options.scheduler }, ..options }
}

fn load(model: &str, options: &Options, pool_tokens: Option<usize>) -> Llm {
    let files = ModelFiles::directory(golden_dir(model)).unwrap();
    // Use the CPU even if there is a GPU.
    let mut options = Options { device: Device::Cpu, ..options.clone() };
    if let Some(tokens) = pool_tokens {
        let block = Llm::load(&files, &options).unwrap().kv_layout().block_bytes();
        options.kv_memory = Some(tokens.div_ceil(options.block_size) * block);
    }
    Llm::load(&files, &options).unwrap()
}

fn greedy(ignore_eos: bool) -> SamplingParams {
    SamplingParams { max_tokens: 40, ignore_eos, logprobs: Some(5), ..SamplingParams::default() }
}

/// Runs the requests together or one by one, and returns the completions in order.
fn run(llm: &mut Llm, requests: &[(Prompt, SamplingParams)], batched: bool) -> Vec<Completion> {
    if !batched {
        return requests
            .iter()
            .flat_map(|(prompt, params)| llm.generate(std::slice::from_ref(prompt), params).unwrap())
            .collect();
    }
    complete(llm, requests.iter().cloned())
}

fn assert_matches_hugging_face(model: &str, setup: &Setup) {
    let golden = golden(model);
    let mut llm = load(model, &setup.options, setup.pool_tokens);
    let mut requests = Vec::new();
    for p in &golden.prompts {
        let prompt = || Prompt::Tokens(p.ids.clone());
        requests.push((Prompt::Text(p.text.clone()), greedy(true)));
        requests.push((prompt(), greedy(false)));
        requests.extend(p.beam.iter().map(|b| (prompt(), b.params())));
    }
    let mut done = run(&mut llm, &requests, setup.batched).into_iter();
    for p in &golden.prompts {
        let at = format!("{model}, {}, {}", setup.name, p.name);
        let c = done.next().unwrap();
        assert_eq!(c.prompt_tokens, p.ids, "{at}");
        assert_eq!(c.outputs[0].tokens, p.greedy.ids, "{at}");
        assert_eq!(c.outputs[0].text, p.greedy.text, "{at}");
        for (step, (got, want)) in c.outputs[0].logprobs.as_ref().unwrap().iter().zip(&p.greedy.top5).enumerate() {
            assert_eq!(got.top.len(), 5);
            for (k, ((id, logprob), (want_id, want_logprob))) in
                got.top.iter().zip(want.ids.iter().zip(&want.logprobs)).enumerate()
            {
                assert!(
                    (logprob - want_logprob).abs() < 1e-3,
                    "{at}, step {step}, top {k}: {logprob} is not {want_logprob}"
                );
                let tied = want.logprobs.iter().filter(|l| (**l - want_logprob).abs() < 2e-3).count() > 1;
                assert!(id == want_id || tied, "{at}, step {step}, top {k}: {id} is not {want_id}");
            }
            assert_eq!(got.logprob, got.top[0].1, "{at}: the greedy token is the likeliest");
        }
        assert_eq!(done.next().unwrap().outputs[0].tokens, p.greedy.ids_stopped_at_eos, "{at}");
        for b in &p.beam {
            let at = format!("{at}, beams (early {}, ignore eos {})", b.early_stopping, b.ignore_eos);
            let outputs = done.next().unwrap().outputs;
            assert_eq!(outputs.len(), b.sequences.len(), "{at}");
            for (got, want) in outputs.iter().zip(&b.sequences) {
                assert_eq!(got.tokens, want.ids, "{at}");
                let score = got.score.unwrap();
                assert!((score - want.score).abs() < 1e-3, "{at}: score {score} is not {}", want.score);
            }
        }
    }
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    // A sliding window frees blocks, which may leave enough room without preemption.
    let slides = llm.config().window().is_some();
    assert!(
        setup.pool_tokens.is_none() || slides || llm.stats().preemptions > 0,
        "{model}, {}: no request was preempted",
        setup.name
    );
}

/// Models that cannot be divided among this many workers, since their heads or feed-forward layers do not divide
/// evenly.
const INDIVISIBLE: &[(&str, usize)] = &[
    ("gpt2", 2),
    ("gpt2", 4),
    ("llama2", 2),
    ("llama2", 3),
    ("llama2", 4),
    ("llama3", 3),
    ("llama3-tied", 3),
    ("mistral", 3),
    ("opt-350m-like", 3),
    ("opt-350m-like", 4),
    ("opt-bin", 3),
    ("opt-bin", 4),
    ("opt-pre", 3),
    ("qwen2", 3),
    ("qwen2", 4),
    ("qwen3", 3),
    ("qwen3", 4),
];

fn assert_divided(model: &str) {
    for workers in [2, 3, 4] {
        let divided = |mut setup: Setup| {
            setup.options.tensor_parallel_size = workers;
            setup
        };
        if INDIVISIBLE.contains(&(model, workers)) {
            let files = ModelFiles::directory(golden_dir(model)).unwrap();
            let options = Options { device: Device::Cpu, tensor_parallel_size: workers, ..Options::default() };
            let error = Llm::load(&files, &options).err().unwrap().to_string();
            assert!(error.contains(&format!("cannot be divided among {workers} workers")), "{error}");
            continue;
        }
        // Test one large batch, and a small pool in which requests are swapped out, recomputed and computed in chunks.
        for setup in setups()
            .into_iter()
            .filter(|setup| ["batched", "small pool, blocks of 8, chunks of 7"].contains(&setup.name))
        {
            assert_matches_hugging_face(model, &divided(setup));
        }
    }
}

/// Asserts the logprobs of given texts. Each prefix is a request of its own, and all of a text run in one batch.
fn assert_teacher_forced(model: &str, golden: &Golden) {
    let mut llm = load(model, &Options { dtype: Some(DType::F32), ..Options::default() }, None);
    for text in &golden.teacher_forced {
        let params = SamplingParams { max_tokens: 1, logprobs: Some(100), ..SamplingParams::default() };
        let prefixes: Vec<_> = (1..=text.ids.len()).map(|n| Prompt::Tokens(text.ids[..n].to_vec())).collect();
        let done = llm.generate(&prefixes, &params).unwrap();
        for (i, c) in done.iter().enumerate() {
            assert_eq!(c.outputs[0].tokens, [text.argmax[i]], "{model}, position {i}");
            let top = &c.outputs[0].logprobs.as_ref().unwrap()[0].top;
            let next = text.ids.get(i + 1).and_then(|id| top.iter().find(|t| t.0 == *id));
            if let (Some((_, got)), Some(Some(want))) = (next, text.token_logprobs.get(i + 1)) {
                assert!((got - want).abs() < 1e-3, "{model}, position {i}: {got} is not {want}");
            }
        }
    }
}

/// Runs with weights in a 16-bit type. If they are stored in it, nothing is lost, since arithmetic and KV cache are
/// f32. If they must be rounded, the drift stays within Hugging Face's drift for the same weights and 16-bit
/// arithmetic.
fn assert_half(model: &str, golden: &Golden, dtype: DType) {
    let record = if dtype == DType::F16 { &golden.half.float16 } else { &golden.half.bfloat16 };
    let most = record.prompts.iter().map(|p| p.token_logprob_drift_max).fold(0.0, f32::max);
    let options = Options { dtype: Some(dtype), ..Options::default() };
    assert_drift(model, golden, &options, if record.native { 40 } else { 1 }, if record.native { 1e-3 } else { most });
}

/// Runs with weights and KV cache in the type of the stored weights, if it has 16 bits. At least ten tokens are equal,
/// as Hugging Face guarantees for these fixtures, and the drift is within the recorded one.
fn assert_half_kv(model: &str, golden: &Golden) {
    let halves = [(DType::F16, &golden.half.float16), (DType::Bf16, &golden.half.bfloat16)];
    for (dtype, record) in halves.into_iter().filter(|(_, record)| record.native) {
        let options = Options { kv_dtype: Some(dtype.into()), ..Options::default() };
        let most = record.prompts.iter().map(|p| p.token_logprob_drift_max).fold(0.0, f32::max);
        assert_drift(model, golden, &options, 10, most);
    }
}

/// Asserts that at least `equal` greedy tokens equal the f32 tokens, and that the logprobs of all equal tokens differ
/// by at most `most`.
fn assert_drift(model: &str, golden: &Golden, options: &Options, equal: usize, most: f32) {
    let mut llm = load(model, options, None);
    for p in &golden.prompts {
        let done = llm.generate(&[Prompt::Tokens(p.ids.clone())], &greedy(true)).unwrap();
        let output = &done[0].outputs[0];
        let same = output.tokens.iter().zip(&p.greedy.ids).take_while(|(a, b)| a == b).count();
        let at = format!("{model}, {:?}, {:?}, {}", options.dtype, options.kv_dtype, p.name);
        assert!(same >= equal, "{at}: {same} tokens equal, not {equal}");
        for (step, got) in output.logprobs.as_ref().unwrap().iter().take(same).enumerate() {
            let drift = (got.logprob - p.greedy.top5[step].logprobs[0]).abs();
            assert!(drift <= most, "{at}, step {step}: drift {drift} is above {most}");
        }
    }
}

/// Mistral's sliding window has 24 tokens, which occupy at most three blocks.
#[test]
fn a_pool_that_just_holds_the_window_is_enough() {
    let options = Options { dtype: Some(DType::F32), threads: Some(2), ..Options::default() };
    let (mut tight, mut roomy) = (load("mistral", &options, Some(3 * 16)), load("mistral", &options, None));
    let golden = golden("mistral");
    let requests: Vec<_> = golden.prompts.iter().map(|p| (Prompt::Tokens(p.ids.clone()), greedy(true))).collect();
    for (p, c) in golden.prompts.iter().zip(run(&mut tight, &requests, true)) {
        assert_eq!(c.outputs[0].tokens, p.greedy.ids, "{}", p.name);
    }
    let long = SamplingParams { max_tokens: 380, logprobs: None, ..greedy(true) };
    let requests: Vec<_> = golden.prompts.iter().map(|p| (Prompt::Tokens(p.ids.clone()), long.clone())).collect();
    for (tight, roomy) in run(&mut tight, &requests, true).iter().zip(run(&mut roomy, &requests, false)) {
        assert_eq!(tight.outputs[0].tokens, roomy.outputs[0].tokens);
        assert_eq!(tight.outputs[0].tokens.len(), 380);
    }
    assert_eq!((tight.stats().exhausted, tight.stats().peak.used_blocks), (0, 3));
}

#[test]
fn a_stop_string_among_byte_tokens_ends_the_output_at_once() {
    let prompt = &golden("llama2").prompts[0];
    let mut llm = load("llama2", &Options::default(), None);
    for max_tokens in [40, 1] {
        // The text begins with the bytes 0x65, which is "e", and 0x83, which is not a character.
        let params = SamplingParams { max_tokens, stop: vec!["e".into()], ..greedy(true) };
        let done = llm.generate(&[Prompt::Tokens(prompt.ids.clone())], &params).unwrap();
        let output = &done[0].outputs[0];
        assert_eq!((output.tokens.as_slice(), output.text.as_str()), (&prompt.greedy.ids[..1], ""));
        assert_eq!(output.finish_reason, FinishReason::Stop);
    }
}

/// Measures the additional error of `round_activations` on models that are stored in bf16 (see BENCHMARKS.md). If the
/// processor cannot multiply pairs of bf16 numbers, the option changes nothing and a note says so.
#[test]
fn rounded_activations_change_logprobs_by_little() {
    let mut models = 0;
    for model in MODELS {
        let options = Options { threads: Some(2), round_activations: true, ..Options::default() };
        let mut exact = load(model, &Options { round_activations: false, ..options.clone() }, None);
        let mut rounded = load(model, &options, None);
        if exact.device().dtype != DType::Bf16 {
            continue;
        }
        models += 1;
        let texts = texts(model);
        let (mean, greatest) = difference(&scores(&mut exact, &texts), &scores(&mut rounded, &texts));
        println!("| {model} | {mean:.4} | {greatest:.4} |");
        assert!(mean < 0.05 && greatest < 0.5, "{model}: logprobs change by {mean}, {greatest} at most");
        let says_so = rounded.device().notes.iter().any(|note| note.contains("bf16"));
        assert_eq!(says_so, greatest == 0.0, "{model}: {:?}", rounded.device().notes);
    }
    assert!(models > 1);
}

macro_rules! golden_tests {
    ($($name:ident: $model:literal,)*) => {
        $(mod $name {
            #[test]
            fn equals_hugging_face() {
                for setup in super::setups() {
                    super::assert_matches_hugging_face($model, &setup);
                }
            }

            #[test]
            fn divided_among_workers_equals_hugging_face() {
                super::assert_divided($model);
            }

            #[test]
            fn scores_given_texts() {
                super::assert_teacher_forced($model, &super::golden($model));
            }

            #[test]
            fn half_precision_stays_within_the_recorded_drift() {
                let golden = super::golden($model);
                super::assert_half($model, &golden, super::DType::F16);
                super::assert_half($model, &golden, super::DType::Bf16);
                super::assert_half_kv($model, &golden);
            }
        })*

        #[test]
        fn no_model_is_left_out() {
            assert_eq!([$($model),*], MODELS);
        }
    };
}

tests::each_model!(golden_tests);
