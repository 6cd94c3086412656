//! A block that is resident: its warps, and what they share.

use super::barrier::Barrier;
use super::bulk::Fill;
use super::clock::{Clock, View};
use super::fence::Releases;
use super::mbarrier::Mbarrier;
use super::shape::Shape;
use super::shared::Shared;
use super::warp::Warp;
use crate::device::LaunchOptions;
use crate::fault::{FaultKind, Violation};
use crate::lanes::Registers;
use crate::program::{Kernel, Special, Value};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Rounds without any event after which waiting for an mbarrier is taken to be endless.
const QUIET_ROUNDS: u32 = 10_000;

/// What the warps of a block share.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Index of the block in the grid.
    pub index: [u32; 3],
    /// The same as one number.
    pub number: u32,
    pub shared: Shared,
    pub barriers: [Barrier; 16],
    /// Mbarriers by their offset in shared memory.
    pub mbarriers: BTreeMap<u64, Mbarrier>,
    /// Bulk copies to shared memory, oldest first.
    pub fills: Vec<Fill>,
    /// How many such copies have ended.
    pub fills_ended: u32,
    /// How often something happened that a thread may wait for in a loop.
    pub events: u64,
    /// What strong writes released, for threads of the block to acquire.
    pub releases: Releases,
}

/// What all blocks of a launch have in common.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    pub kernel: &'a Kernel,
    pub shape: Shape,
    /// Addresses of the module's variables.
    pub variables: &'a [u64],
}

/// A block.
pub(super) struct Block {
    /// Lent to the machine while one of the warps runs.
    pub state: Box<State>,
    pub warps: Vec<Warp>,
    /// Rounds in which its warps did nothing but ask mbarriers in vain, and the count of events before them.
    quiet: (u32, u64),
}

impl Block {
    /// A block that has not started.
    pub fn new(layout: &Layout<'_>, options: &LaunchOptions) -> Self {
        let kernel = layout.kernel;
        let registers = Registers {
            words: vec![[0; 32]; kernel.words],
            wides: vec![[0; 32]; kernel.wides],
            masks: vec![0; kernel.predicates],
        };
        let count = layout.shape.threads().div_ceil(32);
        let view = Rc::new(View::new(count + 1));
        let warps = (0..count).map(|id| Warp {
            id,
            registers: registers.clone(),
            stack: Vec::new(),
            frames: Vec::new(),
            live: 0,
            waits_at: None,
            fences: None,
            private: vec![0xcd; 32 * kernel.private],
            clock: Clock::new(&view),
            copies: Vec::new(),
            groups: VecDeque::new(),
            spins_on: None,
            stores: Vec::new(),
            products: VecDeque::new(),
            product_fence: false,
        });
        let shared = Shared::new(options.check_races, options.check_initialised);
        let state = Box::new(State { shared, ..State::default() });
        let mut block = Self { state, warps: warps.collect(), quiet: (0, 0) };
        (0..count).for_each(|index| block.constants(index, layout, false));
        block
    }

    /// Starts a block of the grid, in place of one that has ended.
    pub fn start(&mut self, number: u64, layout: &Layout<'_>) {
        self.state.index = layout.shape.block_at(number);
        self.state.number = number as u32;
        self.state.releases.clear();
        self.state.mbarriers.clear();
        self.state.fills.clear();
        self.state.fills_ended = 0;
        self.state.shared.reset(layout.shape.shared(layout.kernel.static_shared));
        self.state.barriers = Default::default();
        let view = Rc::new(View::new(self.warps.len() + 1));
        for id in 0..self.warps.len() {
            let lanes = (layout.shape.threads() - id * 32).min(32);
            self.warps[id].start(u32::MAX >> (32 - lanes));
            self.warps[id].clock = Clock::new(&view);
            self.constants(id, layout, true);
        }
    }

