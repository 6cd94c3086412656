//! Calls of device functions, by name and through pointers, including recursive calls.

use super::decoder::{Decoded, Decoder, PendingPointerCall};
use crate::ops::Type;
use crate::program::{Activation, Call, Op, PointerCall, SystemCall, SystemFunction, Transfer, Value};
use crate::ptx::ast::{Function, Initial, Operand, Space, Statement, Variable, Width};
use crate::window::function_address;
use std::collections::{HashMap, HashSet};

/// Bytes of private memory per thread for the calls of recursive functions.
const STACK: usize = 32 << 10;

/// The operands of a call: results, callee, arguments, and a prototype or a list of targets.
struct CallOperands<'a> {
    results: &'a [Operand],
    callee: &'a str,
    arguments: &'a [Operand],
    prototype: Option<&'a str>,
}

fn parts(operands: &[Operand]) -> Option<CallOperands<'_>> {
    let (results, rest) = match operands {
        [Operand::List(results), rest @ ..] => (&results[..], rest),
        rest => (&[][..], rest),
    };
    let [Operand::Name(callee), rest @ ..] = rest else { return None };
    let (arguments, rest) = match rest {
        [Operand::List(arguments), rest @ ..] => (&arguments[..], rest),
        rest => (&[][..], rest),
    };
    let prototype = match rest {
        [] => None,
        [Operand::Name(prototype)] => Some(prototype.as_str()),
        _ => return None,
    };
    Some(CallOperands { results, callee, arguments, prototype })
}

