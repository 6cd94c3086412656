//! Parses tokens into functions and variables.

use super::ast::Source;
use super::error::ParseError;
use super::lexer::{self, Kind, Token};
use std::collections::HashSet;

/// Parses a PTX text.
pub(crate) fn parse(text: &str) -> Result<Source, ParseError> {
    let tokens = lexer::tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, scopes: Vec::new(), open: Vec::new() };
    parser.file()
}

pub(super) struct Parser<'a> {
    pub tokens: &'a [Token<'a>],
    pub at: usize,
    /// The names that each scope of the current function declares.
    pub scopes: Vec<HashSet<String>>,
    /// The scopes that contain the current statement, innermost last.
    pub open: Vec<usize>,
}

pub(super) type Parsed<T> = Result<T, ParseError>;

/// Returns the unique name of a variable or register that a scope declares.
pub(super) fn inner_name(name: &str, scope: usize) -> String {
    if scope == 0 { name.to_string() } else { format!("{name}#{scope}") }
}

impl<'a> Parser<'a> {
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(ParseError::new(self.line(), message))
    }

    pub fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    pub fn next(&mut self) -> Parsed<Token<'a>> {
        let Some(token) = self.peek() else { return self.error("the text ends too early") };
        self.at += 1;
        Ok(token)
    }

    pub fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek().is_some_and(|t| t.kind == Kind::Mark(mark));
        self.at += usize::from(found);
        found
    }

    pub fn expect(&mut self, mark: u8) -> Parsed<()> {
        if self.accept(mark) {
            return Ok(());
        }
        let found = self.peek().map_or("the end", |t| t.text);
        self.error(format!("expected `{}`, found `{found}`", mark as char))
    }

    pub fn word(&mut self) -> Parsed<&'a str> {
        let token = self.next()?;
        if token.kind == Kind::Word {
            return Ok(token.text);
        }
        Err(ParseError::new(token.line, format!("expected a name, found `{}`", token.text)))
    }

    pub fn accept_word(&mut self, text: &str) -> bool {
        let found = self.peek().is_some_and(|t| t.text == text);
        self.at += usize::from(found);
        found
    }

    pub fn number(&mut self) -> Parsed<u64> {
        let token = self.next()?;
        let value = (token.kind == Kind::Number).then(|| lexer::integer(token.text)).flatten();
        value.ok_or_else(|| ParseError::new(token.line, format!("expected a number, found `{}`", token.text)))
    }

    /// Skips the rest of a line. Directives such as `.loc` end with their line.
    pub fn skip_line(&mut self, line: u32) {
        while self.peek().is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    fn file(&mut self) -> Parsed<Source> {
        let mut source = Source::default();
        while let Some(token) = self.peek() {
            match token.text {
                ".version" => {
                    self.at += 1;
                    source.version = self.next()?.text.to_string();
                }
                ".target" => {
                    self.at += 1;
                    source.target = self.word()?.to_string();
                    self.skip_line(token.line);
                }
                ".address_size" => {
                    self.at += 1;
                    if self.number()? != 64 {
                        return self.error("only 64-bit addresses are supported");
                    }
                }
                ".file" => {
                    self.at += 1;
                    let index = self.number()? as u32;
                    source.files.insert(index, self.next()?.text.to_string());
                    self.skip_line(token.line);
                }
                ".section" => self.skip_section()?,
                ".visible" | ".weak" | ".extern" | ".common" => self.at += 1,
                ".entry" | ".func" => {
                    self.at += 1;
                    let function = self.function(token.text == ".entry", token.line)?;
                    // A declaration may come before the definition.
                    match source.functions.iter_mut().find(|f| f.name == function.name) {
                        Some(declared) if function.defined => *declared = function,
                        Some(_) => {}
                        None => source.functions.push(function),
                    }
                }
                ".global" | ".const" | ".shared" => {
                    let external = self.at > 0 && self.tokens[self.at - 1].text == ".extern";
                    let variables = self.variables(external)?;
                    source.variables.extend(variables);
                }
                ";" => self.at += 1,
                other => return self.error(format!("`{other}` is not supported")),
            }
        }
        Ok(source)
    }

    /// Skips a debug section, which the emulator does not need.
    fn skip_section(&mut self) -> Parsed<()> {
        while !self.accept(b'{') {
            self.next()?;
        }
        let mut depth = 1;
        while depth > 0 {
            match self.next()?.kind {
                Kind::Mark(b'{') => depth += 1,
                Kind::Mark(b'}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the unique name of the variable or register that a name refers to.
    pub fn resolve(&self, name: &str) -> String {
        let scope = self.open.iter().rev().find(|&&scope| self.scopes[scope].contains(name));
        inner_name(name, scope.copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::ast::{LaunchBounds, Operand, Place};

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn inner_scopes_have_their_own_names() {
        let source = parse(&format!(
            "{HEAD}.visible .entry k(.param .u64 .ptr .align 1 k_0, .param .u32 k_1)\n.maxntid 128, 1, 1\n{{\n\
             .reg .b32 %r<3>;\n{{ .reg .u32 %r1; mov.u32 %r1, 5; }}\nmov.u32 %r1, %r2;\n$L:\nret;\n}}\n"
        ))
        .unwrap();
        let k = &source.functions[0];
        assert_eq!(k.bounds.max_threads, Some([128, 1, 1]));
        assert_eq!(k.parameters.iter().map(|p| (p.size, p.align)).collect::<Vec<_>>(), [(8, 8), (4, 4)]);
        assert_eq!(k.body[0].operands[0], Operand::Name("%r1#1".into()));
        assert_eq!(k.body[1].operands[0], Operand::Name("%r1".into()));
        assert_eq!(k.labels[&(0, "$L".to_string())], 2);
        assert_eq!(k.body[0].line, 8);
    }

    #[test]
    fn debug_information_gives_places() {
        let source = parse(&format!(
            "{HEAD}.file 1 \"src/lib.rs\"\n.visible .entry k()\n{{\n.loc 1 17 5\nret;\n}}\n.section .debug_str {{ .b8 1 }}\n"
        ))
        .unwrap();
        assert_eq!(source.files[&1], "src/lib.rs");
        assert_eq!(source.functions[0].body[0].place, Some(Place { file: 1, line: 17 }));
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse(&format!("{HEAD}.visible .entry k()\n{{\nadd.u32 %r1 %r2;\n}}")).unwrap_err();
        assert_eq!(error.line, 6);
        assert!(parse(&format!("{HEAD}.visible .entry k() {{ ret;")).is_err());
        assert!(parse(".entry").is_err());
    }

    #[test]
    fn launch_bounds_default_to_none() {
        let source = parse(".version 8.0 .entry k() { ret; }").unwrap();
        assert_eq!(source.functions[0].bounds, LaunchBounds::default());
    }
}
