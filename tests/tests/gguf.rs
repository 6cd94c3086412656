//! Models in GGUF files give the tokens that Hugging Face transformers gives for the models that they were made of.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::{Path, PathBuf};

use engine::llm::{Device, Llm, Options, Prompt};
use engine::load::{ModelFiles, gguf};
use engine::quantised::QuantType;
use engine::sampling::SamplingParams;
use engine::tensor::DType;
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

/// The same model with the elements that its weights stand for, in f32, as a directory of Hugging Face's.
fn dequantised(files: &ModelFiles, directory: &Path) -> ModelFiles {
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::write(directory.join(file), files.read(file).unwrap().unwrap()).unwrap();
    }
    let mut weights = files.weights(None).unwrap();
    let names: Vec<(String, Vec<usize>)> =
        weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
    let tensors = names.into_iter().map(|(name, shape)| {
        let tensor = weights.take(&name, &shape).unwrap().to_dtype(DType::F32);
        // GPT-2's projections have a row for each input there.
        let tensor = if name.contains(".c_") && shape.len() == 2 { tensor.transposed() } else { tensor };
        (name, tensor.shape().to_vec(), tensor.bytes().to_vec())
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let file = directory.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    ModelFiles::directory(directory).unwrap()
}

/// The logprobs of all tokens of some texts.
fn scores(files: &ModelFiles, texts: &[Vec<u32>]) -> Vec<f32> {
    let params = SamplingParams { max_tokens: 1, prompt_logprobs: Some(0), ..SamplingParams::default() };
    let prompts: Vec<Prompt> = texts.iter().map(|text| Prompt::Tokens(text.clone())).collect();
    let done = load(files).generate(&prompts, &params).unwrap();
    let logprobs = |c: engine::llm::Completion| c.prompt_logprobs.unwrap().into_iter().flatten().map(|p| p.logprob);
    done.into_iter().flat_map(logprobs).collect()
}

/// The root of the mean square of the differences of logprobs, and the greatest.
fn difference(a: &[f32], b: &[f32]) -> (f32, f32) {
    let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    assert!(a.len() == b.len() && a.len() > 100 && differences.iter().all(|d| d.is_finite()));
    let mean = differences.iter().map(|d| d * d).sum::<f32>() / differences.len() as f32;
    (mean.sqrt(), differences.iter().copied().fold(0.0, f32::max))
}

/// Texts of the tokens that random models know.
fn texts(model: &str) -> Vec<Vec<u32>> {
    golden(model).prompts.into_iter().map(|p| [p.ids, p.greedy.ids].concat()).collect()
}

/// The weights are the same, so that only the rounding of activations differs.
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
    let (mean, most) = difference(&scores(&files, &texts), &scores(&exact, &texts));
    println!("k-quants: {mean} {most}");
    assert!(mean > 0.0 && mean < 0.02 && most < 0.1, "{mean} {most}");
}

/// Models that have been rounded here, against their own elements and against what they were.
#[test]
fn models_are_written_and_read_again() {
    let directory = tempfile::tempdir().unwrap();
    for model in ["gpt2", "llama2", "llama3-tied", "mistral", "opt-350m-like", "opt-bin", "qwen2", "qwen3"] {
        let files = ModelFiles::directory(golden_dir(model)).unwrap();
        let texts = texts(model);
        let original = scores(&files, &texts);
        for (kind, bound) in [(QuantType::Q8_0, 0.5), (QuantType::Q4_0, 8.0)] {
            let path = directory.path().join(format!("{model}-{kind}.gguf"));
            gguf::save(&files, kind, &path, |_, _| {}).unwrap();
            let written = ModelFiles::gguf(&path).unwrap();
            let (config, mut want) = (written.config().unwrap(), files.config().unwrap());
            want.torch_dtype = None;
            want.eos_token_ids = files.generation_config().unwrap().eos_token_ids_or(&want);
            want.architecture.clone_from(&config.architecture);
            if model == "llama3-tied" {
                want.family.clone_from(&config.family);
            }
            assert_eq!(config, want, "{model}");
            let tokenizer = written.tokenizer(&config).unwrap();
            let whole = files.tokenizer(&want).unwrap();
            for prompt in golden(model).prompts {
                assert_eq!(tokenizer.encode(&prompt.text).unwrap(), whole.encode(&prompt.text).unwrap(), "{model}");
            }
            let read = scores(&written, &texts);
            let exact = tempfile::tempdir().unwrap();
            let (mean, most) = difference(&read, &scores(&dequantised(&written, exact.path()), &texts));
            let (drift, worst) = difference(&read, &original);
            println!("{model} {kind}: activations {mean} {most}, weights {drift} {worst}");
            // These models' logits are large: logprobs lie some ten apart.
            assert!(mean < 0.4, "{model} {kind}: {mean} {most}");
            assert!(drift > mean && drift < bound, "{model} {kind}: {drift} {worst}");
        }
    }
}

