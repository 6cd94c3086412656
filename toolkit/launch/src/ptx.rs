//! A minimal PTX reader. It compares kernels with their host declarations and removes kernels that are not needed.

use crate::error::{Error, Result};
use cuda_std::launch::Descriptor;
use std::borrow::Cow;
use std::ops::Range;

/// A PTX text whose kernels have been found. Several modules can be loaded from it, and the text is read only once.
#[derive(Clone, Debug)]
pub struct Ptx<'a> {
    text: Cow<'a, str>,
    kernels: Vec<Kernel>,
}

/// A kernel in a PTX text.
#[derive(Clone, Debug)]
struct Kernel {
    /// The range of its name in the text.
    name: Range<usize>,
    /// The sizes of the parameters in bytes.
    parameters: Vec<usize>,
    /// The range of the kernel in the text.
    place: Range<usize>,
    /// The number of line ends in that range.
    line_ends: usize,
}

impl<'a> Ptx<'a> {
    /// Finds the kernels of a text.
    ///
    /// # Errors
    /// Returns [`Error::Ptx`] if a kernel is cut off, or if a parameter's size is unknown.
    pub fn new(text: impl Into<Cow<'a, str>>) -> Result<Self> {
        let text = text.into();
        Ok(Ptx { kernels: kernels(&text)?, text })
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The target that the text declares, such as `sm_90a`, or an empty string if it declares none.
    pub fn target(&self) -> &str {
        let named = self.text.lines().find_map(|line| line.trim_start().strip_prefix(".target "));
        named.and_then(|rest| rest.split(',').next()).map_or("", str::trim)
    }

    /// Checks that the text has the given kernels with the right parameters. Returns it without all other kernels, because
    /// a driver compiles everything it gets. Line numbers stay the same.
    pub(crate) fn select(&self, entries: &[&'static Descriptor]) -> Result<String> {
        let Ptx { text, kernels } = self;
        for entry in entries {
            let kernel = kernels.iter().find(|kernel| text[kernel.name.clone()] == *entry.name);
            let kernel = kernel.ok_or(Error::MissingEntry(entry.name))?;
            let expected: Vec<usize> = entry.params.iter().map(|param| param.size).collect();
            if kernel.parameters != expected {
                return Err(Error::Signature { entry: entry.name, expected, found: kernel.parameters.clone() });
            }
        }
        let is_wanted = |kernel: &&Kernel| entries.iter().any(|entry| text[kernel.name.clone()] == *entry.name);
        let mut selected = String::new();
        let mut done = 0;
        for kernel in kernels.iter().filter(|kernel| !is_wanted(kernel)) {
            selected.push_str(&text[done..kernel.place.start]);
            selected.extend(std::iter::repeat_n('\n', kernel.line_ends));
            done = kernel.place.end;
        }
        selected.push_str(&text[done..]);
        Ok(selected)
    }
}

/// The number of line ends in a text. A byte counts those of a chunk, so that the compiler uses vector instructions.
fn line_ends(text: &[u8]) -> usize {
    let in_chunk = |chunk: &[u8]| chunk.iter().fold(0u8, |count, &byte| count.wrapping_add(u8::from(byte == b'\n')));
    text.chunks(255).map(|chunk| usize::from(in_chunk(chunk))).sum()
}

/// Whether a byte begins or ends a block, a string or a comment.
fn is_mark(byte: u8) -> bool {
    (byte == b'{') | (byte == b'}') | (byte == b'"') | (byte == b'/')
}

/// The place of the first mark. Chunks without one are skipped as a whole, with vector instructions.
fn find_mark(text: &[u8]) -> Option<usize> {
    let (chunks, _) = text.as_chunks::<32>();
    let has_mark = |chunk: &[u8; 32]| chunk.map(is_mark).into_iter().fold(false, |found, mark| found | mark);
    let skipped = 32 * chunks.iter().take_while(|chunk| !has_mark(chunk)).count();
    text[skipped..].iter().position(|&byte| is_mark(byte)).map(|at| skipped + at)
}

/// The kernels that a PTX text defines, in text order.
fn kernels(ptx: &str) -> Result<Vec<Kernel>> {
    let wrong = |at: usize, reason| Error::Ptx { line: ptx[..at].matches('\n').count() + 1, reason };
    let mut kernels = Vec::new();
    let mut tokens = Tokens { ptx, at: 0 };
    // The start of the current top-level statement.
    let mut start = None;
    while let Some(token) = tokens.next() {
        let start_of_this = *start.get_or_insert(token.start);
        match &ptx[token.clone()] {
            ".entry" => {
                let name = tokens.next().ok_or_else(|| wrong(token.start, "a kernel has no name"))?;
                let mut parameters = Vec::new();
                let end = loop {
                    let token = tokens.next().ok_or_else(|| wrong(name.start, "a kernel is not terminated"))?;
                    match &ptx[token.clone()] {
                        ".param" => parameters.push(
                            tokens.parameter().ok_or_else(|| wrong(token.start, "a parameter's size is unknown"))?,
                        ),
                        ";" => break None,
                        "{" => break Some(tokens.skip_block().ok_or_else(|| wrong(token.start, "`{` has no `}`"))?),
                        _ => {}
                    }
                };
                if let Some(end) = end {
                    let place = start_of_this..end;
                    let line_ends = line_ends(ptx[place.clone()].as_bytes());
                    kernels.push(Kernel { name, parameters, place, line_ends });
                }
                start = None;
            }
            "{" => {
                tokens.skip_block().ok_or_else(|| wrong(token.start, "`{` has no `}`"))?;
                start = None;
            }
            ";" => start = None,
            // These directives end at the end of their line.
            ".version" | ".target" | ".address_size" | ".file" => {
                tokens.skip_line();
                start = None;
            }
            _ => {}
        }
    }
    Ok(kernels)
}

/// A tokenizer for PTX that skips comments.
struct Tokens<'a> {
    ptx: &'a str,
    at: usize,
}

impl Tokens<'_> {
    fn next(&mut self) -> Option<Range<usize>> {
        let bytes = self.ptx.as_bytes();
        loop {
            let rest = &self.ptx[self.at..];
            self.at += rest.len() - rest.trim_start().len();
            let rest = &self.ptx[self.at..];
            if rest.starts_with("//") {
                self.skip_line();
            } else if rest.starts_with("/*") {
                self.at += rest.find("*/").map_or(rest.len(), |end| end + 2);
            } else {
                break;
            }
        }
        let start = self.at;
        let first = *bytes.get(start)?;
        let is_word = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'.' | b'%');
        self.at += if first == b'"' {
            self.ptx[start + 1..].find('"').map_or(self.ptx.len() - start, |end| end + 2)
        } else if is_word(first) {
            bytes[start..].iter().take_while(|&&c| is_word(c)).count()
        } else {
            self.ptx[start..].chars().next().map_or(1, char::len_utf8)
        };
        Some(start..self.at)
    }

    fn skip_line(&mut self) {
        let rest = &self.ptx[self.at..];
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    /// Skips past the `}` that closes the `{` just read, and returns its end.
    fn skip_block(&mut self) -> Option<usize> {
        let mut depth = 1;
        while depth > 0 {
            // Most of a PTX text is inside blocks, so skip to the next byte that matters there.
            self.at += find_mark(&self.ptx.as_bytes()[self.at..])?;
            match &self.ptx[self.next()?] {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        Some(self.at)
    }

    /// Parses a parameter whose `.param` has just been read, up to the `,` or `)` after it, and returns its size in
    /// bytes.
    fn parameter(&mut self) -> Option<usize> {
        let mut size: Option<usize> = None;
        let mut count = 1;
        loop {
            let before = self.at;
            let token = self.next()?;
            match &self.ptx[token] {
                "," => break,
                ")" => {
                    self.at = before; // leave the `)` for the caller
                    break;
                }
                "[" => {
                    let length = self.next()?;
                    count = self.ptx[length].parse().ok()?;
                }
                ".align" => {
                    self.next()?;
                }
                word => {
                    let bits = word.strip_prefix('.').map(|ty| ty.trim_start_matches(['b', 'u', 's', 'f']));
                    if let Some(bits) = bits.and_then(|bits| bits.parse::<usize>().ok()) {
                        size = size.or(Some(bits / 8));
                    }
                }
            }
        }
        size?.checked_mul(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;
    use cuda_std::launch::{Bounds, Param};

    const PTX: &str = r#"
.version 7.0
.target sm_80
.address_size 64
// .entry comment() {
.extern .shared .align 128 .b8 shared[];
.global .align 4 .u32 table[2] = {1, 2};
.visible .entry first(
	.param .u64 .ptr .align 1 first_param_0,
	.param .align 8 .b8 first_param_1[24]
)
.maxntid 256
{
	{ // callseq {
	ld.v2.u32 {%r1, %r2}, [%rd1];
	}
	ret;
}
.func helper(.param .b32 p) { ret; }
.visible .entry empty() { ret; }
.entry last(.param .u32 n, .param .f64 x, .param .b8 c) { ret; }
	.file	1 "a{b.rs"
"#;

    fn descriptor(name: &'static str, sizes: &[usize]) -> &'static Descriptor {
        let params: Vec<Param> = sizes.iter().map(|&size| Param { name: "p", ty: "u8", size }).collect();
        Box::leak(Box::new(Descriptor {
            name,
            labels: &[],
            params: params.leak(),
            bounds: Bounds::default(),
            arch: None,
            dependent: false,
        }))
    }

    #[test]
    fn the_target_is_named_without_options() {
        assert_eq!(
            [".version 8.0\n.target sm_90a\n", ".target sm_80, debug", ""]
                .map(|text| Ptx::new(text).unwrap().target().to_owned()),
            ["sm_90a", "sm_80", ""]
        );
    }

    #[test]
    fn kernels_are_found_with_their_parameters() {
        let found = kernels(PTX).unwrap();
        let signatures: Vec<_> =
            found.iter().map(|kernel| (&PTX[kernel.name.clone()], kernel.parameters.as_slice())).collect();
        assert_eq!(signatures, [("first", &[8, 24][..]), ("empty", &[]), ("last", &[4, 8, 1])]);
        assert!(PTX[found[0].place.clone()].starts_with(".visible .entry first("));
        assert!(PTX[found[0].place.clone()].ends_with("ret;\n}"));
    }

    #[test]
    fn other_kernels_are_removed_and_line_numbers_stay() {
        let cut = Ptx::new(PTX).unwrap().select(&[descriptor("last", &[4, 8, 1])]).unwrap();
        for removed in ["first", "empty", "callseq"] {
            assert!(!cut.contains(removed), "{removed}");
        }
        for (line, text) in PTX.lines().enumerate() {
            let stays = ["shared[]", "table", "helper", "entry last", ".file", ".version"];
            if stays.iter().any(|stay| text.contains(stay)) {
                assert_eq!(cut.lines().nth(line), Some(text));
            }
        }
        assert_eq!(
            Ptx::new(PTX).unwrap().select(&[descriptor("first", &[8, 24])]).unwrap().matches(".entry").count(),
            2
        ); // one of them in a comment
    }

    #[test]
    fn a_mismatch_is_named_in_the_error() {
        let error = |entry| Ptx::new(PTX).unwrap().select(&[entry]).unwrap_err().to_string();
        assert_eq!(error(descriptor("missing", &[])), "the PTX has no kernel `missing`");
        assert_eq!(
            error(descriptor("first", &[8, 8])),
            "`first` takes parameters of [8, 24] bytes in the PTX and of [8, 8] on the host"
        );
    }

    #[test]
    fn damaged_text_is_an_error() {
        for end in 0..PTX.len() {
            let _ = kernels(&PTX[..end]); // no panic
        }
        let broken = "\n.entry a(.param .texref t) { ret; }";
        assert_eq!(kernels(broken).unwrap_err().to_string(), "line 2 of the PTX: a parameter's size is unknown");
        assert_eq!(kernels(".entry a() { {").unwrap_err().to_string(), "line 1 of the PTX: `{` has no `}`");
    }
}
