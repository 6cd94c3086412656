//! The interpreter: runs a warp until it waits or ends.

use super::access::lanes;
use super::block::State;
use super::fence::Releases;
use super::orders::Orders;
use super::shape::Shape;
use super::warp::{Frame, Part, Warp};
use crate::device::LaunchOptions;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::Memory;
use crate::program::{Instruction, Kernel, NONE, Op};
use crate::report::Counts;

/// Runs warps, and counts what they do.
pub(super) struct Machine<'a> {
    pub memory: &'a mut Memory,
    pub kernel: &'a Kernel,
    pub options: &'a LaunchOptions,
    pub parameters: Vec<u8>,
    /// What the warps of the block that runs share.
    pub block: Box<State>,
    pub shape: Shape,
    /// Warps that views have: those of a block, and the asynchronous proxy.
    pub clocks: usize,
    /// What strong writes to global memory released, for other blocks to acquire.
    pub releases: Releases,
    /// Counts of each instruction.
    pub stats: Vec<Counts>,
    /// The instruction that runs.
    pub pc: usize,
    pub executed: u64,
    /// The count of instructions at which the warp's turn is over.
    pub turn_ends: u64,
    /// Whether turns also end at atomics, so that blocks meet there in any order.
    pub yields: bool,
    pub barriers_passed: u64,
}

/// The binary logarithm of the instructions after which another warp gets its turn.
const TURN_BITS: u32 = 16;
/// Instructions of a turn that an access counts for when threads may spin on it.
const SPIN: u64 = 256;

/// How a warp's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits at a barrier.
    Waits,
    /// All its threads have exited.
    Ended,
    /// It ran long enough: it may spin on what another must write.
    Over,
    /// It asks an mbarrier in vain.
    Spins,
}

/// Where a warp goes on.
enum Flow {
    /// At the program counter.
    Next,
    /// Where the stack says.
    Jump,
    /// At the program counter, in a later turn.
    Yield,
}

