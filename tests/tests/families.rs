//! The families with windows, shared caches and unusual blocks give the outputs of Hugging Face transformers, and the
//! same bits however requests are batched, cut, preempted, forked or served from cached prefixes.
//!
//! The environment variable `QUIRE_FAMILIES` may name a directory of models to test instead of the committed ones.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::Path;

use engine::DType;
use engine::KvDtype;
use engine::ModelFiles;
use engine::tools::config::{LayerMemory, ModelConfig, ModelFamily};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Continuation, Device, Llm, Options, Preemption, Prompt, SchedulerOptions};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tests::complete;
use tests::families::{FAMILIES, FamilyGolden, FamilyPrompt, committed_dir, family_dir, family_golden, tolerance};
use tests::scores::{FileTensor, scores, write};

/// Tokens of each answer that are compared with transformers. Other seeds may have more.
fn steps(golden: &FamilyGolden) -> usize {
    golden.prompts[0].greedy.ids.len()
}

fn one_by_one() -> Options {
    // The integrity check after each step takes time in proportion to the pool.
    let kv_memory = Some(24 << 20);
    Options { device: Device::Cpu, dtype: Some(DType::F32), threads: Some(1), kv_memory, ..Options::default() }
}

fn load(family: &str, options: &Options) -> Llm {
    load_from(&family_dir(family), options)
}

fn load_from(directory: &Path, options: &Options) -> Llm {
    let files = ModelFiles::directory(directory).unwrap();
    Llm::load(&files, options).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, logprobs: Some(5), ..SamplingParams::default() }
}

fn tokens(ids: &[u32]) -> Prompt {
    Prompt::Tokens(ids.to_vec())
}

/// Answers one request and returns its outputs.
fn answer(llm: &mut Llm, ids: &[u32], params: &SamplingParams) -> Vec<Continuation> {
    complete(llm, [(tokens(ids), params.clone())]).remove(0).outputs
}

/// Asserts that an output has the recorded tokens, and logprobs within `allowed` of the recorded ones.
fn assert_recorded(at: &str, output: &Continuation, prompt: &FamilyPrompt, allowed: f32) {
    assert_eq!(output.tokens, prompt.greedy.ids, "{at}, {}", prompt.name);
    let logprobs = output.logprobs.as_ref().unwrap();
    assert_eq!(logprobs.len(), prompt.greedy.top5.len(), "{at}, {}", prompt.name);
    for (step, (got, want)) in logprobs.iter().zip(&prompt.greedy.top5).enumerate() {
        let at = format!("{at}, {}, step {step}", prompt.name);
        assert_eq!((got.top.len(), got.logprob), (5, got.top[0].1), "{at}");
        for (k, ((id, logprob), (want_id, want_logprob))) in
            got.top.iter().zip(want.ids.iter().zip(&want.logprobs)).enumerate()
        {
            let off = (logprob - want_logprob).abs();
            assert!(off < allowed, "{at}, top {k}: {logprob} is not {want_logprob}");
            let is_tied = want.logprobs.iter().filter(|l| (**l - want_logprob).abs() < 2.0 * allowed).count() > 1;
            // The sixth token may be as likely as the fifth.
            assert!(id == want_id || is_tied || k == 4, "{at}, top {k}: {id} is not {want_id}");
        }
    }
}

fn assert_matches_hugging_face(family: &str, at: &str, llm: &mut Llm) {
    let golden = family_golden(&family_dir(family));
    let allowed = tolerance(family, &golden);
    for prompt in &golden.prompts {
        let output = answer(llm, &prompt.ids, &greedy(steps(&golden))).remove(0);
        assert_recorded(&format!("{family}, {at}"), &output, prompt, allowed);
    }
}

/// Each of two workers has half of the experts.
#[test]
fn workers_can_have_whole_experts() {
    let options = Options { tensor_parallel_size: 2, expert_parallel: true, ..one_by_one() };
    for family in ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "gemma4-moe", "granitemoe", "deepseek3"] {
        assert_matches_hugging_face(family, "whole experts on two workers", &mut load(family, &options));
    }
    for tensor_parallel_size in [1, 2] {
        let options = Options { tensor_parallel_size, ..options.clone() };
        let files = ModelFiles::directory(family_dir("granite")).unwrap();
        let error = Llm::load(&files, &options).err().unwrap().to_string();
        assert!(error.contains("expert-parallel: the model has no experts"), "{error}");
    }
}

