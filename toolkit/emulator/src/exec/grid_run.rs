//! A grid that runs: which warp of which block runs next.

use super::instruction::bulk_store::end_block;
use super::instruction::mbarrier::lost_phase;
use super::launch_config::LaunchConfig;
use super::orders::Orders;
use super::outcome::{fault, report};
use super::resident::ResidentBlock;
use super::state::block_env::BlockEnv;
use super::state::constants::LaunchConstants;
use super::state::fences::Releases;
use super::state::meter::Meter;
use super::turn::{self, TurnEnd, TurnLimit};
use crate::entry::Entry;
use crate::fault::{Checked, Fault, FaultKind, Violation};
use crate::launch_options::LaunchOptions;
use crate::memory::Memory;
use crate::module::PtxModule;
use crate::program::Program;
use crate::report::CostReport;

/// The most blocks that a random order keeps resident at once.
const MAX_RESIDENT: u64 = 8;

/// A grid that runs.
struct GridRun<'a> {
    constants: &'a LaunchConstants<'a>,
    memory: &'a mut Memory,
    /// What strong writes to global memory released, for threads of other blocks to acquire.
    releases: Releases,
    meter: Meter,
    /// The resident blocks.
    blocks: Vec<ResidentBlock>,
    /// The place among `blocks` of the block that ran last.
    slot: usize,
    /// The warp that ran last.
    warp: usize,
}

/// Runs a kernel to its end.
pub(crate) fn launch(
    memory: &mut Memory,
    module: &PtxModule,
    (entry, program): (&Entry, &Program),
    config: LaunchConfig,
    options: &LaunchOptions,
    parameters: Vec<u8>,
    variables: Vec<u64>,
) -> Result<CostReport, Box<Fault>> {
    memory.start_launch();
    let constants = LaunchConstants { program, options, config, parameters, variables };
    let mut run = GridRun {
        constants: &constants,
        memory,
        releases: Releases::default(),
        meter: Meter::new(program.code.len()),
        blocks: Vec::new(),
        slot: 0,
        warp: 0,
    };
    match run.run() {
        Ok(()) => Ok(report(module, program, &run.meter, run.memory.distinct_sectors())),
        Err(violation) => {
            let resident = run.blocks.get(run.slot);
            let block = resident.map_or([0; 3], |block| block.state.index);
            let frames = resident.and_then(|block| block.warps.get(run.warp)).map_or(&[][..], |warp| &warp.frames);
            let calls = frames.iter().rev().map(|frame| frame.call as usize);
            let (pc, threads) = (run.meter.pc, config.block);
            Err(fault(module, (entry, program), (pc, calls), (block, threads, run.warp), *violation))
        }
    }
}

