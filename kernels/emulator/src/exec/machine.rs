//! The interpreter: runs a warp until it waits or ends.

use super::access::{addresses, lanes};
use super::clock::Gathering;
use super::shared::Shared;
use super::warp::{Frame, Part, PendingCopy, Warp};
use crate::device::LaunchOptions;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::Memory;
use crate::ops;
use crate::program::{AsyncCopy, Combine, Entry, Instruction, NONE, Op, Register, Transfer};
use crate::report::Counts;

/// A barrier of the block.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Threads that have arrived.
    pub arrived: u32,
    /// Threads that must arrive; `None` is all that live.
    pub expected: Option<u32>,
    pub views: Gathering,
}

/// What the warps of a block share, and what a launch counts.
pub(super) struct Machine<'a> {
    pub memory: &'a mut Memory,
    pub entry: &'a Entry,
    pub options: &'a LaunchOptions,
    pub parameters: Vec<u8>,
    pub shared: Shared,
    pub barriers: [Barrier; 16],
    pub warp_count: usize,
    /// Counts of each instruction.
    pub stats: Vec<Counts>,
    /// The instruction that runs.
    pub pc: usize,
    pub executed: u64,
    /// The count of instructions at which the warp's turn is over.
    pub turn_ends: u64,
    pub barriers_passed: u64,
}

/// Instructions after which another warp gets its turn: a warp may spin on what another must write.
const TURN: u64 = 1 << 16;

