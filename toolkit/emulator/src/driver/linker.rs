//! Links PTX texts into one text. A real driver would produce a cubin.

use super::compile::compile;
use super::image::CodeImage;
use super::options::DeviceOptions;
use super::result_code::{Compiled, ResultCode};
use std::collections::{HashMap, HashSet};

/// The first line of a linked image, which tells it apart from a cubin.
const HEAD: &str = "// Linked by Quire's emulator: PTX in the place of a cubin.\n";

/// A link operation, open or complete.
#[derive(Default)]
pub(super) struct Linker {
    texts: Vec<String>,
    /// The linked text with a terminating zero. Callers keep its address until the linker is destroyed.
    linked: Vec<u8>,
}

impl Linker {
    /// Adds an image to the link.
    pub fn add(&mut self, image: &CodeImage, options: &DeviceOptions) -> Compiled<()> {
        let text = image.ptx(options)?.into_owned();
        compile(&text, options)?;
        self.texts.push(text);
        Ok(())
    }

    /// Joins the added texts and checks that the result compiles.
    pub fn complete(&mut self, options: &DeviceOptions) -> Compiled<&[u8]> {
        if self.linked.is_empty() {
            let linked = join(&self.texts).map_err(|why| (ResultCode::InvalidPtx, why))?;
            compile(&linked, options)?;
            self.linked = linked.into_bytes();
            self.linked.push(0);
        }
        Ok(&self.linked)
    }
}

/// The number of a target such as `sm_90a`, and whether it ends with a letter.
fn rank(target: &str) -> (u32, bool) {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    (digits.parse().unwrap_or(0), target.ends_with(|last: char| last.is_ascii_alphabetic()))
}

/// The major and minor number of a version such as `8.7`.
fn version(text: &str) -> (u32, u32) {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}

/// Joins the texts into one. The directives at the head appear once, file numbers are renumbered, and the first text's
/// definition of a `.weak` symbol wins.
fn join(texts: &[String]) -> Result<String, String> {
    let (mut versions, mut targets) = (vec![], vec![]);
    let mut body = String::new();
    // The public symbols defined so far, with the index of the text that defines each.
    let mut defined: HashMap<String, usize> = HashMap::new();
    let mut files = 0;
    // Private symbols of a text must not clash with any symbol of another text.
    let mut taken: HashSet<String> =
        texts.iter().flat_map(|text| text.lines()).filter_map(definition).map(str::to_owned).collect();
    for (number, text) in texts.iter().enumerate() {
        let text = &rename_private(text, number, &mut taken);
        let mut most = files;
        let mut skip = Skip::No;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if skip != Skip::No {
                skip = skip.after(line);
                continue;
            }
            match first {
                ".version" => versions.push(words.next().unwrap_or_default().to_owned()),
                ".target" => targets.push(words.next().unwrap_or_default().trim_end_matches(',').to_owned()),
                ".address_size" => {}
                ".file" | ".loc" => {
                    let number: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                    most = most.max(files + number);
                    let rest = words.collect::<Vec<_>>().join(" ");
                    body += &format!("{first} {} {rest}\n", files + number);
                }
                _ => {
                    if let Some(name) = definition(line) {
                        // A text may declare a symbol that it also defines.
                        let by = *defined.entry(name.to_owned()).or_insert(number);
                        if by != number && first == ".weak" {
                            skip = Skip::Head.after(line);
                            continue;
                        }
                        if by != number {
                            return Err(format!("`{name}` is defined twice"));
                        }
                    }
                    body += line;
                    body.push('\n');
                }
            }
        }
        files = most;
    }
    let version = versions.into_iter().max_by_key(|text| version(text)).ok_or("no code was added to the link")?;
    let target = targets.into_iter().max_by_key(|target| rank(target)).ok_or("no text declares a target")?;
    Ok(format!("{HEAD}.version {version}\n.target {target}\n.address_size 64\n{body}"))
}

/// Parser state while a duplicate `.weak` declaration or definition is skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skip {
    No,
    Head,
    Body,
}

impl Skip {
    /// The state after another line.
    fn after(self, line: &str) -> Self {
        let end = line.trim_end();
        match self {
            Self::Head if end.ends_with('{') => Self::Body,
            Self::Head if end.ends_with(';') => Self::No,
            Self::Body if end.starts_with('}') => Self::No,
            _ => self,
        }
    }
}

/// Renames the private symbols of a text that clash with names in `taken`.
fn rename_private(text: &str, number: usize, taken: &mut HashSet<String>) -> String {
    let kinds = [".func", ".global", ".const", ".shared"];
    let own = text.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).filter_map(name);
    let own: HashSet<String> = own.map(str::to_owned).collect();
    let mut text = text.to_owned();
    for name in own {
        if !taken.insert(name.clone()) {
            text = rename_symbol(&text, &name, &format!("{name}$${number}"));
        }
    }
    text
}