impl GridRun<'_> {
    /// Runs all blocks. In the natural order one is resident at a time, else several, and their warps take turns of random
    /// length. When all resident warps seem to wait for something that another block must do, one more becomes resident.
    fn run(&mut self) -> Checked<()> {
        let random = self.constants.options.seed != 0;
        let mut orders = Orders(self.constants.options.seed);
        let count = self.constants.config.blocks();
        let mut order: Vec<u64> = if random { (0..count).collect() } else { Vec::new() };
        orders.shuffle(&mut order);
        let mut started = 0;
        let mut resident = if random { 1 + orders.next() % MAX_RESIDENT } else { 1 } as usize;
        let patience = if random { 16 } else { 1 };
        let (mut running, mut spun) = (0, 0);
        let mut turns = Vec::new();
        loop {
            for slot in 0..resident {
                if slot == self.blocks.len() && started < count {
                    self.blocks.push(ResidentBlock::new(self.constants));
                }
                if self.blocks.get(slot).is_some_and(ResidentBlock::ended) && started < count {
                    let index = order.get(started as usize).copied().unwrap_or(started);
                    self.blocks[slot].start(index, self.constants);
                    started += 1;
                    running += 1;
                }
            }
            if running == 0 {
                return Ok(());
            }
            turns.clear();
            for (slot, block) in self.blocks.iter().enumerate() {
                let ready = block.warps.iter().filter(|warp| warp.live != 0 && warp.waits_at.is_none());
                turns.extend(ready.map(|warp| (slot, warp.id)));
            }
            if random {
                orders.shuffle(&mut turns);
            }
            // Of each block, whether its warps did nothing but test mbarriers in vain.
            let mut idle = vec![true; self.blocks.len()];
            let (mut spinning, mut over) = (true, false);
            for &(slot, warp) in &turns {
                let end = self.turn(slot, warp, if random { Some(&mut orders) } else { None })?;
                idle[slot] &= end == TurnEnd::Spins;
                spinning &= matches!(end, TurnEnd::Over | TurnEnd::Spins);
                over |= end == TurnEnd::Over;
            }
            for (slot, idle) in idle.into_iter().enumerate() {
                let ran = turns.iter().any(|turn| turn.0 == slot);
                running -= u64::from(self.settle(slot, ran, idle)?);
            }
            spinning &= over;
            spun = if spinning { spun + 1 } else { 0 };
            if spun >= patience {
                resident += 1;
                spun = 0;
            }
        }
    }

    /// Gives a warp its turn.
    fn turn(&mut self, slot: usize, warp: usize, orders: Option<&mut Orders>) -> Checked<TurnEnd> {
        (self.slot, self.warp) = (slot, warp);
        let limit = TurnLimit::new(self.meter.executed, orders);
        let block = &mut self.blocks[slot];
        let mut env = BlockEnv {
            launch: self.constants,
            memory: self.memory,
            releases: &mut self.releases,
            block: &mut block.state,
            meter: &mut self.meter,
        };
        turn::run(&mut env, &mut block.warps[warp], limit)
    }

    /// Settles a block after a round: opens barriers, ends the block, or finds that it cannot go on. `ran` says whether it had
    /// a turn in the round, `idle` whether it only tested mbarriers in vain. Returns whether it has ended.
    fn settle(&mut self, slot: usize, ran: bool, idle: bool) -> Checked<bool> {
        let block = &mut self.blocks[slot];
        let released = block.release_barriers();
        self.meter.barriers += released;
        if block.ended() {
            if ran {
                self.end_block(slot)?;
            }
            return Ok(ran);
        }
        if released == 0 && block.warps.iter().all(|warp| warp.live == 0 || warp.waits_at.is_some()) {
            return Err(self.deadlock(slot));
        }
        match block.lost(idle && released == 0) {
            Some(warp) => Err(self.lost_phase(slot, warp)),
            None => Ok(false),
        }
    }

    /// Ends what a block left in flight.
    fn end_block(&mut self, slot: usize) -> Checked<()> {
        self.slot = slot;
        let block = &mut self.blocks[slot];
        let mut env = BlockEnv {
            launch: self.constants,
            memory: self.memory,
            releases: &mut self.releases,
            block: &mut block.state,
            meter: &mut self.meter,
        };
        end_block(&mut env, &mut block.warps)
    }

    /// The fault of a warp that waits for a phase of an mbarrier which can no longer end.
    fn lost_phase(&mut self, slot: usize, warp: usize) -> Box<Violation> {
        (self.slot, self.warp) = (slot, warp);
        let block = &self.blocks[slot];
        match &block.warps[warp].spins_on {
            Some(wait) => {
                self.meter.pc = wait.pc;
                lost_phase(&block.state, wait)
            }
            None => Violation::new(FaultKind::Deadlock, "an endless wait"),
        }
    }

    /// The fault of a block in which all warps wait at barriers.
    fn deadlock(&mut self, slot: usize) -> Box<Violation> {
        let block = &self.blocks[slot];
        let (warp, violation) = block.deadlock();
        // The instruction to name is the barrier at which the warp waits.
        let pc = block.warps[warp].stack.last().map_or(0, |part| part.pc);
        (self.slot, self.warp) = (slot, warp);
        self.meter.pc = (pc as usize).saturating_sub(1);
        violation
    }
}
