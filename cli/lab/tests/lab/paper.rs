//! `lab paper`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{misused, stdout};

/// Draws a figure from short traces. Returns the output.
fn draw(figure: &str, seed: &str, folder: &Path) -> String {
    let out = folder.to_str().unwrap();
    stdout(&["paper", "--figure", figure, "--seconds", "20", "--seed", seed, "--out", out])
}

#[test]
fn a_figure_has_a_table_an_image_numbers_and_a_page() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [once, again, other] = [(0, "7"), (1, "7"), (2, "8")].map(|(at, seed)| draw("2", seed, folders[at].path()));
    assert!(once.contains("Figure 2") && once.contains("simulated") && once.contains("| Orca (Max) |"), "{once}");
    let read = |at: usize, name: &str| fs::read_to_string(folders[at].path().join(name)).unwrap();
    for name in ["figure2.md", "figure2.json", "figure2.svg", "index.html"] {
        assert_eq!(read(0, name), read(1, name), "{name} is not the same for the same seed");
    }
    assert_eq!(once.lines().count(), again.lines().count());
    assert_ne!(read(0, "figure2.json"), read(2, "figure2.json"), "{other}");
    let numbers: Value = serde_json::from_str(&read(0, "figure2.json")).unwrap();
    assert_eq!((numbers["figure"].as_str(), numbers["origin"].as_str()), (Some("2"), Some("simulated")));
    let page = read(0, "index.html");
    assert!(page.contains("<svg") && page.contains("simulated") && page.contains("96.3"));
}

#[test]
fn an_unknown_figure_is_refused_with_the_known_ones() {
    misused(&["paper", "--figure", "3"], "1, 2, 11, 12");
}
