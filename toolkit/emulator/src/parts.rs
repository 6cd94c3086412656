//! Splits a PTX text so that tests can remove single instructions. A good test of the kernel notices that one is
//! missing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Prefixes of the opcodes that order threads: barriers, waits, fences, commits and arrivals.
///
/// `shfl`, `vote` and `redux` are not listed, because they also compute results.
pub const ORDERING: [&str; 15] = [
    "bar.",
    "barrier.",
    "membar.",
    "fence.",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "cp.async.wait_all",
    "cp.async.mbarrier.",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "mbarrier.",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "griddepcontrol.wait",
];

/// The text that begins an entry.
const ENTRY: &str = ".visible .entry ";

/// An instruction of a kernel that can be removed.
#[derive(Clone, Debug)]
pub struct PtxPlace<'a> {
    /// The name of the kernel.
    pub kernel: &'a str,
    /// The instruction, without its predicate.
    pub instruction: &'a str,
    /// The approximate source line, as `path:line`: the last one that the PTX names before it, or empty.
    pub source: String,
    /// Its line in the entry, counted from zero.
    line: usize,
}

impl PtxPlace<'_> {
    /// The instruction, without its operands.
    pub fn opcode(&self) -> &str {
        self.instruction.split([' ', '\t', ';']).next().unwrap_or_default()
    }

    /// The file of the source line.
    pub fn file(&self) -> &str {
        self.source.split(':').next().unwrap_or_default()
    }

    /// Returns the text that replaces it: nothing, or for a test of an mbarrier a predicate that is always true.
    fn substitute(&self) -> String {
        let waits = ["mbarrier.try_wait", "mbarrier.test_wait"].iter().any(|wait| self.instruction.starts_with(wait));
        let predicate =
            self.instruction.split_once(char::is_whitespace).and_then(|(_, operands)| operands.split_once(','));
        match predicate.filter(|_| waits) {
            Some((predicate, _)) => format!("setp.eq.u32 {}, 0, 0;", predicate.trim()),
            None => String::new(),
        }
    }
}

impl fmt::Display for PtxPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of {}: {}", self.line + 1, self.kernel, self.instruction)
    }
}

/// A PTX text in parts: the text of each kernel, and the rest.
///
/// ```
/// use emulator::{ORDERING, PtxParts};
///
/// # let ptx = ".version 8.0\n.visible .entry reverse(\n)\n{\n\tst.shared.u32 [%r1], %r2;\n\tbar.sync 0;\n\tret;\n}\n";
/// let parts = PtxParts::of(ptx, "");
/// let places = parts.places("reverse", &ORDERING);
/// assert_eq!(places[0].instruction, "bar.sync 0;");
/// // A test of the kernel should fail with this mutant.
/// let mutant = parts.excerpt(["reverse"], Some(&places[0]));
/// assert!(!mutant.contains("bar.sync"));
/// ```
#[derive(Debug)]
pub struct PtxParts<'a> {
    /// The text outside all kernels.
    rest: String,
    /// The text of each kernel, by name.
    entries: BTreeMap<&'a str, &'a str>,
    /// Paths of source files by number, without the common prefix.
    files: HashMap<&'a str, &'a str>,
}

impl<'a> PtxParts<'a> {
    /// Splits a text into parts. Only sources whose paths begin with `sources` locate instructions. Their paths are
    /// reported without this prefix.
    pub fn of(ptx: &'a str, sources: &str) -> Self {
        let (mut rest, mut entries, mut left) = (String::new(), BTreeMap::new(), ptx);
        while let Some(start) = left.find(ENTRY) {
            let entry = &left[start..start + end_of_block(&left[start..])];
            rest += &left[..start];
            entries.insert(entry[ENTRY.len()..].split('(').next().unwrap_or_default().trim(), entry);
            left = left[start + entry.len()..].trim_start_matches('\n');
        }
        rest += left;
        let file = |line: &'a str| {
            let (number, path) = line.trim().strip_prefix(".file\t")?.split_once(' ')?;
            Some((number, path.split('"').nth(1)?.strip_prefix(sources)?))
        };
        Self { rest, entries, files: ptx.lines().filter_map(file).collect() }
    }

    /// The names of the kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.entries.keys().copied()
    }

    /// Returns the instructions of a kernel that begin with any of `opcodes`. Empty if the kernel does not exist.
    pub fn places(&self, kernel: &str, opcodes: &[&str]) -> Vec<PtxPlace<'a>> {
        let Some((&kernel, entry)) = self.entries.get_key_value(kernel) else { return Vec::new() };
        let (mut places, mut source) = (Vec::new(), String::new());
        for (line, text) in entry.lines().map(str::trim).enumerate() {
            if let Some((file, rest)) = text.strip_prefix(".loc\t").and_then(|rest| rest.split_once(' ')) {
                if let Some(file) = self.files.get(file) {
                    source = format!("{file}:{}", rest.split(' ').next().unwrap_or_default());
                }
                continue;
            }
            // Skip the predicate before an instruction.
            let guarded = text.split_once(char::is_whitespace).filter(|(word, _)| word.starts_with('@'));
            let instruction = guarded.map_or(text, |(_, rest)| rest.trim());
            if opcodes.iter().any(|opcode| instruction.starts_with(opcode)) {
                places.push(PtxPlace { kernel, instruction, source: source.clone(), line });
            }
        }
        places
    }

    /// Returns the text of some kernels and the text outside all kernels. `without` removes one instruction, and the
    /// line numbers stay.
    pub fn excerpt(
        &self,
        kernels: impl IntoIterator<Item = impl AsRef<str>>,
        without: Option<&PtxPlace<'_>>,
    ) -> String {
        let mut text = self.rest.clone();
        for kernel in kernels {
            let Some((&kernel, entry)) = self.entries.get_key_value(kernel.as_ref()) else { continue };
            let removed = without.filter(|place| place.kernel == kernel);
            for (at, line) in entry.lines().enumerate() {
                match removed.filter(|place| place.line == at) {
                    Some(place) => text += &place.substitute(),
                    None => text += line,
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Returns the end of the first block in braces.
fn end_of_block(text: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}
