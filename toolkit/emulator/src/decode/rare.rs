//! Instructions with irregular forms.

use super::decoder::{Decoded, Decoder};
use crate::lanes::{LaneOp, Slots, rare_lanes};
use crate::ops::{self, Modifiers, Type, rare};
use crate::program::{Carry, CarryOp, Op, Special, Value};
use crate::ptx::ast::{Operand, Statement, Width};
use crate::report::Class;
use crate::window::{LOCAL_WINDOW, PARAMETER_WINDOW, RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS};

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
            (["mapa", rest @ ..], [d, a, b]) => (self.map_to_block(rest, d, a, b)?, Class::Integer),
            (["getctarank", rest @ ..], [d, a]) => (self.block_of(rest, d, a)?, Class::Integer),
            // Cache policies do not change results.
            (["createpolicy", .., "b64"], [d, ..]) => {
                let op = ops::arithmetic("mov", Type::B64, Modifiers::default()).ok_or("not supported")?;
                let (d, a) = (self.output(d, Type::B64)?, self.bits(0, true));
                (Op::Lanes(op, Slots { d, a, ..Slots::default() }), Class::Other)
            }
            (["discard", ..] | ["pmevent", ..], _) => (Op::Nothing, Class::Other),
            _ => return Err("not supported".into()),
        })
    }

    /// Decodes an operation on lanes. The first operand and its type belong to the result.
    fn lanes(&mut self, op: LaneOp, operands: &[&Operand], types: &[Type], class: Class) -> Decoded<(Op, Class)> {
        let mut slots = Slots { d: self.output(operands[0], types[0])?, ..Slots::default() };
        let inputs = [&mut slots.a, &mut slots.b, &mut slots.c];
        for ((slot, operand), &ty) in inputs.into_iter().zip(&operands[1..]).zip(&types[1..]) {
            *slot = self.input(operand, ty)?;
        }
        Ok((Op::Lanes(op, slots), class))
    }

    /// Decodes `isspacep`: whether a generic address is in the window of a space.
    fn is_space(&mut self, space: &str, d: &Operand, a: &Operand) -> Decoded<Op> {
        let window = match space {
            "shared" | "shared::cta" | "shared::cluster" => Some(SHARED_WINDOW),
            "local" => Some(LOCAL_WINDOW),
            "param" => Some(PARAMETER_WINDOW),
            "global" | "const" => None,
            _ => return Err("not supported".into()),
        };
        let shift = ops::arithmetic("shr", Type::U64, Modifiers::default()).ok_or("not supported")?;
        let test = ops::compare("eq", Type::U64, false).ok_or("not supported")?;
        let slots = Slots { d: self.output(d, Type::Predicate)?, a: self.input(a, Type::B64)?, b: 0, c: 0 };
        let upper = self.new_slot(Width::B64);
        // The block's own shared memory is the first part of the cluster's window.
        let window_bits = if matches!(space, "shared" | "shared::cta") { RANK_SHIFT } else { WINDOW_BITS };
        let bits = self.bits(window_bits.into(), false);
        let windows = match window {
            Some(window) => vec![self.bits(window >> window_bits, true)],
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

    /// Decodes `mapa`: the address in the shared memory of another block of the cluster.
    fn map_to_block(&mut self, modifiers: &[&str], d: &Operand, a: &Operand, rank: &Operand) -> Decoded<Op> {
        let (ty, base) = match modifiers {
            ["shared::cluster", "u32"] => (Type::B32, 0),
            ["shared::cluster", "u64"] => (Type::B64, 0),
            ["u64"] => (Type::B64, SHARED_WINDOW),
            _ => return Err("not supported".into()),
        };
        // An address in the thread's own block has no rank, which distinguishes it from addresses in other blocks.
        const OFFSET: u64 = (1 << RANK_SHIFT) - 1;
        let op = match (ty, base) {
            (Type::B32, _) => rare_lanes!(|a: u32, b: u32, c: u32| -> u32 {
                if b == c { a & OFFSET as u32 } else { a & OFFSET as u32 | (b & 31).wrapping_add(1) << RANK_SHIFT }
            }),
            (_, 0) => rare_lanes!(|a: u64, b: u32, c: u32| -> u64 {
                if b == c { a & OFFSET } else { a & OFFSET | (u64::from(b & 31) + 1) << RANK_SHIFT }
            }),
            _ => rare_lanes!(|a: u64, b: u32, c: u32| -> u64 {
                SHARED_WINDOW | if b == c { a & OFFSET } else { a & OFFSET | (u64::from(b & 31) + 1) << RANK_SHIFT }
            }),
        };
        let own = self.constant(Value::Special(Special::ClusterRank), false);
        let slots = Slots { d: self.output(d, ty)?, a: self.input(a, ty)?, b: self.input(rank, Type::B32)?, c: own };
        Ok(Op::Lanes(op, slots))
    }

    /// Decodes `getctarank`: the rank of the block whose shared memory contains an address.
    fn block_of(&mut self, modifiers: &[&str], d: &Operand, a: &Operand) -> Decoded<Op> {
        let ty = match modifiers {
            ["shared::cluster", "u32"] => Type::B32,
            ["shared::cluster", "u64"] | ["u64"] => Type::B64,
            _ => return Err("not supported".into()),
        };
        let op = match ty {
            Type::B32 => rare_lanes!(|a: u32, b: u32| -> u32 {
                let rank = a >> RANK_SHIFT & 63;
                if rank == 0 { b } else { rank - 1 }
            }),
            _ => rare_lanes!(|a: u64, b: u32| -> u32 {
                let rank = (a >> RANK_SHIFT) as u32 & 63;
                if rank == 0 { b } else { rank - 1 }
            }),
        };
        let own = self.constant(Value::Special(Special::ClusterRank), false);
        Ok(Op::Lanes(op, Slots { d: self.output(d, Type::B32)?, a: self.input(a, ty)?, b: own, c: 0 }))
    }

    /// Decodes `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc` and `madc`. They write a carry, read one, or both.
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
