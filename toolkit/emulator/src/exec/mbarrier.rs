//! Mbarriers: arrivals, expected bytes and phases.

use super::access::{addresses, lanes, shared_offset};
use super::clock::{Gathering, View};
use super::machine::Machine;
use super::warp::{Wait, Warp};
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{self, MbarrierOp};
use std::rc::Rc;

/// Most arrivals that an mbarrier can count.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// An mbarrier.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Arrivals that end a phase.
    count: u32,
    /// Those still missing in this phase.
    pending: u32,
    /// Bytes announced and not yet copied.
    bytes: i64,
    /// Phases that are over.
    phase: u64,
    /// What those know who have arrived in this phase.
    arrived: Gathering,
    /// What all knew who arrived in the phase before.
    opened: Option<Rc<View>>,
    /// Who set it up, and in which epoch: all others must come after.
    creator: (usize, u32),
    /// Lane of the asynchronous proxy's clock that stands for its copies.
    agent: usize,
}

impl Mbarrier {
    /// Ends the phase if nothing is missing.
    fn step(&mut self, clocks: usize) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.count;
            self.opened = Some(self.arrived.take(clocks));
        }
    }

    fn describe(&self, at: u64) -> String {
        format!(
            "the mbarrier at offset {at:#x} is in phase {} with {} of {} arrivals and {} bytes missing",
            self.phase, self.pending, self.count, self.bytes
        )
    }
}

fn fault<T>(lane: usize, at: u64, message: String) -> Checked<T> {
    Err(Violation::new(FaultKind::Mbarrier, message).lane(lane).address(at).buffer("shared memory"))
}

