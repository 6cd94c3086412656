//! Decodes statements into instructions. Names become slots, opcodes become operations, and labels become indices.

mod bulk;
mod call;
mod collective;
mod control;
mod decoder;
mod instruction;
mod matrix;
mod memory;
mod movement;
mod operand;
mod rare;

use crate::dominators::immediate_post_dominators;
use crate::parameter::Parameter;
use crate::program::{FirstFactor, Flow, NONE, Op, Program};
use crate::ptx::ParseError;
use crate::ptx::ast::{Source, Width};
use decoder::Decoder;

/// Decodes a kernel of a file, with the functions that it calls.
pub(crate) fn program(source: &Source, index: usize, parameters: &[Parameter]) -> Result<Program, ParseError> {
    let mut decoder = Decoder::new(source, index, parameters);
    while let Some(next) = decoder.queue.pop() {
        if !decoder.starts.contains_key(&next) {
            decoder.function(next)?;
        }
        if decoder.queue.is_empty() && !decoder.pointer_calls.is_empty() {
            decoder.queue_taken();
        }
    }
    decoder.mark_touches();
    decoder.link();
    decoder.program.flows.resize(decoder.program.code.len(), Flow::default());
    Ok(decoder.program)
}

impl Decoder<'_> {
    /// Decodes a function.
    fn function(&mut self, index: usize) -> Result<(), ParseError> {
        self.function = index;
        let function = self.current();
        if let Some(refused) = &function.refused {
            return Err(refused.clone());
        }
        let start = self.program.code.len() as u32;
        self.starts.insert(index, start);
        for statement in &function.body {
            let instruction = self.statement(statement).map_err(|message| {
                let message = format!("`{}` in `{}`: {message}", statement.opcode, function.name);
                ParseError { is_form: !self.wrong, ..ParseError::new(statement.line, message) }
            })?;
            let written = std::mem::take(&mut self.written);
            let read = std::mem::take(&mut self.read);
            self.program.flows.resize(self.program.code.len(), Flow::default());
            self.program.flows.push(Flow { reads: read.into(), writes: written.clone().into() });
            if let Op::Product(product) = &instruction.op {
                self.in_products.extend(&product.d);
                if let FirstFactor::Registers(a) = &product.a {
                    self.in_products.extend(a);
                }
            }
            self.writes.resize(self.program.code.len(), Vec::new());
            self.writes.push(written);
            self.program.code.push(instruction);
        }
        // A function returns at its end.
        let returns = self.program.code[start as usize..].last().is_some_and(|last| {
            last.guard == NONE && matches!(last.op, Op::Return | Op::Exit | Op::Branch(_) | Op::Trap)
        });
        if !returns {
            let line = function.body.last().map_or(function.line, |statement| statement.line);
            let opcode = self.opcode("ret");
            self.program.code.push(control::implicit_return(line, opcode));
        }
        self.meetings(start);
        Ok(())
    }

    /// Marks instructions that write registers of products, except products.
    fn mark_touches(&mut self) {
        if self.in_products.is_empty() {
            return;
        }
        for (instruction, writes) in self.program.code.iter_mut().zip(&self.writes) {
            let touches = writes.iter().any(|(width, slot)| *width == Width::B32 && self.in_products.contains(slot));
            if touches && !matches!(instruction.op, Op::Product(_)) {
                let op = std::mem::replace(&mut instruction.op, Op::Nothing);
                instruction.op = Op::Touch(Box::new(op));
            }
        }
    }

    /// Fills in where lanes that diverge at a branch reconverge, for the function that begins at `start`.
    fn meetings(&mut self, start: u32) {
        let code = &mut self.program.code[start as usize..];
        let successors: Vec<Vec<u32>> = code
            .iter()
            .enumerate()
            .map(|(at, instruction)| {
                let next = at as u32 + 1;
                let mut list = match &instruction.op {
                    Op::Branch(target) => vec![target - start],
                    Op::BranchTable { targets, .. } => targets.iter().map(|target| target - start).collect(),
                    Op::Return | Op::Exit | Op::Trap => Vec::new(),
                    _ => return vec![next],
                };
                if instruction.guard != NONE {
                    if list.is_empty() {
                        list.push(code_len_exit());
                    }
                    list.push(next);
                }
                list
            })
            .collect();
        let meet = immediate_post_dominators(&successors);
        for (instruction, meet) in code.iter_mut().zip(meet) {
            instruction.meet = if meet == NONE { NONE } else { meet + start };
        }
    }
}

/// Returns a node after all instructions, which is the function's exit.
fn code_len_exit() -> u32 {
    NONE - 1
}
