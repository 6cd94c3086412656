//! Families with 8-bit caches: a softcap (Gemma 2), heads of two sizes (Gemma 4), and blocks with padding. The CPU scores the
//! same texts with a cache of the same type.

use std::fs;
use std::path::Path;

use engine::{KvDtype, Preemption};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::families::{committed_dir, family_golden};
use tests::scores::{FileTensor, difference, write};

use super::eight_bits::{DTYPES, in_eight_bits};
use super::*;

/// Copies Gemma 4 without its first layer of wide heads, and doubles the head size in the other one. Then no page
/// holds whole blocks of both sizes.
fn padded() -> TempDir {
    let (from, to) = (committed_dir("gemma4"), tempfile::tempdir().unwrap());
    for file in ["tokenizer.json", "tokenizer_config.json"].iter().filter(|file| from.join(file).exists()) {
        fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    let layers = json!({
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "per_layer_config": { "2": { "head_dim": 128, "num_key_value_heads": 1 } },
    });
    config.as_object_mut().unwrap().extend(layers.as_object().unwrap().clone());
    fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let kept = tensors.tensors().into_iter().filter(|(name, _)| !name.contains("layers.1."));
    let renamed = kept.map(|(name, tensor)| {
        let (mut shape, mut data) = (tensor.shape().to_vec(), tensor.data().to_vec());
        if name.contains("layers.3.self_attn") {
            // The output projection has a column for each element of a head.
            let axis = usize::from(name.contains("o_proj"));
            shape[axis] *= 2;
            data = data.repeat(2);
        }
        (name.replace("layers.2.", "layers.1.").replace("layers.3.", "layers.2."), tensor.dtype(), shape, data)
    });
    write(to.path(), &renamed.collect::<Vec<FileTensor>>());
    to
}

/// Runs prompts greedily and with three samples each. Asserts that the outputs are as likely on the CPU.
fn assert_near_cpu(name: &str, directory: &Path, options: &Options) -> Llm {
    let files = ModelFiles::directory(directory).unwrap();
    let same_type = Options { device: Device::Cpu, kv_dtype: options.kv_dtype, ..Options::default() };
    let [mut llm, mut oracle] = [options, &same_type].map(|options| Llm::load(&files, options).unwrap());
    // All of them have the same prompts. The padded model is a variant of Gemma 4.
    let golden = family_golden(&committed_dir(if name == "padded" { "gemma4" } else { name }));
    let (_, drift) = super::families::record(&golden, DType::F16);
    let prompts = &golden.prompts;
    let methods = [SamplingParams { max_tokens: 12, ..greedy() }, samples()];
    let requests = prompts.iter().flat_map(|p| methods.iter().map(|m| (Prompt::Tokens(p.ids.clone()), m.clone())));
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for (i, done) in complete(&mut llm, requests).into_iter().enumerate() {
        let prompt = &prompts[i / methods.len()].ids;
        for output in done.outputs {
            let text = [prompt.as_slice(), &output.tokens].concat();
            got.extend(output.logprobs.unwrap().iter().map(|token| token.logprob));
            want.extend(score(&mut oracle, &text, prompt.len()));
        }
    }
    let ((root, worst), kv_dtype) = (difference(&got, &want), options.kv_dtype.unwrap());
    println!("| {name} | {kv_dtype} | {worst:.4} | {root:.4} |");
    assert!(root <= drift * bound(kv_dtype), "{name}, {kv_dtype}: off by {root} on average, drift {drift}");
    assert!(llm.stats().copied_blocks > 0, "{name}: no block was copied");
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    llm
}

/// Root mean square of allowed differences, over the largest drift of Hugging Face's logprobs in f16. It is 1.3 to 1.6 times
/// the largest measured one.
fn bound(kv_dtype: KvDtype) -> f32 {
    if kv_dtype == KvDtype::Int8 { 2.4 } else { 5.0 }
}

/// Blocks of 8 and chunks of 13 tokens, with a pool so small that sequences are swapped.
fn assert_swapped(name: &str, directory: &Path, kv_dtype: KvDtype) -> Llm {
    let options = in_eight_bits(DType::F16, kv_dtype);
    let scheduler = SchedulerOptions { max_batch_tokens: 13, preemption: Preemption::Swap, ..options.scheduler };
    let options = Options { block_size: 8, cuda_graphs: false, scheduler, ..options };
    let layout = Llm::load(&ModelFiles::directory(directory).unwrap(), &options).unwrap().kv_layout().clone();
    let tokens = 100 + 3 * 12 + 4 * 8;
    let least = (0..layout.groups.len()).map(|group| layout.sequence_bytes(group, tokens)).sum::<usize>();
    let pages = least.div_ceil(layout.page_bytes()).max(2);
    let options = Options { kv_memory: Some(pages * layout.page_bytes()), ..options };
    let llm = assert_near_cpu(name, directory, &options);
    assert!(llm.stats().swapped_out_blocks > 0 && llm.stats().swapped_in_blocks > 0, "{name}: {:?}", llm.stats());
    llm
}

#[test]
fn scores_have_a_softcap() {
    assert_near_cpu("gemma2", &committed_dir("gemma2"), &in_eight_bits(DType::F16, KvDtype::Fp8));
}

#[test]
fn padded_blocks_are_copied_and_swapped() {
    let llm = assert_swapped("padded", padded().path(), KvDtype::Int8);
    let layout = llm.kv_layout();
    let bytes = |group: usize| 8 * 2 * layout.groups[group].heads * (layout.groups[group].head_dim + 2);
    assert!((0..2).all(|group| layout.layer_bytes(group) > bytes(group)), "{layout:?}");
}

#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn in_one_batch_swapped_and_on_two_gpus() {
    let directory = padded();
    for (name, path) in ["gemma2", "gemma4", "gemma4-e"]
        .map(|name| (name, committed_dir(name)))
        .into_iter()
        .chain([("padded", directory.path().into())])
    {
        for kv_dtype in DTYPES {
            assert_near_cpu(name, &path, &in_eight_bits(DType::F16, kv_dtype));
            // Two pages have room for all requests of the other models.
            if ["gemma2", "padded"].contains(&name) {
                assert_swapped(name, &path, kv_dtype);
            }
            assert_near_cpu(name, &path, &Options { tensor_parallel_size: 2, ..in_eight_bits(DType::F16, kv_dtype) });
        }
    }
}
