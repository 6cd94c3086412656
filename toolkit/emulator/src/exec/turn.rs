//! A turn of a warp, which runs until it waits, exits, or has run long enough.

use super::instruction::barrier::{self, Arrival};
use super::instruction::call::{begin_call, pointed_at, return_results};
use super::instruction::cluster;
use super::instruction::poison;
use super::instruction::run as run_instruction;
use super::state::block_env::BlockEnv;
use super::state::lane_mask::lanes;
use super::state::meter::Meter;
use super::state::warp::{Part, Warp};
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Registers;
use crate::program::{Instruction, NONE, Op};

/// The binary logarithm of the instructions in a turn.
const TURN_BITS: u32 = 16;
/// The instructions that a strong access counts for in a turn. Threads may spin on such accesses, and others do the
/// work that they wait for.
const SPIN: u64 = 1 << 12;
/// The most instructions of a loop that only tests an mbarrier.
const TEST: u64 = 256;

/// The limits of a turn.
pub(super) struct TurnLimit {
    /// The count of executed instructions at which it ends.
    executed: u64,
    /// Whether it also ends at atomics. Blocks then reach them in any order.
    at_atomics: bool,
}

impl TurnLimit {
    /// Creates the limit of the next turn, given the instructions executed so far. With `random` the length is random,
    /// otherwise fixed.
    pub fn new(executed: u64, random: Option<&mut u64>) -> Self {
        let at_atomics = random.is_some();
        let bits = random.map_or(TURN_BITS, |random| (splitmix::next(random) % u64::from(TURN_BITS + 1)) as u32);
        Self { executed: executed + (1 << bits), at_atomics }
    }
}

/// The reason why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The warp waits at a barrier.
    Waits,
    /// All its threads have exited.
    Exited,
    /// The warp ran long enough. It may spin on a value that another warp must write.
    Over,
    /// The warp tested an mbarrier without success.
    Spins,
}

/// The place where a warp continues.
enum Flow {
    /// At the program counter.
    Next,
    /// At the top of the stack.
    Jump,
    /// At the program counter, in a later turn.
    Yield,
}

/// Runs a warp until it waits, exits, or has had its turn.
pub(super) fn run(env: &mut BlockEnv<'_>, warp: &mut Warp, limit: TurnLimit) -> Checked<TurnEnd> {
    let (started, polls, spun) = (env.meter.executed, env.meter.polls, warp.spins_on.take());
    let end = advance(env, warp, limit)?;
    // A short turn may end anywhere in the loop that tests. A turn with a strong access was in another loop.
    if env.meter.executed - started < TEST && env.meter.polls == polls {
        warp.spins_on = warp.spins_on.or(spun);
    }
    Ok(if end == TurnEnd::Over && warp.spins_on.is_some() { TurnEnd::Spins } else { end })
}

/// Runs a warp instruction by instruction.
fn advance(env: &mut BlockEnv<'_>, warp: &mut Warp, mut limit: TurnLimit) -> Checked<TurnEnd> {
    let program = env.launch.program;
    let code = &program.code[..];
    'part: loop {
        let Some(&Part { pc: first, meet, mask: active }) = warp.stack.last() else {
            warp.live = 0;
            return Ok(TurnEnd::Exited);
        };
        if active == 0 {
            let ended = warp.unwind();
            return_results(program, warp, &ended);
            if warp.stack.iter().all(|part| part.mask == 0) {
                warp.stack.clear();
            }
            continue;
        }
        let mut pc = first;
        loop {
            let part = Part { pc, meet, mask: active };
            let next = match warp.poison {
                None => run_lane_operations(env.meter, &mut warp.registers, code, part),
                Some(_) => run_poisoned_operations(env, warp, part),
            };
            pc = next.pc;
            if pc == meet {
                warp.stack.pop();
                continue 'part;
            }
            let (instruction, mask) = (&code[pc as usize], next.mask);
            if env.meter.work() > env.launch.options.instruction_limit {
                return Err(endless(env.launch.options.instruction_limit));
            }
            if warp.poison.is_some() && mask == 0 {
                poison::follow(env, warp, instruction, (mask, active))?;
            }
            if mask == 0 {
                if let Op::Branch(_) = instruction.op {
                    env.meter.current().branches += 1;
                }
                pc += 1;
                continue;
            }
            if instruction.aligned && mask != warp.live {
                return Err(barrier::divergent(mask, warp.live));
            }
            if warp.poison.is_some() {
                poison::follow(env, warp, instruction, (mask, active))?;
            }
            match step(env, warp, instruction, (mask, active), &mut pc, &mut limit)? {
                Flow::Next => {}
                Flow::Jump if env.meter.executed < limit.executed => continue 'part,
                Flow::Jump => return Ok(TurnEnd::Over),
                Flow::Yield => {
                    if let Some(top) = warp.stack.last_mut() {
                        top.pc = pc;
                    }
                    return Ok(if warp.waits() { TurnEnd::Waits } else { TurnEnd::Over });
                }
            }
        }
    }
}

