//! What fences and strong accesses hand from one thread to another.
//!
//! A fence before a strong write releases what the thread did, and a fence after a strong read acquires it. What was
//! released is kept by the address of the write: for the scope of a block with the block, for wider scopes with the launch
//! as well.

use super::clock::{Others, View, join_others};
use std::collections::HashMap;
use std::rc::Rc;

/// What strong writes released, by address.
#[derive(Debug, Default)]
pub(crate) struct Releases(HashMap<u64, Rc<Others>>);

impl Releases {
    /// Whether nothing was released.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What was released at an address.
    pub fn get(&self, at: u64) -> Option<&Rc<Others>> {
        self.0.get(&at)
    }

    /// Forgets what was released at an address.
    pub fn remove(&mut self, at: u64) {
        self.0.remove(&at);
    }

    /// Adds to what was released at an address.
    pub fn add(&mut self, at: u64, released: &Rc<Others>) {
        match self.0.get_mut(&at) {
            Some(known) => join_others(known, released),
            None => drop(self.0.insert(at, Rc::clone(released))),
        }
    }
}

/// The last fence of a lane.
#[derive(Clone, Debug)]
pub(crate) struct LastFence {
    /// The lane's view at the fence.
    pub view: Rc<View>,
    /// The warp's epoch at the fence.
    pub epoch: u32,
    /// Whether the fence was for more than the block.
    pub wide: bool,
}

/// What one lane has fenced, and what it has seen and not acquired yet.
#[derive(Debug, Default)]
pub(crate) struct LaneFences {
    /// Its last fence.
    pub last: Option<LastFence>,
    /// What its strong reads saw released, within the block and beyond. A fence acquires it.
    seen: [Option<Rc<Others>>; 2],
}

impl LaneFences {
    /// Notes what a strong read saw released, within the block (0) or beyond (1).
    pub fn see(&mut self, scope: usize, released: &Rc<Others>) {
        match &mut self.seen[scope] {
            Some(seen) => join_others(seen, released),
            seen @ None => *seen = Some(Rc::clone(released)),
        }
    }

    /// Takes out what the lane saw released within the block, and if `wide` beyond it.
    pub fn take_seen(&mut self, wide: bool) -> impl Iterator<Item = Rc<Others>> {
        self.seen[..1 + usize::from(wide)].iter_mut().filter_map(Option::take)
    }
}

/// The fences of the lanes of a warp.
#[derive(Debug, Default)]
pub(crate) struct Fences(pub [LaneFences; 32]);
