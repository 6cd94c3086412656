//! The state of a warp, and the stack that brings parted lanes together again.

use super::bulk::PendingStore;
use super::clock::{View, WarpClock};
use super::copy::PendingCopy;
use super::fences::Fences;
use super::product::PendingProduct;
use crate::lanes::Registers;
use crate::program::NONE;
use std::collections::VecDeque;
use std::rc::Rc;

/// A part of a warp that runs together: from `pc` until `meet`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub pc: u32,
    pub meet: u32,
    pub mask: u32,
}

/// A call that has not returned: the instruction, its lanes and the height of the stack below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub call: u32,
    pub mask: u32,
    pub height: usize,
}

/// A wait for an mbarrier that was in vain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The mbarrier's offset in shared memory.
    pub at: u64,
    pub lane: usize,
    pub pc: usize,
}

/// A warp.
pub(crate) struct Warp {
    pub id: usize,
    pub registers: Registers,
    pub stack: Vec<Part>,
    pub frames: Vec<Frame>,
    /// Lanes that have not exited.
    pub live: u32,
    /// The barrier it waits at.
    pub waits_at: Option<usize>,
    /// The mbarrier whose test ended its last turn.
    pub spins_on: Option<Wait>,
    /// Private memory of all lanes, one after the other.
    pub private: Vec<u8>,
    pub clock: WarpClock,
    /// What its fences are good for, once there was one or something to acquire.
    pub fences: Option<Box<Fences>>,
    /// Copies not yet committed.
    pub copies: Vec<PendingCopy>,
    /// Committed groups of copies, oldest first.
    pub groups: VecDeque<Vec<PendingCopy>>,
    /// Bulk copies to global memory, oldest first.
    pub stores: Vec<PendingStore>,
    /// Products of the warp group, oldest first.
    pub products: VecDeque<PendingProduct>,
    /// Whether there was a `wgmma.fence`.
    pub product_fence: bool,
}

impl Warp {
    /// A warp that has not started, with so many bytes of private memory for each lane.
    pub fn new(id: usize, registers: Registers, private: usize, view: &Rc<View>) -> Self {
        Self {
            id,
            registers,
            stack: Vec::new(),
            frames: Vec::new(),
            live: 0,
            waits_at: None,
            spins_on: None,
            private: vec![0xcd; 32 * private],
            clock: WarpClock::new(view),
            fences: None,
            copies: Vec::new(),
            groups: VecDeque::new(),
            stores: Vec::new(),
            products: VecDeque::new(),
            product_fence: false,
        }
    }

    /// Sets the lanes off at the first instruction.
    pub fn start(&mut self, mask: u32) {
        self.live = mask;
        self.waits_at = None;
        self.fences = None;
        self.spins_on = None;
        self.stores.clear();
        self.products.clear();
        self.product_fence = false;
        self.stack.clear();
        self.frames.clear();
        self.copies.clear();
        self.groups.clear();
        self.stack.push(Part { pc: 0, meet: NONE, mask });
    }

    /// Parts the lanes of the top of the stack: `taken` go to `target`, the others on to `next`; they meet at `meet`.
    pub fn part(&mut self, taken: u32, target: u32, next: u32, meet: u32) {
        let Some(top) = self.stack.last_mut() else { return };
        let others = top.mask & !taken;
        if meet == NONE || meet == top.meet {
            // They meet no earlier than the lanes below them: the part itself becomes one of the two.
            let meet = top.meet;
            *top = Part { pc: next, meet, mask: others };
            self.stack.push(Part { pc: target, meet, mask: taken });
        } else {
            top.pc = meet;
            self.stack.push(Part { pc: next, meet, mask: others });
            self.stack.push(Part { pc: target, meet, mask: taken });
        }
    }

    /// Lanes leave: the innermost call, or the kernel. Returns the calls that ended.
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

    /// Drops parts that no lane is in. Returns the calls that ended.
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
