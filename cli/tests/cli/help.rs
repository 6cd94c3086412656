//! Help pages.

use crate::support::stdout;

#[test]
fn help_and_version_are_printed() {
    let help = stdout(&["--help"]);
    assert!(help.contains("--beam-width <k>") && help.contains("Examples"));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "the page fits a terminal");
    assert!(stdout(&["--version"]).starts_with("quire 0."));
}

#[test]
fn every_command_has_a_page_under_several_names() {
    let page = stdout(&["--help"]);
    for line in ["  -p, --prompt <text>", "  -n, --max-tokens <n>", "  -m, --model <model>", "  -V, --version"] {
        assert!(page.contains(line), "{page}");
    }
    assert!(page.contains("  -h, --help") && page.contains("quire bench <command>"), "{page}");
    for same in [&["-h"][..], &["help"], &["generate", "--help"], &["help", "generate"], &["--json", "-h"]] {
        assert_eq!(stdout(same), page, "{same:?}");
    }
    for command in ["serve", "bench serve", "bench throughput", "bench latency", "plan"] {
        let words: Vec<&str> = command.split(' ').collect();
        let page = stdout(&[&["help"][..], &words].concat());
        assert!(page.contains(&format!("Usage: quire {command} ")), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
        for ending in ["--help", "-h", "help"] {
            assert_eq!(stdout(&[&words[..], &[ending]].concat()), page, "{command} {ending}");
        }
    }
    let page = stdout(&["bench", "--help"]);
    assert!(page.contains("\n  latency ") && page.contains("quire help bench <command>"), "{page}");
    assert_eq!([stdout(&["help", "bench"]), stdout(&["bench", "help"])], [page.clone(), page]);
    assert_eq!(stdout(&["bench", "help", "latency"]), stdout(&["bench", "latency", "--help"]));
}
