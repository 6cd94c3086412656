//! Reading entries back from PTX, for tests that compare them with what the host believes.

use crate::Error;

/// An entry: a kernel, as the driver sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The types of its parameters, such as `u64` for an address.
    pub params: Vec<String>,
    /// `.maxntid`
    pub max_threads: Option<u32>,
    /// `.minnctapersm`
    pub min_blocks: Option<u32>,
    /// `.maxnreg`
    pub max_regs: Option<u32>,
}

/// The entries of PTX that this crate's [`CudaBuilder`](crate::CudaBuilder) made, in order.
pub fn entries(ptx: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    let mut current: Option<Entry> = None;
    for line in ptx.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            let name = rest.split('(').next().unwrap_or_default().trim().to_owned();
            current = Some(Entry { name, ..Entry::default() });
        }
        let Some(entry) = &mut current else { continue };
        let mut words = line.split_whitespace();
        match words.next() {
            Some(".param") => {
                let ty = words.next().unwrap_or_default().trim_start_matches('.');
                entry.params.push(ty.to_owned());
            }
            Some(".maxntid") => entry.max_threads = Some(number(words.next())?),
            Some(".minnctapersm") => entry.min_blocks = Some(number(words.next())?),
            Some(".maxnreg") => entry.max_regs = Some(number(words.next())?),
            Some("{") => entries.extend(current.take()),
            _ => {}
        }
    }
    Ok(entries)
}

fn number(word: Option<&str>) -> Result<u32, Error> {
    let word = word.unwrap_or_default();
    word.trim_end_matches(',').parse().map_err(|_| Error::Unexpected(format!("expected a number, found {word}")))
}
