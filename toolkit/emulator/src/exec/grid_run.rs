//! A running grid, which chooses the warp and the block that run next.

use super::instruction::bulk_store::end_block;
use super::instruction::mbarrier::lost_phase;
use super::peers::{Peers, open_barrier};
use super::resident::ResidentBlock;
use super::state::block_env::BlockEnv;
use super::state::clock::{Others, join_others};
use super::state::constants::LaunchConstants;
use super::state::fences::GlobalReleases;
use super::state::meter::Meter;
use super::turn::{self, TurnEnd, TurnLimit};
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::Memory;
use std::sync::Arc;

/// The most blocks that a random order keeps resident at once.
const MAX_RESIDENT: u64 = 8;

/// State that all launches running at the same time share.
pub(crate) struct Shared<'a> {
    /// Global memory.
    pub memory: &'a mut Memory,
    /// Views that strong writes to global memory released, for threads of other blocks to acquire.
    pub releases: &'a mut GlobalReleases,
}

/// The progress of a grid after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It made progress.
    Runs,
    /// All resident warps seem to wait for another block or another launch.
    Spins,
    /// All blocks have ended.
    Ended,
}

/// A running grid.
pub(super) struct GridRun {
    pub meter: Meter,
    /// The resident blocks.
    pub blocks: Vec<ResidentBlock>,
    /// The index in `blocks` of the block that ran last.
    pub slot: usize,
    /// The warp that ran last.
    pub warp: usize,
    /// The accesses of ended blocks, and everything that is ordered before them. Threads that come after the whole
    /// launch receive this. `None` if it is not requested.
    pub handed_on: Option<Arc<Others>>,
    /// The state of the random numbers that choose orders.
    random: u64,
    /// The order of clusters, or empty for the natural order. A block outside any cluster counts as a cluster of one.
    order: Vec<u64>,
    /// The number of clusters that have started.
    pub started: u64,
    /// The cluster before which the grid stops for now: the end of the grid, or the start of another part.
    pub end: u64,
    /// The number of running blocks.
    running: u64,
    /// The number of clusters that may be resident.
    resident: usize,
    /// Consecutive rounds with all warps apparently waiting.
    spun: u32,
    turns: Vec<(usize, usize)>,
}

impl GridRun {
    /// Creates a grid before its first block has started. `hands_on` requests [`GridRun::handed_on`].
    pub fn new(constants: &LaunchConstants<'_>, hands_on: bool) -> Self {
        let mut random = constants.options.seed;
        let is_random = random != 0;
        let mut order: Vec<u64> = if is_random {
            (0..constants.config.blocks() / constants.config.cluster_size() as u64).collect()
        } else {
            Vec::new()
        };
        splitmix::shuffle(&mut random, &mut order);
        Self {
            meter: Meter::new(constants.program.code.len()),
            blocks: Vec::new(),
            slot: 0,
            warp: 0,
            handed_on: hands_on.then(Arc::default),
            resident: if is_random { 1 + splitmix::next(&mut random) % MAX_RESIDENT } else { 1 } as usize,
            random,
            order,
            started: 0,
            end: constants.config.blocks() / constants.config.cluster_size() as u64,
            running: 0,
            spun: 0,
            turns: Vec::new(),
        }
    }

    /// Returns whether no block is running, and no block has waited for another one so far.
    pub fn is_between_blocks(&self) -> bool {
        self.running == 0 && self.resident == 1
    }

    /// Gives each warp of the resident blocks a turn.
    ///
    /// In the natural order, one cluster is resident at a time. In a random order several are, and their warps take
    /// turns of random length. If all resident warps seem to wait for another block, one more cluster becomes resident.
    pub fn round(&mut self, launch: &LaunchConstants<'_>, shared: &mut Shared<'_>) -> Checked<Progress> {
        let random = launch.options.seed != 0;
        let size = launch.config.cluster_size();
        let count = self.end;
        for cluster in 0..self.resident {
            let slots = cluster * size..(cluster + 1) * size;
            if slots.start == self.blocks.len() && self.started < count {
                self.blocks.extend((0..size).map(|_| ResidentBlock::new(launch)));
            }
            let ended = self.blocks.get(slots.clone()).is_some_and(|blocks| blocks.iter().all(ResidentBlock::ended));
            if ended && self.started < count {
                let index = self.order.get(self.started as usize).copied().unwrap_or(self.started);
                for (rank, block) in self.blocks[slots].iter_mut().enumerate() {
                    block.start(index, rank, launch);
                }
                self.started += 1;
                self.running += size as u64;
            }
        }
        if self.running == 0 {
            return Ok(Progress::Ended);
        }
        let mut turns = std::mem::take(&mut self.turns);
        turns.clear();
        for (slot, block) in self.blocks.iter().enumerate() {
            let ready = block.warps.iter().filter(|warp| warp.live != 0 && !warp.waits());
            turns.extend(ready.map(|warp| (slot, warp.id)));
        }
        if random {
            splitmix::shuffle(&mut self.random, &mut turns);
        }
        // For each block, whether its warps only tested mbarriers without success.
        let mut idle = vec![true; self.blocks.len()];
        let (mut spinning, mut over) = (true, false);
        for &(slot, warp) in &turns {
            let end = self.turn(launch, shared, slot, warp)?;
            idle[slot] &= end == TurnEnd::Spins;
            spinning &= matches!(end, TurnEnd::Over | TurnEnd::Spins);
            over |= end == TurnEnd::Over;
        }
        for (cluster, blocks) in self.blocks.chunks_mut(size).enumerate() {
            let slots = cluster * size..(cluster + 1) * size;
            let opened = open_barrier(blocks, launch.clocks());
            // Another block of the cluster may do the work that a block waits for.
            let all_idle = !opened && idle[slots.clone()].iter().all(|&idle| idle);
            idle[slots].fill(all_idle);
        }
        for (slot, idle) in idle.into_iter().enumerate() {
            let ran = turns.iter().any(|turn| turn.0 == slot);
            self.running -= u64::from(self.settle(launch, shared, slot, ran, idle)?);
        }
        self.turns = turns;
        spinning &= over;
        self.spun = if spinning { self.spun + 1 } else { 0 };
        let patience = if random { 16 } else { 1 };
        if self.spun >= patience {
            self.resident = self.resident.saturating_add(1).min(count as usize);
            self.spun = 0;
        }
        Ok(if spinning { Progress::Spins } else { Progress::Runs })
    }

