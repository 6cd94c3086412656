//! The command as a person meets it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden").join(model)
}

fn quire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = quire(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Vec<Value> {
    stdout(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// One sentence on standard error that contains `naming`, nothing on standard output, exit code 1.
fn refused(args: &[&str], naming: &str) {
    let output = quire(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    assert!(message.starts_with("error: ") && message.trim_end().lines().count() == 1, "{args:?}: {message}");
    assert!(message.contains(naming), "{args:?}: {message:?} does not say {naming:?}");
    assert!(output.stdout.is_empty(), "{args:?} printed something");
}

/// A copy of a golden model, to be damaged.
fn copy_of(model: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(model)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn model(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

/// Replaces text in a configuration.
fn edit(dir: &tempfile::TempDir, file: &str, from: &str, to: &str) {
    let path = dir.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn the_demo_tells_a_story() {
    let story = stdout(&["--prompt", "Once upon a time"]);
    assert!(story.starts_with("Once upon a time, there lived a young boy named Theo in a small village"), "{story}");
    assert!(story.ends_with("helping hand.\n"), "{story}");
}

#[test]
fn the_emulator_tells_the_same_story_as_the_cpu() {
    let model = fixture("opt-bin");
    let args = ["--model", model.to_str().unwrap(), "--prompt", "Once", "--max-tokens", "6", "--device"];
    let told = |device| stdout(&[&args[..], &[device]].concat());
    assert_eq!(told("emulator"), told("cpu"));
    let output = quire(&[&args[..], &["emulator", "--cuda-graphs", "off", "--kv-memory", "1MB"]].concat());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("weights") && message.contains("KV cache 48 blocks of 16 tokens"), "{message}");
}

#[test]
fn a_gpu_that_is_not_there_is_missed_in_one_sentence() {
    if launch::Driver::machine().is_ok() {
        return refused(&["--prompt", "a", "--device", "cuda:99"], "there is no device 99");
    }
    refused(&["--prompt", "a", "--device", "cuda"], "no GPU can be used: no NVIDIA driver");
    assert!(quire(&["--prompt", "a", "--max-tokens", "1", "--device", "auto"]).stderr.is_empty());
}

#[test]
fn json_has_the_documented_form() {
    let lines = json(&[
        "--prompt",
        "Once upon a time",
        "--prompt-ids",
        "2,598,661",
        "--max-tokens",
        "4",
        "--logprobs",
        "2",
        "--json",
    ]);
    assert_eq!(lines.len(), 2);
    let (first, output) = (&lines[0], &lines[0]["outputs"][0]);
    assert_eq!(first["prompt"], "Once upon a time");
    assert_eq!(first["prompt_token_ids"], serde_json::json!([2, 598, 661, 262, 412]));
    assert_eq!(output["index"], 0);
    assert_eq!(output["text"], ", there lived a");
    assert_eq!(output["token_ids"], serde_json::json!([15, 383, 432, 262]));
    assert_eq!(output["finish_reason"], "length");
    let logprobs = output["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 4);
    assert_eq!(logprobs[0]["top"].as_array().unwrap().len(), 2);
    assert_eq!(logprobs[0]["top"][0], serde_json::json!([15, logprobs[0]["logprob"]]));
    let sum: f64 = logprobs.iter().map(|l| l["logprob"].as_f64().unwrap()).sum();
    assert!((sum - output["cumulative_logprob"].as_f64().unwrap()).abs() < 1e-6);
    assert_eq!(first["usage"], serde_json::json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}));
    assert_eq!(lines[1]["prompt"], "Once upon");
    assert!(output.get("score").is_none());
}

#[test]
fn beams_come_best_first_with_their_scores() {
    let lines =
        json(&["--prompt", "Once upon a time", "--beam-width", "4", "--n", "3", "--max-tokens", "10", "--json"]);
    let scores: Vec<f64> =
        lines[0]["outputs"].as_array().unwrap().iter().map(|o| o["score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), 3);
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

#[test]
fn early_stopping_is_true_when_it_stands_alone() {
    let dir = fixture("opt-pre");
    let base = [
        "--model",
        dir.to_str().unwrap(),
        "--prompt-ids",
        "2,37",
        "--beam-width",
        "4",
        "--n",
        "4",
        "--max-tokens",
        "20",
        "--json",
    ];
    let with = |more: &[&'static str]| json(&[&base[..], more].concat())[0]["outputs"].clone();
    assert_eq!(with(&["--early-stopping"]), with(&["--early-stopping", "true"]));
    let first = ["--early-stopping", "--model", dir.to_str().unwrap()];
    assert_eq!(json(&[&first[..], &base[2..]].concat())[0]["outputs"], with(&["--early-stopping", "true"]));
    assert_eq!(with(&[]), with(&["--early-stopping", "false"]));
    refused(&["--prompt", "a", "--beam-width", "2", "--early-stopping", "soon"], "soon");
}

#[test]
fn a_seed_makes_sampling_reproducible_in_any_batch() {
    let base = ["--temperature", "0.9", "--seed", "11", "--max-tokens", "30", "--json", "--prompt", "Once upon a time"];
    let alone = json(&base);
    let batched = json(&[&base[..], &["--prompt", "One day", "--prompt", "The fox", "--n", "4"]].concat());
    assert_eq!(alone[0]["outputs"][0], batched[0]["outputs"][0]);
    let other =
        json(&["--temperature", "0.9", "--seed", "12", "--max-tokens", "30", "--json", "--prompt", "Once upon a time"]);
    assert_ne!(alone[0]["outputs"][0]["token_ids"], other[0]["outputs"][0]["token_ids"]);
    let texts: std::collections::HashSet<String> =
        batched[0]["outputs"].as_array().unwrap().iter().map(|o| o["text"].to_string()).collect();
    assert_eq!(texts.len(), 4, "outputs of one prompt differ");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let lines = json(&["--prompt", "Once upon a time", "--stop", "young boy", "--stop", "nowhere", "--json"]);
    assert_eq!(lines[0]["outputs"][0]["text"], ", there lived a ");
    assert_eq!(lines[0]["outputs"][0]["finish_reason"], "stop");
    assert_eq!(stdout(&["--prompt", "Once upon a time", "--stop", "young boy"]), "Once upon a time, there lived a \n");
}

#[test]
fn prompts_are_read_from_files_and_standard_input() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "Once upon a time\n\nOne day\r\n").unwrap();
    let lines = json(&["--prompts", file.path().to_str().unwrap(), "--max-tokens", "3", "--json"]);
    assert_eq!(
        lines.iter().map(|l| l["prompt"].as_str().unwrap()).collect::<Vec<_>>(),
        ["Once upon a time", "One day"]
    );

    let mut child = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["--prompts", "-", "--max-tokens", "3"])
        .stdin(fs::File::open(file.path()).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(
        text.lines().filter(|l| l.starts_with("[1] Once upon a time") || l.starts_with("[2] One day")).count(),
        2
    );
}

#[test]
fn a_word_dropped_by_sentencepiece_keeps_its_space() {
    let dir = fixture("llama2");
    let args = ["--model", dir.to_str().unwrap(), "--temperature", "0", "--prompt", "and gent", "--max-tokens", "12"];
    let printed = stdout(&args);
    let lines = json(&[&args[..], &["--json"]].concat());
    let ids: Vec<String> = ["prompt_token_ids", "x"]
        .iter()
        .filter_map(|k| lines[0][k].as_array())
        .flatten()
        .chain(lines[0]["outputs"][0]["token_ids"].as_array().unwrap())
        .map(|id| id.to_string())
        .collect();
    let whole = json(&[
        "--model",
        dir.to_str().unwrap(),
        "--temperature",
        "0",
        "--prompt-ids",
        &ids.join(","),
        "--max-tokens",
        "1",
        "--json",
    ]);
    assert_eq!(printed.trim_end_matches('\n'), whole[0]["prompt"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn help_and_version_are_printed() {
    let help = stdout(&["--help"]);
    assert!(help.contains("--beam-width <k>") && help.contains("Examples"));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "the page fits a terminal");
    assert!(stdout(&["--version"]).starts_with("quire 0."));
}

#[test]
fn stats_tell_what_happened() {
    let output = quire(&["--prompt", "Once upon a time", "--max-tokens", "20", "--stats", "--verbose"]);
    let report = String::from_utf8(output.stderr).unwrap();
    for line in ["time to first token", "tokens/s", "KV blocks", "KV utilisation", "preemptions", "opt-story-3m"] {
        assert!(report.contains(line), "{report}");
    }
}

#[test]
fn prompts_that_begin_alike_are_computed_once() {
    let ids = vec!["5"; 100].join(",");
    let args = |caching| {
        let prompts = ["--prompt-ids", &ids, "--prompt-ids", &ids, "--temperature", "0"].map(str::to_owned);
        let more = ["--max-tokens", "2", "--stats", "--prefix-caching", caching].map(str::to_owned);
        [&prompts[..], &more[..]].concat()
    };
    let run = |caching| quire(&args(caching).iter().map(String::as_str).collect::<Vec<_>>());
    let (on, off) = (run("on"), run("off"));
    assert_eq!(on.stdout, off.stdout);
    let report = |output: Output| String::from_utf8(output.stderr).unwrap();
    let (on, off) = (report(on), report(off));
    assert!(on.contains("48.0 % of 200 tokens looked up") && off.contains("0.0 % of 200 tokens"), "{on}{off}");
}

#[test]
fn a_shared_prefix_changes_nothing_but_the_work() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let prefix = "Once upon a time, there lived a young boy named Theo in a small village.";
    fs::write(file.path(), format!("{prefix}\n")).unwrap();
    let prompts = [" One day", " He had a dog"].map(|rest| format!("{prefix}{rest}"));
    let base =
        ["--prompt", &prompts[0], "--prompt", &prompts[1], "--max-tokens", "5", "--stats", "--prefix-caching", "off"];
    let plain = quire(&base);
    let shared = quire(&[&base[..], &["--shared-prefix", file.path().to_str().unwrap()]].concat());
    assert!(shared.status.success() && shared.stdout == plain.stdout, "{shared:?}");
    let report = String::from_utf8(shared.stderr).unwrap();
    assert!(report.contains("(2 copied on write"), "the prefix ends within a block: {report}");
}

#[test]
fn the_state_of_every_block_follows_from_the_trace() {
    #[derive(Clone, Default)]
    struct Block {
        references: usize,
        filled: u64,
        known: bool,
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    // Three requests of three outputs in a pool for one and a half of them.
    let prompt = vec!["5"; 20].join(",");
    let prompts =
        ["--prompt-ids", &prompt, "--prompt-ids", &prompt, "--prompt-ids", &prompt, "--n", "3", "--seed", "1"];
    let more = ["--temperature", "1", "--max-tokens", "60", "--ignore-eos", "--kv-memory", "3MB", "--stats"];
    let output = quire(&[&prompts[..], &more[..], &["--trace-kv", path.to_str().unwrap()]].concat());
    let report = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{report}");

    let trace = fs::read_to_string(&path).unwrap();
    let mut lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let sizes = lines.next().unwrap();
    let pool = |name: &str| vec![Block::default(); sizes[name].as_u64().unwrap() as usize];
    let mut pools = std::collections::BTreeMap::from([("cache", pool("cache")), ("swap", pool("swap"))]);
    let mut steps = 0;
    let mut seen = std::collections::BTreeSet::new();
    for line in lines {
        let number = |field: &str| line[field].as_u64().unwrap();
        let pool = pools.get_mut(line["space"].as_str().unwrap()).unwrap();
        let event = line["event"].as_str().unwrap().to_owned();
        if event == "step" {
            steps += usize::from(line["space"] == "cache");
            let count = |is: fn(&Block) -> bool| pool.iter().filter(|b| is(b)).count() as u64;
            assert_eq!(number("used"), count(|b| b.references > 0), "{line}");
            assert_eq!(number("shared"), count(|b| b.references > 1), "{line}");
            assert_eq!(number("cached"), count(|b| b.references == 0 && b.known), "{line}");
            assert_eq!(number("filled_slots"), pool.iter().map(|b| b.filled).sum::<u64>(), "{line}");
        } else if event != "copy" && event != "swap" {
            let block = &mut pool[number("block") as usize];
            match event.as_str() {
                "allocate" => *block = Block { references: 1, ..Block::default() },
                "share" if block.references == 0 => {
                    *block = Block { references: 1, filled: sizes["block_size"].as_u64().unwrap(), known: true };
                }
                "share" => block.references += 1,
                "fill" => block.filled = number("slots"),
                "register" => block.known = true,
                "free" => {
                    block.references -= 1;
                    block.filled *= u64::from(block.references > 0);
                }
                "evict" => block.known = false,
                _ => panic!("{line}"),
            }
        }
        seen.insert(event);
    }
    assert!(report.contains(&format!("steps                 {steps} (")), "{report}");
    let all = ["allocate", "copy", "evict", "fill", "free", "register", "share", "step", "swap"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    assert!(pools.values().flatten().all(|b| b.references == 0));
    refused(&["--prompt", "a", "--trace-kv", "no/such/directory/trace"], "no/such/directory");
}

#[test]
fn a_text_cut_short_by_memory_says_so() {
    let output = quire(&["--prompt", "Once upon a time", "--kv-memory", "300KB", "--json"]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["outputs"][0]["finish_reason"], "length");
    assert!(String::from_utf8(output.stderr).unwrap().contains("KV cache holds 32 tokens"));
}

#[test]
fn the_model_is_found_from_any_directory() {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output =
        command.args(["--prompt", "Once", "--max-tokens", "2"]).current_dir(elsewhere.path()).output().unwrap();
    assert!(output.status.success());
}

#[test]
fn bad_options_are_refused_in_one_sentence() {
    let with = |args: &[&'static str]| [&["--prompt", "Once"][..], args].concat();
    refused(&[], "nothing to continue");
    refused(&["--prompt"], "--prompt");
    refused(&with(&["--colour", "red"]), "--colour");
    refused(&with(&["--max-tokens", "0"]), "max-tokens");
    refused(&with(&["--max-tokens", "many"]), "many");
    refused(&with(&["--temperature", "-0.5"]), "temperature");
    refused(&with(&["--temperature", "nan"]), "temperature");
    refused(&with(&["--top-p", "0"]), "top-p");
    refused(&with(&["--top-p", "1.5"]), "top-p");
    refused(&with(&["--min-p", "2"]), "min-p");
    refused(&with(&["--top-k", "5"]), "need temperature");
    refused(&with(&["--repetition-penalty", "0"]), "repetition-penalty");
    refused(&with(&["--n", "0"]), "n must be at least 1");
    refused(&with(&["--n", "3", "--best-of", "2"]), "best-of");
    refused(&with(&["--beam-width", "0"]), "beam-width");
    refused(&with(&["--beam-width", "4", "--temperature", "0.5"]), "temperature");
    refused(&with(&["--beam-width", "2", "--n", "3"]), "beam-width");
    refused(&with(&["--length-penalty", "2"]), "beam-width");
    refused(&with(&["--stop", ""]), "stop");
    refused(&with(&["--logprobs", "1000"]), "logprobs");
    refused(&with(&["--n", "300"]), "at most 256");
    refused(&with(&["--device", "abacus"]), "abacus");
    refused(&with(&["--dtype", "f8"]), "f8");
    refused(&with(&["--block-size", "0"]), "block-size");
    refused(&with(&["--threads", "0"]), "threads");
    refused(&with(&["--threads", "100000"]), "threads");
    refused(&with(&["--max-num-seqs", "0"]), "max-num-seqs");
    refused(&with(&["--max-batch-tokens", "0"]), "max-batch-tokens");
    refused(&with(&["--kv-memory", "1KB"]), "takes 147456 bytes");
    refused(&with(&["--kv-memory", "lots"]), "lots");
    refused(&with(&["--swap-space", "lots"]), "lots");
    refused(&with(&["--preemption", "never"]), "never");
    refused(&with(&["--prefix-caching", "perhaps"]), "perhaps");
    refused(&with(&["--shared-prefix", "no-such-file"]), "no-such-file");
    refused(&with(&["--delay-factor", "-1"]), "delay-factor");
    refused(&["--prompts", "no-such-file"], "no-such-file");
}

#[test]
fn bad_prompts_are_refused_in_one_sentence() {
    refused(&["--prompt-ids", "5,9999"], "9999 is outside the vocabulary");
    refused(&["--prompt-ids", "5,x"], "not a token id");
    refused(&["--prompt", "a", "--prompt-ids", "9999"], "prompt 2: invalid request: prompt id 9999");
    let long = vec!["5"; 512].join(",");
    refused(&["--prompt-ids", &long], "512 positions");
    refused(&["--prompt-ids", &long[..399], "--kv-memory", "300KB"], "KV cache holds 32");
    let gpt2 = fixture("gpt2");
    refused(&["--model", gpt2.to_str().unwrap(), "--prompt", ""], "no tokens");
}

#[test]
fn bad_models_are_refused_in_one_sentence() {
    let with = |dir: &str, naming: &str| refused(&["--model", dir, "--prompt", "a", "--temperature", "0"], naming);
    with("./no/such/directory", "no/such/directory");
    let empty = tempfile::tempdir().unwrap();
    with(model(&empty), "config.json");

    let truncated = copy_of("opt-pre");
    let weights = truncated.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    with(model(&truncated), "model.safetensors");
    let mut flipped = bytes.clone();
    flipped[20] ^= 0x80;
    fs::write(&weights, &flipped).unwrap();
    with(model(&truncated), "model.safetensors");
    let mut claims = bytes.clone();
    claims[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    fs::write(&weights, &claims).unwrap();
    with(model(&truncated), "model.safetensors");
    fs::remove_file(&weights).unwrap();
    with(model(&truncated), "weights");

    let pickle = copy_of("opt-bin");
    let shard = pickle.path().join("pytorch_model-00002-of-00003.bin");
    let mut bytes = fs::read(&shard).unwrap();
    let at = bytes.windows(24).position(|w| w == b"torch._utils\n_rebuild_te").unwrap();
    bytes[at..at + 12].copy_from_slice(b"posix\nsystem");
    fs::write(&shard, bytes).unwrap();
    with(model(&pickle), "pytorch_model-00002-of-00003.bin");

    for (from, to, naming) in [
        ("\"hidden_size\": 128", "\"hidden_size\": 64", "shape"),
        ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "layers.3."),
        ("OPTForCausalLM", "MambaForCausalLM", "MambaForCausalLM"),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 0", "heads"),
        ("\"vocab_size\": 512", "\"vocab_size\": \"many\"", "vocab_size"),
    ] {
        let dir = copy_of("opt-pre");
        edit(&dir, "config.json", from, to);
        with(model(&dir), naming);
    }

    let speechless = copy_of("opt-pre");
    for file in ["tokenizer.json", "vocab.json", "merges.txt"] {
        fs::remove_file(speechless.path().join(file)).unwrap();
    }
    with(model(&speechless), "tokenizer");
}

#[test]
fn an_uncached_hub_model_without_network_is_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output = command
        .args(["--model", "facebook/opt-125m", "--prompt", "a"])
        .env("HF_HOME", home.path())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.starts_with("error: ") && message.contains("facebook/opt-125m"), "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
}

#[test]
fn what_sharing_saves_is_measured() {
    let sharing = stdout(&["bench", "sharing", "--requests", "4"]);
    assert_eq!(sharing.lines().count(), 1 + 2 * 2 * 3, "{sharing}");
    let prefix = stdout(&["bench", "prefix", "--requests", "3", "--tokens", "40", "--output", "2"]);
    let computed = |name: &str| {
        let row = prefix.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        row.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(computed("computed for each"), 3 * 61);
    assert_eq!(computed("prefix caching"), 3 * 61 - 2 * 32);
    assert_eq!(computed("pinned before"), 3 * 21 + 40);
    refused(&["bench"], "--help");
}

#[test]
fn kernels_are_listed_and_profiled() {
    let list = stdout(&["kernels"]);
    for kernel in ["reshape_and_cache", "copy_blocks", "swap_blocks_out"] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{kernel} "))), "{list}");
    }
    let profile = stdout(&["kernels", "--capability", "8.0", "profile", "copy_", "--lines", "3"]);
    assert!(profile.starts_with("copy_blocks: ") && profile.contains("sm_80"), "{profile}");
    assert!(profile.contains(" kernels/src/ptx/memory.rs:"), "{profile}");
    refused(&["kernels", "profile", "nothing"], "\"nothing\"");
    refused(&["kernels", "--device", "abacus"], "abacus");
}
