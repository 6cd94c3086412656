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

/// The places of a kernel.
pub fn of(ptx: &str, kernel: &'static str) -> Vec<Site> {
    let files: HashMap<&str, &str> = ptx.lines().filter_map(own_file).collect();
    let (mut sites, mut source) = (Vec::new(), String::new());
    for (line, text) in entry(ptx, kernel).lines().map(str::trim).enumerate() {
        if let Some((file, rest)) = text.strip_prefix(".loc\t").and_then(|rest| rest.split_once(' ')) {
            if let Some(file) = files.get(file) {
                source = format!("{file}:{}", rest.split(' ').next().unwrap_or_default());
            }
            continue;
        }
        // What is done under a predicate stands behind it.
        let instruction = text.split_once(' ').filter(|(word, _)| word.starts_with('@')).map_or(text, |(_, rest)| rest);
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

/// The number and the path of a file of the kernels.
fn own_file(line: &str) -> Option<(&str, &str)> {
    let (number, path) = line.trim().strip_prefix(".file\t")?.split_once(' ')?;
    Some((number, path.trim_matches('"').strip_prefix("./kernels/src/")?))
}

/// The PTX of some kernels alone, if need be of one of them without a place.
pub fn excerpt(ptx: &str, kernels: &BTreeSet<&str>, without: Option<&Site>) -> String {
    let mut text = ptx.split(".visible .entry ").next().unwrap_or_default().to_owned();
    for kernel in kernels {
        let entry = entry(ptx, kernel);
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

/// The text of one entry.
fn entry<'a>(ptx: &'a str, kernel: &str) -> &'a str {
    let start = format!(".visible .entry {kernel}(");
    let begin = ptx.find(&start).unwrap_or_else(|| panic!("{kernel} is in the PTX"));
    let end = ptx[begin..].find("\n}").unwrap_or_else(|| panic!("{kernel} ends"));
    &ptx[begin..begin + end + 3]
}
