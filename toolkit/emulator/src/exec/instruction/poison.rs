//! Tracks poison through a warp: how each instruction propagates it, and which uses are faults.

use super::collective::collective;
use super::fragment::place;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::poison::Poison;
use crate::exec::state::warp::Warp;
use crate::fault::Checked;
use crate::lanes::Slots;
use crate::program::{Access, Address, Collective, FirstFactor, Instruction, NONE, Op, Program};
use crate::ptx::ast::Width;

/// Sets which lanes have poison in a word that was read from shared memory.
pub(super) fn set_word(program: &Program, warp: &mut Warp, slot: u32, poisoned: u32, origin: (u32, u64)) {
    if poisoned != 0 || warp.poison.is_some() {
        let poison = warp.poison.get_or_insert_with(|| Poison::new(program, origin));
        poison.set((Width::B32, slot), u32::MAX, poisoned);
    }
}

/// Records which registers of a load from shared memory are poison.
#[cold]
pub(super) fn loaded_from_shared(env: &BlockEnv<'_>, warp: &mut Warp, access: &Access, mask: u32, at: &[u64; 32]) {
    let size = usize::from(access.size);
    for (index, &register) in access.registers.iter().enumerate() {
        let is_written = |lane: usize| env.block.shared.is_written(at[lane] as usize + index * size, size);
        let poisoned = lanes(mask).filter(|&lane| !is_written(lane)).fold(0u32, |set, lane| set | 1 << lane);
        if poisoned != 0 || warp.poison.is_some() {
            let origin = (env.meter.pc as u32, at[poisoned.trailing_zeros() as usize % 32]);
            let poison = warp.poison.get_or_insert_with(|| Poison::new(env.launch.program, origin));
            poison.set_register(register, mask, poisoned);
        }
    }
}

/// Marks shared memory as unwritten where poison was stored, which makes it poison there.
#[cold]
pub(super) fn stored_to_shared(env: &mut BlockEnv<'_>, warp: &Warp, access: &Access, mask: u32, at: &[u64; 32]) {
    let (Some(poison), size) = (&warp.poison, usize::from(access.size)) else { return };
    for (index, &register) in access.registers.iter().enumerate() {
        for lane in lanes(poison.get_register(register) & mask) {
            env.block.shared.mark_unwritten(at[lane] as usize + index * size, size);
        }
    }
}

/// Records which registers of a lane's load from private memory are poison.
#[cold]
pub(super) fn loaded_from_private(warp: &mut Warp, access: &Access, lane: usize, offset: usize) {
    let (Some(poison), size) = (&mut warp.poison, usize::from(access.size)) else { return };
    for (index, &register) in access.registers.iter().enumerate() {
        let start = offset + index * size;
        let poisoned = (start..start + size).any(|byte| poison.private.contains(&byte));
        poison.set_register(register, 1 << lane, u32::from(poisoned) << lane);
    }
}

/// Records which bytes of a lane's store to private memory are poison.
#[cold]
pub(super) fn stored_to_private(warp: &mut Warp, access: &Access, lane: usize, offset: usize) {
    let (Some(poison), size) = (&mut warp.poison, usize::from(access.size)) else { return };
    for (index, &register) in access.registers.iter().enumerate() {
        let bytes = offset + index * size..offset + (index + 1) * size;
        if poison.get_register(register) >> lane & 1 == 1 {
            poison.private.extend(bytes);
        } else {
            poison.private.retain(|byte| !bytes.contains(byte));
        }
    }
}

/// Checks that a store to global memory contains no poison.
#[cold]
pub(super) fn check_stored(program: &Program, warp: &Warp, access: &Access, mask: u32) -> Checked<()> {
    let Some(poison) = &warp.poison else { return Ok(()) };
    let stored = access.registers.iter().fold(0, |all, &register| all | poison.get_register(register)) & mask;
    if stored == 0 { Ok(()) } else { Err(poison.fault(program, stored, "stores")) }
}

/// Returns the lanes with a poisoned result of an operation on lanes.
fn operation_poison(warp: &Warp, poison: &Poison, program: &Program, pc: usize, slots: Slots) -> u32 {
    let (registers, flow) = (&warp.registers, &program.flows[pc]);
    let any = flow.reads.iter().fold(0, |all, &read| all | poison.get(read));
    let opcode = &program.opcodes[program.code[pc].opcode as usize];
    let Some(&(width, _)) = flow.writes.first() else { return any };
    // The closures below are used only by opcodes whose operands are as wide as the result.
    let operands = || [slots.a, slots.b].map(|slot| poison.get((width, slot)));
    // Returns the lanes where one operand alone decides the result.
    let decided = |slot: u32, ones: bool| match width {
        Width::Predicate if ones => registers.masks[slot as usize],
        Width::Predicate => !registers.masks[slot as usize],
        Width::B64 => {
            let deciding = if ones { u64::MAX } else { 0 };
            bits(registers.wides[slot as usize].map(|value| value == deciding))
        }
        width => {
            let deciding = if ones { u32::MAX >> if width == Width::B16 { 16 } else { 0 } } else { 0 };
            bits(registers.words[slot as usize].map(|value| value == deciding))
        }
    };
    match opcode.split('.').next() {
        Some("selp") => {
            let ([a, b], chosen) = (operands(), registers.masks[slots.c as usize]);
            poison.get((Width::Predicate, slots.c)) | a & chosen | b & !chosen
        }
        Some(name @ ("and" | "or")) => {
            let ([a, b], ones) = (operands(), name == "or");
            any & !(decided(slots.a, ones) & !a) & !(decided(slots.b, ones) & !b)
        }
        _ => any,
    }
}

