//! A resident block: its warps, and the state that they share.

use super::launch_config::LaunchConfig;
use super::state::block::BlockState;
use super::state::clock::{View, WarpClock};
use super::state::constants::LaunchConstants;
use super::state::shared::SharedMemory;
use super::state::warp::Warp;
use crate::fault::{FaultKind, Violation};
use crate::lanes::{Lanes, Registers};
use crate::program::{Special, Value};
use std::sync::Arc;

/// Rounds without any event after which a wait for an mbarrier counts as endless.
const QUIET_ROUNDS: u32 = 10_000;

/// A resident block.
pub(super) struct ResidentBlock {
    /// The state that its warps share.
    pub state: BlockState,
    /// Its warps.
    pub warps: Vec<Warp>,
    /// The number of rounds spent only on unsuccessful tests of mbarriers, and the event count before them.
    quiet: (u32, u64),
}

impl ResidentBlock {
    /// Creates a block that has not started.
    pub fn new(launch: &LaunchConstants<'_>) -> Self {
        let program = launch.program;
        let registers = || Registers {
            words: vec![Lanes([0; 32]); program.words],
            wides: vec![Lanes([0; 32]); program.wides],
            masks: vec![0; program.predicates],
        };
        let view = Arc::new(View::new(launch.clocks()));
        let warps = (0..launch.warps()).map(|id| Warp::new(id, registers(), program.private, &view));
        let shared =
            SharedMemory::new(launch.options.check_races, launch.options.check_initialised, launch.options.poison);
        let state = BlockState { shared, ..BlockState::default() };
        let mut block = Self { state, warps: warps.collect(), quiet: (0, 0) };
        (0..launch.warps()).for_each(|warp| block.set_constants(warp, launch, false));
        block
    }

    /// Starts a block of the grid, given its cluster and its rank there. It replaces a block that has ended.
    pub fn start(&mut self, cluster: u64, rank: usize, launch: &LaunchConstants<'_>) {
        let index = launch.config.block_at(cluster, rank);
        let number = launch.first_block + cluster as u32 * launch.config.cluster_size() as u32;
        let warps = (launch.warps(), launch.warps() * launch.config.cluster_size());
        self.state.reset(index, (number, rank), launch.config.shared(launch.program.static_shared), warps);
        let view = Arc::new(View::new(launch.clocks()).after(launch.before));
        for id in 0..self.warps.len() {
            let lanes = (launch.config.threads() - id * 32).min(32);
            self.warps[id].start(u32::MAX >> (32 - lanes));
            self.warps[id].clock = WarpClock::new(rank * launch.warps() + id, &view);
            self.set_constants(id, launch, true);
        }
    }

