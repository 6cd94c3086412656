//! The other commands, and the words that they accept.

use crate::support::{lab, misused, refused, stdout, text};

#[test]
fn savings_of_sharing_are_measured() {
    let sharing = stdout(&["sharing", "--requests", "4"]);
    assert_eq!(sharing.lines().count(), 1 + 2 * 2 * 3, "{sharing}");
    let prefix = stdout(&["prefix", "--requests", "3", "--tokens", "40", "--output", "2"]);
    let computed = |name: &str| {
        let row = prefix.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        row.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(computed("computed for each"), 3 * 61);
    assert_eq!(computed("prefix caching"), 3 * 61 - 2 * 32);
    assert_eq!(computed("pinned in advance"), 3 * 21 + 40);
    misused(&[], "lab needs a command: floor, sharing, prefix, eviction, trace, paper and kernels (lab --help)");
}

#[test]
fn rules_of_eviction_are_compared() {
    let table = stdout(&["eviction", "--requests", "12", "--sessions", "3"]);
    // Two traces, four sizes of memory, tokens and operations.
    assert_eq!(table.lines().count(), 1 + 2 * 4 * 2, "{table}");
    for line in table.lines().skip(1) {
        // Nothing is evicted, so every rule saves all that can be saved.
        let shares: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert!(shares.len() == 4 && shares.iter().all(|share| *share == shares[0]), "{table}");
    }
    refused(&["eviction", "opt-13b"], "decoders");
}

#[test]
fn kernels_are_listed_and_profiled() {
    let list = stdout(&["kernels"]);
    for kernel in ["reshape_and_cache", "copy_blocks", "swap_blocks_out"] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{kernel} "))), "{list}");
    }
    let profile = stdout(&["kernels", "--capability", "8.0", "profile", "copy_", "--lines", "3"]);
    assert!(profile.starts_with("copy_blocks: ") && profile.contains("sm_80"), "{profile}");
    assert!(profile.contains("/src/ptx/memory.rs:"), "{profile}");
    assert!(profile.contains("8 per multiprocessor with 64 warps in all, limited by registers"), "{profile}");
    assert!(profile.contains("    bound on an A100    by memory; busy meanwhile: "), "{profile}");
    refused(&["kernels", "profile", "nothing"], "\"nothing\"");
    refused(&["kernels", "--device", "abacus"], "abacus");
}

#[test]
fn a_published_data_set_becomes_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (data, trace) = (folder.path().join("alpaca.json"), folder.path().join("trace.jsonl"));
    let pairs = r#"[{"instruction": "Once upon", "input": "a time", "output": "there was"}, {"instruction": "x", "output": ""}]"#;
    std::fs::write(&data, pairs).unwrap();
    let (data, trace) = (data.to_str().unwrap(), trace.to_str().unwrap());
    let made = lab(&["trace", "--alpaca", data, "--tokenizer", "opt-story-3m", "-o", trace]);
    let said = text(&made.stderr);
    assert!(made.status.success() && said.contains("1 of 2 requests") && said.contains("19.31"), "{said}");
    let line = std::fs::read_to_string(trace).unwrap();
    assert!(line.lines().count() == 1 && line.contains("\"prompt_tokens\": 5"), "{line}");
    refused(&["trace", "--sharegpt", data, "--tokenizer", "opt-story-3m"], "no question with an answer");
}

#[test]
fn prefixes_take_the_options_of_an_engine() {
    let blocks = ["prefix", "--requests=2", "--tokens=40", "--output=1", "--block-size"];
    assert_ne!(
        stdout(&[&blocks[..], &["32"]].concat()).lines().nth(2),
        stdout(&[&blocks[..], &["8"]].concat()).lines().nth(2)
    );
    misused(&["prefix", "--prefix-caching", "off"], "--prefix-caching");
    misused(&["prefix", "--block-size", "many"], "--block-size: \"many\" is not a whole number");
    misused(&["prefix", "--prefix-caching", "off"], "--prefix-caching");
}

#[test]
fn words_are_refused_with_a_suggestion() {
    misused(&["kernles"], "there is no command \"kernles\"");
    misused(&["kernles"], "did you mean kernels?");
    misused(&["kernels", "--devise", "cuda"], "did you mean --device? (lab kernels --help shows all options)");
    misused(&["kernels", "profile"], "needs the name of a kernel");
    misused(&["kernels", "list"], "\"list\"");
    misused(&["kernels", "--lines=x", "profile", "a"], "--lines");
    misused(&["sharing", "more"], "\"more\"");
    misused(&["sharing", "--requests=-1"], "--requests");
}

#[test]
fn every_command_has_a_page() {
    let page = stdout(&["help"]);
    assert!(page.contains("Usage: lab <command> [options]\n       lab help <command>\n"), "{page}");
    for command in ["floor", "sharing", "prefix", "eviction", "trace", "paper", "kernels"] {
        assert!(page.contains(&format!("\n  {command} ")), "{page}");
        let own = stdout(&["help", command]);
        assert!(own.contains(&format!("Usage: lab {command} ")), "{own}");
        assert_eq!(stdout(&[command, "--help"]), own);
        assert!(own.lines().all(|line| line.chars().count() <= 100), "{own}");
    }
}
