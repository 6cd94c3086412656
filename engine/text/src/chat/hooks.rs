//! Adds cost checks to a template's compiled instructions.
//!
//! minijinja limits the number of instructions that run, but not the cost of each. This module adds one of our filters
//! before or after each instruction whose cost depends on its operands, or replaces the instruction with a filter.
//! Templates cannot define filters, and these names are not identifiers, so they cannot clash with Jinja's.

use std::collections::HashSet;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Filters that replace operators or pay for them.
pub(super) mod names {
    pub(in super::super) const ADD: &str = "+";
    pub(in super::super) const MULTIPLY: &str = "*";
    pub(in super::super) const REMAINDER: &str = "%";
    pub(in super::super) const CONCAT: &str = "~";
    pub(in super::super) const SLICE: &str = "[:]";
    pub(in super::super) const ITEM: &str = "[]";
    /// Pays for a list or a mapping that was just built.
    pub(in super::super) const BUILT: &str = "{}";
    /// Pays for reading a value, for example to compare it.
    pub(in super::super) const READ: &str = "==";
    /// Pays for iterating over a value.
    pub(in super::super) const ITERATED: &str = "for";
    /// Checks a value that becomes an attribute of a namespace.
    pub(in super::super) const ATTRIBUTE: &str = ".=";
    /// Pays for a macro.
    pub(in super::super) const MACRO: &str = "macro";
}
use names::{ADD, ATTRIBUTE, BUILT, CONCAT, ITEM, ITERATED, MACRO, MULTIPLY, READ, REMAINDER, SLICE};

/// Marks a filter call that does not use minijinja's cache of filters.
const UNCACHED: u8 = u8::MAX;

/// Adds checks to a compiled template.
///
/// # Errors
/// If it has an instruction that is not allowed in chat templates.
pub(super) fn add<'a>(template: &mut CompiledTemplate<'a>) -> Result<(), Error> {
    template.instructions = checked(&template.instructions)?;
    for block in template.blocks.values_mut() {
        *block = checked(block)?;
    }
    Ok(())
}

fn checked<'a>(instructions: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let all = || (0..).map_while(|at| instructions.get(at));
    let targets: HashSet<u32> = all().filter_map(target).collect();
    let mut out = Instructions::new(instructions.name(), instructions.source());
    let mut starts = Vec::with_capacity(instructions.len() + 1);
    let mut before: Option<&Instruction<'a>> = None;
    for (at, instruction) in (0..).zip(all()) {
        starts.push(out.len() as u32);
        // At a jump target, the operand may come from elsewhere than the previous instruction.
        let constant = match before {
            Some(Instruction::LoadConst(value)) if !targets.contains(&at) && is_small(value) => Some(value),
            _ => None,
        };
        let line = instructions.get_line(at).unwrap_or(0) as u16;
        for instruction in with_checks(instruction, constant)? {
            out.add_with_line(instruction, line);
        }
        before = Some(instruction);
    }
    starts.push(out.len() as u32);
    for at in 0..out.len() as u32 {
        if let Some(target) = out.get_mut(at).and_then(target_mut) {
            *target = starts.get(*target as usize).copied().unwrap_or(*target);
        }
    }
    Ok(out)
}

/// Whether a comparison with this constant is cheap.
fn is_small(constant: &Value) -> bool {
    const FEW: usize = 64;
    let is_short = |value: &Value| value.as_str().is_none_or(|text| text.len() <= 4 * FEW);
    match constant.kind() {
        ValueKind::Seq => {
            constant.len().is_some_and(|len| len <= FEW)
                && constant
                    .try_iter()
                    .is_ok_and(|mut items| items.all(|item| item.as_object().is_none() && is_short(&item)))
        }
        _ => constant.as_object().is_none() && is_short(constant),
    }
}

fn filter(name: &'static str, arguments: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(name, Some(arguments), UNCACHED)
}

/// Returns an instruction with its checks. `constant` is its last operand, if that is known.
fn with_checks<'a>(instruction: &Instruction<'a>, constant: Option<&Value>) -> Result<Vec<Instruction<'a>>, Error> {
    let own = || instruction.clone();
    let read = || [Instruction::DupTop, filter(READ, 1), Instruction::DiscardTop];
    let with_read = || read().into_iter().chain([own()]).collect();
    let with_both_read = || {
        let swapped = [Instruction::Swap].into_iter().chain(read()).chain([Instruction::Swap]);
        read().into_iter().chain(swapped).chain([own()]).collect()
    };
    let refused = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("{what} in a chat template")));
    Ok(match instruction {
        Instruction::Add => vec![filter(ADD, 2)],
        Instruction::Mul => vec![filter(MULTIPLY, 2)],
        Instruction::Rem => vec![filter(REMAINDER, 2)],
        Instruction::StringConcat => vec![filter(CONCAT, 2)],
        Instruction::Slice => vec![filter(SLICE, 4)],
        // Reading a field by its name is cheap and the common case.
        Instruction::GetItem if constant.is_none_or(|key| key.as_str().is_none()) => vec![filter(ITEM, 2)],
        Instruction::BuildList(_) | Instruction::BuildMap(_) => vec![own(), filter(BUILT, 1)],
        // A comparison costs at most the length of the shorter operand.
        Instruction::Eq | Instruction::Ne | Instruction::Lt | Instruction::Lte | Instruction::Gt | Instruction::Gte
            if constant.is_none() =>
        {
            with_read()
        }
        // A mapping hashes the value to look up.
        Instruction::In if constant.is_none() => with_both_read(),
        Instruction::CompareAndPreserve(_) => with_both_read(),
        Instruction::SetAttr(_) => vec![Instruction::Swap, filter(ATTRIBUTE, 1), Instruction::Swap, own()],
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        // A call with one argument may be a call of a recursive loop.
        Instruction::PushLoop(_) | Instruction::FastRecurse | Instruction::CallFunction(_, Some(1)) => {
            vec![filter(ITERATED, 1), own()]
        }
        // `loop.changed(value)` compares the value with the previous one.
        Instruction::CallMethod("changed", arguments) => match arguments {
            Some(2) => with_read(),
            _ => return refused("loop.changed() must have one argument"),
        },
        Instruction::BuildMacro(..) => vec![own(), filter(MACRO, 1)],
        // Their cost depends on the lengths of the unpacked values.
        Instruction::UnpackLists(_) | Instruction::MergeKwargs(_) => {
            return refused("arguments must not be unpacked with * or **");
        }
        Instruction::LoadBlocks | Instruction::Include(_) | Instruction::ExportLocals => {
            return refused("there are no other templates to extend, include or import");
        }
        _ => vec![own()],
    })
}

/// Returns the target of a jump.
fn target(instruction: &Instruction<'_>) -> Option<u32> {
    target_mut(&mut instruction.clone()).copied()
}

fn target_mut<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
