//! Models in GGUF files give the same tokens as the original models in Hugging Face transformers.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::path::{Path, PathBuf};

use engine::DType;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::tools::load::gguf::FileType;
use engine::tools::quantised::QuantType;
use engine::tools::tokenizer::Tokenizer;
use engine::{Device, Llm, Options, Prompt};
use tests::scores::{dequantised, difference, perplexity, scores, stories, texts};
use tests::{complete, golden, golden_dir};

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf").join(file)
}

fn load(files: &ModelFiles) -> Llm {
    let options = Options { device: Device::Cpu, threads: Some(2), ..Options::default() };
    Llm::load(files, &options).unwrap()
}

fn assert_same_tokens(model: &str, file: &str) {
    let mut llm = load(&ModelFiles::gguf(fixture(file)).unwrap());
    let golden = golden(model);
    let params = SamplingParams { max_tokens: 40, ignore_eos: true, ..SamplingParams::default() };
    let requests = golden.prompts.iter().map(|p| (Prompt::Text(p.text.clone()), params.clone()));
    let done = complete(&mut llm, requests);
    assert_eq!(done.len(), golden.prompts.len());
    for (c, p) in done.iter().zip(&golden.prompts) {
        assert_eq!(c.prompt_tokens, p.ids, "{model}, {}", p.name);
        assert_eq!(c.outputs[0].tokens, p.greedy.ids, "{model}, {}", p.name);
        assert_eq!(c.outputs[0].text, p.greedy.text, "{model}, {}", p.name);
    }
}

/// Both models have the same weights, so only the rounding of activations differs.
#[test]
fn k_quants_differ_from_their_elements_by_the_rounding_of_activations() {
    let files = ModelFiles::gguf(fixture("k-quants.gguf")).unwrap();
    let kinds = files.weights(None).unwrap();
    let mut kinds: Vec<String> = kinds.quantised().iter().map(QuantType::to_string).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["q4_k", "q5_k", "q6_k"]);
    let directory = tempfile::tempdir().unwrap();
    let exact = dequantised(&files, directory.path());
    let texts = texts("llama2");
    let (mean, most) = difference(&scores(&mut load(&files), &texts), &scores(&mut load(&exact), &texts));
    println!("k-quants: {mean} {most}");
    assert!(mean > 0.0 && mean < 0.02 && most < 0.1, "{mean} {most}");
}

/// Quantises models here, and compares them with their own dequantised weights and with the originals.
#[test]
fn written_models_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    for model in ["gpt2", "llama2", "llama3-tied", "mistral", "opt-350m-like", "opt-bin", "qwen2", "qwen3"] {
        let files = ModelFiles::directory(golden_dir(model)).unwrap();
        let texts = texts(model);
        let original = scores(&mut load(&files), &texts);
        for (kind, bound) in [(QuantType::Q8_0, 0.5), (QuantType::Q4_0, 8.0)] {
            let path = directory.path().join(format!("{model}-{kind}.gguf"));
            engine::quantize(&files, kind, &path, |_, _| {}).unwrap();
            let written = ModelFiles::gguf(&path).unwrap();
            let (config, mut want) = (written.config().unwrap(), files.config().unwrap());
            want.torch_dtype = None;
            want.eos_token_ids = files.generation_config().unwrap().eos_token_ids_or(&want);
            want.architecture.clone_from(&config.architecture);
            if model == "llama3-tied" {
                want.family.clone_from(&config.family);
            }
            assert_eq!(config, want, "{model}");
            let tokenizer = Tokenizer::of_model(&written, &config).unwrap();
            let whole = Tokenizer::of_model(&files, &want).unwrap();
            for prompt in golden(model).prompts {
                assert_eq!(tokenizer.encode(&prompt.text).unwrap(), whole.encode(&prompt.text).unwrap(), "{model}");
            }
            let read = scores(&mut load(&written), &texts);
            let exact = tempfile::tempdir().unwrap();
            let (mean, most) = difference(&read, &scores(&mut load(&dequantised(&written, exact.path())), &texts));
            let (drift, worst) = difference(&read, &original);
            println!("{model} {kind}: activations {mean} {most}, weights {drift} {worst}");
            // These models have large logits: logprobs differ by about ten.
            assert!(mean < 0.4, "{model} {kind}: {mean} {most}");
            assert!(drift > mean && drift < bound, "{model} {kind}: {drift} {worst}");
        }
    }
}