    /// Whether all threads have exited.
    pub fn ended(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    /// Sets the slots of constants of a warp: those that change from block to block, or the others.
    fn constants(&mut self, index: usize, layout: &Layout<'_>, per_block: bool) {
        let Layout { kernel, shape, variables } = *layout;
        let dynamic = Shape::dynamic_start(kernel.static_shared) as u64;
        let [bx, by, _] = shape.block;
        for &(value, slot, wide) in &kernel.constants {
            if matches!(value, Value::Special(Special::Block(_))) != per_block {
                continue;
            }
            for lane in 0..32u32 {
                let thread = index as u32 * 32 + lane;
                let bits = match value {
                    Value::Bits(bits) => bits,
                    Value::Global { variable, offset } => variables[variable].wrapping_add_signed(offset),
                    Value::DynamicShared { offset } => dynamic.wrapping_add_signed(offset),
                    Value::Special(special) => u64::from(match special {
                        Special::Thread(0) => thread % bx,
                        Special::Thread(1) => thread / bx % by,
                        Special::Thread(_) => thread / bx / by,
                        Special::BlockSize(axis) => shape.block[usize::from(axis)],
                        Special::Block(axis) => self.state.index[usize::from(axis)],
                        Special::GridSize(axis) => shape.grid[usize::from(axis)],
                        Special::Lane => lane,
                        Special::Warp => index as u32,
                        Special::WarpCount => self.warps.len() as u32,
                        Special::MaskEqual => 1 << lane,
                        Special::MaskLess => (1 << lane) - 1,
                        Special::MaskLessEqual => u32::MAX >> (31 - lane),
                        Special::MaskGreaterEqual => u32::MAX << lane,
                        Special::MaskGreater => (u32::MAX << lane) & !(1 << lane),
                        Special::DynamicSharedSize => shape.dynamic_shared as u32,
                        Special::TotalSharedSize => dynamic as u32 + shape.dynamic_shared as u32,
                        Special::Multiprocessor => 0,
                    }),
                };
                let registers = &mut self.warps[index].registers;
                if wide {
                    registers.wides[slot as usize][lane as usize] = bits;
                } else {
                    registers.words[slot as usize][lane as usize] = bits as u32;
                }
            }
        }
    }

    /// Lets the warps go on whose barrier all have reached. False when there was none.
    /// Counts those that opened in `passed`.
    pub fn release_barriers(&mut self, passed: &mut u64) -> bool {
        let living = 32 * self.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        let warps = self.warps.len() + 1;
        let mut released = false;
        for (id, barrier) in self.state.barriers.iter_mut().enumerate() {
            if barrier.arrived == 0 || barrier.arrived < barrier.expected.unwrap_or(living) {
                continue;
            }
            barrier.arrived = 0;
            let view = barrier.views.take(warps);
            for warp in self.warps.iter_mut().filter(|warp| warp.waits_at == Some(id)) {
                warp.waits_at = None;
                warp.clock.receive(warp.live, &view);
            }
            *passed += 1;
            released = true;
        }
        released
    }

    /// The warp that waits for a phase of an mbarrier which can no longer end: for thousands of rounds all warps have done
    /// nothing but ask. `idle` says that they did nothing else in this round either.
    pub fn lost(&mut self, idle: bool) -> Option<usize> {
        let still = idle && self.quiet.1 == self.state.events;
        self.quiet = (if still { self.quiet.0 + 1 } else { 0 }, self.state.events);
        let spins = |warp: &Warp| warp.live != 0 && warp.spins_on.is_some();
        if self.quiet.0 > QUIET_ROUNDS { self.warps.iter().position(spins) } else { None }
    }

    /// Why no warp can go on: the first one that waits, and the fault.
    pub fn deadlock(&self) -> (usize, Box<Violation>) {
        let waiting = self.warps.iter().filter_map(|warp| Some((warp.id, warp.waits_at?)));
        let list: Vec<String> = waiting.clone().map(|(warp, id)| format!("warp {warp} at barrier {id}")).collect();
        let message = format!("{} wait for threads that never come", list.join(", "));
        (waiting.clone().next().map_or(0, |(warp, _)| warp), Violation::new(FaultKind::Deadlock, message))
    }
}
