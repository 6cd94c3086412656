//! A warp: its registers, and the stack that reconverges diverged lanes.

use super::bulk::PendingStore;
use super::clock::{View, WarpClock};
use super::cluster::ClusterLanes;
use super::copy::PendingCopy;
use super::fences::Fences;
use super::poison::Poison;
use super::product::PendingProduct;
use crate::exec::tensor_core::halves::RecentFactors;
use crate::lanes::{Lanes, Registers};
use crate::program::{BarrierReduction, BarrierVote, NONE};
use std::collections::VecDeque;
use std::sync::Arc;

/// Lanes of a warp that run together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The index of the next instruction.
    pub pc: u32,
    /// The instruction at which they reconverge with the lanes that they diverged from.
    pub meet: u32,
    /// The lanes.
    pub mask: u32,
}

/// A call that has not returned.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The index of the call instruction.
    pub call: u32,
    /// The first instruction of the called function.
    pub target: u32,
    /// The caller's state to restore on return, if the function is recursive.
    pub saved: Option<Box<SavedFrame>>,
    /// The lanes that made the call.
    pub mask: u32,
    /// The height of the stack of parts before the call.
    pub height: usize,
}

/// The registers and parameters of a recursive function, saved when it was called again.
#[derive(Debug)]
pub(crate) struct SavedFrame {
    pub words: Vec<Lanes<u32>>,
    pub wides: Vec<Lanes<u64>>,
    pub predicates: Vec<u32>,
    /// Parameters, lane by lane.
    pub parameters: Vec<u8>,
    /// The addresses of local variables, in the order of their slots.
    pub addresses: Vec<Lanes<u64>>,
}

/// An unsuccessful test of an mbarrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The mbarrier's offset in shared memory.
    pub at: u64,
    /// The lane that tested it.
    pub lane: usize,
    /// The index of the test instruction.
    pub pc: usize,
}

/// A warp.
pub(crate) struct Warp {
    /// Its index in the block.
    pub id: usize,
    /// Its registers.
    pub registers: Registers,
    /// Its parts. The last one runs, and the others wait for it.
    pub stack: Vec<Part>,
    /// Its calls that have not returned, the innermost last.
    pub frames: Vec<Frame>,
    /// Bytes of stack that the recursive calls of each lane use.
    pub stack_used: [usize; 32],
    /// The lanes that have not exited.
    pub live: u32,
    /// The number of the barrier at which it waits.
    pub waits_at: Option<usize>,
    /// The state of its lanes at the cluster barrier.
    pub cluster: ClusterLanes,
    /// Its vote at the barrier where it waits.
    pub vote: Option<BarrierVote>,
    /// The test of an mbarrier that ended its last turn.
    pub spins_on: Option<Wait>,
    /// The private memory of all lanes, one after the other.
    pub private: Vec<u8>,
    /// The values that are poison. `None` until the warp reads some.
    pub poison: Option<Box<Poison>>,
    /// Its epoch, and the views of its lanes.
    pub clock: WarpClock,
    /// Its fences. `None` before the first fence and the first view to acquire.
    pub fences: Option<Box<Fences>>,
    /// Copies of `cp.async` that are in no group yet.
    pub copies: Vec<PendingCopy>,
    /// Groups of copies of `cp.async`, oldest first.
    pub groups: VecDeque<Vec<PendingCopy>>,
    /// Groups of copies of `cp.async` that were closed so far.
    pub closed_groups: u64,
    /// Bulk copies to global memory, oldest first.
    pub stores: Vec<PendingStore>,
    /// Products of the warp group, oldest first.
    pub products: VecDeque<PendingProduct>,
    /// Whether it executed a `wgmma.fence` since an instruction other than a product last wrote registers of products.
    pub product_fence: bool,
    /// The factors of its last products. `None` before the first product.
    pub factors: Option<Box<RecentFactors>>,
}