fn bits(lanes: [bool; 32]) -> u32 {
    lanes.into_iter().enumerate().fold(0, |set, (lane, holds)| set | u32::from(holds) << lane)
}

/// Tracks poison through an operation on lanes, before it runs.
pub(crate) fn follow_operation(
    program: &Program,
    warp: &mut Warp,
    pc: usize,
    slots: Slots,
    (mask, active): (u32, u32),
) {
    let Some(mut poison) = warp.poison.take() else { return };
    let condition = guard_poison(&poison, &program.code[pc]) & active;
    let poisoned = operation_poison(warp, &poison, program, pc, slots);
    for &write in &program.flows[pc].writes {
        poison.set(write, mask & !condition, poisoned);
        poison.set(write, condition, condition);
    }
    warp.poison = Some(poison);
}

fn guard_poison(poison: &Poison, instruction: &Instruction) -> u32 {
    if instruction.guard == NONE { 0 } else { poison.get((Width::Predicate, instruction.guard)) }
}

/// Tracks poison through an instruction other than an operation on lanes, before it runs.
///
/// Uses of poison are faults. Loads record the poison of their results themselves.
pub(crate) fn follow(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &Instruction,
    (mask, active): (u32, u32),
) -> Checked<()> {
    let Some(mut poison) = warp.poison.take() else { return Ok(()) };
    if poison.is_over() {
        return Ok(());
    }
    let program = env.launch.program;
    let condition = guard_poison(&poison, instruction) & active;
    let result = if condition != 0 {
        Err(poison.fault(program, condition, "is guarded by"))
    } else {
        let op = if let Op::Touch(op) = &instruction.op { op } else { &instruction.op };
        follow_op(env, warp, &mut poison, op, mask)
    };
    warp.poison = Some(poison);
    result
}

/// Returns the address that an operation loads from or stores to, if it is no atomic or copy.
fn accessed(op: &Op) -> Option<Address> {
    match op {
        Op::Load(access) | Op::Store(access) => Some(access.address),
        Op::FragmentLoad(access) | Op::FragmentStore(access) => Some(access.address),
        Op::LoadMatrix { address, .. } | Op::StoreMatrix { address, .. } => Some(*address),
        _ => None,
    }
}

/// Tracks poison through an operation.
fn follow_op(env: &mut BlockEnv<'_>, warp: &mut Warp, poison: &mut Poison, op: &Op, mask: u32) -> Checked<()> {
    let (program, pc) = (env.launch.program, env.meter.pc);
    let flow = &program.flows[pc];
    let check = |poison: &Poison, lanes: u32, how: &str| match lanes & mask {
        0 => Ok(()),
        used => Err(poison.fault(program, used, how)),
    };
    let all = |poison: &Poison, slots: &[u32]| slots.iter().fold(0, |all, &slot| all | poison.get((Width::B32, slot)));
    let set_all = |poison: &mut Poison, slots: &[u32], poisoned: u32| {
        slots.iter().for_each(|&slot| poison.set((Width::B32, slot), u32::MAX, poisoned));
    };
    if let Some(Address { slot, wide, .. }) = accessed(op) {
        check(poison, poison.get((if wide { Width::B64 } else { Width::B32 }, slot)), "has an address with")?;
    }
    match op {
        Op::Lanes(_, slots) => {
            // This operation touches the registers of a product (`Op::Touch`).
            let poisoned = operation_poison(warp, poison, program, pc, *slots);
            flow.writes.iter().for_each(|&write| poison.set(write, mask, poisoned));
        }
        Op::Load(access) | Op::Parameter { access, .. } => {
            access.registers.iter().for_each(|&register| poison.set_register(register, mask, 0));
        }
        Op::FragmentLoad(access) => set_all(poison, &access.registers, 0),
        Op::Store(_) | Op::FragmentStore(_) | Op::LoadMatrix { .. } | Op::StoreMatrix { .. } => {}
        Op::Compare { .. }
        | Op::Set { .. }
        | Op::Logic3 { .. }
        | Op::InsertField { .. }
        | Op::Carry(_)
        | Op::IsSpace(_) => {
            let poisoned = flow.reads.iter().fold(0, |all, &read| all | poison.get(read));
            flow.writes.iter().for_each(|&write| poison.set(write, mask, poisoned));
        }
        Op::Unpack { source, parts } => {
            let poisoned = poison.get_register(*source);
            parts.iter().for_each(|&part| poison.set_register(part, mask, poisoned));
        }
        Op::Pack { target, parts } => {
            let poisoned = parts.iter().fold(0, |all, &part| all | poison.get_register(part));
            poison.set_register(*target, mask, poisoned);
        }
        Op::Collective { op, members } => {
            check(poison, poison.get((Width::B32, *members)), "names lanes with")?;
            exchange(env, warp, poison, op, *members, mask)?;
        }
        Op::Mma(mma) => multiply(poison, [&mma.d, &mma.a, &mma.b, &mma.c], mma.half_sum),
        Op::OtherMma(mma) => multiply(poison, [&mma.d, &mma.a, &mma.b, &mma.c], mma.half_sum),
        Op::FragmentProduct(product) => {
            let any = all(poison, &product.a) | all(poison, &product.b) | all(poison, &product.c);
            set_all(poison, &product.d, if any == 0 { 0 } else { u32::MAX });
        }
        Op::Product(product) => {
            let a = if let FirstFactor::Registers(a) = &product.a { &a[..] } else { &[] };
            check(poison, all(poison, a) | all(poison, &product.d), "multiplies")?;
        }
        _ => {
            let used = flow.reads.iter().fold(0, |all, &read| all | poison.get(read));
            check(poison, used, "uses")?;
            flow.writes.iter().for_each(|&write| poison.set(write, mask, 0));
        }
    }
    Ok(())
}

