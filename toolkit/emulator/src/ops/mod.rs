//! The computations of instructions that only use registers, form by form.
//!
//! Each file maps an opcode, its modifiers and its type to an operation on lanes. For an unsupported form it returns
//! `None`, and the decoder refuses the instruction.

mod compare;
mod convert;
mod directed;
mod exact;
mod float;
pub(crate) mod fp8;
mod half_float;
mod integer;
mod modifiers;
#[cfg(target_arch = "x86_64")]
mod power;
pub(crate) mod rare;
mod to_half;
mod types;

use crate::lanes::LaneOp;

pub(crate) use compare::{compare, select, set_pair};
pub(crate) use convert::{convert, convert_pair, convert_tf32};
pub(crate) use integer::{funnel, insert_field, logic3};
pub(crate) use modifiers::Modifiers;
pub(crate) use types::Type;

/// Returns the operation of an arithmetic instruction that rounds down (`rm`), up (`rp`) or toward zero (`rz`).
pub(crate) fn directed(opcode: &str, ty: Type, rounding: &str, modifiers: Modifiers) -> Option<LaneOp> {
    directed::directed(opcode, ty, rounding, modifiers)
}

/// Returns the operation of an arithmetic or logic instruction.
pub(crate) fn arithmetic(opcode: &str, ty: Type, modifiers: Modifiers) -> Option<LaneOp> {
    match ty {
        Type::F32 => float::single(opcode, modifiers),
        Type::F64 => float::double(opcode, modifiers),
        _ if ty.is_half() => half_float::half(opcode, ty, modifiers),
        _ if modifiers.sat || modifiers.ftz || modifiers.nan || modifiers.relu => None,
        _ => integer::integer(opcode, ty, modifiers),
    }
}
