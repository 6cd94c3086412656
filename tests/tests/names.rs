//! Names and sizes of what is declared: one name means one thing, and a file is about one thing.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Names that each crate or command may have for itself, since they are always read beside whose they are.
const OWN: [&str; 3] = ["Args", "Error", "Result"];

/// Names that have several meanings today, and how many: to be renamed, and taken from this list.
const DOUBLES: &[(&str, usize)] = &[
    // engine/completion, engine/kv/log, launch/event
    ("Event", 3),
    // cuda_std/launch/call, engine/config
    ("Family", 2),
    // server/api/chat, server/api/completions
    ("Fields", 2),
    // benchmarks/workbench/gpu, cli/bench/gpu
    ("Gpu", 2),
    // engine/scheduler, kernels/gemm/plan, launch/context, server/options
    ("Limits", 2),
    // engine/chat/message, server/worker
    ("Message", 2),
    // cli/bench/model, engine/model
    ("Model", 2),
    // cli/command, kernels/gemm/plan/product
    ("Operands", 2),
    // benchmarks/workbench/product, engine/place
    ("Placed", 2),
    // benchmarks/workbench/paged, benchmarks/workbench/product, server/json/problem
    ("Problem", 3),
    // benchmarks/loadgen/endpoint, engine/completion, tests/lib
    ("Prompt", 3),
    // benchmarks/loadgen/random, benchmarks/workbench/number
    ("Random", 2),
    // benchmarks/workbench/cases/rope, engine/config/rope
    ("Rope", 2),
    // benchmarks/workbench/paged, engine/backend, kernels/attention/decode/plan, kernels/attention/paper/span
    ("Span", 2),
    // cli/bench/step, engine/scheduler/step
    ("Step", 2),
    // benchmarks/loadgen/trace, cli/trace
    ("Trace", 2),
    // cli/words, engine/kv/usage, server/api/answer
    ("Usage", 3),
];

/// The lines that no file has more of.
const LINES: usize = 400;

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let mut declared = BTreeMap::<String, Vec<String>>::new();
    for file in files() {
        // Names in tests and examples are seen by no other crate.
        if !file.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for name in fs::read_to_string(root().join(&file)).unwrap().lines().filter_map(public_type) {
            declared.entry(name.to_owned()).or_default().push(file.display().to_string());
        }
    }
    assert!(declared.contains_key("CudaBuilder"), "the scan finds types");

    let allowed = DOUBLES.iter().copied().collect::<BTreeMap<_, _>>();
    assert_eq!(allowed.len(), DOUBLES.len(), "a name is in the list once");
    let mut wrong = Vec::new();
    for (name, places) in &declared {
        let count = allowed.get(name.as_str()).copied().unwrap_or(1);
        if !OWN.contains(&name.as_str()) && places.len() > count {
            wrong.push(format!("{name} is declared in {}: one of them needs another name", places.join(" and in ")));
        }
    }
    for (name, count) in &allowed {
        let found = declared.get(*name).map_or(0, Vec::len);
        if found < *count {
            wrong.push(format!(
                "(\"{name}\", {count}) is in the list of doubles, and is declared {found} times: correct it"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_is_longer_than_one_reads() {
    let long = files().into_iter().filter_map(|file| {
        let lines = fs::read_to_string(root().join(&file)).unwrap().lines().count();
        (lines > LINES).then(|| format!("{} has {lines} lines, more than {LINES}", file.display()))
    });
    let long = long.collect::<Vec<_>>();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn declarations_are_told_from_other_lines() {
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

/// The name of the public type that this line declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let declares = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    declares.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()).flatten()
}

/// The repository's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of all Rust files of the workspace, in the repository. What is no part of the workspace has one of its own.
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

/// Whether this directory has a workspace of its own.
fn is_workspace(directory: &Path) -> bool {
    fs::read_to_string(directory.join("Cargo.toml")).is_ok_and(|text| text.lines().any(|line| line == "[workspace]"))
}