/// Requests of every kind for each prompt: greedy, three equal greedy outputs, three samples, and a beam search.
fn requests(golden: &FamilyGolden) -> Vec<(Prompt, SamplingParams)> {
    let greedy = greedy(steps(golden));
    let beam = Some(Beam { width: 3, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let methods = [
        greedy.clone(),
        SamplingParams { n: 3, best_of: 3, ..greedy.clone() },
        SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(7), ..greedy.clone() },
        SamplingParams { n: 3, best_of: 3, beam, max_tokens: 12, ..greedy },
    ];
    golden.prompts.iter().flat_map(|p| methods.iter().map(|m| (tokens(&p.ids), m.clone()))).collect()
}

/// A way of running the same requests.
struct Setup {
    name: &'static str,
    options: Options,
    /// Whether the requests preempt each other.
    is_tight: bool,
}

/// Bytes of the keys and values of `tokens` tokens in all layers, and of the states of four sequences. In 8 bits, each head
/// also has a scale of two bytes.
fn kv_bytes(config: &ModelConfig, kv_dtype: KvDtype, tokens: usize) -> usize {
    let head = |elements: usize| match kv_dtype {
        KvDtype::Float(dtype) => elements * dtype.size(),
        KvDtype::Int8 | KvDtype::Fp8 => elements + 2,
    };
    let bytes = |(i, layer): (usize, LayerMemory)| match layer {
        LayerMemory::Kv(kv) if kv.source == i => {
            let vectors = if kv.latent.is_some() { 1 } else { 2 };
            vectors * kv.heads * head(kv.head_dim) * tokens
        }
        LayerMemory::Kv(_) => 0,
        LayerMemory::State { elements } => 4 * elements * size_of::<f32>(),
    };
    config.memory_layers().into_iter().enumerate().map(bytes).sum()
}

fn setups(config: &ModelConfig, kv_dtype: KvDtype) -> Vec<Setup> {
    let scheduler = |max_batch_tokens, preemption, draft_tokens| SchedulerOptions {
        max_batch_tokens,
        preemption,
        draft_tokens,
        ..SchedulerOptions::default()
    };
    let roomy = |block_size, max_batch_tokens, draft_tokens| Options {
        block_size,
        scheduler: scheduler(max_batch_tokens, Preemption::Auto, draft_tokens),
        kv_dtype: Some(kv_dtype),
        ..one_by_one()
    };
    // The longest prompt has 100 tokens, and each of its three outputs may have 40. With cached prefixes, requests would
    // share blocks and fit without preemption.
    let tight = |block_size, max_batch_tokens, preemption| Options {
        block_size,
        kv_memory: Some(kv_bytes(config, kv_dtype, 100 + 3 * 40 + 4 * block_size)),
        kv_dtype: Some(kv_dtype),
        scheduler: SchedulerOptions { prefix_caching: false, ..scheduler(max_batch_tokens, preemption, 0) },
        ..one_by_one()
    };
    let setup = |name, options, is_tight| Setup { name, options, is_tight };
    vec![
        setup("batched", roomy(16, 2048, 0), false),
        setup("blocks of 8", roomy(8, 2048, 0), false),
        setup("blocks of 32, two threads", Options { threads: Some(2), ..roomy(32, 2048, 0) }, false),
        setup("chunks of 7", roomy(16, 7, 0), false),
        setup("blocks of 8, chunks of 21", roomy(8, 21, 0), false),
        setup("drafts", roomy(8, 2048, 4), false),
        setup("drafts, chunks of 9", roomy(16, 9, 3), false),
        setup("swapped", tight(8, 40, Preemption::Swap), true),
        setup("swapped, blocks of 16", tight(16, 2048, Preemption::Swap), true),
        setup("recomputed", tight(8, 40, Preemption::Recompute), true),
        setup("recomputed, blocks of 32", tight(32, 2048, Preemption::Recompute), true),
    ]
}

/// Loads a model with a pool that grows until it can hold each request alone. Its pages may be large, because a page is
/// divided into whole blocks of each group of layers.
fn load_tight(family: &str, options: &Options, requests: &[(Prompt, SamplingParams)]) -> Llm {
    let mut options = options.clone();
    for _ in 0..12 {
        let files = ModelFiles::directory(family_dir(family)).unwrap();
        if let Ok(mut llm) = Llm::load(&files, &options)
            && requests.iter().all(|(prompt, params)| llm.add(prompt, params.clone()).map(|id| llm.abort(id)).is_ok())
        {
            return load(family, &options);
        }
        options.kv_memory = options.kv_memory.map(|bytes| bytes * 5 / 4);
    }
    panic!("{family}: {options:?} is not enough")
}

fn assert_preempted(at: &str, llm: &Llm, preemption: Preemption) {
    let stats = llm.stats();
    assert!(stats.preemptions > 0, "{at}: no request was preempted");
    match preemption {
        Preemption::Swap => assert!(stats.swapped_in_blocks > 0, "{at}: nothing was swapped"),
        Preemption::Recompute => assert_eq!(stats.swapped_out, 0, "{at}"),
        Preemption::Auto => {}
    }
}

/// The number of [`setups`].
const SETUPS: usize = 11;
/// Setups for caches of eight bits: batches, chunks with drafts, and both kinds of preemption.
const EIGHT_BIT_SETUPS: [usize; 4] = [0, 6, 7, 9];

/// Returns the position of a family. Samples depend on it. Together, all families run every setup.
fn position(family: &str) -> usize {
    FAMILIES.iter().position(|name| *name == family).unwrap()
}

/// Runs every request alone, and then all of them together in each of the setups whose position is in `which`.
fn assert_same_bits(family: &str, kv_dtype: KvDtype, which: &[usize]) {
    let golden = family_golden(&family_dir(family));
    let requests = requests(&golden);
    let scheduler = SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() };
    let mut alone = load(family, &Options { scheduler, kv_dtype: Some(kv_dtype), ..one_by_one() });
    let outputs = |request: &(Prompt, SamplingParams)| complete(&mut alone, [request.clone()]).remove(0).outputs;
    let want: Vec<Vec<Continuation>> = requests.iter().map(outputs).collect();
    assert_eq!(alone.stats().preemptions, 0);
    for (outputs, (_, params)) in want.iter().zip(&requests) {
        let is_greedy = params.temperature == 0.0 && params.beam.is_none();
        assert!(!is_greedy || outputs.iter().all(|output| output == &outputs[0]), "{family}: greedy outputs are equal");
    }
    let setups = setups(alone.config(), kv_dtype);
    assert_eq!(setups.len(), SETUPS);
    for setup in which.iter().map(|i| &setups[*i]) {
        let at = format!("{family}, {kv_dtype}, {}", setup.name);
        let mut llm = load_tight(family, &setup.options, &requests);
        let done: Vec<Completion> = complete(&mut llm, requests.iter().cloned());
        for ((done, want), (_, params)) in done.iter().zip(&want).zip(&requests) {
            assert!(done.outputs == *want, "{at}: {} prompt tokens, {params:?}", done.prompt_tokens.len());
        }
        if setup.is_tight {
            assert_preempted(&at, &llm, setup.options.scheduler.preemption);
        }
    }
}

