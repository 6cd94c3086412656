//! Calls: parameters and results, calls through pointers, and the state that recursive functions save.

use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::{Frame, Part, SavedFrame, Warp};
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Lanes;
use crate::program::{Activation, Call, NONE, Op, PointerCall, Program, Transfer};

/// Stack bytes that a call of a recursive function uses in addition to its variables, as a return address does.
const FRAME: usize = 16;

/// Copies parameters or results of a call within the lanes' private memory.
fn transfer(program: &Program, warp: &mut Warp, transfers: &[Transfer], mask: u32) {
    for &(from, to, bytes) in transfers {
        for lane in lanes(mask) {
            let base = lane * program.private;
            warp.private.copy_within(base + from..base + from + bytes, base + to);
            if let Some(poison) = &mut warp.poison {
                for byte in 0..bytes {
                    if poison.private.contains(&(base + from + byte)) {
                        poison.private.insert(base + to + byte);
                    } else {
                        poison.private.remove(&(base + to + byte));
                    }
                }
            }
        }
    }
}

/// Lets lanes call a function. They continue at `next` when they return.
pub(crate) fn begin_call(program: &Program, warp: &mut Warp, call: &Call, mask: u32, next: u32) -> Checked<()> {
    let saved = match call.activation {
        Some(index) => {
            let activation = &program.activations[index as usize];
            let saved = save(program, warp, activation, mask);
            // Copy arguments first, because they may come from variables that move.
            transfer(program, warp, &call.arguments, mask);
            enter(program, warp, activation, mask)?;
            Some(Box::new(saved))
        }
        None => {
            transfer(program, warp, &call.arguments, mask);
            None
        }
    };
    let height = warp.stack.len();
    if let Some(top) = warp.stack.last_mut() {
        top.pc = next;
    }
    warp.frames.push(Frame { call: next - 1, target: call.target, saved, mask, height });
    warp.stack.push(Part { pc: call.target, meet: NONE, mask });
    Ok(())
}

/// Returns the function that the first lane's pointer names, and the lanes with the same pointer.
pub(crate) fn pointed_at<'a>(warp: &Warp, call: &'a PointerCall, mask: u32) -> Checked<(&'a Call, u32)> {
    let pointers = &warp.registers.wides[call.pointer as usize];
    let first = mask.trailing_zeros() as usize;
    let Some((_, target)) = call.targets.iter().find(|(address, _)| *address == pointers[first]) else {
        let message = format!("a call through {:#x}, which is not a function with these parameters", pointers[first]);
        return Err(Violation::new(FaultKind::OutOfBounds, message).lane(first).address(pointers[first]));
    };
    let same = lanes(mask).filter(|&lane| pointers[lane] == pointers[first]).fold(0, |set, lane| set | 1 << lane);
    Ok((target, same))
}

/// Saves the registers and parameters of the function that the lanes are executing.
fn save(program: &Program, warp: &Warp, activation: &Activation, mask: u32) -> SavedFrame {
    let registers = &warp.registers;
    let mut parameters = Vec::new();
    for lane in lanes(mask) {
        for &(place, size) in &activation.parameters {
            let at = lane * program.private + place;
            parameters.extend_from_slice(&warp.private[at..at + size]);
        }
    }
    let address = |&(slot, wide, _): &(u32, bool, i64)| {
        if wide { registers.wides[slot as usize] } else { Lanes(registers.words[slot as usize].map(u64::from)) }
    };
    SavedFrame {
        words: activation.words.iter().map(|&slot| registers.words[slot as usize]).collect(),
        wides: activation.wides.iter().map(|&slot| registers.wides[slot as usize]).collect(),
        predicates: activation.predicates.iter().map(|&slot| registers.masks[slot as usize]).collect(),
        parameters,
        addresses: activation.addresses.iter().map(address).collect(),
    }
}

/// Gives each lane new local variables, on its stack.
fn enter(program: &Program, warp: &mut Warp, activation: &Activation, mask: u32) -> Checked<()> {
    let (start, bytes) = activation.locals;
    let room = program.private - program.stack;
    for lane in lanes(mask) {
        let base = program.stack + warp.stack_used[lane];
        warp.stack_used[lane] += bytes.next_multiple_of(16) + FRAME;
        if warp.stack_used[lane] > room {
            let message = format!("a stack of more than {room} bytes: recursion without an end?");
            return Err(Violation::new(FaultKind::OutOfBounds, message).lane(lane).buffer("local memory"));
        }
        for &(slot, wide, place) in &activation.addresses {
            set_address(warp, (slot, wide), lane, (base as i64 + place - start as i64) as u64);
        }
    }
    Ok(())
}

fn set_address(warp: &mut Warp, (slot, wide): (u32, bool), lane: usize, address: u64) {
    if wide {
        warp.registers.wides[slot as usize][lane] = address;
    } else {
        warp.registers.words[slot as usize][lane] = address as u32;
    }
}

/// Restores the state that lanes had before a function was called again.
fn restore(program: &Program, warp: &mut Warp, activation: &Activation, frame: &Frame, saved: &SavedFrame) {
    for lane in lanes(frame.mask) {
        for (&slot, values) in activation.words.iter().zip(&saved.words) {
            warp.registers.words[slot as usize][lane] = values[lane];
        }
        for (&slot, values) in activation.wides.iter().zip(&saved.wides) {
            warp.registers.wides[slot as usize][lane] = values[lane];
        }
        for (&(slot, wide, _), values) in activation.addresses.iter().zip(&saved.addresses) {
            set_address(warp, (slot, wide), lane, values[lane]);
        }
        warp.stack_used[lane] -= activation.locals.1.next_multiple_of(16) + FRAME;
    }
    for (&slot, &values) in activation.predicates.iter().zip(&saved.predicates) {
        let target = &mut warp.registers.masks[slot as usize];
        *target = *target & !frame.mask | values & frame.mask;
    }
    let mut rest = &saved.parameters[..];
    for lane in lanes(frame.mask) {
        for &(place, size) in &activation.parameters {
            let at = lane * program.private + place;
            warp.private[at..at + size].copy_from_slice(&rest[..size]);
            rest = &rest[size..];
        }
    }
}

/// Copies the results of calls that have ended to their callers.
pub(crate) fn return_results(program: &Program, warp: &mut Warp, ended: &[Frame]) {
    for frame in ended {
        let call = match &program.code[frame.call as usize].op {
            Op::Call(call) => &**call,
            Op::CallPointer(pointer) => {
                let Some((_, call)) = pointer.targets.iter().find(|(_, call)| call.target == frame.target) else {
                    continue;
                };
                call
            }
            _ => continue,
        };
        let mask = frame.mask & warp.live;
        let (Some(index), Some(saved)) = (call.activation, &frame.saved) else {
            transfer(program, warp, &call.results, mask);
            continue;
        };
        // The caller's parameters are restored before the results are written, because both may belong to the same
        // function.
        let place = |lane: usize, at: usize| lane * program.private + at;
        let mut results = Vec::new();
        for lane in lanes(mask) {
            for &(from, _, bytes) in &call.results {
                results.extend_from_slice(&warp.private[place(lane, from)..][..bytes]);
            }
        }
        restore(program, warp, &program.activations[index as usize], frame, saved);
        let mut rest = &results[..];
        for lane in lanes(mask) {
            for &(_, to, bytes) in &call.results {
                warp.private[place(lane, to)..][..bytes].copy_from_slice(&rest[..bytes]);
                rest = &rest[bytes..];
            }
        }
    }
}
