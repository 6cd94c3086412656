//! Instructions of opcodes with forms of their own.

use super::decoder::{Decoded, Decoder};
use crate::lanes::{LaneOp, Slots};
use crate::ops::{self, Modifiers, Type, rare};
use crate::program::{Carry, CarryOp, Op};
use crate::ptx::ast::{Operand, Statement, Width};
use crate::report::Class;
use crate::window::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, WINDOW_BITS};

impl Decoder<'_> {
    pub(super) fn rare(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<(Op, Class)> {
        let operands = statement.operands.as_slice();
        let parse = |name: &str| Type::parse(name).ok_or("not supported");
        let word = [Type::B32; 4];
        Ok(match (parts, operands) {
            (["bmsk", mode @ ("clamp" | "wrap"), "b32"], [d, a, b]) => {
                self.lanes(rare::mask(*mode == "wrap"), &[d, a, b], &word, Class::Integer)?
            }
            (["bfi", ty @ ("b32" | "b64")], [d, a, b, at, count]) => {
                let ty = parse(ty)?;
                let slots = Slots { d: self.output(d, ty)?, a: self.input(a, ty)?, b: self.input(b, ty)?, c: 0 };
                let (at, count) = (self.input(at, Type::B32)?, self.input(count, Type::B32)?);
                (Op::InsertField { slots, at, count, wide: ty == Type::B64 }, Class::Integer)
            }
            (["sad", ty], [d, a, b, c]) => {
                let ty = parse(ty)?;
                let op = rare::distance(ty).ok_or("not supported")?;
                self.lanes(op, &[d, a, b, c], &[ty; 4], Class::Integer)?
            }
            (["dp4a", first, second], [d, a, b, c]) => {
                let op = rare::dot4(parse(first)?, parse(second)?).ok_or("not supported")?;
                self.lanes(op, &[d, a, b, c], &word, Class::Integer)?
            }
            (["slct", ty, sign] | ["slct", "ftz", ty, sign], [d, a, b, c]) => {
                let (ty, sign) = (parse(ty)?, parse(sign)?);
                let op = rare::select_by_sign(ty, sign).ok_or("not supported")?;
                self.lanes(op, &[d, a, b, c], &[ty, ty, ty, sign], Class::Compare)?
            }
            (["testp", property, ty], [d, a]) => {
                let ty = parse(ty)?;
                let op = rare::test_property(property, ty).ok_or("not supported")?;
                self.lanes(op, &[d, a], &[Type::Predicate, ty], Class::Compare)?
            }
            (["prmt", "b32", mode], [d, a, b, c]) => {
                let op = rare::permute(mode).ok_or("not supported")?;
                self.lanes(op, &[d, a, b, c], &word, Class::Integer)?
            }
            (["bfind", "shiftamt", ty], [d, a]) => {
                let ty = parse(ty)?;
                let op = rare::shift_amount(ty).ok_or("not supported")?;
                self.lanes(op, &[d, a], &[Type::U32, ty], Class::Integer)?
            }
            ([opcode, ty @ ("u16x2" | "s16x2")], [d, a, b]) => {
                let op = rare::pair(opcode, ty).ok_or("not supported")?;
                self.lanes(op, &[d, a, b], &word, Class::Integer)?
            }
            (["isspacep", space], [d, a]) => (self.is_space(space, d, a)?, Class::Compare),
            // Policies change nothing but what stays in a cache.
            (["createpolicy", .., "b64"], [d, ..]) => {
                let op = ops::arithmetic("mov", Type::B64, Modifiers::default()).ok_or("not supported")?;
                let (d, a) = (self.output(d, Type::B64)?, self.bits(0, true));
                (Op::Lanes(op, Slots { d, a, ..Slots::default() }), Class::Other)
            }
            (["discard", ..] | ["pmevent", ..], _) => (Op::Nothing, Class::Other),
            _ => return Err("not supported".into()),
        })
    }

    /// An operation on lanes with these operands, of which the first is the result, and their types.
    fn lanes(&mut self, op: LaneOp, operands: &[&Operand], types: &[Type], class: Class) -> Decoded<(Op, Class)> {
        let mut slots = Slots { d: self.output(operands[0], types[0])?, ..Slots::default() };
        let inputs = [&mut slots.a, &mut slots.b, &mut slots.c];
        for ((slot, operand), &ty) in inputs.into_iter().zip(&operands[1..]).zip(&types[1..]) {
            *slot = self.input(operand, ty)?;
        }
        Ok((Op::Lanes(op, slots), class))
    }

    /// Whether a generic address lies in the window of a space.
    fn is_space(&mut self, space: &str, d: &Operand, a: &Operand) -> Decoded<Op> {
        let window = match space {
            "shared" | "shared::cta" => Some(SHARED_WINDOW),
            "local" => Some(LOCAL_WINDOW),
            "param" => Some(PARAMETER_WINDOW),
            "global" | "const" => None,
            _ => return Err("not supported".into()),
        };
        let shift = ops::arithmetic("shr", Type::U64, Modifiers::default()).ok_or("not supported")?;
        let test = ops::compare("eq", Type::U64, false).ok_or("not supported")?;
        let slots = Slots { d: self.output(d, Type::Predicate)?, a: self.input(a, Type::B64)?, b: 0, c: 0 };
        let upper = self.new_slot(Width::B64);
        let bits = self.bits(WINDOW_BITS.into(), false);
        let windows = match window {
            Some(window) => vec![self.bits(window >> WINDOW_BITS, true)],
            None => [SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW].map(|w| self.bits(w >> WINDOW_BITS, true)).to_vec(),
        };
        Ok(Op::IsSpace(Box::new(crate::program::IsSpace {
            shift,
            test,
            slots,
            upper,
            bits,
            windows,
            inside: window.is_some(),
        })))
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc` and `madc`: they leave a carry, take one, or both.
    pub(super) fn carrying(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        let (opcode, takes) = match parts[0].strip_suffix('c') {
            Some(opcode) => (opcode, true),
            None => (parts[0], false),
        };
        let leaves = parts.contains(&"cc");
        let rest: Vec<&str> = parts[1..].iter().copied().filter(|&part| part != "cc").collect();
        let (op, ty) = match (opcode, rest.as_slice()) {
            ("add", [ty]) => (CarryOp::Add, ty),
            ("sub", [ty]) => (CarryOp::Subtract, ty),
            ("mad", ["lo", ty]) => (CarryOp::LowProduct, ty),
            ("mad", ["hi", ty]) => (CarryOp::HighProduct, ty),
            _ => return Err("not supported".into()),
        };
        let ty = Type::parse(ty).filter(|ty| !ty.is_float() && ty.bytes() >= 4).ok_or("not supported")?;
        let (d, inputs) = match statement.operands.as_slice() {
            [d, a, b, c] if opcode == "mad" => (d, [a, b, c]),
            [d, a, b] if opcode != "mad" => (d, [a, a, b]),
            _ => return Err("wrong number of operands".into()),
        };
        let slots = Slots {
            d: self.output(d, ty)?,
            a: self.input(inputs[0], ty)?,
            b: self.input(inputs[1], ty)?,
            c: self.input(inputs[2], ty)?,
        };
        let (wide, signed) = (ty.bytes() == 8, ty.is_signed());
        Ok(Op::Carry(Box::new(Carry { op, slots, wide, signed, takes, leaves, carry: self.carry() })))
    }
}