/// Beams and samples have the logprobs that the model gives their tokens when they are part of a prompt.
fn assert_outputs_are_scored(family: &str) {
    let directory = family_dir(family);
    let golden = family_golden(&directory);
    let mut llm = load(family, &one_by_one());
    for (prompt, params) in requests(&golden).into_iter().filter(|(_, params)| params.n > 1) {
        let Prompt::Tokens(ids) = &prompt else { unreachable!() };
        for output in answer(&mut llm, ids, &params) {
            let text = [ids.as_slice(), &output.tokens].concat();
            if llm.config().regime_boundary().is_some_and(|boundary| (ids.len()..text.len()).contains(&boundary)) {
                // The text is long as a whole, but the first tokens were generated while it was short.
                continue;
            }
            let scored = scores(&mut llm, &[text]);
            let sum: f64 = scored[ids.len() - 1..].iter().map(|logprob| f64::from(*logprob)).sum();
            let off = (sum - output.cumulative_logprob).abs();
            // A sample has the logprobs of the model, before the temperature.
            assert!(off < 1e-3, "{family}, {params:?}: {sum} is not {}", output.cumulative_logprob);
        }
    }
}

/// Sizes of blocks and maximum tokens per step with a prefix cache.
const CACHED: [(usize, usize); 3] = [(8, 2048), (16, 11), (32, 2048)];

