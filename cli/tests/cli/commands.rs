//! Engine options of all commands, and commands that moved to `lab`.

use crate::support::{misused, refused, stdout};

#[test]
fn every_command_that_runs_an_engine_has_its_options() {
    for command in [&[][..], &["serve"], &["bench", "throughput"], &["bench", "latency"]] {
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
    refused(&["bench", "throughput", "--shared-prefix", "no-such-file"], "no-such-file");
}

#[test]
fn a_command_that_moved_names_the_new_one() {
    for (old, new) in [
        (&["bench", "floor", "opt-13b"][..], "floor"),
        (&["bench", "sharing", "--help"], "sharing"),
        (&["help", "bench", "prefix"], "prefix"),
        (&["bench", "trace"], "trace"),
        (&["paper", "--figure", "all"], "paper"),
        (&["kernels", "profile", "gemm"], "kernels"),
    ] {
        misused(old, &format!("` is now `cargo run -p lab -- {new}`"));
    }
}