    /// Gives a warp its turn.
    fn turn(
        &mut self,
        launch: &LaunchConstants<'_>,
        shared: &mut Shared<'_>,
        slot: usize,
        warp: usize,
    ) -> Checked<TurnEnd> {
        (self.slot, self.warp) = (slot, warp);
        let random = (launch.options.seed != 0).then_some(&mut self.random);
        let limit = TurnLimit::new(self.meter.executed, random);
        let size = launch.config.cluster_size();
        let (before, rest) = self.blocks[slot / size * size..][..size].split_at_mut(slot % size);
        let Some((block, after)) = rest.split_first_mut() else { return Ok(TurnEnd::Exited) };
        let mut env = BlockEnv {
            launch,
            memory: shared.memory,
            releases: shared.releases,
            block: &mut block.state,
            peers: Peers { before, after },
            meter: &mut self.meter,
        };
        turn::run(&mut env, &mut block.warps[warp], limit)
    }

    /// Finishes a round of a block: opens its barriers, ends it, or finds that it cannot continue.
    ///
    /// `ran` says whether it had a turn in the round, and `idle` whether it only tested mbarriers without success.
    /// Returns whether the block has ended.
    fn settle(
        &mut self,
        launch: &LaunchConstants<'_>,
        shared: &mut Shared<'_>,
        slot: usize,
        ran: bool,
        idle: bool,
    ) -> Checked<bool> {
        let block = &mut self.blocks[slot];
        let released = block.release_barriers(launch.clocks());
        self.meter.barriers += released;
        if block.ended() {
            if ran {
                self.end_block(launch, shared, slot)?;
            }
            return Ok(ran);
        }
        let is_stuck = |block: &ResidentBlock| block.warps.iter().all(|warp| warp.live == 0 || warp.waits());
        if released == 0 && is_stuck(block) {
            // A block whose warps wait for the cluster continues when the other blocks arrive.
            let in_cluster = block.warps.iter().any(|warp| warp.cluster.waiting.is_some());
            let size = launch.config.cluster_size();
            if !in_cluster || self.blocks[slot / size * size..][..size].iter().all(is_stuck) {
                return Err(self.deadlock(slot));
            }
            return Ok(false);
        }
        match block.lost(idle && released == 0) {
            Some(warp) => Err(self.lost_phase(slot, warp)),
            None => Ok(false),
        }
    }

    /// Ends the copies that a block left in flight, and updates `handed_on`.
    fn end_block(&mut self, launch: &LaunchConstants<'_>, shared: &mut Shared<'_>, slot: usize) -> Checked<()> {
        self.slot = slot;
        let block = &mut self.blocks[slot];
        let mut env = BlockEnv {
            launch,
            memory: shared.memory,
            releases: shared.releases,
            block: &mut block.state,
            peers: Peers::default(),
            meter: &mut self.meter,
        };
        end_block(&mut env, &mut block.warps)?;
        if let Some(handed_on) = &mut self.handed_on {
            let ends = vec![u32::MAX; launch.clocks() * 32].into();
            join_others(handed_on, &Arc::new(Others::from([(block.state.number, ends)])));
            let views = block.warps.iter().flat_map(|warp| (0..32).map(|lane| warp.clock.view(lane)));
            views.filter_map(|view| view.others()).for_each(|others| join_others(handed_on, others));
        }
        Ok(())
    }

    /// Returns the fault of a warp that waits for an mbarrier phase that can no longer end.
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

    /// Returns the fault of a block whose warps all wait at barriers.
    fn deadlock(&mut self, slot: usize) -> Box<Violation> {
        let block = &self.blocks[slot];
        let (warp, violation) = block.deadlock();
        // Report the barrier instruction at which the warp waits.
        let pc = block.warps[warp].stack.last().map_or(0, |part| part.pc);
        (self.slot, self.warp) = (slot, warp);
        self.meter.pc = (pc as usize).saturating_sub(1);
        violation
    }
}