/// A prefix hit has the same bits as a miss: of a prompt, of a prompt with its answer, and of a part of a prompt.
fn assert_hits_equal_misses(family: &str, sizes: &[(usize, usize)]) {
    let golden = family_golden(&family_dir(family));
    let params = greedy(steps(&golden));
    let plain = SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() };
    for &(block_size, max_batch_tokens) in sizes {
        let at = format!("{family}, blocks of {block_size}, chunks of {max_batch_tokens}");
        let options = |scheduler| Options { block_size, scheduler, ..one_by_one() };
        let caching = SchedulerOptions { prefix_caching: true, max_batch_tokens, ..plain };
        let (mut misses, mut hits) = (load(family, &options(plain)), load(family, &options(caching)));
        for prompt in &golden.prompts {
            let whole = [prompt.ids.as_slice(), &prompt.greedy.ids, &[7, 9, 11]].concat();
            let half = &whole[..prompt.ids.len().div_ceil(2)];
            for text in [&prompt.ids, &prompt.ids, &whole, &whole, half] {
                let want = answer(&mut misses, text, &params);
                let got = answer(&mut hits, text, &params);
                assert!(got == want, "{at}: {} tokens of {}", text.len(), prompt.name);
            }
        }
        assert_eq!(misses.stats().hit_tokens, 0, "{at}");
        assert!(hits.stats().hit_tokens > 100, "{at}: {} tokens were hits", hits.stats().hit_tokens);
    }
}

/// The same if the blocks of a conversation's first turn are evicted to the swap space, and come back from it for the
/// second turn. The pool holds little more than one request.
fn assert_swapped_hits_equal_misses(family: &str) {
    let golden = family_golden(&family_dir(family));
    let params = greedy(steps(&golden));
    let scheduler = SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() };
    let mut misses = load(family, &Options { scheduler, block_size: 8, ..one_by_one() });
    // The longest second turn: a prompt of 109 tokens, two answers, and some blocks of slack.
    let tokens = 109 + 2 * steps(&golden) + 4 * 8;
    // A pool without spare room keeps no states.
    let has_states = misses.config().memory_layers().iter().any(|layer| layer.kv().is_none());
    let slack = if has_states { 3 } else { 1 };
    let kv_memory = Some(slack * kv_bytes(misses.config(), KvDtype::Float(DType::F32), tokens));
    let longest = vec![(Prompt::Tokens(vec![5; 109 + steps(&golden)]), params.clone())];
    let mut hits = load_tight(family, &Options { kv_memory, block_size: 8, ..one_by_one() }, &longest);
    // Together the texts need several times the memory of the pool, even in layers without a window alone.
    let texts: Vec<Vec<u32>> = (0..6)
        .flat_map(|first| {
            golden.prompts.iter().map(move |p| [&[10 + first], p.ids.as_slice(), &p.greedy.ids[..8]].concat())
        })
        .collect();
    let mut assert_equal = |text: &[u32]| {
        let (want, got) = (answer(&mut misses, text, &params), answer(&mut hits, text, &params));
        assert!(got == want, "{family}, {} tokens", text.len());
        [text, &want[0].tokens, &[7, 9]].concat()
    };
    let next_turns: Vec<Vec<u32>> = texts.iter().map(|text| assert_equal(text)).collect();
    // Backwards, the first texts are in the pool, the next ones in the swap space, and the last ones are lost.
    for text in next_turns.iter().rev() {
        assert_equal(text);
    }
    // If all layers have a window, many requests fit the pool.
    if misses.config().kv_layers().iter().all(|layer| layer.window.is_some()) {
        return;
    }
    let stats = hits.stats();
    assert!(stats.offloaded_blocks > 0, "{family}: no block was moved to the swap space");
    assert!(stats.restored_blocks > 0, "{family}: no block came back from the swap space");
}

/// Families with windows, shared caches, sinks, latent vectors and states, and one without any of these.
#[test]
fn a_prefix_hit_from_the_swap_space_equals_a_miss_in_a_sample_of_families() {
    for family in ["gemma3", "gemma4-e", "gpt-oss", "olmo2", "deepseek2", "qwen3.5", "granite4"] {
        assert_swapped_hits_equal_misses(family);
    }
}