impl Machine<'_> {
    pub(super) fn run(&mut self, warp: &mut Warp) -> Checked<()> {
        let entry = self.entry;
        let code = &entry.code[..];
        self.turn_ends = self.executed + TURN;
        'part: loop {
            let Some(&Part { pc: first, meet, mask: active }) = warp.stack.last() else {
                warp.live = 0;
                return Ok(());
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
                if mask != 0 && !self.control(warp, instruction, mask, active, &mut pc)? {
                    if self.executed >= self.turn_ends || warp.waits_at.is_some() {
                        if let Some(top) = warp.stack.last_mut().filter(|_| warp.waits_at.is_some()) {
                            top.pc = pc;
                        }
                        return Ok(());
                    }
                    continue 'part;
                } else if mask == 0 {
                    if let Op::Branch(_) = instruction.op {
                        self.stats[pc as usize].branches += 1;
                    }
                    pc += 1;
                }
            }
        }
    }

    /// Runs an instruction that is no lane operation and moves `pc` on. False when the stack changed, or the warp waits.
    #[inline(always)]
    fn control(
        &mut self,
        warp: &mut Warp,
        instruction: &Instruction,
        mask: u32,
        active: u32,
        pc: &mut u32,
    ) -> Checked<bool> {
        let next = *pc + 1;
        match &instruction.op {
            Op::Branch(target) => {
                if instruction.guard != NONE {
                    self.stats[*pc as usize].branches += 1;
                }
                if mask == active {
                    // A loop without an end must let others run.
                    if *target <= *pc && self.executed >= self.turn_ends {
                        if let Some(top) = warp.stack.last_mut() {
                            top.pc = *target;
                        }
                        return Ok(false);
                    }
                    *pc = *target;
                    return Ok(true);
                }
                self.stats[*pc as usize].divergent += 1;
                warp.part(mask, *target, next, instruction.meet);
                return Ok(false);
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
                return Ok(false);
            }
            Op::Call(call) => {
                self.transfer(warp, &call.arguments, mask);
                let height = warp.stack.len();
                if let Some(top) = warp.stack.last_mut() {
                    top.pc = next;
                }
                warp.frames.push(Frame { call: *pc, mask, height });
                warp.stack.push(Part { pc: call.target, meet: NONE, mask });
                return Ok(false);
            }
            Op::Return | Op::Exit => {
                if let Some(top) = warp.stack.last_mut() {
                    top.pc = next;
                }
                let ended = warp.leave(mask, matches!(instruction.op, Op::Exit));
                self.return_results(warp, &ended);
                return Ok(false);
            }
            Op::Trap => {
                let message = "a trap: a Rust panic, or an explicit abort";
                return Err(Violation::new(FaultKind::Trap, message).lane(mask.trailing_zeros() as usize));
            }
            Op::Barrier { id, count, waits } => {
                *pc = next;
                self.barrier(warp, *id, *count, *waits, mask)?;
                return Ok(!*waits);
            }
            _ => self.operation(warp, instruction, mask)?,
        }
        *pc = next;
        Ok(true)
    }

    fn operation(&mut self, warp: &mut Warp, instruction: &Instruction, mask: u32) -> Checked<()> {
        match &instruction.op {
            Op::Load(access) => self.load(warp, access, mask)?,
            Op::Store(access) => self.store(warp, access, mask)?,
            Op::Parameter { offset, access } => self.load_parameter(warp, access, *offset, mask),
            Op::Atomic(atomic) => self.atomic(warp, atomic, mask)?,
            Op::Collective { op, members } => self.collective(warp, op, *members, mask)?,
            Op::LoadMatrix { address, registers, transposed } => {
                self.load_matrix(warp, *address, registers, *transposed)?;
            }
            Op::Mma(mma) => {
                super::tensor::mma(&mut warp.registers, mma);
                self.stats[self.pc].tensor_flops += 2 * 16 * 8 * mma.depth as u64;
            }
            Op::AsyncCopy(copy) => self.start_copy(warp, copy, mask)?,
            Op::AsyncCommit => {
                let group = std::mem::take(&mut warp.copies);
                warp.groups.push_back(group);
            }
            Op::AsyncWait(pending) => self.wait_copies(warp, *pending)?,
            Op::Compare { test, slots, complement, combine } => {
                let old = warp.registers.masks[slots.d as usize];
                let third = combine.map(|(how, slot, negated)| {
                    let third = warp.registers.masks[slot as usize];
                    (how, if negated { !third } else { third })
                });
                test.run(&mut warp.registers, *slots, u32::MAX);
                let result = warp.registers.masks[slots.d as usize];
                let combined = |value: u32| match third {
                    Some((Combine::And, third)) => value & third,
                    Some((Combine::Or, third)) => value | third,
                    Some((Combine::Xor, third)) => value ^ third,
                    None => value,
                };
                warp.registers.masks[slots.d as usize] = old & !mask | combined(result) & mask;
                if let Some(slot) = complement {
                    let target = &mut warp.registers.masks[*slot as usize];
                    *target = *target & !mask | combined(!result) & mask;
                }
            }
            Op::Logic3 { slots, table } => {
                let words = &warp.registers.words;
                let (a, b, c) = (words[slots.a as usize], words[slots.b as usize], words[slots.c as usize]);
                let target = &mut warp.registers.words[slots.d as usize];
                lanes(mask).for_each(|lane| target[lane] = ops::logic3(a[lane], b[lane], c[lane], *table));
            }
            Op::InsertField { slots, at, count } => {
                let words = &warp.registers.words;
                let (a, b) = (words[slots.a as usize], words[slots.b as usize]);
                let (at, count) = (words[*at as usize], words[*count as usize]);
                let target = &mut warp.registers.words[slots.d as usize];
                lanes(mask).for_each(|lane| target[lane] = ops::insert_field(a[lane], b[lane], at[lane], count[lane]));
            }
            Op::Unpack { source, parts } => unpack(warp, *source, parts, mask),
            Op::Pack { target, parts } => pack(warp, *target, parts, mask),
            Op::Clock(target) => {
                for lane in lanes(mask) {
                    if target.bits == 64 {
                        warp.registers.wides[target.slot as usize][lane] = self.executed;
                    } else {
                        warp.registers.words[target.slot as usize][lane] = self.executed as u32;
                    }
                }
            }
            Op::ActiveMask(target) => {
                let slot = &mut warp.registers.words[*target as usize];
                lanes(mask).for_each(|lane| slot[lane] = mask);
            }
            _ => {}
        }
        Ok(())
    }

    fn barrier(&mut self, warp: &mut Warp, id: u32, count: Option<u32>, waits: bool, mask: u32) -> Checked<()> {
        let first = mask.trailing_zeros() as usize;
        let word = |slot: u32| warp.registers.words[slot as usize][first];
        let (id, expected) = (word(id) as usize, count.map(word));
        if mask != warp.live {
            let message = format!("reached by lanes {mask:#010x} of the warp's living lanes {:#010x} only", warp.live);
            return Err(Violation::new(FaultKind::DivergentBarrier, message).lane(first));
        }
        let fault = |message: String| Err(Violation::new(FaultKind::DivergentBarrier, message).lane(first));
        let Some(barrier) = self.barriers.get_mut(id) else {
            return fault(format!("there is no barrier {id}"));
        };
        if expected.is_some_and(|count| count == 0 || count % 32 != 0) {
            return fault("the count of threads must be a multiple of 32".into());
        }
        if barrier.arrived != 0 && barrier.expected != expected {
            return fault(format!(
                "others expect {:?} threads at barrier {id}, this one {expected:?}",
                barrier.expected
            ));
        }
        barrier.expected = expected;
        barrier.arrived += 32; // a warp counts as whole
        barrier.views.add(&mut warp.clock, warp.id, self.warp_count, mask);
        if waits {
            warp.waits_at = Some(id);
        }
        Ok(())
    }

    /// Copies parameters of a call within the lanes' private memory.
    fn transfer(&self, warp: &mut Warp, transfers: &[Transfer], mask: u32) {
        for &(from, to, bytes) in transfers {
            for lane in lanes(mask) {
                let base = lane * self.entry.private;
                warp.private.copy_within(base + from..base + from + bytes, base + to);
            }
        }
    }

    fn return_results(&self, warp: &mut Warp, ended: &[Frame]) {
        for frame in ended {
            if let Op::Call(call) = &self.entry.code[frame.call as usize].op {
                self.transfer(warp, &call.results, frame.mask & warp.live);
            }
        }
    }

    fn start_copy(&mut self, warp: &mut Warp, copy: &AsyncCopy, mask: u32) -> Checked<()> {
        let (mut target, source) = (addresses(warp, copy.target), addresses(warp, copy.source));
        let bytes = copy.bytes as usize;
        // A generic address of shared memory is accepted as well.
        target.iter_mut().for_each(|at| {
            if *at >> crate::WINDOW_BITS == crate::SHARED_WINDOW >> crate::WINDOW_BITS {
                *at -= crate::SHARED_WINDOW;
            }
        });
        self.count_global(mask, &source, bytes);
        for lane in lanes(mask) {
            let source_bytes = match copy.source_bytes {
                Some(slot) => warp.registers.words[slot as usize][lane].min(copy.bytes),
                None => copy.bytes,
            };
            let offset = self.shared.locate(target[lane], bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, false);
            self.shared.start_copy(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            if !source[lane].is_multiple_of(bytes as u64) {
                let message = format!("{bytes} bytes at {:#x}: no multiple of {bytes}", source[lane]);
                return Err(Violation::new(FaultKind::Misaligned, message).lane(lane).address(source[lane]));
            }
            let found = self.memory.locate(source[lane], source_bytes as usize);
            if source_bytes != 0 {
                let (index, at) = found.map_err(|fault| fault.lane(lane))?;
                let buffer = &self.memory.buffers[index];
                if self.options.check_initialised && !buffer.written.contains_range(at, source_bytes as usize) {
                    let message =
                        format!("{source_bytes} bytes at offset {at} of `{}` that nothing wrote", buffer.name);
                    let fault = Violation::new(FaultKind::Uninitialised, message).lane(lane).address(source[lane]);
                    return Err(fault.buffer(&buffer.name));
                }
            }
            let (source, bytes, lane) = (source[lane], copy.bytes, lane as u8);
            warp.copies.push(PendingCopy { target: offset, source, bytes, source_bytes, lane });
        }
        Ok(())
    }

    /// Ends copies, no earlier than a wait demands: one that is missing shows as stale data.
    fn wait_copies(&mut self, warp: &mut Warp, pending: Option<u32>) -> Checked<()> {
        if pending.is_none() {
            let group = std::mem::take(&mut warp.copies);
            warp.groups.push_back(group);
        }
        while warp.groups.len() > pending.unwrap_or(0) as usize {
            for copy in warp.groups.pop_front().unwrap_or_default() {
                let mut data = [0; 16];
                let (count, lane) = (copy.source_bytes as usize, usize::from(copy.lane));
                if count != 0 {
                    let (index, at) = self.memory.locate(copy.source, count).map_err(|fault| fault.lane(lane))?;
                    data[..count].copy_from_slice(&self.memory.buffers[index].data[at..at + count]);
                }
                let who = Self::who(warp, lane, false);
                let data = &data[..copy.bytes as usize];
                self.shared.end_copy(copy.target, data, who).map_err(|fault| fault.lane(lane))?;
            }
        }
        Ok(())
    }
}

fn unpack(warp: &mut Warp, source: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(source.bits) / parts.len() as u32;
    let registers = &mut warp.registers;
    for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.bits != 0) {
        for lane in lanes(mask) {
            let value = if source.bits == 64 {
                registers.wides[source.slot as usize][lane]
            } else {
                registers.words[source.slot as usize][lane].into()
            };
            let value = value >> (index as u32 * bits) & ((1 << bits) - 1);
            registers.words[part.slot as usize][lane] = value as u32;
        }
    }
}

fn pack(warp: &mut Warp, target: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(target.bits) / parts.len() as u32;
    let registers = &mut warp.registers;
    for lane in lanes(mask) {
        let value = parts.iter().enumerate().fold(0, |value, (index, part)| {
            let word = u64::from(registers.words[part.slot as usize][lane]) & ((1 << bits) - 1);
            value | word << (index as u32 * bits)
        });
        if target.bits == 64 {
            registers.wides[target.slot as usize][lane] = value;
        } else {
            registers.words[target.slot as usize][lane] = value as u32;
        }
    }
}
