//! Asynchronous instructions of Hopper GPUs: mbarriers, bulk and tensor copies, and products of warp groups.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{
    BulkCopy, BulkEnd, BulkSource, Factor, FirstFactor, MbarrierInstruction, MbarrierOp, Op, Product,
};
use crate::ptx::ast::{Operand, Statement, Width};

/// Returns whether a modifier has no effect here: `.shared`, `.shared::cta`, `.shared::cluster`, `.b64`, or a default
/// semantics of arrivals and waits.
fn is_usual(modifier: &str) -> bool {
    matches!(modifier, "shared" | "shared::cta" | "shared::cluster" | "b64" | "release" | "acquire" | "cta" | "cluster")
}

impl Decoder<'_> {
    pub(super) fn mbarrier(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        let names: Vec<&str> = modifiers.iter().copied().filter(|modifier| !is_usual(modifier)).collect();
        let op = match names[..] {
            ["init"] => MbarrierOp::Init,
            ["inval"] => MbarrierOp::Invalidate,
            ["arrive"] => MbarrierOp::Arrive { drops: false },
            ["arrive_drop"] => MbarrierOp::Arrive { drops: true },
            ["arrive", "expect_tx"] => MbarrierOp::ArriveExpecting,
            ["expect_tx"] | ["expect_tx", "relaxed"] => MbarrierOp::Expect,
            ["complete_tx"] | ["complete_tx", "relaxed"] => MbarrierOp::Complete,
            ["test_wait" | "try_wait", "parity"] => MbarrierOp::TestParity,
            ["test_wait" | "try_wait"] => MbarrierOp::TestState,
            _ => return Err("not supported".into()),
        };
        let one = Operand::Integer(1);
        let (result, address, value) = match (op, statement.operands.as_slice()) {
            (MbarrierOp::Invalidate, [address]) => (None, address, &one),
            (MbarrierOp::Init | MbarrierOp::Expect | MbarrierOp::Complete, [address, value]) => (None, address, value),
            (MbarrierOp::Arrive { .. }, [state, address]) => (Some((state, Type::B64)), address, &one),
            (MbarrierOp::Arrive { .. } | MbarrierOp::ArriveExpecting, [state, address, value]) => {
                (Some((state, Type::B64)), address, value)
            }
            // A time hint may follow.
            (MbarrierOp::TestParity | MbarrierOp::TestState, [done, address, value] | [done, address, value, _]) => {
                (Some((done, Type::Predicate)), address, value)
            }
            _ => return Err("wrong operands".into()),
        };
        let has_state = matches!(result, Some((Operand::Name(name), Type::B64)) if name != "_");
        if modifiers.contains(&"shared::cluster") && (has_state || matches!(result, Some((_, Type::Predicate)))) {
            return Err("only arrivals without a result reach other blocks of a cluster".into());
        }
        let result = result.filter(|&(_, ty)| has_state || ty != Type::B64);
        let ty = if op == MbarrierOp::TestState { Type::B64 } else { Type::B32 };
        Ok(Op::Mbarrier(Box::new(MbarrierInstruction {
            op,
            address: self.address(address)?.0,
            result: result.map(|(operand, ty)| self.output(operand, ty)).transpose()?,
            value: self.input(value, ty)?,
        })))
    }

    /// Decodes `cp.async.bulk`. `modifiers` has the words after that.
    pub(super) fn bulk_copy(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        let operands = statement.operands.as_slice();
        match (modifiers, operands) {
            (["commit_group"], []) => return Ok(Op::BulkCommit),
            (["wait_group", rest @ ..], [Operand::Integer(pending)]) if matches!(rest, [] | ["read"]) => {
                return Ok(Op::BulkWait { pending: *pending as u32, read: !rest.is_empty() });
            }
            (["prefetch", ..], _) => return Ok(Op::Nothing),
            _ => {}
        }
        let (rank, modifiers) = match modifiers {
            ["tensor", rank @ ("1d" | "2d" | "3d" | "4d" | "5d"), rest @ ..] => (rank[..1].parse().unwrap_or(0), rest),
            rest => (0, rest),
        };
        let names: Vec<&str> = modifiers.iter().copied().filter(|modifier| *modifier != "tile").collect();
        let (load, hint) = match names[..] {
            ["shared::cluster" | "shared::cta", "global", "mbarrier::complete_tx::bytes", ref rest @ ..] => {
                (true, rest)
            }
            ["global", "shared::cta", "bulk_group", ref rest @ ..] => (false, rest),
            _ => return Err("not supported".into()),
        };
        let (multicast, hint) = match hint {
            ["multicast::cluster", rest @ ..] if load => (true, rest),
            rest => (false, rest),
        };
        // A cache policy comes last, and does not change results.
        let operands = match hint {
            [] => operands,
            ["L2::cache_hint"] => &operands[..operands.len().saturating_sub(1)],
            _ => return Err("not supported".into()),
        };
        let (operands, multicast) = match operands {
            [operands @ .., blocks] if multicast => (operands, Some(self.input(blocks, Type::B16)?)),
            operands => (operands, None),
        };
        let (shared, source, barrier) = match (rank, load, operands) {
            (0, true, [shared, global, size, barrier]) => (shared, self.bytes(global, size)?, Some(barrier)),
            (0, false, [global, shared, size]) => (shared, self.bytes(global, size)?, None),
            (_, true, [shared, tile, barrier]) => (shared, self.tile(tile, rank)?, Some(barrier)),
            (_, false, [tile, shared]) => (shared, self.tile(tile, rank)?, None),
            _ => return Err("wrong operands".into()),
        };
        let end = match barrier {
            Some(barrier) => BulkEnd::Shared { barrier: self.address(barrier)?.0, multicast },
            None => BulkEnd::Global,
        };
        Ok(Op::BulkCopy(Box::new(BulkCopy { end, source, shared: self.address(shared)?.0 })))
    }

    fn bytes(&mut self, global: &Operand, size: &Operand) -> Decoded<BulkSource> {
        Ok(BulkSource::Bytes { global: self.address(global)?.0, size: self.input(size, Type::U32)? })
    }

    /// Decodes `[map, {x, y}]`.
    fn tile(&mut self, operand: &Operand, rank: usize) -> Decoded<BulkSource> {
        let Operand::List(parts) = operand else { return Err(format!("{operand:?} is not a tile")) };
        let [map, Operand::Vector(coordinates)] = parts.as_slice() else {
            return Err("a map and coordinates are needed".into());
        };
        if coordinates.len() != rank {
            return Err(format!("{} coordinates for {rank} dimensions", coordinates.len()));
        }
        let coordinates: Decoded<Box<[u32]>> = coordinates.iter().map(|item| self.input(item, Type::S32)).collect();
        let (name, offset) = match map {
            Operand::Sum(name, offset) => (Operand::Name(name.clone()), *offset),
            other => (other.clone(), 0),
        };
        let map = self.address(&Operand::Address(Box::new(name), offset))?.0;
        Ok(BulkSource::Tile { map, coordinates: coordinates? })
    }

    pub(super) fn warp_group(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        let operands = statement.operands.as_slice();
        let (shape, types) = match (modifiers, operands) {
            (["fence", "sync", "aligned"], []) => return Ok(Op::ProductFence),
            (["commit_group", "sync", "aligned"], []) => return Ok(Op::ProductCommit),
            (["wait_group", "sync", "aligned"], [Operand::Integer(pending)]) => {
                return Ok(Op::ProductWait(*pending as u32));
            }
            (["mma_async", "sync", "aligned", shape, types @ ..], _) => (*shape, types),
            _ => return Err("not supported".into()),
        };
        let (factor, half_sum) = match types {
            ["f32", "f16", "f16"] => (Factor::F16, false),
            ["f32", "bf16", "bf16"] => (Factor::Bf16, false),
            ["f16", "f16", "f16"] => (Factor::F16, true),
            _ => return Err("not supported".into()),
        };
        let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k16")).and_then(|n| n.parse().ok());
        let Some(columns) = columns.filter(|&n: &usize| n % 8 == 0 && (8..=256).contains(&n)) else {
            return Err(format!("shape `{shape}` is not supported"));
        };
        let [d, a, b, scale, flags @ ..] = operands else { return Err("wrong operands".into()) };
        let from_registers = matches!(a, Operand::Vector(_));
        let flag = |operand: &Operand| match operand {
            Operand::Integer(value) => Ok(*value as i64),
            other => Err(format!("{other:?} is not an immediate")),
        };
        let flags: Vec<i64> = flags.iter().map(flag).collect::<Decoded<_>>()?;
        let (negate_a, negate_b, transpose_a, transpose_b) = match (flags.as_slice(), from_registers) {
            (&[a, b], _) => (a, b, 0, 0),
            (&[a, b, transpose_b], true) => (a, b, 0, transpose_b),
            (&[a, b, transpose_a, transpose_b], false) => (a, b, transpose_a, transpose_b),
            _ => return Err("wrong number of operands".into()),
        };
        let accumulates = match scale {
            // A predicate that nothing writes is false.
            Operand::Integer(0) => Some((self.new_slot(Width::Predicate), false)),
            Operand::Integer(_) => None,
            predicate => Some(self.predicate(predicate)?),
        };
        let a = if from_registers {
            FirstFactor::Registers(self.list(a, Type::B32, 4, false)?)
        } else {
            FirstFactor::Descriptor { slot: self.input(a, Type::B64)?, transposed: transpose_a != 0 }
        };
        let sums = if half_sum { columns / 4 } else { columns / 2 };
        Ok(Op::Product(Box::new(Product {
            factor,
            columns,
            half_sum,
            d: self.list(d, Type::B32, sums, true)?,
            a,
            b: (self.input(b, Type::B64)?, transpose_b != 0),
            accumulates,
            negates: [negate_a < 0, negate_b < 0],
        })))
    }
}
