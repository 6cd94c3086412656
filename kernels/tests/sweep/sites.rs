//! Places in PTX that order what threads do.

use std::collections::{BTreeSet, HashMap};

/// What orders: barriers, waits, fences, commits and arrivals. `shfl`, `vote` and `redux` are results, too, and not orders alone.
const OPCODES: [&str; 11] = [
    "bar.",
    "barrier.",
    "membar.",
    "fence.",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "cp.async.wait_all",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "mbarrier.",
    "wgmma.",
];
/// Of `wgmma` these.
const WGMMA: [&str; 3] = ["wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"];

/// What an entry begins with.
const ENTRY: &str = ".visible .entry ";

/// A place in a kernel.
#[derive(Clone, Debug)]
pub struct Site {
    pub kernel: &'static str,
    /// The instruction that is to be taken away.
    pub instruction: String,
    /// The last place in the kernels' own sources that the PTX names before it: near where it comes from.
    pub source: String,
    /// Its line in the entry, and how many lines go: a wait that asks again has two.
    line: usize,
    lines: usize,
}

impl Site {
    /// The instruction, without its operands.
    pub fn opcode(&self) -> &str {
        self.instruction.split([' ', ';']).next().unwrap_or_default()
    }

    /// The file of the source.
    pub fn file(&self) -> &str {
        self.source.split(':').next().unwrap_or_default()
    }
}

/// A PTX text in parts.
#[derive(Debug)]
pub struct Parts {
    /// What comes before the first entry.
    header: &'static str,
    /// The text of each entry, by name.
    entries: HashMap<&'static str, &'static str>,
    /// The paths of the kernels' own files, by number.
    files: HashMap<&'static str, &'static str>,
}

impl Parts {
    /// The parts of a text.
    pub fn of(ptx: &'static str) -> Parts {
        let starts: Vec<usize> = ptx.match_indices(ENTRY).map(|(at, _)| at).collect();
        let entry = |&start: &usize| {
            let text = &ptx[start..];
            let name = text[ENTRY.len()..].split('(').next().unwrap_or_default();
            (name, text.find("\n}").map_or(text, |end| &text[..end + 3]))
        };
        Parts {
            header: &ptx[..starts.first().copied().unwrap_or(ptx.len())],
            entries: starts.iter().map(entry).collect(),
            files: ptx.lines().filter_map(own_file).collect(),
        }
    }

    /// The text of one entry.
    fn entry(&self, kernel: &str) -> &'static str {
        self.entries.get(kernel).unwrap_or_else(|| panic!("{kernel} is in the PTX"))
    }

    /// The places of a kernel.
    pub fn sites(&self, kernel: &'static str) -> Vec<Site> {
        let (mut sites, mut source) = (Vec::new(), String::new());
        for (line, text) in self.entry(kernel).lines().map(str::trim).enumerate() {
            if let Some((file, rest)) = text.strip_prefix(".loc\t").and_then(|rest| rest.split_once(' ')) {
                if let Some(file) = self.files.get(file) {
                    source = format!("{file}:{}", rest.split(' ').next().unwrap_or_default());
                }
                continue;
            }
            // What is done under a predicate stands behind it.
            let instruction =
                text.split_once(' ').filter(|(word, _)| word.starts_with('@')).map_or(text, |(_, rest)| rest);
            let orders = OPCODES.iter().any(|opcode| instruction.starts_with(opcode));
            let is_product = instruction.starts_with("wgmma.") && !WGMMA.iter().any(|it| instruction.starts_with(it));
            if orders && !is_product {
                let lines = if instruction.starts_with("mbarrier.try_wait") { 2 } else { 1 };
                let (instruction, source) = (instruction.trim().to_owned(), source.clone());
                sites.push(Site { kernel, instruction, source, line, lines });
            }
        }
        sites
    }

    /// The PTX of some kernels alone, if need be of one of them without a place.
    pub fn excerpt(&self, kernels: &BTreeSet<&str>, without: Option<&Site>) -> String {
        let mut text = self.header.to_owned();
        for kernel in kernels {
            let entry = self.entry(kernel);
            let Some(site) = without.filter(|site| site.kernel == *kernel) else {
                text += entry;
                continue;
            };
            let gone = site.line..site.line + site.lines;
            for (at, line) in entry.lines().enumerate() {
                // Lines keep their numbers.
                text += if gone.contains(&at) { "" } else { line };
                text += "\n";
            }
        }
        text
    }
}

/// The number and the path of a file of the kernels.
fn own_file(line: &'static str) -> Option<(&'static str, &'static str)> {
    let (number, path) = line.trim().strip_prefix(".file\t")?.split_once(' ')?;
    Some((number, path.trim_matches('"').strip_prefix("./kernels/src/")?))
}