/// Tracks poison through an exchange between lanes.
fn exchange(
    env: &BlockEnv<'_>,
    warp: &mut Warp,
    poison: &mut Poison,
    op: &Collective,
    members: u32,
    mask: u32,
) -> Checked<()> {
    let everywhere = |lanes: u32| if lanes & mask == 0 { 0 } else { mask };
    match *op {
        Collective::Shuffle { result, valid, value, lane, clamp, .. } => {
            let steered = everywhere(poison.get((Width::B32, lane)) | poison.get((Width::B32, clamp)));
            // Poison moves as the values do, so the poison bits are exchanged in place of the values.
            let words = &mut warp.registers.words;
            let kept = [words[value as usize], words[result as usize]];
            let predicate = valid.map(|slot| warp.registers.masks[slot as usize]);
            let poisoned = poison.get((Width::B32, value));
            words[value as usize].0 = std::array::from_fn(|lane| poisoned >> lane & 1);
            let exchanged = collective(env.launch, warp, op, members, mask);
            let received = bits(warp.registers.words[result as usize].map(|word| word == 1));
            warp.registers.words[result as usize] = kept[1];
            warp.registers.words[value as usize] = kept[0];
            if let (Some(slot), Some(predicate)) = (valid, predicate) {
                warp.registers.masks[slot as usize] = predicate;
                poison.set((Width::Predicate, slot), mask, steered);
            }
            poison.set((Width::B32, result), mask, received | steered);
            exchanged?;
        }
        Collective::Vote { mode, result, predicate, .. } => {
            let poisoned = everywhere(poison.get((Width::Predicate, predicate)));
            let is_word = mode == crate::program::VoteMode::Ballot;
            poison.set((if is_word { Width::B32 } else { Width::Predicate }, result), mask, poisoned);
        }
        Collective::Redux { result, value, .. } => {
            poison.set((Width::B32, result), mask, everywhere(poison.get((Width::B32, value))));
        }
        Collective::MatchAny { result, value, wide } => {
            let poisoned = everywhere(poison.get((if wide { Width::B64 } else { Width::B32 }, value)));
            poison.set((Width::B32, result), mask, poisoned);
        }
        Collective::MatchAll { result, all, value, wide } => {
            let poisoned = everywhere(poison.get((if wide { Width::B64 } else { Width::B32 }, value)));
            poison.set((Width::B32, result), mask, poisoned);
            all.into_iter().for_each(|slot| poison.set((Width::Predicate, slot), mask, poisoned));
        }
        Collective::Elect { result, chosen } => {
            poison.set((Width::B32, result), mask, 0);
            poison.set((Width::Predicate, chosen), mask, 0);
        }
        Collective::Barrier => {}
    }
    Ok(())
}

/// Tracks poison through a product. Poison in the first factor spoils a row of the sum, and poison in the second a
/// column.
fn multiply(poison: &mut Poison, [d, a, b, c]: [&[u32]; 4], half_sum: bool) {
    let (mut rows, mut columns) = ([false; 16], [false; 8]);
    for (index, &slot) in a.iter().enumerate() {
        lanes(poison.get((Width::B32, slot))).for_each(|lane| rows[lane / 4 + index % 2 * 8] = true);
    }
    for &slot in b {
        lanes(poison.get((Width::B32, slot))).for_each(|lane| columns[lane / 4] = true);
    }
    let old: Vec<u32> = c.iter().map(|&slot| poison.get((Width::B32, slot))).collect();
    for (index, (&slot, old)) in d.iter().zip(old).enumerate() {
        let spoilt = |lane: usize, element: usize| {
            let (row, column) = place(lane, element);
            rows[row] || columns[column]
        };
        let is_spoilt =
            |lane| if half_sum { spoilt(lane, 2 * index) || spoilt(lane, 2 * index + 1) } else { spoilt(lane, index) };
        poison.set((Width::B32, slot), u32::MAX, old | bits(std::array::from_fn(is_spoilt)));
    }
}
