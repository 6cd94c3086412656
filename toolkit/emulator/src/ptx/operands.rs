//! Operands of instructions.

use super::ast::Operand;
use super::lexer::{self, Kind};
use super::parser::{Parsed, Parser};

/// Parses a number in any notation.
pub(super) fn literal(text: &str) -> Option<Operand> {
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(hex, 16).ok().map(Operand::Single);
    }
    if let Some(hex) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(hex, 16).ok().map(|bits| Operand::Double(f64::from_bits(bits)));
    }
    if let Some(value) = lexer::integer(text) {
        return Some(Operand::Integer(value));
    }
    if text.contains('.') { text.parse().ok().map(Operand::Double) } else { None }
}

impl Parser<'_> {
    /// Parses an optional offset, such as `+8` or `-8`.
    pub fn offset(&mut self) -> Parsed<i64> {
        let mut offset = 0i64;
        loop {
            if self.accept(b'+') {
                let negative = self.accept(b'-');
                let value = self.number()? as i64;
                offset = offset.wrapping_add(if negative { value.wrapping_neg() } else { value });
            } else if self.accept(b'-') {
                offset = offset.wrapping_sub(self.number()? as i64);
            } else {
                return Ok(offset);
            }
        }
    }

    pub fn operand(&mut self) -> Parsed<Operand> {
        if self.accept(b'{') {
            return Ok(Operand::Vector(self.operands_until(b'}')?));
        }
        if self.accept(b'(') {
            return Ok(Operand::List(self.operands_until(b')')?));
        }
        if self.accept(b'[') {
            let base = self.operand()?;
            if self.accept(b',') {
                let mut list = vec![base];
                list.extend(self.operands_until(b']')?);
                return Ok(Operand::List(list));
            }
            let (base, inner) = match base {
                Operand::Sum(name, offset) => (Operand::Name(name), offset),
                other => (other, 0),
            };
            let offset = inner.wrapping_add(self.offset()?);
            self.expect(b']')?;
            return Ok(Operand::Address(Box::new(base), offset));
        }
        if self.accept(b'!') {
            let name = self.word()?;
            return Ok(Operand::Not(self.resolve(name)));
        }
        let negative = self.accept(b'-');
        let token = self.next()?;
        if token.kind == Kind::Number {
            return match (literal(token.text), negative) {
                (Some(Operand::Integer(value)), true) => Ok(Operand::Integer(value.wrapping_neg())),
                (Some(Operand::Double(value)), true) => Ok(Operand::Double(-value)),
                (Some(value), false) => Ok(value),
                _ => self.error(format!("`{}` is not a number", token.text)),
            };
        }
        if token.kind != Kind::Word || negative {
            return self.error(format!("`{}` is not an operand", token.text));
        }
        let name = self.resolve(token.text);
        if self.accept(b'|') {
            let other = self.word()?;
            return Ok(Operand::Pair(name, self.resolve(other)));
        }
        match self.offset()? {
            0 => Ok(Operand::Name(name)),
            offset => Ok(Operand::Sum(name, offset)),
        }
    }

    fn operands_until(&mut self, end: u8) -> Parsed<Vec<Operand>> {
        let mut found = Vec::new();
        while !self.accept(end) {
            if !found.is_empty() {
                self.expect(b',')?;
            }
            found.push(self.operand()?);
        }
        Ok(found)
    }
}