    /// Returns whether all threads have exited.
    pub fn ended(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    /// Sets the constants of a warp. `per_block` selects the constants that change from block to block, or all others.
    fn set_constants(&mut self, index: usize, launch: &LaunchConstants<'_>, per_block: bool) {
        let config = launch.config;
        let dynamic = LaunchConfig::dynamic_start(launch.program.static_shared) as u64;
        let [bx, by, _] = config.block;
        for &(value, slot, wide) in &launch.program.constants {
            let changes = match value {
                Value::Special(
                    Special::Block(_) | Special::Cluster(_) | Special::ClusterBlock(_) | Special::ClusterRank,
                ) => true,
                // Recursive calls move these addresses. A thread that exits inside such a call does not move them back.
                Value::Private { .. } => !launch.program.activations.is_empty(),
                _ => false,
            };
            if changes != per_block {
                continue;
            }
            let lane_value = |lane: u32| {
                let thread = index as u32 * 32 + lane;
                match value {
                    Value::Bits(bits) => bits,
                    Value::Global { variable, offset } => launch.variables[variable].wrapping_add_signed(offset),
                    Value::Private { place, .. } => place as u64,
                    Value::DynamicShared { offset } => dynamic.wrapping_add_signed(offset),
                    Value::Special(special) => u64::from(match special {
                        Special::Thread(0) => thread % bx,
                        Special::Thread(1) => thread / bx % by,
                        Special::Thread(_) => thread / bx / by,
                        Special::BlockSize(axis) => config.block[usize::from(axis)],
                        Special::Block(axis) => self.state.index[usize::from(axis)],
                        Special::GridSize(axis) => config.grid[usize::from(axis)],
                        Special::Cluster(axis) => {
                            self.state.index[usize::from(axis)] / config.cluster[usize::from(axis)]
                        }
                        Special::GridClusters(axis) => config.clusters()[usize::from(axis)],
                        Special::ClusterBlock(axis) => {
                            self.state.index[usize::from(axis)] % config.cluster[usize::from(axis)]
                        }
                        Special::ClusterShape(axis) => config.cluster[usize::from(axis)],
                        Special::ClusterRank => self.state.rank as u32,
                        Special::ClusterSize => config.cluster_size() as u32,
                        Special::Lane => lane,
                        Special::Warp => index as u32,
                        Special::WarpCount => self.warps.len() as u32,
                        Special::MaskEqual => 1 << lane,
                        Special::MaskLess => (1 << lane) - 1,
                        Special::MaskLessEqual => u32::MAX >> (31 - lane),
                        Special::MaskGreaterEqual => u32::MAX << lane,
                        Special::MaskGreater => (u32::MAX << lane) & !(1 << lane),
                        Special::DynamicSharedSize => config.dynamic_shared as u32,
                        Special::TotalSharedSize => dynamic as u32 + config.dynamic_shared as u32,
                        Special::Multiprocessor => 0,
                    }),
                }
            };
            let differs = matches!(value, Value::Special(special) if special.differs_by_lane());
            let bits = if differs { std::array::from_fn(|lane| lane_value(lane as u32)) } else { [lane_value(0); 32] };
            let registers = &mut self.warps[index].registers;
            if wide {
                registers.wides[slot as usize] = Lanes(bits);
            } else {
                registers.words[slot as usize] = Lanes(bits.map(|bits| bits as u32));
            }
        }
    }

    /// Releases warps from barriers that all threads have reached, and returns the number of these barriers. `clocks`
    /// is the number of warps in a view.
    pub fn release_barriers(&mut self, clocks: usize) -> u64 {
        let living = 32 * self.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        let mut released = 0;
        for (id, barrier) in self.state.barriers.iter_mut().enumerate() {
            if barrier.arrived == 0 || barrier.arrived < barrier.expected.unwrap_or(living) {
                continue;
            }
            barrier.arrived = 0;
            let view = barrier.views.take(clocks);
            let (voters, votes) = (std::mem::take(&mut barrier.voters), std::mem::take(&mut barrier.votes));
            for warp in self.warps.iter_mut().filter(|warp| warp.waits_at == Some(id)) {
                warp.waits_at = None;
                warp.clock.receive(warp.live, &view);
                warp.learn_votes(voters, votes);
            }
            released += 1;
        }
        released
    }

    /// Returns the warp that waits for an mbarrier phase that can no longer end, if there is one.
    ///
    /// A wait counts as endless if all warps have only tested mbarriers without success for thousands of rounds. `idle`
    /// says that this is also true of the current round.
    pub fn lost(&mut self, idle: bool) -> Option<usize> {
        let still = idle && self.quiet.1 == self.state.events;
        self.quiet = (if still { self.quiet.0 + 1 } else { 0 }, self.state.events);
        let spins = |warp: &Warp| warp.live != 0 && warp.spins_on.is_some();
        if self.quiet.0 > QUIET_ROUNDS { self.warps.iter().position(spins) } else { None }
    }

    /// Returns the first waiting warp of a block that cannot continue, and the fault.
    pub fn deadlock(&self) -> (usize, Box<Violation>) {
        let waiting = self.warps.iter().filter(|warp| warp.live != 0 && warp.waits());
        let place = |warp: &Warp| match warp.waits_at {
            Some(id) => format!("warp {} at barrier {id}", warp.id),
            None => format!("warp {} at the cluster's barrier", warp.id),
        };
        let list: Vec<String> = waiting.clone().map(place).collect();
        let message = format!("{} wait for threads that never arrive", list.join(", "));
        (waiting.clone().next().map_or(0, |warp| warp.id), Violation::new(FaultKind::Deadlock, message))
    }
}
