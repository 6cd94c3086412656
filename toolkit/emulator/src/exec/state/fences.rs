//! Views that fences and strong accesses pass from one thread to another.
//!
//! A fence before a strong write releases the thread's accesses, and a fence after a strong read acquires them. A
//! released view has all accesses that come before the write. It is stored by the write's address: for block scope with
//! the block, and for wider scopes also with the device and the system.

use super::clock::{Others, View, join_others};
use crate::program::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Views that strong writes released, by address.
#[derive(Debug, Default)]
pub(crate) struct Releases(HashMap<u64, Arc<Others>>);

impl Releases {
    /// Returns whether no view was released.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all views.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the view that was released at an address.
    pub fn get(&self, at: u64) -> Option<&Arc<Others>> {
        self.0.get(&at)
    }

    /// Removes the view that was released at an address.
    pub fn remove(&mut self, at: u64) {
        self.0.remove(&at);
    }

    /// Joins a view to the one that was released at an address.
    pub fn add(&mut self, at: u64, released: &Arc<Others>) {
        match self.0.get_mut(&at) {
            Some(existing) => join_others(existing, released),
            None => drop(self.0.insert(at, Arc::clone(released))),
        }
    }
}

/// Views that strong writes to global memory released, to the threads of one device and of all devices.
#[derive(Debug, Default)]
pub(crate) struct GlobalReleases {
    /// Indexed by device number.
    devices: Vec<Releases>,
    system: Releases,
}

impl GlobalReleases {
    /// Returns whether no view was released.
    pub fn is_empty(&self) -> bool {
        self.system.is_empty() && self.devices.iter().all(Releases::is_empty)
    }

    /// Removes all views.
    pub fn clear(&mut self) {
        self.system.clear();
        self.devices.clear();
    }

    /// Returns the view that was released at an address within a scope, to threads of a device.
    pub fn get(&self, scope: Scope, device: usize, at: u64) -> Option<&Arc<Others>> {
        match scope {
            Scope::Block => None,
            Scope::Device => self.devices.get(device)?.get(at),
            Scope::System => self.system.get(at),
        }
    }

    /// Removes the views that were released at an address.
    pub fn remove(&mut self, at: u64) {
        self.devices.iter_mut().for_each(|device| device.remove(at));
        self.system.remove(at);
    }

    /// Joins a view to the one that threads of a device released at an address.
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
    /// The scope of the fence.
    pub scope: Scope,
}

/// The last fence of one lane, and the views that it has seen but not acquired yet.
#[derive(Debug, Default)]
pub(crate) struct LaneFences {
    /// Its last fence.
    pub last: Option<LastFence>,
    /// Views that its strong reads saw, by scope. A fence acquires them.
    seen: [Option<Arc<Others>>; 3],
}

impl LaneFences {
    /// Records a view that a strong read saw within a scope.
    pub fn see(&mut self, scope: Scope, released: &Arc<Others>) {
        match &mut self.seen[scope as usize] {
            Some(seen) => join_others(seen, released),
            seen @ None => *seen = Some(Arc::clone(released)),
        }
    }

    /// Takes out the views that the lane saw within a scope or a narrower one.
    pub fn take_seen(&mut self, scope: Scope) -> impl Iterator<Item = Arc<Others>> {
        self.seen[..=scope as usize].iter_mut().filter_map(Option::take)
    }
}

/// The fences of the lanes of a warp.
#[derive(Debug, Default)]
pub(crate) struct Fences(pub [LaneFences; 32]);
