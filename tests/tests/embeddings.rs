//! Embeddings compared with Hugging Face transformers. The fixtures have its logits at every position of given texts,
//! and logits are the final hidden states times the output matrix. The product is linear and loses no information. An
//! embedding is therefore correct exactly if the matrix maps it to the direction of the last token's logits, or of
//! their mean.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::Pooling;
use engine::SamplingParams;
use engine::tools::load::{ModelFiles, Weights};
use engine::{Device, Llm, Options, Prompt, SchedulerOptions};
use tests::{complete, each_model, golden, golden_dir};

/// Multiplies a matrix by a vector, row by row.
fn times(matrix: &[f32], vector: &[f32]) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(vector).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    matrix.chunks(vector.len()).map(dot).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Returns the matrix from hidden states to logits.
fn output_matrix(files: &ModelFiles) -> Vec<f32> {
    let config = files.config().unwrap();
    let mut weights = files.weights(Some(DType::F32)).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    let names = ["lm_head.weight", "embed_tokens.weight", "wte.weight"];
    let is_there = |name: &&&str| weights.contains(name) && (**name != "lm_head.weight" || !config.tie_word_embeddings);
    let name = names.iter().find(is_there).unwrap();
    weights.take(name, &[config.vocab_size, config.output_width()]).unwrap().elements().to_f32()
}

/// Returns texts with their pooled logits in transformers.
fn texts(model: &str, vocab: usize, pooling: Pooling) -> Vec<(Vec<u32>, Vec<f64>)> {
    let mut recorded = Weights::from_safetensors(golden_dir(model).join("golden.safetensors"), None).unwrap();
    let texts = golden(model).teacher_forced.into_iter().enumerate();
    let pooled = texts.filter_map(|(at, text)| {
        let logits = recorded.take(&format!("tf.{at}.logits"), &[text.positions.len(), vocab]).unwrap();
        let logits = logits.elements().to_f32();
        let end = text.positions.last()? + 1;
        let first = match pooling {
            Pooling::Last => logits.len() - vocab,
            // A long text has logits at some positions only, so it has no mean.
            Pooling::Mean if text.positions.len() < end => return None,
            Pooling::Mean => 0,
        };
        let sum = |token: usize| logits[first..].chunks(vocab).map(|row| f64::from(row[token])).sum();
        Some((text.ids[..end].to_vec(), (0..vocab).map(sum).collect()))
    });
    pooled.collect()
}

/// Embeds a model's texts in one batch with generating requests. Returns the smallest cosine between an embedding and
/// its expected direction.
fn least_cosine(model: &str, options: Options) -> f64 {
    let files = ModelFiles::directory(golden_dir(model)).unwrap();
    let (matrix, vocab) = (output_matrix(&files), files.config().unwrap().vocab_size);
    let mut llm = Llm::load(&files, &options).unwrap();
    let mut least = f64::INFINITY;
    for pooling in [Pooling::Last, Pooling::Mean] {
        let texts = texts(model, vocab, pooling);
        assert!(!texts.is_empty());
        let embedded = SamplingParams { max_tokens: 0, pooling: Some(pooling), ..SamplingParams::default() };
        let generated = SamplingParams { max_tokens: 5, ignore_eos: true, ..SamplingParams::default() };
        let requests = texts.iter().flat_map(|(tokens, _)| {
            [(Prompt::Tokens(tokens.clone()), embedded.clone()), (Prompt::Tokens(tokens.clone()), generated.clone())]
        });
        for (done, (_, want)) in complete(&mut llm, requests).iter().step_by(2).zip(&texts) {
            let embedding = done.embedding.as_ref().unwrap();
            let length = embedding.iter().map(|x| x * x).sum::<f32>();
            assert!((length - 1.0).abs() < 1e-5, "{model}: {length}");
            least = least.min(cosine(&times(&matrix, embedding), want));
        }
    }
    least
}

macro_rules! models {
    ($($name:ident: $model:literal,)*) => {$(
        #[test]
        fn $name() {
            let cpu = || Options { device: Device::Cpu, dtype: Some(DType::F32), ..Options::default() };
            let chunks = SchedulerOptions { max_batch_tokens: 7, prefix_caching: true, ..cpu().scheduler };
            for options in [cpu(), Options { scheduler: chunks, block_size: 8, ..cpu() }] {
                let cosine = least_cosine($model, options);
                assert!(cosine > 1.0 - 1e-9, "{cosine}");
            }
        }
    )*};
}

each_model!(models);

#[test]
fn gpu_embeddings_differ_only_by_16_bit_arithmetic() {
    emulator::driver::configure(emulator::driver::DeviceOptions { multiprocessors: 4, ..Default::default() });
    for (model, workers) in [("llama3", 1), ("opt-350m-like", 1), ("llama3", 2)] {
        let options = Options {
            device: Device::Emulator,
            dtype: Some(DType::F16),
            kv_memory: Some(64 << 20),
            tensor_parallel_size: workers,
            ..Options::default()
        };
        let cosine = least_cosine(model, options);
        assert!(cosine > 1.0 - 1e-5, "{model} on {workers}: {cosine}");
    }
}
