//! Listings of PTX with the Rust lines that it comes from.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The width of the PTX column.
const COLUMN: usize = 66;

/// Returns the PTX of one kernel, from its name to its closing brace.
pub fn entry<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    let begin = ptx.find(&format!(".visible .entry {name}("))?;
    let length = ptx[begin..].find("\n}")? + 2;
    Some(&ptx[begin..begin + length])
}

/// Returns the PTX of one kernel. Where an instruction comes from a different line of Rust than the previous one, that
/// line is shown next to it. Returns `None` if the PTX has no such kernel.
pub fn listing(ptx: &str, name: &str) -> Option<String> {
    let files: HashMap<u32, &str> = ptx.lines().filter_map(file).collect();
    let mut sources = HashMap::new();
    let (mut text, mut place, mut shown) = (String::new(), None, None);
    for line in entry(ptx, name)?.lines() {
        if line.trim_start().starts_with(".loc") {
            place = location(line, &files).or(place);
            continue;
        }
        let instruction = line.replace('\t', "    ");
        let new_line = place.filter(|_| instruction.trim_end().ends_with(';') && place != shown);
        let Some((number, at)) = new_line else {
            let _ = writeln!(text, "{instruction}"); // writing to a String cannot fail
            continue;
        };
        shown = place;
        let path = files.get(&number).copied().unwrap_or("?");
        let source = sources.entry(number).or_insert_with(|| read(path));
        let rust = source.lines().nth(at.saturating_sub(1)).unwrap_or_default().trim();
        let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let _ = writeln!(text, "{instruction:COLUMN$}| {file}:{at}: {rust}");
    }
    Some(text)
}

/// Reads a source file, given by its path relative to the repository. Returns an empty string if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap_or_default()
}

/// Reads `.file 1 "path"`.
fn file(line: &str) -> Option<(u32, &str)> {
    let (number, path) = line.trim_start().strip_prefix(".file")?.trim_start().split_once(char::is_whitespace)?;
    Some((number.parse().ok()?, path.split('"').nth(1)?))
}

/// Reads `.loc file line column, function_name label, inlined_at file line column`. For a line of Rust's own library it
/// returns the line that called it. Line 0 means that there is no source line, and gives `None`.
fn location(line: &str, files: &HashMap<u32, &str>) -> Option<(u32, usize)> {
    let place = |words: &str| -> Option<(u32, usize)> {
        let mut words = words.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let own = place(line.trim_start().strip_prefix(".loc")?)?;
    let library = files.get(&own.0).is_some_and(|path| path.starts_with("/rustc"));
    let caller = line.split_once("inlined_at ").and_then(|(_, words)| place(words));
    let shown = if library { caller? } else { own };
    let has_source = files.get(&shown.0).is_some_and(|path| !path.starts_with("/rustc"));
    (has_source && shown.1 > 0).then_some(shown)
}
