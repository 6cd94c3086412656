//! KV blocks: sharing, traces and exhaustion.

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::support::{fixture, quire, refused};

#[test]
fn a_common_prefix_of_prompts_is_computed_once() {
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
fn a_shared_prefix_changes_no_output() {
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
        registered: bool,
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    // Three requests of three outputs each, in a pool for one and a half requests.
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
    let mut pools = BTreeMap::from([("cache", pool("cache")), ("swap", pool("swap"))]);
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
            assert_eq!(number("cached"), count(|b| b.references == 0 && b.registered), "{line}");
            assert_eq!(number("filled_slots"), pool.iter().map(|b| b.filled).sum::<u64>(), "{line}");
        } else if event != "copy" && event != "swap" {
            let block = &mut pool[number("block") as usize];
            match event.as_str() {
                "allocate" => *block = Block { references: 1, ..Block::default() },
                "share" if block.references == 0 => {
                    *block = Block { references: 1, filled: sizes["block_size"].as_u64().unwrap(), registered: true };
                }
                "share" => block.references += 1,
                "fill" => block.filled = number("slots"),
                "register" => block.registered = true,
                "free" => {
                    block.references -= 1;
                    block.filled *= u64::from(block.references > 0);
                }
                "evict" => block.registered = false,
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

/// A small model with three layers whose windows have 20 tokens, and one layer without a window.
fn gemma() -> String {
    fixture("gemma3").to_str().unwrap().replace("/golden/", "/families/")
}

#[test]
fn groups_of_layers_share_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    let (model, prompt) = (gemma(), vec!["5"; 50].join(","));
    let args =
        ["--model", &model, "--prompt-ids", &prompt, "--max-tokens", "30", "--ignore-eos", "--kv-memory", "300KB"];
    let output = quire(&[&args[..], &["--verbose", "--stats", "--trace-kv", path.to_str().unwrap()]].concat());
    let report = String::from_utf8(output.stderr).unwrap();
    // A page holds one block of the three layers, or three blocks of the one layer.
    for line in [
        "KV cache   12 pages of 24 KiB, with blocks of 16 tokens in f32: 0.3 MiB",
        "           3 layers, 2 heads of 32, the last 20 tokens: 1536 bytes a token, 1 block per page",
        "           1 layer, 2 heads of 32, all tokens: 512 bytes a token, 3 blocks per page",
    ] {
        assert!(output.status.success() && report.lines().any(|shown| shown == line), "{report}");
    }
    assert!(report.contains("KV memory  ") && !report.contains("KV blocks  "), "{report}");

    let trace = fs::read_to_string(&path).unwrap();
    let mut lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let first = lines.next().unwrap();
    assert_eq!((first["cache"].as_u64(), first["units_per_page"].as_u64()), (Some(12), Some(3)));
    let mut references = BTreeMap::new();
    let mut most = 0;
    let used = |references: &BTreeMap<_, i32>, group: u64| {
        references.iter().filter(|((own, _), count)| *own == group && **count > 0).count() as u64
    };
    for line in lines.filter(|line| line["space"] == "cache") {
        let mut add = |more| {
            let block = (line["group"].as_u64().unwrap(), line["block"].as_u64().unwrap());
            *references.entry(block).or_default() += more;
        };
        match line["event"].as_str().unwrap() {
            "allocate" | "share" => add(1),
            "free" => add(-1),
            "step" => {
                let [windows, full] = [0, 1].map(|group| used(&references, group));
                assert_eq!(line["used"].as_u64(), Some(3 * windows + full), "{line}");
                most = most.max(full);
            }
            _ => {}
        }
    }
    let left = references.values().filter(|count| **count != 0).count();
    assert_eq!((left, most), (0, 5), "79 tokens have keys and values");
}
