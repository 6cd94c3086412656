//! Names and sizes: a public name means one thing, and a file is short enough to read.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Names that each crate or command may define itself. Readers always see them next to the name of their crate.
const OWN: [&str; 3] = ["Args", "Error", "Result"];

/// Maximum number of lines per file.
const LINES: usize = 400;

#[test]
fn public_types_have_unique_names() {
    let mut declared = BTreeMap::<String, Vec<String>>::new();
    for file in files() {
        // Names in tests and examples are not visible to other crates.
        if !file.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for name in fs::read_to_string(root().join(&file)).unwrap().lines().filter_map(public_type) {
            declared.entry(name.to_owned()).or_default().push(file.display().to_string());
        }
    }
    assert!(declared.contains_key("CudaBuilder"), "the scan finds types");

    let duplicates = declared.iter().filter(|(name, places)| !OWN.contains(&name.as_str()) && places.len() > 1);
    let wrong = duplicates
        .map(|(name, places)| format!("{name} is declared in {}: rename all but one", places.join(" and in ")));
    let wrong = wrong.collect::<Vec<_>>();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let long = files().into_iter().filter_map(|file| {
        let lines = fs::read_to_string(root().join(&file)).unwrap().lines().count();
        (lines > LINES).then(|| format!("{} has {lines} lines, more than {LINES}", file.display()))
    });
    let long = long.collect::<Vec<_>>();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn only_declarations_of_public_types_are_found() {
    assert_eq!(public_type("pub struct Pair<T>(T, T);"), Some("Pair"));
    assert_eq!(public_type("    pub enum Kind {"), Some("Kind"));
    assert_eq!(public_type("pub unsafe trait Plain: Copy {}"), Some("Plain"));
    assert_eq!(public_type("pub type Lines = Vec<String>;"), Some("Lines"));
    for line in
        ["struct Private;", "pub fn types() {}", "pub(crate) struct Inner;", "/// pub struct Remark", "type X = u8;"]
    {
        assert_eq!(public_type(line), None, "{line}");
    }
}

/// Returns the name of the public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let declares = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    declares.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()).flatten()
}

/// Returns the repository's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the paths of all Rust files of the workspace, relative to the repository. Directories with a workspace of
/// their own are skipped.
fn files() -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let name = directory.join(entry.file_name());
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type().unwrap().is_dir() {
                if !hidden && entry.file_name() != "target" && !is_workspace(&root().join(&name)) {
                    directories.push(name);
                }
            } else if name.extension().is_some_and(|extension| extension == "rs") {
                files.insert(name);
            }
        }
    }
    files
}

/// Returns whether a directory has a workspace of its own.
fn is_workspace(directory: &Path) -> bool {
    fs::read_to_string(directory.join("Cargo.toml")).is_ok_and(|text| text.lines().any(|line| line == "[workspace]"))
}
