//! Shell completion scripts and the manual page.

use std::process::Command;

use crate::support::{misused, stdout};

/// Returns bash's completions of the last of these words.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _quire; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", script, env!("CARGO_BIN_EXE_quire"), "quire"]).args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_their_options() {
    assert_eq!(bash_offers(&["ser"]), ["serve"]);
    assert_eq!(bash_offers(&["bench", "lat"]), ["latency"]);
    assert_eq!(bash_offers(&["serve", "--api-"]), ["--api-key"]);
    assert_eq!(bash_offers(&["bench", "latency", "--bat"]), ["--batch"]);
    // Without a command, and with a model instead of one.
    assert_eq!(bash_offers(&["--beam-w"]), ["--beam-width"]);
    assert_eq!(bash_offers(&["opt-125m", "--beam-w"]), ["--beam-width"]);
    // A word that is not an option is a file name, which bash completes itself.
    assert!(bash_offers(&["serve", "--model", "dir"]).is_empty());
}

#[test]
fn bash_completes_values_of_options() {
    assert_eq!(bash_offers(&["--device", "c"]), ["cpu", "cuda"]);
    assert_eq!(bash_offers(&["--device", "="]), ["auto", "cpu", "cuda", "emulator"]);
    assert_eq!(bash_offers(&["--device", "=", "em"]), ["emulator"]);
    assert_eq!(bash_offers(&["serve", "--kv-dtype", "f"]), ["f32", "f16", "fp8"]);
    assert_eq!(bash_offers(&["quantize", "--to", "q8"]), ["q8_0"]);
    assert_eq!(bash_offers(&["--mmap", ""]), ["on", "off"]);
    assert_eq!(bash_offers(&["-m", "opt-1.3"]), ["opt-1.3b"]);
    assert_eq!(bash_offers(&["opt-1.3"]), ["opt-1.3b"]);
    // A number is not completed, not even with the names of commands.
    assert!(bash_offers(&["-n", ""]).is_empty() && bash_offers(&["serve", "--port", ""]).is_empty());
}

#[test]
fn zsh_and_fish_complete_values_of_options() {
    let zsh = stdout(&["completions", "zsh"]);
    assert!(zsh.contains(":device:(auto cpu cuda emulator)'") && zsh.contains(":file:_files'"));
    let fish = stdout(&["completions", "fish"]);
    assert!(fish.contains("-l device -r -f -a 'auto cpu cuda emulator'") && fish.contains("-l port -x"));
}

#[test]
fn completions_and_the_manual_have_every_option() {
    let pages = [&["--help"][..], &["serve", "--help"], &["bench", "latency", "--help"]].map(stdout);
    let is_name = |word: &&str| word.starts_with("--") && word.len() > 2;
    for script in [&["completions", "zsh"][..], &["completions", "fish"], &["man"]].map(stdout) {
        let plain = script.replace("\\-", "-");
        for page in &pages {
            let options = page.lines().filter(|line| line.trim_start().starts_with('-'));
            for name in
                options.filter_map(|line| line.split_whitespace().find(is_name)).filter(|name| *name != "--help")
            {
                let known = plain.contains(name) || plain.contains(&format!("-l {} ", &name[2..]));
                assert!(known, "{name} is not in {}", script.lines().next().unwrap());
            }
        }
    }
}

#[test]
fn roff_reads_no_text_as_a_command() {
    let requests = [".TH", ".SH", ".SS", ".B", ".br", ".TP", ".PP"];
    for line in stdout(&["man"]).lines().filter(|line| line.starts_with(['.', '\''])) {
        assert!(requests.contains(&line.split(' ').next().unwrap()), "{line}");
    }
}

#[test]
fn an_unsupported_shell_is_refused() {
    misused(&["completions"], "bash, zsh or fish");
    misused(&["completions", "csh"], "csh");
}
