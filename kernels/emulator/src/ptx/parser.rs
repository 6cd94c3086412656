//! Tokens to functions and variables.

use super::ParseError;
use super::ast::{Function, Initial, Place, Source, Space, Statement, Variable, Width};
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
    /// The names each scope of the current function declares.
    pub scopes: Vec<HashSet<String>>,
    /// The scopes around the current statement, innermost last.
    pub open: Vec<usize>,
}

pub(super) type Parsed<T> = Result<T, ParseError>;

/// What a name of an inner scope is called outside it.
fn inner_name(name: &str, scope: usize) -> String {
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

    fn accept_word(&mut self, text: &str) -> bool {
        let found = self.peek().is_some_and(|t| t.text == text);
        self.at += usize::from(found);
        found
    }

    pub fn number(&mut self) -> Parsed<u64> {
        let token = self.next()?;
        let value = (token.kind == Kind::Number).then(|| lexer::integer(token.text)).flatten();
        value.ok_or_else(|| ParseError::new(token.line, format!("expected a number, found `{}`", token.text)))
    }

    /// Directives such as `.loc` end with their line.
    fn skip_line(&mut self, line: u32) {
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
                        Some(known) if function.defined => *known = function,
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

    /// Debug sections hold nothing that is needed here.
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

    fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        let mut found = Vec::new();
        if !self.accept(b'(') {
            return Ok(found);
        }
        while !self.accept(b')') {
            self.accept(b',');
            found.push(self.variable(Space::Param, false)?);
        }
        Ok(found)
    }

    fn function(&mut self, entry: bool, line: u32) -> Parsed<Function> {
        let mut function = Function { entry, line, ..Function::default() };
        self.scopes = vec![HashSet::new()];
        self.open = vec![0];
        if !entry {
            function.returns = self.parameters()?;
        }
        function.name = self.word()?.to_string();
        function.parameters = self.parameters()?;
        loop {
            let token = self.next()?;
            match (token.kind, token.text) {
                (Kind::Mark(b'{'), _) => break,
                (Kind::Mark(b';'), _) => return Ok(function),
                (_, ".noreturn") => {}
                (_, ".maxntid") => function.bounds.max_threads = Some(self.dimensions()?),
                (_, ".reqntid") => function.bounds.required_threads = Some(self.dimensions()?),
                (_, ".minnctapersm") => function.bounds.min_blocks = Some(self.number()? as u32),
                (_, ".maxnreg") => function.bounds.max_registers = Some(self.number()? as u32),
                (_, other) => return Err(ParseError::new(token.line, format!("`{other}` is not supported"))),
            }
        }
        function.defined = true;
        function.scopes = vec![0];
        self.body(&mut function)?;
        Ok(function)
    }

    fn dimensions(&mut self) -> Parsed<[u32; 3]> {
        let mut found = [1; 3];
        found[0] = self.number()? as u32;
        for next in &mut found[1..] {
            if self.accept(b',') {
                *next = self.number()? as u32;
            }
        }
        Ok(found)
    }

    fn scope(&self) -> usize {
        self.open.last().copied().unwrap_or(0)
    }

    fn body(&mut self, function: &mut Function) -> Parsed<()> {
        let mut place = None;
        loop {
            let Some(token) = self.peek() else { return self.error("a function is not closed") };
            let colon = self.tokens.get(self.at + 1).is_some_and(|t| t.kind == Kind::Mark(b':'));
            match (token.kind, token.text) {
                (Kind::Mark(b'{'), _) => {
                    self.at += 1;
                    function.scopes.push(self.scope());
                    self.open.push(self.scopes.len());
                    self.scopes.push(HashSet::new());
                }
                (Kind::Mark(b'}'), _) => {
                    self.at += 1;
                    self.open.pop();
                    if self.open.is_empty() {
                        return Ok(());
                    }
                }
                (Kind::Mark(b';'), _) => self.at += 1,
                (_, ".reg") => self.registers(function)?,
                (_, ".local" | ".shared" | ".param" | ".global") => {
                    let mut found = self.variables(false)?;
                    let scope = self.scope();
                    for variable in &mut found {
                        self.scopes[scope].insert(variable.name.clone());
                        variable.name = inner_name(&variable.name, scope);
                    }
                    function.variables.extend(found);
                }
                (_, ".loc") => {
                    self.at += 1;
                    place = Some(Place { file: self.number()? as u32, line: self.number()? as u32 });
                    self.skip_line(token.line);
                }
                (_, ".pragma") => {
                    while !self.accept(b';') {
                        self.next()?;
                    }
                }
                (Kind::Word, name) if colon => {
                    self.at += 2;
                    let key = (self.scope(), name.to_string());
                    if self.accept_word(".branchtargets") {
                        let mut targets = vec![self.word()?.to_string()];
                        while self.accept(b',') {
                            targets.push(self.word()?.to_string());
                        }
                        self.expect(b';')?;
                        function.tables.insert(key, targets);
                    } else if function.labels.insert(key, function.body.len()).is_some() {
                        return self.error(format!("label `{name}` stands twice"));
                    }
                }
                (Kind::Word, name) if name.starts_with('.') => {
                    return self.error(format!("`{name}` is not supported"));
                }
                _ => {
                    let statement = self.statement(place)?;
                    function.body.push(statement);
                }
            }
        }
    }

    fn registers(&mut self, function: &mut Function) -> Parsed<()> {
        self.at += 1;
        let kind = self.word()?;
        let width = match kind {
            ".pred" => Width::Predicate,
            ".b8" | ".u8" | ".s8" | ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Width::B16,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => Width::B32,
            ".b64" | ".u64" | ".s64" | ".f64" => Width::B64,
            other => return self.error(format!("registers of type `{other}` are not supported")),
        };
        loop {
            let name = self.word()?;
            let scope = self.scope();
            let mut declare = |name: String| {
                function.registers.insert(inner_name(&name, scope), width);
                self.scopes[scope].insert(name);
            };
            if self.tokens.get(self.at).is_some_and(|t| t.kind == Kind::Mark(b'<')) {
                self.at += 1;
                let count = self.number()?;
                if count > 1 << 16 {
                    return self.error("too many registers");
                }
                let scope_names = &mut self.scopes[scope];
                for index in 0..count {
                    let name = format!("{name}{index}");
                    function.registers.insert(inner_name(&name, scope), width);
                    scope_names.insert(name);
                }
                self.expect(b'>')?;
            } else {
                declare(name.to_string());
            }
            if !self.accept(b',') {
                return self.expect(b';');
            }
        }
    }

    fn variables(&mut self, external: bool) -> Parsed<Vec<Variable>> {
        let space = match self.word()? {
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            _ => Space::Global, // `.const` lives in device memory here
        };
        let found = vec![self.variable(space, external)?];
        self.expect(b';')?;
        Ok(found)
    }

    /// `[.param] [.align n] .type [.ptr ...] name[n] [= {...}]`
    fn variable(&mut self, space: Space, external: bool) -> Parsed<Variable> {
        let (mut align, mut width) = (None, 0);
        let name = loop {
            match self.word()? {
                ".param" | ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                ".align" => {
                    // After `.ptr` the alignment is that of what is pointed at.
                    let pointee = self.at > 1 && self.tokens[self.at - 2].text != ".param" && width != 0;
                    let value = self.number()? as usize;
                    if !value.is_power_of_two() {
                        return self.error("an alignment must be a power of two");
                    }
                    if !pointee {
                        align = Some(value);
                    }
                }
                ".b8" | ".u8" | ".s8" | ".pred" => width = 1,
                ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => width = 2,
                ".b32" | ".u32" | ".s32" | ".f32" => width = 4,
                ".b64" | ".u64" | ".s64" | ".f64" => width = 8,
                other if other.starts_with('.') => return self.error(format!("`{other}` is not supported")),
                name => break name.to_string(),
            }
        };
        if width == 0 {
            return self.error(format!("`{name}` has no type"));
        }
        let mut count = 1usize;
        while self.accept(b'[') {
            let next = if self.accept(b']') { 0 } else { self.number()? as usize };
            if next != 0 {
                self.expect(b']')?;
            }
            count = match count.checked_mul(next) {
                Some(count) if count <= 1 << 31 => count,
                _ => return self.error(format!("`{name}` is too large")),
            };
        }
        let initial = if self.accept(b'=') { self.initial(width)? } else { Vec::new() };
        let size = count * width;
        Ok(Variable { name, space, align: align.unwrap_or(width), size, external, initial })
    }

    fn initial(&mut self, width: usize) -> Parsed<Vec<Initial>> {
        let braces = self.accept(b'{');
        let mut found = Vec::new();
        loop {
            let negative = self.accept(b'-');
            let Some(token) = self.peek() else { return self.error("the text ends too early") };
            if token.kind == Kind::Number {
                self.at += 1;
                let value = match super::operands::literal(token.text) {
                    Some(super::ast::Operand::Integer(value)) => value,
                    Some(super::ast::Operand::Single(bits)) if width == 4 => bits.into(),
                    Some(super::ast::Operand::Double(value)) if width == 8 => value.to_bits(),
                    _ => return self.error(format!("`{}` is no initial value", token.text)),
                };
                let value = if negative { value.wrapping_neg() } else { value };
                found.push(Initial::Bytes(value.to_le_bytes()[..width].to_vec()));
            } else {
                let mut symbol = self.word()?;
                let call = symbol == "generic" && self.accept(b'(');
                if call {
                    symbol = self.word()?;
                }
                let offset = self.offset()?;
                if call {
                    self.expect(b')')?;
                }
                if width != 8 {
                    return self.error("an address needs eight bytes");
                }
                found.push(Initial::Address { symbol: symbol.to_string(), offset });
            }
            if !self.accept(b',') {
                break;
            }
        }
        if braces {
            self.expect(b'}')?;
        }
        Ok(found)
    }

    fn statement(&mut self, place: Option<Place>) -> Parsed<Statement> {
        let line = self.line();
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            let name = self.word()?;
            Some((self.resolve(name), negated))
        } else {
            None
        };
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        while !self.accept(b';') {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            operands.push(self.operand()?);
        }
        Ok(Statement { line, place, guard, opcode, operands, scope: self.scope() })
    }

    /// The unique name of what a name means here.
    pub fn resolve(&self, name: &str) -> String {
        let scope = self.open.iter().rev().find(|&&scope| self.scopes[scope].contains(name));
        inner_name(name, scope.copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::ast::{LaunchBounds, Operand};

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