impl Machine<'_> {
    /// Sets the length of the next turn: of a random order, or always the same.
    pub fn plan_turn(&mut self, orders: Option<&mut Orders>) {
        self.yields = orders.is_some();
        let bits = orders.map_or(TURN_BITS, |orders| (orders.next() % u64::from(TURN_BITS + 1)) as u32);
        self.turn_ends = self.executed + (1 << bits);
    }

    /// Runs a warp until it waits, ends, or has had its turn.
    pub fn run(&mut self, warp: &mut Warp) -> Checked<Turn> {
        let (started, spun) = (self.executed, warp.spins_on.take());
        let turn = self.advance(warp)?;
        // A short turn may end anywhere in the loop that asks.
        if self.executed - started < SPIN {
            warp.spins_on = warp.spins_on.or(spun);
        }
        Ok(if turn == Turn::Over && warp.spins_on.is_some() { Turn::Spins } else { turn })
    }

    fn advance(&mut self, warp: &mut Warp) -> Checked<Turn> {
        let kernel = self.kernel;
        let code = &kernel.code[..];
        'part: loop {
            let Some(&Part { pc: first, meet, mask: active }) = warp.stack.last() else {
                warp.live = 0;
                return Ok(Turn::Ended);
            };
            if active == 0 {
                let ended = warp.unwind();
                self.return_results(warp, &ended);
                if warp.stack.iter().all(|part| part.mask == 0) {
                    warp.stack.clear();
                }
                continue;
            }
            let mut pc = first;
            loop {
                if pc == meet {
                    warp.stack.pop();
                    continue 'part;
                }
                let instruction = &code[pc as usize];
                let mask = if instruction.guard == NONE {
                    active
                } else {
                    let guard = warp.registers.masks[instruction.guard as usize];
                    active & if instruction.negated { !guard } else { guard }
                };
                self.pc = pc as usize;
                let counts = &mut self.stats[pc as usize];
                counts.instructions += 1;
                counts.lanes += u64::from(mask.count_ones());
                self.executed += 1;
                if let Op::Lanes(op, slots) = instruction.op {
                    op.run(&mut warp.registers, slots, mask);
                    pc += 1;
                    continue;
                }
                if self.executed > self.options.instruction_limit {
                    let message =
                        format!("more than {} instructions: an endless loop?", self.options.instruction_limit);
                    return Err(Violation::new(FaultKind::InstructionLimit, message));
                }
                if instruction.aligned && mask != warp.live && mask != 0 {
                    let message =
                        format!("reached by lanes {mask:#010x} of the warp's living lanes {:#010x} only", warp.live);
                    return Err(
                        Violation::new(FaultKind::DivergentBarrier, message).lane(mask.trailing_zeros() as usize)
                    );
                }
                if mask != 0 {
                    match self.control(warp, instruction, mask, active, &mut pc)? {
                        Flow::Next => {}
                        Flow::Jump if self.executed < self.turn_ends => continue 'part,
                        Flow::Jump => return Ok(Turn::Over),
                        Flow::Yield => {
                            if let Some(top) = warp.stack.last_mut() {
                                top.pc = pc;
                            }
                            return Ok(if warp.waits_at.is_some() { Turn::Waits } else { Turn::Over });
                        }
                    }
                } else {
                    if let Op::Branch(_) = instruction.op {
                        self.stats[pc as usize].branches += 1;
                    }
                    pc += 1;
                }
            }
        }
    }

    /// Runs an instruction that is no lane operation and moves `pc` on.
    #[inline(always)]
    fn control(
        &mut self,
        warp: &mut Warp,
        instruction: &Instruction,
        mask: u32,
        active: u32,
        pc: &mut u32,
    ) -> Checked<Flow> {
        let next = *pc + 1;
        match &instruction.op {
            Op::Branch(target) => {
                if instruction.guard != NONE {
                    self.stats[*pc as usize].branches += 1;
                }
                if mask == active {
                    // A loop without an end must let others run.
                    let back = *target <= *pc;
                    *pc = *target;
                    return Ok(if back && self.executed >= self.turn_ends { Flow::Yield } else { Flow::Next });
                }
                self.stats[*pc as usize].divergent += 1;
                warp.part(mask, *target, next, instruction.meet);
                return Ok(Flow::Jump);
            }
            Op::BranchTable { index, targets } => {
                let index = warp.registers.words[*index as usize];
                self.stats[*pc as usize].branches += 1;
                let mut rest = mask;
                while rest != 0 {
                    let lane = rest.trailing_zeros() as usize;
                    let Some(&target) = targets.get(index[lane] as usize) else {
                        let message = format!("index {} into a table of {} branches", index[lane], targets.len());
                        return Err(Violation::new(FaultKind::OutOfBounds, message).lane(lane));
                    };
                    let group = lanes(rest)
                        .filter(|&lane| targets.get(index[lane] as usize) == Some(&target))
                        .fold(0, |set, lane| set | 1 << lane);
                    rest &= !group;
                    if rest == 0 {
                        if let Some(top) = warp.stack.last_mut() {
                            top.pc = target;
                        }
                    } else {
                        // The others run this instruction again when this group has met them.
                        self.stats[*pc as usize].divergent += 1;
                        warp.part(group, target, *pc, instruction.meet);
                        break;
                    }
                }
                return Ok(Flow::Jump);
            }
            Op::Call(call) => {
                self.transfer(warp, &call.arguments, mask);
                let height = warp.stack.len();
                if let Some(top) = warp.stack.last_mut() {
                    top.pc = next;
                }
                warp.frames.push(Frame { call: *pc, mask, height });
                warp.stack.push(Part { pc: call.target, meet: NONE, mask });
                return Ok(Flow::Jump);
            }
            Op::Return | Op::Exit => {
                if let Some(top) = warp.stack.last_mut() {
                    top.pc = next;
                }
                let ended = warp.leave(mask, matches!(instruction.op, Op::Exit));
                self.return_results(warp, &ended);
                return Ok(Flow::Jump);
            }
            Op::Trap => {
                let message = "a trap: a Rust panic, or an explicit abort";
                return Err(Violation::new(FaultKind::Trap, message).lane(mask.trailing_zeros() as usize));
            }
            Op::Barrier { id, count, waits } => {
                *pc = next;
                self.barrier(warp, *id, *count, *waits, mask)?;
                return Ok(if *waits { Flow::Yield } else { Flow::Next });
            }
            _ => self.operation(warp, instruction, mask)?,
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
            self.turn_ends = self.turn_ends.saturating_sub(SPIN);
            return Ok(if self.yields || self.executed >= self.turn_ends { Flow::Yield } else { Flow::Next });
        }
        Ok(Flow::Next)
    }
}