/// Renames a symbol in a text, wherever it appears as a whole word.
fn rename_symbol(text: &str, name: &str, new: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let is_whole = !before.ends_with(is_part) && !after.starts_with(is_part);
        out += before;
        out += if is_whole { new } else { name };
        rest = after;
    }
    out + rest
}

/// The name of the public function or variable that a top-level line defines, if any.
fn definition(line: &str) -> Option<&str> {
    name([".visible ", ".weak "].iter().find_map(|linkage| line.strip_prefix(linkage))?)
}

/// The name of the function or variable in a declaration. `rest` starts at the word that gives its kind, such as
/// `.func`.
fn name(rest: &str) -> Option<&str> {
    if let Some(rest) = [".entry", ".func"].iter().find_map(|kind| rest.strip_prefix(kind)) {
        let rest = rest.trim_start();
        // Result parameters may come before a function's name.
        let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
        return rest.trim_start().split(['(', ' ', '\t', ';']).next();
    }
    let name = rest.split(['=', ';']).next()?.split_whitespace().last()?;
    name.split('[').next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    const KERNEL: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"k.cu\"\n\
        .extern .func (.param .b32 r) twice\n(\n.param .b32 x\n)\n;\n\
        .visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<3>; .reg .b64 %rd<2>;\n.loc 1 5 1\n\
        ld.param.u64 %rd1, [out];\n.param .b32 a; .param .b32 b;\nmov.u32 %r1, 21; st.param.b32 [a], %r1;\n\
        call (b), twice, (a);\nld.param.b32 %r2, [b]; st.global.u32 [%rd1], %r2;\nret;\n}\n";
    const CALLED: &str = ".version 8.7\n.target sm_75\n.address_size 64\n.file 1 \"t.cu\"\n\
        .visible .func (.param .b32 r) twice(.param .b32 x)\n{\n.reg .b32 %r<3>;\n.loc 1 9 1\n\
        ld.param.b32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2;\nret;\n}\n\
        .weak .func common()\n{\nret;\n}\n";

    #[test]
    fn joined_texts_compile() {
        let mut linker = Linker::default();
        let options = DeviceOptions::default();
        linker.add(&CodeImage::Text(KERNEL.into()), &options).unwrap();
        linker.add(&CodeImage::Text(CALLED.into()), &options).unwrap();
        linker
            .add(
                &CodeImage::Text(
                    CALLED.split(".visible").next().unwrap().to_owned() + ".weak .func common()\n{\nret;\n}\n",
                ),
                &options,
            )
            .unwrap();
        let linked = linker.complete(&options).unwrap();
        assert_eq!(linked.last(), Some(&0));
        let text = std::str::from_utf8(&linked[..linked.len() - 1]).unwrap();
        assert!(text.starts_with(&format!("{HEAD}.version 8.7\n.target sm_80\n.address_size 64\n")));
        assert!(text.contains(".file 2 \"t.cu\"") && text.contains(".loc 2 9 1") && text.contains(".loc 1 5 1"));
        assert_eq!(text.matches("common").count(), 1);
        assert!(compile(text, &options).unwrap().entry("k").unwrap().check().is_ok());
    }

    #[test]
    fn a_duplicate_definition_is_refused() {
        let declared =
            CALLED.replacen(".visible", ".visible .func (.param .b32 r) twice(.param .b32 x)\n;\n.visible", 1);
        assert!(join(&[declared]).is_ok(), "a text may declare a function that it defines");
        let twice = join(&[CALLED.to_owned(), CALLED.to_owned()]).unwrap_err();
        assert_eq!(twice, "`twice` is defined twice");
    }

    #[test]
    fn private_symbols_of_texts_stay_separate() {
        let text = |value: u32| {
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.global .align 4 .u32 $own = {value};\n\
                .visible .global .align 4 .u32 $own$1{value};\nmov.u64 %rd1, $own;\n"
            )
        };
        let joined = join(&[text(1), text(2)]).unwrap();
        assert!(joined.contains(".u32 $own = 1;") && joined.contains(".u32 $own$$1 = 2;"), "{joined}");
        assert!(joined.contains("mov.u64 %rd1, $own;") && joined.contains("mov.u64 %rd1, $own$$1;"));
        let hidden = ".version 8.0\n.target sm_80\n.func f\n{\nret;\n}\n".to_owned();
        assert!(
            join(&[hidden, ".version 8.0\n.target sm_80\n.visible .func f\n{\nret;\n}\n".into()])
                .unwrap()
                .contains(".func f$$0")
        );
        assert!(joined.contains("$own$12;"), "a longer name with the same prefix is unchanged");
    }

    #[test]
    fn names_of_definitions_are_found() {
        assert_eq!(definition(".visible .entry k("), Some("k"));
        assert_eq!(definition(".visible .func  (.param .b32 func_retval0) f("), Some("f"));
        assert_eq!(definition(".visible .global .align 4 .b8 table[16] = {1};"), Some("table"));
        assert_eq!(definition(".visible .const .f32 half;"), Some("half"));
        assert_eq!(definition(".global .u32 own;"), None);
        assert_eq!(definition(".extern .func f"), None);
    }
}