impl Warp {
    /// Creates a warp that has not started, with `private` bytes of private memory for each lane.
    pub fn new(id: usize, registers: Registers, private: usize, view: &Arc<View>) -> Self {
        Self {
            id,
            registers,
            stack: Vec::new(),
            frames: Vec::new(),
            stack_used: [0; 32],
            live: 0,
            waits_at: None,
            cluster: ClusterLanes::default(),
            vote: None,
            spins_on: None,
            private: vec![0xcd; 32 * private],
            poison: None,
            clock: WarpClock::new(id, view),
            fences: None,
            copies: Vec::new(),
            groups: VecDeque::new(),
            closed_groups: 0,
            stores: Vec::new(),
            products: VecDeque::new(),
            product_fence: false,
            factors: None,
        }
    }

    /// Starts the lanes of a mask at the first instruction.
    pub fn start(&mut self, mask: u32) {
        self.live = mask;
        self.poison = None;
        self.stack_used = [0; 32];
        self.waits_at = None;
        self.cluster = ClusterLanes::default();
        self.fences = None;
        self.spins_on = None;
        self.stores.clear();
        self.products.clear();
        self.product_fence = false;
        self.stack.clear();
        self.frames.clear();
        self.copies.clear();
        self.groups.clear();
        self.closed_groups = 0;
        self.stack.push(Part { pc: 0, meet: NONE, mask });
    }

    /// Returns whether it waits at a barrier.
    pub fn waits(&self) -> bool {
        self.waits_at.is_some() || self.cluster.waiting.is_some()
    }

    /// Writes the result of a barrier's vote to a register, if the warp takes part in one.
    pub fn learn_votes(&mut self, voters: u32, votes: u32) {
        let Some(BarrierVote { reduction, result, .. }) = self.vote.take() else { return };
        let answer = match reduction {
            BarrierReduction::Count => {
                let target = &mut self.registers.words[result as usize];
                return (0..32).filter(|lane| self.live >> lane & 1 == 1).for_each(|lane| target[lane] = votes);
            }
            BarrierReduction::All => votes == voters,
            BarrierReduction::Any => votes != 0,
        };
        let target = &mut self.registers.masks[result as usize];
        *target = *target & !self.live | if answer { self.live } else { 0 };
    }

    /// Splits the lanes at the top of the stack: `taken` go to `target` and the others to `next`. They reconverge at
    /// `meet`.
    pub fn part(&mut self, taken: u32, target: u32, next: u32, meet: u32) {
        let Some(top) = self.stack.last_mut() else { return };
        let others = top.mask & !taken;
        if meet == NONE || meet == top.meet {
            // They reconverge where the part ends anyway, so no part has to wait for them there.
            let meet = top.meet;
            *top = Part { pc: next, meet, mask: others };
            self.stack.push(Part { pc: target, meet, mask: taken });
        } else {
            top.pc = meet;
            self.stack.push(Part { pc: next, meet, mask: others });
            self.stack.push(Part { pc: target, meet, mask: taken });
        }
    }

    /// Removes lanes that leave the innermost call, or the kernel. Returns the calls that ended.
    pub fn leave(&mut self, mask: u32, kernel: bool) -> Vec<Frame> {
        let floor = if kernel { 0 } else { self.frames.last().map_or(0, |frame| frame.height) };
        for part in &mut self.stack[floor..] {
            part.mask &= !mask;
        }
        if kernel || self.frames.is_empty() {
            self.live &= !mask;
        }
        self.unwind()
    }

    /// Drops parts without lanes. Returns the calls that ended.
    pub fn unwind(&mut self) -> Vec<Frame> {
        let mut ended = Vec::new();
        loop {
            if self.frames.last().is_some_and(|frame| frame.height == self.stack.len()) {
                ended.extend(self.frames.pop());
            } else if self.stack.last().is_some_and(|part| part.mask == 0) {
                self.stack.pop();
            } else {
                return ended;
            }
        }
    }
}
