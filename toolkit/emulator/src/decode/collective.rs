//! Exchanges between lanes, and matrices of eight rows in shared memory.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{Collective, Op, ReduxOp, ShuffleMode, VoteMode};
use crate::ptx::ast::{Operand, Statement};

/// Parses the modifiers of a matrix load or store, which may be in any order. Returns the number of matrices of 8 x 8
/// halves, and whether they are transposed.
fn matrices(modifiers: &[&str]) -> Option<(usize, bool)> {
    let has = |name| modifiers.contains(&name);
    let count = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|&(name, _)| has(name))?.1;
    let supported = ["sync", "aligned", "m8n8", "b16", "x1", "x2", "x4", "trans", "shared", "shared::cta"];
    let complete = ["sync", "aligned", "m8n8", "b16"].into_iter().all(has);
    (complete && modifiers.iter().all(|modifier| supported.contains(modifier))).then_some((count, has("trans")))
}

impl Decoder<'_> {
    pub(super) fn list(&mut self, operand: &Operand, ty: Type, count: usize, output: bool) -> Decoded<Box<[u32]>> {
        let single = [operand.clone()];
        let list = if let Operand::Vector(list) = operand { &list[..] } else { &single[..] };
        if list.len() != count {
            return Err(format!("{count} registers are needed, not {}", list.len()));
        }
        list.iter().map(|item| if output { self.output(item, ty) } else { self.input(item, ty) }).collect()
    }

    /// Returns the slots of a result, and of the predicate that may come with it.
    fn result(&mut self, operand: &Operand) -> Decoded<(u32, Option<u32>)> {
        let Operand::Pair(result, predicate) = operand else { return Ok((self.output(operand, Type::B32)?, None)) };
        let predicate = self.output(&Operand::Name(predicate.clone()), Type::Predicate)?;
        Ok((self.output(&Operand::Name(result.clone()), Type::B32)?, Some(predicate)))
    }

    pub(super) fn collective(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        let operands = &statement.operands[..];
        let (op, members) = match (parts, operands) {
            (["shfl", "sync", mode, "b32"], [result, value, lane, clamp, members]) => {
                let mode = match *mode {
                    "up" => ShuffleMode::Up,
                    "down" => ShuffleMode::Down,
                    "bfly" => ShuffleMode::Butterfly,
                    "idx" => ShuffleMode::Index,
                    _ => return Err("not supported".into()),
                };
                let (result, valid) = self.result(result)?;
                let value = self.input(value, Type::B32)?;
                let (lane, clamp) = (self.input(lane, Type::B32)?, self.input(clamp, Type::B32)?);
                (Collective::Shuffle { mode, result, valid, value, lane, clamp }, members)
            }
            (["vote", "sync", mode, ty], [result, predicate, members]) => {
                let (mode, kind) = match (*mode, *ty) {
                    ("ballot", "b32") => (VoteMode::Ballot, Type::B32),
                    ("all", "pred") => (VoteMode::All, Type::Predicate),
                    ("any", "pred") => (VoteMode::Any, Type::Predicate),
                    ("uni", "pred") => (VoteMode::Uniform, Type::Predicate),
                    _ => return Err("not supported".into()),
                };
                let (predicate, negated) = self.predicate(predicate)?;
                (Collective::Vote { mode, result: self.output(result, kind)?, predicate, negated }, members)
            }
            (["redux", "sync", op, ty], [result, value, members]) => {
                let op = match (*op, *ty) {
                    ("add", "u32" | "s32") => ReduxOp::Add,
                    ("min", "u32") => ReduxOp::Min,
                    ("max", "u32") => ReduxOp::Max,
                    ("min", "s32") => ReduxOp::MinSigned,
                    ("max", "s32") => ReduxOp::MaxSigned,
                    ("and", "b32") => ReduxOp::And,
                    ("or", "b32") => ReduxOp::Or,
                    ("xor", "b32") => ReduxOp::Xor,
                    _ => return Err("not supported".into()),
                };
                let (result, value) = (self.output(result, Type::B32)?, self.input(value, Type::B32)?);
                (Collective::Redux { op, result, value }, members)
            }
            (["match", "any", "sync", ty], [result, value, members]) => {
                let ty = match *ty {
                    "b32" => Type::B32,
                    "b64" => Type::B64,
                    _ => return Err("not supported".into()),
                };
                let (result, value) = (self.output(result, Type::B32)?, self.input(value, ty)?);
                (Collective::MatchAny { result, value, wide: ty == Type::B64 }, members)
            }
            (["match", "all", "sync", ty @ ("b32" | "b64")], [result, value, members]) => {
                let (result, all) = self.result(result)?;
                let wide = *ty == "b64";
                let value = self.input(value, if wide { Type::B64 } else { Type::B32 })?;
                (Collective::MatchAll { result, all, value, wide }, members)
            }
            (["elect", "sync"], [pair @ Operand::Pair(..), members]) => {
                let (result, Some(chosen)) = self.result(pair)? else { return Err("wrong operands".into()) };
                (Collective::Elect { result, chosen }, members)
            }
            (["bar" | "barrier", "warp", "sync"], [members]) => (Collective::Barrier, members),
            _ => return Err("not supported".into()),
        };
        Ok(Op::Collective { op: Box::new(op), members: self.input(members, Type::B32)? })
    }

    pub(super) fn load_matrix(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        let (count, transposed) = matrices(&parts[1..]).ok_or("not supported")?;
        let [registers, address] = statement.operands.as_slice() else { return Err("wrong operands".into()) };
        let registers = self.list(registers, Type::B32, count, true)?;
        Ok(Op::LoadMatrix { address: self.address(address)?.0, registers, transposed })
    }

    pub(super) fn store_matrix(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        let (count, transposed) = matrices(&parts[1..]).ok_or("not supported")?;
        let [address, registers] = statement.operands.as_slice() else { return Err("wrong operands".into()) };
        let registers = self.list(registers, Type::B32, count, false)?;
        Ok(Op::StoreMatrix { address: self.address(address)?.0, registers, transposed })
    }
}