/// What the bundled model makes of its own greedy stories, and how likely it finds them.
#[test]
fn the_bundled_model_tells_its_stories_in_fewer_bits() {
    #[derive(serde::Deserialize)]
    struct Golden {
        cases: Vec<Case>,
    }
    #[derive(serde::Deserialize)]
    struct Case {
        prompt_ids: Vec<u32>,
        greedy_ids: Vec<u32>,
    }
    let golden: Golden = serde_json::from_str(include_str!("../fixtures/opt-story-3m/golden.json")).unwrap();
    let texts: Vec<Vec<u32>> = golden.cases.into_iter().map(|c| [c.prompt_ids, c.greedy_ids].concat()).collect();
    let perplexity = |scores: &[f32]| (-scores.iter().sum::<f32>() / scores.len() as f32).exp();
    let files = ModelFiles::bundled();
    let original = scores(&files, &texts);
    let directory = tempfile::tempdir().unwrap();
    for (kind, most) in [(QuantType::Q8_0, 1.01), (QuantType::Q4_0, 1.5)] {
        let path = directory.path().join(format!("{kind}.gguf"));
        gguf::save(&files, kind, &path, |_, _| {}).unwrap();
        let written = ModelFiles::gguf(&path).unwrap();
        let read = scores(&written, &texts);
        let (drift, worst) = difference(&read, &original);
        let (was, is) = (perplexity(&original), perplexity(&read));
        println!("{kind}: perplexity {is} for {was}, drift {drift} {worst}, {} tokens", read.len());
        assert!(is / was < most, "{kind}: {is} for {was}");
    }
}

/// Kernels do not read quantised weights: the device gets their elements, and says so.
#[test]
fn on_a_gpu_weights_are_no_longer_quantised() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    gguf::save(&ModelFiles::bundled(), QuantType::Q8_0, &path, |_, _| {}).unwrap();
    let files = ModelFiles::gguf(&path).unwrap();
    let options = Options { device: Device::Emulator, ..Options::default() };
    let mut llm = Llm::load(&files, &options).unwrap();
    let notes = llm.device().notes.join(" ");
    assert!(notes.contains("q8_0") && notes.contains("f16"), "{notes}");
    let params = SamplingParams { max_tokens: 4, ..SamplingParams::default() };
    let prompt = [Prompt::Text("Once upon a time".into())];
    let tokens = |llm: &mut Llm| llm.generate(&prompt, &params).unwrap().remove(0).outputs.remove(0).tokens;
    assert_eq!(tokens(&mut llm), tokens(&mut load(&files)));
}

#[test]
fn gpt2() {
    assert_same_tokens("gpt2", "gpt2.gguf");
}

/// Its queries and keys are in another order in the file, and its tokens have scores in place of merges.
#[test]
fn llama2() {
    assert_same_tokens("llama2", "llama2.gguf");
}

/// In two parts, with factors for the frequencies of the rotation.
#[test]
fn llama3() {
    assert_same_tokens("llama3", "llama3-00001-of-00002.gguf");
}

#[test]
fn qwen2() {
    assert_same_tokens("qwen2", "qwen2.gguf");
}