/// The rows of these models are not all a multiple of 256, so the mixtures fall back to types with smaller groups.
#[test]
fn mixtures_are_written_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("llama2", "q4_k_m", &["q4_k", "q5_0", "q6_k", "q8_0"][..]),
        ("llama3", "q4_k_m", &["q4_k", "q5_0", "q6_k", "q8_0"]),
        ("gpt2", "q6_k", &["q8_0"]),
        ("qwen2", "mxfp4", &["mxfp4", "q8_0"]),
    ];
    for (model, kind, kinds) in cases {
        let files = ModelFiles::directory(golden_dir(model)).unwrap();
        let texts = texts(model);
        let path = directory.path().join(format!("{model}-{kind}.gguf"));
        engine::quantize(&files, kind.parse::<FileType>().unwrap(), &path, |_, _| {}).unwrap();
        let written = ModelFiles::gguf(&path).unwrap();
        let weights = written.weights(None).unwrap();
        let mut found: Vec<String> = weights.quantised().iter().map(QuantType::to_string).collect();
        found.sort_unstable();
        assert_eq!(found, kinds, "{model} {kind}");
        let read = scores(&mut load(&written), &texts);
        let exact = tempfile::tempdir().unwrap();
        let (mean, most) = difference(&read, &scores(&mut load(&dequantised(&written, exact.path())), &texts));
        let (drift, worst) = difference(&read, &scores(&mut load(&files), &texts));
        println!("{model} {kind}: activations {mean} {most}, weights {drift} {worst}");
        let bound = if kind == "q6_k" { 0.5 } else { 8.0 };
        assert!(mean < 0.4 && drift > mean && drift < bound, "{model} {kind}: {mean} {most}, {drift} {worst}");
    }
}

/// Quantises the bundled model, and scores its own greedy stories.
#[test]
fn the_bundled_models_stories_stay_likely_in_fewer_bits() {
    let texts = stories();
    let files = ModelFiles::bundled();
    let original = scores(&mut load(&files), &texts);
    let directory = tempfile::tempdir().unwrap();
    let kinds = [("q8_0", 1.01), ("q6_k", 1.02), ("q4_k_m", 1.2), ("q4_0", 1.5), ("mxfp4", 1.5)];
    for (kind, most) in kinds.map(|(kind, most)| (kind.parse::<FileType>().unwrap(), most)) {
        let path = directory.path().join(format!("{kind}.gguf"));
        engine::quantize(&files, kind, &path, |_, _| {}).unwrap();
        let written = ModelFiles::gguf(&path).unwrap();
        let read = scores(&mut load(&written), &texts);
        let (drift, worst) = difference(&read, &original);
        let (was, is) = (perplexity(&original), perplexity(&read));
        println!("{kind}: perplexity {is} for {was}, drift {drift} {worst}, {} tokens", read.len());
        assert!(is / was < most, "{kind}: {is} for {was}");
    }
}

/// Loads a model on the emulator twice: with the weights as in the file, and with 16-bit weights.
fn on_a_gpu(files: &ModelFiles) -> (Llm, Llm) {
    let load = |dtype| {
        let options = Options { device: Device::Emulator, dtype, ..Options::default() };
        Llm::load(files, &options).unwrap()
    };
    (load(None), load(Some(DType::F16)))
}

