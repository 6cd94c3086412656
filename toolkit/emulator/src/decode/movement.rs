//! Conversions and moves.

use super::decoder::{Decoded, Decoder};
use crate::lanes::{Slots, lanes};
use crate::ops::{self, Modifiers, Type};
use crate::program::{Op, Register};
use crate::ptx::ast::{Operand, Statement};
use crate::window::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, WINDOW_BITS};

impl Decoder<'_> {
    pub(super) fn conversion(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let [middle @ .., to, from] = rest else { return Err("not supported".into()) };
        if let Some(op) = self.narrow_conversion(statement, middle, to, from)? {
            return Ok(op);
        }
        let (to, from) = (Type::parse(to).ok_or("not supported")?, Type::parse(from).ok_or("not supported")?);
        let (mut rounding, mut sat, mut ftz, mut relu) = ("", false, false, false);
        for &part in middle {
            match part {
                "sat" => sat = true,
                "ftz" => ftz = true,
                "relu" => relu = true,
                "rn" | "rz" | "rm" | "rp" | "rni" | "rzi" | "rmi" | "rpi" if rounding.is_empty() => rounding = part,
                _ => return Err(format!("`.{part}` is not supported")),
            }
        }
        match statement.operands.as_slice() {
            [d, a] if !relu => {
                let op = ops::convert(rounding, to, from, sat, ftz).ok_or("not supported")?;
                let slots = Slots { d: self.converted_output(d, to)?, a: self.converted(a, from)?, ..Slots::default() };
                Ok(Op::Lanes(op, slots))
            }
            [d, a, b] if from == Type::F32 && !sat && !ftz => {
                let op = ops::convert_pair(rounding, to, relu).ok_or("not supported")?;
                let slots = Slots { d: self.output(d, to)?, a: self.input(a, from)?, b: self.input(b, from)?, c: 0 };
                Ok(Op::Lanes(op, slots))
            }
            _ => Err("not supported".into()),
        }
    }

    /// Decodes `cvt` from or to numbers of eight bits, and to tf32. Returns `None` for any other conversion.
    fn narrow_conversion(
        &mut self,
        statement: &Statement,
        modifiers: &[&str],
        to: &str,
        from: &str,
    ) -> Decoded<Option<Op>> {
        let is_pair = |name| matches!(name, "e4m3x2" | "e5m2x2");
        let (op, types) = match (modifiers, statement.operands.len()) {
            ([rounding], 2) if (to, from) == ("tf32", "f32") => {
                (ops::convert_tf32(rounding), [Type::B32, Type::F32, Type::F32])
            }
            (["rn", "satfinite", rest @ ..], 3) if is_pair(to) && from == "f32" && matches!(rest, [] | ["relu"]) => {
                (ops::fp8::pair_from_singles(to, !rest.is_empty()), [Type::B16, Type::F32, Type::F32])
            }
            (["rn", "satfinite", rest @ ..], 2) if is_pair(to) && from == "f16x2" && matches!(rest, [] | ["relu"]) => {
                (ops::fp8::pair_from_halves(to, !rest.is_empty()), [Type::B16, Type::B32, Type::B32])
            }
            (["rn", rest @ ..], 2) if is_pair(from) && to == "f16x2" && matches!(rest, [] | ["relu"]) => {
                (ops::fp8::halves_from_pair(from, !rest.is_empty()), [Type::B32, Type::B16, Type::B16])
            }
            _ => return Ok(None),
        };
        let op = op.ok_or("not supported")?;
        let [d, inputs @ ..] = statement.operands.as_slice() else { return Ok(None) };
        let mut slots = Slots { d: self.output(d, types[0])?, ..Slots::default() };
        slots.a = self.input(&inputs[0], types[1])?;
        if let Some(second) = inputs.get(1) {
            slots.b = self.input(second, types[2])?;
        }
        Ok(Some(Op::Lanes(op, slots)))
    }

    /// Decodes `cvta`. The windows of shared and local memory have fixed generic addresses. Global addresses are
    /// already generic.
    pub(super) fn window(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let (to, space) = match rest {
            ["to", space, "u64"] => (true, *space),
            [space, "u64"] => (false, *space),
            _ => return Err("not supported".into()),
        };
        let [d, a] = statement.operands.as_slice() else { return Err("two operands are needed".into()) };
        let slots = |decoder: &mut Self, b: u64| -> Decoded<Slots> {
            let (d, a) = (decoder.output(d, Type::B64)?, decoder.input(a, Type::B64)?);
            Ok(Slots { d, a, b: decoder.bits(b, true), c: 0 })
        };
        let window = match space {
            "global" | "const" => 0,
            "shared" | "shared::cta" | "shared::cluster" => SHARED_WINDOW,
            "local" => LOCAL_WINDOW,
            "param" | "param::entry" if !to => PARAMETER_WINDOW,
            _ => return Err("not supported".into()),
        };
        if space.starts_with("param") {
            let op = lanes!(|a: u64, b: u64| -> u64 { b | a & ((1 << WINDOW_BITS) - 1) });
            return Ok(Op::Lanes(op, slots(self, PARAMETER_WINDOW)?));
        }
        let name = if to { "sub" } else { "add" };
        let op = ops::arithmetic(name, Type::U64, Modifiers::default()).ok_or("not supported")?;
        Ok(Op::Lanes(op, slots(self, window)?))
    }

    pub(super) fn movement(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let [ty] = rest else { return Err("not supported".into()) };
        let ty = Type::parse(ty).ok_or("not supported")?;
        let [d, a] = statement.operands.as_slice() else { return Err("two operands are needed".into()) };
        let whole = |slot| Register { slot, bits: ty.bytes() * 8 };
        if let Operand::Vector(list) = d {
            let parts = self.parts(list, ty)?;
            return Ok(Op::Unpack { source: whole(self.input(a, ty)?), parts });
        }
        if let Operand::Vector(list) = a {
            let parts = self.parts(list, ty)?;
            return Ok(Op::Pack { target: whole(self.output(d, ty)?), parts });
        }
        if let Operand::Name(name) = a
            && matches!(name.as_str(), "%clock" | "%clock64" | "%globaltimer")
        {
            return Ok(Op::Clock(whole(self.output(d, ty)?)));
        }
        if let (Type::Predicate, Operand::Integer(value)) = (ty, a) {
            // Any number except zero is true.
            let test = ops::compare("ne", Type::B32, false).ok_or("not supported")?;
            let (a, b) = (self.bits((*value != 0).into(), false), self.bits(0, false));
            return Ok(Op::Lanes(test, Slots { d: self.output(d, ty)?, a, b, ..Slots::default() }));
        }
        // A move takes bits of any type. LLVM moves floats as `.b32`, and constants as either kind.
        let bits = match (ty, ty.bytes()) {
            (Type::Predicate, _) => Type::Predicate,
            (_, 8) => Type::B64,
            (_, 4) => Type::B32,
            (_, 2) => Type::B16,
            _ => return Err("not supported".into()),
        };
        let op = ops::arithmetic("mov", bits, Modifiers::default()).ok_or("not supported")?;
        Ok(Op::Lanes(op, Slots { d: self.output(d, bits)?, a: self.input(a, bits)?, ..Slots::default() }))
    }

    fn parts(&mut self, list: &[Operand], ty: Type) -> Decoded<Box<[Register]>> {
        let bits = usize::from(ty.bytes()) * 8 / list.len().max(1);
        if !matches!(bits, 8 | 16 | 32) {
            return Err("not supported".into());
        }
        // An 8-bit register is stored as 16 bits, and a constant as 32.
        let parts: Decoded<Box<[Register]>> = list.iter().map(|part| self.element(part, bits as u8 / 8)).collect();
        let parts = parts?;
        let fits = parts.iter().all(|part| match part.bits {
            16 => bits <= 16,
            given => given == 0 || given == 32,
        });
        if fits { Ok(parts) } else { Err("registers of the wrong width".into()) }
    }
}
