//! Entries and device functions.

use super::ast::{Function, Place, Prototype, Statement};
use super::error::ParseError;
use super::lexer::Kind;
use super::parser::{Parsed, Parser, inner_name};
use super::variables::register_width;
use std::collections::HashSet;

/// Records the first unsupported directive of a function.
fn refuse(function: &mut Function, line: u32, directive: &str) {
    let message = format!("`{directive}` in `{}`: not supported", function.name);
    function.refused.get_or_insert_with(|| ParseError::form(line, message));
}

impl Parser<'_> {
    pub(super) fn function(&mut self, entry: bool, line: u32) -> Parsed<Function> {
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
                (_, ".reqnctapercluster") => function.bounds.required_cluster = Some(self.dimensions()?),
                (_, ".maxclusterrank") => function.bounds.max_cluster = Some(self.number()? as u32),
                (_, ".explicitcluster") => function.bounds.explicit_cluster = true,
                (_, ".maxntid") => function.bounds.max_threads = Some(self.dimensions()?),
                (_, ".reqntid") => function.bounds.required_threads = Some(self.dimensions()?),
                (_, ".minnctapersm") => function.bounds.min_blocks = Some(self.number()? as u32),
                (_, ".maxnreg") => function.bounds.max_registers = Some(self.number()? as u32),
                (Kind::Word, other) => {
                    refuse(&mut function, token.line, other);
                    while self.peek().is_some_and(|next| matches!(next.kind, Kind::Number | Kind::Mark(b','))) {
                        self.at += 1;
                    }
                }
                (_, other) => return Err(ParseError::new(token.line, format!("`{other}` is not expected here"))),
            }
        }
        function.defined = true;
        function.scopes = vec![0];
        self.body(&mut function)?;
        Ok(function)
    }

    /// Skips to the position after the next semicolon.
    fn skip_statement(&mut self) -> Parsed<()> {
        while !self.accept(b';') {
            self.next()?;
        }
        Ok(())
    }

    pub(super) fn dimensions(&mut self) -> Parsed<[u32; 3]> {
        let mut found = [1; 3];
        found[0] = self.number()? as u32;
        for next in &mut found[1..] {
            if self.accept(b',') {
                *next = self.number()? as u32;
            }
        }
        Ok(found)
    }

    pub(super) fn scope(&self) -> usize {
        self.open.last().copied().unwrap_or(0)
    }

    pub(super) fn body(&mut self, function: &mut Function) -> Parsed<()> {
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
                (_, ".reg") => match self.tokens.get(self.at + 1) {
                    Some(ty) if register_width(ty.text).is_none() => {
                        refuse(function, token.line, &format!(".reg {}", ty.text));
                        self.skip_statement()?;
                    }
                    _ => self.registers(function)?,
                },
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
                    self.label(function, name)?;
                }
                (Kind::Word, name) if name.starts_with('.') => {
                    refuse(function, token.line, name);
                    self.skip_statement()?;
                }
                _ => {
                    let statement = self.statement(place)?;
                    function.body.push(statement);
                }
            }
        }
    }

    /// Records a label, or reads the list or prototype that it names.
    fn label(&mut self, function: &mut Function, name: &str) -> Parsed<()> {
        let key = (self.scope(), name.to_string());
        if self.accept_word(".branchtargets") {
            function.tables.insert(key, self.targets()?);
        } else if self.accept_word(".callprototype") {
            let mut prototype = Prototype { returns: self.parameters()?, ..Prototype::default() };
            self.word()?; // `_`
            prototype.parameters = self.parameters()?;
            self.skip_statement()?;
            function.prototypes.insert(key, prototype);
        } else if self.accept_word(".calltargets") {
            let prototype = Prototype { targets: Some(self.targets()?), ..Prototype::default() };
            function.prototypes.insert(key, prototype);
        } else if function.labels.insert(key, function.body.len()).is_some() {
            return self.error(format!("label `{name}` is defined twice"));
        }
        Ok(())
    }

    /// Reads a list of names.
    fn targets(&mut self) -> Parsed<Vec<String>> {
        let mut targets = vec![self.word()?.to_string()];
        while self.accept(b',') {
            targets.push(self.word()?.to_string());
        }
        self.expect(b';')?;
        Ok(targets)
    }

    pub(super) fn statement(&mut self, place: Option<Place>) -> Parsed<Statement> {
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
}