impl Machine<'_> {
    /// The mbarrier at an address, which the lane must know to be set up.
    pub(super) fn mbarrier_at(&mut self, warp: &Warp, lane: usize, at: u64) -> Checked<&mut Mbarrier> {
        let Some(barrier) = self.block.mbarriers.get_mut(&at) else {
            return fault(lane, at, format!("there is no mbarrier at offset {at:#x}: it was not set up"));
        };
        let (thread, epoch) = barrier.creator;
        if self.options.check_races && thread != warp.id * 32 + lane && !warp.clock.view(lane).knows(thread, epoch) {
            let message =
                format!("the mbarrier at offset {at:#x} that thread {thread} set up, with no barrier between");
            return Err(Violation::new(FaultKind::SharedRace, message).lane(lane).address(at).buffer("shared memory"));
        }
        Ok(barrier)
    }

    pub(super) fn mbarrier(&mut self, warp: &mut Warp, instruction: &program::Mbarrier, mask: u32) -> Checked<()> {
        let at = addresses(warp, instruction.address).map(shared_offset);
        if matches!(instruction.op, MbarrierOp::TestParity | MbarrierOp::TestState) {
            return self.test(warp, instruction, &at, mask);
        }
        let values = warp.registers.words[instruction.value as usize];
        for lane in lanes(mask) {
            let (at, value) = (at[lane], values[lane]);
            self.block.shared.locate(at, 8).map_err(|fault| fault.lane(lane))?;
            match instruction.op {
                MbarrierOp::Init => self.set_up(warp, lane, at, value)?,
                MbarrierOp::Invalidate => {
                    self.mbarrier_at(warp, lane, at)?;
                    self.block.mbarriers.remove(&at);
                    self.block.shared.set_mbarrier(at as usize, false);
                }
                MbarrierOp::Expect => self.mbarrier_at(warp, lane, at)?.bytes += i64::from(value),
                MbarrierOp::Complete => self.add_bytes(warp, lane, at, -i64::from(value))?,
                MbarrierOp::ArriveExpecting => {
                    self.mbarrier_at(warp, lane, at)?.bytes += i64::from(value);
                    self.arrive(warp, instruction, lane, at, (1, false))?;
                }
                MbarrierOp::Arrive { drops } => self.arrive(warp, instruction, lane, at, (value, drops))?,
                MbarrierOp::TestParity | MbarrierOp::TestState => {}
            }
        }
        Ok(())
    }

    fn set_up(&mut self, warp: &mut Warp, lane: usize, at: u64, count: u32) -> Checked<()> {
        if !(1..=MAX_COUNT).contains(&count) {
            return fault(lane, at, format!("an mbarrier for {count} arrivals"));
        }
        if self.block.mbarriers.contains_key(&at) {
            return fault(lane, at, format!("an mbarrier already lives at offset {at:#x}"));
        }
        // It starts as an ordinary write.
        let who = Self::who(warp, lane, false);
        self.block.shared.write(at as usize, 8, who, false).map_err(|fault| fault.lane(lane))?;
        self.block.shared.set_mbarrier(at as usize, true);
        let barrier = Mbarrier {
            count,
            pending: count,
            bytes: 0,
            phase: 0,
            arrived: Gathering::default(),
            opened: None,
            creator: (warp.id * 32 + lane, warp.clock.epoch),
            agent: self.block.mbarriers.len() % 32,
        };
        self.block.mbarriers.insert(at, barrier);
        Ok(())
    }

    fn arrive(
        &mut self,
        warp: &mut Warp,
        instruction: &program::Mbarrier,
        lane: usize,
        at: u64,
        (count, drops): (u32, bool),
    ) -> Checked<()> {
        let clocks = self.clocks;
        let barrier = self.mbarrier_at(warp, lane, at)?;
        let before = barrier.phase;
        if count == 0 || count > barrier.pending {
            let message = format!("{count} arrivals are too many: {}", barrier.describe(at));
            return fault(lane, at, message);
        }
        barrier.arrived.add(&mut warp.clock, warp.id, clocks, 1 << lane);
        barrier.pending -= count;
        if drops {
            barrier.count -= count;
        }
        barrier.step(clocks);
        self.block.events += 1;
        if let Some(result) = instruction.result {
            warp.registers.wides[result as usize][lane] = before;
        }
        Ok(())
    }

    fn add_bytes(&mut self, warp: &Warp, lane: usize, at: u64, bytes: i64) -> Checked<()> {
        let clocks = self.clocks;
        let barrier = self.mbarrier_at(warp, lane, at)?;
        barrier.bytes += bytes;
        barrier.step(clocks);
        self.block.events += 1;
        Ok(())
    }

    /// Whether a phase is over. A bulk copy ends when nothing but its bytes is missing and somebody asks.
    fn test(&mut self, warp: &mut Warp, instruction: &program::Mbarrier, at: &[u64; 32], mask: u32) -> Checked<()> {
        let mut done = 0;
        for lane in lanes(mask) {
            let at = at[lane];
            self.mbarrier_at(warp, lane, at)?;
            let is_over = |barrier: &Mbarrier, warp: &Warp| match instruction.op {
                MbarrierOp::TestState => barrier.phase != warp.registers.wides[instruction.value as usize][lane],
                _ => barrier.phase & 1 != u64::from(warp.registers.words[instruction.value as usize][lane] & 1),
            };
            let barrier = &self.block.mbarriers[&at];
            if !is_over(barrier, warp) && barrier.pending == 0 {
                self.end_fills(at)?;
            }
            let barrier = &self.block.mbarriers[&at];
            if is_over(barrier, warp) {
                done |= 1 << lane;
            } else {
                warp.spins_on = Some(Wait { at, lane, pc: self.pc });
            }
        }
        let opened = |lane: usize| self.block.mbarriers[&at[lane]].opened.as_ref();
        let mut rest: u32 = done;
        while self.options.check_races && rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let group = lanes(rest).filter(|&lane| at[lane] == at[first]).fold(0, |set, lane| set | 1 << lane);
            rest &= !group;
            if let Some(view) = opened(first) {
                warp.clock.learn(group, view);
            }
        }
        if let Some(result) = instruction.result {
            let target = &mut warp.registers.masks[result as usize];
            *target = *target & !mask | done;
        }
        Ok(())
    }

    /// Notes that a copy has filled bytes, and tells the thread and the epoch that stand for it.
    pub(super) fn filled(&mut self, at: u64, bytes: usize) -> Option<(usize, u32)> {
        let clocks = self.clocks;
        self.block.fills_ended += 1;
        self.block.events += 1;
        let epoch = self.block.fills_ended;
        let barrier = self.block.mbarriers.get_mut(&at)?;
        let thread = (clocks - 1) * 32 + barrier.agent;
        barrier.arrived.add_thread(thread, epoch, clocks);
        barrier.bytes -= bytes as i64;
        barrier.step(clocks);
        Some((thread, epoch))
    }

    /// What a warp waits for in vain.
    pub(super) fn lost_phase(&self, wait: &Wait) -> Box<Violation> {
        let state = self.block.mbarriers.get(&wait.at).map_or_else(String::new, |barrier| barrier.describe(wait.at));
        let message = format!("an endless wait: {state}, and no thread of the block does anything else");
        let fault = Violation::new(FaultKind::Deadlock, message);
        fault.lane(wait.lane).address(wait.at).buffer("shared memory")
    }
}