/// Runs operations on lanes until `part` ends or another kind of instruction follows.
///
/// Returns the position reached. Its mask has the lanes that execute the instruction there.
#[inline(always)]
fn run_lane_operations(meter: &mut Meter, registers: &mut Registers, code: &[Instruction], part: Part) -> Part {
    // Local copies of the meter's fields stay in registers of the CPU.
    let (counts, mut executed, mut pc) = (&mut meter.counts[..], meter.executed, part.pc);
    let mut mask = part.mask;
    while pc != part.meet {
        let instruction = &code[pc as usize];
        mask = part.mask;
        if instruction.guard != NONE {
            let guard = registers.masks[instruction.guard as usize];
            mask &= if instruction.negated { !guard } else { guard };
        }
        let counts = &mut counts[pc as usize];
        counts.instructions += 1;
        counts.lanes += if mask == u32::MAX { 32 } else { mask.count_ones().into() };
        executed += 1;
        let Op::Lanes(op, slots) = instruction.op else { break };
        op.run(registers, slots, mask);
        pc += 1;
    }
    meter.executed = executed;
    if pc != part.meet {
        meter.pc = pc as usize;
    }
    Part { pc, meet: part.meet, mask }
}

/// Runs operations on lanes as [`run_lane_operations`] does, and tracks the poison of the warp.
#[cold]
fn run_poisoned_operations(env: &mut BlockEnv<'_>, warp: &mut Warp, mut part: Part) -> Part {
    let code = &env.launch.program.code[..];
    while part.pc != part.meet {
        let instruction = &code[part.pc as usize];
        let guard = if instruction.guard == NONE { u32::MAX } else { warp.registers.masks[instruction.guard as usize] };
        let mask = part.mask & if instruction.negated { !guard } else { guard };
        if let Op::Lanes(_, slots) = instruction.op {
            let pc = part.pc as usize;
            poison::follow_operation(env.launch.program, warp, pc, slots, (mask, part.mask));
        }
        // One operation at a time.
        let one = Part { meet: part.pc + 1, ..part };
        let next = run_lane_operations(env.meter, &mut warp.registers, code, one);
        if next.pc == part.pc {
            return Part { meet: part.meet, ..next };
        }
        part.pc = next.pc;
    }
    part
}

#[cold]
fn endless(limit: u64) -> Box<Violation> {
    let message = format!(
        "more than {limit} instructions: an endless loop? If not, raise `LaunchOptions::instruction_limit` \
         (`emulator::driver::set_launch_options`) or, with libcuda, QUIRE_EMULATOR_INSTRUCTION_LIMIT"
    );
    Violation::new(FaultKind::InstructionLimit, message)
}

