//! Decodes one statement into one instruction.

use super::decoder::{Decoded, Decoder};
use crate::lanes::Slots;
use crate::ops::{self, Modifiers, Type};
use crate::program::{Combine, Instruction, NONE, Op, Scope};
use crate::ptx::ast::{Operand, Statement, Width};
use crate::report::Class;

/// Returns a fence with these modifiers.
fn fence(modifiers: &[&str]) -> Op {
    Op::Fence { scope: Scope::from_modifiers(modifiers).unwrap_or(Scope::System) }
}

impl Decoder<'_> {
    pub(super) fn statement(&mut self, statement: &Statement) -> Decoded<Instruction> {
        let (guard, negated) = match &statement.guard {
            Some((name, negated)) => (self.predicate(&Operand::Name(name.clone()))?.0, *negated),
            None => (NONE, false),
        };
        self.read.clear();
        let parts: Vec<&str> = statement.opcode.split('.').collect();
        let (op, class) = self.operation(statement, &parts)?;
        let aligned = parts.contains(&"aligned") || (parts[0] == "bar" && parts.get(1) != Some(&"warp"));
        let opcode = self.opcode(&statement.opcode);
        Ok(Instruction {
            op,
            guard,
            negated,
            aligned,
            class,
            meet: NONE,
            line: statement.line,
            place: statement.place,
            opcode,
        })
    }

    fn operation(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<(Op, Class)> {
        let rest = &parts[1..];
        Ok(match parts[0] {
            "ld" | "ldu" => match self.load_or_store(statement, rest, false)? {
                op @ Op::Parameter { .. } => (op, Class::Parameter),
                op => (op, Class::Load),
            },
            "st" => (self.load_or_store(statement, rest, true)?, Class::Store),
            "atom" => (self.atomic(statement, rest, true)?, Class::Atomic),
            "red" => (self.atomic(statement, rest, false)?, Class::Atomic),
            "cp" if matches!(rest, ["async", "bulk", ..]) => (self.bulk_copy(statement, &rest[2..])?, Class::Async),
            "mbarrier" => (self.mbarrier(statement, rest)?, Class::Async),
            "wgmma" => (self.warp_group(statement, rest)?, Class::Tensor),
            "setmaxnreg" if matches!(rest, ["inc" | "dec", "sync", "aligned", "u32"]) => (Op::Nothing, Class::Other),
            "griddepcontrol" if rest == ["wait"] => (Op::GridWait, Class::Other),
            "griddepcontrol" if rest == ["launch_dependents"] => (Op::Nothing, Class::Other),
            "cp" => (self.async_copy(statement, rest)?, Class::Async),
            "bra" if matches!(rest, [] | ["uni"]) => (self.branch(statement)?, Class::Control),
            "brx" if matches!(rest, ["idx"] | ["idx", "uni"]) => (self.branch_table(statement)?, Class::Control),
            "call" if matches!(rest, [] | ["uni"]) => (self.call(statement)?, Class::Control),
            "ret" if matches!(rest, [] | ["uni"]) => (Op::Return, Class::Control),
            "exit" if rest.is_empty() => (Op::Exit, Class::Control),
            "trap" | "brkpt" if rest.is_empty() => (Op::Trap, Class::Control),
            "shfl" | "vote" | "redux" | "match" | "elect" => (self.collective(statement, parts)?, Class::Collective),
            "bar" | "barrier" if rest.first() == Some(&"warp") => {
                (self.collective(statement, parts)?, Class::Collective)
            }
            "bar" | "barrier" => (self.barrier(statement, rest)?, Class::Barrier),
            "ldmatrix" => (self.load_matrix(statement, parts)?, Class::Tensor),
            "stmatrix" => (self.store_matrix(statement, parts)?, Class::Tensor),
            "set" => (self.set(statement, rest)?, Class::Compare),
            "mma" => (self.mma(statement, parts)?, Class::Tensor),
            "wmma" => (self.wmma(statement, parts)?, Class::Tensor),
            "membar" if matches!(rest, ["cta" | "gl" | "sys"]) => (fence(rest), Class::Other),
            "fence"
                if matches!(rest, ["acq_rel" | "sc" | "acquire" | "release", "cta" | "cluster" | "gpu" | "sys"]) =>
            {
                (fence(rest), Class::Other)
            }
            "fence" if matches!(rest, ["proxy", "async"] | ["proxy", "async", "shared::cta" | "global"]) => {
                (Op::ProxyFence, Class::Other)
            }
            "fence" if rest == ["mbarrier_init", "release", "cluster"] => (Op::Nothing, Class::Other),
            "nanosleep" | "prefetch" | "prefetchu" => (Op::Nothing, Class::Other),
            "setp" => (self.comparison(statement, rest)?, Class::Compare),
            "cvt" => (self.conversion(statement, rest)?, Class::Convert),
            "cvta" => (self.window(statement, rest)?, Class::Integer),
            "mov" => (self.movement(statement, rest)?, Class::Integer),
            "activemask" if rest == ["b32"] && statement.operands.len() == 1 => {
                (Op::ActiveMask(self.output(&statement.operands[0], Type::B32)?), Class::Collective)
            }
            "lop3" if rest == ["b32"] => (self.logic3(statement)?, Class::Integer),
            "bfi" | "bmsk" | "sad" | "dp4a" | "slct" | "testp" | "isspacep" | "mapa" | "getctarank"
            | "createpolicy" | "discard" | "pmevent" => self.rare(statement, parts)?,
            "prmt" if rest.len() == 2 => self.rare(statement, parts)?,
            "bfind" if rest.first() == Some(&"shiftamt") => self.rare(statement, parts)?,
            "add" | "min" | "max" if matches!(rest, ["u16x2" | "s16x2"]) => self.rare(statement, parts)?,
            "add" | "addc" | "sub" | "subc" | "mad" | "madc" if parts[0].ends_with('c') || rest.contains(&"cc") => {
                (self.carrying(statement, parts)?, Class::Integer)
            }
            "shf" => (self.funnel_shift(statement, rest)?, Class::Integer),
            "selp" => (self.selection(statement, rest)?, Class::Compare),
            opcode => self.arithmetic(statement, opcode, rest)?,
        })
    }

    fn logic3(&mut self, statement: &Statement) -> Decoded<Op> {
        let [d, a, b, c, Operand::Integer(table)] = statement.operands.as_slice() else {
            return Err("wrong operands".into());
        };
        Ok(Op::Logic3 { slots: self.slots(Type::B32, [d, a, b, c])?, table: *table as u32 })
    }

    fn funnel_shift(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let ([side @ ("l" | "r"), mode @ ("wrap" | "clamp"), "b32"], [d, a, b, c]) =
            (rest, statement.operands.as_slice())
        else {
            return Err("not supported".into());
        };
        Ok(Op::Lanes(ops::funnel(*side == "l", *mode == "wrap"), self.slots(Type::B32, [d, a, b, c])?))
    }

    fn selection(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let ([ty], [d, a, b, c]) = (rest, statement.operands.as_slice()) else { return Err("not supported".into()) };
        let ty = Type::parse(ty).ok_or("not supported")?;
        let op = ops::select(ty).ok_or("not supported")?;
        let (c, negated) = self.predicate(c)?;
        if negated {
            return Err("a negated selector is not supported".into());
        }
        Ok(Op::Lanes(op, Slots { d: self.output(d, ty)?, a: self.input(a, ty)?, b: self.input(b, ty)?, c }))
    }

    fn slots(&mut self, ty: Type, [d, a, b, c]: [&Operand; 4]) -> Decoded<Slots> {
        Ok(Slots { d: self.output(d, ty)?, a: self.input(a, ty)?, b: self.input(b, ty)?, c: self.input(c, ty)? })
    }

    fn arithmetic(&mut self, statement: &Statement, opcode: &str, rest: &[&str]) -> Decoded<(Op, Class)> {
        let mut modifiers = Modifiers::default();
        let (mut ty, mut rounding) = (None, None);
        for &part in rest {
            match part {
                "wide" => modifiers.wide = true,
                "hi" => modifiers.hi = true,
                "lo" => {}
                "rn" | "rz" | "rm" | "rp" => rounding = Some(part),
                "ftz" => modifiers.ftz = true,
                "sat" => modifiers.sat = true,
                "NaN" => modifiers.nan = true,
                "relu" => modifiers.relu = true,
                "approx" | "full" => modifiers.approx = true,
                _ => match Type::parse(part) {
                    Some(found) if ty.is_none() => ty = Some(found),
                    _ => return Err(format!("`.{part}` is not supported")),
                },
            }
        }
        let Some(ty) = ty else { return Err("not supported".into()) };
        if rounding.is_some() && !ty.is_float() {
            return Err("not supported".into());
        }
        let op = match rounding {
            Some(rounding) if rounding != "rn" => ops::directed(opcode, ty, rounding, modifiers),
            _ => ops::arithmetic(opcode, ty, modifiers),
        };
        let op = op.ok_or("not supported")?;
        let operands = &statement.operands[..];
        let arity = match opcode {
            "fma" | "mad" | "bfe" | "prmt" => 3,
            "abs" | "neg" | "not" | "cnot" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
            | "popc" | "clz" | "brev" | "bfind" => 1,
            _ => 2,
        };
        if operands.len() != arity + 1 {
            return Err(format!("{} operands are needed", arity + 1));
        }
        let double = match ty {
            Type::U16 | Type::S16 => Type::B32,
            _ => Type::B64,
        };
        let result = match opcode {
            "popc" | "clz" | "bfind" => Type::B32,
            "mul" | "mad" if modifiers.wide => double,
            _ => ty,
        };
        let mut slots = Slots { d: self.output(&operands[0], result)?, ..Slots::default() };
        slots.a = self.input(&operands[1], ty)?;
        if arity > 1 {
            let second = if matches!(opcode, "shl" | "shr" | "bfe") { Type::U32 } else { ty };
            slots.b = self.input(&operands[2], second)?;
        }
        if arity > 2 {
            let third = match opcode {
                "mad" if modifiers.wide => double,
                "bfe" => Type::U32,
                _ => ty,
            };
            slots.c = self.input(&operands[3], third)?;
        }
        let class = match ty {
            _ if ty.is_half() => Class::Half,
            _ if ty.is_float() => Class::Float,
            _ => Class::Integer,
        };
        Ok((Op::Lanes(op, slots), class))
    }

    /// Decodes `set`. It compares like `setp`, but the result is a number: 1 for a float, all bits for an integer.
    fn set(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let (name, ftz, to, from) = match rest {
            [name, to, from] => (name, false, to, from),
            [name, "ftz", to, from] => (name, true, to, from),
            _ => return Err("not supported".into()),
        };
        let (to, from) = (Type::parse(to).ok_or("not supported")?, Type::parse(from).ok_or("not supported")?);
        let mask = matches!(to, Type::U32 | Type::S32);
        if matches!(from, Type::F16x2 | Type::Bf16x2) && (to == from || mask) && !ftz {
            let op = ops::set_pair(name, from, mask).ok_or("not supported")?;
            let [d, a, b] = statement.operands.as_slice() else { return Err("wrong number of operands".into()) };
            let (d, a, b) = (self.output(d, to)?, self.input(a, from)?, self.input(b, from)?);
            return Ok(Op::Lanes(op, Slots { d, a, b, c: 0 }));
        }
        let value = match to {
            Type::U32 | Type::S32 => u32::MAX,
            Type::F32 => 1f32.to_bits(),
            Type::F16 => half::f16::ONE.to_bits().into(),
            Type::Bf16 => half::bf16::ONE.to_bits().into(),
            _ => return Err("not supported".into()),
        };
        let test = ops::compare(name, from, ftz).ok_or("not supported")?;
        let [d, a, b] = statement.operands.as_slice() else { return Err("wrong number of operands".into()) };
        let slots =
            Slots { d: self.new_slot(Width::Predicate), a: self.input(a, from)?, b: self.input(b, from)?, c: 0 };
        Ok(Op::Set { test, slots, target: self.output(d, to)?, value })
    }

    fn comparison(&mut self, statement: &Statement, rest: &[&str]) -> Decoded<Op> {
        let [name, middle @ .., ty] = rest else { return Err("not supported".into()) };
        let ty = Type::parse(ty).ok_or("not supported")?;
        let (mut ftz, mut combination) = (false, None);
        for &part in middle {
            match part {
                "ftz" => ftz = true,
                "and" => combination = Some(Combine::And),
                "or" => combination = Some(Combine::Or),
                "xor" => combination = Some(Combine::Xor),
                _ => return Err(format!("`.{part}` is not supported")),
            }
        }
        let test = ops::compare(name, ty, ftz).ok_or("not supported")?;
        let (target, a, b, third) = match statement.operands.as_slice() {
            [target, a, b] if combination.is_none() => (target, a, b, None),
            [target, a, b, third] if combination.is_some() => (target, a, b, Some(third)),
            _ => return Err("wrong number of operands".into()),
        };
        let (d, complement) = match target {
            Operand::Pair(d, other) => {
                let other = self.output(&Operand::Name(other.clone()), Type::Predicate)?;
                (self.output(&Operand::Name(d.clone()), Type::Predicate)?, Some(other))
            }
            target => (self.output(target, Type::Predicate)?, None),
        };
        let combine = match (combination, third) {
            (Some(combination), Some(third)) => {
                let (slot, negated) = self.predicate(third)?;
                Some((combination, slot, negated))
            }
            _ => None,
        };
        let slots = Slots { d, a: self.input(a, ty)?, b: self.input(b, ty)?, c: 0 };
        if complement.is_none() && combine.is_none() {
            return Ok(Op::Lanes(test, slots));
        }
        Ok(Op::Compare { test, slots, complement, combine })
    }
}
