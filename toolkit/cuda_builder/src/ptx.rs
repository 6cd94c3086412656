//! Reading and selecting the entries of PTX.
//!
//! Tests read them to compare them with the host's descriptors. A program selects them to embed the kernels of one
//! crate in several images and load only the images that it needs.

use crate::Error;

/// An entry: a kernel from the driver's point of view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtxEntry {
    /// The entry's name.
    pub name: String,
    /// The types of the parameters, such as `u64` for an address and `b1024` for the 128 bytes of a tensor map.
    pub params: Vec<String>,
    /// `.maxntid`
    pub max_threads: Option<u32>,
    /// `.minnctapersm`
    pub min_blocks: Option<u32>,
    /// `.maxnreg`
    pub max_regs: Option<u32>,
}

/// Returns the entries of PTX made by [`CudaBuilder`](crate::CudaBuilder), in order.
pub fn entries(ptx: &str) -> Result<Vec<PtxEntry>, Error> {
    let mut entries = Vec::new();
    let mut current: Option<PtxEntry> = None;
    for line in ptx.lines().map(str::trim) {
        if let Some(name) = entry_name(line) {
            current = Some(PtxEntry { name: name.to_owned(), ..PtxEntry::default() });
        }
        let Some(entry) = &mut current else { continue };
        let mut words = line.split_whitespace();
        match words.next() {
            Some(".param") => entry.params.push(param_type(words)?),
            Some(".maxntid") => entry.max_threads = Some(number(words.next())?),
            Some(".minnctapersm") => entry.min_blocks = Some(number(words.next())?),
            Some(".maxnreg") => entry.max_regs = Some(number(words.next())?),
            Some("{") => entries.extend(current.take()),
            _ => {}
        }
    }
    Ok(entries)
}

/// Parses the type of a parameter. For an array of bytes it is the number of bits.
fn param_type<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<String, Error> {
    let ty = words.next().unwrap_or_default();
    if ty != ".align" {
        return Ok(ty.trim_start_matches('.').to_owned());
    }
    let name = words.nth(2).unwrap_or_default();
    let length = name.split_once('[').map(|(_, rest)| rest.trim_end_matches(','));
    Ok(format!("b{}", 8 * number(length.map(|length| length.trim_end_matches(']')))?))
}

/// Returns PTX made by [`CudaBuilder`](crate::CudaBuilder) with only the entries whose names `keep` accepts. All other
/// declarations of the module are kept.
pub fn with_entries(ptx: &str, keep: impl Fn(&str) -> bool) -> String {
    let mut selected = String::with_capacity(ptx.len());
    let mut skips = false;
    for line in ptx.split_inclusive('\n') {
        skips |= entry_name(line).is_some_and(|name| !keep(name));
        // The compiler writes this comment before each entry.
        let announced = line.trim_start().strip_prefix("// .globl");
        if !skips && announced.is_none_or(|name| keep(name.trim())) {
            selected.push_str(line);
        }
        // An entry's body ends at a brace at the start of a line.
        skips &= !line.starts_with('}');
    }
    selected
}

/// Returns the name of the entry that begins in this line.
fn entry_name(line: &str) -> Option<&str> {
    line.strip_prefix(".visible .entry ")?.split('(').next().map(str::trim)
}

fn number(word: Option<&str>) -> Result<u32, Error> {
    let word = word.unwrap_or_default();
    word.trim_end_matches(',').parse().map_err(|_| Error::Unexpected(format!("expected a number, found {word}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "\
.version 7.0
.shared .align 4 .b8 buffer[16];
\t// .globl\tone
.visible .entry one(
\t.param .u64 .ptr one_param_0
)
.maxntid 128
{
\t{
\tret;
\t}
}
\t// .globl\ttwo
.visible .entry two()
{
\tret;
}
\t.file\t1 \"one.rs\"
";

    #[test]
    fn selected_ptx_has_the_chosen_entries_and_all_declarations() {
        let names = |ptx: &str| entries(ptx).unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(with_entries(PTX, |_| true), PTX);
        let one = with_entries(PTX, |name| name == "one");
        assert_eq!(names(&one), ["one"]);
        assert!(
            one.contains("buffer[16]") && one.contains(".file\t1") && one.contains("\t}\n}\n") && !one.contains("two")
        );
        let two = with_entries(PTX, |name| name == "two");
        assert_eq!(names(&two), ["two"]);
        assert!(!two.contains(" one(") && !two.contains(".maxntid") && two.contains("\tret;\n}\n"));
    }
}
