//! Branches and barriers.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{BarrierReduction, BarrierVote, Instruction, NONE, Op};
use crate::ptx::ast::{Operand, Statement};
use crate::report::Class;

/// Returns the instruction that returns at a function's end.
pub(super) fn implicit_return(line: u32, opcode: u32) -> Instruction {
    Instruction {
        op: Op::Return,
        guard: NONE,
        negated: false,
        aligned: false,
        class: Class::Control,
        meet: NONE,
        line,
        place: None,
        opcode,
    }
}

impl Decoder<'_> {
    fn label(&mut self, statement: &Statement, name: &str) -> Decoded<u32> {
        let function = self.current();
        match function.visible(&function.labels, statement.scope, name) {
            Some(&at) => Ok(self.starts[&self.function] + at as u32),
            None => self.wrong(format!("there is no label `{name}`")),
        }
    }

    pub(super) fn branch(&mut self, statement: &Statement) -> Decoded<Op> {
        match statement.operands.as_slice() {
            [Operand::Name(name)] => Ok(Op::Branch(self.label(statement, name)?)),
            _ => Err("a label is needed".into()),
        }
    }

    pub(super) fn branch_table(&mut self, statement: &Statement) -> Decoded<Op> {
        let [index, Operand::Name(name)] = statement.operands.as_slice() else {
            return Err("an index and a table are needed".into());
        };
        if statement.guard.is_some() {
            return Err("a guarded branch table is not supported".into());
        }
        let function = self.current();
        let Some(table) = function.visible(&function.tables, statement.scope, name) else {
            return Err(format!("there is no table `{name}`"));
        };
        let targets: Decoded<Box<[u32]>> = table.iter().map(|name| self.label(statement, name)).collect();
        Ok(Op::BranchTable { index: self.input(index, Type::U32)?, targets: targets? })
    }

    pub(super) fn barrier(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        let modifiers = modifiers.strip_prefix(&["cta"]).unwrap_or(modifiers);
        if let ["cluster", rest @ ..] = modifiers {
            return match rest.strip_suffix(&["aligned"]).unwrap_or(rest) {
                ["arrive"] | ["arrive", "release"] => Ok(Op::ClusterArrive { releases: true }),
                ["arrive", "relaxed"] => Ok(Op::ClusterArrive { releases: false }),
                ["wait"] | ["wait", "acquire"] => Ok(Op::ClusterWait),
                _ => Err("not supported".into()),
            };
        }
        if let ["red", rest @ ..] = modifiers {
            return self.voting_barrier(statement, rest.strip_prefix(&["aligned"]).unwrap_or(rest));
        }
        let waits = match modifiers {
            ["sync"] | ["sync", "aligned"] => true,
            ["arrive"] | ["arrive", "aligned"] => false,
            _ => return Err("not supported".into()),
        };
        let (id, count) = match statement.operands.as_slice() {
            [id] if waits => (id, None),
            [id, count] => (id, Some(self.input(count, Type::U32)?)),
            _ => return Err("wrong number of operands".into()),
        };
        Ok(Op::Barrier { id: self.input(id, Type::U32)?, count, waits, vote: None })
    }

    /// Decodes `bar.red`, a barrier that votes on a predicate of all threads.
    fn voting_barrier(&mut self, statement: &Statement, modifiers: &[&str]) -> Decoded<Op> {
        let (reduction, ty) = match modifiers {
            ["popc", "u32"] => (BarrierReduction::Count, Type::U32),
            ["and", "pred"] => (BarrierReduction::All, Type::Predicate),
            ["or", "pred"] => (BarrierReduction::Any, Type::Predicate),
            _ => return Err("not supported".into()),
        };
        let (result, id, count, predicate) = match statement.operands.as_slice() {
            [result, id, predicate] => (result, id, None, predicate),
            [result, id, count, predicate] => (result, id, Some(self.input(count, Type::U32)?), predicate),
            _ => return Err("wrong number of operands".into()),
        };
        let predicate = self.predicate(predicate)?;
        let vote = Some(Box::new(BarrierVote { reduction, predicate, result: self.output(result, ty)? }));
        Ok(Op::Barrier { id: self.input(id, Type::U32)?, count, waits: true, vote })
    }
}
