//! Kernels with one line missing: what a test must notice.

/// The PTX of one entry alone: the file's header, its globals, and the entry.
pub fn only(ptx: &str, entry: &str) -> String {
    let start = format!(".visible .entry {entry}(");
    let mut out = String::new();
    let (mut inside, mut other) = (false, false);
    for line in ptx.lines() {
        if line.starts_with(".visible .entry ") {
            inside = line.starts_with(&start);
            other = !inside;
        }
        if !other {
            out.push_str(line);
            out.push('\n');
        }
        if line == "}" {
            (inside, other) = (false, false);
        }
    }
    assert!(!inside && out.contains(&start), "{entry} is in the PTX, and ends");
    out
}

/// A kernel with one instruction missing.
pub struct Mutant {
    /// The instruction, and where it stood in the PTX of the entry alone.
    pub removed: String,
    pub ptx: String,
}

/// For every instruction of `entry` that begins with one of `opcodes`: the PTX without it.
pub fn without_each(ptx: &str, entry: &str, opcodes: &[&str]) -> Vec<Mutant> {
    let alone = only(ptx, entry);
    let lines: Vec<&str> = alone.lines().collect();
    let is_target = |line: &str| opcodes.iter().any(|opcode| line.trim_start().starts_with(opcode));
    let mutant = |at: usize| {
        let rest = lines.iter().enumerate().map(|(i, line)| if i == at { "" } else { line });
        let ptx = rest.collect::<Vec<_>>().join("\n");
        Mutant { removed: format!("line {}: {}", at + 1, lines[at].trim()), ptx }
    };
    (0..lines.len()).filter(|&at| is_target(lines[at])).map(mutant).collect()
}
