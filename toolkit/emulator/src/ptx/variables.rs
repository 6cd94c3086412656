//! Declarations: parameters, registers and variables.

use super::ast::{Function, Initial, Operand, Space, Variable, Width};
use super::lexer::Kind;
use super::operands::literal;
use super::parser::{Parsed, Parser, inner_name};

/// Returns the width of registers of a type.
pub(super) fn register_width(ty: &str) -> Option<Width> {
    Some(match ty {
        ".pred" => Width::Predicate,
        ".b8" | ".u8" | ".s8" | ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Width::B16,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => Width::B32,
        ".b64" | ".u64" | ".s64" | ".f64" => Width::B64,
        _ => return None,
    })
}

impl Parser<'_> {
    pub(super) fn parameters(&mut self) -> Parsed<Vec<Variable>> {
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

    pub(super) fn registers(&mut self, function: &mut Function) -> Parsed<()> {
        self.at += 1;
        let kind = self.word()?;
        let Some(width) = register_width(kind) else {
            return self.error(format!("registers of type `{kind}` are not supported"));
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

    pub(super) fn variables(&mut self, external: bool) -> Parsed<Vec<Variable>> {
        let space = match self.word()? {
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            _ => Space::Global, // the emulator keeps `.const` in device memory
        };
        let found = vec![self.variable(space, external)?];
        self.expect(b';')?;
        Ok(found)
    }

    /// Parses `[.param] [.align n] .type [.ptr ...] name[n] [= {...}]`.
    pub(super) fn variable(&mut self, space: Space, external: bool) -> Parsed<Variable> {
        let (mut align, mut width) = (None, 0);
        let name = loop {
            match self.word()? {
                ".param" | ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                ".align" => {
                    // After `.ptr`, the alignment belongs to the memory that the parameter points to.
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

    pub(super) fn initial(&mut self, width: usize) -> Parsed<Vec<Initial>> {
        let braces = self.accept(b'{');
        let mut found = Vec::new();
        loop {
            let negative = self.accept(b'-');
            let Some(token) = self.peek() else { return self.error("the text ends too early") };
            if token.kind == Kind::Number {
                self.at += 1;
                let value = match literal(token.text) {
                    Some(Operand::Integer(value)) => value,
                    Some(Operand::Single(bits)) if width == 4 => bits.into(),
                    Some(Operand::Double(value)) if width == 8 => value.to_bits(),
                    _ => return self.error(format!("`{}` is not an initial value", token.text)),
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
}
