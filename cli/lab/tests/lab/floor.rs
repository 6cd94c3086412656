//! `lab floor`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::ends_with;

/// Runs the command without a network and without a cache.
fn floor(args: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("floor")
        .args(args)
        .env("HF_HOME", home.path())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap()
}

/// Returns the command's output, and the JSON that it writes.
fn figures(args: &[&str]) -> (String, Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = floor(&[args, &["--json", file.path().to_str().unwrap()]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let json = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), json)
}

fn golden(model: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden").join(model);
    path.to_str().unwrap().to_owned()
}

/// Returns the kernels of a step, each with its total number of launches.
fn launches(step: &Value) -> Vec<(String, u64)> {
    let mut launches: Vec<(String, u64)> = Vec::new();
    for launch in step["launches"].as_array().unwrap() {
        let (kernel, times) = (launch["kernel"].as_str().unwrap(), launch["times"].as_u64().unwrap());
        match launches.iter_mut().find(|(name, _)| name == kernel) {
            Some((_, all)) => *all += times,
            None => launches.push((kernel.to_owned(), times)),
        }
    }
    launches
}

fn expected(launches: &[(&str, u64)]) -> Vec<(String, u64)> {
    launches.iter().map(|&(kernel, times)| (kernel.to_owned(), times)).collect()
}

#[test]
fn an_8_bit_kv_cache_takes_fewer_bytes() {
    let model = golden("opt-pre");
    let kv_bytes = |words: &[&str]| {
        let all = [&["--model", &model, "--dtype", "f16", "--batch", "2", "--context", "40"], words].concat();
        let (printed, figures) = figures(&all);
        (printed, figures["steps"][0]["kv_cache_bytes"].as_u64().unwrap(), launches(&figures["steps"][0]))
    };
    let (_, sixteen, _) = kv_bytes(&[]);
    let (printed, eight, launches) = kv_bytes(&["--kv-dtype", "int8"]);
    // Heads have 32 elements. The scale takes two bytes.
    assert_eq!(eight * 64, sixteen * 34);
    assert!(printed.contains("f16, with a KV cache in int8, on"), "{printed}");
    assert!(launches.contains(&("paged_attention_f16int8_32_8".to_owned(), 3)), "{launches:?}");
}

#[test]
fn a_decode_step_of_opt_has_the_expected_launches_and_bytes() {
    let (printed, all) = figures(&["--model", &golden("opt-pre"), "--dtype", "f16", "--batch", "2", "--context", "40"]);
    let step = &all["steps"][0];
    let kernels = [
        ("embed_f16", 1),
        // The first norm and the last. The products before the others compute them.
        ("layer_norm_f16", 2),
        ("gemv_f16_2", 3 * 4 + 1),
        ("reshape_and_cache", 3),
        ("plan_paged_attention", 1),
        ("paged_attention_f16_32_8", 3),
        ("sample", 1),
    ];
    assert_eq!(launches(step), expected(&kernels));
    let count: u64 = kernels.iter().map(|(_, times)| times).sum();
    assert!(printed.contains(&format!("Decode, batch 2, context 40: {count} launches")), "{printed}");

    // Two tokens. Three layers of 128 elements in four heads of 32. 192 elements within the feed-forward block. A
    // vocabulary of 512.
    let (tokens, hidden, inner, vocab) = (2, 128, 192, 512);
    let weights = 3 * (4 * hidden * hidden + 2 * inner * hidden) + vocab * hidden;
    assert_eq!(step["weight_bytes"], 2 * weights);
    // Keys and values of 40 tokens for each sequence.
    let kv_cache = 3 * tokens * 40 * 2 * hidden * 2;
    assert_eq!(step["kv_cache_bytes"], kv_cache);
    // Inputs and outputs of two embeddings, two norms, the norms that five product launches store, four projections per
    // layer (two of which add to the residual stream), the f32 logits, the writes to the cache, a query and a result
    // per layer, and the sampler.
    let embedding = 2 * (2 + 1) * hidden;
    let norms = (2 * (1 + 1) + 5) * 2 * hidden;
    let projections = 2 * (hidden + 3 * hidden + hidden + 2 * hidden + hidden + inner + inner + 2 * hidden);
    let layer = projections + 2 * (2 + 2) * hidden + 2 * (1 + 1) * hidden;
    let logits = 2 * hidden + 4 * vocab;
    let planned = step["launches"].as_array().unwrap().iter().find(|l| l["kernel"] == "plan_paged_attention").unwrap();
    let sampled = step["launches"].as_array().unwrap().iter().find(|l| l["kernel"] == "sample").unwrap();
    let small = planned["bytes"].as_u64().unwrap() + sampled["bytes"].as_u64().unwrap();
    let activations = tokens * (embedding + norms + 3 * layer + logits) + small;
    assert_eq!(step["bytes"], 2 * weights + kv_cache + activations);
    // Flops of the projections, the products of queries and keys, and the products of probabilities and values.
    assert_eq!(step["flops"], 2 * tokens * weights + 3 * 4 * tokens * 40 * hidden);

    // Memory bounds every launch, so the time is the time of all bytes.
    let seconds = step["bytes"].as_f64().unwrap() / 4.5e12;
    assert!((step["floor_seconds"].as_f64().unwrap() / seconds - 1.0).abs() < 1e-9, "{step}");
    let ceiling = 2.0 / step["floor_seconds"].as_f64().unwrap();
    assert!((step["ceiling_tokens_per_second"].as_f64().unwrap() / ceiling - 1.0).abs() < 1e-9, "{step}");
}

