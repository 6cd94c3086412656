//! Loads, stores, atomics and asynchronous copies.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{Access, Address, AsyncCopy, Atomic, AtomicOp, MemoryOrder, Op, Scope};
use crate::ptx::ast::{Operand, Space, Statement, Width};

fn space(modifier: &str) -> Option<Space> {
    Some(match modifier {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::Cluster,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

/// Returns whether a modifier changes neither results nor counts here. These are cache hints, and scopes, which `order`
/// reads.
fn is_hint(modifier: &str) -> bool {
    matches!(
        modifier,
        "nc" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "weak" | "cta" | "gpu" | "sys" | "cluster"
    ) || modifier.starts_with("L1::")
        || modifier.starts_with("L2::")
}

/// Returns the operands of an instruction without its cache policy, which changes neither results nor counts here.
fn without_policy<'a>(statement: &'a Statement, modifiers: &[&str]) -> &'a [Operand] {
    match statement.operands.as_slice() {
        [operands @ .., _] if modifiers.contains(&"L2::cache_hint") => operands,
        operands => operands,
    }
}

/// Returns the ordering of a strong load or store. `None` if the access is weak.
fn order(modifiers: &[&str]) -> Option<MemoryOrder> {
    let has = |modifier| modifiers.contains(&modifier);
    let strong = has("volatile") || has("relaxed") || has("acquire") || has("release");
    // A volatile access names no scope, and has the scope of the system.
    let scope = Scope::from_modifiers(modifiers).unwrap_or(Scope::System);
    strong.then(|| MemoryOrder { acquire: has("acquire"), release: has("release"), scope })
}

impl Decoder<'_> {
    pub(super) fn load_or_store(&mut self, statement: &Statement, modifiers: &[&str], store: bool) -> Decoded<Op> {
        let (mut at, mut count, mut ty) = (Space::Generic, 1, None);
        let order = order(modifiers);
        for &modifier in modifiers {
            match modifier {
                "v2" => count = 2,
                "v4" => count = 4,
                "v8" => count = 8,
                "volatile" | "relaxed" | "acquire" | "release" => {}
                _ if is_hint(modifier) => {}
                _ => match (space(modifier), Type::parse(modifier)) {
                    (Some(found), _) => at = found,
                    (_, Some(found)) => ty = Some(found),
                    _ => return Err(format!("`.{modifier}` is not supported")),
                },
            }
        }
        let Some(ty) = ty else { return Err("it has no type".into()) };
        let [first, second] = without_policy(statement, modifiers) else {
            return Err("two operands are needed".into());
        };
        let (address, value) = if store { (first, second) } else { (second, first) };
        let single = [value.clone()];
        let values = if let Operand::Vector(values) = value { &values[..] } else { &single[..] };
        if values.len() != count || ty == Type::Predicate {
            return Err("the vector's length and its operand's differ".into());
        }
        let registers: Decoded<Box<[_]>> = values.iter().map(|value| self.element(value, ty.bytes())).collect();
        let registers = registers?;
        if !store {
            self.written.extend(registers.iter().filter(|register| register.bits == 32).map(|r| (Width::B32, r.slot)));
        }
        let by_register = match address {
            Operand::Address(base, _) => matches!(&**base, Operand::Name(name) if self.register(name).is_some()),
            _ => false,
        };
        if at == Space::Param && self.current().entry && by_register {
            at = Space::Parameters;
        } else if at == Space::Param {
            return self.parameter(address, ty, registers, store);
        }
        let (address, fixed) = self.address(address)?;
        if at == Space::Generic {
            at = fixed.unwrap_or(Space::Generic);
        }
        let access = Access { space: at, address, size: ty.bytes(), signed: ty.is_signed(), order, registers };
        if access.bytes() > 32 {
            return Err("more than 32 bytes".into());
        }
        Ok(if store { Op::Store(Box::new(access)) } else { Op::Load(Box::new(access)) })
    }

    /// Decodes an access to `.param`: the kernel's parameters, or private memory for the parameters of calls.
    fn parameter(
        &mut self,
        operand: &Operand,
        ty: Type,
        registers: Box<[crate::program::Register]>,
        store: bool,
    ) -> Decoded<Op> {
        let Operand::Address(base, offset) = operand else { return Err("an address is needed".into()) };
        let Operand::Name(name) = &**base else { return Err("parameters are addressed by name only".into()) };
        let function = self.current();
        let mut access = Access {
            space: Space::Local,
            address: Address { slot: 0, wide: true, offset: 0 },
            size: ty.bytes(),
            signed: ty.is_signed(),
            order: None,
            registers,
        };
        let end = |size: usize| usize::try_from(*offset).is_ok_and(|offset| offset + access.bytes() <= size);
        if function.entry
            && let Some(parameter) = self.parameters.iter().find(|parameter| parameter.name == *name)
        {
            if store || !end(parameter.size) {
                return Err(format!("not within parameter `{name}`"));
            }
            let offset = parameter.offset + *offset as usize;
            return Ok(Op::Parameter { offset, access: Box::new(access) });
        }
        let declared = function.variables.iter().filter(|variable| variable.space == Space::Param);
        let declared =
            declared.chain(&function.parameters).chain(&function.returns).find(|variable| variable.name == *name);
        let Some(variable) = declared else { return Err(format!("`{name}` is not a parameter")) };
        if !end(variable.size) {
            return Err(format!("not within parameter `{name}`"));
        }
        let place = self.place(self.function, variable, false);
        access.address.slot = self.bits(place as u64, true);
        access.address.offset = *offset;
        Ok(if store { Op::Store(Box::new(access)) } else { Op::Load(Box::new(access)) })
    }

    pub(super) fn atomic(&mut self, statement: &Statement, modifiers: &[&str], returns: bool) -> Decoded<Op> {
        let (mut at, mut name, mut ty) = (Space::Generic, None, None);
        for &modifier in modifiers {
            match modifier {
                "relaxed" | "acquire" | "release" | "acq_rel" | "gpu" | "cta" | "cluster" | "sys" | "noftz" => {}
                "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec" => name = Some(modifier),
                _ => match (space(modifier), Type::parse(modifier)) {
                    (Some(found), _) => at = found,
                    (_, Some(found)) => ty = Some(found),
                    _ => return Err(format!("`.{modifier}` is not supported")),
                },
            }
        }
        let (Some(name), Some(ty)) = (name, ty) else { return Err("it has no operation or type".into()) };
        let op = match (name, ty) {
            ("add", Type::U32 | Type::S32 | Type::U64 | Type::S64) => AtomicOp::Add,
            ("add", Type::F32) => AtomicOp::AddF32,
            ("add", Type::F64) => AtomicOp::AddF64,
            ("add", Type::F16x2) => AtomicOp::AddF16x2,
            ("add", Type::Bf16x2) => AtomicOp::AddBf16x2,
            ("exch", Type::B32 | Type::B64) => AtomicOp::Exchange,
            ("cas", Type::B32 | Type::B64) => AtomicOp::CompareSwap,
            ("and", Type::B32 | Type::B64) => AtomicOp::And,
            ("or", Type::B32 | Type::B64) => AtomicOp::Or,
            ("xor", Type::B32 | Type::B64) => AtomicOp::Xor,
            ("min", Type::U32 | Type::U64) => AtomicOp::Min,
            ("max", Type::U32 | Type::U64) => AtomicOp::Max,
            ("min", Type::S32 | Type::S64) => AtomicOp::MinSigned,
            ("max", Type::S32 | Type::S64) => AtomicOp::MaxSigned,
            ("inc", Type::U32) => AtomicOp::Increment,
            ("dec", Type::U32) => AtomicOp::Decrement,
            _ => return Err("not supported".into()),
        };
        let operands = &statement.operands[..];
        let (result, operands) = match (returns, operands) {
            (true, [result, rest @ ..]) => (Some(self.output(result, ty)?), rest),
            _ => (None, operands),
        };
        let (address, value, second) = match operands {
            [address, value] if op != AtomicOp::CompareSwap => (address, value, value),
            [address, value, second] if op == AtomicOp::CompareSwap => (address, value, second),
            _ => return Err("wrong number of operands".into()),
        };
        let (address, fixed) = self.address(address)?;
        if at == Space::Generic {
            at = fixed.unwrap_or(Space::Generic);
        }
        let (value, second) = (self.input(value, ty)?, self.input(second, ty)?);
        let has = |names: [&str; 2]| modifiers.iter().any(|modifier| names.contains(modifier));
        let order = MemoryOrder {
            acquire: has(["acquire", "acq_rel"]),
            release: has(["release", "acq_rel"]),
            scope: Scope::from_modifiers(modifiers).unwrap_or(Scope::Device),
        };
        Ok(Op::Atomic(Box::new(Atomic { op, order, space: at, address, size: ty.bytes(), result, value, second })))
    }

    pub(super) fn async_copy(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        match (modifiers, statement.operands.as_slice()) {
            (["async", "commit_group"], []) => return Ok(Op::AsyncCommit),
            (["async", "wait_all"], []) => return Ok(Op::AsyncWait(None)),
            (["async", "wait_group"], [Operand::Integer(count)]) => {
                return Ok(Op::AsyncWait(Some(u32::try_from(*count).unwrap_or(u32::MAX))));
            }
            (["async", "mbarrier", "arrive", rest @ .., "b64"], [address]) => {
                let counted = match rest {
                    ["noinc"] | ["noinc", "shared" | "shared::cta"] => true,
                    [] | ["shared" | "shared::cta"] => false,
                    _ => return Err("not supported".into()),
                };
                return Ok(Op::AsyncArrive { address: self.address(address)?.0, counted });
            }
            (["async", "ca" | "cg", "shared" | "shared::cta", "global", rest @ ..], operands)
                if rest.iter().all(|hint| is_hint(hint) && *hint != "L2::cache_hint") =>
            {
                let (target, source, bytes, count) = match operands {
                    [target, source, Operand::Integer(bytes)] => (target, source, *bytes, None),
                    [target, source, Operand::Integer(bytes), count] => (target, source, *bytes, Some(count)),
                    _ => return Err("wrong operands".into()),
                };
                if !matches!((bytes, modifiers[1]), (4 | 8, "ca") | (16, _)) {
                    return Err(format!("{bytes} bytes are not supported"));
                }
                let source_bytes = count.map(|count| self.input(count, Type::U32)).transpose()?;
                let (target, source) = (self.address(target)?.0, self.address(source)?.0);
                return Ok(Op::AsyncCopy(Box::new(AsyncCopy { target, source, bytes: bytes as u32, source_bytes })));
            }
            _ => {}
        }
        Err("not supported".into())
    }
}
