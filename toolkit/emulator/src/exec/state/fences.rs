//! What fences and strong accesses hand from one thread to another.
//!
//! A fence before a strong write releases what the thread did, and a fence after a strong read acquires it. What was
//! released is kept by the address of the write: for the scope of a block with the block, for wider scopes with the device
//! and with the system as well.

use super::clock::{Others, View, join_others};
use crate::program::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// What strong writes released, by address.
#[derive(Debug, Default)]
pub(crate) struct Releases(HashMap<u64, Arc<Others>>);

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
    pub fn get(&self, at: u64) -> Option<&Arc<Others>> {
        self.0.get(&at)
    }

    /// Forgets what was released at an address.
    pub fn remove(&mut self, at: u64) {
        self.0.remove(&at);
    }

    /// Adds to what was released at an address.
    pub fn add(&mut self, at: u64, released: &Arc<Others>) {
        match self.0.get_mut(&at) {
            Some(known) => join_others(known, released),
            None => drop(self.0.insert(at, Arc::clone(released))),
        }
    }
}

/// What strong writes to global memory released, for the threads of one device and for those of all.
#[derive(Debug, Default)]
pub(crate) struct GlobalReleases {
    /// By the number of the device.
    devices: Vec<Releases>,
    system: Releases,
}

impl GlobalReleases {
    /// Whether nothing was released.
    pub fn is_empty(&self) -> bool {
        self.system.is_empty() && self.devices.iter().all(Releases::is_empty)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.system.clear();
        self.devices.clear();
    }

    /// What was released at an address within a scope, to threads of a device.
    pub fn get(&self, scope: Scope, device: usize, at: u64) -> Option<&Arc<Others>> {
        match scope {
            Scope::Block => None,
            Scope::Device => self.devices.get(device)?.get(at),
            Scope::System => self.system.get(at),
        }
    }

    /// Forgets what was released at an address.
    pub fn remove(&mut self, at: u64) {
        self.devices.iter_mut().for_each(|device| device.remove(at));
        self.system.remove(at);
    }

    /// Adds to what a thread of a device released at an address.
    pub fn add(&mut self, scope: Scope, device: usize, at: u64, released: &Arc<Others>) {
        if scope >= Scope::Device {
            if device >= self.devices.len() {
                self.devices.resize_with(device + 1, Releases::default);
            }
            self.devices[device].add(at, released);
        }
        if scope == Scope::System {
            self.system.add(at, released);
        }
    }
}

/// The last fence of a lane.
#[derive(Clone, Debug)]
pub(crate) struct LastFence {
    /// The lane's view at the fence.
    pub view: Arc<View>,
    /// The warp's epoch at the fence.
    pub epoch: u32,
    /// The threads that the fence was for.
    pub scope: Scope,
}

/// What one lane has fenced, and what it has seen and not acquired yet.
#[derive(Debug, Default)]
pub(crate) struct LaneFences {
    /// Its last fence.
    pub last: Option<LastFence>,
    /// What its strong reads saw released, by scope. A fence acquires it.
    seen: [Option<Arc<Others>>; 3],
}

impl LaneFences {
    /// Notes what a strong read saw released within a scope.
    pub fn see(&mut self, scope: Scope, released: &Arc<Others>) {
        match &mut self.seen[scope as usize] {
            Some(seen) => join_others(seen, released),
            seen @ None => *seen = Some(Arc::clone(released)),
        }
    }

    /// Takes out what the lane saw released within a scope.
    pub fn take_seen(&mut self, scope: Scope) -> impl Iterator<Item = Arc<Others>> {
        self.seen[..=scope as usize].iter_mut().filter_map(Option::take)
    }
}

/// The fences of the lanes of a warp.
#[derive(Debug, Default)]
pub(crate) struct Fences(pub [LaneFences; 32]);