#[test]
fn a_prompt_of_llama_has_the_expected_launches() {
    let (_, all) = figures(&[
        "--model",
        &golden("llama3"),
        "--gpu",
        "a100",
        "--batch",
        "3,70",
        "--context",
        "9",
        "--prompt",
        "300",
    ]);
    assert_eq!((&all["dtype"], &all["gpu"]["name"]), (&json!("bf16"), &json!("a100")));
    let layers = |gemm: &str, norms: u64, attention: &[(&str, u64)]| {
        let mut kernels =
            vec![("gather_rows", 1), ("rms_norm_bf16", norms), (gemm, 2 * 4 + 1), ("rope_and_cache_bf16", 2)];
        kernels.extend_from_slice(attention);
        kernels.push(("sample", 1));
        let mut kernels = expected(&kernels);
        kernels.sort();
        kernels
    };
    let decode = [("plan_paged_attention", 1), ("paged_attention_bf16_32_8", 2)];
    for (step, kernels) in [(0, layers("gemv_bf16_4", 2, &decode)), (1, layers("gemm_bf16_128", 5, &decode))] {
        let mut made = launches(&all["steps"][step]);
        made.sort();
        assert_eq!(made, kernels, "{step}");
    }
    let prefill = launches(&all["steps"][2]);
    let times = |kernel: &str| prefill.iter().find(|(name, _)| name == kernel).map(|(_, times)| *times);
    assert_eq!([times("paged_prefill_bf16_32"), times("plan_paged_attention")], [Some(2), None]);
    // Only the last token is gathered for its logits.
    assert_eq!([times("gather_rows"), times("gemm_bf16_128"), times("gemv_bf16_1")], [Some(2), Some(8), Some(1)]);
}

