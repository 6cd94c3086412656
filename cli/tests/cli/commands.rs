//! `bench sharing`, `bench prefix` and `kernels`, and engine options of all commands.

use crate::support::{misused, refused, stdout};

#[test]
fn savings_of_sharing_are_measured() {
    let sharing = stdout(&["bench", "sharing", "--requests", "4"]);
    assert_eq!(sharing.lines().count(), 1 + 2 * 2 * 3, "{sharing}");
    let prefix = stdout(&["bench", "prefix", "--requests", "3", "--tokens", "40", "--output", "2"]);
    let computed = |name: &str| {
        let row = prefix.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        row.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(computed("computed for each"), 3 * 61);
    assert_eq!(computed("prefix caching"), 3 * 61 - 2 * 32);
    assert_eq!(computed("pinned in advance"), 3 * 21 + 40);
    misused(&["bench"], "--help");
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
fn every_command_that_runs_an_engine_has_its_options() {
    for command in [&[][..], &["serve"], &["bench", "throughput"], &["bench", "latency"], &["bench", "prefix"]] {
        let page = stdout(&[command, &["--help"]].concat());
        let options = ["-m, --model <model>", "--block-size <n>", "--delay-factor <x>", "--shared-prefix <file>"];
        for option in options {
            assert!(page.contains(option), "{command:?}: {page}");
        }
        misused(&[command, &["--block-size", "many"]].concat(), "--block-size: \"many\" is not a whole number");
        refused(
            &[command, &["--model", "/nowhere"], if command.is_empty() { &["-p", "a"] } else { &[] }].concat(),
            "/nowhere",
        );
    }
    let blocks = ["bench", "prefix", "--requests=2", "--tokens=40", "--output=1", "--block-size"];
    assert_ne!(
        stdout(&[&blocks[..], &["32"]].concat()).lines().nth(2),
        stdout(&[&blocks[..], &["8"]].concat()).lines().nth(2)
    );
    misused(&["bench", "prefix", "--prefix-caching", "off"], "--prefix-caching");
    refused(&["bench", "throughput", "--shared-prefix", "no-such-file"], "no-such-file");
}