/// Two workers each have a part of the heads, or a copy of the heads that cannot be divided.
fn assert_divided(family: &str) {
    let golden = family_golden(&family_dir(family));
    let scheduler = SchedulerOptions { max_batch_tokens: 21, ..SchedulerOptions::default() };
    let options = Options { tensor_parallel_size: 2, block_size: 8, scheduler, ..one_by_one() };
    let mut llm = load(family, &options);
    assert_matches_hugging_face(family, "two workers", &mut llm);
    let requests = golden.prompts.iter().map(|p| (tokens(&p.ids), greedy(steps(&golden))));
    let done = complete(&mut llm, requests);
    for (done, prompt) in done.iter().zip(&golden.prompts) {
        assert_recorded(
            &format!("{family}, two workers, batched"),
            &done.outputs[0],
            prompt,
            tolerance(family, &golden),
        );
    }
}

/// Files on the hub and files of transformers 5 spell a configuration differently.
#[test]
fn both_spellings_of_a_configuration_are_equal() {
    for family in FAMILIES {
        let [one, other] = ["config.json", "other.json"].map(|name| {
            let text = fs::read(committed_dir(family).join(name)).unwrap();
            ModelConfig::from_json(&text).unwrap_or_else(|error| panic!("{family}, {name}: {error}"))
        });
        assert_eq!(one, other, "{family}");
    }
}

#[test]
fn a_model_loads_with_the_other_spelling() {
    for family in FAMILIES {
        let directory = tempfile::tempdir().unwrap();
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(committed_dir(family).join(file), directory.path().join(file)).unwrap();
        }
        fs::copy(committed_dir(family).join("other.json"), directory.path().join("config.json")).unwrap();
        let mut llm = load_from(directory.path(), &one_by_one());
        let golden = family_golden(&committed_dir(family));
        let prompt = &golden.prompts[4];
        let output = answer(&mut llm, &prompt.ids, &greedy(steps(&golden))).remove(0);
        assert_recorded(&format!("{family}, other spelling"), &output, prompt, tolerance(family, &golden));
    }
}