impl Decoder<'_> {
    pub(super) fn call(&mut self, statement: &Statement) -> Decoded<Op> {
        let Some(call) = parts(&statement.operands) else { return Err("this form of call is not supported".into()) };
        if self.register(call.callee).is_some() {
            return self.pointer_call(statement, &call);
        }
        let (name, functions) = (call.callee, &self.source.functions);
        let Some(index) = functions.iter().position(|function| function.name == name && !function.entry) else {
            return Err(format!("`{name}` is not a function"));
        };
        let callee = &functions[index];
        if !callee.defined
            && let Some(call) = self.system_call(&call)?
        {
            return Ok(call);
        }
        if !callee.defined {
            return Err(format!("function `{name}` has no body"));
        }
        let (arguments, results) = (self.own_places(call.arguments)?, self.own_places(call.results)?);
        let call = self.transfers(index, &arguments, &results);
        let call = call.ok_or_else(|| format!("`{name}` has different parameters"))?;
        self.queue.push(index);
        Ok(Op::Call(Box::new(call)))
    }

    /// Decodes the call of a function that every GPU provides. Returns `None` for any other function.
    fn system_call(&mut self, call: &CallOperands<'_>) -> Decoded<Option<Op>> {
        let (function, sizes): (_, &[usize]) = match call.callee {
            "__assertfail" => (SystemFunction::AssertFail, &[8, 8, 4, 8, 8]),
            "vprintf" => (SystemFunction::Print, &[8, 8]),
            "malloc" => (SystemFunction::Allocate, &[8]),
            "free" => (SystemFunction::Free, &[8]),
            _ => return Ok(None),
        };
        let (arguments, results) = (self.own_places(call.arguments)?, self.own_places(call.results)?);
        if !arguments.iter().map(|(_, size)| size).eq(sizes) {
            return Err(format!("`{}` has different parameters", call.callee));
        }
        let arguments = arguments.into_iter().map(|(place, _)| place).collect();
        let size = if function == SystemFunction::Allocate { 8 } else { 4 };
        let result = results.first().filter(|(_, found)| *found == size).map(|(place, _)| *place);
        Ok(Some(Op::CallSystem(Box::new(SystemCall { function, arguments, result }))))
    }

    fn pointer_call(&mut self, statement: &Statement, call: &CallOperands<'_>) -> Decoded<Op> {
        let function = self.current();
        let prototype = call.prototype.and_then(|name| function.visible(&function.prototypes, statement.scope, name));
        let Some(prototype) = prototype else {
            return Err("a call through a pointer needs a prototype or a list of targets".into());
        };
        let listed = match &prototype.targets {
            Some(names) => {
                let functions = &self.source.functions;
                let index = |name: &String| functions.iter().position(|function| function.name == *name);
                let listed: Option<Vec<usize>> = names.iter().map(index).collect();
                Some(listed.ok_or("a target is not a function")?)
            }
            None if prototype.parameters.len() == call.arguments.len()
                && prototype.returns.len() == call.results.len() =>
            {
                None
            }
            None => return Err("the prototype has different parameters".into()),
        };
        let (arguments, results) = (self.own_places(call.arguments)?, self.own_places(call.results)?);
        let pointer = self.input(&Operand::Name(call.callee.to_string()), Type::B64)?;
        self.taken.extend(listed.iter().flatten());
        let at = self.program.code.len();
        self.pointer_calls.push(PendingPointerCall { at, arguments, results, listed });
        Ok(Op::CallPointer(Box::new(PointerCall { pointer, targets: Vec::new() })))
    }

    /// Returns the offsets and sizes of `.param` variables of the current function.
    fn own_places(&mut self, operands: &[Operand]) -> Decoded<Vec<(usize, usize)>> {
        let place = |operand: &Operand| {
            let Operand::Name(name) = operand else { return Err("arguments must be `.param` variables".to_string()) };
            let own = self.current().variables.iter().find(|variable| variable.name == *name);
            let Some(own) = own else { return Err(format!("`{name}` is not a `.param` variable")) };
            Ok((self.place(self.function, own, false), own.size))
        };
        operands.iter().map(place).collect()
    }

    /// Returns a call of a function with these arguments and results. `None` if the function has other parameters.
    fn transfers(&mut self, index: usize, arguments: &[(usize, usize)], results: &[(usize, usize)]) -> Option<Call> {
        let callee = &self.source.functions[index];
        let fits = |places: &[(usize, usize)], variables: &[Variable]| {
            places.len() == variables.len() && places.iter().zip(variables).all(|(place, v)| place.1 == v.size)
        };
        if !fits(arguments, &callee.parameters) || !fits(results, &callee.returns) {
            return None;
        }
        let mut there = |here: &[(usize, usize)], variables: &[Variable], back: bool| -> Vec<Transfer> {
            let pairs = here.iter().zip(variables);
            let transfer = |(&(own, size), variable): (&(usize, usize), &Variable)| {
                let other = self.place(index, variable, false);
                if back { (other, own, size) } else { (own, other, size) }
            };
            pairs.map(transfer).collect()
        };
        let arguments = there(arguments, &callee.parameters, false);
        let results = there(results, &callee.returns, true);
        Some(Call { target: index as u32, arguments, results, activation: None })
    }

    /// Queues the functions that calls through pointers may reach. These are all functions whose address the code or a
    /// variable contains.
    pub(super) fn queue_taken(&mut self) {
        let parts = self.source.variables.iter().flat_map(|variable| &variable.initial);
        let symbols = parts.filter_map(|part| match part {
            Initial::Address { symbol, .. } => Some(symbol),
            Initial::Bytes(_) => None,
        });
        let is_target = |function: &Function| !function.entry && function.defined;
        let index = |name: &String| self.source.functions.iter().position(|f| f.name == *name && is_target(f));
        let found: Vec<usize> = symbols.filter_map(index).collect();
        self.taken.extend(found);
        self.taken.sort_unstable();
        self.taken.dedup();
        let missing = self.taken.iter().filter(|index| !self.starts.contains_key(index));
        self.queue.extend(missing);
    }

    /// Fills in the targets of calls, and the state that calls of recursive functions save.
    pub(super) fn link(&mut self) {
        for call in std::mem::take(&mut self.pointer_calls) {
            let listed = call.listed.unwrap_or_else(|| self.taken.clone());
            let fitting = listed.into_iter().filter_map(|index| {
                Some((function_address(index), self.transfers(index, &call.arguments, &call.results)?))
            });
            let fitting: Vec<(u64, Call)> = fitting.collect();
            // A product after a call does not need a `wgmma.fence` for the call's results, so a call is never inside a
            // `Touch`.
            if let Op::CallPointer(pointer) = &mut self.program.code[call.at].op {
                pointer.targets = fitting;
            }
        }
        let mut starts: Vec<(u32, usize)> = self.starts.iter().map(|(&index, &start)| (start, index)).collect();
        starts.sort_unstable();
        let mut calls: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, instruction) in self.program.code.iter().enumerate() {
            let caller = starts[starts.partition_point(|&(start, _)| start <= at as u32) - 1].1;
            calls.entry(caller).or_default().extend(possible_calls(&instruction.op).map(|call| call.target as usize));
        }
        let recursive: Vec<usize> =
            starts.iter().map(|start| start.1).filter(|&index| reaches_itself(index, &calls)).collect();
        self.program.stack = self.program.private.next_multiple_of(16);
        if !recursive.is_empty() {
            self.program.private = self.program.stack + STACK;
        }
        self.program.activations = recursive.iter().map(|&index| self.activation(index)).collect();
        for instruction in &mut self.program.code {
            for call in possible_calls_mut(&mut instruction.op) {
                let index = call.target as usize;
                call.activation = recursive.iter().position(|&other| other == index).map(|at| at as u32);
                call.target = self.starts[&index];
            }
        }
    }

    /// Returns the state that a call of a function saves.
    fn activation(&self, index: usize) -> Activation {
        let function = &self.source.functions[index];
        let mut found = Activation::default();
        for ((_, name), &slot) in self.registers.iter().filter(|((owner, _), _)| *owner == index) {
            match function.registers.get(name) {
                Some(Width::B64) => found.wides.push(slot),
                Some(Width::B16 | Width::B32) => found.words.push(slot),
                Some(Width::Predicate) | None => found.predicates.push(slot), // the carry is not declared
            }
        }
        let variables = function.variables.iter().chain(&function.parameters).chain(&function.returns);
        let (mut start, mut end) = (usize::MAX, 0);
        for variable in variables {
            let Some(&place) = self.placed.get(&(index, variable.name.clone())) else { continue };
            match variable.space {
                Space::Local => (start, end) = (start.min(place), end.max(place + variable.size)),
                Space::Shared | Space::Global => {}
                _ => found.parameters.push((place, variable.size)),
            }
        }
        if start < end {
            // Round down to keep the alignment.
            let start = start / 16 * 16;
            found.locals = (start, end - start);
        }
        for &(value, slot, wide) in &self.program.constants {
            if let Value::Private { function, place } = value
                && function == index
            {
                found.addresses.push((slot, wide, place));
            }
        }
        found
    }
}

/// Returns the calls that an operation may make.
fn possible_calls(op: &Op) -> impl Iterator<Item = &Call> {
    let (one, many) = match op {
        Op::Call(call) => (Some(&**call), &[][..]),
        Op::CallPointer(pointer) => (None, &pointer.targets[..]),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(many.iter().map(|(_, call)| call))
}

/// Returns the calls that an operation may make, to change them.
fn possible_calls_mut(op: &mut Op) -> impl Iterator<Item = &mut Call> {
    let (one, many) = match op {
        Op::Call(call) => (Some(&mut **call), &mut [][..]),
        Op::CallPointer(pointer) => (None, &mut pointer.targets[..]),
        _ => (None, &mut [][..]),
    };
    one.into_iter().chain(many.iter_mut().map(|(_, call)| call))
}

/// Returns whether a function may be called while it is already running.
fn reaches_itself(index: usize, calls: &HashMap<usize, Vec<usize>>) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![index]);
    while let Some(at) = open.pop() {
        for &next in calls.get(&at).into_iter().flatten() {
            if next == index {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}