/// Executes an instruction other than an operation on lanes, for the lanes of `mask`, and advances `pc`. Without the
/// guard, the lanes of `active` would execute it.
///
/// It is long because it has an arm for each kind of control flow, and is inlined into the interpreter's loop.
#[inline(always)]
fn step(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &Instruction,
    (mask, active): (u32, u32),
    pc: &mut u32,
    limit: &mut TurnLimit,
) -> Checked<Flow> {
    let next = *pc + 1;
    match &instruction.op {
        Op::Branch(target) => {
            if instruction.guard != NONE {
                env.meter.current().branches += 1;
            }
            if mask == active {
                // An endless loop must let other warps run.
                let back = *target <= *pc;
                *pc = *target;
                return Ok(if back && env.meter.executed >= limit.executed { Flow::Yield } else { Flow::Next });
            }
            env.meter.current().divergent += 1;
            warp.part(mask, *target, next, instruction.meet);
            return Ok(Flow::Jump);
        }
        Op::BranchTable { index, targets } => {
            branch_table(env, warp, (*index, targets), instruction.meet, mask, *pc)?;
            return Ok(Flow::Jump);
        }
        Op::Call(call) => {
            begin_call(env.launch.program, warp, call, mask, next)?;
            return Ok(Flow::Jump);
        }
        Op::CallPointer(call) => {
            let (call, group) = pointed_at(warp, call, mask)?;
            if group == mask {
                begin_call(env.launch.program, warp, call, mask, next)?;
            } else {
                // The other lanes execute the instruction again after these have returned.
                env.meter.current().divergent += 1;
                warp.part(group, *pc, *pc, next);
            }
            return Ok(Flow::Jump);
        }
        Op::Return | Op::Exit => {
            if let Some(top) = warp.stack.last_mut() {
                top.pc = next;
            }
            let ended = warp.leave(mask, matches!(instruction.op, Op::Exit));
            return_results(env.launch.program, warp, &ended);
            return Ok(Flow::Jump);
        }
        Op::Trap => {
            let message = match env.launch.program.opcodes[instruction.opcode as usize].as_str() {
                "brkpt" => "a breakpoint, with no debugger to stop for",
                _ => "a trap: an explicit abort, or a Rust panic with another handler than that of `cuda_std`",
            };
            return Err(Violation::new(FaultKind::Trap, message).lane(mask.trailing_zeros() as usize));
        }
        Op::Barrier { id, count, waits, vote } => {
            let (&waits, vote) = (waits, vote.as_deref().copied());
            *pc = next;
            let clocks = env.launch.clocks();
            let arrival = Arrival { id: *id, count: *count, waits, vote };
            barrier::arrive(&mut env.block.barriers, warp, arrival, clocks, mask)?;
            return Ok(if waits { Flow::Yield } else { Flow::Next });
        }
        Op::ClusterWait => {
            *pc = next;
            return Ok(if cluster::wait(env, warp, mask)? { Flow::Yield } else { Flow::Next });
        }
        op => run_instruction(env, warp, op, mask)?,
    }
    *pc = next;
    if matches!(instruction.op, Op::Mbarrier(_)) && warp.spins_on.is_some() {
        return Ok(Flow::Yield);
    }
    let meets_others = match &instruction.op {
        Op::Atomic(_) => true,
        Op::Load(access) | Op::Store(access) => access.order.is_some(),
        _ => false,
    };
    if meets_others {
        env.meter.polls += 1;
        limit.executed = limit.executed.saturating_sub(SPIN);
        return Ok(if limit.at_atomics || env.meter.executed >= limit.executed { Flow::Yield } else { Flow::Next });
    }
    Ok(Flow::Next)
}

/// Branches through a table.
///
/// The first lane's target decides. Lanes with other targets execute the instruction again when this group has reached
/// the meeting point.
fn branch_table(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    (index, targets): (u32, &[u32]),
    meet: u32,
    mask: u32,
    pc: u32,
) -> Checked<()> {
    let index = warp.registers.words[index as usize];
    env.meter.current().branches += 1;
    let first = mask.trailing_zeros() as usize;
    let target_of = |lane: usize| targets.get(index[lane] as usize);
    let Some(&target) = target_of(first) else {
        let message = format!("index {} into a table of {} branches", index[first], targets.len());
        return Err(Violation::new(FaultKind::OutOfBounds, message).lane(first));
    };
    let group = lanes(mask).filter(|&lane| target_of(lane) == Some(&target)).fold(0, |set, lane| set | 1 << lane);
    if group != mask {
        env.meter.current().divergent += 1;
        warp.part(group, target, pc, meet);
    } else if let Some(top) = warp.stack.last_mut() {
        top.pc = target;
    }
    Ok(())
}