#[test]
fn opt_13b_mostly_reads_its_weights() {
    let (printed, all) = figures(&["--model", "opt-13b", "--gpu", "h200", "--batch", "1,128,32"]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!((number(&all["weight_bytes"]) / 25.7e9 - 1.0).abs() < 0.002, "{}", all["weight_bytes"]);
    let (one, many) = (&all["steps"][0], &all["steps"][1]);
    assert!((number(&one["weight_bytes"]) / 25.7e9 - 1.0).abs() < 0.002, "{one}");
    // Up to 64 tokens, the products that add to the residual stream compute the next norm: six launches per layer,
    // otherwise eight.
    let count = |step: &Value| launches(step).iter().map(|(_, times)| times).sum::<u64>();
    assert_eq!([0, 2, 1].map(|step| count(&all["steps"][step])), [246, 246, 325]);
    // The paper states 800 KiB of keys and values per token.
    assert_eq!(one["kv_cache_bytes"], 512 * 800 * 1024u64);
    // 5.7 ms for the weights and 0.1 ms for keys and values.
    assert!((number(&one["floor_seconds"]) - 5.8e-3).abs() < 5e-5, "{one}");
    assert_eq!(many["kv_cache_bytes"], 128 * 512 * 800 * 1024u64);
    // Most of the time goes to reading them.
    assert!(number(&many["stream_seconds"]) < number(&many["floor_seconds"]));
    assert!(number(&many["stream_seconds"]) > 0.97 * number(&many["floor_seconds"]));
    assert!(printed.contains("None of this was measured") && printed.contains("derived"), "{printed}");
}

#[test]
fn a_worker_reads_its_part_and_exchanges_sums() {
    let args = ["--model", "opt-66b", "--gpu", "a100-40gb", "--batch", "32", "--context", "1024"];
    let [one, four] = ["1", "4"].map(|of| figures(&[&args[..], &["--tensor-parallel-size", of]].concat()).1);
    let number = |value: &Value| value.as_f64().unwrap();
    // Positions, norms and the first worker's biases are not split.
    assert!((4.0 * number(&four["weight_bytes"]) / number(&one["weight_bytes"]) - 1.0).abs() < 0.003);
    let [one, four] = [one, four].map(|all| all["steps"][0].clone());
    assert_eq!(number(&one["kv_cache_bytes"]), 4.0 * number(&four["kv_cache_bytes"]));
    // Two sums of [32, 9216] per layer, one for the embedding, and three quarters of the logits.
    let sums = 2.0 * 0.75 * (2 * 32 * 9216) as f64 * (2 * 64 + 1) as f64;
    assert_eq!(
        (number(&one["peer_bytes"]), number(&four["peer_bytes"])),
        (0.0, sums + (4 * 32 * 50272 * 3 / 4) as f64)
    );
    let exchanges = number(&four["peer_bytes"]) / 300e9;
    assert!((number(&four["exchange_seconds"]) / exchanges - 1.0).abs() < 1e-9, "{four}");
    assert!(number(&four["floor_seconds"]) < number(&one["floor_seconds"]) / 3.9 + exchanges);
    let counts = launches(&four);
    let times = |name: &str| counts.iter().find(|(kernel, _)| kernel == name).map(|(_, times)| *times);
    // Every sum but the last is computed together with the norm that follows.
    let exchanges = [times("all-reduce and norm"), times("all-reduce"), times("gather of logits")];
    assert_eq!(exchanges, [Some(128), Some(1), Some(1)]);
}

/// Each token uses 8 of 128 experts, and two tokens are expected to use 15.5.
#[test]
fn a_step_reads_the_experts_that_it_is_expected_to_use() {
    let (printed, all) = figures(&["--model", "qwen3-30b-a3b", "--batch", "1,2", "--context", "16"]);
    assert!(printed.contains("uniform routing"), "{printed}");
    let (layers, hidden, inner, vocab) = (48, 2048, 768, 151_936);
    let dense = layers * ((32 + 8) * 128 * hidden + hidden * 32 * 128 + 128 * hidden) + vocab * hidden;
    let expert = layers * 3 * hidden * inner;
    for (step, tokens, used) in [(0, 1, 8.0), (1, 2, 15.5)] {
        let step = &all["steps"][step];
        let bytes = step["weight_bytes"].as_f64().unwrap();
        let want = 2.0 * (f64::from(dense) + used * f64::from(expert));
        assert!((bytes / want - 1.0).abs() < 1e-6, "{bytes}, not {want}");
        // Each token multiplies the weights of its 8 experts.
        let products = 2.0 * f64::from(tokens) * (f64::from(dense) + 8.0 * f64::from(expert));
        let scores = 4.0 * f64::from(tokens * 48 * 16 * 32 * 128);
        let flops = step["flops"].as_f64().unwrap();
        assert!((flops / (products + scores) - 1.0).abs() < 1e-6, "{flops}, not {products} and {scores}");
    }
}

#[test]
fn built_in_models_need_no_network() {
    for (model, billions) in [
        ("opt-6.7b", 6.7),
        ("opt-30b", 30.0),
        ("opt-175b", 175.0),
        ("llama-7b", 6.7),
        ("llama-13b", 13.0),
        ("llama-30b", 32.5),
        ("llama-65b", 65.2),
        ("llama-3-70b", 70.6),
        ("qwen3-32b", 32.8),
    ] {
        let (_, all) = figures(&["--model", model, "--batch", "1"]);
        let parameters = all["weight_bytes"].as_f64().unwrap() / 2e9;
        assert!((parameters / billions - 1.0).abs() < 0.03, "{model}: {parameters}");
    }
}

#[cfg(target_os = "linux")] // where a shell can limit memory
#[test]
fn weights_are_not_allocated() {
    // OPT-13B's weights are 26 GB, LLaMA-3-8B's 16, and an eighth of OPT-175B's 44.
    for model in ["opt-13b", "llama-3-8b", "opt-175b --tensor-parallel-size 8"] {
        let command = format!("ulimit -v 3000000; exec \"$0\" floor --model {model} --batch 1");
        let output = Command::new("sh").args(["-c", &command, env!("CARGO_BIN_EXE_lab")]).output().unwrap();
        assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn invalid_options_are_refused_in_one_sentence() {
    let refused = |args: &[&str], naming| ends_with(1, &floor(args), naming);
    let misused = |args: &[&str], naming| ends_with(2, &floor(args), naming);
    let with = |args: &[&'static str]| [&["--model", "opt-13b"][..], args].concat();
    misused(&[], "--model");
    refused(&["--model", "no-such-model"], "no-such-model");
    refused(&["--model", "facebook/opt-125m"], "HF_HUB_OFFLINE");
    misused(&with(&["--gpu", "abacus"]), "h200, h100");
    misused(&with(&["--dtype", "f32"]), "neither f16 nor bf16");
    misused(&with(&["--kv-dtype", "f16"]), "neither int8 nor fp8");
    misused(&with(&["--batch", "1,0"]), "from 1 to 4096");
    refused(&with(&["--context", "2049"]), "2048");
    refused(&with(&["--prompt", "0"]), "--prompt");
    refused(&with(&["--json", "/no/such/directory/file"]), "/no/such/directory/file");
}