/// Writes a model whose experts have tensors of their own with one tensor for all experts, or the other way around.
fn with_other_experts(family: &str, directory: &Path) {
    let own = committed_dir(family);
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(own.join(file), directory.join(file)).unwrap();
    }
    let weights = fs::read(own.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let config = ModelFiles::directory(&own).unwrap().config().unwrap();
    let ModelFamily::Decoder(decoder) = &config.family else { unreachable!() };
    let mut tensors: Vec<FileTensor> = Vec::new();
    for (name, view) in weights.tensors().into_iter().filter(|(name, _)| !name.contains(".experts.")) {
        tensors.push((name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    }
    for (i, layer) in decoder.layers.iter().enumerate() {
        let Some(experts) = layer.experts else { continue };
        let of_layer = |name: &str| name.starts_with(&format!("model.layers.{i}.")) && name.contains(".experts.");
        let found: Vec<_> = weights.tensors().into_iter().filter(|(name, _)| of_layer(name)).collect();
        let place = found[0].0.split(".experts.").next().unwrap().to_owned() + ".experts";
        let bytes = |part: &str| {
            found.iter().find(|(name, _)| *name == format!("{place}.{part}")).map(|(_, v)| v.data().to_vec())
        };
        let (inner, hidden) = (experts.inner, config.hidden);
        if let (Some(gate_up), Some(down)) = (bytes("gate_up_proj"), bytes("down_proj")) {
            let size = down.len() / experts.count;
            for e in 0..experts.count {
                let halves = gate_up[2 * e * size..].chunks(size);
                for (part, data) in ["gate_proj", "up_proj"].into_iter().zip(halves) {
                    tensors.push((
                        format!("{place}.{e}.{part}.weight"),
                        Dtype::BF16,
                        vec![inner, hidden],
                        data.to_vec(),
                    ));
                }
                let data = down[e * size..][..size].to_vec();
                tensors.push((format!("{place}.{e}.down_proj.weight"), Dtype::BF16, vec![hidden, inner], data));
            }
            continue;
        }
        let one =
            |e: usize, names: [&str; 2]| names.iter().find_map(|part| bytes(&format!("{e}.{part}.weight"))).unwrap();
        let gate_up = |e| [one(e, ["gate_proj", "w1"]), one(e, ["up_proj", "w3"])].concat();
        let gate_up: Vec<u8> = (0..experts.count).flat_map(gate_up).collect();
        let down: Vec<u8> = (0..experts.count).flat_map(|e| one(e, ["down_proj", "w2"])).collect();
        tensors.push((format!("{place}.gate_up_proj"), Dtype::BF16, vec![experts.count, 2 * inner, hidden], gate_up));
        tensors.push((format!("{place}.down_proj"), Dtype::BF16, vec![experts.count, hidden, inner], down));
    }
    write(directory, &tensors);
}

/// Files on the hub have tensors for each expert. Files of transformers 5 have one for all experts of a layer.
#[test]
fn experts_in_one_tensor_equal_experts_in_several() {
    for family in ["mixtral", "qwen2-moe", "qwen3-moe", "gemma4-moe"] {
        let directory = tempfile::tempdir().unwrap();
        with_other_experts(family, directory.path());
        let golden = family_golden(&committed_dir(family));
        let [got, want] = [directory.path(), &committed_dir(family)].map(|directory| {
            let mut llm = load_from(directory, &one_by_one());
            answer(&mut llm, &golden.prompts[3].ids, &greedy(steps(&golden)))
        });
        assert!(got == want, "{family}");
    }
}

/// Writes a committed model as the text part of a checkpoint that also has a vision model. `prefix` precedes the names of
/// the text model's tensors.
fn multimodal(family: &str, class: &str, prefix: &str, directory: &Path) {
    let own = committed_dir(family);
    let mut config: Value = serde_json::from_slice(&fs::read(own.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("architectures");
    let config = json!({"architectures": [class], "text_config": config, "vision_config": {"hidden_size": 8}});
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(own.join(file), directory.join(file)).unwrap();
    }
    let weights = fs::read(own.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let mut tensors: Vec<FileTensor> = Vec::new();
    for (name, view) in weights.tensors() {
        let name = name.strip_prefix("model.").map_or_else(|| name.clone(), |rest| format!("{prefix}{rest}"));
        tensors.push((name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    }
    for other in ["vision_tower.patch.weight", "mtp.norm.weight"] {
        tensors.push((other.into(), Dtype::F32, vec![2], vec![0; 8]));
    }
    write(directory, &tensors);
}

#[test]
fn the_text_part_of_a_multimodal_checkpoint_is_loaded_and_a_note_says_so() {
    for (family, class) in [
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("gemma4", "Gemma4ForConditionalGeneration"),
        ("gemma4-e", "Gemma4ForConditionalGeneration"),
        ("gemma4-moe", "Gemma4ForConditionalGeneration"),
        ("qwen3.5", "Qwen3_5ForConditionalGeneration"),
        ("qwen3.5-moe", "Qwen3_5MoeForConditionalGeneration"),
    ] {
        for prefix in ["language_model.model.", "model.language_model."] {
            let directory = tempfile::tempdir().unwrap();
            multimodal(family, class, prefix, directory.path());
            let mut llm = load_from(directory.path(), &one_by_one());
            let notes = &llm.device().notes;
            assert!(notes.iter().any(|note| note.contains("text")), "{family}: {notes:?}");
            let golden = family_golden(&committed_dir(family));
            let output = answer(&mut llm, &golden.prompts[3].ids, &greedy(steps(&golden))).remove(0);
            assert_recorded(class, &output, &golden.prompts[3], tolerance(family, &golden));
        }
        let plain = load_from(&committed_dir(family), &one_by_one());
        assert!(plain.device().notes.is_empty(), "{:?}", plain.device().notes);
    }
}

#[test]
fn configurations_that_contradict_themselves_are_refused_in_one_sentence() {
    let cases: [(&str, Value, &[&str]); 18] = [
        ("gemma4", json!({"layer_types": vec!["sliding_attention"; 3]}), &["layer_types", "3", "4"]),
        ("olmo3", json!({"layer_types": vec!["full_attention"; 5]}), &["layer_types", "5", "4"]),
        ("gemma4", json!({"sliding_window": 0}), &["sliding_window"]),
        ("cohere2", json!({"sliding_window": 0}), &["sliding_window"]),
        ("gemma2", json!({"sliding_window": 0}), &["sliding_window"]),
        ("gemma4-e", json!({"num_kv_shared_layers": 4}), &["layer"]),
        ("gemma4-e", json!({"num_kv_shared_layers": 9}), &["layer"]),
        ("gemma3", json!({"use_bidirectional_attention": true}), &["use_bidirectional_attention"]),
        ("gemma4", json!({"enable_moe_block": true}), &["enable_moe_block"]),
        ("mixtral", json!({"num_experts_per_tok": 5}), &["5", "4", "experts"]),
        ("granitemoe", json!({"num_local_experts": 0}), &["experts", "zero"]),
        ("qwen3-moe", json!({"num_experts_per_tok": 0}), &["0", "8", "experts"]),
        ("qwen2-moe", json!({"shared_expert_intermediate_size": 0}), &["shared expert", "zero"]),
        ("deepseek2", json!({"n_group": 3}), &["8 experts", "3 groups"]),
        ("deepseek3", json!({"topk_group": 3}), &["3 of 2", "groups"]),
        ("deepseek2", json!({"topk_method": "other"}), &["topk_method", "other"]),
        ("deepseek3", json!({"kv_lora_rank": 0}), &["kv_lora_rank", "zero"]),
        ("gemma4-moe", json!({"top_k_experts": 7}), &["7", "6", "experts"]),
    ];
    for (family, change, words) in cases {
        let mut config: Value =
            serde_json::from_slice(&fs::read(committed_dir(family).join("config.json")).unwrap()).unwrap();
        change.as_object().unwrap().iter().for_each(|(name, value)| config[name] = value.clone());
        let error = match ModelConfig::from_json(config.to_string().as_bytes()) {
            Ok(_) => panic!("{family}, {change}: it is accepted"),
            Err(error) => error.to_string(),
        };
        assert!(words.iter().all(|word| error.contains(word)), "{family}, {change}: {error}");
        assert!(!error.contains('\n') && error.len() < 300, "{family}, {change}: {error}");
    }
}

macro_rules! family_tests {
    ($($name:ident: $family:literal,)*) => {
        $(mod $name {
            #[test]
            fn equals_hugging_face() {
                let mut llm = super::load($family, &super::one_by_one());
                super::assert_matches_hugging_face($family, "one by one", &mut llm);
            }

            #[test]
            fn outputs_do_not_depend_on_a_sample_of_schedules() {
                let sample = [0, 4, 7].map(|i| (i + super::position($family)) % super::SETUPS);
                super::assert_same_bits($family, super::KvDtype::Float(super::DType::F32), &sample);
            }

            #[test]
            #[ignore = "takes a few seconds; a part of `.ci/run nightly`"]
            fn outputs_do_not_depend_on_scheduling() {
                let all: Vec<usize> = (0..super::SETUPS).collect();
                super::assert_same_bits($family, super::KvDtype::Float(super::DType::F32), &all);
            }

            #[test]
            fn outputs_of_eight_bit_caches_do_not_depend_on_a_sample_of_schedules() {
                let at = super::position($family);
                let dtype = [super::KvDtype::Int8, super::KvDtype::Fp8][at % 2];
                let sample = [0, 2].map(|i| super::EIGHT_BIT_SETUPS[(i + at / 2) % 4]);
                super::assert_same_bits($family, dtype, &sample);
            }

            #[test]
            #[ignore = "takes a few seconds; a part of `.ci/run nightly`"]
            fn outputs_of_eight_bit_caches_do_not_depend_on_scheduling() {
                for dtype in [super::KvDtype::Int8, super::KvDtype::Fp8] {
                    super::assert_same_bits($family, dtype, &super::EIGHT_BIT_SETUPS);
                }
            }

            #[test]
            fn outputs_have_the_scores_of_their_tokens() {
                super::assert_outputs_are_scored($family);
            }

            #[test]
            fn a_prefix_hit_equals_a_miss() {
                super::assert_hits_equal_misses($family, &[super::CACHED[super::position($family) % 3]]);
            }

            #[test]
            #[ignore = "takes a second; a part of `.ci/run nightly`"]
            fn a_prefix_hit_equals_a_miss_in_blocks_of_all_sizes() {
                super::assert_hits_equal_misses($family, &super::CACHED);
            }

            #[test]
            #[ignore = "takes a second; a part of `.ci/run nightly`"]
            fn a_prefix_hit_from_the_swap_space_equals_a_miss() {
                super::assert_swapped_hits_equal_misses($family);
            }

            #[test]
            fn two_workers_equal_hugging_face() {
                super::assert_divided($family);
            }
        })*

        #[test]
        fn no_family_is_left_out() {
            assert_eq!([$($family),*], FAMILIES);
        }
    };
}

tests::each_family!(family_tests);