/// Asserts that packed weights give the same tokens as their elements in f16, in prompts and in steps of one token.
fn stays_quantised_on_a_gpu(kind: QuantType) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{kind}.gguf"));
    engine::quantize(&ModelFiles::bundled(), kind, &path, |_, _| {}).unwrap();
    let (mut packed, mut plain) = on_a_gpu(&ModelFiles::gguf(&path).unwrap());
    let (device, notes) = (packed.device().clone(), plain.device().notes.join(" "));
    assert!(device.quantised.contains(&kind) && device.notes.is_empty(), "{device:?}");
    assert!(plain.device().quantised.is_empty() && notes.contains(&format!("{kind}")), "{notes}");
    let weights = |llm: &Llm| llm.device().memory.unwrap().weights;
    assert!(weights(&packed) < weights(&plain), "{} and {}", weights(&packed), weights(&plain));
    let params = SamplingParams { max_tokens: 6, logprobs: Some(1), ..SamplingParams::default() };
    let prompts = ["Once upon a time", "The dog"].map(|text| Prompt::Text(text.into()));
    let outputs = |llm: &mut Llm| {
        let done = llm.generate(&prompts, &params).unwrap();
        done.into_iter().map(|mut c| c.outputs.remove(0)).collect::<Vec<_>>()
    };
    for (a, b) in outputs(&mut packed).into_iter().zip(outputs(&mut plain)) {
        assert_eq!(a.tokens, b.tokens, "{kind}");
        let (a, b) = (a.logprobs.unwrap(), b.logprobs.unwrap());
        let most = a.iter().zip(&b).map(|(a, b)| (a.logprob - b.logprob).abs()).fold(0.0, f32::max);
        assert!(most < 0.02, "{kind}: {most}");
    }
}

#[test]
fn on_a_gpu_q8_0_stays_quantised() {
    stays_quantised_on_a_gpu(QuantType::Q8_0);
}

#[test]
fn on_a_gpu_q4_0_stays_quantised() {
    stays_quantised_on_a_gpu(QuantType::Q4_0);
}

/// No kernel multiplies MXFP4 yet, so it becomes 16-bit elements when it is loaded.
#[test]
fn on_a_gpu_mxfp4_becomes_16_bits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mxfp4.gguf");
    engine::quantize(&ModelFiles::bundled(), QuantType::MXFP4, &path, |_, _| {}).unwrap();
    let (mut widened, mut plain) = on_a_gpu(&ModelFiles::gguf(&path).unwrap());
    let (kinds, notes) = (widened.device().quantised.clone(), widened.device().notes.join(" "));
    assert!(!kinds.contains(&QuantType::MXFP4), "{kinds:?}");
    assert!(notes.contains("weights in mxfp4 become f16 on the GPU"), "{notes}");
    let params = SamplingParams { max_tokens: 4, ..SamplingParams::default() };
    let tokens = |llm: &mut Llm| {
        let done = llm.generate(&[Prompt::Text("Once upon a time".into())], &params).unwrap();
        done.into_iter().next().unwrap().outputs.remove(0).tokens
    };
    assert_eq!(tokens(&mut widened), tokens(&mut plain));
}

/// Packed weights are nearly as close to the f32 result as their elements in f16, since scales and minima are rounded
/// to f16. Some inputs have projections of several types.
#[test]
fn on_a_gpu_k_quants_stay_quantised() {
    let files = ModelFiles::gguf(fixture("k-quants.gguf")).unwrap();
    let (mut packed, mut plain) = on_a_gpu(&files);
    assert_eq!((packed.device().quantised.len(), packed.device().notes.len()), (3, 0), "{:?}", packed.device());
    let directory = tempfile::tempdir().unwrap();
    let texts = &texts("llama2")[..4];
    let exact = scores(&mut load(&dequantised(&files, directory.path())), texts);
    let [(mean, most), (f16, f16_most)] = [&mut packed, &mut plain].map(|llm| difference(&scores(llm, texts), &exact));
    println!("k-quants on a GPU: {mean} {most}, as f16 {f16} {f16_most}");
    assert!(mean > 0.0 && mean < 2.0 * f16, "{mean} {most}, as f16 {f16} {f16_most}");
}

#[test]
fn gpt2() {
    assert_same_tokens("gpt2", "gpt2.gguf");
}

/// In the file, queries and keys are in a different order, and tokens have scores instead of merges.
#[test]
fn llama2() {
    assert_same_tokens("llama2", "llama2.gguf");
}

/// The file has two parts, and factors for the frequencies of the rotation.
#[test]
fn llama3() {
    assert_same_tokens("llama3", "llama3-00001-of-00002.gguf");
}

#[test]
fn qwen2() {
    assert_same_tokens("qwen2", "qwen2.gguf");
}
